"""The engine inside PostgreSQL: the plan's SQL, run in the refresh's own transaction."""

from __future__ import annotations

from collections.abc import Mapping

from headwater.db.work import Scratch
from headwater.engine.inner import with_inner
from headwater.engine.joins import Joins
from headwater.plan.maintain import BagPlan, GroupPlan, IncrementalPlan, MaintenancePlan
from headwater.plan.operators import Aggregate, Query, Select
from headwater.plan.render import Staged


class PostgresEngine:
    """Every plan runs here, for every plan is the user's own SQL."""

    name = "postgres"

    def in_place(self, plan: IncrementalPlan, pending: Mapping[int, int]) -> frozenset[int]:
        """What one statement reads once, and joins with nothing: staging would only copy it."""
        body = plan.root.input if isinstance(plan.root, Aggregate) else plan.root
        if plan.columns or not isinstance(body, Select) or len(body.inputs) != 1:
            return frozenset()
        return frozenset(source.relation for source in plan.sources)

    def bag_delta(self, scratch: Scratch, plan: BagPlan, staged: Staged) -> None:
        scratch.fill("delta", plan.delta_sql(_worked_out(scratch, plan, plan.body, staged)))

    def state_delta(self, scratch: Scratch, plan: GroupPlan, staged: Staged) -> None:
        staged = _worked_out(scratch, plan, plan.aggregate.input, staged)
        scratch.fill("delta", plan.state_delta_sql(staged))

    def affected_keys(self, scratch: Scratch, plan: GroupPlan, staged: Staged) -> None:
        staged = _worked_out(scratch, plan, plan.aggregate.input, staged)
        scratch.fill("keys", plan.affected_sql(staged))

    def recompute(self, scratch: Scratch, plan: GroupPlan, keys: str) -> None:
        scratch.fill("result", plan.recompute_sql(keys))

    def recompute_all(self, scratch: Scratch, plan: MaintenancePlan, storage: str) -> None:
        if isinstance(plan, GroupPlan):
            scratch.fill("result", plan.full_sql())
        else:
            scratch.fill("delta", plan.difference_sql(storage))


def _worked_out(scratch: Scratch, plan: IncrementalPlan, rows: Query, staged: Staged) -> Staged:
    """All that a plan's own delta reads: what changed inside it, and its joins where they are begun."""
    joins = Joins(scratch)
    return joins.begun(rows, with_inner(scratch, plan, staged, joins.delta_sql))


def in_postgres(plan: MaintenancePlan) -> PostgresEngine:
    return PostgresEngine()
