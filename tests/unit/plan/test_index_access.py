"""By which columns a delta looks into sources."""

from __future__ import annotations

import pytest
from tests.unit.plan.world import group_plan, root_of

from headwater.plan.index_access import accesses
from headwater.plan.operators import Aggregate
from headwater.plan.render import now_sql
from headwater.plan.storage_plan import BagPlan, GroupPlan, IncrementalPlan


def plan_of(text: str) -> IncrementalPlan:
    root = root_of(text)
    return GroupPlan(root, (), (), None) if isinstance(root, Aggregate) else BagPlan((), now_sql(root), root)


def written(plan: IncrementalPlan) -> set[str]:
    return {
        f"{', '.join(sorted(source.name for source in access.changed))} ->"
        f" {access.source.name}({', '.join(access.columns)})"
        for access in accesses(plan)
    }


JOINED = "(public.orders o JOIN public.customers c ON ((o.customer_id = c.id)))"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("SELECT o.id FROM public.orders o WHERE (o.customer_id = 3)", set(), id="one table"),
        pytest.param(
            f"SELECT o.id, c.name FROM {JOINED}",
            {"orders -> customers(id)", "customers -> orders(customer_id)"},
            id="join",
        ),
        pytest.param(
            f"SELECT o.id FROM ({JOINED} JOIN public.items i ON ((i.order_id = o.id)))",
            {
                "items, orders -> customers(id)",
                "customers -> orders(customer_id)",
                "items -> orders(id)",
                "customers, orders -> items(order_id)",
            },
            id="chain: each is found from the one before",
        ),
        pytest.param(
            "SELECT o.id FROM (public.orders o JOIN public.customers c"
            " ON (((o.customer_id = c.id) AND (o.note = c.name))))",
            {"orders -> customers(id, name)", "customers -> orders(customer_id, note)"},
            id="two equalities",
        ),
        pytest.param(
            "SELECT o.id FROM public.orders o, public.customers c WHERE (o.id < c.id)",
            set(),
            id="no equality",
        ),
        pytest.param(
            "SELECT o.id FROM public.orders o, public.customers c WHERE ((o.id + 1) = c.id)",
            {"orders -> customers(id)"},
            id="an expression is not looked up",
        ),
        pytest.param(
            "SELECT o.note, array_agg(o.id) AS ids FROM public.orders o GROUP BY o.note",
            {"orders -> orders(note)"},
            id="groups that are read again",
        ),
        pytest.param(
            f"SELECT c.name, o.note, array_agg(o.id) AS ids FROM {JOINED} GROUP BY c.name, o.note",
            {
                "customers -> orders(customer_id)",
                "orders -> customers(id)",
                "customers, orders -> customers(name)",
                "customers, orders -> orders(customer_id)",
            },
            id="groups of a join start at the first key",
        ),
        pytest.param(
            "SELECT s.n, count(*) AS k FROM (SELECT o.note, count(*) AS n FROM public.orders o"
            " GROUP BY o.note) s GROUP BY s.n",
            {"orders -> orders(note)"},
            id="a group inside, and a key that no column of a table is",
        ),
        pytest.param(
            "SELECT c.id, s.n FROM (public.customers c JOIN (SELECT o.customer_id, count(*) AS n"
            " FROM public.orders o GROUP BY o.customer_id) s ON ((s.customer_id = c.id)))",
            {"customers, orders -> orders(customer_id)", "orders -> customers(id)"},
            id="join with groups",
        ),
        pytest.param(
            "SELECT c.id, o.note FROM (public.customers c LEFT JOIN public.orders o"
            " ON ((o.customer_id = c.id)))",
            {"customers, orders -> orders(customer_id)", "orders -> customers(id)"},
            id="left join",
        ),
        pytest.param(
            "SELECT c.id FROM public.customers c WHERE (EXISTS ( SELECT 1 FROM public.orders o"
            " WHERE (o.customer_id = c.id)))",
            {"customers, orders -> orders(customer_id)", "orders -> customers(id)"},
            id="EXISTS",
        ),
        pytest.param(
            "SELECT o.id, row_number() OVER (PARTITION BY o.note ORDER BY o.id) AS r FROM public.orders o",
            {"orders -> orders(note)"},
            id="window by its partition",
        ),
        pytest.param(
            "SELECT o.id FROM public.orders o ORDER BY o.id LIMIT 3", set(), id="what is computed as a whole"
        ),
        pytest.param(
            "SELECT o.note FROM public.orders o EXCEPT SELECT c.name FROM public.customers c",
            {"customers, orders -> orders(note)", "customers, orders -> customers(name)"},
            id="both sides of EXCEPT",
        ),
    ],
)
def test_accesses(text: str, expected: set[str]) -> None:
    assert merged(written(plan_of(text))) == merged(expected)


def merged(lines: set[str]) -> dict[str, set[str]]:
    """What changed, by what is looked for."""
    found: dict[str, set[str]] = {}
    for line in lines:
        changed, _, access = line.partition(" -> ")
        found.setdefault(access, set()).update(changed.split(", "))
    return found


def test_a_group_whose_state_is_stored_is_read_only_for_an_extreme() -> None:
    text = "SELECT o.customer_id, {} AS x FROM public.orders o GROUP BY o.customer_id"
    assert written(group_plan(text.format("sum(o.amount)"))) == set()
    assert written(group_plan(text.format("max(o.id)"))) == {"orders -> orders(customer_id)"}
