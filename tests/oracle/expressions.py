"""Random expressions and conditions, as SQL text.

None fails for any value, and none depends on the order in which rows are read: what needs an order has a
total one. Numbers stay small, and floats are rounded before they are used any further.
"""

from __future__ import annotations

import itertools
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tests.oracle.tables import LITERALS

T = TypeVar("T")
Value = Callable[["Scope"], str]
"""Makes an expression from what it can refer to."""

KINDS = ("int", "int", "int", "text", "text", "num", "num", "date", "bool", "ints", "list", "json")
COMPARISONS = ("=", "<>", "<>", "<", ">=", "<=")


@dataclass(frozen=True)
class Column:
    """A column that an expression can refer to."""

    ref: str
    kind: str
    merged: bool = False  # by USING: it has no qualifier, so a query further in may not see it
    stored: bool = False  # of a table, so never a constant
    table: str = ""  # of a whole row

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


class Expressions(ABC):
    """Makes expressions; `depth` is how many queries they may nest, `version` the server's major one."""

    def __init__(self, chance: random.Random, version: int) -> None:
        self.chance = chance
        self.version = version
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

    @abstractmethod
    def sorted_values(self, value: Value, depth: int, outer: tuple[Column, ...]) -> str:
        """A query of one column with an ORDER BY that decides the order of its values."""

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

    def direction(self) -> str:
        """How a column is sorted."""
        return self.pick(("", "", " DESC", " NULLS FIRST", " DESC NULLS LAST"))

    # scalars

    def expression(self, kind: str, scope: Scope, depth: int) -> str:
        """A value of a kind."""
        if depth > 0 and kind == "ints" and self.odds(0.3):
            return self._array_subquery(kind, scope, depth)
        if depth > 0 and self.odds(0.12):
            return self._with_subquery(kind, scope, depth)
        if self.odds(0.6) or kind in ("list", "json"):
            return self.column(kind, scope)
        return self._computed(kind, scope)

    def column(self, kind: str, scope: Scope) -> str:
        """A column of a kind, or what comes closest."""
        rows = scope.of("row") if kind in ("json", "text", "bool") else ()
        if rows and self.odds(0.5):
            return self._of_row(kind, self.pick(rows).ref)
        pairs = scope.of("pair") if kind in ("int", "text") else ()
        if pairs and self.odds(0.05):
            self.tag("field of a composite value")
            return f"({self.pick(pairs)}).{'i' if kind == 'int' else 's'}"
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

    def _of_row(self, kind: str, row: str) -> str:
        """A value made of a whole row."""
        self.tag("whole row as value")
        if kind == "bool":
            self.tag("whole row IS NULL")
            return f"({row} IS {self.pick(('', 'NOT '))}NULL)"
        return f"to_jsonb({row})" if kind == "json" else f"{row}::text"

    def _computed(self, kind: str, scope: Scope) -> str:
        """A value computed from others."""
        if self.odds(0.25) and (rare := self._rare(kind, scope)):
            tag, text = self.pick(rare)
            return self.tagged(tag, text)

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

    def _rare(self, kind: str, scope: Scope) -> list[tuple[str, str]]:
        """Expressions of a kind with a syntax of their own, by tag."""

        def some(kind: str) -> str:
            return self.column(kind, scope)

        number, text, day, numbers = some("int"), some("text"), some("date"), some("ints")
        choices: dict[str, list[tuple[str, str]]] = {
            "int": [
                ("array element", f"({numbers})[1]"),
                ("EXTRACT", f"extract(day FROM {day})::int"),
                ("POSITION", f"position('a' IN {text})"),
                ("array slice", f"(({numbers} || {small(number)})[2:])[1]"),
                ("VARIADIC", f"num_nulls(VARIADIC {numbers})"),
            ],
            "num": [("CAST", f"CAST({number} AS numeric)"), ("LEAST", f"least({some('num')}, {number})")],
            "text": [
                ("COLLATE", f'({text} COLLATE "C")'),
                ("SUBSTRING", f"substring({text} FROM 1 FOR 1)"),
                ("TRIM", f"trim(BOTH 'a' FROM {text})"),
                ("OVERLAY", f"overlay({text} PLACING 'z' FROM 1)"),
                ("CAST", f"CAST(ROW({number}, {text}) AS text)"),
            ],
            "date": [
                ("AT TIME ZONE", f"(({day}::timestamp AT TIME ZONE 'UTC') AT TIME ZONE 'Asia/Tokyo')::date"),
                ("typed literal", f"greatest({day}, date '2020-01-15')"),
                (
                    "named argument",
                    f"make_date(year => 2020, month => 2, day => 1 + abs({small(number)} % 20))",
                ),
            ],
            "bool": [
                ("OVERLAPS", f"({self._period(scope)} OVERLAPS {self._period(scope)})"),
                (
                    "row comparison",
                    f"(ROW({number}, {text}) {self.pick(COMPARISONS)} ROW({some('int')}, {some('text')}))",
                ),
                ("row IS NULL", f"(ROW({number}, {text}) IS {self.pick(('', 'NOT '))}NULL)"),
                (
                    "row IS DISTINCT FROM",
                    f"(({number}, {text}) IS DISTINCT FROM ({some('int')}, {some('text')}))",
                ),
                ("LIKE ANY", f"({text} LIKE ANY (ARRAY['a%', '%b']))"),
                ("SIMILAR TO", f"({text} SIMILAR TO '(a|b)+')"),
                ("BETWEEN SYMMETRIC", f"({number} BETWEEN SYMMETRIC 2 AND {some('int')})"),
                ("array operator", f"({numbers} @> ARRAY[{small(number)}])"),
                ("comparison with ALL of an array", f"({number} < ALL ({numbers}))"),
                ("IS UNKNOWN", f"({some('bool')} IS UNKNOWN)"),
            ],
            "ints": [
                ("array slice", f"({numbers})[1:2]"),
                ("array slice", f"({numbers})[:1]"),
                ("ARRAY[]", f"ARRAY[{small(number)}, {small(some('int'))}]"),
                ("array concatenation", f"({numbers} || {small(number)})"),
            ],
            "json": [
                ("jsonb subscript", f"({some('list')})[0]"),
                ("jsonb operator", f"({some('list')} -> 0)"),
            ],
            "list": [("jsonb operator", f"({some('list')} || {some('list')})")],
        }
        pairs = scope.of("pair")
        if len(pairs) > 1:
            first, second = self.chance.sample(pairs, k=2)
            choices["bool"].append(("composite comparison", f"({first} {self.pick(COMPARISONS)} {second})"))
        elif pairs:
            choices["bool"].append(("composite IS NULL", f"({pairs[0]} IS NULL)"))
        rows = scope.of("row")
        if len(rows) > 1 and rows[0].table and len({row.table for row in rows}) == 1:
            choices["bool"].append(("whole rows compared", f"({rows[0]} IS DISTINCT FROM {rows[1]})"))
        if self.version >= 16:
            choices["bool"].append(("IS JSON", f"({text} IS JSON)"))
            choices["json"] += [
                (
                    "JSON_OBJECT",
                    f"JSON_OBJECT('k' VALUE {number}, 'l': {text} ABSENT ON NULL RETURNING jsonb)",
                ),
                ("JSON_ARRAY", f"JSON_ARRAY({number}, {text} NULL ON NULL RETURNING jsonb)"),
            ]
            choices["text"].append(("JSON_ARRAY", f"JSON_ARRAY({number}, {text})::text"))
            choices["text"].append(("JSON_OBJECT", f"JSON_OBJECT('k': {text})::text"))
        if self.version >= 17:
            choices["int"].append(
                ("JSON_VALUE", f"JSON_VALUE({some('list')}, '$[0]' RETURNING int NULL ON ERROR)")
            )
            choices["bool"].append(("JSON_EXISTS", f"JSON_EXISTS({some('list')}, '$[*] ? (@ > 1)')"))
            choices["json"].append(("JSON_QUERY", f"JSON_QUERY({some('list')}, '$[*]' WITH WRAPPER)"))
        return choices.get(kind, [])

    def _period(self, scope: Scope) -> str:
        return f"({self.column('date', scope)}::timestamp, interval '{self.pick((1, 30))} days')"

    def _with_subquery(self, kind: str, scope: Scope, depth: int) -> str:
        """A value that a subquery gives, also inside CASE and COALESCE."""
        if kind in ("ints", "text") and self.odds(0.5):
            return self._array_subquery(kind, scope, depth)
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

    def _array_subquery(self, kind: str, scope: Scope, depth: int) -> str:
        """An array of what a subquery gives, in its order; as text, its elements in a row."""
        outer = scope.further_in if self.odds(0.4) else ()
        self.tag("correlated ARRAY subquery" if outer else "uncorrelated ARRAY subquery")
        if kind == "text":
            query = self.sorted_values(lambda inner: self.column("text", inner), depth - 1, outer)
            return f"array_to_string(ARRAY({query}), ',', '-')"
        query = self.sorted_values(lambda inner: small(self.column("int", inner)), depth - 1, outer)
        return f"ARRAY({query})"

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
        if scope.columns and self.odds(0.1):
            tag, text = self.pick(self._rare("bool", scope))
            return self.tagged(tag, text)
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
        match self.chance.randrange(12):
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
            case 9:
                self.tag("IN (VALUES …)")
                rows = ", ".join(f"({self.pick((*LITERALS[kind], value))})" for _ in range(3))
                return f"{self.column(kind, scope)} {self.pick(('', 'NOT '))}IN (VALUES {rows})"
            case 10:
                self.tag(f"{related} ARRAY subquery")
                query = self.sorted_values(lambda mine: small(self.column("int", mine)), depth, inner)
                number = small(self.column("int", scope))
                return f"{number} {self.pick(COMPARISONS)} {self.pick(('ANY', 'ALL'))} (ARRAY({query}))"
            case _:
                self.tag("comparison with scalar subquery")
                return f"{value} {self.pick(COMPARISONS)} {self.scalar_subquery(kind, scope, depth + 1)}"


def small(number: str) -> str:
    """A number of any size as one that fits everywhere."""
    return f"({number} % 1000)::int"
