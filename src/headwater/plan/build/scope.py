"""Names in a query, and expressions that are moved from one place of it to another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from postgast import pg_query_pb2 as pg
from postgast.pg_query_pb2 import Node, SelectStmt

from headwater.plan import syntax
from headwater.plan.errors import Unsupported
from headwater.plan.expression import Expression, column
from headwater.plan.operators import Input, Output, Select
from headwater.plan.syntax import kind_of

SYSTEM_COLUMNS = frozenset({"ctid", "xmin", "xmax", "cmin", "cmax", "tableoid"})


@dataclass(eq=False)
class Relation:
    """A FROM item: its visible name and, for each of its columns, the expression over the real inputs.

    When the block around it becomes an input of another one, its columns refer to that input.
    """

    alias: str
    columns: Mapping[str, Expression]
    row_type: tuple[str, str] | None = None  # schema and name, if every row is one of a table or view


MERGED = ""
"""Alias of the columns that an outer join with USING makes from both sides; no FROM item has it."""


@dataclass(eq=False)
class Block:
    """A SELECT block being built: what it joins, by which conditions, and which names are visible in it."""

    inputs: list[Input] = field(default_factory=list)
    predicates: list[Expression] = field(default_factory=list)
    relations: list[Relation] = field(default_factory=list)

    @property
    def aliases(self) -> set[str]:
        return {item.alias for item in self.inputs}

    def select(self, outputs: Sequence[Output]) -> Select:
        return Select(tuple(self.inputs), tuple(self.predicates), tuple(outputs))

    def take_in(self, other: Block) -> None:
        """Join another block to this one."""
        self.inputs += other.inputs
        self.predicates += other.predicates
        self.relations += other.relations

    def replace_by(self, item: Input) -> None:
        """Replace everything that the block has joined so far by one input."""
        self.inputs, self.predicates = [item], []


class Scope:
    """The FROM items that an expression may refer to; those of an inner query come before those outside."""

    def __init__(self, relations: Iterable[Relation] = (), outer: Scope | None = None) -> None:
        self.relations = list(relations)
        self.outer = outer
        self.subqueries: dict[bytes, Node] = {}  # what they became, by how they are written

    def lookup(self, name: str, alias: str = "") -> Expression:
        found = self._find(name, alias)
        if found is not None:
            return found
        if name in SYSTEM_COLUMNS:
            raise Unsupported(f"the system column {name} is not captured")
        raise Unsupported(f"the column {name} cannot be told from the query's text")

    def fields(self, alias: str) -> list[Expression]:
        """Return the columns of a FROM item."""
        return list(self._relation(alias).columns.values())

    def whole_row(self, alias: str) -> Node:
        """Return the rows of a FROM item as values: ROW (…), cast to the type of their relation."""
        item = self._relation(alias)
        if item.row_type is None:
            raise Unsupported(f"the whole row {alias}.* used as a value has no delta rule here")
        return syntax.cast_to(syntax.row(found.node for found in item.columns.values()), *item.row_type)

    def _relation(self, alias: str) -> Relation:
        for item in every(self):
            if item.alias == alias:
                return item
        raise Unsupported(f"the whole row {alias}.* used as a value has no delta rule here")

    def _find(self, name: str, alias: str) -> Expression | None:
        ordered = (
            sorted(self.relations, key=lambda item: item.alias != MERGED) if not alias else self.relations
        )
        for item in ordered:
            if (not alias or item.alias == alias) and name in item.columns:
                return item.columns[name]
        return self.outer._find(name, alias) if self.outer is not None else None

    def owns(self, name: str, alias: str) -> bool:
        """Tell whether a column belongs to this scope itself."""
        return Scope(self.relations)._find(name, alias) is not None


def every(scope: Scope | None) -> list[Relation]:
    """Return the relations of a scope and of those outside it."""
    return [*scope.relations, *every(scope.outer)] if scope is not None else []


class Lifted:
    """Expressions that become columns of an input, each once."""

    def __init__(self, prefix: str = "c") -> None:
        self.names: dict[bytes, str] = {}
        self._outputs: list[Output] = []
        self._prefix = prefix

    def name(self, tree: Expression, prefix: str = "") -> str:
        key = identity(tree.node)
        if key not in self.names:
            self.names[key] = f"{prefix or self._prefix}{len(self._outputs) + 1}"
            self._outputs.append(Output(self.names[key], tree))
        return self.names[key]

    def outputs(self) -> list[Output]:
        return list(self._outputs)


def identity(node: Node) -> bytes:
    """Return a value that two nodes share if they are the same expression."""
    return node.SerializeToString(deterministic=True)


class LiftedColumns(Mapping[str, Expression]):
    """The columns of a relation, lifted on demand, under the alias of the place where they will be."""

    def __init__(self, columns: Mapping[str, Expression], lifted: Lifted, alias: str) -> None:
        self._columns, self._lifted, self._alias = columns, lifted, alias

    def __getitem__(self, name: str) -> Expression:
        return column(self._lifted.name(self._columns[name]), self._alias)

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


# Questions about parts of the tree


def queries_in(node: Node) -> list[Node]:
    """Return the outermost queries inside an expression."""
    return [item for item in syntax.walk(node, into_queries=False) if kind_of(item) == "select_stmt"]


def is_window_call(node: Node) -> bool:
    """Tell whether a node calls a window function, or an aggregate as one."""
    match kind_of(node):
        case "func_call":
            return node.func_call.HasField("over")
        case "json_array_agg":
            return node.json_array_agg.constructor.HasField("over")
        case "json_object_agg":
            return node.json_object_agg.constructor.HasField("over")
        case _:
            return False


def has_window(node: Node) -> bool:
    return any(is_window_call(item) for item in syntax.walk(node, into_queries=False))


def is_row(node: Node) -> bool:
    """Tell whether an expression constructs a row, or casts one to the type of a table."""
    return kind_of(node) == "row_expr" or (kind_of(node) == "type_cast" and is_row(node.type_cast.arg))


def starred(node: Node) -> str | None:
    """Return the alias of a whole row, if a node is one."""
    if kind_of(node) != "column_ref":
        return None
    fields = node.column_ref.fields
    if len(fields) == 2 and kind_of(fields[1]) == "a_star":
        return fields[0].string.sval
    return None


def output_name(item: pg.ResTarget) -> str:
    """Return the name of an output as the server gives it: it writes AS wherever the name differs."""
    if item.name:
        return item.name
    if kind_of(item.val) == "column_ref" and kind_of(item.val.column_ref.fields[-1]) == "string":
        return item.val.column_ref.fields[-1].string.sval
    return "?column?"


def output_names(query: SelectStmt) -> tuple[str, ...]:
    """Return the names of a query's columns, of a set operation's first branch; none for VALUES."""
    while query.op != pg.SETOP_NONE:
        query = query.larg
    return tuple(output_name(item.res_target) for item in query.target_list)
