"""The constructs of SELECT by themselves: those maintained by deltas, those recomputed, those refused.

Each is a query that shows it. docs/coverage.md is made from those whose tests pass.
"""

from __future__ import annotations

TABLES = """
CREATE TABLE a (id int PRIMARY KEY, x int, t text, arr int[], j jsonb);
CREATE TABLE b (id int PRIMARY KEY, aid int, y int, t text);
CREATE TABLE c (id int PRIMARY KEY, bid int, z int) PARTITION BY HASH (id);
CREATE TABLE c_even PARTITION OF c FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE c_odd PARTITION OF c FOR VALUES WITH (MODULUS 2, REMAINDER 1);
CREATE TABLE k (v int, w text);
CREATE VIEW positive AS SELECT id, x FROM a WHERE x > 0;
CREATE VIEW frequent AS SELECT x, count(*) AS n FROM positive GROUP BY x HAVING count(*) > 1;
"""

INCREMENTAL: dict[str, dict[str, str]] = {
    "Rows by themselves": {
        "whole row that is NULL": "SELECT a.id FROM a LEFT JOIN b ON b.aid = a.id WHERE b IS NULL",
        "filter and expressions": (
            "SELECT a.id, a.x * 2 AS twice, upper(a.t) AS t FROM a WHERE a.x > 2 OR a.t IS NULL"
        ),
        "partitioned table": "SELECT id, z FROM c WHERE z > 1",
        "UNION ALL": "SELECT id, x FROM a UNION ALL SELECT id, y FROM b",
        "whole row as a value": (
            "SELECT a.id, to_jsonb(a) AS j, to_jsonb(p) AS q FROM a JOIN positive p ON p.id = a.id"
        ),
        "CASE, COALESCE, arrays, JSON": (
            "SELECT a.id, CASE WHEN a.x > 2 THEN 'many' ELSE 'few' END AS c, COALESCE(a.t, '-') AS t,"
            " a.arr[1] AS e, a.j -> 0 AS j FROM a"
        ),
    },
    "Joins": {
        "USING with an alias": "SELECT j.id, a.x, c.z FROM a JOIN c USING (id) AS j",
        "join with an alias": "SELECT j.id, j.x, j.z FROM (a JOIN c USING (id)) AS j",
        "inner join": "SELECT a.id, a.x, b.y FROM a JOIN b ON b.aid = a.id",
        "join of three tables": "SELECT a.id, b.y, c.z FROM a JOIN b ON b.aid = a.id JOIN c ON c.bid = b.id",
        "self join": "SELECT p.id, q.id AS q FROM a p JOIN a q ON q.x = p.x AND q.id < p.id",
        "cross join": "SELECT a.id, k.v FROM a CROSS JOIN k",
        "join by comparison": "SELECT a.id, b.y FROM a JOIN b ON b.y < a.x",
        "left join": "SELECT a.id, a.x, b.y FROM a LEFT JOIN b ON b.aid = a.id",
        "right join": "SELECT a.id, a.x, b.y FROM a RIGHT JOIN b ON b.aid = a.id AND a.x > 2",
        "full join": "SELECT a.id, a.x, b.y FROM a FULL JOIN b ON b.aid = a.id",
        "full join with USING": "SELECT id, a.x, b.y FROM a FULL JOIN b USING (id)",
        "USING over USING": (
            "SELECT id, a.x, b.y, c.z FROM a LEFT JOIN b USING (id) FULL JOIN c USING (id) RIGHT JOIN b"
            " AS d USING (id)"
        ),
        "chain of left joins": (
            "SELECT a.id, b.y, c.z FROM a LEFT JOIN b ON b.aid = a.id LEFT JOIN c ON c.bid = b.id"
        ),
        "left join by comparison": "SELECT a.id, b.y FROM a LEFT JOIN b ON b.y < a.x",
        "self left join": "SELECT p.id, q.id AS q FROM a p LEFT JOIN a q ON q.x = p.x AND q.id < p.id",
        "inner and left joins": (
            "SELECT a.id, b.y, c.z FROM a JOIN b ON b.aid = a.id LEFT JOIN c ON c.bid = b.id WHERE c.z"
            " IS NULL OR c.z > 1"
        ),
        "left join of a join": (
            "SELECT a.id, s.y FROM a LEFT JOIN (b JOIN c ON c.bid = b.id) ON b.aid = a.id LEFT JOIN"
            " LATERAL (SELECT b.y) s ON true"
        ),
        "left join of a table without a key": (
            "SELECT k.v, count(*) AS n FROM k LEFT JOIN a ON a.x = k.v GROUP BY k.v"
        ),
    },
    "Grouping": {
        "json_agg": "SELECT a.x, json_agg(a.id ORDER BY a.id) AS j FROM a GROUP BY a.x",
        "json_object_agg": "SELECT a.x, json_object_agg(a.id, a.t ORDER BY a.id) AS j FROM a GROUP BY a.x",
        "aggregate in ORDER BY alone": "SELECT 1 AS one FROM a ORDER BY max(x)",
        "GROUP BY DISTINCT": (
            "SELECT x, t, count(*) AS n FROM a GROUP BY DISTINCT ROLLUP (x, t), ROLLUP (x)"
        ),
        "count, sum and avg of integers and numerics": (
            "SELECT a.t, count(*) AS n, count(a.x) AS m, sum(a.x) AS s, avg(a.x) AS v FROM a GROUP BY a.t"
        ),
        "min and max": "SELECT a.t, min(a.x) AS l, max(a.x) AS g FROM a GROUP BY a.t",
        "FILTER": "SELECT a.t, count(*) FILTER (WHERE a.x > 2) AS n FROM a GROUP BY a.t",
        "HAVING": "SELECT a.t, sum(a.x) AS s FROM a GROUP BY a.t HAVING count(*) > 2",
        "aggregate over a join": "SELECT a.t, sum(b.y) AS s FROM a JOIN b ON b.aid = a.id GROUP BY a.t",
        "count of different values": "SELECT a.t, count(DISTINCT a.x) AS n FROM a GROUP BY a.t",
        "sums of floats": "SELECT a.t, sum(a.x::float8) AS s FROM a GROUP BY a.t",
        "array_agg and string_agg": (
            "SELECT a.x, array_agg(a.id ORDER BY a.id) AS ids, string_agg(a.t, ',' ORDER BY a.id) AS t"
            " FROM a GROUP BY a.x"
        ),
        "keyed aggregate without a key": "SELECT string_agg(a.t, ',' ORDER BY a.id) AS t FROM a",
        "aggregate over a left join": (
            "SELECT a.x, count(b.id) AS n, sum(b.y) AS s FROM a LEFT JOIN b ON b.aid = a.id GROUP BY a.x"
        ),
        "left join of an aggregate": (
            "SELECT a.id, s.n FROM a LEFT JOIN (SELECT aid, count(*) AS n FROM b GROUP BY aid) s ON"
            " s.aid = a.id"
        ),
        "join of an aggregate": (
            "SELECT a.id, s.n, s.m FROM a JOIN (SELECT aid, count(*) AS n, max(y) AS m FROM b GROUP BY"
            " aid) s ON s.aid = a.id"
        ),
        "aggregate of an aggregate": (
            "SELECT n, count(*) AS k FROM (SELECT aid, count(*) AS n FROM b GROUP BY aid) s GROUP BY n"
        ),
        "aggregate without a key": "SELECT count(*) AS n, sum(x) AS s FROM a",
        "join with a global aggregate": (
            "SELECT s.n, a.id FROM a, (SELECT count(*) AS n FROM b) s WHERE a.x < s.n"
        ),
        "GROUPING SETS": (
            "SELECT a.x, a.t, count(*) AS n, grouping(a.x, a.t) AS g FROM a GROUP BY GROUPING SETS"
            " ((a.x), (a.x, a.t), ())"
        ),
        "ROLLUP": "SELECT a.x, a.t, sum(a.id) AS n FROM a GROUP BY ROLLUP (a.x, a.t)",
        "CUBE with HAVING": (
            "SELECT a.x, a.t, sum(a.id) AS n FROM a GROUP BY CUBE (a.x, a.t) HAVING count(*) > 1"
        ),
        "ordered aggregates over a left join": (
            "SELECT a.x, percentile_cont(0.5) WITHIN GROUP (ORDER BY a.id) AS p, string_agg(a.t, ','"
            " ORDER BY a.id) AS t FROM a LEFT JOIN b ON b.aid = a.id GROUP BY a.x"
        ),
        "whole rows in an aggregate": (
            "SELECT a.x, jsonb_agg(b ORDER BY b.id) AS j FROM a JOIN b ON b.aid = a.id GROUP BY a.x"
        ),
        "DISTINCT rows in an aggregate": "SELECT x, count(DISTINCT (id % 2, t)) AS n FROM a GROUP BY x",
        "grouping() of a merged column": (
            "SELECT x, grouping(x) AS g, count(*) AS n FROM a FULL JOIN (SELECT y AS x FROM b) s USING (x)"
            " GROUP BY ROLLUP (x)"
        ),
    },
    "DISTINCT and set operations": {
        "DISTINCT": "SELECT DISTINCT a.x, a.t FROM a",
        "UNION": "SELECT x FROM a UNION SELECT y FROM b",
        "DISTINCT ON": "SELECT DISTINCT ON (a.x) a.x, a.id, a.t FROM a ORDER BY a.x, a.id DESC",
        "DISTINCT over GROUP BY": "SELECT DISTINCT count(*) AS n FROM b GROUP BY aid",
        "UNION in UNION ALL": "SELECT x FROM a UNION ALL (SELECT y FROM b UNION SELECT z FROM c)",
        "EXCEPT": "SELECT x FROM a EXCEPT SELECT y FROM b",
        "EXCEPT ALL": "SELECT x, t FROM a EXCEPT ALL SELECT y, t FROM b",
        "INTERSECT": "SELECT x FROM a INTERSECT SELECT y FROM b",
        "INTERSECT ALL": "SELECT x FROM a INTERSECT ALL SELECT y FROM b",
        "EXCEPT ALL of a table without a key": "SELECT v FROM k EXCEPT ALL SELECT x FROM a",
        "set operation in FROM": (
            "SELECT s.x, count(*) AS n FROM (SELECT x FROM a EXCEPT ALL SELECT y FROM b) s GROUP BY s.x"
        ),
        "VALUES in a set operation": "SELECT x FROM a EXCEPT VALUES (1), (2)",
    },
    "Subqueries in expressions": {
        "sorted ARRAY": "SELECT a.id, ARRAY(SELECT b.y FROM b ORDER BY b.y, b.id) AS ys FROM a",
        "EXISTS": "SELECT a.id FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.aid = a.id AND b.y > 2)",
        "NOT EXISTS": "SELECT a.id, a.x FROM a WHERE NOT EXISTS (SELECT 1 FROM b WHERE b.aid = a.id)",
        "subquery in the condition of a join": (
            "SELECT a.id, b.y FROM a JOIN b ON b.aid = a.id"
            " AND (a.x > 2 OR b.y = ANY (SELECT z FROM c WHERE c.bid = a.id))"
            " LEFT JOIN k ON k.v = b.y"
        ),
        "EXISTS in OR": "SELECT a.id FROM a WHERE a.x = 1 OR EXISTS (SELECT 1 FROM b WHERE b.aid = a.id)",
        "EXISTS with a join": (
            "SELECT a.x, count(*) AS n FROM a WHERE EXISTS (SELECT 1 FROM b JOIN c ON c.bid = b.id"
            " WHERE b.aid = a.id AND c.z > 1) GROUP BY a.x"
        ),
        "IN": "SELECT a.id FROM a WHERE a.x IN (SELECT y FROM b)",
        "NOT IN with NULLs": "SELECT a.id FROM a WHERE a.x NOT IN (SELECT y FROM b WHERE id > 5)",
        "IN in OR": "SELECT a.id FROM a WHERE a.x IN (SELECT y FROM b) OR a.t = 'p'",
        "row IN": "SELECT a.id FROM a WHERE (a.x, a.t) IN (SELECT b.y, b.t FROM b)",
        "ANY and ALL": (
            "SELECT a.id, a.x > ANY (SELECT y FROM b) AS p, a.x >= ALL (SELECT y FROM b WHERE y IS NOT"
            " NULL) AS q FROM a"
        ),
        "scalar subqueries": (
            "SELECT a.id, (SELECT max(y) FROM b WHERE b.aid = a.id) AS m, (SELECT count(*) FROM c) AS n"
            " FROM a"
        ),
        "comparison with a scalar subquery": "SELECT a.id FROM a WHERE a.x > (SELECT avg(y) FROM b)",
        "correlation by comparison": "SELECT a.id, (SELECT count(*) FROM b WHERE b.y < a.x) AS n FROM a",
        "subquery in a correlated one": (
            "SELECT a.id FROM a WHERE a.x < (SELECT sum(b.y) FROM b WHERE b.aid = a.id AND EXISTS"
            " (SELECT 1 FROM c WHERE c.bid = b.id))"
        ),
        "subquery that refers two levels out": (
            "SELECT a.id FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.aid = a.id AND EXISTS (SELECT 1"
            " FROM c WHERE c.bid = b.id AND c.z = a.x))"
        ),
        "subquery in HAVING": (
            "SELECT a.x, count(*) AS n FROM a GROUP BY a.x HAVING count(*) > (SELECT count(*) / 10 FROM b)"
        ),
        "subqueries in CASE and COALESCE": (
            "SELECT a.id, CASE WHEN EXISTS (SELECT 1 FROM b WHERE b.aid = a.id) THEN 'yes' ELSE 'no'"
            " END AS e, COALESCE((SELECT min(y) FROM b WHERE b.aid = a.id), -1) AS m FROM a"
        ),
        "ARRAY of a subquery": (
            "SELECT a.id, ARRAY(SELECT b.y FROM b WHERE b.aid = a.id ORDER BY b.y, b.id) AS ys FROM a"
        ),
        "aggregate of a subquery": (
            "SELECT a.x, sum((SELECT count(*) FROM b WHERE b.aid = a.id)) AS n FROM a GROUP BY a.x"
        ),
        "correlated subquery with a set operation": (
            "SELECT a.id FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.aid = a.id UNION SELECT 1 FROM c"
            " WHERE c.bid = a.id)"
        ),
        "correlation by a merged column": (
            "SELECT id FROM a WHERE EXISTS (SELECT FROM b FULL JOIN c USING (id) WHERE id = a.id)"
        ),
        "correlated subquery in FROM of a subquery": (
            "SELECT a.id, (SELECT max(s.y) FROM (SELECT b.y FROM b WHERE b.aid = a.id OFFSET 0) s) AS m"
            " FROM a"
        ),
    },
    "WITH, VALUES and views": {
        "WITH": "WITH s AS (SELECT id, x FROM a WHERE x > 1) SELECT s.id, b.y FROM s JOIN b ON b.aid = s.id",
        "VALUES": (
            "SELECT a.id, v.label FROM a JOIN (VALUES (1, 'one'), (2, 'two')) AS v(x, label) ON v.x = a.x"
        ),
        "a view, and a view of it": "SELECT f.x, f.n FROM frequent f",
        "subquery in FROM": (
            "SELECT s.x, s.y FROM (SELECT a.x, b.y FROM a JOIN b ON b.aid = a.id WHERE b.y > 1) s"
        ),
        "WITH read twice": (
            "WITH s AS (SELECT aid, sum(y) AS t FROM b GROUP BY aid) SELECT a.id, s1.t, s2.t AS t2 FROM"
            " a JOIN s s1 ON s1.aid = a.id LEFT JOIN s s2 ON s2.aid = a.x"
        ),
    },
    "Windows and LIMIT": {
        "windows of one partition": (
            "SELECT a.id, a.x, row_number() OVER (PARTITION BY a.x ORDER BY a.id) AS r, sum(a.id) OVER"
            " (PARTITION BY a.x) AS s FROM a"
        ),
        "named window, partitions that share a key": (
            "SELECT a.id, rank() OVER w AS r, count(*) OVER (PARTITION BY a.x, a.t) AS s FROM a WINDOW"
            " w AS (PARTITION BY a.x ORDER BY a.id)"
        ),
        "windows of different partitions": (
            "SELECT a.id, row_number() OVER (PARTITION BY a.x ORDER BY a.id) AS r, count(*) OVER"
            " (PARTITION BY a.t) AS s FROM a"
        ),
        "window over groups": (
            "SELECT a.x, count(*) AS n, rank() OVER (ORDER BY count(*) DESC, a.x) AS r FROM a GROUP BY a.x"
        ),
        "subquery beside a window": (
            "SELECT a.id, rank() OVER (PARTITION BY a.x ORDER BY a.id) AS r,"
            " (SELECT max(b.y) FROM b WHERE b.aid = a.id) AS m FROM a"
        ),
        "first rows of each partition": (
            "SELECT * FROM (SELECT a.id, a.x, row_number() OVER (PARTITION BY a.x ORDER BY a.id DESC)"
            " AS r FROM a) s WHERE s.r <= 2"
        ),
        "LIMIT and OFFSET": "SELECT a.id, a.x FROM a ORDER BY a.x DESC NULLS LAST, a.id LIMIT 5 OFFSET 1",
        "WITH TIES": "SELECT a.id, a.x FROM a ORDER BY a.x FETCH FIRST 3 ROWS WITH TIES",
    },
    "LATERAL and set-returning functions": {
        "LATERAL with LIMIT": (
            "SELECT a.id, s.y FROM a CROSS JOIN LATERAL (SELECT b.y FROM b WHERE b.aid = a.id ORDER BY"
            " b.y, b.id LIMIT 1) s"
        ),
        "join after a lateral one": (
            "SELECT a.id, s.y, c.z FROM a CROSS JOIN LATERAL (SELECT b.y FROM b WHERE b.aid = a.id) s"
            " JOIN c ON c.bid = a.id"
        ),
        "LEFT JOIN LATERAL": (
            "SELECT a.id, s.y FROM a LEFT JOIN LATERAL (SELECT max(b.y) AS y FROM b WHERE b.aid = a.id"
            " AND b.y < a.x) s ON true"
        ),
        "unnest": "SELECT a.id, u.e FROM a, unnest(a.arr) AS u(e)",
        "WITH ORDINALITY": "SELECT a.id, u.e, u.n FROM a, unnest(a.arr) WITH ORDINALITY AS u(e, n)",
        "LEFT JOIN of unnest": "SELECT a.id, u.e FROM a LEFT JOIN LATERAL unnest(a.arr) AS u(e) ON true",
        "set in the select list": "SELECT a.id, unnest(a.arr) AS e FROM a",
        "generate_series": "SELECT a.id, g FROM a CROSS JOIN generate_series(1, 3) AS g WHERE g < a.x",
        "elements of a json array": "SELECT a.id, j.value FROM a, jsonb_array_elements(a.j) AS j(value)",
        "set-returning function beside a subquery": (
            "SELECT a.id, unnest(a.arr) AS e, (SELECT max(b.y) FROM b WHERE b.aid = a.id) AS m FROM a"
        ),
        "LEFT JOIN LATERAL on a condition": (
            "SELECT a.id, s.y FROM a LEFT JOIN LATERAL (SELECT b.y FROM b WHERE b.aid = a.id) s ON s.y > 1"
        ),
        "LATERAL with a set operation": (
            "SELECT a.id, s.v FROM a CROSS JOIN LATERAL (SELECT b.y AS v FROM b WHERE b.aid = a.id"
            " UNION SELECT c.z FROM c WHERE c.bid = a.id) s"
        ),
        "JOIN LATERAL on a condition": (
            "SELECT a.id, s.y FROM a"
            " JOIN LATERAL (SELECT b.y, b.aid FROM b WHERE b.y > a.x) s ON s.aid = a.id"
        ),
        "join after LATERAL": (
            "SELECT a.id, s.y, c.z FROM a,"
            " LATERAL (SELECT b.y FROM b WHERE b.aid = a.id) s JOIN c ON c.bid = s.y"
        ),
        "function joined on a condition": "SELECT a.id, e FROM a JOIN LATERAL unnest(a.arr) AS e ON e > a.x",
        "ROWS FROM": (
            "SELECT a.id, r.p, r.q FROM a, ROWS FROM (unnest(a.arr), generate_series(1, 2)) AS r(p, q)"
        ),
        "set-returning function beside GROUP BY": (
            "SELECT a.x, generate_series(1, 2) AS g FROM a GROUP BY a.x"
        ),
    },
}
"""By kind, and by a name for people."""

