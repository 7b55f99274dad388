"""Following a stream table from Spark: each change once, whatever dies and is started again."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from pyspark.errors import StreamingQueryException

import headwater
import headwater.spark
from headwater import Headwater
from headwater.engine.spark.source import changes
from headwater.engine.spark.source.changes import ChangeReader, changes_schema
from headwater.engine.spark.source.options import Options
from headwater.errors import (
    AlreadyExists,
    ConsumerLost,
    DependentsExist,
    HeadwaterError,
    InvalidSetting,
    NotFound,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Connection = psycopg.Connection[Any]
Rows = Counter[tuple[Any, ...]]
Offset = dict[str, Any]

BAG = "SELECT id % 50 AS shop, amount FROM sale WHERE amount <> 3"
GROUPS = "SELECT shop, count(*) AS sales, sum(amount) AS total FROM sale GROUP BY shop"


@pytest.fixture
def hw(dsn: str) -> Iterator[Headwater]:
    with headwater.connect(dsn) as handle:
        yield handle


@pytest.fixture
def sales(conn: Connection) -> None:
    conn.execute("CREATE TABLE sale (id int PRIMARY KEY, shop int, amount numeric)")
    conn.execute("INSERT INTO sale SELECT g, g % 7, g % 5 FROM generate_series(1, 300) g")


class Follower:
    """A query that follows a stream table in this process, step by step as Spark takes them."""

    def __init__(self, dsn: str, **options: str) -> None:
        self._given = {"dsn": dsn, "stream_table": "st", "consumer": "c", **options}
        self.reader = self._reader()
        self.position: Offset | None = None
        self.planned: Offset | None = None

    def restart(self) -> None:
        """The query ends, and starts again from its checkpoint: the positions here."""
        self.reader.stop()
        self.reader = self._reader()

    def _reader(self) -> ChangeReader:
        options = Options(self._given)
        return ChangeReader(options, changes_schema(options))

    def plan(self) -> bool:
        """Writes down the next batch, and commits the one before; false if there is nothing new."""
        start = self.position or self.reader.initialOffset()
        end = self.reader.latestOffset(start, None)  # type: ignore[arg-type]
        if end == start:
            return False
        self.planned = end
        if self.position is not None:
            self.reader.commit(self.position)
        return True

    def read(self) -> list[dict[str, Any]]:
        """The rows of the batch that is written down."""
        assert self.planned is not None
        start = self.position or self.reader.initialOffset()
        return [
            row
            for part in self.reader.partitions(start, self.planned)
            for batch in self.reader.read(part)
            for row in batch.to_pylist()
        ]

    def finish(self) -> None:
        """The sink has the batch."""
        self.position, self.planned = self.planned, None

    def next(self) -> list[dict[str, Any]]:
        """A whole batch; no rows if there is none."""
        if not self.plan():
            return []
        rows = self.read()
        self.finish()
        return rows


@pytest.fixture
def follow(dsn: str) -> Iterator[Callable[..., Follower]]:
    made: list[Follower] = []

    def make(**options: str) -> Follower:
        made.append(Follower(dsn, **options))
        return made[-1]

    yield make
    for follower in made:
        follower.reader.stop()


def accumulated(*batches: list[dict[str, Any]]) -> Rows:
    """What is there after changes with weights."""
    total: Rows = Counter()
    for batch in batches:
        for row in batch:
            *values, weight = row.values()
            total[tuple(values)] += weight
    return Counter({row: weight for row, weight in total.items() if weight})


def contents(conn: Connection, name: str = "st") -> Rows:
    """What a stream table holds, as Spark shows it: numeric without precision is text."""
    cursor = conn.execute(f"SELECT * FROM {name}".encode())
    return Counter(
        tuple(str(value) if type(value).__name__ == "Decimal" else value for value in row) for row in cursor
    )


def write(conn: Connection, seed: int) -> None:
    """Some inserts, updates and deletes, after which the stream tables of this file differ."""
    rng = random.Random(seed)
    conn.execute("INSERT INTO sale VALUES (%s, %s, 1000)", (10_000 + seed, seed % 7))
    for _ in range(rng.randint(1, 4)):
        low = rng.randint(1, 400)
        match rng.randrange(3):
            case 0:
                conn.execute(
                    "INSERT INTO sale SELECT g, g %% 7, g %% 5 FROM generate_series(%s::int, %s) g"
                    " ON CONFLICT DO NOTHING",
                    (low, low + 40),
                )
            case 1:
                conn.execute(
                    "UPDATE sale SET amount = amount + 1 WHERE id BETWEEN %s AND %s", (low, low + 20)
                )
            case _:
                conn.execute("DELETE FROM sale WHERE id BETWEEN %s AND %s", (low, low + 30))


@pytest.mark.parametrize("query", [BAG, GROUPS])
@pytest.mark.parametrize("start", ["now", "snapshot"])
def test_changes_add_up_to_the_contents(
    hw: Headwater, conn: Connection, sales: None, follow: Callable[..., Follower], query: str, start: str
) -> None:
    hw.create("st", query)
    follower = follow(start=start)
    assert follower.plan() is (start == "snapshot")
    batches: list[list[dict[str, Any]]] = []
    if start == "now":
        batches.append([{**row, "_weight": 1} for row in _rows(conn)])
        write(conn, 0)
        hw.refresh("st")
        assert follower.plan()
    for number in range(1, 8):
        write(conn, number)
        hw.refresh("st")
        rows = follower.read()
        # A batch is what it is, however often and from wherever it is read.
        write(conn, 100 + number)
        hw.refresh("st", full=number == 4)
        follower.restart()
        assert accumulated(follower.read()) == accumulated(rows)
        batches.append(rows)
        follower.finish()
        follower.plan()
        if number == 5:
            follower.restart()
    batches.append(follower.read())
    assert accumulated(*batches) == contents(conn)
    follower.finish()
    assert not follower.plan()


def _rows(conn: Connection) -> list[dict[str, Any]]:
    cursor = conn.execute("SELECT * FROM st")
    names = [column.name for column in cursor.description or ()]
    return [
        {
            name: str(value) if type(value).__name__ == "Decimal" else value
            for name, value in zip(names, row, strict=True)
        }
        for row in cursor
    ]


def test_a_transaction_that_commits_late_is_not_missed(
    dsn: str, hw: Headwater, conn: Connection, sales: None, follow: Callable[..., Follower]
) -> None:
    """One stream table is refreshed in a transaction that stays open while another one's changes are read."""
    hw.create("st", BAG)
    follower = follow()
    assert not follower.plan()
    with psycopg.connect(dsn) as slow:
        slow.execute("SELECT pg_current_xact_id()")
        conn.execute("INSERT INTO sale VALUES (1000, 1, 1)")
        hw.refresh("st")
        assert accumulated(follower.next()) == Counter({(0, "1"): 1})
        slow.execute("INSERT INTO sale VALUES (1001, 1, 1)")
    hw.refresh("st")
    assert accumulated(follower.next()) == Counter({(1, "1"): 1})


