"""Where the changes of sources are stored while a delta is computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headwater.plan.operators import Aggregate, Apply, Keyed, Node, Nonlinear, Scan, Select, children
from headwater.plan.terms import Term


@dataclass(frozen=True)
class Changes:
    """Change rows that are left in the change table, because they are many."""

    relation: str  # SQL name of the change table
    rows: int


@dataclass(frozen=True)
class Staged:
    """Where the deltas of the changed sources are: source oid to a weighted table, or to a query of one."""

    tables: Mapping[int, str]  # SQL names, or queries in parentheses that show the ctid
    unstaged: Mapping[int, Changes] = field(default_factory=dict)
    inner: Mapping[Nonlinear, str] = field(default_factory=dict)  # weighted tables of changed nodes
    rows: Mapping[str, int] = field(default_factory=dict)  # rows in each table, where that is known
    # Terms that are partly joined: the terms that remain, or None if none does.
    begun: Mapping[tuple[Select, Term], tuple[Select, Term] | None] = field(default_factory=dict)

    @property
    def changed(self) -> frozenset[int]:
        return frozenset(self.tables)

    def changes(self, node: Node) -> bool:
        """Tell whether the rows of a node have changed."""
        match node:
            case Scan():
                return node.source.relation in self.tables
            case Aggregate() | Keyed() | Apply():
                return node in self.inner
            case _:
                return any(self.changes(child) for child in children(node))

    def size(self, node: Node) -> int:
        """Return about how many rows of a node changed."""
        match node:
            case Scan():
                return self.rows.get(self.tables.get(node.source.relation, ""), 0)
            case Aggregate() | Keyed() | Apply():
                return self.rows.get(self.inner.get(node, ""), 0)
            case _:
                return sum(self.size(child) for child in children(node))
