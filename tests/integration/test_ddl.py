"""What somebody does to a source between two refreshes, without a change row to show for it, is noticed."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from tests.integration.support import refresh

import headwater
from headwater import Headwater
from headwater.errors import LockNotAvailable

Connection = psycopg.Connection[Any]

pytestmark = pytest.mark.differential


@pytest.fixture(autouse=True)
def tables(conn: Connection) -> None:
    conn.execute("CREATE TABLE items (id int PRIMARY KEY, kind text, price int)")
    conn.execute("INSERT INTO items VALUES (1, 'a', 10), (2, 'b', 20)")
    conn.execute("CREATE VIEW dear AS SELECT id, kind FROM items WHERE price > 15")


def test_a_plain_view_that_was_replaced(hw: Headwater, conn: Connection) -> None:
    hw.create("st", "SELECT kind, count(*) AS n FROM dear GROUP BY kind")
    conn.execute("CREATE OR REPLACE VIEW dear AS SELECT id, kind FROM items WHERE price > 5")
    outcome = refresh(hw, "st")
    assert (outcome.action, outcome.reason) == ("recompute", "the meaning of its query changed")
    conn.execute("INSERT INTO items VALUES (3, 'c', 7)")
    assert refresh(hw, "st").action == "delta"


def test_a_plain_view_that_was_replaced_and_reads_more(hw: Headwater, conn: Connection) -> None:
    conn.execute("CREATE TABLE others (id int, kind text)")
    conn.execute("INSERT INTO others VALUES (9, 'z')")
    hw.create("st", "SELECT kind, count(*) AS n FROM dear GROUP BY kind")
    conn.execute("CREATE OR REPLACE VIEW dear AS SELECT id, kind FROM items UNION ALL TABLE others")
    conn.execute("INSERT INTO items VALUES (3, 'c', 7)")
    refresh(hw, "st")
    conn.execute("INSERT INTO others VALUES (10, 'z')")
    refresh(hw, "st")


@pytest.mark.parametrize(
    ("harm", "write"),
    [
        ("DROP TRIGGER headwater_capture_insert ON items", "INSERT INTO items VALUES (3, 'c', 7)"),
        ("ALTER TABLE items DISABLE TRIGGER headwater_capture_delete", "DELETE FROM items"),
        ("ALTER TABLE items DISABLE TRIGGER ALL", "UPDATE items SET kind = 'z'"),
        ("CREATE TABLE more () INHERITS (items)", "INSERT INTO more VALUES (3, 'c', 7)"),
    ],
    ids=["trigger dropped", "trigger disabled", "all triggers disabled", "inheritance"],
)
def test_capture_that_was_broken_is_not_trusted(
    hw: Headwater, conn: Connection, harm: str, write: str
) -> None:
    hw.create("st", "SELECT kind, count(*) AS n FROM items GROUP BY kind")
    conn.execute(harm)
    conn.execute(write)
    assert refresh(hw, "st").action == "recompute"
    conn.execute("INSERT INTO items VALUES (4, 'd', 8)")
    refresh(hw, "st")


def refuse_lock(dsn: str) -> None:
    """A refresh that cannot lock its source, for somebody is about to truncate it."""
    impatient = {"lock_timeout_ms": "1", "lock_attempts": "2"}
    with psycopg.connect(dsn) as holder, headwater.connect(dsn, **impatient) as other:
        holder.execute("TRUNCATE items")
        with pytest.raises(LockNotAvailable):
            other.refresh("st")
        holder.rollback()


def test_a_source_that_is_locked_is_told_and_nothing_is_lost(
    hw: Headwater, dsn: str, conn: Connection
) -> None:
    hw.create("st", "SELECT kind, count(*) AS n FROM items GROUP BY kind")
    conn.execute("INSERT INTO items VALUES (3, 'c', 7)")
    refuse_lock(dsn)
    assert refresh(hw, "st").action == "delta"


def test_a_refresh_that_got_no_lock_is_in_the_history(hw: Headwater, dsn: str, conn: Connection) -> None:
    hw.create("st", "SELECT kind, count(*) AS n FROM items GROUP BY kind")
    refuse_lock(dsn)
    assert hw.history("st")[0].status == "failed"


def test_a_rewritten_source_needs_nothing(hw: Headwater, conn: Connection) -> None:
    hw.create("st", "SELECT kind, count(*) AS n FROM items GROUP BY kind")
    conn.execute("UPDATE items SET kind = 'z' WHERE id = 1")
    conn.execute("VACUUM FULL items")
    conn.execute("CLUSTER items USING items_pkey")
    conn.execute("ALTER TABLE items ADD COLUMN added uuid DEFAULT gen_random_uuid()")
    assert refresh(hw, "st").action == "delta"
