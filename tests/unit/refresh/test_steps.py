"""Whole deltas as the steps that a refresh takes, kept in `golden/*.sql`: no database is needed for that.

The driver here answers with numbers that a case gives, so that each way through the steps can be taken. When
steps are meant to change, run with HEADWATER_UPDATE_GOLDEN=1, as for `tests/unit/plan/test_render.py`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import postgast
import pytest
from tests.unit.plan.world import CUSTOMERS, ORDERS, bag_plan, group_plan

from headwater.apply.merge import Target
from headwater.catalog.history import Applied
from headwater.catalog.stream_tables import Frontier
from headwater.engine.postgres.engine import in_postgres
from headwater.errors import DriftDetected
from headwater.plan.materialize import Layers
from headwater.plan.steps import (
    Analyse,
    Attempt,
    Fetch,
    Fill,
    Index,
    InPhase,
    Row,
    Run,
    Shape,
    Step,
    Steps,
    Tables,
    drive,
)
from headwater.plan.storage_plan import IncrementalPlan
from headwater.refresh.steps import NOTHING_CHANGED, ByEngine, Computed, Inputs, delta

GOLDEN = Path(__file__).parent / "golden"
UPDATE = bool(os.environ.get("HEADWATER_UPDATE_GOLDEN"))
Result = TypeVar("Result")

FILTER = "SELECT o.id, o.amount FROM public.orders o WHERE o.amount > 10"
JOIN = "SELECT o.id, c.name FROM public.orders o JOIN public.customers c ON c.id = o.customer_id"
SUMS = "SELECT o.customer_id, count(*) AS n, sum(o.amount) AS s FROM public.orders o GROUP BY o.customer_id"
EXTREMES = "SELECT o.customer_id, min(o.id) AS least FROM public.orders o GROUP BY o.customer_id"
LISTS = (
    "SELECT o.customer_id, array_agg(o.id ORDER BY o.id) AS ids FROM public.orders o GROUP BY o.customer_id"
)


@dataclass
class Recorder:
    """Writes steps down and answers with the numbers of a case."""

    rows: dict[str, int] = field(default_factory=dict)  # of tables that are filled; others have `usual`
    usual: int = 5_000
    fetched: dict[str, Row] = field(default_factory=dict)
    attempted: Row | None = None
    told: list[str] = field(default_factory=list)

    def take(self, steps: Steps[Result]) -> Result:
        return drive(steps, self._execute)

    def _execute(self, step: Step) -> object:
        match step:
            case InPhase():
                self.told.append(f"-- phase {step.phase}")
                return self.take(step.steps)
            case ByEngine():
                return self.take(step.steps(in_postgres))
            case Shape() | Index() | Analyse():
                self.told.append(f"-- {type(step).__name__.lower()} {step.table}")
                return None
            case Fill():
                self.told.append(f"-- fill {step.table}\n{step.select};")
                return self.rows.get(step.table, self.usual)
            case Run():
                self.told.append(f"-- {step.what}\n{step.sql};")
                return 1
            case Fetch():
                self.told.append(f"-- {step.what}\n{step.sql};")
                return self.fetched[step.what]
            case Attempt():
                self.told.append(f"-- {step.what}\n{step.sql};")
                return self.attempted
            case _:
                raise AssertionError(step)


@dataclass(frozen=True)
class Case:
    plan: IncrementalPlan
    pending: dict[int, int]
    recorder: Recorder
    readers: bool = False


MANY, FEW = 5_000, 3
CASES = {
    "small_filter": lambda: Case(bag_plan(FILTER), {101: FEW}, Recorder(attempted=(1, 1, 2))),
    "small_join": lambda: Case(bag_plan(JOIN), {101: FEW, 102: FEW}, Recorder(attempted=(0, 0, 1))),
    "small_join_one_side": lambda: Case(bag_plan(JOIN), {102: FEW}, Recorder(attempted=(0, 0, 1))),
    "small_sums": lambda: Case(group_plan(SUMS), {101: FEW}, Recorder(attempted=(1, 1, 0, 1, 0, 0))),
    "small_sums_that_others_read": lambda: Case(
        group_plan(SUMS), {101: FEW}, Recorder(attempted=(1, 1, 0, 1, 0, 0)), readers=True
    ),
    "small_extremes_rescanned": lambda: Case(
        group_plan(EXTREMES),
        {101: FEW},
        Recorder(usual=FEW, attempted=(0, 0, 0, 0, 0, 1), fetched={"count": (0, 1, 0, 0, 0)}),
    ),
    "small_lists": lambda: Case(group_plan(LISTS), {101: FEW}, Recorder(attempted=(0, 1, 0, 0, 0, 0))),
    "large_filter": lambda: Case(
        bag_plan(FILTER), {101: MANY}, Recorder(fetched={"check": (MANY, 2 * MANY)})
    ),
    "large_join": lambda: Case(
        bag_plan(JOIN), {101: MANY, 102: MANY}, Recorder(fetched={"check": (MANY, 0)})
    ),
    "large_sums": lambda: Case(group_plan(SUMS), {101: MANY}, Recorder(fetched={"count": (1, 2, 3, 1, 0)})),
    "large_lists": lambda: Case(
        group_plan(LISTS), {101: MANY}, Recorder(fetched={"count": (1, 2, 3, 1, 0)}), readers=True
    ),
}


def taken(case: Case) -> tuple[Applied, Computed]:
    target = Target(
        "public.st",
        '"headwater_data"."st_1"',
        "src_9" if case.readers else None,
        ((case.plan.outputs[0].name, 1),),
    )
    inputs = Inputs(
        label="public.st",
        layers=Layers((), case.plan),
        plan=case.plan,
        pending=case.pending,
        change_tables={ORDERS.relation: "src_101", CUSTOMERS.relation: "src_102"},
        frontier=Frontier(snapshot="100:120:110", applied_by="99"),
        target=target,
        tables=Tables("hw1_"),
    )
    return case.recorder.take(delta(inputs, in_postgres=True))


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str) -> None:
    case = CASES[name]()
    applied, _ = taken(case)
    told = "\n".join([*case.recorder.told, f"-- {applied}", ""])
    path = GOLDEN / f"{name}.sql"
    if UPDATE and (not path.exists() or path.read_text(encoding="utf-8") != told):
        path.write_text(told, encoding="utf-8")
        pytest.fail(f"{path.name} was rewritten")
    assert told == path.read_text(encoding="utf-8")
    assert postgast.parse(told).stmts  # all of it is SQL


def test_every_golden_file_is_of_a_case() -> None:
    assert {path.stem for path in GOLDEN.glob("*.sql")} == CASES.keys()


def test_nothing_is_computed_where_the_changes_cancel_out() -> None:
    case = Case(bag_plan(JOIN), {101: MANY, 102: MANY}, Recorder(usual=0))
    applied, computed = taken(case)
    assert (applied, computed) == (Applied(), NOTHING_CHANGED)
    assert [line for line in case.recorder.told if line.startswith("-- phase")] == ["-- phase stage"]


def test_a_small_change_takes_one_statement() -> None:
    for name in ("small_filter", "small_join", "small_sums", "small_lists"):
        case = CASES[name]()
        taken(case)
        assert [line.partition("\n")[0] for line in case.recorder.told] == [
            "-- phase compute",
            "-- all at once, if few rows changed",
        ]


def test_rows_that_should_go_and_are_not_there_are_drift() -> None:
    case = Case(bag_plan(FILTER), {101: MANY}, Recorder(fetched={"check": (MANY + 1, 0)}))
    with pytest.raises(DriftDetected):
        taken(case)


def test_no_group_has_fewer_than_no_rows() -> None:
    case = Case(group_plan(SUMS), {101: MANY}, Recorder(fetched={"count": (1, 2, 3, 1, 7)}))
    with pytest.raises(DriftDetected, match="does not hold"):
        taken(case)
