"""The data source "headwater": every value as it is, every action at one snapshot, nothing left behind."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import headwater
import headwater.spark
from headwater.engine.spark.source import datasource, keeper, snapshots
from headwater.engine.spark.source.options import Options, open_connection
from headwater.errors import (
    ConnectionFailed,
    HeadwaterError,
    InvalidQuery,
    InvalidSetting,
    MissingPrivilege,
    NotFound,
    SnapshotLost,
    UnsupportedValue,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Connection = psycopg.Connection[Any]
Load = Callable[..., "DataFrame"]


@pytest.fixture
def load(spark: SparkSession, dsn: str, conn: Connection) -> Iterator[Load]:
    """Loads a frame with options; its keeper is gone before the database is."""
    headwater.spark.register(spark)

    def read(**options: str) -> DataFrame:
        given = {"dsn": dsn, "snapshot_linger": "5s", **options}
        return spark.read.format("headwater").options(**given).load()

    yield read
    end_keepers(conn)


@pytest.fixture
def keepers(conn: Connection) -> Iterator[None]:
    """Ends the keepers that a test without Spark started."""
    yield
    end_keepers(conn)


def end_keepers(conn: Connection) -> None:
    conn.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name LIKE 'headwater%' AND pid <> pg_backend_pid()"
    )


def sessions(conn: Connection, state: str = "%") -> int:
    row = conn.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name LIKE 'headwater%%' AND state LIKE %s",
        (state,),
    ).fetchone()
    assert row is not None
    return int(row[0])


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def read_here(dsn: str, **options: str) -> list[dict[str, Any]]:
    """What tasks would read, without Spark's processes and without a keeper."""
    with headwater.spark.snapshot(dsn) as snapshot:
        return rows_of(reader_here(dsn, snapshot=snapshot, **options))


def rows_of(reader: datasource.TableReader) -> list[dict[str, Any]]:
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def reader_here(dsn: str, **options: str) -> datasource.TableReader:
    given = Options({"dsn": dsn, **options})
    with open_connection(dsn) as connection:
        schema = datasource._described(connection, given).shape.spark_schema
    return datasource.TableReader(given, schema, 2)


# Types

UUID = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
# SQL type, a value in SQL, the same in Python, the type in Spark.
VALUES: list[tuple[str, str, Any, str]] = [
    ("smallint", "-32768", -32768, "smallint"),
    ("integer", "2147483647", 2147483647, "int"),
    ("bigint", "-9223372036854775808", -9223372036854775808, "bigint"),
    ("boolean", "true", True, "boolean"),
    ("real", "1.1", 1.100000023841858, "float"),
    ("double precision", "'-Infinity'", float("-inf"), "double"),
    ("numeric(10,2)", "1234.50", Decimal("1234.50"), "decimal(10,2)"),
    ("numeric(38,0)", "9" * 38, Decimal("9" * 38), "decimal(38,0)"),
    ("numeric(3,-2)", "12345", Decimal(12300), "decimal(5,0)"),
    ("numeric(2,4)", "0.0012", Decimal("0.0012"), "decimal(4,4)"),
    ("numeric(39,1)", "0.1", "0.1", "string"),
    ("numeric", "0.000000000000000000000000000001", "0.000000000000000000000000000001", "string"),
    ("text", "'ä\n\t\"'", 'ä\n\t"', "string"),
    ("varchar(5)", "''", "", "string"),
    ("char(4)", "'ab'", "ab  ", "string"),
    ("name", "'n'", "n", "string"),
    ('"char"', "'c'", "c", "string"),
    ("uuid", f"'{UUID}'", UUID, "string"),
    ("json", '\'{"b": 1,  "a": 2}\'', '{"b": 1,  "a": 2}', "string"),
    ("jsonb", '\'{"b": 1,  "a": 2}\'', '{"a": 2, "b": 1}', "string"),
    ("mood", "'glad'", "glad", "string"),
    ("short", "'abc'", "abc", "string"),
    ("amount", "1.5", Decimal("1.50"), "decimal(8,2)"),
    ("date", "'0044-03-15'", dt.date(44, 3, 15), "date"),
    ("timestamp", "'2024-02-29 23:59:59.5'", dt.datetime(2024, 2, 29, 23, 59, 59, 500000), "timestamp_ntz"),
    ("timestamptz", "'2024-02-29 12:00+02'", dt.datetime(2024, 2, 29, 10, tzinfo=dt.UTC), "timestamp"),
    ("bytea", "'\\x00ff'", b"\x00\xff", "binary"),
    ("interval", "'1 mon 2 days 03:00'", "1 mon 2 days 03:00:00", "string"),
    ("time", "'12:00'", "12:00:00", "string"),
    ("timetz", "'12:00+02'", "12:00:00+02", "string"),
    ("inet", "'10.0.0.1/8'", "10.0.0.1/8", "string"),
    ("oid", "4294967295", "4294967295", "string"),
    ("int4range", "'[1,3)'", "[1,3)", "string"),
    ("pair", "ROW(1, 'x')", "(1,x)", "string"),
    ("integer[]", "'[5:7]={1,NULL,3}'", [1, None, 3], "array<int>"),
    ("text[]", "ARRAY['a', NULL, '']", ["a", None, ""], "array<string>"),
    ("boolean[]", "ARRAY[true]", [True], "array<boolean>"),
    ("real[]", "'{}'", [], "array<float>"),
    ("numeric(6,2)[]", "ARRAY[1.5, NULL]", [Decimal("1.50"), None], "array<decimal(6,2)>"),
    ("numeric[]", "ARRAY[1.50]", ["1.50"], "array<string>"),
    ("uuid[]", f"ARRAY['{UUID}'::uuid]", [UUID], "array<string>"),
    ("mood[]", "ARRAY['sad'::mood]", ["sad"], "array<string>"),
    ("short[]", "ARRAY['abc'::short]", ["abc"], "array<string>"),
    ("date[]", "ARRAY[date '2024-01-01']", [dt.date(2024, 1, 1)], "array<date>"),
    ("timestamptz[]", "'{2024-01-01 00:00Z}'", [dt.datetime(2024, 1, 1, tzinfo=dt.UTC)], "array<timestamp>"),
]  # fmt: skip


