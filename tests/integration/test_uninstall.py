"""Uninstalling: nothing of Headwater is left, nothing else is gone, whatever state it was in."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.integration.support import capture_triggers, contents, footprint, in_background, refresh, value

import headwater
from headwater import Headwater
from headwater.catalog.installed import SCHEMAS
from headwater.errors import DependentsExist, LockNotAvailable

Connection = psycopg.Connection[Any]
FAILURES = Path(__file__).parents[2] / "docs" / "operations" / "failures.md"


@pytest.fixture(autouse=True)
def tables(conn: Connection) -> None:
    conn.execute("CREATE TABLE items (id int PRIMARY KEY, kind text, price int)")
    conn.execute("CREATE TABLE parts (id int, kind text) PARTITION BY RANGE (id)")
    conn.execute("CREATE TABLE low PARTITION OF parts FOR VALUES FROM (0) TO (100)")
    conn.execute("INSERT INTO items VALUES (1, 'a', 10), (2, 'b', 20)")
    conn.execute("INSERT INTO parts VALUES (1, 'a')")


def make(hw: Headwater) -> None:
    hw.create("sums", "SELECT kind, count(*) AS n, sum(price) AS total FROM items GROUP BY kind")
    hw.create("over", "SELECT count(*) AS kinds FROM sums")
    hw.create("joined", "SELECT i.id, p.kind FROM items i JOIN parts p ON p.kind = i.kind")
    hw.create("whole", "SELECT random() AS r FROM items")


def of_headwater(conn: Connection) -> set[tuple[Any, ...]]:
    """All that has Headwater's name, is in its schemas or came with it."""
    return {
        row for row in footprint(conn) if row[0] not in ("row", "advisory lock") and "headwater" in str(row)
    }


def schemas(conn: Connection) -> list[str]:
    found = conn.execute("SELECT nspname FROM pg_namespace WHERE nspname ~ '^headwater' ORDER BY 1")
    return [row[0] for row in found]


def assert_gone(conn: Connection) -> None:
    assert schemas(conn) == []
    assert of_headwater(conn) == set()
    for view in ("sums", "over", "joined", "whole"):
        assert value(conn, "SELECT to_regclass(%s) IS NULL", view)
    assert contents(conn, "items") == {"(1,a,10)": 1, "(2,b,20)": 1}
    conn.execute("INSERT INTO items VALUES (3, 'c', 30)")
    conn.execute("UPDATE parts SET kind = 'z'")
    conn.execute("TRUNCATE items, parts")


def test_everything_goes_and_can_come_again(hw: Headwater, conn: Connection) -> None:
    make(hw)
    removed = hw.uninstall()
    assert {"stream table public.sums", "the triggers on public.items", "the triggers on public.low"} <= set(
        removed
    )
    assert {f"schema {name}" for name in SCHEMAS} <= set(removed)
    assert len(set(removed)) == len(removed)
    assert_gone(conn)
    assert hw.installation().empty
    assert hw.uninstall() == []
    assert hw.init()
    conn.execute("INSERT INTO items VALUES (1, 'a', 1)")
    hw.create("sums", "SELECT kind, count(*) AS n FROM items GROUP BY kind")
    assert refresh(hw, "sums").action == "nothing"


BROKEN = {
    "without the catalog": "DROP SCHEMA headwater CASCADE",
    "without definitions": "DROP SCHEMA headwater_defs CASCADE",
    "without data": "DROP SCHEMA headwater_data CASCADE",
    "without change tables": "DROP TABLE headwater_changes.src_{items} CASCADE",
    "without changes": "DROP SCHEMA headwater_changes CASCADE",
    "with a renamed schema of changes": "ALTER SCHEMA headwater_changes RENAME TO mine",
    "without versions": "DROP TABLE headwater.migration",
    "with settings that are not known": "INSERT INTO headwater.setting VALUES ('colour', 'blue')",
    "newer": "INSERT INTO headwater.migration VALUES (9999, 'later');"
    " CREATE TABLE headwater.later (id int REFERENCES headwater.stream_table)",
    "older": "DELETE FROM headwater.migration WHERE version > 1; DROP TABLE headwater.consumer CASCADE",
}


