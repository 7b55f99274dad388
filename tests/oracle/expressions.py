"""Random expressions, conditions, aggregates and window functions, as SQL text.

None fails for any value, and none depends on the order in which rows are read: what needs an order has a
total one. Numbers stay small, and floats are rounded before they are used any further.
"""

from __future__ import annotations

import itertools
import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from tests.oracle.tables import LITERALS

T = TypeVar("T")

KINDS = ("int", "int", "int", "text", "text", "num", "num", "date", "bool", "ints", "list", "json")
COMPARISONS = ("=", "<>", "<>", "<", ">=", "<=")


@dataclass(frozen=True)
class Column:
    """A column that an expression can refer to."""

    ref: str
    kind: str
    merged: bool = False  # by USING: it has no qualifier, so a query further in may not see it
    stored: bool = False  # of a table, so never a constant

    def __str__(self) -> str:
        return self.ref


@dataclass(frozen=True)
class Scope:
    """What an expression can refer to."""

    columns: tuple[Column, ...]
    outer: tuple[Column, ...] = ()  # of the queries around
    keyed: bool = False  # no two rows are alike
    size: float = 10  # a guess at the rows

    def of(self, *kinds: str) -> list[Column]:
        return [column for column in self.columns if column.kind in kinds]

    @property
    def further_in(self) -> tuple[Column, ...]:
        """What subqueries of this scope can refer to."""
        return tuple(column for column in self.columns if not column.merged) + self.outer


@dataclass(frozen=True)
class Call:
    """A window function with its frame."""

    text: str
    frame: str = ""
    ordered: bool = False  # it means nothing without an order


