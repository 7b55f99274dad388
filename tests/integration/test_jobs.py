"""Refreshes outside the database: seen, cancelled and cleared away by other processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.integration.support import WAITING_IS_LONG, footprint, in_background, refresh, value

import headwater
from headwater import Headwater, StreamTable
from headwater.catalog import jobs
from headwater.catalog.installed import SCHEMAS
from headwater.catalog.jobs import Job
from headwater.embedded import Installation, Server
from headwater.errors import ConnectionFailed, NotFound, NotRunning, RefreshCancelled

Connection = psycopg.Connection[Any]
NewRole = Callable[[], tuple[str, str]]

# Holds a job with a table and a claimed part until somebody kills it.
HOLDER = """
import sys, time
from headwater.catalog import stream_tables
from headwater.catalog.jobs import Job
from headwater.db.connection import connect

dsn, name = sys.argv[1:]
with connect(dsn) as connection:
    stream_table = stream_tables.find(connection, name)
    job = Job.open(dsn, stream_table, coordinator=connection.info.backend_pid, action="load")
    job.connection.execute(f"CREATE UNLOGGED TABLE {job.table('delta')} (c0 bigint)")
    job.connection.execute("INSERT INTO headwater.job_part VALUES (%s, 'delta', 0, 1)", (job.id,))
    job.report("read", tasks=4, tasks_done=1, rows=1000)
    print(job.id, flush=True)
    time.sleep(600)
"""

# A minute's work with so many rows, and none with one.
HEAVY = "SELECT count(*) AS n FROM items a CROSS JOIN items b CROSS JOIN items c"
HEAVY_ROWS = 2000


@pytest.fixture
def stream_table(hw: Headwater, conn: Connection) -> StreamTable:
    conn.execute("CREATE TABLE items (id int)")
    conn.execute("INSERT INTO items VALUES (1)")
    return hw.create("st", "SELECT id FROM items")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every report is written, every look asks the database."""
    monkeypatch.setattr(jobs, "INTERVAL", 0)


@pytest.fixture
def killed(dsn: str, conn: Connection, stream_table: StreamTable) -> int:
    """The number of a job whose process was killed outright."""
    with holder(dsn, "st") as process:
        number = _number(process)
        process.kill()
    _wait(lambda: not jobs.running(conn))
    return number


