"""The data source `headwater` of Spark: tables and queries of PostgreSQL, in parallel, under one snapshot.

Spark creates a data source in one Python process, plans in another, reads in many more, and tells none of
them about the others. So everything that a task needs is in its partition. Planning happens once for a loaded
frame and serves all actions on it; the tasks of an action settle which snapshot it sees (`keeper`).

Filters are not pushed down by Spark's interface for it (`pushFilters`). In Spark 4.3 the filters of one query
stay with the loaded frame and then wrongly restrict every other query over it. The options `where`, `columns`
and `query` serve the same purpose explicitly.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from headwater.catalog.stream_tables import split_name
from headwater.db.connection import Connection, one
from headwater.db.scratch import statement
from headwater.engine.spark.source import snapshots
from headwater.engine.spark.source.changes import ChangeReader, changes_schema
from headwater.engine.spark.source.keeper import Address, Request
from headwater.engine.spark.source.options import Options, open_connection
from headwater.engine.spark.transport import columns, tasks
from headwater.engine.spark.transport.columns import INTEGERS, Rules, Shape, described
from headwater.errors import InvalidQuery, InvalidSetting, NotFound, SnapshotLost
from headwater.plan.quoting import identifier, literal

BLOCKS_PER_PARTITION = 256
"""Unless the user says otherwise, a partition has at least this many blocks: fewer are not worth a task."""
LONGEST_MESSAGE = 6_000
"""Bytes of the names of relations that fit into a message to the keeper."""
NO_ACTION = "none"
"""Stands for the action when an RDD is read outside of Spark SQL: all of these share one snapshot."""


def register(session: SparkSession) -> None:
    """Make the format "headwater" known to a Spark session."""
    # Planning runs where the session cannot be asked, so the class carries the answer.
    kind = type(HeadwaterDataSource.__name__, (HeadwaterDataSource,), {"parallelism": _parallelism(session)})
    session.dataSource.register(kind)


def _parallelism(session: SparkSession) -> int:
    given = session.conf.get("spark.sql.leafNodeDefaultParallelism", None)
    if given is not None:
        return int(given)
    # Through Spark Connect this cannot be asked.
    connected = type(session).__module__.startswith("pyspark.sql.connect.")
    return 8 if connected else int(session.sparkContext.defaultParallelism)


class HeadwaterDataSource(DataSource):
    """`spark.read.format("headwater")` and `spark.readStream.format("headwater")`."""

    parallelism = 1

    @classmethod
    def name(cls) -> str:
        return "headwater"

    def schema(self) -> StructType:
        options = Options(self.options)
        if options.streams:
            return changes_schema(options)
        with open_connection(options.dsn) as connection:
            return _described(connection, options).shape.spark_schema

    def reader(self, schema: StructType) -> DataSourceReader:
        options = Options(self.options)
        if options.streams:
            raise InvalidSetting(
                "a stream table's changes are followed with spark.readStream",
                hint="to read what it holds now, use option table",
            )
        return TableReader(options, schema, self.parallelism)

    def streamReader(self, schema: StructType) -> ChangeReader:
        options = Options(self.options)
        if not options.streams:
            raise InvalidSetting(
                "spark.readStream follows a stream table",
                hint='name it with option("stream_table", "schema.name")',
            )
        return ChangeReader(options, schema)


@dataclass
class Part(InputPartition):
    """What one task reads, and how."""

    dsn: str = field(repr=False)
    statement: str
    shape: Shape
    snapshot: str | None  # given by the user
    address: Address | None  # the keeper to ask for one
    request: Request


class TableReader(DataSourceReader):
    """Reads a table or query."""

    def __init__(self, options: Options, schema: StructType, parallelism: int) -> None:
        self._options = options
        self._schema = schema
        self._parallelism = parallelism

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        with open_connection(options.dsn) as connection:
            found = _described(connection, options)
            columns.check_schema(found.shape, self._schema)
            standby = bool(one(connection, "SELECT pg_is_in_recovery()")[0])
            alone = standby and options.snapshot is None
            conditions = [""] if alone else _split(connection, options, found, self._parallelism)
        # Without NOTIFY, as on a standby, nobody can keep a snapshot for several tasks; a single task has its
        # own.
        address = None if standby or options.snapshot is not None else snapshots.ensure(options.dsn)
        frame = uuid.uuid4().hex
        return [
            Part(
                dsn=options.dsn,
                statement=found.select(condition, options.where),
                shape=found.shape,
                snapshot=options.snapshot,
                address=address,
                request=Request(
                    frame=frame,
                    action="",
                    part=number,
                    parts=len(conditions),
                    reader=0,
                    relations=found.relations,
                    timeout=options.snapshot_timeout.total_seconds(),
                    linger=options.snapshot_linger.total_seconds(),
                ),
            )
            for number, condition in enumerate(conditions)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Part)
        return partition.shape.arrived(_batches(partition))


def _batches(part: Part) -> Iterator[pa.RecordBatch]:
    importing = False
    access = columns.access(part.dsn)
    try:
        with tasks.connected(access) as connection, connection.cursor() as cursor:
            request = _request(part, connection)
            snapshot = part.snapshot
            if part.address is not None:
                snapshot = snapshots.ask(part.dsn, part.address, request)
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            if snapshot is not None:
                importing = True
                cursor.execute(f"SET TRANSACTION SNAPSHOT {literal(snapshot)}")
                importing = False
            yield from columns.rows(cursor, part.statement)
            if part.address is not None:
                cursor.execute(snapshots.done_sql(part.address, request))
                cursor.fetchall()
                connection.adbc_connection.commit()
    except tasks.TaskError as error:
        if importing:
            raise SnapshotLost(
                f"the snapshot {snapshot} has ended",
                detail=error.message,
                hint="the transaction that exported it must stay open until all is read",
            ) from None
        raise columns.failure(error) from None


def _request(part: Part, connection: Any) -> Request:
    """Return the part's request, completed by the reader and the action."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()::bigint")
        [(reader,)] = cursor.fetchall()
    connection.adbc_connection.rollback()
    context = TaskContext.get()
    action = context.getLocalProperty("spark.sql.execution.id") if context is not None else None
    return Request(**{**vars(part.request), "action": action or NO_ACTION, "reader": reader})


