"""What users do to sources and types while stream tables read them: between refreshes, and during one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from tests.integration.support import (
    WAITING_IS_LONG,
    Meddled,
    assert_fresh,
    capture_triggers,
    refresh,
    stored_and_wanted,
    value,
    wait_until_blocked,
)

import headwater
from headwater import Headwater, Outcome
from headwater.catalog import stream_tables as catalog
from headwater.catalog.stream_tables import Closure
from headwater.config import Settings
from headwater.db.connection import connect
from headwater.db.route import Route
from headwater.db.scratch import statement
from headwater.definition.reader import DefinitionReader
from headwater.engine.select import EngineSelector
from headwater.errors import RefreshFailed
from headwater.refresh.decide import Request
from headwater.refresh.transaction import Refresher

pytestmark = pytest.mark.usefixtures("driver_only")

Connection = psycopg.Connection[Any]

COUNTS = "SELECT kind, count(*) AS n FROM shop.items GROUP BY kind"
JOINED = "SELECT i.id, i.kind, l.label FROM shop.items i JOIN shop.labels l ON l.kind = i.kind"
TABLES = """
CREATE SCHEMA shop;
CREATE TABLE shop.items (id int PRIMARY KEY, kind text, price int, note text);
CREATE TABLE shop.labels (kind text, label text);
INSERT INTO shop.items VALUES (1, 'a', 10), (2, 'b', 20), (3, 'b', 5);
INSERT INTO shop.labels VALUES ('a', 'A'), ('b', 'B');
"""


@pytest.fixture(autouse=True)
def tables(conn: Connection) -> None:
    conn.execute(TABLES)


# refused by the server, with a word on which stream table is the reason


@pytest.mark.parametrize(
    "ddl",
    [
        "ALTER TABLE shop.items DROP COLUMN kind",
        "ALTER TABLE shop.items ALTER kind TYPE varchar(5)",
        "DROP TABLE shop.items",
        "DROP SCHEMA shop",
    ],
)
def test_a_breaking_change_is_refused_and_names_the_stream_table(
    hw: Headwater, conn: Connection, ddl: str
) -> None:
    hw.create('public."Per Kind"', COUNTS)
    with pytest.raises(psycopg.errors.Error) as caught:
        conn.execute(statement(ddl))
    assert "Per Kind" in (caught.value.diag.message_detail or "")


# dropped, and there again


def test_a_source_that_was_dropped_and_made_again(hw: Headwater, conn: Connection) -> None:
    hw.create("public.counts", COUNTS)
    hw.create("public.most", "SELECT max(n) AS n FROM public.counts")
    hw.create("public.labelled", "SELECT label FROM shop.labels")
    conn.execute("DROP TABLE shop.items CASCADE")
    with pytest.raises(RefreshFailed, match=r"shop.items, which it reads, was dropped") as caught:
        hw.refresh("public.most")
    assert "headwater repair" in caught.value.hint
    (broken, rest, intact) = hw.repair()
    assert (broken.status, rest.status, intact.status) == ("failed", "intact", "intact")
    assert "shop.items" in broken.error
    conn.execute("CREATE TABLE shop.items (id int, more int, kind text)")
    conn.execute("INSERT INTO shop.items VALUES (7, 0, 'c')")
    with pytest.raises(RefreshFailed, match="was dropped"):
        hw.refresh("public.most")
    assert [item.status for item in hw.repair()] == ["rebuilt", "intact", "intact"]
    conn.execute("INSERT INTO shop.items VALUES (8, 0, 'c')")
    assert refresh(hw, "public.most").action == "delta"
    assert_fresh(hw, "public.counts")
    assert len(capture_triggers(conn, "shop.items")) == 4


def test_a_view_that_was_dropped_comes_back(hw: Headwater, conn: Connection) -> None:
    hw.create("public.counts", COUNTS)
    hw.create("public.most", "SELECT max(n) AS n FROM public.counts")
    conn.execute("DROP VIEW public.counts CASCADE")
    with pytest.raises(RefreshFailed, match="the view that shows it was dropped"):
        hw.refresh("public.counts")
    assert [item.status for item in hw.repair()] == ["rebuilt", "rebuilt"]
    conn.execute("INSERT INTO shop.items VALUES (4, 'b', 1)")
    assert refresh(hw, "public.most").action == "delta"
    assert refresh(hw, "public.counts").action == "nothing"
    hw.drop("public.most")
    hw.drop("public.counts")
    assert capture_triggers(conn, "shop.items") == set()


# types and functions


def test_a_constraint_of_a_domain_that_old_rows_violate(hw: Headwater, conn: Connection) -> None:
    conn.execute("CREATE DOMAIN price AS int; ALTER TABLE shop.items ALTER price TYPE price")
    hw.create("public.dear", "SELECT id, price FROM shop.items WHERE price > 1")
    conn.execute("ALTER DOMAIN price ADD CHECK (VALUE < 15) NOT VALID")
    conn.execute("DELETE FROM shop.items WHERE id = 2")
    refresh(hw, "public.dear")
    conn.execute("INSERT INTO shop.items VALUES (4, 'b', 3)")
    assert refresh(hw, "public.dear").action == "delta"


def test_a_domain_can_be_altered_while_sessions_are_open(hw: Headwater, conn: Connection) -> None:
    conn.execute("CREATE DOMAIN price AS int; ALTER TABLE shop.items ALTER price TYPE price")
    hw.create("public.dear", "SELECT id, price FROM shop.items WHERE price > 1")
    hw.create("public.sums", "SELECT kind, sum(price) AS s, max(price) AS m FROM shop.items GROUP BY kind")
    conn.execute("INSERT INTO shop.items VALUES (4, 'b', 3)")
    refresh(hw, "public.dear")
    refresh(hw, "public.sums")
    conn.execute("ALTER DOMAIN price ADD CHECK (VALUE < 100)")
    conn.execute("ALTER DOMAIN price SET NOT NULL")
    conn.execute("INSERT INTO shop.items VALUES (5, 'b', 4)")
    for name in ("public.dear", "public.sums"):
        assert refresh(hw, name).action == "delta"


def test_a_type_can_be_dropped_once_nobody_reads_it(hw: Headwater, dsn: str, conn: Connection) -> None:
    conn.execute("CREATE TYPE sort AS ENUM ('x', 'y'); ALTER TABLE shop.items ADD COLUMN sort sort")
    hw.create("public.sorted", "SELECT sort, count(*) AS n FROM shop.items GROUP BY sort")
    hw.create("public.counts", COUNTS)
    with headwater.connect(dsn) as another:
        for number, handle in enumerate((hw, another)):
            conn.execute("INSERT INTO shop.items VALUES (%s, 'b', 3, NULL, 'x')", (10 + number,))
            assert refresh(handle, "public.sorted").action == "delta"
        another.drop("public.sorted")
        conn.execute("ALTER TABLE shop.items DROP COLUMN sort")
        for handle in (hw, another):  # each clears away what it has, when it has something to do
            conn.execute("UPDATE shop.items SET kind = kind || 'z' WHERE id = 1")
            handle.refresh("public.counts")
        conn.execute("DROP TYPE sort")


@pytest.mark.parametrize(
    "change",
    [
        "CREATE OR REPLACE AGGREGATE shop.total(int) (SFUNC = int4mi, STYPE = int, INITCOND = '0')",
        "CREATE OR REPLACE FUNCTION shop.add(int, int) RETURNS int LANGUAGE sql IMMUTABLE"
        " AS 'SELECT $1 - $2'",
    ],
    ids=["aggregate", "its function"],
)
def test_an_aggregate_that_was_replaced(hw: Headwater, conn: Connection, change: str) -> None:
    conn.execute(
        "CREATE FUNCTION shop.add(int, int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT $1 + $2';"
        " CREATE AGGREGATE shop.total(int) (SFUNC = shop.add, STYPE = int, INITCOND = '0')"
    )
    hw.create("public.totals", "SELECT kind, shop.total(price) AS t FROM shop.items GROUP BY kind")
    conn.execute(statement(change))
    outcome = refresh(hw, "public.totals")
    assert (outcome.action, outcome.reason) == ("recompute", "the meaning of its query changed")


def test_a_collation_that_changed(hw: Headwater, conn: Connection) -> None:
    row = conn.execute(
        "SELECT collprovider::text, collname FROM pg_collation WHERE collprovider IN ('c', 'i')"
        " AND collencoding IN (-1, 6) AND pg_collation_actual_version(oid) IS NOT NULL LIMIT 1"
    ).fetchone()
    if row is None:
        pytest.skip("this server has no collation with a version")
    conn.execute(statement(f'CREATE COLLATION shop.sorting FROM "{row[1]}"'))
    conn.execute("UPDATE pg_collation SET collversion = 'older' WHERE collname = 'sorting'")
    conn.execute("ALTER TABLE shop.items ALTER kind TYPE text COLLATE shop.sorting")
    hw.create("public.last", "SELECT max(kind) AS last FROM shop.items")
    conn.execute("ALTER COLLATION shop.sorting REFRESH VERSION")
    assert refresh(hw, "public.last").reason == "the meaning of its query changed"


# while a refresh runs


def refreshed_while(
    dsn: str, name: str, act: Callable[[Connection], None], request: Request | None = None
) -> Outcome:
    """Refreshes, and does something once its transaction has read from the sources."""
    acted: list[None] = []

    class Acting(Meddled):
        def meddle(self) -> None:
            if not acted:
                acted.append(None)
                act(self.connection)

    with connect(dsn) as connection:
        refresher = Refresher(
            connection, Settings(), DefinitionReader(connection), EngineSelector(Route(dsn)), Acting
        )
        outcome = refresher.refresh(catalog.find(connection, name), request or Request())[-1]
    assert acted
    return outcome


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize(
    "ddl",
    [
        "ALTER TABLE shop.items ADD COLUMN more int DEFAULT 1",
        "ALTER TABLE shop.items RENAME TO goods",
        "ALTER TABLE shop.items RENAME COLUMN kind TO sort",
        "ALTER TABLE shop.items SET SCHEMA public",
        "ALTER TABLE shop.items ALTER note TYPE varchar(9)",
        "TRUNCATE shop.items",
        "VACUUM FULL shop.items",
        "CLUSTER shop.items USING items_pkey",
    ],
)
def test_ddl_waits_for_a_refresh(hw: Headwater, dsn: str, conn: Connection, ddl: str) -> None:
    hw.create("public.st", JOINED)
    conn.execute("INSERT INTO shop.items VALUES (4, 'b', 3)")
    expected = stored_and_wanted(hw, "public.st")[1]
    with psycopg.connect(dsn, autocommit=True) as other:

        def act(connection: Connection) -> None:
            done.append(pool.submit(other.execute, statement(ddl)))
            wait_until_blocked(conn, other.info.backend_pid, done[0])

        done: list[Future[Any]] = []
        with ThreadPoolExecutor(max_workers=1) as pool:
            assert refreshed_while(dsn, "public.st", act).action == "delta"
            done[0].result()
    assert stored_and_wanted(hw, "public.st")[0] == expected
    refresh(hw, "public.st")
    hw.connection.execute("SET search_path = shop, public")
    hw.connection.execute("UPDATE shop.labels SET label = label || '!'")
    refresh(hw, "public.st")


CODE = """
CREATE FUNCTION public.same(text) RETURNS text IMMUTABLE LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION public.joined(text, text) RETURNS text IMMUTABLE LANGUAGE sql AS 'SELECT $1 || $2';
CREATE OPERATOR public.|+| (LEFTARG = text, RIGHTARG = text, FUNCTION = public.joined);
CREATE COLLATION public.bytes FROM "C";
CREATE TYPE public.pair AS (a int, b text);
CREATE TYPE public.size AS ENUM ('s', 'm');
CREATE DOMAIN public.code AS text;
ALTER TABLE shop.items ADD COLUMN size size DEFAULT 's', ADD COLUMN code code DEFAULT 'c',
    ADD COLUMN word text COLLATE public.bytes DEFAULT 'w';
