"""SQL as it is rendered, kept in `golden/*.sql`.

When SQL is meant to change, run these tests with HEADWATER_UPDATE_GOLDEN=1: the files are rewritten (those
that nothing renders any more are removed), the tests fail once to say so, and `git diff` shows the change.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import postgast
import pytest
from tests.unit.plan.world import (
    BOOLEAN,
    CITEXT,
    INTEGER,
    JSON,
    MONEY,
    NUMERIC,
    TEXT,
    aggregate_of,
    bag_plan,
    group_plan,
    root_of,
    select_of,
)

from headwater.plan.key_filter import KeyFilter
from headwater.plan.operators import Aggregate, UnionAll
from headwater.plan.render import delta_sql, now_sql
from headwater.plan.staged import Staged
from headwater.plan.values import (
    Column,
    consolidated_sql,
    hash_sql,
    hashable,
    identity,
    is_null,
    null_safe_equal,
    restored,
)

GOLDEN = Path(__file__).parent / "golden"
UPDATE = bool(os.environ.get("HEADWATER_UPDATE_GOLDEN"))

JOIN = """
    SELECT o.id, c.name, o.amount
    FROM (public.orders o JOIN public.customers c ON ((o.customer_id = c.id))) WHERE (o.amount > 10)"""
UNION = "SELECT o.id, o.note FROM public.orders o UNION ALL SELECT c.id, c.name FROM public.customers c"
OVER_UNION = "SELECT n.name, i.id FROM public.names n, public.items i WHERE (n.name = (i.price)::text)"
GROUPED = """
    SELECT c.region, o.note, count(*) AS n, sum(o.amount) AS total, max(o.id) AS latest
    FROM (public.orders o JOIN public.customers c ON ((o.customer_id = c.id)))
    GROUP BY c.region, o.note HAVING (count(*) > 1)"""
RECOMPUTED = "SELECT o.note, array_agg(o.id ORDER BY o.id) AS ids FROM public.orders o GROUP BY o.note"
ORDERS_CHANGED = Staged({101: "d_orders"})
CUSTOMERS_CHANGED = Staged({102: "d_customers"})
BOTH_CHANGED = Staged({101: "d_orders", 102: "d_customers"})


def input_of(text: str, key_filter: KeyFilter | None = None) -> str:
    return now_sql(aggregate_of(text).input, key_filter)


def delta_of(text: str, staged: Staged) -> str:
    root = root_of(text)
    assert not isinstance(root, Aggregate)
    return delta_sql(root, staged)


def rescan() -> str:
    sql = group_plan(GROUPED).rescan_sql("d_state", "storage")
    assert sql is not None
    return sql


RENDERED: dict[str, Callable[[], str]] = {
    "now_join": lambda: now_sql(select_of(JOIN)),
    "now_key_filter_not_null": lambda: input_of(
        GROUPED, KeyFilter("keys", (Column("k1", TEXT, nullable=False),))
    ),
    "now_key_filter_nullable": lambda: input_of(
        GROUPED, KeyFilter("keys", (Column("k1", TEXT, nullable=False), Column("k2", CITEXT)))
    ),
    "delta_join_left_changed": lambda: delta_of(JOIN, ORDERS_CHANGED),
    "delta_join_right_changed": lambda: delta_of(JOIN, CUSTOMERS_CHANGED),
    "delta_join_both_changed": lambda: delta_of(JOIN, BOTH_CHANGED),
    "delta_self_join": lambda: delta_of(
        "SELECT a.id, b.note FROM (public.orders a JOIN public.orders b ON ((a.id = b.customer_id)))",
        ORDERS_CHANGED,
    ),
    "delta_union_one_branch_changed": lambda: delta_of(UNION, CUSTOMERS_CHANGED),
    "delta_over_union": lambda: delta_of(OVER_UNION, Staged({101: "d_orders", 103: "d_items"})),
    "consolidated_exact": lambda: consolidated_sql("SELECT …", (Column("id", INTEGER), Column("note", TEXT))),
    "consolidated_inexact": lambda: consolidated_sql(
        "SELECT …",
        (Column("id", INTEGER), Column("amount", MONEY), Column("label", CITEXT), Column("j", JSON)),
    ),
    "consolidated_without_columns": lambda: consolidated_sql("SELECT …", ()),
    "bag_full": lambda: bag_plan(JOIN).full_sql(),
    "bag_delta": lambda: bag_plan(JOIN).delta_sql(ORDERS_CHANGED),
    "bag_difference": lambda: bag_plan(JOIN).difference_sql("storage"),
    "groups_full": lambda: group_plan(GROUPED).full_sql(),
    "groups_affected": lambda: group_plan(RECOMPUTED).affected_sql(ORDERS_CHANGED),
    "groups_recompute": lambda: group_plan(RECOMPUTED).recompute_sql("keys"),
    "groups_state_delta": lambda: group_plan(GROUPED).state_delta_sql(BOTH_CHANGED),
    "groups_rescan": rescan,
    "groups_merge": lambda: group_plan(GROUPED).merge_sql("d_state", "storage", "rescanned"),
    "one_group_full": lambda: group_plan("SELECT avg(i.price) AS a FROM public.items i").full_sql(),
    "one_group_merge": lambda: group_plan("SELECT count(*) AS n FROM public.items i").merge_sql(
        "d_state", "storage", None
    ),
}


@pytest.mark.parametrize("name", RENDERED)
def test_golden(name: str) -> None:
    path = GOLDEN / f"{name}.sql"
    rendered = RENDERED[name]() + "\n"
    if UPDATE and (not path.exists() or path.read_text(encoding="utf-8") != rendered):
        path.write_text(rendered, encoding="utf-8")
        pytest.fail(f"{path.name} was rewritten")
    assert rendered == path.read_text(encoding="utf-8")


def test_every_golden_file_is_rendered() -> None:
    stale = {path for path in GOLDEN.glob("*.sql") if path.stem not in RENDERED}
    if UPDATE:
        for path in stale:
            path.unlink()
    assert not stale


@pytest.mark.parametrize("name", [name for name in RENDERED if not name.startswith("consolidated")])
def test_what_is_rendered_is_one_statement(name: str) -> None:
    assert len(postgast.parse(RENDERED[name]()).stmts) == 1


def test_sources_that_did_not_change_are_not_in_a_delta_of_one_source() -> None:
    assert "d_customers" not in delta_of(UNION, ORDERS_CHANGED)
    assert delta_of("SELECT o.id FROM public.orders o", ORDERS_CHANGED).count("SELECT") == 1


def test_an_unchanged_branch_stays_but_has_no_rows() -> None:
    """Without it the server would derive other types for the columns."""
    orders, customers = delta_of(UNION, CUSTOMERS_CHANGED).split("\nUNION ALL\n")
    assert orders.endswith(" WHERE false")
    assert "false" not in customers


def test_a_filter_without_keys_restricts_nothing() -> None:
    block = select_of(JOIN)
    assert now_sql(block, KeyFilter("keys", ())) == now_sql(block)


def test_a_filter_applies_to_every_branch_of_a_union() -> None:
    union = root_of(UNION)
    assert isinstance(union, UnionAll)
    found = now_sql(union, KeyFilter("keys", (Column("id", INTEGER, nullable=False),)))
    assert found.count("keys AS kk") == len(union.branches) == 2
    nullable = now_sql(union, KeyFilter("keys", (Column("id", INTEGER),)))
    assert nullable.count("keys AS kk") == 4


def test_equality_is_that_of_the_type() -> None:
    assert null_safe_equal("a", "b", CITEXT) == (
        "(a OPERATOR(public.=) b OR (a IS NOT DISTINCT FROM NULL AND b IS NOT DISTINCT FROM NULL))"
    )


def test_a_null_test_that_a_row_of_nulls_does_not_pass() -> None:
    assert is_null("a") == "a IS NOT DISTINCT FROM NULL"


def test_identity_and_back() -> None:
    assert identity("z.x", INTEGER) == "z.x"
    assert identity("z.x", NUMERIC) == 'z.x::text COLLATE "C"'
    assert restored("y.x", NUMERIC) == "(y.x)::numeric"
    assert restored("y.x", TEXT) == '(y.x)::text COLLATE pg_catalog."default"'


def test_hashes() -> None:
    assert hash_sql([]) == "0::bigint"
    assert hash_sql(["a", "b"]) == "hash_record_extended(ROW(a, b), 0)"
    assert hashable("a", BOOLEAN) == "a"
    assert hashable("a", JSON) == "0"
    assert hashable("a", replace(JSON, exact=True)) == "a::text"


def test_names_are_quoted_wherever_they_stand() -> None:
    table, column = '"it\'s"."Odd ""one"""', '"a ""b"""'
    block = select_of(f"SELECT t.{column} AS x FROM {table} t")
    assert now_sql(block) == f'SELECT r1.{column} AS "x" FROM {table} AS "r1"'
    join = select_of(f"SELECT 1 AS x FROM {table} t, {table} u WHERE (t.{column} = u.{column})")
    assert f"SELECT {column}, 1::bigint AS __hw_w FROM {table}" in delta_sql(join, Staged({104: "d"}))
