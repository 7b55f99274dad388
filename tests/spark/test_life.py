"""Refreshes on Spark that lose something on their way: nothing is half applied, nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.integration.support import contents, value
from tests.spark.cluster import Cluster, standalone
from tests.spark.gate import (
    FINISHED,
    ITEMS,
    KINDS,
    LISTED,
    LONG,
    MANY_CHANGES,
    SOURCES,
    TOTALS,
    Child,
    Gate,
    assert_clean,
    assert_right,
    backends,
    jobs_left,
    state,
    until,
)

import headwater
from headwater import Headwater
from headwater.catalog import jobs
from headwater.embedded import Installation, Server
from headwater.engine.spark import engine, watch
from headwater.engine.spark.runtime.session import Runtime, runtime
from headwater.engine.spark.transport import write
from headwater.errors import ConnectionFailed, EngineFailed, RefreshCancelled, RefreshFailed

Connection = psycopg.Connection[Any]

JDBC_JAR = Path(os.environ.get("HEADWATER_JDBC_JAR") or "/usr/share/java/postgresql.jar")
SPARK = {"spark_master": "local[2]", "spark_min_rows": "0"}


@pytest.fixture(autouse=True)
def everything_is_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that tasks read what is here."""
    monkeypatch.setattr(engine, "SMALL_ROWS", 1_000)


@pytest.fixture
def gate(dsn: str) -> Iterator[Gate]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield Gate(connection)


@pytest.fixture
def hw(dsn: str, conn: Connection, spark_runtime: Runtime) -> Iterator[Headwater]:
    """A handle, a stream table, and changes that tasks are needed for."""
    conn.execute(SOURCES)
    with headwater.connect(dsn, **SPARK) as handle:
        handle.create("totals", TOTALS, engine="postgres")
        conn.execute(MANY_CHANGES)
        yield handle


def refresh(hw: Headwater) -> Callable[[], Any]:
    return lambda: hw.refresh("totals", engine="spark")[-1]


def assert_failed(hw: Headwater, conn: Connection, before: object, error: BaseException | None) -> None:
    """Nothing of a refresh was applied, nothing is left of it but its record; the next one succeeds."""
    assert error is not None
    assert state(conn, "totals") == before
    assert_clean(conn)
    last = hw.history("totals", limit=1)[0]
    assert (last.status, last.engine) == ("failed", "spark")
    assert last.error is not None
    assert last.error.splitlines()[0] == str(error).splitlines()[0]
    outcome = hw.refresh("totals", engine="spark")[-1]
    assert (outcome.engine, outcome.action) == ("spark", "delta")
    assert_right(hw, "totals")
    assert_clean(conn)
    assert_idle(runtime())


def assert_idle(spark: Runtime) -> None:
    """Spark does nothing, and has forgotten the frames of refreshes."""
    root = spark._root
    assert root is not None
    until(lambda: not root.sparkContext.statusTracker().getActiveJobsIds())
    assert root.catalog.listTables() == []


# Spark dies


def test_the_jvm_is_killed(hw: Headwater, conn: Connection, gate: Gate, spark_runtime: Runtime) -> None:
    before = state(conn, "totals")
    with gate.held(refresh(hw)) as refreshing:
        scratch = Path(spark_runtime._jvm._scratch)  # type: ignore[union-attr]
        _kill_jvm(spark_runtime)
        error = refreshing.exception(LONG)
    assert isinstance(error, EngineFailed)
    assert "Spark went away" in error.message
    assert_failed(hw, conn, before, error)
    assert not scratch.exists()


def test_postgresql_takes_over_when_the_jvm_is_killed(
    hw: Headwater, conn: Connection, gate: Gate, spark_runtime: Runtime
) -> None:
    with gate.held(lambda: hw.create("listed", LISTED)) as creating:
        _kill_jvm(spark_runtime)
        creating.result(LONG)
    [loaded] = hw.history("listed")
    assert (loaded.status, loaded.action, loaded.engine) == ("completed", "load", "postgres")
    assert "instead of Spark" in loaded.engine_reason
    assert "Spark went away" in loaded.engine_reason
    assert_right(hw, "listed")
    assert_clean(conn)


