from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.scheduling.graph import Unit, dispatch_key, units
from headwater.scheduling.tiers import Tier

Reads = Mapping[int, frozenset[int]]

T, S = 900, 901  # base tables
A, B, C, D, E, F = 1, 2, 3, 4, 5, 6
APART = {key: object() for key in range(10)}  # no two schedules alike: nothing is fused


def together(found: list[Unit]) -> list[tuple[int, ...]]:
    return [unit.members for unit in found if len(unit.members) > 1]


@pytest.mark.parametrize(
    ("reads", "tables", "expected"),
    [
        pytest.param({B: [], C: [], D: [B, C]}, {B: [T], C: [T]}, [(B, C, D)], id="diamond over a table"),
        pytest.param(
            {A: [], B: [A], C: [A], D: [B, C]},
            {A: [T]},
            [(B, C, D)],
            id="over a stream table, not part of it",
        ),
        pytest.param({B: [], D: [B]}, {B: [T], D: [T]}, [(B, D)], id="a table read directly and through one"),
        pytest.param({A: [], B: [A], D: [A, B]}, {A: [T]}, [(B, D)], id="a stream table likewise"),
        pytest.param({B: [], C: [], D: [B, C]}, {B: [T], C: [S]}, [], id="two sources"),
        pytest.param({A: [], B: [], C: [A, B]}, {A: [T], B: [S], C: [900 + 5]}, [], id="three sources"),
        pytest.param(
            {A: [], B: [], C: [A, B], D: [C], E: [D]}, {A: [T], B: [T]}, [(A, B, C)], id="not what follows it"
        ),
        pytest.param(
            {A: [], B: [A], C: [B], D: [A, C]}, {A: [T]}, [(B, C, D)], id="a long way and a short one"
        ),
        pytest.param(
            {A: [], B: [], C: [A, B], D: [], E: [C, D]},
            {A: [T], B: [T], D: [S], C: [S]},
            [(A, B, C, D, E)],
            id="overlapping diamonds are one",
        ),
        pytest.param(
            {A: [], B: [A], C: [A], D: [B, C], E: [D], F: [D], 7: [E, F]},
            {A: [T]},
            [(B, C, D), (E, F, 7)],
            id="one behind the other are two",
        ),
        pytest.param({A: [], B: [A], C: [A], D: [A, B, C]}, {A: [T]}, [(B, C, D)], id="three ways"),
        pytest.param(
            {A: [], B: [], C: [], D: [A, B, C], E: [A, C]},
            {A: [T], B: [T], C: [S], E: [S]},
            [(A, B, C, D, E)],
            id="two that wait for each other are one",
        ),
        pytest.param({A: [], B: [A, A]}, {A: [T, T]}, [], id="read twice is one way"),
    ],
)
def test_what_must_be_together_is(
    reads: dict[int, list[int]], tables: dict[int, list[int]], expected: list[tuple[int, ...]]
) -> None:
    assert together(units(reads, tables, APART)) == expected


@pytest.mark.parametrize(
    ("reads", "tables", "schedules", "expected"),
    [
        pytest.param({A: [], B: [A]}, {A: [T]}, {A: 1, B: 1}, [(A, B)], id="fused"),
        pytest.param({A: [], B: [A]}, {A: [T], B: [S]}, {A: 1, B: 1}, [(A, B)], id="with another table"),
        pytest.param({A: [], B: [A], C: [B]}, {A: [T]}, {A: 1, B: 1, C: 1}, [(A, B, C)], id="three"),
        pytest.param({A: [], B: [A], C: [B]}, {A: [T]}, {A: 1, B: 1, C: 2}, [(A, B)], id="as far as alike"),
        pytest.param({A: [], B: [A]}, {A: [T]}, {A: 1, B: 2}, [], id="other schedules"),
        pytest.param({A: [], B: [A], C: [A]}, {A: [T]}, {A: 1, B: 1, C: 1}, [], id="two readers"),
        pytest.param({A: [], B: [], C: [A, B]}, {A: [T], B: [S]}, {A: 1, B: 1, C: 1}, [], id="two sources"),
        pytest.param(
            {A: [], B: [A], C: [A], D: [B, C], E: [D]},
            {A: [T]},
            dict.fromkeys((A, B, C, D, E), 1),
            [(B, C, D)],
            id="a diamond is not made longer",
        ),
    ],
)
def test_chains_of_one_schedule_are_fused(
    reads: dict[int, list[int]],
    tables: dict[int, list[int]],
    schedules: dict[int, int],
    expected: list[tuple[int, ...]],
) -> None:
    assert together(units(reads, tables, schedules)) == expected


