"""The work of a refresh follows the change, not the data: rows that the plans read, by EXPLAIN ANALYZE."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from tests.integration.explained import explained_refresh

import headwater

SIZES = (10_000, 100_000, 1_000_000)
QUERIES = {
    "join and algebraic aggregate": (
        "SELECT c.region, count(*) AS orders, sum(o.quantity * o.price) AS revenue, max(o.price) AS top"
        " FROM orders o JOIN customers c ON c.id = o.customer_id GROUP BY c.region"
    ),
    "join of rows": (
        "SELECT o.id, c.region, o.price FROM orders o JOIN customers c ON c.id = o.customer_id"
        " WHERE o.quantity > 0"
    ),
    "aggregate recomputed by key": (
        "SELECT customer_id, array_agg(price ORDER BY id) AS prices, count(DISTINCT quantity) AS sizes"
        " FROM orders GROUP BY customer_id"
    ),
    "extreme": "SELECT customer_id, max(price) AS top, sum(quantity) AS n FROM orders GROUP BY customer_id",
    "distinct": "SELECT DISTINCT customer_id, quantity FROM orders",
}
ORDERS_PER_CUSTOMER = 10


def rows_read(node: dict[str, Any]) -> float:
    """Rows that the leaves of a plan looked at, those that a filter removed included."""
    below = node.get("Plans", [])
    own = 0.0
    kind: str = node["Node Type"]
    if kind.endswith("Scan") and not kind.startswith(("Subquery", "CTE", "Bitmap Index")):
        removed = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
        own = (node["Actual Rows"] + removed) * node["Actual Loops"]
    return own + sum(rows_read(child) for child in below)


def rows_read_by_refresh(dsn: str, name: str) -> float:
    found = explained_refresh(dsn, name)
    assert found.outcome is not None
    applied = found.outcome.applied
    assert applied.inserted + applied.updated + applied.deleted > 0
    return sum(rows_read(plan) for _, plan in found.statements)


@pytest.mark.slow
def test_one_changed_row_reads_as_much_in_a_large_table_as_in_a_small_one(
    dsn: str, conn: psycopg.Connection
) -> None:
    measured: dict[str, list[float]] = {name: [] for name in QUERIES}
    conn.execute("CREATE TABLE customers (id int PRIMARY KEY, region text)")
    conn.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, customer_id int, quantity int, price numeric(10,2))"
    )
    conn.execute("CREATE INDEX ON orders (customer_id)")
    with headwater.connect(dsn) as hw:
        loaded = 0
        for size in SIZES:
            for name in [f"st{number}" for number in range(len(QUERIES) if loaded else 0)]:
                hw.drop(name)
            conn.execute(
                "INSERT INTO customers SELECT i, 'region ' || i %% 50"
                " FROM generate_series(%s::int + 1, %s::int) i",
                (loaded // ORDERS_PER_CUSTOMER, size // ORDERS_PER_CUSTOMER),
            )
            conn.execute(
                "INSERT INTO orders SELECT i, 1 + (i - 1) / %s::int, 1 + i %% 5, i %% 1000"
                " FROM generate_series(%s::int + 1, %s::int) i",
                (ORDERS_PER_CUSTOMER, loaded, size),
            )
            conn.execute("ANALYZE")
            loaded = size
            for number, (label, query) in enumerate(QUERIES.items()):
                hw.create(f"st{number}", query, mode="differential", engine="postgres")
                conn.execute(
                    "UPDATE orders SET price = price + 1, quantity = quantity + 10 WHERE id = %s",
                    (size // 2 + number,),
                )
                measured[label].append(rows_read_by_refresh(dsn, f"st{number}"))
                assert hw.verify(f"st{number}").equal
    for label, counts in measured.items():
        print(f"{label}: rows read for one changed row in tables of {SIZES}: {counts}")
        # As many at every size, a few hundred at most: the 50 groups of a small storage may be scanned whole.
        assert max(counts) < 500, (label, counts)
        assert counts[-1] <= 2 * counts[0] + 50, (label, counts)
