"""A query means what it means in the session of its creator: settings decide how its text is read."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from tests.integration.support import value

import headwater
from headwater import Headwater
from headwater.lifecycle.validate import READING_SETTINGS

Connection = psycopg.Connection[Any]

# A value that is not the server's default, and a query that it makes another one of.
DIFFERENCES = {
    "DateStyle": ("SQL,DMY", "SELECT extract(month FROM date '01/02/2003') AS v"),
    "IntervalStyle": ("sql_standard", "SELECT extract(epoch FROM interval '-1 1:00:00') AS v"),
    "standard_conforming_strings": ("off", r"SELECT length('a\\n') AS v"),
    "transform_null_equals": ("on", "SELECT (id = NULL) IS NULL AS v FROM t"),
    "array_nulls": ("off", "SELECT ('{NULL}'::text[])[1] AS v"),
    "xmloption": ("document", "SELECT xml '<!DOCTYPE a><a/>' IS DOCUMENT AS v"),
}


@pytest.fixture(autouse=True)
def table(conn: Connection) -> None:
    conn.execute("CREATE TABLE t (id int); INSERT INTO t VALUES (1)")


def test_each_setting_is_tried() -> None:
    assert DIFFERENCES.keys() == set(READING_SETTINGS)


@pytest.mark.parametrize("setting", DIFFERENCES)
def test_of_a_session(hw: Headwater, dsn: str, conn: Connection, setting: str) -> None:
    given, query = DIFFERENCES[setting]
    options = {} if setting == "standard_conforming_strings" else {"options": f"-c{setting}={given}"}
    if not options:  # which a client may not send at the start
        conn.execute("ALTER ROLE CURRENT_USER SET standard_conforming_strings = off")
    try:
        own = make_conninfo(dsn, **options)
        with psycopg.connect(own, autocommit=True) as session, headwater.connect(own) as creator:
            try:
                session.execute("SET escape_string_warning = off")
                wanted = session.execute(query.encode()).fetchall()
            except psycopg.errors.FeatureNotSupported:
                pytest.skip("the server was built without XML")
            creator.create("st", query)
            assert session.execute("TABLE st").fetchall() == wanted
            conn.execute("INSERT INTO t VALUES (2)")
            creator.refresh("st")
            assert session.execute("TABLE st").fetchall() == session.execute(query.encode()).fetchall()
            assert creator.verify("st").equal
    finally:
        conn.execute("ALTER ROLE CURRENT_USER RESET standard_conforming_strings")


def test_of_the_database(hw: Headwater, dsn: str, conn: Connection) -> None:
    database = value(conn, "SELECT quote_ident(current_database())")
    conn.execute(f"ALTER DATABASE {database} SET DateStyle = 'ISO, DMY'")
    with headwater.connect(dsn) as creator:
        creator.create("st", "SELECT date '01/02/2003' AS day FROM t")
    assert value(conn, "SELECT extract(month FROM day) FROM st") == 2
