"""Stream tables: what they are, how fresh they are, and their running refreshes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from headwater.cli.show.values import (
    NOTHING,
    Reasoned,
    ago,
    count,
    heading,
    lines,
    milliseconds,
    pairs,
    seconds,
)

if TYPE_CHECKING:
    from headwater.catalog.jobs import RunningJob
    from headwater.catalog.stream_tables import StreamTable
    from headwater.inspect.status import StreamTableStatus
    from headwater.lifecycle.repair import Repaired
    from headwater.refresh.index_advice import MissingIndex

BAR_WIDTH = 30


def definition(
    stream_table: StreamTable,
    verb: str,
    following: str,
    indexes: Sequence[MissingIndex] = (),
    did: str = "",
    *,
    loaded: bool = False,
) -> Text:
    """Return what `create` and `alter` report.

    That is the mode and, if it recomputes though nobody asked for that, the reason; what was done to an
    existing stream table, how its rows were checked, and which indexes would make it cheaper.
    """
    said = [
        f"{verb} {stream_table.label}{f': {did}' if did else ''}",
        f"mode: {stream_table.mode} (asked for: {stream_table.requested_mode}),"
        f" engine: {stream_table.engine}, schedule: {stream_table.schedule or 'none'}"
        + (f", tier: {stream_table.tier}" if stream_table.tier else ""),
    ]
    if stream_table.mode == "full" and stream_table.requested_mode != "full":
        said.append("it recomputes at each refresh, because it cannot be maintained incrementally:")
        said += [f"  {reason}" for reason in stream_table.mode_reasons]
    if loaded and stream_table.load_check:
        said.append(stream_table.load_check)
    if indexes:
        said.append("refreshes read whole tables that an index would let them look into:")
        said += index_lines(indexes)
    return lines(*said, f"next: {following}")


def index_lines(found: Sequence[MissingIndex]) -> list[str]:
    return [f"  {item.statement}  -- {item.reason}" for item in found]


def listing(found: Sequence[StreamTableStatus]) -> RenderableType:
    if not found:
        return lines("there are no stream tables", "next: headwater create --help")
    drawn = Reasoned(
        ("stream table", "status", "mode", "engine", "schedule", "rows", "sources", "reason"),
        [
            (
                status.stream_table,
                status.status,
                status.mode,
                status.engine,
                _schedule(status),
                status.rows,
                ", ".join(status.sources),
                _why(status),
            )
            for status in found
        ],
    )
    return Group(drawn, *running(found))


def statuses(found: Sequence[StreamTableStatus], now: datetime) -> RenderableType:
    if not found:
        return lines("there are no stream tables", "next: headwater create --help")
    drawn = Reasoned(
        ("stream table", "status", "mode", "rows", "waiting", "lag", "last refresh", "reason"),
        [
            (
                status.stream_table,
                status.status,
                status.mode,
                status.rows,
                status.pending_rows,
                lag(status),
                _last(status, now),
                _why(status),
            )
            for status in found
        ],
    )
    return Group(drawn, *running(found))


def status(found: StreamTableStatus, now: datetime) -> RenderableType:
    drawn = pairs(
        [
            ("stream table", found.stream_table),
            ("status", found.status),
            *([("because", found.status_reason), ("remedy", found.remedy)] if found.remedy else []),
            ("mode", f"{found.mode} (asked for: {found.requested_mode})"),
            ("reason", found.reason),
            ("engine", found.engine),
            ("schedule", found.schedule),
            ("tier", found.tier),
            ("sources", ", ".join(found.sources) or None),
            ("rows", found.rows),
            ("waiting change rows", found.pending_rows),
            ("lag", lag(found)),
            ("last refresh", _last(found, now)),
            ("took", milliseconds(found.last_refresh_ms)),
            ("to be recomputed", found.rebuild_reason),
            ("loaded", found.load_check),
            ("audited", _audited(found, now)),
            ("frontier", found.frontier),
        ]
    )
    return Group(drawn, *running([found]))


def _audited(found: StreamTableStatus, now: datetime) -> str | None:
    if found.audited_at is None:
        return None
    return f"{ago(found.audited_at, now)}: {found.audit_result}"


def lag(status: StreamTableStatus) -> str:
    if status.lag_seconds is None:
        return NOTHING
    return seconds(status.lag_seconds) if status.lag_seconds else "current"


def _last(status: StreamTableStatus, now: datetime) -> str | None:
    return f"{status.last_action} {ago(status.last_refresh_at, now)}" if status.last_action else None


def _schedule(status: StreamTableStatus) -> str | None:
    return f"{status.schedule or 'none'}, {status.tier}" if status.tier else status.schedule


def _why(status: StreamTableStatus) -> str | None:
    state = f"{status.status}: {status.status_reason}; {status.remedy}" if status.status_reason else None
    rebuild = f"to be recomputed: {status.rebuild_reason}" if status.rebuild_reason else None
    return "; ".join(reason for reason in (state, status.reason, rebuild) if reason) or None


def running(found: Sequence[StreamTableStatus]) -> list[RenderableType]:
    """Return the running refreshes; nothing if there are none."""
    shown = [part for status in found if status.job is not None for part in _job(status.job)]
    return [heading("running"), *shown] if shown else []


def _job(job: RunningJob) -> Iterable[RenderableType]:
    stage = f": {job.stage}" if job.stage else ""
    doing = "being cancelled" if job.cancel_requested else f"{job.phase}{stage}"
    yield lines(f"{job.stream_table}  {_kind(job)}  {milliseconds(job.elapsed_ms)}  {doing}")
    rows = count(job.rows, "row") if job.rows is not None else ""
    if job.tasks:
        done = min(job.tasks_done or 0, job.tasks)
        drawn = Table.grid(padding=(0, 2, 0, 0))
        drawn.add_row(
            Padding(ProgressBar(total=job.tasks, completed=done, width=BAR_WIDTH), (0, 0, 0, 2)),
            f"{done} of {count(job.tasks, 'task')}",
            rows,
        )
        yield drawn
    elif rows:
        yield lines(f"  {rows}")
    if job.ui:
        yield lines(f"  Spark UI: {job.ui}")


def _kind(job: RunningJob) -> str:
    return f"{job.action or 'refresh'} on {job.engine}"


def repaired(found: Sequence[Repaired]) -> RenderableType:
    if not found:
        return lines("there are no stream tables")
    return Reasoned(
        ("stream table", "status", "reason"),
        [
            (item.stream_table, item.status, "; ".join(filter(None, (item.reason, item.error))) or None)
            for item in found
        ],
    )


def cancelled(found: Sequence[RunningJob]) -> Text:
    return lines(
        *(
            f"cancelled {_kind(job)} of {job.stream_table} after {milliseconds(job.elapsed_ms)}"
            for job in found
        ),
        "next: headwater history shows how it ended",
    )
