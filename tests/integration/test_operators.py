"""What operators query says what happened: statistics, health, change tables, jobs, the tree, advice."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, quantiles
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from tests.integration.support import WAITING_IS_LONG, assert_fresh, change_rows, change_table, tick, value

from headwater import Headwater, HeadwaterError
from headwater.catalog.cleanup import clean_up
from headwater.config import Settings
from headwater.db.scratch import statement
from headwater.errors import RefreshFailed, Suspended

Connection = psycopg.Connection[Any]

SUMS = "SELECT region, sum(amount) AS total FROM public.sales GROUP BY region"
QUESTIONS = re.findall(
    r"<!-- watching -->\n```sql\n(.*?)```",
    (Path(__file__).parents[2] / "docs" / "operations" / "monitoring.md").read_text(encoding="utf-8"),
    re.DOTALL,
)
WATCHED = (
    *(
        f"TABLE headwater.{view}"
        for view in (
            "stream_tables",
            "refresh_history",
            "refresh_stats",
            "running_jobs",
            "consumers",
            "worker_registry",
            "worker_jobs",
        )
    ),
    "TABLE headwater.pg_stat_headwater",
    "TABLE headwater.requests",
    "SELECT * FROM headwater.worker_pool_status()",
    "SELECT * FROM headwater.parallel_job_status()",
    "SELECT * FROM headwater.health_summary()",
    "SELECT * FROM headwater.change_buffer_sizes()",
    "SELECT * FROM headwater.dependency_tree()",
    "SELECT * FROM headwater.recommend_refresh_mode()",
    "SELECT * FROM headwater.recommend_refresh_mode('sums')",
    "SELECT * FROM headwater.request_status(1)",
)


@pytest.fixture
def sales(conn: Connection) -> None:
    conn.execute("CREATE TABLE sales (id int PRIMARY KEY, region text, amount int)")
    conn.execute("INSERT INTO sales VALUES (1, 'north', 10), (2, 'south', 7)")


def rows(conn: Connection, query: str, *parameters: object) -> list[dict[str, Any]]:
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(statement(query), parameters or None).fetchall()


def the_row(conn: Connection, query: str, *parameters: object) -> dict[str, Any]:
    found = rows(conn, query, *parameters)
    assert len(found) == 1
    return found[0]


def statistics(conn: Connection, name: str) -> dict[str, Any]:
    return the_row(conn, "SELECT * FROM headwater.pg_stat_headwater WHERE table_name = %s", name)


def health(conn: Connection) -> dict[str, Any]:
    return the_row(conn, "SELECT * FROM headwater.health_summary()")


def age_history(conn: Connection, interval: str) -> None:
    """As if everything had happened earlier."""
    conn.execute(
        statement(
            f"UPDATE headwater.refresh SET started_at = started_at - interval '{interval}',"
            f" finished_at = finished_at - interval '{interval}'"
        )
    )


# statistics


@pytest.mark.usefixtures("sales")
def test_statistics_are_those_of_the_history(hw: Headwater, conn: Connection) -> None:
    hw.create("sums", SUMS, mode="differential")
    hw.create("quotient", "SELECT id, 100 / amount AS share FROM public.sales")
    for number in range(3, 9):
        conn.execute(
            "INSERT INTO sales SELECT %s * 10 + i, 'east', 1 FROM generate_series(1, %s) i", [number] * 2
        )
        hw.refresh("sums")
    hw.refresh("sums", full=True)
    hw.refresh("sums")  # finds nothing to do, and is not counted
    hw.refresh("quotient")
    conn.execute("INSERT INTO sales VALUES (1000, 'zero', 0)")
    with pytest.raises(RefreshFailed):
        hw.refresh("quotient")

    found, entries = statistics(conn, "sums"), hw.history("sums", limit=100)
    durations = [entry.duration_ms for entry in entries]
    assert [entry.action for entry in entries] == ["recompute", *["delta"] * 6, "load"]
    assert found["schema_name"] == "public"
    assert (found["total_refreshes"], found["total_full_refreshes"], found["total_diff_refreshes"]) == (
        8,
        2,
        6,
    )
    assert found["total_delta_rows_processed"] == sum(range(3, 9))
    assert found["avg_refresh_duration_ms"] == pytest.approx(fmean(durations))
    percentiles = quantiles(durations, n=100, method="inclusive")
    assert found["p95_refresh_duration_ms"] == pytest.approx(percentiles[94])
    assert found["p99_refresh_duration_ms"] == pytest.approx(percentiles[98])
    assert found["last_refresh_at"] == entries[0].finished_at
    assert (found["last_error"], found["last_error_at"]) == (None, None)

    failed, entry = statistics(conn, "quotient"), hw.history("quotient", limit=1)[0]
    assert entry.status == "failed"
    assert "division by zero" in failed["last_error"]
    assert (failed["last_error"], failed["last_error_at"]) == (entry.error, entry.finished_at)
    assert failed["total_refreshes"] == 2, "the failed one is not counted"
    assert isinstance(failed["avg_refresh_duration_ms"], float)

    conn.execute("DELETE FROM sales WHERE id = 1000")
    hw.refresh("quotient")
    assert statistics(conn, "quotient")["last_error_at"] == entry.finished_at, "it is the last one still"


@pytest.mark.usefixtures("sales")
def test_totals_do_not_shrink_when_the_history_forgets(hw: Headwater, conn: Connection) -> None:
    hw.create("sums", SUMS)
    conn.execute("INSERT INTO sales VALUES (3, 'east', 1)")
    hw.refresh("sums")
    before = statistics(conn, "sums")
    age_history(conn, "8 days")
    hw.refresh("sums", full=True)
    assert clean_up(hw.connection, Settings(), WAITING_IS_LONG)
    assert len(hw.history("sums")) == 1
    after = statistics(conn, "sums")
    assert (before["total_refreshes"], after["total_refreshes"]) == (2, 3)
    assert (after["total_full_refreshes"], after["total_diff_refreshes"]) == (2, 1)
    hw.drop("sums")
    assert rows(conn, "TABLE headwater.pg_stat_headwater") == []
    assert rows(conn, "TABLE headwater.refresh_total") == []


HOUR = 3_600_000.0


@pytest.mark.usefixtures("sales")
def test_lag_is_how_long_changes_wait(hw: Headwater, conn: Connection) -> None:
    hw.create("sums", SUMS)
    hw.create("above", "SELECT region FROM public.sums WHERE total > 5")
    hw.create("beside", "SELECT id FROM public.sales WHERE region = 'no such'")
    conn.execute("CREATE TABLE others (id int)")
    hw.create("other", "SELECT id FROM public.others")

    def lags() -> dict[str, float]:
        found = rows(conn, "TABLE headwater.pg_stat_headwater")
        return {row["table_name"]: row["current_lag_estimate_ms"] for row in found}

    assert set(lags().values()) == {0.0}
    age_history(conn, "1 hour")
    assert set(lags().values()) == {0.0}, "nothing waits, however long ago the last refresh was"
    conn.execute("INSERT INTO sales VALUES (3, 'east', 1)")
    assert lags()["other"] == 0
    assert all(lag >= HOUR for name, lag in lags().items() if name != "other"), "nothing says since when"
    hw.refresh("above")
    hw.refresh("beside")
    assert set(lags().values()) == {0.0}

    # A scheduler notes which transactions there were when: the change came after the tick.
    age_history(conn, "1 hour")
    tick(conn)
    conn.execute("INSERT INTO sales VALUES (4, 'east', 1)")
    assert all(0 < lag < HOUR / 2 for name, lag in lags().items() if name != "other")
    conn.execute("UPDATE headwater.moment SET at = at - interval '30 minutes'")
    assert all(HOUR / 2 <= lag < HOUR for name, lag in lags().items() if name != "other")
    # Those that come later do not make it look younger.
    tick(conn)
    assert value(conn, "SELECT count(*) FROM headwater.moment") == 2
    conn.execute("INSERT INTO sales VALUES (5, 'east', 1)")
    assert all(HOUR / 2 <= lag < HOUR for name, lag in lags().items() if name != "other")
    # What failed or is to be rebuilt lags as well, and so does what reads it.
    hw.refresh("above")
    hw.refresh("beside")
    conn.execute("UPDATE headwater.stream_table SET rebuild_reason = 'a test' WHERE table_name = 'sums'")
    assert [name for name, lag in sorted(lags().items()) if lag] == ["above", "sums"]


@pytest.mark.usefixtures("sales")
def test_moments_are_noted_once_in_a_second_and_kept_for_an_hour(conn: Connection) -> None:
    tick(conn)
    tick(conn)
    assert value(conn, "SELECT count(*) FROM headwater.moment") == 1
    conn.execute("UPDATE headwater.moment SET at = at - interval '61 minutes'")
    tick(conn)
    assert value(conn, "SELECT count(*) FROM headwater.moment WHERE at > now() - interval '1 minute'") == 1
    assert value(conn, "SELECT count(*) FROM headwater.moment") == 1


# health


@pytest.mark.usefixtures("sales")
def test_health_counts_what_is_wrong(hw: Headwater, conn: Connection) -> None:
    assert health(conn)["total_stream_tables"] == 0
    hw.create("sums", SUMS)
    hw.create("quotient", "SELECT id, 100 / amount AS share FROM public.sales")
    hw.create("resting", "SELECT id FROM public.sales")
    hw.suspend("resting")
    conn.execute("INSERT INTO sales VALUES (1000, 'zero', 0)")
    with pytest.raises(HeadwaterError):
        hw.refresh("quotient")
    found = health(conn)
    counts = {name: number for name, number in found.items() if name.endswith(("_count", "_tables"))}
    assert counts == {
        "total_stream_tables": 3,
        "active_count": 2,
        "error_count": 1,
        "suspended_count": 1,
        "stale_count": 0,
        "broken_count": 0,
        "incident_count": 0,
    }
    assert found["oldest_unconsumed_change"] is not None
    conn.execute("DELETE FROM sales WHERE id = 1000")
    hw.resume("resting")
    for name in ("sums", "quotient", "resting"):
        hw.refresh(name)
    found = health(conn)
    assert (found["active_count"], found["error_count"], found["suspended_count"]) == (3, 0, 0)
    assert found["oldest_unconsumed_change"] is None


@pytest.mark.usefixtures("sales")
def test_stale_is_what_waits_for_longer_than_its_schedule(hw: Headwater, conn: Connection) -> None:
    """Each with a change that has waited for an hour."""
    hw.create("sums", SUMS)
    hw.create("above", "SELECT region FROM public.sums WHERE total > 5")
    conn.execute("INSERT INTO sales VALUES (3, 'east', 1)")
    age_history(conn, "1 hour")

    def stale(schedule: str | None, tier: str | None = None, reader: str | None = None) -> int:
        conn.execute(
            "UPDATE headwater.stream_table SET schedule = CASE table_name WHEN 'sums' THEN %s ELSE %s END,"
            " tier = CASE table_name WHEN 'sums' THEN %s END",
            (schedule, reader, tier),
        )
        return int(health(conn)["stale_count"])

    assert stale("1s") == 1
    assert stale("59m") == 1
    assert stale("61m") == 0
    assert stale("31m", "warm") == 0
    assert stale("29m", "warm") == 1
    assert stale("5m", "cold") == 1
    assert stale("7m", "cold") == 0
    assert stale("1s", "frozen") == 0
    assert stale(None) == 0
    assert stale(None, reader="1m") == 1, "it is to be as fresh as its reader wants it"
    assert stale("calculated", reader="1m") == 1
    assert stale("calculated", reader="2h") == 0
    assert stale("1d", reader="1m") == 0, "nothing waits for the reader itself"
    assert stale("0 * * * *") == 0
    assert stale("1s") == 1
    hw.refresh("above")
    assert stale("1s") == 0


def test_what_the_scheduler_does(conn: Connection) -> None:
    def shown() -> tuple[str, str]:
        pool = the_row(conn, "SELECT * FROM headwater.worker_pool_status()")
        return health(conn)["scheduler_status"], pool["scheduler_status"]

    assert shown() == ("not installed",) * 2
    assert health(conn)["plan_cache_hit_rate"] is None
    tick(conn)
    assert shown() == ("running",) * 2
    assert health(conn)["plan_cache_hit_rate"] == 0.75
    tick(conn, draining=True)
    assert shown() == ("draining",) * 2
    tick(conn, ticked_at="clock_timestamp() - interval '16 seconds'")
    assert shown() == ("stopped",) * 2
    conn.execute("INSERT INTO headwater.setting VALUES ('scheduler_interval_ms', '60000')")
    assert shown() == ("running",) * 2, "it ticks once in a minute"
    conn.execute("DELETE FROM headwater.scheduler")
    assert shown() == ("stopped",) * 2


# workers and jobs


@pytest.mark.parametrize(
    ("table", "names"),
    [
        ("worker_registry", "worker_id hostname pid started_at last_heartbeat status capabilities"),
        ("worker_jobs", "stream_table_id assigned_at heartbeat_at worker_id"),
    ],
)
def test_workers_and_jobs_have_names_that_operators_know(conn: Connection, table: str, names: str) -> None:
    described = conn.execute(statement(f"TABLE headwater.{table}")).description or []
    assert {column.name for column in described} >= set(names.split())


def test_the_pool(conn: Connection) -> None:
    pool = the_row(conn, "SELECT * FROM headwater.worker_pool_status()")
    assert (pool["active_workers"], pool["max_workers"], pool["per_db_cap"]) == (0, 0, 0)
    tick(conn)
    conn.execute(
        "INSERT INTO headwater.worker_registry"
        " (worker_id, kind, hostname, pid, backend_pid, capacity, status, last_heartbeat)"
        " SELECT gen_random_uuid(), kind, 'here', 1, 1, 3, 'active', clock_timestamp() - late"
        " FROM (VALUES ('scheduler', interval '0'), ('worker', '1s'), ('worker', '20s'), ('worker', '31s'))"
        " AS w (kind, late)"
    )
    pool = the_row(conn, "SELECT * FROM headwater.worker_pool_status()")
    assert (pool["active_workers"], pool["max_workers"], pool["queued_jobs"]) == (2, 4, 3)
    assert (pool["per_db_cap"], pool["parallel_mode"]) == (0, "on")
    assert (pool["external_workers"], pool["external_capacity"]) == (2, 6)
    assert (pool["busy_share"], pool["tick_ms"]) == (0.25, 0.5)


@pytest.mark.usefixtures("sales")
def test_jobs_of_the_last_seconds(hw: Headwater, conn: Connection) -> None:
    made = hw.create("sums", SUMS)
    conn.execute(
        "INSERT INTO headwater.worker_jobs (stream_table_id, members, status, attempt, engine, queued_at,"
        " assigned_at, finished_at, error)"
        " SELECT CASE status WHEN 'FAILED' THEN 99 ELSE %(id)s END, ARRAY[%(id)s], status, attempt,"
        " 'postgres', now() - queued, now() - started, now() - finished, error"
        " FROM (VALUES ('COMPLETED', 1, interval '10min 2s', interval '10min 1s', interval '10min', NULL),"
        "              ('COMPLETED', 1, '62s', '61s', '59s', NULL),"
        "              ('FAILED', 2, '50s', '48s', '47s', 'it failed'),"
        "              ('RECLAIMED', 1, '45s', '44s', NULL, NULL),"
        "              ('RUNNING', 3, '1day', '1day', NULL, NULL),"
        "              ('QUEUED', 1, '5s', NULL, NULL, NULL))"
        " AS j (status, attempt, queued, started, finished, error)",
        {"id": made.id},
    )
    found = rows(conn, "SELECT * FROM headwater.parallel_job_status(60)")
    assert [row["status"] for row in found] == ["QUEUED", "RUNNING", "RECLAIMED", "FAILED", "COMPLETED"]
    assert [row["attempt"] for row in found] == [1, 3, 1, 2, 1]
    done, failed, queued = found[-1], found[-2], found[0]
    assert (done["stream_table"], done["engine"]) == ("public.sums", "postgres")
    assert (done["wait_ms"], done["duration_ms"]) == (1000.0, 2000.0)
    assert (failed["stream_table"], failed["error"], failed["duration_ms"]) == (
        "(dropped)",
        "it failed",
        1000.0,
    )
    assert queued["duration_ms"] is None
    assert queued["wait_ms"] >= 5000
    assert len(rows(conn, "SELECT * FROM headwater.parallel_job_status(601)")) == 6
    assert len(rows(conn, "SELECT * FROM headwater.parallel_job_status()")) == 5


# change tables


@pytest.mark.usefixtures("sales")
def test_change_tables_by_size(hw: Headwater, conn: Connection) -> None:
    conn.execute("CREATE TABLE others (id int)")
    hw.create("sums", SUMS)
    hw.create("totals", "SELECT sum(total) AS total FROM public.sums")
    hw.create("other", "SELECT id FROM public.others")
    hw.create("more", "SELECT id + 1 AS id FROM public.others")
    hw.create("anew", "SELECT id, random() AS r FROM public.others")
    conn.execute("INSERT INTO others SELECT generate_series(1, 17)")

    def sizes() -> dict[str, dict[str, Any]]:
        found = rows(conn, "SELECT * FROM headwater.change_buffer_sizes()")
        return {row["source"]: row for row in found}

    found = sizes()
    assert set(found) == {"public.sales", "public.sums", "public.others"}
    assert next(iter(found)) == "public.others", "the largest comes first"
    assert found["public.others"]["row_count"] == change_rows(conn, "others") == 17
    assert found["public.others"]["row_count_is_estimate"] is False
    assert found["public.others"]["consumers"] == ["public.more", "public.other"]
    assert found["public.others"]["bytes"] == value(
        conn, "SELECT pg_table_size('headwater_changes.src_' || 'others'::regclass::oid)"
    )
    assert found["public.others"]["oldest_change"] is not None
    assert (found["public.sales"]["row_count"], found["public.sales"]["oldest_change"]) == (0, None)
    assert found["public.sums"]["consumers"] == ["public.totals"]

    hw.refresh("other")
    assert sizes()["public.others"]["row_count"] == 17, "one is left that needs them"
    hw.suspend("more")
    conn.execute("INSERT INTO others SELECT generate_series(1, 12000)")
    found = sizes()
    assert found["public.others"]["row_count_is_estimate"] is True
    assert 10_000 < found["public.others"]["row_count"] < 36_000
    hw.resume("more")
    hw.refresh("other")
    hw.refresh("more")
    assert sizes()["public.others"]["row_count"] == 0
    assert sizes()["public.others"]["oldest_change"] is None


@pytest.mark.usefixtures("sales")
def test_a_change_table_that_is_gone_or_damaged(hw: Headwater, conn: Connection) -> None:
    """Who watches is not stopped by it."""
    hw.create("sums", SUMS)
    conn.execute("INSERT INTO sales VALUES (3, 'east', 1)")
    damaged = change_table(conn, "sales")
    for damage in (f"ALTER TABLE {damaged} RENAME xid TO y", f"DROP TABLE {damaged} CASCADE"):
        conn.execute(statement(damage))
        for query in WATCHED[4:]:
            rows(conn, query)


# the tree


@pytest.mark.usefixtures("sales")
def test_the_tree(hw: Headwater, conn: Connection) -> None:
    conn.execute('CREATE TABLE "Other" (region text)')
    hw.create("sums", SUMS, schedule="1s")
    hw.create("low", "SELECT region FROM public.sums WHERE total < 5")
    hw.create("high", 'SELECT region FROM public.sums s JOIN public."Other" o USING (region) WHERE total > 5')
    hw.create("both_of_them", "SELECT region FROM public.low UNION ALL SELECT region FROM public.high")
    hw.create("alone", "SELECT 1 AS one")
    hw.suspend("sums")
    found = rows(conn, "SELECT * FROM headwater.dependency_tree()")
    assert "\n".join(row["tree"] for row in found) == (
        "public.alone\n"
        "public.both_of_them\n"
        "├── public.high\n"
        '│   ├── public."Other"\n'
        "│   └── public.sums …\n"
        "└── public.low\n"
        "    └── public.sums\n"
        "        └── public.sales"
    )
    last, before = found[-1], found[-2]
    assert (last["node"], last["kind"], last["parent"], last["depth"]) == (
        "public.sales",
        "table",
        "public.sums",
        3,
    )
    assert (last["stream_table_id"], last["status"]) == (None, None)
    assert (before["kind"], before["status"], before["schedule"]) == ("stream table", "suspended", "1s")


@pytest.mark.usefixtures("sales")
def test_a_tree_of_diamonds_has_a_row_for_each_edge(hw: Headwater, conn: Connection) -> None:
    hw.create("top_0", "SELECT id FROM public.sales")
    for level in range(1, 4):
        for side in ("left", "right"):
            hw.create(f"{side}_{level}", f"SELECT id FROM public.top_{level - 1}")
        both = f"SELECT l.id FROM public.left_{level} l JOIN public.right_{level} r USING (id)"
        hw.create(f"top_{level}", both)
    edges = value(conn, "SELECT count(*) FROM headwater.dependency")
    assert len(rows(conn, "SELECT * FROM headwater.dependency_tree()")) == edges + 1


# advice


@pytest.mark.usefixtures("sales")
def test_advice_comes_from_the_history(hw: Headwater, conn: Connection) -> None:
    hw.create("sums", SUMS)
    hw.create("anew", "SELECT id, random() AS r FROM public.sales")
    hw.create("whole", "SELECT id FROM public.sales", mode="full")

    def advice(name: str) -> dict[str, Any]:
        return the_row(conn, "SELECT * FROM headwater.recommend_refresh_mode(%s)", name)

    assert (advice("sums")["recommended_mode"], advice("sums")["sampled_refreshes"]) == ("auto", 1)
    for number in range(3, 6):
        conn.execute("INSERT INTO sales VALUES (%s, 'east', 1)", [number])
        hw.refresh("sums")
    entries = hw.history("sums", limit=10)
    deltas = [entry.duration_ms for entry in entries if entry.action == "delta"]
    found = advice("public.sums")
    assert (found["stream_table"], found["current_mode"], found["sampled_refreshes"]) == (
        "public.sums",
        "auto",
        4,
    )
    assert found["avg_delta_ms"] == pytest.approx(fmean(deltas))
    assert found["avg_full_ms"] == pytest.approx(entries[-1].duration_ms)
    for slower, wanted in (("delta", "full"), ("load", "differential")):
        conn.execute(
            "UPDATE headwater.refresh SET finished_at = started_at + CASE action WHEN %s THEN interval '10ms'"
            " ELSE interval '5ms' END",
            [slower],
        )
        found = advice('"sums"')
        assert found["recommended_mode"] == wanted
        ratio = "2.00" if slower == "delta" else "0.50"
        assert found["reason"] == f"a delta takes {ratio} times as long as a full refresh"

    assert advice("anew")["recommended_mode"] == "full"
    assert "random()" in advice("anew")["reason"]
    assert (advice("whole")["recommended_mode"], advice("whole")["current_mode"]) == ("auto", "full")
    everything = rows(conn, "SELECT * FROM headwater.recommend_refresh_mode()")
    assert [row["stream_table"] for row in everything] == ["public.anew", "public.sums", "public.whole"]
    for unknown in ("nowhere", "nowhere.sums"):
        with pytest.raises(psycopg.errors.UndefinedTable):
            advice(unknown)
    conn.execute("SET search_path = pg_catalog")
    with pytest.raises(psycopg.errors.UndefinedTable):
        advice("sums")


# who may watch


@pytest.mark.usefixtures("sales")
def test_a_monitoring_role_can_watch_and_no_more(
    hw: Headwater, conn: Connection, new_role: Callable[[], tuple[str, str]]
) -> None:
    hw.create("sums", SUMS)
    tick(conn)
    conn.execute("INSERT INTO sales VALUES (3, 'east', 1)")
    role, role_dsn = new_role()
    with psycopg.connect(role_dsn, autocommit=True) as watching:
        for query in WATCHED:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                watching.execute(statement(query))
        conn.execute(statement(f"GRANT pg_monitor TO {role}"))
        shown = {query: rows(watching, query) for query in WATCHED}
        assert shown["TABLE headwater.pg_stat_headwater"][0]["current_lag_estimate_ms"] > 0
        assert shown["SELECT * FROM headwater.change_buffer_sizes()"][0]["row_count"] == 1
        for query in (
            "TABLE headwater.stream_table",
            "TABLE headwater.setting",
            "TABLE headwater_changes.src_1",
            "TABLE sales",
            "TABLE sums",
            "SELECT headwater.set_config('drain', 'on')",
            "SELECT headwater.request_drop_stream_table('sums')",
            "CALL headwater.drop_stream_table('sums')",
            "SELECT * FROM headwater.waiting_changes()",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                watching.execute(statement(query))


@pytest.mark.usefixtures("sales")
def test_the_questions_of_the_documentation(
    hw: Headwater, conn: Connection, new_role: Callable[[], tuple[str, str]]
) -> None:
    hw.create("sums", SUMS)
    hw.create("quick", "SELECT id FROM public.sales")
    conn.execute(
        "UPDATE headwater.refresh SET finished_at = started_at + interval '1 hour' WHERE stream_table_id = 1"
    )
    conn.execute("INSERT INTO sales SELECT generate_series(10, 50), 'east', 1")
    tick(conn)
    role, role_dsn = new_role()
    conn.execute(statement(f"GRANT pg_monitor TO {role}"))
    with psycopg.connect(role_dsn, autocommit=True) as watching:
        loop, workers, longest, backlog, summary = (rows(watching, query) for query in QUESTIONS)
    assert (loop[0]["scheduler_status"], loop[0]["busy_share"]) == ("running", 0.25)
    assert (workers[0]["active_workers"], workers[0]["queued_jobs"], workers[0]["jobs"]) == (2, 3, 0)
    assert [row["table_name"] for row in longest] == ["sums", "quick"]
    assert (backlog[0]["source"], backlog[0]["row_count"]) == ("public.sales", 41)
    assert summary[0]["total_stream_tables"] == 2


# suspending


@pytest.mark.usefixtures("sales")
def test_a_suspended_stream_table(hw: Headwater, conn: Connection) -> None:
    hw.create("sums", SUMS)
    hw.create("above", "SELECT region FROM public.sums WHERE total > 5")
    hw.create("beside", "SELECT id FROM public.sales")
    found = hw.suspend("sums")
    assert (found.status, found.suspended_reason) == ("suspended", "it was suspended by postgres")
    assert hw.suspend("sums", "the load runs").suspended_reason == "the load runs"
    assert hw.suspend("sums").suspended_reason == "the load runs", "twice is as once"
    conn.execute("INSERT INTO sales VALUES (3, 'east', 1)")
    for name in ("sums", "above"):
        with pytest.raises(Suspended) as caught:
            hw.refresh(name)
        assert caught.value.detail == "the load runs"
        assert "headwater resume public.sums" in caught.value.hint
    assert [entry.status for entry in hw.history()] == ["completed"] * 3, "a refusal is no failed refresh"
    hw.refresh("beside")
    assert hw.verify("sums").note is not None, "it can be looked at"

    # Neither another query nor new storage resumes it.
    hw.alter("sums", query=f"{SUMS} HAVING sum(amount) > 0", tier="frozen")
    found = hw.alter("sums", mode="full")
    assert (found.status, found.suspended_reason, found.tier) == ("suspended", "the load runs", "frozen")
    hw.alter("sums", mode="auto", tier="auto")

    conn.execute("INSERT INTO sales VALUES (4, 'west', 9)")
    found = hw.resume("sums")
    assert (found.status, found.suspended_reason, found.tier) == ("active", None, None)
    assert hw.resume("sums") == found
    assert [outcome.action for outcome in hw.refresh("above")] == ["delta", "delta"]
    assert_fresh(hw, "sums")
    assert_fresh(hw, "above")
    hw.suspend("above")
    hw.drop("sums", cascade=True)
