"""Each construct of SELECT by itself: maintained by deltas, it equals recomputation after each of them."""

from __future__ import annotations

import random
from collections.abc import Callable

import psycopg
import pytest
from tests.oracle.chance import SEED

from headwater import Headwater
from headwater.catalog import EngineName

TABLES = """
CREATE TABLE a (id int PRIMARY KEY, x int, t text, arr int[], j jsonb);
CREATE TABLE b (id int PRIMARY KEY, aid int, y int, t text);
CREATE TABLE c (id int PRIMARY KEY, bid int, z int);
CREATE TABLE k (v int, w text);
"""
ROUNDS: dict[EngineName, int] = {"postgres": 4, "spark": 1}

CONSTRUCTS = {
    "left join": ("SELECT a.id, a.x, b.y FROM a LEFT JOIN b ON b.aid = a.id"),
    "right join": ("SELECT a.id, a.x, b.y FROM a RIGHT JOIN b ON b.aid = a.id AND a.x > 2"),
    "full join": ("SELECT a.id, a.x, b.y FROM a FULL JOIN b ON b.aid = a.id"),
    "full join with USING": ("SELECT id, a.x, b.y FROM a FULL JOIN b USING (id)"),
    "USING over USING": (
        "SELECT id, a.x, b.y, c.z FROM a LEFT JOIN b USING (id) FULL JOIN c USING (id)"
        " RIGHT JOIN b AS d USING (id)"
    ),
    "chain of left joins": (
        "SELECT a.id, b.y, c.z FROM a LEFT JOIN b ON b.aid = a.id LEFT JOIN c ON c.bid = b.id"
    ),
    "left join by comparison": ("SELECT a.id, b.y FROM a LEFT JOIN b ON b.y < a.x"),
    "aggregate over a left join": (
        "SELECT a.x, count(b.id) AS n, sum(b.y) AS s FROM a LEFT JOIN b ON b.aid = a.id GROUP BY a.x"
    ),
    "left join of an aggregate": (
        "SELECT a.id, s.n FROM a LEFT JOIN (SELECT aid, count(*) AS n FROM b GROUP BY aid) s ON s.aid = a.id"
    ),
    "join of an aggregate": (
        "SELECT a.id, s.n, s.m FROM a JOIN (SELECT aid, count(*) AS n, max(y) AS m FROM b "
        "GROUP BY aid) s ON s.aid = a.id"
    ),
    "aggregate of an aggregate": (
        "SELECT n, count(*) AS k FROM (SELECT aid, count(*) AS n FROM b GROUP BY aid) s GROUP BY n"
    ),
    "EXISTS": ("SELECT a.id FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.aid = a.id AND b.y > 2)"),
    "NOT EXISTS": ("SELECT a.id, a.x FROM a WHERE NOT EXISTS (SELECT 1 FROM b WHERE b.aid = a.id)"),
    "IN": ("SELECT a.id FROM a WHERE a.x IN (SELECT y FROM b)"),
    "NOT IN with NULLs": ("SELECT a.id FROM a WHERE a.x NOT IN (SELECT y FROM b WHERE id > 5)"),
    "EXISTS in OR": ("SELECT a.id FROM a WHERE a.x = 1 OR EXISTS (SELECT 1 FROM b WHERE b.aid = a.id)"),
    "ANY and ALL": (
        "SELECT a.id, a.x > ANY (SELECT y FROM b) AS p, a.x >= ALL (SELECT y FROM b WHERE y IS "
        "NOT NULL) AS q FROM a"
    ),
    "scalar subqueries": (
        "SELECT a.id, (SELECT max(y) FROM b WHERE b.aid = a.id) AS m, (SELECT count(*) FROM c) AS n FROM a"
    ),
    "comparison with a scalar subquery": ("SELECT a.id FROM a WHERE a.x > (SELECT avg(y) FROM b)"),
    "subquery in a correlated one": (
        "SELECT a.id FROM a WHERE a.x < (SELECT sum(b.y) FROM b WHERE b.aid = a.id AND EXISTS "
        "(SELECT 1 FROM c WHERE c.bid = b.id))"
    ),
    "subquery that refers two levels out": (
        "SELECT a.id FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.aid = a.id AND EXISTS "
        "(SELECT 1 FROM c WHERE c.bid = b.id AND c.z = a.x))"
    ),
    "subquery in HAVING": (
        "SELECT a.x, count(*) AS n FROM a GROUP BY a.x HAVING count(*) > (SELECT count(*) / 10 FROM b)"
    ),
    "windows of one partition": (
        "SELECT a.id, a.x, row_number() OVER (PARTITION BY a.x ORDER BY a.id) AS r, sum(a.id) "
        "OVER (PARTITION BY a.x) AS s FROM a"
    ),
    "named window, partitions that share a key": (
        "SELECT a.id, rank() OVER w AS r, count(*) OVER (PARTITION BY a.x, a.t) AS s FROM a "
        "WINDOW w AS (PARTITION BY a.x ORDER BY a.id)"
    ),
    "windows of different partitions": (
        "SELECT a.id, row_number() OVER (PARTITION BY a.x ORDER BY a.id) AS r, count(*) OVER "
        "(PARTITION BY a.t) AS s FROM a"
    ),
    "window over groups": (
        "SELECT a.x, count(*) AS n, rank() OVER (ORDER BY count(*) DESC, a.x) AS r FROM a GROUP BY a.x"
    ),
    "first rows of each partition": (
        "SELECT * FROM (SELECT a.id, a.x, row_number() OVER (PARTITION BY a.x ORDER BY a.id "
        "DESC) AS r FROM a) s WHERE s.r <= 2"
    ),
    "DISTINCT ON": ("SELECT DISTINCT ON (a.x) a.x, a.id, a.t FROM a ORDER BY a.x, a.id DESC"),
    "LIMIT and OFFSET": ("SELECT a.id, a.x FROM a ORDER BY a.x DESC NULLS LAST, a.id LIMIT 5 OFFSET 1"),
    "WITH TIES": ("SELECT a.id, a.x FROM a ORDER BY a.x FETCH FIRST 3 ROWS WITH TIES"),
    "EXCEPT": ("SELECT x FROM a EXCEPT SELECT y FROM b"),
    "EXCEPT ALL": ("SELECT x, t FROM a EXCEPT ALL SELECT y, t FROM b"),
    "INTERSECT": ("SELECT x FROM a INTERSECT SELECT y FROM b"),
    "INTERSECT ALL": ("SELECT x FROM a INTERSECT ALL SELECT y FROM b"),
    "UNION in UNION ALL": ("SELECT x FROM a UNION ALL (SELECT y FROM b UNION SELECT z FROM c)"),
    "GROUPING SETS": (
        "SELECT a.x, a.t, count(*) AS n, grouping(a.x, a.t) AS g FROM a GROUP BY GROUPING SETS "
        "((a.x), (a.x, a.t), ())"
    ),
    "ROLLUP": ("SELECT a.x, a.t, sum(a.id) AS n FROM a GROUP BY ROLLUP (a.x, a.t)"),
    "CUBE with HAVING": (
        "SELECT a.x, a.t, sum(a.id) AS n FROM a GROUP BY CUBE (a.x, a.t) HAVING count(*) > 1"
    ),
    "LATERAL with LIMIT": (
        "SELECT a.id, s.y FROM a CROSS JOIN LATERAL (SELECT b.y FROM b WHERE b.aid = a.id "
        "ORDER BY b.y, b.id LIMIT 1) s"
    ),
    "LEFT JOIN LATERAL": (
        "SELECT a.id, s.y FROM a LEFT JOIN LATERAL (SELECT max(b.y) AS y FROM b WHERE b.aid = "
        "a.id AND b.y < a.x) s ON true"
    ),
    "unnest": ("SELECT a.id, u.e FROM a, unnest(a.arr) AS u(e)"),
    "WITH ORDINALITY": ("SELECT a.id, u.e, u.n FROM a, unnest(a.arr) WITH ORDINALITY AS u(e, n)"),
    "LEFT JOIN of unnest": ("SELECT a.id, u.e FROM a LEFT JOIN LATERAL unnest(a.arr) AS u(e) ON true"),
    "set in the select list": ("SELECT a.id, unnest(a.arr) AS e FROM a"),
    "generate_series": ("SELECT a.id, g FROM a CROSS JOIN generate_series(1, 3) AS g WHERE g < a.x"),
    "elements of a json array": ("SELECT a.id, j.value FROM a, jsonb_array_elements(a.j) AS j(value)"),
    "WITH read twice": (
        "WITH s AS (SELECT aid, sum(y) AS t FROM b GROUP BY aid) SELECT a.id, s1.t, s2.t AS t2 "
        "FROM a JOIN s s1 ON s1.aid = a.id LEFT JOIN s s2 ON s2.aid = a.x"
    ),
    "DISTINCT over GROUP BY": ("SELECT DISTINCT count(*) AS n FROM b GROUP BY aid"),
    "row IN": ("SELECT a.id FROM a WHERE (a.x, a.t) IN (SELECT b.y, b.t FROM b)"),
    "subqueries in CASE and COALESCE": (
        "SELECT a.id, CASE WHEN EXISTS (SELECT 1 FROM b WHERE b.aid = a.id) THEN 'yes' ELSE "
        "'no' END AS e, COALESCE((SELECT min(y) FROM b WHERE b.aid = a.id), -1) AS m FROM a"
    ),
    "aggregate of a subquery": (
        "SELECT a.x, sum((SELECT count(*) FROM b WHERE b.aid = a.id)) AS n FROM a GROUP BY a.x"
    ),
    "ordered aggregates over a left join": (
        "SELECT a.x, percentile_cont(0.5) WITHIN GROUP (ORDER BY a.id) AS p, string_agg(a.t, "
        "',' ORDER BY a.id) AS t FROM a LEFT JOIN b ON b.aid = a.id GROUP BY a.x"
    ),
    "aggregate without a key": ("SELECT count(*) AS n, sum(x) AS s FROM a"),
    "join with a global aggregate": (
        "SELECT s.n, a.id FROM a, (SELECT count(*) AS n FROM b) s WHERE a.x < s.n"
    ),
    "correlation by comparison": ("SELECT a.id, (SELECT count(*) FROM b WHERE b.y < a.x) AS n FROM a"),
    "IN in OR": ("SELECT a.id FROM a WHERE a.x IN (SELECT y FROM b) OR a.t = 'p'"),
    "ARRAY of a subquery": (
        "SELECT a.id, ARRAY(SELECT b.y FROM b WHERE b.aid = a.id ORDER BY b.y, b.id) AS ys FROM a"
    ),
    "EXISTS with a join": (
        "SELECT a.x, count(*) AS n FROM a WHERE EXISTS (SELECT 1 FROM b JOIN c ON c.bid = b.id "
        "WHERE b.aid = a.id AND c.z > 1) GROUP BY a.x"
    ),
    "self left join": ("SELECT p.id, q.id AS q FROM a p LEFT JOIN a q ON q.x = p.x AND q.id < p.id"),
    "inner and left joins": (
        "SELECT a.id, b.y, c.z FROM a JOIN b ON b.aid = a.id LEFT JOIN c ON c.bid = b.id WHERE "
        "c.z IS NULL OR c.z > 1"
    ),
    "left join of a join": (
        "SELECT a.id, s.y FROM a LEFT JOIN (b JOIN c ON c.bid = b.id) ON b.aid = a.id LEFT "
        "JOIN LATERAL (SELECT b.y) s ON true"
    ),
    "left join of a table without a key": (
        "SELECT k.v, count(*) AS n FROM k LEFT JOIN a ON a.x = k.v GROUP BY k.v"
    ),
    "EXCEPT ALL of a table without a key": ("SELECT v FROM k EXCEPT ALL SELECT x FROM a"),
}


