"""Following a stream table from a streaming query of Spark, exactly once.

Spark records the positions of a batch before it reads it, and reads it again from the same positions if it
dies before it has recorded that the batch is done. What lies between two positions never changes
(`headwater.capture.consumers`), so a sink that takes each batch once gets each change once. Spark commits a
position when the next batch is recorded, and only then are its change rows deleted.

While a query runs, its driver holds a lock on the consumer's name: of two queries under one name, the second
one waits a little and then fails.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pyarrow as pa
from pyspark.sql import types as spark
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from headwater.capture import consumers
from headwater.capture.consumers import Position
from headwater.catalog import installed
from headwater.catalog import stream_tables as catalog
from headwater.catalog.stream_tables import StreamTable
from headwater.db.connection import PINNED_SETTINGS, Connection, connect, one, transaction, translated
from headwater.db.route import Route
from headwater.definition.reader import DefinitionReader
from headwater.definition.views import definition_oid
from headwater.engine.spark.source.options import Options
from headwater.engine.spark.transport import columns, tasks
from headwater.engine.spark.transport.columns import ReadColumn, Shape, described
from headwater.errors import AlreadyExists, HeadwaterError, InvalidSetting
from headwater.plan.quoting import identifier
from headwater.plan.storage_plan import GroupPlan
from headwater.plan.values import WEIGHT

WEIGHT_COLUMN = ReadColumn("_weight", "bigint", 20, spark.LongType())
CHANGE_COLUMN = ReadColumn("_change", "text", 25, spark.StringType())
CONSUMER_LOCK = 1_214_609
"""Class of the session locks of running queries, one for each consumer."""
LOCK_SECONDS = 15.0
"""How long a query waits for another one under its name, which may just be ending."""
LOOK_SECONDS = 0.2
"""Spark asks for news a hundred times a second; the server is asked no more often than this."""


def changes_schema(options: Options) -> spark.StructType:
    """Return the columns of a change stream."""
    with connect(options.dsn) as connection:
        installed.require_ready(connection)
        return _shape(connection, catalog.find(connection, options.stream_table), options).spark_schema


def _route(dsn: str) -> Route:
    """Return the route past a pooler, or through one whose sessions the environment says are exclusive."""
    return Route.given(dsn, None, {}, os.environ)


def _shape(connection: Connection, stream_table: StreamTable, options: Options) -> Shape:
    extra = WEIGHT_COLUMN if options.changes == "weights" else CHANGE_COLUMN
    view = f"{identifier(stream_table.schema)}.{identifier(stream_table.name)}"
    shape, _ = described(connection, f"SELECT * FROM {view}", options.rules)
    if any(column.name == extra.name for column in shape.columns):
        raise InvalidSetting(
            f"{stream_table.label} has a column {extra.name}, as the change stream has",
            hint="give it another alias in the stream table's query",
        )
    return Shape((*shape.columns, extra))


@dataclass
class Batch(InputPartition):
    """The one partition of a batch."""

    dsn: str = field(repr=False)
    consumer: str
    check: str  # a query that tells whether the changes are kept
    statement: str
    shape: Shape


class ChangeReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Positions and batches of one streaming query."""

    def __init__(self, options: Options, schema: spark.StructType) -> None:
        self._options = options
        self._schema = schema
        self._connection: Connection | None = None
        self._initial: Position | None = None
        self._limit: str | None = None
        self._looked = 0.0

    def initialOffset(self) -> dict[str, Any]:
        # Spark asks repeatedly until there is a first batch.
        if self._initial is None:
            options = self._options
            with _told(options.consumer):
                connection = self._connected()
                stream_table = catalog.find(connection, options.stream_table)
                self._initial = consumers.begin(connection, stream_table, options.consumer, options.start)
                if self._limit is not None:
                    self._limit = _now(connection)  # Spark asks for it first, before there is a beginning
        return vars(self._initial)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        time.sleep(max(0.0, self._looked + LOOK_SECONDS - time.monotonic()))
        with _told(self._options.consumer):
            connection = self._connected()
            since = Position(**start)
            found = consumers.latest(connection, since, self._limit)
            consumers.seen(connection, since.consumer)
        self._looked = time.monotonic() if found == since else 0.0
        return vars(found)

    def prepareForTriggerAvailableNow(self) -> None:
        with _told(self._options.consumer):
            self._limit = _now(self._connected())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        since, until = Position(**start), Position(**end)
        if since == until:
            return []
        options = self._options
        with _told(options.consumer):
            connection = self._connected()
            stream_table = catalog.find(connection, options.stream_table)
            consumers.check(connection, since, until)
            shape = _shape(connection, stream_table, options)
            columns.check_schema(shape, self._schema)
            weighted = consumers.changes_sql(connection, since, until)
            key = self._key(connection, stream_table) if options.changes == "rows" else None
        source = with_weights(weighted) if options.changes == "weights" else as_rows(weighted, shape, key)
        return [
            Batch(
                dsn=options.dsn,
                consumer=options.consumer,
                check=consumers.kept_sql(since, until),
                statement=f"SELECT {shape.select_list('q')} FROM (\n{source}\n) AS q",
                shape=shape,
            )
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Batch)
        return partition.shape.arrived(_batches(partition))

    def commit(self, end: dict[str, Any]) -> None:
        with _told(self._options.consumer):
            consumers.commit(self._connected(), Position(**end))

    def stop(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _connected(self) -> Connection:
        """Return the connection of this query, which holds the lock on the consumer's name."""
        if self._connection is None or self._connection.closed:
            connection = _route(self._options.dsn).session(f"consumer {self._options.consumer}")
            try:
                installed.require_ready(connection)
                _lock(connection, self._options.consumer)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _key(self, connection: Connection, stream_table: StreamTable) -> tuple[str, ...] | None:
        """Return the columns that identify a row, if they are shown; empty for a single row."""
        with transaction(connection, rollback=True):
            definition = DefinitionReader(connection).read(definition_oid(connection, stream_table.id))
        if not isinstance(definition.plan, GroupPlan):
            return None
        shown = {column.name for column in definition.columns}
        key = tuple(definition.plan.stored_keys.values())
        return key if shown.issuperset(key) else None


def with_weights(weighted: str) -> str:
    """Return each changed row with how many copies were added or, below zero, removed."""
    return f"SELECT c.*, c.{WEIGHT} AS {WEIGHT_COLUMN.sql} FROM (\n{weighted}\n) AS c"


def as_rows(weighted: str, shape: Shape, key: tuple[str, ...] | None) -> str:
    """Return each added or removed row as often as it occurs; both rows of one key as an update."""
    listed = "".join(f"p.{column.sql}, " for column in shape.columns if column is not CHANGE_COLUMN)
    paired = "false"
    if key is not None:
        group = f"PARTITION BY {', '.join(f'c.{identifier(name)}' for name in key)}" if key else ""
        paired = (
            f"count(*) OVER ({group}) = 2 AND min(c.{WEIGHT}) OVER ({group}) = -1"
            f" AND max(c.{WEIGHT}) OVER ({group}) = 1"
        )
    kind = (
        f"CASE WHEN p.{WEIGHT} < 0 THEN CASE WHEN p.__hw_paired THEN 'update_before' ELSE 'delete' END"
        f" WHEN p.__hw_paired THEN 'update_after' ELSE 'insert' END"
    )
    return (
        f"SELECT {listed}{kind} AS {CHANGE_COLUMN.sql}"
        f" FROM (SELECT c.*, {paired} AS __hw_paired FROM (\n{weighted}\n) AS c) AS p,"
        f" generate_series(1, abs(p.{WEIGHT}))"
    )


def _batches(batch: Batch) -> Iterator[pa.RecordBatch]:
    access = columns.access(batch.dsn, PINNED_SETTINGS)
    try:
        with tasks.connected(access) as connection, connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            cursor.execute(batch.check)
            if not cursor.fetchone()[0]:
                raise consumers.lost(batch.consumer)
            yield from columns.rows(cursor, batch.statement)
    except tasks.TaskError as error:
        raise columns.failure(error) from None


def _now(connection: Connection) -> str:
    return str(one(connection, "SELECT pg_current_snapshot()::text")[0])


def _lock(connection: Connection, consumer: str) -> None:
    deadline = time.monotonic() + LOCK_SECONDS
    while not one(connection, "SELECT pg_try_advisory_lock(%s, hashtext(%s))", (CONSUMER_LOCK, consumer))[0]:
        if time.monotonic() > deadline:
            raise AlreadyExists(
                f"another query runs as consumer {consumer}",
                hint="stop it first, or use another name for this one",
            )
        time.sleep(LOOK_SECONDS)


@contextmanager
def _told(consumer: str) -> Iterator[None]:
    """Translate errors of the server into ours."""
    try:
        yield
    except psycopg.Error as error:
        raise translated(error, f"consumer {consumer}", HeadwaterError) from None
