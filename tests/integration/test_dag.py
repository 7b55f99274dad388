"""Stream tables that read stream tables: refreshed together at one snapshot, fed by deltas alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from tests.integration.support import (
    assert_fresh,
    change_rows,
    change_table,
    contents,
    refresh,
)

from headwater import Headwater
from headwater.catalog import stream_tables as catalog
from headwater.errors import DependentsExist

Connection = psycopg.Connection[Any]

pytestmark = pytest.mark.differential


@pytest.fixture(autouse=True)
def tables(conn: Connection) -> None:
    conn.execute("CREATE TABLE items (id int PRIMARY KEY, kind text, price int)")
    conn.execute("INSERT INTO items SELECT i, 'k' || i % 3, i FROM generate_series(1, 9) AS i")


def create_chain(hw: Headwater) -> None:
    """Rows, groups of the rows, and groups of the groups."""
    hw.create("dear", "SELECT id, kind, price FROM items WHERE price > 2")
    hw.create("by_kind", "SELECT kind, count(*) AS n, sum(price) AS total FROM dear GROUP BY kind")
    hw.create("by_size", "SELECT n, count(*) AS kinds, max(total) AS most FROM by_kind GROUP BY n")


CHAIN = ("dear", "by_kind", "by_size")


def all_fresh(hw: Headwater, *names: str) -> None:
    for name in names:
        assert_fresh(hw, name)


@pytest.mark.smoke
def test_refreshing_the_leaf_refreshes_all_it_reads_in_one_snapshot(hw: Headwater, conn: Connection) -> None:
    create_chain(hw)
    for change in (
        "INSERT INTO items VALUES (10, 'k0', 50), (11, 'new', 1), (12, 'new', 3)",
        "UPDATE items SET kind = 'k2' WHERE id IN (3, 4)",
        "DELETE FROM items WHERE kind = 'k1'",
        "UPDATE items SET price = 0",
    ):
        conn.execute(change)
        outcomes = hw.refresh("by_size")
        assert [outcome.stream_table for outcome in outcomes] == [f"public.{name}" for name in CHAIN]
        assert {outcome.action for outcome in outcomes} == {"delta"}
        assert len({outcome.snapshot for outcome in outcomes}) == 1
        all_fresh(hw, *CHAIN)
    assert {outcome.action for outcome in hw.refresh("by_size")} == {"nothing"}
    assert contents(conn, "by_size") == {}


def test_upstream_refreshed_on_its_own_first(hw: Headwater, conn: Connection) -> None:
    create_chain(hw)
    conn.execute("INSERT INTO items VALUES (10, 'k0', 50)")
    refresh(hw, "dear")
    conn.execute("DELETE FROM items WHERE id = 4")
    refresh(hw, "by_kind")
    conn.execute("UPDATE items SET kind = 'k1' WHERE id = 5")
    refresh(hw, "dear")
    refresh(hw, "dear")
    assert refresh(hw, "by_size").action == "delta"
    all_fresh(hw, *CHAIN)
    assert {outcome.action for outcome in hw.refresh("by_size")} == {"nothing"}


def test_what_one_refresh_wrote_and_read_itself_is_not_read_again(
    hw: Headwater, dsn: str, conn: Connection
) -> None:
    create_chain(hw)
    with psycopg.connect(dsn) as idle:
        # Holds every frontier back, so that consumed change rows stay where they are.
        idle.execute("SELECT pg_current_xact_id()")
        for number in range(20, 24):
            conn.execute("INSERT INTO items VALUES (%s, 'k0', %s)", (number, number))
            assert refresh(hw, "by_size").action == "delta"
            assert refresh(hw, "by_size").action == "nothing"
            all_fresh(hw, *CHAIN)
        assert change_rows(conn, "dear") > 0
        idle.execute("INSERT INTO items VALUES (99, 'late', 99)")
        idle.commit()
    assert refresh(hw, "by_size").action == "delta"
    all_fresh(hw, *CHAIN)


def test_a_diamond_is_never_seen_with_one_side_ahead(hw: Headwater, conn: Connection) -> None:
    hw.create("base", "SELECT id, kind, price FROM items")
    hw.create("counts", "SELECT kind, count(*) AS n FROM base GROUP BY kind")
    hw.create("totals", "SELECT kind, sum(price) AS total FROM base GROUP BY kind")
    hw.create("top", "SELECT c.kind, c.n, t.total FROM counts c JOIN totals t ON t.kind = c.kind")
    for change in (
        "UPDATE items SET kind = 'k' || id % 4, price = price + 1",
        "INSERT INTO items SELECT i, 'k' || i % 5, i FROM generate_series(20, 30) AS i",
        "DELETE FROM items WHERE kind IN ('k0', 'k3')",
    ):
        conn.execute(change)
        refresh(hw, "counts")
        conn.execute("UPDATE items SET price = price + 1 WHERE id % 2 = 1")
        outcomes = hw.refresh("top")
        assert outcomes[-1].action == "delta"
        assert outcomes[0].stream_table == "public.base"
        all_fresh(hw, "base", "counts", "totals", "top")
    frontiers = {catalog.find(hw.connection, name).frontier for name in ("totals", "top")}
    assert len(frontiers) == 1


def test_a_dependent_that_also_reads_the_table_below(hw: Headwater, conn: Connection) -> None:
    hw.create("sums", "SELECT kind, sum(price) AS total FROM items GROUP BY kind")
    hw.create("shares", "SELECT i.id, i.price, s.total FROM items i JOIN sums s ON s.kind = i.kind")
    for change in ("UPDATE items SET price = price * 2", "DELETE FROM items WHERE id < 4"):
        conn.execute(change)
        assert refresh(hw, "shares").action == "delta"


def test_a_second_dependent_that_comes_later_and_needs_more_columns(hw: Headwater, conn: Connection) -> None:
    hw.create("base", "SELECT id, kind, price FROM items")
    assert change_table(conn, "base") is None
    hw.create("counts", "SELECT kind, count(*) AS n FROM base GROUP BY kind")
    conn.execute("INSERT INTO items VALUES (10, 'k0', 50)")
    refresh(hw, "base")
    hw.create("totals", "SELECT kind, sum(price) AS total FROM base GROUP BY kind")
    assert_fresh(hw, "totals")
    conn.execute("UPDATE items SET price = price + 1")
    for name in ("totals", "counts"):
        assert refresh(hw, name).action == "delta"
    hw.drop("counts")
    conn.execute("DELETE FROM items WHERE kind = 'k2'")
    assert refresh(hw, "totals").action == "delta"
    hw.drop("totals")
    assert change_table(conn, "base") is None
    conn.execute("DELETE FROM items WHERE kind = 'k1'")
    assert refresh(hw, "base").action == "delta"


def test_a_dependent_that_was_created_while_its_source_lags(hw: Headwater, conn: Connection) -> None:
    hw.create("base", "SELECT id, kind FROM items")
    conn.execute("INSERT INTO items VALUES (10, 'k0', 50)")
    hw.create("counts", "SELECT kind, count(*) AS n FROM base GROUP BY kind")
    assert_fresh(hw, "counts")
    assert refresh(hw, "counts").action == "delta"
    assert "(k0,4)" in contents(conn, "counts")


def test_groups_that_having_hides_do_not_leak(hw: Headwater, conn: Connection) -> None:
    hw.create("large", "SELECT kind, count(*) AS n FROM items GROUP BY kind HAVING count(*) > 3")
    hw.create("over", "SELECT count(*) AS kinds, sum(n) AS items FROM large")
    hw.create("names", "SELECT kind FROM large")
    assert contents(conn, "over") == {"(0,)": 1}
    for change in (
        "INSERT INTO items VALUES (10, 'k0', 1)",
        "INSERT INTO items VALUES (11, 'k1', 1), (12, 'k0', 1), (13, 'rare', 1)",
        "DELETE FROM items WHERE id IN (10, 12)",
        "DELETE FROM items WHERE kind = 'k1'",
        "UPDATE items SET kind = 'rare'",
    ):
        conn.execute(change)
        assert refresh(hw, "over").action in ("delta", "nothing")
        refresh(hw, "names")


def test_duplicates_in_a_source(hw: Headwater, conn: Connection) -> None:
    hw.create("kinds", "SELECT kind FROM items")
    hw.create("counts", "SELECT kind, count(*) AS n FROM kinds GROUP BY kind")
    hw.create("pairs", "SELECT l.kind FROM kinds l JOIN kinds r ON r.kind = l.kind")
    conn.execute("INSERT INTO items SELECT i, 'k0', 1 FROM generate_series(20, 22) AS i")
    conn.execute("DELETE FROM items WHERE id IN (3, 4, 5)")
    for name in ("counts", "pairs"):
        assert refresh(hw, name).action == "delta"
    assert contents(conn, "counts") == {"(k0,5)": 1, "(k1,2)": 1, "(k2,2)": 1}


def test_recomputing_a_source_gives_its_dependents_a_delta(hw: Headwater, conn: Connection) -> None:
    create_chain(hw)
    conn.execute("BEGIN")
    conn.execute("CREATE TEMP TABLE kept ON COMMIT DROP AS SELECT * FROM items WHERE id <> 5")
    conn.execute("TRUNCATE items")
    conn.execute("INSERT INTO items SELECT * FROM kept")
    conn.execute("COMMIT")
    outcomes = hw.refresh("by_size")
    assert [outcome.action for outcome in outcomes] == ["recompute", "delta", "delta"]
    assert outcomes[1].rows_in == 1
    all_fresh(hw, *CHAIN)
    assert {entry.action for entry in hw.history("by_kind")} == {"load", "delta"}


def test_a_source_that_recomputes_always_feeds_deltas(hw: Headwater, conn: Connection) -> None:
    hw.create("first", "SELECT id, kind FROM items ORDER BY price DESC LIMIT 4", mode="full")
    assert hw.create("counts", "SELECT kind, count(*) AS n FROM first GROUP BY kind").mode == "differential"
    conn.execute("INSERT INTO items VALUES (10, 'k1', 50)")
    outcomes = hw.refresh("counts")
    assert [outcome.action for outcome in outcomes] == ["recompute", "delta"]
    assert outcomes[1].rows_in == 2
    all_fresh(hw, "first", "counts")


def test_two_handles_refresh_different_leaves(
    hw: Headwater, dsn: str, connect: Callable[[str], Headwater], conn: Connection
) -> None:
    create_chain(hw)
    hw.create("cheapest", "SELECT kind, min(price) AS least FROM dear GROUP BY kind")
    with connect(dsn) as other:
        for number in range(30, 36):
            conn.execute("INSERT INTO items VALUES (%s, 'k0', %s)", (number, number))
            refresh(hw if number % 2 else other, "by_size")
            conn.execute("DELETE FROM items WHERE id = %s", (number - 29,))
            refresh(other, "cheapest")
    for name in (*CHAIN, "cheapest"):
        refresh(hw, name)


def test_a_chain_is_dropped_from_its_end(hw: Headwater, conn: Connection) -> None:
    create_chain(hw)
    for name in ("dear", "by_kind"):
        with pytest.raises(DependentsExist):
            hw.drop(name)
    assert hw.drop("by_size") == ["public.by_size"]
    assert hw.drop("dear", cascade=True) == ["public.by_kind", "public.dear"]
    assert hw.list() == []
