"""No statement of a delta compares every row with every other one, whatever the keys are.

The work of a statement is the number of rows that the nodes of its plan return and discard. A nested loop
over two tables of a few thousand rows discards millions; a hash or merge join discards few.
"""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from tests.integration.explained import Plan, explained_refresh
from tests.integration.support import assert_fresh

from headwater import Headwater

Connection = psycopg.Connection[Any]

ROWS = 4_000
TABLES = f"""
CREATE TABLE a (id int PRIMARY KEY, k int, v int, n int, t text);
CREATE TABLE b (id int PRIMARY KEY, k int, v int, n int, t text);
CREATE TABLE g (id int PRIMARY KEY, k int, k2 int, v int);
INSERT INTO a SELECT i, i, i % 100, NULL, CASE WHEN i % 3 > 0 THEN 't' || i % 50 END
    FROM generate_series(1, {ROWS}) AS i;
INSERT INTO b SELECT i + 100, i + 100, i % 100, NULL, CASE WHEN i % 3 > 0 THEN 't' || i % 50 END
    FROM generate_series(1, {ROWS}) AS i;
INSERT INTO g SELECT i, CASE WHEN i % 2 > 0 THEN i / 10 END, CASE WHEN i % 5 = 0 THEN i % 100 END, i % 77
    FROM generate_series(1, {ROWS}) AS i;
"""
CHANGES = """
UPDATE a SET k = -k WHERE id % 8 = 0;
UPDATE b SET k = -k WHERE id % 8 = 1;
UPDATE g SET v = v + 1 WHERE id % 8 < 2;
"""
MOST_WORK = 40 * 3 * ROWS
"""Of one statement: 40 times the rows of all tables. A nested loop over changed keys and a table has more."""
QUERIES = {
    "symmetric difference with a column of NULLs": (
        "(SELECT k, n FROM a EXCEPT SELECT k, n FROM b) UNION ALL"
        " (SELECT k, n FROM b EXCEPT SELECT k, n FROM a)"
    ),
    "EXCEPT ALL": "SELECT k, n, v FROM a EXCEPT ALL SELECT k, n, v FROM b",
    "EXCEPT of few keys": "SELECT v, n FROM a EXCEPT SELECT v, n FROM b WHERE k > 0",
    "INTERSECT": "SELECT k, n, t FROM a INTERSECT SELECT k, n, t FROM b",
    "INTERSECT of different types": (
        "SELECT k, n, t FROM a INTERSECT SELECT k::bigint, n::numeric, t::varchar FROM b"
    ),
    "INTERSECT ALL": "SELECT k, n FROM a INTERSECT ALL SELECT k, n FROM b",
    "UNION": "SELECT k, n FROM a UNION SELECT k, n FROM b",
    "DISTINCT": "SELECT DISTINCT k, n, t FROM a",
    "DISTINCT ON": "SELECT DISTINCT ON (k, k2) k, k2, id, v FROM g ORDER BY k, k2, v, id",
    "DISTINCT ON a column of NULLs": "SELECT DISTINCT ON (k, n) k, n, id, v FROM a ORDER BY k, n, v, id",
    "window": "SELECT id, row_number() OVER (PARTITION BY k, k2 ORDER BY v, id) AS r FROM g",
    "window by a column of NULLs": (
        "SELECT id, k, row_number() OVER (PARTITION BY k, n ORDER BY v, id) AS r FROM a"
    ),
    "window in a join": (
        "SELECT w.id, w.r, b.k FROM (SELECT id, row_number() OVER (PARTITION BY k, k2 ORDER BY v, id) AS r"
        " FROM g) AS w JOIN b ON b.id = w.id"
    ),
    "DISTINCT of a window": (
        "SELECT DISTINCT k, n, r FROM"
        " (SELECT k, n, row_number() OVER (PARTITION BY k, n ORDER BY id) AS r FROM a) AS s"
    ),
    "algebraic aggregate": "SELECT k, n, count(*) AS c, sum(v) AS s FROM a GROUP BY k, n",
    "aggregate recomputed by key": "SELECT k, k2, array_agg(v ORDER BY id) AS c FROM g GROUP BY k, k2",
    "aggregate recomputed by a column of NULLs": (
        "SELECT k, n, array_agg(v ORDER BY id) AS c FROM a GROUP BY k, n"
    ),
    "aggregate in a join": (
        "SELECT s.k, s.c, b.v FROM (SELECT k, n, array_agg(v ORDER BY id) AS c FROM a GROUP BY k, n) AS s"
        " JOIN b ON b.k = s.k"
    ),
    "aggregate of an aggregate": (
        "SELECT s.n, s.c, array_agg(s.k ORDER BY s.k) AS ks FROM (SELECT k, n, count(DISTINCT v) AS c FROM a"
        " GROUP BY k, n) AS s GROUP BY s.n, s.c"
    ),
    "self full join": (
        "SELECT x.id AS xid, y.id AS yid, x.v AS xv, y.v AS yv FROM a AS x FULL JOIN a AS y ON x.k = y.id"
    ),
    "self full join by what changes": (
        "SELECT x.id AS xid, y.id AS yid, x.n AS xn, y.n AS yn FROM a AS x FULL JOIN a AS y ON x.k = y.k"
    ),
    "full join": "SELECT k, x.v AS xv, y.v AS yv FROM a AS x FULL JOIN b AS y USING (k)",
    "full joins": (
        "SELECT x.id AS xid, y.id AS yid, g.id AS gid FROM a AS x FULL JOIN b AS y ON x.k = y.k"
        " FULL JOIN g ON g.id = y.k"
    ),
    "left join": "SELECT x.id AS xid, y.id AS yid, x.n, y.v FROM a AS x LEFT JOIN b AS y ON x.k = y.k",
    "NOT IN": "SELECT id FROM a WHERE k NOT IN (SELECT k FROM b)",
    "NOT EXISTS": "SELECT id FROM a WHERE NOT EXISTS (SELECT FROM b WHERE b.k = a.k)",
    "rows with a column of NULLs": "SELECT n, n AS n2, k FROM a WHERE v < 90",
}


