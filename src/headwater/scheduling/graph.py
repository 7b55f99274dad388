"""Which stream tables are refreshed together, and in which order.

A stream table must never join states of different moments. Where two paths lead from one source to one stream
table D, with nothing in common but their ends (a diamond), one could be ahead of the other. So all stream
tables on such paths, D among them, are one unit, refreshed in one transaction at one snapshot. The source is
not part of the unit: inside one snapshot it has one state.

    orders → by_day ──┐                        by_day, by_region and board are one unit, whether orders
           → by_region ─→ board → report       is a table or a stream table; report is not part of it

Diamonds are found by comparing sets of ancestors, kept as bits of a number. Let D read x and z. A stream
table that leads to x, does not lead to z, and has an ancestor in common with z (or z itself as one) is on one
of two such paths. The search goes from x backwards, group by group: members of a known group are passed in
one step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

from headwater.scheduling.tiers import RANKS, Tier


@dataclass(frozen=True)
class Unit:
    """Stream tables that are refreshed in one transaction."""

    members: tuple[int, ...]  # each after the members that it reads
    reads: frozenset[int]  # stream tables outside the unit
    depth: int  # length of the longest path from a table; greater than that of any unit it reads


def units(
    reads: Mapping[int, Collection[int]],
    tables: Mapping[int, Collection[int]],
    schedules: Mapping[int, object],
) -> list[Unit]:
    """Return the units of a graph, each after those that it reads.

    `reads` has the stream tables that a stream table reads, `tables` the base tables. Besides what must be
    together, a chain is one unit, which saves a transaction for each of its links: B reads A and no other
    stream table, nobody else reads A, and both have the same schedule.
    """
    keys = sorted(reads.keys() | tables.keys())
    inner = {
        key: sorted({read for read in reads.get(key, ()) if read in reads or read in tables}) for key in keys
    }
    order = list(_components(keys, inner))
    groups = _Groups(inner)
    for component in order:
        groups.join(component)
    _join_diamonds(order, reads, tables, inner, groups)
    _join_chains(inner, schedules, groups)
    # Two units that read each other, through different members, can only be refreshed as one.
    between = {group: set[int]() for group in map(groups.of, keys)}
    for key in keys:
        between[groups.of(key)].update(groups.of(read) for read in inner[key])
    positions = {key: position for position, key in enumerate(key for part in order for key in part)}
    found: list[Unit] = []
    depths: dict[int, int] = {}
    for component in _components(sorted(between), {group: sorted(those) for group, those in between.items()}):
        members = sorted(
            (key for group in component for key in groups.members(group)), key=positions.__getitem__
        )
        unit = _unit(members, reads, inner, depths)
        depths.update(dict.fromkeys(members, unit.depth))
        found.append(unit)
    return sorted(found, key=lambda unit: (unit.depth, min(unit.members)))


def dispatch_key(unit: Unit, tier: Callable[[int], Tier]) -> tuple[bool, int, int, int]:
    """Return the key by which units are sorted into the order in which they are served.

    Units of several stream tables come first, because many wait for them; then those with the hottest member;
    then a unit before its readers; then by number.
    """
    rank = min(RANKS[tier(member)] for member in unit.members)
    return len(unit.members) == 1, rank, unit.depth, unit.members[0]


class _Groups:
    """Disjoint sets of stream tables, which can only be merged."""

    def __init__(self, reads: Mapping[int, Sequence[int]]) -> None:
        self._parents = {key: key for key in reads}
        self._members = {key: [key] for key in reads}
        self._reads = {key: set(those) for key, those in reads.items()}

    def of(self, key: int) -> int:
        parents = self._parents
        while parents[key] != key:
            parents[key] = parents[parents[key]]
            key = parents[key]
        return key

    def members(self, group: int) -> Sequence[int]:
        return self._members[group]

    def outside(self, group: int) -> Collection[int]:
        """Return the stream tables outside a group that it reads."""
        self._reads[group] = {read for read in self._reads[group] if self.of(read) != group}
        return self._reads[group]

    def join(self, keys: Iterable[int]) -> None:
        first, *others = {self.of(key) for key in keys}
        for other in others:
            if len(self._members[first]) < len(self._members[other]):
                first, other = other, first
            self._parents[other] = first
            self._members[first] += self._members.pop(other)
            self._reads[first] |= self._reads.pop(other)


def _components(keys: Iterable[int], reads: Mapping[int, Sequence[int]]) -> Iterator[list[int]]:
    """Return the strongly connected components, each after those it reads (Tarjan, without recursion)."""
    numbers: dict[int, int] = {}
    lowest: dict[int, int] = {}
    stack: list[int] = []
    open_keys: set[int] = set()
    for root in keys:
        if root in numbers:
            continue
        numbers[root] = lowest[root] = len(numbers)
        stack.append(root)
        open_keys.add(root)
        path = [(root, iter(reads[root]))]
        while path:
            key, rest = path[-1]
            read = next(rest, None)
            if read is None:
                path.pop()
                if path:
                    lowest[path[-1][0]] = min(lowest[path[-1][0]], lowest[key])
                if lowest[key] == numbers[key]:
                    component: list[int] = []
                    while not component or component[-1] != key:
                        component.append(stack.pop())
                        open_keys.remove(component[-1])
                    yield sorted(component)
            elif read not in numbers:
                numbers[read] = lowest[read] = len(numbers)
                stack.append(read)
                open_keys.add(read)
                path.append((read, iter(reads[read])))
            elif read in open_keys:
                lowest[key] = min(lowest[key], numbers[read])


def _join_diamonds(
    order: Sequence[Sequence[int]],
    reads: Mapping[int, Collection[int]],
    tables: Mapping[int, Collection[int]],
    inner: Mapping[int, Sequence[int]],
    groups: _Groups,
) -> None:
    bits: dict[Hashable, int] = {}  # the bit of each base table and of each component
    lineage: dict[int, int] = {}  # for each stream table, its ancestors and itself
    before: dict[int, int] = {}  # for each stream table, its ancestors
    for component in order:
        inputs: dict[int, int | None] = {}  # by lineage: the stream table; None for a table
        for member in component:
            for table in (
                *tables.get(member, ()),
                *(read for read in reads.get(member, ()) if read not in inner),
            ):
                inputs[1 << bits.setdefault(("table", table), len(bits))] = None
            for read in inner[member]:
                if read not in component:
                    inputs[lineage[read]] = read
        ancestors = 0
        shared = 0
        for line in inputs:
            shared |= ancestors & line
            ancestors |= line
        own = 1 << bits.setdefault(component[0], len(bits))
        for member in component:
            before[member], lineage[member] = ancestors, ancestors | own
        concerned = [(line, x) for line, x in inputs.items() if line & shared]
        for (line, x), (other, _) in permutations(concerned, 2):
            if x is not None and line & other:
                _join_way(component[0], x, line & ~other, other, lineage, before, groups)


def _join_way(
    bottom: int,
    start: int,
    apart: int,
    other: int,
    lineage: Mapping[int, int],
    before: Mapping[int, int],
    groups: _Groups,
) -> None:
    """Join `bottom` with what leads to `start` only and shares a source with the other input."""
    waiting, seen, together = [start], set[int](), [bottom]
    while waiting:
        key = waiting.pop()
        group = groups.of(key)
        own = lineage[key] ^ before[key]
        if group in seen or not own & apart or not before[key] & other:
            continue
        seen.add(group)
        together.append(key)
        waiting += groups.outside(group)
    groups.join(together)


def _join_chains(
    inner: Mapping[int, Sequence[int]], schedules: Mapping[int, object], groups: _Groups
) -> None:
    """Fuse chains of stream tables that are part of no diamond."""
    readers: dict[int, int] = {}
    for those in inner.values():
        for read in those:
            readers[read] = readers.get(read, 0) + 1
    alone = {key for key in inner if len(groups.members(groups.of(key))) == 1}
    for key, those in inner.items():
        if (
            len(those) == 1
            and alone.issuperset((key, *those))
            and readers[those[0]] == 1
            and schedules.get(key) == schedules.get(those[0])
        ):
            groups.join((key, *those))


def _unit(
    members: Sequence[int],
    reads: Mapping[int, Collection[int]],
    inner: Mapping[int, Sequence[int]],
    depths: Mapping[int, int],
) -> Unit:
    """Return a unit of members in the order of the graph; `depths` has those of the units that it reads."""
    levels: dict[int, int] = {}
    for member in members:
        levels[member] = 1 + max((levels.get(read, depths.get(read, 0)) for read in inner[member]), default=0)
    outside = {read for member in members for read in reads.get(member, ())}.difference(members)
    return Unit(tuple(members), frozenset(outside), max(levels.values()))
