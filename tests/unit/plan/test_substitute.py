"""Tables in place of what a query computes."""

from __future__ import annotations

from tests.unit.plan.world import root_of

from headwater.plan.operators import Query, Select
from headwater.plan.render import now_sql
from headwater.plan.substitute import substituted

JOIN = "FROM public.orders o JOIN public.customers c ON (c.id = o.customer_id)"


def joins(query: Query) -> str | None:
    return "pg_temp.joined" if isinstance(query, Select) and len(query.inputs) > 1 else None


def test_a_table_stands_for_a_join() -> None:
    root = root_of(f"SELECT o.id {JOIN} ORDER BY o.id LIMIT 3")
    text = now_sql(substituted(root, joins))
    assert "(SELECT * FROM pg_temp.joined) AS" in text
    assert "customers" not in text


def test_what_is_looked_up_stays() -> None:
    looked_up = f"SELECT 1 {JOIN} WHERE o.id = x.id"
    root = root_of(f"SELECT x.id FROM public.orders x WHERE EXISTS ({looked_up})")
    assert substituted(root, joins) == root
