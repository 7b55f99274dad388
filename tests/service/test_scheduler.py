"""The scheduler keeps stream tables within their schedules, whatever happens to them meanwhile."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from tests.integration.support import assert_fresh, stored_and_wanted, value
from tests.service.conftest import StartScheduler
from tests.service.support import eventually

from headwater import Headwater

Connection = psycopg.Connection[Any]

ORDERS = "CREATE TABLE orders (id int PRIMARY KEY, region text, amount numeric)"
WAITING = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    " AND application_name ~ '^headwater refresh' AND wait_event_type = 'Lock'"
)
BY_REGION = "SELECT region, count(*) AS n, sum(amount) AS total FROM orders GROUP BY region"


def fresh(hw: Headwater, *names: str) -> bool:
    """Whether stream tables hold what their queries give now."""
    return all(stored == wanted for stored, wanted in (stored_and_wanted(hw, name) for name in names))


@pytest.mark.smoke
def test_what_is_written_is_seen(hw: Headwater, conn: Connection, schedule: StartScheduler) -> None:
    conn.execute(ORDERS)
    hw.create("by_region", BY_REGION, schedule="100ms")
    schedule()
    for number in range(3):
        conn.execute("INSERT INTO orders VALUES (%s, 'north', 5)", [number])
        eventually(lambda: fresh(hw, "by_region"))
    eventually(lambda: value(conn, "SELECT total FROM by_region") == 15)


def test_what_was_written_before_it_started_is_seen(
    hw: Headwater, conn: Connection, schedule: StartScheduler
) -> None:
    conn.execute(ORDERS)
    hw.create("by_region", BY_REGION, schedule="1s")
    conn.execute("INSERT INTO orders VALUES (1, 'north', 5)")
    conn.execute("DELETE FROM headwater.changed_source")  # as after a crash of the server
    schedule()
    eventually(lambda: fresh(hw, "by_region"))


def test_at_rest_nothing_is_refreshed(hw: Headwater, conn: Connection, schedule: StartScheduler) -> None:
    conn.execute(ORDERS)
    hw.create("by_region", BY_REGION, schedule="50ms")
    schedule()
    conn.execute("INSERT INTO orders VALUES (1, 'north', 5)")
    eventually(lambda: fresh(hw, "by_region"))
    eventually(lambda: value(conn, "SELECT ticks FROM headwater.scheduler"))
    ticks = value(conn, "SELECT ticks FROM headwater.scheduler")
    jobs = value(conn, "SELECT count(*) FROM headwater.worker_jobs")
    eventually(lambda: value(conn, "SELECT ticks FROM headwater.scheduler") > ticks + 20)
    assert value(conn, "SELECT count(*) FROM headwater.worker_jobs") <= jobs + 1


def test_a_query_that_is_recomputed_goes_by_the_clock(
    hw: Headwater, conn: Connection, schedule: StartScheduler
) -> None:
    conn.execute(ORDERS)
    hw.create("slow", BY_REGION, schedule="200ms", mode="full")
    schedule()
    conn.execute("INSERT INTO orders VALUES (1, 'north', 5)")
    eventually(lambda: fresh(hw, "slow"))
    conn.execute("UPDATE orders SET amount = 6")
    eventually(lambda: fresh(hw, "slow"))


def test_a_chain_arrives_at_its_end(hw: Headwater, conn: Connection, schedule: StartScheduler) -> None:
    conn.execute(ORDERS)
    hw.create("first", "SELECT id, region, amount * 2 AS amount FROM orders")
    hw.create(
        "second", "SELECT region, sum(amount) AS total FROM first GROUP BY region", schedule="calculated"
    )
    hw.create("third", "SELECT count(*) AS regions, sum(total) AS total FROM second", schedule="100ms")
    schedule()
    for number in range(3):
        conn.execute("INSERT INTO orders VALUES (%s, %s, 5)", [number, f"r{number}"])
        eventually(lambda: fresh(hw, "first", "second", "third"))
    eventually(lambda: value(conn, "SELECT total FROM third") == 30)


def test_a_diamond_is_never_seen_half_done(hw: Headwater, conn: Connection, schedule: StartScheduler) -> None:
    conn.execute(ORDERS)
    hw.create("counts", "SELECT region, count(*) AS n FROM orders GROUP BY region", schedule="50ms")
    hw.create("sums", "SELECT region, sum(amount) AS total FROM orders GROUP BY region", schedule="70ms")
    hw.create(
        "odd",
        "SELECT region, n, total FROM counts JOIN sums USING (region) WHERE total <> 5 * n",
        schedule="90ms",
    )
    hw.create("joined", "SELECT region, n, total FROM counts JOIN sums USING (region)", schedule="50ms")
    schedule()
    for number in range(60):
        conn.execute("INSERT INTO orders VALUES (%s, %s, 5)", [number, f"r{number % 3}"])
        assert value(conn, "SELECT count(*) FROM joined WHERE total <> 5 * n") == 0
        assert value(conn, "SELECT count(*) FROM odd") == 0
    eventually(lambda: fresh(hw, "counts", "sums", "odd", "joined"))


def test_branches_are_refreshed_at_once(
    dsn: str, hw: Headwater, conn: Connection, schedule: StartScheduler
) -> None:
    """Two stream tables of one table run at the same time: the second does not wait for the first."""
    conn.execute(ORDERS)
    hw.create("one", BY_REGION, schedule="50ms")
    hw.create("two", BY_REGION, schedule="50ms")
    with psycopg.connect(dsn) as blocker:
        number = value(conn, "SELECT id FROM headwater.stream_tables WHERE table_name = 'one'")
        blocker.execute("SELECT FROM headwater.stream_table WHERE id = %s FOR UPDATE", [number])
        schedule(max_concurrent_refreshes="2")
        conn.execute("INSERT INTO orders VALUES (1, 'north', 5)")
        eventually(lambda: fresh(hw, "two"))
        assert value(conn, "SELECT count(*) FROM one") == 0
    eventually(lambda: fresh(hw, "one"))


def test_what_fails_is_suspended_and_resumed(
    hw: Headwater, conn: Connection, schedule: StartScheduler
) -> None:
    conn.execute("CREATE TABLE numbers (id int PRIMARY KEY, n int)")
    conn.execute("INSERT INTO numbers VALUES (1, 1)")
    hw.create("inverse", "SELECT id, 1 / n AS x FROM numbers", schedule="50ms")
    hw.create("plain", "SELECT id, n FROM numbers", schedule="50ms")
    schedule()
    conn.execute("INSERT INTO numbers VALUES (2, 0)")
    status = "SELECT status FROM headwater.stream_tables WHERE table_name = %s"
    eventually(lambda: value(conn, status, "inverse") == "suspended")
    eventually(lambda: fresh(hw, "plain"))
    assert value(conn, status, "plain") == "active"
    failures = "SELECT count(*) FROM headwater.refresh_history WHERE status = 'failed'"
    assert value(conn, failures) == 3
    reason = "SELECT suspended_reason FROM headwater.stream_table WHERE status = 'suspended'"
    assert "division by zero" in value(conn, reason)
    conn.execute("UPDATE numbers SET n = 4 WHERE id = 2")
    hw.resume("inverse")
    eventually(lambda: fresh(hw, "inverse"))


def test_what_fails_at_the_end_of_a_chain_holds_up_nothing_before_it(
    hw: Headwater, conn: Connection, schedule: StartScheduler
) -> None:
    conn.execute("CREATE TABLE numbers (id int PRIMARY KEY, n int)")
    hw.create("first", "SELECT id, n + 1 AS n FROM numbers", schedule="50ms")
    hw.create("inverse", "SELECT id, 1 / n AS x FROM first", schedule="50ms")
    schedule()
    eventually(lambda: value(conn, "SELECT count(*) FROM headwater.scheduler") == 1)
    conn.execute("INSERT INTO numbers VALUES (1, -1)")
    eventually(lambda: fresh(hw, "first"))
    assert value(conn, "SELECT status FROM headwater.stream_tables WHERE table_name = 'inverse'") == "active"
    conn.execute("UPDATE numbers SET n = 1")
    eventually(lambda: fresh(hw, "first"))
    eventually(lambda: fresh(hw, "inverse"))


def test_drained_it_does_no_work(hw: Headwater, conn: Connection, schedule: StartScheduler) -> None:
    conn.execute(ORDERS)
    hw.create("by_region", BY_REGION, schedule="50ms")
    schedule()
    hw.set("drain", "on")
    eventually(lambda: value(conn, "SELECT bool_or(draining) FROM headwater.scheduler"))
    conn.execute("INSERT INTO orders VALUES (1, 'north', 5)")
    ticks = value(conn, "SELECT ticks FROM headwater.scheduler")
    eventually(lambda: value(conn, "SELECT ticks FROM headwater.scheduler") > ticks + 20)
    assert value(conn, "SELECT count(*) FROM by_region") == 0
    hw.set("drain", "off")
    eventually(lambda: fresh(hw, "by_region"))


def test_stream_tables_come_change_and_go(hw: Headwater, conn: Connection, schedule: StartScheduler) -> None:
    conn.execute(ORDERS)
    schedule()
    hw.create("by_region", BY_REGION, schedule="50ms")
    conn.execute("INSERT INTO orders VALUES (1, 'north', 5)")
    eventually(lambda: fresh(hw, "by_region"))
    hw.alter("by_region", query="SELECT region, max(amount) AS most FROM orders GROUP BY region")
    conn.execute("INSERT INTO orders VALUES (2, 'north', 7)")
    eventually(lambda: fresh(hw, "by_region"))
    hw.create("above", "SELECT count(*) AS n FROM by_region", schedule="50ms")
    conn.execute("INSERT INTO orders VALUES (3, 'south', 7)")
    eventually(lambda: fresh(hw, "by_region", "above"))
    hw.drop("above")
    conn.execute("INSERT INTO orders VALUES (4, 'west', 7)")
    eventually(lambda: fresh(hw, "by_region"))


def test_writers_wake_it(hw: Headwater, conn: Connection, schedule: StartScheduler) -> None:
    """By itself it would look once in a minute, which is longer than this test waits."""
    conn.execute(ORDERS)
    hw.create("by_region", BY_REGION, schedule="50ms")
    hw.create("above", "SELECT count(*) AS n FROM by_region", schedule="50ms")
    schedule(event_driven_wake="on", scheduler_interval_ms="60000")
    eventually(lambda: value(conn, "SELECT count(*) FROM headwater.scheduler") == 1)
    for number in range(3):
        conn.execute("INSERT INTO orders VALUES (%s, 'north', 5)", [number])
        eventually(lambda: fresh(hw, "by_region", "above"))


def test_a_second_scheduler_takes_over(hw: Headwater, conn: Connection, schedule: StartScheduler) -> None:
    conn.execute(ORDERS)
    hw.create("by_region", BY_REGION, schedule="50ms")
    first = schedule()
    eventually(lambda: value(conn, "SELECT count(*) FROM headwater.scheduler") == 1)
    leader = value(conn, "SELECT worker_id FROM headwater.scheduler")
    schedule()
    first.stop()
    eventually(lambda: value(conn, "SELECT bool_or(worker_id <> %s) FROM headwater.scheduler", leader))
    conn.execute("INSERT INTO orders VALUES (1, 'north', 5)")
    eventually(lambda: fresh(hw, "by_region"))


def test_stopping_finishes_what_runs(
    dsn: str, hw: Headwater, conn: Connection, schedule: StartScheduler
) -> None:
    conn.execute(ORDERS)
    hw.create("by_region", BY_REGION, schedule="50ms")
    with psycopg.connect(dsn) as blocker:
        blocker.execute("SELECT FROM headwater.stream_table FOR UPDATE")
        scheduler = schedule()
        conn.execute("INSERT INTO orders VALUES (1, 'north', 5)")
        eventually(lambda: value(conn, WAITING) == 1)
        scheduler.stop()
    eventually(lambda: value(conn, "SELECT count(*) FROM headwater.scheduler") == 0)
    assert_fresh(hw, "by_region")
    assert value(conn, "SELECT status FROM headwater.worker_jobs") == "COMPLETED"
    assert value(conn, "SELECT count(*) FROM headwater.worker_registry") == 0


@pytest.mark.smoke
def test_what_is_asked_for_in_sql_is_done(hw: Headwater, conn: Connection, schedule: StartScheduler) -> None:
    conn.execute(ORDERS)
    schedule()
    conn.execute("CALL headwater.create_stream_table('by_region', %s, schedule => '50ms')", [BY_REGION])
    conn.execute("INSERT INTO orders VALUES (1, 'north', 5)")
    eventually(lambda: fresh(hw, "by_region"))
    with pytest.raises(psycopg.errors.DuplicateTable):
        conn.execute("CALL headwater.create_stream_table('by_region', 'SELECT 1 AS one')")
    conn.execute("CALL headwater.drop_stream_table('by_region')")
    assert value(conn, "SELECT to_regclass('by_region')") is None
