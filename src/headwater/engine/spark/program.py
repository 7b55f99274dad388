"""A maintenance plan as a program for Spark: what PostgreSQL reads, Spark computes and PostgreSQL finishes.

A *part* is one Spark statement. It unites the rows of its blocks and terms, and wraps them: a bag passes them
on, groups are aggregated to their states. The result has wire types only; `finish…` is the SQL by which
PostgreSQL turns it into the tables that `headwater.engine.base` promises. A bag with branches has one part
for each, for what comes back differs; groups have one part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from headwater.engine.spark import encoding
from headwater.engine.spark.encoding import Refused
from headwater.engine.spark.translate import Leaf, Link, Translator, TypesOf
from headwater.engine.spark.wire import Column, Kind
from headwater.plan.aggregates import SCALE_DIGITS, State, StateKind, delta_columns, obstacle
from headwater.plan.dialect import identifier, render
from headwater.plan.differentiate import Term, Version
from headwater.plan.maintain import BagPlan, GroupPlan, IncrementalPlan, MaintenancePlan
from headwater.plan.operators import (
    Aggregate,
    Apply,
    ColumnType,
    Constant,
    Keyed,
    Node,
    Query,
    Scan,
    Select,
    UnionAll,
    children,
)
from headwater.plan.render import WEIGHT
from headwater.plan.scale import fixed_scale

W = "w"
"""The weight on Spark."""
RAW = "r"
"""The alias under which PostgreSQL finishes what came back."""


@dataclass(frozen=True)
class Frames:
    """The temporary views on Spark that hold an input of a term: as it is now, and its change."""

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
    outputs: str  # PostgreSQL's select list
    aliases: str  # the inputs' columns under the inputs' own aliases, for the outputs that read several

    def statement(self, rows: str) -> str:
        return rows

    def finish(self, table: str, *, weighted: bool) -> str:
        weight = f", {RAW}.{W} AS {WEIGHT}" if weighted else ""
        return f"SELECT {self.outputs}{weight} FROM {table} AS {RAW}{self.aliases}"


@dataclass(frozen=True)
class BagProgram:
    """A bag on Spark."""

    plan: BagPlan
    parts: tuple[BagPart, ...]

    def columns(self, part: BagPart, *, weighted: bool) -> tuple[Column, ...]:
        return (*part.columns, Column(W, "bigint")) if weighted else part.columns

    def finish_delta(self, tables: Mapping[int, str]) -> str:
        """`delta` of a bag, from the raw rows of the parts that have any."""
        rows = [self.parts[number].finish(table, weighted=True) for number, table in tables.items()]
        return self.plan.weighted_sql("\nUNION ALL\n".join(rows))

    def finish_rows(self, tables: Mapping[int, str]) -> str:
        """All rows of the query, from those of every part."""
        rows = [self.parts[number].finish(table, weighted=False) for number, table in tables.items()]
        return "\nUNION ALL\n".join(rows)


@dataclass(frozen=True)
class GroupPart(Part):
    """The rows aggregated to the states of their groups."""

    keys: tuple[GroupKey, ...]
    states: tuple[GroupState, ...]
    consolidate: bool  # an extreme looks at single rows, so rows that cancel out must be gone

    def statement(self, rows: str, *, weighted: bool) -> str:
        """The states of each group: of its rows, or of its delta.

        In two steps where scales are counted: for each group and scale, then for each group. A group's
        counts are listed, scale by scale.
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
        """The distinct keys."""
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
    value: str | None  # the column with its value, if that is another one
    kind: Kind
    type: ColumnType

    @property
    def shown(self) -> str:
        return f"min({self.value})" if self.value else self.grouping


@dataclass(frozen=True)
class StatePart:
    """A column of Spark's result, by steps."""

    name: str
    over_rows: str
    over_parts: str  # from what the rows of each scale gave
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
    fixed: bool = True  # its numbers have one scale
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
        """Spark SQL for each of `names`."""
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
        """PostgreSQL's SQL for the state, from what came back."""
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
                # Of a domain the type behind it: a group without values has a NULL that it may forbid.
                return encoding.decoded(reference, replace(self.state.type, sql=self.state.type.base))


def _filter(conditions: Sequence[str]) -> str:
    return f" FILTER (WHERE {' AND '.join(conditions)})" if conditions else ""


@dataclass(frozen=True)
class GroupProgram:
    """Groups on Spark."""

    plan: GroupPlan
    part: GroupPart

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
        """All stored columns of the groups."""
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


