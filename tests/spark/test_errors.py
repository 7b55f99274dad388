"""Errors of the server that Spark meets and PostgreSQL need not: PostgreSQL computes in its place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession
from tests.integration.support import assert_fresh, refresh
from tests.sqlstates import CODES, raising

from headwater import Headwater, HeadwaterError
from headwater.config import Settings
from headwater.db.sqlstates import response
from headwater.engine.base import Engine
from headwater.engine.spark.engine import SparkEngine

Connection = psycopg.Connection[Any]

TABLES = """
CREATE TABLE a (id int PRIMARY KEY, k int, v int, code text);
CREATE TABLE b (k int, v int);
INSERT INTO a VALUES (1, 1, 10, 'P0001'), (2, 2, 20, 'P0001');
INSERT INTO b VALUES (1, 1), (2, 2), (3, 3);
CREATE FUNCTION public.checked(v int, code text) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
    IF v < 0 THEN RAISE EXCEPTION '% is negative', v USING ERRCODE = code; END IF;
    RETURN v;
END $$;
"""
QUERIES = {
    "bag": "SELECT a.id, a.v + b.v AS r FROM a JOIN b ON b.k = a.k",
    "states": "SELECT a.k, sum(a.v) AS v FROM a JOIN b ON b.k = a.k GROUP BY a.k",
    "groups": "SELECT a.k, array_agg(a.v ORDER BY a.id) AS vs FROM a JOIN b ON b.k = a.k GROUP BY a.k",
    "whole": "SELECT a.id, a.v + b.v AS r FROM a JOIN b ON b.k = a.k ORDER BY a.v, a.id LIMIT 3",
}
FEW = ["P0001", "XX000", "57014"]
codes = pytest.mark.parametrize(
    "codes", [pytest.param(FEW, id="few"), pytest.param(CODES, id="each class", marks=pytest.mark.slow)]
)
METHODS = [name for name, member in vars(Engine).items() if callable(member) and not name.startswith("_")]


@pytest.fixture
def hw(
    dsn: str, conn: psycopg.Connection, spark: SparkSession, spark_settings: Settings
) -> Iterator[Headwater]:
    conn.execute(TABLES)
    settings = {"spark_master": spark_settings.spark_master, "lock_attempts": "1"}
    with Headwater(dsn, settings) as handle:
        yield handle


@codes
@pytest.mark.parametrize("method", METHODS)
def test_each_method_of_the_engine(
    hw: Headwater, conn: Connection, method: str, codes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever method meets an error: a new one is tested by itself, and needs a query that calls it."""
    for name, query in QUERIES.items():
        hw.create(name, query, engine="postgres")
    name = next(name for name in QUERIES if _met(hw, conn, name, method, "P0001", monkeypatch))
    for code in codes:
        if not response(code).recompute:
            with pytest.raises(HeadwaterError):
                _met(hw, conn, name, method, code, monkeypatch)
            assert hw.history(name)[0].sqlstate == code
        else:
            assert _met(hw, conn, name, method, code, monkeypatch)
            entry = hw.history(name)[0]
            assert (entry.action, entry.engine, entry.sqlstate) == ("delta", "postgres", None)
            assert entry.engine_reason == f"instead of Spark: met by {method} (SQLSTATE {code})"
            assert_fresh(hw, name)
    conn.execute("UPDATE a SET v = v + 1")
    assert hw.refresh(name, engine="spark")[-1].engine == "spark"
    assert_fresh(hw, name)


def _met(
    hw: Headwater, conn: Connection, name: str, method: str, code: str, monkeypatch: pytest.MonkeyPatch
) -> bool:
    """Whether a delta calls a method of the engine, which meets an error."""
    called: list[str] = []
    conn.execute("UPDATE a SET v = v + 1")
    with monkeypatch.context() as patched:
        original = getattr(SparkEngine, method)
        patched.setattr(SparkEngine, method, raising(hw.connection, code, called, original))
        hw.refresh(name, engine="spark")
    return bool(called)


@codes
def test_a_load(hw: Headwater, codes: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for number, code in enumerate(codes):
        called: list[str] = []
        with monkeypatch.context() as patched:
            patched.setattr(SparkEngine, "load", raising(hw.connection, code, called, SparkEngine.load))
            if not response(code).recompute:
                with pytest.raises(HeadwaterError):
                    hw.create(f"st{number}", QUERIES["states"], engine="spark")
                continue
            hw.create(f"st{number}", QUERIES["states"], engine="spark")
        assert called
        entry = hw.history(f"st{number}")[0]
        assert (entry.action, entry.engine, entry.sqlstate) == ("load", "postgres", None)
        assert entry.engine_reason == f"instead of Spark: met by load (SQLSTATE {code})"
        assert_fresh(hw, f"st{number}")
        hw.drop(f"st{number}")


@pytest.mark.parametrize(
    "query",
    [
        "SELECT a.id, public.checked(a.v, a.code) AS r, b.v FROM a JOIN b ON b.k = a.k",
        "SELECT a.k, sum(public.checked(a.v, a.code) + b.v) AS r FROM a JOIN b ON b.k = a.k GROUP BY a.k",
    ],
    ids=["bag", "states"],
)
def test_what_only_reading_for_spark_evaluates(hw: Headwater, conn: Connection, query: str) -> None:
    """It reads each table by itself, before it joins them."""
    hw.create("st", query, engine="spark")
    for number, code in enumerate(("21000", "P0001", "23514", "54000", "XX000", "HW123"), 10):
        conn.execute("INSERT INTO a VALUES (%s, 100, -1, %s)", (number, code))
        conn.execute("INSERT INTO a VALUES (%s, 1, 5, %s)", (number + 100, code))
        outcome = refresh(hw, "st")
        assert (outcome.action, outcome.engine) == ("delta", "postgres")
        assert outcome.engine_reason == f"instead of Spark: -1 is negative (SQLSTATE {code})"
        assert_fresh(hw, "st")
    conn.execute("INSERT INTO b VALUES (100, 1)")
    with pytest.raises(HeadwaterError, match="-1 is negative"):
        hw.refresh("st")
    conn.execute("DELETE FROM a WHERE v < 0")
    hw.refresh("st")
    assert_fresh(hw, "st")
    conn.execute("INSERT INTO a VALUES (500, 1, 5, '')")
    assert refresh(hw, "st").engine == "spark"


def test_what_tasks_meet(hw: Headwater, conn: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same where tasks read over connections of their own."""
    monkeypatch.setattr("headwater.engine.spark.engine.SMALL_ROWS", 0)
    monkeypatch.setattr("headwater.engine.spark.engine.PUSHDOWN_FACTOR", 1e9)
    conn.execute("INSERT INTO a VALUES (50, 100, -1, 'XX000'); ANALYZE")
    query = "SELECT a.id, public.checked(a.v, a.code) AS r, b.v FROM a JOIN b ON b.k = a.k"
    hw.create("st", query, engine="spark")
    [entry] = hw.history("st")
    assert (entry.action, entry.engine) == ("load", "postgres")
    assert entry.engine_reason == (
        "instead of Spark: a task met an error that the query itself need not meet: -1 is negative"
    )
    assert_fresh(hw, "st")
