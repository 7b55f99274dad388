"""Where the changes of sources are while a delta is computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headwater.plan.operators import Aggregate, Apply, Keyed, Node, Nonlinear, Scan, Select, children
from headwater.plan.terms import Term


@dataclass(frozen=True)
class Changes:
    """Change rows that were left where capture put them, for they are many."""

    relation: str  # SQL name of the change table
    rows: int


@dataclass(frozen=True)
class Staged:
    """Where the deltas of the changed sources are: source oid to a weighted table, or to a query of one."""

    tables: Mapping[int, str]  # SQL names, or queries in parentheses that show the ctid
    unstaged: Mapping[int, Changes] = field(default_factory=dict)
    inner: Mapping[Nonlinear, str] = field(default_factory=dict)  # weighted tables of what changed inside
    rows: Mapping[str, int] = field(default_factory=dict)  # in each table, where that is known
    # Terms of which a part is joined: what is left of them, or None if that is nothing.
    begun: Mapping[tuple[Select, Term], tuple[Select, Term] | None] = field(default_factory=dict)

    @property
    def changed(self) -> frozenset[int]:
        return frozenset(self.tables)

    def changes(self, node: Node) -> bool:
        """Whether the rows of a node are others than before."""
        match node:
            case Scan():
                return node.source.relation in self.tables
            case Aggregate() | Keyed() | Apply():
                return node in self.inner
            case _:
                return any(self.changes(child) for child in children(node))

    def size(self, node: Node) -> int:
        """About how many rows of a node changed."""
        match node:
            case Scan():
                return self.rows.get(self.tables.get(node.source.relation, ""), 0)
            case Aggregate() | Keyed() | Apply():
                return self.rows.get(self.inner.get(node, ""), 0)
            case _:
                return sum(self.size(child) for child in children(node))