@pytest.fixture
def values(conn: Connection) -> str:
    """A table with a column for each type, and three rows: the value, NULLs, the value."""
    conn.execute("CREATE TYPE mood AS ENUM ('sad', 'glad')")
    conn.execute("CREATE DOMAIN short AS varchar(3)")
    conn.execute("CREATE DOMAIN cash AS numeric(8,2); CREATE DOMAIN amount AS cash")
    conn.execute("CREATE TYPE pair AS (a int, b text)")
    columns = ", ".join(f"c{number} {kind}" for number, (kind, *_) in enumerate(VALUES))
    row = ", ".join(text for _, text, *_ in VALUES)
    conn.execute(f"CREATE TABLE every_type ({columns})".encode())
    conn.execute(f"INSERT INTO every_type VALUES ({row})".encode())
    conn.execute("INSERT INTO every_type SELECT")
    conn.execute(f"INSERT INTO every_type VALUES ({row})".encode())
    return "public.every_type"


def test_every_type_arrives_as_it_is(load: Load, spark: SparkSession, values: str) -> None:
    frame = load(table=values)
    assert [field.dataType.simpleString() for field in frame.schema] == [kind for *_, kind in VALUES]
    first, nulls, last = frame.toArrow().to_pylist()
    wanted = {f"c{number}": value for number, (_, _, value, _) in enumerate(VALUES)}
    assert first == wanted
    assert last == wanted
    assert set(nulls.values()) == {None}
    # The values are in Spark itself what they are in Arrow.
    assert frame.filter("c5 = double('-Infinity') AND c23 = date'0044-03-15' AND c34[2] = 3").count() == 2


@pytest.mark.parametrize("kind", ["date", "timestamp", "timestamptz"])
@pytest.mark.parametrize("value", ["infinity", "-infinity"])
def test_infinity_is_refused_unless_told_otherwise(dsn: str, conn: Connection, kind: str, value: str) -> None:
    query = f"SELECT 1 AS a, '{value}'::{kind} AS b UNION ALL SELECT 2, '2024-01-01' ORDER BY 1"
    with pytest.raises(UnsupportedValue) as caught:
        read_here(dsn, query=query)
    assert "column b" in caught.value.message
    assert "infinity" in caught.value.hint
    first, second = read_here(dsn, query=query, infinity="null")
    assert first["b"] is None
    assert second["b"].year == 2024
    first, second = read_here(dsn, query=query, infinity="clamp")
    assert first["b"].year == (1 if value.startswith("-") else 9999)
    assert second["b"].year == 2024


