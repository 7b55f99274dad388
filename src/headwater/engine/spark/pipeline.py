"""Moving rows between the transaction of one refresh and Spark, watched while Spark works.

Small inputs and results go through the driver and the refresh's own connection. Large ones are read and
written by Spark's tasks over connections of their own, which share the refresh's snapshot. Rows that tasks
commit are invisible to that snapshot, so a large delta is piped from the job's staging table into the
refresh's transaction.

A thread watches Spark while it works (`watch`), and ends what takes too long or cannot be applied any more.
If this whole process stands still, the server ends the transaction some time after spark_timeout, so a
process that wakes up again cannot commit. Whichever way a refresh ends, what tasks still do in the database
is ended with the job.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import psycopg
import pyarrow as pa
from py4j import java_gateway
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from headwater.catalog import jobs
from headwater.catalog.stream_tables import StreamTable
from headwater.clock import Phases
from headwater.config import Settings, milliseconds
from headwater.db.connection import PINNED_SETTINGS, Connection, one
from headwater.db.scratch import statement
from headwater.engine.base import Inexact
from headwater.engine.spark.failures import raise_interrupt, refresh_error
from headwater.engine.spark.runtime import session, workload
from headwater.engine.spark.sizes import pages_of, source_size
from headwater.engine.spark.steps import Collect, PagesOf, ReadByTasks, ReadHere, SizeOf, Store
from headwater.engine.spark.transport import read, write
from headwater.engine.spark.transport.tasks import Note
from headwater.engine.spark.transport.wire import BulkRead, Column
from headwater.engine.spark.watch import SparkWatch, Watch
from headwater.errors import (
    ConnectionFailed,
    HeadwaterError,
    RefreshCancelled,
    RefreshFailed,
)
from headwater.plan.steps import Step

PAGES_PER_TASK = 2048
LITERAL_ROWS = 2_000
LITERAL_BYTES = 1 << 18
_TYPES = {"bigint": "BIGINT", "text": "STRING"}
_ARGUMENT = re.compile(r":(rows\d+)")
START_MS = 300_000
"""How long the refresh's transaction may wait for Spark to start, which has limits of its own."""
LONGEST_MARGIN_MS = 60_000
"""How much longer than spark_timeout the server waits, so that a refresh can end itself first."""

# PySpark and py4j would also write to standard error the errors that are raised and reported here. py4j does
# so past its own logger when its connection breaks or at Ctrl-C.
logging.getLogger("SQLQueryContextLogger").disabled = True
java_gateway.logging = logging.getLogger("py4j.java_gateway")


@dataclass
class Traffic:
    """The rows and bytes that went to Spark and came back."""

    rows_read: int = 0
    bytes_read: int = 0
    rows_written: int = 0
    bytes_written: int = 0
    known: bool = True  # whether everything that was read is counted: the JDBC driver counts nothing


