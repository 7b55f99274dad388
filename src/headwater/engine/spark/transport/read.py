"""From PostgreSQL into Spark: through the driver for few rows, by tasks under one snapshot for many.

Two transports serve the tasks, with the same ranges, snapshot, settings and SQL. ADBC is always available.
Spark's JDBC source in binary mode is used when its driver is on the session's class path, the DSN can be
expressed in its terms and the table has no long values. Spark must not push down predicates: PostgreSQL could
give other rows for them under its own collation.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal
from urllib.parse import quote

import psycopg
import pyarrow as pa
import pyarrow.csv
from psycopg import pq, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from headwater.db.connection import Connection
from headwater.db.scratch import statement
from headwater.engine.spark.transport import tasks as remote
from headwater.engine.spark.transport.copying import copied
from headwater.engine.spark.transport.wire import BulkRead, Column
from headwater.errors import EngineUnavailable, RefreshFailed

Transport = Literal["auto", "adbc", "jdbc"]

FETCH_LIMIT = 512 << 20
"""The most bytes that come through the driver; larger results are read by tasks."""
JDBC_DRIVER = "org.postgresql.Driver"
JDBC_ROWS = 2_000
"""Rows that the JDBC driver holds at once; more would not be faster."""
JDBC_BUFFER_MB = 128
"""The most memory that these may take; beyond it the driver reports an error instead of exhausting Spark."""
_MINIMAL_BLOCK = 1 << 16
_CTID_COLUMN = "hw_ctid"

# The names of parameters for libpq and for the JDBC driver. A DSN with others uses ADBC.
_JDBC_PARAMETERS = {
    "user": "user",
    "password": "password",
    "application_name": "ApplicationName",
    "options": "options",
    "sslmode": "sslmode",
    "sslrootcert": "sslrootcert",
    "connect_timeout": "connectTimeout",
}
# These have a meaning for libpq alone, or state what the JDBC driver does anyway.
_JDBC_IGNORED = frozenset(
    "host port dbname passfile client_encoding fallback_application_name gssencmode sslcompression sslsni"
    " keepalives keepalives_idle keepalives_interval keepalives_count krbsrvname gssdelegation"
    " sslcertmode ssl_min_protocol_version sslnegotiation min_protocol_version max_protocol_version".split()
)
_HARMLESS_VALUES = {
    "channel_binding": "prefer",
    "target_session_attrs": "any",
    "load_balance_hosts": "disable",
    "replication": "false",
}

# Executors need not have this package.
cloudpickle.register_pickle_by_value(remote)  # type: ignore[no-untyped-call]


def fetch(connection: Connection, query: str, columns: Sequence[Column]) -> pa.Table:
    """Return the rows of a query, through the connection and as its transaction sees them."""
    schema = arrow_schema(columns)
    texts = [sql.Identifier(column.name) for column in columns if column.kind == "text"]
    # NULL is nothing between the commas; an empty text is quoted like every other text.
    copy_out = sql.SQL("COPY ({query}) TO STDOUT (FORMAT csv, ENCODING 'UTF8'{force})").format(
        query=statement(query),
        force=sql.SQL(", FORCE_QUOTE ({})").format(sql.SQL(", ").join(texts)) if texts else sql.SQL(""),
    )
    rows: list[memoryview] = []
    size = longest = 0
    for some in copied(connection, copy_out):
        rows += some
        lengths = [len(row) for row in some]
        size += sum(lengths)
        longest = max(longest, *lengths)
        if longest > remote.VALUE_LIMIT or size > FETCH_LIMIT:
            raise RefreshFailed(
                f"a row of {longest:,} bytes is too long to travel to Spark"
                if longest > remote.VALUE_LIMIT
                else f"more than {FETCH_LIMIT >> 20} MiB were to come through the driver",
                hint="use engine postgres for this stream table",
            )
    if not columns:
        return _without_columns(len(rows))
    if not rows:
        return schema.empty_table()
    return _parsed(b"".join(rows), longest, schema)


def _parsed(data: bytes, longest: int, schema: pa.Schema) -> pa.Table:
    read_options = pa.csv.ReadOptions(
        column_names=schema.names,
        # A row must fit into a block.
        block_size=max(longest + 1, _MINIMAL_BLOCK, min(len(data) + 1, 1 << 24)),
        use_threads=len(data) > 1 << 22,
    )
    parse_options = pa.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False)
    convert_options = pa.csv.ConvertOptions(
        column_types=schema,
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    try:
        return pa.csv.read_csv(
            pa.BufferReader(data),
            read_options=read_options,
            parse_options=parse_options,
            convert_options=convert_options,
        )
    except pa.ArrowInvalid as error:
        raise RefreshFailed(
            "rows from PostgreSQL cannot be read",
            detail=str(error),
            hint="text that is not in the database's encoding cannot travel; use engine postgres",
        ) from error


def _without_columns(rows: int) -> pa.Table:
    nothing = pa.StructArray.from_buffers(pa.struct([]), rows, [None])
    return pa.Table.from_batches([pa.RecordBatch.from_struct_array(nothing)])


def bulk_frame(
    session: SparkSession,
    dsn: str,
    snapshot: str,
    read: BulkRead,
    *,
    pages: int,
    tasks: int,
    settings: Mapping[str, str],
    transport: Transport = "auto",
    note: remote.Note | None = None,
) -> DataFrame:
    """Return a frame whose partitions read their ranges in an action; the snapshot must live until then.

    With ADBC, tasks record for a job what they read.
    """
    if transport == "auto":
        transport = suitable_transport(session, dsn, read)
    spoken = jdbc_address(dsn) if transport == "jdbc" and jdbc_available(session) else None
    if spoken is not None:
        ranges = ctid_ranges(_CTID_COLUMN if read.ctid else None, pages, tasks)
        return _jdbc_frame(session, spoken, snapshot, read, ranges, settings)
    if transport == "jdbc":
        raise EngineUnavailable(
            "the transport jdbc cannot be used",
            hint=f"put the jar of {JDBC_DRIVER} on the class path (spark.jars); the DSN must name a TCP host",
        )
    ranges = ctid_ranges(read.ctid, pages, tasks)
    run = remote.reading(
        access(dsn, settings),
        snapshot,
        [_statement(read, read.select, bounds) for bounds in ranges],
        [column.name for column in read.columns],
        [column.kind for column in read.columns],
        note,
    )
    count = len(ranges)
    return session.range(0, count, 1, count).mapInArrow(run, spark_schema(read.columns))


def suitable_transport(session: SparkSession, dsn: str, read: BulkRead) -> Transport:
    """Return the transport: JDBC fetches by number of rows, ADBC by size, so long rows are for ADBC."""
    if not jdbc_available(session) or jdbc_address(dsn) is None:
        return "adbc"
    return "jdbc" if _short_rows(dsn, read.relation) else "adbc"


def ctid_ranges(ctid: str | None, pages: int, tasks: int) -> list[str]:
    """Return conditions that share out the pages; the last is open, because the table may have grown.

    >>> ctid_ranges("ctid", 10, 2)
    ["ctid < '(5,0)'::pg_catalog.tid", "ctid >= '(5,0)'::pg_catalog.tid"]
    """
    count = max(1, min(tasks, pages))
    if ctid is None or count == 1:
        return [""]
    bounds = [f"'({pages * number // count},0)'::pg_catalog.tid" for number in range(1, count)]
    lower = ["", *(f"{ctid} >= {bound}" for bound in bounds)]
    upper = [*(f"{ctid} < {bound}" for bound in bounds), ""]
    return [" AND ".join(filter(None, pair)) for pair in zip(lower, upper, strict=True)]


def _statement(read: BulkRead, select: str, bounds: str = "") -> str:
    conditions = [f"({condition})" for condition in read.conditions] + ([bounds] if bounds else [])
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    return f"{select} FROM {read.source}{where}"


def _jdbc_frame(
    session: SparkSession,
    address: tuple[str, dict[str, str]],
    snapshot: str,
    read: BulkRead,
    ranges: list[str],
    settings: Mapping[str, str],
) -> DataFrame:
    url, properties = address
    configured = ", ".join(
        f"pg_catalog.set_config({remote.literal(name)}, {remote.literal(value)}, false)"
        for name, value in settings.items()
    )
    prepared = [
        "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY",
        f"SET TRANSACTION SNAPSHOT {remote.literal(snapshot)}",
        *([f"SELECT {configured}"] if configured else []),
    ]
    select = read.select if read.ctid is None else f"{read.select}, {read.ctid} AS {_CTID_COLUMN}"
    frame = session.read.jdbc(
        url,
        f"({_statement(read, select)}) AS hw",
        predicates=[bounds or "TRUE" for bounds in ranges],
        properties={
            **properties,
            "driver": JDBC_DRIVER,
            "prepareThreshold": "-1",
            "fetchsize": str(JDBC_ROWS),
            "maxResultBuffer": f"{JDBC_BUFFER_MB}M",
            "sessionInitStatement": "; ".join(prepared),
            "pushDownPredicate": "false",
            "pushDownLimit": "false",
        },
    )
    return frame.select(*(_spark_name(column.name) for column in read.columns))


def _short_rows(dsn: str, relation: str | None) -> bool:
    """Tell whether a table has no value that had to be stored outside its row."""
    if relation is None:
        return False
    question = (
        "SELECT coalesce(pg_catalog.pg_relation_size(nullif(reltoastrelid, 0)), 0) = 0"
        " FROM pg_catalog.pg_class WHERE oid = %s::pg_catalog.regclass"
    )
    try:
        with psycopg.connect(dsn, autocommit=True) as connection:
            row = connection.execute(question, (relation,)).fetchone()
    except psycopg.Error:
        return False
    return row is not None and bool(row[0])


def jdbc_available(session: SparkSession) -> bool:
    """Tell whether the session can load PostgreSQL's JDBC driver; unknown through Spark Connect."""
    jvm: Any = getattr(session, "_jvm", None)
    if jvm is None:
        return False
    loader = jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader()
    return loader.getResource(JDBC_DRIVER.replace(".", "/") + ".class") is not None


