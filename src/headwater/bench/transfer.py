"""How many rows a second go from PostgreSQL into Spark, and back.

Each way moves the same rows with the same number of connections. The baselines are PostgreSQL's own COPY
without Spark, by psql, and Spark's JDBC source and sink without any option. All ways take turns, after rounds
that only warm up, and a ratio is the median of those within a round: what slows the machine down for a while
slows all of them.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from headwater.api import Headwater
from headwater.catalog import jobs
from headwater.db.connection import PINNED_SETTINGS, Connection, connect, one
from headwater.db.scratch import statement
from headwater.embedded import find_installations
from headwater.errors import HeadwaterError

if TYPE_CHECKING:
    from headwater.engine.spark.transport.wire import BulkRead, Column, Kind

SCHEMA = "headwater_bench"
ROWS = 1_000_000
TASKS = (1, 2, 4)
REPETITIONS = 3
WARM_UP = 3

COPY = "bare COPY"
JDBC = "JDBC, defaults"
NO_DRIVER = "no JDBC: its driver is not on Spark's class path, or the DSN names no TCP host; see spark.jars"

Progress = Callable[[str], None]
Way = Callable[[], object]

_READ_TABLE = f"{SCHEMA}.readings"
_READ_SHAPE = (
    "id bigint PRIMARY KEY, customer integer NOT NULL, amount numeric(12,2) NOT NULL,"
    " at timestamptz NOT NULL, status text NOT NULL, note text"
)
# As the engine reads values of these types.
_READ_SELECT = (
    "SELECT (r.id)::bigint AS c0, (r.customer)::bigint AS c1, (r.amount)::text AS c2, (r.at)::text AS c3,"
    " (r.status)::text AS c4, (r.note)::text AS c5"
)
_KINDS: tuple[Kind, ...] = ("bigint", "bigint", "text", "text", "text", "text")
_WRITE_TABLE = f"{SCHEMA}.written"


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """One way with one number of tasks."""

    way: str
    tasks: int
    rows: int
    rows_per_second: float
    against_copy: float  # how many times as fast as bare COPY
    against_jdbc: float | None  # how many times as fast as Spark's JDBC with its defaults


@dataclass(frozen=True, kw_only=True)
class Transfers:
    """What was measured, and what could not be."""

    measurements: list[Transfer]
    notes: list[str]


def read(
    hw: Headwater,
    dsn: str,
    *,
    rows: int = ROWS,
    tasks: Sequence[int] = TASKS,
    repetitions: int = REPETITIONS,
    progress: Progress = lambda _: None,
) -> Transfers:
    """Measure rows a second out of a table of six columns of usual types, into Spark."""
    from headwater.engine.spark import baseline
    from headwater.engine.spark.runtime.session import runtime
    from headwater.engine.spark.runtime.workload import bulk_work
    from headwater.engine.spark.transport.read import Transport, bulk_frame, ctid_ranges

    session = runtime().session(hw.effective_settings(), progress)
    jdbc = baseline.jdbc_usable(session, dsn)
    with _schema(hw.connection), connect(dsn) as own, bulk_work(session):
        progress(f"loading {rows:,} rows")
        pages = _load(hw.connection, rows)
        own.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        snapshot = str(one(own, "SELECT pg_export_snapshot()")[0])

        def by_tasks(transport: Transport, count: int) -> Way:
            return lambda: baseline.drain(
                bulk_frame(
                    session,
                    dsn,
                    snapshot,
                    _bulk_read(),
                    pages=pages,
                    tasks=count,
                    settings=PINNED_SETTINGS,
                    transport=transport,
                )
            )

        def by_jdbc(count: int) -> Way:
            return lambda: baseline.drain(
                baseline.jdbc_source(session, dsn, _READ_TABLE, key="id", rows=rows, tasks=count)
            )

        def by_copy(count: int) -> Way:
            commands = [
                f"COPY (SELECT * FROM {_READ_TABLE} WHERE {bounds or 'true'}) TO STDOUT (FORMAT binary)"
                for bounds in ctid_ranges("ctid", pages, count)
            ]
            return lambda: _psql(dsn, commands)

        def ways(count: int) -> dict[str, Way]:
            found = {COPY: by_copy(count), "ADBC": by_tasks("adbc", count)}
            if jdbc:
                found |= {"JDBC, binary": by_tasks("jdbc", count), JDBC: by_jdbc(count)}
            return found

        measurements = _measured(ways, rows, tasks, repetitions, progress)
    return Transfers(measurements=measurements, notes=[] if jdbc else [NO_DRIVER])


def write(
    hw: Headwater,
    dsn: str,
    *,
    rows: int = ROWS,
    tasks: Sequence[int] = TASKS,
    repetitions: int = REPETITIONS,
    progress: Progress = lambda _: None,
) -> Transfers:
    """Measure rows a second out of Spark's memory, into an unlogged table of six columns."""
    from headwater.engine.spark import baseline
    from headwater.engine.spark.runtime.session import runtime
    from headwater.engine.spark.runtime.workload import bulk_work
    from headwater.engine.spark.transport.write import write_by_tasks

    session = runtime().session(hw.effective_settings(), progress)
    jdbc = baseline.jdbc_usable(session, dsn)
    columns = _columns()
    with _schema(hw.connection), _job(hw, dsn) as job, bulk_work(session), _directory() as directory:
        frames = {}
        for count in sorted({*tasks, max(tasks)}):
            progress(f"preparing {rows:,} rows in {count} parts")
            frames[count] = baseline.stored(session, rows, count)

        def empty() -> None:
            shape = ", ".join(f"{column.name} {column.kind}" for column in columns)
            hw.connection.execute(statement(f"DROP TABLE IF EXISTS {_WRITE_TABLE}"))
            hw.connection.execute(statement(f"CREATE UNLOGGED TABLE {_WRITE_TABLE} ({shape})"))

        def by_tasks(count: int) -> None:
            stored = write_by_tasks(
                frames[count],
                dsn,
                job=job.id,
                part=str(time.monotonic_ns()),
                columns=columns,
                settings=PINNED_SETTINGS,
                table=_WRITE_TABLE,
                finish=None,
            )
            assert stored == rows

        empty()
        by_tasks(max(tasks))
        files = {count: _files(hw.connection, directory, count) for count in tasks}

        def by_copy(count: int) -> None:
            _psql(dsn, [f"\\copy {_WRITE_TABLE} FROM '{path}' (FORMAT binary)" for path in files[count]])

        def ways(count: int) -> dict[str, Way]:
            found: dict[str, Way] = {
                COPY: lambda: by_copy(count),
                "tasks, ADBC": lambda: by_tasks(count),
            }
            if jdbc:
                found[JDBC] = lambda: baseline.jdbc_sink(frames[count], dsn, _WRITE_TABLE)
            return found

        measurements = _measured(ways, rows, tasks, repetitions, progress, before=empty)
        for frame in frames.values():
            frame.unpersist()
    return Transfers(measurements=measurements, notes=[] if jdbc else [NO_DRIVER])


