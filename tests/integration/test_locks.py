"""Nobody waits for us longer than lock_timeout_ms, writers never for a refresh, vacuum not for ever."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from tests.integration.support import (
    WAITING_IS_LONG,
    Meddled,
    assert_fresh,
    change_table,
    in_background,
    refresh,
    value,
    wait_until_blocked,
)

import headwater
from headwater import Headwater
from headwater.catalog import stream_tables as catalog
from headwater.config import Settings
from headwater.db.connection import bound, connect
from headwater.db.route import Route
from headwater.db.scratch import Scratch
from headwater.definition.reader import DefinitionReader
from headwater.engine.select import EngineSelector
from headwater.errors import LockNotAvailable
from headwater.refresh.decide import Request
from headwater.refresh.transaction import Refresher

pytestmark = pytest.mark.usefixtures("driver_only")

Connection = psycopg.Connection[Any]
SUMS = "SELECT kind, count(*) AS n, sum(price) AS total FROM items GROUP BY kind"
BOUND = {"lock_timeout_ms": "100", "lock_attempts": "2"}


@pytest.fixture(autouse=True)
def tables(conn: Connection) -> None:
    conn.execute("CREATE TABLE items (id int PRIMARY KEY, kind text, price int, note text)")
    conn.execute("INSERT INTO items VALUES (1, 'a', 10), (2, 'a', 20), (3, NULL, 5)")
    conn.execute("CREATE TABLE kinds (kind text)")


# What takes a lock on a source that writers wait for: what comes before it, and the operation.
OPERATIONS: dict[str, tuple[Callable[[Headwater, Connection], object], Callable[[Headwater], object]]] = {
    "create": (lambda hw, conn: None, lambda hw: hw.create("st", SUMS)),
    "create with more columns": (
        lambda hw, conn: hw.create("st", "SELECT id FROM items"),
        lambda hw: hw.create("more", SUMS),
    ),
    "alter to full": (lambda hw, conn: hw.create("st", SUMS), lambda hw: hw.alter("st", mode="full")),
    "alter to auto": (
        lambda hw, conn: hw.create("st", SUMS, mode="full"),
        lambda hw: hw.alter("st", mode="auto"),
    ),
    "drop": (lambda hw, conn: hw.create("st", SUMS), lambda hw: hw.drop("st")),
    "drop of what needs more columns": (
        lambda hw, conn: (hw.create("st", SUMS), hw.create("few", "SELECT id FROM items")),
        lambda hw: hw.drop("st"),
    ),
    "putting triggers back": (
        lambda hw, conn: (
            hw.create("st", SUMS),
            conn.execute("DROP TRIGGER headwater_capture_update ON items"),
        ),
        lambda hw: hw.refresh("st"),
    ),
    "uninstall": (lambda hw, conn: hw.create("st", SUMS), lambda hw: hw.uninstall()),
}  # fmt: skip


@pytest.mark.parametrize(("before", "operation"), OPERATIONS.values(), ids=OPERATIONS.keys())
def test_a_writer_does_not_queue_behind_us_for_longer(
    hw: Headwater,
    dsn: str,
    conn: Connection,
    before: Callable[[Headwater, Connection], object],
    operation: Callable[[Headwater], object],
) -> None:
    """A transaction that stays open blocks us; a second writer waits behind us, and not till it ends."""
    before(hw, conn)
    with psycopg.connect(dsn) as blocker, headwater.connect(dsn, **BOUND) as hasty:
        blocker.execute("UPDATE items SET note = 'open' WHERE id = 1")
        pid = hasty.connection.info.backend_pid
        with in_background(lambda: operation(hasty)) as running:
            wait_until_blocked(conn, pid, running)
            conn.execute("SET lock_timeout = '20s'")  # to fail rather than to wait for the blocker
            conn.execute("UPDATE items SET note = 'second' WHERE id = 2")  # blocker holds on all the while
            with pytest.raises(LockNotAvailable):
                running.result(WAITING_IS_LONG)
        blocker.rollback()
        operation(hasty)
    conn.execute("UPDATE items SET price = 0")
    conn.execute("DELETE FROM items")


class Pause:
    """Where a refresh waits in the middle of its transaction, until it is told to go on."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.resume = threading.Event()

    def scratch(self, connection: Connection) -> Scratch:
        return Paused(self, connection)


class Paused(Meddled):
    """Waits after each of them."""

    def __init__(self, pause: Pause, connection: Connection) -> None:
        super().__init__(connection)
        self._pause = pause

    def meddle(self) -> None:
        self._pause.reached.set()
        assert self._pause.resume.wait(WAITING_IS_LONG)


