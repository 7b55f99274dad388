"""Disks that are full, quotas that are reached: refreshes fail in good order, and users go on writing.

A full disk is played by the limit on the size of files, which every user may set for its own processes: the
server gets an error when it extends a file beyond it, as on a full disk. The files of the log are smaller, so
the server itself goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from tests.conftest import TEST_SERVER
from tests.crash.wreckage import assert_right, orphans, settle, wait_until_gone
from tests.integration.support import value

import headwater
from headwater import Headwater
from headwater.errors import HeadwaterError

resource = pytest.importorskip("resource", reason="there are no limits of processes here")

Connection = psycopg.Connection[Any]
LIMIT = 18 << 20
"""Bytes of a file: more than a segment of the log."""
MANY = "INSERT INTO rows SELECT i, i, repeat('x', 400) FROM generate_series(100000, 145000) i"


@pytest.fixture(autouse=True)
def local_server(conn: Connection) -> None:
    if TEST_SERVER not in ("embedded", "system") or not hasattr(resource, "prlimit"):
        pytest.skip("limits can be set for processes of this machine only, and on Linux")


@pytest.fixture(autouse=True)
def rows(conn: Connection, hw: Headwater) -> None:
    conn.execute("CREATE TABLE rows (id int PRIMARY KEY, g int, filling text)")
    conn.execute("CREATE TABLE few (id int PRIMARY KEY)")
    conn.execute("INSERT INTO rows SELECT i, i % 10, 'few' FROM generate_series(1, 100) i; ANALYZE rows")
    hw.create("copied", "SELECT id, g, filling FROM rows", engine="postgres")
    hw.create("counted", "SELECT g, count(*) AS n FROM copied GROUP BY g", engine="postgres")
    hw.create("others", "SELECT id FROM few")


@pytest.fixture
def hw(dsn: str) -> Iterator[Headwater]:
    with headwater.connect(dsn) as handle:
        handle.init()
        yield handle


@contextmanager
def full_for(connection: Connection) -> Iterator[None]:
    """The disk is full for the backend of a connection."""
    pid = connection.info.backend_pid
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (LIMIT, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


@contextmanager
def little_room_to_sort(conn: Connection, dsn: str) -> Iterator[None]:
    """Sessions to come may not put what they sort into files."""
    name = conninfo_to_dict(dsn)["dbname"]
    conn.execute(f"ALTER DATABASE \"{name}\" SET temp_file_limit = '64kB'")
    conn.execute(f"ALTER DATABASE \"{name}\" SET work_mem = '64kB'")
    try:
        yield
    finally:
        conn.execute(f'ALTER DATABASE "{name}" RESET ALL')


def assert_as_ever(dsn: str, conn: Connection) -> None:
    """All goes on, by deltas, and nothing lies about."""
    with headwater.connect(dsn) as hw:
        settle(hw)
        assert_right(hw)
        conn.execute("INSERT INTO rows VALUES (1000, 1, 'one more'); DELETE FROM rows WHERE id = 5")
        assert settle(hw) == {"public.copied": "delta", "public.counted": "delta", "public.others": "nothing"}
        assert_right(hw)


def failures(hw: Headwater) -> list[str | None]:
    return [entry.sqlstate for entry in hw.history(limit=100) if entry.status == "failed"]


REFRESHES: dict[str, Callable[[Headwater], object]] = {
    "delta": lambda hw: hw.refresh("counted"),
    "recompute": lambda hw: hw.refresh("copied", full=True),
    "replacement": lambda hw: hw.alter("copied", query="SELECT id, g, filling || '' AS filling FROM rows"),
}


@pytest.mark.parametrize("how", REFRESHES)
def test_a_refresh_finds_the_disk_full(dsn: str, conn: Connection, hw: Headwater, how: str) -> None:
    conn.execute(MANY)
    with headwater.connect(dsn) as unlucky:
        unlucky.settings()
        with full_for(unlucky.connection):
            with pytest.raises(HeadwaterError) as raised:
                REFRESHES[how](unlucky)
            conn.execute("INSERT INTO rows VALUES (-1, 1, 'users can write meanwhile')")
            conn.execute("INSERT INTO few VALUES (1)")
            assert hw.refresh("others")[-1].action == "delta"
    assert raised.value.__cause__ is not None
    assert len(failures(hw)) == 1
    assert failures(hw)[0] is not None
    hw.close()
    assert_as_ever(dsn, conn)
    wait_until_gone(conn)
    assert orphans(conn) == []


def test_a_creation_finds_the_disk_full(dsn: str, conn: Connection, hw: Headwater) -> None:
    conn.execute(MANY)
    with headwater.connect(dsn) as unlucky:
        unlucky.settings()
        with full_for(unlucky.connection), pytest.raises(HeadwaterError, match="nothing was kept"):
            unlucky.create("again", "SELECT id, filling FROM rows", engine="postgres")
    hw.close()
    assert_as_ever(dsn, conn)
    wait_until_gone(conn)
    assert orphans(conn) == []


def test_a_write_fails_where_the_disk_is_full_for_its_change_rows(
    dsn: str, conn: Connection, hw: Headwater
) -> None:
    """The change rows of an update take twice the room of the rows: the write fails, as a whole."""
    with psycopg.connect(dsn, autocommit=True) as user:
        user.execute("INSERT INTO rows SELECT i, 1, repeat('x', 400) FROM generate_series(200000, 230000) i")
        hw.refresh("copied")
        before = value(conn, "SELECT sum(g) FROM rows")
        with full_for(user):
            with pytest.raises(psycopg.Error):
                user.execute("UPDATE rows SET g = g + 1")
            user.execute("UPDATE rows SET g = g + 1 WHERE id < 100")  # for which there is room
            user.execute("INSERT INTO few VALUES (2)")
        assert value(conn, "SELECT sum(g) FROM rows") == before + 99
    hw.refresh("others")
    hw.close()
    assert_as_ever(dsn, conn)


def test_a_refresh_reaches_temp_file_limit(dsn: str, conn: Connection, hw: Headwater) -> None:
    conn.execute(MANY)
    with little_room_to_sort(conn, dsn), headwater.connect(dsn) as unlucky:
        with pytest.raises(HeadwaterError):
            unlucky.refresh("counted", full=True)
        conn.execute("INSERT INTO rows VALUES (-1, 1, 'users can write meanwhile')")
    assert failures(hw) == ["53400"]
    hw.close()
    assert_as_ever(dsn, conn)
    wait_until_gone(conn)
    assert orphans(conn) == []