def test_a_rebuild_in_other_storage_is_followed(
    hw: Headwater, conn: Connection, sales: None, follow: Callable[..., Follower]
) -> None:
    hw.create("st", GROUPS)
    follower = follow(start="snapshot")
    batches = [follower.next()]
    write(conn, 1)
    hw.alter("st", mode="full")  # loads new storage and swaps it in
    batches.append(follower.next())
    assert batches[-1], "the swap emitted no difference"
    write(conn, 2)
    hw.refresh("st")
    hw.alter("st", mode="differential")
    write(conn, 3)
    hw.refresh("st")
    batches.append(follower.next())
    assert accumulated(*batches) == contents(conn)


def test_updates_of_groups_come_in_pairs(
    hw: Headwater, conn: Connection, sales: None, follow: Callable[..., Follower]
) -> None:
    hw.create("st", GROUPS)
    follower = follow(changes="rows")
    assert not follower.plan()
    conn.execute("UPDATE sale SET amount = amount + 1 WHERE shop = 1")
    conn.execute("DELETE FROM sale WHERE shop = 2")
    conn.execute("INSERT INTO sale VALUES (1000, NULL, 1)")
    hw.refresh("st")
    rows = {(row["shop"], row["_change"]) for row in follower.next()}
    assert rows == {(1, "update_before"), (1, "update_after"), (2, "delete"), (None, "insert")}
    conn.execute("INSERT INTO sale VALUES (1001, NULL, 1)")
    hw.refresh("st")
    updates = {(row["shop"], row["sales"], row["_change"]) for row in follower.next()}
    assert updates == {(None, 1, "update_before"), (None, 2, "update_after")}


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("SELECT count(*) AS n FROM sale", ["update_after", "update_before"]),
        ("SELECT DISTINCT amount FROM sale", ["insert"]),
        ("SELECT sum(amount) AS total FROM sale GROUP BY shop", ["delete", "insert"]),  # its key is not shown
        ("SELECT 1 AS one FROM sale WHERE amount > 100", ["insert", "insert"]),
    ],
)
def test_rows_of_other_shapes(
    hw: Headwater,
    conn: Connection,
    sales: None,
    follow: Callable[..., Follower],
    query: str,
    wanted: list[str],
) -> None:
    hw.create("st", query)
    follower = follow(changes="rows", start="snapshot")
    assert {row["_change"] for row in follower.next()} <= {"insert"}
    conn.execute("INSERT INTO sale VALUES (1000, 1, 1000), (1001, 1, 1000)")
    hw.refresh("st")
    assert sorted(row["_change"] for row in follower.next()) == wanted


