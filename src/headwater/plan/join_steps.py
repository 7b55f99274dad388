"""The steps by which a term of a join's delta is joined.

They go from the delta outwards, with at most one old state of an input in each step, and each result is a
table of its own. The steps depend only on the block and the term, so a plan computes them once.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from headwater.plan.expression import ColumnRef, Expression, column
from headwater.plan.operators import (
    Constant,
    Expansion,
    Input,
    Output,
    Scan,
    Select,
    Source,
    SourceColumn,
)
from headwater.plan.semijoin import equalities
from headwater.plan.terms import Term, Version
from headwater.plan.values import ANY_TYPE

JOINED = "w"
"""Alias of the rows joined so far."""


@dataclass(frozen=True)
class JoinStep:
    """One step: joins inputs as they are now, and one old state, to what was joined before."""

    block: Select
    now: Term  # the block with that input as it is now
    delta: Term  # the block with its delta, which is subtracted
    table: str  # the table that holds the result
    relation: int  # the number by which later steps read it, below zero


@dataclass(frozen=True)
class JoinSteps:
    """All steps, and what is left to join after them."""

    steps: tuple[JoinStep, ...]
    rest: tuple[Select, Term]


def join_steps(block: Select, term: Term) -> JoinSteps:
    """Join from the delta of a term to each old state that it reads, as far as equalities lead."""
    pivot = block.inputs[term.index(Version.DELTA)]
    versions = {item.alias: version for item, version in zip(block.inputs, term, strict=True)}
    way = _Way(block, versions, frozenset({pivot.alias}), pivot)
    steps = []
    while (step := way.next_step()) is not None:
        taken, way = way.taken(step)
        steps.append(taken)
    return JoinSteps(tuple(steps), way.rest())


@dataclass(frozen=True)
class _Next:
    """Inputs to join next: some as they are now, and one old state."""

    between: tuple[str, ...]
    old: str


@dataclass(frozen=True)
class _Way:
    """A term of which some inputs are joined."""

    block: Select
    versions: Mapping[str, Version]
    covered: frozenset[str]
    item: Input  # the joined rows, or at first the delta
    table: str = ""

    def next_step(self) -> _Next | None:
        """Return the nearest old state that equalities connect to what is joined."""
        parents: dict[str, str | None] = dict.fromkeys(self.covered)
        grown = True
        while grown:
            grown = False
            for item in self.block.inputs:
                if item.alias in parents or isinstance(item.node, Expansion | Constant):
                    continue
                known = next(
                    (
                        next(iter(used))
                        for _, other in equalities(self.block, item.alias)
                        if len(used := other.aliases) == 1 and used <= parents.keys()
                    ),
                    None,
                )
                if known is None:
                    continue
                if self.versions[item.alias] is Version.OLD:
                    return _Next(tuple(_path(parents, known)), item.alias)
                if isinstance(item.node, Scan):
                    parents[item.alias] = known
                    grown = True
        return None

    def taken(self, step: _Next) -> tuple[JoinStep, _Way]:
        """Return a step, and the way after it."""
        block = self._joining(step)
        begins = (self.block.output_sql, self.block.predicate_sql, self.item.alias, self.table)
        digest = zlib.crc32(repr((begins, step)).encode())
        table = f"w{digest:08x}"
        relation = -digest - 1
        names = block.output_names
        columns = tuple(SourceColumn(number, name, ANY_TYPE) for number, name in enumerate(names, 1))
        source = Source(relation, "", table, "kept", columns)
        now = {item.alias: Version.NEW for item in block.inputs} | {self.item.alias: Version.DELTA}
        delta = now | {step.old: Version.DELTA}
        joined = JoinStep(block, tuple(now.values()), tuple(delta.values()), table, relation)
        covered = self.covered | {*step.between, step.old}
        return joined, replace(self, covered=covered, item=Input(JOINED, Scan(source, names)), table=table)

    def rest(self) -> tuple[Select, Term]:
        """Return what is left to join."""
        others = [item for item in self.block.inputs if item.alias not in self.covered]
        rewritten = [
            Input(item.alias, replace(item.node, sql=self._over_joined(item.node.sql)))
            if isinstance(item.node, Expansion)
            else item
            for item in others
        ]
        predicates = tuple(self._over_joined(tree) for tree in self._open())
        outputs = tuple(Output(out.name, self._over_joined(out.expression)) for out in self.block.outputs)
        block = Select((self.item, *rewritten), predicates, outputs, self.block.expands)
        return block, (Version.DELTA, *(self.versions[item.alias] for item in others))

    def _joining(self, step: _Next) -> Select:
        """Return the block that joins a step to what is joined."""
        taken = {*step.between, step.old}
        covered = self.covered | taken
        inputs = (self.item, *(item for item in self.block.inputs if item.alias in taken))
        predicates = [tree for tree in self._open() if tree.aliases <= covered]
        outputs = [
            Output(f"{alias}.{name}", self._over_joined(column(name, alias)))
            for alias, name in self._used()
            if alias in covered
        ]
        return Select(inputs, tuple(self._over_joined(tree) for tree in predicates), tuple(outputs))

    def _over_joined(self, tree: Expression) -> Expression:
        """Return an expression with the columns of joined inputs replaced by those of the joined rows."""
        if not self.table:
            return tree

        def joined(found: ColumnRef) -> Expression | None:
            return column(f"{found.alias}.{found.name}", JOINED) if found.alias in self.covered else None

        return tree.mapped(joined)

    def _open(self) -> list[Expression]:
        """Return the conditions not yet checked; those of the pivot alone hold for its delta, too."""
        return [tree for tree in self.block.predicates if not self.table or not tree.aliases <= self.covered]

    def _used(self) -> list[tuple[str, str]]:
        trees = [*self.block.predicates, *(output.expression for output in self.block.outputs)]
        trees += [item.node.sql for item in self.block.inputs if isinstance(item.node, Expansion)]
        return list(dict.fromkeys((item.alias, item.name) for tree in trees for item in tree.references))


def _path(parents: Mapping[str, str | None], alias: str) -> Iterator[str]:
    """Return the inputs on the path to one, without those that are joined already."""
    step: str | None = alias
    while step is not None and parents[step] is not None:
        yield step
        step = parents[step]
