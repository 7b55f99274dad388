"""Expressions over several inputs as Spark SQL, where the result is provably PostgreSQL's.

An expression over one input never gets here: PostgreSQL evaluates it while it reads that input. Of the rest,
these are translated: comparisons, three-valued logic, integer and numeric arithmetic, COALESCE, CASE,
concatenation. Everything else is `Refused` with the expression and the reason.

Where PostgreSQL raises an error (an integer overflow, a division by zero), Spark raises one too, in its ANSI
mode or by the range checks made here; the work is then repeated in PostgreSQL, whose result counts. There is
one exception: an operator with a NULL operand does not evaluate its other operand on Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headwater.engine.spark.transport import encoding
from headwater.engine.spark.transport.encoding import Encoded, Refused
from headwater.engine.spark.transport.wire import Column
from headwater.plan.errors import Unsupported
from headwater.plan.expression import (
    Case,
    Cast,
    Coalesce,
    Distinction,
    Expression,
    Literal,
    Logic,
    Negation,
    NullTest,
    Opaque,
    Operation,
    conjuncts,
)
from headwater.plan.operators import ColumnType, Constant, Input, Scan, Select
from headwater.plan.scale import expression_scale

TypesOf = Callable[[Select, Sequence[Expression]], list[ColumnType]]
"""Asks the server for the types of expressions over the inputs of a block."""

INTEGER_RANGES = {
    "smallint": (-(2**15), 2**15 - 1),
    "integer": (-(2**31), 2**31 - 1),
    "bigint": (-(2**63), 2**63 - 1),
}
# Fractional digits that a numeric without a declared scale may have as a factor: in a product they add up.
SCALE_BUDGETS = (encoding.LARGEST_SCALE, 8, 4, 3)

_COMPARISONS = frozenset({"=", "<>", "<", "<=", ">", ">="})
_SAME = "<=>"  # IS NOT DISTINCT FROM, as Spark writes it
_EQUALITIES = frozenset({"=", "<>", _SAME})


@dataclass
class Leaf:
    """One input of a block as PostgreSQL reads it, with the expressions over it alone."""

    item: Input
    predicates: list[str] = field(default_factory=list)
    encodings: dict[Encoded, str] = field(default_factory=dict)

    @property
    def alias(self) -> str:
        return self.item.alias

    def column(self, encoded: Encoded) -> str:
        """Return Spark's reference to an encoded expression, which becomes a column of this input."""
        name = self.encodings.setdefault(encoded, f"c{len(self.encodings)}")
        return encoded.on_spark(f"{self.alias}.{name}")

    @property
    def columns(self) -> tuple[Column, ...]:
        return tuple(Column(name, encoded.kind) for encoded, name in self._read.items())

    @property
    def select_list(self) -> str:
        return ", ".join(f"{encoded.sql} AS {name}" for encoded, name in self._read.items())

    @property
    def _read(self) -> dict[Encoded, str]:
        """The columns that are read: at least one, because rows without columns cannot travel."""
        return self.encodings or {Encoded("1::bigint", "bigint"): "one"}


@dataclass(frozen=True)
class Link:
    """An equality between two inputs, which key pushdown follows."""

    left: str
    left_side: Expression
    right: str
    right_side: Expression

    def seen_from(self, alias: str, other: str) -> tuple[Expression, Expression] | None:
        """Return the side of one input and that of another, if the equality is between them."""
        sides = {self.left: self.left_side, self.right: self.right_side}
        return (sides[alias], sides[other]) if sides.keys() == {alias, other} else None


@dataclass(frozen=True)
class Number:
    """An integer or numeric on Spark."""

    sql: str
    integer: str | None  # smallint, integer or bigint; None for a numeric
    scale: int  # of the decimal on Spark
    shown_scale: str  # Spark SQL for the number of digits that PostgreSQL would show


