"""The service audits stream tables by itself: when they are due, one at a time, and not while it is off."""

from __future__ import annotations

import os
import signal
from typing import Any

import psycopg
import pytest
from tests.integration.support import value
from tests.service.conftest import StartProcess, StartScheduler
from tests.service.support import eventually
from tests.service.test_scheduler import BY_REGION, ORDERS, fresh

from headwater import Headwater
from headwater.catalog import stream_tables as catalog
from headwater.inspect import audit
from headwater.service.audits import Audited, tell_audited

Connection = psycopg.Connection[Any]
AUDITED = "SELECT count(*) FROM headwater.audit WHERE audited_at IS NOT NULL"


def ticks(conn: Connection) -> int:
    return int(value(conn, "SELECT coalesce(max(ticks), 0) FROM headwater.scheduler"))


def several_ticks(conn: Connection) -> None:
    before = ticks(conn)
    eventually(lambda: ticks(conn) > before + 10)


@pytest.fixture
def orders(hw: Headwater, conn: Connection) -> None:
    conn.execute(ORDERS)
    conn.execute("INSERT INTO orders VALUES (1, 'north', 5), (2, 'south', 7)")
    hw.create("st", BY_REGION)


def corrupt(hw: Headwater, conn: Connection) -> None:
    number = catalog.find(hw.connection, "st").id
    conn.execute(f"UPDATE headwater_data.st_{number} SET total = total + 1".encode())


def test_a_difference_is_found_logged_and_healed(
    hw: Headwater, conn: Connection, orders: None, program: StartProcess
) -> None:
    corrupt(hw, conn)
    service = program("serve", "--log-format", "json", audit_interval="1s")
    eventually(lambda: service.events("audited"))
    [line] = [line for line in service.events("audited") if line["result"].startswith("different")]
    assert line["level"] == "error"
    assert line["stream_table"] == "public.st"
    [incident] = hw.audits()
    assert line["incident"] == incident.id
    eventually(lambda: fresh(hw, "st"))
    assert hw.status("st").mode == "full"
    assert value(conn, "SELECT incident_count FROM headwater.health_summary()") == 1


def test_each_is_audited_once_in_an_interval(
    hw: Headwater, conn: Connection, orders: None, schedule: StartScheduler
) -> None:
    hw.create("another", BY_REGION)
    conn.execute("UPDATE headwater.stream_table SET created_at = created_at - interval '3 days'")
    schedule(audit_interval="1d")
    eventually(lambda: value(conn, AUDITED) == 2)
    first = value(conn, "SELECT max(audited_at) FROM headwater.audit")
    several_ticks(conn)
    assert value(conn, "SELECT max(audited_at) FROM headwater.audit") == first
    assert value(conn, "SELECT array_agg(DISTINCT result) FROM headwater.audit") == ["equal"]


@pytest.mark.parametrize("how", ["off", "drained"])
def test_nothing_is_audited(
    hw: Headwater, conn: Connection, orders: None, schedule: StartScheduler, how: str
) -> None:
    conn.execute("UPDATE headwater.stream_table SET created_at = created_at - interval '3 days'")
    if how == "drained":
        hw.drain()
    schedule(audit_interval="0ms" if how == "off" else "1d")
    eventually(lambda: ticks(conn))
    several_ticks(conn)
    assert value(conn, "SELECT count(*) FROM headwater.audit WHERE started_at IS NOT NULL") == 0
    assert value(conn, AUDITED) == 0


def test_a_large_one_takes_several_turns(
    hw: Headwater,
    conn: Connection,
    schedule: StartScheduler,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a budget that each slice uses up, the service takes as many turns as there are slices."""
    monkeypatch.setattr(audit, "SLICE_ROWS", 50)
    told: list[int] = []

    def telling(database: str, audited: Audited) -> None:
        assert audited.turn is not None
        told.append(audited.turn.slices)
        tell_audited(database, audited)

    monkeypatch.setattr("headwater.service.scheduler.tell_audited", telling)
    conn.execute("CREATE TABLE many AS SELECT n AS id, n % 7 AS v FROM generate_series(1, 230) n")
    hw.create("st", "SELECT id, v FROM many")
    conn.execute("UPDATE headwater.stream_table SET created_at = created_at - interval '3 days'")
    monkeypatch.setattr(audit, "PATIENCE", 1_000_000)  # the budget is for turns here, not for a statement
    schedule(audit_interval="1d", audit_budget="1ms")
    eventually(lambda: value(conn, AUDITED) == 1)
    eventually(lambda: len(told) == 5)
    assert told == [1, 1, 1, 1, 1]
    assert value(conn, "SELECT slices FROM headwater.audit") == 5


def test_a_service_that_was_killed_leaves_an_audit_to_the_next(
    hw: Headwater, conn: Connection, orders: None, program: StartProcess, schedule: StartScheduler
) -> None:
    conn.execute("UPDATE headwater.stream_table SET created_at = created_at - interval '3 days'")
    with psycopg.connect(conn.info.dsn, password=conn.info.password) as blocker:
        blocker.execute("LOCK TABLE orders IN ACCESS EXCLUSIVE MODE")
        service = program("serve", audit_interval="1d", lock_timeout_ms="100000")
        eventually(
            lambda: value(
                conn,
                "SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid), headwater.audit s"
                " WHERE s.started_at IS NOT NULL AND l.relation = 'orders'::regclass AND NOT l.granted"
                " AND a.datname = current_database()",
            )
        )
        service.popen.kill()
        os.kill(
            value(conn, "SELECT pid FROM headwater.worker_registry WHERE kind = 'scheduler'"), signal.SIGKILL
        )
        service.popen.wait()
    rows = conn.execute("SELECT started_at IS NOT NULL, result FROM headwater.audit").fetchall()
    assert rows == [(True, None)]
    schedule(audit_interval="1d")
    eventually(lambda: value(conn, AUDITED) == 1)
    assert hw.status("st").audit_result == "equal"