def compile_program(plan: MaintenancePlan, types_of: TypesOf) -> Program:
    """The program of a plan. Raises Refused with the expression that Spark cannot compute exactly."""
    match plan:
        case BagPlan():
            blocks = enumerate(_blocks(plan.body))
            return BagProgram(
                plan, tuple(_bag_part(f"b{number}", block, plan, types_of) for number, block in blocks)
            )
        case GroupPlan():
            return GroupProgram(plan, _group_part(plan, types_of))
        case _:
            raise Refused("the query as a whole is recomputed, which is PostgreSQL's")


def full_refusal(plan: IncrementalPlan) -> str | None:
    """Why Spark cannot compute all rows of a plan although it computes its deltas, or None."""
    if isinstance(plan, GroupPlan) and plan.algebra is None:
        types = {column.name: column.type for column in plan.rows}
        reasons = [found for call in plan.aggregate.calls if (found := obstacle(call, types))]
        return "; ".join(reasons)
    return None


def _blocks(body: Query) -> tuple[Select, ...]:
    """The blocks of a query that only joins, filters and computes."""
    blocks = []
    for block in body.branches if isinstance(body, UnionAll) else (body,):
        if not isinstance(block, Select):
            raise Refused(f"{_named(block)} has no program for Spark yet")
        for item in block.inputs:
            if not isinstance(item.node, Scan | Constant):
                _check_plain(item.node)
        blocks.append(block)
    return tuple(blocks)


def _check_plain(node: Node) -> None:
    match node:
        case Scan() | Constant():
            return
        case Select() | UnionAll():
            for child in children(node):
                _check_plain(child)
        case _:
            raise Refused(f"{_named(node)} has no program for Spark yet")


def _named(node: Node) -> str:
    match node:
        case Keyed():
            return node.what
        case Aggregate():
            return "distinct" if node.distinct else "group by"
        case Apply():
            return "an outer join" if any(item.condition is not None for item in node.joins) else "a subquery"
        case _:
            return "a set-returning function"


# Bags


def _bag_part(name: str, block: Select, plan: BagPlan, types_of: TypesOf) -> BagPart:
    translator = Translator(block, types_of)
    cast = isinstance(plan.body, UnionAll)
    raw: list[tuple[str, Column]] = []
    carried: dict[str, dict[str, str]] = {}  # alias to its columns, decoded

    def column(tree: exp.Expression) -> str:
        """The tree's value, carried through Spark and decoded."""
        kind = translator.type(tree)
        owner = translator.owner(tree)
        assert owner is not None
        encoded = encoding.value(render(tree), kind)
        found = Column(f"o{len(raw)}", encoded.kind)
        raw.append((owner.column(encoded), found))
        return encoding.decoded(f"{RAW}.{found.name}", kind)

    outputs = []
    for output, wanted in zip(block.outputs, plan.outputs, strict=True):
        if translator.owner(output.expression) is not None:
            sql = column(output.expression)
        else:
            for reference in output.expression.find_all(exp.Column):
                if reference.table in translator.leaves:
                    columns = carried.setdefault(reference.table, {})
                    if reference.name not in columns:
                        columns[reference.name] = column(reference)
            sql = f"({render(output.expression)})"
        if cast:
            sql = f"({sql})::{wanted.type.sql}"
        outputs.append(f"{sql} AS {wanted.sql}")
    aliases = "".join(
        f", LATERAL (SELECT {', '.join(f'{sql} AS {identifier(name)}' for name, sql in columns.items())})"
        f" AS {identifier(alias)}"
        for alias, columns in carried.items()
    )
    if not raw:
        raw.append(("1L", Column("o0", "bigint")))
    program = _block_program(name, block, translator, [(found.name, sql) for sql, found in raw])
    return BagPart((program,), tuple(found for _, found in raw), ", ".join(outputs), aliases)


# Groups


class _Rows:
    """The columns that a group's rows have on Spark, the same for each block."""

    def __init__(self) -> None:
        self.makers: dict[str, Callable[[Translator, Select], str]] = {}

    def column(self, name: str, maker: Callable[[Translator, Select], str]) -> str:
        self.makers.setdefault(name, maker)
        return name


