"""PostgreSQL's own parse tree, read through libpg_query.

The tree is what `gram.y` makes: protobuf messages, in which `Node` wraps whichever kind of node stands in a
place. Trees are values here: nothing changes one in place, `rewritten` returns another. Locations are removed
when a text is parsed, so two trees are equal if they mean the same. `deparse` prints them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import postgast
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from postgast import PgQueryError
from postgast import pg_query_pb2 as pg
from postgast.pg_query_pb2 import Node, SelectStmt

from headwater.plan.errors import Unsupported

try:
    from google._upb._message import SetAllowOversizeProtos
except ImportError:  # protobuf in plain Python reads nothing deeper than 100 messages
    pass
else:
    SetAllowOversizeProtos(True)

ParseError = PgQueryError

LOCATIONS = frozenset(
    "location name_location stmt_location stmt_len"
    " list_start list_end rexpr_list_start rexpr_list_end".split()
)
"""Fields that say where in the text something was."""

DEEPEST = 400
"""How deeply messages may be nested in a tree, two for each operator or call. Rewriting a tree is recursive.
"""

TOO_DEEP = "operators, calls or subqueries in it are nested too deeply"

M = TypeVar("M", bound=Message)


def parse(text: str) -> SelectStmt:
    """Parse one query. Raise ParseError, or Unsupported if it is not a query."""
    try:
        statements = postgast.parse(text).stmts
    except DecodeError as error:
        raise Unsupported(TOO_DEEP) from error
    if len(statements) != 1 or statements[0].stmt.WhichOneof("node") != "select_stmt":
        raise Unsupported("the text is not one query")
    query = statements[0].stmt.select_stmt
    _forget_locations(query, DEEPEST)
    return query


def _forget_locations(message: Message, depth: int) -> None:
    if not depth:
        raise Unsupported(TOO_DEEP)
    for field, value in message.ListFields():
        if field.name in LOCATIONS:
            message.ClearField(field.name)
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            for item in _listed(value):
                _forget_locations(item, depth - 1)


def _listed(value: Any) -> Sequence[Message]:
    return (value,) if isinstance(value, Message) else value


# Walking and rewriting


def kind_of(node: Node) -> str:
    """Name the kind of node in a place."""
    return cast(str, node.WhichOneof("node"))


def walk(message: Message, *, into_queries: bool = True) -> Iterator[Node]:
    """Yield every node below a message, itself included, outermost first.

    Without `into_queries`, a query is yielded, but not what is in it.
    """
    if isinstance(message, Node):
        kind = message.WhichOneof("node")
        if kind is None:
            return
        yield message
        if kind == "select_stmt" and not into_queries:
            return
        message = getattr(message, kind)
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for item in _listed(value):
                yield from walk(item, into_queries=into_queries)


def find(message: Message, *kinds: str, into_queries: bool = True) -> list[Node]:
    """Find the nodes of some kinds."""
    return [node for node in walk(message, into_queries=into_queries) if kind_of(node) in kinds]


def rewritten(message: M, change: Callable[[Node], Node | None]) -> M:
    """Return a tree with some nodes replaced.

    `change` is called from the outside in, with nodes of the original tree. The node that it returns takes
    the place of the old one and is not visited.
    """
    copy = copied(message)
    rewrite_into(message, copy, change)
    return copy


def rewrite_into(message: Message, copy: Message, change: Callable[[Node], Node | None]) -> None:
    """Do what `rewritten` does, in a copy of the message."""
    if isinstance(message, Node):
        kind = message.WhichOneof("node")
        if kind is None:
            return
        made = change(message)
        if made is not None:
            copy.CopyFrom(made)
            return
        message, copy = getattr(message, kind), getattr(copy, kind)
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for item, other in zip(_listed(value), _listed(getattr(copy, field.name)), strict=True):
                rewrite_into(item, other, change)


def copied(message: M) -> M:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


# Reading: consume or refuse


@contextmanager
def reading(message: M) -> Iterator[M]:
    """Read a message so that nothing in it is overlooked.

    At the end every field that is set must have been read, or the query is refused with the field's name. So
    a clause that a newer PostgreSQL adds is refused, and not ignored.
    """
    fields = _Fields(message)
    yield cast(M, fields)
    for field, _ in message.ListFields():
        if field.name not in fields.read and field.name not in LOCATIONS:
            raise Unsupported(f"{_clause(message, field.name)} has no delta rule here")


class _Fields:
    def __init__(self, message: Message) -> None:
        self.message = message
        self.read: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self.read.add(name)
        return getattr(self.message, name)


_CLAUSES = {
    ("SelectStmt", "distinct_clause"): "DISTINCT",
    ("SelectStmt", "into_clause"): "INTO",
    ("SelectStmt", "where_clause"): "WHERE",
    ("SelectStmt", "group_clause"): "GROUP BY",
    ("SelectStmt", "group_distinct"): "GROUP BY DISTINCT",
    ("SelectStmt", "having_clause"): "HAVING",
    ("SelectStmt", "window_clause"): "WINDOW",
    ("SelectStmt", "sort_clause"): "ORDER BY",
    ("SelectStmt", "limit_offset"): "OFFSET",
    ("SelectStmt", "limit_count"): "LIMIT",
    ("SelectStmt", "locking_clause"): "FOR UPDATE or FOR SHARE",
    ("SelectStmt", "with_clause"): "WITH",
    ("JoinExpr", "quals"): "ON",
    ("JoinExpr", "using_clause"): "USING",
    ("JoinExpr", "is_natural"): "NATURAL JOIN",
    ("RangeFunction", "coldeflist"): "a column definition list",
    ("RangeVar", "inh"): "ONLY",
}


def _clause(message: Message, field: str) -> str:
    name = type(message).__name__
    return _CLAUSES.get((name, field), f"{name}.{field}")


# Making nodes


def select() -> SelectStmt:
    """Return a SELECT without anything in it."""
    return pg.SelectStmt(op=pg.SETOP_NONE, limit_option=pg.LIMIT_OPTION_DEFAULT)


def select_from(
    outputs: Iterable[tuple[Node, str]], table: str, where: Sequence[Node] = (), alias: str = ""
) -> SelectStmt:
    """Return a SELECT of named expressions from one table.

    >>> from headwater.plan.deparse import query_text
    >>> query_text(select_from([(column("a", "t"), "b")], "t"))
    'SELECT t.a AS b FROM t'
    """
    query = select()
    query.target_list.extend(target(node, name) for node, name in outputs)
    query.from_clause.append(range_var(table, alias))
    if where:
        query.where_clause.CopyFrom(all_of(where))
    return query


def target(node: Node, name: str = "") -> Node:
    return Node(res_target=pg.ResTarget(name=name, val=node))


def of_query(query: SelectStmt) -> Node:
    return Node(select_stmt=query)


def string(value: str) -> Node:
    return Node(string=pg.String(sval=value))


def column(name: str, alias: str = "") -> Node:
    """Return a reference to a column."""
    return Node(column_ref=pg.ColumnRef(fields=[string(part) for part in (alias, name) if part]))


def range_var(name: str, alias: str = "") -> Node:
    """Return a FROM item that names a table without a schema."""
    item = pg.RangeVar(relname=name, inh=True, relpersistence="p")
    if alias:
        item.alias.CopyFrom(pg.Alias(aliasname=alias))
    return Node(range_var=item)


def subselect(query: SelectStmt, alias: str, names: Iterable[str] = ()) -> Node:
    """Return a subquery in FROM."""
    named = pg.Alias(aliasname=alias, colnames=[string(name) for name in names])
    return Node(range_subselect=pg.RangeSubselect(subquery=of_query(query), alias=named))


def integer(value: int) -> Node:
    return Node(a_const=pg.A_Const(ival=pg.Integer(ival=value)))


def boolean(value: bool) -> Node:
    return Node(a_const=pg.A_Const(boolval=pg.Boolean(boolval=value)))


def is_true(node: Node) -> bool:
    """Tell whether a condition is the constant true."""
    return node == boolean(True)


def equals(left: Node, right: Node) -> Node:
    return Node(a_expr=pg.A_Expr(kind=pg.AEXPR_OP, name=[string("=")], lexpr=left, rexpr=right))


def negation(node: Node) -> Node:
    return Node(bool_expr=pg.BoolExpr(boolop=pg.NOT_EXPR, args=[node]))


def all_of(conditions: Sequence[Node]) -> Node:
    """Join conditions by AND; no condition gives true."""
    return _joined(pg.AND_EXPR, conditions) if conditions else boolean(True)


def any_of(conditions: Sequence[Node]) -> Node:
    """Join conditions by OR; no condition gives false."""
    return _joined(pg.OR_EXPR, conditions) if conditions else boolean(False)


def _joined(word: pg.BoolExprType, conditions: Sequence[Node]) -> Node:
    if len(conditions) == 1:
        return conditions[0]
    # The parser flattens nested ANDs, and nested ORs, into one list.
    flat = [
        part
        for condition in conditions
        for part in (
            condition.bool_expr.args
            if kind_of(condition) == "bool_expr" and condition.bool_expr.boolop == word
            else [condition]
        )
    ]
    return Node(bool_expr=pg.BoolExpr(boolop=word, args=flat))


def exists(query: SelectStmt) -> Node:
    return Node(sub_link=pg.SubLink(sub_link_type=pg.EXISTS_SUBLINK, subselect=of_query(query)))


def coalesce(values: Iterable[Node]) -> Node:
    return Node(coalesce_expr=pg.CoalesceExpr(args=list(values)))


def row(values: Iterable[Node]) -> Node:
    """Return ROW (…)."""
    return Node(row_expr=pg.RowExpr(args=list(values), row_format=pg.COERCE_EXPLICIT_CALL))


def typed_null(node: Node) -> Node:
    """Return NULL of the type of an expression, which is not evaluated."""
    when = pg.CaseWhen(expr=boolean(False), result=node)
    return Node(case_expr=pg.CaseExpr(args=[Node(case_when=when)]))


def cast_to(node: Node, schema: str, name: str) -> Node:
    """Return a cast to a type of a schema."""
    kind = pg.TypeName(names=[string(schema), string(name)], typemod=-1)
    return Node(type_cast=pg.TypeCast(arg=node, type_name=kind))


# Names


def names_of(nodes: Iterable[Node]) -> tuple[str, ...]:
    """Return the strings in a list of names."""
    return tuple(node.string.sval for node in nodes)


def function_name(call: pg.FuncCall) -> tuple[str, str]:
    """Return the schema and the name of a called function; the server leaves out only its own schema."""
    names = names_of(call.funcname)
    return ("pg_catalog", names[0]) if len(names) == 1 else (names[-2], names[-1])
