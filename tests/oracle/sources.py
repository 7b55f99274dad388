"""What may stand in FROM: tables, joins, derived tables, functions."""

from __future__ import annotations

import random
from abc import ABC
from collections.abc import Iterable, Sequence
from dataclasses import replace

from tests.oracle.calls import Calls
from tests.oracle.expressions import KINDS, Column, Scope, small
from tests.oracle.tables import LITERALS, Relation

MOST_ROWS = 300
"""So many rows a FROM clause may have by our guess; joins of more have to be on equality."""


class Sources(Calls, ABC):
    """Makes FROM clauses over relations."""

    def __init__(self, chance: random.Random, relations: Sequence[Relation], version: int) -> None:
        super().__init__(chance, version)
        self.relations = list(relations)
        self.common: list[Relation] = []  # the queries of WITH that can be seen

    def kinds(self, most: int) -> tuple[str, ...]:
        return tuple(self.pick(KINDS) for _ in range(self.chance.randint(1, most)))

    def values(self, kinds: tuple[str, ...]) -> str:
        rows = (", ".join(self.pick(LITERALS[kind]) for kind in kinds) for _ in range(self.pick((1, 2, 3))))
        return f"VALUES {', '.join(f'({row})' for row in rows)}"

    def from_clause(self, depth: int, outer: tuple[Column, ...], most: int = 4) -> tuple[str, Scope, str]:
        """A FROM clause, what it shows, and a WHERE clause."""
        joined = min(self.pick((1, 1, 2, 2, 3, 4) if depth > 0 else (1, 1, 2)), most)
        conditions: list[str] = []
        if joined > 1 and self.odds(0.12):
            text, scope = self._merging(depth, outer, joined)
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
            return f"({self.values(kinds)}) AS {alias}({names(kinds)})", self._shown(alias, kinds, outer)
        if self.odds(0.04):
            return self._aliased_join(alias, outer)
        if self.common and self.odds(0.75):
            relation = self.pick(self.common)
        else:
            relation = self.pick(self.relations)
        if relation.tag:
            self.tag(relation.tag)
        # (x).a is the field of a whole row.
        form = self.tagged("field of a whole row", "({}).{}") if self.odds(0.03) else "{}.{}"
        columns = tuple(
            Column(form.format(alias, name), kind, stored=relation.stored)
            for name, kind in relation.columns.items()
        )
        text = relation.name
        # To * in a query below the WITH clause, PostgreSQL gives no column of CYCLE.
        if self.odds(0.04) and "looped" not in relation.columns:
            text = self.tagged("TABLE", f"(TABLE {relation.name})")
        elif relation.key and self.odds(0.01):
            text = self.tagged("ONLY", f"ONLY {relation.name}")
        return f"{text} AS {alias}", Scope(
            columns + self._row(alias, relation.name), outer, keyed=bool(relation.key)
        )

    def _row(self, alias: str, table: str = "") -> tuple[Column, ...]:
        """At times the row as a whole is a value, too."""
        return (Column(alias, "row", table=table),) if self.odds(0.06) else ()

    def _aliased_join(self, alias: str, outer: tuple[Column, ...]) -> tuple[str, Scope]:
        """A join in parentheses with a name of its own, which hides those inside."""
        self.tag("join with an alias")
        left, right = self.pick(self.relations), self.pick(self.relations)
        ours, theirs = next(self.names), next(self.names)
        kinds = (*left.columns.values(), *right.columns.values())
        mine = [Column(f"{ours}.{name}", kind) for name, kind in left.columns.items()]
        others = [Column(f"{theirs}.{name}", kind) for name, kind in right.columns.items()]
        pairs = matching(mine, others, stored=False)
        on = "{} = {}".format(*self.pick(pairs)) if pairs else "true"
        kind = self.pick(("JOIN", "LEFT JOIN", "RIGHT JOIN"))
        text = f"({left.name} AS {ours} {kind} {right.name} AS {theirs} ON {on}) AS {alias}({names(kinds)})"
        return text, self._shown(alias, kinds, outer)

    def twins(self) -> tuple[str, Scope]:
        """A derived table with columns that are equal, yet not the same; two are constant."""
        self.tag("equal columns of a derived table")
        relation, alias, inner = self.pick(self.relations), next(self.names), next(self.names)
        name, kind = self.pick(list(relation.columns.items()))
        constant = self.pick(("int", "text"))
        columns = [(f"{inner}.{name}", kind)] * 2 + [(self.pick(LITERALS[constant]), constant)] * 2
        columns += [(f"{inner}.{each}", kind) for each, kind in relation.columns.items() if each != name][:2]
        shown = ", ".join(f"{text} AS o{number}" for number, (text, _) in enumerate(columns))
        return (
            f"(SELECT {shown} FROM {relation.name} AS {inner}) AS {alias}",
            self._shown(alias, [kind for _, kind in columns], ()),
        )

    def _derived(self, alias: str, depth: int, outer: tuple[Column, ...]) -> tuple[str, Scope]:
        self.tag("derived table")
        kinds = ("int", *self.kinds(2))
        renamed = f"({names(kinds)})" if self.odds(0.1) else ""
        # What has one row at most shows more when it is joined than by itself.
        shape = "ordered_by_rows" if self.odds(0.08) else ""
        query = self.body(kinds, depth - 1, outer, shape=shape)
        return f"({query}) AS {alias}{renamed}", self._shown(alias, kinds, outer)

    def _shown(self, alias: str, kinds: Iterable[str], outer: tuple[Column, ...]) -> Scope:
        columns = tuple(Column(f"{alias}.o{number}", kind) for number, kind in enumerate(kinds))
        return Scope(columns + self._row(alias), outer, size=20)

    def _join(self, left: str, scope: Scope, depth: int) -> tuple[str, Scope]:
        """What stands there, joined with one more relation."""
        if self.odds(0.2):
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
        """What stands there, joined with what is computed from each of its rows."""
        alias = next(self.names)
        plain = Scope(tuple(column for column in scope.columns if not column.merged))
        numbered = False
        if depth > 0 and self.odds(0.5):
            self.tag("LATERAL subquery")
            kinds = ("int", *self.kinds(1))
            item = f"LATERAL ({self.body(kinds, depth - 1, scope.further_in)}) AS {alias}"
            mine = self._shown(alias, kinds, ())
        elif self.odds(0.12):
            self.tag("LATERAL VALUES")
            kinds = self.kinds(2)
            rows = ", ".join(
                f"({', '.join(self.column(kind, plain) for kind in kinds)})"
                for _ in range(self.pick((1, 2, 3)))
            )
            item = f"LATERAL (VALUES {rows}) AS {alias}({names(kinds)})"
            mine = self._shown(alias, kinds, ())
        elif self.version >= 17 and self.odds(0.25):
            self.tag("JSON_TABLE")
            item, numbered = self._json_table(alias, self.column("list", plain)), True
            mine = self._shown(alias, ("int", "int", "text"), ())
        else:
            self.tag("LATERAL function")
            calls = [self.set_returning(plain)]
            if self.odds(0.12):
                calls.append(self.set_returning(plain))
            kinds = tuple(kind for kind, _ in calls)
            call = calls[0][1]
            if len(calls) > 1 or self.odds(0.05):
                call = self.tagged("ROWS FROM", f"ROWS FROM ({', '.join(text for _, text in calls)})")
            numbered = self.odds(0.35)
            ordinality = self.tagged("WITH ORDINALITY", " WITH ORDINALITY") if numbered else ""
            kinds += ("int",) * numbered
            item = f"{self.pick(('LATERAL ', ''))}{call}{ordinality} AS {alias}({names(kinds)})"
            mine = self._shown(alias, kinds, ())
        both = Scope(
            scope.columns + mine.columns, scope.outer, keyed=scope.keyed and numbered, size=scope.size * 2
        )
        kind = self.pick(("JOIN", "JOIN", "JOIN", "LEFT JOIN", "LEFT JOIN", "CROSS JOIN"))
        if kind == "CROSS JOIN":
            return f"{left} CROSS JOIN {item}", both
        self.tag(f"{kind} LATERAL")
        on = self._lateral_condition(scope, mine)
        return f"{left} {kind} {item} ON {on}", both

    def _lateral_condition(self, scope: Scope, mine: Scope) -> str:
        if self.odds(0.2):
            return "true"
        self.tag("LATERAL with ON")
        pairs = matching(scope.columns, mine.columns, stored=False)
        if pairs and self.odds(0.6):
            ours, theirs = self.pick(pairs)
            return f"{theirs} {self.pick(('=', '=', '=', '<', '<>'))} {ours}"
        return self.simple(Scope(mine.columns))

    def set_returning(self, scope: Scope) -> tuple[str, str]:
        """The kind of what a set-returning function gives, and its call."""
        return self.pick(
            (
                ("int", f"unnest({self.column('ints', scope)})"),
                ("int", f"unnest({self.column('ints', scope)})"),
                ("int", self.series(scope)),
                ("int", self.series(scope)),
                ("json", f"jsonb_array_elements({self.column('list', scope)})"),
                ("text", f"jsonb_array_elements_text({self.column('list', scope)})"),
                ("text", f"string_to_table({self.column('text', scope)}, NULL)"),
            )
        )

    def series(self, scope: Scope) -> str:
        first = self.pick(("1", "1", "0"))
        return f"generate_series({first}, {small(self.column('int', scope))} % 4)"

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

    def _merging(self, depth: int, outer: tuple[Column, ...], joined: int) -> tuple[str, Scope]:
        """Tables joined by the names of their columns."""
        tables = [relation for relation in self.relations if "a" in relation.columns]
        natural = self.odds(0.4)
        text, merged = "", {"a": "int"}
        columns: list[Column] = []
        if not natural and self.odds(0.3):
            tables, merged = [table for table in tables if "b" in table.columns], {"a": "int", "b": "text"}
        for number in range(joined):
            table, alias = self.pick(tables), next(self.names)
            rest = {name: kind for name, kind in table.columns.items() if name not in merged}
            kinds = ["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"]
            if number and not natural and self.odds(0.4):
                self.tag("LATERAL with USING")
                kinds, rest = kinds[:2], {}
                item = self._lateral_with(merged, alias, tuple(columns) + outer, depth)
            elif natural:
                shown = ", ".join(["a", *(f"{name} AS {alias}{name}" for name in rest)])
                item = f"(SELECT {shown} FROM {table.name}) AS {alias}"
                rest = {f"{alias}{name}": kind for name, kind in rest.items()}
            else:
                item = f"{table.name} AS {alias}"
            columns += [Column(f"{alias}.{name}", kind) for name, kind in {**merged, **rest}.items()]
            if number == 0:
                text = item
                continue
            kind = self.pick(kinds)
            self.tag("inner join" if kind == "JOIN" else kind.lower())
            if natural:
                text += self.tagged("natural join", f" NATURAL {kind} {item}")
                continue
            text += self.tagged("USING", f" {kind} {item} USING ({', '.join(merged)})")
            if self.odds(0.2):
                alias = next(self.names)
                text += self.tagged("USING with an alias", f" AS {alias}")
                columns += [Column(f"{alias}.{name}", kind) for name, kind in merged.items()]
        columns += [Column(name, kind, merged=True) for name, kind in merged.items()]
        return text, Scope(tuple(columns), outer, size=8.0 * joined)

    def _lateral_with(
        self, merged: dict[str, str], alias: str, before: tuple[Column, ...], depth: int
    ) -> str:
        """A lateral item whose columns have the names of others."""
        listed = f"{alias}({', '.join(merged)})"
        if len(merged) == 1 and self.odds(0.5):
            plain = Scope(tuple(column for column in before if not column.merged))
            numbers = self.column("ints", plain)
            return f"LATERAL {self.pick((self.series(plain), f'unnest({numbers})'))} AS {listed}"
        return f"LATERAL ({self.body(tuple(merged.values()), depth - 1, before)}) AS {listed}"

    def _commas(
        self, depth: int, outer: tuple[Column, ...], joined: int, conditions: list[str]
    ) -> tuple[str, Scope]:
        self.tag("comma join")
        text, scope = self._source(depth, outer)
        for _ in range(joined - 1):
            item, mine = self._source(depth - 1, outer)
            pairs = matching(scope.columns, mine.columns, stored=False)
            size = scope.size * mine.size
            if pairs:
                ours, theirs = self.pick(pairs)
                conditions.append(f"{ours} = {theirs}")
                size /= 4
            elif size > MOST_ROWS:
                break
            text += f", {item}"
            scope = Scope(scope.columns + mine.columns, outer, keyed=scope.keyed and mine.keyed, size=size)
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


def names(kinds: Sequence[str]) -> str:
    return ", ".join(f"o{number}" for number in range(len(kinds)))


def listed(outputs: Sequence[str]) -> str:
    """A select list."""
    return ", ".join(f"{text} AS o{number}" for number, text in enumerate(outputs))