class Translator:
    """Translates the expressions of one block, and collects what each input must provide."""

    def __init__(self, block: Select, types_of: TypesOf) -> None:
        self._block = block
        self._types_of = types_of
        self._types: dict[Expression, ColumnType] = {}
        inputs = block.inputs or (Input("r0", Constant("SELECT 1", ("one",))),)
        self.leaves = {item.alias: Leaf(item) for item in inputs}
        self.links: list[Link] = []
        self.conditions: list[str] = []
        for predicate in conjuncts(block.predicates):
            self._place(predicate)

    def _place(self, predicate: Expression) -> None:
        owner = self.owner(predicate)
        if owner is not None:
            owner.predicates.append(f"({predicate.text})")
            return
        self.conditions.append(self.condition(predicate))
        if predicate.equality is not None:
            left, right = predicate.equality
            owners = (self.owner(left), self.owner(right))
            if owners[0] is not None and owners[1] is not None:
                self.links.append(Link(owners[0].alias, left, owners[1].alias, right))

    # inputs

    def owner(self, tree: Expression) -> Leaf | None:
        """Return the one input that an expression reads (any, if it reads none), or None for several."""
        read = [leaf for alias, leaf in self.leaves.items() if alias in tree.aliases]
        if len(read) > 1:
            return None
        return read[0] if read else next(iter(self.leaves.values()))

    def type(self, tree: Expression) -> ColumnType:
        if tree not in self._types:
            try:
                self._types[tree] = self._known_type(tree) or self._types_of(self._block, [tree])[0]
            except Unsupported:
                raise _refusal(tree, "it is no value of its own") from None
        return self._types[tree]

    def _known_type(self, tree: Expression) -> ColumnType | None:
        column = tree.column
        if column is not None and column.alias in self.leaves:
            node = self.leaves[column.alias].item.node
            if isinstance(node, Scan):
                return node.source.column(column.name).type
        return None

    # conditions

    def condition(self, tree: Expression) -> str:
        """Return a condition: true, false or NULL on Spark as in PostgreSQL."""
        owner = self.owner(tree)
        if owner is not None:
            return f"({owner.column(encoding.truth(tree.text))} = 1)"
        match tree.shape:
            case Logic(word, parts):
                return f"({f' {word} '.join(self.condition(part) for part in parts)})"
            case Negation(value):
                return f"(NOT {self.condition(value)})"
            case NullTest(value, negated):
                kind = self.type(value)
                if not encoding.is_scalar(kind):
                    raise _refusal(tree, f"a {kind.sql} that has only NULLs in it may count as NULL")
                word = "IS NOT NULL" if negated else "IS NULL"
                return f"({self.carried(value, kind, encoding.value)} {word})"
            case Operation(operator, Expression() as left, right) if operator in _COMPARISONS:
                return self._comparison(tree, left, operator, right)
            case Distinction(left, right, negated):
                same = self._comparison(tree, left, _SAME, right)
                return same if negated else f"(NOT {same})"
            case _:
                raise _refusal(tree, "Spark has no operator that is provably the same")

    def _comparison(self, tree: Expression, left: Expression, operator: str, right: Expression) -> str:
        """Compare two values by one of Spark's operators."""
        one, other = self._operands(tree, (left, right), equality=operator in _EQUALITIES)
        return f"({one} {operator} {other})"

    def _operands(
        self, tree: Expression, sides: tuple[Expression, Expression], *, equality: bool
    ) -> tuple[str, str]:
        kinds = [self.type(side) for side in sides]
        owners = [self.owner(side) for side in sides]
        try:
            if owners[0] is None or owners[1] is None:
                if all(kind.integer or kind.numeric for kind in kinds):
                    return _aligned(*(self.number(side) for side in sides))
                raise Refused("one of its sides reads several tables and is no number")
            among = encoding.common_family(*kinds)
            scale = max(map(encoding.order_scale, kinds))
            if not equality:
                collations = {kind.collation for kind in kinds if kind.collation}
                if len(collations) > 1:
                    raise Refused(f"its sides have the collations {' and '.join(sorted(collations))}")
            encoded = [
                encoding.key(side.text, kind, among)
                if equality
                else encoding.order(side.text, kind, among=among, scale=scale)
                for side, kind in zip(sides, kinds, strict=True)
            ]
        except Refused as refused:
            raise _refusal(tree, str(refused)) from None
        return owners[0].column(encoded[0]), owners[1].column(encoded[1])

    # numbers

    def number(self, tree: Expression, factors: int = 0) -> Number:
        """Return an integer or numeric expression, which is exact or an error on Spark."""
        shape = tree.shape
        if isinstance(shape, Literal) and shape.number:
            return _constant(tree, shape.text)
        kind = self.type(tree)
        if not (kind.integer or kind.numeric):
            raise _refusal(tree, f"Spark does not compute with {kind.sql}")
        owner = self.owner(tree)
        if owner is not None:
            return self._read_number(owner, tree, kind, factors)
        match shape:
            case Operation("-", None, value):
                inner = self.number(value, factors)
                return _checked(Number(f"(- {inner.sql})", inner.integer, inner.scale, inner.shown_scale))
            case Cast() | Opaque() if kind.sql != kind.base:
                raise _refusal(tree, "a domain's rules are checked by PostgreSQL alone")
            case Cast(value, modifiers=()) if kind.numeric:
                return _as_numeric(self.number(value, factors))
            case Cast(value) if kind.integer and self.type(value).integer:
                inner = self.number(value, factors)
                return _checked(Number(inner.sql, kind.base, 0, "0"))
            case Operation("+" | "-" | "*" as operator, Expression() as one, other):
                deeper = factors + (operator == "*")
                return _combined(tree, self.number(one, deeper), operator, self.number(other, deeper))
            case Operation("/" | "%" as operator, Expression() as one, other) if kind.integer:
                left, right = self.number(one), self.number(other)
                word = "DIV" if operator == "/" else "%"
                return _checked(Number(f"({left.sql} {word} {right.sql})", _wider(left, right), 0, "0"))
            case Operation("/"):
                raise _refusal(tree, "how many digits a quotient has is a rule of PostgreSQL's own")
            case Coalesce(values):
                found = [self.number(item, factors) for item in values]
                return _chosen(kind, [(f"{number.sql} IS NOT NULL", number) for number in found])
            case Case(branches, default):
                cases = [(self.condition(when), self.number(then, factors)) for when, then in branches]
                if default is not None:
                    cases.append(("true", self.number(default, factors)))
                return _chosen(kind, cases)
            case _:
                raise _refusal(tree, "Spark has no operator that is provably the same")

    def _read_number(self, owner: Leaf, tree: Expression, kind: ColumnType, factors: int) -> Number:
        reference = tree.text
        if kind.integer:
            return Number(owner.column(encoding.order(reference, kind)), kind.base, 0, "0")
        fixed = expression_scale(tree, self._block)
        if fixed is not None:
            if fixed > encoding.LARGEST_SCALE:
                raise Refused(f"{reference}: a scale of {fixed} leaves Spark's decimals too few digits")
            decimal = owner.column(encoding.bounded(reference, fixed, declared=True))
            return Number(decimal, None, fixed, str(fixed))
        scale = SCALE_BUDGETS[min(factors, len(SCALE_BUDGETS) - 1)]
        shown = owner.column(encoding.scale_of(reference))
        return Number(owner.column(encoding.bounded(reference, scale)), None, scale, shown)

    # values

    def carried(
        self, tree: Expression, kind: ColumnType, encode: Callable[[str, ColumnType], Encoded]
    ) -> str:
        """Return a value in one of the encodings; choosing between values keeps every encoding of them."""
        owner = self.owner(tree)
        if owner is not None:
            reference = tree.text
            if self.type(tree).sql != kind.sql:  # as UNION and CASE would cast it
                reference = f"({reference})::{kind.sql}"
            return owner.column(encode(reference, kind))
        match tree.shape:
            case Coalesce(values):
                return f"coalesce({', '.join(self.carried(item, kind, encode) for item in values)})"
            case Case(branches, default):
                conditions = [self.condition(when) for when, _ in branches]
                chosen = [self.carried(then, kind, encode) for _, then in branches]
                if default is not None:
                    conditions.append("true")
                    chosen.append(self.carried(default, kind, encode))
                return _case(conditions, chosen)
            case Operation("||", Expression() as left, right) if (
                kind.sql == "text" == self.type(tree).sql and kind.deterministic
            ):
                parts = [_concatenated(self, side) for side in (left, right)]
                return f"concat({', '.join(parts)})"
            case _ if kind.integer and self.type(tree).sql == kind.sql:
                return self.number(tree).sql
            case _ if kind.sql == "boolean" and encode("x", kind) in (
                encoding.value("x", kind),
                encoding.key("x", kind),
            ):
                return f"CAST({self.condition(tree)} AS STRING)"
            case _:
                raise _refusal(
                    tree, "it is made from several tables by an expression that Spark does not have"
                )


