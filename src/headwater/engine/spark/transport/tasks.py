"""What runs inside Spark's tasks: the standard library, pyarrow and ADBC, nothing of Headwater.

The module travels by value, so executors need only pyarrow and adbc-driver-postgresql. A task opens its own
connection and closes it on every way out. A worker that Spark kills loses its socket; the server, which
checks for its client, then ends the statement.

Writing is exactly once per partition. A task stores its rows and inserts a claim for (job, part, number) in
one transaction. The claim comes last, so of two attempts at one partition the faster one wins, and the other
finds the claim and rolls back. A task that cannot tell whether its commit arrived fails; the next attempt
finds the claim, or not. So the rows of a partition must not depend on the attempt: partitions come from ctid
ranges under one snapshot, or from hashing columns.

What moved, and how long the database took for it, is recorded with the claim. A task that only reads records
it after its last row, in a transaction of its own; what is read twice is recorded twice, because it left the
database twice.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import adbc_driver_manager
import adbc_driver_postgresql
import adbc_driver_postgresql.dbapi as adbc
import pyarrow as pa

BATCH_BYTES = 4 << 20
"""About how much one batch from PostgreSQL holds: large enough for both sides, small in memory."""
VALUE_LIMIT = 64 << 20
"""The longest text that may travel: several copies of it are in memory on the way."""
CLIENT_CHECK_MS = "1000"
"""How often a running statement checks whether its client, a task, is still there."""
KNOWN_DATABASES = 8
CONNECTION_FAILURE = "08006"
CLAIMS = '"headwater"."job_part"'
PART_TABLE = "hw_part"
_MARK = "headwater-task-error:"
_LONGEST_TEXT = 2_000

Batches = Iterator[pa.RecordBatch]


class TaskError(Exception):
    """The failure of a task, in a form that survives being text in Spark's own error."""

    def __init__(self, message: str, *, sqlstate: str = "", detail: str = "", hint: str = "") -> None:
        self.message = message[:_LONGEST_TEXT]
        self.sqlstate = sqlstate
        self.detail = detail[:_LONGEST_TEXT]
        self.hint = hint[:_LONGEST_TEXT]
        super().__init__(
            _MARK
            + json.dumps(
                {
                    "message": self.message,
                    "sqlstate": self.sqlstate,
                    "detail": self.detail,
                    "hint": self.hint,
                }
            )
        )

    @classmethod
    def found_in(cls, text: str) -> TaskError | None:
        """Return the error whose text is somewhere in `text`."""
        _, mark, rest = text.rpartition(_MARK)
        if not mark:
            return None
        try:
            parts, _ = json.JSONDecoder().raw_decode(rest)
        except ValueError:
            return None
        return cls(**parts)


@dataclass(frozen=True)
class Access:
    """How a task reaches the database. Its representation shows no secret."""

    dsn: str = field(repr=False)
    settings: tuple[tuple[str, str], ...]
    secrets: tuple[str, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Target:
    """Where a task's rows go, and under which claim."""

    job: int
    part: str
    schema: str
    table: str
    names: tuple[str, ...]
    kinds: tuple[str, ...]
    finish: str | None
    """A SELECT over pg_temp.hw_part whose rows go into the table, or None for the rows as they are."""


@dataclass(frozen=True)
class Note:
    """The name under which a job records what its tasks read."""

    job: int
    part: str


@dataclass
class Meter:
    """What passed by, and how long the measured side took for it."""

    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0

    def count(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        self.bytes += batch.nbytes

    @contextmanager
    def running(self) -> Iterator[None]:
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - begun

    def pulled(self, batches: Batches) -> Batches:
        """Yield the same batches; the time until each arrives counts."""
        while True:
            with self.running():
                batch = next(batches, None)
            if batch is None:
                return
            self.count(batch)
            yield batch


def reading(
    access: Access,
    snapshot: str,
    statements: Sequence[str],
    names: Sequence[str],
    kinds: Sequence[str],
    note: Note | None = None,
) -> Callable[[Batches], Batches]:
    """Return a function for mapInArrow that turns numbers of statements into their rows."""
    schema = arrow_schema(names, kinds)

    def run(batches: Batches) -> Batches:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from read(access, snapshot, statements[number], schema, note, number)

    return run


def writing(access: Access, target: Target) -> Callable[[Batches], Batches]:
    """Return a function for mapInArrow that stores its partition, and returns how many rows in one row."""

    def run(batches: Batches) -> Batches:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        stored = write(access, target, context.partitionId(), batches)
        yield pa.record_batch([pa.array([stored], pa.int64())], names=["rows"])

    return run


def read(
    access: Access,
    snapshot: str,
    statement: str,
    schema: pa.Schema,
    note: Note | None = None,
    number: int = 0,
) -> Batches:
    """Yield the rows of a statement as the snapshot's exporter sees them; record them if wanted."""
    meter = Meter()
    with connected(access) as connection:
        with connection.cursor() as cursor:
            with meter.running():
                # One string would be taken for one statement, and refused.
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                cursor.execute(f"SET TRANSACTION SNAPSHOT {literal(snapshot)}")
                cursor.adbc_statement.set_options(
                    **{"adbc.postgresql.batch_size_hint_bytes": str(BATCH_BYTES)}
                )
                cursor.execute(statement)
                reader = _reader(cursor)
            if reader.schema.types != schema.types:
                raise TaskError(
                    f"the query gives the types {', '.join(map(str, reader.schema.types))}"
                    f" where {', '.join(map(str, schema.types))} are expected"
                )
            for batch in meter.pulled(iter(reader)):
                _check_length(batch)
                yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)
        if note is not None:
            _note(connection, note, number, meter)


def _note(connection: Any, note: Note, number: int, meter: Meter) -> None:
    connection.adbc_connection.rollback()
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {CLAIMS} AS known (job_id, part, number, rows, bytes, ms)"
            f" VALUES ({note.job:d}, {literal(note.part)}, {number:d}, {_figures(meter)})"
            " ON CONFLICT (job_id, part, number) DO UPDATE SET rows = known.rows + excluded.rows,"
            " bytes = known.bytes + excluded.bytes, ms = known.ms + excluded.ms"
        )
    connection.adbc_connection.commit()


