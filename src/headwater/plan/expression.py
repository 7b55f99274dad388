"""Expressions of a plan: PostgreSQL's parse tree, with the questions that a plan asks about it.

An expression knows its text, the columns it refers to, and its outermost shape. Most rules need no more, and
leave it as PostgreSQL printed it. Only the builder and this module know the classes of the parse tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from postgast import pg_query_pb2 as pg
from postgast.pg_query_pb2 import Node

from headwater.plan import syntax
from headwater.plan.deparse import text_of


@dataclass(frozen=True)
class ColumnRef:
    """A reference to a column of an input, which always has an alias."""

    alias: str
    name: str


class Expression:
    """An immutable expression. Two are equal if they have the same text."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expression) and (self.node is other.node or self.text == other.text)

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"

    @cached_property
    def text(self) -> str:
        """The expression as SQL."""
        return text_of(self.node)

    @cached_property
    def references(self) -> tuple[ColumnRef, ...]:
        """Every column that it refers to, each once; also those of its subqueries."""
        found = (column_of(node) for node in syntax.walk(self.node))
        return tuple(dict.fromkeys(item for item in found if item is not None))

    @cached_property
    def aliases(self) -> frozenset[str]:
        """The inputs that it refers to."""
        return frozenset(item.alias for item in self.references)

    @cached_property
    def has_query(self) -> bool:
        """True if it contains a subquery."""
        return any(syntax.kind_of(node) == "select_stmt" for node in syntax.walk(self.node))

    @cached_property
    def tables(self) -> frozenset[str]:
        """The tables without a schema that its subqueries read."""
        return frozenset(
            node.range_var.relname
            for node in syntax.walk(self.node)
            if syntax.kind_of(node) == "range_var" and not node.range_var.schemaname
        )

    @cached_property
    def is_table(self) -> bool:
        """True if it is a FROM item that names a table."""
        return syntax.kind_of(self.node) == "range_var"

    @property
    def column(self) -> ColumnRef | None:
        """The column that it is, or None if it is anything else."""
        return column_of(self.node)

    @cached_property
    def shape(self) -> Shape:
        """Its outermost form."""
        return _shape(self.node)

    @property
    def equality(self) -> tuple[Expression, Expression] | None:
        """The two sides, if it states that two values are equal."""
        shape = self.shape
        if isinstance(shape, Operation) and shape.operator == "=" and shape.left is not None:
            return shape.left, shape.right
        return None

    def mapped(self, replace: Callable[[ColumnRef], Expression | None]) -> Expression:
        """Return the expression with some of its columns replaced."""

        def change(node: Node) -> Node | None:
            found = column_of(node)
            made = replace(found) if found is not None else None
            return made.node if made is not None else None

        return Expression(syntax.rewritten(self.node, change))

    def realiased(self, aliases: Mapping[str, str]) -> Expression:
        """Return the expression over inputs under other aliases."""
        return self.mapped(
            lambda found: column(found.name, aliases[found.alias]) if found.alias in aliases else None
        )

    def unqualified(self) -> Expression:
        """Return the expression with bare column names."""
        return self.mapped(lambda found: column(found.name))

    def reading(self, tables: Mapping[str, str]) -> Expression:
        """Return the expression with other tables in its subqueries, under the old names."""

        def change(node: Node) -> Node | None:
            if syntax.kind_of(node) != "range_var" or node.range_var.schemaname:
                return None
            item = node.range_var
            if item.relname not in tables:
                return None
            return syntax.range_var(tables[item.relname], item.alias.aliasname or item.relname)

        return Expression(syntax.rewritten(self.node, change))


def column_of(node: Node) -> ColumnRef | None:
    """Return the column that a node refers to, if it refers to one; a whole row is none."""
    if syntax.kind_of(node) != "column_ref":
        return None
    fields = node.column_ref.fields
    if any(syntax.kind_of(part) != "string" for part in fields) or len(fields) > 2:
        return None
    names = syntax.names_of(fields)
    return ColumnRef(names[0] if len(names) == 2 else "", names[-1])


def column(name: str, alias: str = "") -> Expression:
    """Refer to a column of an input."""
    return Expression(syntax.column(name, alias))


def integer(value: int) -> Expression:
    return Expression(syntax.integer(value))


def all_of(conditions: Iterable[Expression]) -> Expression:
    """Join conditions by AND."""
    return Expression(syntax.all_of([item.node for item in conditions]))


def any_of(conditions: Iterable[Expression]) -> Expression:
    """Join conditions by OR."""
    return Expression(syntax.any_of([item.node for item in conditions]))


def conjuncts(conditions: Iterable[Expression]) -> list[Expression]:
    """Take conditions apart at AND."""
    found: list[Expression] = []
    for condition in conditions:
        shape = condition.shape
        if isinstance(shape, Logic) and shape.word == "AND":
            found += conjuncts(shape.parts)
        else:
            found.append(condition)
    return found


