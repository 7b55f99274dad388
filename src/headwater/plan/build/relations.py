"""What a query can name: relations and functions that the server knows, and common table expressions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from postgast.pg_query_pb2 import Node, SelectStmt

from headwater.plan import syntax
from headwater.plan.operators import Source
from headwater.plan.syntax import function_name, kind_of

Name = tuple[str, str]
"""A schema and a name."""


@dataclass(frozen=True)
class View:
    """A plain view that the query reads, to be expanded."""

    text: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Relations:
    """What the server knows about the relations and functions that a query names."""

    sources: Mapping[Name, Source]
    views: Mapping[Name, View]
    unusable: Mapping[Name, str]  # relations without capture, with the reason
    aggregates: frozenset[Name]  # aggregate functions that the query calls
    set_returning: frozenset[Name] = frozenset()  # functions it calls that return sets

    def is_aggregate(self, node: Node) -> bool:
        """Tell whether a node calls an aggregate, and not as a window function."""
        match kind_of(node):
            case "func_call":
                call = node.func_call
                return not call.HasField("over") and function_name(call) in self.aggregates
            case "json_array_agg":
                return not node.json_array_agg.constructor.HasField("over")
            case "json_object_agg":
                return not node.json_object_agg.constructor.HasField("over")
            case _:
                return False

    def returns_set(self, node: Node) -> bool:
        """Tell whether a set-returning function is called in an expression."""
        return any(
            kind_of(item) == "func_call" and function_name(item.func_call) in self.set_returning
            for item in syntax.walk(node, into_queries=False)
        )

    def aggregate_calls(self, node: Node) -> list[Node]:
        """Return the outermost aggregate calls in an expression."""
        found: list[Node] = []

        def note(item: Node) -> Node | None:
            if kind_of(item) == "select_stmt":
                return item
            if self.is_aggregate(item):
                found.append(syntax.copied(item))
                return item
            return None

        syntax.rewritten(node, note)
        return found


@dataclass(frozen=True, eq=False)
class CommonTable:
    """A common table expression in scope."""

    query: SelectStmt
    names: tuple[str, ...]  # names of its columns, if given
    environment: Environment


Environment = Mapping[str, CommonTable]
"""Common table expressions in scope, by name."""
