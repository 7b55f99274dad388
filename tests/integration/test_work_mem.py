"""What a refresh takes of work_mem, as seen by what runs inside it."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from headwater import Headwater

Connection = psycopg.Connection[Any]


@pytest.fixture(autouse=True)
def tables(conn: Connection) -> None:
    """A function that shows the work_mem under which a row was computed; immutable, to be taken."""
    conn.execute(
        "CREATE TABLE items (id int PRIMARY KEY);"
        "CREATE TABLE more (id int PRIMARY KEY);"
        "CREATE FUNCTION memory(int) RETURNS text IMMUTABLE LANGUAGE plpgsql AS"
        " $$ BEGIN RETURN current_setting('work_mem'); END $$;"
        "CREATE TABLE applied (memory text);"
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN INSERT INTO public.applied VALUES (current_setting('work_mem')); RETURN NULL; END $$;"
    )


@pytest.mark.parametrize(
    ("stored", "one", "two"),
    [
        pytest.param({}, "4MB", "4MB", id="the server's"),
        pytest.param({"merge_work_mem_mb": "48"}, "48MB", "48MB", id="as set"),
        pytest.param({"delta_work_mem_cap_mb": "4"}, "2MB", "1MB", id="divided by the hash tables"),
        pytest.param({"delta_work_mem_cap_mb": "64"}, "4MB", "4MB", id="less than the limit"),
        pytest.param(
            {"merge_work_mem_mb": "48", "delta_work_mem_cap_mb": "32"},
            "16MB",
            "8MB",
            id="as set, within the limit",
        ),
        pytest.param({"profile": "resource-constrained"}, "32MB", "32MB", id="of a profile"),
    ],
)
def test_a_refresh_has_the_work_mem_that_is_set(
    hw: Headwater, conn: Connection, stored: dict[str, str], one: str, two: str
) -> None:
    hw.connection.execute("SET hash_mem_multiplier = 2")
    # In one transaction: the one that reads two tables, and after it the one that reads it and nothing else.
    both = hw.create(
        "both",
        "SELECT items.id, public.memory(items.id) AS memory FROM items JOIN more ON more.id = items.id",
    )
    hw.create("reader", "SELECT id, memory, public.memory(id) AS own FROM public.both")
    conn.execute(f"CREATE TRIGGER note AFTER INSERT ON headwater_data.st_{both.id} EXECUTE FUNCTION note()")
    for name, value in stored.items():
        hw.set(name, value)
    conn.execute("INSERT INTO items VALUES (1); INSERT INTO more VALUES (1)")
    assert [outcome.action for outcome in hw.refresh("reader")] == ["delta", "delta"]
    assert conn.execute("SELECT memory, own FROM reader").fetchall() == [(two, one)]
    assert {row[0] for row in conn.execute("SELECT memory FROM applied")} == {two}
    assert hw.connection.execute("SHOW work_mem").fetchone() == ("4MB",)
