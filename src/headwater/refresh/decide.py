"""Whether a refresh has nothing to do, takes in a delta, or recomputes, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headwater.capture import buffers
from headwater.capture.registry import lost_reason
from headwater.catalog import history
from headwater.catalog.stream_tables import CatalogSource, EngineName, StreamTable
from headwater.config import Settings
from headwater.db.connection import Connection, one
from headwater.engine.cost_model import passed_over
from headwater.engine.observations import Failures
from headwater.engine.select import EngineSelector


@dataclass(frozen=True)
class Request:
    """What the caller wants of a refresh."""

    full: bool = False
    engine: EngineName | None = None  # overrides the stream table's own
    in_others_transaction: bool = False  # of one who verifies: a delta is taken in, whatever it costs

    @property
    def leaves_choice(self) -> bool:
        """Whether a compiled refresh may do it."""
        return not self.full and self.engine in (None, "auto", "postgres") and not self.in_others_transaction


@dataclass(frozen=True)
class Choice:
    action: history.Action
    reason: str
    rows_in: int = 0
    changed: frozenset[int] = frozenset()
    pending: Mapping[int, int] = field(default_factory=dict)  # change rows by source
    distrusts_plan: bool = False  # which met errors lately, that the query itself does not raise
    release: bool = False  # nothing to do, but moving the frontier lets consumed change rows go


def choose(
    connection: Connection,
    settings: Settings,
    selector: EngineSelector,
    stream_table: StreamTable,
    sources: list[CatalogSource],
    request: Request,
) -> Choice:
    """What a refresh is to do, at the snapshot of the open transaction."""
    if request.full:
        return Choice("recompute", "a full refresh was asked for")
    if stream_table.rebuild_reason is not None:
        return Choice("recompute", stream_table.rebuild_reason)
    if stream_table.mode == "full":
        return Choice("recompute", "; ".join(stream_table.mode_reasons) or "its mode is full")
    assert stream_table.frontier is not None
    limit = settings.max_buffer_rows
    found = buffers.pending(connection, sources, stream_table.frontier, limit)
    labels = {source.relation: source.label for source in sources}
    truncated = {source.relation: _what_a_mark_means(source) for source in sources}
    for relation, waiting in found.items():
        if waiting.lost is not None:
            return Choice("recompute", lost_reason(labels[relation], waiting.lost), waiting.rows)
        if waiting.truncated:
            return Choice("recompute", labels[relation] + truncated[relation], waiting.rows)
        if waiting.rows > limit:
            return Choice(
                "recompute",
                f"the change table of {labels[relation]} holds more than {limit} rows for it"
                " (headwater.max_buffer_rows)",
                waiting.rows,
            )
    changed = frozenset(relation for relation, waiting in found.items() if waiting.rows)
    if not changed:
        release = any(waiting.consumed for waiting in found.values()) and _frontier_can_move(
            connection, stream_table
        )
        return Choice("nothing", "no source changed", release=release)
    rows = sum(waiting.rows for waiting in found.values())
    names = ", ".join(sorted(labels[relation] for relation in changed))
    failures = selector.observations.failures(connection, stream_table.id)
    if (left := passed_over(failures.in_a_row) - failures.recomputed_since) > 0:
        return Choice("recompute", _distrust(failures, left), rows, distrusts_plan=True)
    if stream_table.requested_mode == "auto" and not request.in_others_transaction:
        dearer = selector.dearer_than_full(connection, stream_table, rows)
        if dearer is not None:
            return Choice("recompute", dearer, rows)
    reason = f"{rows} change row{'s' if rows != 1 else ''} in {names}"
    pending = {relation: waiting.rows for relation, waiting in found.items()}
    return Choice("delta", reason, rows, changed, pending)


def _frontier_can_move(connection: Connection, stream_table: StreamTable) -> bool:
    assert stream_table.frontier is not None
    moved: bool = one(
        connection,
        "SELECT pg_snapshot_xmin(pg_current_snapshot()) > pg_snapshot_xmin(%s::pg_snapshot)",
        (stream_table.frontier.snapshot,),
    )[0]
    return moved


def _distrust(failures: Failures, left: int) -> str:
    again = "at the next refresh" if left == 1 else f"after {left - 1} more refresh{'es' if left > 2 else ''}"
    return (
        f"{failures.in_a_row} deltas in a row met errors that the query itself does not raise, the last one"
        f" SQLSTATE {failures.sqlstate}; a delta is tried again {again}"
    )


def _what_a_mark_means(source: CatalogSource) -> str:
    unseen = ", or its rows were moved between partitions in a way that triggers do not see"
    return " was truncated" + (unseen if source.partitioned else "")
