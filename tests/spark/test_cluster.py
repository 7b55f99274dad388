"""A cluster: a real master with two workers, and what is said when executors lack something."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.spark.cluster import Cluster, standalone

from headwater.config import Settings
from headwater.engine.spark.runtime.cluster import check_executors
from headwater.engine.spark.runtime.session import Runtime
from headwater.errors import EngineUnavailable


@pytest.fixture
def executor_python(spark: SparkSession) -> Iterator[SparkSession]:
    """A session whose Python for tasks a test may change."""
    context = spark.sparkContext
    before = context.pythonExec, context.pythonVer
    yield spark
    context.pythonExec, context.pythonVer = before


# what executors lack; local executors are asked in the same way


def test_executors_that_lack_nothing(spark: SparkSession) -> None:
    check_executors(spark)


def test_executors_without_packages(executor_python: SparkSession, tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    bare.chmod(0o755)
    executor_python.sparkContext.pythonExec = str(bare)
    with pytest.raises(EngineUnavailable, match="lack the Python packages") as failed:
        check_executors(executor_python)
    assert "adbc-driver-postgresql" in failed.value.message
    assert "pyarrow" in failed.value.message
    assert "pip install" in failed.value.hint
    assert "spark.pyspark.python" in failed.value.hint


def test_executors_with_another_python(executor_python: SparkSession) -> None:
    executor_python.sparkContext.pythonVer = "3.1"
    with pytest.raises(EngineUnavailable, match="run another Python") as failed:
        check_executors(executor_python)
    assert "spark.pyspark.python" in failed.value.hint


def test_executors_without_python(executor_python: SparkSession) -> None:
    executor_python.sparkContext.pythonExec = "/nowhere/python"
    with pytest.raises(EngineUnavailable, match="cannot run Python") as failed:
        check_executors(executor_python)
    assert "/nowhere/python" in failed.value.detail


def test_executors_that_have_no_time(
    spark: SparkSession, spark_runtime: Runtime, spark_settings: Settings, tmp_path: Path
) -> None:
    def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        (tmp_path / str(os.getpid())).touch()
        while not (tmp_path / "enough").exists():
            time.sleep(0.05)
        yield from batches

    def occupy() -> None:
        session = spark_runtime.session(spark_settings)
        session.range(0, 2, numPartitions=2).mapInArrow(slow, "id bigint").count()

    other = threading.Thread(target=occupy)
    other.start()
    _wait(lambda: len(list(tmp_path.iterdir())) == 2)
    with pytest.raises(EngineUnavailable, match="no executor of Spark took a task within 1 s"):
        check_executors(spark, seconds=1)
    (tmp_path / "enough").touch()
    other.join()
    check_executors(spark)


def _wait(ready: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 120
    while not ready():
        assert time.monotonic() < give_up
        time.sleep(0.02)


# a real cluster


@pytest.fixture(scope="module")
def cluster(spark_runtime: Runtime) -> Iterator[Cluster]:
    spark_runtime.stop()
    with standalone(workers=2) as started:
        yield started
        spark_runtime.stop()


@pytest.fixture
def distributed(cluster: Cluster, spark_runtime: Runtime) -> SparkSession:
    return spark_runtime.session(
        Settings(spark_master=cluster.url, spark_conf=cluster.spark_conf, spark_ui="on")
    )


def test_tasks_run_on_both_workers(
    distributed: SparkSession, cluster: Cluster, spark_runtime: Runtime
) -> None:
    def parent(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os
        import time

        for _ in batches:
            time.sleep(1)
            yield pa.RecordBatch.from_pylist([{"id": os.getppid()}])

    rows = distributed.range(0, 4, numPartitions=4).mapInArrow(parent, "id bigint").collect()
    assert len({row.id for row in rows}) == 2
    assert [len(cluster.executors(worker)) for worker in (0, 1)] == [1, 1]
    assert spark_runtime.ui_address is not None
    with urllib.request.urlopen(spark_runtime.ui_address, timeout=120) as page:
        assert b"headwater" in page.read()


def test_a_job_survives_a_killed_executor_and_a_killed_worker(
    distributed: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    def steady(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        (tmp_path / str(time.time_ns())).touch()
        time.sleep(0.5)
        yield from batches

    [executor] = cluster.executors(0)
    worker = cluster.workers[1].pid

    def kill() -> None:
        _wait(lambda: len(list(tmp_path.iterdir())) >= 2)
        os.kill(executor, signal.SIGKILL)
        _wait(lambda: len(list(tmp_path.iterdir())) >= 5)
        os.kill(worker, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    rows = distributed.range(0, 1000, numPartitions=10).mapInArrow(steady, "id bigint")
    counted = rows.groupBy((rows.id % 10).alias("k")).count().collect()
    killer.join()
    assert sorted((row.k, row["count"]) for row in counted) == [(k, 100) for k in range(10)]
    assert len(list(tmp_path.iterdir())) > 10, "some tasks ran twice"
    assert cluster.state()["aliveworkers"] == 1 or cluster.workers[1].poll() is not None
