"""Small tables that random queries read, and random transactions that change them.

Values come from small sets so that keys collide, NULLs meet NULLs and conditions are often crossed. Numerics
have different scales, but none equals another that looks different: which of 1.0 and 1.00 stands for both in
DISTINCT ON or max is nobody's promise, and a stream table that finds the other one is rebuilt.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

SCHEMA = """
CREATE TYPE pair AS (i int, s text);
CREATE TABLE t (id int PRIMARY KEY, a int, b text, n numeric, d date, xs int[], p pair);
CREATE TABLE u (id int PRIMARY KEY, a int, b text, m bigint, o boolean, j jsonb);
CREATE TABLE v (a int, c int, b text, n numeric, PRIMARY KEY (a, c));
CREATE TABLE k (a int, b text, n numeric, o boolean, p pair);
CREATE TABLE h (a int, d date, xs int[], j jsonb) PARTITION BY LIST (a);
CREATE TABLE h_some (j jsonb, d date, xs int[], a int);
ALTER TABLE h ATTACH PARTITION h_some FOR VALUES IN (0, 1, NULL);
CREATE TABLE h_rest PARTITION OF h DEFAULT;
CREATE FUNCTION fold_step(bigint, bigint) RETURNS bigint IMMUTABLE LANGUAGE sql
    AS 'SELECT ($1 * 7 + coalesce($2, 3)) % 1009';
CREATE FUNCTION total_step(bigint, bigint) RETURNS bigint IMMUTABLE LANGUAGE sql
    AS 'SELECT ($1 + coalesce($2, 10)) % 100000';
