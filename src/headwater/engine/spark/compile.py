"""Compiling plans into programs for Spark; refuses expressions that Spark cannot compute exactly."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headwater.engine.spark.program import (
    RAW,
    BagPart,
    BagProgram,
    BlockProgram,
    GroupKey,
    GroupPart,
    GroupProgram,
    GroupState,
    Program,
    RowsProgram,
)
from headwater.engine.spark.translate import Translator, TypesOf
from headwater.engine.spark.transport import encoding
from headwater.engine.spark.transport.encoding import Refused
from headwater.engine.spark.transport.wire import Column
from headwater.plan.aggregates import StateKind, obstacle
from headwater.plan.expression import Expression, column
from headwater.plan.operators import (
    Aggregate,
    Apply,
    ColumnType,
    Constant,
    Expansion,
    Keyed,
    Node,
    Nonlinear,
    Query,
    Select,
    UnionAll,
    children,
)
from headwater.plan.quoting import identifier
from headwater.plan.scale import fixed_scale
from headwater.plan.storage_plan import BagPlan, GroupPlan, IncrementalPlan, MaintenancePlan
from headwater.plan.substitute import around
from headwater.plan.values import Column as ResultColumn


def compile_program(plan: MaintenancePlan, types_of: TypesOf) -> Program:
    """Return the program of a plan. Raise Refused with the expression that Spark cannot compute exactly."""
    match plan:
        case BagPlan():
            inner = _inner_programs(plan, types_of)
            rows = None
            if isinstance(plan.body, Select | UnionAll) and not _only_passes_on(plan.body):
                rows = _rows_program("", plan.body, plan.outputs, types_of)
            elif not inner:
                raise Refused(
                    f"{_inside(plan.body)} is PostgreSQL's to compute, and nothing else is joined or grouped"
                )
            return BagProgram(plan, rows, inner)
        case GroupPlan():
            return GroupProgram(plan, _group_part(plan, types_of), _inner_programs(plan, types_of))
        case _:
            raise Refused("the query as a whole is recomputed, which is PostgreSQL's")


def full_refusal(plan: IncrementalPlan) -> str | None:
    """Return why Spark cannot compute all rows of a plan although it computes its deltas, or None."""
    if isinstance(plan, GroupPlan) and plan.algebra is None:
        types = {column.name: column.type for column in plan.rows}
        reasons = [found for call in plan.aggregate.calls if (found := obstacle(call, types))]
        return "; ".join(reasons)
    body = plan.aggregate.input if isinstance(plan, GroupPlan) else plan.body
    if _only_passes_on(body):
        return f"{_inside(body)} is PostgreSQL's to compute, and all that is read goes through it"
    return None


def _blocks(query: Query) -> tuple[Select, ...]:
    """Return the blocks of a query whose inputs Spark joins."""
    return tuple(_block(branch) for branch in (query.branches if isinstance(query, UnionAll) else (query,)))


def _block(query: Query) -> Select:
    """Return a block, with everything that is no plain join computed by PostgreSQL."""
    if isinstance(query, Select) and not _makes_rows(query):
        return query
    return around(query)


def _makes_rows(block: Select) -> bool:
    """Tell whether a set-returning function is evaluated for the rows of a block."""
    return block.expands or any(isinstance(item.node, Expansion) for item in block.inputs)


def _inner_programs(plan: IncrementalPlan, types_of: TypesOf) -> dict[Query, RowsProgram]:
    """Return programs for the joins that nonlinear nodes inside a plan read.

    Where nothing is joined, a delta is the delta of a table or of another nonlinear node. It is in PostgreSQL
    already, and is needed there. In a plan that is computed as a whole each time, the same holds for lookups:
    an index finds their rows.
    """
    found: dict[Query, RowsProgram] = {}
    is_whole = isinstance(plan, BagPlan) and plan.is_whole

    def walk(node: Node) -> None:
        read = (node.core,) if is_whole and isinstance(node, Apply) else children(node)
        for child in read:
            walk(child)
        if isinstance(node, Nonlinear) and node is not root_group:
            for child in read:
                if isinstance(child, Select | UnionAll) and child not in found and _joins(child):
                    name = f"inner{len(found)}_"
                    found[child] = _rows_program(name, child, plan.columns[child], types_of)

    root_group = plan.root if isinstance(plan, GroupPlan) else None
    walk(plan.root)
    return found


def _joins(query: Query) -> bool:
    return any(len(_changing(block)) > 1 for block in _blocks(query))


def _only_passes_on(query: Query) -> bool:
    """Tell whether a query only filters and computes over the rows of a nonlinear node."""
    return all(
        len(nodes) == 1 and _first_nonlinear(nodes[0]) is not None for nodes in map(_changing, _blocks(query))
    )


def _changing(block: Select) -> list[Node]:
    return [item.node for item in block.inputs if not isinstance(item.node, Constant)]


def _first_nonlinear(node: Node) -> Nonlinear | None:
    if isinstance(node, Nonlinear):
        return node
    return next((found for child in children(node) if (found := _first_nonlinear(child)) is not None), None)


def _inside(query: Query) -> str:
    """Return what is nonlinear in a query, in words."""
    match _first_nonlinear(query):
        case Keyed(what=what):
            return what
        case Aggregate(distinct=distinct):
            return "distinct" if distinct else "group by"
        case Apply(joins=joins) if any(item.condition is not None for item in joins):
            return "an outer join"
        case _:
            return "a subquery"


# Bags


def _rows_program(name: str, query: Query, columns: Sequence[ResultColumn], types_of: TypesOf) -> RowsProgram:
    blocks = enumerate(_blocks(query))
    cast = isinstance(query, UnionAll)
    return RowsProgram(
        name,
        tuple(_bag_part(f"{name}b{number}", block, columns, types_of, cast=cast) for number, block in blocks),
    )


def _bag_part(
    name: str, block: Select, wanted_columns: Sequence[ResultColumn], types_of: TypesOf, *, cast: bool
) -> BagPart:
    translator = Translator(block, types_of)
    raw: list[tuple[str, Column]] = []
    carried: dict[str, dict[str, str]] = {}  # alias to its columns, decoded

    def decoded(tree: Expression) -> str:
        """Carry an expression's value through Spark and decode it."""
        kind = translator.type(tree)
        owner = translator.owner(tree)
        assert owner is not None
        encoded = encoding.value(tree.text, kind)
        found = Column(f"o{len(raw)}", encoded.kind)
        raw.append((owner.column(encoded), found))
        return encoding.decoded(f"{RAW}.{found.name}", kind)

    outputs = []
    for output, wanted in zip(block.outputs, wanted_columns, strict=True):
        if translator.owner(output.expression) is not None:
            sql = decoded(output.expression)
        else:
            for reference in output.expression.references:
                if reference.alias in translator.leaves:
                    columns = carried.setdefault(reference.alias, {})
                    if reference.name not in columns:
                        columns[reference.name] = decoded(column(reference.name, reference.alias))
            sql = f"({output.expression.text})"
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
    return BagPart((program,), tuple(found for _, found in raw), tuple(outputs), aliases)


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

    def tree(block: Select, name: str) -> Expression:
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
    tree: Callable[[Select, str], Expression], argument: str, kind: ColumnType
) -> Callable[[Translator, Select], str]:
    """Return an expression that is NULL when the argument is."""

    def make(translator: Translator, block: Select) -> str:
        expression = tree(block, argument)
        if translator.owner(expression) is None and (kind.integer or kind.numeric):
            return translator.number(expression).sql
        return translator.carried(expression, kind, lambda x, _: encoding.presence(x))

    return make