@pytest.mark.parametrize(
    "expression",
    [
        "ARRAY[[1, 2], [3, 4]]",
        "ARRAY[date 'infinity']",
        "timestamp '294276-01-01'",
        "'NaN'::numeric(5,2)",
    ],
)
def test_a_value_without_an_equal_is_refused(dsn: str, expression: str) -> None:
    with pytest.raises(UnsupportedValue) as caught:
        read_here(dsn, query=f"SELECT 1 AS a, {expression} AS b")
    assert "column b" in caught.value.message


def test_numeric_without_precision_is_never_rounded(dsn: str) -> None:
    query = "SELECT 1.5 AS a UNION ALL SELECT 0.1234567890123456789"
    assert {row["a"] for row in read_here(dsn, query=query)} == {"1.5", "0.1234567890123456789"}
    with pytest.raises(UnsupportedValue):
        read_here(dsn, query=query, numeric="decimal(38,18)")
    rows = read_here(dsn, query=query, numeric="decimal(38,19)")
    assert {row["a"] for row in rows} == {Decimal("1.5"), Decimal("0.1234567890123456789")}
    with pytest.raises(UnsupportedValue):
        read_here(dsn, query="SELECT 'Infinity'::numeric AS a", numeric="decimal(38,18)")


# One snapshot


def test_writers_do_not_tear_a_parallel_read(load: Load, dsn: str, conn: Connection) -> None:
    accounts, each = 4_000, 100
    conn.execute(
        "CREATE TABLE account (id int PRIMARY KEY, balance bigint NOT NULL, pad text) WITH (fillfactor = 50)"
    )
    conn.execute(
        "INSERT INTO account SELECT g, %s, repeat('x', 200) FROM generate_series(1, %s) g", (each, accounts)
    )
    ended = threading.Event()

    def transfer() -> None:
        with psycopg.connect(dsn, autocommit=True) as writer:
            while not ended.is_set():
                # Between rows that different partitions read; also moves rows to other pages.
                writer.execute(
                    "WITH m AS MATERIALIZED (SELECT (random() * 50)::int AS sum,"
                    " (random() * 1999)::int + 1 AS a, (random() * 1999)::int + 2001 AS b)"
                    " UPDATE account SET balance = balance + CASE WHEN id = m.a THEN m.sum ELSE -m.sum END"
                    " FROM m WHERE id IN (m.a, m.b)"
                )

    writers = [threading.Thread(target=transfer) for _ in range(2)]
    for writer in writers:
        writer.start()
    try:
        frame = load(table="account", partitions="8")
        seen = set()
        for _ in range(2):
            rows = frame.selectExpr("count(*)", "count(DISTINCT id)", "sum(balance)", "sum(balance * id)")
            [(count, distinct, total, image)] = rows.collect()
            assert (count, distinct, total) == (accounts, accounts, accounts * each)
            seen.add(image)
        assert len(seen) > 1, "the writers did nothing, or every action saw the same snapshot"
        # Both sides of a join of a frame with itself are one snapshot.
        pairs = frame.alias("a").join(frame.alias("b"), "id").filter("a.balance <> b.balance")
        assert pairs.count() == 0
    finally:
        ended.set()
        for writer in writers:
            writer.join()


def test_an_action_sees_what_was_committed_before_it(load: Load, conn: Connection) -> None:
    conn.execute("CREATE TABLE item AS SELECT g AS id FROM generate_series(1, 5000) g")
    frame = load(table="item", partitions="4")
    assert frame.rdd.getNumPartitions() == 4
    assert frame.count() == 5000
    conn.execute("INSERT INTO item SELECT g FROM generate_series(5001, 20000) g")
    assert frame.count() == 20000
    assert len(frame.take(12000)) == 12000
    assert [row.id for row in frame.orderBy("id").take(3)] == [1, 2, 3]
    assert frame.filter("id = 7").count() == 1
    assert frame.filter("id = 7").union(frame.filter("id = 8")).count() == 2
    assert frame.count() == 20000
    wait_for(lambda: sessions(conn, "idle in transaction") == 0, "a snapshot stayed")