def test_change_rows_stay_until_they_are_committed(
    hw: Headwater, conn: Connection, sales: None, follow: Callable[..., Follower], dsn: str
) -> None:
    hw.create("st", BAG)
    hw.create("onward", "SELECT shop, count(*) AS n FROM st GROUP BY shop")
    follower = follow()
    assert not follower.plan()
    conn.execute("INSERT INTO sale VALUES (1000, 1, 1)")
    hw.refresh("onward")
    assert follower.plan()
    conn.execute("INSERT INTO sale VALUES (1001, 1, 1)")
    hw.refresh("onward")
    assert change_rows(conn) == 2, "its other dependent has gone on"
    assert len(follower.read()) == 1
    follower.finish()
    assert follower.plan()
    hw.refresh("onward")
    assert change_rows(conn) == 1, "the first batch is committed when the second is written down"
    [shown] = headwater.spark.consumers(dsn)
    assert (shown.consumer, shown.stream_table, shown.status) == ("c", "public.st", "active")


def change_rows(conn: Connection) -> int:
    row = conn.execute("SELECT change_table FROM headwater.source WHERE relation = 'st'::regclass").fetchone()
    assert row is not None
    counted = conn.execute(f"SELECT count(*) FROM headwater_changes.{row[0]}".encode()).fetchone()
    assert counted is not None
    return int(counted[0])


def test_a_consumer_that_lags_too_far_is_given_up(
    dsn: str, conn: Connection, sales: None, follow: Callable[..., Follower]
) -> None:
    with headwater.connect(dsn, max_buffer_rows="100") as hw:
        hw.create("st", "SELECT id, amount FROM sale")
        follower = follow()
        assert not follower.plan()
        for number in range(4):
            conn.execute("UPDATE sale SET amount = %s WHERE id <= 40", (number + 10,))
            hw.refresh("st")
            if number == 0:
                assert follower.plan()
    [shown] = headwater.spark.consumers(dsn)
    assert shown.status == "given up"
    for step in (follower.read, follower.plan):
        with pytest.raises(ConsumerLost) as caught:
            step()
        assert "max_buffer_rows" in caught.value.message
        assert 'option("start", "snapshot")' in caught.value.hint
    follower.reader.stop()
    anew = follow(start="snapshot")
    assert accumulated(anew.next()) == contents(conn)


def test_a_given_up_consumer_reads_nothing_by_halves(
    dsn: str, hw: Headwater, conn: Connection, sales: None, follow: Callable[..., Follower]
) -> None:
    """It was given up after its batch was planned, and before a task reads it."""
    hw.create("st", BAG)
    follower = follow()
    start = follower.reader.initialOffset()
    conn.execute("INSERT INTO sale VALUES (1000, 1, 1)")
    hw.refresh("st")
    end = follower.reader.latestOffset(start, None)  # type: ignore[arg-type]
    [part] = follower.reader.partitions(start, end)
    headwater.spark.drop_consumer(dsn, "c")
    with pytest.raises(HeadwaterError):
        list(follower.reader.read(part))


