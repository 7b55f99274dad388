"""Expressions over two tables `a` and `b`: those that Spark computes, those it refuses, and random ones."""

from __future__ import annotations

import itertools

from hypothesis import strategies as st

# Arithmetic over the columns of `values.NUMBERS`

_WHOLE = [("i2", "i2"), ("i2", "i4"), ("i4", "i4"), ("i4", "i8"), ("i8", "i8"), ("i8", "i2"), ("whole", "i4")]

INTEGERS = [
    *(f"a.{x} {sign} b.{y}" for x, y in _WHOLE for sign in ("+", "-", "*", "/", "%")),
    *(f"-(a.{x} {sign} b.{y})" for x, y in _WHOLE for sign in ("+", "%")),
    "-(a.i2 * b.i2)",
    "(a.i8 + b.i8)::smallint",
    "(a.i8 - b.i8)::integer",
    "(a.i2 * b.i2)::bigint",
    "(a.i2 + b.i4)::bigint + b.i8",
    "a.i4 + b.i4 + 1",
    "a.i4 * (b.i2::integer - 1)",
    "(a.i8 + b.i8) + 9223372036854775807 - 9223372036854775807",
    "5000000000 - (a.i4 + b.i4)",
    "(a.i4 + b.i4) - (- '5'::integer)",
    "(a.i4 - b.i4) * (- '3'::integer) / (- '2147483647'::integer)",
    "(- '7'::integer) % (a.i2 - b.i2)",
    "-2147483648 + (a.i4 - b.i4)",
    "(a.i8 - b.i8) < (- '1'::integer)",
    "(a.i4 / b.i4) * b.i4 + (a.i4 % b.i4)",
    "(a.i2 + b.i2) / (a.i4 - b.i4)",
    "a.i4 + b.i4 = a.i8",
    "a.i8 - b.i8 < b.i2",
    "a.i2 * b.i2 IS DISTINCT FROM b.i4",
    "a.i4 BETWEEN b.i4 AND b.i8",
    "a.i4 BETWEEN SYMMETRIC b.i4 AND b.i8",
    "a.i4 IN (b.i4, b.i8)",
    "a.i4 NOT IN (b.i4, b.i2)",
    "CASE WHEN b.i4 = 0 THEN 0 ELSE a.i4 / b.i4 END",
    "CASE WHEN a.i4 < b.i4 THEN a.i2 ELSE b.i8 END + a.i2",
    "COALESCE(a.i4, b.i4) - COALESCE(b.i2, a.i2)",
]

_NUMERIC = ("n", "d2", "d4", "d0", "thousands", "tenths")

NUMERICS = [
    *(
        f"a.{x} {sign} b.{y}"
        for x, y in itertools.combinations_with_replacement(_NUMERIC, 2)
        for sign in ("+", "-")
    ),
    *(f"a.d2 * b.{y}" for y in ("d4", "tenths", "thousands", "i2", "i4", "i8")),
    "a.d4 * b.d4",
    "a.d18 + b.d2",
    "a.d18 - b.n",
    "-(a.n - b.d4)",
    "a.i4 - b.n",
    "a.i8 + b.d2",
    "(a.i8 - b.i2)::numeric",
    "(a.d2 + b.d4)::numeric",
    "a.i4 * b.i2::numeric + 1",
    "a.d2 * (1 - b.d4)",
    "a.d2 * (1 - b.d4) * (1 + b.tenths)",
    "a.d2 * b.d4 * 2.50 + 0.00001",
    "1 - a.d2 * b.d4",
    "a.d2 * b.d4 - (- '2.50'::numeric)",
    "(- '0.050'::numeric) * (a.d2 + b.d4)",
    "a.d2 + b.d4 > (- '0.001'::numeric)",
    "a.d2 + b.d4 < a.n",
    "a.d2 + b.n = a.d4",
    "a.d4 - b.d2 >= b.n",
    "a.n - b.n <= a.i8",
    "a.d2 * b.d4 IS NOT DISTINCT FROM b.tenths",
    "a.d2 - b.d2 <> a.d4 - b.d4",
    "a.i4 + b.i4 < b.d4",
    "CASE WHEN a.d2 < b.d4 THEN a.d2 ELSE b.d4 END",
    "CASE WHEN a.d2 < b.d4 THEN a.n WHEN a.d2 = b.d4 THEN b.i4 END - b.d4",
    "COALESCE(a.d2, b.n) + COALESCE(b.d4, a.n)",
    "COALESCE(a.n, b.n) < COALESCE(b.d2, a.d2)",
]

