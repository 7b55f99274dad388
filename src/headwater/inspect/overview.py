"""All stream tables and the service at a glance, cheap enough to read each second.

`status` counts the rows of each stream table and of each change table that it reads. With a thousand of them
that takes seconds. Here a few queries read the catalog, however large it is; the server's statistics say
which change tables have rows; and only some stream tables are examined, beginning with those for which
changes seem to wait. The others have their turn when nothing more urgent is left.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from headwater.capture import buffers
from headwater.catalog import jobs
from headwater.catalog import stream_tables as catalog
from headwater.catalog.jobs import RunningJob
from headwater.catalog.stream_tables import CatalogSource, Frontier
from headwater.config import Settings
from headwater.db.connection import Connection, one
from headwater.db.queries import query
from headwater.errors import InvalidSetting
from headwater.scheduling.schedules import Schedule, effective, parse_schedule, typical_interval
from headwater.scheduling.tiers import FACTORS, Tier

LOOKED_INTO = 32
"""Stream tables that are examined at once for waiting change rows."""
COUNTED_ROWS = 10_000
"""Waiting change rows of one source are counted up to this number plus one."""
BEHIND_INTERVALS = 2.0
BEHIND_SECONDS = 2.0
"""A stream table is behind if changes have waited for longer than both."""
SILENT_SECONDS = 10.0
"""A scheduler that has not reported for its interval plus this time counts as silent."""

State = Literal["broken", "failing", "suspended", "behind", "running", "waiting", "loading", "current"]
STATES: tuple[State, ...] = (
    "broken",
    "failing",
    "suspended",
    "behind",
    "running",
    "waiting",
    "loading",
    "current",
)
"""The states, those that need attention first."""


@dataclass(frozen=True, kw_only=True)
class Glance:
    """A stream table at a glance."""

    stream_table: str
    state: State
    mode: str
    engine: str
    schedule: str | None
    tier: str | None
    pending_rows: int | None  # change rows that wait for it and for what it reads; None: not counted
    lag_seconds: float | None  # 0 when nothing waits, else how long changes have waited at most
    last_action: str | None
    last_refresh_at: datetime | None
    last_refresh_ms: float | None
    failures: int  # since the latest successful refresh
    reason: str | None  # the last error, why it is suspended, or why it will be recomputed
    job: RunningJob | None  # its running refresh


@dataclass(frozen=True, kw_only=True)
class ServiceStatus:
    """The state of the scheduler of a database, as it reports it."""

    state: Literal["running", "draining", "silent"]
    started_at: datetime
    ticked_at: datetime
    ticks: int
    tick_ms: float  # CPU time of the latest tick
    busy_share: float  # share of the time in which its loop works
    stream_tables: int  # how many it keeps fresh
    changed: int  # how many of these wait for a refresh
    queued_jobs: int  # how many wait for a worker
    active_workers: int
    max_workers: int


@dataclass(frozen=True, kw_only=True)
class WorkerStatus:
    """An external worker."""

    worker_id: str
    hostname: str
    pid: int
    status: str
    capacity: int
    jobs: int
    spark_master: str | None
    started_at: datetime
    last_heartbeat: datetime


@dataclass(frozen=True, kw_only=True)
class Overview:
    """Everything at one moment."""

    at: datetime
    database: str
    service: ServiceStatus | None  # None if no service runs
    workers: tuple[WorkerStatus, ...]
    stream_tables: tuple[Glance, ...]  # the most interesting ones first


@dataclass(frozen=True)
class _Entry:
    """A stream table as it is in the catalog."""

    id: int
    label: str
    status: str  # its own and that of its parts: see headwater.health
    status_reason: str | None
    remedy: str | None
    mode: str
    engine: str
    schedule: str | None
    time_zone: str
    tier: Tier | None
    rebuild_reason: str | None
    snapshot: str | None
    applied_by: str | None
    last_action: str | None
    last_refresh_at: datetime | None
    last_refresh_ms: float | None
    failures: int
    error: str | None

    @property
    def frontier(self) -> Frontier | None:
        if self.snapshot is None or self.applied_by is None or self.mode != "differential":
            return None
        return Frontier(snapshot=self.snapshot, applied_by=self.applied_by)


class OverviewReader:
    """Reads the overview of one database repeatedly; remembers when each stream table was current."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._turns: dict[int, int] = {}  # when each stream table was last examined
        self._turn = 0
        self._current_at: dict[int, datetime] = {}

    def read(self, settings: Settings) -> Overview:
        """Return the state of everything now."""
        connection = self._connection
        now: datetime
        now, standby = one(connection, "SELECT clock_timestamp(), pg_is_in_recovery()")
        entries = {row[0]: _Entry(*row) for row in connection.execute(query("overview", "stream_tables"), {})}
        sources = catalog.together(connection, list(entries)).sources
        reads = {
            number: {read for source in found if (read := source.stream_table_id) is not None}
            for number, found in sources.items()
        }
        written = {row[0] for row in connection.execute(query("overview", "written"))}
        waiting = self._waiting(entries, sources, written)
        intervals = _intervals(entries.values(), reads)
        running: dict[str, RunningJob] = {}
        for job in jobs.running(connection):
            if job.stream_table not in running or running[job.stream_table].phase == jobs.WAITING:
                running[job.stream_table] = job
        glances = []
        for number, entry in entries.items():
            closure = _closure(number, reads)
            counts = [waiting[member] for member in closure]
            pending = None if None in counts else sum(count or 0 for count in counts)
            lag = self._lag(entry, pending, now)
            glances.append(_glance(entry, pending, lag, intervals[number], running.get(entry.label)))
        glances.sort(key=_interest)
        return Overview(
            at=now,
            database=connection.info.dbname,
            service=None if standby else service(connection, settings),
            workers=() if standby else workers(connection),
            stream_tables=tuple(glances),
        )

    def _waiting(
        self, entries: dict[int, _Entry], sources: dict[int, list[CatalogSource]], written: set[int]
    ) -> dict[int, int | None]:
        """Count change rows that wait for each stream table; None where there may be some, uncounted."""
        self._turn += 1
        self._turns = {number: self._turns.get(number, 0) for number in entries}
        likely = {
            number
            for number, found in sources.items()
            if any(source.change_table and source.relation in written for source in found)
        }
        captured = [
            number
            for number, entry in entries.items()
            if entry.frontier is not None and entry.status != "broken"  # its change tables may be gone
        ]
        captured.sort(key=lambda number: (number not in likely, self._turns[number], number))
        found: dict[int, int | None] = {number: None if number in likely else 0 for number in captured}
        for number in captured[:LOOKED_INTO]:
            self._turns[number] = self._turn
            frontier = entries[number].frontier
            assert frontier is not None
            pending = buffers.pending(self._connection, sources[number], frontier, COUNTED_ROWS)
            found[number] = sum(each.rows for each in pending.values())
        return {number: found.get(number, 0) for number in entries}

    def _lag(self, entry: _Entry, pending: int | None, now: datetime) -> float | None:
        """Return how long changes have waited at most: since the latest refresh or sight of it as current."""
        intact = entry.status != "broken" and entry.mode == "differential" and not entry.rebuild_reason
        if pending == 0 and intact and entry.snapshot:
            self._current_at[entry.id] = now
            return 0.0
        known = [moment for moment in (self._current_at.get(entry.id), entry.last_refresh_at) if moment]
        if pending is None or not known:
            return None
        return max(0.0, (now - max(known)).total_seconds())


