"""Which part of an input a join can meet at all, so that no more of it is computed than that.

The server looks rows of a table up by itself. It does not carry a condition of a join into a subquery that
groups, numbers or compares rows, and would compute all of it for one changed row. So the values that can
occur in the join are put together first, and the subquery is restricted to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sqlglot import exp

from headwater.plan.operators import (
    CORE,
    Aggregate,
    Apply,
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
    """How an input is found: its columns, each equal to an expression over other inputs of the block."""

    pairs: tuple[tuple[str, exp.Expression], ...]
    aliases: frozenset[str]  # the inputs that must be joined to have those values


def can_restrict(node: Node, column: str) -> bool:
    """Whether restricting a column of a node's result makes computing it cheaper."""
    match node:
        case Scan() | Constant() | Expansion():
            return False
        case Select() | UnionAll():
            # The server itself takes a condition into what only filters, joins and computes.
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
    """The key that an output shows as it is."""
    tree = next(output.expression for output in node.outputs if output.name == column)
    return tree.name if isinstance(tree, exp.Column) and tree.name in node.keys else None


def core_column(node: Apply, column: str) -> str | None:
    """The column of the core that an output shows as it is."""
    tree = next(output.expression for output in node.outputs if output.name == column)
    return tree.name if isinstance(tree, exp.Column) and tree.table == CORE else None


def path_to(block: Select, alias: str, start: Iterable[str]) -> Path | None:
    """How an input of a block can be found from others of it that are known to be few."""
    node = next(item.node for item in block.inputs if item.alias == alias)
    known = [item.alias for item in block.inputs]
    parents = _reachable(block, alias, [name for name in start if name != alias])
    pairs, needed = [], set[str]()
    for column, other in equalities(block, alias):
        used = aliases_of(other) & frozenset(known)
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


def own_conditions(root: Node, relation: int) -> exp.Expression | None:
    """What every row of a source must meet to be read at all, over its plain columns; None if nothing."""
    met: list[exp.Expression] = []
    for block in blocks(root):
        for item in block.inputs:
            if isinstance(item.node, Scan) and item.node.source.relation == relation:
                own = _implied(block.predicates, item.alias)
                if own is None:
                    return None
                met.append(own)
    return _any_of(met) if met else None


def _implied(predicates: Iterable[exp.Expression], alias: str) -> exp.Expression | None:
    """What conditions say of the columns of one input alone.

    (a.x = 1 AND b.y = 2) OR (a.x = 3 AND b.y = 4)  ->  a.x = 1 OR a.x = 3
    """
    found: list[exp.Expression] = []
    for tree in conjuncts(predicates):
        if _has_query(tree):
            continue
        if aliases_of(tree) == {alias}:
            found.append(unqualified(tree))
        elif isinstance(tree, exp.Or):
            sides = [_implied([side], alias) for side in (tree.this, tree.expression)]
            if all(side is not None for side in sides):
                found.append(_any_of([side for side in sides if side is not None]))
    return exp.Paren(this=exp.and_(*found, copy=False)) if found else None


def _any_of(trees: list[exp.Expression]) -> exp.Expression:
    return exp.Paren(this=exp.or_(*trees, copy=False))


def blocks(node: Node) -> Iterator[Select]:
    """The blocks of a query and of what it reads."""
    if isinstance(node, Select):
        yield node
    for child in children(node):
        yield from blocks(child)


def unqualified(tree: exp.Expression) -> exp.Expression:
    copy = exp.Paren(this=tree.copy())
    for column in copy.find_all(exp.Column):
        column.set("table", None)
    return copy


def aliases_of(tree: exp.Expression) -> frozenset[str]:
    return frozenset(column.table for column in tree.find_all(exp.Column))


def _reachable(block: Select, excluded: str, start: list[str]) -> dict[str, str | None]:
    """Inputs that equalities connect to the start, each with the one before it. Tables only: others are
    themselves to be restricted."""
    cheap = {item.alias for item in block.inputs if isinstance(item.node, Scan | Constant)} - {excluded}
    parents: dict[str, str | None] = dict.fromkeys(start)
    grown = True
    while grown:
        grown = False
        for name in sorted(cheap - parents.keys()):
            for _, other in equalities(block, name):
                used = aliases_of(other)
                if len(used) == 1 and used <= parents.keys():
                    parents[name] = next(iter(used))
                    grown = True
                    break
    return parents


def equalities(block: Select, alias: str) -> list[tuple[str, exp.Expression]]:
    """The columns of an input that a condition of the block makes equal to something without it."""
    found = []
    for predicate in conjuncts(block.predicates):
        if not isinstance(predicate, exp.EQ):
            continue
        for one, other in ((predicate.this, predicate.expression), (predicate.expression, predicate.this)):
            one = bare(one)
            plain = isinstance(one, exp.Column) and one.table == alias and is_value(bare(other))
            if plain and alias not in aliases_of(other) and not _has_query(other):
                found.append((one.name, bare(other)))
    return found


def is_value(side: exp.Expression) -> bool:
    """Whether a side of a comparison is a value of its own, unlike ANY (…) and ALL (…)."""
    return not isinstance(side, exp.Any | exp.All)


def conjuncts(predicates: Iterable[exp.Expression]) -> list[exp.Expression]:
    """Conditions taken apart at AND."""
    found: list[exp.Expression] = []
    for predicate in predicates:
        plain = bare(predicate)
        if isinstance(plain, exp.And):
            found += conjuncts([plain.this, plain.expression])
        else:
            found.append(plain)
    return found


def bare(tree: exp.Expression) -> exp.Expression:
    while isinstance(tree, exp.Paren):
        tree = tree.this
    return tree


def _has_query(tree: exp.Expression) -> bool:
    return tree.find(exp.Query) is not None
