"""Indexes that would turn a delta's scan of a source into a look-up: named, never created.

A delta is as cheap as the look-ups into what did not change. Which index is worth its cost to writers is the
user's to say; so `explain`, `create` and the history tell what is missing, and why.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from headwater.db.connection import Connection
from headwater.db.queries import query
from headwater.plan.index_access import Access, accesses
from headwater.plan.materialize import Layers
from headwater.plan.operators import Source

FEW_ROWS = 5_000
FEW_PAGES = 64
"""A table with fewer is read as fast as it is looked into."""
FEW_VALUES = 20
"""A column with fewer of them leads to so many rows each that reading all is as good."""
WIDE_BYTES = 256
"""Values that are wider on average may be too long for an index, and writing them would fail."""
MOST_COLUMNS = 3
"""More of them narrow down little, and each is stored once more."""
SLOW_MILLISECONDS = 1_000
"""Computing a delta for longer than this is called slow."""
ROWS_PER_CHANGE = 10
"""A table with fewer rows than this for each change row is read as a whole, index or not."""


@dataclass(frozen=True, kw_only=True)
class MissingIndex:
    """An index that a source lacks."""

    table: str
    columns: tuple[str, ...]
    statement: str
    reason: str


@dataclass
class _Table:
    """What the server knows about a source; of a stream table, about its storage."""

    sql: str
    rows: float
    pages: int
    quoted: dict[str, str] = field(default_factory=dict)  # each column as SQL
    values: dict[str, float] = field(default_factory=dict)  # how many each column has, where it is known
    leading: set[str] = field(default_factory=set)  # columns with which an index starts
    wide: set[str] = field(default_factory=set)

    def is_large(self, rows: float) -> bool:
        return self.pages >= FEW_PAGES and self.rows >= max(FEW_ROWS, rows)

    def index_on(self, columns: Iterable[str]) -> tuple[str, ...]:
        """The columns of an index for these, what tells rows apart best first; none if it is of no use."""
        usable = [name for name in columns if name not in self.wide]
        usable.sort(key=lambda name: -self.values.get(name, self.rows))
        if not usable or self.values.get(usable[0], self.rows) < FEW_VALUES:
            return ()
        return tuple(usable[:MOST_COLUMNS])


def missing_indexes(
    connection: Connection, layers: Layers, changed: frozenset[int] | None = None, rows: float = 0
) -> tuple[MissingIndex, ...]:
    """The indexes that deltas lack: any, or those in which these sources changed.

    Only tables of more than so many rows are looked at.
    """
    wanted = [
        access
        for access in _accesses(layers)
        if changed is None or any(source.relation in changed for source in access.changed)
    ]
    tables = _tables(connection, {access.source.relation for access in wanted})
    chosen: dict[tuple[int, str], tuple[tuple[str, ...], list[Access]]] = {}
    # The fewer columns an access has, the less choice there is; a wider one may be served by the same index.
    for access in sorted(wanted, key=lambda access: len(access.columns)):
        table = tables.get(access.source.relation)
        if table is None or not table.is_large(rows) or table.leading.intersection(access.columns):
            continue
        served = next((key for key in _keys(access) if key in chosen), None)
        if served is not None:
            chosen[served][1].append(access)
        elif columns := table.index_on(access.columns):
            chosen[access.source.relation, columns[0]] = (columns, [access])
    return tuple(
        _described(tables[relation], columns, served) for (relation, _), (columns, served) in chosen.items()
    )


def _accesses(layers: Layers) -> list[Access]:
    """How deltas look into sources. What is kept has the indexes it needs, and changes as its sources do."""
    origins: dict[int, tuple[Source, ...]] = {}

    def origin(sources: Iterable[Source]) -> tuple[Source, ...]:
        found = {each: None for source in sources for each in origins.get(source.relation, (source,))}
        return tuple(found)

    for part in layers.kept:
        origins[part.source.relation] = origin(part.plan.sources)
    return [
        replace(access, changed=origin(access.changed))
        for plan in (*(part.plan for part in layers.kept), layers.top)
        for access in accesses(plan)
        if access.source.kind != "kept"
    ]


def _keys(access: Access) -> list[tuple[int, str]]:
    return [(access.source.relation, column) for column in access.columns]


def is_slow(phases: Mapping[str, float]) -> bool:
    """Whether computing a delta took long, by the milliseconds of its phases."""
    return sum(phases.get(name, 0) for name in ("keep", "compute")) >= SLOW_MILLISECONDS


def want_of_index(connection: Connection, layers: Layers, changed: frozenset[int], rows: int) -> str:
    """What to add to the reason of a slow delta that lacked an index; else nothing."""
    found = missing_indexes(connection, layers, changed, rows * ROWS_PER_CHANGE)
    if not found:
        return ""
    names = [f"{item.table} ({', '.join(item.columns)})" for item in found]
    return f"; slow for want of an index on {' and on '.join(names)}"


def _described(table: _Table, columns: tuple[str, ...], served: list[Access]) -> MissingIndex:
    listed = ", ".join(table.quoted[column] for column in columns)
    return MissingIndex(
        table=table.sql,
        columns=columns,
        statement=f"CREATE INDEX ON {table.sql} ({listed});",
        reason="; ".join(map(_because, served)),
    )


def _because(access: Access) -> str:
    by = ", ".join(access.columns)
    labels = [source.label for source in access.changed]
    if labels == [access.source.label]:
        return f"a change of {labels[0]} looks for its other rows by {by}"
    return f"a change of {' or '.join(labels)} looks for {access.source.label} by {by}"


def _tables(connection: Connection, relations: set[int]) -> Mapping[int, _Table]:
    found: dict[int, _Table] = {}
    if not relations:
        return found
    columns = connection.execute(query("advice", "looked_into"), {"relations": sorted(relations)})
    for relation, name, rows, pages, column, quoted, distinct, width, leads in columns:
        table = found.setdefault(relation, _Table(name, float(rows), int(pages)))
        table.quoted[column] = quoted
        if distinct is not None:  # zero is not known; a negative one is a share of the rows
            table.values[column] = distinct if distinct > 0 else -distinct * table.rows or table.rows
        if width is not None and width > WIDE_BYTES:
            table.wide.add(column)
        if leads:
            table.leading.add(column)
    return found
