"""Which parts of a query may be kept, and the plan over what is."""

from __future__ import annotations

import pytest
from tests.unit.plan.world import root_of

from headwater.plan.materialize import Candidate, layers, parts, source_of, stored_form
from headwater.plan.operators import Aggregate, Query, Source, scans
from headwater.plan.render import now_sql
from headwater.plan.storage_plan import BagPlan, GroupPlan
from headwater.plan.values import ANY_TYPE, Column

COUNTED = "SELECT o.customer_id, count(*) AS n FROM public.orders o GROUP BY o.customer_id"


def kinds(text: str) -> list[tuple[str, bool]]:
    return [(type(part).__name__, whole) for part, whole in parts(root_of(text)).items()]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(COUNTED, [], id="the top has storage anyway"),
        pytest.param(f"SELECT s.n FROM ({COUNTED}) s", [("Aggregate", False)], id="groups inside"),
        pytest.param(
            f"{COUNTED} ORDER BY (count(*)) LIMIT 3", [("Aggregate", True)], id="groups below LIMIT"
        ),
        pytest.param("SELECT o.id FROM public.orders o ORDER BY o.id LIMIT 3", [], id="a table below LIMIT"),
        pytest.param(
            "SELECT o.id FROM (public.orders o JOIN public.customers c ON ((o.customer_id = c.id)))"
            " ORDER BY o.id LIMIT 3",
            [("Select", True)],
            id="a join below LIMIT",
        ),
    ],
)
def test_parts(text: str, expected: list[tuple[str, bool]]) -> None:
    assert kinds(text) == expected


def keepable(part: Query, whole: bool) -> Candidate:
    form = stored_form(part)
    assert isinstance(form, Aggregate)
    outputs = tuple(Column(name, ANY_TYPE) for name in form.output_names)
    return Candidate(part, GroupPlan(form, (), outputs, None), whole)


def test_what_is_around_reads_what_is_kept_like_a_table() -> None:
    large = f"({COUNTED} HAVING (count(*) > 2)) s"
    root = root_of(f"SELECT c.name, s.n FROM (public.customers c JOIN {large} ON ((s.customer_id = c.id)))")
    [(part, whole)] = parts(root).items()
    found = keepable(part, whole)
    kept: dict[str, Source] = {found.name: source_of(found, 77, "headwater_data", "kept")}
    layered = layers(BagPlan((), now_sql(root), root), [found], kept)
    assert [each.source.relation for each in layered.kept] == [77]
    assert 77 in {scan.source.relation for scan in scans(layered.top.root)}
    assert "HAVING" not in now_sql(layered.kept[0].plan.root)
    assert "> 2" in now_sql(layered.top.root)  # what HAVING asks is asked of the kept groups


def test_without_storage_nothing_is_kept() -> None:
    root = root_of(f"SELECT s.n FROM ({COUNTED}) s")
    [(part, whole)] = parts(root).items()
    plan = BagPlan((), now_sql(root), root)
    assert layers(plan, [keepable(part, whole)], {}).top is plan
