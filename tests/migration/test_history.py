"""A history of an earlier version is left to the clean-up by `migrate`, however long it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.integration.history import add, add_stream_tables, assert_sums_are_those_of, counted, finish, left
from tests.integration.support import value

import headwater
from headwater import Headwater
from headwater.catalog.installed import migrations
from headwater.install import migrate

Connection = psycopg.Connection[Any]
WITHOUT_SUMS = migrations()[:10]
FILES = (
    "SELECT array_agg((oid::regclass::text, relfilenode) ORDER BY oid)::text FROM pg_class"
    " WHERE oid = 'headwater.refresh'::regclass"
    " OR oid IN (SELECT indexrelid FROM pg_index WHERE indrelid = 'headwater.refresh'::regclass)"
)


@pytest.fixture
def old(empty_dsn: str) -> Iterator[Headwater]:
    """A handle to a database whose catalog knows single refreshes only."""
    with headwater.connect(empty_dsn) as hw:
        migrate.migrate(hw.connection, steps=WITHOUT_SUMS)
        yield hw


@pytest.fixture
def conn(empty_dsn: str) -> Iterator[Connection]:
    with psycopg.connect(empty_dsn, autocommit=True) as connection:
        yield connection


def test_old_refreshes_are_counted_and_deleted_by_the_clean_up(old: Headwater, conn: Connection) -> None:
    first, second = add_stream_tables(conn, 2)
    add(conn, first, number=20_000)
    conn.execute("DELETE FROM headwater.refresh")  # numbers begin anywhere
    add(conn, first, number=9_000, ago="30 hours", every="10s")
    add(conn, second, number=500, ago="20 hours", action="recompute", ms=70)
    add(conn, second, number=20, ago="10 hours", status="failed")
    conn.execute("CREATE TABLE public.raw AS TABLE headwater.refresh")
    files = value(conn, FILES)
    old.migrate()
    assert value(conn, FILES) == files, "neither the table nor an index of it was made anew"
    assert len(left(conn)) == 9_520
    assert counted(conn) == 0
    finish(old, history_minute_retention="24d")
    assert counted(conn) == 9_520
    assert_sums_are_those_of(conn, "public.raw")
    assert len(left(conn, f"stream_table_id = {first}")) == 100
    assert len(left(conn, f"stream_table_id = {second}")) == 520