@pytest.mark.parametrize(
    ("reads", "members"),
    [
        pytest.param({A: [B], B: [A]}, (A, B), id="two"),
        pytest.param({A: [A]}, (A,), id="itself"),
        pytest.param({A: [C], B: [A], C: [B]}, (A, B, C), id="three"),
    ],
)
def test_a_cycle_is_one_unit(reads: dict[int, list[int]], members: tuple[int, ...]) -> None:
    """None can be created; what somebody wrote into the catalog must not confuse the service."""
    found = units({**reads, D: [A], E: []}, {E: [T]}, APART)
    assert {unit.members for unit in found} == {members, (D,), (E,)}


def test_what_a_unit_reads_and_how_deep_it_is() -> None:
    found = units({A: [], B: [A], C: [A], D: [B, C], E: [B], F: [D]}, {A: [T]}, APART)
    assert found == [
        Unit((A,), frozenset(), 1),
        Unit((B, C, D), frozenset({A}), 3),
        Unit((E,), frozenset({B}), 4),  # B is of depth 2, but there when its unit is
        Unit((F,), frozenset({D}), 4),
    ]


def test_a_stream_table_that_is_unknown_is_a_source() -> None:
    [unit] = units({B: [99], C: [99], D: [B, C]}, {}, APART)
    assert unit == Unit((B, C, D), frozenset({99}), 2)


def unit_of(members: tuple[int, ...], depth: int = 1) -> Unit:
    return Unit(members, frozenset(), depth)


@pytest.mark.parametrize(
    ("first", "second", "tiers"),
    [
        pytest.param(unit_of((8, 9), 7), unit_of((1,)), {8: "cold", 9: "cold"}, id="atomic"),
        pytest.param(unit_of((9,), depth=7), unit_of((1,)), {9: "hot", 1: "warm"}, id="hot"),
        pytest.param(unit_of((9,), depth=7), unit_of((1,)), {9: "warm", 1: "cold"}, id="warm"),
        pytest.param(unit_of((9,), depth=7), unit_of((1,)), {9: "cold", 1: "frozen"}, id="cold"),
        pytest.param(
            unit_of((8, 9), 7),
            unit_of((1, 2)),
            {8: "cold", 9: "hot", 1: "warm", 2: "warm"},
            id="the hottest member counts",
        ),
        pytest.param(unit_of((9,), depth=1), unit_of((1,), depth=2), {}, id="depth"),
        pytest.param(unit_of((1, 9)), unit_of((2, 3)), {}, id="number"),
    ],
)
def test_order_of_dispatch(first: Unit, second: Unit, tiers: dict[int, Tier]) -> None:
    def tier(member: int) -> Tier:
        return tiers.get(member, "hot")

    assert dispatch_key(first, tier) < dispatch_key(second, tier)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Reads, Reads, dict[int, int]]:
    """A graph without cycles whose numbers are not in the order of the graph, and its schedules."""
    keys = draw(st.permutations(range(draw(st.integers(1, 8)))))
    reads, tables = {}, {}
    for position, key in enumerate(keys):
        before = (
            st.frozensets(st.sampled_from(keys[:position]), max_size=3) if position else st.just(frozenset())
        )
        reads[key] = draw(before)
        tables[key] = draw(st.frozensets(st.integers(100, 102), min_size=not reads[key], max_size=2))
    schedules = {key: draw(st.integers(1, 2)) for key in keys}
    return reads, tables, schedules


def ways(source: int, target: int, reads: Reads, tables: Reads) -> Iterator[tuple[int, ...]]:
    """What lies between a source and a stream table, on each path from the one to the other."""
    for read in reads[target] | tables[target]:
        if read == source:
            yield ()
        elif read in reads:
            yield from ((*way, read) for way in ways(source, read, reads, tables))


def diamonds(reads: Reads, tables: Reads) -> Iterator[set[int]]:
    """For each source and stream table, each two paths that have nothing else in common."""
    for source in {*reads, *(table for those in tables.values() for table in those)}:
        for target in reads:
            for one, two in combinations(ways(source, target, reads, tables), 2):
                if not set(one) & set(two):
                    yield {*one, *two, target}


def merged(groups: list[set[int]], keys: set[int]) -> list[set[int]]:
    return [group for group in groups if not group & keys] + [
        set().union(*(group for group in groups if group & keys))
    ]


