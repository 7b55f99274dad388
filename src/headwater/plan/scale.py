"""The number of fractional digits of a numeric expression, where its form alone determines it.

`price * (1 - discount)` over numeric(10,2) and numeric(4,2) always has four: then a sum of it needs no record
of the scales that occur (see `headwater.plan.aggregates`).
"""

from __future__ import annotations

from headwater.plan.expression import Cast, ColumnRef, Expression, Literal, Operation
from headwater.plan.operators import ColumnType, Query, Scan, Select, UnionAll


def fixed_scale(body: Query, column: str) -> int | None:
    """Return the scale that every value of a body's column has, or None if it depends on the rows."""
    position = body.output_names.index(column)
    blocks = body.branches if isinstance(body, UnionAll) else (body,)
    found = {
        expression_scale(block.outputs[position].expression, block) if isinstance(block, Select) else None
        for block in blocks
    }
    return found.pop() if len(found) == 1 else None


def expression_scale(tree: Expression, block: Select) -> int | None:
    """Return the scale that every value of an expression over the inputs of a block has, or None."""
    match tree.shape:
        case Literal(text, number=True):
            whole, _, fraction = text.removeprefix("-").partition(".")
            return len(fraction) if (whole + fraction).isdigit() else None
        case ColumnRef(alias, name):
            node = next((item.node for item in block.inputs if item.alias == alias), None)
            return _of_type(node.source.column(name).type) if isinstance(node, Scan) else None
        case Cast(value, "numeric", declared):
            if not declared:
                return expression_scale(value, block)
            return max(0, int(declared[1])) if len(declared) == 2 else 0
        case Operation("-", None, value):
            return expression_scale(value, block)
        case Operation("+" | "-" | "*" as operator, Expression() as one, other):
            left, right = expression_scale(one, block), expression_scale(other, block)
            if left is None or right is None:
                return None
            return left + right if operator == "*" else max(left, right)
        case _:
            return None


def _of_type(kind: ColumnType) -> int | None:
    return 0 if kind.integer else kind.scale
