"""The service cleans up the history by itself."""

from __future__ import annotations

from typing import Any

import psycopg
from tests.integration.history import add, counted, left
from tests.integration.support import value
from tests.service.conftest import StartProcess, StartScheduler
from tests.service.support import eventually
from tests.service.test_scheduler import BY_REGION, ORDERS, fresh

from headwater import Headwater

Connection = psycopg.Connection[Any]


def test_the_service_counts_refreshes_and_forgets_old_deltas(
    hw: Headwater, conn: Connection, schedule: StartScheduler
) -> None:
    conn.execute(ORDERS)
    hw.create("by_region", BY_REGION, schedule="50ms")
    add(conn, value(conn, "SELECT id FROM headwater.stream_table"), number=300, ago="2 hours")
    schedule(history_latest="7")
    eventually(lambda: counted(conn) >= 300)
    eventually(lambda: len(left(conn, "finished_at < now() - interval '1 hour'")) == 7)
    conn.execute("INSERT INTO orders VALUES (1, 'north', 5)")
    eventually(lambda: fresh(hw, "by_region"))


def test_a_clean_up_that_fails_is_logged_and_refreshes_go_on(
    hw: Headwater, conn: Connection, program: StartProcess
) -> None:
    conn.execute(ORDERS)
    hw.create("by_region", BY_REGION, schedule="50ms")
    conn.execute("ALTER TABLE headwater.refresh_sum ADD CHECK (refreshes > 1000)")
    service = program("serve", "--log-format", "json")
    [line] = eventually(lambda: [each for each in service.lines() if "clean" in str(each)])
    assert line["level"] == "error"
    assert "cleaning up the history" in str(line)
    conn.execute("INSERT INTO orders VALUES (1, 'north', 5)")
    eventually(lambda: fresh(hw, "by_region"))
    assert service.stop() == 0
