"""What is shown of the sums of refreshes, and how far percentiles may be off."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from tests.integration.history import ERROR_BOUND, add, add_many, counted, finish, left
from tests.integration.support import value

from headwater import Headwater, HeadwaterError

Connection = psycopg.Connection[Any]


def test_what_is_not_counted_is_shown(hw: Headwater, conn: Connection, stream_tables: list[int]) -> None:
    number = stream_tables[0]
    add(conn, number, number=3, ms=10)
    finish(hw)
    add(conn, number, number=1, ms=100)
    add(conn, number, status="failed")
    [found] = [each for each in hw.history_sums("s1", by="hour") if each.action == "delta"]
    assert counted(conn) == 3
    assert (found.refreshes, found.failures, found.rows_inserted) == (5, 1, 10)
    assert found.avg_ms == pytest.approx(32.5)
    assert found.p50_ms == pytest.approx(10, rel=ERROR_BOUND)
    assert found.p99_ms == pytest.approx(100, rel=ERROR_BOUND)
    assert (found.min_ms, found.max_ms) == pytest.approx((10, 100))


def test_sums_of_one_stream_table_or_all_newest_first(
    hw: Headwater, conn: Connection, stream_tables: list[int]
) -> None:
    for number in stream_tables[:3]:
        add(conn, number, number=5, ago="5s", every="2 hours")
    finish(hw)
    for number in stream_tables[:3]:
        add(conn, number)
    found = hw.history_sums(limit=4)
    assert len(found) == 4
    assert found == sorted(found, key=lambda each: (-each.bucket_start.timestamp(), each.stream_table))
    [latest, *earlier] = hw.history_sums("public.s2", by="hour", limit=3)
    assert [each.stream_table for each in (latest, *earlier)] == ["public.s2"] * 3
    assert all(each.refreshes == 1 for each in earlier)
    assert latest.bucket_start - earlier[0].bucket_start >= timedelta(hours=1)
    assert sum(each.refreshes for each in hw.history_sums("s1", by="minute", limit=100)) == 6


def test_percentiles_of_any_window_come_from_the_histograms(
    hw: Headwater, conn: Connection, stream_tables: list[int]
) -> None:
    add_many(conn, 5_000, "10 hours")
    exact = value(
        conn,
        "SELECT percentile_disc(ARRAY[0.95, 0.99]) WITHIN GROUP (ORDER BY duration_ms::float8)"
        " FROM headwater.refresh_history WHERE status = 'completed'",
    )
    finish(hw)
    assert len(left(conn)) < 5_000
    with conn.cursor(row_factory=dict_row) as cursor:
        [found] = cursor.execute(
            """
            SELECT headwater.bucket_ms(min(bucket) FILTER (WHERE up_to >= 0.95 * total)) AS p95,
                   headwater.bucket_ms(min(bucket) FILTER (WHERE up_to >= 0.99 * total)) AS p99
            FROM (SELECT bucket, sum(sum(count)) OVER (ORDER BY bucket) AS up_to,
                         sum(sum(count)) OVER () AS total
                  FROM headwater.refresh_stats, unnest(duration_buckets, duration_counts) AS d (bucket, count)
                  WHERE bucket_length = '1 minute' GROUP BY bucket) c"""
        ).fetchall()
    assert [found["p95"], found["p99"]] == pytest.approx(exact, rel=ERROR_BOUND + 1e-9)


@pytest.mark.parametrize("exponent", range(-30, 130, 7))
def test_the_duration_of_a_bucket_is_near_those_in_it(conn: Connection, exponent: int) -> None:
    for factor in (1.0001, 1.1, 1.2):
        ms = 1.2 ** (exponent - 1) * factor
        if ms >= 0.01:
            shown = value(conn, "SELECT headwater.bucket_ms(headwater.duration_bucket(%s))", ms)
            assert shown == pytest.approx(ms, rel=ERROR_BOUND + 1e-9)


def test_a_setting_out_of_bounds_is_refused(hw: Headwater) -> None:
    for name, text in (("history_max_mb", "7"), ("history_latest", "0"), ("history_single_retention", "0s")):
        with pytest.raises(HeadwaterError):
            hw.set(name, text)
