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
    limit = f" LIMIT {rows}" if rows is not None else ""
    return (
        f"SELECT {_listed(source, columns)}w AS {WEIGHT}, ctid FROM {change_table_sql(change_table)}"
        f" WHERE {window(frontier)}{limit}"
    )


def fetched_sql(source: Source, columns: Sequence[str], rows: str) -> str:
    """The same for change rows that were fetched into an array, which is given as SQL."""
    return f"SELECT {_listed(source, columns)}w AS {WEIGHT} FROM unnest({rows}) AS c"


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
    return consolidated_changes_sql(source, columns, changes, condition)


def consolidated_changes_sql(
    source: Source, columns: Sequence[str], changes: str, condition: str | None
) -> str:
    """Change rows in a source's columns, consolidated, of the rows that meet a condition."""
    if condition is not None:
        changes = f"SELECT * FROM ({changes}) AS c WHERE {condition}"
    return consolidated_sql(changes, [Column(name, source.column(name).type) for name in columns])


def _listed(source: Source, columns: Sequence[str]) -> str:
    return "".join(
        f"{column.change_column}"
        + (f"::{column.type.sql}" if column.type.sql != column.type.base else "")
        + f" AS {identifier(column.name)}, "
        for column in map(source.column, columns)
    )