CREATE VIEW public.named AS
    SELECT id, kind, label, (id, kind)::pair AS pair, size, code, word
    FROM shop.items JOIN shop.labels USING (kind);
"""
CALLING = (
    "SELECT id, public.same(kind) AS kind, label OPERATOR(public.|+|) kind AS both, pair, size, code, word"
    " FROM public.named"
)


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize(
    "ddl",
    [
        "ALTER SCHEMA shop RENAME TO store",
        "CREATE OR REPLACE FUNCTION public.same(text) RETURNS text IMMUTABLE LANGUAGE sql"
        " AS 'SELECT upper($1)'",
        "ALTER FUNCTION public.same(text) RENAME TO equal",
        "ALTER FUNCTION public.same(text) SET SCHEMA shop",
        "ALTER OPERATOR public.|+| (text, text) OWNER TO CURRENT_USER",
        "ALTER TYPE public.size ADD VALUE 'l'",
        "ALTER TYPE public.size RENAME TO width",
        "ALTER DOMAIN public.code ADD CHECK (VALUE <> '') NOT VALID",
    ],
    ids=[
        "schema renamed",
        "function replaced",
        "function renamed",
        "function moved",
        "operator altered",
        "label added",
        "type renamed",
        "domain altered",
    ],
)
def test_ddl_that_waits_for_nobody(hw: Headwater, dsn: str, conn: Connection, ddl: str) -> None:
    conn.execute(CODE)
    hw.create("public.st", CALLING)
    conn.execute("INSERT INTO shop.items VALUES (4, 'b', 3)")

    def act(_: Connection) -> None:
        conn.execute("SET lock_timeout = '10s'")
        try:
            conn.execute(statement(ddl))
        except psycopg.errors.LockNotAvailable as error:
            raise AssertionError("it waits for the refresh") from error

    refreshed_while(dsn, "public.st", act)
    refresh(hw, "public.st")
    assert [entry.status for entry in hw.history("public.st")].count("failed") == 0


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize(
    "ddl",
    [
        "ALTER COLLATION public.bytes RENAME TO octets",
        "ALTER TYPE public.pair RENAME ATTRIBUTE a TO z",
    ],
)
def test_ddl_that_may_wait_for_the_end_of_a_refresh(
    hw: Headwater, dsn: str, conn: Connection, ddl: str
) -> None:
    """A temporary table locks its types and collations; the server's version decides what that holds off."""
    conn.execute(CODE)
    hw.create("public.st", CALLING)
    conn.execute("INSERT INTO shop.items VALUES (4, 'b', 3)")
    with psycopg.connect(dsn, autocommit=True) as other, ThreadPoolExecutor(max_workers=1) as pool:
        other.execute(statement(f"SET lock_timeout = '{WAITING_IS_LONG:.0f}s'"))
        done: list[Future[Any]] = []

        def act(_: Connection) -> None:
            done.append(pool.submit(other.execute, statement(ddl)))
            blocked = "SELECT cardinality(pg_blocking_pids(%s)) > 0"
            while not done[0].done() and not value(conn, blocked, other.info.backend_pid):
                pass

        refreshed_while(dsn, "public.st", act)
        with suppress(psycopg.errors.FeatureNotSupported):  # the storage has a column of the type
            done[0].result(WAITING_IS_LONG)
    refresh(hw, "public.st")
    assert [entry.status for entry in hw.history("public.st")].count("failed") == 0


