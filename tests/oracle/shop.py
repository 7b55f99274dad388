"""Random tables, queries and transactions, as SQL text.

Values come from small sets so that keys collide, NULLs meet NULLs, and equal values with different texts
(1.0 and 1.00, 0 and -0, a month and 30 days) share groups. Floats are dyadic, so their sums do not depend on
the order. Some expressions fail for some values: then the query fails, and so must a refresh. Two rows fill a
page, so that several tasks have something to read.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st

SCHEMA = """
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE DOMAIN price AS numeric;
CREATE DOMAIN small AS int CHECK (VALUE < 100);
CREATE TABLE t (id int PRIMARY KEY, a int, b text, n numeric, m numeric(8,2), f float8, d date, s smallint,
    ch char(3), mo mood, iv interval);
CREATE TABLE u (id int PRIMARY KEY, a int, c text, n numeric, e bigint NOT NULL, p price, w small, r real,
    ts timestamptz, cc text COLLATE "C", d date);
CREATE TABLE k (a int, b text, n numeric, uu uuid, by bytea, iv interval, o boolean, cc text COLLATE "C");
ALTER TABLE t ADD pad text DEFAULT repeat('x', 3000);
ALTER TABLE t ALTER pad SET STORAGE plain;
ALTER TABLE k ADD pad text DEFAULT repeat('x', 3000);
ALTER TABLE k ALTER pad SET STORAGE plain;
CREATE VIEW v AS SELECT t.id, t.a, t.b, u.c, u.e FROM t JOIN u ON u.a = t.a WHERE t.b IS NOT NULL;
"""

INTEGERS = ("NULL", "-1", "0", "1", "2", "3")
TEXTS = ("NULL", "''", "'a'", "'A'", "'ä'", "'b '")
NUMERICS = (
    "NULL",
    "0",
    "1",
    "1.0",
    "1.00",
    "2.5",
    "-3.125",
    "'NaN'",
    "1e20",
    "0.00000000000000000000001",
    "'-Infinity'",
)
TAME = ("NULL", "0", "1", "1.0", "1.00", "2.5", "-3.125", "1e20")
SCALED = ("NULL", "0", "1.5", "-2.25", "100.01")
FLOATS = ("NULL", "0", "'-0'", "1.5", "-2.25", "'NaN'", "'Infinity'", "'-Infinity'")
DATES = ("NULL", "'2020-01-01'", "'2020-02-29'", "'infinity'", "'-infinity'", "'0044-03-15 BC'")
INSTANTS = (
    "NULL",
    "'2020-02-29 12:00+00'",
    "'2020-02-29 13:00+01'",
    "'infinity'",
    "'2020-02-29 12:00:00.000001+00'",
)
INTERVALS = ("NULL", "'1 month'", "'30 days'", "'1 day'", "'24 hours'", "'-1 year'", "'0.000001 seconds'")
UUIDS = ("NULL", "'00000000-0000-0000-0000-000000000000'", "'123e4567-e89b-12d3-a456-426614174000'")

COLUMNS = {
    "t": {
        "a": INTEGERS,
        "b": TEXTS,
        "n": NUMERICS,
        "m": SCALED,
        "f": FLOATS,
        "d": DATES,
        "s": ("NULL", "0", "2", "32767"),
        "ch": ("NULL", "''", "'a'", "'a b'"),
        "mo": ("NULL", "'sad'", "'happy'"),
        "iv": INTERVALS,
    },
    "u": {
        "a": INTEGERS,
        "c": TEXTS,
        "n": TAME,
        "e": ("0", "1", "9000000000000000000"),
        "p": TAME,
        "w": INTEGERS,
        "r": FLOATS,
        "ts": INSTANTS,
        "cc": TEXTS,
        "d": DATES,
    },
    "k": {
        "a": INTEGERS,
        "b": TEXTS,
        "n": NUMERICS,
        "uu": UUIDS,
        "by": ("NULL", "''", "'a'", "'\\x00ff'"),
        "iv": INTERVALS,
        "o": ("NULL", "true", "false"),
        "cc": TEXTS,
    },
}
KEYED = ("t", "u")
RELATION_COLUMNS = {
    **{name: (*(("id",) if name in KEYED else ()), *columns) for name, columns in COLUMNS.items()},
    "v": ("id", "a", "b", "c", "e"),
}
KIND = {
    **dict.fromkeys(("id", "a", "e", "s", "w"), "int"),
    **dict.fromkeys(("b", "c"), "text"),
    **dict.fromkeys(("n", "m", "p"), "num"),
    **dict.fromkeys(("f", "r"), "float"),
    "d": "date",
    "ts": "instant",
    "iv": "interval",
    "ch": "char",
    "cc": "bytewise",
    "mo": "mood",
    "uu": "uuid",
    "by": "bytes",
    "o": "bool",
}
COARSE = ("num", "float", "interval")
"""Kinds of which equal values can have different texts."""
UNION_COLUMNS = {
    "t": (("a", "s", "id"), ("b", "ch"), ("n", "m", "a", "s")),
    "k": (("a",), ("b",), ("n", "a")),
    "u": (("a", "e", "w"), ("c",), ("n", "p", "e", "a")),
}


# Transactions


@st.composite
def statements(draw: st.DrawFn) -> str:
    """One data-modifying statement."""
    table = draw(st.sampled_from(("t", "t", "u", "u", "k")))
    columns = COLUMNS[table]
    kind = draw(st.sampled_from(("insert", "insert", "update", "delete", "upsert", "truncate", "swap")))
    if kind == "truncate" and draw(st.integers(0, 9)) > 0:
        kind = "insert"
    values = {name: draw(st.sampled_from(choices)) for name, choices in columns.items()}
    if kind == "swap" and table in KEYED:
        return f"UPDATE {table} SET id = id + 100 WHERE id < 4"
    if kind in ("insert", "upsert", "swap"):
        names = list(columns)
        literals = [values[name] for name in names]
        if table in KEYED:
            names, literals = ["id", *names], [str(draw(st.integers(1, 12))), *literals]
        conflict = ""
        if table in KEYED:
            column = draw(st.sampled_from(sorted(columns)))
            update = f"UPDATE SET {column} = excluded.{column}"
            conflict = f" ON CONFLICT (id) DO {update if kind == 'upsert' else 'NOTHING'}"
        return f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join(literals)}){conflict}"
    if kind == "update":
        changed = draw(st.lists(st.sampled_from(sorted(columns)), min_size=1, max_size=2, unique=True))
        assignments = ", ".join(f"{name} = {values[name]}" for name in changed)
        return f"UPDATE {table} SET {assignments} WHERE {draw(_condition(table))}"
    if kind == "delete":
        return f"DELETE FROM {table} WHERE {draw(_condition(table))}"
    return f"TRUNCATE {table}"


@st.composite
def _condition(draw: st.DrawFn, table: str) -> str:
    if table in KEYED and draw(st.booleans()):
        return f"id % {draw(st.integers(2, 5))} = {draw(st.integers(0, 2))}"
    return draw(st.sampled_from(("a = 1", "a IS NULL", "a > 0", "n = 1", "n IS NOT NULL", "true")))


@st.composite
def transactions(draw: st.DrawFn) -> list[str]:
    """Statements that commit together; some are undone by a savepoint."""
    script: list[str] = []
    for number, text in enumerate(draw(st.lists(statements(), min_size=1, max_size=4))):
        if draw(st.integers(0, 5)) == 0:
            script += [f"SAVEPOINT s{number}", text, f"ROLLBACK TO s{number}"]
        else:
            script.append(text)
    return script


# Queries


@dataclass(frozen=True)
class Query:
    """A query, and whether its rows can be compared by their text."""

    text: str
    exact: bool


@dataclass
class _From:
    sql: str
    columns: dict[str, list[str]] = field(default_factory=dict)  # kind to references

    def of(self, *kinds: str) -> list[str]:
        return [reference for kind in kinds for reference in self.columns.get(kind, [])]


@st.composite
def _sources(draw: st.DrawFn, relations: tuple[str, ...]) -> _From:
    """One to three relations, joined on something."""
    names = draw(st.lists(st.sampled_from(relations), min_size=1, max_size=3))
    found = _From("")
    for number, name in enumerate(names):
        alias = f"x{number}"
        mine: dict[str, list[str]] = {}
        for column in RELATION_COLUMNS[name]:
            mine.setdefault(KIND[column], []).append(f"{alias}.{column}")
        item = f"{name} {alias}"
        if draw(st.integers(0, 4)) == 0:
            item = f"(SELECT * FROM {name} WHERE a IS DISTINCT FROM 2) {alias}"
        if number == 0:
            found.sql = item
        else:
            condition = draw(_join_condition(found, mine))
            found.sql += f" JOIN {item} ON {condition}" if condition else f" CROSS JOIN {item}"
        for column_kind, references in mine.items():
            found.columns.setdefault(column_kind, []).extend(references)
    return found


@st.composite
def _join_condition(draw: st.DrawFn, found: _From, mine: dict[str, list[str]]) -> str:
    """How another relation is joined; nothing for a cross join."""
    shape = draw(
        st.sampled_from(("equal", "equal", "equal", "any", "any", "theta", "cross", "numbers", "either"))
    )
    left, right = draw(st.sampled_from(found.of("int"))), draw(st.sampled_from(mine["int"]))
    shared = sorted(kind for kind in mine if found.of(kind))
    kind = draw(st.sampled_from(shared))
    others = draw(st.sampled_from(found.of(kind))), draw(st.sampled_from(mine[kind]))
    match shape:
        case "cross":
            return ""
        case "theta":
            return f"{left} <= {right} AND {left} > 0"
        case "any":
            operator = draw(st.sampled_from(("=", "=", "=", "<", "IS NOT DISTINCT FROM")))
            return f"{others[0]} {operator} {others[1]}"
        case "numbers":
            sides = [
                draw(st.sampled_from(found.of("num", "int"))),
                draw(st.sampled_from(mine.get("num", mine["int"]))),
            ]
            return f"{sides[0]} {draw(st.sampled_from(('=', '>=', '<>')))} {sides[1]}"
        case "either":
            return f"({left} = {right} OR {others[0]} = {others[1]})"
        case _:
            return f"{left} = {right}"


@st.composite
def _scalar(draw: st.DrawFn, source: _From) -> tuple[str, bool]:
    """An expression, and whether equal values of it have equal texts."""
    if draw(st.booleans()):
        kind = draw(st.sampled_from(sorted(source.columns)))
        return draw(st.sampled_from(source.of(kind))), kind not in COARSE
    number, other = (draw(st.sampled_from(source.of("int"))) for _ in range(2))
    text, suffix = (draw(st.sampled_from(source.of("text"))) for _ in range(2))
    left, right = (draw(st.sampled_from(source.of("num") or source.of("int"))) for _ in range(2))
    return draw(
        st.sampled_from(
            [
                (f"{number} + 1", True),
                (f"coalesce({number}, 7)", True),
                (f"CASE WHEN {number} > 1 THEN 'many' WHEN {number} IS NULL THEN NULL ELSE 'few' END", True),
                (f"upper({text})", True),
                (f"{text} || '!'", True),
                (f"{number} IS NULL", True),
                ("'fixed'::text", True),
                (f"{number} - {other}", True),
                (f"{number} / nullif({other}, 0)", True),
                (f"{number} / {other}", True),
                (f"-{number} % 2 * {other}", True),
                (f"coalesce({number}, {other})", True),
                (f"coalesce({text}, {suffix})", True),
                (f"{text} || {suffix}", True),
                (f"{text} || {number}", True),
                (f"CASE WHEN {number} > {other} THEN {text} ELSE {suffix} END", True),
                (f"CASE WHEN {left} = {right} OR {number} IS NULL THEN {left} ELSE {right} END", False),
                (f"coalesce({left}, {right})", False),
                (f"{left} * {right}", False),
                (f"{left} < {right}", True),
                (f"{number} IS NOT DISTINCT FROM {other}", True),
                (f"{text}::char(2)", True),
                (f"{left}::numeric(30,1)", True),
            ]
        )
    )


@st.composite
def _aggregate(draw: st.DrawFn, source: _From) -> tuple[str, bool]:
    """An aggregate call, and whether its value has one text."""
    number, other = (draw(st.sampled_from(source.of("int"))) for _ in range(2))
    text, suffix = (draw(st.sampled_from(source.of("text"))) for _ in range(2))
    left, right = (draw(st.sampled_from(source.of("num") or source.of("int"))) for _ in range(2))
    floating = draw(st.sampled_from(source.of("float") or source.of("int")))
    ordered = draw(
        st.sampled_from(("date", "instant", "interval", "char", "bytewise", "mood", "text", "num"))
    )
    sorted_by = draw(st.sampled_from(source.of(ordered) or source.of("int")))
    conditions = (
        f"{number} > 0",
        f"{text} = 'a'",
        f"{number} IS NULL",
        f"{number} > {other}",
        f"{text} = {suffix}",
    )
    call, exact = draw(
        st.sampled_from(
            [
                ("count(*)", True),
                (f"count({text})", True),
                (f"sum({number})", True),
                (f"sum({left})", True),
                (f"avg({left})", True),
                (f"avg({number})", True),
                (f"sum({number} * {left})", True),
                (f"sum({left} * {right})", True),
                (f"sum({left} - {right} + 1)", True),
                (f"avg({left} * (1 - {number}))", True),
                (f"sum({number} * {other})", True),
                (f"sum({number} / nullif({other}, 0))", True),
                (f"sum(coalesce({left}, {right}))", True),
                (f"sum(CASE WHEN {number} > {other} THEN {left} ELSE 0 END)", True),
                (f"count({left} * {right})", True),
                (f"count(coalesce({text}, {suffix}))", True),
                (f"min({number})", True),
                (f"max({text})", True),
                (f"min({number} - {other})", True),
                (f"max({text} || {suffix})", True),
                (f"min({left})", False),
                (f"max(coalesce({left}, {right}))", False),
                (f"min({sorted_by})", ordered not in COARSE),
                (f"max({sorted_by})", ordered not in COARSE),
                (f"max({floating})", False),
                (f"sum({floating})", False),
                (f"count(DISTINCT {number})", True),
                (f"array_agg({number} ORDER BY {number})", True),
                (f"string_agg({text}, ',' ORDER BY {text})", True),
                (f"bool_or({number} > 0)", True),
                (f"sum(DISTINCT {number})", True),
            ]
        )
    )
    if draw(st.integers(0, 4)) == 0:
        call += f" FILTER (WHERE {draw(st.sampled_from(conditions))})"
    return call, exact


@st.composite
def _where(draw: st.DrawFn, source: _From) -> str:
    if draw(st.booleans()):
        return ""
    number, other = (draw(st.sampled_from(source.of("int"))) for _ in range(2))
    text, suffix = (draw(st.sampled_from(source.of("text"))) for _ in range(2))
    condition = draw(
        st.sampled_from(
            (
                f"{number} > 0",
                f"{number} IS NULL OR {number} < 2",
                f"{text} LIKE '%a%'",
                f"{text} <> ''",
                f"{number} IN (1, 2)",
                f"NOT ({number} = 1)",
                f"{number} <> {other} OR {text} = {suffix}",
                f"coalesce({number}, {other}) > 0",
                f"NOT ({text} = {suffix} AND {number} < {other})",
                f"({number} = {other}) IS NULL",
            )
        )
    )
    return f" WHERE {condition}"


@st.composite
def _block(draw: st.DrawFn, relations: tuple[str, ...]) -> Query:
    source = draw(_sources(relations))
    shape = draw(st.sampled_from(("rows", "rows", "group", "group", "group", "global", "distinct")))
    where = draw(_where(source))
    if shape in ("rows", "distinct"):
        outputs = draw(st.lists(_scalar(source), min_size=1, max_size=4))
        columns = ", ".join(f"{text} AS o{number}" for number, (text, _) in enumerate(outputs))
        distinct = "DISTINCT " if shape == "distinct" else ""
        exact = shape == "rows" or all(flag for _, flag in outputs)
        return Query(f"SELECT {distinct}{columns} FROM {source.sql}{where}", exact)
    keys = draw(st.lists(_scalar(source), min_size=1, max_size=2)) if shape == "group" else []
    calls = draw(st.lists(_aggregate(source), min_size=1, max_size=3))
    shown = keys if draw(st.booleans()) else keys[:1]
    items = [text for text, _ in shown] + [text for text, _ in calls]
    columns = ", ".join(f"{text} AS o{number}" for number, text in enumerate(items))
    group = f" GROUP BY {', '.join(text for text, _ in keys)}" if keys else ""
    having = ""
    if draw(st.integers(0, 2)) == 0:
        number = draw(st.sampled_from(source.of("int")))
        having = " HAVING " + draw(
            st.sampled_from(("count(*) > 1", f"sum({number}) > 0", f"max({number}) IS NULL"))
        )
    exact = all(flag for _, flag in shown) and all(flag for _, flag in calls)
    return Query(f"SELECT {columns} FROM {source.sql}{where}{group}{having}", exact)


@st.composite
def queries(draw: st.DrawFn, relations: tuple[str, ...] = ("t", "u", "k", "v")) -> Query:
    """A query over operators that have a delta rule."""
    shape = draw(st.sampled_from(("block", "block", "block", "block", "union", "union_group", "cte")))
    if shape == "block":
        return draw(_block(relations))
    if shape == "cte":
        inner = draw(_sources(relations))
        outputs = ", ".join(
            f"{draw(st.sampled_from(inner.of(kind)))} AS {name}"
            for kind, name in (("int", "p"), ("text", "q"))
        )
        return Query(
            f"WITH w AS (SELECT {outputs} FROM {inner.sql})"
            " SELECT l.q, count(*) AS n, sum(l.p) AS s, min(r.p) AS lo"
            " FROM w l JOIN w r ON l.p = r.p GROUP BY l.q",
            True,
        )
    union = draw(_union())
    if shape == "union":
        distinct = draw(st.booleans())
        return Query(union.replace("UNION ALL", "UNION") if distinct else union, not distinct)
    call = draw(
        st.sampled_from(("sum(x.r)", "sum(x.r * u.n)", "avg(x.r)", "max(x.q || u.c)", "sum(x.p - u.a)"))
    )
    return Query(
        f"SELECT x.q, count(*) AS n, {call} AS s, max(x.p / 2) AS h FROM ({union}) x JOIN u ON u.a = x.p"
        " GROUP BY x.q",
        " ch AS q" not in union,  # of char(3) and text, bpchar is made: blanks at the end do not count
    )


@st.composite
def _union(draw: st.DrawFn) -> str:
    """Branches whose columns have different types."""
    branches = []
    for table, choices in UNION_COLUMNS.items():
        columns = ", ".join(
            f"{draw(st.sampled_from(columns))} AS {name}"
            for columns, name in zip(choices, "pqr", strict=True)
        )
        branches.append(f"SELECT {columns} FROM {table}" + (" WHERE id % 2 = 0" if table == "t" else ""))
    return " UNION ALL ".join(branches)
