"""A session's settings for small and for bulk work, and work that warms a session up."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Literal

from pyspark.sql import SparkSession

_SMALL = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.leafNodeDefaultParallelism": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}

_modes: weakref.WeakKeyDictionary[SparkSession, str] = weakref.WeakKeyDictionary()
_before: weakref.WeakKeyDictionary[SparkSession, dict[str, str]] = weakref.WeakKeyDictionary()


@contextlib.contextmanager
def small_work(session: SparkSession) -> Iterator[None]:
    """Apply settings for few rows: one partition, nothing compiled. They stay until `bulk_work`."""
    _set_mode(session, "small")
    yield


@contextlib.contextmanager
def bulk_work(session: SparkSession) -> Iterator[None]:
    """Apply settings for many rows: Spark's own, or the user's. They stay until `small_work`."""
    _set_mode(session, "bulk")
    yield


def _set_mode(session: SparkSession, mode: Literal["small", "bulk"]) -> None:
    # A session starts with the settings for bulk.
    if _modes.get(session, "bulk") == mode:
        return
    if mode == "small":
        if session not in _before:
            given = session.conf.getAll
            _before[session] = {name: given[name] for name in _SMALL if name in given}
        for name, value in _SMALL.items():
            session.conf.set(name, value)
    else:
        for name in _SMALL:
            if name in _before[session]:
                session.conf.set(name, _before[session][name])
            else:
                session.conf.unset(name)
    _modes[session] = mode


def warm_up(session: SparkSession) -> None:
    """Run what a first delta would otherwise wait for: a join, a grouping and a union over Arrow tables."""
    import pyarrow as pa

    table = pa.table({"k": pa.array([1, 2, 2], pa.int64()), "t": pa.array(["a", "b", None], pa.string())})
    with small_work(session):
        for _ in range(3):
            for name in ("headwater_warm_a", "headwater_warm_b"):
                session.createDataFrame(table).createOrReplaceTempView(name)
            session.sql(
                "SELECT k, t, count(*) AS n, sum(w) AS w FROM ("
                " SELECT a.k, b.t, 1L AS w FROM headwater_warm_a a JOIN headwater_warm_b b ON a.k = b.k"
                " UNION ALL SELECT k, t, -1L FROM headwater_warm_a"
                ") GROUP BY k, t HAVING sum(w) <> 0"
            ).toArrow()
    for name in ("headwater_warm_a", "headwater_warm_b"):
        session.catalog.dropTempView(name)


def exercise(session: SparkSession) -> None:
    """Run a sample of everything that refreshes do, so that its classes are loaded."""
    warm_up(session)
    with bulk_work(session):
        rows = session.range(0, 10_000, numPartitions=2).selectExpr(
            "id", "id % 7 AS k", "cast(id AS string) AS t"
        )
        same = rows.mapInArrow(lambda batches: batches, rows.schema)
        rows.createOrReplaceTempView("headwater_warm_a")
        same.createOrReplaceTempView("headwater_warm_b")
        session.sql(
            "SELECT a.k, count(*) AS n, sum(b.id) AS s, sum(CAST(a.t AS DECIMAL(38,2))) AS d, max(b.t) AS m"
            " FROM headwater_warm_a a JOIN headwater_warm_b b ON a.id = b.id GROUP BY a.k"
        ).toArrow()
    for name in ("headwater_warm_a", "headwater_warm_b"):
        session.catalog.dropTempView(name)
