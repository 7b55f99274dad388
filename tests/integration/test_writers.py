"""Invariant I6: no failure of Headwater makes a user's write fail, and what it loses by one it knows of."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel
from tests.integration.support import change_table, contents, definition, refresh, value

import headwater
from headwater import Headwater
from headwater.errors import HeadwaterError

Connection = psycopg.Connection[Any]
NewRole = Callable[[], tuple[str, str]]
ROWS = "SELECT id, kind, price FROM items"
SUMS = "SELECT kind, count(*) AS n, sum(price) AS total FROM items GROUP BY kind"


@pytest.fixture(autouse=True)
def tables(conn: Connection) -> None:
    conn.execute("CREATE TABLE items (first int, id int PRIMARY KEY, kind text, price int, last text)")
    conn.execute("INSERT INTO items (id, kind, price) VALUES (1, 'a', 10), (2, 'a', 20), (3, NULL, 5)")


def write(conn: Connection, first: int = 10, table: str = "items") -> None:
    """Every kind of write but TRUNCATE."""
    conn.execute(f"INSERT INTO {table} (id, kind, price) VALUES ({first}, 'b', 1), ({first + 1}, 'b', 2)")
    conn.execute(f"UPDATE {table} SET price = price + 1 WHERE id >= {first}")
    conn.execute(f"DELETE FROM {table} WHERE id = {first + 1}")


def source_oid(conn: Connection) -> int:
    return int(value(conn, "SELECT 'items'::regclass::oid"))


# What somebody may do to a change table: what is done, how it is undone (if that is needed), and the reason
# for which the next refresh recomputes.
DAMAGES = {
    "dropped": ("DROP TABLE {table} CASCADE", "", "could not be captured"),
    "without a column": ("ALTER TABLE {table} DROP COLUMN c4 CASCADE", "", "had lost columns"),
    "without the weight": (
        "ALTER TABLE {table} DROP COLUMN w CASCADE",
        "ALTER TABLE {table} ADD COLUMN w integer NOT NULL DEFAULT 0",
        "could not be captured",
    ),
    "of another type": (
        "DROP VIEW headwater_defs.captured_{oid}; ALTER TABLE {table} ALTER c3 TYPE date USING NULL",
        "",
        "had lost columns",
    ),
    "in another schema": (
        "ALTER TABLE {table} SET SCHEMA public",
        "ALTER TABLE public.src_{oid} SET SCHEMA headwater_changes",
        "",
    ),
    "of another name": (
        "ALTER TABLE {table} RENAME TO mine",
        "ALTER TABLE headwater_changes.mine RENAME TO src_{oid}",
        "",
    ),
    "with a renamed column": (
        "ALTER TABLE {table} RENAME COLUMN c4 TO mine",
        "ALTER TABLE {table} RENAME COLUMN mine TO c4",
        "",
    ),
    "in a renamed schema": (
        "ALTER SCHEMA headwater_changes RENAME TO mine",
        "ALTER SCHEMA mine RENAME TO headwater_changes",
        "",
    ),
    "without its guard": ("DROP VIEW headwater_defs.captured_{oid}", "", ""),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_damage_to_a_change_table_is_no_harm_to_writers(
    hw: Headwater, conn: Connection, damage: tuple[str, str, str]
) -> None:
    done, undone, reason = damage
    hw.create("rows", ROWS)
    hw.create("sums", SUMS)
    write(conn)  # a plan that the session keeps
    names = {"table": change_table(conn, "items"), "oid": source_oid(conn)}
    conn.execute(done.format(**names))
    write(conn, 20)
    conn.execute(undone.format(**names))
    write(conn, 30)
    for name in ("rows", "sums"):
        outcome = refresh(hw, name)
        assert outcome.action == ("recompute" if reason else "delta")
        assert reason in outcome.reason
    write(conn, 40)
    for name in ("rows", "sums"):
        assert refresh(hw, name).action == "delta"
    assert value(conn, "SELECT count(*) FROM headwater.lost_change") == 0


def test_a_truncate_that_finds_no_change_table_is_known_of(hw: Headwater, conn: Connection) -> None:
    hw.create("rows", ROWS)
    conn.execute(f"DROP TABLE {change_table(conn, 'items')} CASCADE")
    conn.execute("TRUNCATE items")
    assert refresh(hw, "rows").action == "recompute"


def test_what_was_lost_is_forgotten_with_the_transaction(hw: Headwater, conn: Connection) -> None:
    hw.create("rows", ROWS)
    name = change_table(conn, "items")
    conn.execute(f"ALTER TABLE {name} RENAME COLUMN w TO mine")
    with conn.transaction(force_rollback=True):
        write(conn)
    conn.execute(f"ALTER TABLE {name} RENAME COLUMN mine TO w")
    assert refresh(hw, "rows").action == "nothing"


def test_without_a_place_for_the_mark_the_writer_is_warned(hw: Headwater, conn: Connection) -> None:
    hw.create("rows", ROWS)
    conn.execute(f"DROP TABLE {change_table(conn, 'items')} CASCADE")
    conn.execute("DROP TABLE headwater.lost_change")
    said: list[str] = []
    conn.add_notice_handler(
        lambda notice: said.append(f"{notice.severity_nonlocalized} {notice.message_primary}")
    )
    write(conn)
    assert len(said) == 3
    assert said[0].startswith("WARNING Headwater could not capture a change of public.items: ")
    with pytest.raises(HeadwaterError):
        hw.refresh("rows")


RIGHTS = {
    "on the table": ("REVOKE ALL ON {table} FROM {role}", "GRANT ALL ON {table} TO {role}"),
    "on the schema": ("REVOKE ALL ON SCHEMA {schema} FROM {role}", "GRANT ALL ON SCHEMA {schema} TO {role}"),
    "as owner of the table": (
        "ALTER TABLE {table} OWNER TO CURRENT_USER",
        "ALTER TABLE {table} OWNER TO {role}",
    ),
    "as owner of the schema": (
        "ALTER SCHEMA {schema} OWNER TO CURRENT_USER",
        "ALTER SCHEMA {schema} OWNER TO {role}",
    ),
}


@pytest.mark.parametrize(("revoked", "granted"), RIGHTS.values(), ids=RIGHTS.keys())
def test_rights_that_the_owner_lost_are_no_harm_to_writers(
    conn: Connection, new_role: NewRole, revoked: str, granted: str
) -> None:
    role, dsn = new_role()
    for schema in ("headwater", "headwater_defs", "headwater_data", "headwater_changes"):
        conn.execute(f"DROP SCHEMA {schema} CASCADE; CREATE SCHEMA {schema} AUTHORIZATION {role}")
    conn.execute(f"GRANT SELECT, TRIGGER ON items TO {role}; GRANT USAGE, CREATE ON SCHEMA public TO {role}")
    with headwater.connect(dsn) as hw:
        hw.init()
        hw.create("public.rows", "SELECT id, kind, price FROM public.items")
        write(conn)
        names = {"table": change_table(conn, "items"), "schema": "headwater_changes", "role": role}
        conn.execute(revoked.format(**names))
        write(conn, 20)
        conn.execute(granted.format(**names))
        write(conn, 30)
        outcome = refresh(hw, "public.rows")
        assert outcome.action == "recompute"
        assert "changes of public.items could not be captured" in outcome.reason
        write(conn, 40)
        assert refresh(hw, "public.rows").action == "delta"
        hw.drop("public.rows")


def test_a_row_that_fits_into_the_table_alone_is_no_harm(hw: Headwater, conn: Connection) -> None:
    """A tsquery is never stored elsewhere, so a row of one may fill a page; ours has to hold more."""
    conn.execute("CREATE TABLE queries (q tsquery)")
    hw.create("all_queries", "SELECT numnode(q) AS n FROM queries")
    conn.execute("INSERT INTO queries VALUES ('a')")
    assert refresh(hw, "all_queries").action == "delta"
    words = "&".join(letter * 2000 for letter in "abc")
    longest = 2000
    with suppress(psycopg.errors.ProgramLimitExceeded):  # in the end the table itself cannot hold it
        while longest < 2046:
            conn.execute("INSERT INTO queries VALUES (%s::tsquery)", (f"{words}&{'d' * longest}",))
            longest += 1
    assert 2000 < longest < 2046
    assert refresh(hw, "all_queries").action == "recompute"
    conn.execute("DELETE FROM queries")
    assert refresh(hw, "all_queries").action == "recompute"
    assert contents(conn, "all_queries") == {}


def test_a_table_of_many_columns_is_captured(hw: Headwater, conn: Connection) -> None:
    names = [f"t{number}" for number in range(600)]
    conn.execute(f"CREATE TABLE broad ({', '.join(f'{name} text' for name in names)})")
    hw.create("all_of_it", "SELECT * FROM broad")
    conn.execute(f"INSERT INTO broad SELECT {', '.join(repr(name) for name in names)}")
    conn.execute("UPDATE broad SET t7 = 'seven'")
    assert refresh(hw, "all_of_it").action == "delta"


def test_captured_columns_keep_their_types_while_they_are_captured(hw: Headwater, conn: Connection) -> None:
    """Also when the query that needs them is gone, so that no value comes that does not fit."""
    created = hw.create("rows", ROWS)
    conn.execute(f"DROP VIEW {definition(hw, created.id)} CASCADE")
    for ddl in ("ALTER TABLE items ALTER price TYPE text", "ALTER TABLE items DROP COLUMN price"):
        with pytest.raises((psycopg.errors.FeatureNotSupported, psycopg.errors.DependentObjectsStillExist)):
            conn.execute(ddl)
    conn.execute("ALTER TABLE items DROP COLUMN price CASCADE")
    conn.execute("ALTER TABLE items ADD COLUMN price date")
    conn.execute("ALTER TABLE items ALTER kind TYPE int USING 1")
    conn.execute("INSERT INTO items VALUES (0, 10, 5)")
    conn.execute("UPDATE items SET kind = 6")
    conn.execute("DELETE FROM items")
    hw.drop("rows")


def test_a_column_that_is_renamed_under_an_old_snapshot(hw: Headwater, dsn: str, conn: Connection) -> None:
    hw.create("rows", ROWS)
    with psycopg.connect(dsn) as writer:
        writer.set_isolation_level(IsolationLevel.REPEATABLE_READ)
        writer.execute("SELECT 1")
        conn.execute("ALTER TABLE items RENAME COLUMN kind TO category")
        conn.execute("ALTER TABLE items RENAME COLUMN price TO kind")
        writer.execute("UPDATE items SET category = 'z', kind = 7")
    assert refresh(hw, "rows").action == "delta"
    assert contents(conn, "rows") == {"(1,z,7)": 1, "(2,z,7)": 1, "(3,z,7)": 1}


def test_a_dropped_column_before_the_captured_ones(hw: Headwater, dsn: str, conn: Connection) -> None:
    """The function takes columns by their position: until it is made again, it looks for their names."""
    hw.create("rows", ROWS)
    write(conn)
    conn.execute("ALTER TABLE items DROP COLUMN first")
    write(conn, 20)
    before = value(conn, "SELECT capture_signature FROM headwater.source")
    assert refresh(hw, "rows").action == "delta"
    assert value(conn, "SELECT capture_signature FROM headwater.source") != before
    with conn.transaction():
        write(conn, 30)
        name = change_table(conn, "items")
        # No statement has a transaction number of its own again.
        assert value(conn, f"SELECT count(DISTINCT xmin::text) FROM {name} WHERE c2 >= 30") == 1
    assert refresh(hw, "rows").action == "delta"


@pytest.fixture
def partitioned(conn: Connection) -> None:
    conn.execute("CREATE TABLE parts (id int, kind text, price int) PARTITION BY RANGE (id)")
    conn.execute("CREATE TABLE low (price int, kind text, id int)")
    conn.execute("ALTER TABLE parts ATTACH PARTITION low FOR VALUES FROM (0) TO (100)")


def test_renamed_columns_of_a_partitioned_table(hw: Headwater, conn: Connection, partitioned: None) -> None:
    hw.create("rows", "SELECT id, kind, price FROM parts")
    conn.execute("INSERT INTO parts VALUES (1, 'a', 10), (2, 'b', 20)")
    conn.execute("ALTER TABLE parts RENAME COLUMN kind TO category")
    conn.execute("ALTER TABLE parts RENAME COLUMN price TO kind")
    conn.execute("UPDATE low SET kind = kind + 1")
    conn.execute("DELETE FROM parts WHERE id = 2")
    assert refresh(hw, "rows").action == "delta"
    conn.execute("UPDATE low SET kind = kind + 1")
    assert refresh(hw, "rows").action == "delta"


def test_capture_takes_no_transaction_number_of_its_own(hw: Headwater, conn: Connection) -> None:
    """More than 64 subtransactions in one transaction slow down everybody else."""
    hw.create("rows", ROWS)
    with conn.transaction():
        first = int(value(conn, "SELECT pg_current_xact_id()::text"))
        for number in range(100, 200):
            conn.execute("INSERT INTO items (id) VALUES (%s)", (number,))
    following = int(value(conn, "SELECT pg_current_xact_id()::text"))
    assert following == first + 1
