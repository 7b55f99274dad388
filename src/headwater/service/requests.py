"""Requests: what users ask for in SQL, by the procedures and functions of schema `headwater`.

A request is a row of `headwater.request`, committed by who asks; NOTIFY wakes us, and so does each second.
The session that carries it out holds the advisory lock (1214610, id) all the while. So a request that is
`running` and whose lock nobody holds is a dead process's, and is taken up again. The lock, the listening and
the work are of one session: who lost it has stopped working. Requests for one stream table are carried out in
their order, also by several threads or processes.

Done twice, because a process died after the work and before the answer:

- create: finds what it made itself, by the query and the time, and says that it was created;
- alter, suspend, resume: set what is set already; a query that is the same loads nothing;
- drop: finds nothing, which is what was wanted;
- refresh: finds little or nothing to do.

A request whose process dies each time would have it die for ever; it is given up at its third attempt.

It is carried out with the rights of our role. Names and the query are looked up by the search_path of who
asked, and the query is evaluated in that one's time zone, as if `headwater create` were run there.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from headwater import errors as known
from headwater.api import Headwater
from headwater.catalog import stream_tables as catalog
from headwater.catalog.history import Outcome
from headwater.catalog.stream_tables import StreamTable
from headwater.db.connection import one, transaction, translated
from headwater.db.queries import query
from headwater.errors import AlreadyExists, ConnectionFailed, HeadwaterError, NotFound

CHANNEL = "headwater_requests"
REQUEST_LOCK = 1_214_610
"""Class of the session locks of requests that are being carried out."""
LONGEST_WAIT = 1.0
"""Seconds after which we look for requests without having been woken."""
MOST_ATTEMPTS = 3
SQLSTATES: dict[type[HeadwaterError], str] = {
    known.NotInstalled: "55000",
    known.CatalogVersionMismatch: "55000",
    known.RepairNeeded: "55000",
    known.ReadOnlyServer: "25006",
    known.MissingPrivilege: "42501",
    known.InvalidQuery: "42601",
    known.InvalidSource: "42809",
    known.InvalidName: "42602",
    known.InvalidSetting: "22023",
    known.AlreadyExists: "42P07",
    known.NotFound: "42P01",
    known.CyclicDependency: "42P19",
    known.DependentsExist: "2BP01",
    known.NotIncremental: "0A000",
    known.EngineUnavailable: "58000",
    known.EngineFailed: "58000",
    known.RefreshFailed: "55000",
    known.RefreshCancelled: "57014",
    known.Suspended: "55000",
    known.LockNotAvailable: "55P03",
}
"""For errors that are ours and no server's: what a user of SQL tells them by."""
OTHERWISE = "XX000"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Asked:
    """A request that we carry out."""

    id: int
    verb: str
    arguments: Mapping[str, Any]
    search_path: str
    time_zone: str
    attempt: int  # counts from 1

    @property
    def name(self) -> str:
        return str(self.arguments["name"])


