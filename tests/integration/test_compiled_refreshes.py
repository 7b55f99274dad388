"""Compiled refreshes: when the function does the work, and what it leaves to the driver."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
import pytest

import headwater
from headwater import Headwater
from headwater.catalog import compiled
from headwater.errors import RefreshFailed
from headwater.refresh import fast_path
from headwater.refresh.fast_path import REASON

Connection = psycopg.Connection

SOURCES = """
CREATE DOMAIN amount AS numeric;
CREATE FUNCTION twice(integer) RETURNS integer IMMUTABLE LANGUAGE sql AS 'SELECT 2 * $1';
CREATE COLLATION plain (provider = libc, locale = 'C');
CREATE TABLE item (id int PRIMARY KEY, shop int NOT NULL, price amount, note text COLLATE plain);
CREATE TABLE shop (id int PRIMARY KEY, name text);
INSERT INTO shop SELECT i, 'shop ' || i FROM generate_series(1, 20) AS i;
INSERT INTO item SELECT i, i % 20 + 1, i, 'note' FROM generate_series(1, 200) AS i;
"""
TOTALS = (
    "SELECT s.name, sum(i.price) AS total, count(*) AS items, max(i.note) AS note, sum(twice(i.id)) AS twice"
    " FROM item i JOIN shop s ON s.id = i.shop GROUP BY s.name"
)


@pytest.fixture(autouse=True)
def nothing_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is."""
    monkeypatch.setattr(fast_path, "LONG", timedelta(hours=1))


@pytest.fixture
def hw(dsn: str, conn: Connection) -> Iterator[Headwater]:
    conn.execute(SOURCES)
    with headwater.connect(dsn) as handle:
        yield handle


def token(conn: Connection, name: str) -> str | None:
    row = conn.execute(
        "SELECT token FROM headwater.compiled_refresh c JOIN headwater.stream_table_name n"
        " ON n.id = c.stream_table_id WHERE n.table_name = %s",
        (name,),
    ).fetchone()
    return row[0] if row is not None else None


def is_fast(hw: Headwater, name: str) -> bool:
    """Whether the function did the refresh, which must be right either way."""
    outcome = hw.refresh(name)[-1]
    assert outcome.action != "nothing"
    assert hw.verify(name).equal
    return outcome.engine_reason == REASON


def change(conn: Connection) -> None:
    conn.execute("UPDATE item SET price = price + 1 WHERE id = 7")


QUERIES = {
    "a filter": "SELECT id, price FROM item WHERE price > 10",
    "a join": "SELECT i.id, s.name FROM item i JOIN shop s ON s.id = i.shop",
    "an aggregate over a join": TOTALS,
    "DISTINCT": "SELECT DISTINCT shop, note FROM item",
    "min and max": "SELECT shop, min(price) AS low, max(price) AS high FROM item GROUP BY shop",
    "a left join": "SELECT s.name, i.id FROM shop s LEFT JOIN item i ON i.shop = s.id AND i.price > 100",
    "UNION ALL": "SELECT id, note FROM item UNION ALL SELECT id, name FROM shop",
    "groups that are recomputed": "SELECT shop, array_agg(id ORDER BY id) AS ids FROM item GROUP BY shop",
    "HAVING": "SELECT shop, count(*) AS n FROM item GROUP BY shop HAVING count(*) > 9",
    "one row": "SELECT count(*) AS n, sum(price) AS total FROM item",
}
COVERED = dict.fromkeys(QUERIES, True) | {"a left join": False}


@pytest.mark.parametrize("what", QUERIES)
def test_what_is_covered(hw: Headwater, conn: Connection, what: str) -> None:
    hw.create("st", QUERIES[what])
    assert (token(conn, "st") is not None) == COVERED[what]
    batches = (
        "INSERT INTO item VALUES (1000, 3, 12.50, 'new'), (1001, 3, NULL, NULL)",
        "UPDATE item SET shop = 5, price = 1000 WHERE id IN (1000, 4)",
        "DELETE FROM shop WHERE id = 5; UPDATE shop SET name = 'renamed' WHERE id = 6",
        "INSERT INTO shop VALUES (5, 'again'); DELETE FROM item WHERE id < 10",
        "UPDATE item SET note = 'other' WHERE shop = 7; DELETE FROM item WHERE shop = 8",
    )
    for batch in batches:
        conn.execute(f"BEGIN; {batch}; COMMIT")
        outcome = hw.refresh("st")[-1]
        assert hw.verify("st").equal
        if COVERED[what] and "max(" not in QUERIES[what]:  # which reads a group again that lost its extreme
            assert (outcome.action == "nothing") or outcome.engine_reason == REASON
    assert hw.refresh("st")[-1].action == "nothing"