def _concatenated(translator: Translator, side: Expression) -> str:
    kind = translator.type(side)
    if encoding.family(kind) not in ("text", "integer"):
        raise _refusal(side, f"{kind.sql} in a concatenation is written by PostgreSQL's own rules")
    owner = translator.owner(side)
    if owner is not None:
        return owner.column(Encoded(f"({side.text})::text", "text"))
    if kind.integer:
        return f"CAST({translator.number(side).sql} AS STRING)"
    return translator.carried(side, kind, encoding.value)


def _constant(tree: Expression, text: str) -> Number:
    """Write a number, in the type that PostgreSQL gives it."""
    whole, point, fraction = text.removeprefix("-").partition(".")
    if not (whole + fraction).isdigit():
        raise _refusal(tree, "a number in scientific notation has no digits to count")
    for kind in ("integer", "bigint"):
        first, last = INTEGER_RANGES[kind]
        if not point and first <= int(text) <= last:
            return Number(f"{int(text)}L", kind, 0, "0")
    if len(fraction) > encoding.LARGEST_SCALE or len(whole) > 20:
        raise _refusal(tree, "it has more digits than Spark's decimals")
    scale = len(fraction)
    return Number(f"CAST('{text}' AS DECIMAL(38,{scale}))", None, scale, str(scale))