LOCKED = """
SELECT DISTINCT classid::regclass::text FROM pg_locks
WHERE locktype = 'object' AND pid = %s AND objid >= 16384 AND database = (
    SELECT oid FROM pg_database WHERE datname = current_database())
"""


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("full", [False, True], ids=["delta", "recompute"])
def test_a_refresh_locks_no_function(hw: Headwater, dsn: str, conn: Connection, full: bool) -> None:
    """Not even the first one of a process, which has to read the definition."""
    conn.execute(CODE)
    hw.create("public.st", CALLING)
    conn.execute("INSERT INTO shop.items VALUES (4, 'b', 3)")
    locked: set[str] = set()

    def act(connection: Connection) -> None:
        locked.update(row[0] for row in conn.execute(LOCKED, (connection.info.backend_pid,)))

    refreshed_while(dsn, "public.st", act, Request(full=full))
    assert locked <= {"pg_type", "pg_collation", "pg_namespace"}


def test_loading_and_verifying_lock_no_function(hw: Headwater, dsn: str, conn: Connection) -> None:
    """The query itself looks for locks of the session that evaluates it; it says that it does not."""
    conn.execute(CODE)
    conn.execute(
        "CREATE FUNCTION public.locked(int) RETURNS bigint IMMUTABLE LANGUAGE plpgsql"
        " AS $$BEGIN RETURN (SELECT count(*) FROM pg_catalog.pg_locks"
        " WHERE locktype = 'object' AND pid = pg_backend_pid() AND objid >= 16384"
        " AND classid IN ('pg_catalog.pg_proc'::regclass, 'pg_catalog.pg_operator'::regclass)); END$$"
    )
    hw.create("public.st", f"SELECT public.locked(q.id) AS locked, q.* FROM ({CALLING}) AS q")
    assert value(conn, "SELECT sum(locked) FROM public.st") == 0
    with headwater.connect(dsn) as another:
        another.refresh("public.st", full=True)
    assert value(conn, "SELECT sum(locked) FROM public.st") == 0
    with headwater.connect(dsn) as another:
        assert another.verify("public.st").equal


