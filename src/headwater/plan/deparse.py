"""PostgreSQL's parse tree as text again, through libpg_query.

Printing checks itself. What is printed is parsed again and must give the tree that was printed, so an
expression that was moved somewhere else cannot change its meaning for want of parentheses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import postgast
from postgast import PgQueryError
from postgast import pg_query_pb2 as pg
from postgast.pg_query_pb2 import Node, SelectStmt

from headwater.plan.errors import Unsupported
from headwater.plan.syntax import (
    ParseError,
    column,
    copied,
    integer,
    kind_of,
    names_of,
    parse,
    rewrite_into,
    rewritten,
    select,
    target,
)

GRAMMAR = postgast.parse("SELECT 1").version

OPERATORS = frozenset(
    "a_expr bool_expr null_test boolean_test type_cast collate_clause a_indirection sub_link"
    " json_is_predicate xml_expr range_table_func".split()
)
"""Kinds of nodes whose operands may need parentheses."""

FROM_ITEMS = frozenset(
    {
        "range_var",
        "range_subselect",
        "range_function",
        "range_table_sample",
        "range_table_func",
        "json_table",
        "join_expr",
    }
)


def query_text(query: SelectStmt) -> str:
    """Print a query so that it means the same when it is parsed again.

    libpg_query leaves out parentheses that a tree of moved parts needs. Such a tree is printed once more with
    all of them.
    """
    text = _deparse(query)
    if not _means(text, query):
        text = _with_parentheses(query)
        if not _means(text, query):
            raise Unsupported(f"{text} would not mean the same if it were parsed again")
    return text


def text_of(node: Node) -> str:
    """Print an expression, a FROM item or a query; a query stands in parentheses.

    >>> text_of(column("a b", "t"))
    't."a b"'
    """
    kind = node.WhichOneof("node")
    if kind == "select_stmt":
        return f"({query_text(node.select_stmt)})"
    block = select()
    if kind in FROM_ITEMS:
        block.from_clause.append(node)
        return query_text(block).removeprefix("SELECT FROM ")
    block.target_list.append(Node(res_target=pg.ResTarget(val=node)))
    return query_text(block).removeprefix("SELECT ")


def _means(text: str, query: SelectStmt) -> bool:
    try:
        found = parse(text)
    except ParseError:
        return False
    return found == query or _flattened(found) == _flattened(query)


def _flattened(query: SelectStmt) -> SelectStmt:
    """Normalize what makes no difference: AND in AND, a negated constant, LATERAL where it is implied."""

    def change(node: Node) -> Node | None:
        if kind_of(node) == "bool_expr" and node.bool_expr.boolop in (pg.AND_EXPR, pg.OR_EXPR):
            parts = list(_parts(node, node.bool_expr.boolop))
            whole = pg.BoolExpr(
                boolop=node.bool_expr.boolop, args=[rewritten(part, change) for part in parts]
            )
            return Node(bool_expr=whole)
        if kind_of(node) == "json_table" and node.json_table.lateral:
            plain = copied(node)
            plain.json_table.lateral = False
            return rewritten(plain, change)
        if kind_of(node) == "a_expr" and names_of(node.a_expr.name) == ("-",) and _is_prefix(node.a_expr):
            constant = node.a_expr.rexpr.a_const
            match constant.WhichOneof("val"):
                case "ival":
                    return integer(-constant.ival.ival)
                case "fval":
                    value = constant.fval.fval
                    negated = value[1:] if value.startswith("-") else f"-{value}"
                    return Node(a_const=pg.A_Const(fval=pg.Float(fval=negated)))
        return None

    return rewritten(query, change)


def _is_prefix(operation: pg.A_Expr) -> bool:
    return not operation.HasField("lexpr") and kind_of(operation.rexpr) == "a_const"


def _parts(node: Node, word: pg.BoolExprType) -> Iterator[Node]:
    if kind_of(node) == "bool_expr" and node.bool_expr.boolop == word:
        for part in node.bool_expr.args:
            yield from _parts(part, word)
    else:
        yield node


def _with_parentheses(query: SelectStmt) -> str:
    """Print a query with parentheses around every operand of an operator that is not a plain column.

    Operands are printed by themselves; meanwhile columns with names that nobody else uses stand for them.
    """
    operands: list[str] = []

    def stand_in(operand: Node) -> Node:
        block = select()
        block.target_list.append(target(operand))
        operands.append(f"({_with_parentheses(block).removeprefix('SELECT ')})")
        return column(f"__hw_operand_{len(operands) - 1}__")

    def change(node: Node) -> Node | None:
        syntactic = kind_of(node) == "func_call" and node.func_call.funcformat == pg.COERCE_SQL_SYNTAX
        if not syntactic and kind_of(node) not in OPERATORS:
            return None
        copy = copied(node)
        for operand in _operands(copy):
            if _is_compound(operand) or kind_of(copy) == "a_indirection":
                operand.CopyFrom(stand_in(copied(operand)))
        inner = copied(copy)
        rewrite_into(getattr(copy, kind_of(copy)), getattr(inner, kind_of(copy)), change)
        return inner

    text = _deparse(rewritten(query, change))
    return re.sub(r"__hw_operand_(\d+)__", lambda found: operands[int(found[1])], text)


def _is_compound(node: Node) -> bool:
    """Tell whether an operand is itself an operator; libpg_query expects some literals and calls in place."""
    match kind_of(node):
        case "func_call":
            return node.func_call.funcformat == pg.COERCE_SQL_SYNTAX
        case "a_const":
            return node.a_const.ival.ival < 0 or node.a_const.fval.fval.startswith("-")
        case kind:
            return kind in OPERATORS


def _operands(node: Node) -> list[Node]:
    """Return the operands of an operator, also those in a list."""
    match kind_of(node):
        case "a_expr":
            sides = [side for side in (node.a_expr.lexpr, node.a_expr.rexpr) if kind_of(side)]
            return [
                item for side in sides for item in (side.list.items if kind_of(side) == "list" else [side])
            ]
        case "bool_expr":
            return list(node.bool_expr.args)
        case "func_call":
            return list(node.func_call.args)
        case "sub_link":
            return [node.sub_link.testexpr] if node.sub_link.HasField("testexpr") else []
        case "json_is_predicate":
            return [node.json_is_predicate.expr]
        case "xml_expr":
            return list(node.xml_expr.args)
        case "range_table_func":
            return [node.range_table_func.rowexpr, node.range_table_func.docexpr]
        case kind:
            return [getattr(node, kind).arg]


def _deparse(query: SelectStmt) -> str:
    result = pg.ParseResult(version=GRAMMAR)
    result.stmts.add().stmt.select_stmt.CopyFrom(query)
    try:
        return postgast.deparse(result)
    except PgQueryError as error:
        raise Unsupported(f"a part of the query cannot be printed ({error})") from error
