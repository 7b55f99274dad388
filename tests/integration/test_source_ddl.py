"""What users do to sources and types while stream tables read them: between refreshes, and during one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from tests.integration.support import (
    Meddled,
    assert_fresh,
    capture_triggers,
    refresh,
    stored_and_wanted,
    value,
    wait_until_blocked,
)

import headwater
from headwater import Headwater, Outcome, catalog
from headwater.choosing import Request
from headwater.config import Settings
from headwater.db.connection import connect
from headwater.db.route import Route
from headwater.db.work import statement
from headwater.definition import DefinitionReader
from headwater.engine.dispatch import Dispatch
from headwater.errors import RefreshFailed
from headwater.refresh import Refresher

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


def refreshed_while(dsn: str, name: str, act: Callable[[Connection], None]) -> Outcome:
    """Refreshes, and does something once its transaction has read from the sources."""
    acted: list[None] = []

    class Acting(Meddled):
        def meddle(self) -> None:
            if not acted:
                acted.append(None)
                act(self._connection)

    with connect(dsn) as connection:
        refresher = Refresher(
            connection, Settings(), DefinitionReader(connection), Dispatch(Route(dsn)), Acting
        )
        outcome = refresher.refresh(catalog.find(connection, name), Request())[-1]
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


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize(
    "ddl",
    [
        "ALTER SCHEMA shop RENAME TO store",
        "CREATE OR REPLACE FUNCTION public.same(text) RETURNS text IMMUTABLE LANGUAGE sql"
        " AS 'SELECT upper($1)'",
    ],
    ids=["schema renamed", "function replaced"],
)
def test_ddl_that_waits_for_nobody(hw: Headwater, dsn: str, conn: Connection, ddl: str) -> None:
    conn.execute("CREATE FUNCTION public.same(text) RETURNS text IMMUTABLE LANGUAGE sql AS 'SELECT $1'")
    conn.execute(
        "CREATE VIEW public.named AS SELECT id, kind, label FROM shop.items JOIN shop.labels USING (kind)"
    )
    hw.create("public.st", "SELECT id, public.same(kind) AS kind, label FROM public.named")
    conn.execute("INSERT INTO shop.items VALUES (4, 'b', 3)")

    def act(_: Connection) -> None:
        conn.execute(statement(ddl))

    refreshed_while(dsn, "public.st", act)
    refresh(hw, "public.st")
    assert [entry.status for entry in hw.history("public.st")].count("failed") == 0


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
