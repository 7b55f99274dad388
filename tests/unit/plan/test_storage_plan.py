"""What is stored beside a user's columns, and what of it is seen."""

from __future__ import annotations

import pytest
from tests.unit.plan.world import INTEGER, JSON, MONEY, bag_plan, group_plan

from headwater.plan.aggregates import ROW_COUNT
from headwater.plan.key_filter import HASH
from headwater.plan.staged import Staged
from headwater.plan.storage_plan import HIDDEN, VISIBLE, RecomputePlan
from headwater.plan.values import Column, null_safe_equal, rechecked

COUNTED = "SELECT o.customer_id, count(*) AS n FROM public.orders o GROUP BY o.customer_id"
LISTED = "SELECT o.customer_id, array_agg(o.id) AS ids FROM public.orders o GROUP BY o.customer_id"
HIDDEN_KEY = "SELECT count(*) AS n FROM public.orders o GROUP BY o.customer_id"
COMPUTED_KEY = "SELECT (o.customer_id + 1) AS c, count(*) AS n FROM public.orders o GROUP BY o.customer_id"


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        (COUNTED, ("customer_id", "n", ROW_COUNT, HASH)),
        (f"{COUNTED} HAVING (count(*) > 1)", ("customer_id", "n", ROW_COUNT, VISIBLE, HASH)),
        (LISTED, ("customer_id", "ids", HASH)),
        (f"{LISTED} HAVING (count(*) > 1)", ("customer_id", "ids", HASH)),
        (HIDDEN_KEY, ("n", "__hw_k1", ROW_COUNT, HASH)),
        (COMPUTED_KEY, ("c", "n", "__hw_k1", ROW_COUNT, HASH)),
        ("SELECT sum(o.id) AS s FROM public.orders o", ("s", ROW_COUNT, "__hw_s1", "__hw_s2", HASH)),
        ("SELECT DISTINCT o.note, o.id FROM public.orders o", ("note", "id", ROW_COUNT, HASH)),
    ],
)
def test_stored_columns(text: str, stored: tuple[str, ...]) -> None:
    plan = group_plan(text)
    assert plan.stored_columns == stored
    assert (
        plan.stored_sql("t") == f"SELECT {', '.join(f'{chr(34)}{name}{chr(34)}' for name in stored)} FROM t"
    )


@pytest.mark.parametrize(
    "text", [COUNTED, f"{COUNTED} HAVING (count(*) > 1)", LISTED, HIDDEN_KEY, COMPUTED_KEY]
)
def test_what_is_hidden_is_told_by_its_name(text: str) -> None:
    plan = group_plan(text)
    own = {column.name for column in plan.outputs}
    assert own
    assert all(name.startswith(HIDDEN) for name in plan.stored_columns if name not in own)


def test_a_key_is_stored_in_the_first_column_that_shows_just_it() -> None:
    plan = group_plan(
        "SELECT upper(o.note) AS u, o.note AS x, o.note AS y FROM public.orders o GROUP BY o.note"
    )
    assert plan.stored_keys == {"k1": "x"}
    assert group_plan(COMPUTED_KEY).stored_keys == {"k1": "__hw_k1"}


def test_groups_are_hidden_only_when_their_state_is_needed() -> None:
    assert group_plan(f"{COUNTED} HAVING (count(*) > 1)").hides_groups
    assert not group_plan(COUNTED).hides_groups
    assert not group_plan(f"{LISTED} HAVING (count(*) > 1)").hides_groups
    assert not bag_plan("SELECT o.id FROM public.orders o").hides_groups


def test_having_filters_what_is_recomputed_and_marks_what_is_maintained() -> None:
    recomputed = group_plan(f"{LISTED} HAVING (count(*) > 1)").full_sql()
    assert recomputed.endswith(" WHERE (g.g2 > 1)")
    maintained = group_plan(f"{COUNTED} HAVING (count(*) > 1)").full_sql()
    assert "(g.g1 > 1) IS TRUE AS __hw_visible" in maintained
    assert "WHERE" not in maintained