def test_positions_of_another_life_are_refused(
    dsn: str, hw: Headwater, conn: Connection, sales: None, follow: Callable[..., Follower]
) -> None:
    hw.create("st", BAG)
    follower = follow()
    first = follower.reader.initialOffset()
    assert follower.reader.initialOffset() == first
    follower.restart()
    assert follower.reader.initialOffset() == first, (
        "nothing was committed: the first batch may be read again"
    )
    for number in range(3):
        conn.execute("INSERT INTO sale VALUES (%s, 1, 1)", (1000 + number,))
        hw.refresh("st")
        if number == 1:
            copied = follower.position
        follower.next()
    assert copied is not None
    follower.restart()
    with pytest.raises(ConsumerLost):  # a copy of the checkpoint, from before the last commit
        follower.reader.partitions(first, follower.position or {})
    ahead = {**(follower.position or {}), "snapshot": "900000:900000:"}
    with pytest.raises(ConsumerLost, match="restored from a backup"):
        follower.reader.latestOffset(ahead, None)  # type: ignore[arg-type]
    anew = follow()
    follower.reader.stop()
    assert anew.reader.initialOffset()["epoch"] == first["epoch"] + 1
    anew.reader.stop()
    with pytest.raises(ConsumerLost, match="started anew"):
        follower.plan()


def test_one_query_at_a_time_under_a_name(
    hw: Headwater,
    sales: None,
    follow: Callable[..., Follower],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(changes, "LOCK_SECONDS", 0.3)
    hw.create("st", BAG)
    hw.create("other", GROUPS)
    first = follow()
    first.plan()
    with pytest.raises(AlreadyExists, match="another query"):
        follow().plan()
    first.reader.stop()
    with pytest.raises(AlreadyExists, match=r"follows public\.st"):
        follow(stream_table="other").plan()


def test_dropping(
    dsn: str, hw: Headwater, conn: Connection, sales: None, follow: Callable[..., Follower]
) -> None:
    hw.create("st", BAG)
    follower = follow()
    follower.plan()
    with pytest.raises(DependentsExist) as caught:
        hw.drop("st")
    assert caught.value.detail == "consumer c"
    headwater.spark.drop_consumer(dsn, "c")
    row = conn.execute("SELECT count(*) FROM pg_tables WHERE tablename LIKE 'src_%'").fetchone()
    assert row == (1,), "only the stream table's own source is captured now"
    with pytest.raises(ConsumerLost, match="there is no consumer"):
        follower.plan()
    with pytest.raises(NotFound):
        headwater.spark.drop_consumer(dsn, "c")
    follower.restart()
    follower.plan()
    assert hw.drop("st", cascade=True) == ["public.st", "consumer c"]
    assert headwater.spark.consumers(dsn) == []
    with pytest.raises(ConsumerLost):
        follower.plan()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"consumer": ""}, "consumer is needed"),
        ({"changes": "all"}, "changes"),
        ({"start": "earliest"}, "start"),
        ({"table": "st"}, "with stream_table"),
    ],
)
def test_options(dsn: str, options: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidSetting, match=said):
        Follower(dsn, **options)


def test_a_column_that_is_taken(dsn: str, hw: Headwater, sales: None) -> None:
    hw.create("st", "SELECT id AS _weight FROM sale")
    with pytest.raises(InvalidSetting, match="_weight"):
        Follower(dsn)
    with pytest.raises(NotFound):
        Follower(dsn, stream_table="nowhere")


# With Spark itself

DRIVER = """
import sys, time
import headwater.spark
from headwater.config import Settings
from headwater.engine.spark.runtime.session import runtime

dsn, checkpoint, path = sys.argv[1:]
spark = runtime().session(Settings(spark_master="local[2]"))
headwater.spark.register(spark)
options = {"dsn": dsn, "stream_table": "st", "consumer": "c", "start": "snapshot"}
frame = spark.readStream.format("headwater").options(**options).load()
frame.writeStream.format("parquet").option("checkpointLocation", checkpoint).start(path)
print(runtime().pid, flush=True)
time.sleep(600)
"""


