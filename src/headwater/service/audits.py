"""Audits inside a scheduler: one turn at a time, in a thread and over a connection of its own.

A turn is followed by a pause that is many times as long, so audits take a small share of the database's
time, however many stream tables are due. The connection lives as long as the turn.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import psycopg

from headwater.config import Settings
from headwater.db.connection import Connection, bound, translated
from headwater.db.queries import query
from headwater.db.route import Route
from headwater.definition.reader import DefinitionReader
from headwater.engine.select import EngineSelector
from headwater.errors import ConnectionFailed, HeadwaterError, NotFound, RefreshFailed
from headwater.inspect.audit import Auditor, Turn
from headwater.refresh.transaction import MemberFailed, Refresher
from headwater.service import logs

PAUSE = 20
"""A pause is this many times as long as the turn before it: audits take one twentieth of the time."""
STOPPING_SECONDS = 10.0


@dataclass(frozen=True)
class Audited:
    """What became of a turn."""

    stream_table_id: int
    turn: Turn | None = None
    error: HeadwaterError | None = None


class Audits:
    """Runs turns of audits; `done` is called by their thread."""

    def __init__(self, route: Route, done: Callable[[Audited], None]) -> None:
        self._route = route
        self._done = done
        self._thread: threading.Thread | None = None
        self._connection: Connection | None = None
        self.earliest = -1e9  # when the next turn may begin
        self.pause = 0.0  # after the last turn

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self, stream_table_id: int, settings: Settings) -> None:
        """Begins a turn."""
        self._thread = threading.Thread(
            target=self._work, args=(stream_table_id, settings), name="audit", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Ends the turn that runs; what it has compared stays written down."""
        connection = self._connection
        if connection is not None:
            with suppress(psycopg.Error):
                connection.cancel()
        if self._thread is not None:
            self._thread.join(STOPPING_SECONDS)

    def _work(self, stream_table_id: int, settings: Settings) -> None:
        began = time.monotonic()
        audited = self._audited(stream_table_id, settings)
        ended = time.monotonic()
        self.pause = PAUSE * (ended - began)
        self.earliest = ended + self.pause
        self._done(audited)

    def _audited(self, stream_table_id: int, settings: Settings) -> Audited:
        try:
            with self._route.connect() as connection:
                self._connection = connection
                try:
                    bound(connection, settings)
                    return self._turn(connection, stream_table_id, settings)
                finally:
                    self._connection = None
        except HeadwaterError as error:
            return Audited(stream_table_id, error=error)
        except psycopg.Error as error:
            return Audited(stream_table_id, error=translated(error, "an audit", RefreshFailed))

    def _turn(self, connection: Connection, stream_table_id: int, settings: Settings) -> Audited:
        refresher = Refresher(connection, settings, DefinitionReader(connection), EngineSelector(self._route))
        try:
            return Audited(stream_table_id, Auditor(connection, settings, refresher).turn(stream_table_id))
        except NotFound:
            gone = Turn(stream_table=str(stream_table_id), slices=0, finished=True, result="it was dropped")
            return Audited(stream_table_id, gone)
        except MemberFailed as failed:  # the incident is recorded, and its next refresh heals
            return Audited(stream_table_id, error=failed.error)
        except HeadwaterError as error:
            if not isinstance(error, ConnectionFailed):
                # It is not tried again at once.
                values = {"id": stream_table_id, "slices": 0, "result": f"failed: {error.message}"}
                connection.execute(query("audit", "finish"), values)
            raise


def tell_audited(database: str, audited: Audited) -> None:
    """Logs what became of a turn."""
    turn = audited.turn
    if turn is None:
        assert audited.error is not None
        logs.failed(database, f"audit of stream table {audited.stream_table_id}", audited.error)
        return
    different = turn.result.startswith("different")
    level = logging.ERROR if different else logging.INFO if turn.finished else logging.DEBUG
    logs.say(
        level,
        "audited",
        database=database,
        stream_table=turn.stream_table,
        slices=turn.slices,
        result=turn.result or "to be continued",
        incident=turn.incident,
        hint="it is recomputed at each refresh now; headwater audits shows why" if different else None,
    )