def _wider(left: Number, right: Number) -> str | None:
    kinds = (left.integer, right.integer)
    return next((kind for kind in ("bigint", "integer", "smallint") if kind in kinds), None)


def _combined(tree: Expression, left: Number, operator: str, right: Number) -> Number:
    if left.integer and right.integer:
        return _checked(Number(f"({left.sql} {operator} {right.sql})", _wider(left, right), 0, "0"))
    left, right = _as_numeric(left), _as_numeric(right)
    if operator == "*":
        scale, shown = left.scale + right.scale, f"({left.shown_scale} + {right.shown_scale})"
    else:
        scale = max(left.scale, right.scale)
        shown = f"greatest({left.shown_scale}, {right.shown_scale})"
        if left.shown_scale == right.shown_scale:
            shown = left.shown_scale
    if scale > encoding.LARGEST_SCALE:
        raise _refusal(tree, f"its {scale} fractional digits leave Spark's decimals too few others")
    return Number(f"({left.sql} {operator} {right.sql})", None, scale, shown)


def _aligned(left: Number, right: Number) -> tuple[str, str]:
    """Align two numbers to be compared: Spark would round different scales to the shorter fraction."""
    if left.integer and right.integer:
        return left.sql, right.sql
    wanted = f"DECIMAL(38,{max(left.scale, right.scale)})"
    return f"CAST({left.sql} AS {wanted})", f"CAST({right.sql} AS {wanted})"


def _chosen(kind: ColumnType, cases: Sequence[tuple[str, Number]]) -> Number:
    """Return the number of the first condition that holds, or NULL."""
    numbers = [number for _, number in cases]
    if not kind.integer:
        numbers = [_as_numeric(number) for number in numbers]
    scale = max(number.scale for number in numbers)
    values = [number.sql for number in numbers]
    if not kind.integer:
        values = [f"CAST({value} AS DECIMAL(38,{scale}))" for value in values]
    shown = [number.shown_scale for number in numbers]
    conditions = [condition for condition, _ in cases]
    return Number(
        _case(conditions, values),
        kind.base if kind.integer else None,
        scale,
        shown[0] if len(set(shown)) == 1 else _case(conditions, shown),
    )


def _case(conditions: Sequence[str], values: Sequence[str]) -> str:
    cases = zip(conditions, values, strict=True)
    return f"CASE {' '.join(f'WHEN {condition} THEN {value}' for condition, value in cases)} END"


def _as_numeric(number: Number) -> Number:
    if number.integer is None:
        return number
    return Number(f"CAST({number.sql} AS DECIMAL(38,0))", None, 0, "0")


def _checked(number: Number) -> Number:
    """Return an integer checked to fit its type, as in PostgreSQL; Spark itself checks bigint."""
    if number.integer in (None, "bigint"):
        return number
    narrow = "SMALLINT" if number.integer == "smallint" else "INT"
    return Number(f"CAST(CAST({number.sql} AS {narrow}) AS BIGINT)", number.integer, 0, "0")


def _refusal(tree: Expression, reason: str) -> Refused:
    return Refused(f"{tree.text.replace(chr(34), '')}: {reason}")
