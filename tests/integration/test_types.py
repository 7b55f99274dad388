"""Columns of every built-in type: passed through, grouped by where the type allows it, NULLs included."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from tests.integration.support import assert_equal, refresh

from headwater import Headwater

Connection = psycopg.Connection[Any]

pytestmark = pytest.mark.differential

# Type to the texts of some values, among them those whose equality is coarser than their text.
VALUES: dict[str, list[str]] = {
    "smallint": ["-32768", "0", "7"],
    "integer": ["-2147483648", "0", "7"],
    "bigint": ["-9223372036854775808", "0", "7"],
    "numeric": ["1.0", "1.00", "NaN", "Infinity", "-Infinity", "-0.5", "1e50"],
    "numeric(6,2)": ["1.10", "-1", "NaN"],
    "real": ["0", "-0", "NaN", "Infinity", "-Infinity", "1.1", "3.4e38"],
    "double precision": ["0", "-0", "NaN", "Infinity", "-Infinity", "0.1", "1e-300"],
    "boolean": ["true", "false"],
    "text": ["", "a", "A", "größe", "it's", "back\\\\slash", "NULL", "x y"],
    "varchar(5)": ["", "abc"],
    "char(4)": ["", "ab", "abcd"],
    '"char"': ["x", ""],
    "name": ["someone", ""],
    "bytea": ["\\\\x", "\\\\x00ff27"],
    "date": ["2024-02-29", "infinity", "-infinity", "4713-01-01 BC"],
    "time": ["00:00", "24:00", "12:34:56.789"],
    "timetz": ["12:00+00", "13:00+01", "12:00-05"],
    "timestamp": ["2024-02-29 12:00", "infinity", "-infinity"],
    "timestamptz": ["2024-02-29 12:00+00", "infinity", "-infinity", "0044-03-15 12:00+00 BC"],
    "interval": ["1 month", "30 days", "24 hours", "1 day", "-1 year 2 days"],
    "uuid": ["00000000-0000-0000-0000-000000000000", "123e4567-e89b-12d3-a456-426614174000"],
    "json": ['{"a": 1}', '{"a":1}', "null", "[]"],
    "jsonb": ['{"a": 1.0}', '{"a": 1.00}', "null", '"x"'],
    "inet": ["10.0.0.1", "10.0.0.1/8", "::1"],
    "cidr": ["10.0.0.0/8", "::/0"],
    "macaddr": ["08:00:2b:01:02:03"],
    "macaddr8": ["08:00:2b:01:02:03:04:05"],
    "bit(3)": ["101", "000"],
    "varbit": ["", "1", "10"],
    "money": ["1.10", "-5"],
    "point": ["(0,0)", "(1.5,-2)"],
    "line": ["{1,2,3}"],
    "lseg": ["[(0,0),(1,1)]"],
    "box": ["(1,1),(0,0)", "(2,0.5),(0,0)"],
    "path": ["((0,0),(1,1))", "[(0,0),(1,1)]"],
    "polygon": ["((0,0),(1,1),(2,0))"],
    "circle": ["<(0,0),1>", "<(5,5),1>"],
    "int4range": ["[1,5)", "empty", "(,3)"],
    "numrange": ["[1.0,2]", "[1.00,2]"],
    "tstzrange": ["[2024-01-01 00:00+00,infinity)"],
    "int4multirange": ["{[1,3),[5,8)}", "{}"],
    "tsvector": ["'cat':1 'sat':2", ""],
    "tsquery": ["'cat' & 'sat'"],
    "oid": ["0", "4294967295"],
    "regclass": ["pg_class"],
    "pg_lsn": ["0/0", "16/B374D848"],
    "xid8": ["3", "18446744073709551615"],
    "integer[]": ["{}", "{1,NULL,3}", "[0:1]={1,2}", "{{1,2},{3,4}}"],
    "text[]": ["{}", '{a,"b c",NULL}', '{"NULL",""}'],
    "numeric[]": ["{1.0}", "{1.00,NaN}"],
    "double precision[]": ["{0}", "{-0,NaN}"],
    "json[]": ['{"{}"}'],
    "timestamptz[]": ["{infinity,2024-01-01 00:00+00}"],
    "mood": ["sad", "happy"],
    "mood[]": ["{sad,happy}"],
    "positive": ["1", "7"],
    "required": ["a", "b"],
    "price": ["1.0", "1.00"],
    "pair": ["(1,x)", "(,)", '(2,"a, b")'],
    "pair[]": ['{"(1,x)","(,)"}'],
    "labelled": ["(1.0,x)", "(1.00,x)"],
    "floatrange": ["[0,1)", "[-0,1)"],
}  # fmt: skip

NOT_GROUPABLE = {
    "json", "json[]", "point", "line", "box", "lseg", "path", "polygon", "circle",
}  # fmt: skip


OWN_TYPES = """
CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE DOMAIN required AS text NOT NULL;
CREATE DOMAIN price AS numeric;
CREATE TYPE pair AS (a int, b text);
CREATE TYPE labelled AS (amount numeric, label varchar(5));
CREATE TYPE floatrange AS RANGE (subtype = float8);
"""


@pytest.fixture(autouse=True)
def own_types(conn: Connection) -> None:
    conn.execute(OWN_TYPES)


def fill(conn: Connection, kind: str, texts: list[str]) -> None:
    """A table t with a column of the type: each value twice, and NULLs unless the type forbids them."""
    conn.execute(f"CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY, v {kind})")
    copies = "generate_series(1, 2)"
    for text in texts:
        quoted = "E'" + text.replace("'", "''") + "'"
        conn.execute(f"INSERT INTO t (v) SELECT {quoted}::{kind} FROM {copies}")
    if kind != "required":
        conn.execute("INSERT INTO t (v) VALUES (NULL), (NULL)")


CHANGES = [
    "UPDATE t SET v = n.v FROM t n WHERE n.id = (t.id + 2) % (SELECT max(id) FROM t) + 1",
    "WITH gone AS (DELETE FROM t WHERE id % 2 = 0 RETURNING v) INSERT INTO t (v) SELECT v FROM gone LIMIT 2",
    "DELETE FROM t",
]
"""Writes that turn each value into the next, take one copy of each and add some, and delete all."""


@pytest.mark.parametrize("kind", sorted(NOT_GROUPABLE))
def test_a_column_passes_through(hw: Headwater, conn: Connection, kind: str) -> None:
    fill(conn, kind, VALUES[kind])
    hw.create("rows", "SELECT v FROM t", mode="differential")
    for change in CHANGES:
        conn.execute(change)
        assert refresh(hw, "rows").action == "delta"


@pytest.mark.parametrize("kind", [kind for kind in VALUES if kind not in NOT_GROUPABLE])
def test_a_column_passes_through_and_is_a_key(hw: Headwater, conn: Connection, kind: str) -> None:
    fill(conn, kind, VALUES[kind])
    hw.create("rows", "SELECT v FROM t", mode="differential")
    hw.create("counts", "SELECT v, count(*) AS n, max(id) AS last FROM t GROUP BY v", mode="differential")
    for change in CHANGES:
        conn.execute(change)
        assert refresh(hw, "rows").action == "delta"
        assert hw.refresh("counts")[-1].action == "delta"
        assert_equal(hw, "counts")


COARSE = ["numeric", "real", "double precision", "char(4)", "interval", "jsonb", "numeric[]", "labelled"]
"""Types of which equal values can be told apart by their text."""


@pytest.mark.parametrize("kind", COARSE)
def test_a_coarse_equality_joins_and_removes_duplicates(hw: Headwater, conn: Connection, kind: str) -> None:
    fill(conn, kind, VALUES[kind])
    hw.create("kinds", "SELECT DISTINCT v FROM t", mode="differential")
    hw.create("pairs", "SELECT l.v, r.id FROM t l JOIN t r ON r.v = l.v", mode="differential")
    for change in CHANGES:
        conn.execute(change)
        assert refresh(hw, "pairs").action == "delta"
        assert hw.refresh("kinds")[-1].action == "delta"
        assert_equal(hw, "kinds")


def test_xml_passes_through(hw: Headwater, conn: Connection) -> None:
    try:
        conn.execute("SELECT '<a/>'::xml")
    except psycopg.errors.FeatureNotSupported:
        pytest.skip("this server was built without XML")
    fill(conn, "xml", ["<a/>", "<a></a>"])
    hw.create("st", "SELECT v FROM t", mode="differential")
    for change in CHANGES:
        conn.execute(change)
        assert refresh(hw, "st").action == "delta"


def test_a_large_value_is_read_back_when_a_column_beside_it_changes(hw: Headwater, conn: Connection) -> None:
    conn.execute("CREATE TABLE t (id int PRIMARY KEY, n int, big text)")
    conn.execute("INSERT INTO t SELECT i, 0, repeat(md5(i::text), 5000) FROM generate_series(1, 3) AS i")
    hw.create("st", "SELECT id, n, big FROM t")
    conn.execute("UPDATE t SET n = n + 1")
    assert refresh(hw, "st").action == "delta"
    conn.execute("UPDATE t SET big = big || 'x' WHERE id = 2")
    assert refresh(hw, "st").applied.inserted == 1


def test_a_collation_decides_what_is_equal(hw: Headwater, conn: Connection) -> None:
    collation = "provider = icu, locale = 'und-u-ks-level2', deterministic = false"
    try:
        conn.execute(f"CREATE COLLATION ignore_case ({collation})")
    except psycopg.errors.FeatureNotSupported:
        pytest.skip("this server was built without ICU")
    conn.execute('CREATE TABLE t (id int, v text COLLATE ignore_case, w text COLLATE "C")')
    conn.execute("INSERT INTO t VALUES (1, 'a', 'a'), (2, 'A', 'A'), (3, 'b', NULL)")
    hw.create("rows", "SELECT v, w FROM t", mode="differential")
    hw.create("groups", "SELECT v, count(*) AS n FROM t GROUP BY v", mode="differential")
    for change in (
        "UPDATE t SET v = upper(v)",
        "INSERT INTO t VALUES (4, 'B', 'x')",
        "DELETE FROM t WHERE id = 3",
        "DELETE FROM t WHERE v = 'a'",
    ):
        conn.execute(change)
        assert refresh(hw, "rows").action == "delta"
        assert hw.refresh("groups")[-1].action == "delta"
        assert_equal(hw, "groups")


@pytest.mark.parametrize(
    ("query", "mode"),
    [
        ("SELECT k, nullif(k, j) AS n FROM c1", "full"),
        ("SELECT k, k IS DISTINCT FROM j AS n FROM c1", "full"),
        ("SELECT c1.k, c2.x FROM c1 JOIN c2 USING (k)", "full"),
        ("SELECT k, CASE k WHEN j THEN 1 ELSE 2 END AS n FROM c1", "full"),
        ("SELECT c1.k, c2.x FROM c1 JOIN c2 ON c1.k = c2.k", "differential"),
        ("SELECT k, count(*) AS n FROM c1 GROUP BY k", "differential"),
        ("SELECT DISTINCT k FROM c1", "differential"),
        ("SELECT k = j AS same, max(k) AS top FROM c1 GROUP BY k = j", "differential"),
    ],
)
def test_operators_of_an_extension_keep_their_meaning(
    hw: Headwater, conn: Connection, query: str, mode: str
) -> None:
    """What names no operator (NULLIF, USING) would find another one without the user's search_path."""
    try:
        conn.execute("CREATE EXTENSION citext")
    except psycopg.errors.FeatureNotSupported:
        pytest.skip("this server has no citext")
    conn.execute("CREATE TABLE c1 (k citext, j citext)")
    conn.execute("CREATE TABLE c2 (k citext, x int)")
    conn.execute("INSERT INTO c1 VALUES ('A', 'a'), ('b', 'c'), (NULL, 'd')")
    conn.execute("INSERT INTO c2 VALUES ('a', 1), ('B', 2)")
    assert hw.create("st", query).mode == mode
    assert_equal(hw, "st")
    conn.execute("INSERT INTO c1 VALUES ('a', 'A'), ('B', 'b')")
    conn.execute("UPDATE c2 SET k = 'b' WHERE x = 1")
    hw.refresh("st")
    assert_equal(hw, "st")


