"""Functions in FROM, JSON_TABLE and XMLTABLE: their names and their columns."""

from __future__ import annotations

from postgast import pg_query_pb2 as pg
from postgast.pg_query_pb2 import Node as Tree

from headwater.plan import syntax
from headwater.plan.deparse import text_of
from headwater.plan.errors import Unsupported
from headwater.plan.syntax import kind_of, reading


def function_parts(item: Tree) -> tuple[str, tuple[str, ...], Tree]:
    """Return the visible name of a function in FROM, its columns, and itself without its alias."""
    kind = kind_of(item)
    plain = syntax.copied(item)
    inner = getattr(plain, kind)
    inner.lateral = False
    inner.ClearField("alias")
    with reading(getattr(item, kind).alias) as alias:
        visible, given = alias.aliasname, syntax.names_of(alias.colnames)
    if kind == "range_function":
        with reading(item.range_function) as found:
            # These stay in the item as it is printed.
            _ = (found.lateral, found.alias, found.functions, found.ordinality, found.is_rowsfrom)
        if any(len(each.list.items) > 1 and kind_of(each.list.items[1]) for each in inner.functions):
            raise Unsupported("a column definition list in FROM has no delta rule")
    elif kind == "json_table":
        given = (*given, *_json_columns(item.json_table.columns)[len(given) :])
    else:
        named = [node.range_table_func_col.colname for node in item.range_table_func.columns]
        given = (*given, *named[len(given) :])
    if not given:
        raise Unsupported(f"{text_of(item)} in FROM has no delta rule yet")
    return visible, given, plain


def _json_columns(columns: list[Tree]) -> list[str]:
    """Return the names of the columns of a JSON_TABLE, those of nested ones in their places."""
    found: list[str] = []
    for node in columns:
        item = node.json_table_column
        found += _json_columns(list(item.columns)) if item.coltype == pg.JTC_NESTED else [item.name]
    return found