def in_a_circle(one: set[int], two: set[int], groups: list[set[int]], reads: Reads) -> bool:
    """Whether each of two groups reads the other, directly or through others."""

    def all_read(group: set[int]) -> set[int]:
        found, before = set[int](), {read for key in group for read in reads[key]} - group
        while found != before:
            found = before
            whole = set().union(*(group for group in groups if group & found))
            before = found | {read for key in whole for read in reads[key]}
        return found

    return bool(all_read(one) & two and all_read(two) & one)


@given(graphs())
def test_the_members_of_a_diamond_are_one_unit_and_nothing_else_is(
    graph: tuple[Reads, Reads, dict[int, int]],
) -> None:
    reads, tables, _ = graph
    groups = [{key} for key in reads]
    for diamond in diamonds(reads, tables):
        groups = merged(groups, diamond)
    while wait_for_each_other := next(
        (one | two for one, two in combinations(groups, 2) if in_a_circle(one, two, groups, reads)), None
    ):
        groups = merged(groups, wait_for_each_other)
    found = units(reads, tables, APART)
    assert sorted(sorted(unit.members) for unit in found) == sorted(map(sorted, groups))


@given(graphs())
def test_units_are_a_partition_in_an_order_that_can_be_kept(
    graph: tuple[Reads, Reads, dict[int, int]],
) -> None:
    reads, tables, schedules = graph
    found = units(reads, tables, schedules)
    done: set[int] = set()
    depths = {member: unit.depth for unit in found for member in unit.members}
    for unit in found:
        assert unit.reads <= done
        assert all(depths[read] < unit.depth for read in unit.reads)
        for member in unit.members:
            assert reads[member] <= done
            assert member not in done
            done.add(member)
    assert done == reads.keys()


@given(graphs(), st.data())
def test_no_stream_table_is_seen_with_two_moments_of_one_source(
    graph: tuple[Reads, Reads, dict[int, int]], data: st.DataObject
) -> None:
    """Whatever is refreshed in whichever order: each stream table shows each table at one moment."""
    reads, tables, schedules = graph
    found = units(reads, tables, schedules)
    seen: dict[int, set[tuple[int, int]]] = {}  # by stream table: which moments of which tables it shows

    def refresh(unit: Unit, moment: int) -> None:
        for member in unit.members:
            seen[member] = {(table, moment) for table in tables[member]}
            seen[member].update(*(seen[read] for read in reads[member]))

    for unit in found:
        refresh(unit, 0)
    again = data.draw(st.lists(st.sampled_from(found), max_size=12))
    for moment, unit in enumerate(again, start=1):
        refresh(unit, moment)
        for member in reads:
            assert len(seen[member]) == len({table for table, _ in seen[member]}), (member, again)


def grid(rows: int, columns: int) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """Each reads three of the row before."""
    reads = {
        row * columns + column: [(row - 1) * columns + (column + step) % columns for step in (0, 1, 2)]
        if row
        else []
        for row in range(rows)
        for column in range(columns)
    }
    return reads, {column: [column // 2] for column in range(columns)}


def chain(length: int) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """Each reads the one before and a table that all of them read."""
    return {key: [key - 1] if key else [] for key in range(length)}, {key: [T] for key in range(length)}


def ladder(length: int) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """Two chains over one table, and at each length one that reads both."""
    reads: dict[int, list[int]] = {}
    for key in range(0, 3 * length, 3):
        reads |= {key: [key - 3] if key else [], key + 1: [key - 2] if key else [], key + 2: [key, key + 1]}
    return reads, {0: [T], 1: [T]}


@pytest.mark.timeout(60)  # a search that goes through each path, or each pair, would take hours
@pytest.mark.parametrize(
    ("graph", "sizes"),
    [
        pytest.param(
            ({key: [] for key in range(5000)}, {key: [key % 50] for key in range(5000)}), {1}, id="flat"
        ),
        pytest.param(grid(50, 100), {5000}, id="grid"),
        pytest.param(chain(5000), {5000}, id="chain"),
        pytest.param(ladder(1666), {4998}, id="ladder"),
    ],
)
def test_five_thousand_stream_tables(
    graph: tuple[dict[int, list[int]], dict[int, list[int]]], sizes: set[int]
) -> None:
    found = units(*graph, {key: key for key in graph[0]})
    assert {len(unit.members) for unit in found} == sizes
    assert sum(len(unit.members) for unit in found) == len(graph[0])
