"""What an earlier version installed beside the catalog is brought up by `migrate`; no writer is held up."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.integration.support import change_rows, in_background, refresh, value, wait_until_blocked

import headwater
from headwater import Headwater
from headwater.capture.buffers import CHANGES
from headwater.catalog import installed
from headwater.catalog.installed import migrations
from headwater.db import scratch
from headwater.install import migrate

Connection = psycopg.Connection[Any]
OLD = migrations()[:3]
SCRIPT = (Path(__file__).parent / "version_3.sql").read_text(encoding="utf-8")
WHAT = """
    SELECT c.relname, am.amname, c.relreplident::text FROM pg_class c
    LEFT JOIN pg_index i ON i.indrelid = c.oid
    LEFT JOIN pg_class ic ON ic.oid = i.indexrelid LEFT JOIN pg_am am ON am.oid = ic.relam
    WHERE c.relnamespace::regnamespace::text IN ('headwater_changes', 'headwater_data') AND c.relkind = 'r'
    ORDER BY 1"""


@pytest.fixture
def old(empty_dsn: str) -> Iterator[Headwater]:
    """A handle to a database in which version 3 captures a table."""
    with headwater.connect(empty_dsn, lock_attempts="2") as hw:
        migrate.migrate(hw.connection, steps=OLD)
        before, after = SCRIPT.split("-- from here on with oids")
        hw.connection.execute(scratch.statement(before))
        for name in ("items", "sums", "tops"):
            oid = value(hw.connection, "SELECT %s::regclass::oid", f"public.{name}")
            after = after.replace(f":{name}", str(oid))
        hw.connection.execute(scratch.statement(after))
        yield hw


@pytest.fixture
def conn(empty_dsn: str) -> Iterator[Connection]:
    with psycopg.connect(empty_dsn, autocommit=True) as connection:
        yield connection


def function(conn: Connection) -> str:
    return str(value(conn, "SELECT prosrc FROM pg_proc WHERE proname = 'capture_' || 'items'::regclass::oid"))


def kinds(conn: Connection) -> set[tuple[str, ...]]:
    """The kind of index and the replica identity of change tables and storage."""
    return {
        ("change table" if row[0].startswith("src") else "storage", *row[1:]) for row in conn.execute(WHAT)
    }


def test_what_an_old_version_captured_the_new_function_captures(old: Headwater, conn: Connection) -> None:
    conn.execute("INSERT INTO items VALUES (3, 'a', 3)")
    before = function(conn)
    assert kinds(conn) == {("change table", "btree", "d"), ("storage", "btree", "d")}
    assert old.migrate() == [step.version for step in migrations() if step not in OLD]
    assert function(conn) != before
    assert kinds(conn) == {("change table", "brin", "f"), ("storage", "btree", "f")}
    assert change_rows(conn, "items") == 1
    conn.execute("INSERT INTO items VALUES (4, 'b', 4)")
    assert change_rows(conn, "items") == 2
    # The new function is not made again, and has lost nothing.
    after = function(conn)
    refresh(old, "public.tops")
    assert "capture" not in old.history("public.sums")[0].reason
    assert function(conn) == after
    conn.execute("DELETE FROM items WHERE kind = 'b'")
    assert refresh(old, "public.sums").action == "delta"
    # It is the one that this version makes for a table that it captures from the beginning.
    conn.execute("CREATE TABLE more (LIKE items INCLUDING ALL)")
    old.create("public.others", "SELECT kind, count(*) AS n, sum(price) AS s FROM public.more GROUP BY kind")
    fresh = str(value(conn, "SELECT prosrc FROM pg_proc WHERE proname = 'capture_' || 'more'::regclass::oid"))
    assert len(after.splitlines()) == len(fresh.splitlines())
    assert old.migrate() == []
    assert function(conn) == after


def test_a_function_of_another_version_is_replaced_without_a_lock(
    old: Headwater, empty_dsn: str, conn: Connection
) -> None:
    old.migrate()
    present = function(conn)
    oid = value(conn, "SELECT 'items'::regclass::oid")
    body = scratch.statement(present.replace("BEGIN\n", "BEGIN -- of another version\n", 1))
    with conn.transaction():  # as if that version had written it
        conn.execute(
            psycopg.sql.SQL(
                "CREATE OR REPLACE FUNCTION {}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER"
                " SET search_path = pg_catalog, pg_temp AS {}"
            ).format(
                psycopg.sql.Identifier(CHANGES, f"capture_{oid}"),
                psycopg.sql.Literal(body.as_string(None)),
            )
        )
        conn.execute(
            "UPDATE headwater.source SET capture_signature = headwater.capture_signature(relation)"
            " WHERE relation = %s",
            (oid,),
        )
    with psycopg.connect(empty_dsn) as writer:
        writer.execute("INSERT INTO items VALUES (5, 'c', 5)")
        assert old.migrate() == []
        assert "of another version" not in function(conn)
        writer.execute("INSERT INTO items VALUES (6, 'c', 6)")
    assert change_rows(conn, "items") == 2
    refresh(old, "public.tops")
    conn.execute("INSERT INTO items VALUES (7, 'c', 7)")
    assert refresh(old, "public.tops").action == "delta"


def test_a_writer_in_the_way_is_not_waited_for_long(
    old: Headwater, empty_dsn: str, conn: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """What it holds is left as it is, and said; the next time it is brought up."""
    with psycopg.connect(empty_dsn) as writer, caplog.at_level(logging.WARNING):
        writer.execute("INSERT INTO items VALUES (3, 'a', 3)")
        with in_background(old.migrate) as future:
            wait_until_blocked(conn, old.connection.info.backend_pid, future)
            assert future.result()[-1] == installed.latest_version()
        notes = [record.getMessage() for record in caplog.records]
        assert len(notes) == 1
        assert "was left as an earlier version made it: table headwater_changes.src_" in notes[0]
    assert kinds(conn) == {
        ("change table", "btree", "d"), ("change table", "brin", "f"), ("storage", "btree", "f")
    }  # fmt: skip
    refresh(old, "public.tops")
    caplog.clear()
    assert old.migrate() == []
    assert not caplog.records
    assert kinds(conn) == {("change table", "brin", "f"), ("storage", "btree", "f")}


def test_a_large_change_table_keeps_its_index(
    old: Headwater, conn: Connection, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwater.install.upgrade.LARGEST", 8191)
    conn.execute("INSERT INTO items VALUES (3, 'a', 3)")
    with caplog.at_level(logging.WARNING):
        old.migrate()
    table = f"headwater_changes.src_{value(conn, 'SELECT %s::regclass::oid', 'items')}"
    assert [record.getMessage() for record in caplog.records] == [
        f"table {table} is large and keeps its old index: refresh the stream tables that read it, then repeat"
        " headwater migrate"
    ]
    assert ("change table", "btree", "f") in kinds(conn)
    refresh(old, "public.tops")


def test_what_is_broken_is_left_to_the_refresh(old: Headwater, conn: Connection) -> None:
    """Consumers of a source whose triggers somebody disabled must be told, which a refresh does."""
    conn.execute("ALTER TABLE items DISABLE TRIGGER ALL")
    before = function(conn)
    old.migrate()
    assert function(conn) == before
    conn.execute("INSERT INTO items VALUES (9, 'a', 9)")
    assert refresh(old, "public.sums").action == "recompute"
    assert function(conn) != before