@dataclass(frozen=True)
class Described:
    """What is read, as the server knows it."""

    shape: Shape
    source: str  # what follows FROM
    condition: str  # condition that belongs to the source
    relations: tuple[str, ...]  # SQL names of everything that is read
    blocks: int | None  # of the largest table in it, if ctid identifies rows

    def select(self, *conditions: str) -> str:
        """Return the statement for the rows that satisfy conditions."""
        text = f"SELECT {self.shape.select_list('q')} FROM {self.source} AS q"
        given = [condition for condition in (self.condition, *conditions) if condition]
        # On lines of their own: a condition may end in a comment.
        return text + (" WHERE " + "\nAND ".join(f"({condition}\n)" for condition in given) if given else "")


def _described(connection: Connection, options: Options) -> Described:
    rules = options.rules
    if options.query is not None:
        shape, relations = described(connection, options.query, rules)
        found = Described(shape, f"(\n{options.query}\n)", "", relations, None)
    else:
        found = _table(connection, options, rules)
    if sum(len(relation.encode()) + 4 for relation in found.relations) > LONGEST_MESSAGE:
        raise InvalidQuery(
            f"{len(found.relations)} relations are too many to read under one snapshot",
            hint='give one with option("snapshot", …)',
        )
    return found


def _table(connection: Connection, options: Options, rules: Rules) -> Described:
    assert options.table is not None
    schema, name = split_name(options.table)
    written = ".".join(identifier(part) for part in (schema, name) if part is not None)
    row = connection.execute(
        "SELECT c.oid, format('%%I.%%I', n.nspname, c.relname), c.relkind::text FROM pg_catalog.pg_class c"
        " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
        " WHERE c.oid = to_regclass(%s) AND c.relkind IN ('r', 'p', 'v', 'm', 'f')",
        (written,),
    ).fetchone()
    if row is None:
        raise NotFound(
            f"there is no table or view {options.table}", hint="write schema.name, quoted where SQL needs it"
        )
    relation, label, kind = row
    listed = ", ".join(identifier(column) for column in options.columns) or "*"
    shape, relations = described(connection, f"SELECT {listed} FROM {label}", rules)
    if kind == "v":
        storage = _storage(connection, relation)
        if storage is not None:
            table, condition = storage
            return Described(shape, table, condition, relations, _blocks(connection, table))
    return Described(shape, label, "", relations, _blocks(connection, label))