# Shapes


@dataclass(frozen=True)
class Literal:
    """A constant."""

    text: str  # without quotes
    number: bool


@dataclass(frozen=True)
class Cast:
    """A cast, with the type as it is written."""

    value: Expression
    type: str  # its name, without the schema of PostgreSQL's own
    modifiers: tuple[str, ...]


@dataclass(frozen=True)
class Operation:
    """One of PostgreSQL's own operators, with one operand or two."""

    operator: str
    left: Expression | None
    right: Expression


@dataclass(frozen=True)
class Logic:
    """AND or OR."""

    word: str
    parts: tuple[Expression, ...]


@dataclass(frozen=True)
class Negation:
    """NOT."""

    value: Expression


@dataclass(frozen=True)
class NullTest:
    """IS NULL or IS NOT NULL."""

    value: Expression
    negated: bool


@dataclass(frozen=True)
class Distinction:
    """IS DISTINCT FROM, or IS NOT DISTINCT FROM."""

    left: Expression
    right: Expression
    negated: bool


@dataclass(frozen=True)
class Coalesce:
    """COALESCE."""

    values: tuple[Expression, ...]


@dataclass(frozen=True)
class Case:
    """CASE with conditions, and without an operand."""

    branches: tuple[tuple[Expression, Expression], ...]
    default: Expression | None


@dataclass(frozen=True)
class Row:
    """ROW (…)."""

    values: tuple[Expression, ...]


@dataclass(frozen=True)
class Opaque:
    """Anything else."""


Shape = (
    ColumnRef
    | Literal
    | Cast
    | Operation
    | Logic
    | Negation
    | NullTest
    | Distinction
    | Coalesce
    | Case
    | Row
    | Opaque
)

_LOGIC = {pg.AND_EXPR: "AND", pg.OR_EXPR: "OR"}


def _shape(node: Node) -> Shape:
    match syntax.kind_of(node):
        case "column_ref":
            return column_of(node) or Opaque()
        case "a_const":
            return _literal(node.a_const)
        case "type_cast":
            return _cast(node.type_cast)
        case "a_expr":
            return _operation(node.a_expr)
        case "bool_expr":
            parts = tuple(map(Expression, node.bool_expr.args))
            if node.bool_expr.boolop == pg.NOT_EXPR:
                return Negation(parts[0])
            return Logic(_LOGIC[node.bool_expr.boolop], parts)
        case "null_test":
            return NullTest(Expression(node.null_test.arg), node.null_test.nulltesttype == pg.IS_NOT_NULL)
        case "coalesce_expr":
            return Coalesce(tuple(map(Expression, node.coalesce_expr.args)))
        case "case_expr" if not node.case_expr.HasField("arg"):
            branches = tuple(
                (Expression(item.case_when.expr), Expression(item.case_when.result))
                for item in node.case_expr.args
            )
            default = node.case_expr.defresult if node.case_expr.HasField("defresult") else None
            return Case(branches, Expression(default) if default is not None else None)
        case "row_expr":
            return Row(tuple(map(Expression, node.row_expr.args)))
        case _:
            return Opaque()


def _literal(constant: pg.A_Const) -> Shape:
    match constant.WhichOneof("val"):
        case "ival":
            return Literal(str(constant.ival.ival), number=True)
        case "fval":
            return Literal(constant.fval.fval, number=True)
        case "sval":
            return Literal(constant.sval.sval, number=False)
        case _:
            return Opaque()


def _cast(cast: pg.TypeCast) -> Shape:
    kind = cast.type_name
    names = syntax.names_of(kind.names)
    if kind.setof or kind.pct_type or kind.array_bounds or (len(names) == 2 and names[0] != "pg_catalog"):
        return Opaque()
    modifiers = []
    for item in kind.typmods:
        if syntax.kind_of(item) != "a_const" or item.a_const.WhichOneof("val") != "ival":
            return Opaque()
        modifiers.append(str(item.a_const.ival.ival))
    return Cast(Expression(cast.arg), names[-1], tuple(modifiers))


def _operation(found: pg.A_Expr) -> Shape:
    names = syntax.names_of(found.name)
    right = Expression(found.rexpr)
    if len(names) == 2 and names[0] != "pg_catalog":
        return Opaque()
    match found.kind:
        case pg.AEXPR_OP:
            left = Expression(found.lexpr) if found.HasField("lexpr") else None
            return Operation(names[-1], left, right)
        case pg.AEXPR_DISTINCT:
            return Distinction(Expression(found.lexpr), right, negated=False)
        case pg.AEXPR_NOT_DISTINCT:
            return Distinction(Expression(found.lexpr), right, negated=True)
        case _:
            return Opaque()