def _group_part(plan: GroupPlan, types_of: TypesOf) -> GroupPart:
    body = plan.aggregate.input
    blocks = _blocks(body)
    positions = {name: number for number, name in enumerate(body.output_names)}
    kinds = {column.name: column.type for column in plan.rows}
    rows = _Rows()

    def tree(block: Select, name: str) -> exp.Expression:
        return block.outputs[positions[name]].expression

    def carried(
        name: str, encode: Callable[[str, ColumnType], encoding.Encoded]
    ) -> Callable[[Translator, Select], str]:
        return lambda translator, block: translator.carried(tree(block, name), kinds[name], encode)

    keys = []
    for number, wanted in enumerate(plan.keys):
        as_key, as_value = encoding.key("x", wanted.type), encoding.value("x", wanted.type)
        grouping = rows.column(f"k{number}", carried(wanted.name, encoding.key))
        shown = None
        if as_key != as_value:
            shown = rows.column(f"v{number}", carried(wanted.name, encoding.value))
        keys.append(GroupKey(f"g{number}", grouping, shown, as_value.kind, wanted.type))

    states = []
    for state in plan.algebra.states if plan.algebra else ():
        condition = presence = None
        if state.filter is not None:
            name = state.filter
            condition = rows.column(f"f_{name}", lambda t, b, name=name: t.condition(tree(b, name)))  # type: ignore[misc]
        argument = state.argument
        match state.kind:
            case StateKind.ROWS | StateKind.COUNT:
                if argument is not None:
                    presence = rows.column(f"p_{argument}", _presence_maker(tree, argument, kinds[argument]))
                states.append(GroupState(state, presence=presence, condition=condition))
            case StateKind.SUM:
                assert argument is not None
                fixed = fixed_scale(body, argument)
                scale = encoding.LARGEST_SCALE if fixed is None else fixed
                maker = _number_maker(tree, argument, kinds[argument], scale, fixed is not None)
                added = rows.column(f"n_{argument}", maker)
                states.append(GroupState(state, number=added, condition=condition, fixed=fixed is not None))
            case StateKind.SCALES:
                assert argument is not None
                shown_scale = rows.column(f"s_{argument}", _scale_maker(tree, argument, kinds[argument]))
                states.append(GroupState(state, scale=shown_scale, condition=condition))
            case _:
                assert argument is not None
                as_order = encoding.order("x", kinds[argument])
                as_value = encoding.value("x", kinds[argument])
                order = rows.column(f"m_{argument}", carried(argument, encoding.order))
                value = order
                if as_order != as_value:
                    value = rows.column(f"x_{argument}", carried(argument, encoding.value))
                states.append(
                    GroupState(state, order=order, value=value, condition=condition, value_kind=as_value.kind)
                )

    programs = []
    for number, block in enumerate(blocks):
        translator = Translator(block, types_of)
        outputs = [(name, maker(translator, block)) for name, maker in rows.makers.items()]
        programs.append(_block_program(f"b{number}", block, translator, outputs))
    extremes = bool(plan.algebra and plan.algebra.extremes)
    return GroupPart(tuple(programs), tuple(keys), tuple(states), extremes)


def _presence_maker(
    tree: Callable[[Select, str], exp.Expression], argument: str, kind: ColumnType
) -> Callable[[Translator, Select], str]:
    """Something that is NULL when the argument is."""

    def make(translator: Translator, block: Select) -> str:
        expression = tree(block, argument)
        if translator.owner(expression) is None and (kind.integer or kind.numeric):
            return translator.number(expression).sql
        return translator.carried(expression, kind, lambda x, _: encoding.presence(x))

    return make


def _number_maker(
    tree: Callable[[Select, str], exp.Expression], argument: str, kind: ColumnType, scale: int, fixed: bool
) -> Callable[[Translator, Select], str]:
    if scale > encoding.LARGEST_SCALE:
        raise Refused(f"a scale of {scale} leaves Spark's decimals too few digits for a sum")

    def make(translator: Translator, block: Select) -> str:
        expression = tree(block, argument)
        owner = translator.owner(expression)
        if owner is None:
            number = translator.number(expression)
            if number.integer is not None and kind.integer:
                return number.sql if kind.base != "bigint" else f"CAST({number.sql} AS DECIMAL(38,0))"
            if number.scale > scale:
                raise Refused(f"{render(expression)}: its {number.scale} fractional digits are too many")
            return f"CAST({number.sql} AS DECIMAL(38,{scale}))"
        reference = f"({render(expression)})"
        if kind.integer:
            found = owner.column(encoding.order(reference, kind))
            return found if kind.base != "bigint" else f"CAST({found} AS DECIMAL(38,0))"
        return owner.column(encoding.bounded(f"{reference}::numeric", scale, declared=fixed))

    return make


def _scale_maker(
    tree: Callable[[Select, str], exp.Expression], argument: str, kind: ColumnType
) -> Callable[[Translator, Select], str]:
    def make(translator: Translator, block: Select) -> str:
        expression = tree(block, argument)
        owner = translator.owner(expression)
        if owner is None:
            number = translator.number(expression)
            return f"CASE WHEN {number.sql} IS NOT NULL THEN CAST({number.shown_scale} AS BIGINT) END"
        return owner.column(encoding.scale_of(f"({render(expression)})::numeric"))

    return make


def _block_program(
    name: str, block: Select, translator: Translator, outputs: Sequence[tuple[str, str]]
) -> BlockProgram:
    leaves = tuple(translator.leaves.values())
    return BlockProgram(
        name, block, leaves, tuple(translator.links), tuple(translator.conditions), tuple(outputs)
    )
