"""Renaming the outputs of operators."""

from __future__ import annotations

from postgast import pg_query_pb2 as pg

from headwater.plan import syntax
from headwater.plan.errors import Unsupported
from headwater.plan.expression import Expression, column
from headwater.plan.operators import (
    Aggregate,
    Apply,
    Keyed,
    Output,
    Query,
    Select,
    UnionAll,
)

GROUP = "g"
"""Alias by which outputs and HAVING of an aggregate refer to its keys and calls."""


def renamed(node: Query, names: tuple[str, ...]) -> Query:
    """Return the node with its outputs renamed, by position."""

    def outputs(old: tuple[Output, ...]) -> tuple[Output, ...]:
        return tuple(Output(name, out.expression) for name, out in zip(names, old, strict=True))

    match node:
        case UnionAll():
            first, *rest = node.branches
            return UnionAll((renamed(first, names), *rest))
        case Select():
            return Select(node.inputs, node.predicates, outputs(node.outputs), node.expands)
        case Aggregate():
            return Aggregate(
                node.input, node.keys, node.calls, node.having, outputs(node.outputs), node.distinct
            )
        case Apply():
            return Apply(node.core, node.lookups, node.joins, node.predicates, outputs(node.outputs))
        case Keyed():
            new = dict(zip(node.columns, names, strict=True))
            if len(set(names)) < len(names):
                raise Unsupported("two columns of one name have no delta rule here")
            query = syntax.copied(node.sql.node)
            first = query.select_stmt
            while first.op != pg.SETOP_NONE:
                first = first.larg
            for item, name in zip(first.target_list, names, strict=True):
                item.res_target.name = name
            passed = tuple((new[output], below) for output, below in node.passed)
            return Keyed(node.what, node.inputs, node.keys, Expression(query), names, passed)


def distinct(body: Query) -> Aggregate:
    """Remove duplicates: a GROUP BY of every column without an aggregate.

    SELECT DISTINCT a, b FROM t  ->  SELECT a, b FROM t GROUP BY a, b
    """
    names = tuple(f"k{number + 1}" for number in range(len(body.output_names)))
    outputs = tuple(
        Output(output, column(name, GROUP)) for output, name in zip(body.output_names, names, strict=True)
    )
    return Aggregate(renamed(body, names), names, (), None, outputs, distinct=True)
