"""Refreshes that are written into the history by hand, so that there can be many of any age."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from tests.integration.support import WAITING_IS_LONG, value

from headwater import Headwater
from headwater.catalog.cleanup import clean_up
from headwater.config import Settings
from headwater.db.scratch import statement

Connection = psycopg.Connection[Any]

ERROR_BOUND = 1 / 11
"""Of a percentile, relative to the true one; half of a bucket, whose ends differ by 20 %."""
STREAM_TABLES = 12


def add_stream_tables(conn: Connection, number: int) -> list[int]:
    rows = conn.execute(
        "INSERT INTO headwater.stream_table (schema_name, table_name, query, requested_mode, mode, engine,"
        " status, time_zone, search_path, relation) SELECT 'public', 's' || n, 'SELECT', 'auto',"
        " 'differential', 'auto', 'active', 'UTC', 'public', 900000000 + n FROM generate_series(1, %s) n"
        " RETURNING id",
        (number,),
    )
    return [number for (number,) in rows]


def add(
    conn: Connection,
    stream_table_id: int,
    *,
    number: int = 1,
    ago: str = "0s",
    every: str = "0s",
    action: str = "delta",
    status: str = "completed",
    ms: float = 5.0,
) -> None:
    """Refreshes of one stream table, of which the last one finished so long ago."""
    conn.execute(
        "INSERT INTO headwater.refresh (stream_table_id, started_at, finished_at, mode, engine, action,"
        " status, reason, rows_in, rows_inserted)"
        " SELECT %(id)s, at - %(ms)s * interval '1 ms', at, 'differential', 'postgres', %(action)s,"
        " %(status)s, '', 3, 2 FROM generate_series(1, %(number)s) n,"
        " LATERAL (SELECT now() - %(ago)s::interval - (%(number)s - n) * %(every)s::interval) a (at)",
        {
            "id": stream_table_id,
            "number": number,
            "ago": ago,
            "every": every,
            "action": action,
            "status": status,
            "ms": ms,
        },
    )


def add_many(conn: Connection, number: int, spread: str) -> None:
    """Refreshes of all stream tables over the last so long, of every kind and of all durations."""
    conn.execute(
        "INSERT INTO headwater.refresh (stream_table_id, started_at, finished_at, mode, engine, action,"
        " status, reason, rows_in, rows_inserted, rows_updated, rows_deleted, phases)"
        " SELECT st.ids[1 + n %% %(stream_tables)s], at - 0.001 * exp(random() * 11) * interval '1 s', at,"
        " 'differential', CASE WHEN n %% 7 = 0 THEN 'spark' ELSE 'postgres' END,"
        " CASE WHEN n %% 400 = 3 THEN 'recompute' WHEN n %% 9000 = 5 THEN 'load' ELSE 'delta' END,"
        " CASE WHEN n %% 700 = 1 THEN 'failed' ELSE 'completed' END, repeat('a reason ', 40), n %% 90,"
        ' n %% 3, n %% 5, n %% 7, \'{"plan": 1.5, "compute": 2.25, "apply": 3.75}\''
        " FROM generate_series(1, %(number)s) n,"
        " LATERAL (SELECT now() - (1 - n / %(number)s::float8) * %(spread)s::interval) a (at),"
        " (SELECT array_agg(id ORDER BY id) FROM headwater.stream_table) st (ids)",
        {"number": number, "spread": spread, "stream_tables": STREAM_TABLES},
    )


def finish(hw: Headwater, **settings: Any) -> None:
    assert clean_up(hw.connection, Settings(**settings), 10 * WAITING_IS_LONG)


def left(conn: Connection, condition: str = "true") -> list[int]:
    rows = conn.execute(statement(f"SELECT id FROM headwater.refresh WHERE {condition} ORDER BY id"))
    return [number for (number,) in rows]


def counted(conn: Connection, length: str = "1 hour") -> int:
    """How many refreshes the sums tell of that the clean-up has made."""
    return int(
        value(
            conn,
            "SELECT coalesce(sum(refreshes), 0) FROM headwater.refresh_sum"
            " WHERE bucket_length = %s::interval",
            length,
        )
    )


def assert_sums_are_those_of(conn: Connection, raw: str) -> None:
    """The view against a computation that shares nothing with it."""
    for unit in ("minute", "hour"):
        expected = conn.execute(
            statement(
                f"""
                SELECT stream_table_id,
                       date_trunc('{unit}', finished_at AT TIME ZONE 'UTC') AT TIME ZONE 'UTC',
                       action, engine, count(*),
                       count(*) FILTER (WHERE status = 'failed'),
                       coalesce(sum(rows_in), 0), coalesce(sum(rows_inserted), 0),
                       coalesce(sum(rows_updated), 0), coalesce(sum(rows_deleted), 0),
                       count(ms), sum(ms), min(ms), max(ms),
                       percentile_disc(ARRAY[0.5, 0.95, 0.99]) WITHIN GROUP (ORDER BY ms)
                FROM (SELECT *, CASE status WHEN 'completed'
                                THEN 1000 * extract(epoch FROM finished_at - started_at)::float8 END AS ms
                      FROM {raw}) r
                GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4"""
            )
        ).fetchall()
        found = conn.execute(
            "SELECT stream_table_id, bucket_start, action, engine, refreshes, failures, rows_in,"
            " rows_inserted, rows_updated, rows_deleted, refreshes - failures, total_ms, min_ms, max_ms,"
            " ARRAY[p50_ms, p95_ms, p99_ms], avg_ms FROM headwater.refresh_stats"
            " WHERE bucket_length = %s::interval ORDER BY 1, 2, 3, 4",
            (f"1 {unit}",),
        ).fetchall()
        assert found
        assert [row[:11] for row in found] == [row[:11] for row in expected]
        for row, wanted in zip(found, expected, strict=True):
            if wanted[10]:
                assert row[11:14] == pytest.approx(wanted[11:14])
                assert row[15] == pytest.approx(wanted[11] / wanted[10])
                assert row[14] == pytest.approx(wanted[14], rel=ERROR_BOUND + 1e-9)
            else:
                assert row[12:] == (None, None, [None] * 3, None)