class Writer:
    """Random writes to the tables; small domains, so that rows meet."""

    def __init__(self, conn: psycopg.Connection, chance: random.Random) -> None:
        self.conn, self.chance, self.last = conn, chance, 0

    def write(self, statements: int) -> None:
        with self.conn.transaction():
            for _ in range(statements):
                table = self.chance.choice("aabbck")
                kind = self.chance.random()
                if kind < 0.5:
                    self._insert(table)
                else:
                    self._change(table, delete=kind > 0.8)

    def _insert(self, table: str) -> None:
        self.last += 1
        other = self._number(self.last + 1)
        values: dict[str, tuple[object, ...]] = {
            "a": (
                self.last,
                self._number(6),
                self._text(),
                self._array(),
                self.chance.choice((None, "[1, 2]")),
            ),
            "b": (self.last, other, self._number(6), self._text()),
            "c": (self.last, other, self._number(6)),
            "k": (self._number(4), self._text()),
        }
        marks = ", ".join(["%s"] * len(values[table]))
        self.conn.execute(f"INSERT INTO {table} VALUES ({marks})", values[table])

    def _change(self, table: str, *, delete: bool) -> None:
        key = "v" if table == "k" else "id"
        rows = self.conn.execute(f"SELECT DISTINCT {key} FROM {table} ORDER BY 1").fetchall()
        if not rows:
            return
        chosen = self.chance.choice(rows)[0]
        if delete:
            self.conn.execute(f"DELETE FROM {table} WHERE {key} IS NOT DISTINCT FROM %s", (chosen,))
            return
        column = self.chance.choice({"a": ["x"], "b": ["y", "aid"], "c": ["z", "bid"], "k": ["v"]}[table])
        self.conn.execute(
            f"UPDATE {table} SET {column} = %s WHERE {key} IS NOT DISTINCT FROM %s", (self._number(6), chosen)
        )

    def _number(self, below: int) -> int | None:
        return None if self.chance.random() < 0.15 else self.chance.randrange(below)

    def _text(self) -> str | None:
        return self.chance.choice(("p", "q", None))

    def _array(self) -> list[int | None] | None:
        return (
            None if self.chance.random() < 0.2 else [self._number(4) for _ in range(self.chance.randrange(3))]
        )


@pytest.mark.differential
def test_constructs(
    dsn: str, conn: psycopg.Connection, connect: Callable[[str], Headwater], engine: EngineName
) -> None:
    print(f"HEADWATER_SEED={SEED}")
    conn.execute(TABLES)
    writer = Writer(conn, random.Random(SEED))
    writer.write(60)
    with connect(dsn) as hw:
        compare(hw, writer, ROUNDS[engine])


def compare(hw: Headwater, writer: Writer, rounds: int) -> None:
    names = {f"s{number}": title for number, title in enumerate(CONSTRUCTS)}
    for name, title in names.items():
        made = hw.create(name, CONSTRUCTS[title], engine="postgres")  # loads are not what is tried here
        assert made.mode == "differential", f"{title}: {made.mode_reasons}"
    for _ in range(rounds):
        writer.write(writer.chance.choice((1, 1, 3, 8)))
        for name, title in names.items():
            outcome = hw.refresh(name)[-1]
            assert outcome.action in ("delta", "nothing"), f"{title}: {outcome.reason}"
            found = hw.verify(name)
            assert found.equal, f"{title}: missing {found.missing}, surplus {found.surplus}"
