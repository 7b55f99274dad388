"""Rows between PostgreSQL and Spark: nothing lost, nothing doubled, nothing changed, no connection left."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from headwater.db.connection import PINNED_SETTINGS, Connection, connect
from headwater.engine.spark.failures import failure, task_error
from headwater.engine.spark.transport import read, tasks, write
from headwater.engine.spark.transport.wire import BulkRead, Column
from headwater.errors import ConnectionFailed, EngineUnavailable, HeadwaterError, RefreshFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAIR = (Column("n", "bigint"), Column("t", "text"))
# Any text that PostgreSQL takes, and often what its formats give a meaning to.
TEXT = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=30) | st.text(
    st.sampled_from(list("\\\"',\t\n\r\v\f.Nb x\x01\x7fé\u2028😀\ufeff")), max_size=12
)
NUMBER = st.integers(-(2**63), 2**63 - 1)
NASTY = [
    "",
    "\\N",
    "\\.",
    "a\n\\.\nb",
    "NULL",
    '"',
    '""',
    ",",
    "\r\n",
    "\n",
    "\t",
    "\\",
    "\\\\n",
    " ",
    "\ufeff",
    "é😀",
    "'",
]


@pytest.fixture
def own(dsn: str) -> Iterator[Connection]:
    """A connection as a refresh has it."""
    with connect(dsn) as connection:
        yield connection


@pytest.fixture
def job(own: Connection) -> int:
    """The number of a job that may claim parts."""
    own.execute("ALTER TABLE headwater.job DROP CONSTRAINT job_stream_table_id_fkey")
    row = own.execute(
        "INSERT INTO headwater.job (stream_table_id, coordinator, client, engine, action, phase)"
        " VALUES (0, 0, '', 'spark', '', '') RETURNING id"
    ).fetchone()
    assert row is not None
    return int(row[0])


def pairs(rows: list[tuple[int | None, str | None]]) -> pa.Table:
    return pa.table(
        {
            "n": pa.array([number for number, _ in rows], pa.int64()),
            "t": pa.array([text for _, text in rows], pa.string()),
        }
    )


def others(own: Connection) -> int:
    """How many other connections to this database there are."""
    # Within a transaction the server would show what it showed before.
    own.execute("SELECT pg_stat_clear_snapshot()")
    row = own.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
    ).fetchone()
    assert row is not None
    return int(row[0])


def wait_for_no_others(own: Connection) -> None:
    give_up = time.monotonic() + 15
    while others(own):
        assert time.monotonic() < give_up, own.execute("SELECT state, query FROM pg_stat_activity").fetchall()
        time.sleep(0.05)


# through the driver


@given(rows=st.lists(st.tuples(st.none() | NUMBER, st.none() | TEXT), max_size=8))
def test_what_is_put_is_fetched(own: Connection, rows: list[tuple[int | None, str | None]]) -> None:
    own.execute("CREATE TEMPORARY TABLE IF NOT EXISTS pairs (place serial, n bigint, t text)")
    own.execute("TRUNCATE pg_temp.pairs")
    assert write.put(own, "pg_temp.pairs", pairs(rows), PAIR) == len(rows)
    stored = own.execute("SELECT n, t FROM pg_temp.pairs ORDER BY place").fetchall()
    assert stored == rows
    assert read.fetch(own, "SELECT n, t FROM pg_temp.pairs ORDER BY place", PAIR).equals(pairs(rows))
    texts = read.fetch(own, "SELECT t FROM pg_temp.pairs ORDER BY place", PAIR[1:])
    assert texts.column(0).to_pylist() == [text for _, text in rows]


@given(values=st.lists(st.none() | TEXT, min_size=1, max_size=5))
def test_one_column_of_text_is_put(own: Connection, values: list[str | None]) -> None:
    own.execute("CREATE TEMPORARY TABLE IF NOT EXISTS single (place serial, t text)")
    own.execute("TRUNCATE pg_temp.single")
    write.put(own, "pg_temp.single", pa.table({"t": pa.array(values, pa.string())}), PAIR[1:])
    assert [row[0] for row in own.execute("SELECT t FROM pg_temp.single ORDER BY place")] == values


def test_a_piece_of_a_table_is_put(own: Connection) -> None:
    own.execute("CREATE TEMPORARY TABLE p (n bigint, t text)")
    whole = pairs([(number, f"\t{number}") for number in range(100)])
    rechunked = pa.concat_tables([whole.slice(10, 5), whole.slice(0, 0), whole.slice(90)])
    assert write.put(own, "pg_temp.p", rechunked, PAIR) == 15
    assert read.fetch(own, "SELECT n, t FROM pg_temp.p ORDER BY n", PAIR).equals(rechunked.combine_chunks())


def test_no_rows_and_no_columns(own: Connection) -> None:
    own.execute("CREATE TEMPORARY TABLE p (n bigint, t text)")
    assert read.fetch(own, "SELECT n, t FROM pg_temp.p", PAIR).equals(pairs([]))
    assert write.put(own, "pg_temp.p", pairs([]), PAIR) == 0
    own.execute("INSERT INTO pg_temp.p VALUES (1), (2)")
    assert read.fetch(own, "SELECT FROM pg_temp.p", ()).num_rows == 2


@pytest.mark.parametrize("length", [1 << 10, 1 << 16, (1 << 20) - 3, 1 << 20, 5 << 20])
def test_long_values(own: Connection, length: int) -> None:
    own.execute("CREATE TEMPORARY TABLE p (n bigint, t text)")
    rows = pairs([(1, "a"), (2, "\n" * length), (3, '"' * length), (4, "é")])
    write.put(own, "pg_temp.p", rows, PAIR)
    assert read.fetch(own, "SELECT n, t FROM pg_temp.p ORDER BY n", PAIR).equals(rows)


def test_a_value_that_is_too_long_is_refused(own: Connection) -> None:
    with pytest.raises(RefreshFailed, match="too long to travel"):
        read.fetch(own, f"SELECT repeat('x', {tasks.VALUE_LIMIT + 1}) AS t", PAIR[1:])
    assert own.execute("SELECT 1").fetchone() == (1,)


def test_more_than_the_driver_takes_is_refused(own: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "FETCH_LIMIT", 1 << 20)
    with pytest.raises(RefreshFailed, match="1 MiB"):
        read.fetch(own, "SELECT repeat('x', 1000) AS t FROM generate_series(1, 100000)", PAIR[1:])


def test_many_rows_through_the_driver(own: Connection) -> None:
    table = read.fetch(own, "SELECT n, repeat('x', 60) AS t FROM generate_series(1, 200000) AS n", PAIR)
    assert (table.num_rows, table["n"].to_pylist()[-1]) == (200_000, 200_000)
    own.execute("CREATE TEMPORARY TABLE p (n bigint, t text)")
    assert write.put(own, "pg_temp.p", table, PAIR) == 200_000


def test_a_text_with_a_zero_byte_is_refused(own: Connection) -> None:
    own.execute("CREATE TEMPORARY TABLE p (n bigint, t text)")
    with pytest.raises(psycopg.DataError, match="0x00"):
        write.put(own, "pg_temp.p", pairs([(1, "a\0b")]), PAIR)


def test_pipe(own: Connection, dsn: str) -> None:
    own.execute("CREATE TEMPORARY TABLE p (n bigint, t text)")
    with connect(dsn) as side:
        side.execute("CREATE TABLE public.s (n bigint, t text)")
        rows = [*enumerate(NASTY), (None, None)]
        write.put(side, "public.s", pairs(rows), PAIR)
        side.execute("INSERT INTO public.s SELECT 100 + g, repeat('y', 300) FROM generate_series(0, 4999) g")
        assert write.pipe(side, "SELECT n, t FROM public.s", own, "pg_temp.p") == 5000 + len(rows)
        assert write.pipe(side, "SELECT n, t FROM public.s WHERE false", own, "pg_temp.p") == 0
    difference = "SELECT n, t FROM {} EXCEPT ALL SELECT n, t FROM {}"
    for both in (("pg_temp.p", "public.s"), ("public.s", "pg_temp.p")):
        assert own.execute(difference.format(*both)).fetchall() == []


@pytest.mark.parametrize(
    ("table", "parts"),
    [
        ("a", ("", "a")),
        ("a.b", ("a", "b")),
        ('"a.b"."c""d"', ("a.b", 'c"d')),
        ('"""".b', ('"', "b")),
    ],
)
def test_names_are_split(table: str, parts: tuple[str, str]) -> None:
    assert write.split_name(table) == parts


