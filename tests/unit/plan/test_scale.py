"""Fractional digits that the form of an expression fixes."""

from __future__ import annotations

import pytest
from tests.unit.plan.world import root_of

from headwater.plan.operators import Aggregate
from headwater.plan.scale import fixed_scale

FROM = "FROM public.orders o, public.items i"


def scale_of(text: str) -> int | None:
    body = root_of(text)
    assert not isinstance(body, Aggregate)
    return fixed_scale(body, "x")


@pytest.mark.parametrize(
    ("expression", "scale"),
    [
        ("o.id", 0),
        ("o.amount", 2),
        ("i.price", None),
        ("i.weight", None),
        ("(- o.amount)", 2),
        ("(o.amount + (1)::numeric)", 2),
        ("(o.amount - 0.125)", 3),
        ("(- 0.125)", 3),
        ("(o.amount * (- 0.125))", 5),
        ("'-0.125'::numeric", None),
        ("(o.amount * o.amount)", 4),
        ("(o.amount * ((1)::numeric - 0.05))", 4),
        ("(o.amount / (3)::numeric)", None),
        ("(o.amount + i.price)", None),
        ("(o.id)::numeric", 0),
        ("(i.price)::numeric", None),
        ("(i.price)::numeric(10,3)", 3),
        ("(i.price)::numeric(10)", 0),
        ("(i.price)::numeric(10,-2)", 0),
        ("(i.price)::text", None),
        ("1e5", None),
        ("round(i.price, 2)", None),
        ("abs(o.amount)", None),
        ("CASE WHEN (o.id > 0) THEN o.amount ELSE (0)::numeric END", None),
        ("CASE WHEN (o.id > 0) THEN o.amount END", None),
    ],
)
def test_scale(expression: str, scale: int | None) -> None:
    assert scale_of(f"SELECT {expression} AS x {FROM}") == scale


def test_a_union_has_a_scale_if_its_branches_agree() -> None:
    amount = f"SELECT o.amount AS x {FROM}"
    assert scale_of(f"{amount} UNION ALL {amount}") == 2
    assert scale_of(f"{amount} UNION ALL SELECT o.id AS x {FROM}") is None
    assert scale_of(f"{amount} UNION ALL SELECT i.price AS x {FROM}") is None


def test_a_column_of_a_union_below_is_not_looked_into() -> None:
    assert (
        scale_of(f"SELECT u.x FROM (SELECT o.amount AS x {FROM} UNION ALL SELECT o.amount {FROM}) u") is None
    )
