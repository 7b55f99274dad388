"""How many fractional digits a numeric expression has, where its form alone decides that.

`price * (1 - discount)` over numeric(10,2) and numeric(4,2) always has four: then a sum of it needs no record
of the scales that occur (see `headwater.plan.aggregates`).
"""

from __future__ import annotations

from sqlglot import exp

from headwater.plan.operators import ColumnType, Query, Scan, Select, UnionAll


def fixed_scale(body: Query, column: str) -> int | None:
    """The scale that every value of a body's column has, or None if it depends on the rows."""
    position = body.output_names.index(column)
    blocks = body.branches if isinstance(body, UnionAll) else (body,)
    found = {
        expression_scale(block.outputs[position].expression, block) if isinstance(block, Select) else None
        for block in blocks
    }
    return found.pop() if len(found) == 1 else None


def expression_scale(tree: exp.Expression, block: Select) -> int | None:
    """The scale that every value of an expression over the inputs of a block has, or None."""
    match tree:
        case exp.Paren() | exp.Neg():
            return expression_scale(tree.this, block)
        case exp.Literal() if not tree.is_string:
            whole, _, fraction = tree.name.partition(".")
            return len(fraction) if (whole + fraction).isdigit() else None
        case exp.Column():
            node = next((item.node for item in block.inputs if item.alias == tree.table), None)
            return _of_type(node.source.column(tree.name).type) if isinstance(node, Scan) else None
        case exp.Cast() if tree.to.this == exp.DType.DECIMAL:
            declared = [parameter.this.name for parameter in tree.to.expressions]
            if not declared:
                return expression_scale(tree.this, block)
            return max(0, int(declared[1])) if len(declared) == 2 else 0
        case exp.Add() | exp.Sub() | exp.Mul():
            left, right = expression_scale(tree.this, block), expression_scale(tree.expression, block)
            if left is None or right is None:
                return None
            return left + right if isinstance(tree, exp.Mul) else max(left, right)
        case _:
            return None


def _of_type(kind: ColumnType) -> int | None:
    return 0 if kind.integer else kind.scale