# With values that Spark cannot hold, or whose result it cannot.
OVERFLOWING = [
    "a.n * b.n",
    "a.n * b.d2",
    "a.n * b.n * a.d2",
    "a.far + b.d2",
    "a.d18 * b.i4",
    "a.d0 * b.d0 * a.d0",
    "a.far2 * b.i4",
    "a.far60 - b.d2",
    "a.decimal + b.i4",
    "a.amount - b.d4",
    "a.far + b.n < a.d2",
]

REFUSED = [
    "a.n / b.n",
    "a.d2 / b.i4",
    "a.n % b.n",
    "a.n ^ b.n",
    "(a.n * b.n)::numeric(10,2)",
    "(a.n + b.n)::integer",
    "(a.i4 + b.i4)::edge.whole",
    "(a.d2 + b.d4)::edge.tenths",
    "(a.n + b.n)::edge.decimal",
    "a.d20 + b.n",
    "a.d18 * b.d2",
    "a.f8 + b.f8",
    "a.f8 * b.i4",
    "abs(a.i4 - b.i4)",
    "round(a.d4 * b.d2, 2)",
    "greatest(a.n, b.n)",
    "(a.i4 + b.i4)::double precision",
    "a.i4 & b.i4",
    "a.i4 << b.i4",
]

# Logic over booleans

_SIDES = ("a.truth", "b.truth", "a.flag", "b.flag")

LOGIC = [
    *(
        f"{x} {word} {y}"
        for x, y in (("a.truth", "b.truth"), ("b.flag", "a.truth"))
        for word in ("AND", "OR", "=")
    ),
    *(f"NOT ({x} {word} {y})" for x, y in itertools.combinations(_SIDES, 2) for word in ("AND", "OR")),
    "a.truth AND b.truth AND a.flag",
    "a.truth OR NOT b.truth OR b.flag",
    "(a.truth AND b.truth) OR NOT (a.flag AND b.flag)",
    "(a.truth OR b.flag) AND (NOT a.flag OR b.truth)",
    "COALESCE(a.truth, b.truth) IS NULL",
    "COALESCE(a.truth, b.truth) IS NOT NULL",
    "COALESCE(a.truth, b.flag, a.flag) IS NULL OR a.truth = b.truth",
    "(CASE WHEN a.truth THEN b.truth ELSE a.flag END) IS NULL",
    "(CASE WHEN a.truth AND b.truth THEN a.flag WHEN a.flag OR b.flag THEN b.truth END) IS NOT NULL",
    "a.truth IS DISTINCT FROM b.truth",
    "a.truth IS NOT DISTINCT FROM b.flag",
    "a.truth < b.truth",
    "a.truth >= b.flag",
    "a.truth IS NULL AND b.truth IS NULL",
    "a.truth IS NULL OR b.truth",
    "NOT (a.truth <> b.truth)",
    "CASE WHEN a.truth THEN b.truth ELSE a.flag END",
    "COALESCE(a.truth, b.flag)",
]

# Choices between values, and concatenations, over a column of each of these

CHOSEN = (
    "i2 i4 i8 n d2 far f4 f8 whole truth v c c7 b label code name day stamp moment clock zoned span id bytes"
    " bit json jsonb ints texts list pair couple range mood shouted"
).split()

# A numeric that is chosen may be computed with, so it must be one that Spark can hold.
CHOICES_OF_FAR = ['CASE WHEN a."row" < b."row" THEN a."far" ELSE b."far" END', 'COALESCE(a."far", b."far")']

CHOICES = [
    *(f'CASE WHEN a."row" < b."row" THEN a."{name}" ELSE b."{name}" END' for name in CHOSEN),
    *(f'COALESCE(a."{name}", b."{name}")' for name in CHOSEN),
    "COALESCE(a.i2, b.i4)",
    "COALESCE(a.i4, b.i8, 7)",
    "COALESCE(a.d2, b.n)",
    "CASE WHEN a.i4 = b.i4 THEN a.d2 WHEN a.i4 < b.i4 THEN b.n END",
    "CASE WHEN a.truth AND b.truth THEN a.c ELSE b.c7 END",
    "CASE WHEN a.i4 <> 0 THEN b.i4 / a.i4 ELSE a.i4 + b.i4 % 3 END",
    "COALESCE(a.v, b.label)",
    "COALESCE(a.i8 + b.i8, a.i8)",
    "a.label || b.label",
    "a.v || b.label",
    "a.v || b.v || 'x' || a.v",
    "a.c || b.label",
    "a.c || b.c",
    "a.label || b.i4",
    "a.i8 || b.label",
    "a.label || (a.i2 + b.i4)",
    "COALESCE(a.label || b.label, a.label, b.v)",
]