class Requests:
    """Carries out the requests of one database over a handle of its own, one at a time.

    `connect` gives a handle; it is called again when the connection broke. Behind a transaction pooler it
    must reach the server itself, for we listen and hold session locks.
    """

    def __init__(self, connect: Callable[[], Headwater]) -> None:
        self._connect = connect
        self._handle: Headwater | None = None

    def run(self, stop: threading.Event) -> None:
        """Answers until told to stop; what is being carried out then is finished first."""
        try:
            while not stop.is_set():
                try:
                    handle = self._listening()
                    while not stop.is_set() and self._answer_next(handle):
                        pass
                    if not stop.is_set():
                        for _ in handle.connection.notifies(timeout=LONGEST_WAIT, stop_after=1):
                            pass
                except (psycopg.Error, HeadwaterError) as error:
                    # The database is away, or not fit for work: the request stays, and we come again.
                    log.warning("requests are not answered for now: %s", error)
                    self.close()
                    stop.wait(LONGEST_WAIT)
        finally:
            self.close()

    def close(self) -> None:
        if self._handle is not None:
            self._handle.close()
            self._handle = None

    def _listening(self) -> Headwater:
        if self._handle is None or self._handle.connection.closed:
            self.close()
            self._handle = self._connect()
            self._handle.connection.execute(f"LISTEN {CHANNEL}")
        return self._handle

    def _answer_next(self, handle: Headwater) -> bool:
        """Carries out the oldest request; False if there is none."""
        asked = self._claim(handle)
        if asked is None:
            return False
        connection = handle.connection
        path, zone = one(connection, query("requests", "own"))
        try:
            if asked.attempt > MOST_ATTEMPTS:
                raise HeadwaterError(
                    f"request {asked.id} ({asked.verb} {asked.name}) was given up: whoever carried it out"
                    f" died, {MOST_ATTEMPTS} times in a row",
                    hint="look into the logs of the service and of the server",
                )
            connection.execute(
                query("requests", "assume"),
                {"search_path": asked.search_path, "time_zone": asked.time_zone},
            )
            result = VERBS[asked.verb](handle, asked)
        except ConnectionFailed:
            raise
        except Exception as error:
            if connection.closed:
                raise
            self._answer(handle, asked, error=error)
        else:
            self._answer(handle, asked, result=result)
        connection.execute(query("requests", "assume"), {"search_path": path, "time_zone": zone})
        connection.execute(query("requests", "unlock"), {"lock": REQUEST_LOCK, "id": asked.id})
        return True

    def _claim(self, handle: Headwater) -> Asked | None:
        connection = handle.connection
        with transaction(connection):
            row = connection.execute(query("requests", "next"), {"lock": REQUEST_LOCK}).fetchone()
            if row is None:
                return None
            asked = Asked(*row)
            if not one(connection, query("requests", "lock"), {"lock": REQUEST_LOCK, "id": asked.id})[0]:
                return None  # its session lives after all
            connection.execute(query("requests", "pick"), {"id": asked.id, "attempt": asked.attempt})
        return asked

    def _answer(
        self,
        handle: Headwater,
        asked: Asked,
        *,
        result: Mapping[str, Any] | None = None,
        error: Exception | None = None,
    ) -> None:
        failure = _told(error, asked) if error is not None else None
        handle.connection.execute(
            query("requests", "answer"),
            {
                "id": asked.id,
                "attempt": asked.attempt,
                "status": "done" if failure is None else "failed",
                "result": Jsonb(result) if result is not None else None,
                "error": failure.message if failure is not None else None,
                "detail": failure.detail if failure is not None else None,
                "hint": failure.hint if failure is not None else None,
                "sqlstate": sqlstate_of(error) if error is not None else None,
            },
        )
        log.info("request %s: %s %s: %s", asked.id, asked.verb, asked.name, failure or (result or {})["said"])


def _told(error: Exception, asked: Asked) -> HeadwaterError:
    if isinstance(error, HeadwaterError):
        return error
    if isinstance(error, psycopg.Error):
        return translated(error, f"{asked.verb} {asked.name}", HeadwaterError)
    log.error("request %s failed", asked.id, exc_info=error)
    return HeadwaterError(
        f"{asked.verb} {asked.name}: {type(error).__name__}: {error}",
        hint="this is a mistake in Headwater; the log of the service has more",
    )


