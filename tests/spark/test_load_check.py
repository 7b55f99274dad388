"""What Spark loads is compared with the server's own view of the query before it is shown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.integration.support import assert_fresh
from tests.integration.test_audits import QUERIES, Planner

import headwater
from headwater import Headwater
from headwater.engine.spark.runtime.session import Runtime
from headwater.refresh import compare

Connection = psycopg.Connection[Any]


@pytest.fixture
def hw(dsn: str, conn: Connection, spark_runtime: Runtime) -> Iterator[Headwater]:
    conn.execute("CREATE TABLE t (id int PRIMARY KEY, k int, v int)")
    conn.execute("INSERT INTO t SELECT n, n % 4, n FROM generate_series(1, 40) n")
    conn.execute("ANALYZE t")
    with headwater.connect(dsn, spark_master="local[2]", spark_min_rows="0") as handle:
        yield handle


@pytest.mark.parametrize("kind", ["bag", "algebra"])
def test_a_plan_that_drops_a_condition_is_caught_on_spark(
    hw: Headwater, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    found = hw.create("right", QUERIES[kind], engine="spark")
    assert (found.mode, hw.history("right")[0].engine) == ("differential", "spark")
    assert found.load_check is not None
    assert found.load_check.startswith("compared with its query: a checksum over ")
    Planner(monkeypatch)
    found = hw.create("wrong", QUERIES[kind].replace("10", "11"), engine="spark")
    assert found.mode == "full"
    assert [incident.stream_table for incident in hw.audits()] == ["public.wrong"]
    assert_fresh(hw, "wrong")


@pytest.mark.parametrize(
    ("most_rows", "dearest", "how"),
    [(5, 1e9, "a checksum over 30 rows"), (5, 0.0, "a sample of 30 keys")],
    ids=["checksum", "sample"],
)
def test_much_is_compared_by_a_checksum_or_a_sample(
    hw: Headwater, monkeypatch: pytest.MonkeyPatch, most_rows: int, dearest: float, how: str
) -> None:
    monkeypatch.setattr(compare, "MOST_ROWS", most_rows)
    monkeypatch.setattr(compare, "DEAREST", dearest)
    found = hw.create("right", QUERIES["bag"], engine="spark")
    assert found.load_check == f"compared with its query: {how}"
    Planner(monkeypatch)
    assert hw.create("wrong", QUERIES["bag"].replace("10", "11"), engine="spark").mode == "full"
    assert_fresh(hw, "wrong")
