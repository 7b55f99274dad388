"""Indexes that sources lack are named where they would help, and are never created."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from headwater import Headwater
from headwater.refresh import index_advice

Connection = psycopg.Connection[Any]

JOIN = "SELECT o.id, c.region FROM orders o JOIN customers c ON c.id = o.customer_id"
SHOP = """
CREATE TABLE customers (id int PRIMARY KEY, region text, name varchar(30));
CREATE TABLE orders (id int PRIMARY KEY, customer_id int, status int, note varchar(30), price int);
INSERT INTO customers SELECT i, 'region ' || i % 4, 'name ' || i FROM generate_series(1, 20000) i;
INSERT INTO orders SELECT i, 1 + i % 20000, i % 3, 'name ' || i, i FROM generate_series(1, 20000) i;
ANALYZE customers, orders;
"""


@pytest.fixture(autouse=True)
def shop(conn: Connection) -> None:
    conn.execute(SHOP)


def statements(hw: Headwater, query: str) -> list[str]:
    hw.create("st", query)
    found = [item.statement for item in hw.missing_indexes("st")]
    assert [item.statement for item in hw.explain("st").indexes] == found
    hw.drop("st")
    return found


def test_an_index_is_advised_until_it_is_there(hw: Headwater, conn: Connection) -> None:
    hw.create("st", JOIN)
    [found] = hw.explain("st").indexes
    assert found.table == "public.orders"
    assert found.columns == ("customer_id",)
    assert found.statement == "CREATE INDEX ON public.orders (customer_id);"
    assert found.reason == "a change of public.customers looks for public.orders by customer_id"
    before = conn.execute("SELECT count(*) FROM pg_index WHERE indrelid = 'orders'::regclass").fetchone()
    assert before == (1,), "nothing is created unasked"
    conn.execute(found.statement)
    assert hw.explain("st").indexes == ()
    assert hw.missing_indexes("st") == []


@pytest.mark.parametrize(
    ("index", "serves"),
    [
        ("CREATE INDEX ON orders USING hash (customer_id)", True),
        ("CREATE INDEX ON orders (customer_id DESC, price)", True),
        ("CREATE UNIQUE INDEX ON orders (customer_id)", True),
        ("CREATE INDEX ON orders (price, customer_id)", False),
        ("CREATE INDEX ON orders (customer_id) WHERE price > 3", False),
        ("CREATE INDEX ON orders ((customer_id + 1))", False),
        ("CREATE INDEX ON orders USING brin (customer_id)", False),
    ],
)
def test_which_index_serves(hw: Headwater, conn: Connection, index: str, serves: bool) -> None:
    conn.execute(index)
    assert (statements(hw, JOIN) == []) is serves


def test_a_small_table_needs_none(hw: Headwater, conn: Connection) -> None:
    conn.execute("DELETE FROM orders WHERE id > 1000")
    conn.execute("VACUUM (FULL, ANALYZE) orders")
    assert statements(hw, JOIN) == []


def test_a_table_without_statistics_is_judged_by_its_size(hw: Headwater, conn: Connection) -> None:
    conn.execute("CREATE TABLE fresh (id int, customer_id int)")
    query = "SELECT f.id FROM fresh f JOIN customers c ON c.id = f.customer_id"
    assert statements(hw, query) == []
    conn.execute("INSERT INTO fresh SELECT i, i FROM generate_series(1, 40000) i")
    assert statements(hw, query) == ["CREATE INDEX ON public.fresh (customer_id);"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT status, array_agg(id) AS ids FROM orders GROUP BY status", []),  # of few values
        ("SELECT customer_id, sum(price) AS s FROM orders GROUP BY customer_id", []),  # kept as state
        (
            "SELECT status, customer_id, array_agg(id) AS ids FROM orders GROUP BY status, customer_id",
            ["CREATE INDEX ON public.orders (customer_id, status);"],
        ),
        (
            "SELECT id, rank() OVER (PARTITION BY customer_id ORDER BY price) AS r FROM orders",
            ["CREATE INDEX ON public.orders (customer_id);"],
        ),
        (
            "SELECT o.id FROM orders o JOIN customers c ON c.id = o.customer_id AND c.name = o.note",
            ["CREATE INDEX ON public.orders (customer_id, note);"],
        ),
        (
            "SELECT c.id FROM customers c LEFT JOIN orders o ON o.note = c.name",
            ["CREATE INDEX ON public.orders (note);", "CREATE INDEX ON public.customers (name);"],
        ),
        (
            "SELECT c.id, (SELECT max(o.price) FROM orders o WHERE o.customer_id = c.id AND o.status = c.id"
            ") AS m,"
            " EXISTS (SELECT 1 FROM orders o WHERE o.customer_id = c.id) AS e"
            " FROM customers c WHERE c.id < 9",
            ["CREATE INDEX ON public.orders (customer_id);"],  # one serves both
        ),
        ("SELECT o.id FROM orders o JOIN customers c ON c.id < o.customer_id WHERE o.id < 3", []),
        ("SELECT o.id FROM orders o ORDER BY o.price LIMIT 3", []),
        ("SELECT o.customer_id, random() AS x FROM orders o", []),
    ],
)
def test_what_is_advised(hw: Headwater, query: str, expected: list[str]) -> None:
    assert sorted(statements(hw, query)) == sorted(expected)


def test_wide_values_are_not_advised(hw: Headwater, conn: Connection) -> None:
    conn.execute("CREATE TABLE pages (id int, body text)")
    conn.execute("INSERT INTO pages SELECT i, repeat(md5(i::text), 20) FROM generate_series(1, 8000) i")
    conn.execute("ANALYZE pages")
    assert statements(hw, "SELECT body, array_agg(id) AS ids FROM pages GROUP BY body") == []


def test_odd_names_are_quoted(hw: Headwater, conn: Connection) -> None:
    conn.execute('CREATE SCHEMA "My Shop"; CREATE TABLE "My Shop"."Or""ders" (id int, "Customer id" int)')
    conn.execute('INSERT INTO "My Shop"."Or""ders" SELECT i, i FROM generate_series(1, 20000) i; ANALYZE')
    [found] = statements(
        hw, 'SELECT c.id FROM "My Shop"."Or""ders" o JOIN customers c ON c.id = o."Customer id"'
    )
    assert found == 'CREATE INDEX ON "My Shop"."Or""ders" ("Customer id");'
    conn.execute(found)


def test_a_partitioned_table_is_named_by_itself(hw: Headwater, conn: Connection) -> None:
    conn.execute("CREATE TABLE parted (id int, customer_id int) PARTITION BY RANGE (id)")
    for start in (0, 10_000):
        conn.execute(
            f"CREATE TABLE p{start} PARTITION OF parted FOR VALUES FROM ({start}) TO ({start + 10_000})"
        )
    conn.execute("INSERT INTO parted SELECT i, i FROM generate_series(0, 19999) i")
    conn.execute("ANALYZE parted")
    query = "SELECT p.id FROM parted p JOIN customers c ON c.id = p.customer_id"
    assert statements(hw, query) == ["CREATE INDEX ON public.parted (customer_id);"]
    conn.execute("CREATE INDEX ON parted (customer_id)")
    assert statements(hw, query) == []


def test_the_storage_of_a_stream_table_is_a_table_too(hw: Headwater, conn: Connection) -> None:
    made = hw.create("per_customer", "SELECT customer_id, sum(price) AS s FROM orders GROUP BY customer_id")
    hw.create("st", "SELECT c.name, p.s FROM customers c JOIN per_customer p ON p.customer_id = c.id")
    [found] = hw.missing_indexes("st")
    assert found.statement == f"CREATE INDEX ON headwater_data.st_{made.id} (customer_id);"
    assert found.reason == "a change of public.customers looks for public.per_customer by customer_id"
    conn.execute(found.statement)
    assert hw.missing_indexes("st") == []
    conn.execute("UPDATE orders SET price = price + 1")
    hw.refresh("per_customer", full=True)
    assert hw.missing_indexes("st") == [], "an index on storage outlives a full refresh"


def test_the_history_tells_of_a_refresh_that_was_slow(
    hw: Headwater, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    hw.create("st", JOIN)

    def reason_of(change: str) -> str:
        conn.execute(change)
        outcome = hw.refresh("st")[-1]
        assert outcome.action == "delta"
        assert hw.history("st", limit=1)[0].reason == outcome.reason
        return outcome.reason

    change = "UPDATE customers SET region = region || 'x' WHERE id = 1"
    assert "index" not in reason_of(change), "it was fast"
    monkeypatch.setattr(index_advice, "SLOW_MILLISECONDS", 0)
    assert reason_of(change) == (
        "2 change rows in public.customers; slow for want of an index on public.orders (customer_id)"
    )
    # The other side has its index, and many changes read the table as a whole whatever there is.
    assert "index" not in reason_of("UPDATE orders SET customer_id = 7 WHERE id = 1")
    assert "index" not in reason_of("UPDATE customers SET region = region || 'x' WHERE id < 1500")
    conn.execute("CREATE INDEX ON orders (customer_id)")
    assert "index" not in reason_of(change)
