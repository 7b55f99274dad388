"""Operators and delta terms as SQL for PostgreSQL.

A weighted relation carries the weight of each row in the column `__hw_w`; a relation as it is now has no
such column, every weight being 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headwater.plan.dialect import identifier, render
from headwater.plan.differentiate import Term, Version, terms
from headwater.plan.operators import (
    Body,
    ColumnType,
    Constant,
    Input,
    Scan,
    Select,
    Source,
    UnionAll,
    scans,
)

WEIGHT = "__hw_w"
HASH = "__hw_hash"
HAS_NULL = "__hw_null"


@dataclass(frozen=True)
class Column:
    """A column of an intermediate result."""

    name: str
    type: ColumnType
    nullable: bool = True

    @property
    def sql(self) -> str:
        return identifier(self.name)


@dataclass(frozen=True)
class Changes:
    """Change rows that were left where capture put them, for they are many."""

    relation: str  # SQL name of the change table
    rows: int


@dataclass(frozen=True)
class Staged:
    """Where the deltas of the changed sources are: source oid to a weighted table, or to a query of one."""

    tables: Mapping[int, str]  # SQL names, or queries in parentheses that show the ctid
    unstaged: Mapping[int, Changes] = field(default_factory=dict)

    @property
    def changed(self) -> frozenset[int]:
        return frozenset(self.tables)


@dataclass(frozen=True)
class KeyFilter:
    """Restricts rows to those whose keys are in a table of distinct keys.

    Plain equality finds every key without a NULL and lets the server use indexes and hashes. Keys with a
    NULL are compared null-safely, in a branch of its own that runs only if the table holds any.
    """

    table: str
    keys: tuple[Column, ...]
    null_safe: bool = False

    def branches(self) -> tuple[KeyFilter, ...]:
        if any(key.nullable for key in self.keys):
            return (self, KeyFilter(self.table, self.keys, null_safe=True))
        return (self,)

    def predicates(self, expressions: Mapping[str, str]) -> list[str]:
        compare = null_safe_equal if self.null_safe else equal
        found = [compare(f"({expressions[key.name]})", f"kk.{key.sql}", key.type) for key in self.keys]
        if self.null_safe:
            found += [f"kk.{HAS_NULL}", f"(SELECT bool_or({HAS_NULL}) FROM {self.table})"]
        return found


def equal(left: str, right: str, kind: ColumnType) -> str:
    return f"{left} {kind.equality} {right}"


def null_safe_equal(left: str, right: str, kind: ColumnType) -> str:
    """IS NOT DISTINCT FROM with the operator of the type's own operator class."""
    return f"({equal(left, right, kind)} OR ({is_null(left)} AND {is_null(right)}))"


def is_null(value: str) -> str:
    """IS NULL, which for a composite value would be true of one that has only NULLs in it, too."""
    return f"{value} IS NOT DISTINCT FROM NULL"


def relation_name(source: Source) -> str:
    return f"{identifier(source.schema)}.{identifier(source.name)}"


# Relations as they are now


def now_sql(body: Body, key_filter: KeyFilter | None = None) -> str:
    """The rows of a body as they are now, restricted to the keys if there is a filter with any."""
    blocks = body.branches if isinstance(body, UnionAll) else (body,)
    filters: Sequence[KeyFilter | None] = key_filter.branches() if key_filter and key_filter.keys else [None]
    return "\nUNION ALL\n".join(
        _block_sql(block, _all_new(block), Staged({}), body.output_names, key_filter=restriction)
        for block in blocks
        for restriction in filters
    )


# Deltas


def delta_sql(body: Body, staged: Staged) -> str:
    """The change of a body as a weighted relation, not consolidated."""
    names = body.output_names
    if isinstance(body, Select):
        return "\nUNION ALL\n".join(
            _block_sql(body, term, staged, names, weighted=True) for term in terms(body, staged.changed)
        )
    # A branch without a change stays as an empty one: the server derives the columns' types from all.
    return "\nUNION ALL\n".join(
        _block_sql(branch, term, staged, names, weighted=True, empty=not changed)
        for branch in body.branches
        for changed in [terms(branch, staged.changed)]
        for term in changed or [_all_new(branch)]
    )


