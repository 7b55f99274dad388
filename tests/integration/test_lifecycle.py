"""Creating, altering, renaming and dropping stream tables by the Python interface."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg.errors import ObjectNotInPrerequisiteState
from tests.integration.support import (
    assert_fresh,
    capture_triggers,
    change_table,
    contents,
    footprint,
    refresh,
    value,
)

import headwater
from headwater import Headwater
from headwater.errors import AlreadyExists, DependentsExist, InvalidSetting, NotFound
from headwater.lifecycle.create import Place
from headwater.lifecycle.options import Options

Connection = psycopg.Connection[Any]

TRIGGERS = {f"headwater_capture_{event}" for event in ("insert", "update", "delete", "truncate")}


@pytest.fixture(autouse=True)
def tables(conn: Connection) -> None:
    conn.execute("CREATE TABLE items (id int PRIMARY KEY, kind text, price int)")
    conn.execute("INSERT INTO items VALUES (1, 'a', 10), (2, 'a', 20), (3, 'b', 5)")


@pytest.mark.smoke
def test_a_created_stream_table_is_loaded_and_described(hw: Headwater, conn: Connection) -> None:
    created = hw.create(
        "by_kind", "SELECT kind, sum(price) AS total FROM items GROUP BY kind;", schedule="5m"
    )
    assert (created.label, created.mode, created.status) == ("public.by_kind", "differential", "active")
    assert created.schedule == "5m"
    assert contents(conn, "by_kind") == {"(a,30)": 1, "(b,5)": 1}
    (loaded,) = hw.history("by_kind")
    assert (loaded.action, loaded.status, loaded.rows_inserted) == ("load", "completed", 2)
    assert [item.stream_table for item in hw.list()] == ["public.by_kind"]
    assert hw.status("by_kind").sources == ("public.items",)
    assert capture_triggers(conn, "items") == TRIGGERS


def test_the_search_path_of_the_user_decides_names(dsn: str, conn: Connection) -> None:
    conn.execute("CREATE SCHEMA shop")
    conn.execute("CREATE TABLE shop.items (id int)")
    conn.execute("INSERT INTO shop.items VALUES (42)")
    separator = "&" if "?" in dsn else "?"
    shop = (
        f"{dsn}{separator}options=-csearch_path%3Dshop"
        if "://" in dsn
        else f"{dsn} options='-csearch_path=shop'"
    )
    with headwater.connect(shop) as hw:
        hw.init()
        assert hw.create("st", "SELECT id FROM items").label == "shop.st"
    assert contents(conn, "shop.st") == {"(42)": 1}


@pytest.mark.smoke
def test_dropping_the_last_stream_table_leaves_the_database_as_it_was(
    hw: Headwater, conn: Connection
) -> None:
    before = footprint(conn)
    hw.create("one", "SELECT id FROM items WHERE price > 1")
    hw.create("two", "SELECT kind, max(price) AS top FROM one JOIN items USING (id) GROUP BY kind")
    conn.execute("UPDATE items SET price = price + 1")
    refresh(hw, "two")
    assert hw.drop("two") == ["public.two"]
    assert hw.drop("one") == ["public.one"]
    assert footprint(conn) == before
    conn.execute("INSERT INTO items VALUES (9, 'z', 1)")


def test_capture_stays_while_another_stream_table_needs_it(hw: Headwater, conn: Connection) -> None:
    hw.create("one", "SELECT id FROM items")
    hw.create("two", "SELECT id, kind FROM items")
    hw.drop("one")
    assert capture_triggers(conn, "items") == TRIGGERS
    conn.execute("DELETE FROM items WHERE id = 1")
    assert refresh(hw, "two").action == "delta"
    hw.drop("two")
    assert capture_triggers(conn, "items") == set()
    assert (
        value(conn, "SELECT count(*) FROM pg_class WHERE relnamespace = 'headwater_changes'::regnamespace")
        == 0
    )
    assert (
        value(conn, "SELECT count(*) FROM pg_proc WHERE pronamespace = 'headwater_changes'::regnamespace")
        == 0
    )


def test_a_stream_table_with_readers_is_dropped_only_with_them(hw: Headwater, conn: Connection) -> None:
    hw.create("base", "SELECT id, kind FROM items")
    hw.create("reader", "SELECT kind, count(*) AS n FROM base GROUP BY kind")
    hw.create("bystander", "SELECT id FROM items")
    before = footprint(conn)
    with pytest.raises(DependentsExist) as caught:
        hw.drop("base")
    assert "public.reader" in caught.value.detail
    assert footprint(conn) == before
    assert set(hw.drop("base", cascade=True)) == {"public.base", "public.reader"}
    assert [item.stream_table for item in hw.list()] == ["public.bystander"]
    with pytest.raises(NotFound):
        hw.refresh("reader")


def test_a_view_of_the_user_that_reads_it_is_dropped_only_by_cascade(hw: Headwater, conn: Connection) -> None:
    hw.create("base", "SELECT id, kind FROM items")
    conn.execute("CREATE VIEW mine AS SELECT id FROM base")
    before = footprint(conn)
    with pytest.raises(DependentsExist) as caught:
        hw.drop("base")
    assert "mine" in caught.value.detail
    assert footprint(conn) == before
    hw.drop("base", cascade=True)
    assert value(conn, "SELECT to_regclass('mine')") is None


@pytest.mark.smoke
def test_the_mode_can_be_changed_back_and_forth(hw: Headwater, conn: Connection) -> None:
    hw.create("st", "SELECT kind, count(*) AS n, avg(price) AS mean FROM items GROUP BY kind")
    conn.execute("INSERT INTO items VALUES (4, 'c', 1)")

    assert hw.alter("st", mode="full").mode == "full"
    assert_fresh(hw, "st")
    assert capture_triggers(conn, "items") == set()
    assert change_table(conn, "items") is None
    conn.execute("DELETE FROM items WHERE id = 1")
    assert refresh(hw, "st").action == "recompute"

    conn.execute("INSERT INTO items VALUES (5, 'c', 7)")
    assert hw.alter("st", mode="differential").mode == "differential"
    assert_fresh(hw, "st")
    assert capture_triggers(conn, "items") == TRIGGERS
    conn.execute("UPDATE items SET kind = 'b' WHERE id = 2")
    assert refresh(hw, "st").action == "delta"


def test_the_history_names_a_change_of_mode(hw: Headwater, conn: Connection) -> None:
    hw.create("st", "SELECT kind, count(*) AS n FROM items GROUP BY kind")
    hw.alter("st", mode="full")
    assert "its mode was changed to full" in hw.history("st")[0].reason


def test_a_bag_of_rows_stays_where_it_is_in_another_mode(hw: Headwater, conn: Connection) -> None:
    hw.create("st", "SELECT id, kind FROM items")
    storage = value(conn, "SELECT to_regclass('headwater_data.st_1')::oid")
    hw.alter("st", mode="full")
    assert len(hw.history("st")) == 1
    assert capture_triggers(conn, "items") == set()
    conn.execute("INSERT INTO items VALUES (4, 'c', 1)")
    assert refresh(hw, "st").action == "recompute"
    conn.execute("DELETE FROM items WHERE id = 1")
    hw.alter("st", mode="auto")
    assert_fresh(hw, "st")
    assert "its mode was changed to differential" in hw.history("st")[0].reason
    conn.execute("DELETE FROM items WHERE id = 2")
    assert refresh(hw, "st").action == "delta"
    assert value(conn, "SELECT to_regclass('headwater_data.st_1')::oid") == storage


def test_a_change_of_mode_reaches_dependents_as_a_delta(hw: Headwater, conn: Connection) -> None:
    hw.create("base", "SELECT id, kind FROM items")
    hw.create("reader", "SELECT kind, count(*) AS n FROM base GROUP BY kind")
    conn.execute("INSERT INTO items VALUES (4, 'c', 1)")
    hw.alter("base", mode="full")
    assert refresh(hw, "reader").action == "delta"
    conn.execute("INSERT INTO items VALUES (5, 'd', 1)")
    hw.alter("base", mode="differential")
    assert refresh(hw, "reader").action == "delta"


def test_other_options_are_altered_without_a_refresh(hw: Headwater, conn: Connection) -> None:
    hw.create("st", "SELECT id FROM items")
    assert hw.alter("st", schedule="10s").schedule == "10s"
    assert hw.alter("st", engine="spark").engine == "spark"
    assert hw.alter("st", engine="postgres").engine == "postgres"
    assert hw.alter("st", unscheduled=True).schedule is None
    assert len(hw.history("st")) == 1
    before = footprint(conn)
    with pytest.raises(InvalidSetting):
        hw.alter("st", schedule="sometimes")
    assert footprint(conn) == before


def test_a_renamed_stream_table_is_followed(hw: Headwater, conn: Connection) -> None:
    hw.create("st", "SELECT id FROM items")
    conn.execute("CREATE SCHEMA moved")
    conn.execute("ALTER VIEW st RENAME TO renamed")
    conn.execute("ALTER VIEW renamed SET SCHEMA moved")
    conn.execute("INSERT INTO items VALUES (4, 'c', 1)")
    assert refresh(hw, "moved.renamed").action == "delta"
    assert hw.status("moved.renamed").stream_table == "moved.renamed"
    with pytest.raises(NotFound):
        hw.refresh("st")
    hw.alter("moved.renamed", mode="full")
    assert_fresh(hw, "moved.renamed")
    hw.drop("moved.renamed")
    assert value(conn, "SELECT to_regclass('moved.renamed')") is None


def test_the_old_name_of_a_renamed_stream_table_is_free(hw: Headwater, conn: Connection) -> None:
    hw.create("st", "SELECT id FROM items")
    conn.execute("ALTER VIEW st RENAME TO renamed")
    hw.create("st", "SELECT kind FROM items")
    assert_fresh(hw, "st")
    assert_fresh(hw, "renamed")
    hw.drop("st")
    assert_fresh(hw, "renamed")


@pytest.mark.parametrize(
    "write",
    ["INSERT INTO st VALUES (9)", "UPDATE st SET id = 9 WHERE id = 1", "DELETE FROM st WHERE id = 1"],
)
def test_writes_through_the_view_are_refused(hw: Headwater, conn: Connection, write: str) -> None:
    hw.create("st", "SELECT id FROM items")
    with pytest.raises(ObjectNotInPrerequisiteState) as caught:
        conn.execute(write)
    assert caught.value.sqlstate == "55000"
    assert caught.value.diag.message_hint
    assert_fresh(hw, "st")


def test_a_stream_table_whose_view_was_dropped_by_hand_can_still_be_dropped(
    hw: Headwater, conn: Connection
) -> None:
    before = footprint(conn)
    hw.create("st", "SELECT id FROM items")
    conn.execute("DROP VIEW st")
    conn.execute("CREATE VIEW st AS SELECT 'mine' AS whose")
    hw.drop("st")
    assert contents(conn, "st") == {"(mine)": 1}
    conn.execute("DROP VIEW st")
    assert footprint(conn) == before


def test_a_stream_table_whose_source_was_dropped_with_cascade_can_still_be_dropped(
    hw: Headwater, conn: Connection
) -> None:
    hw.create("st", "SELECT id FROM items")
    with pytest.raises(psycopg.errors.DependentObjectsStillExist):
        conn.execute("DROP TABLE items")
    with pytest.raises(psycopg.errors.DependentObjectsStillExist):
        conn.execute("ALTER TABLE items DROP COLUMN id")
    conn.execute("DROP TABLE items CASCADE")
    with pytest.raises(headwater.HeadwaterError):
        hw.refresh("st")
    assert hw.history("st")[0].status == "failed"
    hw.drop("st")
    assert hw.list() == []
    assert (
        value(conn, "SELECT count(*) FROM pg_class WHERE relnamespace = 'headwater_changes'::regnamespace")
        == 0
    )


def test_a_creator_that_died_between_its_transactions_is_cleared_away(
    hw: Headwater, dsn: str, conn: Connection
) -> None:
    before = footprint(conn)
    with headwater.connect(dsn) as dying:
        options = Options(mode="auto", engine="auto")
        dying._creation()._prepare(dying.connection, Place("public", "st"), "SELECT id FROM items", options)
        assert hw.status("st").status == "initializing"
        assert capture_triggers(conn, "items") == TRIGGERS
        with pytest.raises(AlreadyExists) as caught:
            hw.create("st", "SELECT id FROM items")
        assert "being created" in caught.value.message
        pid = dying.connection.info.backend_pid
        assert value(conn, "SELECT pg_terminate_backend(%s, 30000)", pid)
    conn.execute("INSERT INTO items VALUES (4, 'c', 1)")
    hw.create("st", "SELECT kind FROM items")
    assert_fresh(hw, "st")
    assert [item.stream_table for item in hw.list()] == ["public.st"]
    conn.execute("INSERT INTO items VALUES (5, 'd', 1)")
    assert refresh(hw, "st").action == "delta"
    hw.drop("st")
    assert footprint(conn) == before


def test_what_a_dead_creator_left_can_be_dropped(hw: Headwater, dsn: str, conn: Connection) -> None:
    before = footprint(conn)
    with headwater.connect(dsn) as dying:
        dying._creation()._prepare(dying.connection, Place("public", "st"), "SELECT id FROM items", Options())
    hw.drop("st")
    assert footprint(conn) == before
