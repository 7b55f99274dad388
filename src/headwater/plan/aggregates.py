"""Which aggregates can be maintained by adding deltas, and what state that takes.

count, sum and avg over integers and numerics are sums over the rows of a group, so a delta adds to them. min
and max take an insert directly; when the stored extreme is deleted and no inserted row replaces it, the group
is rescanned. Every other aggregate is recomputed for the affected groups.

Numeric has two traps. NaN and the infinities do not subtract: a group whose sum is not finite is rescanned.
And a result shows as many fractional digits as the longest summand (which also decides how precisely an
average is divided), so an argument whose scale is not fixed keeps a histogram of the scales in its group. The
histogram is one number, the sum of 10**(12 * scale) over the rows: it adds and subtracts like any sum, and
its length tells the largest scale present.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from headwater.plan.operators import Aggregate, Call, ColumnType
from headwater.plan.quoting import identifier
from headwater.plan.scale import fixed_scale

ROW_COUNT = "__hw_count"
NON_FINITE = "'{NaN,Infinity,-Infinity}'::numeric[]"
SCALE_DIGITS = 12


class StateKind(Enum):
    """What a hidden state column holds for its group."""

    ROWS = "number of rows"
    COUNT = "number of rows that are counted"
    SUM = "sum"
    SCALES = "histogram of numeric scales"
    MIN = "smallest value"
    MAX = "largest value"

    @property
    def extreme(self) -> bool:
        return self in (StateKind.MIN, StateKind.MAX)


@dataclass(frozen=True)
class State:
    """A hidden column of the stored result."""

    name: str
    kind: StateKind
    argument: str | None = None  # input column
    filter: str | None = None  # input column with the FILTER condition
    type: ColumnType | None = None  # of the argument


@dataclass(frozen=True)
class Algebra:
    """The states of an aggregate and, for each call, its value as SQL over the states (alias `s`)."""

    states: tuple[State, ...]
    finals: tuple[tuple[str, str], ...]  # call name, SQL

    @property
    def extremes(self) -> tuple[State, ...]:
        return tuple(state for state in self.states if state.kind.extreme)


def algebra_of(aggregate: Aggregate, types: Mapping[str, ColumnType]) -> Algebra | None:
    """Return the algebra of an aggregate over input columns of these types, or None if a call has none."""
    states: dict[tuple[StateKind, str | None, str | None], State] = {}

    def state(kind: StateKind, argument: str | None, condition: str | None) -> str:
        key = (kind, argument, condition)
        if key not in states:
            name = ROW_COUNT if kind is StateKind.ROWS else f"__hw_s{len(states)}"
            states[key] = State(name, kind, argument, condition, types[argument] if argument else None)
        return f"s.{identifier(states[key].name)}"

    state(StateKind.ROWS, None, None)
    finals = []
    for call in aggregate.calls:
        if obstacle(call, types) is not None:
            return None
        argument = call.arguments[0] if call.arguments else None
        match call.function:
            case "count" if argument is None and call.filter is None:
                value = state(StateKind.ROWS, None, None)
            case "count":
                value = state(StateKind.COUNT, argument, call.filter)
            case "min" | "max":
                kind = StateKind.MIN if call.function == "min" else StateKind.MAX
                value = state(kind, argument, call.filter)
            case _:
                assert argument is not None
                total = state(StateKind.SUM, argument, call.filter)
                count = state(StateKind.COUNT, argument, call.filter)
                if fixed_scale(aggregate.input, argument) is None:
                    scales = state(StateKind.SCALES, argument, call.filter)
                    total = f"round({total}, {_largest_scale(scales)})"
                value = _finished(call.function, total, count, types[argument])
        finals.append((call.name, value))
    return Algebra(tuple(states.values()), tuple(finals))


def obstacle(call: Call, types: Mapping[str, ColumnType]) -> str | None:
    """Return why a call cannot be maintained by adding deltas, or None."""
    if not call.builtin or call.function not in ("count", "sum", "avg", "min", "max"):
        return f"{call.function} has no state that deltas can be added to"
    if call.distinct:
        return f"{call.function}(DISTINCT …) needs the values themselves"
    if call.of_rows:
        return f"{call.function} of a row has no state that deltas can be added to"
    if call.ordered or len(call.arguments) > 1:
        return f"{call.function} with ORDER BY or several arguments has no state that deltas can be added to"
    if call.function in ("sum", "avg"):
        if not call.arguments:
            return f"{call.function} of a constant has no column to add up"
        kind = types[call.arguments[0]]
        if kind.floating:
            return f"{call.function} over {kind.sql} depends on the order of the rows"
        if not (kind.integer or kind.numeric):
            return f"{call.function} over {kind.sql} has no state that deltas can be added to"
    if call.function in ("min", "max") and not call.arguments:
        return f"{call.function} of a constant has no column to look at"
    if call.function == "count" and not call.arguments and not call.star:
        return "count of a constant has no column to look at"
    return None


def _finished(function: str, total: str, count: str, kind: ColumnType) -> str:
    if function == "avg":
        return f"CASE WHEN {count} > 0 THEN {total} / {count}::numeric END"
    result = "bigint" if kind.integer and kind.base != "bigint" else "numeric"
    return f"CASE WHEN {count} > 0 THEN ({total})::{result} END"


def _largest_scale(histogram: str) -> str:
    return f"(length({histogram}::text) - 1) / {SCALE_DIGITS}"


# A state as SQL: over rows (alias i), over weighted rows (alias d), and merged from stored (s) and delta (d).


def over_rows(state: State) -> str:
    """Return the state of a whole group.

    >>> over_rows(State("n", StateKind.COUNT, "a1", None))
    'count(i."a1")'
    """
    where = f" FILTER (WHERE i.{identifier(state.filter)})" if state.filter else ""
    argument = f"i.{identifier(state.argument)}" if state.argument else "*"
    match state.kind:
        case StateKind.ROWS:
            return "count(*)"
        case StateKind.COUNT:
            return f"count({argument}){where}"
        case StateKind.SUM:
            return f"coalesce(sum({argument}){where}, 0)::numeric"
        case StateKind.SCALES:
            return f"coalesce(sum({_scale_weight(argument)}){where}, 0)"
        case StateKind.MIN:
            return f"min({argument}){where}"
        case StateKind.MAX:
            return f"max({argument}){where}"


def delta_columns(state: State) -> tuple[str, ...]:
    """Return the columns of a state's delta; an extreme has the best inserted and the best deleted value."""
    if state.kind.extreme:
        return (f"{state.name}_in", f"{state.name}_out")
    return (state.name,)