def test_a_definition_that_changes_after_it_was_read(
    hw: Headwater, dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refresh does not use what was read before its snapshot if it is not the same in it."""
    conn.execute(CODE)
    hw.create("public.st", CALLING)
    conn.execute("INSERT INTO shop.items VALUES (4, 'b', 3)")
    bodies = iter(["upper($1)", "lower($1)", "reverse($1)"])
    begin = Refresher.begin

    def overtaken(refresher: Refresher, stream_table_id: int, closure: Closure) -> None:
        if (body := next(bodies, None)) is not None:
            conn.execute(
                statement(
                    "CREATE OR REPLACE FUNCTION public.same(text) RETURNS text IMMUTABLE LANGUAGE sql"
                    f" AS $$SELECT {body} || '!'$$"
                )
            )
        begin(refresher, stream_table_id, closure)

    monkeypatch.setattr(Refresher, "begin", overtaken)
    with headwater.connect(dsn) as another:
        another.refresh("public.st")
    assert next(bodies, None) is None
    assert value(conn, "SELECT kind FROM public.st WHERE id = 4") == "b!"
    assert_fresh(hw, "public.st")


def test_a_column_is_added_to_what_is_shown_as_whole_rows(hw: Headwater, conn: Connection) -> None:
    conn.execute("CREATE TABLE part (id int PRIMARY KEY, box int, name text)")
    conn.execute("INSERT INTO part VALUES (1, 1, 'nut'), (2, 1, 'bolt')")
    hw.create("boxes", "SELECT box, jsonb_agg(part ORDER BY id) AS parts FROM part GROUP BY box")
    hw.create("parts", "SELECT id, to_jsonb(part) AS part FROM part")
    conn.execute("INSERT INTO part VALUES (3, 1, 'screw')")
    for name in ("boxes", "parts"):
        assert hw.refresh(name)[-1].action == "delta"
    conn.execute("ALTER TABLE part ADD COLUMN weight int DEFAULT 7")
    conn.execute("INSERT INTO part VALUES (4, 2, 'nail', 1)")
    for name in ("boxes", "parts"):
        hw.refresh(name)
        assert hw.verify(name).equal
    assert value(conn, "SELECT parts->0->>'weight' FROM boxes WHERE box = 2") == "1"
