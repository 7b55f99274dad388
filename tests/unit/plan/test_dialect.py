"""Text to tree and back.

`fixtures/expressions.sql` has an expression a line as the server may write it, followed by `=>` and another
text where what comes back is written otherwise and means the same.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlglot import exp
from sqlglot.errors import ParseError, TokenError
from tests.unit.plan.world import FIXTURES

from headwater.plan.dialect import identifier, literal, parse, render

EXPRESSIONS = (FIXTURES / "expressions.sql").read_text(encoding="utf-8").splitlines()

# NUL is in no text of PostgreSQL, a lone surrogate in no UTF-8.
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
hostile = st.text(st.sampled_from("'\"\\\n;-/*$%{}aE \u00e9"), max_size=12)


def returned(expression: str) -> str:
    return render(parse(f"SELECT {expression} AS x FROM t AS o"))


@pytest.mark.parametrize("line", EXPRESSIONS)
def test_an_expression_comes_back_as_it_was(line: str) -> None:
    written, _, other = line.partition("  =>  ")
    assert returned(written) == f"SELECT {other or written} AS x FROM t AS o"


# The server gives every string a type.
atoms = st.sampled_from(["o.a", "o.b", "1", "2.50", "CAST('it''s' AS TEXT)", "CAST(NULL AS INT)"])
expressions = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.builds(
            "({} {} {})".format,
            inner,
            st.sampled_from("+ - * / % || = <> < >= AND OR ~ !~ ~* !~* -> #>> @> && ^ ^@".split()),
            inner,
        ),
        st.builds("({} {})".format, st.sampled_from(["NOT", "|/", "||/"]), inner),
        st.builds("({} IS NULL)".format, inner),
        st.builds("({} IS DISTINCT FROM {})".format, inner, inner),
        st.builds("CASE WHEN {} THEN {} ELSE {} END".format, inner, inner, inner),
        st.builds(
            "{}({}, {})".format, st.sampled_from(["mod", "log", "strpos", "Odd", "left"]), inner, inner
        ),
        st.builds("CAST({} AS {})".format, inner, st.sampled_from(["TEXT", "DECIMAL(10, 2)", "INT", "DATE"])),
    ),
    max_leaves=8,
)


# No server has an operator -> for a fraction.
@given(expressions.filter(lambda written: "-> 2.50" not in written))
def test_nested_expressions_come_back_as_they_were(written: str) -> None:
    assert returned(written) == f"SELECT {written} AS x FROM t AS o"


def scanned(text: str, quote: str) -> str:
    """What is between quotes, doubled ones taken for one; the closing quote must be the last sign."""
    assert text[0] == quote
    value, position = "", 1
    while not (text[position] == quote and text[position : position + 2] != quote * 2):
        assert text[position] != quote or text[position : position + 2] == quote * 2
        value += text[position]
        position += 2 if text[position] == quote else 1
    assert position == len(text) - 1
    return value


@given(st.one_of(texts, hostile))
def test_a_quoted_name_is_one_name(name: str) -> None:
    assert scanned(identifier(name), '"') == name


@given(st.one_of(texts, hostile))
def test_a_quoted_string_is_one_string(value: str) -> None:
    sql = literal(value)
    if sql.startswith("E"):
        inside = scanned(sql[1:], "'")
        assert "\\" not in inside.replace("\\\\", "")
        assert inside.replace("\\\\", "\\") == value
    else:
        assert "\\" not in sql
        assert scanned(sql, "'") == value


@given(hostile.filter(bool), hostile)
def test_hostile_names_and_strings_survive_the_round_trip(name: str, value: str) -> None:
    tree = parse(f"SELECT {literal(value)} AS {identifier(name)}")
    assert isinstance(tree, exp.Select)
    assert tree.named_selects == [name]
    again = parse(render(tree))
    assert isinstance(again, exp.Select)
    assert again.named_selects == [name]
    assert again.expressions[0].this == tree.expressions[0].this


@pytest.mark.parametrize("text", ["SELECT 1 FROM", "SELECT (1", "SELECT 'a", "WHERE"])
def test_what_is_no_statement_is_refused(text: str) -> None:
    with pytest.raises((ParseError, TokenError)):
        parse(text)


def test_comments_are_left_out() -> None:
    assert render(parse("SELECT 1 /* one */ -- two")) == "SELECT 1"
