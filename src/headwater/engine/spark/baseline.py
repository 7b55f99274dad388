"""Spark's own JDBC source and sink, as people use them: the baselines of the benchmarks."""

from __future__ import annotations

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from headwater.engine.spark.transport.read import JDBC_DRIVER, jdbc_address, jdbc_available


def jdbc_usable(session: SparkSession, dsn: str) -> bool:
    """Tell whether Spark's JDBC source can reach the database from here."""
    return jdbc_available(session) and jdbc_address(dsn) is not None


def jdbc_source(session: SparkSession, dsn: str, table: str, *, key: str, rows: int, tasks: int) -> DataFrame:
    """Return a table by the JDBC source with its defaults; tasks share the values of a key from 1 on."""
    url, properties = _address(dsn)
    if tasks == 1:
        return session.read.jdbc(url, table, properties=properties)
    return session.read.jdbc(
        url,
        table,
        column=key,
        lowerBound=1,
        upperBound=rows,
        numPartitions=tasks,
        properties=properties,
    )


def jdbc_sink(frame: DataFrame, dsn: str, table: str) -> None:
    """Append a frame to a table by the JDBC sink with its defaults."""
    url, properties = _address(dsn)
    frame.write.jdbc(url, table, mode="append", properties=properties)


def drain(frame: DataFrame) -> None:
    """Compute every row and keep none."""
    frame.write.format("noop").mode("overwrite").save()


def stored(session: SparkSession, rows: int, tasks: int) -> DataFrame:
    """Return rows of two numbers and four texts, cached by Spark: only writing them takes time."""
    frame = session.range(1, rows + 1, 1, tasks).selectExpr(
        "id AS c0",
        "id % 10007 AS c1",
        "string(decimal(id % 100000) / 100) AS c2",
        "string(timestamp_seconds(id + 1700000000)) AS c3",
        "element_at(array('new', 'paid', 'shipped'), int(id % 3) + 1) AS c4",
        "md5(string(id)) AS c5",
    )
    frame.persist(StorageLevel.MEMORY_AND_DISK)
    drain(frame)
    return frame


def _address(dsn: str) -> tuple[str, dict[str, str]]:
    address = jdbc_address(dsn)
    assert address is not None
    url, properties = address
    return url, {**properties, "driver": JDBC_DRIVER}
