"""Definition views: their names, and their queries as the server deparses and stores them."""

from __future__ import annotations

from collections.abc import Mapping

import psycopg
from psycopg import sql

from headwater.catalog.stream_tables import LONGEST_NAME
from headwater.db.connection import Connection, TryAgain, one
from headwater.db.queries import query
from headwater.errors import RefreshFailed

DEFINITIONS = "headwater_defs"


def new_definition_name(stream_table_id: int, label: str) -> str:
    """Return the name of a new definition view, in its schema, as `headwater.definition` finds it.

    It contains the name of the stream table: the server shows it when it refuses a change to a source.
    """
    name = f"def_{stream_table_id} of {label}"
    return name.encode()[:LONGEST_NAME].decode(errors="ignore")


def definition_name(connection: Connection, stream_table_id: int) -> sql.Identifier:
    view = definition_oid(connection, stream_table_id)
    name = one(connection, "SELECT relname FROM pg_class WHERE oid = %s::oid", (view,))[0]
    return sql.Identifier(DEFINITIONS, name)


def definition_oid(connection: Connection, stream_table_id: int) -> int:
    """Return the definition view of a stream table."""
    oid = find_definition(connection, stream_table_id)
    if oid is None:
        raise RefreshFailed(
            f"the definition of stream table {stream_table_id} is gone",
            hint="it was dropped, by hand or with something that it reads: headwater repair makes it again"
            " once that is there; or drop the stream table as well",
        )
    return oid


def find_definition(connection: Connection, stream_table_id: int) -> int | None:
    """Return the definition view of a stream table, if it exists."""
    oid: int | None = one(connection, "SELECT headwater.definition(%s)", (stream_table_id,))[0]
    return oid


def canonical_text(connection: Connection, view: int) -> str:
    return deparsed(connection, query("definition", "canonical_text"), {"view": view})


def deparsed(connection: Connection, text: str, parameters: Mapping[str, object]) -> str:
    """Return how the server deparses views; raise TryAgain if one was replaced meanwhile."""
    try:
        return str(one(connection, text, parameters)[0])
    except psycopg.errors.InternalError_ as error:
        raise TryAgain(str(error)) from error


def parse_tree(connection: Connection, view: int) -> str:
    return str(one(connection, query("definition", "parse_trees"), {"views": [view]})[0])
