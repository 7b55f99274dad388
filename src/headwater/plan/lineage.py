"""Which source columns each output is made from, and a fingerprint of a plan that renames do not change."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from sqlglot import exp

from headwater.plan.dialect import render
from headwater.plan.operators import Aggregate, Constant, Root, Scan, Select, UnionAll

ColumnRef = tuple[int, int]
"""A source's oid and a column's number."""


def lineage(root: Root) -> dict[str | None, set[ColumnRef]]:
    """Output column to the source columns in its value; None for those that only decide on the rows."""
    match root:
        case Aggregate():
            below = lineage(root.input)
            calls = {
                call.name: {*call.arguments, *([call.filter] if call.filter else [])} for call in root.calls
            }

            def through(trees: Iterable[exp.Expression]) -> set[ColumnRef]:
                names = {column.name for tree in trees for column in tree.find_all(exp.Column)}
                inputs = {name for reference in names for name in calls.get(reference, {reference})}
                return {column for name in inputs for column in below.get(name, set())}

            result: dict[str | None, set[ColumnRef]] = {
                output.name: through([output.expression]) for output in root.outputs
            }
            deciding = {column for key in root.keys for column in below.get(key, set())}
            if root.having is not None:
                deciding |= through([root.having])
            result[None] = deciding | below.get(None, set())
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
            result = {output.name: _columns(root, [output.expression]) for output in root.outputs}
            result[None] = _columns(root, root.predicates)
            for item in root.inputs:
                if isinstance(item.node, UnionAll):
                    result[None] |= lineage(item.node)[None]
            return result


def _columns(block: Select, trees: Iterable[exp.Expression]) -> set[ColumnRef]:
    nodes = {item.alias: item.node for item in block.inputs}
    found: set[ColumnRef] = set()
    for tree in trees:
        for column in tree.find_all(exp.Column):
            node = nodes.get(column.table)
            if isinstance(node, Scan):
                found.add((node.source.relation, node.source.column(column.name).attnum))
            elif isinstance(node, UnionAll):
                found |= lineage(node)[column.name]
    return found


def fingerprint(root: Root) -> str:
    """A digest of what a plan computes, in which tables and columns stand by their numbers."""
    return hashlib.sha256(_described(root).encode()).hexdigest()


def _described(node: Root | Scan | Constant) -> str:
    match node:
        case Scan():
            columns = (node.source.column(name) for name in node.columns)
            listed = [f"{column.attnum} {column.type.sql} {column.expression}" for column in columns]
            return f"scan({node.source.relation}: {', '.join(listed)})"
        case Constant():
            return f"constant({node.sql})"
        case UnionAll():
            return f"union({', '.join(_described(branch) for branch in node.branches)})"
        case Select():
            inputs = [f"{item.alias}={_described(item.node)}" for item in node.inputs]
            predicates = [_numbered(node, predicate) for predicate in node.predicates]
            outputs = [f"{out.name}={_numbered(node, out.expression)}" for out in node.outputs]
            return f"select({inputs}, {predicates}, {outputs})"
        case Aggregate():
            calls = [f"{call.name}={render(call.sql)}" for call in node.calls]
            outputs = [f"{out.name}={render(out.expression)}" for out in node.outputs]
            having = render(node.having) if node.having is not None else ""
            return f"aggregate({_described(node.input)}, {node.keys}, {calls}, {having}, {outputs})"


def _numbered(block: Select, tree: exp.Expression) -> str:
    """An expression in which the columns of sources stand by their numbers."""
    copy = exp.Paren(this=tree.copy())
    nodes = {item.alias: item.node for item in block.inputs}
    for column in copy.find_all(exp.Column):
        node = nodes.get(column.table)
        if isinstance(node, Scan):
            column.set("this", exp.to_identifier(f"c{node.source.column(column.name).attnum}", quoted=True))
    return render(copy)