def test_a_snapshot_for_several_frames(load: Load, dsn: str, conn: Connection) -> None:
    conn.execute("CREATE TABLE item AS SELECT g AS id FROM generate_series(1, 1000) g")
    with headwater.spark.snapshot(dsn, "public.item") as snapshot:
        conn.execute("DELETE FROM item WHERE id > 10")
        frame = load(table="item", partitions="3", snapshot=snapshot)
        other = load(query="SELECT id FROM item", snapshot=snapshot)
        assert frame.join(other, "id").count() == 1000
        with pytest.raises(psycopg.errors.LockNotAvailable):
            conn.execute("SET lock_timeout = '100ms'; TRUNCATE item")
    with pytest.raises(Exception, match="has ended") as caught:
        frame.count()
    assert "SnapshotLost" in str(caught.value)
    assert sessions(conn) == 0, "a keeper was started although a snapshot was given"


# What is read


def test_parts_of_a_table(dsn: str, conn: Connection, keepers: None) -> None:
    conn.execute('CREATE TABLE item (id int, "Some, Name" text, other int)')
    conn.execute("INSERT INTO item SELECT g, 'n' || g, g % 3 FROM generate_series(1, 3000) g")
    rows = read_here(
        dsn, table="item", columns='"Some, Name", ID', where="other = 1 -- only these", partitions="5"
    )
    assert sorted(row["id"] for row in rows) == list(range(1, 3001, 3))
    assert list(rows[0]) == ["Some, Name", "id"]
    with headwater.spark.snapshot(dsn) as snapshot:
        reader = reader_here(dsn, table="item", snapshot=snapshot)
        assert len(reader.partitions()) == 1, "a small table is not worth two tasks"


@pytest.mark.parametrize("parts", ["1", "2", "30"])
def test_ranges_of_a_column_cover_everything_once(
    dsn: str, conn: Connection, keepers: None, parts: str
) -> None:
    conn.execute("CREATE TABLE item (id bigint)")
    conn.execute(
        "INSERT INTO item SELECT CASE WHEN g % 10 > 0 THEN g * g - 500 END FROM generate_series(1, 200) g"
    )
    conn.execute("INSERT INTO item VALUES (9223372036854775807), (-9223372036854775808)")
    conn.execute("CREATE VIEW shown AS SELECT id FROM item")
    wanted = sorted(str(row[0]) for row in conn.execute("SELECT id FROM item"))
    for options in ({"table": "shown"}, {"query": "SELECT id FROM item;"}):
        rows = read_here(dsn, partitions=parts, partition_column="id", **options)
        assert sorted(str(row["id"]) for row in rows) == wanted


def test_ranges_cover_what_comes_after_planning(dsn: str, conn: Connection, keepers: None) -> None:
    conn.execute("CREATE TABLE item AS SELECT g AS id FROM generate_series(1, 1000) g")
    planned = [
        (reader, reader.partitions())
        for options in ({}, {"partition_column": "id"})
        for reader in [reader_here(dsn, table="item", partitions="3", **options)]
    ]
    conn.execute("INSERT INTO item SELECT g FROM generate_series(-5000, 0) g; INSERT INTO item VALUES (NULL)")
    for reader, parts in planned:
        assert sum(batch.num_rows for part in parts for batch in reader.read(part)) == 6002


def test_partitioned_and_inherited_tables(dsn: str, conn: Connection) -> None:
    conn.execute("CREATE TABLE event (id int, day int) PARTITION BY LIST (day)")
    for day in range(3):
        conn.execute(f"CREATE TABLE event_{day} PARTITION OF event FOR VALUES IN ({day})".encode())
    conn.execute("INSERT INTO event SELECT g, least(g % 9, 2) FROM generate_series(1, 9000) g")
    assert sorted(row["id"] for row in read_here(dsn, table="event", partitions="4")) == list(range(1, 9001))
    conn.execute("CREATE TABLE parent (id int); CREATE TABLE child () INHERITS (parent)")
    conn.execute("INSERT INTO parent VALUES (1); INSERT INTO child SELECT g FROM generate_series(2, 1000) g")
    assert sorted(row["id"] for row in read_here(dsn, table="parent", partitions="2")) == list(range(1, 1001))