CREATE AGGREGATE fold(bigint) (SFUNC = fold_step, STYPE = bigint, INITCOND = '1');
CREATE AGGREGATE total(bigint) (SFUNC = total_step, STYPE = bigint, INITCOND = '0');
"""

LITERALS = {
    "int": ("0", "1", "2", "3", "-1"),
    "num": ("0.0", "1.0", "1.25", "2.5", "-3.125"),
    "text": ("''::text", "'a'::text", "'A'::text", "'b'::text", "'ab'::text"),
    "date": ("'2020-01-01'::date", "'2020-01-02'::date", "'2020-02-29'::date"),
    "bool": ("true", "false"),
    "ints": ("'{}'::int[]", "'{1}'::int[]", "'{1,2}'::int[]", "'{2,NULL,2}'::int[]"),
    "list": ("'[]'::jsonb", "'[1]'::jsonb", "'[2, 1]'::jsonb", "'[null, 3]'::jsonb"),
    "pair": ("ROW(1, 'a')::pair", "ROW(2, NULL)::pair", "ROW(NULL, NULL)::pair", "ROW(1, 'b')::pair"),
    "json": ("'{\"a\": 1}'::jsonb", "'\"a\"'::jsonb", "'[1]'::jsonb"),
}
"""Values by kind. A list is a jsonb array of numbers; json may be any jsonb."""


@dataclass(frozen=True)
class Relation:
    """Something a query can read."""

    name: str
    columns: dict[str, str]  # to their kinds
    key: tuple[str, ...] = ()
    stored: bool = True  # a table of its own, which the planner cannot reduce to constants
    tag: str = ""
    partition: str = ""  # one that statements may name, too
    bound: str = ""  # of the partition


TABLES = (
    Relation(
        "t",
        {"id": "int", "a": "int", "b": "text", "n": "num", "d": "date", "xs": "ints", "p": "pair"},
        ("id",),
    ),
    Relation("u", {"id": "int", "a": "int", "b": "text", "m": "int", "o": "bool", "j": "list"}, ("id",)),
    Relation("v", {"a": "int", "c": "int", "b": "text", "n": "num"}, ("a", "c")),
    Relation("k", {"a": "int", "b": "text", "n": "num", "o": "bool", "p": "pair"}, tag="keyless table"),
    Relation(
        "h",
        {"a": "int", "d": "date", "xs": "ints", "j": "list"},
        tag="partitioned table",
        partition="h_some",
        bound="FOR VALUES IN (0, 1, NULL)",
    ),
)

CONDITIONS = {
    "int": ("= 1", "> 1", "IS NULL", "% 2 = 0"),
    "num": ("= 1", "> 0"),
    "text": ("= 'a'", "IS NULL", "LIKE 'a%'"),
}


def value(chance: random.Random, kind: str, *, nullable: bool = True) -> str:
    return "NULL" if nullable and chance.random() < 0.12 else chance.choice(LITERALS[kind])


def load(chance: random.Random) -> list[str]:
    """Empties the tables and fills them."""
    statements = [f"TRUNCATE {', '.join(table.name for table in TABLES)}"]
    return statements + [_insert(chance, table, chance.randint(8, 14)) for table in TABLES]


def transaction(chance: random.Random, *, truncate: bool = True) -> list[str]:
    """Statements that commit together; without TRUNCATE, all that they do can be taken in by deltas."""
    count = chance.choice((1, 1, 2, 3, 4))
    return [_statement(chance, chance.choice(TABLES), truncate=truncate) for _ in range(count)]


def _statement(chance: random.Random, table: Relation, *, truncate: bool) -> str:
    if table.partition and chance.random() < 0.25:
        return _of_partition(chance, table)
    kinds = ("insert", "update", "delete", "key", "clear", "truncate")
    (kind,) = chance.choices(kinds, weights=(40, 35, 20, 8, 3, 1 if truncate else 0))
    if kind == "key" and table.key:
        last, most = table.key[-1], f"(SELECT max({table.key[-1]}) FROM {table.name})"
        if last == "id" and chance.random() < 0.5:
            free = f"SELECT min(i) FROM generate_series(0, 99) i WHERE i NOT IN (SELECT id FROM {table.name})"
            return f"UPDATE {table.name} SET id = ({free}) WHERE id = {most}"
        return f"UPDATE {table.name} SET {last} = {last} + 2 + {most} WHERE {_where(chance, table)}"
    if kind == "update":
        return f"UPDATE {table.name} SET {_assignments(chance, table)} WHERE {_where(chance, table)}"
    if kind == "delete":
        return f"DELETE FROM {table.name} WHERE {_where(chance, table)}"
    if kind == "clear":
        return f"DELETE FROM {table.name}"
    if kind == "truncate":
        return f"TRUNCATE {table.name}"
    return _insert(chance, table, chance.choice((1, 2, 3, 5)))


def _of_partition(chance: random.Random, table: Relation) -> str:
    """A statement that names the partition; at times it is none while it is written to."""
    column = chance.choice([name for name in table.columns if name != "a"])
    write = chance.choice(
        (
            f"DELETE FROM {table.partition} WHERE {_where(chance, table)}",
            f"UPDATE {table.partition} SET {column} = {value(chance, table.columns[column])}",
            f"INSERT INTO {table.partition} (a, {column})"
            f" VALUES ({chance.choice(('0', '1', 'NULL'))}, {value(chance, table.columns[column])})",
        )
    )
    if chance.random() < 0.9:
        return write
    moved = f"ALTER TABLE {table.name} {{}} PARTITION {table.partition}"
    return f"{moved.format('DETACH')}; {write}; {moved.format('ATTACH')} {table.bound}"


def _insert(chance: random.Random, table: Relation, count: int) -> str:
    conflict = " ON CONFLICT DO NOTHING"
    if table.key and chance.random() < 0.3:
        changed = chance.choice([name for name in table.columns if name not in table.key])
        # Two rows of one statement must not meet in one key.
        count, conflict = (
            1,
            f" ON CONFLICT ({', '.join(table.key)}) DO UPDATE SET {changed} = excluded.{changed}",
        )
    rows = ", ".join(f"({', '.join(_row(chance, table))})" for _ in range(count))
    return f"INSERT INTO {table.name} VALUES {rows}{conflict}"


def _row(chance: random.Random, table: Relation) -> list[str]:
    return [
        str(chance.randint(0, 14)) if name == "id" else value(chance, kind, nullable=name not in table.key)
        for name, kind in table.columns.items()
    ]


def _assignments(chance: random.Random, table: Relation) -> str:
    names = [name for name in table.columns if name not in table.key]
    changed = chance.sample(names, k=chance.choice((1, 1, 2)))
    return ", ".join(f"{name} = {value(chance, table.columns[name])}" for name in changed)


def _where(chance: random.Random, table: Relation) -> str:
    if chance.random() < 0.15:
        return "true"
    name = chance.choice([name for name, kind in table.columns.items() if kind in CONDITIONS])
    if name == "id" and chance.random() < 0.7:
        return f"id = {chance.randint(0, 14)}"
    return f"{name} {chance.choice(CONDITIONS[table.columns[name]])}"