def _number_maker(
    tree: Callable[[Select, str], Expression], argument: str, kind: ColumnType, scale: int, fixed: bool
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
                raise Refused(f"{expression.text}: its {number.scale} fractional digits are too many")
            return f"CAST({number.sql} AS DECIMAL(38,{scale}))"
        reference = f"({expression.text})"
        if kind.integer:
            found = owner.column(encoding.order(reference, kind))
            return found if kind.base != "bigint" else f"CAST({found} AS DECIMAL(38,0))"
        return owner.column(encoding.bounded(f"{reference}::numeric", scale, declared=fixed))

    return make


def _scale_maker(
    tree: Callable[[Select, str], Expression], argument: str, kind: ColumnType
) -> Callable[[Translator, Select], str]:
    def make(translator: Translator, block: Select) -> str:
        expression = tree(block, argument)
        owner = translator.owner(expression)
        if owner is None:
            number = translator.number(expression)
            return f"CASE WHEN {number.sql} IS NOT NULL THEN CAST({number.shown_scale} AS BIGINT) END"
        return owner.column(encoding.scale_of(f"({expression.text})::numeric"))

    return make


def _block_program(
    name: str, block: Select, translator: Translator, outputs: Sequence[tuple[str, str]]
) -> BlockProgram:
    leaves = tuple(translator.leaves.values())
    return BlockProgram(
        name, block, leaves, tuple(translator.links), tuple(translator.conditions), tuple(outputs)
    )