def test_a_stream_table_is_read_in_parallel(dsn: str, conn: Connection, keepers: None) -> None:
    conn.execute("CREATE TABLE sale (id int, shop int, amount numeric(10,2))")
    conn.execute("INSERT INTO sale SELECT g, g % 2000, g FROM generate_series(1, 4000) g")
    with headwater.connect(dsn) as hw:
        hw.create(
            "totals", "SELECT shop, sum(amount) AS total FROM sale GROUP BY shop HAVING sum(amount) > 2500"
        )
    with headwater.spark.snapshot(dsn) as snapshot:
        planned = reader_here(dsn, table="totals", partitions="3", snapshot=snapshot).partitions()
    assert len(planned) == 3
    assert all("headwater_data" in part.statement for part in planned)  # type: ignore[attr-defined]
    rows = {(row["shop"], Decimal(row["total"])) for row in read_here(dsn, table="totals", partitions="3")}
    assert rows == set(conn.execute("SELECT * FROM totals"))
    assert 0 < len(rows) < 2000


def test_a_materialized_view_and_a_temporary_name(dsn: str, conn: Connection) -> None:
    conn.execute("CREATE MATERIALIZED VIEW seen AS SELECT g AS id FROM generate_series(1, 3000) g")
    assert len(read_here(dsn, table="seen", partitions="3")) == 3000
    conn.execute("CREATE SCHEMA mine; CREATE TABLE mine.item AS SELECT 1 AS id")
    conn.execute(f"ALTER DATABASE {conn.info.dbname} SET search_path = mine, public".encode())
    assert read_here(dsn, table="item") == [{"id": 1}]
    assert read_here(dsn, query="SELECT * FROM item") == [{"id": 1}]


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"table": "nowhere"}, NotFound, "nowhere"),
        ({"query": "SELEC 1"}, InvalidQuery, "syntax error"),
        ({"query": "SELECT 1 AS a, 2 AS a"}, InvalidQuery, "two columns are called a"),
        ({}, InvalidSetting, "table and query"),
        ({"table": "t", "query": "SELECT 1"}, InvalidSetting, "table and query"),
        ({"table": "t", "partition": "3"}, InvalidSetting, "no option partition"),
        ({"table": "t", "consumer": "x"}, InvalidSetting, "without stream_table"),
        ({"table": "t", "partitions": "0"}, InvalidSetting, "partitions"),
        ({"query": "SELECT 1 AS a", "partitions": "3"}, InvalidSetting, "cannot be split"),
        ({"query": "SELECT '' AS a", "partition_column": "a"}, InvalidSetting, "whole numbers"),
        ({"query": "SELECT 1 AS a", "numeric": "double"}, InvalidSetting, "numeric"),
        ({"query": "SELECT 1 AS a", "infinity": "zero"}, InvalidSetting, "infinity"),
        ({"query": "SELECT 1 AS a", "snapshot_timeout": "long"}, InvalidSetting, "snapshot_timeout"),
        ({"query": "SELECT 1 AS a", "columns": "a"}, InvalidSetting, "columns"),
        ({"query": "SELECT 1 / (random() * 0)::int AS a"}, InvalidQuery, "22012"),
    ],
)
def test_what_is_wrong_is_said(
    dsn: str, options: dict[str, str], kind: type[HeadwaterError], said: str
) -> None:
    with pytest.raises(kind) as caught:
        read_here(dsn, **options)
    assert said in caught.value.message


def test_no_server() -> None:
    with pytest.raises(ConnectionFailed):
        reader_here("host=/nowhere", table="t")
    with pytest.raises(ConnectionFailed), headwater.spark.snapshot("host=/nowhere"):
        pass


def test_an_error_reaches_the_user_without_the_password(load: Load, dsn: str) -> None:
    from pyspark.errors import AnalysisException, PythonException

    with pytest.raises(AnalysisException) as planned:
        load(table="nowhere")
    assert "there is no table or view nowhere" in str(planned.value)
    with pytest.raises(PythonException) as read:
        load(query="SELECT 1 / (random() * 0)::int AS a").count()
    assert "SQLSTATE 22012" in str(read.value)
    password = psycopg.conninfo.conninfo_to_dict(dsn)["password"]
    assert str(password) not in f"{planned.value}{read.value}"


def test_a_schema_of_the_users_own_must_be_the_servers(load: Load, spark: SparkSession, dsn: str) -> None:
    frame = spark.read.format("headwater").options(dsn=dsn, query="SELECT 1 AS a").schema("a string").load()
    with pytest.raises(Exception, match="other columns"):
        frame.count()


