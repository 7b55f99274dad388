"""Many stream tables: what the scheduler does with all of them at once."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from tests.integration.support import value

from headwater import Headwater
from headwater.capture import marks
from headwater.service.state import SchedulerState

Connection = psycopg.Connection[Any]
COUNT = 5


@pytest.fixture(autouse=True)
def stream_tables(hw: Headwater, conn: Connection) -> None:
    for number in range(COUNT):
        conn.execute(f"CREATE TABLE source_{number} (id int PRIMARY KEY, n int)")
        hw.create(f"copy_{number}", f"SELECT id, n FROM source_{number}", schedule="1s")


def test_change_tables_are_looked_into_a_few_at_a_time(
    hw: Headwater, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(marks, "LOOKED_INTO", 2)
    conn.execute("INSERT INTO source_0 VALUES (1, 1)")
    conn.execute("INSERT INTO source_4 VALUES (1, 1)")
    tables = conn.execute("SELECT relation::bigint, change_table FROM headwater.source ORDER BY 1").fetchall()
    assert len(tables) == COUNT
    changed = {value(conn, f"SELECT 'source_{number}'::regclass::oid::bigint") for number in (0, 4)}
    assert marks.with_changes(hw.connection, tables) == changed


def test_the_picture_names_stream_tables(hw: Headwater) -> None:
    picture = SchedulerState()
    picture.load(hw.connection, datetime.now(UTC))
    assert {member.label for member in picture.members.values()} == {
        f"public.copy_{number}" for number in range(COUNT)
    }
