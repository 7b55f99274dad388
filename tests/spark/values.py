"""Values at the edges of every type, as two tables whose cross join has every pair of every type.

A table has a column for each type; its rows hold the values of all types side by side, and NULL where a type
has no more of them. The server makes each value from its text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psycopg

from headwater.db.connection import Connection
from headwater.db.scratch import statement
from headwater.plan.quoting import literal

TYPES = """
CREATE SCHEMA edge;
CREATE TYPE edge.mood AS ENUM ('sad', 'ok', 'happy', 'Angry');
ALTER TYPE edge.mood ADD VALUE 'bored' BEFORE 'ok';
CREATE TYPE edge.pair AS (n numeric, t text);
CREATE DOMAIN edge.whole AS integer CHECK (VALUE <> 13);
CREATE DOMAIN edge.amount AS numeric(12,2);
CREATE DOMAIN edge.tenths AS numeric(9,1);
CREATE DOMAIN edge.decimal AS numeric CHECK (VALUE <> 13);
CREATE DOMAIN edge.label AS text COLLATE "C";
CREATE DOMAIN edge.code AS char(4);
CREATE DOMAIN edge.day AS date;
CREATE DOMAIN edge.flag AS boolean;
CREATE DOMAIN edge.span AS interval;
CREATE DOMAIN edge.couple AS edge.pair;
CREATE DOMAIN edge.list AS numeric[];
CREATE TYPE edge.shouted AS ENUM ('low', 'high');
CREATE FUNCTION edge.shout(edge.shouted) RETURNS text LANGUAGE sql IMMUTABLE AS $$SELECT 'LOUD'$$;
CREATE CAST (edge.shouted AS text) WITH FUNCTION edge.shout;
"""


@dataclass(frozen=True)
class Edge:
    """A column: its type with its collation, and the texts of its values."""

    type: str
    values: Sequence[str | None]
    collation: str = ""
    since: int = 0  # the version of the server that has such values
    later: Sequence[str] = ()  # values of that version only


_INTEGERS = ["0", "1", "-1", "2", "-3", "7", "13", "100"]
_WORDS = [
    "", "a", "A", "ab", "a b", "a ", "B", "b", "z", "é", "e\u0301", "ß", "ss", "SS", "Æ", "æ",
    "\ufffd", "\ue000", "\U0001f600", "\U0010ffff", "日本", "\u200b", "\ufeffa", "a\tb", "a\nb", "a\r\nb",
    "\\", "\\N", "\\.", "'", '"', '""', ",", "NULL", "null", "\x01", "\x7f", "-", "10", "9",
]  # fmt: skip

NUMBERS: dict[str, Edge] = {
    "i2": Edge("smallint", [*_INTEGERS, "32767", "-32768", "181", "182", "-5"]),
    "i4": Edge("integer", [*_INTEGERS, "2147483647", "-2147483648", "46341", "65536", "-5"]),
    "i8": Edge(
        "bigint",
        [*_INTEGERS, "9223372036854775807", "-9223372036854775808", "3037000500", "9007199254740993", "-5",
         "9007199254740992", "4294967296", "9223372036854775806"],
    ),
    "n": Edge(
        "numeric",
        ["0", "-0", "1", "1.0", "1.00", "1.005", "1.01", "-1.01", "0.1", "-2.5", "7", "1e-4", "0.12345678",
         "1e-18", "9999999999999999999", "1." + "0" * 30, "123456789.123456789", "9007199254740993", "13"],
    ),
    # Beyond what Spark can hold, most of them.
    "far": Edge(
        "numeric",
        ["0", "1.0", "1e-19", "99999999999999999999", "1e20", "1e38", "1e400", "-1e400", "NaN",
         "Infinity", "-Infinity", "0." + "0" * 400, "0." + "0" * 400 + "1"],
    ),
    "far2": Edge("numeric(12,2)", ["0", "1", "NaN"]),
    "far60": Edge("numeric(60,2)", ["0", "1.01", "1e20", "1e36", "9e35", "1e57", "-1e57"]),
    "d2": Edge("numeric(12,2)", ["0", "1", "1.01", "-1.01", "9999999999.99", "0.5", "7", "-2.5"]),
    "d4": Edge("numeric(9,4)", ["0", "1", "1.01", "1.005", "1.0101", "-1.01", "99999.9999", "0.0001"]),
    "d18": Edge("numeric(38,18)", ["0", "1", "1.005", "1.01", "1e-18", "-1e-18", "9999999999999999999.9"]),
    "d20": Edge("numeric(30,20)", ["0", "1", "1.01", "1e-20", "-1e-20", "9999999999.99"]),
    "d0": Edge("numeric(19)", ["0", "1", "-1", "9999999999999999999", "-9999999999999999999", "7"]),
    "thousands": Edge("numeric(6,-3)", ["0", "12000", "-999999000", "1499"]),
    "f4": Edge(
        "real",
        ["0", "-0", "0.1", "1", "1.01", "NaN", "Infinity", "-Infinity", "1e-45", "3.4e38", "16777217"],
    ),
    "f8": Edge(
        "double precision",
        ["0", "-0", "0.1", "1", "1.01", "NaN", "Infinity", "-Infinity", "5e-324", "2.2250738585072011e-308",
         "1.7976931348623157e308", "9007199254740992", "9007199254740994", "-1e308", "1e15", "123456.789"],
    ),
    "whole": Edge("edge.whole", ["0", "1", "-1", "2147483647", "7", "12"]),
    "decimal": Edge("edge.decimal", ["0", "1.0", "1.00", "NaN", "1e-19", "7", "12"]),
    "amount": Edge("edge.amount", ["0", "1", "1.01", "NaN"]),
    "tenths": Edge("edge.tenths", ["0", "1", "1.05", "-1.05"]),
}  # fmt: skip

OTHERS: dict[str, Edge] = {
    "truth": Edge("boolean", ["true", "false"]),
    "flag": Edge("edge.flag", ["true", "false"]),
    "v": Edge("varchar(9)", ["", "a", "a  ", "A", "é"], "C"),
    "v_db": Edge("varchar", ["", "a", "a  ", "A", "é"]),
    "c": Edge("char(4)", ["", "a", "a\t", "ab", "abcd", "A", "é"], "C"),
    "c_db": Edge("char(4)", ["", "a", "a\t", "ab", "abcd", "A", "é"]),
    "c7": Edge("char(7)", ["", "a", "a\t", "ab", "abcd", "abcd  e"], "C"),
    "b": Edge("bpchar", ["", "a", "a  ", "a b ", " "], "C"),
    "label": Edge("edge.label", ["", "a", "A", "é"]),
    "code": Edge("edge.code", ["", "a", "a\t", "A"]),
    "name": Edge("name", ["", "a", "A", "é"]),
    "sign": Edge('"char"', ["", "a", "A", " "]),
    "day": Edge(
        "date",
        ["infinity", "-infinity", "4713-01-01 BC", "0001-12-31 BC", "0001-01-01", "1582-10-15", "1999-12-31",
         "2000-01-01", "2024-02-29", "2024-03-31", "5874897-12-31"],
    ),
    "workday": Edge("edge.day", ["infinity", "2000-01-01", "2024-02-29"]),
    "stamp": Edge(
        "timestamp",
        ["infinity", "-infinity", "4713-11-24 00:00 BC", "0044-03-15 12:00 BC", "0001-01-01", "2000-01-01",
         "1969-12-31 23:59:59.999999", "2024-03-31 02:30", "2024-03-31 02:30:00.000001",
         "294276-12-31 23:59:59.999999", "294247-01-10 04:00:54.775808"],
    ),
    "stamp3": Edge("timestamp(3)", ["2000-01-01", "2024-03-31 02:30:00.123", "infinity"]),
    "moment": Edge(
        "timestamptz",
        ["infinity", "-infinity", "4713-11-25 00:00+00 BC", "0044-03-15 12:00+00 BC", "1880-01-01 00:00+00",
         "2024-03-31 00:59:59.999999+00", "2024-03-31 01:00+00", "2024-10-27 00:30+00", "2024-10-27 01:30+00",
         "294276-12-31 23:59:59.999999+00", "294276-12-30 00:00+00"],
    ),
    "clock": Edge("time", ["00:00", "24:00", "12:34:56.789012", "23:59:59.999999"]),
    "zoned": Edge("timetz", ["12:00+00", "13:00+01", "00:00-15", "24:00+00", "12:00:00.000001+05:30:30"]),
    "span": Edge(
        "interval",
        ["0", "1 month", "30 days", "720:00", "1 day", "24:00", "1 month -1 day", "29 days", "1 year",
         "-1 month +30 days", "360 days", "12 months", "0.000001 sec", "-0.000001 sec", "-1 day +24:00",
         "1 mon -30 days +00:00:01",
         "178956970 years 7 months", "-178956970 years -8 months", "2147483647 days", "-2147483648 days",
         "2562047788:00:54.775807", "-2562047788:00:54.775807"],
        since=17,
        later=["infinity", "-infinity"],
    ),
    "span_domain": Edge("edge.span", ["0", "1 month", "30 days"], since=17, later=["infinity"]),
    "span_field": Edge("interval day to second(3)", ["0", "1 day", "24:00"]),
    "id": Edge(
        "uuid",
        ["00000000-0000-0000-0000-000000000000", "7fffffff-ffff-ffff-ffff-ffffffffffff",
         "80000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"],
    ),
    "bytes": Edge("bytea", ["\\x", "\\x00", "\\x0000", "\\x7f", "\\x80", "\\xff", "\\xffee", "\\x27225c"]),
    "inet": Edge("inet", ["10.0.0.1", "10.0.0.1/8", "10.0.0.0/8", "::1", "::1/64", "0.0.0.0/0"]),
    "cidr": Edge("cidr", ["10.0.0.0/8", "10.0.0.1", "::/0", "::1"]),
    "mac": Edge("macaddr", ["08:00:2b:01:02:03", "ff:ff:ff:ff:ff:ff"]),
    "mac8": Edge("macaddr8", ["08:00:2b:01:02:03:04:05"]),
    "bit": Edge("bit(3)", ["101", "000"]),
    "bits": Edge("varbit", ["", "0", "00", "1", "10"]),
    "json": Edge("json", ['{"a": 1}', '{"a":1}', "null", "[]", '"\\u00e9"']),
    "jsonb": Edge("jsonb", ['{"a": 1.0}', '{"a": 1.00}', "null", '"x"', "[]", '{"b": 1, "a": 2}']),
    "ints": Edge("integer[]", ["{}", "{1,2}", "{1,NULL}", "[2:3]={1,2}", "{{1,2},{3,4}}", "{NULL}"]),
    "texts": Edge("text[]", ["{}", '{""}', '{NULL,"NULL"}', '{"a b","c\\"d","\\\\"}', "{é}"]),
    "list": Edge("edge.list", ["{}", "{1.0}", "{1.00}", "{NaN,NULL}"]),
    "codes": Edge("char(3)[]", ["{a,abc}"]),
    "pair": Edge("edge.pair", ["(,)", "(1.0,)", "(1.00,a)", '(,"")', '(1,"a b")', "(NaN,NULL)"]),
    "couple": Edge("edge.couple", ["(,)", "(1.0,)"]),
    "pairs": Edge("edge.pair[]", ["{}", '{"(1.0,\\"a b\\")",NULL}']),
    "range": Edge("int4range", ["empty", "[1,5)", "(,3)", "(,)"]),
    "numbers": Edge("numrange", ["empty", "[1.0,2]", "[1.00,2]", "(1,2)"]),
    "moments": Edge("tstzrange", ["[2024-01-01 00:00+00,infinity)", "empty"]),
    "ranges": Edge("int4multirange", ["{}", "{[1,3),[5,8)}"]),
    "mood": Edge("edge.mood", ["sad", "ok", "happy", "Angry", "bored"]),
    "shouted": Edge("edge.shouted", ["low", "high"]),
    "money": Edge("money", ["0", "1.10", "-5", "92233720368547758.07", "-92233720368547758.08"]),
    "xml": Edge("xml", ["<a/>", "<a></a>", "x", '<?xml version="1.0"?><a/>', "<!DOCTYPE a><a/>"]),
    "oid": Edge("oid", ["0", "2147483648", "4294967295"]),
    "class": Edge("regclass", ["pg_catalog.pg_class", "pg_catalog.pg_proc", "0", "4294967295"]),
    "type": Edge("regtype", ["integer", "numeric", "text", "edge.mood"]),
    "proc": Edge("regproc", ["870", "3848", "pg_catalog.now", "0"]),  # two are named lower
    "procedure": Edge("regprocedure", ["pg_catalog.lower(text)", "pg_catalog.lower(anyrange)"]),
    "operator": Edge("regoper", ["96", "98", "410"]),
    "config": Edge("regconfig", ["pg_catalog.simple"]),
    "role": Edge("regrole", ["pg_monitor"]),
    "space": Edge("regnamespace", ["pg_catalog", "edge"]),
    "vector": Edge("tsvector", ["", "'cat':1 'sat':2A", "'it''s':1 'a b' '\\\\'"]),
    "search": Edge("tsquery", ["'cat' & 'sat'", "!'a' | 'b':*"]),
    "lsn": Edge("pg_lsn", ["0/0", "FFFFFFFF/FFFFFFFF", "1/A"]),
    "xid8": Edge("xid8", ["0", "18446744073709551615"]),
    "point": Edge("point", ["(0,0)", "(-0,0)", "(0.1,1e-300)", "(NaN,Infinity)"]),
    "box": Edge("box", ["(1,1),(0,0)", "(2,0.5),(0,0)"]),
    "path": Edge("path", ["((0,0),(1,1))", "[(0,0),(1,1)]"]),
    "polygon": Edge("polygon", ["((0,0),(1,1),(2,0))"]),
    "circle": Edge("circle", ["<(0,0),1>", "<(5,5),1>"]),
    "line": Edge("line", ["{1,2,3}"]),
    "jsonpath": Edge("jsonpath", ['$."a"[*] ? (@ > 1.00)']),
    "snapshot": Edge("pg_snapshot", ["10:20:10,14,15"]),
    "oids": Edge("oidvector", ["", "1 2 3"]),
}  # fmt: skip

WORDS: dict[str, Edge] = {
    "t_c": Edge("text", _WORDS, "C"),
    "t_db": Edge("text", _WORDS),
    "t_posix": Edge("text", _WORDS, "POSIX"),
}
# What random expressions compute with: small enough that few results leave what Spark can hold.
TAME: dict[str, Edge] = {
    "i2": Edge("smallint", ["0", "1", "-1", "7", "-32768", "32767", "181"]),
    "i4": Edge("integer", ["0", "1", "-1", "7", "-2147483648", "2147483647", "46341"]),
    "i8": Edge("bigint", ["0", "1", "-1", "7", "-9223372036854775808", "9223372036854775807", "3037000500"]),
    "n": Edge("numeric", ["0", "1.0", "-1.00", "7", "0.001", "12345.678", "1.005"]),
    "d2": Edge("numeric(8,2)", ["0", "1", "-1.01", "7.5", "0.01", "99999.99", "1.01"]),
    "d4": Edge("numeric(8,4)", ["0", "1", "-1.01", "7.5", "0.0001", "999.9999", "1.005"]),
    "tenths": Edge("edge.tenths", ["0", "1", "-1.1", "7.5", "0.1"]),
    "f8": Edge("double precision", ["0", "-0", "1", "NaN", "Infinity", "0.1", "7"]),
    "t": Edge("text", ["", "a", "A", "é", "a ", "\U0001f600"], "C"),
    "v": Edge("varchar(9)", ["", "a", "B", "é", "a ", "x"], "C"),
    "truth": Edge("boolean", ["true", "false"]),
    "day": Edge("date", ["infinity", "-infinity", "2000-01-01", "2024-02-29"]),
    "span": Edge("interval", ["0", "1 month", "30 days", "24:00", "1 day", "-1 day"]),
}
ICU: dict[str, Edge] = {
    "t_icu": Edge("text", _WORDS, "edge.icu"),
    "t_loose": Edge("text", _WORDS, "edge.loose"),
    "v_loose": Edge("varchar", ["", "a", "A"], "edge.loose"),
}
ICU_COLLATIONS = """
CREATE COLLATION edge.icu (provider = icu, locale = 'en');
CREATE COLLATION edge.loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
"""


def make_types(connection: Connection) -> None:
    connection.execute(TYPES)


def available(connection: Connection, edges: Mapping[str, Edge]) -> dict[str, Edge]:
    """Those whose type this server has."""
    return {name: edge for name, edge in edges.items() if edge.type != "xml" or has_xml(connection)}


def has_xml(connection: Connection) -> bool:
    return _works(connection, "SELECT '<a/>'::xml")


def has_icu(connection: Connection) -> bool:
    return _works(connection, "SELECT 'a' < 'b' COLLATE \"und-x-icu\"")


def _works(connection: Connection, query: str) -> bool:
    try:
        connection.execute(statement(query))
    except psycopg.Error:
        return False
    return True


def sorts_by_bytes(connection: Connection) -> bool:
    """Whether the database's own collation does."""
    row = connection.execute(
        "SELECT datlocprovider = 'c' AND datcollate IN ('C', 'POSIX') FROM pg_database"
        " WHERE datname = current_database()"
    ).fetchone()
    return row is not None and bool(row[0])


