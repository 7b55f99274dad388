"""Random calls of aggregates and of window functions, as SQL text."""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass

from tests.oracle.expressions import Expressions, Scope, small


@dataclass(frozen=True)
class Call:
    """A window function with its frame."""

    text: str
    frame: str = ""
    ordered: bool = False  # it means nothing without an order


class Calls(Expressions, ABC):
    """Makes calls."""

    # aggregates

    def aggregate(self, kind: str, scope: Scope, *, raw: bool = False) -> str:
        """An aggregate call of a kind; `raw` if nothing computes with its value."""
        own = Scope(scope.columns)
        call, tag = self._call(kind, own, raw)
        self.tag(tag)
        if self.odds(0.2) and call.endswith(")") and not call.startswith(("round(", "to_jsonb(")):
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
        if kind == "text" and self.odds(0.25):
            return self.pick(
                (
                    (f"json_agg({number} ORDER BY {number}{order})::text", "json_agg"),
                    (f"json_agg({text} ORDER BY {text}{order})::text", "json_agg"),
                    (
                        f"json_object_agg(coalesce({text}, ''), {number} ORDER BY {text}, {number})::text",
                        "json_object_agg",
                    ),
                )
            )
        if kind in ("json", "list") and self.version >= 16 and self.odds(0.4):
            return self.pick(self._sql_json(kind, number, text))
        return self.pick(choices[kind])

    def _sql_json(self, kind: str, number: str, text: str) -> list[tuple[str, str]]:
        """The aggregates of SQL/JSON. Of several values of a key any may win, so a key has only one."""
        nulls = self.pick(("NULL", "ABSENT"))
        array = f"JSON_ARRAYAGG({number} ORDER BY {number} {nulls} ON NULL RETURNING jsonb)"
        found = [(array, "JSON_ARRAYAGG")]
        if kind == "json":
            pair = self.pick(
                (f"coalesce({text}, '~') VALUE length({text})", f"coalesce({text}, '~'): {text}")
            )
            found.append((f"JSON_OBJECTAGG({pair} {nulls} ON NULL RETURNING jsonb)", "JSON_OBJECTAGG"))
        return found

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
