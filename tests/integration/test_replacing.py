"""A stream table gets another query: readers see the old or the new rows, and what surrounds it follows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel
from tests.integration.support import (
    assert_fresh,
    capture_triggers,
    change_table,
    contents,
    footprint,
    in_background,
    refresh,
    value,
    wait_until_blocked,
)
from tests.statements import ended_after

import headwater
from headwater import Headwater, HeadwaterError
from headwater.capture import consumers
from headwater.catalog.stream_tables import find
from headwater.errors import (
    AlreadyExists,
    CyclicDependency,
    DependentsExist,
    InvalidQuery,
    LockNotAvailable,
    NotIncremental,
)
from headwater.lifecycle.create import Place
from headwater.lifecycle.options import Options

Connection = psycopg.Connection[Any]


@pytest.fixture(autouse=True)
def tables(conn: Connection) -> None:
    conn.execute("CREATE TABLE items (id int PRIMARY KEY, kind text, price int)")
    conn.execute("INSERT INTO items VALUES (1, 'a', 10), (2, 'a', 20), (3, 'b', 5)")
    conn.execute("CREATE TABLE labels (kind text PRIMARY KEY, label text)")
    conn.execute("INSERT INTO labels VALUES ('a', 'Apples'), ('b', 'Berries')")


def captured(conn: Connection, table: str) -> set[int]:
    """The numbers of a table's columns that are captured."""
    rows = conn.execute(
        "SELECT c.attnum FROM headwater.source_column c JOIN headwater.source s ON s.id = c.source_id"
        " WHERE s.relation = %s::regclass",
        (table,),
    )
    return {row[0] for row in rows}


@pytest.mark.smoke
@pytest.mark.differential
def test_definition_capture_frontier_and_history_follow(hw: Headwater, conn: Connection) -> None:
    made = hw.create("st", "SELECT id, price FROM items")
    conn.execute("INSERT INTO items VALUES (4, 'b', 7)")
    altered = hw.alter("st", query="SELECT kind, sum(price) AS total FROM items GROUP BY kind")
    assert (altered.id, altered.mode, altered.label) == (made.id, "differential", "public.st")
    assert altered.query == "SELECT kind, sum(price) AS total FROM items GROUP BY kind"
    assert contents(conn, "st") == {"(a,30)": 1, "(b,12)": 1}
    assert captured(conn, "items") == {2, 3}
    assert "its query was replaced" in hw.history("st")[0].reason
    conn.execute("UPDATE items SET price = 1 WHERE id = 3")
    assert refresh(hw, "st").action == "delta"

    hw.alter("st", query="SELECT i.id, l.label FROM items i JOIN labels l USING (kind)")
    assert capture_triggers(conn, "labels")
    conn.execute("UPDATE labels SET label = 'Pears' WHERE kind = 'a'")
    assert refresh(hw, "st").action == "delta"

    hw.alter("st", query="SELECT label FROM labels", mode="full")
    assert capture_triggers(conn, "items") == capture_triggers(conn, "labels") == set()
    assert change_table(conn, "items") is None
    assert_fresh(hw, "st")
    assert len(hw.list()) == 1
    hw.drop("st")
    assert (
        value(conn, "SELECT count(*) FROM pg_class WHERE relnamespace = 'headwater_data'::regnamespace") == 0
    )


def test_or_replace_creates_or_replaces_with_the_options_given(hw: Headwater, conn: Connection) -> None:
    made = hw.create("st", "SELECT id FROM items", or_replace=True, schedule="5s", engine="postgres")
    again = hw.create("st", "SELECT id, kind FROM items", or_replace=True)
    assert (again.id, again.schedule, again.engine) == (made.id, None, "auto")
    assert_fresh(hw, "st")
    conn.execute("CREATE VIEW mine AS SELECT 1 AS one")
    with pytest.raises(AlreadyExists):
        hw.create("mine", "SELECT id FROM items", or_replace=True)


def test_the_same_query_is_not_loaded_again(hw: Headwater, conn: Connection) -> None:
    hw.create("st", "SELECT id, kind FROM items")
    storage = value(conn, "SELECT 'headwater_data.st_1'::regclass::oid")
    found = hw.create("st", "select  id,\n items.kind\nfrom public.items;", or_replace=True, schedule="1m")
    assert found.schedule == "1m"
    hw.create("st", "SELECT id, kind FROM items", or_replace=True)
    assert value(conn, "SELECT 'headwater_data.st_1'::regclass::oid") == storage
    assert len(hw.history("st")) == 1
    assert [item.stream_table for item in hw.list()] == ["public.st"]