# tasks, called as functions


def access(dsn: str) -> tasks.Access:
    return read.access(dsn, {**PINNED_SETTINGS, "TimeZone": "UTC"})


def target(job: int, finish: str | None = None) -> tasks.Target:
    return tasks.Target(job, "p", "public", "s", ("n", "t"), ("bigint", "text"), finish)


def test_a_task_run_twice_stores_once(own: Connection, dsn: str, job: int) -> None:
    own.execute("CREATE TABLE public.s (n bigint, t text)")
    batches = pairs([*enumerate(NASTY), (None, None)]).to_batches(max_chunksize=3)
    count = len(NASTY) + 1
    for _ in range(2):
        assert tasks.write(access(dsn), target(job), 0, iter(batches)) == count
        assert sorted(own.execute("SELECT n, t FROM public.s"), key=str) == sorted(
            [*enumerate(NASTY), (None, None)], key=str
        )
    assert tasks.write(access(dsn), target(job), 1, iter(batches)) == count
    assert own.execute("SELECT count(*) FROM public.s").fetchone() == (2 * count,)
    wait_for_no_others(own)


def test_two_attempts_at_the_same_time_store_once(own: Connection, dsn: str, job: int) -> None:
    own.execute("CREATE TABLE public.s (n bigint, t text)")
    batches = pairs([(number, str(number)) for number in range(1000)]).to_batches(max_chunksize=100)
    both = threading.Barrier(2)

    def slowly() -> Iterator[Any]:
        for number, batch in enumerate(batches):
            if number == 5:
                both.wait(10)
            yield batch

    stored: list[int] = []
    threads = [
        threading.Thread(target=lambda: stored.append(tasks.write(access(dsn), target(job), 0, slowly())))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert stored == [1000, 1000]
    assert own.execute("SELECT count(*) FROM public.s").fetchone() == (1000,)


def test_a_task_finishes_rows_in_its_transaction(own: Connection, dsn: str, job: int) -> None:
    own.execute("CREATE TABLE public.s (d date, t varchar(3))")
    finish = "SELECT '2000-01-01'::date + n::integer, t::varchar(3) FROM pg_temp.hw_part WHERE n < 10"
    rows = pairs([(1, "a"), (2, "b"), (10, "c")]).to_batches()
    for _ in range(2):
        assert tasks.write(access(dsn), target(job, finish), 0, iter(rows)) == 2
    found = own.execute("SELECT d::text, t FROM public.s ORDER BY d").fetchall()
    assert found == [("2000-01-02", "a"), ("2000-01-03", "b")]


def test_a_failed_task_leaves_nothing(own: Connection, dsn: str, job: int) -> None:
    own.execute("CREATE TABLE public.s (n bigint, t text CHECK (t <> 'bad'))")
    rows = pairs([(1, "a"), (2, "bad")]).to_batches(max_chunksize=1)
    with pytest.raises(tasks.TaskError) as caught:
        tasks.write(access(dsn), target(job), 0, iter(rows))
    assert caught.value.sqlstate == "23514"
    assert "Failing row" in caught.value.detail

    def broken() -> Iterator[Any]:
        yield rows[0]
        raise ValueError("upstream")

    with pytest.raises(ValueError, match="upstream"):
        tasks.write(access(dsn), target(job), 0, broken())
    assert own.execute(
        "SELECT (SELECT count(*) FROM public.s) + count(*) FROM headwater.job_part"
    ).fetchone() == (0,)
    wait_for_no_others(own)
    assert tasks.write(access(dsn), target(job), 0, iter(rows[:1])) == 1


def test_a_task_of_a_job_that_is_gone_stores_nothing(own: Connection, dsn: str, job: int) -> None:
    own.execute("CREATE TABLE public.s (n bigint, t text)")
    with pytest.raises(tasks.TaskError) as caught:
        tasks.write(access(dsn), target(job + 1), 0, iter(pairs([(1, "a")]).to_batches()))
    assert caught.value.sqlstate == "23503"
    assert own.execute("SELECT count(*) FROM public.s").fetchone() == (0,)


def test_an_empty_partition_needs_no_connection(job: int) -> None:
    nowhere = tasks.Access("host=127.0.0.1 port=1", ())
    assert tasks.write(nowhere, target(job), 0, iter(pairs([]).to_batches())) == 0


def test_reading_stops_in_the_middle(own: Connection, dsn: str) -> None:
    with own.transaction():
        snapshot = exported(own)
        rows = tasks.read(
            access(dsn),
            snapshot,
            "SELECT n::bigint AS n, repeat('x', 500) AS t FROM generate_series(1, 200000) AS n",
            read.arrow_schema(PAIR),
        )
        assert next(rows).num_rows > 0
        assert others(own) == 1
        rows.close()  # type: ignore[attr-defined]
    wait_for_no_others(own)


def test_errors_of_tasks_name_the_sqlstate_and_no_secret(own: Connection, dsn: str) -> None:
    with own.transaction():
        statement = (
            "SELECT (1 / (n - 150000))::bigint AS n, ''::text AS t FROM generate_series(1, 200000) AS n"
        )
        with pytest.raises(tasks.TaskError) as caught:
            list(tasks.read(access(dsn), exported(own), statement, read.arrow_schema(PAIR)))
    assert (caught.value.sqlstate, caught.value.message) == ("22012", "division by zero")
    told = failure(RuntimeError(f"Traceback …\nTaskError: {caught.value}\n\tat java"), "the read failed")
    assert isinstance(told, RefreshFailed)
    assert told.message == "the read failed: division by zero (SQLSTATE 22012)"
    assert task_error(RuntimeError("nothing of ours")) is None
    wrong = make_conninfo(dsn, password="a very%40 secret")
    with pytest.raises(tasks.TaskError) as refused:
        list(tasks.read(access(wrong), "", "SELECT 1", read.arrow_schema(PAIR)))
    assert "secret" not in str(refused.value)
    assert refused.value.sqlstate == "08006"
    assert "secret" not in repr(access(wrong))


def test_a_value_that_is_too_long_for_a_task(own: Connection, dsn: str) -> None:
    with own.transaction():
        statement = f"SELECT 1::bigint AS n, repeat('x', {tasks.VALUE_LIMIT + 1}) AS t"
        with pytest.raises(tasks.TaskError, match="cannot travel to Spark"):
            list(tasks.read(access(dsn), exported(own), statement, read.arrow_schema(PAIR)))


def test_types_that_are_not_on_the_wire_are_refused(own: Connection, dsn: str) -> None:
    with own.transaction():
        with pytest.raises(tasks.TaskError, match="int32"):
            list(tasks.read(access(dsn), exported(own), "SELECT 1, 'x'", read.arrow_schema(PAIR)))


def test_a_snapshot_that_ended(dsn: str, own: Connection) -> None:
    with own.transaction():
        snapshot = exported(own)
    with pytest.raises(tasks.TaskError) as caught:
        list(tasks.read(access(dsn), snapshot, "SELECT 1::bigint, ''::text", read.arrow_schema(PAIR)))
    assert caught.value.sqlstate in ("22023", "42704")


# ranges and addresses


@given(pages=st.integers(0, 1000), count=st.integers(1, 20), block=st.integers(0, 2000))
def test_a_page_is_in_one_range(pages: int, count: int, block: int) -> None:
    found = 0
    for bounds in read.ctid_ranges("x", pages, count):
        condition = (
            bounds.replace("::pg_catalog.tid", "").replace("'(", "").replace(",0)'", "").replace("AND", "and")
        )
        found += eval(condition or "True", {"x": block})
    assert found == 1


@pytest.mark.parametrize(
    ("dsn", "url"),
    [
        ("postgresql://ann@db/shop", "jdbc:postgresql://db:5432/shop"),
        ("host=db user=ann", "jdbc:postgresql://db:5432/ann"),
        ("host=::1 port=5 user=ann dbname='a b/c'", "jdbc:postgresql://[::1]:5/a%20b%2Fc"),
        ("host=a,b port=1,2 dbname=d", "jdbc:postgresql://a:1,b:2/d"),
        ("host=/tmp dbname=d", None),
        ("dbname=d", None),
        ("host=db sslcert=x dbname=d", None),
        ("host=db service=x dbname=d", None),
        ("host=db target_session_attrs=read-write dbname=d", None),
        ("host=db require_auth=scram-sha-256 dbname=d", None),
    ],
)
def test_jdbc_address(dsn: str, url: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGHOST", "PGPORT", "PGUSER", "PGDATABASE", "PGPASSWORD"):
        monkeypatch.delenv(name, raising=False)
    found = read.jdbc_address(dsn)
    assert (found and found[0]) == url


def test_jdbc_address_takes_the_environment_and_no_password_in_the_url(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PGPASSWORD", "s&cret")
    monkeypatch.setenv("PGHOST", "db")
    found = read.jdbc_address("user=ann dbname=d sslmode=verify-full sslrootcert=/ca.pem connect_timeout=3")
    assert found is not None
    assert "cret" not in found[0]
    wanted = {"user": "ann", "password": "s&cret", "sslmode": "verify-full", "sslrootcert": "/ca.pem"}
    assert wanted.items() <= found[1].items()


def test_tasks_need_no_environment(own: Connection, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = conninfo_to_dict(dsn)
    for name, part in {"PGPASSWORD": "password", "PGUSER": "user", "PGPORT": "port"}.items():
        monkeypatch.setenv(name, str(parts.pop(part)))
    complete = access(make_conninfo("", **parts))
    for name in ("PGPASSWORD", "PGUSER", "PGPORT"):
        monkeypatch.delenv(name)
    with own.transaction():
        rows = tasks.read(
            complete, exported(own), "SELECT 7::bigint AS n, ''::text AS t", read.arrow_schema(PAIR)
        )
        assert [batch.num_rows for batch in rows] == [1]
    assert str(conninfo_to_dict(dsn)["password"]) not in repr(complete)


# on Spark


def exported(own: Connection) -> str:
    """The name of the transaction's snapshot."""
    own.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    row = own.execute("SELECT pg_export_snapshot()").fetchone()
    assert row is not None
    return str(row[0])


def bulk(select: str = "SELECT o.n AS n, o.t AS t", conditions: tuple[str, ...] = ()) -> BulkRead:
    return BulkRead(select, '"public"."s" AS "o"', conditions, PAIR, '"o".ctid', '"public"."s"')


def filled(own: Connection, rows: int) -> int:
    """A table of pairs; how many pages it has."""
    own.execute("CREATE TABLE public.s (n bigint, t text)")
    write.put(own, "public.s", pairs([*enumerate(NASTY), (None, None)]), PAIR)
    own.execute("INSERT INTO public.s SELECT g, 'row ' || g FROM generate_series(1000, 999 + %s) g", [rows])
    row = own.execute(
        "SELECT pg_relation_size('public.s') / current_setting('block_size')::integer"
    ).fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.parametrize("count", [1, 3, 7])
def test_tasks_read_what_the_exporter_sees(
    own: Connection, dsn: str, spark: SparkSession, count: int
) -> None:
    pages = filled(own, 5000)
    with own.transaction():
        snapshot = exported(own)
        expected = own.execute("SELECT n, t FROM public.s WHERE n <> 1500 OR n IS NULL").fetchall()
        with connect(dsn) as writer:
            writer.execute("UPDATE public.s SET t = 'changed' WHERE n % 3 = 0")
            writer.execute("DELETE FROM public.s WHERE n % 7 = 0")
            writer.execute("INSERT INTO public.s SELECT 0, 'new' FROM generate_series(1, 5000)")
        frame = read.bulk_frame(
            spark,
            dsn,
            snapshot,
            bulk(conditions=("o.n <> 1500 OR o.n IS NULL",)),
            pages=pages,
            tasks=count,
            settings=PINNED_SETTINGS,
            transport="adbc",
        )
        found = frame.toArrow()
        assert frame.rdd.getNumPartitions() == count
    assert found.schema.types == [pa.int64(), pa.string()]
    assert sorted(map(str, zip(*found.to_pydict().values(), strict=True))) == sorted(map(str, expected))
    wait_for_no_others(own)


def test_a_source_without_ctid_is_read_by_one_task(own: Connection, dsn: str, spark: SparkSession) -> None:
    filled(own, 10)
    source = BulkRead(
        "SELECT q.n AS n, q.t AS t",
        "(SELECT n, max(t) AS t FROM public.s GROUP BY n) AS q",
        (),
        PAIR,
        None,
        None,
    )
    with own.transaction():
        frame = read.bulk_frame(
            spark, dsn, exported(own), source, pages=50, tasks=4, settings={}, transport="adbc"
        )
        assert (frame.count(), frame.rdd.getNumPartitions()) == (len(NASTY) + 11, 1)


def test_settings_hold_in_tasks(own: Connection, dsn: str, spark: SparkSession) -> None:
    filled(own, 1)
    select = "SELECT 1::bigint AS n, current_setting('TimeZone') || current_setting('search_path') AS t"
    with own.transaction():
        frame = read.bulk_frame(
            spark,
            dsn,
            exported(own),
            bulk(select),
            pages=1,
            tasks=1,
            settings={"TimeZone": "Asia/Tokyo", "search_path": "its, odd"},
            transport="adbc",
        )
        assert frame.first()["t"] == "Asia/Tokyoits, odd"  # type: ignore[index]


def test_an_error_in_a_reading_task(own: Connection, dsn: str, spark: SparkSession) -> None:
    pages = filled(own, 5000)
    with own.transaction():
        frame = read.bulk_frame(
            spark,
            dsn,
            exported(own),
            bulk("SELECT 1 / (o.n - 4000) AS n, o.t AS t"),
            pages=pages,
            tasks=2,
            settings=PINNED_SETTINGS,
            transport="adbc",
        )
        with pytest.raises(Exception) as caught:
            frame.toArrow()
    told = failure(caught.value, "read")
    assert isinstance(told, RefreshFailed)
    assert told.message == "read: division by zero (SQLSTATE 22012)"
    assert str(conninfo_to_dict(dsn)["password"]) not in str(caught.value)
    wait_for_no_others(own)


def test_jdbc_is_refused_without_its_driver(own: Connection, dsn: str, spark: SparkSession) -> None:
    if read.jdbc_available(spark):
        pytest.skip("the driver is there")
    with pytest.raises(EngineUnavailable, match="jdbc"):
        read.bulk_frame(spark, dsn, "", bulk(), pages=1, tasks=1, settings={}, transport="jdbc")


@pytest.mark.parametrize("finish", [None, "SELECT n, t FROM pg_temp.hw_part"])
def test_tasks_write_every_row(
    own: Connection, dsn: str, spark: SparkSession, job: int, finish: str | None
) -> None:
    own.execute("CREATE TABLE public.s (n bigint, t text)")
    nasty = spark.createDataFrame(pairs([*enumerate(NASTY), (None, None)]))
    frame = (
        spark.range(1000, 4000)
        .selectExpr("id AS n", "concat('row ', id) AS t")
        .repartition(5, "n")
        .union(nasty)
    )
    stored = write.write_by_tasks(
        frame, dsn, job=job, part="x", columns=PAIR, settings=PINNED_SETTINGS, table="public.s", finish=finish
    )
    assert stored == 3000 + len(NASTY) + 1
    wrong = own.execute(
        "SELECT n, t FROM public.s WHERE n >= 1000"
        " EXCEPT ALL SELECT g, 'row ' || g FROM generate_series(1000, 3999) g"
    ).fetchall()
    assert wrong == []
    rest = own.execute("SELECT n, t FROM public.s WHERE n < 1000 OR n IS NULL").fetchall()
    assert sorted(map(str, rest)) == sorted(map(str, [*enumerate(NASTY), (None, None)]))
    claims = own.execute("SELECT sum(rows) FROM headwater.job_part WHERE job_id = %s", [job]).fetchone()
    assert claims == (stored,)
    # The same job again: every part is there already.
    again = write.write_by_tasks(
        frame, dsn, job=job, part="x", columns=PAIR, settings=PINNED_SETTINGS, table="public.s", finish=finish
    )
    assert again == stored
    assert own.execute("SELECT count(*) FROM public.s").fetchone() == (stored,)
    wait_for_no_others(own)


def test_nothing_to_write(own: Connection, dsn: str, spark: SparkSession, job: int) -> None:
    own.execute("CREATE TABLE public.s (n bigint, t text)")
    frame = spark.createDataFrame(pairs([]), "n bigint, t string")
    stored = write.write_by_tasks(
        frame, dsn, job=job, part="x", columns=PAIR, settings={}, table="public.s", finish=None
    )
    assert stored == 0


def test_an_error_in_a_writing_task(own: Connection, dsn: str, spark: SparkSession, job: int) -> None:
    own.execute("CREATE TABLE public.s (n bigint, t text CHECK (t <> 'row 7'))")
    frame = spark.range(0, 10, 1, 2).selectExpr("id AS n", "concat('row ', id) AS t")
    arguments: dict[str, Any] = {
        "part": "x",
        "columns": PAIR,
        "settings": {},
        "table": "public.s",
        "finish": None,
    }
    with pytest.raises(RefreshFailed, match="23514") as caught:
        write.write_by_tasks(frame, dsn, job=job, **arguments)
    assert "s_t_check" in caught.value.message
    with pytest.raises(HeadwaterError, match="does not exist"):
        write.write_by_tasks(frame, dsn, job=job, **{**arguments, "table": "public.nothing"})
    with pytest.raises(HeadwaterError) as lost:
        write.write_by_tasks(frame, make_conninfo(dsn, password="not@it"), job=job, **arguments)
    assert "not@it" not in str(lost.value)
    with pytest.raises(ValueError, match="bigint"):
        write.write_by_tasks(frame.select("t", "n"), dsn, job=job, **arguments)
    wait_for_no_others(own)


def test_a_connection_that_is_cut(own: Connection, dsn: str, spark: SparkSession) -> None:
    pages = filled(own, 200_000)
    with own.transaction():
        frame = read.bulk_frame(
            spark,
            dsn,
            exported(own),
            bulk("SELECT o.n AS n, o.t || coalesce(pg_sleep(0.0001)::text, '') AS t"),
            pages=pages,
            tasks=2,
            settings=PINNED_SETTINGS,
            transport="adbc",
        )
        cutter = threading.Thread(target=cut, args=(dsn,))
        cutter.start()
        with pytest.raises(Exception) as caught:
            frame.toArrow()
        cutter.join()
    assert isinstance(failure(caught.value, "read"), ConnectionFailed)
    wait_for_no_others(own)


def cut(dsn: str) -> None:
    """Ends a task's connection once there is one."""
    statement = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND query LIKE '%%pg_sleep%%' AND pid <> pg_backend_pid()"
    )
    with psycopg.connect(dsn, autocommit=True) as connection:
        while not connection.execute(statement).fetchall():
            time.sleep(0.05)


def test_a_cancelled_job_leaves_no_connection(own: Connection, dsn: str, spark: SparkSession) -> None:
    pages = filled(own, 200_000)
    with own.transaction():
        frame = read.bulk_frame(
            spark,
            dsn,
            exported(own),
            bulk("SELECT o.n AS n, o.t || coalesce(pg_sleep(0.01)::text, '') AS t"),
            pages=pages,
            tasks=2,
            settings=PINNED_SETTINGS,
            transport="adbc",
        )

        def cancel() -> None:
            with psycopg.connect(dsn, autocommit=True) as connection:
                while True:
                    row = connection.execute(
                        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                        " AND query LIKE '%pg_sleep%' AND pid <> pg_backend_pid()"
                    ).fetchone()
                    if row is not None and row[0] >= 2:
                        break
                    time.sleep(0.05)
            spark.sparkContext.cancelAllJobs()

        canceller = threading.Thread(target=cancel)
        canceller.start()
        with pytest.raises(Exception) as caught:
            frame.toArrow()
        canceller.join()
        assert task_error(caught.value) is None
        wait_for_no_others(own)