@pytest.mark.xfail(strict=True, reason="Spark keeps the pushed filters of one query for the next one")
def test_spark_tells_pushed_filters_of_two_queries_apart(spark: SparkSession) -> None:
    """The day this passes, filters can be pushed down."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, InputPartition

    class Reader(DataSourceReader):
        wanted: int | None = None

        def pushFilters(self, filters: list[Any]) -> Iterator[Any]:
            for each in filters:
                if isinstance(each, EqualTo):
                    self.wanted = each.value
                else:
                    yield each

        def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
            return iter([(number,) for number in range(3) if self.wanted in (None, number)])

    class Numbers(DataSource):
        @classmethod
        def name(cls) -> str:
            return "numbers"

        def schema(self) -> str:
            return "a int"

        def reader(self, schema: Any) -> Reader:
            return Reader()

    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        spark.dataSource.register(Numbers)
        frame = spark.read.format("numbers").load()
        assert frame.filter("a = 1").count() == 1
        assert frame.count() == 3
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


# The keeper of snapshots


def test_a_task_after_the_end_gets_an_error(load: Load, conn: Connection) -> None:
    conn.execute("CREATE TABLE item AS SELECT g AS id FROM generate_series(1, 2000) g")
    frame = load(table="item", partitions="2", snapshot_linger="1s")
    # Spark gives RDDs no action of their own: they share one snapshot, whenever they run.
    assert frame.rdd.count() == 2000
    wait_for(lambda: sessions(conn, "idle in transaction") == 0, "a snapshot stayed")
    with pytest.raises(Exception, match="the snapshot of this action has ended") as caught:
        frame.rdd.count()
    assert "SnapshotLost" in str(caught.value)
    assert frame.count() == 2000


def request(part: int = 0, parts: int = 2, reader: int = 0, **changes: Any) -> keeper.Request:
    given: dict[str, Any] = {
        "frame": "f",
        "action": "1",
        "part": part,
        "parts": parts,
        "reader": reader,
        "relations": ("public.item",),
        "timeout": 600.0,
        "linger": 10.0,
    }
    return keeper.Request(**{**given, **changes})


class Clock:
    """A time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def own_keeper(dsn: str, conn: Connection, clock: Clock) -> Iterator[keeper.Keeper]:
    """A keeper in this process, with a table to read."""
    conn.execute("CREATE TABLE item AS SELECT g AS id FROM generate_series(1, 10) g")
    made = keeper.Keeper(dsn, keeper.Address.of(dsn, "test"), lambda: True, clock)
    assert made.begin()
    yield made
    made.close()


def test_tasks_of_one_action_share_a_snapshot(own_keeper: keeper.Keeper, conn: Connection) -> None:
    first = own_keeper.answer(request(0))
    assert own_keeper.answer(request(1)) == first
    assert own_keeper.answer(request(0, action="2")) != first
    assert own_keeper.answer(request(0, frame="g")) != first
    with pytest.raises(psycopg.errors.LockNotAvailable):
        conn.execute("SET lock_timeout = '100ms'; TRUNCATE item")


def test_a_snapshot_ends_after_all_was_read(
    own_keeper: keeper.Keeper, clock: Clock, conn: Connection
) -> None:
    own = conn.info.backend_pid
    own_keeper.answer(request(0, reader=own))
    own_keeper.answer(request(1, reader=own))
    own_keeper.done(("f", "1"), 0)
    clock.now = 500
    own_keeper.tick()
    assert "snapshot" in own_keeper.answer(request(1, reader=own))
    own_keeper.done(("f", "1"), 1)
    clock.now += 9
    own_keeper.tick()
    assert "snapshot" in own_keeper.answer(request(1, reader=own)), (
        "it is there for an attempt that comes at once"
    )
    own_keeper.done(("f", "1"), 1)
    clock.now += 11
    own_keeper.tick()
    assert "all of it had been read 10 s before" in own_keeper.answer(request(1))["error"]
    conn.execute("TRUNCATE item")


