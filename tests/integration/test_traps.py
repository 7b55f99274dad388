"""Traps that were fallen into once: after the change a refresh must give exactly what the query gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from headwater import Headwater

Connection = psycopg.Connection[Any]

pytestmark = pytest.mark.differential


@dataclass(frozen=True)
class Trap:
    setup: str
    query: str
    changes: tuple[str, ...]
    mode: str = "differential"
    since: int = 15


TRAPS = {
    "outputs of a group that HAVING excludes are not evaluated": Trap(
        "CREATE TABLE t (g int, a int, b int); INSERT INTO t VALUES (1, 1, 1), (2, 5, 0)",
        "SELECT g, sum(a) / sum(b) AS r FROM t GROUP BY g HAVING sum(b) <> 0",
        (
            "INSERT INTO t VALUES (3, 1, 0)",
            "UPDATE t SET b = 2 WHERE g = 3",
            "UPDATE t SET b = 0 WHERE g = 1",
        ),
    ),
    "a composite with a NULL in it is counted": Trap(
        "CREATE TYPE c AS (a int, b text); CREATE TABLE t (g int, v c); INSERT INTO t VALUES (1, NULL)",
        "SELECT g, count(v) AS n FROM t GROUP BY g",
        ("INSERT INTO t VALUES (1, ROW(1, NULL))", "INSERT INTO t VALUES (1, ROW(NULL, NULL))"),
    ),
    "writes through the parent of an inheriting table": Trap(
        "CREATE TABLE p (id int, a int); CREATE TABLE t () INHERITS (p); INSERT INTO t VALUES (1, 1)",
        "SELECT id, a FROM t",
        ("UPDATE p SET a = 9",),
        mode="full",
    ),
    "a NOT NULL constraint that is not validated": Trap(
        "CREATE TABLE t (g int, x int); INSERT INTO t VALUES (NULL, 1), (NULL, 2), (1, 1);"
        " ALTER TABLE t ADD CONSTRAINT nn NOT NULL g NOT VALID",
        "SELECT g, array_agg(x ORDER BY x) AS c FROM t GROUP BY g",
        ("DELETE FROM t WHERE x = 2",),
        since=18,
    ),
    "another expression of a generated column": Trap(
        "CREATE TABLE t (id int, a int, g int GENERATED ALWAYS AS (a + 1) STORED);"
        " INSERT INTO t (id, a) VALUES (1, 1)",
        "SELECT id, g FROM t",
        ("ALTER TABLE t ALTER COLUMN g SET EXPRESSION AS (a + 100)", "INSERT INTO t (id, a) VALUES (2, 2)"),
        since=17,
    ),
    "another body of a function": Trap(
        "CREATE FUNCTION f(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1';"
        " CREATE TABLE t (a int); INSERT INTO t VALUES (1), (2)",
        "SELECT f(a) AS x FROM t",
        (
            "CREATE OR REPLACE FUNCTION f(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1 + 100'",
            "INSERT INTO t VALUES (3)",
        ),
    ),
    "a label that is renamed inside stored values": Trap(
        "CREATE TYPE e AS ENUM ('a', 'b'); CREATE TABLE t (id int, v e[]);"
        " INSERT INTO t VALUES (1, '{a}'), (2, '{b}')",
        "SELECT id, v FROM t",
        (
            "ALTER TYPE e RENAME VALUE 'a' TO 'z'",
            "DELETE FROM t WHERE id = 1",
            "INSERT INTO t VALUES (3, '{z}')",
        ),
    ),
    "a key with a coarse equality and no hash": Trap(
        "CREATE TYPE c AS (b bit(1), n numeric); CREATE TABLE t (v c); INSERT INTO t VALUES (ROW(B'1', 1.0))",
        "SELECT count(*) AS n, v FROM t GROUP BY v",
        ("INSERT INTO t VALUES (ROW(B'1', 1.00))", "INSERT INTO t VALUES (ROW(B'0', 1))"),
    ),
    "blanks at the end of bpchar": Trap(
        "CREATE TABLE t (id int, c bpchar)",
        "SELECT id, c, octet_length(c) AS l FROM t",
        ("INSERT INTO t VALUES (1, 'a '), (2, 'a')", "DELETE FROM t WHERE id = 1"),
    ),
    "a column without equality that depends on the key": Trap(
        "CREATE TABLE t (id int PRIMARY KEY, j json); INSERT INTO t VALUES (1, '{}')",
        "SELECT id, j::text AS j, count(*) AS n FROM (SELECT id, j FROM t) s GROUP BY id, j::text",
        ("UPDATE t SET j = '[1]'",),
    ),
    "json that depends on the key is recomputed": Trap(
        "CREATE TABLE t (id int PRIMARY KEY, j json); INSERT INTO t VALUES (1, '{}')",
        "SELECT id, j, count(*) AS n FROM t GROUP BY id",
        ("UPDATE t SET j = '[1]'",),
        mode="full",
    ),
    "sides of a set operation in different types": Trap(
        "CREATE TABLE t (v int); CREATE TABLE u (v numeric); INSERT INTO t VALUES (1), (3);"
        " INSERT INTO u VALUES (1), (2.5)",
        "SELECT v FROM u EXCEPT ALL SELECT v FROM t",
        ("INSERT INTO t VALUES (2)", "INSERT INTO u VALUES (3.5), (2.5)", "DELETE FROM u WHERE v = 2.5"),
    ),
    "GROUPING of a key that there always is": Trap(
        "CREATE TABLE t (g int); INSERT INTO t VALUES (1)",
        "SELECT g, GROUPING(g) AS k FROM t GROUP BY g",
        ("INSERT INTO t VALUES (2)",),
    ),
    "a source column with one of our names is recomputed": Trap(
        "CREATE TABLE t (__hw_w int, a int); INSERT INTO t VALUES (1, 1)",
        "SELECT __hw_w AS b, a FROM t",
        ("INSERT INTO t VALUES (2, 2)",),
        mode="full",
    ),
    "a NULL in an array where the database has array_nulls off": Trap(
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET array_nulls = off', current_database()); END $$;"
        " CREATE TABLE t (id int, v text[])",
        "SELECT id, v, v[1] IS NULL AS z FROM t",
        ("INSERT INTO t VALUES (2, ARRAY[NULL, 'b'])", "DELETE FROM t"),
    ),
}


@pytest.mark.parametrize("name", TRAPS)
def test_trap(hw: Headwater, dsn: str, conn: Connection, name: str) -> None:
    trap = TRAPS[name]
    if conn.info.server_version < trap.since * 10000:
        pytest.skip(f"needs PostgreSQL {trap.since}")
    conn.execute(trap.setup)
    assert hw.create("st", trap.query).mode == trap.mode
    assert hw.verify("st").equal
    for change in trap.changes:
        conn.execute(change)
        hw.refresh("st")
        assert hw.verify("st").equal
