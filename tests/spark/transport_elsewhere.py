"""Run by test_transport_elsewhere: transports under settings that the tests' own Spark does not have.

Tasks may fail and be tried again, and the JDBC driver is on the class path if the second argument names it.
The answer is one JSON document.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from headwater.config import Settings
from headwater.db.connection import PINNED_SETTINGS, Connection, connect
from headwater.engine.spark.failures import failure
from headwater.engine.spark.runtime.session import runtime
from headwater.engine.spark.transport import read, tasks, write
from headwater.engine.spark.transport.wire import BulkRead, Column

PAIR = (Column("n", "bigint"), Column("t", "text"))


class Trial:
    """What the trials share: a session, a database with a table `s` of pairs, a connection to it."""

    def __init__(self, session: SparkSession, dsn: str, own: Connection) -> None:
        self.session = session
        self.dsn = dsn
        self.own = own

    def value(self, query: str) -> Any:
        row = self.own.execute(query).fetchone()
        assert row is not None
        return row[0]

    def frame(self, select: str, transport: read.Transport, relation: str = "public.s") -> DataFrame:
        """A read of the table by three tasks; begins the transaction whose snapshot they share."""
        pages = self.value(f"SELECT pg_relation_size('{relation}') / current_setting('block_size')::int")
        self.own.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        return read.bulk_frame(
            self.session,
            self.dsn,
            self.value("SELECT pg_export_snapshot()"),
            BulkRead(select, f"{relation} AS o", ("o.n >= 0",), PAIR, "o.ctid", relation),
            pages=pages,
            tasks=3,
            settings={**PINNED_SETTINGS, "TimeZone": "Asia/Tokyo"},
            transport=transport,
        )

    def connections(self) -> int:
        """How many others there are once the server has noticed who is gone."""
        question = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
        for _ in range(100):
            if not self.value(question):
                break
            time.sleep(0.1)
        return int(self.value(question))


def attempts(trial: Trial) -> dict[str, Any]:
    """Every task commits and then fails, the first time."""
    trial.own.execute("CREATE TABLE public.target (n bigint, t text)")
    trial.own.execute("ALTER TABLE headwater.job DROP CONSTRAINT job_stream_table_id_fkey")
    job = trial.value(
        "INSERT INTO headwater.job (stream_table_id, coordinator, client, engine, action, phase)"
        " VALUES (0, 0, '', 'spark', '', '') RETURNING id"
    )
    original = tasks.writing
    tasks.writing = failing_once
    try:
        stored = write.write_by_tasks(
            trial.session.range(0, 1000, 1, 4).selectExpr("id AS n", "string(id) AS t"),
            trial.dsn,
            job=job,
            part="p",
            columns=PAIR,
            settings=PINNED_SETTINGS,
            table="public.target",
            finish=None,
        )
    finally:
        tasks.writing = original
    return {"stored": stored, "rows": trial.value("SELECT count(*) FROM public.target")}


def failing_once(access: tasks.Access, target: tasks.Target) -> Callable[[tasks.Batches], tasks.Batches]:
    run = tasks.writing_as_it_is(access, target)  # type: ignore[attr-defined]

    def wrapped(batches: tasks.Batches) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        done = list(run(batches))
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0:
            raise ValueError("after the commit")
        yield from done

    return wrapped


tasks.writing_as_it_is = tasks.writing  # type: ignore[attr-defined]


def jdbc_rows(trial: Trial) -> dict[str, Any]:
    """Both transports read the same rows, while others write."""
    found: dict[str, Any] = {}
    for transport in ("adbc", "jdbc"):
        frame = trial.frame("SELECT o.n AS n, o.t AS t", transport)
        expected = trial.own.execute("SELECT n, t FROM public.s WHERE n >= 0").fetchall()
        with connect(trial.dsn) as writer:
            writer.execute("UPDATE public.s SET t = t || '!' WHERE n % 3 = 0")
            writer.execute("INSERT INTO public.s SELECT 7, 'new' FROM generate_series(1, 2000)")
        rows = frame.toArrow()
        got = list(zip(*rows.to_pydict().values(), strict=True))
        found[transport] = {
            "equal": sorted(map(str, got)) == sorted(map(str, expected)),
            "types": [str(each) for each in rows.schema.types],
            "partitions": frame.rdd.getNumPartitions(),
            "plan": frame._jdf.queryExecution().toString(),
        }
        trial.own.execute("ROLLBACK")
    frame = trial.frame("SELECT o.n AS n, current_setting('TimeZone') AS t", "jdbc")
    found["setting"] = frame.first()["t"]  # type: ignore[index]
    trial.own.execute("ROLLBACK")
    found["connections"] = trial.connections()
    return found


def jdbc_failures(trial: Trial) -> dict[str, Any]:
    """What the driver tells of an error of the server and of a connection that is cut."""
    found: dict[str, Any] = {}
    frame = trial.frame("SELECT 1 / (o.n - 4000) AS n, o.t AS t", "jdbc")
    found["division"] = told(frame)
    trial.own.execute("ROLLBACK")
    frame = trial.frame("SELECT o.n AS n, o.t || coalesce(pg_sleep(0.001)::text, '') AS t", "jdbc")
    asked: set[str] = set()
    cutter = threading.Thread(target=cut, args=(trial.dsn, asked), daemon=True)
    cutter.start()
    found["cut"] = told(frame.where("t > 'boundary'"))
    found["asked"] = sorted(asked)
    trial.own.execute("ROLLBACK")
    found["connections"] = trial.connections()
    return found


def told(frame: DataFrame) -> list[str]:
    try:
        frame.toArrow()
    except Exception as error:
        said = failure(error, "read")
        return [type(said).__name__, "" if said is None else said.message]
    return []


def cut(dsn: str, asked: set[str]) -> None:
    """Ends tasks' connections, however often a task is tried again; what they asked."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for _ in range(200):
            asked |= {
                query
                for query, _ in connection.execute(
                    "SELECT query, pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND query LIKE '%pg_sleep%' AND state = 'active'"
                    " AND pid <> pg_backend_pid()"
                )
            }
            time.sleep(0.05)


