"""The cost model learns from what refreshes took, and shows what it expects."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from headwater import Headwater

pytestmark = pytest.mark.usefixtures("driver_only")

Connection = psycopg.Connection[Any]


def refreshed(hw: Headwater, conn: Connection, rows: int) -> float | None:
    """What a refresh with so many change rows was expected to take."""
    conn.execute("INSERT INTO numbers SELECT n FROM generate_series(1, %s) AS n", [rows])
    outcome = hw.refresh("total")[-1]
    assert outcome.action == "delta"
    return outcome.predicted_ms


def test_what_was_seen_is_expected(hw: Headwater, conn: Connection) -> None:
    conn.execute("CREATE TABLE numbers (n int)")
    hw.create("total", "SELECT n % 10 AS digit, sum(n) AS total FROM numbers GROUP BY n % 10")
    assert [item.postgres_ms for item in hw.explain("total").predictions] == [None] * 4
    assert refreshed(hw, conn, 10) is None  # there was none like it
    expected = refreshed(hw, conn, 10)
    assert expected is not None
    assert expected > 0
    entry = hw.history("total")[0]
    assert entry.predicted_ms == expected
    predictions = hw.explain("total").predictions
    assert all(item.postgres_ms and item.full_ms and item.spark_ms is None for item in predictions)
    assert sorted(predictions, key=lambda item: item.postgres_ms or 0.0) == list(predictions)


def test_recomputing_is_expected_to_take_what_it_took(hw: Headwater, conn: Connection) -> None:
    conn.execute("CREATE TABLE numbers (n int)")
    hw.create("total", "SELECT n % 10 AS digit, sum(n) AS total FROM numbers GROUP BY n % 10")
    [loaded] = hw.history("total")
    outcome = hw.refresh("total", full=True)[-1]
    computed = {name: took for name, took in loaded.phases.items() if name not in ("plan", "check")}
    assert outcome.predicted_ms == pytest.approx(sum(computed.values()))
    again = hw.refresh("total", full=True)[-1]
    assert again.predicted_ms == pytest.approx(outcome.duration_ms - outcome.phases["plan"])


def test_a_fallback_teaches_nothing(dsn: str, hw: Headwater, conn: Connection) -> None:
    """What Spark began and PostgreSQL finished took as long as both."""
    conn.execute("CREATE TABLE numbers (n int)")
    hw.create("total", "SELECT n % 10 AS digit, sum(n) AS total FROM numbers GROUP BY n % 10")
    refreshed(hw, conn, 10)
    conn.execute(
        "INSERT INTO headwater.refresh (stream_table_id, started_at, finished_at, mode, engine, action,"
        " status, reason, rows_in, fell_back)"
        " SELECT stream_table_id, now() - interval '1 hour', now(), mode, engine, action, status, reason,"
        " rows_in, true FROM headwater.refresh, generate_series(1, 60)"
        " WHERE action = 'delta'"
    )
    with Headwater(dsn) as another:
        expected = refreshed(another, conn, 10)
    assert expected is not None
    assert expected < 3_600_000 / 2