def service(connection: Connection, settings: Settings) -> ServiceStatus | None:
    """Return the scheduler of this database, if there is one; not on a standby."""
    silent_after = timedelta(seconds=SILENT_SECONDS, milliseconds=settings.scheduler_interval_ms)
    row = connection.execute(query("overview", "service"), {"silent_after": silent_after}).fetchone()
    return ServiceStatus(**_named(ServiceStatus, row)) if row is not None else None


def workers(connection: Connection) -> tuple[WorkerStatus, ...]:
    """Return the external workers of this database; not on a standby."""
    rows = connection.execute(query("overview", "workers"))
    return tuple(WorkerStatus(**_named(WorkerStatus, row)) for row in rows)


def _named(kind: type[Any], row: Sequence[Any]) -> dict[str, Any]:
    return dict(zip(kind.__dataclass_fields__, row, strict=True))


def _glance(
    entry: _Entry,
    pending: int | None,
    lag: float | None,
    interval: timedelta | None,
    job: RunningJob | None,
) -> Glance:
    state: State
    reason: str | None
    if entry.status == "broken":
        state, reason = "broken", f"{entry.status_reason}: {entry.remedy}"
    elif entry.status == "suspended":
        state, reason = "suspended", entry.status_reason
    elif entry.failures:
        state, reason = "failing", entry.error
    else:
        reason = f"to be recomputed: {entry.rebuild_reason}" if entry.rebuild_reason else None
        factor = FACTORS[entry.tier or "hot"]
        if entry.status == "initializing":
            state = "loading"
        elif _is_behind(lag or 0.0, interval, factor):
            state = "behind"
        elif job is not None:
            state = "running"
        else:
            state = "current" if lag == 0.0 else "waiting"
    return Glance(
        stream_table=entry.label,
        state=state,
        mode=entry.mode,
        engine=entry.engine,
        schedule=entry.schedule,
        tier=entry.tier,
        pending_rows=pending,
        lag_seconds=lag,
        last_action=entry.last_action,
        last_refresh_at=entry.last_refresh_at,
        last_refresh_ms=entry.last_refresh_ms,
        failures=entry.failures,
        reason=reason,
        job=job,
    )


def _is_behind(lag: float, interval: timedelta | None, factor: float | None) -> bool:
    """Tell whether changes have waited for longer than a schedule explains.

    >>> _is_behind(2.5, timedelta(seconds=1), 1.0), _is_behind(2.5, timedelta(seconds=1), 2.0)
    (True, False)
    """
    if interval is None or factor is None:
        return False
    return lag > max(BEHIND_SECONDS, BEHIND_INTERVALS * factor * interval.total_seconds())


def _interest(glance: Glance) -> tuple[int, float, str]:
    return STATES.index(glance.state), -(glance.lag_seconds or 0.0), glance.stream_table


def _closure(number: int, reads: dict[int, set[int]]) -> set[int]:
    """Return a stream table and all that it reads, directly or not."""
    found, left = {number}, [number]
    while left:
        for read in reads[left.pop()] - found:
            found.add(read)
            left.append(read)
    return found


def _intervals(entries: Iterable[_Entry], reads: dict[int, set[int]]) -> dict[int, timedelta | None]:
    """Return how often each is refreshed; None if only on request, or if its schedule cannot be parsed."""
    readers: dict[int, set[int]] = {number: set() for number in reads}
    for number, found in reads.items():
        for read in found:
            readers[read].add(number)
    schedules = {entry.id: _schedule(entry.schedule, entry.time_zone) for entry in entries}
    return {
        number: typical_interval(schedule) if schedule is not None else None
        for number, schedule in effective(schedules, readers).items()
    }


@functools.lru_cache(maxsize=1024)
def _schedule(text: str | None, time_zone: str) -> Schedule:
    try:
        return parse_schedule(text, time_zone)
    except InvalidSetting:  # stored by hand; the service reports it
        return parse_schedule(None, time_zone)
