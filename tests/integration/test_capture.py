"""Every way to write to a source reaches its stream tables, and no name or rename gets in the way."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg import sql
from tests.integration.support import (
    change_rows,
    change_table,
    contents,
    refresh,
    value,
)

from headwater import Headwater

Connection = psycopg.Connection[Any]
SUMS = "SELECT kind, count(*) AS n, sum(price) AS total FROM items GROUP BY kind"


@pytest.fixture(autouse=True)
def tables(conn: Connection) -> None:
    conn.execute("CREATE TABLE items (id int PRIMARY KEY, kind text, price int, note text)")
    conn.execute("INSERT INTO items VALUES (1, 'a', 10, 'x'), (2, 'a', 20, 'y'), (3, NULL, 5, 'z')")


WRITES = {
    "insert": "INSERT INTO items VALUES (4, 'b', 1), (5, 'b', 2)",
    "insert of a query": "INSERT INTO items SELECT id + 10, kind, price FROM items",
    "update": "UPDATE items SET price = price + 1",
    "update of a key": "UPDATE items SET id = id + 100, kind = 'c'",
    "swap": "UPDATE items SET kind = CASE id WHEN 1 THEN 'b' ELSE 'a' END",
    "delete": "DELETE FROM items WHERE kind IS NULL",
    "upsert": "INSERT INTO items VALUES (1, 'a', 7), (6, 'z', 8)"
    " ON CONFLICT (id) DO UPDATE SET price = excluded.price",
    "insert or nothing": "INSERT INTO items VALUES (1, 'q', 7), (6, 'z', 8) ON CONFLICT DO NOTHING",
    "merge": "MERGE INTO items t USING (VALUES (1, 'm'), (2, NULL), (9, 'new')) AS s(id, kind) ON s.id = t.id"
    " WHEN MATCHED AND s.kind IS NULL THEN DELETE WHEN MATCHED THEN UPDATE SET kind = s.kind"
    " WHEN NOT MATCHED THEN INSERT VALUES (s.id, s.kind, 3)",
    "writing CTE": "WITH gone AS (DELETE FROM items WHERE id = 1 RETURNING *)"
    " INSERT INTO items SELECT id + 50, kind, price FROM gone",
}  # fmt: skip


@pytest.mark.smoke
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_a_write_is_captured(hw: Headwater, conn: Connection, write: str) -> None:
    hw.create("sums", SUMS)
    hw.create("rows", "SELECT id, kind, price FROM items WHERE price > 1")
    conn.execute(write)
    assert refresh(hw, "sums").action == "delta"
    assert refresh(hw, "rows").action == "delta"


def test_copy_is_captured(hw: Headwater, conn: Connection) -> None:
    hw.create("sums", SUMS)
    with conn.cursor().copy("COPY items (id, kind, price) FROM STDIN") as copy:
        for number in range(10, 60):
            copy.write_row((number, "c", number))
    outcome = refresh(hw, "sums")
    assert (outcome.action, outcome.rows_in) == ("delta", 50)


def test_what_a_foreign_key_cascades_is_captured(hw: Headwater, conn: Connection) -> None:
    conn.execute(
        "CREATE TABLE parts (item int REFERENCES items ON DELETE CASCADE ON UPDATE CASCADE, label text)"
    )
    conn.execute("INSERT INTO parts VALUES (1, 'p'), (1, 'q'), (2, 'r')")
    hw.create("st", "SELECT item, count(*) AS n FROM parts GROUP BY item")
    hw.create("both", "SELECT i.kind, p.label FROM items i JOIN parts p ON p.item = i.id")
    conn.execute("UPDATE items SET id = 77 WHERE id = 2")
    conn.execute("DELETE FROM items WHERE id = 1")
    assert refresh(hw, "st").action == "delta"
    assert refresh(hw, "both").action == "delta"
    assert contents(conn, "st") == {"(77,1)": 1}


def test_writes_of_a_function_and_of_a_trigger_are_captured(hw: Headwater, conn: Connection) -> None:
    conn.execute("CREATE TABLE log (id int)")
    conn.execute(
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN INSERT INTO log VALUES (NEW.id); RETURN NEW; END $$"
    )
    conn.execute("CREATE TRIGGER note AFTER INSERT ON items FOR EACH ROW EXECUTE FUNCTION note()")
    hw.create("st", "SELECT count(*) AS n FROM log")
    conn.execute("INSERT INTO items VALUES (4, 'b', 1), (5, 'b', 2)")
    assert refresh(hw, "st").rows_in == 2


@pytest.mark.smoke
def test_truncate_is_recomputed_with_the_reason(hw: Headwater, conn: Connection) -> None:
    hw.create("sums", SUMS)
    conn.execute("TRUNCATE items")
    outcome = refresh(hw, "sums")
    assert (outcome.action, outcome.reason) == ("recompute", "public.items was truncated")
    assert contents(conn, "sums") == {}
    conn.execute("INSERT INTO items VALUES (4, 'b', 1)")
    assert refresh(hw, "sums").action == "delta"


def test_truncate_and_insert_in_one_transaction(hw: Headwater, dsn: str, conn: Connection) -> None:
    hw.create("sums", SUMS)
    with psycopg.connect(dsn) as writer:
        writer.execute("INSERT INTO items VALUES (4, 'b', 1)")
        writer.execute("TRUNCATE items")
        writer.execute("INSERT INTO items VALUES (5, 'c', 2)")
    assert refresh(hw, "sums").action == "recompute"
    assert contents(conn, "sums") == {"(c,1,2)": 1}
    assert refresh(hw, "sums").action == "nothing"


def test_a_keyless_table_with_duplicates(hw: Headwater, conn: Connection) -> None:
    conn.execute("CREATE TABLE bag (a int, b text)")
    conn.execute("INSERT INTO bag SELECT 1, 'x' FROM generate_series(1, 5)")
    conn.execute("INSERT INTO bag VALUES (NULL, NULL), (NULL, NULL)")
    hw.create("copies", "SELECT a, b FROM bag")
    hw.create("pairs", "SELECT l.a, r.b FROM bag l JOIN bag r ON r.a = l.a")
    conn.execute("DELETE FROM bag WHERE ctid IN (SELECT ctid FROM bag WHERE a = 1 LIMIT 2)")
    conn.execute("DELETE FROM bag WHERE ctid IN (SELECT ctid FROM bag WHERE a IS NULL LIMIT 1)")
    for name in ("copies", "pairs"):
        assert refresh(hw, name).action == "delta"
    assert contents(conn, "copies") == {"(1,x)": 3, "(,)": 1}


def test_odd_names(hw: Headwater, conn: Connection) -> None:
    names = [
        "w",
        "xid",
        "node",
        "c1",
        "c2",
        'with "quotes"',
        "per%cent %s %(x)s",
        "two words",
        "größe",
        "{}",
        "a'b",
        "r",
    ]
    schema, table = 'Odd "Schä%ma" {0}', 'tab\'le %s "q"'
    target = sql.Identifier(schema, table)
    conn.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
    conn.execute(
        sql.SQL("CREATE TABLE {} ({})").format(
            target, sql.SQL(", ").join(sql.SQL("{} int").format(sql.Identifier(name)) for name in names)
        )
    )
    conn.execute(
        sql.SQL("INSERT INTO {} SELECT {}").format(target, sql.SQL(", ").join([sql.Literal(7)] * len(names)))
    )
    text = target.as_string(conn)
    rows = sql.Identifier(schema, 'copy of "%s" {}')
    hw.create(rows.as_string(conn), f"SELECT * FROM {text}", mode="differential")
    groups = sql.Identifier(schema, "größen")
    hw.create(
        groups.as_string(conn),
        'SELECT "w", "größe" AS "per%cent", sum("xid") AS "c1", max("a\'b") AS "{}"'
        f' FROM {text} GROUP BY "w", "größe"',
        mode="differential",
    )
    for change in (
        "UPDATE {} SET w = 8, xid = 9",
        "INSERT INTO {} SELECT * FROM {}",
        "DELETE FROM {} WHERE c1 IS NULL",
    ):
        conn.execute(sql.SQL(change).format(*[target] * change.count("{}")))
        for name in (rows, groups):
            refresh(hw, name.as_string(conn))
    conn.execute(
        sql.SQL("ALTER TABLE {} RENAME COLUMN {} TO {}").format(
            target, sql.Identifier("xid"), sql.Identifier('%I "')
        )
    )
    conn.execute(sql.SQL("INSERT INTO {} SELECT * FROM {}").format(target, target))
    for name in (rows, groups):
        assert refresh(hw, name.as_string(conn)).action == "delta"
    for name in (groups, rows):
        hw.drop(name.as_string(conn))


def test_renames_between_two_refreshes_need_no_recomputing(hw: Headwater, conn: Connection) -> None:
    hw.create("sums", SUMS)
    hw.create("rows", "SELECT id, kind FROM items")
    conn.execute("INSERT INTO items VALUES (4, 'b', 1)")
    conn.execute("ALTER TABLE items RENAME COLUMN kind TO category")
    conn.execute("ALTER TABLE items RENAME COLUMN price TO kind")
    conn.execute("INSERT INTO items VALUES (5, 'b', 2)")
    conn.execute("UPDATE items SET category = 'b', kind = 3 WHERE id = 1")
    conn.execute("DELETE FROM items WHERE id = 2")
    conn.execute("ALTER TABLE items RENAME TO goods")
    conn.execute("INSERT INTO goods VALUES (6, 'b', 2)")
    conn.execute("CREATE SCHEMA moved")
    conn.execute("ALTER TABLE goods SET SCHEMA moved")
    conn.execute("INSERT INTO moved.goods VALUES (7, 'd', 2)")
    for name in ("sums", "rows"):
        assert refresh(hw, name).action == "delta"
    conn.execute("ALTER SCHEMA moved RENAME TO again")
    conn.execute("DELETE FROM again.goods WHERE id > 4")
    for name in ("sums", "rows"):
        assert refresh(hw, name).action == "delta"
    assert hw.status("sums").sources == ("again.goods",)


def test_columns_added_to_and_dropped_from_a_source_do_no_harm(hw: Headwater, conn: Connection) -> None:
    hw.create("sums", SUMS)
    conn.execute("ALTER TABLE items DROP COLUMN note")
    conn.execute("ALTER TABLE items ADD COLUMN more text DEFAULT 'm'")
    conn.execute("INSERT INTO items VALUES (4, 'b', 1, 'n')")
    assert refresh(hw, "sums").action == "delta"


@pytest.mark.parametrize(
    "ddl", ["ALTER TABLE items DROP COLUMN price", "ALTER TABLE items ALTER price TYPE text"]
)
def test_a_column_that_is_captured_no_longer_can_be_changed(
    hw: Headwater, conn: Connection, ddl: str
) -> None:
    hw.create("rows", "SELECT id, kind FROM items")
    hw.create("prices", "SELECT id, price FROM items")
    hw.drop("prices")
    conn.execute(ddl)
    conn.execute("INSERT INTO items (id, kind) VALUES (4, 'b')")
    assert refresh(hw, "rows").action == "delta"


def test_only_referenced_columns_are_captured(hw: Headwater, conn: Connection) -> None:
    hw.create("sums", "SELECT kind, count(*) AS n FROM items GROUP BY kind")
    captured = (
        "SELECT array_agg(attname::text ORDER BY attnum) FROM pg_attribute"
        f" WHERE attrelid = '{change_table(conn, 'items')}'::regclass AND attnum > 0 AND NOT attisdropped"
    )
    assert value(conn, captured) == ["xid", "node", "w", "c2"]
    conn.execute("UPDATE items SET note = 'other', price = 0")
    outcome = refresh(hw, "sums")
    assert (outcome.action, outcome.rows_in) == ("delta", 6)
    assert (outcome.applied.inserted, outcome.applied.updated, outcome.applied.deleted) == (0, 0, 0)
    assert change_rows(conn, "items") == 0
    hw.create("prices", "SELECT id, price FROM items")
    assert value(conn, captured) == ["xid", "node", "w", "c2", "c1", "c3"]


def test_identity_and_generated_columns(hw: Headwater, conn: Connection) -> None:
    conn.execute(
        "CREATE TABLE auto (id int GENERATED ALWAYS AS IDENTITY, a int,"
        " twice int GENERATED ALWAYS AS (a * 2) STORED)"
    )
    hw.create("st", "SELECT id, twice FROM auto")
    conn.execute("INSERT INTO auto (a) VALUES (1), (2), (NULL)")
    conn.execute("UPDATE auto SET a = 9 WHERE id = 1")
    assert refresh(hw, "st").action == "delta"


def test_virtual_generated_columns_are_recomputed(hw: Headwater, conn: Connection) -> None:
    if conn.info.server_version < 180000:
        pytest.skip("virtual generated columns came with PostgreSQL 18")
    conn.execute("CREATE TABLE auto (a int, twice int GENERATED ALWAYS AS (a * 2) VIRTUAL)")
    assert hw.create("without", "SELECT a FROM auto").mode == "differential"
    created = hw.create("with_it", "SELECT twice FROM auto")
    assert created.mode == "full"
    assert "public.auto.twice is a virtual generated column" in created.mode_reasons[0]
    conn.execute("INSERT INTO auto VALUES (4)")
    assert refresh(hw, "without").action == "delta"
    assert refresh(hw, "with_it").action == "recompute"
