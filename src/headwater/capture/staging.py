"""The change rows that a refresh reads, in the columns of its source: as they are, or consolidated."""

from __future__ import annotations

from collections.abc import Sequence

from headwater.capture.buffers import change_table_sql, window
from headwater.catalog.stream_tables import Frontier
from headwater.plan.operators import Source
from headwater.plan.quoting import identifier
from headwater.plan.values import WEIGHT, Column, consolidated_sql


def changes_sql(
    source: Source, columns: Sequence[str], change_table: str, frontier: Frontier, rows: int | None = None
) -> str:
    """Return SQL for the change rows of a source since a frontier, in the source's own columns and types.

    If their number is known, it tells the planner how few they are.
    """
    casts = [
        f"{column.change_column}"
        + (f"::{column.type.sql}" if column.type.sql != column.type.base else "")
        + f" AS {identifier(column.name)}"
        for column in map(source.column, columns)
    ]
    listed = "".join(f"{cast}, " for cast in casts)
    limit = f" LIMIT {rows}" if rows is not None else ""
    return (
        f"SELECT {listed}w AS {WEIGHT}, ctid FROM {change_table_sql(change_table)}"
        f" WHERE {window(frontier)}{limit}"
    )


def staging_sql(
    source: Source,
    columns: Sequence[str],
    change_table: str,
    frontier: Frontier,
    condition: str | None,
    rows: int | None = None,
) -> str:
    """Return SQL for the consolidated change of a source since a frontier, of rows that meet a condition."""
    changes = changes_sql(source, columns, change_table, frontier, rows)
    if condition is not None:
        changes = f"SELECT * FROM ({changes}) AS c WHERE {condition}"
    return consolidated_sql(changes, [Column(name, source.column(name).type) for name in columns])
