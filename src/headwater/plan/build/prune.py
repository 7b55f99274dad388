"""Operators reduced to the columns that are read above them, down to the sources."""

from __future__ import annotations

from collections.abc import Iterable

from headwater.plan.expression import Expression
from headwater.plan.operators import (
    CORE,
    Aggregate,
    Apply,
    Expansion,
    Input,
    Keyed,
    Lookup,
    Node,
    Output,
    Query,
    Scan,
    Select,
    UnionAll,
)

Used = set[tuple[str, str]]
"""Columns by alias and name."""


def pruned(node: Query, wanted: set[str] | None = None) -> Query:
    """Return the node with only the outputs that are wanted, or all."""
    match node:
        case Select():
            outputs = _kept(node.outputs, None if node.expands else wanted)
            trees = [*node.predicates, *(output.expression for output in outputs)]
            trees += [item.node.sql for item in node.inputs if isinstance(item.node, Expansion)]
            used = _used(trees)
            inputs = tuple(Input(item.alias, _below(item.node, item.alias, used)) for item in node.inputs)
            return Select(inputs, node.predicates, outputs, node.expands)
        case UnionAll():
            places = [
                number for number, name in enumerate(node.output_names) if wanted is None or name in wanted
            ] or [0]
            if not all(_can_lose_columns(branch) for branch in node.branches):
                places = list(range(len(node.output_names)))
            wants = [{branch.output_names[number] for number in places} for branch in node.branches]
            return UnionAll(
                tuple(pruned(branch, each) for branch, each in zip(node.branches, wants, strict=True))
            )
        case Aggregate():
            outputs = _kept(node.outputs, wanted)
            trees = [output.expression for output in outputs] + (
                [node.having] if node.having is not None else []
            )
            names = {name for _, name in _used(trees)}
            calls = tuple(call for call in node.calls if call.name in names)
            read = {*node.keys, *(name for call in calls for name in call.arguments)}
            read |= {call.filter for call in calls if call.filter}
            rows = pruned(node.input, read)
            return Aggregate(rows, node.keys, calls, node.having, outputs, node.distinct)
        case Keyed():
            used = _used([node.sql])
            inputs = tuple(
                Input(item.alias, _below(item.node, item.alias, used | {(item.alias, name) for name in keys}))
                for item, keys in zip(node.inputs, node.keys, strict=True)
            )
            return Keyed(node.what, inputs, node.keys, node.sql, node.columns, node.passed)
        case Apply():
            outputs = _kept(node.outputs, wanted)
            trees = [*node.predicates, *(output.expression for output in outputs)]
            for joined in node.joins:
                trees += [joined.item] + ([joined.condition] if joined.condition is not None else [])
            for lookup in node.lookups:
                trees += lookup.conditions
            used = _used(trees)
            used |= {(lookup.name, mine) for lookup in node.lookups for mine, _ in lookup.equals}
            used |= {(CORE, theirs) for lookup in node.lookups for _, theirs in lookup.equals}
            core = _below(node.core, CORE, used)
            assert not isinstance(core, Scan)
            lookups = tuple(_lookup(lookup, used) for lookup in node.lookups)
            return Apply(core, lookups, node.joins, node.predicates, outputs)  # type: ignore[arg-type]


def _can_lose_columns(node: Query) -> bool:
    """Tell whether pruning removes exactly the outputs that are not wanted."""
    if len(set(node.output_names)) < len(node.output_names):
        return False
    match node:
        case Keyed():
            return False
        case Select():
            return not node.expands
        case UnionAll():
            return all(_can_lose_columns(branch) for branch in node.branches)
        case _:
            return True


def _lookup(lookup: Lookup, used: Used) -> Lookup:
    node = _below(lookup.node, lookup.name, used)
    return Lookup(lookup.name, node, lookup.conditions, lookup.equals, lookup.exempt)  # type: ignore[arg-type]


def _below(node: Node, alias: str, used: Used) -> Node:
    names = {name for table, name in used if table == alias}
    match node:
        case Scan():
            return Scan(node.source, tuple(name for name in node.columns if name in names))
        case Select() | UnionAll() | Aggregate() | Keyed() | Apply():
            return pruned(node, names)
        case _:
            return node


def _kept(outputs: tuple[Output, ...], wanted: set[str] | None) -> tuple[Output, ...]:
    """Return the outputs that are wanted, and at least one."""
    if wanted is None:
        return outputs
    return tuple(output for output in outputs if output.name in wanted) or outputs[:1]


def _used(trees: Iterable[Expression]) -> Used:
    return {(found.alias, found.name) for tree in trees for found in tree.references}
