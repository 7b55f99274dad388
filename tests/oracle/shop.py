"""Random tables, queries and transactions, as SQL text.

Values come from small sets so that keys collide, NULLs meet NULLs, and equal values with different texts
(1.0 and 1.00, 0 and -0) share groups. Floats are dyadic, so their sums do not depend on the order.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st

SCHEMA = """
CREATE TABLE t (id int PRIMARY KEY, a int, b text, n numeric, m numeric(8,2), f float8, d date);
CREATE TABLE u (id int PRIMARY KEY, a int, c text, n numeric, e bigint NOT NULL);
CREATE TABLE k (a int, b text, n numeric);
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
SCALED = ("NULL", "0", "1.5", "-2.25", "100.01")
FLOATS = ("NULL", "0", "'-0'", "1.5", "-2.25", "'NaN'", "'Infinity'", "'-Infinity'")
DATES = ("NULL", "'2020-01-01'", "'2020-02-29'", "'infinity'")

COLUMNS = {
    "t": {"a": INTEGERS, "b": TEXTS, "n": NUMERICS, "m": SCALED, "f": FLOATS, "d": DATES},
    "u": {"a": INTEGERS, "c": TEXTS, "n": NUMERICS, "e": ("0", "1", "9000000000000000000")},
    "k": {"a": INTEGERS, "b": TEXTS, "n": NUMERICS},
}
KEYED = ("t", "u")
RELATION_COLUMNS = {
    "t": ("id", "a", "b", "n", "m", "f", "d"),
    "u": ("id", "a", "c", "n", "e"),
    "k": ("a", "b", "n"),
    "v": ("id", "a", "b", "c", "e"),
}
KIND = {
    "id": "int",
    "a": "int",
    "e": "int",
    "b": "text",
    "c": "text",
    "n": "num",
    "m": "num",
    "f": "float",
    "d": "date",
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
            kind = draw(st.sampled_from(("equal", "equal", "equal", "theta", "cross", "text")))
            left, right = draw(st.sampled_from(found.of("int"))), draw(st.sampled_from(mine["int"]))
            if kind == "cross":
                found.sql += f" CROSS JOIN {item}"
            elif kind == "theta":
                found.sql += f" JOIN {item} ON {left} <= {right} AND {left} > 0"
            elif kind == "text" and found.of("text") and mine.get("text"):
                texts = draw(st.sampled_from(found.of("text"))), draw(st.sampled_from(mine["text"]))
                found.sql += f" JOIN {item} ON {texts[0]} = {texts[1]}"
            else:
                found.sql += f" JOIN {item} ON {left} = {right}"
        for column_kind, references in mine.items():
            found.columns.setdefault(column_kind, []).extend(references)
    return found


@st.composite
def _scalar(draw: st.DrawFn, source: _From) -> tuple[str, bool]:
    """An expression, and whether equal values of it have equal texts."""
    choices = [(reference, True) for reference in source.of("int", "text", "date")]
    choices += [(reference, False) for reference in source.of("num", "float")]
    number = draw(st.sampled_from(source.of("int")))
    text = draw(st.sampled_from(source.of("text")))
    choices += [
        (f"{number} + 1", True),
        (f"coalesce({number}, 7)", True),
        (f"CASE WHEN {number} > 1 THEN 'many' WHEN {number} IS NULL THEN NULL ELSE 'few' END", True),
        (f"upper({text})", True),
        (f"{text} || '!'", True),
        (f"{number} IS NULL", True),
        ("'fixed'::text", True),
    ]
    return draw(st.sampled_from(choices))


@st.composite
def _aggregate(draw: st.DrawFn, source: _From) -> tuple[str, bool]:
    """An aggregate call, and whether its value has one text."""
    number = draw(st.sampled_from(source.of("int")))
    numeric = draw(st.sampled_from(source.of("num") or source.of("int")))
    floating = draw(st.sampled_from(source.of("float") or source.of("int")))
    text = draw(st.sampled_from(source.of("text")))
    condition = draw(st.sampled_from((f"{number} > 0", f"{text} = 'a'", f"{number} IS NULL")))
    call, exact = draw(
        st.sampled_from(
            [
                ("count(*)", True),
                (f"count({text})", True),
                (f"sum({number})", True),
                (f"sum({numeric})", True),
                (f"avg({numeric})", True),
                (f"avg({number})", True),
                (f"sum({number} * {numeric})", True),
                (f"min({number})", True),
                (f"max({text})", True),
                (f"min({numeric})", False),
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
        call += f" FILTER (WHERE {condition})"
    return call, exact


@st.composite
def _where(draw: st.DrawFn, source: _From) -> str:
    if draw(st.booleans()):
        return ""
    number, text = draw(st.sampled_from(source.of("int"))), draw(st.sampled_from(source.of("text")))
    condition = draw(
        st.sampled_from(
            (
                f"{number} > 0",
                f"{number} IS NULL OR {number} < 2",
                f"{text} LIKE '%a%'",
                f"{text} <> ''",
                f"{number} IN (1, 2)",
                f"NOT ({number} = 1)",
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
    union = (
        "SELECT a AS p, b AS q, n AS r FROM t WHERE id % 2 = 0 UNION ALL SELECT a, b, n FROM k"
        " UNION ALL SELECT e, c, a FROM u"
    )
    if shape == "union":
        distinct = draw(st.booleans())
        return Query(union.replace("UNION ALL", "UNION") if distinct else union, not distinct)
    return Query(
        f"SELECT x.q, count(*) AS n, sum(x.r) AS s, max(x.p / 2) AS h FROM ({union}) x JOIN u ON u.a = x.p"
        " GROUP BY x.q",
        True,
    )
