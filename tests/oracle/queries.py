"""A grammar of random queries that covers PostgreSQL's SELECT.

Every query is valid, never fails, and gives the same rows whenever it reads the same rows. Each is tagged
with the constructs that it contains.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from tests.oracle.calls import Call
from tests.oracle.expressions import Column, Scope, Value, small
from tests.oracle.groups import Groups
from tests.oracle.sources import listed, names
from tests.oracle.tables import LITERALS, Relation

SHAPES = {
    "rows": 22,
    "distinct": 6,
    "distinct_on": 6,
    "grouped": 18,
    "grouping_sets": 12,
    "whole": 6,
    "windowed": 12,
    "limited": 6,
    "ties": 3,
    "set_operation": 10,
    "cte": 9,
    "recursive": 1,
    "expanding": 5,
    "constants": 1,
    "ordered_by_rows": 8,
    "over_sorted": 6,
}
SHALLOW = (
    *("rows",) * 10,
    *("distinct",) * 2,
    *("grouped",) * 3,
    "constants",
    *("ordered_by_rows",) * 2,
    "over_sorted",
)
"""What the innermost queries look like."""
DULL = ("whole", "limited", "ties", "constants")
"""Shapes of few rows, less often the outermost."""


@dataclass(frozen=True)
class Query:
    """A query, its columns o0, o1, … by kind, and the constructs that it contains."""

    text: str
    kinds: tuple[str, ...]
    tags: frozenset[str]

    def relation(self, name: str, tag: str, *, stored: bool) -> Relation:
        """What others read when the query is called by a name."""
        columns = {f"o{number}": kind for number, kind in enumerate(self.kinds)}
        return Relation(name, columns, stored=stored, tag=tag)


def random_query(
    chance: random.Random, relations: Sequence[Relation], depth: int = 2, *, version: int = 15
) -> Query:
    """Make a query over relations, with queries inside it down to a depth, for a server's major version."""
    grammar = Grammar(chance, relations, version)
    shape = grammar.shape()
    if shape in DULL and grammar.odds(0.6):
        shape = "rows"
    kinds = grammar.kinds(2 if shape == "set_operation" else 4)
    return Query(grammar.body(kinds, depth, shape=shape), kinds, frozenset(grammar.tags))


