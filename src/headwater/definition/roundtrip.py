"""Whether texts mean the same to the server: the text that the parser prints, and two definitions."""

from __future__ import annotations

import psycopg
from psycopg import sql

from headwater.db.connection import Connection, one
from headwater.definition.types import TypeReader
from headwater.definition.views import canonical_text, parse_tree
from headwater.plan import volatility
from headwater.plan.deparse import query_text
from headwater.plan.errors import Unsupported
from headwater.plan.syntax import parse


def same_meaning(connection: Connection, one_view: int, other_view: int) -> bool:
    """Tell whether two views have the same columns and are the same query to the server."""
    first, second = (
        (
            canonical_text(connection, view),
            volatility.calls(parse_tree(connection, view)),
            [(column.name, column.type.sql) for column in TypeReader(connection).columns_of([view])[view]],
        )
        for view in (one_view, other_view)
    )
    return first == second


def survives_round_trip(connection: Connection, text: str, view: int) -> bool:
    """Tell whether the parser's text means the same to the server as the view that was parsed.

    It must be deparsed to the same text, or to the text that the view's own gives when it is parsed again:
    the server itself leaves out what is sorted by twice, and pulls the cast of an array to its elements. And
    it must call the same functions and operators: those that the text does not name (NULLIF, USING, IS
    DISTINCT FROM) could be found in another schema when it is parsed again.
    """
    try:
        printed = query_text(parse(text))
    except Unsupported:
        return False
    deparsed, calls = _parsed_again(connection, printed)
    called = volatility.calls(parse_tree(connection, view))
    if deparsed == _plain_values(text):
        return calls == called
    again, _ = _parsed_again(connection, text.strip().rstrip(";"))
    return deparsed is not None and deparsed == again and set(calls) == set(called)


def _parsed_again(connection: Connection, text: str) -> tuple[str | None, list[tuple[str, int]]]:
    """Return how the server deparses a query, and what it calls; no text if the server rejects it."""
    try:
        with connection.transaction():
            connection.execute(sql.SQL("CREATE TEMP VIEW hw_round_trip AS {}").format(sql.SQL(text)))
            view = int(one(connection, "SELECT 'pg_temp.hw_round_trip'::regclass::oid")[0])
            deparsed = canonical_text(connection, view)
            calls = volatility.calls(parse_tree(connection, view))
            connection.execute("DROP VIEW pg_temp.hw_round_trip")
    except psycopg.Error:
        return None, []
    return _plain_values(deparsed), calls


def _plain_values(text: str) -> str:
    """Write a list of VALUES in FROM the same way, with or without a SELECT around it."""
    return text.replace("( VALUES", "(VALUES")
