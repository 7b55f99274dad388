"""What a refresh does and why: operators with their rules, and the statements that it would run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from headwater.capture.change_tables import change_table
from headwater.catalog import stream_tables as catalog
from headwater.catalog.stream_tables import Frontier, StreamTable
from headwater.db.connection import Connection, transaction
from headwater.definition.views import definition_oid
from headwater.engine.observations import Prediction
from headwater.inspect.transcript import Statement, Transcript
from headwater.plan.aggregates import obstacle
from headwater.plan.build.grouping import ROWS
from headwater.plan.expression import Expression, column
from headwater.plan.operators import (
    Aggregate,
    Apply,
    Call,
    Constant,
    Expansion,
    Keyed,
    Node,
    Query,
    Scan,
    Select,
    UnionAll,
    sources_of,
)
from headwater.plan.steps import Tables, fill
from headwater.plan.storage_plan import BagPlan, GroupPlan, MaintenancePlan
from headwater.refresh.index_advice import MissingIndex, missing_indexes
from headwater.refresh.intermediates import stored_layers, stored_parts
from headwater.refresh.steps import Inputs, delta
from headwater.refresh.transaction import Refresher


@dataclass(frozen=True)
class Operator:
    """One operator of the plan, with the rule that gives its delta."""

    depth: int
    name: str
    detail: str
    rule: str


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """The result of `headwater explain`."""

    stream_table: str
    requested_mode: str
    mode: str
    engine: str
    engine_reason: str
    schedule: str | None
    reasons: tuple[str, ...]  # why it is not incremental, or why a part of it is not algebraic
    predictions: tuple[Prediction, ...]  # how long deltas of several sizes are expected to take
    indexes: tuple[MissingIndex, ...]  # indexes on sources that would turn scans into look-ups
    query: str
    operators: tuple[Operator, ...]
    steps: tuple[Statement, ...]
    compiled: str | None  # the function that takes small changes, as it is stored
    not_compiled: str | None  # why there is none


def explain(connection: Connection, refresher: Refresher, stream_table: StreamTable) -> Explanation:
    """Plan a stream table as a refresh would, with every source changed, and write the statements down."""
    with transaction(connection, rollback=True):
        definition = refresher.reader.read(definition_oid(connection, stream_table.id))
        mode = definition.mode_for(stream_table.mode)
        plan = definition.maintenance(mode)
        target = refresher.members.target(stream_table, definition)
        reasons = list(definition.reasons or stream_table.mode_reasons)
        layers = stored_layers(connection, stream_table.id, definition) if mode == "differential" else None
        plans = [*(part.plan for part in layers.kept), layers.top] if layers else [plan]
        engines, decision = refresher.selector.explained(connection, stream_table, definition, plans)
        transcript = Transcript(connection, engines)
        if isinstance(plan, BagPlan | GroupPlan):
            assert layers is not None
            sources = catalog.sources_of(connection, stream_table.id)
            tables = {
                source.relation: source.change_table or change_table(source.relation) for source in sources
            }
            inputs = Inputs(
                label=stream_table.label,
                layers=layers,
                plan=plan,
                pending={source.relation: 1 for source in plan.sources},
                change_tables=tables,
                frontier=stream_table.frontier or Frontier(snapshot="1:1:", applied_by="0"),
                target=target,
                tables=Tables(),
            )
            transcript.take(delta(inputs, in_postgres=not decision.programs))
            if isinstance(plan, GroupPlan):
                types = {column.name: column.type for column in plan.rows}
                reasons += [found for call in plan.aggregate.calls if (found := obstacle(call, types))]
        else:
            transcript.take(fill(Tables(), "delta", plan.difference_sql(target.storage)))
        indexes = missing_indexes(connection, layers) if layers else ()
        kept = stored_parts(connection, stream_table.id, definition)
        function, refused = refresher.fast_path.explained(stream_table.id)
    return Explanation(
        stream_table=stream_table.label,
        requested_mode=stream_table.requested_mode,
        mode=mode,
        engine=decision.engine,
        engine_reason=decision.reason,
        schedule=stream_table.schedule,
        reasons=tuple(reasons),
        predictions=refresher.selector.observations.predictions(connection, stream_table.id)
        if mode == "differential"
        else (),
        indexes=indexes,
        query=definition.text,
        operators=tuple(_operators(plan, kept)),
        steps=tuple(transcript.statements),
        compiled=function,
        not_compiled=refused,
    )


def _operators(plan: MaintenancePlan, kept: Mapping[Query, str]) -> Iterator[Operator]:
    match plan:
        case GroupPlan():
            yield _aggregate(plan)
            yield from _body(plan.aggregate.input, 1, kept)
        case BagPlan():
            yield from _body(plan.body, 0, kept)
        case _:
            yield Operator(0, "query", "as a whole", "recompute and compare, write the difference")


def _aggregate(plan: GroupPlan) -> Operator:
    written = [_written(plan, key).text.replace('"', "") for key in plan.aggregate.keys]
    keys = ", ".join(written) or "one group"
    calls = ", ".join(_with_arguments(plan, call) for call in plan.aggregate.calls)
    if plan.algebra is None and not plan.aggregate.keys:
        rule = "global: the one group is computed as a whole"
    elif plan.algebra is None:
        rule = "keyed: the affected groups are recomputed by the query itself"
    elif plan.algebra.extremes:
        rule = (
            "algebraic: deltas are added to stored state; a group whose min or max was deleted is rescanned"
        )
    else:
        rule = "algebraic: deltas are added to stored state"
    name = "distinct" if plan.aggregate.distinct else "aggregate"
    having = f" having {plan.aggregate.having_sql}" if plan.aggregate.having is not None else ""
    return Operator(0, name, f"by {keys}" + (f": {calls}" if calls else "") + having, rule)


def _written(plan: GroupPlan, name: str) -> Expression:
    """Return an input column of the aggregate as the query writes it."""
    body = plan.aggregate.input
    block = body.branches[0] if isinstance(body, UnionAll) else body
    if not isinstance(block, Select):
        return column(name)
    return block.outputs[body.output_names.index(name)].expression


def _with_arguments(plan: GroupPlan, call: Call) -> str:
    """Return a call over the expressions that its arguments are in the query."""
    whole = call.sql.mapped(lambda found: _written(plan, found.name) if found.alias == ROWS else None)
    return whole.text.replace('"', "")


def _body(node: Node, depth: int, kept: Mapping[Query, str]) -> Iterator[Operator]:
    inner = _below(node, depth, kept)
    if not isinstance(node, Scan | Constant | Expansion) and node in kept:
        first = next(inner)
        yield replace(first, rule=f"kept in {kept[node]}: takes its own deltas in, and is read like a table")
    yield from inner


def _below(node: Node, depth: int, kept: Mapping[Query, str]) -> Iterator[Operator]:
    match node:
        case UnionAll():
            yield Operator(
                depth, "union all", f"{len(node.branches)} branches", "linear: deltas pass through"
            )
            for branch in node.branches:
                yield from _body(branch, depth + 1, kept)
        case Select():
            conditions = " and ".join(text.replace('"', "") for text in node.predicate_sql)
            if len(node.inputs) > 1:
                rule = "bilinear: each changed input's delta is joined with the others, by telescoping"
                yield Operator(depth, "join", conditions or "cross product", rule)
                depth += 1
            elif conditions:
                yield Operator(depth, "filter", conditions, "linear: deltas pass through")
                depth += 1
            for item in node.inputs:
                yield from (
                    Operator(inner.depth, inner.name, f"{inner.detail} as {item.alias}", inner.rule)
                    if inner.name == "scan" and inner.depth == depth
                    else inner
                    for inner in _body(item.node, depth, kept)
                )
        case Scan():
            columns = ", ".join(node.columns) or "no columns"
            yield Operator(
                depth, "scan", f"{node.source.label} ({columns})", "captured change rows, consolidated"
            )
        case Constant():
            yield Operator(depth, "values", node.sql, "never changes")
        case Expansion():
            yield Operator(depth, "expand", node.sql.text.replace('"', ""), "linear: each row for itself")
        case Aggregate():
            name = "distinct" if node.distinct else "aggregate"
            calls = ", ".join(call.function for call in node.calls)
            rule = (
                "keyed: the affected groups as they are now, less as they were"
                if node.keys
                else "global: computed as a whole, now and as it was"
            )
            yield Operator(depth, name, _by(node.keys) + (f": {calls}" if calls else ""), rule)
            yield from _body(node.input, depth + 1, kept)
        case Keyed():
            rule = (
                "keyed: what has the affected keys as it is now, less as it was"
                if node.keys[0]
                else "global: computed as a whole and compared"
            )
            yield Operator(depth, node.what, _by(node.keys[0]), rule)
            for item in node.inputs:
                yield from _body(item.node, depth + 1, kept)
        case Apply():
            unconditional = any(not lookup.conditions and sources_of(lookup.node) for lookup in node.lookups)
            affected = "all rows" if unconditional else "the rows that may find it"
            rule = f"linear in its rows; a change of a lookup affects {affected}"
            outer = any(joined.condition is not None for joined in node.joins)
            name = "outer join" if outer else "look up"
            yield Operator(depth, name, _counted(len(node.lookups), "relation"), rule)
            yield from _body(node.core, depth + 1, kept)
            for lookup in node.lookups:
                yield from _body(lookup.node, depth + 1, kept)


def _by(keys: tuple[str, ...]) -> str:
    return f"by {_counted(len(keys), 'column')}" if keys else "without a key"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