def jdbc_address(dsn: str) -> tuple[str, dict[str, str]] | None:
    """Return a DSN, with the environment's additions, as JDBC URL and properties; None if it cannot be.

    >>> url, properties = jdbc_address("postgresql://ann:secret@db:5433/shop?sslmode=require")
    >>> url, properties["user"], properties["sslmode"]
    ('jdbc:postgresql://db:5433/shop', 'ann', 'require')
    >>> jdbc_address("dbname=shop host=/var/run/postgresql") is None
    True
    """
    every = _complete(dsn)
    if set(every) - _JDBC_IGNORED - set(_JDBC_PARAMETERS) - set(_HARMLESS_VALUES):
        return None
    if any(every.get(name, harmless) != harmless for name, harmless in _HARMLESS_VALUES.items()):
        return None
    hosts = every.get("host", "").split(",")
    ports = every.get("port", "5432").split(",")
    if any(not host or host.startswith(("/", "@")) for host in hosts) or len(ports) not in (1, len(hosts)):
        return None
    if len(ports) == 1:
        ports *= len(hosts)
    places = ",".join(
        f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        for host, port in zip(hosts, ports, strict=True)
    )
    database = quote(every.get("dbname") or every.get("user", ""), safe="")
    properties = {_JDBC_PARAMETERS[name]: value for name, value in every.items() if name in _JDBC_PARAMETERS}
    return f"jdbc:postgresql://{places}/{database}", properties