def test_kept_results_follow(dsn: str, hw: Headwater, conn: Connection) -> None:
    kept = "SELECT relname FROM pg_class WHERE relname LIKE 'st%kept%' AND relkind = 'r'"
    with headwater.connect(dsn, keep_inner="always") as keeping:
        keeping.create("st", "SELECT id FROM items")
        keeping.alter(
            "st",
            query="SELECT l.label, g.n FROM labels l JOIN"
            " (SELECT kind, count(*) AS n FROM items GROUP BY kind) g ON g.kind = l.kind",
        )
        assert [row[0].startswith("st_1_kept_") for row in conn.execute(kept)] == [True]
        conn.execute("INSERT INTO items VALUES (4, 'b', 7)")
        assert refresh(keeping, "st").action == "delta"
        keeping.alter("st", query="SELECT id FROM items WHERE price > 6")
        assert conn.execute(kept).fetchall() == []
        assert_fresh(keeping, "st")


# readers


def reading(dsn: str, read: Callable[[Connection], None], stop: threading.Event) -> int:
    """Reads until it is told to stop; how often."""
    times = 0
    with psycopg.connect(dsn, autocommit=True) as reader:
        while not stop.is_set() or not times:
            read(reader)
            times += 1
    return times


def consistent(rows: list[Any]) -> None:
    """All rows of one version of the query, and every one of them."""
    assert len({version for _, version in rows}) == 1, rows
    assert [number for number, _ in rows] == [1, 2, 3]


READ = "SELECT id, version FROM st ORDER BY id"


def plainly(reader: Connection) -> None:
    consistent(reader.execute(READ, prepare=False).fetchall())


def prepared(reader: Connection) -> None:
    consistent(reader.execute(READ, prepare=True).fetchall())


def in_a_longer_transaction(reader: Connection) -> None:
    reader.set_isolation_level(IsolationLevel.READ_COMMITTED)
    with reader.transaction():
        for _ in range(3):
            plainly(reader)


def with_an_older_snapshot(reader: Connection) -> None:
    reader.set_isolation_level(IsolationLevel.REPEATABLE_READ)
    with reader.transaction():
        reader.execute("SELECT count(*) FROM items")
        reader.execute("SELECT pg_sleep(0.05)")
        prepared(reader)
        first = reader.execute(READ).fetchall()
        assert reader.execute(READ).fetchall() == first


def with_a_cursor(reader: Connection) -> None:
    with reader.transaction(), reader.cursor("held") as cursor:
        cursor.execute(READ)
        consistent(cursor.fetchmany(1) + cursor.fetchall())


def test_readers_see_the_old_or_the_new_rows(hw: Headwater, dsn: str, conn: Connection) -> None:
    hw.create("st", "SELECT id, 0 AS version FROM items")
    hw.create("reader", "SELECT version, count(*) AS n FROM st GROUP BY version")
    stop = threading.Event()
    ways = (plainly, prepared, in_a_longer_transaction, with_an_older_snapshot, with_a_cursor)
    with ThreadPoolExecutor(len(ways)) as pool:
        found = [pool.submit(reading, dsn, way, stop) for way in ways]
        try:
            for version in range(1, 11):
                mode: Any = "full" if version % 5 == 0 else "auto"
                hw.alter("st", query=f"SELECT id, {version} AS version FROM items", mode=mode)
                if version % 3 == 0:
                    refresh(hw, "reader")
        finally:
            stop.set()
        assert all(each.result() for each in found)
    assert contents(conn, "st") == {"(1,10)": 1, "(2,10)": 1, "(3,10)": 1}
    conn.execute("INSERT INTO items VALUES (4, 'b', 1)")
    refresh(hw, "reader")
    hw.refresh("st", full=True)
    assert value(conn, "SELECT count(*) FROM pg_class WHERE relname LIKE 'st_1_until%'") == 0


