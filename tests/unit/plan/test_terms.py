"""The terms of a delta, checked against a join that is computed twice."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.plan.world import INTEGER, source

from headwater.plan.operators import Constant, Input, Node, Scan, Select, SourceColumn, UnionAll, scans
from headwater.plan.terms import Term, Version, terms

ZSet = Mapping[int, int]
"""Weights of rows; a row is its join key."""

NEW, OLD, DELTA = Version.NEW, Version.OLD, Version.DELTA


def among(relations: frozenset[int]) -> Callable[[Node], bool]:
    """Whether a node reads one of these."""
    return lambda node: any(scan.source.relation in relations for scan in scans(node))


def block(relations: Sequence[int]) -> Select:
    """A join that reads these tables in this order; a number twice is a self join."""
    return Select(tuple(Input(f"r{n}", scan(relation)) for n, relation in enumerate(relations)), (), ())


def scan(relation: int) -> Scan:
    return Scan(source(relation, f"t{relation}", SourceColumn(1, "k", INTEGER)), ("k",))


def added(left: ZSet, right: ZSet) -> dict[int, int]:
    rows = Counter(left)
    rows.update(right)
    return {row: weight for row, weight in rows.items() if weight}


def joined(inputs: Sequence[ZSet]) -> dict[tuple[int, ...], int]:
    """Every combination whose neighbours differ by at most one, weights multiplied: no mere equality."""
    result: Counter[tuple[int, ...]] = Counter()
    for rows in itertools.product(*inputs):
        if all(abs(left - right) <= 1 for left, right in itertools.pairwise(rows)):
            weight = 1
            for row, item in zip(rows, inputs, strict=True):
                weight *= item[row]
            result[rows] += weight
    return {rows: weight for rows, weight in result.items() if weight}


zsets = st.dictionaries(st.integers(0, 4), st.integers(-2, 3).filter(bool), max_size=4)
tables = st.lists(st.integers(1, 3), min_size=1, max_size=4)


@given(relations=tables, data=st.data())
def test_the_terms_add_up_to_the_difference(relations: list[int], data: st.DataObject) -> None:
    """One to four inputs, self joins among them, any subset of the tables changed."""
    distinct = sorted(set(relations))
    old = {relation: data.draw(zsets, label=f"old {relation}") for relation in distinct}
    changed = frozenset(data.draw(st.sets(st.sampled_from(distinct)), label="changed"))
    delta = {relation: data.draw(zsets, label=f"delta {relation}") for relation in changed}
    new = {relation: added(old[relation], delta.get(relation, {})) for relation in distinct}
    versions: dict[Version, Mapping[int, ZSet]] = {NEW: new, OLD: old, DELTA: delta}

    found: Counter[tuple[int, ...]] = Counter()
    for term in terms(block(relations), among(changed)):
        found.update(joined([versions[v][relation] for v, relation in zip(term, relations, strict=True)]))

    expected = Counter(joined([new[relation] for relation in relations]))
    expected.subtract(joined([old[relation] for relation in relations]))
    assert {row: weight for row, weight in found.items() if weight} == {
        row: weight for row, weight in expected.items() if weight
    }


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_every_subset_of_changed_inputs(width: int) -> None:
    relations = list(range(1, width + 1))
    for size in range(width + 1):
        for changed in itertools.combinations(relations, size):
            found = terms(block(relations), among(frozenset(changed)))
            assert len(found) == size
            for pivot, term in zip(changed, found, strict=True):
                assert term == expected_term(relations, changed, pivot)


def expected_term(relations: Sequence[int], changed: Sequence[int], pivot: int) -> Term:
    """The pivot by its delta, changed inputs after it as they were, all else as it is."""
    return tuple(
        DELTA if relation == pivot else OLD if relation in changed and relation > pivot else NEW
        for relation in relations
    )


def test_a_self_join_has_a_term_for_each_place() -> None:
    assert terms(block([7, 8, 7]), among(frozenset({7}))) == ((DELTA, NEW, OLD), (NEW, NEW, DELTA))


def test_a_change_elsewhere_has_no_term() -> None:
    assert terms(block([1, 2]), among(frozenset({3}))) == ()


def test_a_constant_is_always_as_it_is() -> None:
    join = Select((Input("v", Constant("VALUES (1)", ("x",))), Input("r", scan(1))), (), ())
    assert terms(join, among(frozenset({1}))) == ((NEW, DELTA),)


def test_a_union_changes_with_any_of_its_branches() -> None:
    union = UnionAll((block([1]), block([2])))
    join = Select((Input("u", union), Input("r", scan(3))), (), ())
    assert terms(join, among(frozenset({2}))) == ((DELTA, NEW),)
    assert terms(join, among(frozenset({1, 3}))) == ((DELTA, OLD), (NEW, DELTA))
    assert terms(join, among(frozenset({3}))) == ((NEW, DELTA),)
