"""A small change is taken in by one statement, a larger one in steps of which the last may apply it."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from tests.integration.support import assert_fresh, refresh, value

from headwater import Headwater
from headwater.engine.postgres.engine import MOST_AT_ONCE

Connection = psycopg.Connection[Any]

QUERIES = {
    "rows": "SELECT id, kind, price + 1 AS price FROM items WHERE price > 5",
    "sums": "SELECT kind, count(*) AS n, sum(price) AS total, avg(price) AS typical FROM items GROUP BY kind",
    "hidden groups": "SELECT kind, sum(id) AS total FROM items GROUP BY kind HAVING count(*) > 2",
    "extremes": "SELECT kind, min(price) AS least, max(price) AS most FROM items GROUP BY kind",
    "lists": "SELECT kind, string_agg(id::text, ',' ORDER BY id) AS ids FROM items GROUP BY kind",
    "one group": "SELECT count(*) AS n, sum(id) FILTER (WHERE price > 5) AS total FROM items",
    "one list": "SELECT array_agg(id ORDER BY price, id) AS ids FROM items",
    "joined rows": "SELECT a.id, b.price FROM items a JOIN items b ON b.id = a.id + 1 WHERE a.price > 3",
    "joined sums": (
        "SELECT a.kind, count(*) AS n, sum(b.price) AS total FROM items a JOIN items b ON b.id = a.id + 1"
        " GROUP BY a.kind"
    ),
    "union": "SELECT id, kind FROM items UNION ALL SELECT id + 10000, kind FROM items WHERE price > 7",
    "distinct": "SELECT DISTINCT kind, price % 3 AS rest FROM items",
}
TEMPORARY = "SELECT count(*) FROM pg_class WHERE relpersistence = 't' AND relname LIKE 'hw%'"


@pytest.fixture(autouse=True)
def items(conn: Connection) -> None:
    conn.execute("CREATE TABLE items (id int PRIMARY KEY, kind text, price numeric)")
    conn.execute("INSERT INTO items SELECT i, 'kind ' || i % 7, i % 50 FROM generate_series(1, 300) AS i")


@pytest.fixture(params=["computed at once", "applied at once", "in steps"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param != "computed at once":
        monkeypatch.setattr("headwater.refresh.steps.is_one_query", lambda plan, pending: False)
    if request.param == "in steps":
        monkeypatch.setattr("headwater.refresh.steps.MOST_AT_ONCE", 0)
    return str(request.param)


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_every_way(hw: Headwater, conn: Connection, query: str, way: str) -> None:
    hw.create("st", query, mode="differential", engine="postgres")
    hw.create("reader", "SELECT * FROM st", mode="differential", engine="postgres")
    for change in (
        "INSERT INTO items VALUES (1001, 'new', 7), (1002, NULL, NULL), (1003, 'kind 1', 1000)",
        "UPDATE items SET price = price + 1 WHERE id IN (2, 49, 1003)",
        "UPDATE items SET kind = 'kind 2' WHERE kind = 'new'",
        "DELETE FROM items WHERE kind = 'kind 3' OR price = 49 OR price IS NULL",
        "DELETE FROM items WHERE id = 2; INSERT INTO items VALUES (2, 'kind 2', 3)",
    ):
        conn.execute(change)
        assert refresh(hw, "reader").action in ("delta", "nothing")
        assert_fresh(hw, "st")
    if way == "computed at once" and "min" not in query:  # steps are taken when one has gone
        assert value(hw.connection, TEMPORARY) == 0, "a small change made a temporary table"
    conn.execute(
        f"INSERT INTO items SELECT i, 'kind ' || i % 9, i FROM generate_series(2000, {2001 + MOST_AT_ONCE}) i"
    )
    assert refresh(hw, "st").action == "delta"
    assert value(hw.connection, TEMPORARY) > 0
    conn.execute("DELETE FROM items")
    refresh(hw, "reader")
    assert_fresh(hw, "st")
    assert not [
        entry for entry in hw.history() if entry.status == "failed" or "does not hold" in entry.reason
    ]


def test_an_old_row_goes_before_a_new_one_comes(hw: Headwater, conn: Connection) -> None:
    """A unique index of a user's own meets both in one statement."""
    hw.create("rows", "SELECT id, price FROM items", mode="differential")
    hw.create("groups", "SELECT id % 5 AS k, max(kind) AS kind FROM items GROUP BY 1", mode="differential")
    conn.execute("CREATE UNIQUE INDEX ON headwater_data.st_1 (id)")
    conn.execute("CREATE UNIQUE INDEX ON headwater_data.st_2 (k)")
    conn.execute("UPDATE items SET price = price + 1 WHERE id < 100")
    conn.execute("DELETE FROM items WHERE id % 5 = 1")
    assert refresh(hw, "rows").action == "delta"
    assert refresh(hw, "groups").action == "delta"
    conn.execute("INSERT INTO items VALUES (1, 'again', 1)")
    assert refresh(hw, "rows").action == "delta"
    assert refresh(hw, "groups").action == "delta"


@pytest.mark.parametrize("keys", ["", "GROUP BY a.kind"], ids=["one group", "many"])
@pytest.mark.parametrize(
    "joined", ["items a", "items a JOIN items b ON b.id = a.id"], ids=["alone", "joined"]
)
def test_steps_are_taken_only_when_an_extreme_has_gone(
    hw: Headwater, conn: Connection, keys: str, joined: str
) -> None:
    query = f"SELECT count(*) AS n, sum(a.price) AS total, max(a.price) AS most FROM {joined} {keys}"
    hw.create("st", query, mode="differential", engine="postgres")
    hw.create("reader", "SELECT * FROM st", mode="differential", engine="postgres")
    conn.execute("UPDATE items SET price = price + 1 WHERE id IN (2, 49)")
    conn.execute("INSERT INTO items VALUES (1001, 'kind 1', 7), (1002, 'new', 1000)")
    outcome = refresh(hw, "reader")
    assert outcome.action == "delta"
    assert "compute" in outcome.phases  # by which a refresh is found to be slow for want of an index
    assert value(hw.connection, TEMPORARY) == 0
    conn.execute("DELETE FROM items WHERE price > 990")
    assert refresh(hw, "reader").action == "delta"
    assert value(hw.connection, TEMPORARY) > 0
    conn.execute("UPDATE items SET price = 'NaN' WHERE id = 3")
    assert refresh(hw, "reader").action == "delta"
    assert_fresh(hw, "st")


def test_explain_shows_the_statement(hw: Headwater) -> None:
    hw.create("st", QUERIES["sums"])
    hw.create("windowed", "SELECT id, row_number() OVER (PARTITION BY kind ORDER BY id) AS n FROM items")
    first, *others = hw.explain("st").steps
    assert first.name == "all at once, if few rows changed"
    assert first.sql.startswith("WITH __hw_source0 AS MATERIALIZED")
    assert others
    steps = [step.name for step in hw.explain("windowed").steps]
    assert first.name not in steps
    assert "apply at once, if few rows are affected" in steps
