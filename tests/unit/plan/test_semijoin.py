"""What a query's conditions say of one source alone."""

from __future__ import annotations

import pytest
from tests.unit.plan.world import root_of

from headwater.plan.operators import sources_of
from headwater.plan.semijoin import own_conditions


def conditions_on(table: str, text: str) -> str | None:
    root = root_of(text)
    relation = next(source.relation for source in sources_of(root) if source.name == table)
    found = own_conditions(root, relation)
    return None if found is None else found.text


JOINED = "SELECT o.id FROM (public.orders o JOIN public.customers c ON ((o.customer_id = c.id))) WHERE"


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("(o.id > 3)", "id > 3"),
        ("((o.id > 3) AND (c.id < 9) AND (o.customer_id <> 2))", "id > 3 AND customer_id <> 2"),
        ("(c.id < 9)", None),
        ("((o.id = 1) OR (c.id = 2))", None),
        ("(((o.id = 1) AND (c.id = 2)) OR ((o.id = 3) AND (c.id = 4)))", "id = 1 OR id = 3"),
        ("(((o.id = 1) AND (c.id = 2)) OR (o.id = 3))", "id = 1 OR id = 3"),
    ],
)
def test_conditions_of_a_join(where: str, expected: str | None) -> None:
    assert conditions_on("orders", f"{JOINED} {where}") == expected


def test_a_source_that_is_read_twice_must_meet_one_of_two() -> None:
    both = (
        "SELECT o.id FROM public.orders o WHERE (o.id > 3)"
        " UNION ALL SELECT p.id FROM public.orders p WHERE (p.customer_id = 1)"
    )
    assert conditions_on("orders", both) == "id > 3 OR customer_id = 1"


def test_a_source_that_is_also_read_without_conditions_meets_none() -> None:
    both = "SELECT o.id FROM public.orders o WHERE (o.id > 3) UNION ALL SELECT p.id FROM public.orders p"
    assert conditions_on("orders", both) is None
