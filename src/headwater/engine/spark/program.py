"""A maintenance plan as a program for Spark: what PostgreSQL reads, Spark computes and PostgreSQL finishes.

A *part* is one Spark statement. It unites the rows of its blocks and terms, and wraps them: a bag passes them
on, groups are aggregated to their states. The result has wire types only; `finish…` is the SQL by which
PostgreSQL turns it into the tables that `headwater.engine.base` promises. A bag with branches has one part
for each, because their results differ; groups have one part.

A nonlinear node inside a query is a table to the block that reads it. PostgreSQL computes its change
(`headwater.engine.postgres.nested_deltas`) from the change of what it reads; where that is a join, there is a
program for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headwater.engine.spark.translate import Leaf, Link
from headwater.engine.spark.transport import encoding
from headwater.engine.spark.transport.wire import Column, Kind
from headwater.plan.aggregates import SCALE_DIGITS, State, StateKind, delta_columns
from headwater.plan.operators import ColumnType, Query, Select
from headwater.plan.quoting import identifier
from headwater.plan.storage_plan import BagPlan, GroupPlan
from headwater.plan.terms import Term, Version
from headwater.plan.values import WEIGHT

W = "w"
"""The weight on Spark."""
RAW = "r"
"""The alias under which PostgreSQL finishes the raw result."""


@dataclass(frozen=True)
class Frames:
    """The temporary views on Spark that hold an input of a term: its current rows, and its change."""

    now: str | None = None
    delta: str | None = None


@dataclass(frozen=True)
class BlockProgram:
    """A join block: Spark joins what PostgreSQL read of each input."""

    name: str
    block: Select
    leaves: tuple[Leaf, ...]
    links: tuple[Link, ...]
    conditions: tuple[str, ...]
    outputs: tuple[tuple[str, str], ...]  # name, Spark SQL over the leaves

    def rows_sql(self, term: Term, frames: Mapping[str, Frames], *, weighted: bool) -> str:
        items, weights = [], []
        for leaf, version in zip(self.leaves, term, strict=True):
            sql, has_weight = _input_sql(leaf, version, frames[leaf.alias])
            items.append(f"{sql} AS {leaf.alias}")
            if has_weight:
                weights.append(f"{leaf.alias}.{W}")
        outputs = [f"{sql} AS {name}" for name, sql in self.outputs]
        if weighted:
            outputs.append(f"{' * '.join(weights) or '1L'} AS {W}")
        where = f" WHERE {' AND '.join(self.conditions)}" if self.conditions else ""
        return f"SELECT {', '.join(outputs) or '1 AS one'} FROM {', '.join(items)}{where}"


def _input_sql(leaf: Leaf, version: Version, frames: Frames) -> tuple[str, bool]:
    if version is Version.DELTA:
        return f"{frames.delta}", True
    if version is Version.NEW:
        return f"{frames.now}", False
    names = "".join(f"{column.name}, " for column in leaf.columns)
    now = f"SELECT {names}1L AS {W} FROM {frames.now}"
    return f"({now} UNION ALL SELECT {names}-{W} FROM {frames.delta})", True


@dataclass(frozen=True)
class Part:
    """One Spark statement."""

    blocks: tuple[BlockProgram, ...]


@dataclass(frozen=True)
class BagPart(Part):
    """The joined rows as they are; what each output needs comes back, and PostgreSQL evaluates it."""

    columns: tuple[Column, ...]
    outputs: tuple[str, ...]  # PostgreSQL's select list; empty if only the number of rows matters
    aliases: str  # the inputs' columns under the inputs' own aliases, for the outputs that read several

    def statement(self, rows: str) -> str:
        return rows

    def finish(self, table: str, *, weighted: bool) -> str:
        columns = [*self.outputs, f"{RAW}.{W} AS {WEIGHT}"] if weighted else self.outputs
        return f"SELECT {', '.join(columns)} FROM {table} AS {RAW}{self.aliases}"


@dataclass(frozen=True)
class RowsProgram:
    """The rows of a query that joins, filters and computes; a part for each branch."""

    name: str  # separates the tables of the queries of one plan
    parts: tuple[BagPart, ...]

    def columns(self, part: BagPart, *, weighted: bool) -> tuple[Column, ...]:
        return (*part.columns, Column(W, "bigint")) if weighted else part.columns

    def finish(self, tables: Mapping[int, str], *, weighted: bool) -> str:
        """Return the rows of the query, from the raw ones of the parts that have any."""
        rows = [self.parts[number].finish(table, weighted=weighted) for number, table in tables.items()]
        return "\nUNION ALL\n".join(rows)


@dataclass(frozen=True)
class BagProgram:
    """A bag on Spark."""

    plan: BagPlan
    rows: RowsProgram | None  # None if PostgreSQL computes the top of the query
    inner: Mapping[Query, RowsProgram]  # joins that nonlinear nodes inside read


@dataclass(frozen=True)
class GroupPart(Part):
    """The rows aggregated to the states of their groups."""

    keys: tuple[GroupKey, ...]
    states: tuple[GroupState, ...]
    consolidate: bool  # an extreme looks at single rows, so rows that cancel out must be removed

    def statement(self, rows: str, *, weighted: bool) -> str:
        """Return the states of each group: of its rows, or of its delta.

        In two steps where scales are counted: for each group and scale, then for each group. The counts of a
        group are listed, scale by scale.
        """
        if weighted and self.consolidate:
            every = ", ".join(name for name, _ in self.blocks[0].outputs)
            rows = f"SELECT {every}, sum({W}) AS {W} FROM ({rows}) GROUP BY {every} HAVING sum({W}) <> 0"
        parts = [part for state in self.states for part in state.parts(weighted=weighted)]
        scales = [state for state in self.states if state.state.kind is StateKind.SCALES]
        columns = [f"{key.shown} AS {key.name}" for key in self.keys]
        if not scales:
            columns += [f"{part.finished(part.over_rows)} AS {part.name}" for part in parts]
            return f"SELECT {', '.join(columns)} FROM ({rows}){self._grouping}"
        names = [key.grouping for key in self.keys]
        shown = [key.value for key in self.keys if key.value]
        by_scale = [*names, *(f"{state.scale_if_counted} AS z_{state.state.name}" for state in scales)]
        inner = [*by_scale, *(f"min({value}) AS {value}" for value in shown)]
        inner += [f"{part.over_rows} AS {part.name}" for part in parts]
        grouping = ", ".join([*names, *(state.scale_if_counted for state in scales)])
        rows = f"SELECT {', '.join(inner)} FROM ({rows}) GROUP BY {grouping}"
        columns += [f"{part.finished(part.over_parts)} AS {part.name}" for part in parts]
        return f"SELECT {', '.join(columns)} FROM ({rows}){self._grouping}"

    def keys_statement(self, rows: str) -> str:
        """Return the distinct keys."""
        outputs = ", ".join(f"{key.shown} AS {key.name}" for key in self.keys) or "count(*) AS one"
        return f"SELECT {outputs} FROM ({rows}){self._grouping}"

    @property
    def _grouping(self) -> str:
        return f" GROUP BY {', '.join(key.grouping for key in self.keys)}" if self.keys else ""

    @property
    def key_columns(self) -> tuple[Column, ...]:
        return tuple(Column(key.name, key.kind) for key in self.keys) or (Column("one", "bigint"),)

    def columns(self, *, weighted: bool) -> tuple[Column, ...]:
        return (
            *(Column(key.name, key.kind) for key in self.keys),
            *(Column(name, state.kind) for state in self.states for name in state.names(weighted=weighted)),
        )


@dataclass(frozen=True)
class GroupKey:
    """A grouping key: compared in one column, shown from another where equal values can differ."""

    name: str
    grouping: str
    value: str | None  # the column with its value, if that is a different one
    kind: Kind
    type: ColumnType

    @property
    def shown(self) -> str:
        return f"min({self.value})" if self.value else self.grouping


@dataclass(frozen=True)
class StatePart:
    """A column of Spark's result, computed in steps."""

    name: str
    over_rows: str
    over_parts: str  # from the results for each scale
    last: str = "{}"

    def finished(self, sql: str) -> str:
        return self.last.format(sql)