def _measured(
    ways: Callable[[int], Mapping[str, Way]],
    rows: int,
    tasks: Sequence[int],
    repetitions: int,
    progress: Progress,
    before: Callable[[], None] = lambda: None,
) -> list[Transfer]:
    def took(way: Way) -> float:
        before()
        begun = time.perf_counter()
        way()
        return time.perf_counter() - begun

    for number in range(WARM_UP if repetitions > 1 else 1):
        progress(f"warming up, {number + 1}")
        for way in ways(max(tasks)).values():
            took(way)
    found = []
    for count in tasks:
        rounds = []
        for number in range(repetitions):
            progress(f"{count} tasks, round {number + 1}")
            rounds.append({name: took(way) for name, way in ways(count).items()})
        found += _compared(rounds, rows, count)
    return found


def _compared(rounds: Sequence[Mapping[str, float]], rows: int, tasks: int) -> list[Transfer]:
    """Return the medians of rounds of seconds.

    >>> for item in _compared([{COPY: 1.0, "ADBC": 2.0}, {COPY: 4.0, "ADBC": 8.0}], 100, 1):
    ...     print(item.way, round(item.rows_per_second), item.against_copy, item.against_jdbc)
    bare COPY 40 1.0 None
    ADBC 20 0.5 None
    """

    def against(name: str, baseline: str) -> float:
        return statistics.median(each[baseline] / each[name] for each in rounds)

    return [
        Transfer(
            way=name,
            tasks=tasks,
            rows=rows,
            rows_per_second=rows / statistics.median(each[name] for each in rounds),
            against_copy=against(name, COPY),
            against_jdbc=against(name, JDBC) if JDBC in rounds[0] else None,
        )
        for name in rounds[0]
    ]


