"""Refreshes that lose a race with users: they are tried again, by SQLSTATE, and no user loses for them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel
from psycopg.conninfo import conninfo_to_dict
from tests.integration.support import assert_fresh, in_background, value, wait_until_blocked

import headwater
import headwater.refresh.member
from headwater import Headwater
from headwater.capture.registry import share_patience
from headwater.db.connection import TryAgain, retried
from headwater.db.scratch import drop_unused
from headwater.errors import LockNotAvailable, RefreshFailed
from headwater.refresh.decide import choose

pytestmark = pytest.mark.usefixtures("driver_only")

Connection = psycopg.Connection[Any]
JOINED = "SELECT a.id, b.v FROM a JOIN b ON b.id = a.id"


@pytest.fixture(autouse=True)
def tables(conn: Connection) -> None:
    conn.execute("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY, v int)")
    conn.execute("INSERT INTO a SELECT generate_series(1, 5)")
    conn.execute("INSERT INTO b SELECT i, 10 / i FROM generate_series(1, 5) i")


def set_deadlock_timeout(conn: Connection, dsn: str, timeout: str) -> None:
    """For the sessions to come."""
    name = conninfo_to_dict(dsn)["dbname"]
    conn.execute(f'ALTER DATABASE "{name}" SET deadlock_timeout = {timeout!r}')


def sqlstates_met(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """The SQLSTATEs for which something was tried again."""
    met: list[str | None] = []

    def watched(attempt: Callable[[], Any], **options: Any) -> Any:
        def noted() -> Any:
            try:
                return attempt()
            except psycopg.Error as error:
                met.append(error.sqlstate)
                raise
            except TryAgain as error:
                met.append(str(error))
                raise

        return retried(noted, **options)

    monkeypatch.setattr("headwater.refresh.transaction.retried", watched)
    return met


def test_a_user_in_a_deadlock_with_a_refresh_is_not_its_victim(
    hw: Headwater, dsn: str, conn: Connection
) -> None:
    """The user closes the circle when the refresh has waited for longer than deadlock_timeout, if it does."""
    hw.create("st", JOINED)
    conn.execute("UPDATE b SET v = v + 1")
    set_deadlock_timeout(conn, dsn, "200ms")
    with psycopg.connect(dsn) as user, headwater.connect(dsn) as refresher:
        user.execute("TRUNCATE b")
        with in_background(lambda: refresher.refresh("st")) as refreshing:
            try:
                first = waiting_since(conn, refresher, refreshing.done)
                while not value(
                    conn, "SELECT clock_timestamp() - %s::timestamptz > interval '400ms'", first
                ) and waiting_since(conn, refresher, refreshing.done) in (None, first):
                    pass
                user.execute("TRUNCATE a")
                user.commit()
            finally:
                user.rollback()
    assert refreshing.result()[-1].action == "recompute"
    assert_fresh(hw, "st")
    assert not [entry for entry in hw.history() if entry.status == "failed"]


def waiting_since(conn: Connection, refresher: Headwater, ended: Callable[[], bool]) -> Any:
    """When a refresh began to wait for the lock that it waits for now."""
    while not ended():
        row = conn.execute(
            "SELECT waitstart FROM pg_locks WHERE pid = %s AND NOT granted AND waitstart IS NOT NULL",
            (refresher.connection.info.backend_pid,),
        ).fetchone()
        if row is not None:
            return row[0]
    return None


def test_a_refresh_that_is_the_victim_of_a_deadlock_is_tried_again(
    hw: Headwater, dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real one: the refresh has the source and wants the row, the user has the row and wants the source."""
    created = hw.create("st", JOINED)
    conn.execute("UPDATE b SET v = v + 1")
    set_deadlock_timeout(conn, dsn, "100ms")
    met = sqlstates_met(monkeypatch)
    with psycopg.connect(dsn) as user, headwater.connect(dsn) as refresher:
        user.execute("SET deadlock_timeout = '1h'")
        user.execute("SELECT FROM headwater.stream_table WHERE id = %s FOR UPDATE", (created.id,))

        def take_source() -> None:
            user.execute("LOCK TABLE b IN ACCESS EXCLUSIVE MODE")
            user.rollback()

        lock = headwater.refresh.member.MemberRefresher.lock
        with ThreadPoolExecutor(max_workers=1) as pool:

            def lock_last(self: Any, stream_table: Any) -> None:
                monkeypatch.setattr(headwater.refresh.member.MemberRefresher, "lock", lock)
                wait_until_blocked(conn, user.info.backend_pid, pool.submit(take_source))
                lock(self, stream_table)

            monkeypatch.setattr(headwater.refresh.member.MemberRefresher, "lock", lock_last)
            refreshed = refresher.refresh("st")
    assert refreshed[-1].action == "delta"
    assert met[0] == "40P01"
    assert_fresh(hw, "st")
    assert not [entry for entry in hw.history() if entry.status == "failed"]


