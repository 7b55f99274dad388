"""Proof that a stream table holds what its query gives, at one snapshot.

In one REPEATABLE READ transaction the stream table is brought up to date, compared with its query as
multisets, and the transaction is rolled back: verifying changes nothing. A stream table that recomputes is
compared as it is stored, because bringing it up to date would make the comparison pointless.

A partition that was attached or detached since the last refresh is a waiting change without change rows. It
is registered first, as a refresh does, and stream tables that read it are recomputed.
"""

from __future__ import annotations

from dataclasses import dataclass

import psycopg

from headwater.capture.registry import partitions_moved
from headwater.catalog import stream_tables as catalog
from headwater.catalog.stream_tables import Closure, StreamTable
from headwater.config import Settings
from headwater.db.connection import Connection, TryAgain, one, retried, transaction, translated
from headwater.db.scratch import statement
from headwater.errors import DeltaFailed, DriftDetected, RefreshFailed
from headwater.plan.quoting import identifier
from headwater.refresh.compare import PlanRefuted, Row, differences, within_tolerance
from headwater.refresh.decide import Request
from headwater.refresh.transaction import Refresher


@dataclass(frozen=True, kw_only=True)
class Verification:
    """The result of a comparison."""

    stream_table: str
    equal: bool
    snapshot: str
    rows: int
    columns: tuple[str, ...]
    missing: tuple[Row, ...]  # the query gives them, the stream table lacks them
    surplus: tuple[Row, ...]  # the stream table has them, the query does not give them
    missing_count: int
    surplus_count: int
    note: str = ""


def verify(
    connection: Connection, settings: Settings, refresher: Refresher, stream_table: StreamTable
) -> Verification:
    """Compare a stream table with its query."""
    distrusted: dict[int, str] = {}
    try:
        while True:
            known = len(distrusted)
            try:
                return retried(
                    lambda: refresher.reader.prepared(
                        lambda: _verify(connection, settings, refresher, stream_table, distrusted)
                    ),
                    what=f"verify {stream_table.label}",
                    attempts=settings.lock_attempts,
                )
            except DeltaFailed:
                if len(distrusted) == known:
                    raise
    except psycopg.Error as error:
        raise translated(error, f"verify {stream_table.label}", RefreshFailed) from error


def _verify(
    connection: Connection,
    settings: Settings,
    refresher: Refresher,
    stream_table: StreamTable,
    distrusted: dict[int, str],
) -> Verification:
    closure = catalog.closure(connection, stream_table.id)
    refresher.follow_renames(closure)
    health = catalog.health(connection, closure.order)
    if _moved(connection, closure) is not None or any(each.fault == "capture" for each in health.values()):
        closure = refresher.adopt(stream_table.id)
    notes = []
    with transaction(connection, repeatable_read=True, rollback=True):
        refresher.lock_tables(closure)
        if stream_table.mode == "differential":
            try:
                outcome = refresher.refresh_here(stream_table.id, Request(), distrusted)[-1]
                if outcome.action == "recompute":
                    notes.append(f"it was recomputed before the comparison: {outcome.reason}")
            except (DriftDetected, PlanRefuted) as drift:
                notes.append(f"{drift.message}, so it is compared without what waits for it: {drift.detail}")
        else:
            notes.append("it recomputes at each refresh and is compared as it is stored")
        connection.execute("SELECT set_config('TimeZone', %s, true)", (stream_table.time_zone,))
        definition = refresher.members.read_definition(stream_table)
        query = refresher.members.loader.evaluated(stream_table, definition)
        stored = f"{identifier(stream_table.schema)}.{identifier(stream_table.name)}"
        wanted, found = f"TABLE {query}", f"TABLE {stored}"
        difference = differences(connection, definition.columns, wanted, found)
        rows, snapshot = one(
            connection, statement(f"SELECT count(*), pg_current_snapshot()::text FROM {stored}")
        )
        if (moved := _moved(connection, closure)) is not None:
            # Some of the queries may have read it, whatever their snapshot is.
            raise TryAgain(f"a partition of {moved} was attached meanwhile")
    missing, surplus = difference.missing, difference.surplus
    if difference and not difference.is_cut and within_tolerance(definition.columns, missing, surplus):
        notes.append(
            f"{len(missing)} rows differ in the last digits of floats, whose sums depend on the rows' order"
        )
        missing = surplus = ()
    shown = settings.verify_max_rows
    return Verification(
        stream_table=stream_table.label,
        equal=not missing and not surplus,
        snapshot=snapshot,
        rows=rows,
        columns=tuple(column.name for column in definition.columns),
        missing=missing[:shown],
        surplus=surplus[:shown],
        missing_count=len(missing),
        surplus_count=len(surplus),
        note="; ".join(notes),
    )


def _moved(connection: Connection, closure: Closure) -> str | None:
    """Return a table that has other partitions than when it was last captured, if any."""
    partitioned = {
        source.relation
        for sources in closure.sources.values()
        for source in sources
        if source.partitioned and source.change_table
    }
    return partitions_moved(connection, partitioned) if partitioned else None