class Expressions(ABC):
    """Makes expressions; `depth` is how many queries they may nest."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.tags: set[str] = set()
        self.names = (f"x{number}" for number in itertools.count(1))

    @abstractmethod
    def body(
        self, kinds: tuple[str, ...], depth: int, outer: tuple[Column, ...] = (), *, shape: str = ""
    ) -> str:
        """A query with columns o0, o1, … of these kinds."""

    @abstractmethod
    def block(self, kinds: tuple[str, ...], depth: int, outer: tuple[Column, ...], *, limit: str = "") -> str:
        """A query with FROM and WHERE, without a grouping."""

    # chance

    def pick(self, choices: Sequence[T]) -> T:
        return self.chance.choice(choices)

    def odds(self, probability: float) -> bool:
        return self.chance.random() < probability

    def tag(self, *tags: str) -> None:
        self.tags.update(tags)

    def tagged(self, tag: str, text: str) -> str:
        self.tags.add(tag)
        return text

    # scalars

    def expression(self, kind: str, scope: Scope, depth: int) -> str:
        """A value of a kind."""
        if depth > 0 and self.odds(0.12):
            return self._with_subquery(kind, scope, depth)
        if self.odds(0.6) or kind in ("list", "json"):
            return self.column(kind, scope)
        return self._computed(kind, scope)

    def column(self, kind: str, scope: Scope) -> str:
        """A column of a kind, or what comes closest."""
        rows = scope.of("row") if kind in ("json", "text") else ()
        if rows and self.odds(0.5):
            self.tag("whole row as value")
            row = self.pick(rows)
            return f"to_jsonb({row})" if kind == "json" else f"{row}::text"
        found = scope.of(kind)
        if found:
            return self.pick(found).ref
        numbers, texts, dates = scope.of("int"), scope.of("text"), scope.of("date")
        if kind == "num" and numbers:
            return f"{self.pick(numbers)}::numeric"
        if kind == "int" and texts:
            return f"length({self.pick(texts)})"
        if kind == "int" and dates:
            return f"extract(day FROM {self.pick(dates)})::int"
        if kind == "bool" and numbers:
            return f"({self.pick(numbers)} > 0)"
        if kind == "text" and numbers:
            return f"{self.pick(numbers)}::text"
        if kind == "ints" and numbers:
            return f"ARRAY[{small(self.pick(numbers).ref)}]"
        if kind == "date" and numbers:
            return f"('2020-01-01'::date + {small(self.pick(numbers).ref)})"
        if kind == "json" and scope.columns:
            return f"to_jsonb({self.column('int', scope)})"
        if kind == "list":
            return f"jsonb_build_array({self.column('int', scope)})"
        if kind == "bool" and scope.columns:
            return f"({self.pick(scope.columns)} IS NULL)"
        return self.pick(LITERALS[kind])

    def _computed(self, kind: str, scope: Scope) -> str:
        def some(kind: str) -> str:
            return self.column(kind, scope)

        choices = {
            "int": (
                f"({some('int')} + 1)",
                f"({some('int')} + {some('int')})",
                f"({some('int')} - {some('int')})",
                f"({some('int')} % 3)",
                f"({some('int')} / nullif({some('int')}, 0))",
                f"coalesce({some('int')}, 2)",
                f"nullif({some('int')}, 1)",
                f"length({some('text')})",
                f"greatest({some('int')}, {some('int')})",
                f"cardinality({some('ints')})",
                f"CASE WHEN {self.simple(scope)} THEN {some('int')} ELSE 1 END",
                f"CASE {some('int')} WHEN 1 THEN 5 WHEN 2 THEN NULL ELSE 0 END",
            ),
            "num": (
                f"({some('num')} + 1)",
                f"({some('num')} - {some('int')})",
                f"coalesce({some('num')}, 0)",
                f"CASE WHEN {self.simple(scope)} THEN {some('num')} END",
            ),
            "text": (
                f"upper({some('text')})",
                f"({some('text')} || '!')",
                f"left({some('text')} || {some('text')}, 9)",
                f"coalesce({some('text')}, '-')",
                f"CASE WHEN {self.simple(scope)} THEN {some('text')} ELSE 'else' END",
            ),
            "date": (f"({some('date')} + 1)", f"coalesce({some('date')}, '2020-03-01'::date)"),
            "bool": (f"({self.simple(scope)})", f"({some('int')} > {some('int')})", f"(NOT {some('bool')})"),
            "ints": (f"array_remove({some('ints')}, 2)", f"coalesce({some('ints')}, '{{}}'::int[])"),
        }
        return self.pick(choices[kind])

    def _with_subquery(self, kind: str, scope: Scope, depth: int) -> str:
        """A value that a subquery gives, also inside CASE and COALESCE."""
        if kind == "bool" or self.odds(0.15):
            condition = self._subquery_condition(scope, depth)
            if kind == "bool":
                return self.tagged("condition subquery in select list", f"({condition})")
            self.tag("subquery in CASE")
            return (
                f"CASE WHEN {condition} THEN {self.column(kind, scope)} ELSE {self.column(kind, scope)} END"
            )
        subquery = self.scalar_subquery(kind, scope, depth)
        self.tag("scalar subquery in expression")
        return f"coalesce({subquery}, {self.column(kind, scope)})" if self.odds(0.3) else subquery

    def scalar_subquery(self, kind: str, scope: Scope, depth: int) -> str:
        """A subquery of one row at most."""
        outer = scope.further_in if self.odds(0.7) else ()
        self.tag("correlated scalar subquery" if outer else "uncorrelated scalar subquery")
        if scope.outer:
            self.tag("subquery in correlated subquery")
        if self.odds(0.35):
            # The one column is the order as well, so which row comes first cannot matter.
            direction = self.pick((" NULLS FIRST", " DESC NULLS LAST"))
            return f"({self.block((kind,), depth - 1, outer, limit=f' ORDER BY 1{direction} LIMIT 1')})"
        return f"({self.body((kind,), depth - 1, outer, shape='whole')})"

    # conditions

    def simple(self, scope: Scope) -> str:
        """A condition without a subquery."""
        usable = [column for column in scope.columns if column.kind in ("int", "num", "text", "date", "bool")]
        if not usable:
            return self.pick(("true", "1 > 0"))
        column = self.pick(usable)
        fellows = scope.of("int", "num") if column.kind in ("int", "num") else scope.of(column.kind)
        other, literal = self.pick(fellows), self.pick(LITERALS[column.kind])
        choices = [
            f"{column} IS NULL",
            f"{column} IS NOT NULL",
            f"{column} IS DISTINCT FROM {other}",
            f"{column} {self.pick(COMPARISONS)} {literal}",
            f"{column} {self.pick(COMPARISONS)} {other}",
            f"{column} IN ({literal}, {self.pick(LITERALS[column.kind])})",
        ]
        if column.kind == "text":
            choices += [f"{column} LIKE '%a%'", f"({column} || 'b') <> 'bb'"]
        if column.kind == "int":
            choices += [f"{column} BETWEEN 0 AND 2", f"{column} % 2 = 1", f"{column} > 0", f"{column} < 3"]
        if column.kind == "int" and scope.of("ints"):
            choices.append(f"{column} = ANY ({self.pick(scope.of('ints'))})")
        if column.kind == "bool":
            choices += [column.ref, f"{column} IS NOT TRUE"]
        return self.pick(choices)

    def condition(self, scope: Scope, depth: int) -> str:
        """A condition for WHERE or HAVING."""
        shape = self.chance.random()
        if depth > 0 and shape < 0.5:
            return self._subquery_condition(scope, depth)
        if depth > 0 and shape < 0.6:
            self.tag("subquery in OR")
            return f"({self.simple(scope)} OR {self._subquery_condition(scope, depth)})"
        if depth > 0 and shape < 0.65:
            self.tag("subquery in CASE")
            return (
                f"CASE WHEN {self.simple(scope)} THEN {self._subquery_condition(scope, depth)} ELSE true END"
            )
        if depth > 0 and shape < 0.7:
            self.tag("subquery in COALESCE")
            return f"coalesce({self._subquery_condition(scope, depth)}, {self.pick(('true', 'false'))})"
        if shape < 0.8:
            return f"({self.simple(scope)} OR {self.simple(scope)})"
        if shape < 0.87:
            return f"NOT ({self.simple(scope)} AND {self.simple(scope)})"
        return self.simple(scope)

    def _subquery_condition(self, scope: Scope, depth: int) -> str:
        outer = scope.further_in
        kind = self.pick(
            [column.kind for column in scope.columns if column.kind in ("int", "text", "num")] or ["int"]
        )
        value, depth = self.column(kind, scope), depth - 1
        inner = outer if self.odds(0.5) else ()  # what compares need not be correlated
        related = "correlated" if inner else "uncorrelated"
        if scope.outer:
            self.tag("subquery in correlated subquery")
        match self.chance.randrange(10):
            case 0 | 1:
                self.tag("EXISTS")
                return f"EXISTS ({self.body(('int',), depth, outer)})"
            case 2:
                self.tag("NOT EXISTS")
                return f"NOT EXISTS ({self.body(('int',), depth, outer)})"
            case 3:
                self.tag(f"{related} IN")
                return f"{value} IN ({self.body((kind,), depth, inner)})"
            case 4:
                self.tag(f"{related} NOT IN")
                return f"{value} NOT IN ({self.body((kind,), depth, inner)})"
            case 5 | 6:
                quantifier = self.pick(("ANY", "ALL"))
                self.tag(f"{related} {quantifier}")
                comparison = self.pick(("=", "<>", "<", ">="))
                return f"{value} {comparison} {quantifier} ({self.body((kind,), depth, inner)})"
            case 7:
                self.tag("row IN")
                row, negation = f"({value}, {self.column('text', scope)})", self.pick(("", "", "NOT "))
                return f"{row} {negation}IN ({self.body((kind, 'text'), depth, inner)})"
            case 8:
                self.tag("row comparison with scalar subquery")
                subquery = self.body((kind, "int"), depth, inner, shape="whole")
                return f"({value}, 1) {self.pick(('=', '<', '>='))} ({subquery})"
            case _:
                self.tag("comparison with scalar subquery")
                return f"{value} {self.pick(COMPARISONS)} {self.scalar_subquery(kind, scope, depth + 1)}"

    # aggregates

    def aggregate(self, kind: str, scope: Scope, *, raw: bool = False) -> str:
        """An aggregate call of a kind; `raw` if nothing computes with its value."""
        own = Scope(scope.columns)
        call, tag = self._call(kind, own, raw)
        self.tag(tag)
        if self.odds(0.2) and not call.startswith(("round(", "to_jsonb(")) and "::bigint" not in call:
            self.tag("FILTER")
            call += f" FILTER (WHERE {self.simple(own)})"
        return call

    def _call(self, kind: str, own: Scope, raw: bool) -> tuple[str, str]:
        """A call and its tag. What it orders by decides all that it shows."""

        def some(kind: str) -> str:
            # An aggregate of constants, or of outer columns only, would not be one of this query.
            return self.column(kind, own)

        number, text, numeric, day = some("int"), some("text"), some("num"), some("date")
        anything = self.pick(own.columns).ref if own.columns else "1"
        order = self.pick(("", " DESC", " NULLS FIRST", " DESC NULLS LAST"))
        choices: dict[str, tuple[tuple[str, str], ...]] = {
            "int": (
                *(("count(*)", "count"),) * 4,
                (f"count({number})", "count"),
                (f"count({anything})", "count"),
                (f"count(DISTINCT {anything})", "DISTINCT in aggregate"),
                (f"count(DISTINCT ({number}, {text}))", "DISTINCT in aggregate"),
                (f"min({number})", "min/max"),
                (f"max({number})", "min/max"),
                (f"total({number})", "user-defined aggregate"),
                (f"fold({number} ORDER BY {number}{order})", "user-defined aggregate"),
                (f"mode() WITHIN GROUP (ORDER BY {number}{order})", "ordered-set aggregate"),
                (f"percentile_disc(0.5) WITHIN GROUP (ORDER BY {number}{order})", "ordered-set aggregate"),
                (f"rank(1) WITHIN GROUP (ORDER BY {number}{order})", "hypothetical-set aggregate"),
                (
                    f"dense_rank(1, 'a'::text) WITHIN GROUP (ORDER BY {number}, {text})",
                    "hypothetical-set aggregate",
                ),
                (f"regr_count({number}, {some('int')})", "statistical aggregate"),
                (f"bit_or({number})", "bitwise aggregate"),
                (f"sum({number})::bigint", "sum"),
            ),
            "num": (
                (f"sum({number})", "sum"),
                (f"sum({numeric})", "sum"),
                (f"sum({numeric} + {number})", "sum"),
                (f"sum(CASE WHEN {self.simple(own)} THEN {numeric} ELSE 0 END)", "sum"),
                (f"sum(DISTINCT {numeric})", "DISTINCT in aggregate"),
                (f"max({numeric})", "min/max"),
                (f"avg({numeric})" if raw else f"round(avg({numeric}), 2)", "avg"),
                (f"avg({number})" if raw else f"round(avg({number}), 2)", "avg"),
                (f"round(stddev_pop({number}), 2)", "statistical aggregate"),
                (
                    f"round((percentile_cont(0.25) WITHIN GROUP (ORDER BY {number}))::numeric, 2)",
                    "ordered-set aggregate",
                ),
                (
                    f"round((cume_dist(1) WITHIN GROUP (ORDER BY {number}))::numeric, 4)",
                    "hypothetical-set aggregate",
                ),
            ),
            "text": (
                (f"min({text})", "min/max"),
                (f"max({text})", "min/max"),
                (f"string_agg(left({text}, 3), ',' ORDER BY {text}{order})", "ORDER BY in aggregate"),
                (f"string_agg({text}, ',' ORDER BY {number}{order}, {text})", "ORDER BY in aggregate"),
                (f"string_agg(DISTINCT {text}, ',' ORDER BY {text})", "DISTINCT in aggregate"),
                (f"mode() WITHIN GROUP (ORDER BY {text})", "ordered-set aggregate"),
            ),
            "date": (
                (f"min({day})", "min/max"),
                (f"max({day})", "min/max"),
                (f"percentile_disc(0.7) WITHIN GROUP (ORDER BY {day})", "ordered-set aggregate"),
            ),
            "bool": (
                (f"bool_and({some('bool')})", "bool_and/or"),
                (f"bool_or({self.simple(own)})", "bool_and/or"),
                (f"every({number} > 0)", "bool_and/or"),
            ),
            "ints": (
                (f"array_agg({small(number)} ORDER BY {number}{order})", "ORDER BY in aggregate"),
                (f"array_agg({small(number)} ORDER BY {text}{order}, {number})", "ORDER BY in aggregate"),
                (f"array_agg(DISTINCT {small(number)} ORDER BY {small(number)})", "DISTINCT in aggregate"),
                (
                    f"percentile_disc(ARRAY[0.2, 0.8]) WITHIN GROUP (ORDER BY {small(number)})",
                    "ordered-set aggregate",
                ),
            ),
            "list": (
                (f"jsonb_agg({number} ORDER BY {number}{order})", "ORDER BY in aggregate"),
                (f"jsonb_agg(DISTINCT {number} ORDER BY {number})", "DISTINCT in aggregate"),
            ),
            "json": (
                (f"jsonb_agg(left({text}, 5) ORDER BY {text}{order})", "ORDER BY in aggregate"),
                (
                    f"jsonb_object_agg(coalesce({text}, ''), {number} ORDER BY {text}, {number})",
                    "ORDER BY in aggregate",
                ),
                (f"to_jsonb(count({anything}))", "count"),
            ),
        }
        return self.pick(choices[kind])

    # window functions

    def window_function(self, kind: str, scope: Scope, *, rows: bool) -> Call | None:
        """A call of a kind, if there is one; `rows` if the window tells all rows apart that differ."""
        number, value = self.column("int", scope), self.column(kind, scope)
        if rows and self.odds(0.6):
            return self._call_by_row(kind, number, value)
        peers = ("RANGE", "GROUPS")
        choices: list[Call] = []
        if kind == "int":
            filtered = f"count(*) FILTER (WHERE {self.simple(Scope(scope.columns))})"
            choices += [Call("rank()", ordered=True), Call("dense_rank()", ordered=True), Call(filtered)]
            choices += [Call("count(*)", self._frame(peers)), Call(f"min({number})", self._frame(peers))]
        if kind == "num":
            choices += [Call(f"sum({each})", self._frame(peers)) for each in (value, number)]
        if kind == "bool":
            choices += [Call(f"bool_or({value})", self._frame(peers))]
        if kind in ("num", "text", "date"):
            choices += [Call(f"max({value})", self._frame(peers)), Call(f"min({value})")]
        return self.pick(choices) if choices else None

    def _call_by_row(self, kind: str, number: str, value: str) -> Call:
        """A call that tells even peers apart."""
        by_row = {
            "int": ("row_number()", "row_number()", "ntile(2)", f"lag({value}, 1, 0)"),
            "num": (f"sum({value})", f"max({value})"),
            "ints": (f"array_agg({small(number)})",),
            "text": (f"string_agg({value}, '')",),
        }
        calls = ("lag({})", "lead({}, 2)", "first_value({})", "last_value({})", "nth_value({}, 2)")
        text = self.pick([call.format(value) for call in calls] + [*by_row.get(kind, ())])
        framed = not text.startswith(("row_number", "ntile", "lag", "lead"))
        return Call(text, self._frame(("ROWS", "ROWS", "GROUPS")) if framed else "", ordered=True)

    def _frame(self, modes: Sequence[str]) -> str:
        if self.odds(0.4):
            return ""
        mode = self.pick(modes)
        # RANGE with a distance needs a single order column; GROUPS and ROWS count.
        starts = ["UNBOUNDED PRECEDING", "CURRENT ROW"] + (["1 PRECEDING"] if mode != "RANGE" else [])
        ends = ["UNBOUNDED FOLLOWING", "CURRENT ROW"] + (["1 FOLLOWING"] if mode != "RANGE" else [])
        exclude = self.pick(("", "", " EXCLUDE CURRENT ROW", " EXCLUDE GROUP", " EXCLUDE TIES"))
        return f" {mode} BETWEEN {self.pick(starts)} AND {self.pick(ends)}{exclude}"


def small(number: str) -> str:
    """A number of any size as one that fits everywhere."""
    return f"({number} % 1000)::int"
