"""Values and weighted rows as SQL: when they are equal, how they are distinguished, added up and hashed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from headwater.plan.operators import ColumnType
from headwater.plan.quoting import identifier

WEIGHT = "__hw_w"
"""The weight of a row in a weighted relation."""

ANY_TYPE = ColumnType("", "")
"""The type of a key that is compared by `=` as the query wrote it, whatever its type."""

UNKNOWN_TYPE = replace(ANY_TYPE, groupable=False)
"""Of a key that is compared as GROUP BY does, whatever its type.

It is compared within arrays, where `=` of the type's default operator class decides, and NULLs are equal.
"""


@dataclass(frozen=True)
class Column:
    """A column of an intermediate result."""

    name: str
    type: ColumnType
    nullable: bool = True

    @property
    def sql(self) -> str:
        return identifier(self.name)


def equal(left: str, right: str, kind: ColumnType) -> str:
    if kind == UNKNOWN_TYPE:
        return f"ARRAY[{left}] {kind.equality} ARRAY[{right}]"
    return f"{left} {kind.equality} {right}"


def null_safe_equal(left: str, right: str, kind: ColumnType) -> str:
    """Return IS NOT DISTINCT FROM with the operator of the type's own operator class."""
    return f"({equal(left, right, kind)} OR ({is_null(left)} AND {is_null(right)}))"


def rechecked(conditions: Iterable[str]) -> str:
    """Return conditions that hold for nearly all pairs of rows whose hashes are equal.

    The server would multiply their selectivities with that of the hash, expect no more than one row, and join
    the rest in a nested loop. It does not look into a CASE, and expects half of the rows to pass.
    """
    return f"CASE WHEN {' AND '.join(conditions)} THEN true ELSE false END"


def is_null(value: str) -> str:
    """Return IS NULL, but false of a composite value that has only NULLs in it."""
    return f"{value} IS NOT DISTINCT FROM NULL"


def old_sql(now: str, delta: str, columns: Sequence[Column]) -> str:
    """Return the rows of a relation before its delta, a weighted table, was applied."""
    same = _same_row("n", "d", columns)
    own, before = ("".join(f"{alias}.{column.sql}, " for column in columns) for alias in ("n", "b"))
    met = f"EXISTS (SELECT FROM {delta} AS d WHERE {same})"
    undone = "".join(f"{column.sql}, " for column in columns)
    touched = consolidated_sql(
        f"SELECT {own}1::bigint AS {WEIGHT} FROM ({now}) AS n WHERE {met}"
        f" UNION ALL SELECT {undone}-{WEIGHT} FROM {delta} AS u",
        columns,
    )
    return (
        f"SELECT {own.rstrip(', ')} FROM ({now}) AS n WHERE NOT {met}\nUNION ALL\n"
        f"SELECT {before.rstrip(', ')} FROM (\n{touched}\n) AS b, {copies(f'b.{WEIGHT}')}"
    )


def copies(weight: str) -> str:
    """Return a FROM item with as many rows as a weight says.

    Most weights are one, and the planner should expect about as many rows as there are. Of generate_series
    with a variable bound the server expects a thousand rows each time.
    """
    return f"unnest(array_fill(true, ARRAY[greatest({weight}, 0)::int])) AS copy"


def _same_row(left: str, right: str, columns: Sequence[Column]) -> str:
    """Return the condition that two rows are indistinguishable: first by a hash, for joins."""
    sides = [[identity(f"{side}.{column.sql}", column.type) for column in columns] for side in (left, right)]
    compared = [f"{one} IS NOT DISTINCT FROM {other}" for one, other in zip(*sides, strict=True)]
    hashes = f"{hash_sql(sides[0])} = {hash_sql(sides[1])}"
    return f"{hashes} AND {rechecked(compared)}" if compared else hashes


def consolidated_sql(weighted: str, columns: Sequence[Column]) -> str:
    """Return equal rows added up, without those of weight zero.

    Equal means indistinguishable: 1.0 and 1.00 stay apart. Numerics are distinguished by their scale; a
    column of another type whose equality is coarser than its text is grouped by its text and read back from
    it.
    """
    listed = "".join(f"{_grouped(column)} AS {column.sql}, " for column in columns)
    grouping = [_grouped(column) for column in columns]
    grouping += [f"scale(z.{column.sql})" for column in columns if column.type.numeric]
    group = f" GROUP BY {', '.join(grouping)}" if grouping else ""
    grouped = (
        f"SELECT {listed}sum(z.{WEIGHT})::bigint AS {WEIGHT} FROM (\n{weighted}\n) AS z{group}"
        f" HAVING sum(z.{WEIGHT}) <> 0"
    )
    if not any(_by_text(column) for column in columns):
        return grouped
    values = "".join(
        f"{restored(y, column.type) if _by_text(column) else y} AS {column.sql}, "
        for column in columns
        for y in [f"y.{column.sql}"]
    )
    return f"SELECT {values}y.{WEIGHT} FROM (\n{grouped}\n) AS y"


def _grouped(column: Column) -> str:
    reference = f"z.{column.sql}"
    return identity(reference, column.type) if _by_text(column) else reference


def _by_text(column: Column) -> bool:
    return not column.type.exact and not column.type.numeric


def identity(reference: str, kind: ColumnType) -> str:
    """Return an expression that is equal for two values only if they are indistinguishable."""
    if kind.exact:
        return reference
    # The cast of bpchar to text drops trailing blanks; its output function does not.
    text = f"textin(bpcharout({reference}))" if kind.base == "bpchar" else f"{reference}::text"
    return f'{text} COLLATE "C"'


def restored(text: str, kind: ColumnType) -> str:
    """Read a value back from its text, with the collation that it had."""
    return f"({text})::{kind.sql}" + (f" COLLATE {kind.collation}" if kind.collation else "")


def hash_sql(references: Sequence[str]) -> str:
    """Return a hash over values, NULLs included; no value at all hashes to zero."""
    return f"hash_record_extended(ROW({', '.join(references)}), 0)" if references else "0::bigint"


def hashable(reference: str, kind: ColumnType) -> str:
    """Return a key's part in the hash: equal keys must hash alike, so a coarse equality has none."""
    if kind.hashable:
        return reference
    return f"{reference}::text" if kind.exact else "0"
