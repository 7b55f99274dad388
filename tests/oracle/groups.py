"""Random GROUP BY clauses, with what may stand beside them."""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence

from tests.oracle.expressions import Column, Scope
from tests.oracle.sources import Sources, listed
from tests.oracle.tables import LITERALS


class Groups(Sources, ABC):
    """Makes queries that group their rows."""

    def whole(self, kinds: tuple[str, ...], depth: int, outer: tuple[Column, ...]) -> str:
        self.tag("aggregate without GROUP BY")
        source, scope, where = self.from_clause(depth, outer)
        outputs = [
            self._outer_aggregate(kind, scope) if self.odds(0.12) else self.aggregate(kind, scope)
            for kind in kinds
        ]
        having = ""
        if self.odds(0.1):
            having = self.tagged("HAVING without GROUP BY", self._having([], scope, depth))
        return f"SELECT {listed(outputs)} FROM {source}{where}{having}"

    def _outer_aggregate(self, kind: str, scope: Scope) -> str:
        """A subquery with an aggregate that belongs to the query around it."""
        plain = Scope(tuple(column for column in scope.columns if not column.merged))
        relation, alias = self.pick(self.relations), next(self.names)
        own = next((name for name, its in relation.columns.items() if its == "int"), None)
        numbers = plain.of("int")
        self.tag("aggregate of the query around a subquery")
        if kind == "int" and own and numbers and self.odds(0.3):
            call = f"{self.pick(('max', 'sum', 'count'))}({self.pick(numbers)})"
            return f"(SELECT count(*) FROM {relation.name} AS {alias} WHERE {alias}.{own} < {call})"
        call = self.aggregate(kind, plain)
        # An aggregate without a column of the query around would be one of the subquery.
        return f"(SELECT {call})" if any(column.ref in call for column in plain.columns) else call

    def of_groups(self, kind: str, keys: Sequence[Column], scope: Scope) -> str:
        """A key of a kind, or an aggregate."""
        fitting = [key.ref for key in keys if key.kind == kind]
        return self.pick(fitting) if fitting and self.odds(0.6) else self.aggregate(kind, scope)

    def grouped(self, kinds: tuple[str, ...], depth: int, outer: tuple[Column, ...]) -> str:
        self.tag("GROUP BY")
        source, scope, where = self.from_clause(depth, outer)
        keys = [self.key(scope) for _ in range(self.pick((1, 1, 1, 2, 2, 3)))]
        if depth > 0 and self.odds(0.08):
            keys.append(self._subquery_key(scope, depth))
        outputs = []
        for kind in kinds:
            fitting = [key.ref for key in keys if key.kind == kind]
            if fitting and self.odds(0.6):
                outputs.append(self.pick(fitting))
            elif kind == "int" and self.odds(0.1):
                self.tag("window function over groups")
                order = f"count(*){self.direction()}, {keys[0]}"
                outputs.append(f"{self.pick(('rank()', 'dense_rank()', 'count(*)'))} OVER (ORDER BY {order})")
            elif depth > 0 and self.odds(0.08):
                # Of the grouped rows, only the keys are left for a subquery to refer to.
                self.tag("scalar subquery beside aggregates")
                outputs.append(self.scalar_subquery(kind, Scope(tuple(keys), outer), depth))
            elif self.odds(0.06):
                outputs.append(self._outer_aggregate(kind, scope))
            elif kind == "int" and self.odds(0.06):
                self.tag("set-returning function beside GROUP BY")
                outputs.append(f"generate_series(1, {self.pick(('2', 'count(*) % 3'))})::int")
            else:
                outputs.append(self.aggregate(kind, scope, raw=depth > 1))
        having = self._having(keys, scope, depth) if self.odds(0.35) else ""
        return f"SELECT {listed(outputs)} FROM {source}{where} GROUP BY {', '.join(map(str, keys))}{having}"

    def key(self, scope: Scope) -> Column:
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

    def _subquery_key(self, scope: Scope, depth: int) -> Column:
        self.tag("GROUP BY subquery")
        kind = self.pick(("int", "text", "bool"))
        plain = Scope(tuple(column for column in scope.columns if not column.merged), scope.outer)
        if kind == "bool":
            text = f"EXISTS ({self.block(('int',), depth - 1, plain.further_in)})"
        else:
            text = self.scalar_subquery(kind, plain, depth)
        return Column(text, kind, merged=True)

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

    def grouping_sets(self, kinds: tuple[str, ...], depth: int, outer: tuple[Column, ...]) -> str:
        if self.version >= 18 and self.odds(0.2):
            (source, scope), where = self.twins(), ""
        else:
            source, scope, where = self.from_clause(depth, outer)
        count = self.pick((1, 2, 2, 3))
        keys = {key.ref: key for key in (self.key(self._tellable(scope)) for _ in range(count))}
        if self.odds(0.4):
            self.tag("constant as key of grouping sets")
            kind = self.pick([kind for kind in kinds if kind in ("int", "text")] or ["int"])
            constant = self.pick(LITERALS[kind]) if kind == "text" else f"{self.chance.randint(0, 3)}::int"
            keys[constant] = Column(constant, kind, merged=True)
        names = list(keys)
        outputs = []
        for kind in kinds:
            fitting = [key.ref for key in keys.values() if key.kind == kind]
            if fitting and self.odds(0.7):
                outputs.append(self.pick(fitting))
            elif kind == "int" and self.odds(0.3):
                outputs.append(self.tagged("grouping()", f"grouping({', '.join(names)})"))
            elif kind == "int" and self.odds(0.08):
                self.tag("window function over grouping sets")
                outputs.append("rank() OVER (ORDER BY count(*))")
            else:
                outputs.append(self.aggregate(kind, scope, raw=depth > 1))
        having = self._having([], scope, 0) if self.odds(0.2) else ""
        return f"SELECT {listed(outputs)} FROM {source}{where} GROUP BY {self._sets(names, outputs)}{having}"

    def _tellable(self, scope: Scope) -> Scope:
        """What can be keys of grouping sets: before 18, the server confuses columns that are equal."""
        if self.version >= 18:
            return scope
        stored = tuple(column for column in scope.columns if column.stored)
        return Scope(stored or scope.columns[:1])

    def _sets(self, keys: list[str], outputs: list[str]) -> str:
        """What follows GROUP BY: one element, or several, whose sets are multiplied."""
        if "grouping(" not in " ".join(outputs) and self.odds(0.2):
            self.tag("key of grouping sets by its position")
            keys = [str(outputs.index(key) + 1) if key in outputs else key for key in keys]
        several = self.odds(0.4)
        # Every key occurs, for the select list may show it.
        elements = [self._set(keys, keys), *([self._set(keys)] if several else [])]
        if not several and self.odds(0.2):
            elements.append(self.pick(keys))
        if several and self.odds(0.5):
            return self.tagged("GROUP BY DISTINCT", f"DISTINCT {', '.join(elements)}")
        return ("ALL " if self.odds(0.05) else "") + ", ".join(elements)

    def _set(self, keys: list[str], given: Sequence[str] = ()) -> str:
        """ROLLUP, CUBE or GROUPING SETS of given keys, or of some."""
        chosen = given or self.chance.sample(keys, k=self.chance.randint(1, len(keys)))
        listed = ", ".join(self.chance.sample(chosen, k=len(chosen)))
        match self.chance.randrange(5):
            case 0 | 1:
                return self.tagged("ROLLUP", f"ROLLUP ({listed})")
            case 2:
                return self.tagged("CUBE", f"CUBE ({listed})")
            case 3:
                sets = [f"({listed})", f"({self.pick(chosen)})", "()"]
                return self.tagged("GROUPING SETS", f"GROUPING SETS ({', '.join(sets)})")
            case _:
                nested = self.pick((f"ROLLUP ({listed})", f"CUBE ({listed})", listed))
                return self.tagged("GROUPING SETS", f"GROUPING SETS ({self.pick(keys)}, {nested})")
