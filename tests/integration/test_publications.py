"""A publication of all tables publishes ours, too: nothing that we or users do may fail by it.

The server refuses to update or delete rows of a published table that it could not tell a subscriber by.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.integration.support import change_rows, refresh, value

from headwater import Headwater

Connection = psycopg.Connection[Any]


@pytest.fixture(autouse=True)
def published(conn: Connection) -> Iterator[None]:
    if value(conn, "SHOW wal_level") != "logical":
        pytest.skip("publications need wal_level = logical")
    conn.execute("CREATE PUBLICATION everything FOR ALL TABLES")
    conn.execute("CREATE TABLE kinds (id int PRIMARY KEY, name text)")
    conn.execute("CREATE TABLE items (id int PRIMARY KEY, kind int, price int)")
    conn.execute("INSERT INTO kinds SELECT i, 'kind ' || i FROM generate_series(1, 4) i")
    conn.execute("INSERT INTO items SELECT i, 1 + i % 4, i FROM generate_series(1, 40) i")
    yield
    conn.execute("DROP PUBLICATION everything")


STREAM_TABLES = {
    "bag": "SELECT i.id, i.price, k.name FROM items i JOIN kinds k ON k.id = i.kind",
    "groups": "SELECT kind, count(*) AS n, max(price) AS most FROM items GROUP BY kind",
    "above": "SELECT most, count(*) AS n FROM groups GROUP BY most",
    "kept": "SELECT k.name, max(s.total) AS best FROM kinds k JOIN"
    " (SELECT kind, price % 3 AS part, sum(price) AS total FROM items GROUP BY 1, 2) s ON s.kind = k.id"
    " GROUP BY k.name",
}

REFUSED = """
    SELECT c.oid::regclass::text FROM pg_class c
    WHERE c.relnamespace::regnamespace::text ~ '^headwater' AND c.relkind = 'r' AND c.relpersistence = 'p'
      AND c.relreplident <> 'f'
      AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)"""


def test_all_works_while_everything_is_published(hw: Headwater, conn: Connection) -> None:
    hw.set("keep_inner", "always")
    for name, query in STREAM_TABLES.items():
        hw.create(name, query)
    assert conn.execute(REFUSED).fetchall() == []
    for write in (
        "INSERT INTO items VALUES (100, 1, 1000)",
        "UPDATE items SET price = price + 1 WHERE id % 3 = 0",
        "DELETE FROM items WHERE kind = 2",
        "UPDATE kinds SET name = name || '!'",
    ):
        conn.execute(write)
        for name in STREAM_TABLES:
            assert refresh(hw, name).action in ("delta", "nothing")
    for name in STREAM_TABLES:
        refresh(hw, name)
    assert change_rows(conn, "items") == 0
    conn.execute("INSERT INTO headwater.lost_change (relation, reason) VALUES ('items'::regclass, 'a test')")
    assert refresh(hw, "groups").action == "recompute"
    hw.alter("bag", query="SELECT i.id, i.price FROM items i")
    hw.alter("groups", mode="full")
    conn.execute("INSERT INTO items VALUES (101, 1, 1001)")
    for name in STREAM_TABLES:
        refresh(hw, name)
    hw.drop("groups", cascade=True)
    hw.drop("kept")
    hw.uninstall(cascade=True)
    conn.execute("UPDATE items SET price = price - 1")