def test_who_rebuilds_gives_way_to_a_user_who_waits_already(
    hw: Headwater, dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user reads the stream table and waits for a source of it, when its storage is to be replaced."""
    conn.execute("CREATE VIEW odd AS SELECT id, v FROM b WHERE id % 2 = 1")
    hw.create("st", "SELECT id, v FROM odd")
    conn.execute("CREATE OR REPLACE VIEW odd AS SELECT id, v FROM b WHERE id % 3 = 1")
    met = sqlstates_met(monkeypatch)
    give_way = headwater.refresh.member.MemberRefresher._give_way_to_waiting
    with psycopg.connect(dsn) as user, ThreadPoolExecutor(max_workers=1) as pool:
        user.execute("SELECT FROM st")

        def take_source() -> None:
            user.execute("LOCK TABLE b IN ACCESS EXCLUSIVE MODE")
            user.commit()

        def overtaken(self: Any) -> None:
            monkeypatch.setattr(headwater.refresh.member.MemberRefresher, "_give_way_to_waiting", give_way)
            wait_until_blocked(conn, user.info.backend_pid, pool.submit(take_source))
            with pytest.raises(TryAgain, match="a user waits"):
                give_way(self)
            give_way(self)

        monkeypatch.setattr(headwater.refresh.member.MemberRefresher, "_give_way_to_waiting", overtaken)
        assert hw.refresh("st")[-1].action == "recompute"
    assert met[0] == "a user waits for a table that this refresh reads"
    assert_fresh(hw, "st")


def test_the_locks_of_one_attempt_share_its_patience(hw: Headwater, conn: Connection) -> None:
    conn.execute(
        "CREATE TABLE p (x int) PARTITION BY LIST (x); CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1)"
    )
    oids = [value(conn, "SELECT %s::regclass::oid", name) for name in ("a", "p")]
    with hw.connection.transaction():
        hw.connection.execute("SET LOCAL lock_timeout = '400ms'")
        share_patience(hw.connection, oids, more=1)
        assert value(hw.connection, "SHOW lock_timeout") == "100ms"


def test_two_refreshes_of_one_window(
    hw: Headwater, dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second took its snapshot before the first had committed: 40001, and then nothing is left to do."""
    hw.create("st", JOINED)
    conn.execute("UPDATE b SET v = v + 1")
    met = sqlstates_met(monkeypatch)
    with headwater.connect(dsn) as second:

        def overtaken(*arguments: Any) -> Any:
            chosen = choose(*arguments)
            monkeypatch.setattr(headwater.refresh.member, "choose", choose)
            assert hw.refresh("st")[-1].action == "delta"
            return chosen

        monkeypatch.setattr(headwater.refresh.member, "choose", overtaken)
        assert second.refresh("st")[-1].action == "nothing"
    assert met == ["40001"]
    assert_fresh(hw, "st")
    assert not [entry for entry in hw.history() if entry.status == "failed"]


def test_a_refresh_that_is_overtaken_by_one_that_keeps_anew_takes_nothing_for_drift(
    dsn: str, conn: Connection, hw: Headwater, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the snapshot of the one that was overtaken, the new table of kept rows is empty."""
    hw.set("keep_inner", "always")
    hw.create("st", "SELECT max(n) AS most FROM (SELECT v, count(*) AS n FROM b GROUP BY v) x")
    conn.execute("DELETE FROM b WHERE id = 1")
    with headwater.connect(dsn) as second:

        def overtaken(*arguments: Any) -> Any:
            chosen = choose(*arguments)
            monkeypatch.setattr(headwater.refresh.member, "choose", choose)
            hw.refresh("st", full=True)
            return chosen

        monkeypatch.setattr(headwater.refresh.member, "choose", overtaken)
        assert second.refresh("st")[-1].action == "nothing"
    assert_fresh(hw, "st")
    assert not [entry for entry in hw.history() if "does not hold" in entry.reason]


def test_a_lock_that_comes_late_and_one_that_never_comes(
    hw: Headwater, dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    hw.create("st", JOINED)
    conn.execute("UPDATE b SET v = v + 1")
    met = sqlstates_met(monkeypatch)
    impatient = {"lock_timeout_ms": "5", "lock_attempts": "3"}
    with psycopg.connect(dsn) as user, headwater.connect(dsn, **impatient) as refresher:
        user.execute("LOCK TABLE b")
        with pytest.raises(LockNotAvailable):
            refresher.refresh("st")
        assert met == ["55P03"] * 3
        [failed] = [entry for entry in hw.history() if entry.status == "failed"]
        assert failed.sqlstate == "55P03"
        refresher.set("lock_attempts", "1000")
    with psycopg.connect(dsn) as user, headwater.connect(dsn, lock_timeout_ms="5") as refresher:
        user.execute("LOCK TABLE b")
        del met[:]
        with in_background(lambda: refresher.refresh("st")) as refreshing:
            try:
                while len(met) < 3:
                    assert not refreshing.done()
            finally:
                user.commit()
    assert refreshing.result()[-1].action == "delta"
    assert_fresh(hw, "st")


def test_what_is_no_race_is_not_tried_again(
    hw: Headwater, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    hw.create("st", "SELECT id, 100 / v AS x FROM b")
    conn.execute("UPDATE b SET v = 0 WHERE id = 3")
    met = sqlstates_met(monkeypatch)
    with pytest.raises(RefreshFailed):
        hw.refresh("st")
    assert met == []  # what fails is an error of the stream table's own by then
    assert [entry.sqlstate for entry in hw.history() if entry.status == "failed"] == ["22012"]


@pytest.mark.parametrize("level", list(IsolationLevel)[1:])
def test_a_writer_whose_snapshot_is_older_than_a_rename(
    hw: Headwater, dsn: str, conn: Connection, level: IsolationLevel
) -> None:
    hw.create("st", "SELECT id, v FROM b")
    with psycopg.connect(dsn) as writer:
        writer.isolation_level = level
        writer.execute("SELECT FROM a")
        conn.execute("ALTER TABLE b RENAME COLUMN v TO value")
        writer.execute("INSERT INTO b VALUES (6, 60)")
        writer.execute("UPDATE b SET value = 70 WHERE id = 6")
        writer.execute("DELETE FROM b WHERE id = 1")
    hw.refresh("st")
    assert_fresh(hw, "st")


@pytest.mark.usefixtures("in_steps")
def test_temporary_tables_do_not_grow_old(hw: Headwater, conn: Connection) -> None:
    """Nobody else can vacuum them, and they keep the server from forgetting old transactions."""
    stream_table = hw.create("st", JOINED).id
    conn.execute("UPDATE b SET v = v + 1")
    hw.refresh("st")
    mine = "SELECT count(*) FROM pg_class WHERE relnamespace = pg_my_temp_schema() AND relkind = 'r'"
    assert value(hw.connection, mine) > 0
    for _ in range(30):
        conn.execute("UPDATE b SET v = v + 1")
    drop_unused(hw.connection, [stream_table], oldest=1000)
    assert value(hw.connection, mine) > 0
    drop_unused(hw.connection, [stream_table], oldest=10)
    assert value(hw.connection, mine) == 0
    assert hw.refresh("st")[-1].action == "delta"
    assert_fresh(hw, "st")
