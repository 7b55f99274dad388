"""Which aggregates have an algebra, which states they share, and the SQL of the states."""

from __future__ import annotations

import pytest
from tests.unit.plan.world import (
    BIGINT,
    BOOLEAN,
    CITEXT,
    DOUBLE,
    INTEGER,
    INTERVAL,
    MONEY,
    NUMERIC,
    TEXT,
    aggregate_of,
    group_plan,
)

from headwater.plan.aggregates import (
    ROW_COUNT,
    State,
    StateKind,
    algebra_of,
    delta_columns,
    merged,
    obstacle,
    over_delta,
    over_rows,
    rescan_condition,
)
from headwater.plan.operators import ColumnType

# What `obstacle` says of a call over public.orders o; the column a1 has the given type.
OBSTACLES: list[tuple[str, ColumnType, str | None]] = [
    ("count(*)", TEXT, None),
    ("count(o.note)", TEXT, None),
    ("count(*) FILTER (WHERE (o.id > 0))", BOOLEAN, None),
    ("sum(o.id)", INTEGER, None),
    ("sum(o.id)", BIGINT, None),
    ("sum(o.amount)", MONEY, None),
    ("avg(o.amount)", NUMERIC, None),
    ("min(o.note)", TEXT, None),
    ("max(o.amount)", DOUBLE, None),
    ("sum(o.amount)", DOUBLE, "sum over double precision depends on the order of the rows"),
    ("avg(o.amount)", DOUBLE, "avg over double precision depends on the order of the rows"),
    ("sum(o.amount)", INTERVAL, "sum over interval has no state that deltas can be added to"),
    ("avg(o.amount)", INTERVAL, "avg over interval has no state that deltas can be added to"),
    ("count(DISTINCT o.note)", TEXT, "count(DISTINCT …) needs the values themselves"),
    ("sum(DISTINCT o.id)", INTEGER, "sum(DISTINCT …) needs the values themselves"),
    ("array_agg(o.note)", TEXT, "array_agg has no state that deltas can be added to"),
    ("public.median(o.id)", INTEGER, "median has no state that deltas can be added to"),
    ("public.sum(o.id)", INTEGER, "sum has no state that deltas can be added to"),
    (
        "max(o.id ORDER BY o.note)",
        INTEGER,
        "max with ORDER BY or several arguments has no state that deltas can be added to",
    ),
    (
        "sum(o.id, o.note)",
        INTEGER,
        "sum with ORDER BY or several arguments has no state that deltas can be added to",
    ),
    ("sum(1)", INTEGER, "sum of a constant has no column to add up"),
    ("max(1)", INTEGER, "max of a constant has no column to look at"),
    ("count(1)", INTEGER, "count of a constant has no column to look at"),
]


@pytest.mark.parametrize(("call", "kind", "reason"), OBSTACLES, ids=lambda item: getattr(item, "sql", item))
def test_obstacle(call: str, kind: ColumnType, reason: str | None) -> None:
    aggregate = aggregate_of(f"SELECT {call} AS x FROM public.orders o")
    types = dict.fromkeys(aggregate.input.output_names, kind)
    assert obstacle(aggregate.calls[0], types) == reason
    assert (algebra_of(aggregate, types) is None) == (reason is not None)


@pytest.mark.parametrize("argument", ["2 * NULL::integer", "NULLIF('*'::text, '*'::text)"])
def test_a_constant_with_a_star_in_it_is_not_count_star(argument: str) -> None:
    [call] = aggregate_of(f"SELECT count({argument}) AS n FROM public.orders o").calls
    assert obstacle(call, {}) == "count of a constant has no column to look at"


def test_one_call_without_an_algebra_leaves_none_for_the_others() -> None:
    text = "SELECT count(*) AS n, array_agg(o.id) AS ids FROM public.orders o"
    assert algebra_of(aggregate_of(text), {"a1": INTEGER}) is None


