"""The overview: the state of each stream table, at a cost that does not grow with their number."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from tests.integration.support import value

from headwater import Headwater
from headwater.capture import buffers
from headwater.errors import HeadwaterError
from headwater.inspect import overview
from headwater.inspect.overview import Glance

Connection = psycopg.Connection[Any]


def seen(hw: Headwater) -> dict[str, Glance]:
    return {glance.stream_table.removeprefix("public."): glance for glance in hw.overview().stream_tables}


def numbers(conn: Connection, *tables: str) -> None:
    for table in tables:
        conn.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, n int)")
        conn.execute(f"INSERT INTO {table} VALUES (1, 1)")


@pytest.fixture
def looked_into(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The change tables that were opened."""
    opened: list[str] = []
    pending = buffers.pending

    def watched(connection: Any, sources: Any, *rest: Any) -> Any:
        opened.extend(str(source.name) for source in sources)
        return pending(connection, sources, *rest)

    monkeypatch.setattr(buffers, "pending", watched)
    return opened


def test_each_state_and_what_comes_first(hw: Headwater, conn: Connection) -> None:
    numbers(conn, "a", "b", "c", "d", "e", "f")
    hw.create("broken", "SELECT id FROM a", schedule="1s")
    hw.create("failing", "SELECT id, 1 / n AS x FROM b", schedule="1s")
    hw.create("suspended", "SELECT id FROM c", schedule="1s")
    hw.create("behind", "SELECT id FROM d", schedule="1s")
    hw.create("waiting", "SELECT id FROM e")
    hw.create("current", "SELECT id FROM f", schedule="1s", mode="differential")
    conn.execute("DROP TABLE a CASCADE")
    conn.execute("INSERT INTO b VALUES (2, 0)")
    for _ in range(2):
        with pytest.raises(HeadwaterError, match="division"):
            hw.refresh("failing")
    conn.execute(
        "UPDATE headwater.stream_table SET status = 'suspended', suspended_reason = 'by ann', tier = 'cold'"
        " WHERE table_name = 'suspended'"
    )
    conn.execute("UPDATE headwater.refresh SET finished_at = finished_at - interval '1 hour'")
    conn.execute("INSERT INTO d SELECT n, n FROM generate_series(2, 8) AS n")
    conn.execute("INSERT INTO e VALUES (2, 2)")
    found = seen(hw)
    assert [(name, glance.state) for name, glance in found.items()] == [
        (name, name) for name in ("broken", "failing", "suspended", "behind", "waiting", "current")
    ]
    assert found["failing"].failures == 2
    assert "division by zero" in str(found["failing"].reason)
    assert (found["suspended"].reason, found["suspended"].tier) == ("by ann", "cold")
    assert (found["behind"].pending_rows, found["waiting"].pending_rows) == (7, 1)
    assert found["behind"].lag_seconds is not None
    assert found["behind"].lag_seconds >= 3600
    assert (found["current"].pending_rows, found["current"].lag_seconds) == (0, 0.0)
    assert (found["current"].schedule, found["current"].last_action) == ("1s", "load")
    assert found["failing"].last_refresh_at is not None


def test_a_frozen_or_slower_one_is_not_behind(hw: Headwater, conn: Connection) -> None:
    numbers(conn, "a")
    hw.create("hourly", "SELECT id FROM a", schedule="59m")
    hw.create("frozen", "SELECT id FROM a", schedule="1s")
    hw.create("nightly", "SELECT id FROM a", schedule="0 3 * * *")
    conn.execute("UPDATE headwater.stream_table SET tier = 'frozen' WHERE table_name = 'frozen'")
    conn.execute("UPDATE headwater.refresh SET finished_at = finished_at - interval '1 hour'")
    conn.execute("INSERT INTO a VALUES (2, 2)")
    assert {glance.state for glance in seen(hw).values()} == {"waiting"}
    conn.execute("UPDATE headwater.refresh SET finished_at = finished_at - interval '1 hour'")
    assert {name for name, glance in seen(hw).items() if glance.state == "behind"} == {"hourly"}


def test_what_waits_below_waits_above(hw: Headwater, conn: Connection) -> None:
    numbers(conn, "a")
    hw.create("lower", "SELECT id, n FROM a")
    hw.create("upper", "SELECT sum(n) AS n FROM lower", schedule="1s")
    conn.execute("INSERT INTO a VALUES (2, 2)")
    assert [glance.pending_rows for glance in seen(hw).values()] == [1, 1]
    hw.refresh("upper")
    assert [glance.state for glance in seen(hw).values()] == ["current", "current"]


def test_one_that_was_seen_current_has_not_waited_since_its_last_refresh(
    hw: Headwater, conn: Connection
) -> None:
    numbers(conn, "a")
    hw.create("quiet", "SELECT id FROM a", schedule="1s")
    conn.execute("UPDATE headwater.refresh SET finished_at = finished_at - interval '1 hour'")
    assert seen(hw)["quiet"].state == "current"
    conn.execute("INSERT INTO a VALUES (2, 2)")
    lag = seen(hw)["quiet"].lag_seconds
    assert lag is not None
    assert 0 < lag < 3600
    with Headwater(make_conninfo(hw.connection.info.dsn, password=hw.connection.info.password)) as another:
        assert (seen(another)["quiet"].lag_seconds or 0) >= 3600  # it has seen nothing


def test_only_some_are_looked_into(
    hw: Headwater, conn: Connection, monkeypatch: pytest.MonkeyPatch, looked_into: list[str]
) -> None:
    monkeypatch.setattr(overview, "LOOKED_INTO", 2)
    tables = [f"t{number}" for number in range(6)]
    numbers(conn, *tables)
    for table in tables:
        hw.create(f"s{table}", f"SELECT id FROM {table}", schedule="1s")
    # each has its turn
    for _ in range(3):
        seen(hw)
    assert sorted(looked_into) == tables
    # what the statistics point at comes first
    conn.execute("INSERT INTO t4 VALUES (2, 2)")
    value(conn, "SELECT pg_stat_force_next_flush()")
    conn.execute("INSERT INTO t4 VALUES (3, 3)")
    for _ in range(2):
        looked_into.clear()
        found = seen(hw)
        assert looked_into[0] == "t4"
        assert len(looked_into) == 2
        assert found["st4"].pending_rows == 2
        assert next(iter(found)) == "st4"


def test_more_that_wait_than_can_be_looked_into_are_not_called_current(
    hw: Headwater, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview, "LOOKED_INTO", 1)
    numbers(conn, "a", "b")
    for table in ("a", "b"):
        hw.create(f"s{table}", f"SELECT id FROM {table}")
        conn.execute(f"INSERT INTO {table} VALUES (2, 2)")
    value(conn, "SELECT pg_stat_force_next_flush()")
    conn.execute("SELECT")
    glances = seen(hw).values()
    assert sorted((glance.state, glance.pending_rows or 0) for glance in glances) == [
        ("waiting", 0),
        ("waiting", 1),
    ]
    assert [glance.lag_seconds for glance in glances if glance.pending_rows is None] == [None]


def test_counting_has_an_end(hw: Headwater, conn: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "COUNTED_ROWS", 3)
    numbers(conn, "a")
    hw.create("sa", "SELECT id FROM a")
    conn.execute("INSERT INTO a SELECT n, n FROM generate_series(2, 100) AS n")
    assert seen(hw)["sa"].pending_rows == 4


def test_without_a_service(hw: Headwater) -> None:
    found = hw.overview()
    assert (found.service, found.workers, found.stream_tables) == (None, (), ())
