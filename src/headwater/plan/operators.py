"""The operators of a plan: immutable nodes with typed columns.

The columns that an expression refers to are always qualified by the alias of an input.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from headwater.plan.deparse import query_text
from headwater.plan.expression import Expression
from headwater.plan.quoting import identifier

SourceKind = Literal["table", "stream_table", "kept"]


@dataclass(frozen=True)
class ColumnType:
    """What the server says about a column of a relation or of an intermediate result."""

    sql: str  # as format_type writes it, schema-qualified where needed
    base: str  # the type behind a domain, else the same as `sql`
    collation: str | None = None  # as SQL, if the type has one
    exact: bool = True  # equal values are indistinguishable: 1.0 = 1.00 makes numeric inexact
    groupable: bool = True  # has an equality that GROUP BY can use
    hashable: bool = True  # hash_record_extended accepts it
    equality: str = "OPERATOR(pg_catalog.=)"  # of its default operator class, because search_path is empty
    integer: bool = False
    numeric: bool = False
    scale: int | None = None  # of a numeric that declares one
    floating: bool = False
    deterministic: bool = True  # its collation calls two texts equal only if they are identical
    bytewise: bool = False  # its collation sorts by the bytes of UTF-8


@dataclass(frozen=True)
class SourceColumn:
    """A column of a base table or stream table."""

    attnum: int
    name: str
    type: ColumnType
    not_null: bool = False
    captured: bool = True  # a virtual generated column is not in a trigger's transition table
    expression: str = ""  # of a generated column

    @property
    def change_column(self) -> str:
        """Its name in the change table: by position in the catalog, so that a rename does not matter."""
        return f"c{self.attnum}"


@dataclass(frozen=True)
class Source:
    """A relation whose changes are known: a table, the view of a stream table, a kept result."""

    relation: int  # oid
    schema: str
    name: str
    kind: SourceKind
    columns: tuple[SourceColumn, ...]

    def column(self, name: str) -> SourceColumn:
        return next(column for column in self.columns if column.name == name)

    @property
    def label(self) -> str:
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True)
class Output:
    """A named column of a node and the expression that makes it."""

    name: str
    expression: Expression = field(hash=False)

    @property
    def text(self) -> str:
        """The expression as SQL."""
        return self.expression.text


@dataclass(frozen=True)
class Scan:
    """A source, reduced to the columns that the query reads."""

    source: Source
    columns: tuple[str, ...]

    @property
    def output_names(self) -> tuple[str, ...]:
        return self.columns


@dataclass(frozen=True)
class Constant:
    """Rows that never change: VALUES, or a SELECT without FROM."""

    sql: str
    columns: tuple[str, ...]

    @property
    def output_names(self) -> tuple[str, ...]:
        return self.columns


@dataclass(frozen=True)
class Expansion:
    """A set-returning function in FROM: it makes rows from each row of the inputs before it."""

    sql: Expression = field(hash=False)  # the FROM item without its alias
    columns: tuple[str, ...]

    @property
    def output_names(self) -> tuple[str, ...]:
        return self.columns


@dataclass(frozen=True)
class Input:
    """A node under the alias by which expressions refer to it."""

    alias: str
    node: Node


@dataclass(frozen=True)
class Select:
    """Inner and cross joins, filter and projection in one block: bilinear in its inputs, linear in each."""

    inputs: tuple[Input, ...]
    predicates: tuple[Expression, ...] = field(hash=False)
    outputs: tuple[Output, ...]
    expands: bool = False  # a set-returning function among the outputs makes several rows of one

    @property
    def output_names(self) -> tuple[str, ...]:
        return tuple(output.name for output in self.outputs)

    @cached_property
    def output_sql(self) -> dict[str, str]:
        """The expression of each output."""
        return {output.name: output.text for output in self.outputs}

    @cached_property
    def predicate_sql(self) -> tuple[str, ...]:
        return tuple(predicate.text for predicate in self.predicates)


@dataclass(frozen=True)
class UnionAll:
    """The branches concatenated; columns are matched by position and named by the first branch."""

    branches: tuple[Query, ...]

    @property
    def output_names(self) -> tuple[str, ...]:
        return self.branches[0].output_names


@dataclass(frozen=True)
class Call:
    """One aggregate call. Its arguments are columns of the aggregate's input; its constants stay in place."""

    name: str  # column name in the aggregate's result
    function: str  # lower case, without schema
    builtin: bool
    sql: Expression = field(hash=False)  # the call as written, over the input's columns
    arguments: tuple[str, ...]  # the input columns it reads
    distinct: bool = False
    ordered: bool = False
    star: bool = False  # count(*)
    of_rows: bool = False  # an argument constructs a row
    filter: str | None = None  # input column that holds the FILTER condition

    @property
    def text(self) -> str:
        return self.sql.text