def consolidated_sql(weighted: str, columns: Sequence[Column]) -> str:
    """Equal rows added up, those of weight zero left out.

    Equal means indistinguishable: 1.0 and 1.00 stay apart, so a column of a type whose equality is coarser
    than its text is grouped by its text and read back from it.
    """
    grouping = [identity(f"z.{column.sql}", column.type) for column in columns]
    listed = "".join(f"{key} AS {column.sql}, " for key, column in zip(grouping, columns, strict=True))
    group = f" GROUP BY {', '.join(grouping)}" if grouping else ""
    grouped = (
        f"SELECT {listed}sum(z.{WEIGHT})::bigint AS {WEIGHT} FROM (\n{weighted}\n) AS z{group}"
        f" HAVING sum(z.{WEIGHT}) <> 0"
    )
    if all(column.type.exact for column in columns):
        return grouped
    values = "".join(
        f"{y if column.type.exact else restored(y, column.type)} AS {column.sql}, "
        for column in columns
        for y in [f"y.{column.sql}"]
    )
    return f"SELECT {values}y.{WEIGHT} FROM (\n{grouped}\n) AS y"


def identity(reference: str, kind: ColumnType) -> str:
    """An expression that is equal for two values only if they are indistinguishable."""
    if kind.exact:
        return reference
    # The cast of bpchar to text drops blanks at the end; its output function does not.
    text = f"textin(bpcharout({reference}))" if kind.base == "bpchar" else f"{reference}::text"
    return f'{text} COLLATE "C"'


def restored(text: str, kind: ColumnType) -> str:
    """A value back from its text, with the collation that it had."""
    return f"({text})::{kind.sql}" + (f" COLLATE {kind.collation}" if kind.collation else "")


def hash_sql(references: Sequence[str]) -> str:
    """A hash over values, NULLs included; nothing hashes to zero."""
    return f"hash_record_extended(ROW({', '.join(references)}), 0)" if references else "0::bigint"


def hashable(reference: str, kind: ColumnType) -> str:
    """A key's part in the hash: equal keys must hash alike, so a coarse equality without a hash has none."""
    if kind.hashable:
        return reference
    return f"{reference}::text" if kind.exact else "0"


# Blocks


def _all_new(block: Select) -> Term:
    return (Version.NEW,) * len(block.inputs)


def _block_sql(
    block: Select,
    versions: Term,
    staged: Staged,
    names: tuple[str, ...],
    *,
    weighted: bool = False,
    empty: bool = False,
    key_filter: KeyFilter | None = None,
) -> str:
    """One SELECT over the inputs in the given versions, its columns named by position."""
    items, weights = [], []
    if key_filter is not None:
        items.append(f"{key_filter.table} AS kk")
    for item, version in zip(block.inputs, versions, strict=True):
        sql, has_weight = input_sql(item, version, staged)
        items.append(sql)
        if has_weight:
            weights.append(f"{identifier(item.alias)}.{WEIGHT}")
    outputs = [
        f"{render(output.expression)} AS {identifier(name)}"
        for output, name in zip(block.outputs, names, strict=True)
    ]
    if weighted:
        outputs.append(f"{' * '.join(weights) or '1::bigint'} AS {WEIGHT}")
    predicates = [f"({render(predicate)})" for predicate in block.predicates]
    if key_filter is not None:
        expressions = {
            name: render(output.expression) for name, output in zip(names, block.outputs, strict=True)
        }
        predicates += key_filter.predicates(expressions)
    if empty:
        predicates.append("false")
    source = f" FROM {', '.join(items)}" if items else ""
    where = f" WHERE {' AND '.join(predicates)}" if predicates else ""
    return f"SELECT {', '.join(outputs)}{source}{where}"


def input_sql(item: Input, version: Version, staged: Staged) -> tuple[str, bool]:
    """A FROM item, and whether it has a weight."""
    alias = identifier(item.alias)
    if not any(scan.source.relation in staged.changed for scan in scans(item.node)):
        version = Version.NEW
    match item.node:
        case Constant(sql=sql, columns=columns):
            return f"({sql}) AS {alias} ({', '.join(map(identifier, columns))})", False
        case Scan() as scan:
            if version is Version.NEW:
                return f"{relation_name(scan.source)} AS {alias}", False
            table = staged.tables[scan.source.relation]
            if version is Version.DELTA:
                return f"{table} AS {alias}", True
            listed = "".join(f"{identifier(name)}, " for name in scan.columns)
            now = f"SELECT {listed}1::bigint AS {WEIGHT} FROM {relation_name(scan.source)}"
            undone = f"SELECT {listed}-{WEIGHT} FROM {table} AS o"
            return f"({now} UNION ALL {undone}) AS {alias}", True
        case UnionAll() as union:
            if version is Version.NEW:
                return f"({now_sql(union)}) AS {alias}", False
            delta = delta_sql(union, staged)
            if version is Version.DELTA:
                return f"({delta}) AS {alias}", True
            names = ", ".join(identifier(name) for name in union.output_names)
            now = f"SELECT {names}, 1::bigint AS {WEIGHT} FROM ({now_sql(union)}) AS n"
            return f"({now} UNION ALL SELECT {names}, -{WEIGHT} FROM ({delta}) AS o) AS {alias}", True