def _figures(meter: Meter) -> str:
    return f"{meter.rows:d}, {meter.bytes:d}, {meter.seconds * 1000:.3f}"


def _reader(cursor: Any) -> Any:
    """Return the batches of a result; the driver's usual reader loses an error's SQLSTATE."""
    results = getattr(cursor, "_results", None)
    return cursor.fetch_record_batch() if results is None else results.reader


def write(access: Access, target: Target, number: int, batches: Batches) -> int:
    """Store the rows of a partition, unless another attempt has; return how many are stored."""
    first = next((batch for batch in batches if batch.num_rows), None)
    if first is None:
        return 0
    # The time until rows arrive is not the database's.
    given = Meter()
    begun = time.perf_counter()
    with connected(access) as connection, connection.cursor() as cursor:
        stored = _claimed(cursor, target, number)
        if stored is None:
            stored = _store(cursor, target, given.pulled(_chain(first, batches)))
            taken = Meter(stored, given.bytes, time.perf_counter() - begun - given.seconds)
            if _claim(cursor, target, number, taken):
                connection.adbc_connection.commit()
            else:
                stored = _claimed(cursor, target, number)
                if stored is None:
                    raise TaskError(
                        f"the claim of partition {number} of {target.part} was taken and given back"
                    )
    # A worker whose input is left unread cannot be used again.
    for _ in batches:
        pass
    return stored


def _store(cursor: Any, target: Target, batches: Batches) -> int:
    schema = arrow_schema(target.names, target.kinds)
    failures: list[Exception] = []
    reader = pa.RecordBatchReader.from_batches(schema, _conformed(batches, schema, failures))
    try:
        if target.finish is None:
            return _known(
                cursor.adbc_ingest(target.table, reader, mode="append", db_schema_name=target.schema or None)
            )
        columns = ", ".join(
            f"{quoted(name)} {kind}" for name, kind in zip(target.names, target.kinds, strict=True)
        )
        cursor.execute(f"CREATE TEMPORARY TABLE {PART_TABLE} ({columns}) ON COMMIT DROP")
        cursor.adbc_ingest(PART_TABLE, reader, mode="append", db_schema_name="pg_temp")
        table = ".".join(quoted(name) for name in (target.schema, target.table) if name)
        cursor.execute(f"INSERT INTO {table} {target.finish}")
        return _known(cursor.rowcount)
    except Exception:
        # The C stream between the batches and the driver keeps only the text of an error in the batches.
        if failures:
            raise failures[0] from None
        raise


def _known(count: int) -> int:
    if count < 0:
        raise TaskError("the driver does not say how many rows it stored")
    return count


def _claimed(cursor: Any, target: Target, number: int) -> int | None:
    cursor.execute(
        f"SELECT rows FROM {CLAIMS}"
        f" WHERE job_id = {target.job:d} AND part = {literal(target.part)} AND number = {number:d}"
    )
    found = cursor.fetchall()
    return int(found[0][0]) if found else None