@dataclass(frozen=True)
class Aggregate:
    """GROUP BY. `outputs` and `having` are expressions over the keys and the calls, by their names.

    With no keys there is exactly one group, and it exists even when the input is empty.
    """

    input: Query
    keys: tuple[str, ...]  # columns of the input
    calls: tuple[Call, ...]
    having: Expression | None = field(hash=False)
    outputs: tuple[Output, ...]
    distinct: bool = False  # written as DISTINCT or UNION rather than as GROUP BY

    @property
    def output_names(self) -> tuple[str, ...]:
        return tuple(output.name for output in self.outputs)

    @cached_property
    def having_sql(self) -> str | None:
        return self.having.text if self.having is not None else None


@dataclass(frozen=True)
class Keyed:
    """A query over whole relations that commutes with selecting on its key.

    Window functions by their common partition, INTERSECT and EXCEPT by the whole row, DISTINCT ON by its
    expressions. LIMIT has no key: it is computed as a whole.
    """

    what: str  # for people
    inputs: tuple[Input, ...]  # each is a table in `sql`, named by its alias
    keys: tuple[tuple[str, ...], ...]  # for each input the columns of the key, in the same order
    sql: Expression = field(hash=False)  # a query
    columns: tuple[str, ...]
    passed: tuple[tuple[str, str], ...] = ()  # outputs that show a column of the only input unchanged

    @property
    def output_names(self) -> tuple[str, ...]:
        return self.columns

    @cached_property
    def text(self) -> str:
        return query_text(self.sql.node.select_stmt)


@dataclass(frozen=True)
class Lookup:
    """A relation in which rows find others, by conditions that only some of its rows meet."""

    name: str  # the name by which expressions refer to it as a table
    node: Query
    conditions: tuple[Expression, ...] = field(hash=False)  # over its columns and those of the core
    equals: tuple[tuple[str, str], ...] = ()  # the equalities among them: its column, the core's column
    exempt: bool = False  # rows that meet no condition matter too, as NULLs do to NOT IN

    @cached_property
    def condition_sql(self) -> tuple[str, ...]:
        return tuple(condition.text for condition in self.conditions)


@dataclass(frozen=True)
class Joined:
    """A FROM item after the core: a lookup outer-joined, or a subquery or function that reads the core."""

    alias: str
    item: Expression = field(hash=False)  # a table, or a query
    condition: Expression | None = field(hash=False)  # of a LEFT JOIN; None for a cross join

    @cached_property
    def text(self) -> str:
        """The item, with the way it is joined."""
        lateral = "" if self.item.is_table else "LATERAL "
        item = f"{lateral}{self.item.text} AS {identifier(self.alias)}"
        if self.condition is None:
            return f"CROSS JOIN {item}"
        return f"LEFT JOIN {item} ON {self.condition.text}"


CORE = "l"
"""Alias by which the expressions of an Apply refer to its core."""


@dataclass(frozen=True)
class Apply:
    """Rows, each with what it finds in other relations: outer joins, LATERAL, subqueries in expressions.

    Linear in its core, because each row is treated by itself. A change in a lookup affects the rows of the
    core that may find what changed, and no others.
    """

    core: Query
    lookups: tuple[Lookup, ...]
    joins: tuple[Joined, ...]
    predicates: tuple[Expression, ...] = field(hash=False)
    outputs: tuple[Output, ...]

    @property
    def output_names(self) -> tuple[str, ...]:
        return tuple(output.name for output in self.outputs)

    @cached_property
    def predicate_sql(self) -> tuple[str, ...]:
        return tuple(predicate.text for predicate in self.predicates)