def make_table(connection: Connection, name: str, edges: Mapping[str, Edge]) -> int:
    """Makes and fills a table; its oid. Its column `row` numbers the rows; the last one has only NULLs."""
    version = connection.info.server_version // 10_000
    values = {
        column: [*edge.values, *(edge.later if version >= edge.since else ())]
        for column, edge in edges.items()
    }
    columns = ", ".join(
        f'"{column}" {edge.type}' + (f" COLLATE {_collation(edge.collation)}" if edge.collation else "")
        for column, edge in edges.items()
    )
    length = 1 + max(len(each) for each in values.values())
    rows = [
        ", ".join(
            f"{literal(each[number])}::{edges[column].type}"  # type: ignore[arg-type]
            if number < len(each) and each[number] is not None
            else f"NULL::{edges[column].type}"
            for column, each in values.items()
        )
        for number in range(length)
    ]
    listed = ", ".join(f"({number}, {row})" for number, row in enumerate(rows))
    connection.execute(statement(f'CREATE TABLE edge."{name}" ("row" integer, {columns})'))
    connection.execute(statement(f'INSERT INTO edge."{name}" VALUES {listed}'))
    found = connection.execute("SELECT %s::regclass::oid", (f'edge."{name}"',)).fetchone()
    assert found is not None
    return int(found[0])


def _collation(name: str) -> str:
    return name if "." in name else f'pg_catalog."{name}"'
