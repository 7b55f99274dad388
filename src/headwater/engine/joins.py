"""Joining what changed with tables as they were, step by step.

A term of a join's delta reads some inputs as they were: the rows of now less the delta. Inside one statement
with several joins the server knows nothing of how such a union is distributed, and guesses badly. So where
much changed, a term is joined from its delta outwards, up to one input as it was at a time, and each result
is a table of its own with statistics, before the rest is joined in one go.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from sqlglot import exp

from headwater.db.work import Scratch
from headwater.plan.differentiate import Term, Version, terms
from headwater.plan.operators import (
    Constant,
    Expansion,
    Input,
    Node,
    Output,
    Query,
    Scan,
    Select,
    Source,
    SourceColumn,
    UnionAll,
)
from headwater.plan.reach import aliases_of, bare, equalities
from headwater.plan.render import ANY_TYPE, WEIGHT, Staged, block_sql, delta_sql

MANY_ROWS = 100
"""From so many changed rows on, joining step by step is worth the statements."""
JOINED = "w"
"""Alias of what was joined already."""


class Joins:
    """The joins of one delta that are begun; each once, however often it is read."""

    def __init__(self, scratch: Scratch) -> None:
        self._scratch = scratch
        self._begun: dict[tuple[Select, Term], tuple[Select, Term] | None] = {}
        self._tables: dict[int, str] = {}

    def delta_sql(self, node: Query, staged: Staged) -> str:
        """The change of a linear query as a weighted relation, not consolidated."""
        return delta_sql(node, self.begun(node, staged))

    def begun(self, node: Query, staged: Staged) -> Staged:
        """The staged changes, with the terms of the joins in a linear query begun where that pays."""
        for block in _blocks(node):
            for term in terms(block, staged.changes, staged.size):
                pivot = block.inputs[term.index(Version.DELTA)]
                known = Version.OLD not in term or (block, term) in self._begun
                if not known and staged.size(pivot.node) >= MANY_ROWS:
                    self._begin(block, term, pivot, self._with(staged))
        return self._with(staged)

    def _with(self, staged: Staged) -> Staged:
        return replace(staged, tables={**staged.tables, **self._tables}, begun=self._begun)

    def _begin(self, block: Select, term: Term, pivot: Input, staged: Staged) -> None:
        begun = _Begun.at(block, term, pivot)
        while (step := begun.step()) is not None:
            taken = _taken(self._scratch, begun, step, self._with(staged))
            if taken is None:
                self._begun[block, term] = None
                return
            begun = taken
            self._tables[begun.relation] = begun.table
        if begun.table:
            self._begun[block, term] = begun.rest()


def _blocks(node: Node) -> Iterator[Select]:
    """The joins that make up a linear query, from the inside out."""
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


@dataclass(frozen=True)
class _Step:
    """Inputs to join next: some as they are now, and one as it was."""

    between: tuple[str, ...]
    old: str


@dataclass(frozen=True)
class _Begun:
    """A term of which some inputs are joined."""

    block: Select
    versions: Mapping[str, Version]
    covered: frozenset[str]
    item: Input  # the joined rows, or the delta where it begins
    relation: int = 0  # of the joined rows, below zero
    table: str = ""

    @classmethod
    def at(cls, block: Select, term: Term, pivot: Input) -> _Begun:
        versions = {item.alias: version for item, version in zip(block.inputs, term, strict=True)}
        return cls(block, versions, frozenset({pivot.alias}), pivot)

    def step(self) -> _Step | None:
        """The nearest input that is read as it was and that equalities connect to what is joined."""
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
                        if len(used := aliases_of(other)) == 1 and used <= parents.keys()
                    ),
                    None,
                )
                if known is None:
                    continue
                if self.versions[item.alias] is Version.OLD:
                    return _Step(tuple(_path(parents, known)), item.alias)
                if isinstance(item.node, Scan):
                    parents[item.alias] = known
                    grown = True
        return None

    def joining(self, step: _Step) -> Select:
        """The block that joins a step to what is joined."""
        taken = {*step.between, step.old}
        covered = self.covered | taken
        inputs = (self.item, *(item for item in self.block.inputs if item.alias in taken))
        predicates = [tree for tree in self._open() if aliases_of(tree) <= covered]
        outputs = [
            Output(f"{alias}.{name}", self.over_joined(exp.column(name, alias, quoted=True)))
            for alias, name in self._used()
            if alias in covered
        ]
        return Select(inputs, tuple(self.over_joined(tree) for tree in predicates), tuple(outputs))

    def rest(self) -> tuple[Select, Term]:
        """What is left to join."""
        others = [item for item in self.block.inputs if item.alias not in self.covered]
        rewritten = [
            Input(item.alias, replace(item.node, sql=bare(self.over_joined(item.node.sql))))
            if isinstance(item.node, Expansion)
            else item
            for item in others
        ]
        predicates = tuple(self.over_joined(tree) for tree in self._open())
        outputs = tuple(Output(out.name, self.over_joined(out.expression)) for out in self.block.outputs)
        block = Select((self.item, *rewritten), predicates, outputs, self.block.expands)
        return block, (Version.DELTA, *(self.versions[item.alias] for item in others))

    def over_joined(self, tree: exp.Expression) -> exp.Expression:
        """An expression in which the columns of joined inputs are those of the joined rows."""
        if not self.table:
            return tree
        copy = exp.Paren(this=tree.copy())
        for column in list(copy.find_all(exp.Column)):
            if column.table in self.covered:
                column.replace(exp.column(f"{column.table}.{column.name}", JOINED, quoted=True))
        return copy.this if isinstance(tree, exp.Column) else copy

    def _open(self) -> list[exp.Expression]:
        """The conditions that are not checked yet; those of the pivot alone hold for its delta, too."""
        return [
            tree for tree in self.block.predicates if not self.table or not aliases_of(tree) <= self.covered
        ]

    def _used(self) -> list[tuple[str, str]]:
        trees = [*self.block.predicates, *(output.expression for output in self.block.outputs)]
        trees += [item.node.sql for item in self.block.inputs if isinstance(item.node, Expansion)]
        found = {(column.table, column.name): None for tree in trees for column in tree.find_all(exp.Column)}
        return list(found)


def _path(parents: Mapping[str, str | None], alias: str) -> Iterator[str]:
    """The inputs on the way to one, those that are joined already left out."""
    step: str | None = alias
    while step is not None and parents[step] is not None:
        yield step
        step = parents[step]


def _taken(scratch: Scratch, begun: _Begun, step: _Step, staged: Staged) -> _Begun | None:
    """The term with a step joined, or None if that leaves no row."""
    block = begun.joining(step)
    names = block.output_names
    versions = {item.alias: Version.NEW for item in block.inputs} | {begun.item.alias: Version.DELTA}
    now = block_sql(block, tuple(versions.values()), staged, names, weighted=True)
    versions[step.old] = Version.DELTA
    delta = block_sql(block, tuple(versions.values()), staged, names, weighted=True)
    listed = "".join(f'm."{name}", ' for name in names)
    covered = begun.covered | {*step.between, step.old}
    begins = (begun.block.output_sql, begun.block.predicate_sql, begun.item.alias, begun.table)
    digest = zlib.crc32(repr((begins, step)).encode())
    table = f"w{digest:08x}"
    if not scratch.fill(table, f"{now}\nUNION ALL\nSELECT {listed}-m.{WEIGHT} FROM (\n{delta}\n) AS m"):
        return None
    relation = -digest - 1
    columns = tuple(SourceColumn(number, name, ANY_TYPE) for number, name in enumerate(names, 1))
    source = Source(relation, "", table, "kept", columns)
    joined = Input(JOINED, Scan(source, names))
    return replace(begun, covered=covered, item=joined, relation=relation, table=scratch.name(table))