def work(plan: Plan) -> float:
    """Rows that the nodes of a plan return and discard."""
    own = plan["Actual Rows"] + sum(plan[key] for key in plan if key.startswith("Rows Removed"))
    return float(own * plan["Actual Loops"]) + sum(work(child) for child in plan.get("Plans", []))


@pytest.mark.parametrize("name", QUERIES)
def test_work_is_in_proportion_to_the_rows(dsn: str, hw: Headwater, conn: Connection, name: str) -> None:
    conn.execute(TABLES)
    conn.execute("ANALYZE a, b, g")
    hw.create("st", QUERIES[name], mode="differential", engine="postgres")
    conn.execute(CHANGES)
    found = explained_refresh(dsn, "st", work_mem="2MB")
    assert_fresh(hw, "st")
    measured = {what: round(work(plan)) for what, plan in found.statements}
    assert {what: rows for what, rows in measured.items() if rows > MOST_WORK} == {}


def test_everything_inserted_is_not_looked_up_as_of_before(dsn: str, hw: Headwater, conn: Connection) -> None:
    """A row that was not there before has found nothing before."""
    conn.execute(TABLES)
    conn.execute("TRUNCATE a")
    hw.create("st", QUERIES["self full join"], mode="differential", engine="postgres")
    conn.execute(f"INSERT INTO a SELECT i, i, i, NULL, NULL FROM generate_series(1, {ROWS}) AS i")
    found = explained_refresh(dsn, "st")
    assert_fresh(hw, "st")
    assert not [what for what, _ in found.statements if what.endswith("_old")]
    assert sum(work(plan) for _, plan in found.statements) < 80 * ROWS