MORE_TABLES = """
CREATE TABLE parent (id int); CREATE TABLE child () INHERITS (parent);
CREATE MATERIALIZED VIEW kept AS SELECT 1 AS id; CREATE SEQUENCE numbers;
CREATE FUNCTION drawn(int) RETURNS int VOLATILE LANGUAGE sql AS 'SELECT $1';
INSERT INTO parent VALUES (1); INSERT INTO child VALUES (2);
"""

RECOMPUTED = {
    "sorted subquery under array_agg": "SELECT array_agg(s.x) AS xs FROM (SELECT x FROM a ORDER BY x, id) s",
    "set-returning function in ORDER BY alone": "SELECT id FROM a ORDER BY generate_series(1, 2)",
    "constant as a key of grouping sets": (
        "SELECT x, 'x' AS u, count(*) AS n FROM a GROUP BY ROLLUP (x, 'x'::text)"
    ),
    "aggregate of the query outside": "SELECT (SELECT sum(a.x)) AS s FROM a",
    "LIMIT by a subquery": "SELECT id FROM a ORDER BY id LIMIT (SELECT max(v) FROM k)",
    "WITH RECURSIVE": (
        "WITH RECURSIVE r AS (SELECT id, aid FROM b WHERE aid = 1 UNION SELECT b.id, b.aid FROM r JOIN b"
        " ON b.aid = r.id) SELECT id FROM r"
    ),
    "TABLESAMPLE": "SELECT id FROM a TABLESAMPLE bernoulli (100)",
    "FOR UPDATE": "SELECT id FROM a FOR UPDATE",
    "volatile function": "SELECT id, random() < 2 AS r FROM a",
    "volatile function of one's own": "SELECT drawn(id) AS d FROM a",
    "stable function": "SELECT id FROM a WHERE now() > '2020-01-01'::timestamptz",
    "CURRENT_DATE and its like": "SELECT id, CURRENT_USER AS who FROM a",
    "cast of text to a time": "SELECT v, ('2024-01-0' || v)::date AS day FROM k WHERE v BETWEEN 1 AND 9",
    "system column": "SELECT ctid::text AS place, id FROM a",
    "whole row of an outer join": "SELECT a.id, to_jsonb(b) AS j FROM a LEFT JOIN b ON b.aid = a.id",
    "set-returning function under LIMIT": "SELECT id, unnest(arr) AS e FROM a ORDER BY 1, 2 LIMIT 3",
    "set-returning function beside a window": (
        "SELECT id, unnest(arr) AS e, rank() OVER (PARTITION BY x ORDER BY id) AS r FROM a"
    ),
    "window over GROUPING SETS": (
        "SELECT x, t, count(*) AS n, rank() OVER (ORDER BY count(*), x, t) AS r FROM a GROUP BY ROLLUP (x, t)"
    ),
    "subquery in the condition of an outer join": (
        "SELECT a.id, b.y FROM a LEFT JOIN b ON b.aid = a.id AND EXISTS (SELECT 1 FROM c WHERE c.bid = b.id)"
    ),
    "subquery in the arguments of a function in FROM": (
        "SELECT a.id, g FROM a, generate_series(1, (SELECT max(b.y) FROM b WHERE b.aid = a.id)) AS g"
    ),
    "aggregate of the query outside in a subquery": (
        "SELECT a.x, (SELECT count(*) FROM b WHERE b.y < sum(a.id)) AS n FROM a GROUP BY a.x"
    ),
    "partition by itself": "SELECT id, z FROM c_even",
    "FROM ONLY": "SELECT id FROM ONLY a",
    "table with inheritance children": "SELECT id FROM parent",
    "table that inherits": "SELECT id FROM child",
    "materialized view": "SELECT id FROM kept",
    "sequence": "SELECT a.id, n.last_value FROM a, numbers n",
}

REFUSED = {
    "system catalog": "SELECT relname FROM pg_class",
    "column name of Headwater's own": "SELECT id AS __hw_w FROM a",
    "two columns of one name": "SELECT id, id FROM a",
    "no columns": "SELECT FROM a",
    "statement that writes": "DELETE FROM a",
    "WITH that writes": "WITH gone AS (DELETE FROM a RETURNING id) SELECT id FROM gone",
    "two statements": "SELECT id FROM a; SELECT id FROM b",
}
