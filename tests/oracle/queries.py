"""A grammar of random queries that covers PostgreSQL's SELECT.

Every query is valid, never fails, and gives the same rows whenever it reads the same rows. Each is tagged
with the constructs that it contains.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tests.oracle.expressions import KINDS, Call, Column, Expressions, Scope, small
from tests.oracle.tables import LITERALS, Relation

MOST_ROWS = 300
"""So many rows a FROM clause may have by our guess; joins of more have to be on equality."""

SHAPES = {
    "rows": 22,
    "distinct": 6,
    "distinct_on": 6,
    "grouped": 18,
    "grouping_sets": 6,
    "whole": 5,
    "windowed": 12,
    "limited": 6,
    "ties": 3,
    "set_operation": 10,
    "cte": 9,
    "recursive": 1,
    "expanding": 4,
    "constants": 1,
}
SHALLOW = (*("rows",) * 10, "distinct", "distinct", "grouped", "grouped", "grouped", "constants")
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
    chance: random.Random, relations: Sequence[Relation], depth: int = 2, *, json_table: bool = False
) -> Query:
    """A query over relations, with queries inside it down to a depth; `json_table` if the server has it."""
    grammar = Grammar(chance, relations, json_table)
    shape = grammar.shape()
    if shape in DULL and grammar.odds(0.6):
        shape = "rows"
    kinds = grammar.kinds(2 if shape == "set_operation" else 4)
    return Query(grammar.body(kinds, depth, shape=shape), kinds, frozenset(grammar.tags))


class Grammar(Expressions):
    """Makes queries: the clauses, and what may stand in FROM."""

    def __init__(self, chance: random.Random, relations: Sequence[Relation], json_table: bool) -> None:
        super().__init__(chance)
        self.relations = list(relations)
        self.json_table = json_table
        self.common: list[Relation] = []  # the queries of WITH that can be seen

    def shape(self) -> str:
        return self.chance.choices(list(SHAPES), weights=list(SHAPES.values()))[0]

    def kinds(self, most: int) -> tuple[str, ...]:
        return tuple(self.pick(KINDS) for _ in range(self.chance.randint(1, most)))

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
                return self._grouped(kinds, depth, outer)
            case "grouping_sets":
                return self._grouping_sets(kinds, depth, outer)
            case "whole":
                return self._whole(kinds, depth, outer)
            case "windowed":
                return self._windowed(kinds, depth, outer)
            case "limited":
                return self._limited(kinds, depth, outer)
            case "ties":
                self.tag("FETCH WITH TIES")
                first = self.chance.randint(1, 3)
                limit = f" ORDER BY o0{self._direction()} FETCH FIRST {first} ROWS WITH TIES"
                return self.block(kinds, depth, outer, limit=limit)
            case "set_operation":
                return self._set_operation(kinds, depth, outer)
            case "cte":
                return self._cte(kinds, depth, outer)
            case "recursive":
                return self._recursive(kinds, depth, outer)
            case "expanding":
                return self._expanding(kinds, depth, outer)
            case "constants":
                self.tag("VALUES")
                return f"SELECT * FROM ({self._values(kinds)}) AS {next(self.names)}({names(kinds)})"
            case _:
                return self.block(kinds, depth, outer)

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
        source, scope, where = self._from(depth, outer)
        outputs = [self._output(kind, scope, depth) for kind in kinds]
        return f"SELECT {distinct}{listed(outputs)} FROM {source}{where}{limit}"

    def _output(self, kind: str, scope: Scope, depth: int) -> str:
        found = [column for column in scope.outer if column.kind == kind]
        if found and self.odds(0.1):
            self.tag("outer column in select list")
            return self.pick(found).ref
        return self.expression(kind, scope, depth)

    def _direction(self) -> str:
        return self.pick(("", "", " DESC", " NULLS FIRST", " DESC NULLS LAST"))

    def _total(self, kinds: tuple[str, ...]) -> str:
        """An order by all columns: rows that it leaves open are equal."""
        return ", ".join(f"o{number}{self._direction()}" for number in range(len(kinds)))

    def _limited(self, kinds: tuple[str, ...], depth: int, outer: tuple[Column, ...]) -> str:
        self.tag("LIMIT")
        limit = f" ORDER BY {self._total(kinds)} LIMIT {self.chance.randint(1, 4)}"
        if self.odds(0.4):
            limit += self.tagged("OFFSET", f" OFFSET {self.chance.randint(1, 2)}")
        if depth > 0 and self.odds(0.3):
            return f"SELECT * FROM ({self.body(kinds, depth - 1, outer)}) AS {next(self.names)}{limit}"
        return self.block(kinds, depth, outer, limit=limit)

    def _distinct_on(self, kinds: tuple[str, ...], depth: int, outer: tuple[Column, ...]) -> str:
        self.tag("DISTINCT ON")
        source, scope, where = self._from(depth, outer)
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
        source, scope, where = self._from(depth, outer)
        outputs = [self.column(kind, scope) for kind in kinds]
        for number, kind in enumerate(kinds):
            if kind == "int":
                calls = (f"unnest({self.column('ints', scope)})", self._series(scope))
            elif kind == "json":
                calls = (f"jsonb_array_elements({self.column('list', scope)})",) * 2
            elif kind == "text":
                calls = (f"jsonb_array_elements_text({self.column('list', scope)})",) * 2
            else:
                continue
            self.tag("set-returning function in select list")
            outputs[number] = self.pick(calls)
        return f"SELECT {listed(outputs)} FROM {source}{where}"

    def _series(self, scope: Scope) -> str:
        return f"generate_series(1, {small(self.column('int', scope))} % 4)"

    # GROUP BY

    def _whole(self, kinds: tuple[str, ...], depth: int, outer: tuple[Column, ...]) -> str:
        self.tag("aggregate without GROUP BY")
        source, scope, where = self._from(depth, outer)
        outputs = [self.aggregate(kind, scope) for kind in kinds]
        return f"SELECT {listed(outputs)} FROM {source}{where}"

    def _grouped(self, kinds: tuple[str, ...], depth: int, outer: tuple[Column, ...]) -> str:
        self.tag("GROUP BY")
        source, scope, where = self._from(depth, outer)
        keys = [self._key(scope) for _ in range(self.pick((1, 1, 1, 2, 2, 3)))]
        outputs = []
        for kind in kinds:
            fitting = [key.ref for key in keys if key.kind == kind]
            if fitting and self.odds(0.6):
                outputs.append(self.pick(fitting))
            elif kind == "int" and self.odds(0.1):
                self.tag("window function over groups")
                order = f"count(*){self._direction()}, {keys[0]}"
                outputs.append(f"{self.pick(('rank()', 'dense_rank()', 'count(*)'))} OVER (ORDER BY {order})")
            elif depth > 0 and self.odds(0.08):
                # Of the grouped rows, only the keys are left for a subquery to refer to.
                self.tag("scalar subquery beside aggregates")
                outputs.append(self.scalar_subquery(kind, Scope(tuple(keys), outer), depth))
            else:
                outputs.append(self.aggregate(kind, scope, raw=depth > 1))
        having = self._having(keys, scope, depth) if self.odds(0.35) else ""
        return f"SELECT {listed(outputs)} FROM {source}{where} GROUP BY {', '.join(map(str, keys))}{having}"

    def _key(self, scope: Scope) -> Column:
        column = self.pick(scope.columns)
        if self.odds(0.65) or column.kind not in ("int", "text"):
            return column
        self.tag("GROUP BY expression")
        if column.kind == "text":
            text, kind = self.pick((f"left({column}, 1)", f"coalesce({column}, '-')")), "text"
        else:
            choices = (
                (f"({column} % 2)", "int"),
                (f"coalesce({column}, 0)", "int"),
                (f"({column} > 1)", "bool"),
            )
            text, kind = self.pick(choices)
        return Column(text, kind, merged=True)  # a subquery could not refer to it

    def _having(self, keys: Sequence[Column], scope: Scope, depth: int) -> str:
        self.tag("HAVING")
        number = self.column("int", Scope(scope.columns))
        plain = [
            f"count(*) > {self.pick((1, 2))}",
            f"sum({number}) > 1",
            f"max({number}) IS NULL",
            f"count(*) FILTER (WHERE {self.simple(Scope(scope.columns))}) >= 1",
            f"count(DISTINCT {number}) < 3",
        ]
        if depth > 0 and self.odds(0.4):
            self.tag("subquery in HAVING")
            groups = Scope(tuple(keys), scope.outer)
            if self.odds(0.5):
                return f" HAVING {self.condition(groups, depth)}"
            call = self.pick(("count(*)", f"max({number})"))
            return f" HAVING {call} >= {self.scalar_subquery('int', groups, depth)}"
        return f" HAVING {self.pick(plain)}"

    def _grouping_sets(self, kinds: tuple[str, ...], depth: int, outer: tuple[Column, ...]) -> str:
        source, scope, where = self._from(depth, outer)
        keys = list(
            {key.ref: key for key in (self._key(scope) for _ in range(self.pick((1, 2, 2, 3))))}.values()
        )
        names = [key.ref for key in keys]
        match self.chance.randrange(4):
            case 0:
                clause = self.tagged("ROLLUP", f"ROLLUP ({', '.join(names)})")
            case 1:
                clause = self.tagged("CUBE", f"CUBE ({', '.join(names)})")
            case 2:
                sets = [f"({', '.join(self.chance.sample(names, k=size))})" for size in (len(names), 1, 0)]
                clause = self.tagged("GROUPING SETS", f"GROUPING SETS ({', '.join(sets)})")
            case _:
                rest = f", {', '.join(names[1:])}" if names[1:] else ""
                clause = self.tagged("ROLLUP", f"ROLLUP ({names[0]}){rest}")
        outputs = []
        for kind in kinds:
            fitting = [key.ref for key in keys if key.kind == kind]
            if fitting and self.odds(0.6):
                outputs.append(self.pick(fitting))
            elif kind == "int" and self.odds(0.4):
                outputs.append(self.tagged("grouping()", f"grouping({', '.join(names)})"))
            else:
                outputs.append(self.aggregate(kind, scope, raw=depth > 1))
        having = self._having([], scope, 0) if self.odds(0.2) else ""
        return f"SELECT {listed(outputs)} FROM {source}{where} GROUP BY {clause}{having}"

    # windows

    def _windowed(self, kinds: tuple[str, ...], depth: int, outer: tuple[Column, ...]) -> str:
        source, scope, where = self._from(depth, outer, most=2)
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
        definitions = (f"w{number} AS ({''.join(window).strip()})" for number, window in enumerate(windows))
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
        order = [first.ref + self._direction(), *(each.ref for each in scope.columns if each != first)]
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
        text = f"({self.body(kinds, depth - 1, outer)})"
        for _ in range(self.pick((1, 1, 2))):
            operation = self.pick(("UNION", "INTERSECT", "EXCEPT")) + self.pick(("", " ALL"))
            self.tag(operation)
            if self.odds(0.1):
                branch = self.tagged("VALUES", self._values(kinds))
            else:
                branch = f"({self.body(kinds, depth - 1, outer)})"
            text = f"{text} {operation} {branch}"
            if self.odds(0.5):
                text = f"({text})"
        return text

    def _values(self, kinds: tuple[str, ...]) -> str:
        rows = (", ".join(self.pick(LITERALS[kind]) for kind in kinds) for _ in range(self.pick((1, 2, 3))))
        return f"VALUES {', '.join(f'({row})' for row in rows)}"

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
        self.common.append(Relation(name, {"o0": "int"}, stored=False))
        main = self.body(kinds, depth - 1, outer, shape="rows")
        self.common.pop()
        return f"WITH RECURSIVE {name} AS ({start} UNION {step}) {main}"

    # FROM

    def _from(self, depth: int, outer: tuple[Column, ...], most: int = 4) -> tuple[str, Scope, str]:
        """A FROM clause, what it shows, and a WHERE clause."""
        joined = min(self.pick((1, 1, 2, 2, 3, 4) if depth > 0 else (1, 1, 2)), most)
        conditions: list[str] = []
        if joined > 1 and self.odds(0.12):
            text, scope = self._merging(outer, joined)
        elif joined > 1 and self.odds(0.12):
            text, scope = self._commas(depth, outer, joined, conditions)
        else:
            text, scope = self._source(depth, outer)
            for _ in range(joined - 1):
                text, scope = self._join(text, scope, depth)
        if outer and self.odds(0.85):
            conditions.append(self._correlation(scope))
        if self.odds(0.45):
            conditions.append(self.condition(scope, depth))
        return text, scope, f" WHERE {' AND '.join(conditions)}" if conditions else ""

    def _correlation(self, scope: Scope) -> str:
        """A condition between a column of this query and one of those around."""
        pairs = [
            (mine, theirs)
            for mine in scope.columns
            for theirs in scope.outer
            if mine.kind == theirs.kind and mine.kind in ("int", "text", "num", "date")
        ]
        if not pairs:
            return "true"
        mine, theirs = self.pick(pairs)
        comparison = self.pick(("=", "=", "=", "=", "<", ">=", "<>"))
        self.tag("correlation by equality" if comparison == "=" else "correlation by comparison")
        return f"{mine} {comparison} {theirs}"

    def _source(self, depth: int, outer: tuple[Column, ...]) -> tuple[str, Scope]:
        """One relation in FROM."""
        alias = next(self.names)
        if depth > 0 and self.odds(0.25):
            return self._derived(alias, depth, outer)
        if self.odds(0.03):
            self.tag("VALUES")
            kinds = self.kinds(2)
            return f"({self._values(kinds)}) AS {alias}({names(kinds)})", self._shown(alias, kinds, outer)
        if self.common and self.odds(0.75):
            relation = self.pick(self.common)
        else:
            relation = self.pick(self.relations)
        if relation.tag:
            self.tag(relation.tag)
        columns = tuple(
            Column(f"{alias}.{name}", kind, stored=relation.stored) for name, kind in relation.columns.items()
        )
        return f"{relation.name} AS {alias}", Scope(
            columns + self._row(alias), outer, keyed=bool(relation.key)
        )

    def _row(self, alias: str) -> tuple[Column, ...]:
        """At times the row as a whole is a value, too."""
        return (Column(alias, "row"),) if self.odds(0.06) else ()

    def _derived(self, alias: str, depth: int, outer: tuple[Column, ...]) -> tuple[str, Scope]:
        self.tag("derived table")
        kinds = ("int", *self.kinds(2))
        return f"({self.body(kinds, depth - 1, outer)}) AS {alias}", self._shown(alias, kinds, outer)

    def _shown(self, alias: str, kinds: Iterable[str], outer: tuple[Column, ...]) -> Scope:
        columns = tuple(Column(f"{alias}.o{number}", kind) for number, kind in enumerate(kinds))
        return Scope(columns + self._row(alias), outer, size=20)

    def _join(self, left: str, scope: Scope, depth: int) -> tuple[str, Scope]:
        """What stands there, joined with one more relation."""
        if self.odds(0.15):
            return self._lateral(left, scope, depth)
        if depth > 0 and self.odds(0.1):
            self.tag("nested join")
            first, mine = self._source(depth - 1, scope.outer)
            right, mine = self._join(first, mine, 0)
            right = f"({right})"
        else:
            right, mine = self._source(depth, scope.outer)
        if f" {right.partition(' AS ')[0]} AS " in f" {left}":
            self.tag("self join")
        kinds = ("JOIN", "JOIN", "JOIN", "LEFT JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "CROSS JOIN")
        kind = self.pick(kinds)
        size = scope.size * mine.size
        if kind == "CROSS JOIN" and size > MOST_ROWS:
            kind = "JOIN"
        both = Scope(scope.columns + mine.columns, scope.outer, keyed=scope.keyed and mine.keyed, size=size)
        if kind == "CROSS JOIN":
            return f"{left} {self.tagged('cross join', kind)} {right}", both
        full = kind == "FULL JOIN"
        pairs = matching(scope.columns, mine.columns, stored=full)
        if full and not pairs:
            kind, full = "LEFT JOIN", False
            pairs = matching(scope.columns, mine.columns, stored=False)
        self.tag("inner join" if kind == "JOIN" else kind.lower())
        if not pairs:
            return f"{left} {kind} {right} ON true", both
        ours, theirs = self.pick(pairs)
        if size < MOST_ROWS and not full and self.odds(0.2):
            self.tag("non-equi join")
            comparison = self.pick(("<", ">=", "<>", "IS DISTINCT FROM"))
            return f"{left} {kind} {right} ON {ours} {comparison} {theirs}", both
        on = f"{ours} = {theirs}"
        if self.odds(0.25):
            on += f" AND {self.simple(Scope(both.columns))}" if not full else f" AND {ours} IS NOT NULL"
        elif not full and depth > 1 and self.odds(0.08):
            self.tag("subquery in ON")
            on += f" AND {self.condition(both, depth - 1)}"
        return f"{left} {kind} {right} ON {on}", replace(both, size=size / 4)

    def _lateral(self, left: str, scope: Scope, depth: int) -> tuple[str, Scope]:
        alias = next(self.names)
        plain = Scope(tuple(column for column in scope.columns if not column.merged))
        numbered = False
        if depth > 0 and self.odds(0.45):
            self.tag("LATERAL subquery")
            kinds = ("int", *self.kinds(1))
            item = f"LATERAL ({self.body(kinds, depth - 1, scope.further_in)}) AS {alias}"
            mine = self._shown(alias, kinds, ())
        elif self.json_table and self.odds(0.3):
            self.tag("JSON_TABLE")
            item, numbered = self._json_table(alias, self.column("list", plain)), True
            mine = self._shown(alias, ("int", "int", "text"), ())
        else:
            self.tag("LATERAL function")
            kind, call = self.pick(
                (
                    ("int", f"unnest({self.column('ints', plain)})"),
                    ("int", self._series(plain)),
                    ("json", f"jsonb_array_elements({self.column('list', plain)})"),
                    ("text", f"jsonb_array_elements_text({self.column('list', plain)})"),
                )
            )
            numbered = self.odds(0.35)
            kinds = (kind, "int") if numbered else (kind,)
            ordinality = self.tagged("WITH ORDINALITY", " WITH ORDINALITY") if numbered else ""
            item = f"LATERAL {call}{ordinality} AS {alias}({names(kinds)})"
            mine = self._shown(alias, kinds, ())
        both = Scope(
            scope.columns + mine.columns, scope.outer, keyed=scope.keyed and numbered, size=scope.size * 2
        )
        if self.odds(0.5):
            self.tag("LEFT JOIN LATERAL")
            return f"{left} LEFT JOIN {item} ON true", both
        return f"{left} CROSS JOIN {item}", both

    def _json_table(self, alias: str, given: str) -> str:
        """A JSON_TABLE of three columns o0, o1, o2, the first of which counts its rows."""
        nested = "NESTED PATH '$' COLUMNS (o2 text PATH '$.type()')"
        columns = self.pick(
            (
                "o1 int PATH '$', o2 text PATH '$' DEFAULT 'none' ON EMPTY",
                f"o1 int PATH '$ ? (@ > 1)', {nested}",
                "o1 int PATH '$.a' DEFAULT -1 ON EMPTY NULL ON ERROR, o2 text FORMAT JSON PATH '$'",
            )
        )
        return f"JSON_TABLE({given}, '$[*]' COLUMNS (o0 FOR ORDINALITY, {columns})) AS {alias}"

    def _merging(self, outer: tuple[Column, ...], joined: int) -> tuple[str, Scope]:
        """Tables joined by the names of their columns."""
        tables = [relation for relation in self.relations if "a" in relation.columns]
        natural = self.odds(0.4)
        text, columns, merged = "", [], {"a": "int"}
        if not natural and self.odds(0.3):
            tables, merged = [table for table in tables if "b" in table.columns], {"a": "int", "b": "text"}
        for number in range(joined):
            table, alias = self.pick(tables), next(self.names)
            rest = {name: kind for name, kind in table.columns.items() if name not in merged}
            if natural:
                shown = ", ".join(["a", *(f"{name} AS {alias}{name}" for name in rest)])
                item = f"(SELECT {shown} FROM {table.name}) AS {alias}"
                rest = {f"{alias}{name}": kind for name, kind in rest.items()}
            else:
                item = f"{table.name} AS {alias}"
            columns += [Column(f"{alias}.{name}", kind) for name, kind in {**merged, **rest}.items()]
            if number == 0:
                text = item
                continue
            kind = self.pick(("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"))
            self.tag("inner join" if kind == "JOIN" else kind.lower())
            if natural:
                text += self.tagged("natural join", f" NATURAL {kind} {item}")
            else:
                text += self.tagged("USING", f" {kind} {item} USING ({', '.join(merged)})")
        columns += [Column(name, kind, merged=True) for name, kind in merged.items()]
        return text, Scope(tuple(columns), outer, size=8.0 * joined)

    def _commas(
        self, depth: int, outer: tuple[Column, ...], joined: int, conditions: list[str]
    ) -> tuple[str, Scope]:
        self.tag("comma join")
        text, scope = self._source(depth, outer)
        for _ in range(joined - 1):
            item, mine = self._source(depth - 1, outer)
            pairs = matching(scope.columns, mine.columns, stored=False)
            if pairs:
                ours, theirs = self.pick(pairs)
                conditions.append(f"{ours} = {theirs}")
            text += f", {item}"
            scope = Scope(
                scope.columns + mine.columns,
                outer,
                keyed=scope.keyed and mine.keyed,
                size=scope.size * mine.size / 4,
            )
        return text, scope


def matching(left: Iterable[Column], right: Sequence[Column], *, stored: bool) -> list[tuple[Column, Column]]:
    """Pairs of columns to join on; `stored` leaves out what could turn out to be constant."""
    return [
        (ours, theirs)
        for ours in left
        for theirs in right
        if ours.kind == theirs.kind
        and ours.kind in ("int", "text", "num", "date")
        and (not stored or (ours.stored and theirs.stored))
    ]


def listed(outputs: Sequence[str]) -> str:
    """A select list."""
    return ", ".join(f"{text} AS o{number}" for number, text in enumerate(outputs))


def names(kinds: Sequence[str]) -> str:
    return ", ".join(f"o{number}" for number in range(len(kinds)))
