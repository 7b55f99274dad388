"""What `status --watch` tells of a service and its workers is what they do."""

from __future__ import annotations

from typing import Any

import psycopg
from tests.service.conftest import StartProcess, StartScheduler
from tests.service.support import eventually
from tests.service.test_scheduler import BY_REGION, ORDERS

from headwater import Headwater
from headwater.inspect.overview import Glance, Overview, ServiceStatus

Connection = psycopg.Connection[Any]


def told(hw: Headwater) -> ServiceStatus:
    found = hw.overview().service
    assert found is not None
    return found


def test_the_service_and_its_workers(
    dsn: str, hw: Headwater, conn: Connection, schedule: StartScheduler, program: StartProcess
) -> None:
    conn.execute(ORDERS)
    hw.create("by_region", BY_REGION, schedule="50ms")
    hw.create("unscheduled", BY_REGION)
    worker = program("worker", "--jobs", "3")
    eventually(lambda: hw.overview().workers)
    scheduler = schedule(max_concurrent_refreshes="2")
    eventually(lambda: hw.overview().service)
    first = told(hw)
    assert (first.state, first.stream_tables, first.max_workers) == ("running", 1, 2)
    eventually(lambda: told(hw).ticks > first.ticks)
    assert told(hw).ticked_at > first.ticked_at
    [found] = hw.overview().workers
    assert (found.pid, found.capacity, found.status) == (worker.pid, 3, "active")

    # what waits for a refresh that cannot go on is seen to wait, and the refresh to run
    with psycopg.connect(dsn) as blocker:
        blocker.execute("SELECT FROM headwater.stream_table WHERE table_name = 'by_region' FOR UPDATE")
        conn.execute("INSERT INTO orders VALUES (1, 'north', 5)")
        [seen] = eventually(lambda: running(hw.overview()))
        assert (seen.stream_table, seen.pending_rows) == ("public.by_region", 1)
        eventually(lambda: told(hw).active_workers == 1)
        eventually(lambda: hw.overview().workers[0].jobs == 1)
    eventually(lambda: hw.overview().stream_tables[-1].stream_table == "public.by_region")
    assert hw.overview().stream_tables[-1].state == "current"

    hw.drain()
    eventually(lambda: told(hw).state == "draining")
    scheduler.stop()
    eventually(lambda: hw.overview().service is None)
    assert worker.stop() == 0
    assert hw.overview().workers == ()


def running(found: Overview) -> list[Glance]:
    return [glance for glance in found.stream_tables if glance.job is not None]


def test_a_service_that_died_is_silent(hw: Headwater, conn: Connection, schedule: StartScheduler) -> None:
    scheduler = schedule()
    eventually(lambda: hw.overview().service)
    [row] = conn.execute("SELECT * FROM headwater.scheduler").fetchall()
    scheduler.stop()
    eventually(lambda: hw.overview().service is None)
    # what a killed one leaves
    conn.execute(f"INSERT INTO headwater.scheduler VALUES ({', '.join(['%s'] * len(row))})", row)
    conn.execute("UPDATE headwater.scheduler SET ticked_at = clock_timestamp() - interval '20 s'")
    assert told(hw).state == "silent"
