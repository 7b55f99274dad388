"""Which part of an input a join can match, so that no more of it is computed.

The server looks up rows of a table by itself. But it does not push a condition of a join into a subquery that
groups, numbers or compares rows, and would compute all of it for one changed row. So the values that can
occur in the join are collected first, and the subquery is restricted to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from headwater.plan.expression import Expression, Logic, all_of, any_of, conjuncts
from headwater.plan.operators import (
    CORE,
    Aggregate,
    Apply,
    ColumnType,
    Constant,
    Expansion,
    Keyed,
    Node,
    Scan,
    Select,
    UnionAll,
    children,
)


@dataclass(frozen=True)
class Path:
    """How to find an input: its columns, each equal to an expression over other inputs of the block."""

    pairs: tuple[tuple[str, Expression], ...]
    aliases: frozenset[str]  # the inputs that must be joined to have those values


def can_restrict(node: Node, column: str) -> bool:
    """Tell whether restricting a column of a node's result makes computing it cheaper."""
    match node:
        case Scan() | Constant() | Expansion():
            return False
        case Select() | UnionAll():
            # The server itself pushes a condition into what only filters, joins and computes.
            return any(_is_opaque(child) for child in children(node))
        case Aggregate():
            return grouping_column(node, column) is not None
        case Keyed():
            return column in dict(node.passed)
        case Apply():
            return core_column(node, column) is not None


def _is_opaque(node: Node) -> bool:
    return isinstance(node, Aggregate | Keyed | Apply) or any(_is_opaque(child) for child in children(node))


def grouping_column(node: Aggregate, column: str) -> str | None:
    """Return the key that an output shows unchanged."""
    tree = next(output.expression for output in node.outputs if output.name == column)
    return tree.column.name if tree.column is not None and tree.column.name in node.keys else None


def core_column(node: Apply, column: str) -> str | None:
    """Return the column of the core that an output shows unchanged."""
    tree = next(output.expression for output in node.outputs if output.name == column)
    return tree.column.name if tree.column is not None and tree.column.alias == CORE else None


def type_of(node: Node, column: str) -> ColumnType | None:
    """Return the type of a result column that shows a table's column unchanged; None for any other."""
    below: tuple[Node, str | None]
    match node:
        case Scan():
            return node.source.column(column).type
        case Constant() | Expansion():
            return None
        case UnionAll():
            position = node.output_names.index(column)
            found = {type_of(branch, branch.output_names[position]) for branch in node.branches}
            return found.pop() if len(found) == 1 else None
        case Select():
            shown = next(out.expression for out in node.outputs if out.name == column).column
            inputs = {item.alias: item.node for item in node.inputs}
            if shown is None or shown.alias not in inputs:
                return None
            below = inputs[shown.alias], shown.name
        case Aggregate():
            below = node.input, grouping_column(node, column)
        case Keyed():
            below = node.inputs[0].node, dict(node.passed).get(column) if len(node.inputs) == 1 else None
        case Apply():
            below = node.core, core_column(node, column)
    return type_of(below[0], below[1]) if below[1] is not None else None


def path_to(block: Select, alias: str, start: Iterable[str]) -> Path | None:
    """Return how an input of a block can be found from others that are known to be few."""
    node = next(item.node for item in block.inputs if item.alias == alias)
    known = [item.alias for item in block.inputs]
    parents = _reachable(block, alias, [name for name in start if name != alias])
    pairs, needed = [], set[str]()
    for column, other in equalities(block, alias):
        used = other.aliases & frozenset(known)
        if can_restrict(node, column) and used and used <= parents.keys():
            pairs.append((column, other))
            needed |= used
    if not pairs:
        return None
    complete = set(needed)
    for name in needed:
        step = parents[name]
        while step is not None:
            complete.add(step)
            step = parents[step]
    return Path(tuple(pairs), frozenset(complete))


def own_conditions(root: Node, relation: int) -> Expression | None:
    """Return what every row of a source must meet to be read, over its plain columns; None if nothing."""
    met: list[Expression] = []
    for block in blocks(root):
        for item in block.inputs:
            if isinstance(item.node, Scan) and item.node.source.relation == relation:
                own = _implied(block.predicates, item.alias)
                if own is None:
                    return None
                met.append(own)
    return any_of(met) if met else None


def _implied(predicates: Iterable[Expression], alias: str) -> Expression | None:
    """Return what conditions imply about the columns of one input alone.

    (a.x = 1 AND b.y = 2) OR (a.x = 3 AND b.y = 4)  ->  a.x = 1 OR a.x = 3
    """
    found: list[Expression] = []
    for tree in conjuncts(predicates):
        shape = tree.shape
        if tree.has_query:
            continue
        if tree.aliases == {alias}:
            found.append(tree.unqualified())
        elif isinstance(shape, Logic):
            sides = [_implied([side], alias) for side in shape.parts]
            if all(side is not None for side in sides):
                found.append(any_of(side for side in sides if side is not None))
    return all_of(found) if found else None


def blocks(node: Node) -> Iterator[Select]:
    """Yield the blocks of a query and of what it reads."""
    if isinstance(node, Select):
        yield node
    for child in children(node):
        yield from blocks(child)


def _reachable(block: Select, excluded: str, start: list[str]) -> dict[str, str | None]:
    """Return the inputs that equalities connect to the start, each with the one before it.

    Tables only: other inputs are to be restricted themselves.
    """
    cheap = {item.alias for item in block.inputs if isinstance(item.node, Scan | Constant)} - {excluded}
    parents: dict[str, str | None] = dict.fromkeys(start)
    grown = True
    while grown:
        grown = False
        for name in sorted(cheap - parents.keys()):
            for _, other in equalities(block, name):
                used = other.aliases
                if len(used) == 1 and used <= parents.keys():
                    parents[name] = next(iter(used))
                    grown = True
                    break
    return parents


def equalities(block: Select, alias: str) -> list[tuple[str, Expression]]:
    """Return the columns of an input that a condition of the block equates with something outside it."""
    found = []
    for predicate in conjuncts(block.predicates):
        sides = predicate.equality
        if sides is None:
            continue
        for one, other in (sides, sides[::-1]):
            own = one.column
            if own is not None and own.alias == alias and alias not in other.aliases and not other.has_query:
                found.append((own.name, other))
    return found
