"""The frontier: each committed change is counted exactly once (I2), however transactions overlap."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel
from tests.integration.support import (
    assert_fresh,
    change_rows,
    contents,
    in_background,
    refresh,
    stored_and_wanted,
    value,
)
from tests.statements import ended_after

import headwater
from headwater import Headwater, HeadwaterError

Connection = psycopg.Connection[Any]
SUMS = "SELECT kind, count(*) AS n, sum(price) AS total FROM items GROUP BY kind"


@pytest.fixture(autouse=True)
def tables(conn: Connection) -> None:
    conn.execute("CREATE TABLE items (kind text, price int)")
    conn.execute("INSERT INTO items SELECT 'k' || i % 3, i FROM generate_series(1, 9) AS i")


def test_a_transaction_that_commits_last_is_counted_once(hw: Headwater, dsn: str, conn: Connection) -> None:
    hw.create("sums", SUMS)
    with psycopg.connect(dsn) as slow:
        slow.execute("INSERT INTO items VALUES ('k0', 1000)")
        for number in range(3):
            conn.execute("INSERT INTO items VALUES ('k1', %s)", (number,))
            assert refresh(hw, "sums").action == "delta"
        slow.execute("UPDATE items SET price = price + 1 WHERE kind = 'k0'")
        conn.execute("DELETE FROM items WHERE kind = 'k2'")
        assert refresh(hw, "sums").action == "delta"
        slow.commit()
    assert refresh(hw, "sums").action == "delta"
    assert refresh(hw, "sums").action == "nothing"


def test_several_open_transactions_that_end_in_any_order(hw: Headwater, dsn: str, conn: Connection) -> None:
    hw.create("sums", SUMS)
    hw.create("rows", "SELECT kind, price FROM items")
    with psycopg.connect(dsn) as first, psycopg.connect(dsn) as second, psycopg.connect(dsn) as third:
        for number, open_one in enumerate((first, second, third)):
            open_one.execute("INSERT INTO items VALUES (%s, 1)", (f"open{number}",))
        conn.execute("INSERT INTO items VALUES ('k0', 1)")
        refresh(hw, "sums")
        third.commit()
        refresh(hw, "sums")
        first.execute("INSERT INTO items VALUES ('open0', 2)")
        refresh(hw, "rows")
        second.rollback()
        conn.execute("DELETE FROM items WHERE kind = 'k1'")
        refresh(hw, "sums")
        refresh(hw, "rows")
        first.commit()
    refresh(hw, "sums")
    refresh(hw, "rows")
    assert contents(conn, "(SELECT kind, n FROM sums WHERE kind LIKE 'open%')") == {
        "(open0,2)": 1,
        "(open2,1)": 1,
    }


def test_repeatable_read_writers_are_counted_once(hw: Headwater, dsn: str, conn: Connection) -> None:
    hw.create("sums", SUMS)
    with psycopg.connect(dsn) as old:
        old.isolation_level = IsolationLevel.REPEATABLE_READ
        old.execute("SELECT count(*) FROM items")
        conn.execute("INSERT INTO items VALUES ('k0', 7)")
        refresh(hw, "sums")
        old.execute("INSERT INTO items SELECT 'copy', price FROM items")
        refresh(hw, "sums")
        old.commit()
    assert refresh(hw, "sums").action == "delta"


def test_savepoints_count_only_what_was_kept(hw: Headwater, dsn: str, conn: Connection) -> None:
    hw.create("sums", SUMS)
    with psycopg.connect(dsn) as writer:
        writer.execute("INSERT INTO items VALUES ('kept', 1)")
        writer.execute("SAVEPOINT one")
        writer.execute("INSERT INTO items VALUES ('lost', 2)")
        writer.execute("UPDATE items SET price = 0")
        writer.execute("ROLLBACK TO one")
        writer.execute("SAVEPOINT two")
        writer.execute("INSERT INTO items VALUES ('kept', 4)")
        conn.execute("INSERT INTO items VALUES ('k0', 8)")
        refresh(hw, "sums")
        writer.execute("RELEASE two")
        writer.execute("INSERT INTO items VALUES ('kept', 16)")
        writer.commit()
    assert refresh(hw, "sums").rows_in == 3
    assert "(kept,3,21)" in contents(conn, "sums")


def test_a_rolled_back_transaction_leaves_nothing(hw: Headwater, dsn: str, conn: Connection) -> None:
    hw.create("sums", SUMS)
    with psycopg.connect(dsn) as writer:
        writer.execute("DELETE FROM items")
        writer.rollback()
    assert refresh(hw, "sums").action == "nothing"
    assert change_rows(conn, "items") == 0


def test_a_prepared_transaction_counts_when_it_is_committed(
    hw: Headwater, dsn: str, conn: Connection
) -> None:
    hw.create("sums", SUMS)
    for kind in ("kept", "lost"):
        with psycopg.connect(dsn, autocommit=True) as writer:
            writer.execute("BEGIN")
            writer.execute("INSERT INTO items VALUES (%s, 1)", (kind,))
            writer.execute(f"PREPARE TRANSACTION '{conn.info.dbname}_{kind}'")
    conn.execute("INSERT INTO items VALUES ('k0', 8)")
    assert refresh(hw, "sums").rows_in == 1
    conn.execute(f"COMMIT PREPARED '{conn.info.dbname}_kept'")
    conn.execute(f"ROLLBACK PREPARED '{conn.info.dbname}_lost'")
    assert refresh(hw, "sums").rows_in == 1
    assert refresh(hw, "sums").action == "nothing"
    assert "(kept,1,1)" in contents(conn, "sums")


def test_a_refresh_without_changes_writes_nothing(hw: Headwater, conn: Connection) -> None:
    hw.create("sums", SUMS)
    hw.create("over", "SELECT count(*) AS kinds FROM sums")
    conn.execute("INSERT INTO items VALUES ('k0', 1)")
    hw.refresh("over")
    hw.refresh("over")
    # The server's own processes write to the log too: compare transaction ids and row versions instead.
    written = (
        "SELECT pg_snapshot_xmax(pg_current_snapshot())::text, (SELECT count(*) FROM headwater.refresh),"
        " (SELECT array_agg(xmin::text || ctid::text ORDER BY id) FROM headwater.stream_table),"
        " (SELECT array_agg(xmin::text || ctid::text ORDER BY stream_table_id) FROM headwater.frontier)"
    )
    before = conn.execute(written).fetchone()
    for _ in range(3):
        assert {outcome.action for outcome in hw.refresh("over")} == {"nothing"}
    assert conn.execute(written).fetchone() == before


def test_change_rows_go_when_the_slowest_consumer_has_them(hw: Headwater, conn: Connection) -> None:
    hw.create("fast", SUMS)
    hw.create("slow", "SELECT kind FROM items")
    for number in range(4):
        conn.execute("INSERT INTO items VALUES ('k0', %s)", (number,))
        refresh(hw, "fast")
        assert change_rows(conn, "items") == number + 1
    assert refresh(hw, "slow").rows_in == 4
    assert change_rows(conn, "items") == 0


def test_change_rows_behind_an_open_transaction_go_after_it(
    hw: Headwater, dsn: str, conn: Connection
) -> None:
    hw.create("sums", SUMS)
    with psycopg.connect(dsn) as idle:
        idle.execute("SELECT pg_current_xact_id()")
        conn.execute("INSERT INTO items VALUES ('k0', 1)")
        refresh(hw, "sums")
        idle.rollback()
    assert refresh(hw, "sums").action == "nothing"
    assert change_rows(conn, "items") == 0


def test_a_slow_consumer_keeps_its_rows_when_transaction_ids_get_a_digit(
    hw: Headwater, conn: Connection
) -> None:
    hw.create("fast", SUMS)
    hw.create("slow", "SELECT kind, price FROM items")
    xid = int(value(conn, "SELECT pg_current_xact_id()::text"))
    if xid > 5_000_000:
        pytest.skip("this server is far from the next power of ten")
    conn.execute("INSERT INTO items VALUES ('k0', 1)")
    conn.execute(
        f"DO $$ BEGIN FOR i IN 1..{10 ** len(str(xid)) - xid} LOOP"
        " PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$"
    )
    conn.execute("INSERT INTO items VALUES ('k0', 2)")
    refresh(hw, "fast")
    assert change_rows(conn, "items") == 2
    assert refresh(hw, "slow").action == "delta"


def test_too_many_change_rows_are_recomputed_and_forgotten(dsn: str, conn: Connection) -> None:
    with headwater.connect(dsn, max_buffer_rows="5") as hw:
        hw.init()
        hw.create("sums", SUMS)
        conn.execute("INSERT INTO items SELECT 'k0', i FROM generate_series(1, 5) AS i")
        assert refresh(hw, "sums").action == "delta"
        conn.execute("INSERT INTO items SELECT 'k0', i FROM generate_series(1, 6) AS i")
        outcome = refresh(hw, "sums")
        assert outcome.action == "recompute"
        assert "max_buffer_rows" in outcome.reason
        assert hw.history("sums")[0].reason == outcome.reason
        assert change_rows(conn, "items") == 0
        conn.execute("DELETE FROM items WHERE kind = 'k1'")
        assert refresh(hw, "sums").action == "delta"


def test_a_laggard_is_given_up_and_rebuilt_later(dsn: str, conn: Connection) -> None:
    with headwater.connect(dsn, max_buffer_rows="5") as hw:
        hw.init()
        hw.create("fast", SUMS)
        hw.create("slow", "SELECT kind, price FROM items")
        for number in range(8):
            conn.execute("INSERT INTO items VALUES ('k0', %s)", (number,))
            assert refresh(hw, "fast").action == "delta"
        reason = hw.status("slow").rebuild_reason
        assert reason is not None
        assert "given up" in reason
        assert change_rows(conn, "items") <= 1
        outcome = refresh(hw, "slow")
        assert (outcome.action, outcome.reason) == ("recompute", reason)
        assert hw.status("slow").rebuild_reason is None
        conn.execute("INSERT INTO items VALUES ('k0', 9)")
        assert refresh(hw, "slow").action == "delta"


def test_two_handles_refresh_the_same_stream_table_at_once(hw: Headwater, dsn: str, conn: Connection) -> None:
    hw.create("sums", SUMS)
    hw.create("rows", "SELECT kind, price FROM items")

    def refresh_often() -> int:
        with headwater.connect(dsn, lock_attempts="100") as other:
            return sum(
                other.refresh(name)[-1].action == "delta" for _ in range(40) for name in ("sums", "rows")
            )

    with in_background(refresh_often) as first, in_background(refresh_often) as second:
        number = 0
        while not (first.done() and second.done()):
            number += 1
            conn.execute("INSERT INTO items VALUES (%s, %s)", (f"k{number % 5}", number))
            if number % 3 == 0:
                conn.execute("DELETE FROM items WHERE price = %s", (number - 1,))
    assert first.result() + second.result() > 0
    for name in ("sums", "rows"):
        refresh(hw, name)
    assert not [entry for entry in hw.history(limit=1000) if entry.status == "failed"]


def test_what_a_refresh_does_commits_with_its_history_or_not_at_all(hw: Headwater, conn: Connection) -> None:
    hw.create("sums", SUMS)
    conn.execute("INSERT INTO items VALUES ('k0', 100)")
    stored = stored_and_wanted(hw, "sums")[0]
    frontier = value(conn, "SELECT snapshot::text FROM headwater.frontier")
    conn.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF NEW.status = 'completed' THEN RAISE EXCEPTION 'no history today'; END IF; RETURN NEW; END $$"
    )
    conn.execute(
        "CREATE TRIGGER refuse BEFORE INSERT ON headwater.refresh FOR EACH ROW EXECUTE FUNCTION refuse()"
    )
    with pytest.raises(HeadwaterError) as caught:
        hw.refresh("sums")
    assert "no history today" in str(caught.value)
    assert stored_and_wanted(hw, "sums")[0] == stored
    assert value(conn, "SELECT snapshot::text FROM headwater.frontier") == frontier
    assert change_rows(conn, "items") == 1
    failed = hw.history("sums")[0]
    assert (failed.status, failed.sqlstate) == ("failed", "P0001")

    conn.execute("DROP TRIGGER refuse ON headwater.refresh")
    assert refresh(hw, "sums").action == "delta"


def test_a_refresh_whose_session_is_killed_before_its_commit_changes_nothing(
    hw: Headwater, dsn: str, conn: Connection
) -> None:
    hw.create("sums", SUMS)
    conn.execute("INSERT INTO items VALUES ('k0', 100)")
    stored = stored_and_wanted(hw, "sums")[0]
    conn.execute(
        "CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NEW; END $$"
    )
    conn.execute("CREATE TRIGGER die BEFORE INSERT ON headwater.refresh FOR EACH ROW EXECUTE FUNCTION die()")
    with headwater.connect(dsn) as dying, pytest.raises(HeadwaterError):
        dying.refresh("sums")
    conn.execute("DROP TRIGGER die ON headwater.refresh")
    assert stored_and_wanted(hw, "sums")[0] == stored
    assert change_rows(conn, "items") == 1
    assert refresh(hw, "sums").action == "delta"


def test_a_crash_between_any_two_statements_of_a_refresh(hw: Headwater, dsn: str, conn: Connection) -> None:
    """The session dies before the first statement, before the second, and so on, until a refresh survives."""
    hw.create("dear", "SELECT kind, price FROM items WHERE price > 1")
    hw.create("sums", "SELECT kind, count(*) AS n, max(price) AS most FROM dear GROUP BY kind")
    before_commit = after_commit = 0
    for statements in range(200):
        conn.execute("INSERT INTO items VALUES (%s, %s)", (f"k{statements % 3}", statements + 10))
        old = contents(conn, "dear")
        with headwater.connect(dsn) as handle:
            with (
                ended_after(statements, handle.connection, conn) as ending,
                suppress(HeadwaterError, psycopg.Error),
            ):
                handle.refresh("dear")
        stored, wanted = stored_and_wanted(hw, "dear")
        assert stored in (old, wanted), f"a half refresh after {statements} statements"
        before_commit += stored == old
        after_commit += stored == wanted
        refresh(hw, "sums")  # what reads it misses nothing and gets nothing twice
        assert_fresh(hw, "dear")
        if ending.survived:
            break
    print(f"killed before {statements} statements, {after_commit} times after the commit")
    assert before_commit > 10
    assert after_commit >= 1


@pytest.mark.parametrize(
    ("query", "harm"),
    [
        ("SELECT kind, price FROM items", "DELETE FROM {} WHERE price = 3"),
        (SUMS, "DELETE FROM {} WHERE kind = 'k0'"),
    ],
    ids=["bag", "groups"],
)
def test_stored_rows_that_contradict_the_changes_are_recomputed(
    hw: Headwater, conn: Connection, query: str, harm: str
) -> None:
    created = hw.create("st", query)
    conn.execute(harm.format(f"headwater_data.st_{created.id}"))
    conn.execute("DELETE FROM items WHERE price = 3")
    outcome = refresh(hw, "st")
    assert outcome.action == "recompute"
    assert "does not hold the rows" in outcome.reason
    assert hw.history("st")[0].reason == outcome.reason
    conn.execute("INSERT INTO items VALUES ('k0', 1)")
    assert refresh(hw, "st").action == "delta"
    assert_fresh(hw, "st")
