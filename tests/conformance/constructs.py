"""Queries that ask one thing of an engine each: a type in a role, an aggregate, an expression, a shape."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.integration.test_traps import TRAPS
from tests.integration.test_types import OWN_TYPES, VALUES

TABLES = """
CREATE COLLATION of_a_language (provider = libc, locale = 'C.UTF-8');
CREATE DOMAIN cents AS numeric(12,2);
CREATE FUNCTION f(int, int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1 + $2';
CREATE AGGREGATE total(int) (sfunc = int4pl, stype = int, initcond = '0');
CREATE TABLE l (id int, i2 smallint, i int, i8 bigint, n numeric, m numeric(10,2), p numeric(40,20), f float8,
    t text COLLATE "C", o text COLLATE of_a_language, v varchar(9) COLLATE "C", c char(4) COLLATE "C", d date,
    ts timestamp, tz timestamptz, tm time, iv interval, b bool, j jsonb, a int[], x pair, r int4range,
    po positive, ce cents, mo mood, by bytea);
CREATE TABLE r (LIKE l);
"""


@dataclass(frozen=True)
class Construct:
    """A query over the tables, or over tables of its own."""

    query: str
    setup: str = ""
    since: int = 15
    optional: bool = False  # not every type can be asked for it


ROLES = {
    "passed on": "SELECT l.x, r.y FROM typed l JOIN typed r ON r.y = l.y",
    "joined on": "SELECT l.y FROM typed l JOIN typed r ON r.x = l.x",
    "compared": "SELECT l.y FROM typed l JOIN typed r ON r.x < l.x",
    "grouped by": "SELECT x, count(*) AS n FROM typed GROUP BY x",
    "summed up": "SELECT y, sum(x) AS n FROM typed GROUP BY y",
    "the least": "SELECT y, min(x) AS n FROM typed GROUP BY y",
}

AGGREGATES = (
    "count(*)",
    "count(i)",
    "count(DISTINCT i)",
    "count(i) FILTER (WHERE b)",
    "sum(i2)",
    "sum(i)",
    "sum(i8)",
    "sum(n)",
    "sum(m)",
    "sum(p)",
    "sum(ce)",
    "sum(f)",
    "sum(iv)",
    "sum(DISTINCT i)",
    "sum(n) FILTER (WHERE b)",
    "avg(i)",
    "avg(n)",
    "avg(m)",
    "avg(f)",
    "min(n)",
    "max(t)",
    "max(o)",
    "max(c)",
    "min(i) FILTER (WHERE i > 0)",
    "max(mo)",
    "array_agg(i)",
    "array_agg(i ORDER BY i)",
    "string_agg(t, ',')",
    "json_agg(i)",
    "jsonb_agg(i)",
    "json_object_agg(i, t)",
    "jsonb_object_agg(i, t)",
    "bool_and(b)",
    "bool_or(b)",
    "every(b)",
    "bit_and(i)",
    "bit_or(i)",
    "bit_xor(i)",
    "range_agg(r)",
    "range_intersect_agg(r)",
    "stddev(i)",
    "stddev_pop(n)",
    "variance(f)",
    "var_samp(i)",
    "corr(f, f)",
    "covar_pop(f, f)",
    "regr_slope(f, f)",
    "mode() WITHIN GROUP (ORDER BY i)",
    "percentile_cont(0.5) WITHIN GROUP (ORDER BY f)",
    "percentile_disc(0.5) WITHIN GROUP (ORDER BY i)",
    "rank(1) WITHIN GROUP (ORDER BY i)",
    "total(i)",
)
NEWER_AGGREGATES = {"any_value(i)": 16}

# What is made of both sides of a join, by what is done with it.
VALUES_OF_BOTH = (
    "l.i2 + r.i2",
    "l.i + r.i",
    "l.i - r.i8",
    "l.i8 * r.i8",
    "l.i / r.i",
    "l.i % r.i",
    "- (l.i * r.i)",
    "(l.i + r.i)::bigint",
    "(l.i + r.i)::smallint",
    "(l.i + r.i)::numeric",
    "(l.i + r.i)::positive",
    "(l.n + r.n)::cents",
    "(l.n + r.n)::numeric(10,2)",
    "(l.n + r.n)::int",
    "l.n + r.n",
    "l.n - r.i",
    "l.n * r.n",
    "l.m * r.m",
    "l.m * (1 - r.m)",
    "l.m * r.n",
    "l.p * r.m",
    "l.m * r.m * l.n * r.n",
    "l.n / r.n",
    "l.m % r.m",
    "l.n ^ r.n",
    "l.f * r.f",
    "l.i * r.f",
    "l.i * 2 + r.i * 3",
    "l.n * 0.1 + r.n",
    "coalesce(l.n, r.n)",
    "coalesce(l.i, r.i, 0)",
    "CASE WHEN l.b THEN l.n ELSE r.n END",
    "CASE WHEN l.i > r.i THEN l.m END",
    "CASE r.i WHEN l.i THEN 1 ELSE 2 END",
    "greatest(l.i, r.i)",
    "nullif(l.i, r.i)",
    "abs(l.i - r.i)",
    "round(l.n * r.n, 2)",
    "f(l.i, r.i)",
    "l.d - r.d",
    "extract(epoch FROM l.tz - r.tz)",
)
KEYS_OF_BOTH = (
    "l.i + r.i",
    "l.n + r.n",
    "l.i > r.i",
    "l.t || r.t",
    "l.o || r.o",
    "l.t || r.i",
    "l.t || r.d",
    "l.v || r.c",
    "(l.t || r.t)::varchar(3)",
    "lower(l.t || r.t)",
    "concat(l.t, r.t)",
    "coalesce(l.t, r.t)",
    "coalesce(l.d, r.d)",
    "coalesce(l.j, r.j)",
    "coalesce(l.n, r.n)",
    "CASE WHEN l.i = r.i THEN l.c ELSE r.c END",
    "CASE WHEN l.i + r.i > 3 THEN 'many' ELSE 'few' END",
    "ARRAY[l.i, r.i]",
    "l.d + r.i",
    "l.tz - r.tz",
    "date_trunc('day', coalesce(l.ts, r.ts))",
    "greatest(l.t, r.t)",
)
EXTREMES_OF_BOTH = (
    "l.i + r.i",
    "l.n * r.n",
    "l.t || r.t",
    "l.o || r.o",
    "coalesce(l.d, r.d)",
    "coalesce(l.n, r.n)",
    "l.d + r.i",
)
CONDITIONS = (
    "l.i = r.i8",
    "l.i = r.n",
    "l.n = r.m",
    "l.n < r.i",
    "l.n < r.f",
    "l.f = r.i",
    'l.t = r.o COLLATE "C"',
    "l.t < r.t",
    "l.o < r.o",
    "l.t = r.v",
    "l.c = r.c",
    "l.c < r.c",
    "l.c = r.t",
    "l.d = r.ts",
    "l.ts < r.tz",
    "l.d < r.d",
    "l.tm < r.tm",
    "l.iv < r.iv",
    "l.b < r.b",
    "l.mo < r.mo",
    "l.by < r.by",
    "l.i <> r.i",
    "l.i IS DISTINCT FROM r.i",
    "l.i BETWEEN r.i AND r.i8",
    "l.i IN (r.i, 3)",
    "l.i IN (1, 2) OR r.i = 3",
    "NOT (l.i = r.i AND l.t = r.t)",
    "(l.i, l.t) = (r.i, r.t)",
    "(l.i, l.t) < (r.i, r.t)",
    "coalesce(l.i, r.i) IS NULL",
    "coalesce(l.x, r.x) IS NULL",
    "(l.i = r.i) IS NULL",
    "(l.i = r.i) = l.b",
    "l.i + r.i > 3",
    "l.n + r.n > l.m",
    "l.i / r.i = 1",
    "l.t LIKE r.t",
    "l.t ~ r.t",
    "l.t || r.t = 'ab'",
    "l.i = ANY (r.a)",
    "l.a && r.a",
    "l.r @> r.i",
    "l.j = r.j",
    "f(l.i, r.i) > 3",
    "abs(l.i - r.i) < 2",
    "l.tz - r.tz < INTERVAL '1 day'",
    "l.d + 1 = r.d",
    "l.d + r.i = r.d",
)
SHAPES = {
    "rows made by any expression": "SELECT lower(l.t || r.t) AS a, l.n / r.n AS b FROM l, r WHERE r.i = l.i",
    "outputs of groups": "SELECT upper(t) AS a, sum(n) / count(*) AS b FROM l GROUP BY t HAVING avg(n) > 1",
    "UNION ALL": "SELECT i AS a FROM l UNION ALL SELECT n FROM r",
    "UNION": "SELECT i AS a FROM l UNION SELECT n FROM r",
    "UNION ALL in FROM": "SELECT sum(u.a) AS s FROM (SELECT i AS a FROM l UNION ALL SELECT n FROM r) u",
    "DISTINCT": "SELECT DISTINCT t, n FROM l",
    "DISTINCT of jsonb": "SELECT DISTINCT j FROM l",
    "a self join": "SELECT a.id FROM l a JOIN l b ON b.i = a.i8",
    "VALUES": "SELECT l.id, w.y FROM l JOIN (VALUES (1, 'one'), (2, 'two')) w (x, y) ON w.x = l.i",
    "LEFT JOIN": "SELECT l.id, r.t FROM l LEFT JOIN r ON r.id = l.id",
    "a window": "SELECT id, rank() OVER (ORDER BY i) AS n FROM l",
    "LIMIT": "SELECT id FROM l ORDER BY i LIMIT 3",
    "EXISTS": "SELECT id FROM l WHERE EXISTS (SELECT FROM r WHERE r.id = l.id)",
    "GROUP BY in FROM": "SELECT n FROM (SELECT i, count(*) AS n FROM l GROUP BY i) g",
    "LEFT JOIN beside a join": "SELECT l.id, k.t FROM l JOIN r ON r.id = l.id LEFT JOIN r k ON k.i = l.i",
    "a window over a join": "SELECT rank() OVER (PARTITION BY i ORDER BY r.id) AS n FROM l JOIN r USING (i)",
    "LIMIT of a join": "SELECT l.id FROM l JOIN r ON r.id = l.id ORDER BY l.i, l.id LIMIT 3",
    "groups over EXISTS": "SELECT i, max(n) FROM l WHERE EXISTS (SELECT FROM r WHERE r.i = l.i) GROUP BY i",
    "a join with groups": "SELECT g.n FROM r JOIN (SELECT i, count(*) AS n FROM l GROUP BY i) g USING (i)",
    "groups over unnest": "SELECT e.v, count(*) AS n FROM l, unnest(l.a) AS e(v) GROUP BY e.v",
    "unnest in the select list": "SELECT id, unnest(a) AS v FROM l",
    "now()": "SELECT id, now() AS n FROM l",
}


def all_constructs() -> Iterator[tuple[str, str, Construct]]:
    """Section, name and query of each."""
    for role, query in ROLES.items():
        for kind in VALUES:
            if role in ("compared", "the least") and kind in ("required", '"char"'):
                continue  # by the database's collation, which may be any
            collation = " COLLATE of_a_language" if kind in ("text", "varchar(5)", "char(4)") else ""
            typed = f"CREATE TABLE typed (y int, x {kind}{collation})"
            yield f"a type that is {role}", kind, Construct(query, typed, optional=True)
    for call in AGGREGATES:
        yield "an aggregate", call, Construct(f"SELECT i, {call} AS n FROM l GROUP BY i")
    for call, since in NEWER_AGGREGATES.items():
        yield "an aggregate", call, Construct(f"SELECT i, {call} AS n FROM l GROUP BY i", since=since)
    joined = "FROM l JOIN r ON r.id = l.id"
    for value in VALUES_OF_BOTH:
        yield (
            "a sum over two tables",
            value,
            Construct(f"SELECT l.id, sum({value}) AS n {joined} GROUP BY l.id"),
        )
    for value in KEYS_OF_BOTH:
        yield (
            "a key of two tables",
            value,
            Construct(f"SELECT {value} AS k, count(*) AS n {joined} GROUP BY {value}"),
        )
    for value in EXTREMES_OF_BOTH:
        yield (
            "an extreme over two tables",
            value,
            Construct(f"SELECT l.id, max({value}) AS n {joined} GROUP BY l.id"),
        )
    for condition in CONDITIONS:
        yield "a condition over two tables", condition, Construct(f"SELECT l.id FROM l JOIN r ON {condition}")
    for name, query in SHAPES.items():
        yield "a query", name, Construct(query)
    for name, trap in TRAPS.items():
        yield "a trap", name, Construct(trap.query, trap.setup, trap.since)


SETUP = OWN_TYPES + TABLES