def test_a_snapshot_from_before_finds_the_rows_from_before(hw: Headwater, dsn: str, conn: Connection) -> None:
    hw.create("st", "SELECT kind, count(*) AS n FROM items GROUP BY kind HAVING count(*) > 0")
    with psycopg.connect(dsn) as old:
        old.set_isolation_level(IsolationLevel.REPEATABLE_READ)
        old.execute("SELECT 1")
        for query in (
            "SELECT kind, count(*) AS n, max(price) AS most FROM items GROUP BY kind HAVING count(*) > 0",
            "SELECT kind, 7::bigint AS n, 8 AS most FROM items",
        ):
            hw.alter("st", query=query)
            assert_fresh(hw, "st")
        hw.alter("st", query="SELECT kind, max(price)::bigint AS n, 8 AS most FROM items GROUP BY kind")
        hw.alter("st", mode="full")
        assert hw.verify("st").equal
        found = old.execute("SELECT kind, n, most FROM st ORDER BY 1").fetchall()
        assert found == [("a", 2, None), ("b", 1, None)]
    with psycopg.connect(dsn) as new:
        new.set_isolation_level(IsolationLevel.REPEATABLE_READ)
        assert new.execute("SELECT kind, n, most FROM st ORDER BY 1").fetchall() == [
            ("a", 20, 8),
            ("b", 5, 8),
        ]
    hw.refresh("st", full=True)
    assert "pg_visible_in_snapshot" not in value(conn, "SELECT pg_get_viewdef('st'::regclass)")
    assert value(conn, "SELECT count(*) FROM pg_class WHERE relname LIKE 'st_1_until%'") == 0


def test_a_reader_that_stays_is_waited_for_and_then_told(hw: Headwater, dsn: str, conn: Connection) -> None:
    hw.create("st", "SELECT id FROM items")
    before = footprint(conn)
    impatient = {"lock_timeout_ms": "20", "lock_attempts": "3"}
    with psycopg.connect(dsn) as reader, headwater.connect(dsn, **impatient) as other:
        reader.execute("SELECT * FROM st")
        with pytest.raises(LockNotAvailable):
            other.alter("st", query="SELECT id, kind FROM items")
        reader.rollback()
    failed = hw.history("st")[0]
    assert (failed.status, failed.reason) == ("failed", "its query could not be replaced; it stays as it was")
    assert {item for item in footprint(conn) if item[:2] != ("row", "refresh")} == {
        item for item in before if item[:2] != ("row", "refresh")
    }
    assert refresh(hw, "st").action == "nothing"


# failures


def test_a_query_that_fails_leaves_the_old_one_working(hw: Headwater, conn: Connection) -> None:
    hw.create("st", "SELECT id, price FROM items")
    conn.execute("INSERT INTO items VALUES (4, 'b', 0)")
    before = footprint(conn)
    with pytest.raises(InvalidQuery):
        hw.alter("st", query="SELECT nonsense FROM items")
    with pytest.raises(NotIncremental):
        hw.alter("st", query="SELECT id, random() FROM items", mode="differential")
    assert footprint(conn) == before
    with pytest.raises(InvalidQuery, match="it stays as it was"):
        hw.alter("st", query="SELECT label, (SELECT sum(1 / price) FROM items) AS price FROM labels")
    assert hw.history("st")[0].status == "failed"
    assert capture_triggers(conn, "labels") == set()
    assert hw.status("st").mode == "differential"
    assert refresh(hw, "st").action == "delta"


def test_a_broken_stream_table_is_repaired_by_another_query(hw: Headwater, conn: Connection) -> None:
    hw.create("st", "SELECT id, kind FROM items")
    hw.create("reader", "SELECT kind, count(*) AS n FROM st GROUP BY kind")
    conn.execute("DROP TABLE items CASCADE")
    assert hw.status("st").status == "broken"
    hw.alter("st", query="SELECT 1 AS id, kind FROM labels")
    assert hw.status("st").status == "active"
    conn.execute("DELETE FROM labels WHERE kind = 'a'")
    assert refresh(hw, "reader").action == "delta"
    assert contents(conn, "reader") == {"(b,1)": 1}
    assert value(conn, "SELECT count(*) FROM headwater.source WHERE table_name = 'items'") == 0


def test_a_stream_table_cannot_come_to_read_itself(hw: Headwater, conn: Connection) -> None:
    hw.create("st", "SELECT id FROM items")
    hw.create("over", "SELECT id FROM st")
    for query in ("SELECT id FROM st", "SELECT id FROM over"):
        with pytest.raises(CyclicDependency):
            hw.alter("st", query=query)
    assert_fresh(hw, "over")