def test_states_are_shared_between_calls() -> None:
    plan = group_plan(
        "SELECT count(*) AS a, count(o.id) AS b, sum(o.id) AS c, avg(o.id) AS d, max(o.id) AS e,"
        " min(o.id) AS f, (count(*) + 1) AS g FROM public.orders o"
    )
    assert plan.algebra is not None
    assert [(state.kind, state.argument) for state in plan.algebra.states] == [
        (StateKind.ROWS, None),
        (StateKind.COUNT, "a1"),
        (StateKind.SUM, "a1"),
        (StateKind.MAX, "a1"),
        (StateKind.MIN, "a1"),
    ]
    assert [state.kind for state in plan.algebra.extremes] == [StateKind.MAX, StateKind.MIN]


def test_states_with_other_filters_or_arguments_are_not_shared() -> None:
    plan = group_plan(
        "SELECT sum(o.id) AS a, sum(o.id) FILTER (WHERE (o.id > 0)) AS b, sum(o.customer_id) AS c,"
        " count(*) FILTER (WHERE (o.id > 0)) AS d FROM public.orders o"
    )
    assert plan.algebra is not None
    sums = [state for state in plan.algebra.states if state.kind is StateKind.SUM]
    assert [(state.argument, state.filter) for state in sums] == [("a1", None), ("a1", "a2"), ("a3", None)]
    names = [state.name for state in plan.algebra.states]
    assert len(set(names)) == len(names)


def test_the_row_count_is_always_there_and_first() -> None:
    plan = group_plan("SELECT o.note, max(o.id) AS m FROM public.orders o GROUP BY o.note")
    assert plan.algebra is not None
    assert plan.algebra.states[0] == State(ROW_COUNT, StateKind.ROWS)


@pytest.mark.parametrize(
    ("call", "kept"),
    [
        ("avg(o.id)", False),
        ("avg(o.amount)", False),
        ("sum((o.amount * o.amount))", False),
        ("sum(i.price)", True),
        ("avg((i.price + o.amount))", True),
        ("max(i.price)", False),
    ],
)
def test_only_a_numeric_whose_scale_is_not_fixed_keeps_its_scales(call: str, kept: bool) -> None:
    aggregate = aggregate_of(f"SELECT {call} AS a FROM public.orders o, public.items i")
    algebra = algebra_of(aggregate, {"a1": INTEGER if "o.id" in call else NUMERIC})
    assert algebra is not None
    assert (StateKind.SCALES in [state.kind for state in algebra.states]) == kept


@pytest.mark.parametrize(
    ("call", "final"),
    [
        ("count(*)", 's."__hw_count"'),
        ("count(o.id)", 's."__hw_s1"'),
        ("min(o.id)", 's."__hw_s1"'),
        ("sum(o.id)", 'CASE WHEN s."__hw_s2" > 0 THEN (s."__hw_s1")::bigint END'),
        ("sum(i.id)", 'CASE WHEN s."__hw_s2" > 0 THEN (s."__hw_s1")::numeric END'),
        ("sum(o.amount)", 'CASE WHEN s."__hw_s2" > 0 THEN (s."__hw_s1")::numeric END'),
        ("avg(o.id)", 'CASE WHEN s."__hw_s2" > 0 THEN s."__hw_s1" / s."__hw_s2"::numeric END'),
        (
            "sum(i.price)",
            'CASE WHEN s."__hw_s2" > 0 THEN'
            ' (round(s."__hw_s1", (length(s."__hw_s3"::text) - 1) / 12))::numeric END',
        ),
    ],
)
def test_final(call: str, final: str) -> None:
    plan = group_plan(f"SELECT {call} AS x FROM public.orders o, public.items i")
    assert plan.algebra is not None
    assert plan.algebra.finals == (("g1", final),)


COUNT = State("n", StateKind.COUNT, "a1", "a2", INTEGER)
STARS = State("n", StateKind.COUNT, None, "a2")
SUM = State("t", StateKind.SUM, "a1", None, INTEGER)
BIG_SUM = State("t", StateKind.SUM, "a1", "a2", BIGINT)
MONEY_SUM = State("t", StateKind.SUM, "a1", None, MONEY)
SCALES = State("h", StateKind.SCALES, "a1", "a2", NUMERIC)
MIN = State("m", StateKind.MIN, "a1", None, INTEGER)
MAX = State("m", StateKind.MAX, "a1", "a2", CITEXT)


