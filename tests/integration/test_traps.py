"""Traps that others or we fell into: after the change a refresh must give exactly what the query gives.

Those of transactions, of refreshes at once and of crashes are in test_frontier.py, diamonds in test_dag.py, a
server that speaks another language in test_languages.py.
"""

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
    by_delta: bool = False  # recomputing would hide what the trap is about


SHOP = """
CREATE TABLE regions (id int PRIMARY KEY, name text);
CREATE TABLE customers (id int PRIMARY KEY, region_id int);
CREATE TABLE orders (id int PRIMARY KEY, customer_id int, price int);
CREATE TABLE items (order_id int, n int);
INSERT INTO regions VALUES (1, 'north'), (2, 'south');
INSERT INTO customers VALUES (1, 1), (2, 2);
INSERT INTO orders VALUES (1, 1, 10), (2, 1, 20), (3, 2, 30);
INSERT INTO items VALUES (1, 1), (1, 1), (2, 5), (3, 7);
"""

# Each change is one statement to the server: what is in it commits at once, and one refresh takes it in.
TRAPS = {
    "both sides of a join changed in one window": Trap(
        SHOP,
        "SELECT o.id, o.price, c.region_id FROM orders o JOIN customers c ON c.id = o.customer_id",
        (
            "INSERT INTO customers VALUES (3, 1); INSERT INTO orders VALUES (4, 3, 40)",
            "UPDATE customers SET region_id = 9 WHERE id = 1;"
            " UPDATE orders SET price = 0 WHERE customer_id = 1",
            "UPDATE orders SET customer_id = 2; UPDATE customers SET region_id = region_id + 1",
            "DELETE FROM orders; DELETE FROM customers",
        ),
        by_delta=True,
    ),
    "a partner row deleted in the same window": Trap(
        SHOP,
        "SELECT c.id, o.price FROM customers c JOIN orders o ON o.customer_id = c.id",
        (
            "UPDATE orders SET price = 1 WHERE customer_id = 1; DELETE FROM customers WHERE id = 1",
            "INSERT INTO orders VALUES (4, 2, 40); DELETE FROM customers WHERE id = 2",
            "INSERT INTO customers VALUES (1, 1); DELETE FROM orders WHERE id = 1",
        ),
        by_delta=True,
    ),
    "a partner row deleted in the same window, of an outer join": Trap(
        SHOP,
        "SELECT c.id, o.price FROM customers c LEFT JOIN orders o ON o.customer_id = c.id",
        (
            "UPDATE customers SET region_id = 3 WHERE id = 1; DELETE FROM orders WHERE customer_id = 1",
            "INSERT INTO customers VALUES (3, 3); INSERT INTO orders VALUES (4, 3, 1); DELETE FROM orders"
            " WHERE id = 3",
            "DELETE FROM customers WHERE id = 3; DELETE FROM orders WHERE id = 4",
        ),
        by_delta=True,
    ),
    "three and more joined tables": Trap(
        SHOP,
        "SELECT r.name, count(*) AS n, sum(i.n * o.price) AS s FROM regions r"
        " JOIN customers c ON c.region_id = r.id JOIN orders o ON o.customer_id = c.id"
        " JOIN items i ON i.order_id = o.id GROUP BY r.name",
        (
            "INSERT INTO items VALUES (3, 2); UPDATE orders SET price = price + 1;"
            " UPDATE customers SET region_id = 3 - region_id; UPDATE regions SET name = name || '!'",
            "INSERT INTO regions VALUES (3, 'east'); INSERT INTO customers VALUES (3, 3);"
            " INSERT INTO orders VALUES (4, 3, 40); INSERT INTO items VALUES (4, 1), (4, 1)",
            "DELETE FROM items WHERE n = 1; DELETE FROM orders WHERE id = 2;"
            " DELETE FROM regions WHERE id = 1",
        ),
        by_delta=True,
    ),
    "SUM(CASE …) over an update that crosses the condition": Trap(
        "CREATE TABLE t (id int, g int, v int, paid bool); INSERT INTO t VALUES (1, 1, 5, true),"
        " (2, 1, 7, false), (3, 2, 9, NULL)",
        "SELECT g, sum(CASE WHEN paid THEN v END) AS s, sum(CASE WHEN paid THEN v ELSE 0 END) AS z,"
        " sum(v) FILTER (WHERE paid) AS f FROM t GROUP BY g",
        (
            "UPDATE t SET paid = true WHERE id = 2",
            "UPDATE t SET paid = false, v = 100 WHERE id = 1",
            "UPDATE t SET paid = NOT paid",
            "UPDATE t SET paid = NULL",
        ),
        by_delta=True,
    ),
    "NOT IN with NULLs": Trap(
        "CREATE TABLE t (id int, v int); CREATE TABLE u (v int); INSERT INTO t VALUES (1, 1), (2, NULL)",
        "SELECT id FROM t WHERE v NOT IN (SELECT v FROM u)",
        (
            "INSERT INTO u VALUES (2)",
            "INSERT INTO u VALUES (NULL)",
            "INSERT INTO t VALUES (3, 3)",
            "DELETE FROM u WHERE v IS NULL",
            "DELETE FROM u",
        ),
        by_delta=True,
    ),
    "HAVING that is crossed in either direction": Trap(
        "CREATE TABLE t (g int, v int); INSERT INTO t VALUES (1, 5), (2, 20), (3, 1)",
        "SELECT g, sum(v) AS s, min(v) AS l FROM t GROUP BY g HAVING sum(v) > 10",
        (
            "INSERT INTO t VALUES (1, 6)",
            "UPDATE t SET v = 1 WHERE g = 2",
            "UPDATE t SET v = 11; DELETE FROM t WHERE g = 3",
            "INSERT INTO t VALUES (3, 30)",
        ),
        by_delta=True,
    ),
    "duplicates in keyless tables": Trap(
        "CREATE TABLE t (v int, w int); INSERT INTO t VALUES (1, 1), (1, 1), (1, 1), (2, 2)",
        "SELECT l.v, r.w FROM t l JOIN t r ON r.v = l.v",
        (
            "DELETE FROM t WHERE ctid = (SELECT min(ctid) FROM t WHERE v = 1)",
            "INSERT INTO t VALUES (2, 2), (1, 1)",
            "UPDATE t SET w = 3 WHERE ctid = (SELECT min(ctid) FROM t WHERE v = 1)",
        ),
        by_delta=True,
    ),
    "NULL group keys": Trap(
        "CREATE TABLE t (g int, h text, v int);"
        " INSERT INTO t VALUES (NULL, NULL, 1), (NULL, 'a', 2), (1, NULL, 3)",
        "SELECT g, h, count(*) AS n, array_agg(v ORDER BY v) AS vs FROM t GROUP BY g, h",
        (
            "INSERT INTO t VALUES (NULL, NULL, 4), (NULL, 'a', 5)",
            "UPDATE t SET g = NULL WHERE g = 1",
            "DELETE FROM t WHERE h IS NULL",
        ),
        by_delta=True,
    ),
    "NULL join keys": Trap(
        "CREATE TABLE t (k int, v int); CREATE TABLE u (k int, w int);"
        " INSERT INTO t VALUES (NULL, 1), (1, 2); INSERT INTO u VALUES (NULL, 1), (1, 2)",
        "SELECT t.k, t.v, u.w FROM t FULL JOIN u ON u.k = t.k",
        (
            "INSERT INTO u VALUES (NULL, 3), (1, 3)",
            "UPDATE t SET k = NULL WHERE k = 1",
            "UPDATE u SET k = 1 WHERE k IS NULL; UPDATE t SET k = 1 WHERE v = 1",
        ),
        by_delta=True,
    ),
    "float NaN and infinities": Trap(
        "CREATE TABLE t (id int, g int, v float8);"
        " INSERT INTO t VALUES (1, 1, 'NaN'), (2, 1, 1), (3, 2, '-0')",
        "SELECT g, count(*) AS n, sum(v) AS s, min(v) AS l, max(v) AS h FROM t GROUP BY g",
        (
            "INSERT INTO t VALUES (4, 1, 'Infinity'), (5, 2, '-Infinity')",
            "DELETE FROM t WHERE v = 'NaN'",
            "UPDATE t SET v = 3 WHERE v IN ('Infinity', '-Infinity')",
        ),
        by_delta=True,
    ),
    "float NaN and infinities as keys": Trap(
        "CREATE TABLE t (v float8); CREATE TABLE u (v float8); INSERT INTO t VALUES ('NaN'), ('-0'), (0)",
        "SELECT t.v, count(*) AS n FROM t JOIN u ON u.v = t.v GROUP BY t.v",
        (
            "INSERT INTO u VALUES ('NaN'), (0), ('Infinity')",
            "INSERT INTO t VALUES ('NaN'), ('Infinity')",
            "DELETE FROM u WHERE v = 'NaN'; DELETE FROM t WHERE v = 0",
        ),
        by_delta=True,
    ),
    "numeric NaN": Trap(
        "CREATE TABLE t (id int, g int, v numeric);"
        " INSERT INTO t VALUES (1, 1, 'NaN'), (2, 1, 1.50), (3, 2, 2)",
        "SELECT g, sum(v) AS s, avg(v) AS a, max(v) AS h FROM t GROUP BY g",
        (
            "INSERT INTO t VALUES (4, 2, 'NaN'), (5, 1, 'Infinity')",
            "DELETE FROM t WHERE v = 'NaN'",
            "INSERT INTO t VALUES (6, 1, '-Infinity')",
            "DELETE FROM t WHERE v IN ('Infinity', '-Infinity')",
        ),
        by_delta=True,
    ),
    "TOASTed values updated beside them": Trap(
        "CREATE TABLE t (id int PRIMARY KEY, n int, big text); ALTER TABLE t ALTER big SET STORAGE EXTERNAL;"
        " INSERT INTO t SELECT i, 0, repeat(md5(i::text), 500) FROM generate_series(1, 3) i",
        "SELECT n, big FROM t",
        ("UPDATE t SET n = 1 WHERE id = 2", "UPDATE t SET big = big || 'x' WHERE id = 1", "DELETE FROM t"),
        by_delta=True,
    ),
    "primary key updates and swaps": Trap(
        "CREATE TABLE t (id int PRIMARY KEY DEFERRABLE, v text); CREATE TABLE u (t_id int);"
        " INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c'); INSERT INTO u VALUES (1), (2), (2)",
        "SELECT t.id, t.v, count(u.t_id) AS n FROM t LEFT JOIN u ON u.t_id = t.id GROUP BY t.id, t.v",
        (
            "UPDATE t SET id = 3 - id WHERE id < 3",
            "UPDATE t SET id = id + 1",
            "UPDATE t SET id = 10 WHERE id = 2; INSERT INTO t VALUES (2, 'again')",
        ),
        by_delta=True,
    ),
    "TRUNCATE then INSERT in one transaction": Trap(
        "CREATE TABLE t (v int); INSERT INTO t VALUES (1), (2)",
        "SELECT v, count(*) AS n FROM t GROUP BY v",
        ("INSERT INTO t VALUES (1); TRUNCATE t; INSERT INTO t VALUES (2), (3)", "INSERT INTO t VALUES (3)"),
    ),
    "DDL on a source between two refreshes": Trap(
        "CREATE TABLE t (id int, a int, b text); INSERT INTO t VALUES (1, 1, 'x'), (2, 2, 'y')",
        "SELECT a, count(*) AS n, min(b) AS b FROM t GROUP BY a",
        (
            "INSERT INTO t VALUES (3, 1, 'w'); ALTER TABLE t RENAME COLUMN a TO c;"
            " INSERT INTO t VALUES (4, 9, 'z')",
            "ALTER TABLE t DROP COLUMN id; ALTER TABLE t ADD COLUMN d int DEFAULT 3;"
            " DELETE FROM t WHERE c = 1",
            "ALTER TABLE t RENAME TO t2; INSERT INTO t2 (c, b) VALUES (2, 'a')",
        ),
    ),
    "partitioned sources with ATTACH and DETACH": Trap(
        "CREATE TABLE t (id int, v int) PARTITION BY RANGE (id);"
        " CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (10);"
        " CREATE TABLE high (id int, v int); INSERT INTO high VALUES (11, 5); INSERT INTO t VALUES (1, 1)",
        "SELECT v, count(*) AS n FROM t GROUP BY v",
        (
            "INSERT INTO low VALUES (2, 2)",
            "ALTER TABLE t ATTACH PARTITION high FOR VALUES FROM (10) TO (20)",
            "UPDATE t SET id = id + 10 WHERE id = 1; INSERT INTO high VALUES (12, 7)",
            "ALTER TABLE t DETACH PARTITION low",
            "INSERT INTO low VALUES (3, 3)",
            "DELETE FROM t WHERE v = 7",
        ),
    ),
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
    "JSON_TABLE": Trap(
        "CREATE TABLE t (id int PRIMARY KEY, j jsonb);"
        """ INSERT INTO t VALUES (1, '[{"a": 1, "b": [{"c": 1.5}, {"c": 2}]}]')""",
        "SELECT t.id, x.n, x.a, x.c FROM t, JSON_TABLE(t.j, '$[*]' COLUMNS (n FOR ORDINALITY,"
        " a int PATH '$.a', NESTED PATH '$.b[*]' COLUMNS (c numeric(4, 2) PATH '$.c' DEFAULT 0 ON EMPTY))) x",
        (
            """INSERT INTO t VALUES (2, '[{"a": 2}, {"b": [{}]}]'), (3, NULL)""",
            "UPDATE t SET id = 4 WHERE id = 2",
            """UPDATE t SET j = '[{"a": 7}]' WHERE id = 1""",
            "DELETE FROM t WHERE id = 4",
        ),
        since=17,
    ),
    "JSON_TABLE that finds nothing": Trap(
        """CREATE TABLE t (id int PRIMARY KEY, j jsonb); INSERT INTO t VALUES (1, '[1, 2]'), (2, '[]')""",
        "SELECT t.id, count(x.v) AS n, sum(x.v) AS s FROM t LEFT JOIN JSON_TABLE(t.j, '$[*]' COLUMNS (v int"
        " PATH '$')) AS x ON true GROUP BY t.id",
        ("UPDATE t SET j = '[3]' WHERE id = 2", "UPDATE t SET j = '[]' WHERE id = 1"),
        since=17,
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
        outcome = hw.refresh("st")[-1]
        assert outcome.action == "delta" or not trap.by_delta, outcome.reason
        assert hw.verify("st").equal, change
