"""Settings in the database: in which form they are stored, and what a malformed one says."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from headwater import Headwater
from headwater.errors import InvalidSetting

Connection = psycopg.Connection[Any]


def stored(conn: Connection) -> dict[str, str]:
    return dict(conn.execute("SELECT name, value FROM headwater.settings").fetchall())


def test_a_setting_is_stored_in_one_form(hw: Headwater, conn: Connection) -> None:
    for name, value in (("drain", "YES"), ("headwater.event_driven_wake", "0"), ("min_workers", " 1_0 ")):
        hw.set(name, value)
    assert stored(conn) == {"drain": "on", "event_driven_wake": "off", "min_workers": "10"}


def test_a_profile_is_shown_where_it_counts(hw: Headwater) -> None:
    hw.set("profile", "low-latency")
    hw.set("scheduler_interval_ms", "300")
    shown = {setting.name: (setting.value, setting.origin) for setting in hw.settings()}
    assert shown["profile"] == ("low-latency", "table")
    assert shown["scheduler_interval_ms"] == ("300", "table")
    assert shown["event_driven_wake"] == ("on", "profile low-latency")
    assert shown["max_dynamic_refresh_workers"] == ("8", "profile low-latency")
    assert shown["max_concurrent_refreshes"] == ("4", "default")


def test_what_somebody_else_wrote_is_an_error_that_names_it_and_can_be_put_right(
    hw: Headwater, conn: Connection
) -> None:
    conn.execute("INSERT INTO headwater.settings (name, value) VALUES ('drain', 'a little')")
    with pytest.raises(InvalidSetting) as refused:
        hw.list()
    assert refused.value.message == "setting drain: 'a little' is not on or off"
    assert refused.value.detail == "that is what the table says"
    hw.set("drain", "off")
    assert hw.list() == []