@pytest.mark.parametrize("key", ["k", "coalesce(k, 'z')"])
def test_partitions_are_found_by_the_equality_of_their_type(
    hw: Headwater, conn: Connection, key: str
) -> None:
    """One changed row of c2 finds rows of c1 by g; the partitions of these have rows that differ in case."""
    try:
        conn.execute("CREATE EXTENSION citext")
    except psycopg.errors.FeatureNotSupported:
        pytest.skip("this server has no citext")
    conn.execute("CREATE TABLE c1 (k citext, g int, x int)")
    conn.execute("CREATE TABLE c2 (g int)")
    conn.execute("INSERT INTO c1 VALUES ('A', 1, 10), ('a', 2, 20), ('b', 1, 5), (NULL, 1, 3), (NULL, 2, 2)")
    query = (
        "SELECT c2.g, w.k, w.total FROM c2 JOIN"
        f" (SELECT k, g, sum(x) OVER (PARTITION BY {key}) AS total FROM c1) AS w ON w.g = c2.g"
    )
    assert hw.create("st", query).mode == "differential"
    conn.execute("INSERT INTO c2 VALUES (1)")
    assert refresh(hw, "st").action == "delta"
    assert_equal(hw, "st")
    assert ("a", 30) in conn.execute("SELECT lower(k), total FROM st").fetchall()
