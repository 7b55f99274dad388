"""Clauses that are easy to overlook, because most queries are the same without them.

Each query is created, its tables are changed at random, and after each refresh it has to equal its view,
whether by a delta or by recomputing. The last ones have to be incremental, too.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

import psycopg
import pytest
from tests.oracle import tables
from tests.oracle.chance import SHORT_SEED
from tests.oracle.rounds import BadPlan, run, trust

from headwater import Headwater, HeadwaterError
from headwater.catalog.stream_tables import EngineName

ROUNDS: dict[EngineName, int] = {"postgres": 5, "spark": 1}


class Case(NamedTuple):
    query: str
    since: int = 15  # the first major version of the server that has it


LATERAL_CONDITIONS = [
    "SELECT t.id, s.x FROM t JOIN LATERAL (SELECT t.a AS x, u.id AS k FROM u) s ON s.k = t.id",
    "SELECT t.id, s.x FROM t LEFT JOIN LATERAL (SELECT t.a AS x, u.id AS k FROM u) s ON s.k = t.id",
    "SELECT t.id, s.k FROM t JOIN LATERAL (SELECT u.id AS k FROM u WHERE u.a = t.a) s ON s.k > t.id",
    "SELECT t.id, s.m FROM t JOIN LATERAL (SELECT max(u.id) AS m FROM u WHERE u.a = t.a) s ON s.m > 3",
    "SELECT t.id, s.k FROM t"
    " JOIN LATERAL (SELECT u.id AS k FROM u WHERE u.a = t.a ORDER BY 1 LIMIT 1) s ON s.k > 3",
    "SELECT a, t.id, s.m FROM t JOIN LATERAL (SELECT u.a, u.m + t.id AS m FROM u) s USING (a)",
    "SELECT a, t.id, s.m FROM t LEFT JOIN LATERAL (SELECT u.a, u.m + t.id AS m FROM u) s USING (a)",
    "SELECT t.id, e.e FROM t JOIN LATERAL unnest(t.xs) AS e(e) ON e.e > 1",
    "SELECT t.id, e.e FROM t LEFT JOIN LATERAL unnest(t.xs) AS e(e) ON e.e > 1",
    "SELECT t.id, e.e FROM t JOIN unnest(t.xs) WITH ORDINALITY AS e(e, n) ON e.n = 1",
    "SELECT t.id, g.g FROM t JOIN generate_series(1, t.id) AS g(g) ON g.g = t.a",
    "SELECT t.id, g.g FROM t LEFT JOIN generate_series(1, t.id) AS g(g) ON g.g = t.a",
    "SELECT a, t.id FROM t JOIN generate_series(1, t.id) AS g(a) USING (a)",
    "SELECT a, t.id FROM t LEFT JOIN unnest(t.xs) AS g(a) USING (a)",
    "SELECT a, t.id FROM t NATURAL JOIN unnest(t.xs) AS g(a)",
    "SELECT u.id, e.e FROM u JOIN jsonb_array_elements_text(u.j) AS e(e) ON e.e = u.a::text",
    "SELECT t.id, r.p FROM t JOIN ROWS FROM (unnest(t.xs), generate_series(1, 2)) AS r(p, q) ON r.p = r.q",
    "SELECT t.id, s.x FROM t JOIN LATERAL (VALUES (t.a), (t.id)) AS s(x) ON s.x > 2",
    "SELECT t.b, count(*) AS n FROM t JOIN unnest(t.xs) AS e(e) ON e.e = t.a GROUP BY t.b",
    "SELECT t.id, e.e, u.m FROM t JOIN unnest(t.xs) AS e(e) ON e.e > 1 JOIN u ON u.a = e.e",
    "SELECT id FROM u WHERE EXISTS (SELECT 1 FROM t JOIN unnest(t.xs) AS e(e) ON e.e = t.a WHERE t.a = u.a)",
    "SELECT id FROM u UNION ALL SELECT e.e FROM t JOIN LATERAL unnest(t.xs) AS e(e) ON e.e < t.id",
]

ORDERS_THAT_MAKE_ROWS = [
    "SELECT 1 AS one FROM t ORDER BY max(a)",
    "SELECT 1 AS one FROM t WHERE a > 1 ORDER BY count(*) LIMIT 1",
    "SELECT 1 AS one FROM t HAVING count(*) > 3 ORDER BY sum(a)",
    "SELECT id FROM t ORDER BY generate_series(1, 3)",
    "SELECT id FROM t ORDER BY unnest(xs)",
    "SELECT id FROM t ORDER BY generate_series(1, 2), id LIMIT 3",
    "SELECT id, unnest(xs) AS e FROM t ORDER BY generate_series(1, 3)",
    "SELECT id, rank() OVER (PARTITION BY a ORDER BY id) AS r FROM t ORDER BY generate_series(1, 2)",
    "SELECT a, count(*) AS n FROM t GROUP BY a ORDER BY generate_series(1, 2)",
    "SELECT s.one FROM (SELECT 1 AS one FROM t ORDER BY max(a)) s",
    "SELECT s.id, u.m FROM (SELECT id FROM t ORDER BY generate_series(1, 2)) s JOIN u ON u.id = s.id",
    "SELECT count(*) AS n FROM (SELECT id FROM t ORDER BY unnest(xs)) s",
    "SELECT t.id, s.one FROM t, LATERAL (SELECT 1 AS one FROM u WHERE u.a = t.a ORDER BY max(u.id)) s",
    "WITH w AS (SELECT 1 AS one FROM t ORDER BY sum(a)) SELECT one FROM w",
    "WITH w AS MATERIALIZED (SELECT id FROM t ORDER BY generate_series(1, 2)) SELECT id FROM w",
    "(SELECT id FROM t ORDER BY generate_series(1, 2)) UNION ALL SELECT id FROM u",
    "SELECT id FROM u UNION ALL (SELECT 1 FROM t ORDER BY max(a))",
    "SELECT id FROM u EXCEPT ALL (SELECT 1 FROM t ORDER BY max(a))",
    "SELECT id FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.a = t.a ORDER BY max(u.id))",
    "SELECT id FROM t WHERE NOT EXISTS (SELECT FROM u WHERE u.a = t.a ORDER BY generate_series(1, u.id - 5))",
    "SELECT id FROM t WHERE a IN (SELECT 1 FROM u ORDER BY max(u.id))",
    "SELECT id, (SELECT 1 FROM u WHERE u.a = t.a ORDER BY max(u.id)) AS one FROM t",
    "SELECT id, ARRAY(SELECT 1 FROM u WHERE u.a = t.a ORDER BY unnest(ARRAY[1, 2])) AS ones FROM t",
]

SORTED_ARRAYS = [
    "SELECT t.id, ARRAY(SELECT u.id FROM u ORDER BY u.id DESC) AS ids FROM t",
    "SELECT t.id, ARRAY(SELECT u.b FROM u ORDER BY u.a NULLS FIRST, u.id) AS texts FROM t",
    "SELECT t.id, ARRAY(SELECT u.id FROM u WHERE u.a = t.a ORDER BY u.id DESC) AS ids FROM t",
    "SELECT t.id, (ARRAY(SELECT u.id FROM u ORDER BY u.b, u.id DESC))[1] AS first FROM t",
    "SELECT t.id, array_to_string(ARRAY(SELECT DISTINCT u.b FROM u ORDER BY u.b DESC), ',') AS texts FROM t",
    "SELECT t.id, ARRAY(SELECT u.id FROM u ORDER BY u.a, u.id DESC LIMIT 3) AS ids FROM t",
    "SELECT t.id, ARRAY(SELECT id FROM u UNION ALL SELECT a FROM v ORDER BY 1 DESC) AS ids FROM t",
    "SELECT t.id, ARRAY(SELECT max(u.id) FROM u GROUP BY u.a ORDER BY u.a DESC) AS ids FROM t",
    "SELECT ARRAY(SELECT u.id FROM u ORDER BY u.id DESC) AS ids",
    "SELECT t.id FROM t WHERE t.id = (ARRAY(SELECT u.id FROM u ORDER BY u.b, u.id))[1]",
    "SELECT t.b, max(ARRAY(SELECT u.id FROM u ORDER BY u.id DESC)) AS ids FROM t GROUP BY t.b",
]

DISTINCT_GROUPING_SETS = [
    "SELECT a, b, count(*) AS n FROM t GROUP BY DISTINCT ROLLUP (a, b), ROLLUP (a)",
    "SELECT a, b, count(*) AS n FROM t GROUP BY ROLLUP (a, b), ROLLUP (a)",
    "SELECT a, b, count(*) AS n FROM t GROUP BY ALL ROLLUP (a, b), ROLLUP (a)",
    "SELECT a, b, sum(id) AS s FROM t GROUP BY DISTINCT CUBE (a, b), ROLLUP (b)",
    "SELECT a, b, sum(id) AS s FROM t GROUP BY DISTINCT GROUPING SETS ((a), (a, b), (a)), ROLLUP (b)",
    "SELECT a, b, count(*) AS n FROM t GROUP BY DISTINCT a, ROLLUP (a, b) HAVING count(*) > 1",
    "SELECT a, grouping(a, b) AS g, count(*) AS n FROM t GROUP BY DISTINCT ROLLUP (a, b), CUBE (a)",
    "SELECT s.a, s.n FROM (SELECT a, count(*) AS n FROM t GROUP BY DISTINCT ROLLUP (a), ROLLUP (a)) s",
    "SELECT DISTINCT a, count(*) AS n FROM t GROUP BY DISTINCT ROLLUP (a), ROLLUP (a)",
    "SELECT a, count(*) AS n FROM t GROUP BY DISTINCT a, a",
]

CONSTANT_KEYS = [
    Case("SELECT a, 'x'::text AS c, count(*) AS n FROM t GROUP BY ROLLUP (a, 'x'::text)"),
    Case("SELECT 'x'::text AS c, 'x'::text AS d, count(*) AS n FROM t GROUP BY ROLLUP ('x'::text)"),
    Case("SELECT a, b, 'a'::text AS c, count(*) AS n FROM t GROUP BY CUBE (a, 'a'::text), b"),
    Case("SELECT 1 AS x, a, sum(id) AS s FROM t GROUP BY GROUPING SETS (1, 2)"),
    Case("SELECT 1 AS x, a, 1 AS y, sum(id) AS s FROM t GROUP BY GROUPING SETS (1, 2)"),
    Case("SELECT 2 AS x, a, count(*) AS n FROM t GROUP BY CUBE (1, 2)"),
    Case("SELECT NULL::int AS x, a, count(*) AS n FROM t GROUP BY CUBE (1, 2)"),
    Case(
        "SELECT * FROM (SELECT 1 AS x, a, sum(id) AS s FROM t GROUP BY GROUPING SETS (1, 2)) s WHERE x = 1",
        18,
    ),
    Case("SELECT 1 AS x, a, grouping(a) AS g FROM t GROUP BY GROUPING SETS (1, 2)"),
    Case("SELECT a, coalesce(a, 1) AS c, count(*) AS n FROM t GROUP BY ROLLUP (a, coalesce(a, 1))"),
    Case(
        "SELECT s.x, s.a, count(*) AS n FROM (SELECT 1 AS x, a FROM t) s GROUP BY GROUPING SETS (s.x, s.a)",
        18,
    ),
    Case(
        "SELECT x, y, count(*) AS n FROM (SELECT a AS x, a AS y FROM t) s GROUP BY GROUPING SETS (x, y)", 18
    ),
    Case(
        "SELECT x, y FROM (SELECT a AS x, a AS y FROM t) s GROUP BY GROUPING SETS (x, y) HAVING y IS NULL", 18
    ),
    Case("SELECT x, y || 'y' AS z FROM (SELECT b AS x, b AS y FROM t) s GROUP BY GROUPING SETS (x, y)", 18),
]
"""Before PostgreSQL 18, its planner confuses keys that are equal."""

SORTED_SUBQUERIES = [
    "SELECT array_agg(s.id) AS ids FROM (SELECT id FROM t ORDER BY a, id) s",
    "SELECT string_agg(s.b, ',') AS texts FROM (SELECT b FROM t ORDER BY b DESC) s",
    "SELECT json_agg(s.id)::text AS ids FROM (SELECT id FROM t ORDER BY b NULLS FIRST, id DESC) s",
    "SELECT jsonb_agg(s.id) AS ids FROM (SELECT id FROM t ORDER BY id DESC) s WHERE s.id > 2",
    "SELECT array_agg(s.id) AS ids FROM (SELECT t.id FROM t JOIN u ON u.a = t.a ORDER BY t.id DESC, u.id) s",
    "SELECT array_agg(s.n) AS ns FROM (SELECT count(*) AS n FROM t GROUP BY a ORDER BY a DESC) s",
    "SELECT array_agg(s.id) AS ids FROM (SELECT id FROM t UNION ALL SELECT id FROM u ORDER BY 1 DESC) s",
    "SELECT array_agg(s.a) AS l FROM (SELECT DISTINCT a FROM t ORDER BY a DESC NULLS LAST) s",
    "SELECT s.id FROM (SELECT id FROM t ORDER BY a, id) s LIMIT 3",
    "SELECT s.id FROM (SELECT id FROM t ORDER BY a, id DESC) s OFFSET 2",
    "SELECT s.id, row_number() OVER () AS r FROM (SELECT id FROM t ORDER BY a, id) s",
    "SELECT s.id, last_value(s.id) OVER () AS l FROM (SELECT id FROM t ORDER BY a DESC, id) s",
    "SELECT first_value(s.id) OVER () AS f FROM (SELECT id FROM t ORDER BY b, id DESC) s",
    "SELECT s.id, lag(s.id) OVER () AS l FROM (SELECT id FROM t ORDER BY id DESC) s",
    "WITH w AS MATERIALIZED (SELECT id FROM t ORDER BY id DESC) SELECT array_agg(id) AS ids FROM w",
    "WITH w AS (SELECT id FROM t ORDER BY a, id) SELECT id FROM w LIMIT 3",
    "SELECT u.id, (SELECT array_agg(s.id) FROM"
    " (SELECT id FROM t WHERE t.a = u.a ORDER BY id DESC) s) AS l FROM u",
    "SELECT u.id, l.l FROM u, LATERAL (SELECT array_agg(s.id) AS l FROM"
    " (SELECT id FROM t WHERE t.a = u.a ORDER BY id DESC) s) l",
]

AGGREGATES_OF_THE_QUERY_AROUND = [
    "SELECT (SELECT sum(t.a)) AS s FROM t",
    "SELECT (SELECT sum(t.a)) AS s, count(*) AS n FROM t",
    "SELECT (SELECT max(t.a) + 1) AS m FROM t WHERE t.id > 2",
    "SELECT (SELECT (SELECT sum(t.a))) AS s FROM t",
    "SELECT u.id, (SELECT (SELECT sum(t.a)) FROM t) AS s FROM u",
    "SELECT u.id FROM u WHERE u.a < (SELECT (SELECT max(t.a)) FROM t)",
    "SELECT u.id, (SELECT (SELECT sum(t.a)) FROM t WHERE t.id = u.id) AS s FROM u",
    "SELECT t.b, (SELECT sum(t.a)) AS s FROM t GROUP BY t.b",
    "SELECT t.b, (SELECT string_agg(t.id::text, ',' ORDER BY t.id)) AS ids FROM t GROUP BY t.b",
    "SELECT t.b, (SELECT count(*) FROM u WHERE u.a < max(t.a)) AS n FROM t GROUP BY t.b",
    "SELECT t.b, count(*) AS n FROM t GROUP BY t.b HAVING EXISTS (SELECT 1 FROM u WHERE u.a = max(t.a))",
    "SELECT t.b FROM t GROUP BY t.b HAVING (SELECT sum(t.a)) > 2",
    "SELECT s.x, (SELECT sum(s.n)) AS n FROM (SELECT a AS x, count(*) AS n FROM t GROUP BY a) s GROUP BY s.x",
    "SELECT u.id, (SELECT max(u.a) FROM t WHERE t.id = u.id) AS m FROM u GROUP BY u.id",
    "SELECT t.a, t.b, (SELECT count(t.id)) AS n FROM t GROUP BY ROLLUP (t.a, t.b)",
]

SUBQUERIES_AS_KEYS = [
    "SELECT DISTINCT ON (m) (SELECT max(u.a) FROM u WHERE u.b = t.b) AS m, id FROM t ORDER BY m, id",
    "SELECT (SELECT max(u.a) FROM u WHERE u.b = t.b) AS m, count(*) AS n FROM t GROUP BY m",
    "SELECT (SELECT max(u.a) FROM u) AS m, count(*) AS n FROM t GROUP BY m",
    "SELECT (SELECT count(*) FROM u WHERE u.b = t.b) + 1 AS m, count(*) AS n FROM t"
    " GROUP BY (SELECT count(*) FROM u WHERE u.b = t.b)",
    "SELECT (SELECT count(*) FROM u WHERE u.b = t.b) AS m, count(*) AS n FROM t GROUP BY m"
    " HAVING (SELECT count(*) FROM u WHERE u.b = t.b) > 1",
    "SELECT EXISTS (SELECT FROM u WHERE u.b = t.b) AS e, count(*) AS n FROM t GROUP BY e ORDER BY e",
    "SELECT t.a, EXISTS (SELECT FROM u WHERE u.b = t.b) AS e, count(*) AS n FROM t GROUP BY ROLLUP (t.a, e)",
    "SELECT a, b, (SELECT max(u.id) FROM u WHERE u.b = t.b) AS m FROM t GROUP BY ROLLUP (a, b)",
    "SELECT id, rank() OVER (PARTITION BY (SELECT count(*) FROM u WHERE u.b = t.b) ORDER BY id) AS r FROM t",
]

LIMITS_BY_SUBQUERY = [
    "SELECT id, a FROM t ORDER BY id LIMIT (SELECT count(*) / 2 FROM k)",
    "SELECT id, a FROM t ORDER BY id DESC OFFSET (SELECT count(*) / 2 FROM k)",
    "SELECT id, a FROM t ORDER BY a FETCH FIRST (SELECT count(*) / 2 FROM k) ROWS WITH TIES",
    "SELECT s.id FROM (SELECT id FROM t ORDER BY id LIMIT (SELECT count(*) / 2 FROM k)) s JOIN u USING (id)",
    "SELECT id FROM u UNION ALL (SELECT id FROM t ORDER BY id LIMIT (SELECT count(*) / 2 FROM k))",
    "SELECT t.id, s.id AS k FROM t, LATERAL (SELECT u.id FROM u ORDER BY u.id LIMIT greatest(t.a, 0)) s",
    "SELECT t.id, (SELECT u.id FROM u ORDER BY u.id OFFSET greatest(t.a, 0) LIMIT 1) AS k FROM t",
]

INCREMENTAL = [
    Case("SELECT a, json_agg(id ORDER BY id) AS ids FROM t GROUP BY a"),
    Case("SELECT a, json_agg(b ORDER BY id)::text AS texts, count(*) AS n FROM t GROUP BY a"),
    Case("SELECT a, json_object_agg(id, b ORDER BY id) AS o FROM t GROUP BY a"),
    Case("SELECT json_agg(id ORDER BY id) AS ids FROM t"),
    Case("WITH w AS (SELECT min(a) AS m, json_agg(id ORDER BY id) AS l FROM t) SELECT m FROM w"),
    Case("SELECT id, JSON_OBJECT('a' VALUE a, 'b': b ABSENT ON NULL RETURNING jsonb) AS o FROM t", 16),
    Case("SELECT id, JSON_ARRAY(a, b NULL ON NULL RETURNING jsonb) AS l FROM t", 16),
    Case("SELECT a, JSON_ARRAYAGG(id ORDER BY id RETURNING jsonb) AS ids FROM t GROUP BY a", 16),
    Case("SELECT a, JSON_OBJECTAGG(id VALUE b RETURNING jsonb) AS o FROM t GROUP BY a", 16),
    Case("SELECT id, b IS JSON AS is_json FROM t", 16),
    Case("SELECT id FROM t WHERE b IS JSON", 16),
    Case("SELECT t.id, u.m FROM t JOIN u ON u.id = t.id WHERE t.b IS JSON", 16),
    Case("SELECT t.id, u.m FROM t LEFT JOIN u ON u.id = t.id AND t.b IS JSON", 16),
    Case("SELECT x.a, t.id, u.m FROM t JOIN u USING (a) AS x"),
    Case("SELECT x.a, x.b, t.id, u.m FROM t LEFT JOIN u USING (a, b) AS x"),
    Case("SELECT a, generate_series(1, 2) AS g FROM t GROUP BY a"),
    Case("SELECT a, generate_series(1, count(*)) AS g FROM t GROUP BY a"),
    Case("SELECT k.a, k IS NULL AS empty, k IS NOT NULL AS complete FROM k"),
    Case("SELECT t.id, u.m FROM t LEFT JOIN u ON u.id = t.id WHERE u IS NULL"),
    Case("SELECT t.id, u IS NOT NULL AS found FROM t LEFT JOIN u ON u.id = t.id"),
    Case("SELECT id, (SELECT max(u.a) FROM u) AS m FROM t ORDER BY m, id"),
    Case("SELECT id, (SELECT max(u.a) FROM u WHERE u.b = t.b) AS m FROM t ORDER BY m, id LIMIT 3"),
    Case("SELECT id FROM t ORDER BY (SELECT max(u.a) FROM u WHERE u.b = t.b), id"),
    Case("SELECT id FROM t WHERE a >= ALL (SELECT u.a FROM u WHERE u.a IS NOT NULL)"),
    Case("SELECT id FROM t WHERE a < ANY (SELECT u.a FROM u WHERE u.b = t.b)"),
]
"""What was recomputed only because our parser did not understand it, or without need."""

POINTS: dict[str, list[Case]] = {
    "conditions of lateral joins": [Case(query) for query in LATERAL_CONDITIONS],
    "orders that make rows": [Case(query) for query in ORDERS_THAT_MAKE_ROWS],
    "sorted arrays": [Case(query) for query in SORTED_ARRAYS],
    "distinct grouping sets": [Case(query) for query in DISTINCT_GROUPING_SETS],
    "constants as keys": CONSTANT_KEYS,
    "sorted subqueries": [Case(query) for query in SORTED_SUBQUERIES],
    "aggregates of the query around": [Case(query) for query in AGGREGATES_OF_THE_QUERY_AROUND],
    "subqueries as keys": [Case(query) for query in SUBQUERIES_AS_KEYS],
    "limits by subquery": [Case(query) for query in LIMITS_BY_SUBQUERY],
    "incremental": INCREMENTAL,
}


@pytest.mark.differential
@pytest.mark.parametrize("point", POINTS)
def test_overlooked_clauses(
    point: str,
    dsn: str,
    conn: psycopg.Connection,
    connect: Callable[..., Headwater],
    engine: EngineName,
) -> None:
    print(f"HEADWATER_SEED={SHORT_SEED}")
    chance = random.Random(SHORT_SEED)
    conn.execute(tables.SCHEMA)
    run(conn, tables.load(chance))
    version = conn.info.server_version // 10_000
    queries = {f"s{n}": case.query for n, case in enumerate(POINTS[point]) if case.since <= version}
    failures: dict[str, str] = {}
    with connect(dsn) as hw:
        for name, query in queries.items():
            conn.execute(f"CREATE VIEW expected_{name} AS {query}")
            made = hw.create(name, query)
            note_bad_plan(failures, query, name, "; ".join(made.mode_reasons))
            if point == "incremental" and made.mode != "differential":
                failures[query] = "; ".join(made.mode_reasons)
        note(failures, conn, queries, "the load")
        for number in range(ROUNDS[engine]):
            for _ in range(3):
                run(conn, tables.transaction(chance, truncate=False))
            for name, query in queries.items():
                try:
                    outcome = hw.refresh(name)[-1]
                except HeadwaterError as error:
                    failures.setdefault(query, f"refresh {number}: {error}")
                    continue
                if "does not hold" in outcome.reason:  # a delta before had been wrong
                    failures.setdefault(query, f"refresh {number}: {outcome.reason}")
                note_bad_plan(failures, query, name, outcome.reason, outcome.sqlstate)
            note(failures, conn, queries, f"refresh {number}")
    assert not failures, "\n".join(f"{query}\n    {what}" for query, what in failures.items())


def note_bad_plan(
    failures: dict[str, str], query: str, name: str, reason: str, sqlstate: str | None = None
) -> None:
    """Note a query that is recomputed because its plan is wrong."""
    try:
        trust(name, reason, sqlstate)
    except BadPlan as error:
        failures.setdefault(query, str(error))


def note(failures: dict[str, str], conn: psycopg.Connection, queries: dict[str, str], when: str) -> None:
    """Note the queries whose stream tables differ from their views."""
    for name, query in queries.items():
        differences = conn.execute(f"""
            WITH expected AS MATERIALIZED (SELECT one_row::text AS r FROM expected_{name} AS one_row),
                 found AS MATERIALIZED (SELECT one_row::text AS r FROM {name} AS one_row)
            SELECT 'lacks ' || r FROM (TABLE expected EXCEPT ALL TABLE found) AS d
            UNION ALL SELECT 'has ' || r FROM (TABLE found EXCEPT ALL TABLE expected) AS d""").fetchall()
        if differences:
            failures.setdefault(query, f"{when}: {', '.join(text for (text,) in differences[:5])}")
