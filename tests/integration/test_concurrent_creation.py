"""A stream table that is created while others write to its sources: nobody is hurt, no change is lost."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from tests.integration.support import (
    assert_fresh,
    capture_triggers,
    in_background,
    refresh,
    wait_until_blocked,
)

import headwater
from headwater import Headwater
from headwater.errors import AlreadyExists, LockNotAvailable

Connection = psycopg.Connection[Any]


@pytest.fixture(autouse=True)
def tables(conn: Connection) -> None:
    conn.execute("CREATE TABLE items (id int PRIMARY KEY, kind text, price int, note text)")
    conn.execute("INSERT INTO items VALUES (1, 'a', 10, 'x'), (2, 'a', 20, 'y'), (3, NULL, 5, 'z')")


def test_a_creator_waits_for_open_writers_and_loses_nothing(
    hw: Headwater, dsn: str, conn: Connection
) -> None:
    hw.create("kinds", "SELECT kind, count(*) AS n FROM items GROUP BY kind")
    with psycopg.connect(dsn) as writer, headwater.connect(dsn, lock_timeout_ms="60000") as creator:
        writer.execute("INSERT INTO items VALUES (4, 'open', 1)")
        with in_background(lambda: creator.create("prices", "SELECT id, price FROM items")) as creation:
            try:
                wait_until_blocked(conn, creator.connection.info.backend_pid, creation)
            finally:
                writer.commit()
        assert creation.result().mode == "differential"
    for name in ("kinds", "prices"):
        refresh(hw, name)
    conn.execute("UPDATE items SET price = price + 1, kind = 'closed' WHERE id = 4")
    for name in ("kinds", "prices"):
        assert refresh(hw, name).action == "delta"


def test_a_writer_goes_on_while_a_creator_waits_for_it(hw: Headwater, dsn: str, conn: Connection) -> None:
    hw.create("kinds", "SELECT kind, count(*) AS n FROM items GROUP BY kind")
    with psycopg.connect(dsn) as writer, headwater.connect(dsn, lock_timeout_ms="60000") as creator:
        # As if the creator had looked for a deadlock before the writer gets to the change table.
        creator.connection.execute("SET deadlock_timeout = '1min'")
        # As in the middle of a long statement: the source is locked, the trigger has not fired yet.
        writer.execute("LOCK TABLE items IN ROW EXCLUSIVE MODE")
        with in_background(lambda: creator.create("prices", "SELECT id, price FROM items")) as creation:
            try:
                wait_until_blocked(conn, creator.connection.info.backend_pid, creation)
                writer.execute("INSERT INTO items VALUES (5, 'open', 2)")
            finally:
                writer.commit()
        creation.result()
    for name in ("kinds", "prices"):
        refresh(hw, name)


def test_a_creator_that_never_gets_its_lock_gives_up_and_leaves_nothing(
    hw: Headwater, dsn: str, conn: Connection
) -> None:
    with (
        psycopg.connect(dsn) as writer,
        headwater.connect(dsn, lock_timeout_ms="1", lock_attempts="2") as creator,
    ):
        writer.execute("INSERT INTO items VALUES (4, 'open', 1)")
        with pytest.raises(LockNotAvailable):
            creator.create("st", "SELECT id FROM items")
        assert hw.list() == []
        assert capture_triggers(conn, "items") == set()
        writer.commit()
    hw.create("st", "SELECT id FROM items")
    assert_fresh(hw, "st")


def test_creations_at_once_that_share_a_source(hw: Headwater, dsn: str, conn: Connection) -> None:
    def create(name: str, query: str) -> None:
        with headwater.connect(dsn, lock_attempts="100") as other:
            other.create(name, query)

    with (
        in_background(lambda: create("one", "SELECT id, kind FROM items")) as first,
        in_background(lambda: create("two", "SELECT id, price FROM items")) as second,
    ):
        number = 100
        while not (first.done() and second.done()):
            number += 1
            conn.execute("INSERT INTO items VALUES (%s, 'busy', 1)", (number,))
    first.result()
    second.result()
    conn.execute("UPDATE items SET price = price + 1, kind = kind || '!'")
    for name in ("one", "two"):
        assert refresh(hw, name).action == "delta"


def test_two_creations_of_one_name(dsn: str, hw: Headwater) -> None:
    def create() -> bool:
        with headwater.connect(dsn, lock_attempts="100") as other:
            try:
                other.create("st", "SELECT id, kind FROM items")
            except AlreadyExists:
                return False
            return True

    with in_background(create) as first, in_background(create) as second:
        pass
    assert {first.result(), second.result()} == {True, False}
    assert [item.stream_table for item in hw.list()] == ["public.st"]
    assert_fresh(hw, "st")