def sqlstate_of(error: BaseException) -> str:
    """The server's SQLSTATE if it had one, else that of the kind of error.

    >>> sqlstate_of(known.NotFound("there is no stream table x"))
    '42P01'
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, psycopg.Error) and cause.sqlstate is not None:
            return cause.sqlstate
        cause = cause.__cause__
    return next((SQLSTATES[kind] for kind in type(error).__mro__ if kind in SQLSTATES), OTHERWISE)


# the verbs


def _create(handle: Headwater, asked: Asked) -> dict[str, Any]:
    given = asked.arguments
    try:
        found = handle.create(
            asked.name,
            given["query"],
            schedule=given["schedule"],
            mode=given["refresh_mode"] or "auto",
            engine=given["engine"] or "auto",
            tier=given["tier"] or "auto",
            if_not_exists=bool(given["if_not_exists"]),
            or_replace=bool(given["or_replace"]),
            cascade=bool(given["cascade"]),
        )
    except AlreadyExists as error:
        if asked.attempt == 1:
            raise
        try:
            found = catalog.find(handle.connection, asked.name)
        except NotFound:  # something else has the name
            raise error from None
        ours = {"id": asked.id, "stream_table_id": found.id}
        if (
            found.status == "initializing"
            or not one(handle.connection, query("requests", "made_by"), ours)[0]
        ):
            raise
    return _definition(found, "created")


def _alter(handle: Headwater, asked: Asked) -> dict[str, Any]:
    given = asked.arguments
    found = handle.alter(
        asked.name,
        query=given["query"],
        mode=given["refresh_mode"],
        engine=given["engine"],
        schedule=given["schedule"],
        unscheduled=bool(given["no_schedule"]),
        tier=given["tier"],
        cascade=bool(given["cascade"]),
    )
    return _definition(found, "altered")


def _drop(handle: Headwater, asked: Asked) -> dict[str, Any]:
    try:
        dropped = handle.drop(asked.name, cascade=bool(asked.arguments["cascade"]))
    except NotFound:
        if not asked.arguments["if_exists"] and asked.attempt == 1:
            raise
        dropped = []
    said = f"dropped {', '.join(dropped)}" if dropped else f"there is no stream table {asked.name}"
    return {"dropped": dropped, "said": said}


def _refresh(handle: Headwater, asked: Asked) -> dict[str, Any]:
    outcomes = handle.refresh(
        asked.name, full=bool(asked.arguments["full"]), engine=asked.arguments["engine"]
    )
    last = outcomes[-1]
    return {
        "outcomes": [_outcome(outcome) for outcome in outcomes],
        "said": f"refreshed {last.stream_table}: {last.action}, {last.reason}",
    }


def _suspend(handle: Headwater, asked: Asked) -> dict[str, Any]:
    return _definition(handle.suspend(asked.name, asked.arguments["reason"]), "suspended")


def _resume(handle: Headwater, asked: Asked) -> dict[str, Any]:
    return _definition(handle.resume(asked.name), "resumed")


def _definition(found: StreamTable, verb: str) -> dict[str, Any]:
    """What `create` and `alter` say: also why it is recomputed, if nobody asked for that."""
    reasons = found.mode_reasons if found.requested_mode != "full" else ()
    because = f", because {'; '.join(reasons)}" if found.mode == "full" and reasons else ""
    return {
        "stream_table": found.label,
        "id": found.id,
        "status": found.status,
        "mode": found.mode,
        "requested_mode": found.requested_mode,
        "engine": found.engine,
        "schedule": found.schedule,
        "tier": found.tier,
        "reasons": list(found.mode_reasons),
        "load_check": found.load_check,
        "said": f"{verb} {found.label}: {found.status}, mode {found.mode}{because}",
    }


def _outcome(outcome: Outcome) -> dict[str, Any]:
    return {
        "stream_table": outcome.stream_table,
        "action": outcome.action,
        "engine": outcome.engine,
        "reason": outcome.reason,
        "rows_in": outcome.rows_in,
        "rows_inserted": outcome.applied.inserted,
        "rows_updated": outcome.applied.updated,
        "rows_deleted": outcome.applied.deleted,
        "duration_ms": outcome.duration_ms,
    }


VERBS: dict[str, Callable[[Headwater, Asked], dict[str, Any]]] = {
    "create": _create,
    "alter": _alter,
    "drop": _drop,
    "refresh": _refresh,
    "suspend": _suspend,
    "resume": _resume,
}
"""Every verb that `headwater.request` takes."""