STEPS_ASIDE = {
    "a function of the query": "CREATE OR REPLACE FUNCTION twice(integer) RETURNS integer"
    " IMMUTABLE LANGUAGE sql AS 'SELECT 3 * $1'",
    "a column": "ALTER TABLE item RENAME COLUMN note TO remark",
    "whether a column can be null": "ALTER TABLE shop ALTER COLUMN name SET NOT NULL",
    "another column": "ALTER TABLE item ADD COLUMN more int",
    "a domain": "ALTER DOMAIN amount SET NOT NULL",
    "a collation": "ALTER COLLATION plain RENAME TO plainer",
    "the name of a source": "ALTER TABLE shop RENAME TO shops",
    "the schema of a source": "CREATE SCHEMA other; ALTER TABLE shop SET SCHEMA other",
    "the name of a schema": "ALTER SCHEMA public RENAME TO former; CREATE SCHEMA public;"
    " ALTER SCHEMA public RENAME TO unused; ALTER SCHEMA former RENAME TO public",
    "row-level security": "ALTER TABLE item ENABLE ROW LEVEL SECURITY",
    "inheritance": "CREATE TABLE item_child () INHERITS (item)",
    "capture": "ALTER TABLE item DISABLE TRIGGER ALL; ALTER TABLE item ENABLE TRIGGER ALL",
    "who reads it": "",
}


@pytest.mark.parametrize("what", STEPS_ASIDE)
def test_the_function_steps_aside_when_something_changed(hw: Headwater, conn: Connection, what: str) -> None:
    hw.create("totals", TOTALS)
    change(conn)
    assert is_fast(hw, "totals")
    first = token(conn, "totals")
    if what == "the name of a schema":  # it is as it was, and the function need not notice
        conn.execute(STEPS_ASIDE[what])
        change(conn)
        assert is_fast(hw, "totals")
        return
    if what == "who reads it":
        hw.create("reader", "SELECT name, total FROM totals WHERE total > 10")
    else:
        conn.execute(STEPS_ASIDE[what])
    change(conn)
    assert not is_fast(hw, "totals")
    change(conn)
    if what in ("row-level security", "inheritance"):
        assert not is_fast(hw, "totals")
    else:
        assert is_fast(hw, "totals")
        assert token(conn, "totals") != first
    if what == "who reads it":
        hw.refresh("reader")
        assert hw.verify("reader").equal


def test_a_chain_is_refreshed_in_one_transaction(hw: Headwater, conn: Connection) -> None:
    hw.create("totals", TOTALS)
    hw.create("large", "SELECT name, total FROM totals WHERE total > 500")
    hw.create("largest", "SELECT max(total) AS most, count(*) AS n FROM large")
    for name in ("totals", "large", "largest"):
        change(conn)
        hw.refresh(name)
    change(conn)
    outcomes = hw.refresh("largest")
    assert [outcome.stream_table for outcome in outcomes] == [
        "public.totals",
        "public.large",
        "public.largest",
    ]
    assert {outcome.engine_reason for outcome in outcomes if outcome.action == "delta"} == {REASON}
    assert len({outcome.snapshot for outcome in outcomes if outcome.snapshot}) == 1
    for name in ("totals", "large", "largest"):
        assert hw.verify(name).equal


def test_the_driver_does_what_is_not_small(hw: Headwater, conn: Connection) -> None:
    hw.create("totals", TOTALS)
    conn.execute("INSERT INTO item SELECT i, i % 20 + 1, i, 'more' FROM generate_series(1001, 1400) AS i")
    assert not is_fast(hw, "totals")
    conn.execute("TRUNCATE item")
    assert not is_fast(hw, "totals")
    conn.execute("INSERT INTO item VALUES (1, 1, 1, 'first')")
    assert is_fast(hw, "totals")