Query = Select | UnionAll | Aggregate | Keyed | Apply
"""What a SELECT or a set operation becomes."""
Node = Scan | Constant | Expansion | Query
Nonlinear = Aggregate | Keyed | Apply
"""A node that is not a sum over single rows: the change of its result needs the rows that belong together."""


def children(node: Node) -> tuple[Node, ...]:
    """Return the nodes that a node reads, in the order of the query."""
    match node:
        case Select() | Keyed():
            return tuple(item.node for item in node.inputs)
        case UnionAll():
            return node.branches
        case Aggregate():
            return (node.input,)
        case Apply():
            return (node.core, *(lookup.node for lookup in node.lookups))
        case _:
            return ()


def with_children(node: Node, found: Sequence[Node]) -> Node:
    """Return the node with other children, in the order of `children`; queries must stay queries."""
    match node:
        case Select() | Keyed():
            inputs = tuple(Input(item.alias, new) for item, new in zip(node.inputs, found, strict=True))
            return replace(node, inputs=inputs)
        case UnionAll():
            return UnionAll(tuple(_query(new) for new in found))
        case Aggregate():
            return replace(node, input=_query(found[0]))
        case Apply():
            core, *rest = map(_query, found)
            lookups = tuple(replace(old, node=new) for old, new in zip(node.lookups, rest, strict=True))
            return replace(node, core=core, lookups=lookups)
        case _:
            return node


def _query(node: Node) -> Query:
    assert not isinstance(node, Scan | Constant | Expansion)
    return node


def expressions(node: Node) -> Iterator[Expression]:
    """Yield every expression of a node and of those below it."""
    match node:
        case Select():
            yield from (*node.predicates, *(output.expression for output in node.outputs))
        case Aggregate():
            yield from (call.sql for call in node.calls)
            yield from (output.expression for output in node.outputs)
            if node.having is not None:
                yield node.having
        case Keyed() | Expansion():
            yield node.sql
        case Apply():
            yield from (*node.predicates, *(output.expression for output in node.outputs))
            for joined in node.joins:
                yield joined.item
                if joined.condition is not None:
                    yield joined.condition
            for lookup in node.lookups:
                yield from lookup.conditions
    for child in children(node):
        yield from expressions(child)


def scans(node: Node) -> Iterator[Scan]:
    """Yield every scan below a node, in the order of the query; a self join yields its source twice."""
    if isinstance(node, Scan):
        yield node
    for child in children(node):
        yield from scans(child)


def referenced_columns(root: Query) -> dict[int, tuple[str, ...]]:
    """Return the columns that the plan reads of each source (by oid), in the source's own order."""
    wanted: dict[int, set[str]] = {}
    sources: dict[int, Source] = {}
    for scan in scans(root):
        wanted.setdefault(scan.source.relation, set()).update(scan.columns)
        sources[scan.source.relation] = scan.source
    return {
        relation: tuple(column.name for column in sources[relation].columns if column.name in names)
        for relation, names in wanted.items()
    }


def sources_of(root: Query) -> tuple[Source, ...]:
    """Return the distinct sources of a plan, in the order of their first appearance."""
    return tuple({scan.source.relation: scan.source for scan in scans(root)}.values())


def scanned_directly(root: Query) -> frozenset[int]:
    """Return the sources (by oid) that are inputs of the plan's own blocks, and not also of a subquery's."""
    body = root.input if isinstance(root, Aggregate) else root
    blocks = body.branches if isinstance(body, UnionAll) else (body,)
    nodes = [
        child for block in blocks for child in (children(block) if isinstance(block, Select) else [block])
    ]
    below = {scan.source.relation for node in nodes if not isinstance(node, Scan) for scan in scans(node)}
    return frozenset(node.source.relation for node in nodes if isinstance(node, Scan)) - below