def test_a_crash_between_any_two_statements_of_a_replacement(
    hw: Headwater, dsn: str, conn: Connection
) -> None:
    """The session dies now before this statement, now before that one; the old or the new one works."""
    queries = ("SELECT kind, price FROM items", "SELECT kind, 0 AS price FROM items JOIN labels USING (kind)")
    hw.create("st", queries[0])
    hw.create("sums", "SELECT kind, count(*) AS n, max(price) AS most FROM st GROUP BY kind")
    fates = {"old": 0, "new": 0}
    for statements in range(1, 2000, 13):
        present = hw.connection.execute("SELECT query FROM headwater.stream_table WHERE id = 1").fetchone()
        assert present is not None
        wanted = queries[0] if present[0] == queries[1] else queries[1]
        conn.execute("INSERT INTO items VALUES (%s, 'a', %s)", (statements + 10, statements))
        with headwater.connect(dsn) as handle:
            with (
                ended_after(statements, handle.connection, conn) as ending,
                suppress(HeadwaterError, psycopg.Error),
            ):
                handle.alter("st", query=wanted)
        found = find(hw.connection, "st")
        assert found.query in (present[0], wanted)
        fates["new" if found.query == wanted else "old"] += 1
        assert refresh(hw, "sums").action in ("delta", "nothing", "recompute")
        assert_fresh(hw, "st")
        if ending.survived:
            break
    assert ending.survived, "no replacement survived"
    assert min(fates.values()) >= 1, fates
    assert fates["old"] > 5
    conn.execute("DELETE FROM items WHERE id > 10")
    hw.alter("st", query="SELECT kind, price, id FROM items")  # clears away what a dead one left
    refresh(hw, "sums")
    assert sorted(item.stream_table for item in hw.list()) == ["public.st", "public.sums"]
    assert capture_triggers(conn, "labels") == set()


def test_a_dead_replacement_goes_with_its_stream_table(hw: Headwater, dsn: str, conn: Connection) -> None:
    before = footprint(conn)
    hw.create("st", "SELECT id FROM items")
    with headwater.connect(dsn) as dying:
        place = Place("headwater_data", "st_1", find(hw.connection, "st"))
        dying._creation()._prepare(dying.connection, place, "SELECT id, kind FROM items", Options())
        with pytest.raises(AlreadyExists):
            hw.alter("st", query="SELECT kind FROM items")
    hw.drop("st")
    assert footprint(conn) == before


# refreshes at the same time


def test_a_refresh_that_began_before_does_not_commit_on_the_old_definition(
    hw: Headwater, dsn: str, conn: Connection
) -> None:
    """I4: it waits for the replacement, starts over, and finds the new definition."""
    hw.create("st", "SELECT id, price FROM items")
    conn.execute("INSERT INTO items VALUES (4, 'b', 7)")
    with (
        headwater.connect(dsn, lock_timeout_ms="60000") as replacing,
        headwater.connect(dsn) as refreshing,
        psycopg.connect(dsn) as reader,
    ):
        reader.execute("SELECT * FROM st")  # holds the replacement up at its very end
        with in_background(
            lambda: replacing.alter(
                "st", query="SELECT id, label AS price FROM items JOIN labels USING (kind)"
            )
        ) as replacement:
            wait_until_blocked(conn, replacing.connection.info.backend_pid, replacement)
            with in_background(lambda: refreshing.refresh("st")) as refreshed:
                wait_until_blocked(conn, refreshing.connection.info.backend_pid, refreshed)
                conn.execute("UPDATE labels SET label = 'Pears' WHERE kind = 'a'")
                reader.commit()
        replacement.result()
        assert refreshed.result()[-1].action == "delta"
    assert_fresh(hw, "st")
    assert contents(conn, "st") == {"(1,Pears)": 1, "(2,Pears)": 1, "(3,Berries)": 1, "(4,Berries)": 1}