class Pipeline:
    """Moves rows between the refresh's transaction and Spark, and computes there; a context manager.

    `connection` is in the transaction of the refresh.
    """

    def __init__(
        self,
        connection: Connection,
        dsn: str,
        settings: Settings,
        stream_table: StreamTable,
        action: str,
        *,
        phases: Phases,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self._connection = connection
        self._dsn = dsn
        self._settings = settings
        self._stream_table = stream_table
        self._action = action
        self._progress = progress
        self._job: jobs.Job | None = None
        self._views: list[str] = []
        self._literals: dict[str, str] = {}
        self._numbers = itertools.count()
        self._bulk = False
        self._reads: list[str] = []  # names under which tasks record what they read
        self._seen: dict[str, jobs.Moved] = {}
        self._lineage = uuid.uuid4().hex[:12]
        self._coordinator = 0
        self.deadline = float("inf")
        self.traffic = Traffic()
        self.phases = phases
        self._snapshot = ""
        self._session: SparkSession | None = None
        self._job_guard = threading.Lock()

    def __enter__(self) -> Pipeline:
        row = one(self._connection, "SELECT pg_export_snapshot(), pg_backend_pid()")
        self._snapshot, self._coordinator = str(row[0]), int(row[1])
        patience = milliseconds(self._settings.spark_timeout)
        try:
            self._start_spark()
            self._wait_at_most(patience + min(patience, LONGEST_MARGIN_MS))
        except BaseException:
            self.close()
            raise
        self.deadline = time.monotonic() + patience / 1000
        return self

    def _start_spark(self) -> None:
        runtime = session.runtime()
        if not runtime.running():
            # It takes a while, so others should see it.
            with contextlib.suppress(HeadwaterError):
                self._open_job()
            self._wait_at_most(START_MS)
        with self.phases.measure("start"):
            self._session = runtime.session(self._settings, self._progress)
        if self._job is not None:
            self._job.check()
            self._name_job(self._job)

    def _wait_at_most(self, limit: int) -> None:
        """Limit the wait: a coordinator that is stopped or cut off must not hold back vacuum for ever."""
        self._connection.execute(
            "SELECT set_config('idle_in_transaction_session_timeout', %s, true)",
            (f"{min(limit, 2**31 - 1)}ms",),
        )

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close()
        ended = isinstance(error, RefreshCancelled | KeyboardInterrupt)
        if self._job is not None and self._job.was_cancelled and not ended:
            raise self.cancelled() from error
        if isinstance(error, Exception) and not isinstance(error, HeadwaterError | Inexact | psycopg.Error):
            raise_interrupt(error)
            # Spark may fail at any moment, not only while it is watched; PySpark keeps files here, too.
            of_spark = isinstance(error, PySparkException | Py4JError | OSError)
            if of_spark or (self._session is not None and not session.runtime().running()):
                raise refresh_error(error, self.label) from error

    def close(self) -> None:
        """Drop the frames and end the job; what tasks wrote and nobody adopted is dropped with it."""
        with contextlib.suppress(Exception):
            if self._session is not None:
                for view in self._views:
                    self._session.catalog.dropTempView(view)
        self._views.clear()
        if self._job is not None:
            self._job.close()

    @property
    def label(self) -> str:
        return self._stream_table.label

    @property
    def session(self) -> SparkSession:
        assert self._session is not None
        return self._session

    @property
    def job(self) -> jobs.Job:
        """The job by which other processes see this refresh; opened on first use."""
        with self._job_guard:
            if self._job is not None:
                return self._job
            job = self._open_job()
            self._name_job(job)
            return job

    def _open_job(self) -> jobs.Job:
        self._job = jobs.Job.open(
            self._dsn, self._stream_table, coordinator=self._coordinator, action=self._action
        )
        self._job.sweep()
        return self._job

    def _name_job(self, job: jobs.Job) -> None:
        if not session.is_connect(self.session):
            job.runs_as(str(self.session.sparkContext.applicationId), session.runtime().ui_address)

    @property
    def tasks(self) -> int:
        """How many tasks Spark runs at once."""
        if session.is_connect(self.session):
            return int(str(self.session.conf.get("spark.sql.leafNodeDefaultParallelism", "4") or "4"))
        return int(self.session.sparkContext.defaultParallelism)

    # reading

    def small_frame(self, what: str, query: str, columns: Sequence[Column]) -> tuple[str, int]:
        with self.phases.measure("read"):
            try:
                data = read.fetch(self._connection, query, columns)
            except RefreshFailed as error:  # too much for the driver, or text that is not UTF-8
                raise Inexact(f"{what}: {error.message}") from error
            self._count_read(data)
            few = data.num_rows <= LITERAL_ROWS and data.nbytes <= LITERAL_BYTES
            if columns and few:
                return self._literal(data, columns), data.num_rows
            return self._view(self.session.createDataFrame(data)), data.num_rows

    def _literal(self, data: pa.Table, columns: Sequence[Column]) -> str:
        """Pass few rows as an argument of the statement itself.

        This saves the cost of a frame, about forty messages to the JVM. Rows out of a range of one partition
        also need no exchange before a join or a group, so a small delta is one task.
        """
        name = f"rows{next(self._numbers)}"
        self._literals[name] = json.dumps(data.to_pylist(), ensure_ascii=False)
        fields = ", ".join(f"{column.name}: {_TYPES[column.kind]}" for column in columns)
        parsed = f"from_json(:{name}, 'array<struct<{fields}>>', map('mode', 'FAILFAST'))"
        return f"(SELECT inline({parsed}) FROM range(0, 1, 1, 1))"

    def _frame(self, query: str) -> DataFrame:
        """Return a statement on Spark with the rows that are its arguments."""
        used = {name: self._literals[name] for name in _ARGUMENT.findall(query) if name in self._literals}
        return self.session.sql(query, args=used) if used else self.session.sql(query)

    def bulk_frame(self, what: str, bulk: BulkRead, pages: int) -> str:
        self._bulk = True
        tasks = max(self.tasks, min(pages // PAGES_PER_TASK, 16 * self.tasks))
        part = f"read {len(self._reads)}"
        self._reads.append(part)
        with self.phases.measure("read"):
            transport = read.suitable_transport(self.session, self._dsn, bulk)
            self.traffic.known = self.traffic.known and transport == "adbc"
            frame = read.bulk_frame(
                self.session,
                self._dsn,
                self._snapshot,
                bulk,
                pages=pages,
                tasks=tasks,
                settings=self._task_settings(),
                transport=transport,
                note=Note(self.job.id, part),
            )
            return self._view(frame)

    def _view(self, frame: DataFrame) -> str:
        name = f"headwater_{self._lineage}_{next(self._numbers)}"
        frame.createOrReplaceTempView(name)
        self._views.append(name)
        return name

    def _count_read(self, data: pa.Table) -> None:
        self.traffic.rows_read += data.num_rows
        self.traffic.bytes_read += data.nbytes

    def _task_settings(self) -> dict[str, str]:
        """Return settings for a task's session that make expressions mean the same there."""
        given = (self._settings.statement_timeout, self._settings.spark_timeout)
        limit = min(limit for limit in map(milliseconds, given) if limit)
        return {
            **PINNED_SETTINGS,
            "TimeZone": self._stream_table.time_zone,
            "statement_timeout": f"{limit}ms",
            "application_name": self.job.task_name,
        }

    # computing and writing

    def execute(self, step: Step) -> object:
        """Take a step, and return what it found."""
        match step:
            case SizeOf():
                return source_size(self._connection, step.relation)
            case PagesOf():
                return pages_of(self._connection, step.relation)
            case ReadHere():
                return self.small_frame(step.what, step.sql, step.columns)
            case ReadByTasks():
                return self.bulk_frame(step.what, step.read, step.pages)
            case Collect():
                self.collect(step.what, step.table, step.sql, step.columns)
                return None
            case Store():
                return self.load(step.what, step.sql, step.columns, step.table, step.finish)
            case _:
                raise NotImplementedError(f"no step of Spark: {step}")

    def collect(self, what: str, name: str, query: str, columns: Sequence[Column]) -> None:
        if self._bulk:
            self._collect_by_tasks(what, name, query, columns)
            return
        with (
            self.phases.measure("compute"),
            self._watched("computing"),
            workload.small_work(self.session),
        ):
            # Not toArrow, which runs one more job.
            rows = self._frame(query).collect()
        schema = read.arrow_schema(columns)
        data = pa.Table.from_arrays(
            [pa.array([row[number] for row in rows], field.type) for number, field in enumerate(schema)],
            schema=schema,
        )
        with self.phases.measure("write"):
            write.put(self._connection, name, data, columns)
        self.traffic.rows_written += data.num_rows
        self.traffic.bytes_written += data.nbytes

    def _collect_by_tasks(self, table: str, target: str, query: str, columns: Sequence[Column]) -> None:
        part = f"{table}_{next(self._numbers)}"  # kept results have tables of the same names
        staging = self.job.table(part)
        listed = ", ".join(f"{column.name} {column.kind}" for column in columns)
        self.job.connection.execute(statement(f"CREATE UNLOGGED TABLE {staging} ({listed})"))
        self._write(part, query, columns, staging, None)
        with self.phases.measure("write"):
            names = ", ".join(column.name for column in columns)
            write.pipe(self.job.connection, f"SELECT {names} FROM {staging}", self._connection, target)

    def load(self, part: str, query: str, columns: Sequence[Column], table: str, finish: str) -> int:
        return self._write(part, query, columns, table, finish)

    def _write(self, part: str, query: str, columns: Sequence[Column], table: str, finish: str | None) -> int:
        begun = time.monotonic()
        with self.phases.measure("compute"):
            with self._watched("computing and writing"), workload.bulk_work(self.session):
                rows = write.write_by_tasks(
                    self._frame(query),
                    self._dsn,
                    job=self.job.id,
                    part=part,
                    columns=columns,
                    settings=self._task_settings(),
                    table=table,
                    finish=finish,
                )
        self._count_moved((time.monotonic() - begun) * 1000)
        return rows

    def _count_moved(self, elapsed: float) -> None:
        """Count what tasks have moved since the last call, within so many milliseconds."""
        parallel = self.tasks
        for part, now in self.job.moved().items():
            before = self._seen.get(part, jobs.Moved())
            self._seen[part] = now
            if part in self._reads:
                self.traffic.rows_read += now.rows - before.rows
                self.traffic.bytes_read += now.bytes - before.bytes
            else:
                self.traffic.rows_written += now.rows - before.rows
                self.traffic.bytes_written += now.bytes - before.bytes
            # Tasks ran in parallel, so this is the database's share of the elapsed time.
            taken = min((now.ms - before.ms) / min(parallel, now.tasks), elapsed)
            self.phases.move(taken, "compute", "read" if part in self._reads else "write")

    def read_so_far(self) -> tuple[int | None, int | None]:
        """Return the rows and bytes that came to Spark, as far as tasks have reported."""
        rows, size = self.traffic.rows_read, self.traffic.bytes_read
        if self._reads:
            for part, now in self.job.moved().items():
                if part in self._reads:
                    before = self._seen.get(part, jobs.Moved())
                    rows += now.rows - before.rows
                    size += now.bytes - before.bytes
        return rows or None, size or None

    def beside(self, phase: str, work: Callable[[Connection], None]) -> None:
        """Do work of the database for the job, over a connection beside that of the refresh."""
        connection = self.job.connection
        limit = milliseconds(self._settings.statement_timeout)
        connection.execute("SELECT set_config('statement_timeout', %s, false)", (f"{limit}ms",))
        with self._watched(phase, connection.cancel):
            work(connection)

    # watching

    @contextlib.contextmanager
    def _watched(self, phase: str, end: Callable[[], None] | None = None) -> Iterator[None]:
        """Show progress, end what is cancelled or takes too long, and translate failures."""
        watch = SparkWatch(self, phase) if end is None else Watch(self, phase, end)
        try:
            with watch:
                yield
        except Exception as error:
            raise_interrupt(error)
            raise watch.verdict or self._lost() or refresh_error(error, self.label) from error
        if watch.verdict is not None:  # it finished before it could be ended
            raise watch.verdict

    def _lost(self) -> HeadwaterError | None:
        """Return the loss that makes tasks fail: with the connection, for one, the snapshot is gone."""
        if self._job is None:
            return None
        try:
            self._job.look()
            return self.reason_to_end()
        except HeadwaterError as error:
            return error

    def cancelled(self) -> HeadwaterError:
        return RefreshCancelled(f"refresh of {self.label} was cancelled", hint="nothing of it was applied")

    def too_long(self) -> HeadwaterError:
        return RefreshFailed(
            f"refresh of {self.label}: Spark took longer than spark_timeout ({self._settings.spark_timeout})",
            hint="raise it with headwater set spark_timeout, or give Spark more cores",
        )

    def reason_to_end(self) -> HeadwaterError | None:
        """Return why the refresh cannot go on or was cancelled, as its job sees it."""
        if self.job.cancelled():
            return self.cancelled()
        if self.job.forsaken:
            return ConnectionFailed(
                f"refresh of {self.label}: its connection to the database broke",
                detail="the server ended it while Spark worked",
                hint="nothing of it was applied; repeat it",
            )
        return None
