"""What a delta consists of: changes staged, what is kept brought up to date, the delta computed and applied.

These are the steps that a refresh takes inside its transaction, and that `explain` writes down.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from headwater.apply.merge import Target, apply_bag, apply_groups
from headwater.apply.single_statement import AtOnce, applied_at_once, taken_in
from headwater.capture import buffers, staging
from headwater.catalog.history import Applied
from headwater.catalog.stream_tables import Frontier
from headwater.clock import Phases
from headwater.db.scratch import Scratch
from headwater.engine.base import Engine, Engines
from headwater.engine.postgres.engine import MOST_AT_ONCE, PostgresEngine, is_one_query
from headwater.plan.materialize import Kept, Layers
from headwater.plan.render import Changes, Staged, relation_name
from headwater.plan.storage_plan import BagPlan, GroupPlan, IncrementalPlan, MaintenancePlan


def stage(
    scratch: Scratch,
    plan: IncrementalPlan,
    pending: Mapping[int, int],
    change_tables: Mapping[int, str],
    frontier: Frontier,
    in_place: frozenset[int] = frozenset(),
) -> Staged:
    """Puts the consolidated change of each changed source into a table of its own, less those without any.

    `pending` has the number of change rows by source. Those of `in_place` are left where they are.
    """
    staged: dict[int, str] = {}
    rows: dict[str, int] = {}
    left: dict[int, Changes] = {}
    for number, source in enumerate(plan.sources):
        relation = source.relation
        if not pending.get(relation):
            continue
        where = (source, plan.wanted[relation], change_tables[relation], frontier)
        table = f"source{number}"
        if relation in in_place:
            staged[relation] = f"({staging.changes_sql(*where)})"
            left[relation] = Changes(buffers.change_table_sql(change_tables[relation]), pending[relation])
            rows[staged[relation]] = pending[relation]
            continue
        found = scratch.fill(table, staging.staging_sql(*where, plan.own_conditions.get(relation)))
        if found:
            staged[relation] = scratch.name(table)
            rows[staged[relation]] = found
    return Staged(staged, left, rows=rows)


def small_change(
    layers: Layers,
    pending: Mapping[int, int],
    change_tables: Mapping[int, str],
    frontier: Frontier,
    target: Target,
) -> AtOnce | None:
    """The one statement that takes a change in, if it is small and of a plan that needs no steps between."""
    plan = layers.top
    if layers.kept or not is_one_query(plan, pending):
        return None
    in_place = PostgresEngine().in_place(plan, pending)
    changes = {}
    for source in plan.sources:
        relation, rows = source.relation, pending.get(source.relation)
        if not rows:
            continue
        where = (source, plan.wanted[relation], change_tables[relation], frontier)
        if relation in in_place:
            changes[relation] = staging.changes_sql(*where, rows)
        else:
            changes[relation] = staging.staging_sql(*where, plan.own_conditions.get(relation), rows)
    return taken_in(plan, target, changes)


def bring_kept_up_to_date(
    engines: Engines, scratch: Scratch, kept: tuple[Kept, ...], staged: Staged, label: str, phases: Phases
) -> Staged:
    """Applies the changes to what is kept, and adds its own changes to them."""
    for number, part in enumerate(kept):
        if not concerns(staged, part.plan):
            continue
        with phases.measure("keep"):
            own = scratch.part(f"kept{number}")
            target = Target(label, relation_name(part.source), change_table=None, staged=True)
            computed = compute(engines(part.plan), own, part.plan, staged, target, Phases())
            applied = apply(own, part.plan, target, computed)
            if applied != Applied():
                change, rows = own.name("change"), applied.inserted + 2 * applied.updated + applied.deleted
                tables = {**staged.tables, part.source.relation: change}
                staged = replace(staged, tables=tables, rows={**staged.rows, change: rows})
    return staged


def concerns(staged: Staged, plan: IncrementalPlan) -> bool:
    """Whether a plan reads anything that changed."""
    return any(source.relation in staged.tables for source in plan.sources)


@dataclass(frozen=True)
class Computed:
    """What an engine computed, in the tables of a scratch."""

    rows: int  # how many of them are to be looked at in storage, at least
    affected: str | None = None  # the table of the affected keys, if there are groups; without one, all are


def compute(
    engine: Engine,
    scratch: Scratch,
    plan: IncrementalPlan,
    staged: Staged,
    target: Target,
    phases: Phases,
) -> Computed:
    """The delta of a plan from staged changes of its sources."""
    with phases.measure("compute"):
        if isinstance(plan, BagPlan):
            if plan.is_whole:
                return Computed(engine.recompute_all(scratch, plan, target.storage))
            return Computed(engine.bag_delta(scratch, plan, staged))
        if plan.algebra is not None:
            return Computed(engine.state_delta(scratch, plan, staged), scratch.name("delta"))
        keys = engine.affected_keys(scratch, plan, staged)
        scratch.shape("result", plan.stored_sql(target.storage))
        groups = engine.recompute(scratch, plan, scratch.name("keys")) if keys else 0
        return Computed(max(keys, groups), scratch.name("keys"))


def apply(scratch: Scratch, plan: IncrementalPlan, target: Target, computed: Computed) -> Applied:
    """Applies the delta that an engine computed: by one statement if it is small, else in steps."""
    if not computed.rows:
        return Applied()
    if computed.rows < MOST_AT_ONCE:
        done = applied_at_once(plan, target, scratch, computed.affected).run(scratch)
        if done is not None:
            return done
    if isinstance(plan, GroupPlan) and plan.algebra is not None:
        _add_to_states(scratch, plan, target)
    return reconcile(scratch, plan, target, computed.affected)


def _add_to_states(scratch: Scratch, plan: GroupPlan, target: Target) -> None:
    """The new rows of groups whose states have a delta; a group is read anew where adding is not enough."""
    delta = scratch.name("delta")
    scratch.shape("result", plan.stored_sql(target.storage))
    rescan = plan.rescan_sql(delta, target.storage)
    rescanned = None
    if rescan is not None and scratch.fill("keys", rescan):
        rescanned = scratch.name("keys")
        PostgresEngine().recompute(scratch, plan, rescanned)
    scratch.fill("result", plan.merge_sql(delta, target.storage, rescanned))


def reconcile(scratch: Scratch, plan: MaintenancePlan, target: Target, affected: str | None) -> Applied:
    """Brings the stored rows of the affected keys, or all of them, to those that were computed, in steps."""
    if isinstance(plan, GroupPlan):
        return apply_groups(scratch, plan, target, affected)
    return apply_bag(scratch, plan, target)
