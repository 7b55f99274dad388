"""Queries with something nonlinear inside: their deltas run on Spark, by each way of reading."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
from tests.conformance.readings import READINGS
from tests.engines import EXCUSES
from tests.integration.support import assert_fresh

from headwater import Headwater

pytestmark = pytest.mark.differential("spark")

Connect = Callable[..., Headwater]

TABLES = """
CREATE TABLE a (id int PRIMARY KEY, x int, t text, arr int[]);
CREATE TABLE b (id int PRIMARY KEY, aid int, y numeric);
CREATE TABLE c (id int PRIMARY KEY, bid int, z int);
INSERT INTO a SELECT g, g % 5, 't' || g % 3, ARRAY[g, g % 2] FROM generate_series(1, 20) AS g;
INSERT INTO b SELECT g, g % 24, g % 7 / 2.0 FROM generate_series(1, 40) AS g;
INSERT INTO c SELECT g, g % 45, g % 4 FROM generate_series(1, 60) AS g;
"""
CHANGES = (
    "UPDATE b SET y = y + 1.25 WHERE id % 9 = 0",
    "BEGIN; DELETE FROM a WHERE id = 3; INSERT INTO b VALUES (41, 4, 9), (42, NULL, 1); UPDATE c SET bid = 41"
    " WHERE id < 4; COMMIT",
    "BEGIN; UPDATE a SET x = x + 1, arr = '{7}' WHERE id % 6 = 0; DELETE FROM b WHERE aid = 4; COMMIT",
)

NESTED = {
    "a join with groups": (
        "SELECT a.id, a.t, s.n, s.m FROM a JOIN"
        " (SELECT aid, count(*) AS n, max(y) AS m FROM b GROUP BY aid) s ON s.aid = a.id"
    ),
    "a join of groups of joins": (
        "SELECT p.x, p.n, q.total FROM"
        " (SELECT a.x, count(*) AS n FROM a JOIN b ON b.aid = a.id GROUP BY a.x) p JOIN"
        " (SELECT c.z, sum(b.y) AS total FROM b JOIN c ON c.bid = b.id GROUP BY c.z) q ON q.z = p.x"
    ),
    "groups of groups of a join": (
        "SELECT s.n, count(*) AS k FROM"
        " (SELECT a.x, count(*) AS n FROM a JOIN b ON b.aid = a.id GROUP BY a.x) s GROUP BY s.n"
    ),
    "groups over an outer join": (
        "SELECT a.x, count(b.id) AS n, sum(b.y) AS s FROM a LEFT JOIN b ON b.aid = a.id GROUP BY a.x"
    ),
    "a count over an outer join": "SELECT count(*) AS n FROM a LEFT JOIN b ON b.aid = a.id AND b.y > 1",
    "an outer join beside an inner one": (
        "SELECT a.id, b.y, c.z FROM a JOIN b ON b.aid = a.id LEFT JOIN c ON c.bid = b.id"
    ),
    "a window over a join": (
        "SELECT a.id, b.id AS bid, rank() OVER (PARTITION BY a.x ORDER BY b.y, b.id) AS r"
        " FROM a JOIN b ON b.aid = a.id"
    ),
    "DISTINCT ON over a join": (
        "SELECT DISTINCT ON (a.x) a.x, b.id FROM a JOIN b ON b.aid = a.id ORDER BY a.x, b.y DESC, b.id"
    ),
    "a subquery beside a join of which no column is read": (
        "SELECT (SELECT max(c.z) FROM c) AS m FROM a JOIN b ON b.aid = a.id"
    ),
    "EXISTS beside a join": (
        "SELECT a.t, count(*) AS n FROM a JOIN b ON b.aid = a.id"
        " WHERE NOT EXISTS (SELECT FROM c WHERE c.bid = b.id AND c.z > a.x) GROUP BY a.t"
    ),
    "a scalar subquery over a join": (
        "SELECT a.id FROM a WHERE a.x < (SELECT sum(c.z) FROM b JOIN c ON c.bid = b.id WHERE b.aid = a.id)"
    ),
    "EXCEPT of joins": (
        "SELECT a.x, b.y FROM a JOIN b ON b.aid = a.id EXCEPT SELECT c.z, b.y FROM c JOIN b ON c.bid = b.id"
    ),
    "UNION ALL of groups and a join": (
        "SELECT aid AS k, count(*)::numeric AS n FROM b GROUP BY aid"
        " UNION ALL SELECT a.id, c.z FROM a JOIN c ON c.z = a.x"
    ),
    "rows made of an array": (
        "SELECT e.v, count(*) AS n, sum(a.x) AS s FROM a, unnest(a.arr) AS e(v) GROUP BY e.v"
    ),
    "the first rows of a join": (
        "SELECT a.id, b.y FROM a JOIN b ON b.aid = a.id ORDER BY b.y DESC, a.id, b.id LIMIT 5"
    ),
    "the first groups of a join with EXISTS": (
        "SELECT a.x, sum(b.y) AS s FROM a JOIN b ON b.aid = a.id"
        " WHERE EXISTS (SELECT FROM c WHERE c.bid = b.id) GROUP BY a.x ORDER BY s DESC, a.x LIMIT 2"
    ),
}


BY_TASKS = ("a join of groups of joins", "UNION ALL of groups and a join", "the first rows of a join")
"""Enough of them for the way that takes longest."""


@pytest.mark.parametrize(
    ("reading", "keep_inner", "titles"),
    [
        ("by keys", "never", tuple(NESTED)),
        ("by keys", "always", tuple(NESTED)),
        ("by tasks", "never", BY_TASKS[1:]),
        ("by tasks", "always", BY_TASKS[:1]),
    ],
)
def test_nested(
    dsn: str,
    connect: Connect,
    conn: psycopg.Connection,
    reading: str,
    keep_inner: str,
    titles: tuple[str, ...],
) -> None:
    conn.execute(TABLES)
    with READINGS[reading].forced(), connect(dsn, keep_inner=keep_inner) as hw:
        names = {title: f"s{number}" for number, title in enumerate(titles)}
        for title, name in names.items():
            hw.create(name, NESTED[title], mode="differential", engine="postgres")
        for change in CHANGES:
            conn.execute(change)
            for title, name in names.items():
                outcome = hw.refresh(name)[-1]
                if outcome.engine_reason not in EXCUSES:
                    computed = (outcome.action, outcome.engine, outcome.engine_reason)
                    assert computed == ("delta", "spark", "asked for"), title
                assert_fresh(hw, name)


def test_loads_with_inner_results_as_tables(dsn: str, connect: Connect, conn: psycopg.Connection) -> None:
    conn.execute(TABLES)
    with READINGS["by tasks"].forced(), connect(dsn, keep_inner="never") as hw:
        hw.create("st", NESTED["a join with groups"])
        assert hw.history("st", limit=1)[0].engine == "spark"
        assert_fresh(hw, "st")
        conn.execute(CHANGES[1])
        assert hw.refresh("st", full=True)[-1].engine == "spark"
        assert_fresh(hw, "st")


def test_nothing_is_left_for_spark(dsn: str, connect: Connect, conn: psycopg.Connection) -> None:
    conn.execute(TABLES)
    with connect(dsn, keep_inner="never") as hw:
        hw.create("st", "SELECT a.id, b.y FROM a LEFT JOIN b ON b.aid = a.id")
        conn.execute(CHANGES[0])
        assert hw.refresh("st")[-1].engine_reason == (
            "Spark cannot do it exactly: an outer join is PostgreSQL's to compute,"
            " and nothing else is joined or grouped"
        )
        assert_fresh(hw, "st")


def test_explain_shows_where_the_joins_inside_go(
    dsn: str, connect: Connect, conn: psycopg.Connection
) -> None:
    conn.execute(TABLES)
    with connect(dsn, keep_inner="never") as hw:
        hw.create("st", NESTED["groups of groups of a join"])
        shown = hw.explain("st")
        steps = [step.name for step in shown.steps]
        assert (shown.engine, shown.engine_reason) == ("spark", "asked for")
        inside, delta, around = (
            steps.index(name)
            for name in ("compute inner0_raw0 on Spark", "fill n1_delta", "compute raw0 on Spark")
        )
        assert inside < delta < around
