"""What `create` refuses: with which error, and with nothing left behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from tests.integration.support import footprint, value

import headwater
from headwater import Headwater, HeadwaterError
from headwater.errors import (
    AlreadyExists,
    InvalidName,
    InvalidQuery,
    InvalidSetting,
    InvalidSource,
    MissingPrivilege,
    NotFound,
    NotIncremental,
)

Connection = psycopg.Connection[Any]


@pytest.fixture(autouse=True)
def tables(conn: Connection) -> None:
    conn.execute("CREATE TABLE items (id int PRIMARY KEY, price numeric, name text, at timestamptz)")
    conn.execute("INSERT INTO items VALUES (1, 10, 'a', '2024-01-01 12:00+00'), (2, 0, '2024-02-03', NULL)")


def assert_refused(
    hw: Headwater, conn: Connection, kind: type[HeadwaterError], name: str, query: str, **options: Any
) -> HeadwaterError:
    """The creation fails with this class, exactly, and leaves the database as it was."""
    before = footprint(conn)
    with pytest.raises(HeadwaterError) as caught:
        hw.create(name, query, **options)
    assert type(caught.value) is kind, caught.value
    assert footprint(conn) == before
    return caught.value


@pytest.mark.parametrize(
    "query",
    [
        pytest.param("SELEC id FROM items", id="syntax error"),
        pytest.param("", id="empty"),
        pytest.param("SELECT id FROM items; DELETE FROM items", id="two statements"),
        pytest.param(
            "SELECT id FROM items; CREATE TABLE stray ()",
            id="two statements, one of them DDL",
        ),
        pytest.param("DELETE FROM items", id="no query"),
        pytest.param("WITH gone AS (DELETE FROM items RETURNING id) SELECT id FROM gone", id="writing CTE"),
        pytest.param("SELECT id INTO stray FROM items", id="SELECT INTO"),
        pytest.param("SELECT id FROM nowhere", id="unknown table"),
        pytest.param("SELECT nothing FROM items", id="unknown column"),
        pytest.param("SELECT $1::int AS id FROM items", id="parameter"),
        pytest.param("SELECT id, id FROM items", id="duplicate columns"),
        pytest.param("SELECT id + 1, id + 2 FROM items", id="two unnamed columns"),
        pytest.param("SELECT id AS __hw_w FROM items", id="reserved column"),
        pytest.param("SELECT FROM items", id="no columns"),
    ],
)
def test_a_query_that_defines_no_stream_table(hw: Headwater, conn: Connection, query: str) -> None:
    error = assert_refused(hw, conn, InvalidQuery, "st", query)
    assert "public.st" in error.message
    assert error.hint
    assert value(conn, "SELECT count(*) FROM items") == 2


def test_a_failing_load_leaves_nothing(hw: Headwater, conn: Connection) -> None:
    error = assert_refused(hw, conn, InvalidQuery, "st", "SELECT id, 1 / price AS rate FROM items")
    assert "nothing was kept" in error.message


def test_a_failing_load_keeps_the_capture_that_another_needs(hw: Headwater, conn: Connection) -> None:
    hw.create("good", "SELECT id FROM items")
    assert_refused(hw, conn, InvalidQuery, "bad", "SELECT id, 1 / price AS rate FROM items")
    conn.execute("INSERT INTO items (id) VALUES (3)")
    assert hw.refresh("good")[-1].action == "delta"
    assert value(conn, "SELECT count(*) FROM good") == 3


def test_a_system_catalog_is_no_source(hw: Headwater, conn: Connection) -> None:
    error = assert_refused(hw, conn, InvalidSource, "st", "SELECT relname FROM pg_class")
    assert "pg_catalog.pg_class" in error.message


def test_a_system_catalog_behind_views_is_no_source(hw: Headwater, conn: Connection) -> None:
    conn.execute("CREATE VIEW names AS SELECT relname FROM pg_class")
    conn.execute("CREATE VIEW more_names AS SELECT relname FROM names")
    assert_refused(hw, conn, InvalidSource, "st", "SELECT relname FROM more_names")
    assert_refused(hw, conn, InvalidSource, "st", "SELECT table_name FROM information_schema.tables")


def test_a_temporary_table_is_no_source(hw: Headwater, conn: Connection) -> None:
    hw.connection.execute("CREATE TEMP TABLE scratch (id int)")
    error = assert_refused(hw, conn, InvalidSource, "st", "SELECT id FROM pg_temp.scratch")
    assert "scratch" in error.message
    hw.connection.execute("CREATE TEMP VIEW scratch_view AS SELECT s.id FROM pg_temp.scratch AS s")
    assert_refused(
        hw, conn, InvalidSource, "st", "SELECT i.id FROM items i JOIN pg_temp.scratch_view v ON v.id = i.id"
    )


@pytest.mark.parametrize(
    ("kind", "ddl"),
    [
        ("table", "CREATE TABLE taken (id int)"),
        ("view", "CREATE VIEW taken AS SELECT 1 AS id"),
        ("materialized view", "CREATE MATERIALIZED VIEW taken AS SELECT 1 AS id"),
        ("index", "CREATE INDEX taken ON items (price)"),
        ("sequence", "CREATE SEQUENCE taken"),
    ],
)
def test_the_name_of_another_relation(hw: Headwater, conn: Connection, kind: str, ddl: str) -> None:
    conn.execute(ddl)
    error = assert_refused(hw, conn, AlreadyExists, "taken", "SELECT id FROM items")
    assert f"{kind} public.taken" in error.message


def test_the_name_of_a_type(hw: Headwater, conn: Connection) -> None:
    conn.execute("CREATE TYPE taken AS ENUM ('a')")
    before = footprint(conn)
    with pytest.raises((AlreadyExists, InvalidQuery)):
        hw.create("taken", "SELECT id FROM items")
    assert footprint(conn) == before


def test_the_name_of_a_stream_table(hw: Headwater, conn: Connection) -> None:
    created = hw.create("taken", "SELECT id FROM items")
    error = assert_refused(hw, conn, AlreadyExists, "taken", "SELECT price FROM items")
    assert "stream table public.taken" in error.message
    assert hw.create("taken", "SELECT price FROM items", if_not_exists=True) == created


def test_names_that_cannot_be(hw: Headwater, conn: Connection) -> None:
    error = assert_refused(hw, conn, InvalidName, "nowhere.st", "SELECT id FROM items")
    assert error.hint == 'CREATE SCHEMA "nowhere"'
    for name in ("", "a.b.c", "two words", '"unclosed', "x" * 64, "."):
        assert_refused(hw, conn, InvalidName, name, "SELECT id FROM items")


def test_options_that_cannot_be(hw: Headwater, conn: Connection) -> None:
    query = "SELECT id FROM items"
    for schedule in ("often", "", "0s", "-1s", "5 parsecs"):
        assert_refused(hw, conn, InvalidSetting, "st", query, schedule=schedule)
    error = assert_refused(hw, conn, InvalidSetting, "st", query, engine="flink")
    assert error.hint == "use auto, postgres, spark"


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("WITH RECURSIVE n(i) AS (SELECT 1 UNION SELECT i + 1 FROM n WHERE i < 3) TABLE n", "RECURSIVE"),
        ("SELECT id, random() AS r FROM items", "random() is volatile"),
        ("SELECT id FROM items WHERE at < now()", "now() is stable"),
        ("SELECT id, CURRENT_DATE AS today FROM items", "CURRENT_DATE"),
        ("SELECT id, name::date AS day FROM items WHERE id = 2", "date is stable"),
        ("SELECT ctid::text AS place FROM items", "ctid"),
    ],
)  # fmt: skip
def test_what_only_recomputing_can_keep(hw: Headwater, conn: Connection, query: str, reason: str) -> None:
    error = assert_refused(hw, conn, NotIncremental, "st", query, mode="differential")
    assert reason in error.message
    created = hw.create("st", query)
    assert created.mode == "full"
    assert reason in "; ".join(created.mode_reasons)
    outcome = hw.refresh("st")[-1]
    assert (outcome.action, outcome.mode) == ("recompute", "full")
    assert reason in outcome.reason
    assert reason in (hw.status("st").reason or "")


@pytest.mark.parametrize(
    "expression",
    ["date_trunc('day', at)", "to_char(at, 'YYYY-MM-DD HH24')", "concat(id, at)", "at::date", "at::text"],
)
def test_what_depends_on_pinned_settings_only_is_incremental(
    hw: Headwater, conn: Connection, expression: str
) -> None:
    created = hw.create("st", f"SELECT id, {expression} AS x FROM items")
    assert created.mode == "differential"


def test_a_function_of_the_user_is_believed(hw: Headwater, conn: Connection) -> None:
    for kind in ("volatile", "stable", "immutable"):
        conn.execute(
            f"CREATE FUNCTION a_{kind}(int) RETURNS int LANGUAGE plpgsql {kind} AS 'BEGIN RETURN $1; END'"
        )
    for kind in ("volatile", "stable"):
        error = assert_refused(
            hw,
            conn,
            NotIncremental,
            "st",
            f"SELECT a_{kind}(id) AS x FROM items",
            mode="differential",
        )
        assert f"public.a_{kind}() is {kind}" in error.message
    assert hw.create("st", "SELECT a_immutable(id) AS x FROM items").mode == "differential"


def test_missing_privileges_are_named_with_their_grant(
    hw: Headwater, conn: Connection, new_role: Callable[[], tuple[str, str]]
) -> None:
    role, dsn = new_role()
    for schema in ("headwater", "headwater_defs", "headwater_data", "headwater_changes"):
        conn.execute(f"GRANT USAGE, CREATE ON SCHEMA {schema} TO {role}")
    conn.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA headwater TO {role}")
    query = "SELECT id FROM public.items"
    with headwater.connect(dsn) as unprivileged:
        for expected in (
            f'GRANT CREATE ON SCHEMA "public" TO "{role}"',
            f'GRANT SELECT, TRIGGER ON public.items TO "{role}"',
        ):
            error = assert_refused(unprivileged, conn, MissingPrivilege, "public.st", query)
            assert error.hint == expected
            conn.execute(expected)
        conn.execute(f"REVOKE TRIGGER ON items FROM {role}")
        error = assert_refused(unprivileged, conn, MissingPrivilege, "public.st", query)
        assert error.hint == f'GRANT TRIGGER ON public.items TO "{role}"; mode full does without'


def test_verbs_on_a_name_that_is_none(hw: Headwater, conn: Connection) -> None:
    before = footprint(conn)
    verbs: list[Callable[[str], object]] = [
        hw.refresh, hw.drop, hw.alter, hw.verify, hw.explain, hw.status, hw.history,
    ]  # fmt: skip
    for verb in verbs:
        for name in ("nothing", "items"):
            with pytest.raises(NotFound):
                verb(name)
    assert footprint(conn) == before
