"""Plans of queries, and the reasons for having none: case by case in `fixtures/{parse,refusals}.sql`."""

from __future__ import annotations

import pytest
from tests.unit.plan.world import (
    RELATIONS,
    WITH_GROUPED_VIEW,
    Case,
    aggregate_of,
    cases,
    described,
    planned,
    root_of,
    select_of,
)

from headwater.plan.build.parse import Relations, View, parse_query
from headwater.plan.operators import Scan, referenced_columns, scans, sources_of


@pytest.mark.parametrize("case", cases("parse"), ids=lambda case: case.title)
def test_plan(case: Case) -> None:
    found = planned(case.statement)
    assert found.root is not None, found.reasons
    assert described(found.root) == case.expected
    assert found.reasons == ()


@pytest.mark.parametrize("case", cases("nonlinear"), ids=lambda case: case.title)
def test_nonlinear(case: Case) -> None:
    found = planned(case.statement, WITH_GROUPED_VIEW)
    assert found.root is not None, found.reasons
    assert described(found.root) == case.expected


@pytest.mark.parametrize("case", cases("refusals"), ids=lambda case: case.title)
def test_refusal(case: Case) -> None:
    found = planned(case.statement, WITH_GROUPED_VIEW)
    assert "\n".join(found.reasons) == case.expected
    assert found.root is None


def test_columns_are_named_by_the_server() -> None:
    text = "SELECT o.id, o.note FROM public.orders o"
    parsed = parse_query(text, ("first", "second"), RELATIONS)
    assert parsed.root is not None
    assert parsed.root.output_names == ("first", "second")


def test_text_that_is_no_sql_gives_a_reason() -> None:
    [reason] = planned("SELECT o.id FROM public.orders o WHERE").reasons
    assert reason.startswith("the SQL parser does not know a construct in it (")


def test_every_reason_is_told_at_once() -> None:
    text = """
        WITH RECURSIVE t AS (SELECT o.id FROM public.orders o UNION ALL SELECT t.id FROM t)
        SELECT o.note FROM t, public.orders o TABLESAMPLE system (1) FOR UPDATE OF o"""
    assert set(planned(text).reasons) == {
        "WITH RECURSIVE has no delta rule",
        "TABLESAMPLE gives other rows each time",
        "FOR UPDATE or FOR SHARE locks rows of a source, which a refresh must not do",
    }


def test_the_reasons_of_views_are_told_with_those_of_the_query() -> None:
    relations = Relations(
        RELATIONS.sources,
        {("public", "some"): View("SELECT o.id FROM public.orders o TABLESAMPLE system (1)", ("id",))},
        {},
        frozenset(),
    )
    assert planned("SELECT l.id FROM public.some l FOR SHARE", relations).reasons == (
        "FOR UPDATE or FOR SHARE locks rows of a source, which a refresh must not do",
        "TABLESAMPLE gives other rows each time",
    )


def test_a_column_is_wanted_once_however_often_its_table_is_read() -> None:
    root = root_of(
        "SELECT a.note, b.id FROM (public.orders a JOIN public.orders b ON ((a.id = b.customer_id)))"
    )
    assert referenced_columns(root) == {101: ("id", "customer_id", "note")}
    assert [source.name for source in sources_of(root)] == ["orders"]
    assert [scan.columns for scan in scans(root)] == [("id", "note"), ("id", "customer_id")]


def test_trees_are_not_shared_between_readers_of_one_expression() -> None:
    """Whoever changes a copy must not change the other place where a subquery's column stands."""
    block = select_of("SELECT s.x AS a, s.x AS b FROM (SELECT (o.id + 1) AS x FROM public.orders o) s")
    first, second = (output.expression for output in block.outputs)
    assert first == second
    assert first is not second


def test_a_call_is_told_apart_by_its_filter() -> None:
    aggregate = aggregate_of(
        "SELECT count(*) AS a, count(*) FILTER (WHERE (o.id > 0)) AS b,"
        " count(*) FILTER (WHERE (o.id > 1)) AS c FROM public.orders o"
    )
    assert [call.filter for call in aggregate.calls] == [None, "a1", "a2"]


def test_a_relation_without_the_columns_in_between() -> None:
    """Numbers of dropped columns leave gaps, names decide."""
    [item] = select_of("SELECT o.note FROM public.orders o").inputs
    assert isinstance(item.node, Scan)
    assert item.node.source.column("note").attnum == 5
    assert item.node.source.column("note").change_column == "c5"


def test_a_subquery_with_two_columns_of_one_name() -> None:
    text = "SELECT s.p, s.q FROM (SELECT o.id, c.id FROM public.orders o, public.customers c) s(p, q)"
    assert described(root_of(text)) == (
        "SELECT r3.id AS p, r4.id AS q FROM orders(id) AS r3, customers(id) AS r4"
    )


def test_a_union_with_two_columns_of_one_name() -> None:
    side = "SELECT o.id, c.id FROM public.orders o, public.customers c"
    assert described(root_of(f"SELECT s.q FROM ({side} UNION ALL {side}) s(p, q)")).startswith(
        "SELECT r5.u2 AS q"
    )


def test_two_keys_that_are_one_expression() -> None:
    aggregate = aggregate_of(
        "SELECT s.p, s.q, count(*) AS n FROM (SELECT o.id AS p, o.id AS q FROM public.orders o) s"
        " GROUP BY s.p, s.q"
    )
    assert aggregate.keys == ("k1",)


def test_a_constant_key_stays_out_of_a_type() -> None:
    aggregate = aggregate_of(
        "SELECT (sum(s.x))::numeric(10,1) AS t FROM (SELECT 1 AS one, o.amount AS x FROM public.orders o) s"
        " GROUP BY s.one"
    )
    [output] = aggregate.outputs
    assert output.text == "g.g1::numeric(10, 1)"


def test_an_aggregate_with_capitals_in_its_name() -> None:
    relations = Relations(RELATIONS.sources, {}, {}, frozenset({("public", "Median")}))
    root = root_of('SELECT public."Median"(o.amount) AS m FROM public.orders o', relations)
    assert described(root).startswith("GROUP BY ()")


def test_a_tree_that_is_not_understood_gives_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def stumble(*_: object) -> None:
        raise AttributeError("no such thing")

    monkeypatch.setattr("headwater.plan.build.query.Builder._select", stumble)
    assert planned("SELECT o.id FROM public.orders o").reasons == (
        "the SQL parser's tree of it is not understood (AttributeError: no such thing)",
    )
