"""What depends on search_path when a query is evaluated: it is evaluated under that of its creator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from tests.integration.support import value

import headwater
from headwater import Headwater
from headwater.catalog import stream_tables as catalog

Connection = psycopg.Connection[Any]

TABLES = """
CREATE SCHEMA one;
CREATE SCHEMA two;
CREATE TABLE public.items (
    id int PRIMARY KEY, price int, object regclass, code regproc, kind regtype, word text);
CREATE TABLE one.rates (rate int);
CREATE TABLE two.rates (rate int);
INSERT INTO one.rates VALUES (10);
INSERT INTO two.rates VALUES (20);
CREATE FUNCTION one.rate(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1 * 10';
CREATE FUNCTION two.rate(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1 * 20';
CREATE TYPE one.size AS ENUM ('s');
CREATE TYPE two.size AS ENUM ('s', 'm');
INSERT INTO public.items VALUES (1, 3, 'one.rates', 'one.rate', 'one.size', 'rates');
"""
FUNCTIONS = """
CREATE FUNCTION public.sql_table(int) RETURNS int STABLE LANGUAGE sql AS 'SELECT $1 * rate FROM rates';
CREATE FUNCTION public.sql_function(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT rate($1)';
CREATE FUNCTION public.pl_function(int) RETURNS int IMMUTABLE LANGUAGE plpgsql
    AS 'BEGIN RETURN rate($1); END';
CREATE FUNCTION public.pl_table(int) RETURNS int IMMUTABLE LANGUAGE plpgsql
    AS 'BEGIN RETURN $1 * (SELECT r.rate FROM rates r); END';
CREATE FUNCTION public.pl_dynamic(int) RETURNS int IMMUTABLE LANGUAGE plpgsql
    AS $$DECLARE n int; BEGIN EXECUTE 'SELECT ra' || 'te($1)' INTO n USING $1; RETURN n; END$$;
CREATE FUNCTION public.pl_type(int) RETURNS text IMMUTABLE LANGUAGE plpgsql
    AS $$BEGIN RETURN array_length(enum_range(NULL::size), 1); END$$;
CREATE FUNCTION public.outer_qualified(int) RETURNS int IMMUTABLE LANGUAGE sql
    AS 'SELECT public.sql_function($1)';
CREATE FUNCTION public.outer_atomic(n int) RETURNS int IMMUTABLE LANGUAGE sql
    BEGIN ATOMIC SELECT public.sql_function(n); END;
CREATE FUNCTION public.text_of(regclass) RETURNS text IMMUTABLE LANGUAGE sql AS 'SELECT $1::text';
CREATE FUNCTION public.text_within(n int) RETURNS text IMMUTABLE LANGUAGE sql
    BEGIN ATOMIC SELECT 'one.rates'::regclass::text || n; END;
CREATE FUNCTION public.add(int, int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1 + rate($2)';
CREATE AGGREGATE public.total(int) (SFUNC = public.add, STYPE = int, INITCOND = '0');
CREATE OPERATOR public.|*| (RIGHTARG = int, FUNCTION = public.sql_function);
"""

DEPENDENT = {
    "regclass": "SELECT id, object::text AS v FROM public.items",
    "regproc": "SELECT id, code::text AS v FROM public.items",
    "regtype": "SELECT id, kind::text AS v FROM public.items",
    "array": "SELECT id, ARRAY[object]::text AS v FROM public.items",
    "elements": "SELECT id, (ARRAY[object]::text[])[1] AS v FROM public.items",
    "row": "SELECT id, ROW(object)::text AS v FROM public.items",
    "whole row": "SELECT id, items::text AS v FROM public.items",
    "row of a subquery": "SELECT s.id, s::text AS v FROM (SELECT id, object FROM public.items) AS s",
    "concatenated": "SELECT id, 'x' || object AS v FROM public.items",
    "concat": "SELECT id, concat(object, 'x') AS v FROM public.items",
    "format": "SELECT id, format('%s', object) AS v FROM public.items",
    "json": "SELECT id, to_jsonb(object)::text AS v FROM public.items",
    "aggregate of json": "SELECT id, jsonb_agg(kind)::text AS v FROM public.items GROUP BY id",
    "in a condition": "SELECT id, 'x' AS v FROM public.items WHERE object::text = 'rates'",
    "through a view": "SELECT id, object::text AS v FROM public.seen",
    "type of": "SELECT id, pg_typeof('s'::one.size)::text AS v FROM public.items",
    "to_regclass": "SELECT id, to_regclass(word)::oid AS v FROM public.items",
    "text to regclass": "SELECT id, word::regclass::oid AS v FROM public.items",
    "current_schema": "SELECT id, current_schema()::text AS v FROM public.items",
    "current_schema, the keyword": "SELECT id, current_schema::text AS v FROM public.items",
    "current_schemas": "SELECT id, current_schemas(false)::text AS v FROM public.items",
    "sql with a table": "SELECT id, public.sql_table(price) AS v FROM public.items",
    "sql with a function": "SELECT id, public.sql_function(price) AS v FROM public.items",
    "plpgsql with a function": "SELECT id, public.pl_function(price) AS v FROM public.items",
    "plpgsql with a table": "SELECT id, public.pl_table(price) AS v FROM public.items",
    "plpgsql, dynamic": "SELECT id, public.pl_dynamic(price) AS v FROM public.items",
    "plpgsql with a type": "SELECT id, public.pl_type(price) AS v FROM public.items",
    "two levels, qualified": "SELECT id, public.outer_qualified(price) AS v FROM public.items",
    "two levels, resolved": "SELECT id, public.outer_atomic(price) AS v FROM public.items",
    "text in a function": "SELECT id, public.text_of(object) AS v FROM public.items",
    "text in a resolved body": "SELECT id, public.text_within(price) AS v FROM public.items",
    "aggregate": "SELECT id, public.total(price) AS v FROM public.items GROUP BY id",
    "operator": "SELECT id, OPERATOR(public.|*|) price AS v FROM public.items",
}


@pytest.fixture(autouse=True)
def tables(conn: Connection) -> None:
    conn.execute(TABLES)
    conn.execute("SET check_function_bodies = off")
    conn.execute(FUNCTIONS)
    conn.execute("CREATE VIEW public.seen AS SELECT * FROM public.items")


@pytest.fixture
def under(dsn: str, hw: Headwater) -> Callable[[str], Any]:
    """Handles of sessions with a search_path."""

    @contextmanager
    def connected(path: str) -> Iterator[Headwater]:
        with headwater.connect(with_path(dsn, path)) as handle:
            yield handle

    return connected


def with_path(dsn: str, path: str) -> str:
    return make_conninfo(dsn, options=f"-csearch_path={path.replace(' ', '')}")


def wanted(dsn: str, path: str, query: str) -> list[Any]:
    """What the query gives in a session of its creator."""
    with psycopg.connect(with_path(dsn, path)) as conn:
        return sorted(conn.execute(query.encode()).fetchall())


def stored(conn: Connection, name: str) -> list[Any]:
    return sorted(conn.execute(f"TABLE {name}".encode()).fetchall())


@pytest.mark.parametrize("query", DEPENDENT.values(), ids=DEPENDENT.keys())
def test_two_creators_with_different_paths(
    hw: Headwater, dsn: str, conn: Connection, under: Callable[[str], Any], query: str
) -> None:
    """Each gets what the query gives in their own session, and so it stays, whoever refreshes."""
    paths = {"one.st": "one", "two.st": "two, public"}
    for name, path in paths.items():
        with under(path) as creator:
            creator.create(name, query)
        assert stored(conn, name) == wanted(dsn, path, query)
    conn.execute("INSERT INTO public.items VALUES (2, 5, 'two.rates', 'two.rate', 'two.size', 'rates')")
    conn.execute("UPDATE public.items SET price = 4 WHERE id = 1")
    for name, path in paths.items():
        outcome = hw.refresh(name)[-1]
        assert outcome.action == "recompute", outcome.reason
        assert stored(conn, name) == wanted(dsn, path, query)
        assert hw.verify(name).equal
        assert catalog.find(hw.connection, name).mode_reasons


def test_the_difference_is_there(dsn: str) -> None:
    """Each of the queries above gives something else under another path."""
    for name, query in DEPENDENT.items():
        assert wanted(dsn, "one", query) != wanted(dsn, "two", query), name


INDEPENDENT = {
    "an object": "SELECT id, object AS v FROM public.items",
    "objects compared": "SELECT object, count(*) AS v FROM public.items GROUP BY object",
    "another cast": "SELECT id, object, price::text AS v FROM public.items",
    "PostgreSQL's own functions": "SELECT id, public.own_only(price) AS v FROM public.items",
    "plpgsql": "SELECT id, public.own_only_pl(price) AS v FROM public.items",
    "a path of its own": "SELECT id, public.with_path(price) AS v FROM public.items",
    "resolved": "SELECT id, public.resolved(price) AS v FROM public.items",
    "qualified": "SELECT id, public.qualified(price) AS v FROM public.items",
}
CAREFUL = """
CREATE FUNCTION public.own_only(int) RETURNS text IMMUTABLE LANGUAGE sql
    AS $$SELECT region || to_hex($1 + 1) FROM (SELECT upper(lpad($1::text, 4, 'x')) AS region) AS s$$;
CREATE FUNCTION public.own_only_pl(n int) RETURNS int IMMUTABLE LANGUAGE plpgsql
    AS 'DECLARE sum int := 0; BEGIN FOR i IN 1..n LOOP sum := sum + i % 3; END LOOP; RETURN sum; END';
CREATE FUNCTION public.with_path(int) RETURNS int IMMUTABLE LANGUAGE sql SET search_path = one, pg_temp
    AS 'SELECT rate($1)';
CREATE FUNCTION public.resolved(n int) RETURNS int IMMUTABLE LANGUAGE sql
    BEGIN ATOMIC SELECT one.rate(n); END;
CREATE FUNCTION public.qualified(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT one.rate($1)';
"""


@pytest.mark.parametrize("query", INDEPENDENT.values(), ids=INDEPENDENT.keys())
def test_what_needs_no_path_is_incremental(
    hw: Headwater, dsn: str, conn: Connection, under: Callable[[str], Any], query: str
) -> None:
    conn.execute(CAREFUL)
    with under("two, public") as creator:
        creator.create("two.st", query, mode="differential")
    conn.execute("INSERT INTO public.items VALUES (2, 5, 'two.rates', 'two.rate', 'two.size', 'rates')")
    assert hw.refresh("two.st")[-1].action == "delta"
    assert hw.verify("two.st").equal
    assert wanted(dsn, "two", "TABLE two.st") == wanted(dsn, "two, public", query)


def test_a_function_that_gets_a_path_of_its_own(
    hw: Headwater, conn: Connection, under: Callable[[str], Any]
) -> None:
    """The remedy that the reason names; also a process that knows the definition notices."""
    with under("one") as creator:
        creator.create("one.st", DEPENDENT["sql with a function"])
    (reason,) = catalog.find(hw.connection, "one.st").mode_reasons
    assert "public.sql_function() finds rate by search_path" in reason
    conn.execute("INSERT INTO public.items VALUES (2, 5)")
    assert hw.refresh("one.st")[-1].action == "recompute"
    conn.execute("ALTER FUNCTION public.sql_function(int) SET search_path = one")
    hw.refresh("one.st")
    conn.execute("INSERT INTO public.items VALUES (3, 6)")
    assert hw.refresh("one.st")[-1].action == "delta"
    assert value(conn, "SELECT v FROM one.st WHERE id = 3") == 60


def test_a_type_of_an_extension(
    hw: Headwater, conn: Connection, dsn: str, under: Callable[[str], Any]
) -> None:
    """Without the schema of its operators citext would be compared as text, with another result."""
    try:
        conn.execute("CREATE EXTENSION citext SCHEMA one")
    except psycopg.errors.FeatureNotSupported:
        pytest.skip("this server has no citext")
    conn.execute(
        "ALTER TABLE public.items ADD COLUMN name one.citext DEFAULT 'ABC';"
        "CREATE FUNCTION public.is_abc(one.citext) RETURNS bool IMMUTABLE LANGUAGE sql"
        " AS $$SELECT $1 = 'abc'$$"
    )
    query = "SELECT id, public.is_abc(name) AS v FROM public.items"
    with under("one") as creator:
        creator.create("public.st", query)
    conn.execute("INSERT INTO public.items VALUES (2, 5)")
    assert hw.refresh("public.st")[-1].action == "recompute"
    assert stored(conn, "public.st") == wanted(dsn, "one", query) == [(1, True), (2, True)]
    assert wanted(dsn, "two", query) == [(1, False), (2, False)]


def test_the_own_schema_of_the_creator(hw: Headwater, conn: Connection, dsn: str, admin: Connection) -> None:
    """$user is the role that created it, whoever refreshes it."""
    role = value(conn, "SELECT current_user")
    conn.execute(f'CREATE SCHEMA "{role}"'.encode())
    conn.execute(
        f'CREATE FUNCTION "{role}".rate(int) RETURNS int IMMUTABLE LANGUAGE sql AS $$SELECT 7$$'.encode()
    )
    hw.create("public.st", DEPENDENT["sql with a function"])
    assert value(conn, "SELECT v FROM public.st") == 7
    assert value(conn, "SELECT search_path FROM headwater.stream_table") == f"{role}, public"


def test_names_that_move(hw: Headwater, conn: Connection, dsn: str, under: Callable[[str], Any]) -> None:
    """A path names schemas, as it does for the creator's own session; renamed or gone, they are not found."""
    query = DEPENDENT["regclass"]
    with under("one") as creator:
        creator.create("public.st", query)
    assert stored(conn, "public.st") == [(1, "rates")]
    conn.execute("ALTER TABLE one.rates RENAME TO prices")
    hw.refresh("public.st")
    assert stored(conn, "public.st") == [(1, "prices")]
    conn.execute("ALTER SCHEMA one RENAME TO three")
    hw.refresh("public.st")
    assert stored(conn, "public.st") == wanted(dsn, "one", query) == [(1, "three.prices")]
    assert hw.verify("public.st").equal


def test_another_query_brings_another_path(
    hw: Headwater, conn: Connection, dsn: str, under: Callable[[str], Any]
) -> None:
    query = DEPENDENT["sql with a function"]
    with under("one") as creator:
        creator.create("public.st", query)
    with under("two") as other:
        other.alter("public.st", query=query)
    assert stored(conn, "public.st") == wanted(dsn, "two", query) == [(1, 60)]
    plain = "SELECT id, price FROM public.items"
    with under("one") as creator:
        creator.create("public.plain", plain)
    with under("two") as other:
        other.alter("public.plain", query=f"{plain} ")
    paths = dict(conn.execute("SELECT table_name, search_path FROM headwater.stream_table").fetchall())
    assert paths == {"st": "two", "plain": "two"}


def test_repaired(hw: Headwater, conn: Connection, dsn: str, under: Callable[[str], Any]) -> None:
    query = DEPENDENT["regclass"]
    with under("one") as creator:
        creator.create("public.st", query)
    conn.execute("DROP VIEW public.st CASCADE")
    assert [item.status for item in hw.repair()] == ["rebuilt"]
    assert stored(conn, "public.st") == wanted(dsn, "one", query) == [(1, "rates")]


def test_others_cannot_have_our_sql_call_their_functions(
    hw: Headwater, conn: Connection, under: Callable[[str], Any]
) -> None:
    """Not even where the path puts a schema of theirs before PostgreSQL's own."""
    conn.execute("CREATE TABLE public.trapped (what text)")
    for name, arguments in (
        ("hash_record_extended", "record, int"),
        ("set_config", "text, text, bool"),
        ("count", "int"),
        ("current_setting", "text"),
        ("coalesce", "int"),
        ("md5", "varchar"),
    ):
        kind = "text" if name in ("set_config", "md5", "current_setting") else "bigint"
        conn.execute(
            f'CREATE FUNCTION one."{name}"({arguments}) RETURNS {kind} LANGUAGE plpgsql AS'
            f" $$BEGIN INSERT INTO public.trapped VALUES ('{name}'); RETURN 1; END$$".encode()
        )
    conn.execute(
        "CREATE FUNCTION one.trap(int, int) RETURNS bool LANGUAGE plpgsql AS"
        " $$BEGIN INSERT INTO public.trapped VALUES ('='); RETURN true; END$$;"
        "CREATE OPERATOR one.= (LEFTARG = int, RIGHTARG = int, FUNCTION = one.trap)"
    )
    with under("one, pg_catalog") as creator:
        creator.create("public.st", DEPENDENT["regclass"])
    conn.execute("INSERT INTO public.items VALUES (2, 5, 'two.rates', 'two.rate', 'two.size', 'rates')")
    hw.refresh("public.st")
    assert hw.verify("public.st").equal
    assert stored(conn, "public.st") == [(1, "rates"), (2, "two.rates")]
    assert stored(conn, "public.trapped") == []
    assert value(hw.connection, "SELECT current_setting('search_path')") == "pg_catalog, pg_temp"
