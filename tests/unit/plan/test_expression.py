"""What a plan asks of an expression."""

from __future__ import annotations

import pytest

from headwater.plan.expression import (
    Case,
    Cast,
    Coalesce,
    ColumnRef,
    Distinction,
    Expression,
    Literal,
    Logic,
    Negation,
    NullTest,
    Opaque,
    Operation,
    Row,
    all_of,
    any_of,
    column,
    conjuncts,
    integer,
)
from headwater.plan.syntax import parse


def expression(text: str) -> Expression:
    return Expression(parse(f"SELECT {text}").target_list[0].res_target.val)


A, B, ONE = expression("t.a"), expression("t.b"), expression("1")


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("t.a", ColumnRef("t", "a")),
        ("a", ColumnRef("", "a")),
        ("1", Literal("1", number=True)),
        ("-1", Literal("-1", number=True)),
        ("1.50", Literal("1.50", number=True)),
        ("'x'", Literal("x", number=False)),
        ("NULL", Opaque()),
        ("true", Opaque()),
        ("t.a::integer", Cast(A, "int4", ())),
        ("t.a::pg_catalog.numeric(10,2)", Cast(A, "numeric", ("10", "2"))),
        ("t.a::public.citext", Opaque()),
        ("t.a::integer[]", Opaque()),
        ("t.a + 1", Operation("+", A, ONE)),
        ("- t.a", Operation("-", None, A)),
        ("t.a OPERATOR(pg_catalog.+) 1", Operation("+", A, ONE)),
        ("t.a OPERATOR(public.+) 1", Opaque()),
        ("t.a LIKE t.b", Opaque()),
        ("t.a IN (1, 2)", Opaque()),
        ("t.a = ANY (t.b)", Opaque()),
        ("t.a AND t.b", Logic("AND", (A, B))),
        ("t.a OR t.b", Logic("OR", (A, B))),
        ("NOT t.a", Negation(A)),
        ("t.a IS NULL", NullTest(A, negated=False)),
        ("t.a IS NOT NULL", NullTest(A, negated=True)),
        ("t.a IS DISTINCT FROM t.b", Distinction(A, B, negated=False)),
        ("t.a IS NOT DISTINCT FROM t.b", Distinction(A, B, negated=True)),
        ("COALESCE(t.a, 1)", Coalesce((A, ONE))),
        ("CASE WHEN t.a THEN t.b ELSE 1 END", Case(((A, B),), ONE)),
        ("CASE WHEN t.a THEN t.b END", Case(((A, B),), None)),
        ("CASE t.a WHEN t.b THEN 1 END", Opaque()),
        ("ROW(t.a, 1)", Row((A, ONE))),
        ("f(t.a)", Opaque()),
        ("t.a IS TRUE", Opaque()),
        ("(t.a).f", Opaque()),
        ("t.*", Opaque()),
    ],
)
def test_shape(text: str, shape: object) -> None:
    assert expression(text).shape == shape


def test_columns_that_it_refers_to_are_listed_once() -> None:
    found = expression("f(t.a, u.b) + t.a + (SELECT v.c FROM v WHERE v.d = t.a)")
    assert found.references == (
        ColumnRef("t", "a"),
        ColumnRef("u", "b"),
        ColumnRef("v", "c"),
        ColumnRef("v", "d"),
    )
    assert found.aliases == {"t", "u", "v"}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("t.a", False),
        ("EXISTS (SELECT 1)", True),
        ("f(ARRAY(SELECT 1))", True),
        ("JSON_ARRAY(SELECT 1)", True),
    ],
)
def test_has_query(text: str, found: bool) -> None:
    assert expression(text).has_query is found


def test_tables_are_those_without_a_schema() -> None:
    assert expression("(SELECT q1.a FROM q1, s.t, q2 x)").tables == {"q1", "q2"}


def test_other_tables_keep_the_names_that_they_had() -> None:
    before = expression("EXISTS (SELECT 1 FROM q1, q2 x, s.q1 y WHERE q1.a = x.a)")
    assert before.reading({"q1": "d1", "q2": "d2"}).text == (
        "EXISTS (SELECT 1 FROM d1 q1, d2 x, s.q1 y WHERE q1.a = x.a)"
    )


@pytest.mark.parametrize(
    ("text", "sides"),
    [
        ("t.a = t.b", (A, B)),
        ("t.a OPERATOR(pg_catalog.=) t.b", (A, B)),
        ("t.a OPERATOR(public.=) t.b", None),
        ("t.a <> t.b", None),
        ("t.a = ANY (t.b)", None),
        ("t.a IN (SELECT 1)", None),
    ],
)
def test_equality(text: str, sides: tuple[Expression, Expression] | None) -> None:
    assert expression(text).equality == sides


def test_one_column_is_put_in_place_of_another_under_another_alias() -> None:
    found = expression("f(t.a, u.a, a)")
    assert found.realiased({"t": "x"}).text == "f(x.a, u.a, a)"
    assert found.unqualified().text == "f(a, a, a)"
    swapped = expression("t.a - t.b").mapped(lambda ref: column("b" if ref.name == "a" else "a", "t"))
    assert swapped.text == "t.b - t.a"


def test_expressions_of_one_text_are_equal() -> None:
    assert expression("t.a+1") == expression("(t.a)  + 1")
    assert len({expression("t.a+1"), expression("t.a + 1"), expression("t.a + 2")}) == 2
    assert expression("t.a") != expression("u.a")


def test_conjuncts() -> None:
    found = conjuncts([expression("t.a AND (t.b AND t.c) AND (t.d OR t.e)"), integer(1)])
    assert [item.text for item in found] == ["t.a", "t.b", "t.c", "t.d OR t.e", "1"]


def test_joining_conditions() -> None:
    assert all_of([A, expression("t.b OR t.c")]).text == "t.a AND (t.b OR t.c)"
    assert any_of([A, expression("t.b AND t.c")]).text == "t.a OR (t.b AND t.c)"
    assert all_of([]).text == "true"
    assert any_of([]).text == "false"
