"""The record of refreshes: what each did, why it did it that way, and what it cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

from psycopg.types.json import Jsonb

from headwater.catalog.choices import BucketLength
from headwater.db.connection import Connection, one
from headwater.db.queries import query

Action = Literal["load", "delta", "recompute", "nothing"]


@dataclass(frozen=True)
class Applied:
    """How many of the rows that users see came, changed and went."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How one refresh of one stream table ended."""

    stream_table: str
    stream_table_id: int
    action: Action
    mode: Literal["differential", "full"]
    engine: str
    reason: str
    elapsed: timedelta = timedelta(0)
    snapshot: str | None = None
    rows_in: int = 0
    applied: Applied = field(default_factory=Applied)
    phases: dict[str, float] = field(default_factory=dict)
    frontier_moved: bool = True
    history_id: int | None = None
    status: Literal["completed", "failed"] = "completed"
    error: str | None = None
    sqlstate: str | None = None
    engine_reason: str = ""
    bytes_in: int | None = None  # read from the database by an engine outside it
    bytes_out: int | None = None  # written back by it
    predicted_ms: float | None = None  # what it was expected to take, if there was one like it
    fell_back: bool = False  # PostgreSQL computed what Spark was to compute
    abandoned_ms: float | None = None  # of a delta that was tried first: given up, or failed with `sqlstate`

    @property
    def duration_ms(self) -> float:
        return round(self.elapsed.total_seconds() * 1000, 3)


@dataclass(frozen=True, kw_only=True)
class HistoryEntry:
    """A row of headwater.refresh_history."""

    id: int
    stream_table: str
    mode: str
    engine: str
    action: str
    status: str
    reason: str
    started_at: datetime
    finished_at: datetime
    duration_ms: float
    rows_in: int | None
    rows_inserted: int | None
    rows_updated: int | None
    rows_deleted: int | None
    error: str | None
    sqlstate: str | None
    snapshot: str | None
    phases: dict[str, Any]
    engine_reason: str = ""
    bytes_in: int | None = None
    bytes_out: int | None = None
    predicted_ms: float | None = None
    fell_back: bool = False
    abandoned_ms: float | None = None


@dataclass(frozen=True)
class HistorySum:
    """A row of headwater.refresh_stats: refreshes of one stream table that finished in one minute or hour."""

    stream_table: str
    bucket_start: datetime
    action: str
    engine: str
    refreshes: int
    failures: int
    rows_in: int
    rows_inserted: int
    rows_updated: int
    rows_deleted: int
    total_ms: float  # durations are those of the refreshes that completed
    avg_ms: float | None
    min_ms: float | None
    max_ms: float | None
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None


def record(connection: Connection, outcome: Outcome) -> int:
    """Writes an outcome, in the transaction of the refresh, so that both commit or neither; its number."""
    completed = outcome.status == "completed"
    row = one(
        connection,
        query("history", "record"),
        {
            "stream_table_id": outcome.stream_table_id,
            "elapsed": outcome.elapsed,
            "mode": outcome.mode,
            "engine": outcome.engine,
            "action": outcome.action,
            "status": outcome.status,
            "reason": outcome.reason,
            "error": outcome.error,
            "sqlstate": outcome.sqlstate,
            "snapshot": outcome.snapshot,
            "rows_in": outcome.rows_in if completed else None,
            "rows_inserted": outcome.applied.inserted if completed else None,
            "rows_updated": outcome.applied.updated if completed else None,
            "rows_deleted": outcome.applied.deleted if completed else None,
            "phases": Jsonb(outcome.phases),
            "engine_reason": outcome.engine_reason,
            "bytes_in": outcome.bytes_in,
            "bytes_out": outcome.bytes_out,
            "predicted_ms": outcome.predicted_ms,
            "fell_back": outcome.fell_back,
            "abandoned_ms": outcome.abandoned_ms,
        },
    )
    return int(row[0])


def recent(connection: Connection, stream_table_id: int | None, limit: int) -> list[HistoryEntry]:
    """The latest refreshes, newest first."""
    rows = connection.execute(
        query("history", "recent"),
        {"stream_table_id": stream_table_id, "limit": limit},
    )
    names = HistoryEntry.__dataclass_fields__
    entries = []
    for row in rows:
        values = dict(zip(names, row, strict=True))
        values["duration_ms"] = float(values["duration_ms"])
        entries.append(HistoryEntry(**values))
    return entries


def sums(
    connection: Connection, stream_table_id: int | None, by: BucketLength, limit: int
) -> list[HistorySum]:
    """The latest sums of refreshes, newest first."""
    rows = connection.execute(
        query("history", "sums"),
        {"stream_table_id": stream_table_id, "length": f"1 {by}", "limit": limit},
    )
    return [HistorySum(*row) for row in rows]
