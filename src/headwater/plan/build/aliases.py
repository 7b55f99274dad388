"""Aliases in queries: which are bound, which are free, and how to rename them."""

from __future__ import annotations

from postgast.pg_query_pb2 import Node, SelectStmt

from headwater.plan import syntax
from headwater.plan.build.scope import Scope
from headwater.plan.expression import column_of
from headwater.plan.syntax import kind_of


def bound_aliases(query: SelectStmt) -> set[str]:
    """Return the names that FROM items have anywhere in a query."""
    found = set()
    for node in syntax.walk(query):
        match kind_of(node):
            case "range_var":
                found.add(node.range_var.alias.aliasname or node.range_var.relname)
            case "range_subselect" | "range_function" | "range_table_func" | "json_table" as kind:
                found.add(getattr(node, kind).alias.aliasname)
            case "join_expr":
                found |= {node.join_expr.alias.aliasname, node.join_expr.join_using_alias.aliasname}
    return found - {""}


def free_aliases(query: SelectStmt) -> set[str]:
    """Return the aliases that a query refers to and does not bind; the server never gives one name to two."""
    named = set()
    for node in syntax.find(query, "column_ref"):
        if len(node.column_ref.fields) == 2:
            named.add(node.column_ref.fields[0].string.sval)
    return named - bound_aliases(query)


def inner_name(name: str) -> str:
    """Return what a name inside a subquery becomes, so that it differs from our own."""
    return f"s_{name}"


def rename_aliases(query: SelectStmt) -> None:
    """Give every FROM item and common table of a query its inner name, in place."""
    for node in syntax.walk(query):
        match kind_of(node):
            case "range_subselect" | "range_function" | "range_table_func" | "json_table" as kind:
                alias = getattr(node, kind).alias
                if alias.aliasname:
                    alias.aliasname = inner_name(alias.aliasname)
            case "join_expr":
                for alias in (node.join_expr.alias, node.join_expr.join_using_alias):
                    if alias.aliasname:
                        alias.aliasname = inner_name(alias.aliasname)
            case "common_table_expr":
                node.common_table_expr.ctename = inner_name(node.common_table_expr.ctename)


def qualified(node: Node, scope: Scope) -> Node:
    """Return the expression with the alias before each column: it may be moved into a subquery.

    A column without an alias inside an existing subquery is one that USING merges, of that subquery.
    """

    def change(item: Node) -> Node | None:
        if kind_of(item) == "select_stmt":
            return item
        found = column_of(item)
        if found is None or found.alias:
            return None
        owner = next((rel.alias for rel in scope.relations if found.name in rel.columns), "")
        return syntax.column(found.name, owner) if owner else None

    return syntax.rewritten(node, change)
