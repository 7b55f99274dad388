"""The sizes of the tables that Spark reads, as the server estimates them."""

from __future__ import annotations

from headwater.db.connection import Connection, one
from headwater.db.queries import query
from headwater.engine.spark.steps import Size


def source_size(connection: Connection, relation: int) -> Size:
    """Return the estimated size of a table, or of the storage behind a stream table's view."""
    rows, pages, name, condition = one(connection, query("engine", "source_size"), {"relation": relation})
    return Size(float(rows), int(pages), str(name), condition)


def pages_of(connection: Connection, relation: str) -> int:
    """Return the pages of a table."""
    size = "pg_relation_size(%s::regclass) / current_setting('block_size')::int"
    return max(1, int(one(connection, f"SELECT {size}", (relation,))[0]))
