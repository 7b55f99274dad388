"""Text to tree and back.

`fixtures/expressions.sql` has an expression a line as the server may write it, followed by `=>` and another
text where what comes back is written otherwise and means the same.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from postgast import pg_query_pb2 as pg
from postgast.pg_query_pb2 import Node
from tests.unit.plan.world import FIXTURES

from headwater.plan import syntax
from headwater.plan.deparse import query_text, text_of
from headwater.plan.errors import Unsupported
from headwater.plan.quoting import identifier, literal
from headwater.plan.syntax import (
    DEEPEST,
    LOCATIONS,
    TOO_DEEP,
    ParseError,
    kind_of,
    parse,
    reading,
)

EXPRESSIONS = (FIXTURES / "expressions.sql").read_text(encoding="utf-8").splitlines()

# NUL is in no text of PostgreSQL, a lone surrogate in no UTF-8.
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
hostile = st.text(st.sampled_from("'\"\\\n;-/*$%{}aE \u00e9"), max_size=12)


def expression(text: str) -> Node:
    return parse(f"SELECT {text}").target_list[0].res_target.val


@pytest.mark.parametrize("line", EXPRESSIONS)
def test_an_expression_comes_back_as_it_was(line: str) -> None:
    written, _, other = line.partition("  =>  ")
    found = parse(f"SELECT {written} AS x FROM t AS o")
    text = text_of(found.target_list[0].res_target.val)
    assert text.rstrip() == (other or written)
    assert parse(f"SELECT {text} AS x FROM t AS o") == found


QUERIES = [
    "WITH w(a) AS MATERIALIZED (SELECT 1) SELECT * FROM w",
    "SELECT DISTINCT ON (t.a) t.a AS x, t.b FROM s.t AS t ORDER BY t.a DESC NULLS LAST LIMIT 3 OFFSET 1",
    "SELECT t.a FROM t GROUP BY DISTINCT ROLLUP (t.a, t.b), CUBE (t.c), GROUPING SETS ((t.a), ())",
    "SELECT count(*) FROM t HAVING count(*) > 1",
    "SELECT a.x FROM a JOIN b USING (x) AS u LEFT JOIN c ON a.x = c.x CROSS JOIN d",
    "SELECT s.x FROM LATERAL (SELECT 1) s(x), ROWS FROM (f(1), g(2)) WITH ORDINALITY AS r(a, b, n)",
    "SELECT x.a FROM ONLY t x, t AS y TABLESAMPLE system (10) REPEATABLE (1)",
    "SELECT sum(t.a) OVER w FROM t WINDOW w AS (PARTITION BY t.b ORDER BY t.c RANGE UNBOUNDED PRECEDING)",
    "(SELECT 1 UNION SELECT 2) EXCEPT ALL (SELECT 3 INTERSECT SELECT 4) ORDER BY 1 LIMIT 5",
    "SELECT 1 UNION ALL (SELECT 2 ORDER BY 1 LIMIT 1)",
    "VALUES (1, 'a'), (2, NULL) ORDER BY 1",
    "SELECT j.a FROM t, JSON_TABLE(t.j, '$[*]' COLUMNS (a int PATH '$.a')) AS j",
    "SELECT x.a FROM t, XMLTABLE('/r' PASSING t.x COLUMNS a int PATH 'a') AS x",
    "SELECT t.a FROM t ORDER BY t.a FETCH FIRST 3 ROWS WITH TIES",
    "SELECT FROM t",
    "SELECT t.a FROM t FOR UPDATE OF t SKIP LOCKED",
    "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT r.n FROM r) SEARCH DEPTH FIRST BY n SET o SELECT 1",
]


@pytest.mark.parametrize("text", QUERIES)
def test_a_query_comes_back_as_it_was(text: str) -> None:
    found = parse(text)
    assert parse(query_text(found)) == found


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
    # The server cuts a name of more than 63 bytes; these are shorter.
    found = parse(f"SELECT {literal(value)} AS {identifier(name)}")
    [output] = parse(query_text(found)).target_list
    assert output.res_target.name == name
    assert output.res_target.val.a_const.sval.sval == value


@pytest.mark.parametrize("text", ["SELECT 1 FROM", "SELECT (1", "SELECT 'a", "WHERE", ""])
def test_what_is_no_statement_is_refused(text: str) -> None:
    with pytest.raises((ParseError, Unsupported)):
        parse(text)


@pytest.mark.parametrize("text", ["SELECT 1; SELECT 2", "DELETE FROM t", "CREATE TABLE t (a int)"])
def test_what_is_not_one_query_is_refused(text: str) -> None:
    with pytest.raises(Unsupported, match="not one query"):
        parse(text)


def test_comments_are_left_out() -> None:
    assert query_text(parse("SELECT 1 /* one */ -- two")) == "SELECT 1"


def test_where_something_stood_is_forgotten() -> None:
    assert parse("SELECT   t.a,\n f(1) FROM t") == parse("SELECT t.a, f(1) FROM t")


def test_every_field_that_says_where_something_stood_is_known() -> None:
    fields = {field.name for kind in pg.DESCRIPTOR.message_types_by_name.values() for field in kind.fields}
    assert {name for name in fields if name.endswith(("location", "_start", "_end", "_len"))} == LOCATIONS


DEEP = {
    "operators": lambda count: f"SELECT {' + '.join(['t.a'] * count)} FROM t",
    "calls": lambda count: f"SELECT {'abs(' * count}t.a{')' * count} FROM t",
    "set operations": lambda count: " UNION ALL ".join(["SELECT t.a FROM t"] * (2 * count)),
    "cases": lambda count: f"SELECT {'CASE WHEN t.b THEN 1 ELSE ' * count}1{' END' * count} FROM t",
}


@pytest.mark.parametrize("what", DEEP)
def test_deep_nesting(what: str) -> None:
    """protobuf by itself reads no message that is deeper than 100."""
    found = parse(DEEP[what](120))
    assert parse(query_text(found)) == found
    with pytest.raises(Unsupported, match=TOO_DEEP):
        parse(DEEP[what](DEEPEST))


def test_a_condition_is_not_deep_for_being_long() -> None:
    found = parse(f"SELECT 1 FROM t WHERE {' AND '.join(['t.a > 1'] * 5000)}")
    assert len(found.where_clause.bool_expr.args) == 5000


def test_a_rewritten_tree_leaves_the_first_as_it_was() -> None:
    before = expression("t.a + f(t.b)")
    kept = syntax.copied(before)
    made = syntax.rewritten(before, lambda node: syntax.integer(1) if kind_of(node) == "column_ref" else None)
    assert text_of(made) == "1 + f(1)"
    assert before == kept


def test_what_takes_a_place_is_not_looked_into() -> None:
    made = syntax.rewritten(
        expression("t.a"), lambda node: expression("t.a + t.a") if kind_of(node) == "column_ref" else None
    )
    assert text_of(made) == "t.a + t.a"


def test_walking_stops_at_a_query_if_asked() -> None:
    tree = expression("f(t.a, (SELECT u.b FROM u))")
    assert len(syntax.find(tree, "column_ref")) == 2
    assert len(syntax.find(tree, "column_ref", into_queries=False)) == 1
    assert len(syntax.find(tree, "select_stmt", into_queries=False)) == 1


@pytest.mark.parametrize(
    ("conditions", "text"),
    [
        ([], "true"),
        (["t.a"], "t.a"),
        (["t.a", "t.b AND t.c"], "t.a AND t.b AND t.c"),
        (["t.a", "t.b OR t.c"], "t.a AND (t.b OR t.c)"),
    ],
)
def test_all_of(conditions: list[str], text: str) -> None:
    assert text_of(syntax.all_of([expression(item) for item in conditions])) == text


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("f(1)", ("pg_catalog", "f")),
        ("public.f(1)", ("public", "f")),
        ('"S x"."F"(1)', ("S x", "F")),
        ("extract(year FROM t.a)", ("pg_catalog", "extract")),
    ],
)
def test_function_name(text: str, name: tuple[str, str]) -> None:
    assert syntax.function_name(expression(text).func_call) == name


# Reading


def test_a_field_that_nobody_read_is_refused_by_its_name() -> None:
    with pytest.raises(Unsupported, match=r"^HAVING has no delta rule here$"):
        with reading(parse("SELECT 1 HAVING true")) as found:
            _ = (found.target_list, found.op, found.limit_option)


def test_a_field_without_a_name_in_sql_is_named_as_in_the_tree() -> None:
    with pytest.raises(Unsupported, match=r"^RangeVar\.catalogname has no delta rule here$"):
        with reading(pg.RangeVar(relname="t", catalogname="c")) as found:
            _ = found.relname


def test_a_field_that_is_not_set_need_not_be_read() -> None:
    with reading(pg.RangeVar(relname="t", location=7)) as found:
        assert found.relname == "t"


def test_whatever_is_raised_while_reading_comes_first() -> None:
    with pytest.raises(Unsupported, match=r"^first$"):
        with reading(pg.RangeVar(relname="t", inh=True)):
            raise Unsupported("first")