def _storage(connection: Connection, view: int) -> tuple[str, str] | None:
    """Return the table behind a stream table and the condition for visible rows; None for other views."""
    try:
        if one(connection, "SELECT to_regclass('headwater.stream_table') IS NULL")[0]:
            return None
        row = connection.execute(
            "SELECT c.oid::regclass::text, EXISTS (SELECT FROM pg_catalog.pg_attribute a"
            " WHERE a.attrelid = c.oid AND a.attname = '__hw_visible' AND NOT a.attisdropped)"
            " FROM headwater.stream_table st"
            " JOIN pg_catalog.pg_class c ON c.oid = to_regclass('headwater_data.st_' || st.id)"
            " WHERE st.relation = %s::oid AND has_table_privilege(c.oid, 'SELECT')",
            (view,),
        ).fetchone()
    except psycopg.errors.InsufficientPrivilege:
        return None  # then it is read through the view
    return None if row is None else (row[0], "q.__hw_visible" if row[1] else "")


def _blocks(connection: Connection, relation: str) -> int | None:
    """Return the blocks of the largest table among a table and its parts; None if one is no heap."""
    blocks, heaps = one(
        connection,
        "WITH RECURSIVE tree(relation) AS (SELECT %s::regclass::oid"
        " UNION ALL SELECT i.inhrelid FROM tree JOIN pg_catalog.pg_inherits i ON i.inhparent = tree.relation)"
        " SELECT max(CASE c.relkind WHEN 'p' THEN 0 ELSE pg_relation_size(c.oid) END)"
        " / current_setting('block_size')::bigint, bool_and(c.relkind = 'p' OR am.amname = 'heap')"
        " FROM tree JOIN pg_catalog.pg_class c ON c.oid = tree.relation"
        " LEFT JOIN pg_catalog.pg_am am ON am.oid = c.relam AND c.relkind IN ('r', 'm')",
        (relation,),
    )
    return int(blocks) if heaps else None


def _split(connection: Connection, options: Options, found: Described, parallelism: int) -> list[str]:
    """Return a condition for each partition; each row satisfies exactly one, also if added later."""
    if options.partition_column is not None:
        return _column_ranges(connection, options, found, options.partitions or parallelism)
    if found.blocks is None:
        if options.partitions is not None and options.partitions > 1:
            raise InvalidSetting(
                f"{options.table or 'a query'} cannot be split by itself",
                hint='name a column of whole numbers: option("partition_column", …)',
            )
        return [""]
    wanted = options.partitions or max(1, min(parallelism, found.blocks // BLOCKS_PER_PARTITION))
    return ctid_ranges(found.blocks, wanted)


def ctid_ranges(blocks: int, parts: int) -> list[str]:
    """Return conditions that split a table of so many blocks; the last takes what is added later.

    >>> ctid_ranges(10, 2)
    ["q.ctid < '(5,0)'", "q.ctid >= '(5,0)'"]
    """
    return _ranges("q.ctid", [f"'({blocks * part // parts},0)'" for part in range(1, parts)])


def _column_ranges(connection: Connection, options: Options, found: Described, parts: int) -> list[str]:
    name = options.partition_column
    column = next((column for column in found.shape.columns if column.name == name), None)
    if column is None or column.array or column.oid not in INTEGERS:
        raise InvalidSetting(
            f"option partition_column: {name} is not a column of whole numbers",
            hint="use a column of type smallint, integer or bigint that is read",
        )
    reference = f"q.{column.sql}"
    where = f" WHERE ({options.where}\n)" if options.where else ""
    least, greatest = one(
        connection, statement(f"SELECT min({reference}), max({reference}) FROM {found.source} AS q{where}")
    )
    if least is None:
        return [""]
    bounds = sorted({least + (greatest - least + 1) * part // parts for part in range(1, parts)} - {least})
    ranges = _ranges(reference, [str(bound) for bound in bounds])
    if len(ranges) > 1:
        ranges[0] += f" OR {reference} IS NULL"
    return ranges


def _ranges(reference: str, bounds: Sequence[str]) -> list[str]:
    """Return conditions for what lies before the first bound, between two, and after the last.

    >>> _ranges("x", ["3", "5"])
    ['x < 3', 'x >= 3 AND x < 5', 'x >= 5']
    """
    edges = ["", *bounds, ""]
    return [
        " AND ".join(
            [*([f"{reference} >= {low}"] if low else []), *([f"{reference} < {high}"] if high else [])]
        )
        for low, high in itertools.pairwise(edges)
    ]
