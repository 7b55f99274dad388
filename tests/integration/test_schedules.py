"""Schedules of every form: what is stored and shown, what is refused, what the choice of an engine knows."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql
from tests.integration.support import footprint

import headwater
from headwater import Headwater
from headwater.catalog import stream_tables as catalog
from headwater.engine.select import EngineSelector
from headwater.errors import InvalidSetting

Connection = psycopg.Connection[Any]
QUERY = "SELECT id, kind FROM items"


@pytest.fixture(autouse=True)
def tables(conn: Connection) -> None:
    conn.execute("CREATE TABLE items (id int PRIMARY KEY, kind text)")


@pytest.mark.parametrize(
    ("written", "stored"),
    [
        ("*/5 * * * *", "*/5 * * * *"),
        (" 0  3 * * MON", "0 3 * * MON"),
        ("Calculated", "calculated"),
        (" 90s", "90s"),
    ],
)
def test_a_schedule_is_stored_and_shown(hw: Headwater, written: str, stored: str) -> None:
    assert hw.create("st", QUERY, schedule=written).schedule == stored
    assert [status.schedule for status in hw.list()] == [hw.status("st").schedule] == [stored]
    assert hw.explain("st").schedule == stored
    assert hw.alter("st", schedule="1h").schedule == "1h"
    assert hw.alter("st", schedule=written).schedule == stored
    assert hw.alter("st", query=f"{QUERY} WHERE id > 0").schedule == stored
    assert hw.create("st", QUERY, schedule=written, or_replace=True).schedule == stored


@pytest.mark.parametrize(
    ("schedule", "reason"),
    [
        ("61 * * * *", "schedule: '61 * * * *' is not a cron expression: bad minute"),
        ("0 0 31 2 *", "schedule: '0 0 31 2 *' is not a cron expression: bad day-of-month"),
        ("1ms", "schedule: '1ms' is shorter than 10ms"),
    ],
)
def test_a_malformed_one_is_refused_by_name(
    hw: Headwater, conn: Connection, schedule: str, reason: str
) -> None:
    before = footprint(conn)
    with pytest.raises(InvalidSetting) as refused:
        hw.create("st", QUERY, schedule=schedule)
    assert refused.value.message == f"st: {reason}"
    assert footprint(conn) == before
    hw.create("st", QUERY)
    with pytest.raises(InvalidSetting) as refused:
        hw.alter("st", schedule=schedule)
    assert refused.value.message == f"public.st: {reason}"
    with pytest.raises(InvalidSetting):
        hw.alter("st", query="SELECT id FROM items", schedule=schedule)
    assert hw.status("st").schedule is None


def test_cron_goes_by_the_time_zone_of_the_creator(dsn: str, conn: Connection) -> None:
    conn.execute(
        sql.SQL("ALTER DATABASE {} SET TimeZone = '<+02>-02'").format(sql.Identifier(conn.info.dbname))
    )
    with headwater.connect(dsn) as hw:
        with pytest.raises(InvalidSetting) as refused:
            hw.create("st", QUERY, schedule="0 3 * * *")
        assert "the time zone '<+02>-02', which only the server knows" in refused.value.message
        hw.create("st", QUERY, schedule="1s")
        with pytest.raises(InvalidSetting, match="which only the server knows"):
            hw.alter("st", schedule="0 3 * * *")


def test_the_choice_of_an_engine_knows_the_interval_of_each_form(hw: Headwater) -> None:
    """One without a schedule of its own is to keep those of its readers, but not of what is behind these."""
    hw.create("st", QUERY)
    hw.create("calculated", "SELECT id, kind FROM st", schedule="calculated")
    hw.create("nightly", "SELECT id FROM calculated", schedule="0 3 * * *")
    hw.create("often", "SELECT id FROM nightly", schedule="1s")
    hw.create("unread", "SELECT kind FROM st")

    def interval(name: str) -> timedelta | None:
        found = EngineSelector.interval_ms(hw.connection, catalog.find(hw.connection, name))
        return None if found is None else timedelta(milliseconds=found)

    day = timedelta(days=1)
    names = ("st", "calculated", "nightly", "often", "unread")
    assert [interval(name) for name in names] == [day, day, day, timedelta(seconds=1), None]
    hw.create("hourly", "SELECT kind FROM calculated", schedule="0 * * * *")
    assert interval("st") == interval("calculated") == timedelta(hours=1)