def test_a_state_over_rows() -> None:
    assert over_rows(State(ROW_COUNT, StateKind.ROWS)) == "count(*)"
    assert over_rows(COUNT) == 'count(i."a1") FILTER (WHERE i."a2")'
    assert over_rows(STARS) == 'count(*) FILTER (WHERE i."a2")'
    assert over_rows(SUM) == 'coalesce(sum(i."a1"), 0)::numeric'
    assert over_rows(MIN) == 'min(i."a1")'
    assert over_rows(MAX) == 'max(i."a1") FILTER (WHERE i."a2")'
    assert over_rows(SCALES).startswith(
        'coalesce(sum(CASE scale(i."a1") WHEN 0 THEN 1::numeric WHEN 1 THEN 10'
    )
    assert over_rows(SCALES).endswith(' FILTER (WHERE i."a2"), 0)')


def test_a_state_over_weighted_rows() -> None:
    assert over_delta(State(ROW_COUNT, StateKind.ROWS), "w") == ("coalesce(sum(d.w), 0)::bigint",)
    assert over_delta(COUNT, "w") == (
        'coalesce(sum(d.w) FILTER (WHERE d."a2" AND d."a1" IS DISTINCT FROM NULL), 0)::bigint',
    )
    assert over_delta(STARS, "w") == ('coalesce(sum(d.w) FILTER (WHERE d."a2"), 0)::bigint',)
    assert over_delta(SUM, "w") == ('coalesce(sum(d.w * d."a1"), 0)::numeric',)
    assert over_delta(MIN, "w") == (
        'min(d."a1") FILTER (WHERE d.w > 0)',
        'min(d."a1") FILTER (WHERE d.w < 0)',
    )
    assert over_delta(MAX, "w") == (
        'max(d."a1") FILTER (WHERE d."a2" AND d.w > 0)',
        'max(d."a1") FILTER (WHERE d."a2" AND d.w < 0)',
    )


@pytest.mark.parametrize("state", [BIG_SUM, MONEY_SUM])
def test_a_product_that_could_overflow_is_numeric(state: State) -> None:
    [sql] = over_delta(state, "w")
    assert 'sum(d.w::numeric * d."a1")' in sql


@pytest.mark.parametrize("state", [COUNT, SUM, SCALES, MIN, MAX])
def test_a_delta_has_an_expression_for_each_of_its_columns(state: State) -> None:
    assert len(over_delta(state, "w")) == len(delta_columns(state))


def test_a_delta_column_of_an_extreme_comes_in_two() -> None:
    assert delta_columns(MIN) == ("m_in", "m_out")
    assert delta_columns(SUM) == ("t",)


def test_merging_adds_or_takes_the_better_one() -> None:
    assert merged(SUM) == 'coalesce(s."t", 0) + d."t"'
    assert merged(MIN) == 'LEAST(s."m", d."m_in")'
    assert merged(MAX) == 'GREATEST(s."m", d."m_in")'


def test_what_adds_exactly_is_never_rescanned() -> None:
    assert [rescan_condition(state) for state in (COUNT, SUM, SCALES)] == [None, None, None]


def test_a_sum_that_is_not_finite_is_rescanned() -> None:
    condition = rescan_condition(MONEY_SUM)
    assert condition == """coalesce(s."t", 0) + d."t" = ANY ('{NaN,Infinity,-Infinity}'::numeric[])"""


def test_an_extreme_that_went_and_was_not_replaced_is_rescanned() -> None:
    equals = "OPERATOR(public.=)"
    assert rescan_condition(MAX) == (
        f'(d."m_out" {equals} s."m" AND'
        f' (d."m_in" IS NULL OR NOT GREATEST(s."m", d."m_in") {equals} d."m_in"))'
    )


def test_names_are_quoted() -> None:
    odd = State('n"', StateKind.COUNT, 'a"1', 'f"', INTEGER)
    assert over_rows(odd) == 'count(i."a""1") FILTER (WHERE i."f""")'
    assert merged(odd) == 'coalesce(s."n""", 0) + d."n"""'
