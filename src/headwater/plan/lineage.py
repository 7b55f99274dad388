"""Which source columns each output is made from, and a fingerprint of a plan that renames do not change."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from headwater.plan.expression import ColumnRef as Reference
from headwater.plan.expression import Expression, column
from headwater.plan.operators import (
    CORE,
    Aggregate,
    Apply,
    Constant,
    Expansion,
    Input,
    Keyed,
    Node,
    Query,
    Scan,
    Select,
    UnionAll,
)

ColumnRef = tuple[int, int]
"""A source's oid and a column's number."""

Lineage = dict[str | None, set[ColumnRef]]
"""Output column to the source columns in its value; None for those that only decide which rows there are."""


def lineage(root: Query) -> Lineage:
    """Map each output column to the source columns in its value; None for those that only select rows."""
    match root:
        case Aggregate():
            rows = lineage(root.input)
            calls = {
                call.name: {*call.arguments, *([call.filter] if call.filter else [])} for call in root.calls
            }

            def through(trees: Iterable[Expression]) -> set[ColumnRef]:
                names = {found.name for tree in trees for found in tree.references}
                inputs = {name for reference in names for name in calls.get(reference, {reference})}
                return {found for name in inputs for found in rows.get(name, set())}

            result: Lineage = {output.name: through([output.expression]) for output in root.outputs}
            deciding = {column for key in root.keys for column in rows.get(key, set())}
            if root.having is not None:
                deciding |= through([root.having])
            result[None] = deciding | rows.get(None, set())
            return result
        case UnionAll():
            result = {name: set() for name in root.output_names}
            result[None] = set()
            for branch in root.branches:
                inner = lineage(branch)
                for name, output in zip(root.output_names, branch.output_names, strict=True):
                    result[name] |= inner[output]
                result[None] |= inner[None]
            return result
        case Select():
            below = _inputs((item.alias, item.node) for item in root.inputs)
            result = {output.name: _columns(below, [output.expression]) for output in root.outputs}
            result[None] = _columns(below, root.predicates).union(
                *(each.get(None, set()) for each in below.values())
            )
            return result
        case Keyed():
            below = _inputs((item.alias, item.node) for item in root.inputs)
            result = {None: _everything(below)}
            passed = dict(root.passed) if len(root.inputs) == 1 else {}
            only = below[root.inputs[0].alias]
            for name in root.columns:
                result[name] = only[passed[name]] if name in passed else set(result[None])
            return result
        case Apply():
            below = _inputs([(CORE, root.core), *((lookup.name, lookup.node) for lookup in root.lookups)])
            result = {None: _everything(below)}
            for shown in root.outputs:
                own = shown.expression.column
                plain = own is not None and own.alias in below
                result[shown.name] = _columns(below, [shown.expression]) if plain else set(result[None])
            return result


def _inputs(nodes: Iterable[tuple[str, Node]]) -> dict[str, Lineage]:
    """Return the lineage of each input by alias; a function's columns come from those of its arguments."""
    found: dict[str, Lineage] = {}
    for alias, node in nodes:
        match node:
            case Scan():
                found[alias] = {
                    name: {(node.source.relation, node.source.column(name).attnum)} for name in node.columns
                }
            case Constant():
                found[alias] = {}
            case Expansion():
                arguments = _columns(found, [node.sql])
                found[alias] = dict.fromkeys(node.columns, arguments)
            case _:
                found[alias] = lineage(node)
    return found


def _everything(below: Mapping[str, Lineage]) -> set[ColumnRef]:
    return {column for each in below.values() for columns in each.values() for column in columns}


def _columns(below: Mapping[str, Lineage], trees: Iterable[Expression]) -> set[ColumnRef]:
    return {
        source
        for tree in trees
        for found in tree.references
        for source in below.get(found.alias, {}).get(found.name, set())
    }


def fingerprint(root: Query) -> str:
    """Return a digest of what a plan computes, in which numbers stand for tables and columns."""
    return hashlib.sha256(_described(root).encode()).hexdigest()


def _described(node: Node) -> str:
    match node:
        case Scan():
            columns = (node.source.column(name) for name in node.columns)
            listed = [f"{found.attnum} {found.type.sql} {found.expression}" for found in columns]
            return f"scan({node.source.relation}: {', '.join(listed)})"
        case Constant():
            return f"constant({node.sql})"
        case Expansion():
            return f"expansion({node.sql.text}, {node.columns})"
        case UnionAll():
            return f"union({', '.join(_described(branch) for branch in node.branches)})"
        case Select():
            inputs = [f"{item.alias}={_described(item.node)}" for item in node.inputs]
            predicates = [_numbered(node.inputs, predicate) for predicate in node.predicates]
            outputs = [f"{out.name}={_numbered(node.inputs, out.expression)}" for out in node.outputs]
            return f"select({inputs}, {predicates}, {outputs})"
        case Aggregate():
            calls = [f"{call.name}={call.text}" for call in node.calls]
            outputs = [f"{out.name}={out.text}" for out in node.outputs]
            having = node.having_sql or ""
            return f"aggregate({_described(node.input)}, {node.keys}, {calls}, {having}, {outputs})"
        case Keyed():
            inputs = [f"{item.alias}={_described(item.node)}" for item in node.inputs]
            return f"keyed({inputs}, {node.keys}, {node.text})"
        case Apply():
            lookups = [f"{item.name}={_described(item.node)}" for item in node.lookups]
            joins = [
                f"{item.alias}={item.item.text} {item.condition.text if item.condition else ''}"
                for item in node.joins
            ]
            predicates = list(node.predicate_sql)
            outputs = [f"{out.name}={out.text}" for out in node.outputs]
            return f"apply({_described(node.core)}, {lookups}, {joins}, {predicates}, {outputs})"


def _numbered(inputs: tuple[Input, ...], tree: Expression) -> str:
    """Return an expression with the columns of sources replaced by their numbers."""
    nodes = {item.alias: item.node for item in inputs}

    def numbered(found: Reference) -> Expression | None:
        node = nodes.get(found.alias)
        if not isinstance(node, Scan):
            return None
        return column(f"c{node.source.column(found.name).attnum}", found.alias)

    return tree.mapped(numbered).text
