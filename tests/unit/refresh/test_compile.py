"""Compiled refreshes as text, kept in `golden/compiled/*.sql`: no database is needed for that."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.plan.world import bag_plan, group_plan
from tests.unit.refresh.test_steps import EXTREMES, FILTER, JOIN, LISTS, SUMS

from headwater.apply.merge import Target
from headwater.plan.storage_plan import IncrementalPlan
from headwater.refresh.compile import NotCovered, Subject, compile_refresh, most_rows

GOLDEN = Path(__file__).parent / "golden" / "compiled"
UPDATE = bool(os.environ.get("HEADWATER_UPDATE_GOLDEN"))
LABELS = {101: "public.orders", 102: "public.customers"}


def subject(plan: IncrementalPlan, *, readers: bool = False, label: str = "public.st") -> Subject:
    return Subject(
        stream_table_id=1,
        label=label,
        time_zone="Etc/UTC",
        signature="0123 55",
        plan=plan,
        target=Target(
            label, '"headwater_data"."st_1"', "src_9" if readers else None, ((plan.outputs[0].name, 1),)
        ),
        change_tables={source.relation: f"src_{source.relation}" for source in plan.sources},
        labels=LABELS,
        view=9,
        checked=([101, 102, 9], [], [], [100]),
        fingerprint="f00",
    )


CASES = {
    "filter": lambda: subject(bag_plan(FILTER)),
    "join": lambda: subject(bag_plan(JOIN)),
    "sums_that_others_read": lambda: subject(group_plan(SUMS), readers=True),
    "extremes": lambda: subject(group_plan(EXTREMES)),
    "lists": lambda: subject(group_plan(LISTS)),
}


@pytest.mark.parametrize("name", CASES)
def test_the_text_of_a_compiled_refresh(name: str) -> None:
    written = compile_refresh(CASES[name]()).sql + ";\n"
    path = GOLDEN / f"{name}.sql"
    if UPDATE:
        path.write_text(written, encoding="utf-8")
    assert written == path.read_text(encoding="utf-8")


def test_the_token_is_of_the_text() -> None:
    plan = bag_plan(FILTER)
    one, same, other = (compile_refresh(subject(plan, label=label)) for label in ("a.b", "a.b", "a.c"))
    assert one == same
    assert one.token != other.token
    assert one.token in one.sql


def test_a_name_that_looks_like_a_quote_ends_nothing() -> None:
    function = compile_refresh(subject(bag_plan(FILTER), label='public."$headwater$\n; DROP TABLE x; --"'))
    assert function.sql.count("$headwater_$") == 2
    assert "\n; DROP" not in function.sql.split("DECLARE")[0]


def test_every_golden_file_is_of_a_case() -> None:
    assert {path.stem for path in GOLDEN.glob("*.sql")} == CASES.keys()


def test_most_rows() -> None:
    assert most_rows(bag_plan(FILTER)) == 999
    assert most_rows(bag_plan(JOIN)) == 99


def test_what_needs_steps_is_not_covered() -> None:
    plan = bag_plan(FILTER)
    with pytest.raises(NotCovered):  # something inside it has a change of its own, which is worked out first
        most_rows(replace(plan, columns={plan.root: plan.outputs}))
