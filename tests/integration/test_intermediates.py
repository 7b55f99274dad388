"""Inner results that are kept: which, what becomes of them, and that a delta reads no more for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from tests.integration.support import assert_fresh, value

from headwater import Headwater

Connection = psycopg.Connection[Any]

SHOP = """
CREATE TABLE customers (id int PRIMARY KEY, region text);
CREATE TABLE orders (id int PRIMARY KEY, customer_id int, price numeric);
CREATE INDEX ON orders (customer_id);
INSERT INTO customers SELECT i, 'region ' || i % 4 FROM generate_series(1, 50) i;
INSERT INTO orders SELECT i, 1 + i % 50, i % 97 FROM generate_series(1, 20000) i;
ANALYZE customers, orders;
"""
ABOVE_AVERAGE = "SELECT id, price FROM orders WHERE price > (SELECT avg(price) FROM orders)"
TOTALS = "SELECT customer_id, sum(price) AS total FROM orders GROUP BY customer_id"
BEST = f"SELECT c.region, max(t.total) AS best FROM customers c JOIN ({TOTALS}) t ON t.customer_id = c.id"
BEST_BY_REGION = f"{BEST} GROUP BY c.region"
RANKED = f"{TOTALS} ORDER BY total DESC, customer_id LIMIT 5"


@pytest.fixture(autouse=True)
def shop(conn: Connection) -> None:
    conn.execute(SHOP)


def kept(conn: Connection) -> dict[str, int]:
    """The tables of kept results, with their numbers of rows."""
    rows = conn.execute("SELECT relname FROM pg_class WHERE relname ~ '^st_[0-9]+_kept_' AND relkind = 'r'")
    return {name: value(conn, f'SELECT count(*) FROM headwater_data."{name}"') for (name,) in rows.fetchall()}


@pytest.mark.parametrize("query", [ABOVE_AVERAGE, BEST_BY_REGION, RANKED])
def test_what_is_kept_follows_its_sources(hw: Headwater, conn: Connection, query: str) -> None:
    hw.create("st", query)
    assert len(kept(conn)) == 1
    for change in (
        "UPDATE orders SET price = price + 1 WHERE id % 1000 = 0",
        "DELETE FROM orders WHERE customer_id = 7",
        "INSERT INTO orders SELECT i, 7, 0.5 FROM generate_series(30000, 30010) i",
        "UPDATE orders SET customer_id = 8 WHERE customer_id = 7",
    ):
        conn.execute(change)
        assert hw.refresh("st")[-1].action == "delta"
        assert_fresh(hw, "st")


def test_explain_names_what_is_kept(hw: Headwater, conn: Connection) -> None:
    hw.create("st", BEST_BY_REGION)
    [table] = kept(conn)
    found = hw.explain("st")
    [operator] = [item for item in found.operators if "kept" in item.rule]
    assert operator.name == "aggregate"
    assert operator.rule.startswith(f"kept in headwater_data.{table}: ")
    assert any(step.name.startswith("fill kept0_") for step in found.steps)


def test_a_group_of_few_rows_is_not_kept(hw: Headwater, conn: Connection) -> None:
    conn.execute("UPDATE orders SET customer_id = id / 2; ANALYZE orders")
    hw.create("st", BEST_BY_REGION)
    assert kept(conn) == {}
    conn.execute("DELETE FROM orders WHERE id % 3 = 0")
    hw.refresh("st")
    assert_fresh(hw, "st")


def test_a_view_that_is_read_twice_is_kept_once(hw: Headwater, conn: Connection) -> None:
    conn.execute(f"CREATE VIEW totals AS {TOTALS}")
    hw.create("st", "SELECT customer_id FROM totals WHERE total = (SELECT max(total) FROM totals)")
    assert list(kept(conn).values()) == [50]  # of which the greatest is found at once
    conn.execute("UPDATE orders SET price = price * 2 WHERE customer_id = 3")
    assert hw.refresh("st")[-1].action == "delta"
    assert_fresh(hw, "st")


@pytest.mark.parametrize("how", ["truncated", "full", "altered", "meaning"])
def test_recomputing_decides_anew(hw: Headwater, conn: Connection, how: str) -> None:
    conn.execute(f"CREATE VIEW totals AS {TOTALS}")
    hw.create("st", "SELECT c.region, t.total FROM customers c JOIN totals t ON t.customer_id = c.id")
    [before] = kept(conn)
    match how:
        case "truncated":
            conn.execute("TRUNCATE orders; INSERT INTO orders SELECT i, i, i FROM generate_series(1, 50) i")
        case "full":
            conn.execute("UPDATE orders SET price = 1")
            hw.refresh("st", full=True)
        case "altered":
            hw.alter("st", mode="full")
            hw.refresh("st")
            assert kept(conn) == {}
            hw.alter("st", mode="auto")
        case "meaning":
            conn.execute(
                "CREATE OR REPLACE VIEW totals AS"
                " SELECT customer_id, sum(price + 1) AS total FROM orders GROUP BY customer_id"
            )
    conn.execute("UPDATE orders SET price = 5 WHERE id = 20")
    hw.refresh("st")
    assert_fresh(hw, "st")
    assert (before in kept(conn)) == (how != "meaning" and how != "truncated")
    conn.execute("UPDATE orders SET price = 6 WHERE id = 20")
    assert hw.refresh("st")[-1].action == "delta"
    assert_fresh(hw, "st")


def test_dropping_leaves_nothing(hw: Headwater, conn: Connection) -> None:
    hw.create("st", BEST_BY_REGION)
    hw.drop("st")
    assert kept(conn) == {}


def test_the_setting(dsn: str, conn: Connection, connect: Callable[..., Headwater]) -> None:
    conn.execute("CREATE TABLE few (a int, b int); INSERT INTO few VALUES (1, 2)")
    few = "SELECT max(s) AS m FROM (SELECT a, sum(b) AS s FROM few GROUP BY a) x"
    with connect(dsn, keep_inner="never") as hw:
        hw.create("large", BEST_BY_REGION)
        assert kept(conn) == {}
    with connect(dsn, keep_inner="always") as hw:
        hw.create("small", few)
        assert list(kept(conn).values()) == [1]


def test_a_failed_refresh_leaves_what_is_kept(hw: Headwater, conn: Connection) -> None:
    hw.create(
        "st",
        f"SELECT c.id, 1 / (t.total - 7) AS x FROM customers c JOIN ({TOTALS}) t ON t.customer_id = c.id",
    )
    conn.execute("DELETE FROM orders WHERE customer_id = 7; INSERT INTO orders VALUES (50000, 7, 7)")
    with pytest.raises(Exception, match="division by zero"):
        hw.refresh("st")
    conn.execute("UPDATE orders SET price = 8 WHERE id = 50000")
    hw.refresh("st")
    assert_fresh(hw, "st")
