"""Names in a query, and expressions on their way from one place of it to another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from sqlglot import exp

from headwater.plan.dialect import render
from headwater.plan.operators import Output, Unsupported
from headwater.plan.reach import bare

SYSTEM_COLUMNS = frozenset({"ctid", "xmin", "xmax", "cmin", "cmax", "tableoid"})


@dataclass
class Relation:
    """A FROM item: its visible name and, for each of its columns, the expression over the real inputs."""

    alias: str
    columns: Mapping[str, exp.Expression]
    row_type: str = ""  # of its whole rows, as SQL writes it, if every row is one of a table or view


MERGED = ""
"""Alias of the columns that an outer join with USING makes of both sides; no FROM item has it."""


class Scope:
    """The FROM items that an expression may refer to; those of an inner query come before those outside."""

    def __init__(self, relations: Iterable[Relation] = (), outer: Scope | None = None) -> None:
        self.relations = list(relations)
        self.outer = outer

    def lookup(self, name: str, alias: str = "") -> exp.Expression:
        found = self._find(name, alias)
        if found is not None:
            return found.copy()
        if name in SYSTEM_COLUMNS:
            raise Unsupported(f"the system column {name} is not captured")
        raise Unsupported(f"the column {name} cannot be told from the query's text")

    def whole_row(self, alias: str) -> exp.Expression:
        """The rows of a FROM item as values: ROW (…) in the type of what they are from."""
        item = next((item for item in self.relations if item.alias == alias), None)
        if item is None and self.outer is not None:
            return self.outer.whole_row(alias)
        if item is None or not item.row_type:
            raise Unsupported(f"the whole row {alias}.* used as a value has no delta rule here")
        row = exp.Anonymous(this="ROW", expressions=[tree.copy() for tree in item.columns.values()])
        kind = exp.DataType(this=exp.DataType.Type.USERDEFINED, kind=item.row_type)
        return exp.Cast(this=row, to=kind)

    def _find(self, name: str, alias: str) -> exp.Expression | None:
        ordered = (
            sorted(self.relations, key=lambda item: item.alias != MERGED) if not alias else self.relations
        )
        for item in ordered:
            if (not alias or item.alias == alias) and name in item.columns:
                return item.columns[name]
        return self.outer._find(name, alias) if self.outer is not None else None

    def owns(self, column: exp.Column) -> bool:
        """Whether a column is one of this scope's own."""
        return Scope(self.relations)._find(column.name, column.table) is not None


class Lifted:
    """Expressions that become columns of an input, each once."""

    def __init__(self, prefix: str = "c") -> None:
        self.names: dict[str, str] = {}
        self._outputs: list[Output] = []
        self._prefix = prefix

    def name(self, tree: exp.Expression, prefix: str = "") -> str:
        plain = bare(tree)
        text = render(plain)
        if text not in self.names:
            self.names[text] = f"{prefix or self._prefix}{len(self._outputs) + 1}"
            self._outputs.append(Output(self.names[text], plain.copy()))
        return self.names[text]

    def outputs(self) -> tuple[Output, ...]:
        return tuple(self._outputs)


class LiftedColumns(Mapping[str, exp.Expression]):
    """The columns of a relation, lifted when they are asked for, under the alias of where they will be."""

    def __init__(self, columns: Mapping[str, exp.Expression], lifted: Lifted, alias: str) -> None:
        self._columns, self._lifted, self._alias = columns, lifted, alias

    def __getitem__(self, name: str) -> exp.Expression:
        return exp.column(self._lifted.name(self._columns[name]), self._alias, quoted=True)

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


def queries_in(tree: exp.Expression) -> list[exp.Expression]:
    """The outermost queries inside an expression."""
    found: list[exp.Expression] = []

    def walk(node: exp.Expression) -> None:
        if isinstance(node, exp.Select | exp.SetOperation):
            found.append(node)
            return
        for child in node.iter_expressions():
            walk(child)

    walk(tree)
    return found


def has_query(tree: exp.Expression) -> bool:
    return bool(queries_in(tree))


def is_collation(column: exp.Expression) -> bool:
    """Whether what looks like a column is the name of a collation."""
    return isinstance(column.parent, exp.Collate) and column.arg_key == "expression"


def grouped(tree: exp.Expression) -> exp.Expression:
    """In parentheses unless it is a plain column or literal, so that it can stand anywhere."""
    return tree if isinstance(tree, exp.Column | exp.Literal | exp.Paren) else exp.Paren(this=tree)


def is_row(tree: exp.Expr) -> bool:
    """Whether an expression puts a row together."""
    return isinstance(tree, exp.Tuple) or (isinstance(tree, exp.Anonymous) and tree.name == "ROW")


def is_whole_row(tree: exp.Expr) -> bool:
    """Whether an expression is a row of a table as a value."""
    return isinstance(tree, exp.Cast) and is_row(tree.this)


def realiased(tree: exp.Expression, aliases: Mapping[str, str]) -> exp.Expression:
    copy = exp.Paren(this=tree.copy())
    for column in copy.find_all(exp.Column):
        if column.table in aliases:
            column.set("table", exp.to_identifier(aliases[column.table], quoted=True))
    result = copy.this
    assert isinstance(result, exp.Expression)
    return result


def table_named(name: str) -> exp.Table:
    return exp.Table(this=exp.to_identifier(name, quoted=True))


def has_window(tree: exp.Expression) -> bool:
    def found(node: exp.Expression) -> bool:
        if isinstance(node, exp.Select | exp.SetOperation):
            return False
        return isinstance(node, exp.Window) or any(found(child) for child in node.iter_expressions())

    return found(tree)


def output_name(item: exp.Expression) -> str:
    return item.alias_or_name or "?column?"


def output_names(tree: exp.Expression) -> tuple[str, ...]:
    """The names of a query's columns, which a set operation has from its first branch; none for VALUES."""
    while isinstance(tree, exp.Subquery | exp.SetOperation):
        tree = tree.this
    return tuple(output_name(item) for item in tree.expressions) if isinstance(tree, exp.Select) else ()
