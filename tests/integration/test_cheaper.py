"""In mode auto, small stream tables are recomputed if that was seen to take less than their deltas.

What refreshes took is written into the history, so that nothing here depends on the time that they take.
"""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from tests.integration.support import assert_fresh, value

import headwater
from headwater import Headwater
from headwater.engine import select

Connection = psycopg.Connection[Any]

QUERY = "SELECT id, x FROM readings WHERE x > (SELECT avg(x) FROM readings)"
REASON = "a delta of 1 change row would take about 48 ms, recomputing 9 ms"


@pytest.fixture(autouse=True)
def readings(conn: Connection) -> None:
    conn.execute("CREATE TABLE readings (id int PRIMARY KEY, x int)")
    conn.execute("INSERT INTO readings SELECT i, i FROM generate_series(1, 1000) AS i")


def took(conn: Connection, action: str, milliseconds: float, times: int) -> None:
    """Refreshes of one change row that took so long."""
    conn.execute(
        "INSERT INTO headwater.refresh (stream_table_id, started_at, finished_at, mode, engine, action,"
        " status, reason, rows_in, engine_reason, phases)"
        " SELECT id, now() - %s * interval '1 ms', now(), 'differential', 'postgres', %s, 'completed', '', 1,"
        " '', '{}' FROM headwater.stream_table, generate_series(1, %s)",
        [milliseconds, action, times],
    )


def loaded_in(conn: Connection, milliseconds: float) -> None:
    """Makes what a recomputation would repeat of the load take so long."""
    conn.execute(
        "UPDATE headwater.refresh SET started_at = finished_at - interval '1 s',"
        " phases = jsonb_build_object('plan', 500, 'load', %s::float8) WHERE action = 'load'",
        [milliseconds],
    )


def change(conn: Connection) -> None:
    conn.execute("INSERT INTO readings SELECT max(id) + 1, 5000 FROM readings")


def test_recomputing_that_was_seen_to_take_less(hw: Headwater, conn: Connection) -> None:
    hw.create("st", QUERY)
    hw.create("reader", "SELECT count(*) AS n FROM st", mode="differential")
    conn.execute("DELETE FROM headwater.refresh")
    took(conn, "recompute", 9.0, 3)
    took(conn, "delta", 48.0, 5)
    change(conn)
    first, reader = hw.refresh("reader")
    assert (first.action, first.mode, first.reason, first.rows_in) == ("recompute", "full", REASON, 1)
    assert (reader.action, reader.mode) == ("delta", "differential")
    assert_fresh(hw, "st")
    assert_fresh(hw, "reader")
    entry = hw.history("st")[0]
    assert (entry.action, entry.mode, entry.reason) == ("recompute", "full", REASON)


def test_the_load_counts_while_nothing_was_recomputed(hw: Headwater, conn: Connection) -> None:
    hw.create("st", QUERY)
    loaded_in(conn, 9.0)
    took(conn, "delta", 48.0, 5)
    change(conn)
    assert hw.refresh("st")[-1].reason == REASON


def test_a_load_of_less_than_there_is_now(
    hw: Headwater, dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the planner expects of the tables as they are now counts more."""
    hw.create("st", QUERY)
    loaded_in(conn, 9.0)
    took(conn, "delta", 48.0, 5)
    change(conn)
    monkeypatch.setattr(select, "COST_UNIT_MS", 5.0)  # as if there were 500 times as many rows
    assert hw.refresh("st")[-1].action == "delta"
    monkeypatch.undo()
    change(conn)
    took(conn, "delta", 48.0, 5)
    with headwater.connect(dsn) as another:
        assert another.refresh("st")[-1].reason == REASON


def test_a_delta_is_tried_again(hw: Headwater, conn: Connection) -> None:
    """After 8 * 48 / 9 refreshes."""
    hw.create("st", QUERY)
    took(conn, "delta", 48.0, 5)
    took(conn, "recompute", 9.0, 42)
    change(conn)
    assert hw.refresh("st")[-1].reason == REASON
    change(conn)
    again = hw.refresh("st")[-1]
    assert (again.action, again.reason) == ("delta", "1 change row in public.readings")
    assert_fresh(hw, "st")


def test_deltas_that_were_asked_for(hw: Headwater, conn: Connection) -> None:
    hw.create("st", QUERY, mode="differential")
    took(conn, "recompute", 9.0, 3)
    took(conn, "delta", 48.0, 5)
    change(conn)
    assert hw.refresh("st")[-1].action == "delta"


def test_who_verifies_looks_at_the_delta(hw: Headwater, conn: Connection) -> None:
    hw.create("st", QUERY)
    took(conn, "recompute", 9.0, 3)
    took(conn, "delta", 48.0, 5)
    change(conn)
    found = hw.verify("st")
    assert (found.equal, found.note) == (True, "")
    assert hw.refresh("st")[-1].reason == REASON


def test_a_query_that_the_server_cannot_plan_any_more(hw: Headwater, conn: Connection) -> None:
    """Nothing is recomputed for its cost then, and the refresh goes on."""
    conn.execute(
        "CREATE TABLE broken (); CREATE FUNCTION public.checked(x int) RETURNS int IMMUTABLE LANGUAGE plpgsql"
        " AS $$ BEGIN IF to_regclass('public.broken') IS NULL THEN RAISE 'gone'; END IF; RETURN x; END $$"
    )
    hw.create("st", "SELECT id FROM readings WHERE x > public.checked(990)")
    took(conn, "recompute", 9.0, 3)
    took(conn, "delta", 48.0, 5)
    conn.execute("DROP TABLE broken")
    with hw.connection.transaction(force_rollback=True):
        stream_table = value(hw.connection, "SELECT id FROM headwater.stream_table")
        assert select.estimated_ms(hw.connection, stream_table) == float("inf")
        assert value(hw.connection, "SELECT 1") == 1