def access(dsn: str, settings: Mapping[str, str]) -> remote.Access:
    """Return what tasks need to connect, also in another environment, and what they must not show."""
    parts = _complete(dsn)
    password = parts.get("password")
    secrets = (password, quote(password, safe="")) if password else ()
    return remote.Access(make_conninfo("", **parts), tuple(settings.items()), (dsn, *secrets))


def _complete(dsn: str) -> dict[str, str]:
    """Return the parameters of a DSN, with those that the environment adds to it here."""
    return {**_environment(), **_given(dsn)}


def _given(dsn: str) -> dict[str, str]:
    return {name: str(value) for name, value in conninfo_to_dict(dsn).items() if value not in (None, "")}


def _environment() -> dict[str, str]:
    found = {}
    for option in pq.Conninfo.get_defaults():
        if (
            option.val
            and option.envvar
            and (option.envvar.decode() in os.environ or option.keyword == b"user")
        ):
            found[option.keyword.decode()] = option.val.decode()
    return found


def arrow_schema(columns: Sequence[Column]) -> pa.Schema:
    return remote.arrow_schema([column.name for column in columns], [column.kind for column in columns])


def spark_schema(columns: Sequence[Column]) -> StructType:
    types = {"bigint": LongType(), "text": StringType()}
    return StructType([StructField(column.name, types[column.kind]) for column in columns])


def _spark_name(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