@dataclass(frozen=True)
class GroupState:
    """A state's columns among the rows, by their names there."""

    state: State
    number: str | None = None
    presence: str | None = None
    scale: str | None = None
    order: str | None = None
    value: str | None = None
    condition: str | None = None
    fixed: bool = True  # all its numbers have one scale
    value_kind: Kind = "text"

    @property
    def kind(self) -> Kind:
        match self.state.kind:
            case StateKind.ROWS | StateKind.COUNT:
                return "bigint"
            case StateKind.MIN | StateKind.MAX:
                return self.value_kind
            case _:
                return "text"

    def names(self, *, weighted: bool) -> tuple[str, ...]:
        return delta_columns(self.state) if weighted else (self.state.name,)

    @property
    def scale_if_counted(self) -> str:
        """The scale of a row that the state counts."""
        return f"CASE WHEN {self.condition} THEN {self.scale} END" if self.condition else f"{self.scale}"

    def parts(self, *, weighted: bool) -> list[StatePart]:
        """Return Spark SQL for each of `names`."""
        conditions = [self.condition] if self.condition else []
        name, weight = self.state.name, W if weighted else "1L"
        match self.state.kind:
            case StateKind.ROWS | StateKind.COUNT:
                if self.presence:
                    conditions.append(f"{self.presence} IS NOT NULL")
                total = f"coalesce(sum({weight}){_filter(conditions)}, 0L)"
                return [StatePart(name, total, f"coalesce(sum({name}), 0L)")]
            case StateKind.SUM:
                assert self.state.type is not None
                small = self.state.type.integer and self.state.type.base != "bigint"
                weight = W if small else f"CAST({W} AS DECIMAL(19,0))"
                term = f"{self.number} * {weight}" if weighted else f"{self.number}"
                total = f"sum({term}){_filter(conditions)}"
                return [StatePart(name, total, f"sum({name})", "CAST(coalesce({}, 0) AS STRING)")]
            case StateKind.SCALES:
                counted = f"CASE WHEN z_{name} IS NOT NULL THEN concat(z_{name}, ':', {name}) END"
                listed = f"concat_ws(',', collect_list({counted}))"
                return [StatePart(name, f"sum({weight})", listed)]
            case _:
                function = "min" if self.state.kind is StateKind.MIN else "max"
                signs = (f"{W} > 0", f"{W} < 0") if weighted else (None,)
                conditions.append(f"{self.order} IS NOT NULL")
                found = []
                for column, sign in zip(self.names(weighted=weighted), signs, strict=True):
                    where = _filter([*conditions, sign] if sign else conditions)
                    value, last = self.order, "{}"
                    if self.value != self.order:
                        value, last = f"named_struct('o', {self.order}, 'v', {self.value})", "({}).v"
                    found.append(
                        StatePart(column, f"{function}({value}){where}", f"{function}({column})", last)
                    )
                return found

    def decoded(self, reference: str) -> str:
        """Return PostgreSQL's SQL for the state, from the raw result."""
        match self.state.kind:
            case StateKind.ROWS | StateKind.COUNT:
                return reference
            case StateKind.SUM:
                return f"({reference})::numeric" if self.fixed else f"trim_scale(({reference})::numeric)"
            case StateKind.SCALES:
                digits = f"('1e' || {SCALE_DIGITS} * split_part(u.n, ':', 1)::integer)::numeric"
                counts = f"unnest(string_to_array({reference}, ',')) AS u (n)"
                total = f"sum(split_part(u.n, ':', 2)::numeric * {digits})"
                return f"(SELECT coalesce({total}, 0) FROM {counts} WHERE u.n <> '')"
            case _:
                assert self.state.type is not None
                # For a domain, the type behind it: a group without values has a NULL, which the domain may
                # forbid.
                return encoding.decoded(reference, replace(self.state.type, sql=self.state.type.base))