def _bulk_read() -> BulkRead:
    from headwater.engine.spark.transport.wire import BulkRead

    return BulkRead(_READ_SELECT, f"{_READ_TABLE} AS r", (), tuple(_columns()), "r.ctid", _READ_TABLE)


def _columns() -> list[Column]:
    from headwater.engine.spark.transport.wire import Column

    return [Column(f"c{number}", kind) for number, kind in enumerate(_KINDS)]


@contextmanager
def _schema(connection: Connection) -> Iterator[None]:
    """Provide the schema of the measurements, and drop it afterwards."""
    drop = sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(SCHEMA))
    connection.execute(drop)
    connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(SCHEMA)))
    try:
        yield
    finally:
        connection.execute(drop)


@contextmanager
def _job(hw: Headwater, dsn: str) -> Iterator[jobs.Job]:
    """Provide a job in which tasks make their claims, of a stream table made for it alone."""
    hw.connection.execute(statement(f"CREATE TABLE {SCHEMA}.source (id integer)"))
    name = f"{SCHEMA}.claimant"
    made = hw.create(name, f"SELECT id FROM {SCHEMA}.source", engine="postgres")
    try:
        backend = hw.connection.info.backend_pid
        with jobs.Job.open(dsn, made, coordinator=backend, action="bench") as job:
            yield job
    finally:
        hw.drop(name)


@contextmanager
def _directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as name:
        yield Path(name)


def _load(connection: Connection, rows: int) -> int:
    """Fill the table to be read; return how many pages it has."""
    connection.execute(statement(f"CREATE TABLE {_READ_TABLE} ({_READ_SHAPE})"))
    connection.execute(
        statement(
            f"INSERT INTO {_READ_TABLE} SELECT i, i %% 10007, (i %% 100000) / 100.0,"
            " '2024-01-01'::timestamptz + i * interval '1 s',"
            " (ARRAY['new', 'paid', 'shipped'])[1 + i %% 3], md5(i::text) FROM generate_series(1, %s) AS i"
        ),
        (rows,),
    )
    connection.execute(statement(f"VACUUM ANALYZE {_READ_TABLE}"))
    size = "SELECT pg_relation_size(%s::regclass) / current_setting('block_size')::integer"
    return int(one(connection, size, (_READ_TABLE,))[0])


def _files(connection: Connection, directory: Path, count: int) -> list[Path]:
    """Return the contents of the written table, as files for COPY."""
    found = []
    for number in range(count):
        path = directory / f"{count}-{number}"
        part = f"SELECT * FROM {_WRITE_TABLE} WHERE c0 % {count} = {number}"
        command = statement(f"COPY ({part}) TO STDOUT (FORMAT binary)")
        with path.open("wb") as file, connection.cursor() as cursor, cursor.copy(command) as copy:
            file.writelines(copy)
        found.append(path)
    return found


def _psql(dsn: str, commands: Sequence[str]) -> None:
    """Run commands at the same time, each in a psql of its own that discards its output."""
    program = _find_psql()
    parts = conninfo_to_dict(dsn)
    # Not among the arguments, which everybody on the machine can see.
    password = parts.pop("password", None)
    environment = {**os.environ, **({"PGPASSWORD": str(password)} if password else {})}
    address = make_conninfo("", **parts)
    started = [
        subprocess.Popen(
            [program, "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", f"--command={command}", address],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for command in commands
    ]
    said = [process.communicate()[1] for process in started]
    if any(process.returncode for process in started):
        raise HeadwaterError("psql, which measures bare COPY, failed", detail="\n".join(said).strip())


def _find_psql() -> str:
    for installation in find_installations():
        program = installation.bin_dir / "psql"
        if program.is_file():
            return str(program)
    program_on_path = shutil.which("psql")
    if program_on_path is None:
        raise HeadwaterError(
            "psql was not found, and bare COPY is measured with it",
            hint="pip install 'headwater[bench]', or install PostgreSQL's client programs",
        )
    return program_on_path
