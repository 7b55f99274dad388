"""Which source columns an output is made from, and what a fingerprint notices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.unit.plan.world import BIGINT, CUSTOMERS, ORDERS, RELATIONS, root_of

from headwater.plan.build.parse import Relations
from headwater.plan.lineage import fingerprint, lineage
from headwater.plan.operators import Source

ORDER_ID, CUSTOMER_ID, AMOUNT, NOTE = ((101, number) for number in (1, 2, 3, 5))
CUSTOMER, NAME, REGION = ((102, number) for number in (1, 2, 3))
ITEM_PRICE = (103, 3)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT o.id, o.note AS n FROM public.orders o", {"id": {ORDER_ID}, "n": {NOTE}, None: set()}),
        (
            "SELECT (o.id + o.amount) AS x FROM public.orders o WHERE (o.note IS NULL)",
            {"x": {ORDER_ID, AMOUNT}, None: {NOTE}},
        ),
        (
            "SELECT c.name FROM (public.orders o JOIN public.customers c ON ((o.customer_id = c.id)))",
            {"name": {NAME}, None: {CUSTOMER_ID, CUSTOMER}},
        ),
        (
            "SELECT b.twice FROM public.big_orders b",
            {"twice": {AMOUNT}, None: {AMOUNT}},
        ),
        (
            "SELECT c.region, count(*) AS n, sum(o.amount) FILTER (WHERE (o.id > 0)) AS s,"
            " (max(o.note) || c.region) AS m"
            " FROM (public.orders o JOIN public.customers c ON ((o.customer_id = c.id)))"
            " GROUP BY c.region HAVING (min(c.name) > ''::text)",
            {
                "region": {REGION},
                "n": set(),
                "s": {AMOUNT, ORDER_ID},
                "m": {NOTE, REGION},
                None: {REGION, NAME, CUSTOMER_ID, CUSTOMER},
            },
        ),
        (
            "SELECT o.id, 1 AS one FROM public.orders o UNION ALL SELECT c.id, i.price"
            " FROM public.customers c, public.items i WHERE (c.region = 'EU'::text)",
            {"id": {ORDER_ID, CUSTOMER}, "one": {ITEM_PRICE}, None: {REGION}},
        ),
        (
            "SELECT n.name FROM public.names n WHERE (n.name <> ''::text)",
            {"name": {NAME, NOTE}, None: {NAME, NOTE}},
        ),
        (
            "SELECT s.x FROM (SELECT o.id AS x FROM public.orders o WHERE (o.note IS NULL) UNION ALL"
            " SELECT c.id FROM public.customers c) s",
            {"x": {ORDER_ID, CUSTOMER}, None: {NOTE}},
        ),
        (
            "SELECT v.x, o.id FROM (VALUES (1)) v(x), public.orders o",
            {"x": set(), "id": {ORDER_ID}, None: set()},
        ),
        ("SELECT DISTINCT o.note FROM public.orders o", {"note": {NOTE}, None: {NOTE}}),
    ],
)
def test_lineage(text: str, expected: dict[str | None, set[tuple[int, int]]]) -> None:
    assert lineage(root_of(text)) == expected


QUERY = """
    SELECT c.region AS r, count(*) AS n, max((o.amount + 1)) AS m
    FROM (public.orders o JOIN public.customers c ON ((o.customer_id = c.id)))
    WHERE (o.note <> ''::text) GROUP BY c.region HAVING (count(*) > 2)"""


def relations_with(*sources: Source) -> Relations:
    return replace(RELATIONS, sources={(source.schema, source.name): source for source in sources})


def renamed(source: Source, schema: str, name: str, prefix: str) -> Source:
    columns = tuple(replace(column, name=prefix + column.name) for column in source.columns)
    return replace(source, schema=schema, name=name, columns=columns)


def test_renames_change_nothing() -> None:
    """What the server writes after the tables, their schema and every column were renamed."""
    relations = relations_with(renamed(ORDERS, "s", "Bills", "x "), renamed(CUSTOMERS, "s", "people", "c"))
    text = """
        SELECT p.cregion AS r, count(*) AS n, max((b."x amount" + 1)) AS m
        FROM (s."Bills" b JOIN s.people p ON ((b."x customer_id" = p.cid)))
        WHERE (b."x note" <> ''::text) GROUP BY p.cregion HAVING (count(*) > 2)"""
    assert fingerprint(root_of(text, relations)) == fingerprint(root_of(QUERY))


def test_renames_below_a_union_change_nothing() -> None:
    relations = relations_with(renamed(ORDERS, "s", "b", "x"), renamed(CUSTOMERS, "s", "p", "y"))
    before = """
        SELECT u.n FROM (SELECT o.note AS n FROM public.orders o WHERE (o.id > 1)
        UNION ALL SELECT c.name FROM public.customers c) u, public.orders o"""
    after = """
        SELECT u.n FROM (SELECT o.xnote AS n FROM s.b o WHERE (o.xid > 1)
        UNION ALL SELECT c.yname AS name FROM s.p c) u, s.b o"""
    assert fingerprint(root_of(after, relations)) == fingerprint(root_of(before))


def test_two_columns_that_swap_their_names_change_nothing() -> None:
    names = {"id": "customer_id", "customer_id": "id"}
    columns = tuple(replace(column, name=names.get(column.name, column.name)) for column in ORDERS.columns)
    swapped = relations_with(replace(ORDERS, columns=columns))
    before = root_of("SELECT o.id AS a, o.customer_id AS b FROM public.orders o WHERE (o.id > 1)")
    after = root_of(
        "SELECT o.customer_id AS a, o.id AS b FROM public.orders o WHERE (o.customer_id > 1)", swapped
    )
    assert fingerprint(before) != fingerprint(root_of("SELECT o.id AS a FROM public.orders o"))
    assert fingerprint(after) == fingerprint(before)


def test_a_comment_or_another_alias_changes_nothing() -> None:
    assert fingerprint(root_of("SELECT t.id AS x FROM public.orders t /* tall */")) == fingerprint(
        root_of("SELECT o.id AS x FROM public.orders o")
    )


CHANGES: dict[str, Callable[[str], str]] = {
    "an output's name": lambda text: text.replace("AS r", "AS region"),
    "another column": lambda text: text.replace("max((o.amount", "max((o.id"),
    "another function": lambda text: text.replace("max(", "min("),
    "another constant": lambda text: text.replace("+ 1", "+ 2"),
    "another operator": lambda text: text.replace("+ 1", "- 1"),
    "another condition": lambda text: text.replace("<> ''", "<> 'x'"),
    "no condition": lambda text: text.replace("WHERE (o.note <> ''::text)", ""),
    "another join": lambda text: text.replace("o.customer_id = c.id", "o.id = c.id"),
    "another HAVING": lambda text: text.replace("> 2", "> 3"),
    "no HAVING": lambda text: text.replace("HAVING (count(*) > 2)", ""),
    "another key": lambda text: text.replace("c.region", "c.name"),
    "one more key": lambda text: text.replace("GROUP BY c.region", "GROUP BY c.region, c.name"),
    "one more output": lambda text: text.replace("AS m", "AS m, sum(o.id) AS s"),
    "a FILTER": lambda text: text.replace("count(*) AS n", "count(*) FILTER (WHERE (o.id > 0)) AS n"),
    "a DISTINCT": lambda text: text.replace("max((o", "max(DISTINCT (o"),
    "another table": lambda text: text.replace(
        "public.orders o", "public.items o(id, customer_id, amount, note)"
    ),
    "one more table": lambda text: text.replace("WHERE", "CROSS JOIN public.items i WHERE"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_anything_else_changes_it(change: str) -> None:
    changed = CHANGES[change](QUERY)
    assert changed != QUERY
    assert fingerprint(root_of(changed)) != fingerprint(root_of(QUERY))


def test_another_type_changes_it() -> None:
    first, *rest = ORDERS.columns
    retyped = relations_with(replace(ORDERS, columns=(replace(first, type=BIGINT), *rest)))
    text = "SELECT o.id FROM public.orders o"
    assert fingerprint(root_of(text, retyped)) != fingerprint(root_of(text))


def test_a_table_that_was_dropped_and_made_again_changes_it() -> None:
    text = "SELECT o.id FROM public.orders o"
    assert fingerprint(root_of(text, relations_with(replace(ORDERS, relation=999)))) != fingerprint(
        root_of(text)
    )


def test_plans_of_different_shape_differ() -> None:
    texts = [
        "SELECT o.id FROM public.orders o",
        "SELECT DISTINCT o.id FROM public.orders o",
        "SELECT o.id FROM public.orders o UNION ALL SELECT o.id FROM public.orders o",
        "SELECT o.id FROM public.orders o UNION SELECT o.id FROM public.orders o",
        "SELECT o.id FROM public.orders o, public.orders p",
        "SELECT v.id FROM (VALUES (1)) v(id)",
        "SELECT v.id FROM (VALUES (2)) v(id)",
        "SELECT 1 AS id",
    ]
    assert len({fingerprint(root_of(text)) for text in texts}) == len(texts)