@pytest.mark.parametrize(
    ("text", "nullable"),
    [
        ("SELECT c.region FROM public.customers c GROUP BY c.region", [False]),
        ("SELECT c.name, c.region FROM public.customers c GROUP BY c.name, c.region", [True, False]),
        ("SELECT upper(c.region) AS r FROM public.customers c GROUP BY (upper(c.region))", [True]),
        ("SELECT c.region FROM public.customers c UNION SELECT c.region FROM public.customers c", [False]),
        ("SELECT c.region FROM public.customers c UNION SELECT o.note FROM public.orders o", [True]),
        ("SELECT o.note FROM public.orders o UNION SELECT c.region FROM public.customers c", [True]),
        ("SELECT v.x FROM (VALUES (1)) v(x) GROUP BY v.x", [True]),
        ("SELECT n.name FROM public.names n GROUP BY n.name", [True]),
    ],
)
def test_a_key_is_never_null_only_if_it_is_a_not_null_column_everywhere(
    text: str, nullable: list[bool]
) -> None:
    assert [key.nullable for key in group_plan(text).keys] == nullable


def test_keys_are_in_the_order_of_the_query() -> None:
    plan = group_plan("SELECT count(*) AS n, o.note, o.id FROM public.orders o GROUP BY o.id, o.note")
    assert [key.name for key in plan.keys] == ["k1", "k2"]
    assert plan.stored_keys == {"k1": "id", "k2": "note"}
    assert plan.key_table_columns == ('"k1"', '"k2"', "__hw_hash", "__hw_null")


def test_one_group_without_a_key_is_found_and_stays() -> None:
    plan = group_plan("SELECT count(*) AS n FROM public.orders o")
    assert plan.keys == ()
    assert plan.same_key("s", "d") == "s.__hw_hash = d.__hw_hash"
    assert not plan.merge_sql("d", "t", None).endswith("<> 0")
    assert group_plan(COUNTED).merge_sql("d", "t", None).endswith(" WHERE g.__hw_count <> 0")


def test_only_extremes_consolidate_their_delta() -> None:
    staged = Staged({101: "d_orders"})
    assert "HAVING sum" not in group_plan(COUNTED).state_delta_sql(staged)
    extreme = group_plan("SELECT max(o.id) AS m FROM public.orders o").state_delta_sql(staged)
    assert "HAVING sum(z.__hw_w) <> 0" in extreme


def test_what_cannot_need_a_rescan_has_none() -> None:
    assert group_plan(COUNTED).rescan_sql("d", "t") is None
    assert group_plan("SELECT sum(o.amount) AS s FROM public.orders o").rescan_sql("d", "t") is not None


def test_a_key_that_cannot_be_hashed_has_no_part_in_the_hash() -> None:
    plan = group_plan(COUNTED, k1=JSON)
    assert "hash_record_extended(ROW(0), 0) AS __hw_hash" in plan.full_sql()


def test_keys_are_compared_in_the_columns_that_hold_them() -> None:
    plan = group_plan(COUNTED)

    def same(left: str, right: str) -> str:
        hashes = f"{left[0]}.__hw_hash = {right[0]}.__hw_hash"
        return f"{hashes} AND {rechecked([null_safe_equal(left, right, INTEGER)])}"

    assert plan.same_key("s", "d") == same('s."customer_id"', 'd."k1"')
    assert plan.same_affected("a", "b") == same('a."k1"', 'b."k1"')
    assert plan.same_stored("a", "b") == same('a."customer_id"', 'b."customer_id"')


def test_rows_of_a_bag_are_the_same_only_if_they_look_the_same() -> None:
    plan = RecomputePlan((Column("n", INTEGER), Column("amount", MONEY)), "SELECT 1 AS n, 1.0 AS amount")
    assert plan.stored_columns == ("n", "amount", HASH)
    assert plan.same_row("a", "b") == (
        'a.__hw_hash = b.__hw_hash AND CASE WHEN a."n" IS NOT DISTINCT FROM b."n"'
        ' AND a."amount"::text COLLATE "C" IS NOT DISTINCT FROM b."amount"::text COLLATE "C"'
        " THEN true ELSE false END"
    )
