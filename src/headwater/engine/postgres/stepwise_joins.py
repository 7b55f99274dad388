"""Joining changes with old states of tables, step by step.

A term of a join's delta reads old states of some inputs: the current rows minus the delta. Inside one
statement with several joins the server knows nothing about the distribution of such a union, and guesses
badly. So where much changed, a term is joined in its `join_steps`, each result in a table of its own with
statistics, before the rest is joined in one statement.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from headwater.plan.join_steps import JoinStep
from headwater.plan.operators import Node, Query, Select, UnionAll
from headwater.plan.render import block_sql, delta_sql
from headwater.plan.staged import Staged
from headwater.plan.steps import Steps, Tables, fill
from headwater.plan.storage_plan import IncrementalPlan
from headwater.plan.terms import Term, Version, terms
from headwater.plan.values import WEIGHT

MANY_ROWS = 100
"""Changed rows from which joining step by step is worth the statements."""


class Joins:
    """The joins of one delta that are done in steps; each once, however often it is read."""

    def __init__(self, tables: Tables, plan: IncrementalPlan) -> None:
        self._tables = tables
        self._plan = plan
        self._begun: dict[tuple[Select, Term], tuple[Select, Term] | None] = {}
        self._joined: dict[int, str] = {}

    def delta_sql(self, node: Query, staged: Staged) -> Steps[str]:
        """Return the change of a linear query as a weighted relation, not consolidated."""
        return delta_sql(node, (yield from self.begun(node, staged)))

    def begun(self, node: Query, staged: Staged) -> Steps[Staged]:
        """Return the staged changes, with the joins of a linear query begun in steps where that pays."""
        for block in _blocks(node):
            for term in terms(block, staged.changes, staged.size):
                pivot = block.inputs[term.index(Version.DELTA)]
                known = Version.OLD not in term or (block, term) in self._begun
                if not known and staged.size(pivot.node) >= MANY_ROWS:
                    yield from self._begin(block, term, staged)
        return self._with(staged)

    def _with(self, staged: Staged) -> Staged:
        return replace(staged, tables={**staged.tables, **self._joined}, begun=self._begun)

    def _begin(self, block: Select, term: Term, staged: Staged) -> Steps[None]:
        way = self._plan.join_steps(block, term)
        for step in way.steps:
            if not (yield from fill(self._tables, step.table, _leg_sql(step, self._with(staged)))):
                self._begun[block, term] = None
                return
            self._joined[step.relation] = self._tables.sql(step.table)
        if way.steps:
            self._begun[block, term] = way.rest


def _blocks(node: Node) -> Iterator[Select]:
    """Yield the joins that make up a linear query, from the inside out."""
    match node:
        case Select():
            for item in node.inputs:
                yield from _blocks(item.node)
            yield node
        case UnionAll():
            for branch in node.branches:
                yield from _blocks(branch)
        case _:
            pass


def _leg_sql(step: JoinStep, staged: Staged) -> str:
    names = step.block.output_names
    now = block_sql(step.block, step.now, staged, names, weighted=True)
    delta = block_sql(step.block, step.delta, staged, names, weighted=True)
    listed = "".join(f'm."{name}", ' for name in names)
    return f"{now}\nUNION ALL\nSELECT {listed}-m.{WEIGHT} FROM (\n{delta}\n) AS m"