def test_stored_rows_that_were_changed_by_hand_are_found(hw: Headwater, conn: Connection) -> None:
    number = hw.create("items", "SELECT shop, count(*) AS n FROM item GROUP BY shop").id
    conn.execute(f"UPDATE headwater_data.st_{number} SET __hw_count = 0 WHERE shop = 8")
    conn.execute("DELETE FROM item WHERE id IN (7, 27)")
    outcome = hw.refresh("items")[-1]
    assert outcome.action == "recompute"
    assert "does not hold the rows" in outcome.reason
    assert hw.verify("items").equal


def test_an_error_of_the_query_is_told_by_the_driver(hw: Headwater, conn: Connection) -> None:
    hw.create("ratio", "SELECT id, 100 / shop AS share FROM item")
    conn.execute("INSERT INTO item VALUES (900, 4, 1, '')")
    assert is_fast(hw, "ratio")
    conn.execute("INSERT INTO item VALUES (901, 0, 1, '')")
    with pytest.raises(RefreshFailed, match="division by zero"):
        hw.refresh("ratio")
    conn.execute("DELETE FROM item WHERE id = 901")
    assert hw.refresh("ratio")
    assert hw.verify("ratio").equal


def test_switched_off(dsn: str, hw: Headwater, conn: Connection) -> None:
    with headwater.connect(dsn, compiled_refreshes="off") as without:
        without.create("totals", TOTALS)
        assert token(conn, "totals") is None
        change(conn)
        assert not is_fast(without, "totals")


def test_two_at_once(dsn: str, hw: Headwater, conn: Connection) -> None:
    """The second one waits for the first, and finds nothing left to do."""
    hw.create("totals", TOTALS)
    change(conn)
    with psycopg.connect(dsn) as other, headwater.connect(dsn) as second, ThreadPoolExecutor(2) as pool:
        other.execute("SELECT FROM headwater.stream_table FOR NO KEY UPDATE")
        refreshes = [pool.submit(handle.refresh, "totals") for handle in (hw, second)]
        waiting = (
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        while conn.execute(waiting).fetchone() != (2,):
            time.sleep(0.01)
        other.rollback()
        actions = sorted(refresh.result()[-1].action for refresh in refreshes)
    assert actions == ["delta", "nothing"]
    assert hw.verify("totals").equal


def test_dropped_with_its_stream_table(hw: Headwater, conn: Connection) -> None:
    hw.create("totals", TOTALS)
    count = (
        "SELECT count(*) FROM pg_proc"
        " WHERE pronamespace = 'headwater_defs'::regnamespace AND proname ~ '^refresh_'"
    )
    assert conn.execute(count).fetchone() == (1,)
    hw.drop("totals")
    assert conn.execute(count).fetchone() == (0,)


def test_a_session_calls_so_many_functions(
    hw: Headwater, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps the plans of each."""
    monkeypatch.setattr(fast_path, "MOST_CALLED", 2)
    for number in range(3):
        hw.create(f"st{number}", "SELECT id, price FROM item")
    change(conn)
    assert [is_fast(hw, f"st{number}") for number in (0, 1, 2)] == [True, True, False]
    change(conn)
    assert [is_fast(hw, f"st{number}") for number in (2, 1, 0)] == [False, True, True]


def test_what_has_no_function_is_looked_up_once(
    hw: Headwater, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up = []
    entries = compiled.entries

    def counted(connection: Any, stream_tables: Any, *, upstream: bool = False) -> Any:
        looked_up.append(list(stream_tables))
        return entries(connection, stream_tables, upstream=upstream)

    hw.create("whole", "SELECT max(price) AS most FROM item", mode="full")
    hw.create("st", "SELECT i.id, w.most FROM item i LEFT JOIN whole w ON w.most = i.price")
    change(conn)
    assert not is_fast(hw, "st")
    monkeypatch.setattr(compiled, "entries", counted)
    for _ in range(3):
        change(conn)
        assert not is_fast(hw, "st")
    assert looked_up == []


def test_after_a_slow_delta_the_driver_decides(
    hw: Headwater, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows what recomputing takes."""
    monkeypatch.setattr(fast_path, "REFRESHES_BY_DRIVER", 2)
    monkeypatch.setattr(fast_path, "LONG", timedelta(0))
    hw.create("totals", TOTALS)
    change(conn)
    assert is_fast(hw, "totals")
    monkeypatch.setattr(fast_path, "LONG", timedelta(hours=1))
    found = []
    for _ in range(4):
        change(conn)
        found.append(is_fast(hw, "totals"))
    assert found == [False, False, True, True]