def over_delta(state: State, weight: str) -> tuple[str, ...]:
    """Return the delta of a state from weighted rows, one expression for each of `delta_columns`."""
    conditions = [f"d.{identifier(state.filter)}"] if state.filter else []
    argument = f"d.{identifier(state.argument)}" if state.argument else ""
    if state.kind.extreme:
        function = "min" if state.kind is StateKind.MIN else "max"
        return tuple(
            f"{function}({argument}) FILTER (WHERE {' AND '.join([*conditions, f'd.{weight} {sign} 0'])})"
            for sign in (">", "<")
        )
    match state.kind:
        case StateKind.SUM:
            assert state.type is not None
            small = state.type.integer and state.type.base != "bigint"
            term = f"d.{weight} * {argument}" if small else f"d.{weight}::numeric * {argument}"
        case StateKind.SCALES:
            term = f"d.{weight} * {_scale_weight(argument)}"
        case _:
            term = f"d.{weight}"
            if argument:
                # Unlike IS NOT NULL, this is true of a composite value that contains a NULL.
                conditions.append(f"{argument} IS DISTINCT FROM NULL")
    where = f" FILTER (WHERE {' AND '.join(conditions)})" if conditions else ""
    kind = "bigint" if state.kind in (StateKind.ROWS, StateKind.COUNT) else "numeric"
    return (f"coalesce(sum({term}){where}, 0)::{kind}",)


def merged(state: State) -> str:
    """Return the new state from the stored one (alias s, NULL for a new group) and its delta (alias d)."""
    name = identifier(state.name)
    if state.kind.extreme:
        function = "LEAST" if state.kind is StateKind.MIN else "GREATEST"
        return f"{function}(s.{name}, d.{identifier(state.name + '_in')})"
    return f"coalesce(s.{name}, 0) + d.{name}"


def rescan_condition(state: State) -> str | None:
    """Return when the merged state would be wrong, so that the group must be rescanned; None if never."""
    if state.kind is StateKind.SUM:
        assert state.type is not None
        return None if state.type.integer else f"{merged(state)} = ANY ({NON_FINITE})"
    if not state.kind.extreme:
        return None
    assert state.type is not None
    equals = state.type.equality
    stored, gone, came = (
        f"{prefix}{identifier(state.name + suffix)}"
        for prefix, suffix in (("s.", ""), ("d.", "_out"), ("d.", "_in"))
    )
    replaced = f"{merged(state)} {equals} {came}"
    return f"({gone} {equals} {stored} AND ({came} IS NULL OR NOT {replaced}))"


def _scale_weight(value: str) -> str:
    """Return 10 ** (12 * scale), quickly for the usual scales; NaN and the infinities have no scale."""
    usual = " ".join(f"WHEN {scale} THEN 1{'0' * SCALE_DIGITS * scale}::numeric" for scale in range(5))
    return f"CASE scale({value}) {usual} ELSE ('1e' || {SCALE_DIGITS} * scale({value}))::numeric END"