REFUSED_CHOICES = [
    "a.label || b.n",
    "a.label || b.day",
    "a.label || b.f8",
    "a.ints || b.ints",
    "a.jsonb || b.jsonb",
    "a.bytes || b.bytes",
    "NULLIF(a.i4, b.i4)",
    "LEAST(a.day, b.day)",
    "CASE a.i4 WHEN b.i4 THEN 1 ELSE 2 END",
    "COALESCE(a.pair, b.pair) IS NULL",
    "a.day + b.i4",
    "a.day - b.day",
    "a.stamp - b.stamp",
    "a.day + b.span",
    "a.span * b.i4",
    "concat(a.label, b.label)",
    "upper(a.label || b.label)",
    "a.label LIKE b.label",
    "a.label ~ b.label",
    "a.ints[b.i4]",
    "a.label || CASE WHEN a.i4 < b.i4 THEN a.c ELSE b.c END",
    "a.label || CASE WHEN a.i4 < b.i4 THEN a.v ELSE b.v END",
]

# Random expressions over the columns of `values.TAME`.
#
# Every operator has something of both tables below it: what reads one table is left to PostgreSQL.


def _mixed(
    leaves: tuple[list[str], list[str]], constants: list[str], signs: str, more: list[str]
) -> st.SearchStrategy[str]:
    """Nested binary operations; `more` are further forms with a place for an operand."""
    left, right = (st.sampled_from(side) for side in leaves)
    any_leaf = st.sampled_from([*leaves[0], *leaves[1], *constants])
    sign = st.sampled_from(signs.split())
    pair = st.builds("({} {} {})".format, left, sign, right) | st.builds(
        "({} {} {})".format, right, sign, left
    )

    def nested(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        return (
            st.builds("({} {} {})".format, inner, sign, any_leaf)
            | st.builds("({} {} {})".format, any_leaf, sign, inner)
            | st.builds("({} {} {})".format, inner, sign, inner)
            | st.builds(lambda form, operand: form.format(operand), st.sampled_from(more), inner)
        )

    return st.recursive(pair, nested, max_leaves=4)


def _sides(*names: str) -> tuple[list[str], list[str]]:
    return [f"a.{name}" for name in names], [f"b.{name}" for name in names]


WHOLE = _mixed(
    _sides("i2", "i4", "i8"),
    ["0", "1", "3", "32767", "2147483647", "3000000000"],
    "+ - * / %",
    ["(-{})", "({})::bigint", "({})::smallint", "({})::integer"],
)
DECIMAL = _mixed(
    _sides("n", "d2", "d4", "tenths", "i4"),
    ["1", "0.5", "2.50", "10", "1.000"],
    "+ - *",
    ["(-{})", "({})::numeric"],
).map("({} + 0.0)".format)


def _conditions() -> st.SearchStrategy[str]:
    sign = st.sampled_from(["=", "<>", "<", "<=", ">", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM"])
    columns = ["i2", "i4", "i8", "n", "d2", "d4", "tenths", "f8", "t", "truth", "day", "span"]
    same = st.sampled_from(columns).flatmap(lambda name: sign.map(lambda s: f"a.{name} {s} b.{name}"))
    numbers = st.sampled_from(["i2", "i4", "i8", "n", "d2", "d4", "tenths", "f8"])
    mixed = st.builds("a.{} {} b.{}".format, numbers, sign, numbers)
    number = WHOLE | DECIMAL
    computed = st.builds("{} {} {}".format, number, sign, number)
    alone = st.sampled_from(["a.truth", "b.truth", "a.i4 IS NULL", "b.n > 0", "a.t LIKE '%a%'", "a.i4 = 7"])
    simple = (same | mixed | computed | alone | WHOLE.map("{} IS NULL".format)).map("({})".format)
    return st.recursive(
        simple,
        lambda inner: (
            st.builds("({} {} {})".format, inner, st.sampled_from(["AND", "OR"]), inner)
            | inner.map("(NOT {})".format)
        ),
        max_leaves=4,
    )


CONDITION = _conditions().map(lambda text: f"({text} AND a.i4 + b.i4 IS NOT NULL OR a.truth = b.truth)")


def _chosen(value: st.SearchStrategy[str], cast: str) -> st.SearchStrategy[str]:
    return st.builds(
        "(CASE WHEN {} THEN {} WHEN {} THEN {} ELSE {} END){}".format,
        CONDITION,
        value,
        CONDITION,
        value,
        value,
        st.just(cast),
    ) | st.builds("COALESCE({}, {}, {})".format, value, value, value)


TEXT = st.sampled_from(
    ["a.t", "b.t", "a.v", "b.v", "a.t || b.v", "b.t || a.i4", "(a.i2 + b.i4) || a.t", "'x'", "NULL"]
)
CHOICE = _chosen(TEXT.map("({})::text".format), "") | _chosen(
    st.sampled_from(["a.i8", "b.i8", "a.i4 + b.i8", "7"]).map("({})::bigint".format), ""
)

ANY = WHOLE | DECIMAL | CONDITION | CHOICE.map("(({}))".format)
