"""Queries that Spark once answered wrongly, or not at all, by each way of reading."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from tests.conformance.readings import READINGS
from tests.integration.support import assert_fresh

from headwater import Headwater

Connection = psycopg.Connection[Any]

pytestmark = pytest.mark.differential("spark")


@dataclass(frozen=True)
class Example:
    setup: str
    query: str
    changes: tuple[str, ...] = ()
    reading: str = "as literals"
    since: int = 15


AWKWARD = r"""E'a\nb', E'c\r\nd', E'\\.', '"', '""', 'a,b', E'\t', E'\\N', '', NULL, 'NULL', E'end\\', E'\1',
    E'\x7f', '𝄞', E'e\u0301', E'\ufeffb', E'\u2028', '$1', ':rows0', '{}', '[null]', '`', '--', '/*', E'\''"""

EXAMPLES = {
    "a group of no rows, where scales are counted": Example(
        "CREATE TABLE t (a int, n numeric)",
        "SELECT count(*) AS c, sum(n) AS s FROM t WHERE a > 0",
        ("INSERT INTO t VALUES (0, 1.5)", "INSERT INTO t VALUES (1, 1.5)", "DELETE FROM t"),
    ),
    "a partner that is reached only through a row that went": Example(
        "CREATE TABLE a (x int); CREATE TABLE b (x int, y int); CREATE TABLE c (y int);"
        " INSERT INTO a VALUES (1); INSERT INTO b VALUES (1, 1), (2, 2); INSERT INTO c VALUES (1), (2)",
        "SELECT a.x, b.y, c.y AS z FROM a JOIN b ON a.x = b.x JOIN c ON b.y = c.y",
        (
            "BEGIN; INSERT INTO a VALUES (2); DELETE FROM b WHERE x = 2; COMMIT",
            "BEGIN; DELETE FROM a WHERE x = 1; UPDATE b SET y = 2; COMMIT",
        ),
    ),
    "infinite intervals": Example(
        "CREATE TABLE t (g int, v interval); INSERT INTO t VALUES (1, '1 day'), (1, 'infinity'),"
        " (2, '-infinity'), (2, '1 month')",
        "SELECT g, max(v) AS m, min(v) AS l FROM t GROUP BY g",
        ("INSERT INTO t VALUES (1, '2 days')", "DELETE FROM t WHERE v = 'infinity'"),
        since=17,
    ),
    "extremes of text sorted by bytes": Example(
        'CREATE DOMAIN required AS text COLLATE "C" NOT NULL; CREATE TABLE t (g int, v text COLLATE "C", w'
        " required); INSERT INTO t VALUES (1, 'a', 'a'), (1, 'B', 'B')",
        "SELECT g, max(v) AS m, min(w) FILTER (WHERE w > 'x') AS l FROM t GROUP BY g",
        ("INSERT INTO t VALUES (1, 'c', 'x')", "DELETE FROM t WHERE v = 'c'"),
    ),
    "functions that share their name": Example(
        "CREATE TABLE t (v regproc); INSERT INTO t SELECT oid FROM pg_proc WHERE proname IN ('abs', 'lower')",
        "SELECT v, count(*) AS n FROM t GROUP BY v",
        ("INSERT INTO t SELECT oid FROM pg_proc WHERE proname = 'abs'",),
    ),
    "an error that only reading meets": Example(
        "CREATE TABLE t (g int, v int); CREATE TABLE u (g int, w int); INSERT INTO t VALUES (1, 0);"
        " INSERT INTO u VALUES (1, 0)",
        "SELECT 1 / t.v AS m, u.w FROM t JOIN u ON t.g = u.g WHERE u.w > t.v",
        ("INSERT INTO t VALUES (1, 0)",),
    ),
    "a function that fails for rows that are not joined": Example(
        "CREATE FUNCTION f(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS"
        " 'BEGIN IF $1 = 0 THEN RAISE ''no zero''; END IF; RETURN $1; END';"
        " CREATE TABLE t (g int, v int); CREATE TABLE u (g int); INSERT INTO t VALUES (1, 1), (2, 0);"
        " INSERT INTO u VALUES (1)",
        "SELECT f(t.v) AS m, u.g FROM t JOIN u ON t.g = u.g",
        ("INSERT INTO t VALUES (1, 5), (3, 0)", "INSERT INTO u VALUES (1)"),
        reading="by tasks",
    ),
    "a rule of a domain that older values break": Example(
        "CREATE DOMAIN d AS int; CREATE TABLE t (g int, v d); INSERT INTO t VALUES (1, 1), (2, 0);"
        " ALTER DOMAIN d ADD CHECK (VALUE > 0) NOT VALID",
        "SELECT v, g FROM t",
        ("INSERT INTO t VALUES (1, 5)", "DELETE FROM t WHERE v = 1"),
    ),
    "rows of which no column is read": Example(
        "CREATE TABLE t (a int); CREATE TABLE u (b int); INSERT INTO t VALUES (1), (2);"
        " INSERT INTO u VALUES (1)",
        "SELECT count(*) AS n FROM t, u",
        ("INSERT INTO u VALUES (2)", "DELETE FROM t WHERE a = 1"),
        reading="by tasks",
    ),
    "a union that is read by tasks": Example(
        "CREATE TABLE t (a int); CREATE TABLE u (b numeric); INSERT INTO t VALUES (1), (2);"
        " INSERT INTO u VALUES (1.50)",
        "SELECT t.a, count(*) AS n, sum(x.v) AS s FROM t, (SELECT a AS v FROM t UNION ALL SELECT b FROM u) x"
        " GROUP BY t.a",
        ("INSERT INTO u VALUES (2)", "DELETE FROM t WHERE a = 1"),
        reading="by tasks",
    ),
}


EXAMPLES |= {
    f"awkward texts {reading}": Example(
        'CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY, "a b" text, "Sel""ect" text COLLATE "C");'
        f' INSERT INTO t ("a b", "Sel""ect") SELECT v, v FROM unnest(ARRAY[{AWKWARD}]) AS v',
        'SELECT l."a b" || r."a b" AS "w", max(l."Sel""ect") AS "M m", count(*) AS n FROM t l, t r'
        ' WHERE l."Sel""ect" < r."Sel""ect" GROUP BY l."a b" || r."a b"',
        (
            'INSERT INTO t ("a b", "Sel""ect") SELECT "a b" || id, "a b" FROM t',
            "DELETE FROM t WHERE id % 3 = 0",
        ),
        reading=reading,
    )
    for reading in ("as literals", "as frames", "by tasks")
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(dsn: str, connect: Callable[[str], Headwater], conn: Connection, name: str) -> None:
    example = EXAMPLES[name]
    if conn.info.server_version < example.since * 10_000:
        pytest.skip(f"needs PostgreSQL {example.since}")
    conn.execute(example.setup)
    with READINGS[example.reading].forced(), connect(dsn) as hw:
        hw.create("st", example.query, mode="differential")
        assert_fresh(hw, "st")
        for change in example.changes:
            conn.execute(change)
            assert hw.refresh("st")[-1].action == "delta"
            assert_fresh(hw, "st")
        hw.refresh("st", full=True)
        assert_fresh(hw, "st")
