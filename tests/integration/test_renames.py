"""A stream table, or a column of it, that users rename by ALTER VIEW is followed."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from tests.integration.support import assert_fresh, contents, refresh, value

import headwater
from headwater import Headwater
from headwater.capture import consumers
from headwater.catalog.stream_tables import find
from headwater.errors import RefreshFailed

Connection = psycopg.Connection[Any]

QUERIES = {
    "bag": "SELECT id AS a, kind AS b FROM items",
    "groups": "SELECT count(*) AS a, kind AS b FROM items GROUP BY kind",
    "hidden groups": "SELECT count(*) AS a, kind AS b FROM items GROUP BY kind HAVING count(*) > 1",
    "keyed": "SELECT DISTINCT price AS a, kind AS b FROM items",
    "first rows": "SELECT id AS a, kind AS b FROM items ORDER BY id LIMIT 2",
    "union": "SELECT id AS a, kind AS b FROM items UNION SELECT price, kind FROM items",
    "nested": "SELECT g.n AS a, i.kind AS b FROM items i JOIN"
    " (SELECT kind, count(*) AS n FROM items GROUP BY kind) g USING (kind)",
    "recomputed": "SELECT id AS a, kind || random() * 0 AS b FROM items",
}


@pytest.fixture(autouse=True)
def tables(conn: Connection) -> None:
    conn.execute("CREATE TABLE items (id int PRIMARY KEY, kind text, price int)")
    conn.execute("INSERT INTO items VALUES (1, 'x', 10), (2, 'x', 20), (3, 'y', 5)")


@pytest.mark.differential
@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_a_renamed_column(hw: Headwater, dsn: str, conn: Connection, query: str) -> None:
    hw.set("keep_inner", "always")
    hw.create("st", query)
    storage = value(conn, "SELECT 'headwater_data.st_1'::regclass::oid")
    conn.execute("ALTER VIEW st RENAME COLUMN b TO sort")
    conn.execute("INSERT INTO items VALUES (4, 'y', 6)")
    assert refresh(hw, "st").action != "nothing"
    conn.execute("ALTER VIEW st RENAME COLUMN sort TO b")
    conn.execute("DELETE FROM items WHERE id = 1")
    refresh(hw, "st")
    # They change places.
    for old, new in (("a", "c"), ("b", "a"), ("c", "b")):
        conn.execute(f"ALTER VIEW st RENAME COLUMN {old} TO {new}")
    with headwater.connect(dsn) as other:  # that has not seen it under other names
        assert other.verify("st").columns == ("b", "a")
        assert other.verify("st").equal
    conn.execute("UPDATE items SET kind = 'z' WHERE id = 3")
    refresh(hw, "st")
    assert value(conn, "SELECT 'headwater_data.st_1'::regclass::oid") == storage
    mode = hw.status("st").mode
    hw.alter("st", mode="full")
    hw.alter("st", mode="auto")
    assert hw.status("st").mode == mode
    assert_fresh(hw, "st")
    columns = (
        "SELECT string_agg(attname, ',' ORDER BY attnum) FROM pg_attribute WHERE attrelid = 'st'::regclass"
    )
    assert value(conn, columns) == "b,a"


def test_what_reads_a_renamed_column_goes_on(hw: Headwater, conn: Connection) -> None:
    hw.create("st", QUERIES["bag"])
    hw.create("reader", "SELECT b, count(*) AS n FROM st GROUP BY b")
    conn.execute("CREATE VIEW mine AS SELECT b FROM st")
    position = consumers.begin(hw.connection, find(hw.connection, "st"), "follower", "now")
    conn.execute('ALTER VIEW st RENAME COLUMN b TO "sort; %s {} ""of"" thing"')
    conn.execute("INSERT INTO items VALUES (4, 'y', 6)")
    assert refresh(hw, "reader").action == "delta"
    assert contents(conn, "mine") == {"(x)": 2, "(y)": 2}
    changes = consumers.changes_sql(hw.connection, position, consumers.latest(hw.connection, position))
    assert hw.connection.execute(changes).fetchall() == [(4, "y", 1)]
    assert hw.verify("reader").equal


def test_a_column_is_renamed_together_with_what_it_is_made_from(hw: Headwater, conn: Connection) -> None:
    hw.create("st", "SELECT kind, price FROM items")
    conn.execute("ALTER VIEW st RENAME COLUMN kind TO sort")
    conn.execute("ALTER TABLE items RENAME COLUMN kind TO other")
    conn.execute("INSERT INTO items VALUES (4, 'y', 6)")
    assert refresh(hw, "st").action == "delta"
    conn.execute("CREATE VIEW dear AS SELECT * FROM items WHERE price > 5")
    hw.alter("st", query="SELECT other AS sort, price FROM dear")
    conn.execute("ALTER VIEW st RENAME COLUMN price TO cost")
    conn.execute("CREATE OR REPLACE VIEW dear AS SELECT * FROM items WHERE price > 6")
    assert refresh(hw, "st").reason == "the meaning of its query changed"
    assert contents(conn, "st") == {"(x,10)": 1, "(x,20)": 1}


@pytest.mark.parametrize("name", ["__hw_hash", "ctid"])
def test_a_reserved_name_is_refused_with_the_remedy(hw: Headwater, conn: Connection, name: str) -> None:
    hw.create("st", QUERIES["bag"])
    try:
        conn.execute(f"ALTER VIEW st RENAME COLUMN b TO {name}")
    except psycopg.errors.DuplicateColumn:
        return  # the server itself refuses it
    conn.execute("INSERT INTO items VALUES (4, 'y', 6)")
    with pytest.raises(RefreshFailed, match="reserved") as caught:
        hw.refresh("st")
    conn.execute(caught.value.hint.replace("…", "b"))
    assert refresh(hw, "st").action == "delta"


def test_a_renamed_and_moved_stream_table(hw: Headwater, conn: Connection) -> None:
    hw.create("st", QUERIES["bag"])
    hw.create("reader", "SELECT b, count(*) AS n FROM st GROUP BY b")
    conn.execute('CREATE SCHEMA "Else where"')
    conn.execute('ALTER VIEW st RENAME TO "other %s"')
    conn.execute('ALTER VIEW "other %s" SET SCHEMA "Else where"')
    name = '"Else where"."other %s"'
    conn.execute("INSERT INTO items VALUES (4, 'y', 6)")
    assert refresh(hw, "reader").action == "delta"
    assert hw.status("reader").sources == (name,)
    hw.create("st", "SELECT id FROM items")  # the name is free
    hw.create(name, "SELECT id AS a, kind AS b, price FROM items", or_replace=True)
    assert hw.status(name).stream_table == name
    assert refresh(hw, "reader").action in ("delta", "nothing")
    assert hw.verify(name).equal
    assert hw.explain(name).stream_table == name
    assert {item.stream_table for item in hw.list()} == {name, "public.reader", "public.st"}
    assert hw.drop(name, cascade=True) == ["public.reader", name]
