"""A delta that takes much longer than recomputing is given up in mode auto, and that is remembered."""

from __future__ import annotations

import time
from typing import Any

import psycopg
import pytest
from tests.integration.support import assert_fresh, in_background, value

import headwater
from headwater import Headwater
from headwater.db.deadline import Deadline, DeadlineExceeded
from headwater.engine import cost_model
from headwater.engine.observations import Observations
from headwater.errors import RefreshCancelled

Connection = psycopg.Connection[Any]

# Who plans it cannot know that rows of the second kind take long.
SLOW = """
CREATE TABLE items (id int PRIMARY KEY, slow boolean);
CREATE FUNCTION public.checked(id int, slow boolean) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
    IF slow THEN PERFORM pg_catalog.pg_sleep(0.005); END IF;
    RETURN id;
END $$;
INSERT INTO items SELECT i, false FROM generate_series(1, 50) AS i;
"""
QUERY = "SELECT id, public.checked(id, slow) AS checked FROM items"
ROWS = 150
INSERT = f"INSERT INTO items SELECT i, true FROM generate_series(1001, {1000 + ROWS}) AS i"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_model, "SHORTEST_PATIENCE_MS", 100.0)
    monkeypatch.setattr(cost_model, "MUCH_DEARER", 0.0)


@pytest.fixture(autouse=True)
def items(conn: Connection) -> None:
    conn.execute(SLOW)


@pytest.mark.usefixtures("impatient")
def test_a_delta_is_given_up(hw: Headwater, dsn: str, conn: Connection) -> None:
    hw.create("st", QUERY, engine="postgres")
    hw.create("reader", "SELECT count(*) AS n FROM st", engine="postgres")
    conn.execute(INSERT)
    first, reader = hw.refresh("reader")
    assert first.action == "recompute"
    assert first.reason.startswith(f"a delta of {ROWS} change rows was given up after ")
    assert first.rows_in == ROWS
    assert first.abandoned_ms is not None
    assert first.abandoned_ms >= 100
    assert reader.action == "delta"
    assert_fresh(hw, "st")
    assert_fresh(hw, "reader")
    [entry, *_] = hw.history("st")
    assert (entry.status, entry.reason, entry.abandoned_ms) == (
        "completed",
        first.reason,
        first.abandoned_ms,
    )
    assert not [each for each in hw.history() if each.status == "failed"]
    with headwater.connect(dsn) as another:
        [seen] = Observations().deltas(another.connection, first.stream_table_id)
    assert (seen.rows, seen.elapsed_ms) == (ROWS, first.abandoned_ms)
    conn.execute("INSERT INTO items VALUES (1, false), (2, false) ON CONFLICT (id) DO UPDATE SET slow = true")
    assert hw.refresh("st")[-1].action == "delta"  # what is small is never given up
    assert value(hw.connection, "SELECT current_setting('statement_timeout')") == "0"


@pytest.mark.usefixtures("impatient")
def test_a_delta_that_was_asked_for_is_not(hw: Headwater, conn: Connection) -> None:
    hw.create("st", QUERY, mode="differential", engine="postgres")
    conn.execute(INSERT)
    outcome = hw.refresh("st")[-1]
    assert (outcome.action, outcome.rows_in) == ("delta", ROWS)
    assert outcome.abandoned_ms is None


@pytest.mark.usefixtures("impatient")
def test_verify_gives_nothing_up(hw: Headwater, conn: Connection) -> None:
    hw.create("st", QUERY, engine="postgres")
    conn.execute(INSERT)
    assert hw.verify("st").equal


def test_somebody_who_cancels_is_heard(hw: Headwater, dsn: str, conn: Connection) -> None:
    hw.create("st", QUERY, engine="postgres")
    conn.execute("INSERT INTO items SELECT i, true FROM generate_series(1001, 7000) AS i")
    with headwater.connect(dsn) as refreshing, in_background(lambda: refreshing.refresh("st")) as running:
        while not (found := hw.connection.execute(SLEEPING).fetchone()):
            assert not running.done()
            time.sleep(0.01)
        hw.connection.execute("SELECT pg_cancel_backend(%s)", found)
        with pytest.raises(RefreshCancelled):
            running.result(30)
    assert hw.history("st")[0].sqlstate == "57014"


SLEEPING = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND application_name ~ '^headwater'"


def _cancelled_after(seconds: float) -> None:
    time.sleep(seconds)
    raise psycopg.errors.QueryCanceled


def test_patience() -> None:
    long, short = Deadline(60_000), Deadline(1)
    with pytest.raises(psycopg.errors.QueryCanceled), long.statement():
        raise psycopg.errors.QueryCanceled
    with pytest.raises(DeadlineExceeded), short.statement():
        _cancelled_after(0.002)
    with pytest.raises(DeadlineExceeded), short.statement():
        pytest.fail("it began a statement")