class Grammar(Groups):
    """Makes queries: the clauses around FROM."""

    def shape(self) -> str:
        return self.chance.choices(list(SHAPES), weights=list(SHAPES.values()))[0]

    def body(
        self, kinds: tuple[str, ...], depth: int, outer: tuple[Column, ...] = (), *, shape: str = ""
    ) -> str:
        chosen = shape or (self.shape() if depth > 0 else self.pick(SHALLOW))
        match chosen:
            case "distinct":
                return self.tagged("DISTINCT", self.block(kinds, depth, outer, distinct="DISTINCT "))
            case "distinct_on":
                return self._distinct_on(kinds, depth, outer)
            case "grouped":
                return self.grouped(kinds, depth, outer)
            case "grouping_sets":
                return self.grouping_sets(kinds, depth, outer)
            case "whole":
                return self.whole(kinds, depth, outer)
            case "windowed":
                return self._windowed(kinds, depth, outer)
            case "limited":
                return self._limited(kinds, depth, outer)
            case "ties":
                self.tag("FETCH WITH TIES")
                first = self.chance.randint(1, 3)
                limit = f" ORDER BY o0{self.direction()} FETCH FIRST {first} ROWS WITH TIES"
                return self.block(kinds, depth, outer, limit=limit)
            case "set_operation":
                return self._set_operation(kinds, depth, outer)
            case "cte":
                return self._cte(kinds, depth, outer)
            case "recursive":
                return self._recursive(kinds, depth, outer)
            case "expanding":
                return self._expanding(kinds, depth, outer)
            case "ordered_by_rows":
                return self._ordered_by_rows(kinds, depth, outer)
            case "over_sorted":
                return self._over_sorted(kinds, depth, outer)
            case "constants":
                return self._constants(kinds, depth, outer)
            case _:
                return self.block(kinds, depth, outer, limit=self._idle_order())

    # SELECT

    def block(
        self,
        kinds: tuple[str, ...],
        depth: int,
        outer: tuple[Column, ...],
        *,
        limit: str = "",
        distinct: str = "",
    ) -> str:
        source, scope, where = self.from_clause(depth, outer)
        outputs = [self._output(kind, scope, depth) for kind in kinds]
        return f"SELECT {distinct}{listed(outputs)} FROM {source}{where}{limit}"

    def _output(self, kind: str, scope: Scope, depth: int) -> str:
        found = [column for column in scope.outer if column.kind == kind]
        if found and self.odds(0.1):
            self.tag("outer column in select list")
            return self.pick(found).ref
        return self.expression(kind, scope, depth)

    def _total(self, kinds: tuple[str, ...]) -> str:
        """An order by all columns: rows that it leaves open are equal."""
        return ", ".join(f"o{number}{self.direction()}" for number in range(len(kinds)))

    def _limited(self, kinds: tuple[str, ...], depth: int, outer: tuple[Column, ...]) -> str:
        self.tag("LIMIT")
        limit = f" ORDER BY {self._total(kinds)}"
        if self.odds(0.4):
            offset = str(self.chance.randint(1, 2)) if self.odds(0.8) else self._few_rows("OFFSET")
            limit += self.tagged("OFFSET", f" OFFSET {offset}")
        first = str(self.chance.randint(1, 4)) if self.odds(0.8) else self._few_rows("LIMIT")
        limit += f" FETCH FIRST {first} ROWS ONLY" if self.odds(0.2) else f" LIMIT {first}"
        if depth > 0 and self.odds(0.3):
            return f"SELECT * FROM ({self.body(kinds, depth - 1, outer)}) AS {next(self.names)}{limit}"
        return self.block(kinds, depth, outer, limit=limit)

    def _few_rows(self, clause: str) -> str:
        """A subquery that says how many rows."""
        self.tag(f"subquery in {clause}")
        alias = next(self.names)
        return f"(SELECT count(*) % 4 FROM {self.pick(self.relations).name} AS {alias})"

    def _distinct_on(self, kinds: tuple[str, ...], depth: int, outer: tuple[Column, ...]) -> str:
        self.tag("DISTINCT ON")
        source, scope, where = self.from_clause(depth, outer)
        outputs = [self.column(kind, scope) for kind in kinds]
        if self.odds(0.5):
            key = "o0"
        else:
            key = self.pick([column for column in scope.columns if not column.merged]).ref
        return (
            f"SELECT DISTINCT ON ({key}) {listed(outputs)} FROM {source}{where}"
            f" ORDER BY {key}, {self._total(kinds)}"
        )

    def _expanding(self, kinds: tuple[str, ...], depth: int, outer: tuple[Column, ...]) -> str:
        """Set-returning functions in the select list."""
        source, scope, where = self.from_clause(depth, outer)
        outputs = [self.column(kind, scope) for kind in kinds]
        for number, kind in enumerate(kinds):
            if kind == "int":
                calls = (f"unnest({self.column('ints', scope)})", self.series(scope))
            elif kind == "json":
                calls = (f"jsonb_array_elements({self.column('list', scope)})",) * 2
            elif kind == "text":
                calls = (f"jsonb_array_elements_text({self.column('list', scope)})",) * 2
            else:
                continue
            self.tag("set-returning function in select list")
            outputs[number] = self.pick(calls)
            if kind == "int" and self.odds(0.2):
                outputs[number] = f"({outputs[number]} + {small(self.column('int', scope))})"
        if self.odds(0.1):
            self.tag("set-returning function under DISTINCT")
            return f"SELECT DISTINCT {listed(outputs)} FROM {source}{where}"
        if self.odds(0.1):
            self.tag("set-returning function under LIMIT")
            return f"SELECT {listed(outputs)} FROM {source}{where} ORDER BY {self._total(kinds)} LIMIT 4"
        return f"SELECT {listed(outputs)} FROM {source}{where}"

    # what an ORDER BY decides besides the order

    def sorted_values(self, value: Value, depth: int, outer: tuple[Column, ...]) -> str:
        source, scope, where = self.from_clause(depth, outer, most=2)
        first = f"{self.pick(scope.columns)}{self.direction()}, " if self.odds(0.4) else ""
        # Rows that the order leaves open have the same value.
        return f"SELECT {value(scope)} FROM {source}{where} ORDER BY {first}1{self.direction()}"

    def _ordered_by_rows(self, kinds: tuple[str, ...], depth: int, outer: tuple[Column, ...]) -> str:
        """An ORDER BY that decides how many rows there are, by an aggregate or a set-returning function."""
        source, scope, where = self.from_clause(depth, outer)
        limit = f" LIMIT {self.chance.randint(1, 4)}" if self.odds(0.2) else ""
        if self.odds(0.45):
            self.tag("aggregate in ORDER BY")
            order = self.aggregate(self.pick(("int", "num", "text", "date")), scope) + self.direction()
            if self.odds(0.7):
                self.tag("aggregate only in ORDER BY")
                outputs = [self.pick(LITERALS[kind]) for kind in kinds]
            else:
                outputs = [self.aggregate(kind, scope) for kind in kinds]
            query = f"SELECT {listed(outputs)} FROM {source}{where} ORDER BY {order}{limit}"
            if depth > 0 and self.odds(0.5):
                # The one row never changes; beside others it is more likely to be looked at.
                return self.tagged(
                    "UNION ALL", f"({query}) UNION ALL ({self.block(kinds, depth - 1, outer)})"
                )
            return query
        self.tag("set-returning function only in ORDER BY")
        if self.odds(0.15):
            keys = [self.key(scope) for _ in range(2)]
            order = f"generate_series(1, {self.pick(('2', 'count(*) % 3'))})"
            outputs = [self.of_groups(kind, keys, scope) for kind in kinds]
            where += f" GROUP BY {', '.join(map(str, keys))}"
        else:
            order = (
                f"generate_series(1, {self.pick((0, 2, 3))})"
                if self.odds(0.3)
                else self.set_returning(scope)[1]
            )
            outputs = [self._output(kind, scope, depth) for kind in kinds]
        order += self.direction()
        if limit:
            order += f", {self._total(kinds)}"
        return f"SELECT {listed(outputs)} FROM {source}{where} ORDER BY {order}{limit}"

    def _over_sorted(self, kinds: tuple[str, ...], depth: int, outer: tuple[Column, ...]) -> str:
        """What depends on the order in which a subquery in FROM gives its rows."""
        inner = (*kinds, "int", "text")
        order = self.chance.sample(range(len(inner)), k=len(inner))
        by = ", ".join(f"o{number}{self.direction()}" for number in order)
        if depth > 0 and self.odds(0.3):
            rows = f"SELECT * FROM ({self.body(inner, depth - 1, outer)}) AS {next(self.names)} ORDER BY {by}"
        else:
            rows = self.block(inner, depth, outer, limit=f" ORDER BY {by}")
        alias = next(self.names)
        scope = Scope(tuple(Column(f"{alias}.o{number}", kind) for number, kind in enumerate(inner)))
        source = f"({rows}) AS {alias}"
        where = f" WHERE {self.simple(scope)}" if self.odds(0.2) else ""
        match self.chance.randrange(5):
            case 0:
                self.tag("LIMIT over a sorted subquery")
                outputs = [scope.columns[number].ref for number in range(len(kinds))]
                where += f" LIMIT {self.chance.randint(1, 4)}"
                where += f" OFFSET {self.chance.randint(1, 2)}" if self.odds(0.3) else ""
            case 1 | 2:
                self.tag("window over a sorted subquery")
                outputs = [self._in_sequence(kind, scope) for kind in kinds]
            case _:
                self.tag("aggregate over a sorted subquery")
                outputs = [self._gathered(kind, scope) for kind in kinds]
        return f"SELECT {listed(outputs)} FROM {source}{where}"

    def _in_sequence(self, kind: str, scope: Scope) -> str:
        """A window function without an order of its own."""
        if kind == "num":
            return f"sum({self.column('int', scope)}) OVER (ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)"
        calls = [
            f"{name}({self.column(kind, scope)})" for name in ("first_value", "last_value", "lag", "lead")
        ]
        if kind == "int":
            calls += ["row_number()"] * 3
        return f"{self.pick(calls)} OVER ()"

    def _gathered(self, kind: str, scope: Scope) -> str:
        """An aggregate without an order of its own, if there is one of the kind whose value depends on it."""
        number, text = self.column("int", scope), self.column("text", scope)
        calls = {
            "int": (f"fold({number})", f"(array_agg({number}))[1]"),
            "text": (f"string_agg({text}, ',')", f"json_agg({text})::text", f"(array_agg({text}))[2]"),
            "ints": (f"array_agg({small(number)})",),
            "list": (f"jsonb_agg({number})",),
            "json": (f"jsonb_agg({text})",),
        }
        return self.pick(calls[kind]) if kind in calls else self.aggregate(kind, scope)

    def _idle_order(self) -> str:
        """An ORDER BY that nothing depends on, at times."""
        return f" ORDER BY o0{self.direction()}" if self.odds(0.05) else ""

    def _constants(self, kinds: tuple[str, ...], depth: int, outer: tuple[Column, ...]) -> str:
        if depth > 0 and self.odds(0.4):
            self.tag("SELECT without FROM")
            outputs = [self.pick(LITERALS[kind]) for kind in kinds]
            return f"SELECT {listed(outputs)} WHERE {self.condition(Scope((), outer), depth)}"
        self.tag("VALUES")
        return f"SELECT * FROM ({self.values(kinds)}) AS {next(self.names)}({names(kinds)})"

    # windows

    def _windowed(self, kinds: tuple[str, ...], depth: int, outer: tuple[Column, ...]) -> str:
        source, scope, where = self.from_clause(depth, outer, most=2)
        plain = Scope(tuple(column for column in scope.columns if not column.merged))
        several = self.odds(0.35)
        windows = [self._window(plain) for _ in range(2 if several else 1)]
        named = self.odds(0.3)
        outputs: list[str] = []
        used: set[int] = set()
        for kind in kinds:
            # Two orders may each put equal rows in another sequence: only a key keeps them together.
            call = self.window_function(kind, plain, rows=scope.keyed or not several)
            if call is None or (outputs and self.odds(0.3)):
                outputs.append(self.expression(kind, scope, depth - 1))
            else:
                number = self.chance.randrange(len(windows))
                used.add(number)
                outputs.append(self._over(call, windows[number], plain, f"w{number}" if named else ""))
        if len(used) > 1:
            self.tag("several windows")
        text = f"SELECT {listed(outputs)} FROM {source}{where}"
        if not named:
            return text
        self.tag("named window")
        definitions = []
        for number, (partition, order) in enumerate(windows):
            if partition and self.odds(0.4):
                self.tag("window that inherits another")
                definitions += [f"p{number} AS ({partition})", f"w{number} AS (p{number}{order})"]
            else:
                definitions.append(f"w{number} AS ({(partition + order).strip()})")
        return f"{text} WINDOW {', '.join(definitions)}"

    def _over(self, call: Call, window: tuple[str, str], scope: Scope, name: str) -> str:
        """A call in a window, which may have a name."""
        self.tag("window function")
        partition, order = window
        if not partition:
            self.tag("window without partition")
        if call.text == "count(*)" and scope.of("int", "date") and self.odds(0.7):
            return self._distance(scope, partition)
        if not call.ordered and not call.frame and self.odds(0.5):
            return self.tagged("window without order", f"{call.text} OVER ({partition})")
        if call.frame:
            self.tag(f"{call.frame.split()[0]} frame")
        if "EXCLUDE" in call.frame:
            self.tag("frame EXCLUDE")
        if name and not call.frame:
            return f"{call.text} OVER {name}"
        return f"{call.text} OVER ({name or partition + order}{call.frame})"

    def _window(self, scope: Scope) -> tuple[str, str]:
        """The clauses of a window whose order tells all rows apart that differ."""
        partition = ""
        if self.odds(0.7):
            partition = f"PARTITION BY {self.expression(self.pick(('int', 'text', 'int')), scope, 0)}"
        first = self.pick(scope.columns)
        order = [first.ref + self.direction(), *(each.ref for each in scope.columns if each != first)]
        return partition, f" ORDER BY {', '.join(order)}"

    def _distance(self, scope: Scope, partition: str) -> str:
        """A frame by distance, which needs one column to measure."""
        self.tag("RANGE frame by distance")
        column = self.pick(scope.of("int", "date"))
        reach = "1" if column.kind == "int" else "'1 day'::interval"
        frame = f"RANGE BETWEEN {reach} PRECEDING AND {self.pick(('CURRENT ROW', f'{reach} FOLLOWING'))}"
        return f"count(*) OVER ({partition} ORDER BY {column} {frame})"

    # several queries

    def _set_operation(self, kinds: tuple[str, ...], depth: int, outer: tuple[Column, ...]) -> str:
        text = f"({self._operand(kinds, self.body(kinds, depth - 1, outer))})"
        for _ in range(self.pick((1, 1, 2))):
            operation = self.pick(("UNION", "INTERSECT", "EXCEPT")) + self.pick(("", " ALL"))
            self.tag(operation)
            if self.odds(0.1):
                branch = self.tagged("VALUES", self._operand(kinds, self.values(kinds)))
            else:
                branch = f"({self._operand(kinds, self.body(kinds, depth - 1, outer))})"
            text = f"{text} {operation} {branch}"
            if self.odds(0.5):
                text = f"({text})"
        if self.odds(0.1):
            self.tag("LIMIT of a set operation")
            text += f" ORDER BY {self._total(kinds)} LIMIT {self.chance.randint(1, 4)}"
        return text

    def _operand(self, kinds: tuple[str, ...], rows: str) -> str:
        """One side of a set operation, which may show any of several equal values: so they look the same."""
        if "num" not in kinds:
            return rows
        alias, columns = next(self.names), [f"o{number}" for number in range(len(kinds))]
        listed = [
            f"trim_scale({alias}.{column}) AS {column}" if kind == "num" else f"{alias}.{column}"
            for kind, column in zip(kinds, columns, strict=True)
        ]
        return f"SELECT {', '.join(listed)} FROM ({rows}) AS {alias}({', '.join(columns)})"

    def _cte(self, kinds: tuple[str, ...], depth: int, outer: tuple[Column, ...]) -> str:
        seen = len(self.common)
        definitions = []
        for _ in range(self.pick((1, 1, 2))):
            name = f"w{next(self.names)}"
            inner = self.kinds(3)
            how = self.pick(("", "", "MATERIALIZED ", "NOT MATERIALIZED "))
            if how:
                self.tag(how.strip())
            definitions.append(f"{name} AS {how}({self.body(inner, depth - 1, outer)})")
            columns = {f"o{number}": kind for number, kind in enumerate(inner)}
            self.common.append(Relation(name, columns, stored=False))
        main = self.body(kinds, depth - 1, outer, shape="rows" if self.odds(0.5) else "")
        for relation in self.common[seen:]:
            references = sum(definition.count(f"{relation.name} ") for definition in [*definitions, main]) - 1
            self.tag("CTE read once" if references < 2 else "CTE read several times")
        del self.common[seen:]
        if main.startswith("WITH"):  # a query has one such clause
            main = f"SELECT * FROM ({main}) AS {next(self.names)}"
        return f"WITH {', '.join(definitions)} {main}"

    def _recursive(self, kinds: tuple[str, ...], depth: int, outer: tuple[Column, ...]) -> str:
        self.tag("WITH RECURSIVE")
        name, alias = f"w{next(self.names)}", next(self.names)
        start = self.block(("int",), depth - 1, ())
        step = f"SELECT {alias}.o0 + 1 FROM {name} AS {alias} WHERE {alias}.o0 BETWEEN 0 AND 3"
        columns, union, clauses = {"o0": "int"}, "UNION", ""
        if self.odds(0.3):
            union = self.pick(("UNION", "UNION ALL"))
            order = self.pick(("DEPTH", "BREADTH"))
            clauses = self.tagged("SEARCH", f" SEARCH {order} FIRST BY o0 SET place")
        if self.odds(0.3):
            clauses += self.tagged("CYCLE", " CYCLE o0 SET looped USING path")
            columns["looped"] = "bool"
        self.common.append(Relation(name, columns, stored=False))
        main = self.body(kinds, depth - 1, outer, shape="rows")
        self.common.pop()
        return f"WITH RECURSIVE {name}(o0) AS ({start} {union} {step}){clauses} {main}"