def _kill_jvm(runtime: Runtime) -> None:
    assert runtime.pid is not None
    os.kill(runtime.pid, signal.SIGKILL)


@pytest.mark.slow
def test_the_process_that_refreshes_is_killed(
    hw: Headwater, conn: Connection, gate: Gate, dsn: str, tmp_path: Path
) -> None:
    """The server ends what it did; the next refresh on Spark clears away the rest."""
    before = state(conn, "totals")
    gate.close()
    with Child(dsn, scratch=tmp_path) as child:
        child.refresh("totals", SPARK)
        until(gate.waiting)
        child.process.kill()
    until(lambda: not gate.waiting() and not jobs.running(conn))
    gate.open()
    assert state(conn, "totals") == before
    assert jobs_left(conn), "the job's row and table, which nobody could remove"
    assert hw.refresh("totals", engine="spark")[-1].engine == "spark"
    assert_right(hw, "totals")
    assert_clean(conn)
    assert_idle(runtime())
    until(lambda: not [name for name in processes() if str(tmp_path) in name])


def processes() -> list[str]:
    """The command lines of all processes."""
    listed = subprocess.run(["ps", "-eww", "-o", "args="], capture_output=True, text=True, check=True)
    return listed.stdout.splitlines()


# somebody ends it


def test_cancelled_while_spark_starts(
    hw: Headwater, conn: Connection, dsn: str, spark_runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = state(conn, "totals")
    spark_runtime.stop()
    cancelled, start = threading.Event(), spark_runtime._start

    def start_late(*arguments: Any) -> None:
        assert cancelled.wait(LONG)
        start(*arguments)

    monkeypatch.setattr(spark_runtime, "_start", start_late)
    with ThreadPoolExecutor(max_workers=1) as pool:
        refreshing = pool.submit(refresh(hw))
        until(lambda: [job.phase for job in jobs.running(conn)] == ["starting"])
        with headwater.connect(dsn) as other:
            other.cancel("totals")
        cancelled.set()
        error = refreshing.exception(LONG)
    assert isinstance(error, RefreshCancelled)
    assert_failed(hw, conn, before, error)


def test_cancelled_by_another_process(hw: Headwater, conn: Connection, gate: Gate, dsn: str) -> None:
    before = state(conn, "totals")
    with gate.held(refresh(hw)) as refreshing:
        until(lambda: jobs.running(conn)[0].phase == "computing and writing")
        told = subprocess.run(
            [sys.executable, "-m", "headwater", "cancel", "totals", "--dsn", dsn],
            capture_output=True,
            text=True,
            check=False,
        )
        assert "cancelled delta on spark of public.totals" in told.stdout
        error = refreshing.exception(LONG)
    assert isinstance(error, RefreshCancelled)
    assert_failed(hw, conn, before, error)


def test_interrupted_by_its_user(hw: Headwater, conn: Connection, gate: Gate) -> None:
    before = state(conn, "totals")
    gate.close()

    def interrupt() -> None:
        until(gate.waiting)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        hw.refresh("totals", engine="spark")
    until(lambda: not gate.waiting())
    gate.open()
    assert_failed(hw, conn, before, RefreshCancelled("refresh of public.totals was interrupted"))


@pytest.mark.slow
def test_interrupted_at_the_terminal(hw: Headwater, conn: Connection, gate: Gate, dsn: str) -> None:
    """All that its user sees is the prompt."""
    # The limit to what comes through the driver is the real one here.
    conn.execute("INSERT INTO kind SELECT k, 'kind ' || k % 50 FROM generate_series(600, 7999) AS k")
    conn.execute("INSERT INTO item SELECT i, i % 8000, 1 FROM generate_series(3000, 24999) AS i")
    conn.execute("ANALYZE item, kind")
    before = state(conn, "totals")
    command = [sys.executable, "-m", "headwater", "refresh", "totals", "--engine", "spark", "--full"]
    gate.close()
    with subprocess.Popen(
        [*command, "--dsn", dsn], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as refreshing:
        until(lambda: gate.waiting() or refreshing.poll() is not None)
        refreshing.send_signal(signal.SIGINT)
        said = refreshing.communicate(timeout=LONG)
    gate.open()
    assert (refreshing.returncode, *said) == (130, "", "\n")
    assert_failed(hw, conn, before, RefreshCancelled("refresh of public.totals was interrupted"))


def test_a_cancellation_that_comes_when_it_is_nearly_done(
    hw: Headwater, conn: Connection, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refresh that says it was cancelled is, although nothing of Spark was left to be ended."""
    before = state(conn, "totals")
    pipe = write.pipe

    def cancelled_before(*arguments: Any) -> int:
        with headwater.connect(dsn) as other:
            other.cancel("totals")
        monkeypatch.setattr(write, "pipe", pipe)
        return pipe(*arguments)

    monkeypatch.setattr(write, "pipe", cancelled_before)
    with pytest.raises(RefreshCancelled) as caught:
        hw.refresh("totals", engine="spark")
    assert_failed(hw, conn, before, caught.value)


# the database ends something


def test_a_statement_of_a_task_takes_too_long(hw: Headwater, conn: Connection, gate: Gate, dsn: str) -> None:
    before = state(conn, "totals")
    gate.close()
    with headwater.connect(dsn, **SPARK, statement_timeout="3s") as hasty:
        with pytest.raises(RefreshCancelled) as caught:
            hasty.refresh("totals", engine="spark")
    assert "57014" in caught.value.message
    assert "statement_timeout" in caught.value.hint
    gate.open()
    assert_failed(hw, conn, before, caught.value)


def test_a_task_is_cut_off_in_the_middle_of_its_copy(hw: Headwater, conn: Connection, gate: Gate) -> None:
    before = state(conn, "totals")
    with gate.held(refresh(hw)) as refreshing:
        _terminate(conn, "pid = ANY (%s)", gate.waiting())
        error = refreshing.exception(LONG)
    assert isinstance(error, ConnectionFailed)
    assert "57P01" in error.message
    assert_failed(hw, conn, before, error)


@pytest.mark.slow
@pytest.mark.skipif(not JDBC_JAR.exists(), reason="no JDBC driver; HEADWATER_JDBC_JAR may name it")
def test_a_task_with_the_jdbc_driver_is_cut_off(
    hw: Headwater, conn: Connection, gate: Gate, dsn: str
) -> None:
    settings = {**SPARK, "spark_conf": f"spark.jars={JDBC_JAR}"}
    gate.close()
    with Child(dsn) as child:
        child.refresh("totals", settings)
        until(gate.waiting)
        _terminate(conn, "pid = ANY (%s)", gate.waiting())
        said = child.answer()
        assert said["error"] == "ConnectionFailed"
        assert "57P01" in said["message"]
        gate.open()
        child.refresh("totals", settings)
        assert child.answer()["engine"] == "spark"
    assert_right(hw, "totals")
    completed, failed = hw.history("totals", limit=2)
    assert (completed.status, failed.status) == ("completed", "failed")
    assert (completed.bytes_in, completed.bytes_out is None) == (None, False), "the driver counts nothing"
    assert_clean(conn)


def test_the_job_is_cut_off(hw: Headwater, conn: Connection, gate: Gate) -> None:
    """Without the connection that holds its lock, others would clear away its tables under its tasks."""
    before = state(conn, "totals")
    with gate.held(refresh(hw)) as refreshing:
        until(lambda: jobs.running(conn))
        _terminate(conn, "pid IN (SELECT pid FROM pg_locks WHERE classid = %s)", jobs.JOB_LOCK)
        error = refreshing.exception(LONG)
    assert isinstance(error, ConnectionFailed)
    assert_failed(hw, conn, before, error)


def test_the_refresh_itself_is_cut_off(hw: Headwater, conn: Connection, gate: Gate, dsn: str) -> None:
    before = state(conn, "totals")
    with headwater.connect(dsn, **SPARK) as doomed:
        with gate.held(refresh(doomed)) as refreshing:
            _terminate(conn, "application_name LIKE %s", "headwater refresh%")
            error = refreshing.exception(LONG)
        assert isinstance(error, ConnectionFailed)
        assert doomed.connection.closed
    assert_failed(hw, conn, before, error)


def _terminate(conn: Connection, which: str, argument: object) -> None:
    ended = conn.execute(
        f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE {which}", (argument,)
    ).fetchall()
    assert ended
    assert all(done for (done,) in ended)


def test_the_server_crashes(
    installation: Installation, spark_runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Server.start(installation=installation, fsync=False) as server:
        dsn = server.dsn()
        with headwater.connect(dsn, **SPARK) as hw, psycopg.connect(dsn, autocommit=True) as conn:
            hw.init()
            conn.execute(SOURCES)
            hw.create("totals", TOTALS, engine="postgres")
            conn.execute(MANY_CHANGES)
            before = state(conn, "totals")
            with psycopg.connect(dsn, autocommit=True) as holding:
                gate = Gate(holding)
                with gate.held(refresh(hw)) as refreshing:
                    conn.execute("CHECKPOINT")
                    server.kill()
                    error = refreshing.exception(LONG)
            assert isinstance(error, ConnectionFailed)
        server.restart()
        with headwater.connect(dsn, **SPARK) as hw, psycopg.connect(dsn, autocommit=True) as conn:
            assert state(conn, "totals") == before
            assert hw.refresh("totals", engine="spark")[-1].engine == "spark"
            assert_right(hw, "totals")
            assert_clean(conn)


# time runs out


def test_spark_takes_too_long(hw: Headwater, conn: Connection, gate: Gate, dsn: str) -> None:
    before = state(conn, "totals")
    gate.close()
    with headwater.connect(dsn, **SPARK, spark_timeout="1s") as hasty:
        with pytest.raises(RefreshFailed) as caught:
            hasty.refresh("totals", engine="spark")
    assert "spark_timeout (1s)" in caught.value.message
    assert "headwater set spark_timeout" in caught.value.hint
    gate.open()
    assert_failed(hw, conn, before, caught.value)


@pytest.mark.slow
def test_a_refresh_that_stood_still_cannot_commit(
    hw: Headwater, conn: Connection, gate: Gate, dsn: str
) -> None:
    """Its process is stopped, and goes on when the server has ended its transaction."""
    with Child(dsn) as child:
        child.refresh("totals", SPARK)
        assert child.answer()["engine"] == "spark"
        conn.execute(MANY_CHANGES)
        before = state(conn, "totals")
        # The server's patience, shortened to some seconds: spark_timeout is an hour.
        child.tell(margin=8_000 - 3_600_000)
        assert child.answer() == {}
        gate.close()
        child.refresh("totals", SPARK)
        until(gate.waiting)
        os.kill(child.process.pid, signal.SIGSTOP)
        until(lambda: not backends(conn).keys() & {"headwater refresh 1: idle in transaction"})
        gate.open()
        os.kill(child.process.pid, signal.SIGCONT)
        said = child.answer()
    assert said["error"] == "ConnectionFailed"
    assert_failed(hw, conn, before, ConnectionFailed(said["message"]))


@pytest.mark.slow
def test_a_spark_that_does_not_answer(
    hw: Headwater,
    conn: Connection,
    gate: Gate,
    dsn: str,
    spark_runtime: Runtime,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is killed some time after the refresh gave up on it."""
    monkeypatch.setattr(watch, "GRACE_SECONDS", 1.0)
    hw.refresh("totals", engine="spark")
    conn.execute(MANY_CHANGES)
    before = state(conn, "totals")
    with headwater.connect(dsn, **SPARK, spark_timeout="20s") as patient:
        with gate.held(refresh(patient)) as refreshing:
            process = spark_runtime._jvm.process  # type: ignore[union-attr]
            os.kill(process.pid, signal.SIGSTOP)
            error = refreshing.exception(LONG)
    assert isinstance(error, RefreshFailed)
    assert "spark_timeout" in error.message
    assert process.wait(LONG) == -signal.SIGKILL
    assert_failed(hw, conn, before, error)


# the disk is full


def test_no_room_for_shuffling(hw: Headwater, conn: Connection, dsn: str, tmp_path: Path) -> None:
    """Spark has a file system of a few megabytes for what it sorts and exchanges."""
    mount = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    room = tmp_path / "room"
    room.mkdir()
    mounted = f"mount -t tmpfs -o size=3m tmpfs {room}"
    if subprocess.run([*mount, mounted], capture_output=True, check=False).returncode:
        pytest.skip("file systems cannot be mounted here")
    conn.execute(
        "CREATE TABLE wide (id int, word text);"
        "INSERT INTO wide SELECT i, (SELECT string_agg(md5(i::text || j), '') FROM generate_series(1, 8) j)"
        " FROM generate_series(1, 20000) AS i; ANALYZE wide"
    )
    hw.create("words", "SELECT word, count(*) AS n FROM wide GROUP BY word", engine="postgres")
    conn.execute("UPDATE wide SET word = word || '!'")
    before = contents(conn, "words")
    settings = {**SPARK, "spark_conf": f"spark.local.dir={room}"}
    with Child(dsn, *mount, f'{mounted} && exec "$@"', "sh") as child:
        for full in (True, False):  # while tasks exchange rows, and while the driver sends them
            child.refresh("words", settings, full=full)
            said = child.answer()
            assert said["error"] == "EngineFailed"
            assert "No space left on device" in said["message"] + said["detail"]
            assert contents(conn, "words") == before
            assert_clean(conn)
        child.refresh("words", settings, engine="auto", full=True)
        said = child.answer()
        assert said["engine"] == "postgres"
        assert said["reason"].startswith("instead of Spark: ")
        child.tell(shell=f"mount -o remount,size=100m {room}")
        assert child.answer() == {}
        conn.execute("UPDATE wide SET word = word || '!'")
        child.refresh("words", settings)
        assert child.answer()["engine"] == "spark"
    assert_right(hw, "words")
    assert_clean(conn)


# seeing it


def test_others_see_how_far_it_is(hw: Headwater, conn: Connection, gate: Gate, dsn: str) -> None:
    with gate.held(refresh(hw)) as refreshing:
        until(lambda: [job for job in jobs.running(conn) if job.stage])
        [job] = jobs.running(conn)
        assert (job.stream_table, job.engine, job.action) == ("public.totals", "spark", "delta")
        assert (job.phase, job.ui) == ("computing and writing", None)
        assert job.tasks is not None
        assert job.tasks_done is not None
        assert job.tasks_done < job.tasks
        assert job.application
        command = [sys.executable, "-m", "headwater", "status", "--watch", "--dsn", dsn]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
            assert watching.stdout is not None
            shown = next(line for line in watching.stdout if "tasks" in line)
            watching.send_signal(signal.SIGINT)
        assert "0 of" in shown or "1 of" in shown
        gate.open()
        outcome = refreshing.result(LONG)
    entry = hw.history("totals", limit=1)[0]
    assert entry.phases.keys() >= {"read", "compute", "write", "apply"}
    assert all(milliseconds >= 0 for milliseconds in entry.phases.values())
    # At least the numbers of each item and each kind came, and each group went.
    assert entry.bytes_in is not None
    assert entry.bytes_out is not None
    assert entry.bytes_in > (ITEMS + KINDS) * 8
    assert entry.bytes_out > outcome.applied.inserted * 8
    assert (entry.bytes_in, entry.bytes_out) == (outcome.bytes_in, outcome.bytes_out)
    assert_clean(conn)


def test_a_load_says_what_it_moved(hw: Headwater) -> None:
    hw.create("listed", LISTED, engine="spark")
    [entry] = hw.history("listed")
    assert (entry.engine, entry.rows_inserted) == ("spark", ITEMS)
    assert entry.phases.keys() >= {"read", "compute", "write", "index"}
    assert entry.bytes_in is not None
    assert entry.bytes_out is not None
    assert entry.bytes_in > ITEMS * 2 * 8
    assert entry.bytes_out > ITEMS * 2 * 8


# executors die; tasks run twice


@pytest.fixture(scope="module")
def cluster(spark_runtime: Runtime) -> Iterator[Cluster]:
    spark_runtime.stop()
    # One machine does not get the same task twice.
    with standalone(workers=2, hosts=("127.0.0.1", "127.0.0.2")) as started:
        yield started
        spark_runtime.stop()


@pytest.fixture
def distributed(hw: Headwater, dsn: str, cluster: Cluster) -> Iterator[Headwater]:
    """A handle whose Spark runs on the cluster, and has tasks that take long run twice."""
    options = (
        "spark.speculation=true spark.speculation.interval=100ms spark.speculation.minTaskRuntime=100ms"
        " spark.speculation.multiplier=1 spark.speculation.quantile=0.5"
        " spark.sql.shuffle.partitions=4 spark.sql.adaptive.coalescePartitions.enabled=false"
    )
    settings = {
        "spark_master": cluster.url,
        "spark_conf": f"{cluster.spark_conf} {options}",
        "spark_ui": "on",
    }
    with headwater.connect(dsn, **settings) as handle:
        yield handle


def test_an_executor_is_killed_during_a_delta(
    distributed: Headwater, conn: Connection, gate: Gate, cluster: Cluster
) -> None:
    with gate.held(refresh(distributed), tasks=2) as refreshing:
        until(lambda: jobs.running(conn)[0].ui)
        address = jobs.running(conn)[0].ui
        assert address is not None
        with urllib.request.urlopen(address) as page:
            assert b"Spark" in page.read()
        _kill_executors(cluster, 0)
        gate.open()
        outcome = refreshing.result(LONG)
    assert (outcome.engine, outcome.action) == ("spark", "delta")
    assert_right(distributed, "totals")
    assert_clean(conn, handles=2)


def test_an_executor_is_killed_during_a_load(
    distributed: Headwater, conn: Connection, gate: Gate, cluster: Cluster
) -> None:
    with gate.held(lambda: distributed.create("listed", LISTED, engine="spark"), tasks=2) as creating:
        _kill_executors(cluster, 1)
        gate.open()
        creating.result(LONG)
    assert distributed.history("listed")[0].engine == "spark"
    assert_right(distributed, "listed")
    assert_clean(conn, handles=2)


@pytest.mark.slow
def test_a_task_that_committed_runs_again(
    distributed: Headwater, conn: Connection, gate: Gate, cluster: Cluster
) -> None:
    """Its executor dies when it has stored its rows, before it can tell."""
    with gate.held(lambda: distributed.create("finished", FINISHED, engine="spark")) as creating:
        [waiting] = gate.waiting()
        executors = [pid for worker in (0, 1) for pid in cluster.executors(worker)]
        for pid in executors:
            os.kill(pid, signal.SIGSTOP)
        gate.open()
        until(lambda: not value(conn, "SELECT count(*) FROM pg_stat_activity WHERE pid = %s", waiting))
        assert value(conn, "SELECT count(*) FROM headwater.job_part WHERE rows > 0 AND part = 'groups'")
        for pid in executors:
            os.kill(pid, signal.SIGKILL)
        creating.result(LONG)
    assert distributed.history("finished")[0].engine == "spark"
    assert_right(distributed, "finished")
    assert_clean(conn, handles=2)


def test_a_task_that_is_slow_runs_twice(distributed: Headwater, conn: Connection, gate: Gate) -> None:
    with gate.held(lambda: distributed.create("finished", FINISHED, engine="spark")) as creating:
        # All parts are stored, that of the waiting task by another attempt.
        creating.result(LONG)
        assert distributed.history("finished")[0].engine == "spark"
        assert_right(distributed, "finished")
    assert_right(distributed, "finished")
    assert_clean(conn, handles=2)


def _kill_executors(cluster: Cluster, worker: int) -> None:
    found = cluster.executors(worker)
    assert found
    for pid in found:
        os.kill(pid, signal.SIGKILL)
