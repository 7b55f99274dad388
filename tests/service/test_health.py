"""What the service does with broken stream tables: it tells, and goes on when they are repaired."""

from __future__ import annotations

import logging
from typing import Any

import psycopg
import pytest
from tests.integration.support import value
from tests.service.conftest import StartScheduler
from tests.service.support import eventually
from tests.service.test_scheduler import BY_REGION, ORDERS, fresh

from headwater import Headwater
from headwater.service import logs, scheduler

Connection = psycopg.Connection[Any]
DROP_CHANGE_TABLE = (
    "DO $$ BEGIN EXECUTE format('DROP TABLE headwater_changes.src_%s CASCADE',"
    " 'orders'::regclass::oid); END $$"
)
FAILURES = "SELECT count(*) FROM headwater.refresh WHERE status = 'failed'"


@pytest.fixture(autouse=True)
def two(hw: Headwater, conn: Connection) -> None:
    conn.execute(ORDERS)
    conn.execute("CREATE TABLE others (LIKE orders INCLUDING ALL)")
    hw.create("by_region", BY_REGION, schedule="50ms")
    hw.create("beside", "SELECT id FROM others", schedule="50ms")


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the scheduler examine all stream tables in quick succession."""
    monkeypatch.setattr(scheduler, "RELOAD_SECONDS", 0.2)


def ticked(conn: Connection, more: int = 20) -> None:
    """Waits until the scheduler has ticked so often."""
    ticks = "SELECT coalesce(max(ticks), 0) FROM headwater.scheduler"
    before = value(conn, ticks)
    eventually(lambda: value(conn, ticks) > before + more)


@pytest.mark.parametrize("examined", [False, True], ids=["a refresh notices", "it is examined"])
def test_a_broken_one_is_told_of_and_not_suspended(
    hw: Headwater,
    conn: Connection,
    schedule: StartScheduler,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    examined: bool,
) -> None:
    if examined:
        monkeypatch.setattr(scheduler, "RELOAD_SECONDS", 0.2)
    monkeypatch.setattr(logs.LOGGER, "propagate", True)
    caplog.set_level(logging.INFO, logs.LOGGER.name)
    schedule()
    ticked(conn)
    conn.execute("DROP VIEW by_region")

    def told() -> list[logging.LogRecord]:
        return [record for record in caplog.records if record.getMessage() == "broken"]

    if examined:
        eventually(told)
    conn.execute("INSERT INTO orders VALUES (1, 'north', 5)")
    eventually(told)
    ticked(conn)
    failures = value(conn, FAILURES)
    assert failures == 0 if examined else failures >= 1
    conn.execute("INSERT INTO orders VALUES (2, 'north', 5)")
    conn.execute("INSERT INTO others VALUES (1, 'north', 5)")
    eventually(lambda: fresh(hw, "beside"))
    ticked(conn)
    assert value(conn, FAILURES) == failures  # it is not tried again
    assert hw.status("by_region").status == "broken"
    assert value(conn, "SELECT status FROM headwater.stream_table WHERE id = 1") == "active"
    assert len(told()) == 1
    fields = vars(told()[0])["fields"]
    assert (fields["stream_table"], fields["hint"]) == ("public.by_region", hw.status("by_region").remedy)
    hw.repair()
    conn.execute("INSERT INTO orders VALUES (3, 'north', 5)")
    eventually(lambda: fresh(hw, "by_region"))
    assert hw.status("by_region").status == "active"


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize(
    "damage",
    [
        "ALTER TABLE orders DISABLE TRIGGER USER",
        "DO $$ BEGIN EXECUTE format('DROP FUNCTION headwater_changes.capture_%s() CASCADE',"
        " 'orders'::regclass::oid); END $$",
        DROP_CHANGE_TABLE,
    ],
    ids=["triggers disabled", "function dropped", "change table dropped"],
)
def test_lost_capture_is_healed_though_no_change_arrives(
    hw: Headwater, conn: Connection, schedule: StartScheduler, damage: Any
) -> None:
    schedule()
    ticked(conn)
    with conn.transaction():
        conn.execute(damage)
        conn.execute("INSERT INTO orders VALUES (1, 'north', 5)")
    eventually(lambda: fresh(hw, "by_region"))
    eventually(lambda: hw.status("by_region").status == "active")
    conn.execute("INSERT INTO orders VALUES (2, 'south', 5)")
    eventually(lambda: fresh(hw, "by_region"))
    assert value(conn, "SELECT action FROM headwater.refresh ORDER BY id DESC LIMIT 1") == "delta"


def test_a_change_table_that_went_just_now_ends_no_scheduler(
    hw: Headwater, conn: Connection, schedule: StartScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every change table is looked into each second, and what is looked into is not there."""
    monkeypatch.setattr("headwater.service.state.ROUND_SECONDS", 1.0)
    schedule()
    ticked(conn)
    conn.execute(DROP_CHANGE_TABLE)
    eventually(lambda: hw.status("by_region").status == "active")
    conn.execute("INSERT INTO others VALUES (1, 'north', 5)")
    conn.execute("INSERT INTO orders VALUES (1, 'north', 5)")
    eventually(lambda: fresh(hw, "by_region", "beside"))