def _claim(cursor: Any, target: Target, number: int, stored: Meter) -> bool:
    """Wait for another attempt that is about to commit the same claim; return False if it did."""
    cursor.execute(
        f"INSERT INTO {CLAIMS} (job_id, part, number, rows, bytes, ms)"
        f" VALUES ({target.job:d}, {literal(target.part)}, {number:d}, {_figures(stored)})"
        " ON CONFLICT DO NOTHING"
    )
    return _known(cursor.rowcount) == 1


@contextmanager
def connected(access: Access) -> Iterator[Any]:
    """Provide a connection in a transaction that is rolled back unless committed; raise TaskErrors."""
    connection: Any = None
    try:
        connection = _open(access.dsn)
        with connection.cursor() as cursor:
            settings = ", ".join(
                f"pg_catalog.set_config({literal(name)}, {literal(value)}, false)"
                for name, value in (*access.settings, ("client_encoding", "UTF8"))
            )
            cursor.execute(f"SELECT {settings}")
            # Results that are not fetched are cancelled.
            cursor.fetchall()
            # The server cannot do this on every platform.
            with suppress(adbc_driver_manager.Error):
                cursor.execute(f"SET client_connection_check_interval = {CLIENT_CHECK_MS}")
        connection.adbc_connection.set_autocommit(False)
        yield connection
    except (adbc_driver_manager.Error, pa.ArrowException, OSError) as error:
        # Without the cause: its text quotes the query, and may quote the DSN.
        raise _described(error, access) from None
    finally:
        if connection is not None:
            with suppress(adbc_driver_manager.Error):
                connection.close()


class _Kept:
    """Holds what the driver knows about a database, which must outlive a connection to it."""

    def close(self) -> None:
        pass


def _open(dsn: str) -> Any:
    """Return a connection. The driver's questions about types take ten times as long; a worker asks once."""
    # Kept where it stays for the next task, because this module is created again for each.
    known = vars(adbc_driver_postgresql).setdefault("_headwater_databases", {})
    if dsn not in known:
        if len(known) >= KNOWN_DATABASES:
            return adbc.connect(dsn, autocommit=True)
        known[dsn] = adbc_driver_postgresql.connect(dsn)
    connection = adbc_driver_manager.AdbcConnection(known[dsn])
    return adbc.Connection(_Kept(), connection, autocommit=True)


def _described(error: Exception, access: Access) -> TaskError:
    said = {_text(name): _text(value) for name, value in getattr(error, "details", ())}
    message = said.get("PG_DIAG_MESSAGE_PRIMARY") or str(error).strip()
    parts = {
        "message": message,
        "detail": said.get("PG_DIAG_MESSAGE_DETAIL", ""),
        "hint": said.get("PG_DIAG_MESSAGE_HINT", ""),
    }
    for secret in (access.dsn, *access.secrets):
        parts = {name: text.replace(secret, "***") for name, text in parts.items()}
    sqlstate = getattr(error, "sqlstate", None) or ""
    if not sqlstate and getattr(error, "status_code", None) == adbc_driver_manager.AdbcStatusCode.IO:
        # There is no SQLSTATE: the connection could not be made, or broke.
        sqlstate = CONNECTION_FAILURE
    return TaskError(parts.pop("message"), sqlstate=sqlstate, **parts)


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _check_length(batch: pa.RecordBatch) -> None:
    if batch.nbytes < VALUE_LIMIT:
        return
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if not pa.types.is_string(column.type):
            continue
        longest = pa.compute.max(pa.compute.binary_length(column)).as_py() or 0
        if longest > VALUE_LIMIT:
            raise TaskError(
                f"a value of column {name} has {longest:,} bytes;"
                f" more than {VALUE_LIMIT:,} cannot travel to Spark"
            )


def _chain(first: pa.RecordBatch, rest: Batches) -> Batches:
    yield first
    yield from rest


def _conformed(batches: Batches, schema: pa.Schema, failures: list[Exception]) -> Batches:
    try:
        for batch in batches:
            columns = [
                column.cast(wanted) for column, wanted in zip(batch.columns, schema.types, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)
    except Exception as error:
        failures.append(error)
        raise


def arrow_schema(names: Sequence[str], kinds: Sequence[str]) -> pa.Schema:
    """Return the Arrow form of columns on the wire."""
    types: Mapping[str, pa.DataType] = {"bigint": pa.int64(), "text": pa.string()}
    return pa.schema([(name, types[kind]) for name, kind in zip(names, kinds, strict=True)])


def literal(text: str) -> str:
    """Return a string in SQL, whatever standard_conforming_strings says."""
    escaped = text.replace("'", "''")
    return f"'{escaped}'" if "\\" not in text else "E'" + escaped.replace("\\", "\\\\") + "'"


def quoted(name: str) -> str:
    """Return a name in SQL."""
    return '"' + name.replace('"', '""') + '"'