def test_refreshes_and_writes_go_on_while_queries_are_replaced(
    hw: Headwater, dsn: str, conn: Connection
) -> None:
    hw.create("st", "SELECT kind, sum(price) AS total FROM items GROUP BY kind")
    hw.create("over", "SELECT count(*) AS n, sum(total) AS total FROM st")
    stop = threading.Event()

    def refreshing() -> int:
        times = 0
        with headwater.connect(dsn, lock_attempts="100") as other:
            while not stop.is_set():
                other.refresh("over")
                times += 1
        return times

    def writing() -> int:
        times = 0
        with psycopg.connect(dsn, autocommit=True) as writer:
            while not stop.is_set():
                writer.execute("UPDATE items SET price = price + 1 WHERE id = %s", (times % 3 + 1,))
                writer.execute("UPDATE labels SET label = label || '!' WHERE kind = 'a'")
                times += 1
        return times

    queries = (
        "SELECT label AS kind, sum(price) AS total FROM items JOIN labels USING (kind) GROUP BY label",
        "SELECT kind, sum(price) AS total FROM items GROUP BY kind",
        "SELECT kind, price::bigint AS total FROM items",
    )
    with (
        in_background(refreshing) as refreshes,
        in_background(writing) as writes,
        headwater.connect(dsn, lock_attempts="100") as replacing,
    ):
        try:
            for number in range(6):
                replacing.alter("st", query=queries[number % len(queries)])
        finally:
            stop.set()
    assert refreshes.result()
    assert writes.result()
    refresh(hw, "over")
    assert_fresh(hw, "st")
    assert hw.verify("over").equal


# what reads it


def test_columns_at_the_end_leave_dependents_working(hw: Headwater, conn: Connection) -> None:
    hw.create("st", "SELECT id, kind FROM items")
    hw.create("reader", "SELECT kind, count(*) AS n FROM st GROUP BY kind")
    conn.execute("CREATE VIEW mine AS SELECT * FROM st")
    position = consumers.begin(hw.connection, find(hw.connection, "st"), "follower", "now")
    hw.alter("st", query="SELECT id, upper(kind) AS kind, price FROM items WHERE id > 1")
    assert contents(conn, "mine") == {"(2,A)": 1, "(3,B)": 1}
    assert refresh(hw, "reader").action == "delta"
    assert contents(conn, "reader") == {"(A,1)": 1, "(B,1)": 1}
    conn.execute("INSERT INTO items VALUES (4, 'c', 7)")
    assert refresh(hw, "reader").action == "delta"
    until = consumers.latest(hw.connection, position)
    changes = hw.connection.execute(consumers.changes_sql(hw.connection, position, until)).fetchall()
    assert sorted(changes) == sorted(
        [(1, "a", -1), (2, "a", -1), (3, "b", -1), (2, "A", 1), (3, "B", 1), (4, "C", 1)]
    )


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT id FROM items", 'lose column "kind"'),
        ("SELECT id, kind AS sort FROM items", 'lose column "kind"'),
        ("SELECT id, kind::varchar(5) AS kind FROM items", 'change the type of column "kind"'),
        ("SELECT kind, id FROM items", "change the order of its columns"),
    ],
    ids=["removed", "renamed", "retyped", "reordered"],
)
def test_a_change_that_would_break_a_dependent_is_refused(
    hw: Headwater, conn: Connection, query: str, said: str
) -> None:
    hw.create("st", "SELECT id, kind FROM items")
    conn.execute("CREATE VIEW mine AS SELECT kind FROM st")
    before = footprint(conn)
    for cascade in (False, True):
        with pytest.raises(DependentsExist, match=said) as caught:
            hw.alter("st", query=query, cascade=cascade)
        assert "public.mine" in caught.value.detail
    assert footprint(conn) == before

    conn.execute("DROP VIEW mine")
    hw.create("reader", "SELECT kind, count(*) AS n FROM st GROUP BY kind")
    hw.create("above", "SELECT sum(n) AS n FROM reader")
    consumers.begin(hw.connection, find(hw.connection, "reader"), "follower", "now")
    with pytest.raises(DependentsExist, match=said) as caught:
        hw.alter("st", query=query)
    assert caught.value.detail == "public.reader, public.above, consumer follower"
    assert "--cascade" in caught.value.hint
    assert_fresh(hw, "above")

    hw.alter("st", query=query, cascade=True)
    reason = hw.history("st")[0].reason
    assert all(
        f"{name} was dropped" in reason for name in ("public.reader", "public.above", "consumer follower")
    )
    assert [item.stream_table for item in hw.list()] == ["public.st"]
    assert_fresh(hw, "st")
    conn.execute("INSERT INTO items VALUES (4, 'c', 7)")
    assert refresh(hw, "st").action == "delta"
    hw.create("reader", "SELECT count(*) AS n FROM st")
    conn.execute("INSERT INTO items VALUES (5, 'c', 7)")
    assert refresh(hw, "reader").action == "delta"