def test_a_snapshot_does_not_wait_for_ever(own_keeper: keeper.Keeper, clock: Clock, conn: Connection) -> None:
    nobody = 2**31 - 1
    own_keeper.answer(request(0, reader=nobody))
    own_keeper.answer(request(0, reader=conn.info.backend_pid, action="2"))
    own_keeper.tick()
    clock.now = keeper.RETRY_SECONDS + 1
    own_keeper.tick()
    assert "no task read" in own_keeper.answer(request(0))["error"], (
        "a reader vanished, and no other one came"
    )
    assert "snapshot" in own_keeper.answer(request(1, action="2")), "a reader is at work"
    own_keeper.done(("f", "2"), 0)
    own_keeper.done(("f", "2"), 1)
    own_keeper.answer(request(0, action="3", parts=3))
    own_keeper.done(("f", "3"), 0)
    clock.now += 599
    own_keeper.tick()
    assert "snapshot" in own_keeper.answer(request(0, action="3"))
    own_keeper.done(("f", "3"), 0)
    clock.now += 601
    own_keeper.tick()
    assert "no task read" in own_keeper.answer(request(0, action="3"))["error"]


def test_a_broken_snapshot_is_not_replaced(own_keeper: keeper.Keeper, conn: Connection) -> None:
    own_keeper.answer(request(0))
    conn.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE state = 'idle in transaction' AND datname = current_database()"
    )
    own_keeper.tick()
    assert "the server ended" in own_keeper.answer(request(1))["error"]


def test_what_no_task_would_say_is_ignored(own_keeper: keeper.Keeper, conn: Connection) -> None:
    for payload in (
        "",
        "x",
        "[]",
        "1",
        "{}",
        '{"do": "read"}',
        '{"do": "done"}',
        '{"do": "read", "relations": 1}',
    ):
        own_keeper.handle(payload)
    answer = own_keeper.answer(request(relations=("public.nowhere",)))
    assert "nowhere" in answer["error"]
    assert "snapshot" in own_keeper.answer(request())


def test_a_keeper_goes_with_the_process_that_it_serves(
    dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    conn.execute("CREATE TABLE item AS SELECT 1 AS id")
    served = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        monkeypatch.setattr(snapshots, "_jvm", lambda: served.pid)
        address = snapshots.ensure(dsn)
        assert snapshots.ensure(dsn) == address
        wait_for(lambda: sessions(conn) == 1, "one keeper serves all")
        assert snapshots.ask(dsn, address, request())
        assert sessions(conn, "idle in transaction") == 2
        secret = str(psycopg.conninfo.conninfo_to_dict(dsn)["password"]).encode()
        for process in _processes(keeper.__file__):
            assert secret not in (process / "cmdline").read_bytes()
            assert secret not in (process / "environ").read_bytes()
    finally:
        served.kill()
        served.wait()
    wait_for(lambda: sessions(conn) == 0, "the keeper stayed")
    with pytest.raises(SnapshotLost, match="is gone"):
        snapshots.ask(dsn, address, request())


def test_a_keeper_that_is_gone_is_noticed(dsn: str, conn: Connection, keepers: None) -> None:
    conn.execute("CREATE TABLE item AS SELECT g AS id FROM generate_series(1, 2000) g")
    reader = reader_here(dsn, table="item", partitions="2")
    first, second = reader.partitions()
    assert sum(batch.num_rows for batch in reader.read(first)) > 0
    end_keepers(conn)
    wait_for(lambda: sessions(conn) == 0, "the keeper stayed")
    with pytest.raises(SnapshotLost, match="is gone"):
        list(reader.read(second))
    assert len(read_here(dsn, table="item", partitions="2")) == 2000


def _processes(name: str) -> list[Path]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if name.encode() in command:
            found.append(process)
    return found


def test_a_role_that_may_read_only_the_view(dsn: str, conn: Connection) -> None:
    conn.execute("CREATE TABLE sale AS SELECT g AS id FROM generate_series(1, 100) g")
    with headwater.connect(dsn) as hw:
        hw.create("shown", "SELECT id FROM sale")
    role = f"headwater_reader_{conn.info.dbname}"
    conn.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'weak'".encode())
    try:
        conn.execute(f"GRANT SELECT ON shown TO {role}".encode())
        theirs = psycopg.conninfo.make_conninfo(dsn, user=role, password="weak")
        assert len(rows_of(reader_here(theirs, table="shown"))) == 100
        with pytest.raises(InvalidSetting, match="cannot be split"):
            reader_here(theirs, table="shown", partitions="2").partitions()
        with pytest.raises(MissingPrivilege):
            reader_here(theirs, table="sale")
    finally:
        end_keepers(conn)
        conn.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())
