"""Tables in place of computed parts of a query."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from headwater.plan.expression import column
from headwater.plan.operators import (
    Aggregate,
    Apply,
    Constant,
    Expansion,
    Input,
    Keyed,
    Node,
    Output,
    Query,
    Scan,
    Select,
    UnionAll,
)

ALIAS = "q"


def around(node: Node) -> Select:
    """Return a block that shows the rows of a node unchanged."""
    outputs = tuple(Output(name, column(name, ALIAS)) for name in node.output_names)
    return Select((Input(ALIAS, node),), (), outputs)


def substituted(query: Query, table_of: Callable[[Query], str | None]) -> Query:
    """Return a query that reads tables in place of the outermost parts that have one.

    Lookups stay as they are: the server finds their rows by an index, which such a table does not have.
    """
    table = table_of(query) if query.output_names else None  # rows without columns make no table
    if table is not None:
        return around(Constant(f"SELECT * FROM {table}", query.output_names))
    match query:
        case Select() | Keyed():
            inputs = tuple(replace(item, node=_below(item.node, table_of)) for item in query.inputs)
            return replace(query, inputs=inputs)
        case UnionAll():
            return UnionAll(tuple(substituted(branch, table_of) for branch in query.branches))
        case Aggregate():
            return replace(query, input=substituted(query.input, table_of))
        case Apply():
            return replace(query, core=substituted(query.core, table_of))


def _below(node: Node, table_of: Callable[[Query], str | None]) -> Node:
    return node if isinstance(node, Scan | Constant | Expansion) else substituted(node, table_of)
