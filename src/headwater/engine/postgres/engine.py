"""The engine inside PostgreSQL: the plan's SQL, run in the refresh's own transaction."""

from __future__ import annotations

from collections.abc import Mapping

from headwater.engine.postgres.nested_deltas import with_inner
from headwater.engine.postgres.stepwise_joins import MANY_ROWS, Joins
from headwater.plan.operators import Aggregate, Query, Select, UnionAll
from headwater.plan.staged import Staged
from headwater.plan.steps import Steps, Tables, fill
from headwater.plan.storage_plan import BagPlan, GroupPlan, IncrementalPlan, MaintenancePlan

MOST_AT_ONCE = 1_000
"""Changed rows from which statistics between the steps of a refresh are worth their time."""


class PostgresEngine:
    """Runs every plan, because every plan is the user's own SQL."""

    name = "postgres"

    def in_place(self, plan: IncrementalPlan, pending: Mapping[int, int]) -> frozenset[int]:
        """Return the sources that one statement reads once and does not join: staging would only copy."""
        body = plan.root.input if isinstance(plan.root, Aggregate) else plan.root
        if plan.columns or not _reads_once(body):
            return frozenset()
        return frozenset(source.relation for source in plan.sources)

    def bag_delta(self, tables: Tables, plan: BagPlan, staged: Staged) -> Steps[int]:
        staged = yield from _worked_out(tables, plan, plan.body, staged)
        return (yield from fill(tables, "delta", plan.delta_sql(staged)))

    def state_delta(self, tables: Tables, plan: GroupPlan, staged: Staged) -> Steps[int]:
        staged = yield from _worked_out(tables, plan, plan.aggregate.input, staged)
        return (yield from fill(tables, "delta", plan.state_delta_sql(staged)))

    def affected_keys(self, tables: Tables, plan: GroupPlan, staged: Staged) -> Steps[int]:
        staged = yield from _worked_out(tables, plan, plan.aggregate.input, staged)
        return (yield from fill(tables, "keys", plan.affected_sql(staged)))

    def recompute(self, tables: Tables, plan: GroupPlan, keys: str) -> Steps[int]:
        return (yield from fill(tables, "result", plan.recompute_sql(keys)))

    def recompute_all(self, tables: Tables, plan: MaintenancePlan, storage: str) -> Steps[int]:
        if isinstance(plan, GroupPlan):
            return (yield from fill(tables, "result", plan.full_sql()))
        return (yield from fill(tables, "delta", plan.difference_sql(storage)))


def is_one_query(plan: IncrementalPlan, pending: Mapping[int, int]) -> bool:
    """Tell whether the delta of a plan is one query over the changes, with no steps between.

    No inner result has to be computed first, and no join is done in steps for so few rows.
    """
    body = plan.root.input if isinstance(plan.root, Aggregate) else plan.root
    return (
        not plan.columns
        and isinstance(body, Select | UnionAll)
        and sum(pending.values()) < (MOST_AT_ONCE if _reads_once(body) else MANY_ROWS)
    )


def _reads_once(body: Query) -> bool:
    return isinstance(body, Select) and len(body.inputs) == 1


def _worked_out(tables: Tables, plan: IncrementalPlan, rows: Query, staged: Staged) -> Steps[Staged]:
    """Compute what a plan's own delta reads: changes inside it, and joins that are done in steps."""
    joins = Joins(tables, plan)
    staged = yield from with_inner(tables, plan, staged, joins.delta_sql)
    return (yield from joins.begun(rows, staged))


def in_postgres(plan: MaintenancePlan) -> PostgresEngine:
    return PostgresEngine()