def jdbc_choice(trial: Trial) -> dict[str, Any]:
    """Which transport is taken: not JDBC for long values, nor without a TCP host."""
    found: dict[str, Any] = {}
    trial.own.execute("CREATE TABLE public.long (n bigint, t text)")
    trial.own.execute("ALTER TABLE public.long ALTER COLUMN t SET STORAGE EXTERNAL")
    trial.own.execute("INSERT INTO public.long SELECT g, repeat('x', 100000) FROM generate_series(1, 50) g")
    for relation in ("public.s", "public.long"):
        frame = trial.frame("SELECT o.n AS n, o.t AS t", "auto", relation)
        found[relation] = "JDBCRelation" in frame._jdf.queryExecution().toString()
        found[f"{relation} rows"] = frame.count()
        trial.own.execute("ROLLBACK")
    return found


def main(dsn: str, jar: str) -> None:
    conf = "spark.task.maxFailures=3" + (f" spark.jars={jar}" if jar else "")
    session = runtime().session(Settings(spark_master="local[2,3]", spark_conf=conf))
    try:
        with connect(dsn) as own:
            trial = Trial(session, dsn, own)
            own.execute("CREATE TABLE public.s (n bigint, t text)")
            nasty = ["", "\\N", 'a"b', "x,y", "\r\n", "\t", "é😀", None]
            data = pa.table({"n": pa.array(range(len(nasty)), pa.int64()), "t": pa.array(nasty, pa.string())})
            write.put(own, "public.s", data, PAIR)
            own.execute("INSERT INTO public.s SELECT g, 'row ' || g FROM generate_series(100, 5100) g")
            found = {"attempts": attempts(trial), "available": read.jdbc_available(session)}
            if jar:
                found |= {
                    "rows": jdbc_rows(trial),
                    "failures": jdbc_failures(trial),
                    "choice": jdbc_choice(trial),
                }
    finally:
        runtime().stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