@contextmanager
def paused_refresh(dsn: str, name: str, *, full: bool = False) -> Iterator[None]:
    """Another session's refresh, in the middle of its transaction while the block runs."""
    pause = Pause()
    with connect(dsn) as connection:
        bound(connection, Settings())
        refresher = Refresher(
            connection, Settings(), DefinitionReader(connection), EngineSelector(Route(dsn)), pause.scratch
        )
        found = catalog.find(connection, name)
        with in_background(lambda: refresher.refresh(found, Request(full=full))) as running:
            try:
                assert pause.reached.wait(WAITING_IS_LONG), running.exception()
                yield
            finally:
                pause.resume.set()
            running.result(WAITING_IS_LONG)


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("full", [False, True], ids=["delta", "recompute"])
def test_no_writer_waits_for_a_refresh(hw: Headwater, dsn: str, conn: Connection, full: bool) -> None:
    hw.create("sums", SUMS)
    hw.create("rows", "SELECT id, kind, price FROM items")
    conn.execute("UPDATE items SET price = price + 1")
    with paused_refresh(dsn, "sums", full=full):
        conn.execute("SET lock_timeout = '5s'")
        conn.execute("INSERT INTO items VALUES (4, 'b', 1), (5, 'b', 2)")
        conn.execute("UPDATE items SET price = price + 1")
        conn.execute("DELETE FROM items WHERE id = 1")
        conn.execute("INSERT INTO items VALUES (2, 'b', 3) ON CONFLICT (id) DO UPDATE SET price = 9")
        conn.execute(
            "MERGE INTO items t USING (VALUES (3)) AS s(id) ON s.id = t.id"
            " WHEN MATCHED THEN UPDATE SET price = 7"
        )
        with conn.cursor().copy("COPY items FROM STDIN") as copy:
            copy.write_row((9, "c", 9, "n"))
        conn.execute("SELECT * FROM sums, rows")
        assert refresh(hw, "rows").action == "delta"  # another refresh that reads the same change table
        conn.execute("INSERT INTO items VALUES (10, 'd', 1)")
    for name in ("sums", "rows"):
        hw.refresh(name)
        assert_fresh(hw, name)


def test_capture_does_not_wait_for_what_cleans_up(hw: Headwater, dsn: str, conn: Connection) -> None:
    """Change rows that are being deleted, and not yet gone, are in no writer's way."""
    hw.create("sums", SUMS)
    conn.execute("UPDATE items SET price = price + 1")
    with psycopg.connect(dsn) as cleaner:
        cleaner.execute(f"DELETE FROM {change_table(conn, 'items')}")
        conn.execute("SET lock_timeout = '5s'")
        conn.execute("UPDATE items SET price = price + 1")
        cleaner.rollback()
    assert refresh(hw, "sums").rows_in == 12


def test_a_stalled_refresh_is_ended_by_the_server(hw: Headwater, dsn: str, conn: Connection) -> None:
    """A process that was stopped in the middle: its session ends, its locks go, another one refreshes."""
    hw.create("sums", SUMS)
    conn.execute("UPDATE items SET price = price + 1")
    hw.set("idle_in_transaction_timeout", "1s")
    with psycopg.connect(dsn) as holder:
        # The refresh waits for this row in the middle of its transaction, with its snapshot and locks taken.
        holder.execute("SELECT FROM headwater.stream_table FOR UPDATE")
        process = subprocess.Popen(
            [sys.executable, "-m", "headwater", "refresh", "sums"],
            env={**os.environ, "HEADWATER_DSN": dsn},
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            name = "application_name ~ '^headwater refresh' AND datname = current_database()"
            while not value(
                conn, f"SELECT count(*) FROM pg_stat_activity WHERE {name} AND wait_event_type = 'Lock'"
            ):
                assert process.poll() is None, process.communicate()
            pid = value(conn, f"SELECT pid FROM pg_stat_activity WHERE {name}")
            os.kill(process.pid, signal.SIGSTOP)
            holder.rollback()
            while value(conn, "SELECT count(*) FROM pg_stat_activity WHERE pid = %s", pid):
                pass  # until the server has ended it
            assert value(conn, "SELECT count(*) FROM pg_locks WHERE pid = %s", pid) == 0
            conn.execute("TRUNCATE kinds; ALTER TABLE items ADD COLUMN more int")  # nothing is locked
            assert refresh(hw, "sums").action == "delta"
        finally:
            os.kill(process.pid, signal.SIGCONT)
            _, said = process.communicate(timeout=WAITING_IS_LONG)
    assert process.returncode == 1
    assert "the connection to the database broke" in said


def test_limits_of_the_session(hw: Headwater) -> None:
    """A lock is waited for in portions of half the server's deadlock_timeout."""
    hw.list()

    def shown(name: str) -> str:
        return str(value(hw.connection, f"SHOW {name}"))

    assert (shown("lock_timeout"), shown("idle_in_transaction_session_timeout")) == ("500ms", "1min")
    hw.set("idle_in_transaction_timeout", "0")
    hw.set("transaction_timeout", "10m")
    hw.list()
    assert shown("idle_in_transaction_session_timeout") == "0"
    if hw.connection.info.server_version >= 170000:
        assert shown("transaction_timeout") == "10min"
