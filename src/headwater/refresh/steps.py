"""The steps of a delta: stage changes, bring stored inner results up to date, compute, apply.

All of it is pure: `delta` is the value that a refresh executes and that `explain` prints. Choices that depend
on the data are made from the numbers of rows that the driver sends back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from headwater.apply.merge import Target, apply_bag, apply_groups
from headwater.apply.single_statement import SingleStatement, apply_in_one, take_in_by_one
from headwater.capture import buffers, staging
from headwater.catalog.history import Applied
from headwater.catalog.stream_tables import Frontier
from headwater.engine.base import Engine, Engines
from headwater.engine.postgres.engine import MOST_AT_ONCE, PostgresEngine, is_one_query
from headwater.plan.materialize import Intermediate, Layers
from headwater.plan.render import relation_name
from headwater.plan.staged import Changes, Staged
from headwater.plan.steps import Steps, Tables, fill, in_phase, shape
from headwater.plan.storage_plan import BagPlan, GroupPlan, IncrementalPlan, MaintenancePlan


@dataclass(frozen=True)
class Inputs:
    """What a delta starts from."""

    label: str
    layers: Layers
    plan: IncrementalPlan  # of the whole query, with nothing stored inside
    pending: Mapping[int, int]  # change rows by source
    change_tables: Mapping[int, str]
    frontier: Frontier
    target: Target
    tables: Tables


@dataclass(frozen=True)
class ByEngine:
    """Take the steps that engines make for plans; PostgreSQL takes them all where another engine fails."""

    steps: Callable[[Engines], Steps[Computed]]


@dataclass(frozen=True)
class Computed:
    """What an engine computed, in temporary tables."""

    rows: int  # how many of them are to be looked at in storage, at least
    affected: str | None = None  # the table of the affected keys, if there are groups; without one, all are


NOTHING_CHANGED = Computed(0)
"""What changed cancels out, or concerns nothing that the query reads."""


def delta(inputs: Inputs, *, in_postgres: bool) -> Steps[tuple[Applied, Computed]]:
    """Compute what the changes mean and apply it; `in_postgres` says that no other engine takes part."""
    small = small_change(inputs) if in_postgres else None
    if small is not None:
        # It is applied, too: what takes long is the computing.
        done = yield from in_phase("compute", small.steps(inputs.tables))
        if done is not None:
            return done, Computed(1)
    computed: Computed = yield ByEngine(partial(compute_delta, inputs))
    if computed is NOTHING_CHANGED:
        return Applied(), computed
    applying = apply(inputs.tables, inputs.layers.top, inputs.target, computed)
    return (yield from in_phase("apply", applying)), computed


def compute_delta(inputs: Inputs, engines: Engines) -> Steps[Computed]:
    """Stage the changes, bring stored inner results up to date, and compute the delta of the query."""
    layers = inputs.layers
    engine = engines(layers.top)
    in_place = frozenset() if layers.kept else engine.in_place(layers.top, inputs.pending)
    staged = yield from in_phase("stage", stage(inputs, in_place))
    for number, part in enumerate(layers.kept):
        if concerns(staged, part.plan):
            updating = update_stored(engines, inputs.tables.part(f"kept{number}"), part, staged, inputs.label)
            staged = yield from in_phase("keep", updating)
    if not concerns(staged, layers.top):
        return NOTHING_CHANGED
    return (yield from in_phase("compute", compute(engine, inputs.tables, layers.top, staged, inputs.target)))


def stage(inputs: Inputs, in_place: frozenset[int] = frozenset()) -> Steps[Staged]:
    """Put the consolidated change of each changed source into a table of its own, less those without any.

    The changes of sources in `in_place` are left where they are.
    """
    staged: dict[int, str] = {}
    rows: dict[str, int] = {}
    left: dict[int, Changes] = {}
    plan, pending = inputs.plan, inputs.pending
    for number, source in enumerate(plan.sources):
        relation = source.relation
        if not pending.get(relation):
            continue
        change_table = inputs.change_tables[relation]
        where = (source, plan.wanted[relation], change_table, inputs.frontier)
        if relation in in_place:
            staged[relation] = f"({staging.changes_sql(*where)})"
            left[relation] = Changes(buffers.change_table_sql(change_table), pending[relation])
            rows[staged[relation]] = pending[relation]
            continue
        table = f"source{number}"
        select = staging.staging_sql(*where, plan.own_conditions.get(relation))
        if found := (yield from fill(inputs.tables, table, select)):
            staged[relation] = inputs.tables.sql(table)
            rows[staged[relation]] = found
    return Staged(staged, left, rows=rows)


def small_change(inputs: Inputs) -> SingleStatement | None:
    """The one statement that takes a change in, if it is small and of a plan that needs no steps between."""
    plan, pending = inputs.layers.top, inputs.pending
    if inputs.layers.kept or not is_one_query(plan, pending):
        return None
    in_place = PostgresEngine().in_place(plan, pending)
    changes = {}
    for source in plan.sources:
        relation, rows = source.relation, pending.get(source.relation)
        if not rows:
            continue
        where = (source, plan.wanted[relation], inputs.change_tables[relation], inputs.frontier)
        if relation in in_place:
            changes[relation] = staging.changes_sql(*where, rows)
        else:
            changes[relation] = staging.staging_sql(*where, plan.own_conditions.get(relation), rows)
    return take_in_by_one(plan, inputs.target, changes)


def update_stored(
    engines: Engines, tables: Tables, part: Intermediate, staged: Staged, label: str
) -> Steps[Staged]:
    """Apply changes to a stored inner result; its own change is added to them."""
    target = Target(label, relation_name(part.source), change_table=None, staged=True)
    computed = yield from compute(engines(part.plan), tables, part.plan, staged, target)
    applied = yield from apply(tables, part.plan, target, computed)
    if applied == Applied():
        return staged
    change, rows = tables.sql("change"), applied.inserted + 2 * applied.updated + applied.deleted
    return replace(
        staged,
        tables={**staged.tables, part.source.relation: change},
        rows={**staged.rows, change: rows},
    )


def concerns(staged: Staged, plan: IncrementalPlan) -> bool:
    """Whether a plan reads anything that changed."""
    return any(source.relation in staged.tables for source in plan.sources)


def compute(
    engine: Engine, tables: Tables, plan: IncrementalPlan, staged: Staged, target: Target
) -> Steps[Computed]:
    """Compute the delta of a plan from staged changes of its sources."""
    if isinstance(plan, BagPlan):
        if plan.is_whole:
            return Computed((yield from engine.recompute_all(tables, plan, target.storage)))
        return Computed((yield from engine.bag_delta(tables, plan, staged)))
    if plan.algebra is not None:
        return Computed((yield from engine.state_delta(tables, plan, staged)), tables.sql("delta"))
    keys = yield from engine.affected_keys(tables, plan, staged)
    yield from shape(tables, "result", plan.stored_sql(target.storage))
    groups = (yield from engine.recompute(tables, plan, tables.sql("keys"))) if keys else 0
    return Computed(max(keys, groups), tables.sql("keys"))


def apply(tables: Tables, plan: IncrementalPlan, target: Target, computed: Computed) -> Steps[Applied]:
    """Apply the delta that an engine computed: by one statement if it is small, else in steps."""
    if not computed.rows:
        return Applied()
    if computed.rows < MOST_AT_ONCE:
        done = yield from apply_in_one(plan, target, tables, computed.affected).steps(tables)
        if done is not None:
            return done
    if isinstance(plan, GroupPlan) and plan.algebra is not None:
        yield from _add_to_states(tables, plan, target)
    return (yield from reconcile(tables, plan, target, computed.affected))


def _add_to_states(tables: Tables, plan: GroupPlan, target: Target) -> Steps[None]:
    """Make the new rows of groups whose states have a delta; where adding is not enough, read the group."""
    delta_table = tables.sql("delta")
    yield from shape(tables, "result", plan.stored_sql(target.storage))
    rescan = plan.rescan_sql(delta_table, target.storage)
    rescanned = None
    if rescan is not None and (yield from fill(tables, "keys", rescan)):
        rescanned = tables.sql("keys")
        yield from PostgresEngine().recompute(tables, plan, rescanned)
    yield from fill(tables, "result", plan.merge_sql(delta_table, target.storage, rescanned))


def reconcile(tables: Tables, plan: MaintenancePlan, target: Target, affected: str | None) -> Steps[Applied]:
    """Bring the stored rows of the affected keys, or all of them, to those that were computed, in steps."""
    if isinstance(plan, GroupPlan):
        return (yield from apply_groups(tables, plan, target, affected))
    return (yield from apply_bag(tables, plan, target))