def holder(dsn: str, name: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", HOLDER, dsn, name], stdout=subprocess.PIPE, text=True)


def _number(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


def _wait(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAITING_IS_LONG
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def open_job(dsn: str, stream_table: StreamTable, coordinator: int = 0) -> Job:
    return Job.open(dsn, stream_table, coordinator=coordinator, action="delta")


def left(conn: Connection) -> tuple[int, int, int, int]:
    """Rows, parts, tables and locks of jobs."""
    row = conn.execute(
        "SELECT (SELECT count(*) FROM headwater.job), (SELECT count(*) FROM headwater.job_part),"
        " (SELECT count(*) FROM pg_class WHERE relname ~ '^job_'"
        "  AND relnamespace = 'headwater_data'::regnamespace),"
        " (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = %s AND database ="
        "  (SELECT oid FROM pg_database WHERE datname = current_database()))",
        (jobs.JOB_LOCK,),
    ).fetchone()
    assert row is not None
    return (row[0], row[1], row[2], row[3])


NOTHING = (0, 0, 0, 0)


# a job's life


@pytest.mark.usefixtures("impatient")
def test_others_see_how_far_a_job_is(
    hw: Headwater, dsn: str, conn: Connection, stream_table: StreamTable
) -> None:
    before = footprint(conn)
    pid = conn.info.backend_pid
    with open_job(dsn, stream_table, pid) as job:
        [seen] = jobs.running(hw.connection)
        assert (seen.id, seen.stream_table, seen.engine, seen.action) == (
            job.id,
            "public.st",
            "spark",
            "delta",
        )
        assert (seen.phase, seen.tasks, seen.rows, seen.cancel_requested) == ("starting", None, None, False)
        assert (seen.coordinator, seen.elapsed_ms >= 0) == (pid, True)
        assert seen.client is not None
        assert seen.client.endswith(f":{os.getpid()}")

        job.runs_as("local-1", "http://localhost:4040")
        job.report("read", tasks=8, tasks_done=2, stage="items")
        job.report("read", tasks_done=3, rows=5_000_000_000, bytes=7)
        found = hw.status("st").job
        assert found is not None
        assert (found.phase, found.tasks, found.tasks_done, found.rows) == ("read", 8, 3, 5_000_000_000)
        assert (found.bytes, found.stage) == (7, "items")
        assert (found.application, found.ui) == ("local-1", "http://localhost:4040")

        job.report("write")
        found = hw.list()[0].job
        assert found is not None
        assert (found.phase, found.tasks, found.rows) == ("write", None, None)
    assert hw.status("st").job is None
    assert footprint(conn) == before


def test_reports_within_a_phase_are_not_written_each(
    hw: Headwater, dsn: str, stream_table: StreamTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def done() -> int | None:
        return jobs.running(hw.connection)[0].tasks_done

    monkeypatch.setattr(jobs, "INTERVAL", 1000)
    with open_job(dsn, stream_table) as job:
        job.report("read", tasks=9, tasks_done=1)
        job.report("read", tasks_done=2)
        assert done() == 1
        monkeypatch.setattr(jobs, "INTERVAL", 0)
        job.report("read", rows=1)
        assert done() == 2, "what was held back comes with the next"


def test_what_a_job_made_goes_with_it(dsn: str, conn: Connection, stream_table: StreamTable) -> None:
    job = open_job(dsn, stream_table)
    for name in ("delta", 'Odd "name"'):
        job.connection.execute(f"CREATE UNLOGGED TABLE {job.table(name)} (c0 bigint)")
    job.table("never made")
    conn.execute("INSERT INTO headwater.job_part VALUES (%s, 'delta', 0, 1)", (job.id,))
    assert left(conn) == (1, 1, 2, 1)
    job.close()
    _wait(lambda: left(conn) == NOTHING)
    job.close()
    job.report("too late")
    assert not job.cancelled()


def test_a_job_ends_with_the_block(dsn: str, conn: Connection, stream_table: StreamTable) -> None:
    def fail() -> None:
        with open_job(dsn, stream_table) as job:
            job.connection.execute(f"CREATE TABLE {job.table('x')} ()")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    _wait(lambda: left(conn) == NOTHING)


def test_an_adopted_table_stays_if_the_refresh_renamed_it(
    dsn: str, conn: Connection, stream_table: StreamTable
) -> None:
    for renamed in (True, False):
        with open_job(dsn, stream_table) as job:
            table = job.table("successor")
            job.connection.execute(f"CREATE TABLE {table} ()")
            job.adopted("successor")
        if renamed:
            conn.execute(f"ALTER TABLE {table} RENAME TO mine")
        assert jobs.sweep(conn) == (0 if renamed else 1), "the transaction that adopted it was rolled back"
    assert value(conn, "SELECT to_regclass('headwater_data.mine') IS NOT NULL")
    assert left(conn)[2] == 0


def test_closing_does_not_wait_for_long(
    dsn: str, conn: Connection, stream_table: StreamTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "CLOSING_LOCK_TIMEOUT", "10ms")
    with open_job(dsn, stream_table) as job:
        for name in ("a", "b"):
            job.connection.execute(f"CREATE TABLE {job.table(name)} ()")
        with conn.transaction():
            conn.execute(f"LOCK TABLE {job.table('a')} IN ACCESS SHARE MODE")
            job.close()
    _wait(lambda: left(conn) == (0, 0, 1, 0))
    assert jobs.sweep(conn) == 1
    assert left(conn) == NOTHING


@pytest.mark.usefixtures("impatient")
def test_a_job_whose_connection_is_cut(dsn: str, conn: Connection, stream_table: StreamTable) -> None:
    """Others take it for dead, so it must not go on; it still clears away what it made."""
    with open_job(dsn, stream_table) as job:
        job.connection.execute(f"CREATE TABLE {job.table('delta')} ()")
        conn.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_locks"
            " WHERE locktype = 'advisory' AND classid = %s",
            (jobs.JOB_LOCK,),
        )
        with pytest.raises(ConnectionFailed):
            job.report("read")
        with pytest.raises(ConnectionFailed):
            job.cancelled()
        assert left(conn) == (1, 0, 1, 0)
    assert left(conn) == NOTHING


def test_a_part_is_claimed_once_and_only_while_the_job_lives(
    dsn: str, conn: Connection, stream_table: StreamTable
) -> None:
    claim = "INSERT INTO headwater.job_part VALUES (%s, 'delta', 0, 1)"
    with open_job(dsn, stream_table) as job:
        conn.execute(claim, (job.id,))
        with pytest.raises(psycopg.errors.UniqueViolation):
            conn.execute(claim, (job.id,))
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        conn.execute(claim, (job.id,))


def test_a_job_of_a_stream_table_that_is_gone(hw: Headwater, dsn: str, stream_table: StreamTable) -> None:
    hw.drop("st")
    with pytest.raises(headwater.HeadwaterError):
        open_job(dsn, stream_table)
    _wait(lambda: left(hw.connection) == NOTHING)


# after a death


def test_a_killed_job_is_swept(hw: Headwater, conn: Connection, killed: int) -> None:
    assert left(conn) == (1, 1, 1, 0)
    assert hw.status("st").job is None, "a dead job is not running"
    with pytest.raises(NotRunning):
        hw.cancel("st")
    assert jobs.sweep(hw.connection) == 1
    assert left(conn) == NOTHING
    assert jobs.sweep(hw.connection) == 0


@pytest.mark.usefixtures("killed")
def test_create_and_drop_sweep(hw: Headwater, conn: Connection, killed: int) -> None:
    hw.create("other", "SELECT 1 AS one")
    assert left(conn) == NOTHING
    conn.execute(f"CREATE TABLE headwater_data.{jobs.table_name(killed, 'x')} ()")
    hw.drop("st")
    assert left(conn) == NOTHING


def test_what_lives_is_not_swept(dsn: str, conn: Connection, stream_table: StreamTable, killed: int) -> None:
    with open_job(dsn, stream_table) as job:
        job.connection.execute(f"CREATE TABLE {job.table('delta')} ()")
        assert jobs.sweep(conn) == 1
        assert left(conn) == (1, 0, 1, 1)
        assert jobs.sweep(job.connection) == 0
    assert killed != job.id


def test_sweeping_spares_what_is_no_jobs(hw: Headwater, conn: Connection, stream_table: StreamTable) -> None:
    for name in ("job_x_1", "job_12", "ajob_1_x", "job_99999999999999999999_x"):
        conn.execute(f"CREATE TABLE headwater_data.{name} ()")
    conn.execute("CREATE TABLE public.job_1_x ()")
    before = footprint(conn)
    assert jobs.sweep(conn) == 0
    assert footprint(conn) == before
    assert refresh(hw, "st").action == "nothing"


def test_sweeping_does_not_wait(dsn: str, conn: Connection, killed: int) -> None:
    """A task that outlived its job holds its locks."""
    with psycopg.connect(dsn) as task:
        task.execute(f"INSERT INTO headwater_data.{jobs.table_name(killed, 'delta')} VALUES (1)")
        assert jobs.sweep(conn) == 0
        assert left(conn) == (1, 1, 1, 0), "all of it stays for the next one"
    with psycopg.connect(dsn) as task:
        task.execute("INSERT INTO headwater.job_part VALUES (%s, 'delta', 1, 1)", (killed,))
        assert jobs.sweep(conn) == 0
    assert jobs.sweep(conn) == 1
    assert left(conn) == NOTHING


def test_only_one_sweeps_a_job(dsn: str, conn: Connection, killed: int) -> None:
    with psycopg.connect(dsn) as other:
        other.execute("SELECT pg_advisory_xact_lock(%s, %s)", (jobs.JOB_LOCK, killed))
        assert jobs.sweep(conn) == 0
    assert jobs.sweep(conn) == 1


def test_a_crash_of_the_server(installation: Installation, tmp_path: Path) -> None:
    with Server.start(installation=installation, fsync=False) as server:
        dsn = server.dsn()
        with headwater.connect(dsn) as hw:
            hw.init()
            hw.connection.execute("CREATE TABLE public.items (id int)")
            stream_table = hw.create("public.st", "SELECT id FROM public.items")
            with open_job(dsn, stream_table) as job:
                job.connection.execute(f"CREATE TABLE {job.table('successor')} ()")
                hw.connection.execute("CHECKPOINT")
                server.kill()
        server.restart()
        with headwater.connect(dsn) as hw:
            assert left(hw.connection) == (0, 0, 1, 0)
            with open_job(dsn, stream_table) as following:
                assert following.id > job.id, "the number is in the name of the table that was left"
                assert jobs.sweep(hw.connection) == 1
                assert left(hw.connection) == (1, 0, 0, 1)


# cancelling


@pytest.mark.usefixtures("impatient")
def test_a_job_is_asked_to_end(hw: Headwater, dsn: str, stream_table: StreamTable) -> None:
    with open_job(dsn, stream_table, 1) as job:
        job.check()
        [cancelled] = hw.cancel("st")
        assert cancelled.id == job.id
        assert job.cancelled()
        with pytest.raises(RefreshCancelled) as caught:
            job.check()
        assert "public.st was cancelled" in caught.value.message
        running = hw.status("st").job
        assert running is not None
        assert running.cancel_requested
        assert hw.cancel("st"), "again, while it has not ended"


def test_a_report_learns_of_it_too(
    hw: Headwater, dsn: str, stream_table: StreamTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "INTERVAL", 1000)
    with open_job(dsn, stream_table) as job:
        hw.cancel("st")
        assert not job.cancelled(), "it does not ask each time"
        job.report("write")
        assert job.cancelled()


@pytest.mark.usefixtures("impatient")
def test_cancelling_ends_what_the_jobs_own_backend_does(
    hw: Headwater, dsn: str, stream_table: StreamTable
) -> None:
    """In its last phase a job waits for the database."""
    with headwater.connect(dsn) as coordinator:
        pid = coordinator.connection.info.backend_pid

        def apply() -> None:
            with coordinator.connection.transaction():
                coordinator.connection.execute("SELECT pg_sleep(600)")

        with open_job(dsn, stream_table, pid), in_background(apply) as applying:
            _wait(lambda: value(hw.connection, f"SELECT wait_event = 'PgSleep' FROM {ACTIVITY}", pid))
            hw.cancel("st")
            with pytest.raises(psycopg.errors.QueryCanceled):
                applying.result(WAITING_IS_LONG)


ACTIVITY = "pg_stat_activity WHERE pid = %s"


def test_a_refresh_is_cancelled_with_the_one_that_it_is_part_of(
    hw: Headwater, dsn: str, conn: Connection, stream_table: StreamTable
) -> None:
    above = hw.create("above", "SELECT count(*) AS n FROM st")
    with psycopg.connect(dsn, application_name=f"headwater refresh {above.id}") as coordinator:
        coordinator.execute("SELECT")
        [own] = jobs.running(conn)
        assert (own.id, own.stream_table, own.engine, own.phase) == (
            None,
            "public.above",
            "postgres",
            "running",
        )
        with open_job(dsn, stream_table, coordinator.info.backend_pid) as job:
            assert {item.stream_table: item.engine for item in jobs.running(conn)} == {
                "public.above": "spark",
                "public.st": "spark",
            }
            assert {item.id for item in hw.cancel("above")} == {None, job.id}
            assert value(conn, "SELECT cancel_requested_at IS NOT NULL FROM headwater.job")
        with open_job(dsn, above, coordinator.info.backend_pid) as job:
            assert [item.id for item in jobs.running(conn)] == [job.id], "it is shown once"


def test_nothing_to_cancel(hw: Headwater, stream_table: StreamTable) -> None:
    with pytest.raises(NotRunning) as caught:
        hw.cancel("st")
    assert caught.value.message == "no refresh of public.st is running"
    with pytest.raises(NotFound):
        hw.cancel("unheard_of")


@pytest.fixture
def heavy(hw: Headwater, conn: Connection) -> Iterator[None]:
    """A stream table whose next refresh takes very long."""
    conn.execute("CREATE TABLE items (id int)")
    hw.create("heavy", HEAVY, mode="full")
    conn.execute("INSERT INTO items SELECT generate_series(1, %s)", (HEAVY_ROWS,))
    yield
    conn.execute("DELETE FROM items")
    assert refresh(hw, "heavy").action == "recompute", "the next refresh succeeds"


@pytest.mark.usefixtures("heavy")
def test_a_refresh_inside_the_database_is_cancelled_from_another_process(
    hw: Headwater, dsn: str, conn: Connection
) -> None:
    before = footprint(conn)
    with in_background(lambda: hw.refresh("heavy")) as refreshing:
        _wait(lambda: jobs.running(conn) or refreshing.done())
        [job] = jobs.running(conn)
        assert (job.stream_table, job.engine, job.coordinator) == (
            "public.heavy",
            "postgres",
            hw.connection.info.backend_pid,
        )
        done = subprocess.run(
            [sys.executable, "-m", "headwater", "--dsn", dsn, "--format", "json", "cancel", "heavy"],
            capture_output=True,
            check=True,
            timeout=WAITING_IS_LONG,
        )
        assert [item["stream_table"] for item in json.loads(done.stdout)["cancelled"]] == ["public.heavy"]
        with pytest.raises(RefreshCancelled) as caught:
            refreshing.result(WAITING_IS_LONG)
    assert "refresh of public.heavy was cancelled" in caught.value.message
    failed = hw.history("heavy")[0]
    assert (failed.status, failed.sqlstate) == ("failed", "57014")
    changed = {row for row in footprint(conn) ^ before if row[:2] != ("row", "refresh")}
    assert not changed
    assert not jobs.running(conn), "its transaction's name went with it"


@pytest.mark.usefixtures("heavy")
def test_a_refresh_that_takes_too_long_says_so(hw: Headwater) -> None:
    hw.set("statement_timeout", "100ms")
    with pytest.raises(RefreshCancelled) as caught:
        hw.refresh("heavy")
    assert "statement_timeout" in caught.value.hint
    assert hw.history("heavy")[0].sqlstate == "57014"
    hw.set("statement_timeout", "0ms")


def test_a_role_that_is_no_superuser(empty_dsn: str, new_role: NewRole) -> None:
    """It sees and cancels what the same role does elsewhere, and sweeps its own tables."""
    name, dsn = new_role()
    dsn = psycopg.conninfo.make_conninfo(dsn, dbname=psycopg.conninfo.conninfo_to_dict(empty_dsn)["dbname"])
    with psycopg.connect(empty_dsn, autocommit=True) as owner:
        for schema in SCHEMAS:
            owner.execute(f"CREATE SCHEMA {schema} AUTHORIZATION {name}")
        owner.execute(f"GRANT CREATE ON SCHEMA public TO {name}")
        with headwater.connect(dsn) as hw:
            hw.init()
            hw.connection.execute("CREATE TABLE public.items (id int)")
            stream_table = hw.create("public.st", "SELECT id FROM public.items")
            with (
                psycopg.connect(dsn, application_name=f"headwater refresh {stream_table.id}") as refreshing,
                in_background(lambda: refreshing.execute("SELECT pg_sleep(600)")) as sleeping,
            ):
                _wait(lambda: jobs.running(hw.connection))
                assert [job.id for job in hw.cancel("public.st")] == [None]
                with pytest.raises(psycopg.errors.QueryCanceled):
                    sleeping.result(WAITING_IS_LONG)
                refreshing.rollback()
            with open_job(dsn, stream_table) as job:
                job.connection.execute(f"CREATE TABLE {job.table('x')} ()")
                job.adopted("x")
            assert jobs.sweep(hw.connection) == 1
        owner.execute(f"DROP OWNED BY {name} CASCADE")


def test_catalog_and_view_agree_on_the_lock(conn: Connection) -> None:
    definition = value(conn, "SELECT pg_get_viewdef('headwater.running_jobs'::regclass)")
    assert str(jobs.JOB_LOCK) in definition