@pytest.mark.parametrize("damage", BROKEN.values(), ids=BROKEN.keys())
def test_what_is_left_of_an_installation_goes(hw: Headwater, conn: Connection, damage: str) -> None:
    make(hw)
    conn.execute(damage.format(items=value(conn, "SELECT 'items'::regclass::oid")))
    hw.uninstall()
    conn.execute("DROP SCHEMA IF EXISTS mine CASCADE")  # a name that is not ours
    assert_gone(conn)


def test_what_users_made_stays(hw: Headwater, conn: Connection) -> None:
    make(hw)
    conn.execute("CREATE TABLE headwater_data.mine AS SELECT 1 AS one")
    conn.execute("CREATE TABLE headwater.also_mine AS SELECT 2 AS two")
    hw.uninstall()
    assert schemas(conn) == ["headwater", "headwater_data"]
    assert contents(conn, "headwater_data.mine") == {"(1)": 1}
    assert contents(conn, "headwater.also_mine") == {"(2)": 1}
    assert hw.installation().foreign == ["table headwater.also_mine", "table headwater_data.mine"]
    assert hw.init()  # what stayed is in nobody's way


def test_views_of_users_are_asked_for(hw: Headwater, conn: Connection) -> None:
    make(hw)
    conn.execute("CREATE VIEW mine AS SELECT * FROM sums")
    conn.execute("CREATE MATERIALIZED VIEW of_mine AS SELECT * FROM mine")
    conn.execute("CREATE VIEW names AS SELECT stream_table FROM headwater.stream_tables")
    before = footprint(conn)
    with pytest.raises(DependentsExist) as caught:
        hw.uninstall()
    assert "view public.mine" in caught.value.detail
    assert footprint(conn) == before
    removed = hw.uninstall(cascade=True)
    assert {"view public.mine", "view public.names"} <= set(removed)
    assert_gone(conn)


def test_a_writer_in_the_way_is_not_waited_for_long(hw: Headwater, dsn: str, conn: Connection) -> None:
    make(hw)
    with headwater.connect(dsn, lock_timeout_ms="50", lock_attempts="2") as hasty:
        with psycopg.connect(dsn) as writer:
            writer.execute("INSERT INTO items VALUES (9, 'z', 1)")
            with pytest.raises(LockNotAvailable):
                hasty.uninstall()
            writer.rollback()
        hasty.uninstall()
    assert_gone(conn)


def test_a_writer_that_ends_lets_it_go_on(hw: Headwater, dsn: str, conn: Connection) -> None:
    make(hw)
    with headwater.connect(dsn, lock_timeout_ms="20", lock_attempts="1000") as patient:
        with psycopg.connect(dsn) as writer:
            writer.execute("INSERT INTO items VALUES (9, 'z', 1)")
            with in_background(patient.uninstall) as running:
                # Others can write while it tries again and again.
                conn.execute("SET lock_timeout = '10s'")
                conn.execute("INSERT INTO items VALUES (8, 'y', 1)")
                writer.rollback()
                conn.execute("DELETE FROM items WHERE id = 8")
                assert "stream table public.sums" in running.result(60)
    assert_gone(conn)


def emergency_statement() -> str:
    text = FAILURES.read_text(encoding="utf-8")
    found = re.search(r"<!-- emergency -->\n```sql\n(.*?)```", text, re.DOTALL)
    assert found is not None
    return found[1]


def test_an_administrator_can_stop_capture_at_once(hw: Headwater, dsn: str, conn: Connection) -> None:
    """By the statement in the documentation, while a writer and a reader hold their locks."""
    make(hw)
    refresh(hw, "joined")
    with psycopg.connect(dsn) as writer:
        writer.execute("UPDATE items SET price = price + 1")
        conn.execute("SET lock_timeout = '1s'")
        conn.execute(emergency_statement())
        conn.execute("INSERT INTO items VALUES (5, 'e', 50)")
        conn.execute("INSERT INTO low VALUES (5, 'a')")
    parts = value(conn, "SELECT 'parts'::regclass::oid")
    assert value(conn, f"SELECT count(*) FROM headwater_changes.src_{parts}") == 0
    for name in ("sums", "joined"):
        outcome = refresh(hw, name)
        assert outcome.action == "recompute"
        assert "was replaced, so changes may be missing" in outcome.reason
    conn.execute("INSERT INTO items VALUES (6, 'f', 60)")
    assert refresh(hw, "sums").action == "delta"
    assert len(capture_triggers(conn, "items")) == 4
