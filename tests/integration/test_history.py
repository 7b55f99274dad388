"""The history stays within its bounds, and its sums tell of every refresh exactly once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from tests.integration.history import (
    STREAM_TABLES,
    add,
    add_many,
    add_stream_tables,
    assert_sums_are_those_of,
    counted,
    finish,
    left,
)
from tests.integration.support import WAITING_IS_LONG, value
from tests.statements import ended_after

from headwater import Headwater
from headwater.catalog import cleanup
from headwater.catalog.cleanup import clean_up
from headwater.config import Settings
from headwater.db.connection import connect as pinned
from headwater.db.scratch import statement

Connection = psycopg.Connection[Any]

MANY = 200_000
KEPT = "status = 'failed' OR action IN ('load', 'recompute')"


# size


def size(conn: Connection) -> int:
    return int(
        value(
            conn,
            "SELECT sum(pg_total_relation_size(oid)) FROM pg_class"
            " WHERE oid IN ('headwater.refresh'::regclass, 'headwater.refresh_sum'::regclass)",
        )
    )


@pytest.mark.usefixtures("stream_tables")
def test_hundreds_of_thousands_of_refreshes_fit_and_their_sums_are_right(
    hw: Headwater, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit_of_compaction in ("COMPACTION_LOCK_TIMEOUT", "COMPACTION_TIMEOUT"):
        monkeypatch.setattr(cleanup, limit_of_compaction, "10min")  # for a busy machine
    add_many(conn, MANY, "50 minutes")  # which all would be kept for their age
    conn.execute("CREATE TABLE public.raw AS TABLE headwater.refresh")
    limit = 64
    assert size(conn) > 2 * (limit << 20)
    finish(hw, history_max_mb=limit)
    assert size(conn) <= limit << 20

    assert left(conn, KEPT) == [
        number for (number,) in conn.execute(statement(f"SELECT id FROM raw WHERE {KEPT} ORDER BY id"))
    ]
    deltas = left(conn, f"NOT ({KEPT})")
    assert len(deltas) > 100 * STREAM_TABLES
    youngest = [
        number
        for (number,) in conn.execute(
            statement(f"SELECT id FROM raw WHERE NOT ({KEPT}) ORDER BY id DESC LIMIT {len(deltas)}")
        )
    ]
    assert deltas == youngest[::-1], "the oldest went"
    latest = "SELECT stream_table_id, max(id) FROM {} WHERE status = 'completed' GROUP BY 1 ORDER BY 1"
    assert (
        conn.execute(statement(latest.format("headwater.refresh"))).fetchall()
        == conn.execute(statement(latest.format("public.raw"))).fetchall()
    )
    assert_sums_are_those_of(conn, "public.raw")

    before = left(conn)
    finish(hw, history_max_mb=limit)
    assert left(conn) == before, "there is room"


@pytest.mark.usefixtures("stream_tables")
def test_for_want_of_room_minutes_go_before_failures_and_hours_last(hw: Headwater, conn: Connection) -> None:
    add_many(conn, 60_000, "30 hours")
    finish(hw)
    hours = counted(conn)
    assert counted(conn, "1 minute") == hours == 60_000
    kept = left(conn, KEPT)
    finish(hw, history_max_mb=8)
    assert size(conn) <= 8 << 20
    assert 0 < counted(conn, "1 minute") < hours
    oldest = "SELECT {}(bucket_start) FROM headwater.refresh_sum WHERE bucket_length = '1 minute'"
    assert value(conn, oldest.format("max")) == value(
        conn, "SELECT date_trunc('minute', max(finished_at)) FROM headwater.refresh"
    )
    assert counted(conn) == hours
    assert left(conn, KEPT) == kept


@pytest.mark.usefixtures("stream_tables")
def test_the_oldest_failures_and_recomputations_go_where_they_alone_are_too_many(
    hw: Headwater, conn: Connection
) -> None:
    """As those of a stream table that is recomputed each second for a week."""
    [first, second, *_] = left_tables(conn)
    add(conn, second, ago="6 days", action="load")
    add(conn, first, number=60_000, ago="1 minute", every="8s", action="recompute")
    whole = left(conn)
    finish(hw, history_max_mb=8)
    assert size(conn) <= 8 << 20
    assert counted(conn) == 60_001
    kept = left(conn)
    assert len(kept) > 1_000
    assert kept == [whole[0], *whole[-len(kept) + 1 :]], "and the only success of the other stays"


def left_tables(conn: Connection) -> list[int]:
    return [number for (number,) in conn.execute("SELECT id FROM headwater.stream_table ORDER BY id")]


def test_many_stream_tables_share_the_room_for_their_latest(hw: Headwater, conn: Connection) -> None:
    for number in add_stream_tables(conn, 1_000):
        add(conn, number, number=20, ago="2 hours", every="1s")
    finish(hw, history_max_mb=8, history_latest=100)  # half of the room is for 4 of each
    assert set(conn.execute("SELECT count(*) FROM headwater.refresh GROUP BY stream_table_id")) == {(4,)}
    assert size(conn) <= 8 << 20


# age


def test_deltas_are_kept_for_an_hour_or_the_latest(
    hw: Headwater, conn: Connection, stream_tables: list[int]
) -> None:
    busy, slow, idle, *_ = stream_tables
    add(conn, idle, number=5, ago="5 hours", every="1 minute")
    add(conn, slow, number=12, ago="1 minute", every="20 minutes")
    add(conn, busy, number=200, ago="1s", every="1 minute")
    finish(hw, history_latest=10)
    assert len(left(conn, f"stream_table_id = {idle}")) == 5
    assert len(left(conn, f"stream_table_id = {slow}")) == 10
    assert len(left(conn, f"stream_table_id = {busy}")) == 60
    assert counted(conn) == 217
    # what was among the latest goes when others are
    conn.execute("UPDATE headwater.refresh SET finished_at = finished_at - interval '2 hours'")
    add(conn, slow, number=4, ago="90 minutes", every="1 minute")
    add(conn, slow, number=3, ago="2 minutes", every="1 minute")
    finish(hw, history_latest=10)
    assert len(left(conn, f"stream_table_id = {slow}")) == 10
    assert len(left(conn, f"stream_table_id = {busy}")) == 10
    assert len(left(conn, f"stream_table_id = {idle}")) == 5


def test_failures_and_recomputations_are_kept_for_days(
    hw: Headwater, conn: Connection, stream_tables: list[int]
) -> None:
    first, second, *_ = stream_tables
    add(conn, second, ago="20 days")
    add(conn, second, ago="19 days", status="failed")
    for action in ("load", "recompute", "delta"):
        for ago in ("8 days", "6 days"):
            add(conn, first, ago=ago, action=action, status="failed" if action == "delta" else "completed")
    add(conn, first, number=200, ago="1 minute", every="1s")
    finish(hw)
    assert len(left(conn, f"stream_table_id = {first} AND ({KEPT})")) == 3
    assert value(conn, "SELECT min(finished_at) > now() - interval '7 days' FROM headwater.refresh"
                       " WHERE stream_table_id = %s", first)  # fmt: skip
    assert len(left(conn, f"stream_table_id = {second}")) == 2, "the last success, and what came after it"
    assert counted(conn) == 208
    assert counted(conn, "1 minute") == 200, "of the others it would be too late"


def test_sums_are_forgotten_after_their_time(
    hw: Headwater, conn: Connection, stream_tables: list[int]
) -> None:
    for ago in ("1 day", "3 days", "20 days"):
        add(conn, stream_tables[0], ago=ago)
    finish(hw, history_minute_retention="24d", history_hour_retention="24d")
    assert (counted(conn, "1 minute"), counted(conn)) == (3, 3)
    finish(hw)
    assert (counted(conn, "1 minute"), counted(conn)) == (1, 3)
    finish(hw, history_minute_retention="1h", history_hour_retention="2d")
    assert (counted(conn, "1 minute"), counted(conn)) == (0, 1)


# exactly once


def test_a_refresh_that_commits_late_is_counted_once(
    hw: Headwater, conn: Connection, dsn: str, stream_tables: list[int]
) -> None:
    """Its number is below those of others that were committed, counted and deleted before."""
    one, other = stream_tables[:2]
    with psycopg.connect(dsn) as late, psycopg.connect(dsn) as later:
        add(late, one, ago="3 hours")  # has number 1, and is not committed
        add(conn, other, number=9, ago="3 hours")
        finish(hw, history_latest=1)
        assert counted(conn) == 0, "nobody knows yet what becomes of number 1"
        assert len(left(conn)) == 9
        add(later, one, ago="2 hours")
        late.commit()
        finish(hw, history_latest=1)
        assert counted(conn) == 10, "later ones do not matter for what was drawn before"
        add(conn, other, number=5)
        finish(hw, history_latest=1)
        assert counted(conn) == 10
        later.rollback()
        finish(hw, history_latest=1)
    assert counted(conn) == 15
    finish(hw, history_latest=1)
    assert counted(conn) == 15
    assert left(conn) == [1, 10, *range(12, 17)]


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleanup, "BATCH", 40)
    monkeypatch.setattr(cleanup, "FEWEST_SWEPT", 10)


@pytest.fixture
def victims(dsn: str) -> Iterator[Callable[[], Connection]]:
    """Opens connections that may be cut."""
    opened: list[Connection] = []

    def open_one() -> Connection:
        opened.append(pinned(dsn))
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()


@pytest.mark.usefixtures("stream_tables", "small_batches")
def test_a_clean_up_may_die_at_any_statement(
    hw: Headwater, conn: Connection, victims: Callable[[], Connection]
) -> None:
    conn.execute("CREATE TABLE public.raw (LIKE headwater.refresh)")
    number, survived = 0, False
    while not survived:
        with conn.transaction():
            last = value(conn, "SELECT coalesce(max(id), 0) FROM public.raw")
            add_many(conn, 60, "90 minutes")
            conn.execute(f"INSERT INTO public.raw SELECT * FROM headwater.refresh WHERE id > {last}".encode())
        victim = victims()
        with ended_after(number, victim, conn) as ending, suppress(psycopg.OperationalError):
            assert clean_up(victim, Settings(history_latest=1, history_max_mb=8), WAITING_IS_LONG)
        survived, number = ending.survived, number + 1
    assert number > 20
    assert counted(conn) == value(conn, "SELECT count(*) FROM public.raw")
    assert_sums_are_those_of(conn, "public.raw")


@pytest.mark.usefixtures("small_batches")
def test_a_clean_up_ends_in_time_and_the_next_goes_on(
    hw: Headwater, conn: Connection, stream_tables: list[int]
) -> None:
    add(conn, stream_tables[0], number=200, ago="2 hours")
    batches = iter((False, False, True))
    assert not clean_up(hw.connection, Settings(), WAITING_IS_LONG, lambda: next(batches))
    assert counted(conn) == 40
    assert not clean_up(hw.connection, Settings(), 0)
    finish(hw)
    assert counted(conn) == 200


def test_one_cleans_up_at_a_time(hw: Headwater, conn: Connection, dsn: str, stream_tables: list[int]) -> None:
    add(conn, stream_tables[0])
    with psycopg.connect(dsn) as other:
        other.execute("SELECT FROM headwater.history_state FOR UPDATE")
        assert not clean_up(hw.connection, Settings(), WAITING_IS_LONG)
    assert counted(conn) == 0
    finish(hw)
    assert counted(conn) == 1


def test_readers_and_refreshes_do_not_wait_for_long_while_files_are_rewritten(
    hw: Headwater, conn: Connection, dsn: str, stream_tables: list[int]
) -> None:
    add(conn, stream_tables[0], number=60_000, ago="2 hours")
    before = size(conn)
    limits = "SELECT current_setting('lock_timeout'), current_setting('statement_timeout')"
    found = hw.connection.execute(limits).fetchone()
    with psycopg.connect(dsn) as reader:
        reader.execute("SELECT FROM headwater.refresh LIMIT 1")  # holds its lock
        finish(hw, history_max_mb=8)
        assert size(conn) >= before, "it had no lock in time"
        assert len(left(conn)) == 100
    finish(hw, history_max_mb=8)
    assert size(conn) >= before, "it is not tried all the time"
    conn.execute("UPDATE headwater.history_state SET compacted_at = compacted_at - interval '2 hours'")
    finish(hw, history_max_mb=8)
    assert size(conn) < 1 << 20
    assert hw.connection.execute(limits).fetchone() == found


# by hand


def test_refreshes_by_hand_clean_up_from_time_to_time(hw: Headwater, conn: Connection) -> None:
    conn.execute("CREATE TABLE items (id int)")
    hw.create("st", "SELECT id FROM items")
    number = value(conn, "SELECT id FROM headwater.stream_table")
    add(conn, number, number=300, ago="2 hours")

    def refreshed(history_id: int) -> None:
        conn.execute("SELECT setval('headwater.refresh_id_seq', %s)", (history_id - 1,))
        conn.execute("INSERT INTO items VALUES (1)")
        assert hw.refresh("st")[-1].history_id == history_id

    refreshed(1024)
    assert counted(conn) == 0
    refreshed(1025)
    assert counted(conn) == 303
    assert len(left(conn, "action = 'delta'")) == 100
    refreshed(1281)
    assert counted(conn) == 303, "somebody did so just now"
    conn.execute("UPDATE headwater.history_state SET cleaned_at = cleaned_at - interval '1 hour'")
    refreshed(1537)
    assert counted(conn) == 305


def test_a_stream_table_that_is_dropped_takes_its_sums_with_it(hw: Headwater, conn: Connection) -> None:
    conn.execute("CREATE TABLE items (id int)")
    for name in ("st", "other"):
        hw.create(name, "SELECT id FROM items")
    conn.execute("INSERT INTO headwater.refresh_swept SELECT id, 1 FROM headwater.stream_table")
    finish(hw)
    assert counted(conn) == 2
    hw.drop("st")
    assert counted(conn) == 1
    assert value(conn, "SELECT count(*) FROM headwater.refresh_swept") == 1
    assert [each.stream_table for each in hw.history_sums()] == ["public.other"]
