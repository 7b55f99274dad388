"""What the service runs at each tick, claim and refresh costs the same whatever has happened before.

A catalog of thousands of stream tables, with the history and the finished jobs of days, is filled by hand.
Then each named query of the service is run as PostgreSQL would run it, prepared, with a custom and with a
generic plan.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from functools import partial
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.types.json import Jsonb
from tests.conftest import _clone
from tests.unit.test_queries import SOURCE, queries, uses

from headwater.catalog.cleanup import BATCH
from headwater.db.queries import query

Connection = psycopg.Connection[Any]

STREAM_TABLES = 5_000
HISTORY = 1_000_000
BUSY = 6
"""One of so many refreshes is that of the same stream table, which has deltas only."""
SUMS = 300_000
FINISHED_JOBS = 100_000
READ_AT_MOST = 2_000
"""Rows that a query may read of a table that grows with what has happened."""
HISTORIES = {"refresh", "refresh_sum", "worker_jobs", "request", "moment"}
CATALOG = {"stream_table", "source", "dependency", "frontier", "refresh_total"}

GROUPS = ("service", "requests", "marks", "buffers", "engine", "overview", "jobs", "cleanup")
"""Every query of these is run by the scheduler, the launcher, a worker, or who watches them."""
OF_A_REFRESH = [
    ("catalog", "stream_tables"),
    ("catalog", "sources_of"),
    ("catalog", "outdated"),
    ("catalog", "lock_stream_table"),
    ("catalog", "set_frontier"),
    ("catalog", "set_rebuild_reason"),
    ("catalog", "health"),
    ("refresh", "own_change_table"),
    ("refresh", "with_retired"),
    ("refresh", "retired_tables"),
    ("refresh", "kept_tables"),
    ("history", "record"),
    ("marks", "mark_stream_table"),
    ("buffers", "oldest_needed"),
    ("buffers", "lock_consumers"),
    ("engine", "observations"),
    ("engine", "failures"),
    ("engine", "given_up"),
    ("engine", "reader_schedules"),
    ("consumers", "followed"),
    ("service", "past"),
]
"""What is asked of a stream table or of a few: these read nothing of the others."""
SEARCHES = {
    # It counts recomputed refreshes back to the last delta of a size, and runs only where deltas lose.
    ("engine", "given_up")
}
"""Those that may read more of the history of one stream table, by index."""
LATEST = 100
BATCHES = {
    ("cleanup", "count"): 3 * BATCH,
    # of each stream table that it passes, the latest deltas, with the recomputations among them
    ("cleanup", "sweep"): 4 * BATCH + 2 * LATEST * STREAM_TABLES,
    ("cleanup", "forget_refreshes"): 4 * BATCH,
    ("cleanup", "forget_sums"): 2 * BATCH,
    # some pages, and only when the files are large
    ("cleanup", "weigh_refreshes"): 200_000,
    ("cleanup", "weigh_sums"): 200_000,
}
"""What those may read that work in batches, by index or by a sample."""
OTHERS = [
    ("audit", "due"),
    ("audit", "finish"),
    ("catalog", "suspend"),
    ("install", "state"),
]
NAMED = sorted({name for name in queries() if name[0] in GROUPS} | {*OF_A_REFRESH, *OTHERS})

WORKER = uuid.UUID(int=7)
VALUES: dict[str, Any] = {
    "active_workers": 1,
    "above": HISTORY // 2,
    "answered": True,
    "application": None,
    "arguments": Jsonb({}),
    "attempt": 1,
    "backend_pid": None,
    "between_compactions": "10min",
    "busy_share": 0.1,
    "bytes_in": None,
    "bytes_out": None,
    "capabilities": Jsonb({}),
    "capacity": 1,
    "changed": 1,
    "client": "somewhere",
    "coordinator": 1,
    "count": 64,
    "counted_to": HISTORY,
    "decided_to": HISTORY,
    "detail": "",
    "draining": False,
    "drawn_by": [],
    "drawn_to": HISTORY,
    "elapsed": "1ms",
    "engine": "postgres",
    "engine_reason": "",
    "error": None,
    "failed_member": None,
    "hint": "",
    "hour_retention": "21d",
    "hostname": "here",
    "id": 1,
    "ids": [1, 2, 3],
    "job": None,
    "jobs": [1, 2, 3],
    "kind": "worker",
    "last": 1,
    "latest": LATEST,
    "length": "1 minute",
    "limit": BATCH,
    "lock": 1_214_610,
    "looked_at": 40,
    "max_workers": 4,
    "minute_retention": "2d",
    "members": [1],
    "mode": "differential",
    "name": "headwater task 1",
    "names": [],
    "parallel_mode": "on",
    "pause": "2min",
    "per_db_cap": 4,
    "percent": 5.0,
    "phase": "reading",
    "phases": Jsonb({}),
    "pid": 1,
    "pids": [1],
    "plan_cache_hits": 1,
    "plan_cache_misses": 1,
    "predicted_ms": None,
    "prefix": "st_1_kept_",
    "progress": Jsonb({}),
    "queued_jobs": 0,
    "reason": "of a test",
    "recent": 50,
    "recent_full": 5,
    "relation": 1259,
    "result": None,
    "retention": "7d",
    "retired": "_until_",
    "role": 0,
    "rows": 1_000_000,
    "rows_deleted": 0,
    "rows_in": 1,
    "rows_inserted": 1,
    "rows_updated": 0,
    "schema": "headwater_data",
    "search_path": "public",
    "seconds": 86_400.0,
    "silent_after": "10s",
    "slices": 1,
    "snapshot": "1:1:",
    "source": 1,
    "sources": [1, 2],
    "spark_master": None,
    "sqlstate": None,
    "started_at": "2026-01-01",
    "status": "failed",
    "stay": 100,
    "stream_table_id": 1,
    "stream_tables": STREAM_TABLES,
    "table": "x",
    "tick_ms": 1.0,
    "ticks": 1,
    "time_zone": "UTC",
    "timeout": "30s",
    "ui": None,
    "up_to": HISTORY // 2 + BATCH,
    "version": "0.1.0",
    "action": "delta",
    "wait": 1,
    "channel": "headwater_job_ended",
    "fell_back": False,
    "abandoned_ms": None,
    "worker_id": WORKER,
}
OWN_VALUES: dict[tuple[str, str], dict[str, Any]] = {
    ("history", "record"): {"status": "completed"},
    ("service", "journal"): {
        "jobs": Jsonb(
            [
                {"id": 10**9 + n, "stream_table_id": n, "members": [n], "status": "RUNNING",
                 "queued_at": "2026-01-01", "assigned_at": "2026-01-01"}
                for n in range(1, 9)
            ]
        )
    },
    ("service", "beat"): {"status": "active"},
    ("service", "finish"): {"status": "COMPLETED"},
    ("service", "bury"): {"timeout": "30s"},
    # What is asked of all of them, as once in a minute.
    ("service", "faults"): {"ids": None},
    ("cleanup", "forget_refreshes"): {"retention": "1d"},
    ("cleanup", "forget_sums"): {"retention": "1d"},
    ("cleanup", "aged"): {"retention": "1h"},
}  # fmt: skip


@pytest.fixture(scope="module")
def grown(admin_dsn: str, admin: Connection, template_dsn: str) -> Iterator[Connection]:
    """A connection to a catalog after days of work."""
    template = psycopg.conninfo.conninfo_to_dict(template_dsn)["dbname"]
    for dsn in _clone(admin_dsn, admin, template):
        with psycopg.connect(dsn, autocommit=True) as conn:
            grow(conn)
            yield conn


def grow(conn: Connection) -> None:
    number = {"n": STREAM_TABLES}
    conn.execute(
        "INSERT INTO headwater.stream_table (schema_name, table_name, query, requested_mode, mode, engine,"
        " schedule, status, time_zone, search_path, relation) SELECT 'public', 's' || n, 'SELECT', 'auto',"
        " 'differential', 'auto', '1s', 'active', 'UTC', 'public', 900000000 + n"
        " FROM generate_series(1, %(n)s) n",
        number,
    )
    conn.execute(  # every fifth stream table is read by others
        "INSERT INTO headwater.source (relation, schema_name, table_name, change_table, stream_table_id)"
        " SELECT 910000000 + n, 'public', 't' || n, 'src_' || n, CASE WHEN n %% 5 = 0 THEN n END"
        " FROM generate_series(1, %(n)s) n",
        number,
    )
    conn.execute(
        "INSERT INTO headwater.dependency SELECT st.id, s.id, '{1,2}' FROM headwater.stream_table st"
        " JOIN headwater.source s ON s.id IN (st.id + 1, st.id + 7)"
    )
    conn.execute(
        "INSERT INTO headwater.frontier SELECT id, 0, '10:10:', pg_current_xact_id()"
        " FROM headwater.stream_table"
    )
    conn.execute(
        "INSERT INTO headwater.refresh (stream_table_id, started_at, finished_at, mode, engine, action,"
        " status, reason, rows_in) SELECT CASE WHEN n %% %(busy)s = 0 THEN 1 ELSE n %% %(n)s + 1 END,"
        " clock_timestamp() - (%(history)s - n) * interval '0.3 seconds',"
        " clock_timestamp() - (%(history)s - n) * interval '0.3 seconds', 'differential', 'postgres',"
        " CASE WHEN n %% %(busy)s > 0 AND n %% 5 = 0 THEN 'recompute' ELSE 'delta' END,"
        " CASE WHEN n %% 1000 = 0 THEN 'failed' ELSE 'completed' END, '', 10"
        " FROM generate_series(1, %(history)s) n",
        number | {"history": HISTORY, "busy": BUSY},
    )
    conn.execute("INSERT INTO headwater.refresh_total SELECT id, 1, 1, 1, 1 FROM headwater.stream_table")
    conn.execute("UPDATE headwater.history_state SET counted_to = %s", (HISTORY,))
    conn.execute(
        "INSERT INTO headwater.refresh_swept SELECT id, %(half)s FROM headwater.stream_table",
        {"half": HISTORY // 2},
    )
    conn.execute(
        "INSERT INTO headwater.refresh_sum SELECT 1 + n %% %(n)s, CASE WHEN n %% 50 = 0"
        " THEN interval '1 hour' ELSE interval '1 minute' END, now() - n / 100 * interval '1 minute',"
        " 'delta', 'postgres', 9, 1, 1, 1, 1, 1, 1, 1, 1, '{3,4,5,6}', '{3,2,3,1}'"
        " FROM generate_series(1, %(sums)s) n",
        number | {"sums": SUMS},
    )
    conn.execute(
        "INSERT INTO headwater.worker_jobs (stream_table_id, members, status, worker_id, assigned_at,"
        " heartbeat_at, finished_at) SELECT n %% %(n)s + 1, ARRAY[n %% %(n)s + 1],"
        " CASE WHEN n %% 50 = 0 THEN 'FAILED' ELSE 'COMPLETED' END, %(worker)s,"
        " clock_timestamp(), clock_timestamp(), clock_timestamp() - n * interval '30 milliseconds'"
        " FROM generate_series(1, %(jobs)s) n",
        number | {"jobs": FINISHED_JOBS, "worker": WORKER},
    )
    conn.execute(  # what waits inside the scheduler, what runs, and one to claim
        "INSERT INTO headwater.worker_jobs (stream_table_id, members, status, worker_id, heartbeat_at)"
        " SELECT n, ARRAY[n], CASE WHEN n <= 8 THEN 'RUNNING' ELSE 'QUEUED' END, gen_random_uuid(),"
        " clock_timestamp() FROM generate_series(1, 1000) n"
        " UNION ALL SELECT 1, '{1}', 'QUEUED', NULL, NULL"
    )
    conn.execute(
        "INSERT INTO headwater.request (verb, arguments, requested_by, search_path, time_zone, status,"
        " finished_at) SELECT 'refresh', '{\"name\": \"s1\"}', 'me', '', 'UTC', 'done', clock_timestamp()"
        " FROM generate_series(1, 100000) n"
    )
    conn.execute(
        "INSERT INTO headwater.moment"
        " SELECT clock_timestamp() - n * interval '1 second', (1000000 - n)::text::xid8"
        " FROM generate_series(1, 3600) n"
    )
    conn.execute("VACUUM ANALYZE")


def read(plan: dict[str, Any]) -> Iterator[tuple[str, str, float]]:
    """Each scan of a table: the table, how it is read, and how many rows that takes."""
    if (table := plan.get("Relation Name")) is not None and plan["Actual Loops"]:
        rows = plan["Actual Rows"] + sum(
            count for name, count in plan.items() if name.startswith("Rows Removed by")
        )
        yield table, plan["Node Type"], rows * plan["Actual Loops"]
    for part in plan.get("Plans", ()):
        yield from read(part)


def plans(conn: Connection, name: tuple[str, str], mode: str) -> list[dict[str, Any]]:
    """Runs a named query as psycopg would have it prepared, in a transaction that is rolled back."""
    order: dict[str, int] = {}

    def numbered(match: re.Match[str]) -> str:
        return f"${order.setdefault(match[1], len(order) + 1)}"

    text = re.sub(r"%\((\w+)\)s", numbered, query(*name)).replace("%%", "%")
    values = VALUES | OWN_VALUES.get(name, {})
    try:
        with conn.transaction(force_rollback=True):
            conn.execute("SELECT set_config('plan_cache_mode', %s, true)", (mode,))
            conn.execute(b"PREPARE asked AS " + text.encode())
            arguments = sql.SQL(", ").join(sql.Literal(values[each]) for each in order)
            call = sql.SQL("asked ({})").format(arguments) if order else sql.SQL("asked")
            cursor = conn.execute(sql.SQL("EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE {}").format(call))
            return [each["Plan"] for each in cursor.fetchall()[0][0]]
    finally:
        conn.execute("DEALLOCATE ALL")


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"], ids=["custom", "generic"])
@pytest.mark.parametrize("name", NAMED, ids=".".join)
def test_no_query_of_the_service_reads_the_history(
    grown: Connection, name: tuple[str, str], mode: str
) -> None:
    growing = HISTORIES | (CATALOG if name in OF_A_REFRESH else set())
    for plan in plans(grown, name, mode):
        for table, how, rows in read(plan):
            if table in growing:
                found = f"{how} of {table}, {rows:,.0f} rows"
                assert how != "Seq Scan", found
                most = BATCHES.get(name, READ_AT_MOST)
                assert rows <= most or name in SEARCHES or is_of_all(name, table), found


def is_of_all(name: tuple[str, str], table: str) -> bool:
    """Whether a query shows the latest refreshes of every stream table, each found by index."""
    return name == ("overview", "stream_tables") and table == "refresh"


def test_every_query_of_the_service_is_looked_at() -> None:
    used = {name for path, _, name in uses() if path.is_relative_to(SOURCE / "service")}
    assert used
    assert not used - set(NAMED)


def test_the_claim_goes_by_its_index(grown: Connection) -> None:
    [plan] = plans(grown, ("service", "claim"), "force_generic_plan")
    [claimed] = [part for part in scans(plan) if part["Node Type"] == "Index Scan" and "Filter" in part]
    definition = grown.execute(
        "SELECT indexdef FROM pg_indexes WHERE schemaname = 'headwater' AND indexname = %s",
        (claimed["Index Name"],),
    ).fetchone()
    assert definition is not None
    assert "worker_id IS NULL" in definition[0]
    assert claimed["Actual Rows"] == 1
    assert not claimed.get("Rows Removed by Filter")


def test_noting_a_moment_reads_no_moments(grown: Connection) -> None:
    with grown.transaction(force_rollback=True):
        grown.execute("SET LOCAL plan_cache_mode = force_generic_plan")
        statistics = partial(
            grown.execute,
            "SELECT pg_stat_get_xact_numscans('headwater.moment'::regclass),"
            " pg_stat_get_xact_tuples_returned('headwater.moment'::regclass)",
        )
        [before] = statistics().fetchall()
        grown.execute(
            "INSERT INTO headwater.scheduler SELECT true, gen_random_uuid(), now(), now(), 1, 1, 1, 1,"
            " 1, 1, 1, 1, 1, 'on', 1, 1, false"
        )
        [after] = statistics().fetchall()
    assert after[0] == before[0]  # scans of the whole table
    assert after[1] == before[1]


def test_counting_reads_no_more_than_its_batch(grown: Connection) -> None:
    """The function that sums up hides its plan; the server counts what it reads."""
    with grown.transaction(force_rollback=True):
        statistics = partial(
            grown.execute,
            "SELECT pg_stat_get_xact_numscans('headwater.refresh'::regclass),"
            " pg_stat_get_xact_tuples_returned('headwater.refresh_pkey'::regclass)",
        )
        grown.execute(query("cleanup", "count"), VALUES | {"above": HISTORY - 3, "up_to": HISTORY})
        [before] = statistics().fetchall()
        grown.execute(query("cleanup", "count"), VALUES)
        [after] = statistics().fetchall()
    assert after[0] == before[0]  # scans of the whole table
    assert 0 < after[1] - before[1] <= BATCH


@pytest.mark.parametrize("of", [1, None], ids=["of one", "of all"])
def test_the_latest_sums_are_read_and_no_others(
    grown: Connection, of: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"limit": 20, "length": "1 hour", "stream_table_id": of}
    monkeypatch.setitem(OWN_VALUES, ("history", "sums"), values)
    [plan] = plans(grown, ("history", "sums"), "force_custom_plan")
    found = [(table, how, rows) for table, how, rows in read(plan) if table in HISTORIES]
    assert found
    for table, how, rows in found:
        assert how != "Seq Scan", table
        assert rows <= READ_AT_MOST, table


def scans(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "Relation Name" in plan:
        yield plan
    for part in plan.get("Plans", ()):
        yield from scans(part)
