"""LEFT and FULL joins: each row of one side with the rows that it finds on the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headwater.plan import syntax
from headwater.plan.build.scope import Block, Lifted
from headwater.plan.expression import ColumnRef, Expression, all_of, column
from headwater.plan.operators import CORE, Apply, Joined, Lookup, Output, Query

Rows = Callable[[Block, list[Expression], list[Output]], Query]
"""Makes the rows of a block, given further conditions that contain subqueries, and outputs."""


@dataclass(frozen=True)
class OuterJoin:
    node: Apply
    names: Mapping[int, str]  # the output that shows a column, by the identity of the column's expression


def left_outer_join(
    block: Block, own: Block, conditions: list[Expression], name: str, rows: Rows
) -> OuterJoin:
    """Join each row of the left with what it finds on the right, by a lookup of that name."""
    core, other = Lifted(), Lifted()
    outputs: list[Output] = []
    names: dict[int, str] = {}
    for part, lifted, alias in ((block, core, CORE), (own, other, name)):
        for item in part.relations:
            for tree in item.columns.values():
                if id(tree) not in names:
                    names[id(tree)] = f"o{len(outputs) + 1}"
                    outputs.append(Output(names[id(tree)], column(lifted.name(tree), alias)))
    left, right = block.aliases, own.aliases

    def over(found: ColumnRef) -> Expression | None:
        reference = column(found.name, found.alias)
        if found.alias in left:
            return column(core.name(reference), CORE)
        return column(other.name(reference), name) if found.alias in right else None

    over_both = [item.mapped(over) for item in conditions]
    equals = []
    for original in conditions:
        pair = _sides(original, left, right)
        if pair is not None:
            equals.append((other.name(pair[1]), core.name(pair[0])))
    lookup = Lookup(name, rows(own, [], other.outputs()), tuple(over_both), tuple(equals))
    node = Apply(
        rows(block, [], core.outputs()),
        (lookup,),
        (Joined(name, Expression(syntax.range_var(name)), all_of(over_both)),),
        (),
        tuple(outputs),
    )
    return OuterJoin(node, names)


def unmatched(
    own: Block, block: Block, conditions: list[Expression], both: OuterJoin, name: str, rows: Rows
) -> Apply:
    """Return what a FULL JOIN adds to a LEFT one: the rows of the right that no row of the left finds.

    They have the outputs of `both`, the LEFT JOIN.
    """
    mirrored = left_outer_join(own, block, conditions, name, rows)
    lookup = mirrored.node.lookups[0]
    by_name = {output.name: output for output in mirrored.node.outputs}
    outputs = tuple(
        Output(shown, by_name[mirrored.names[found]].expression) for found, shown in both.names.items()
    )
    # A join that finds nothing gives NULLs of the right types.
    nothing = Joined(
        lookup.name, Expression(syntax.range_var(lookup.name)), Expression(syntax.boolean(False))
    )
    matching = [item.node for item in lookup.conditions]
    found = syntax.select_from([(syntax.integer(1), "")], lookup.name, matching)
    alone = Expression(syntax.negation(syntax.exists(found)))
    return Apply(mirrored.node.core, (lookup,), (nothing,), (alone,), outputs)


def _sides(tree: Expression, left: set[str], right: set[str]) -> tuple[Expression, Expression] | None:
    """Return the two sides of a condition that equates the left with the right, or None if it does not."""
    found = tree.equality
    for one, other in (found, found[::-1]) if found is not None else ():
        if one.references and other.references and one.aliases <= left and other.aliases <= right:
            return one, other
    return None
