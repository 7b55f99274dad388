"""Constructs that have no delta rule, as data: the node, and the reason that a user reads.

The builder refuses whatever it does not know; this list exists so that `explain` can name every reason at
once instead of the first one.
"""

from __future__ import annotations

from google.protobuf.message import Message
from postgast import pg_query_pb2 as pg

from headwater.plan import syntax
from headwater.plan.syntax import kind_of

UNSUPPORTED = {
    "with_clause": "WITH RECURSIVE has no delta rule",
    "locking_clause": "FOR UPDATE or FOR SHARE locks rows of a source, which a refresh must not do",
    "range_table_sample": "TABLESAMPLE gives other rows each time",
}


def unsupported_constructs(query: pg.SelectStmt) -> list[str]:
    """Return every reason found in a query, each once."""
    found: dict[str, None] = {}
    for message in _messages(query):
        if isinstance(message, pg.SelectStmt) and message.with_clause.recursive:
            found[UNSUPPORTED["with_clause"]] = None
        elif isinstance(message, pg.Node) and kind_of(message) in UNSUPPORTED:
            found[UNSUPPORTED[kind_of(message)]] = None
    return list(found)


def _messages(query: pg.SelectStmt) -> list[Message]:
    """Yield every query and every node in a query."""
    found: list[Message] = [query]
    for node in syntax.walk(query):
        found.append(node)
        if kind_of(node) == "select_stmt":
            found.append(node.select_stmt)
    return found + [side for item in found[:] if isinstance(item, pg.SelectStmt) for side in _sides(item)]


def _sides(query: pg.SelectStmt) -> list[pg.SelectStmt]:
    if query.op == pg.SETOP_NONE:
        return []
    return [item for side in (query.larg, query.rarg) for item in (side, *_sides(side))]