class Refreshing:
    """Somebody who writes and refreshes all the time."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._ended = threading.Event()
        self._failures: list[BaseException] = []
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            with psycopg.connect(self._dsn, autocommit=True) as conn, headwater.connect(self._dsn) as hw:
                seed = 1000
                while not self._ended.wait(0.1):
                    seed += 1
                    write(conn, seed)
                    hw.refresh("st", full=seed % 10 == 0)
        except BaseException as error:
            self._failures.append(error)

    def __enter__(self) -> Refreshing:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        assert not self._failures


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def batches_in(log: Path) -> list[int]:
    """The batches in a log of a checkpoint."""
    return sorted(int(file.name) for file in log.glob("[0-9]*"))


def planned_beyond(checkpoint: Path, number: int) -> bool:
    return batches_in(checkpoint / "offsets")[-1] > number


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_change_arrives_once_whatever_dies(
    spark: SparkSession, dsn: str, hw: Headwater, conn: Connection, sales: None, tmp_path: Path
) -> None:
    checkpoint, path = tmp_path / "checkpoint", tmp_path / "changes"
    hw.create("st", BAG)
    headwater.spark.register(spark)
    options = {"dsn": dsn, "stream_table": "st", "consumer": "c", "start": "snapshot"}

    def start(**trigger: Any) -> StreamingQuery:
        frame = spark.readStream.format("headwater").options(**options).load()
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(checkpoint))
        return writer.trigger(**trigger).start(str(path))

    with Refreshing(dsn):
        # A driver of its own, killed with its JVM while it works.
        command = [sys.executable, "-c", DRIVER, dsn, str(checkpoint), str(path)]
        driver = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        with driver:
            assert driver.stdout is not None
            jvm = int(driver.stdout.readline())
            wait_for(lambda: len(batches_in(checkpoint / "offsets")) > 1, "no batch was planned")
            driver.kill()
            os.kill(jvm, signal.SIGKILL)
        # Started again from the checkpoint, stopped in the middle of whatever it is doing.
        for _ in range(2):
            planned = batches_in(checkpoint / "offsets")[-1]
            query = start(processingTime="0 seconds")
            wait_for(partial(planned_beyond, checkpoint, planned), "no batch was planned")
            query.stop()
            assert query.exception() is None
            # As if it had been killed before the last batch was written down as done.
            last = batches_in(checkpoint / "commits")[-1]
            (checkpoint / "commits" / str(last)).unlink()
            (checkpoint / "commits" / f".{last}.crc").unlink(missing_ok=True)
    hw.refresh("st")
    query = start(availableNow=True)
    query.awaitTermination()
    arrived = spark.read.parquet(str(path)).groupBy("shop", "amount").sum("_weight").collect()
    assert Counter({(row[0], row[1]): row[2] for row in arrived if row[2]}) == contents(conn)
    assert len(batches_in(checkpoint / "offsets")) > 3


def test_a_batch_that_failed_comes_again_as_it_was(
    spark: SparkSession, dsn: str, hw: Headwater, conn: Connection, sales: None, tmp_path: Path
) -> None:
    hw.create("st", GROUPS)
    headwater.spark.register(spark)
    options = {"dsn": dsn, "stream_table": "st", "consumer": "c", "start": "snapshot", "changes": "rows"}
    seen: list[tuple[int, Rows]] = []
    failing = True

    def take(batch: DataFrame, number: int) -> None:
        seen.append((number, Counter(tuple(row) for row in batch.collect())))
        if failing:
            raise RuntimeError("the sink is full")

    def run() -> StreamingQuery:
        frame = spark.readStream.format("headwater").options(**options).load()
        writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path))
        query = writer.trigger(availableNow=True).start()
        with contextlib.suppress(StreamingQueryException):
            query.awaitTermination()
        return query

    before = contents(conn)
    for seed in range(2):
        assert run().exception() is not None
        write(conn, seed)
        hw.refresh("st")
    failing = False
    run()
    (first, rows), (second, again), (third, finally_), (fourth, change) = seen
    assert (first, second, third, fourth) == (0, 0, 0, 1)
    assert rows == again == finally_ == Counter({(*row, "insert"): 1 for row in before})
    kinds = {kind for *_, kind in change}
    assert {"update_before", "update_after"} <= kinds
    after = Counter(before)
    for *row, kind in change:
        after[tuple(row)] += 1 if kind in ("insert", "update_after") else -1
    assert +after == contents(conn)
