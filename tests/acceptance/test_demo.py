"""The demo as people run it: a process of its own, stopped by time, by Ctrl-C, and caught lying."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import psycopg
import pytest
from psycopg import sql

from headwater.demo.shop import EXAMPLES, SCHEMA

pytestmark = pytest.mark.slow

PROGRAM = """
import sys
from rich.console import Console
from headwater.demo import run
seconds, engine, dsn = float(sys.argv[1]), sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None
sys.exit(run(seconds, dsn, Console(), engine))
"""
NO_PROCESS_AFTER = 30.0


@contextmanager
def demo(
    scratch: Path, seconds: float, dsn: str | None = None, engine: str = "postgres"
) -> Iterator[subprocess.Popen[str]]:
    """A running demo without a terminal; its server's directory goes under `scratch`."""
    arguments = [sys.executable, "-c", PROGRAM, str(seconds), engine, *([dsn] if dsn else [])]
    process = subprocess.Popen(
        arguments,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        env=environment(scratch),
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def environment(scratch: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADWATER_DEMO")}
    return {
        **kept,
        "TMPDIR": str(scratch),
        "PYTHONUNBUFFERED": "1",
        "PYTHONUTF8": "1",
        "HEADWATER_SPARK_AOT": "off",
    }


def read_until(process: subprocess.Popen[str], words: str) -> str:
    """The output up to the first line with these words."""
    assert process.stdout is not None
    read = ""
    for line in process.stdout:
        read += line
        if words in line:
            return read
    pytest.fail(f"{words!r} was never printed:\n{read}")


def rest(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.read()


def assert_nothing_left(scratch: Path) -> None:
    assert list(scratch.iterdir()) == []
    # The watcher of the server ends a moment after it.
    deadline = time.monotonic() + NO_PROCESS_AFTER
    while (left := processes_naming(scratch)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []


def processes_naming(directory: Path) -> list[str]:
    listing = subprocess.run(["ps", "-A", "-ww", "-o", "args"], capture_output=True, text=True, check=True)
    return [line for line in listing.stdout.splitlines() if str(directory) in line]


def test_it_ends_by_itself_with_every_stream_table_verified(tmp_path: Path) -> None:
    with demo(tmp_path, 6, engine="spark") as process:
        output = read_until(process, "verified equal at snapshot")
        assert processes_naming(tmp_path), "the server that is looked for later"
        output += rest(process)
        assert process.wait() == 0, output
    assert f"{len(EXAMPLES)} stream tables verified equal" in output
    for example in EXAMPLES:
        assert f"{example.name} " in output
    assert "refreshes by headwater serve took in" in output
    assert "change rows; p50" in output
    assert "behind their queries, looked at" in output
    assert "recomputed" in output
    assert "headwater init" in output
    assert "Traceback" not in output
    assert_nothing_left(tmp_path)


def test_an_interrupt_ends_it_as_its_time_would(tmp_path: Path) -> None:
    with demo(tmp_path, 3600) as process:
        output = read_until(process, "verified equal at snapshot")
        process.send_signal(signal.SIGINT)
        output += rest(process)
        assert process.wait() == 0, output
    assert f"{len(EXAMPLES)} stream tables verified equal" in output
    assert "Traceback" not in output
    assert_nothing_left(tmp_path)


def test_an_interrupt_before_it_began_leaves_nothing(tmp_path: Path) -> None:
    with demo(tmp_path, 3600) as process:
        output = read_until(process, "Starting a private PostgreSQL")
        process.send_signal(signal.SIGINT)
        output += rest(process)
        assert process.wait() == 130, output
    assert "Traceback" not in output
    assert_nothing_left(tmp_path)


def test_it_draws_on_a_terminal(tmp_path: Path) -> None:
    picture = tmp_path / "frame.svg"
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    child, terminal = pty.fork()
    if child == 0:
        settings = {
            **environment(scratch),
            "TERM": "xterm-256color",
            "COLUMNS": "100",
            "LINES": "30",
            "HEADWATER_DEMO_SVG": str(picture),
        }
        os.execve(sys.executable, [sys.executable, "-c", PROGRAM, "5", "postgres"], settings)
    drawn = everything_from(terminal)
    _, status = os.waitpid(child, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 0, drawn
    assert "\x1b[" in drawn
    for words in ("stream table", "the shop writes", "verified equal", "left", "╭", "5 stream tables"):
        assert words in drawn
    assert "Traceback" not in drawn
    assert picture.read_text(encoding="utf-8").startswith("<svg")
    assert_nothing_left(scratch)


def everything_from(terminal: int) -> str:
    """What a pseudo-terminal shows until its other side is closed."""
    read = b""
    while True:
        select.select([terminal], [], [])
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # Linux says so when the last process has closed it
            break
        if not piece:
            break
        read += piece
    return read.decode("utf-8", errors="replace")


def test_in_a_given_database_it_removes_what_it_made(
    dsn: str, conn: psycopg.Connection, tmp_path: Path
) -> None:
    conn.execute("CREATE TABLE public.mine AS SELECT 1 AS id")
    with demo(tmp_path, 3, dsn) as process:
        output = rest(process)
        assert process.wait() == 0, output
    assert left_in(conn) == (0, 0, 0)
    assert conn.execute("SELECT id FROM public.mine").fetchall() == [(1,)]


def left_in(conn: psycopg.Connection) -> tuple[int, int, int]:
    """Schemas of the shop, stream tables, change tables."""
    row = conn.execute(
        "SELECT (SELECT count(*) FROM pg_namespace WHERE nspname = %s),"
        " (SELECT count(*) FROM headwater.stream_tables),"
        " (SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        "  WHERE n.nspname = 'headwater_changes' AND c.relkind IN ('r', 'p'))",
        [SCHEMA],
    ).fetchone()
    assert row is not None
    return row[0], row[1], row[2]


def test_a_stream_table_that_is_wrong_is_told(dsn: str, conn: psycopg.Connection, tmp_path: Path) -> None:
    with demo(tmp_path, 6, dsn) as process:
        output = read_until(process, "verified equal at snapshot")
        # A second copy of a row, behind Headwater's back: no later change can take it away.
        storage = conn.execute(
            "SELECT 'st_' || id FROM headwater.stream_tables WHERE stream_table = %s",
            [f"{SCHEMA}.open_orders"],
        ).fetchone()
        assert storage is not None
        conn.execute(
            sql.SQL("INSERT INTO {table} SELECT * FROM {table} LIMIT 1").format(
                table=sql.Identifier("headwater_data", storage[0])
            )
        )
        output += rest(process)
        assert process.wait() == 1, output
    assert "Not everything held" in output
    assert f"{SCHEMA}.open_orders differed from its query" in output
    assert "rows surplus" in output
    assert "Traceback" not in output
    assert left_in(conn) == (0, 0, 0)


def test_a_schema_of_somebody_else_is_left_alone(dsn: str, conn: psycopg.Connection, tmp_path: Path) -> None:
    conn.execute(f"CREATE SCHEMA {SCHEMA}")
    conn.execute(f"CREATE TABLE {SCHEMA}.mine AS SELECT 1 AS id")
    with demo(tmp_path, 3, dsn) as process:
        output = rest(process)
        assert process.wait() != 0
    assert "that the demo did not make" in output
    assert conn.execute(f"SELECT id FROM {SCHEMA}.mine").fetchall() == [(1,)]


def test_what_a_killed_demo_left_is_cleared_away(dsn: str, conn: psycopg.Connection, tmp_path: Path) -> None:
    with demo(tmp_path, 3600, dsn) as process:
        read_until(process, "verified equal at snapshot")
        service = psutil.Process(process.pid).children(recursive=True)
        assert [each for each in service if "serve" in each.cmdline()]
        process.kill()
        process.wait()
    assert left_in(conn)[0] == 1
    assert not psutil.wait_procs(service, NO_PROCESS_AFTER)[1]
    wait_until_gone(conn)
    with demo(tmp_path, 3, dsn) as process:
        output = rest(process)
        assert process.wait() == 0, output
    assert left_in(conn) == (0, 0, 0)


def wait_until_gone(conn: psycopg.Connection) -> None:
    """Until the server has noticed that the other connections of this database are closed."""
    others = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    for _ in range(600):
        row = conn.execute(others).fetchone()
        if row == (0,):
            return
        time.sleep(0.05)
    pytest.fail("connections of a killed process stay")
