"""The clean-up of the history inside a scheduler: turns in a thread and over a connection of its own.

A tick need not wait for it, and after an upgrade it may have much to do. The connection lives as long as the
turn.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

import psycopg

from headwater.catalog.cleanup import clean_up
from headwater.config import Settings
from headwater.db.connection import Connection, bound, translated
from headwater.db.route import Route
from headwater.errors import HeadwaterError

TURN_SECONDS = 10.0
"""What is left after so long is left to the next turn."""
STOPPING_SECONDS = 10.0


class HistoryCleaning:
    """Runs turns of the clean-up; `failed` is called by their thread."""

    def __init__(self, route: Route, failed: Callable[[HeadwaterError], None]) -> None:
        self._route = route
        self._failed = failed
        self._thread: threading.Thread | None = None
        self._connection: Connection | None = None
        self._stopping = threading.Event()

    def start(self, settings: Settings) -> None:
        """Begins a turn, unless the one before has not ended."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._work, args=(settings,), name="history", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Ends the turn that runs; what it has done stays done."""
        self._stopping.set()
        connection = self._connection
        if connection is not None:
            with suppress(psycopg.Error):
                connection.cancel()
        if self._thread is not None:
            self._thread.join(STOPPING_SECONDS)

    def _work(self, settings: Settings) -> None:
        try:
            with self._route.session("cleaning up the history") as connection:
                self._connection = connection
                try:
                    bound(connection, settings)
                    clean_up(connection, settings, TURN_SECONDS, self._stopping.is_set)
                finally:
                    self._connection = None
        except HeadwaterError as error:
            self._failed(error)
        except psycopg.errors.QueryCanceled:
            pass  # it was stopped
        except psycopg.Error as error:
            self._failed(translated(error, "cleaning up the history", HeadwaterError))
