"""Names, queries and settings that try to become SQL, and schemas that try to be pg_catalog: in vain."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from tests.integration.support import assert_fresh, contents, footprint, value

import headwater
from headwater import Headwater, HeadwaterError
from headwater.capture import consumers
from headwater.catalog.stream_tables import find
from headwater.cli import run
from headwater.cli.invocation import Invocation
from headwater.errors import (
    InvalidName,
    InvalidQuery,
    InvalidSetting,
    NotFound,
    NotRunning,
)
from headwater.plan.quoting import identifier, literal

Connection = psycopg.Connection[Any]

NAMES = {
    "double quotes": 'x"; DROP TABLE victim; --',
    "single quotes": "it's \\'); DROP TABLE victim; --",
    "placeholders": "%s %(name)s %(snapshot)s 100%% {} {0} {name} $1 $$ :name",
    "white space and look-alikes": " new\nline\t\rselect рublic.оrders\u202e\u200b﹔ ",
    "63 bytes": "é" * 31 + '"',
}


@pytest.fixture(autouse=True)
def victim(dsn: str, conn: Connection) -> Iterator[None]:
    """A table that must still be there in the end."""
    conn.execute("CREATE TABLE victim (id int)")
    conn.execute("INSERT INTO victim VALUES (1)")
    yield
    with psycopg.connect(dsn) as other:
        assert contents(other, "public.victim") == {"(1)": 1}


def cut(name: str, bytes_: int = 62) -> str:
    """As much of a name as fits."""
    return name.encode()[:bytes_].decode(errors="ignore")


def make_source(conn: Connection, name: str) -> str:
    """A schema, a table and columns of one name; the table as SQL writes it."""
    quoted = identifier(name)
    conn.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name)))
    conn.execute(
        sql.SQL("CREATE TABLE {} (id int PRIMARY KEY, {} text)").format(
            sql.Identifier(name, name), sql.Identifier(name)
        )
    )
    conn.execute(
        sql.SQL("INSERT INTO {} VALUES (1, {}), (2, 'other')").format(
            sql.Identifier(name, name), sql.Literal(name)
        )
    )
    return f"{quoted}.{quoted}"


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_hostile_names_through_every_method(hw: Headwater, dsn: str, conn: Connection, name: str) -> None:
    table, column = make_source(conn, name), identifier(name)
    before = footprint(conn)
    shown = f"v{cut(name)}"
    view = f"{identifier(name)}.{identifier(shown)}"
    label = value(conn, "SELECT format('%%I.%%I', %s::text, %s::text)", name, shown)
    query = f"SELECT id, {column} FROM {table} WHERE {column} <> {literal('no: ' + name)}"
    assert hw.create(view, query).label == label
    hw.create(
        "above",
        f"SELECT {column}, count(*) AS {identifier('n' + cut(name))} FROM {view} GROUP BY {column}",
    )
    insert = sql.SQL("INSERT INTO {} VALUES (3, {})")
    conn.execute(insert.format(sql.Identifier(name, name), sql.Literal(name)))
    assert [outcome.action for outcome in hw.refresh("above")] == ["delta", "delta"]
    assert_fresh(hw, "above")
    assert value(conn, "SELECT count(*) FROM above") == 2

    position = consumers.begin(hw.connection, find(hw.connection, view), name, "now")
    conn.execute(sql.SQL("DELETE FROM {} WHERE id = 2").format(sql.Identifier(name, name)))
    hw.refresh(view)
    until = consumers.latest(hw.connection, position)
    consumers.check(hw.connection, position, until)
    kept = consumers.kept_sql(position, until).encode()
    assert hw.connection.execute(kept).fetchone() == (True,)
    changes = hw.connection.execute(consumers.changes_sql(hw.connection, position, until).encode())
    assert changes.fetchall() == [(2, "other", -1)]
    consumers.drop(hw.connection, name)

    number = find(hw.connection, view).id
    conn.execute(
        sql.SQL("CREATE INDEX {} ON {} ({})").format(
            sql.Identifier(f"i{cut(name)}"),
            sql.Identifier("headwater_data", f"st_{number}"),
            sql.Identifier(name),
        )
    )
    conn.execute(sql.SQL("COMMENT ON VIEW {} IS {}").format(sql.SQL(view), sql.Literal(name)))
    hw.create(view, f"{query} AND id > 0", or_replace=True, schedule="5s")
    hw.alter(view, query=f"SELECT id, {column}, 1 AS more FROM {table}")
    hw.alter(view, mode="full", engine="postgres", unscheduled=True)
    hw.alter(view, mode="auto")
    assert "is gone" not in "".join(entry.reason for entry in hw.history(view))
    assert value(conn, "SELECT obj_description(%s::regclass)", view) == name
    assert hw.verify("above").equal
    assert hw.explain(view).stream_table == label
    assert hw.missing_indexes(view) == []
    assert [item.stream_table for item in hw.list()] == [label, "public.above"]
    with pytest.raises(NotRunning):
        hw.cancel(view)
    conn.execute(
        sql.SQL("ALTER VIEW {} RENAME COLUMN id TO {}").format(sql.SQL(view), sql.Identifier("%s{}"))
    )
    conn.execute(sql.SQL("TRUNCATE {}").format(sql.Identifier(name, name)))
    hw.refresh("above")
    assert_fresh(hw, "above")
    assert hw.drop(view, cascade=True) == ["public.above", label]
    assert footprint(conn) == before


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_hostile_words_where_there_is_nothing(hw: Headwater, dsn: str, conn: Connection, name: str) -> None:
    """As names that are not quoted or do not exist, as queries, as settings and values of options."""
    before = footprint(conn)
    calls: list[Callable[[str], object]] = [
        hw.refresh,
        hw.drop,
        hw.status,
        hw.history,
        hw.explain,
        hw.verify,
        hw.cancel,
        hw.missing_indexes,
        lambda text: hw.alter(text, mode="full"),
        lambda text: hw.alter(text, query="SELECT 1 AS one"),
    ]
    for call in calls:
        for text in (name, identifier(name)[:64], f"public.{identifier(name)}"):
            with pytest.raises((NotFound, InvalidName)):
                call(text)
    for text in (
        name,
        f"SELECT 1; {name}",
        f"SELECT 1 AS one) AS x; {name}",
        f"{name}\0",
        f"SELECT 1 AS one -- {name}\ud800",
    ):
        with pytest.raises(InvalidQuery):
            hw.create("st", text)
    for given in (
        lambda: hw.set(name, "1"),
        lambda: hw.set("lock_attempts", name),
        lambda: hw.set("keep_inner", name),
        lambda: hw.set("spark_conf", "spark.x=\0"),
        lambda: hw.set("spark_conf", f"spark.x=\ud800{name}"),
        lambda: hw.create("st", "SELECT 1 AS one", schedule=name),
        lambda: hw.create("st", "SELECT 1 AS one", mode=name),  # type: ignore[arg-type]
        lambda: hw.create("st", "SELECT 1 AS one", engine=name),  # type: ignore[arg-type]
    ):
        with pytest.raises(HeadwaterError):
            given()
    with headwater.connect(dsn, lock_attempts=name) as other, pytest.raises(InvalidSetting):
        other.settings()
    assert footprint(conn) == before


@pytest.mark.parametrize("text", ["a\0b", '"a\0b"', "\0", "x" * 64, '"' + "é" * 32 + '"', "\ud800"])
def test_names_that_no_table_can_have(hw: Headwater, conn: Connection, text: str) -> None:
    before = footprint(conn)
    with pytest.raises(InvalidName):
        hw.create(text, "SELECT 1 AS one")
    with pytest.raises(InvalidName):
        hw.refresh(text)
    assert footprint(conn) == before


@pytest.mark.parametrize("name", [NAMES["double quotes"] + cut(NAMES["placeholders"], 30)], ids=["both"])
def test_hostile_names_through_every_verb_of_the_program(
    dsn: str, conn: Connection, name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWATER_DSN", dsn)
    table, column = make_source(conn, name), identifier(name)
    view = f"{identifier(name)}.{identifier(f'v{cut(name)}')}"

    def program(*arguments: str, expect: int = 0) -> Any:
        code = run([*arguments, "--format", "json"], Invocation())
        said = capsys.readouterr()
        assert code == expect, said
        assert run([*arguments], Invocation()) in (0, 1)  # as text
        assert "unexpected" not in capsys.readouterr().err
        return json.loads(said.out or said.err)

    program("init")
    program("init", "--check")
    query = f"SELECT id, {column} FROM {table}"
    label = program("create", view, "--query", query, "--or-replace")["stream_table"]
    program("create", view, "--query", f"{query} WHERE id > 0", "--or-replace", "--cascade")
    program("alter", view, "--query", f"{query} WHERE id > 1")
    program("alter", view, "--mode", "full")
    program("alter", view, "--mode", "auto")
    assert program("status", view)["stream_table"] == label
    assert program("list")["stream_tables"][0]["stream_table"] == label
    program("refresh", view, "--full")
    program("history", view)
    program("explain", view)
    assert program("verify", view)["equal"]
    program("cancel", view, expect=1)
    program("settings")
    program("migrate")
    program("set", name, name, expect=1)
    program("set", "keep_inner", name, expect=1)
    program("alter", view, "--schedule", name, expect=1)
    for verb in ("refresh", "status", "history", "explain", "verify", "cancel", "drop"):
        program(verb, name, expect=1)
    run(["drop", view], Invocation())
    capsys.readouterr()
    assert program("list") == {"stream_tables": []}


@pytest.mark.parametrize("name", [NAMES["double quotes"], NAMES["single quotes"]], ids=["double", "single"])
def test_a_role_of_a_hostile_name(admin: psycopg.Connection, empty_dsn: str, name: str) -> None:
    role = f"{name[:40]} {os.getpid()}"
    admin.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'secret'").format(sql.Identifier(role)))
    with psycopg.connect(empty_dsn, autocommit=True) as superuser:
        superuser.execute("CREATE TABLE items (id int PRIMARY KEY)")
        try:
            with headwater.connect(make_conninfo(empty_dsn, user=role, password="secret")) as hw:
                for check in hw.check():
                    if not check.ok:
                        superuser.execute(check.remedy.encode())
                hw.init()
                hw.create("public.st", "SELECT id FROM public.items")
                superuser.execute(sql.SQL("GRANT SELECT ON st TO {}").format(sql.Identifier(role)))
                superuser.execute("INSERT INTO items VALUES (1)")
                assert hw.refresh("public.st")[-1].action == "delta"
                superuser.execute(sql.SQL("GRANT SELECT (id) ON st TO {}").format(sql.Identifier(role)))
                hw.alter("public.st", query="SELECT 'x' AS x, id FROM public.items")
                assert hw.verify("public.st").equal
                assert all(check.ok for check in hw.check())
                hw.drop("public.st")
                superuser.execute(sql.SQL("REVOKE SELECT ON items FROM {}").format(sql.Identifier(role)))
                with pytest.raises(headwater.errors.MissingPrivilege) as caught:
                    hw.create("public.st", "SELECT id FROM public.items")
                superuser.execute(caught.value.hint.encode())
                hw.create("public.st", "SELECT id FROM public.items")
        finally:
            superuser.execute(sql.SQL("DROP OWNED BY {} CASCADE").format(sql.Identifier(role)))
            admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


# schemas that try to be pg_catalog

EVIL = """
CREATE SCHEMA evil;
CREATE TABLE evil.trap (what text);
CREATE FUNCTION evil.spring(text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN INSERT INTO evil.trap VALUES ($1); RETURN $1; END $$;
CREATE FUNCTION evil.lower(text) RETURNS text LANGUAGE sql AS $$ SELECT evil.spring('lower') $$;
CREATE FUNCTION evil.count(int) RETURNS bigint LANGUAGE sql AS
    $$ SELECT length(evil.spring('count'))::bigint $$;
CREATE FUNCTION evil.set_config(text, text, boolean) RETURNS text LANGUAGE sql AS
    $$ SELECT evil.spring('set_config') $$;
CREATE FUNCTION evil.to_regclass(text) RETURNS regclass LANGUAGE sql AS
    $$ SELECT evil.spring('to_regclass')::regclass $$;
CREATE FUNCTION evil.pg_get_viewdef(oid) RETURNS text LANGUAGE sql AS $$ SELECT evil.spring('viewdef') $$;
CREATE FUNCTION evil.pg_current_snapshot() RETURNS pg_snapshot LANGUAGE sql AS
    $$ SELECT evil.spring('snapshot')::pg_snapshot $$;
CREATE FUNCTION evil.equal(int, int) RETURNS boolean LANGUAGE sql AS $$ SELECT evil.spring('=') IS NULL $$;
CREATE OPERATOR evil.= (LEFTARG = int, RIGHTARG = int, FUNCTION = evil.equal);
CREATE FUNCTION evil.equal(text, text) RETURNS boolean LANGUAGE sql AS $$ SELECT evil.spring('t=') IS NULL $$;
CREATE OPERATOR evil.= (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.equal);
CREATE VIEW evil.pg_class AS SELECT 0::oid AS oid, evil.spring('pg_class') AS relname;
CREATE DOMAIN evil.regclass AS text;
CREATE DOMAIN evil.text AS varchar(1);
CREATE TABLE evil.items (id int, kind varchar);
"""


def with_path(dsn: str, path: str) -> str:
    return make_conninfo(dsn, options=f"-csearch_path={path.replace(' ', '')}")


@pytest.mark.parametrize("path", ["evil,pg_catalog,public", "evil,public,pg_catalog", "evil"])
def test_a_hostile_search_path_does_not_change_what_a_refresh_runs(
    hw: Headwater, dsn: str, conn: Connection, path: str
) -> None:
    conn.execute("CREATE TABLE items (id int PRIMARY KEY, kind text)")
    conn.execute("INSERT INTO items VALUES (1, 'A'), (2, 'B')")
    hw.create("public.st", "SELECT lower(kind) AS kind, count(id) AS n FROM items WHERE id = id GROUP BY 1")
    conn.execute(EVIL.encode())
    with headwater.connect(with_path(dsn, path)) as hostile:
        conn.execute("INSERT INTO items VALUES (3, 'B')")
        assert hostile.refresh("public.st")[-1].action == "delta"
        assert_fresh(hw, "public.st")
        hostile.refresh("public.st", full=True)
        assert hostile.verify("public.st").equal
        hostile.explain("public.st")
        hostile.list()
        hostile.check()
        hostile.alter("public.st", mode="full")
        hostile.alter("public.st", mode="auto")
        assert contents(conn, "public.st") == {"(a,1)": 1, "(b,2)": 1}
        # Its own queries are read by its own path, and by nothing else of it.
        made = hostile.create("evil.own", "SELECT id, kind FROM items")
        assert hostile.status("evil.own").sources == ("evil.items",)
        conn.execute("INSERT INTO evil.items VALUES (1, 'A')")
        hostile.refresh("evil.own")
        assert hostile.verify("evil.own").equal
        assert made.mode == "differential"
        hostile.drop("evil.own")
    with psycopg.connect(with_path(dsn, path), autocommit=True) as writer:
        writer.execute("INSERT INTO public.items VALUES (4, 'C')")  # by a trigger with a path of its own
    assert hw.refresh("public.st")[-1].action == "delta"
    assert contents(conn, "public.st") == {"(a,1)": 1, "(b,2)": 1, "(c,1)": 1}
    assert value(conn, "SELECT count(*) FROM evil.trap") == 0


def test_hostile_temporary_objects_do_not_change_what_a_refresh_runs(hw: Headwater, conn: Connection) -> None:
    conn.execute("CREATE TABLE items (id int PRIMARY KEY, kind text)")
    conn.execute("INSERT INTO items VALUES (1, 'A'), (2, 'B')")
    hw.create("st", "SELECT kind::text AS kind, count(*) AS n FROM items GROUP BY 1")
    for connection in (hw.connection, conn):
        for statement in (
            'CREATE TEMP TABLE pg_class (oid oid, relname name, relnamespace oid, relkind "char")',
            "CREATE TEMP TABLE pg_attribute (attrelid oid, attname name, attnum int2, attisdropped bool)",
            "CREATE TEMP TABLE pg_namespace (oid oid, nspname name)",
            "CREATE TEMP TABLE items (id int, kind text)",
            "CREATE TEMP TABLE new_rows (id int, kind text)",
            "CREATE TEMP TABLE st (kind text, n bigint)",
            "CREATE DOMAIN pg_temp.text AS varchar(1)",
            "CREATE DOMAIN pg_temp.regclass AS varchar(1)",
        ):
            connection.execute(statement)
    conn.execute("INSERT INTO public.items VALUES (3, 'long')")
    assert hw.refresh("public.st")[-1].action == "delta"
    assert conn.execute("SELECT kind, n FROM public.st ORDER BY 1").fetchall() == [
        ("A", 1),
        ("B", 1),
        ("long", 1),
    ]
    hw.alter("public.st", query="SELECT kind::text AS kind, count(*) AS n FROM public.items GROUP BY 1")
    hw.alter(
        "public.st", query="SELECT kind::text AS kind, max(id)::bigint AS n FROM public.items GROUP BY 1"
    )
    assert hw.verify("public.st").equal
    assert hw.status("public.st").sources == ("public.items",)
    hw.drop("public.st")
    assert (
        value(conn, "SELECT count(*) FROM pg_catalog.pg_trigger WHERE NOT tgisinternal AND tgname ~ 'headw'")
        == 0
    )
