"""The columns by which a delta looks up rows of sources.

A changed row finds rows of the other inputs of its join by the columns that a condition equates, the rest of
its group by the key, and the rows of a lookup by what the lookup compares. An index on such columns decides
whether a source is read in part or as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headwater.plan.expression import Cast, ColumnRef, Expression, conjuncts
from headwater.plan.operators import (
    Aggregate,
    Apply,
    Expansion,
    Input,
    Keyed,
    Node,
    Scan,
    Select,
    Source,
    UnionAll,
    children,
    scans,
)
from headwater.plan.semijoin import core_column, grouping_column
from headwater.plan.storage_plan import GroupPlan, IncrementalPlan

STRINGS = ("text", "character varying")
"""Types between which a cast changes nothing, so that an index serves both."""


@dataclass(frozen=True)
class Access:
    """A source whose rows are looked up by some of its columns when one of these sources changed."""

    source: Source
    columns: tuple[str, ...]
    changed: tuple[Source, ...]


def accesses(plan: IncrementalPlan) -> tuple[Access, ...]:
    """Return every way in which a delta of a plan looks up rows of a source, each once."""
    walk = _Walk()
    if isinstance(plan, GroupPlan):
        walk.below(plan.root)
        # With an algebra a group is read only when its least or greatest value was deleted.
        if plan.algebra is None or plan.algebra.extremes:
            walk.nonlinear(plan.root)
    elif not plan.is_whole:
        walk.visit(plan.root)
    return tuple(Access(source, columns, tuple(changed)) for (source, columns), changed in walk.found.items())


class _Walk:
    def __init__(self) -> None:
        self.found: dict[tuple[Source, tuple[str, ...]], dict[Source, None]] = {}

    def visit(self, node: Node) -> None:
        self.below(node)
        self.nonlinear(node)
        if isinstance(node, Select):
            for item in node.inputs:
                if changed := _sources(item.node):
                    self._meet(node, {item.alias}, changed)

    def below(self, node: Node) -> None:
        for child in children(node):
            self.visit(child)

    def nonlinear(self, node: Node) -> None:
        """Add what a nonlinear node looks up when something in it changed."""
        changed = _sources(node)
        match node:
            case Aggregate():
                self._into(node.input, node.keys, changed)
            case Keyed():
                for item, keys in zip(node.inputs, node.keys, strict=True):
                    self._into(item.node, keys, changed)
            case Apply():
                for lookup in node.lookups:
                    if not lookup.exempt:
                        self._into(lookup.node, [own for own, _ in lookup.equals], changed)
                        finders = [core for _, core in lookup.equals]
                        self._into(node.core, finders, _sources(lookup.node))
            case _:
                pass

    def _into(self, node: Node, columns: Iterable[str], changed: tuple[Source, ...]) -> None:
        """Add the look-ups of a node that is restricted to values of some of its columns."""
        wanted = list(columns)
        if not wanted:
            return
        match node:
            case Scan():
                ordered = tuple(column.name for column in node.source.columns if column.name in wanted)
                self.found.setdefault((node.source, ordered), {}).update(dict.fromkeys(changed))
            case UnionAll():
                numbers = [node.output_names.index(name) for name in wanted]
                for branch in node.branches:
                    self._into(branch, [branch.output_names[number] for number in numbers], changed)
            case Select() if not node.expands:
                self._into_block(node, wanted, changed)
            case Aggregate():
                grouping = [grouping_column(node, name) for name in wanted]
                self._into(node.input, [name for name in grouping if name is not None], changed)
            case Keyed() if node.keys[0]:
                self._into_keyed(node, wanted, changed)
            case Apply():
                shown = [core_column(node, name) for name in wanted]
                in_core = [name for name in shown if name is not None]
                self._into(node.core, in_core, changed)
                for lookup in node.lookups if in_core else ():
                    if not lookup.exempt:
                        self._into(lookup.node, [own for own, _ in lookup.equals], changed)
            case _:
                pass

    def _into_block(self, block: Select, wanted: list[str], changed: tuple[Source, ...]) -> None:
        """Add the look-ups of a block: one input by the given values, the others through their joins."""
        shown = {output.name: output.expression for output in block.outputs}
        by_alias: dict[str, list[str]] = {}
        for name in wanted:
            tree = _plain(block.inputs, shown[name])
            if tree is not None:
                by_alias.setdefault(tree.alias, []).append(tree.name)
        nodes = {item.alias: item.node for item in block.inputs}
        reached: set[str] = set()
        for alias, names in by_alias.items():
            if alias not in reached:
                self._into(nodes[alias], names, changed)
                reached = self._meet(block, reached | {alias}, changed)

    def _into_keyed(self, node: Keyed, wanted: list[str], changed: tuple[Source, ...]) -> None:
        for item, keys in zip(node.inputs, node.keys, strict=True):
            named = dict(zip(node.output_names, keys, strict=True)) if len(node.inputs) > 1 else {}
            below = named or dict(node.passed)
            restricted = [below[name] for name in wanted if name in below]
            self._into(item.node, restricted, changed)
            if not set(restricted) <= set(keys):
                self._into(item.node, keys, changed)

    def _meet(self, block: Select, known: set[str], changed: tuple[Source, ...]) -> set[str]:
        """Follow equalities from inputs that are few, adding their look-ups; return all inputs reached."""
        reached = set(known)
        while True:
            found = {
                item.alias: columns
                for item in block.inputs
                if item.alias not in reached and (columns := _connection(block, item, reached)) is not None
            }
            for item in block.inputs:
                if item.alias in found:
                    self._into(item.node, found[item.alias], changed)
            if not found:
                return reached
            reached |= found.keys()


def _sources(node: Node) -> tuple[Source, ...]:
    return tuple({scan.source: None for scan in scans(node)})


def _connection(block: Select, item: Input, reached: set[str]) -> list[str] | None:
    """Return the columns of an input that equal known values; None if it is not connected."""
    if isinstance(item.node, Expansion):
        used = item.node.sql.aliases
        return [] if used and used <= reached else None
    columns = [
        column.name
        for predicate in conjuncts(block.predicates)
        if (sides := predicate.equality) is not None
        for one, other in (sides, sides[::-1])
        if (column := _plain(block.inputs, one)) is not None and column.alias == item.alias
        if (used := other.aliases) and used <= reached and not other.has_query
    ]
    return columns or None


def _plain(inputs: tuple[Input, ...], tree: Expression) -> ColumnRef | None:
    """Return the column that an expression is, also where it is a varchar cast to text."""
    shape = tree.shape
    if isinstance(shape, Cast) and shape.type in ("text", "varchar") and not shape.modifiers:
        inner = shape.value.column
        node = next((item.node for item in inputs if inner is not None and item.alias == inner.alias), None)
        if inner is not None and isinstance(node, Scan):
            return inner if node.source.column(inner.name).type.base.startswith(STRINGS) else None
    return tree.column
