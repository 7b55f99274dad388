"""Proof that a stream table holds what its query gives, at one snapshot.

In one REPEATABLE READ transaction the stream table is brought up to date, compared with its query as
multisets, and the transaction is rolled back: verifying changes nothing. A stream table that recomputes is
compared as it is stored, for bringing it up to date would make the comparison pointless.

A partition that was attached or detached since the last refresh is a change that waits like others, only that
no change rows tell it. It is registered before, as a refresh does, and what reads it is recomputed.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

import psycopg

from headwater import catalog
from headwater.capture.registry import partitions_moved
from headwater.catalog import Closure, StreamTable
from headwater.choosing import Request
from headwater.config import Settings
from headwater.db.connection import Connection, one, retried, transaction, translated
from headwater.db.work import statement
from headwater.definition import Definition, definition_name
from headwater.errors import DriftDetected, RefreshFailed
from headwater.plan.dialect import identifier
from headwater.plan.render import Column
from headwater.refresh import Refresher

FLOAT_TOLERANCE = 1e-9
MOST_DIFFERENCES = 10_000
"""So many differing rows are looked at for the tolerance of floats."""


Row = tuple[str | None, ...]
"""A row with its values as the server writes them."""


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
    """Compares a stream table with its query."""
    try:
        return retried(
            lambda: _verify(connection, settings, refresher, stream_table),
            what=f"verify {stream_table.label}",
            attempts=settings.lock_attempts,
        )
    except psycopg.Error as error:
        raise translated(error, f"verify {stream_table.label}", RefreshFailed) from error


def _verify(
    connection: Connection, settings: Settings, refresher: Refresher, stream_table: StreamTable
) -> Verification:
    closure = catalog.closure(connection, stream_table.id)
    refresher.follow_renames(closure)
    if _moved(connection, closure) is not None:
        closure = refresher.adopt(stream_table.id)
    notes = []
    with transaction(connection, repeatable_read=True, rollback=True):
        refresher.lock_tables(closure)
        if stream_table.mode == "differential":
            try:
                outcome = refresher.refresh_here(stream_table.id, Request())[-1]
                if outcome.action == "recompute":
                    notes.append(f"it was recomputed before the comparison: {outcome.reason}")
            except DriftDetected as drift:
                notes.append(f"{drift.message}, so it is compared without what waits for it: {drift.detail}")
        else:
            notes.append("it recomputes at each refresh and is compared as it is stored")
        connection.execute("SELECT set_config('TimeZone', %s, true)", (stream_table.time_zone,))
        definition = refresher.upkeep.read_definition(stream_table)
        query = definition_name(connection, stream_table.id).as_string(connection)
        stored = f"{identifier(stream_table.schema)}.{identifier(stream_table.name)}"
        missing = _difference(connection, definition, query, stored)
        surplus = _difference(connection, definition, stored, query)
        rows, snapshot = one(
            connection, statement(f"SELECT count(*), pg_current_snapshot()::text FROM {stored}")
        )
        if (moved := _moved(connection, closure)) is not None:
            # Some of the queries have read it, whatever their snapshot is.
            raise psycopg.errors.SerializationFailure(f"a partition of {moved} was attached meanwhile")
    if (missing or surplus) and _same_within_tolerance(definition.columns, missing, surplus):
        notes.append(
            f"{len(missing)} rows differ in the last digits of floats, whose sums depend on the rows' order"
        )
        missing, surplus = [], []
    shown = settings.verify_max_rows
    return Verification(
        stream_table=stream_table.label,
        equal=not missing and not surplus,
        snapshot=snapshot,
        rows=rows,
        columns=tuple(column.name for column in definition.columns),
        missing=tuple(missing[:shown]),
        surplus=tuple(surplus[:shown]),
        missing_count=len(missing),
        surplus_count=len(surplus),
        note="; ".join(notes),
    )


def _moved(connection: Connection, closure: Closure) -> str | None:
    """A table that has other partitions than when it was last captured, if any."""
    partitioned = {
        source.relation
        for sources in closure.sources.values()
        for source in sources
        if source.partitioned and source.change_table
    }
    return partitions_moved(connection, partitioned) if partitioned else None


def _difference(connection: Connection, definition: Definition, left: str, right: str) -> list[Row]:
    """Rows of the left relation that the right one lacks; a type without equality is compared by its text."""
    columns = ", ".join(
        column.sql if column.type.groupable else f"{column.sql}::text AS {column.sql}"
        for column in definition.columns
    )
    # As text: not every value of the server has one in Python ('infinity' as a date).
    texts = ", ".join(f"d.{column.sql}::text" for column in definition.columns)
    return connection.execute(
        statement(
            f"SELECT {texts} FROM (SELECT {columns} FROM {left}"
            f" EXCEPT ALL SELECT {columns} FROM {right}) AS d LIMIT {MOST_DIFFERENCES}"
        )
    ).fetchall()


def _same_within_tolerance(columns: tuple[Column, ...], missing: list[Row], surplus: list[Row]) -> bool:
    """Whether the rows pair up when floats may differ in their last digits."""
    floats = [number for number, column in enumerate(columns) if column.type.floating]
    if not floats or len(missing) != len(surplus) or len(missing) == MOST_DIFFERENCES:
        return False
    sides: list[dict[str, list[Row]]] = []
    for rows in (missing, surplus):
        grouped: dict[str, list[Row]] = defaultdict(list)
        for row in rows:
            rest = repr([value for number, value in enumerate(row) if number not in floats])
            grouped[rest].append(tuple(row[number] for number in floats))
        sides.append(grouped)
    left, right = sides
    return left.keys() == right.keys() and all(_pair_up(left[key], right[key]) for key in left)


def _pair_up(left: list[Row], right: list[Row]) -> bool:
    """Whether two lists of rows of floats hold nearly the same."""
    if len(left) != len(right):
        return False
    pairs = zip(sorted(left, key=_by_value), sorted(right, key=_by_value), strict=True)
    return all(_close(*values) for pair in pairs for values in zip(*pair, strict=True))


def _by_value(row: Row) -> tuple[tuple[bool, float], ...]:
    return tuple((value is None, float(value or 0)) for value in row)


def _close(left: str | None, right: str | None) -> bool:
    if left is None or right is None or left == right:
        return left == right
    return math.isclose(float(left), float(right), rel_tol=FLOAT_TOLERANCE)
