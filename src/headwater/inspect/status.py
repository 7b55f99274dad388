"""What operators see of each stream table: how fresh it is, what waits, what its last refresh did."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from psycopg import sql

from headwater.capture import buffers
from headwater.catalog import jobs
from headwater.catalog import stream_tables as catalog
from headwater.catalog.jobs import RunningJob
from headwater.catalog.stream_tables import CatalogSource, StreamTable
from headwater.config import Settings
from headwater.db.connection import Connection, one

COUNTED_ROWS = 100_000
"""Stored rows are counted up to this number; beyond, the server's estimate is shown."""


@dataclass(frozen=True, kw_only=True)
class StreamTableStatus:
    """A stream table as `headwater list` and `headwater status` show it."""

    stream_table: str
    status: str  # initializing, active, suspended, or broken: something that it needs was dropped
    mode: str
    requested_mode: str
    engine: str
    schedule: str | None
    reason: str | None  # why it is not differential
    rebuild_reason: str | None
    rows: int | None
    pending_rows: int  # change rows that wait for it and for what it reads, each up to max_buffer_rows
    last_action: str | None
    last_refresh_at: datetime | None
    last_refresh_ms: float | None
    lag_seconds: float | None  # 0 when nothing waits, else the time since the last refresh
    frontier: str | None
    sources: tuple[str, ...]
    job: RunningJob | None  # its running refresh
    tier: str | None = None  # None: follows how often its sources change
    suspended_reason: str | None = None
    status_reason: str | None = None  # why it is broken or suspended
    remedy: str | None = None  # how to make it active again
    load_check: str | None = None  # how its rows were compared with its query when they were loaded
    audited_at: datetime | None = None
    audit_result: str | None = None


def statuses(connection: Connection, ids: list[int] | None, settings: Settings) -> list[StreamTableStatus]:
    """Return the state of all stream tables, or of those with these ids."""
    last = {
        row[0]: row[1:]
        for row in connection.execute(
            "SELECT id, last_action, last_refresh_at, last_refresh_ms,"
            " extract(epoch FROM clock_timestamp() - last_refresh_at) FROM headwater.stream_tables"
        )
    }
    everything = {stream_table.id: stream_table for stream_table in catalog.stream_tables(connection)}
    closures = {number: catalog.closure(connection, number) for number in (ids or everything)}
    read_by = {member: found for closure in closures.values() for member, found in closure.sources.items()}
    health = catalog.health(connection, list(read_by))
    waiting_for = {
        # The change tables of one that is broken may be gone.
        member: _waiting(connection, everything[member], sources, settings)
        if health[member].status != "broken"
        else 0
        for member, sources in read_by.items()
    }
    running = _running(connection)
    audits = {
        row[0]: row[1:]
        for row in connection.execute("SELECT stream_table_id, audited_at, result FROM headwater.audit")
    }
    found = []
    for number, closure in closures.items():
        stream_table = everything[number]
        sources = closure.sources[number]
        waiting = sum(waiting_for[member] for member in closure.order)
        action, refreshed_at, milliseconds, age = last[stream_table.id]
        state = health[stream_table.id]
        audited_at, audit_result = audits.get(stream_table.id, (None, None))
        current = (
            stream_table.mode == "differential"
            and all(health[member].status == "active" for member in closure.order)
            and not (waiting or stream_table.rebuild_reason)
        )
        found.append(
            StreamTableStatus(
                stream_table=stream_table.label,
                status=state.status,
                mode=stream_table.mode,
                requested_mode=stream_table.requested_mode,
                engine=stream_table.engine,
                schedule=stream_table.schedule,
                reason="; ".join(stream_table.mode_reasons) or None,
                rebuild_reason=stream_table.rebuild_reason,
                rows=_rows(connection, stream_table) if stream_table.relation is not None else None,
                pending_rows=waiting,
                last_action=action,
                last_refresh_at=refreshed_at,
                last_refresh_ms=float(milliseconds) if milliseconds is not None else None,
                lag_seconds=0.0 if current else (float(age) if age is not None else None),
                frontier=stream_table.frontier.snapshot if stream_table.frontier else None,
                sources=tuple(source.label for source in sources),
                job=running.get(stream_table.label),
                tier=stream_table.tier,
                suspended_reason=stream_table.suspended_reason,
                status_reason=state.reason,
                remedy=state.remedy,
                load_check=stream_table.load_check,
                audited_at=audited_at,
                audit_result=audit_result,
            )
        )
    return found


def _running(connection: Connection) -> dict[str, RunningJob]:
    """Return the running refreshes by stream table; of several, the one that others wait for."""
    found: dict[str, RunningJob] = {}
    for job in jobs.running(connection):
        if job.stream_table not in found or found[job.stream_table].phase == jobs.WAITING:
            found[job.stream_table] = job
    return found


def _waiting(
    connection: Connection, stream_table: StreamTable, sources: list[CatalogSource], settings: Settings
) -> int:
    if stream_table.mode != "differential" or stream_table.frontier is None:
        return 0
    pending = buffers.pending(connection, sources, stream_table.frontier, settings.max_buffer_rows)
    return sum(item.rows for item in pending.values())


def _rows(connection: Connection, stream_table: StreamTable) -> int:
    view = sql.Identifier(stream_table.schema, stream_table.name)
    limited = sql.SQL("SELECT count(*) FROM (SELECT FROM {} LIMIT {}) AS t")
    counted: int = one(connection, limited.format(view, sql.Literal(COUNTED_ROWS)))[0]
    if counted < COUNTED_ROWS:
        return counted
    estimate: float = one(
        connection,
        "SELECT reltuples FROM pg_class WHERE oid = to_regclass(format('headwater_data.st_%%s', %s::bigint))",
        (stream_table.id,),
    )[0]
    return max(counted, int(estimate))