def _filter(conditions: Sequence[str]) -> str:
    return f" FILTER (WHERE {' AND '.join(conditions)})" if conditions else ""


@dataclass(frozen=True)
class GroupProgram:
    """Groups on Spark."""

    plan: GroupPlan
    part: GroupPart
    inner: Mapping[Query, RowsProgram]  # joins that nonlinear nodes inside read

    @property
    def parts(self) -> tuple[GroupPart, ...]:
        return (self.part,)

    def finish_state_delta(self, table: str) -> str:
        states = [
            f"d.{identifier(name)}" for state in self.part.states for name in state.names(weighted=True)
        ]
        columns = ", ".join([self.plan.key_columns("d"), *states])
        return f"SELECT {columns} FROM ({self._decoded(table, weighted=True)}) AS d"

    def finish_keys(self, table: str) -> str:
        keys = f"SELECT {self._keys() or '1'} FROM {table} AS {RAW}"
        return f"SELECT {self.plan.key_columns('d')} FROM ({keys}) AS d"

    def finish_groups(self, table: str) -> str:
        """Return all stored columns of the groups."""
        return self.plan.finished_sql(self._decoded(table, weighted=False))

    def _keys(self) -> str:
        return ", ".join(
            f"{encoding.decoded(f'{RAW}.{key.name}', key.type)} AS {identifier(wanted.name)}"
            for key, wanted in zip(self.part.keys, self.plan.keys, strict=True)
        )

    def _decoded(self, table: str, *, weighted: bool) -> str:
        states = [
            f"{state.decoded(f'{RAW}.{name}')} AS {identifier(name)}"
            for state in self.part.states
            for name in state.names(weighted=weighted)
        ]
        return f"SELECT {', '.join(filter(None, [self._keys(), *states]))} FROM {table} AS {RAW}"


Program = BagProgram | GroupProgram
