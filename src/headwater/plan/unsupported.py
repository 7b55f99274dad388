"""Constructs that have no delta rule yet, as data: the node, and the reason that a user reads.

`parse` raises for whatever it does not know; this list exists so that `explain` can name every reason at
once instead of the first one met.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp


def _outer_join(node: exp.Expression) -> str | None:
    side = node.args.get("side")
    return f"{side} JOIN has no delta rule yet" if side else None


def _distinct_on(node: exp.Expression) -> str | None:
    return "DISTINCT ON has no delta rule yet" if node.args.get("on") else None


def _grouping_sets(node: exp.Expression) -> str | None:
    for kind, name in (("grouping_sets", "GROUPING SETS"), ("rollup", "ROLLUP"), ("cube", "CUBE")):
        if node.args.get(kind):
            return f"{name} has no delta rule yet"
    return None


def _with(node: exp.Expression) -> str | None:
    return "WITH RECURSIVE has no delta rule" if node.args.get("recursive") else None


def _always(reason: str) -> Callable[[exp.Expression], str | None]:
    return lambda _: reason


UNSUPPORTED: dict[type[exp.Expression], Callable[[exp.Expression], str | None]] = {
    exp.Join: _outer_join,
    exp.Distinct: _distinct_on,
    exp.Group: _grouping_sets,
    exp.With: _with,
    exp.GroupingSets: _always("GROUPING SETS has no delta rule yet"),
    exp.Rollup: _always("ROLLUP has no delta rule yet"),
    exp.Cube: _always("CUBE has no delta rule yet"),
    exp.Intersect: _always("INTERSECT has no delta rule yet"),
    exp.Except: _always("EXCEPT has no delta rule yet"),
    exp.Window: _always("a window function has no delta rule yet"),
    exp.Limit: _always("LIMIT has no delta rule yet"),
    exp.Fetch: _always("FETCH FIRST has no delta rule yet"),
    exp.Offset: _always("OFFSET has no delta rule yet"),
    exp.Lateral: _always("LATERAL has no delta rule yet"),
    exp.Lock: _always("FOR UPDATE or FOR SHARE locks rows of a source, which a refresh must not do"),
    exp.TableSample: _always("TABLESAMPLE gives other rows each time"),
}


def unsupported_constructs(tree: exp.Expression) -> list[str]:
    """Every reason found in a query, each once."""
    reasons: dict[str, None] = {}
    for node in tree.find_all(exp.Expression, bfs=False):
        if isinstance(node, exp.Query) and _is_expression_subquery(node):
            reasons["a subquery inside an expression has no delta rule yet"] = None
        check = UNSUPPORTED.get(type(node))
        reason = check(node) if check else None
        if reason:
            reasons[reason] = None
    return list(reasons)


def _is_expression_subquery(node: exp.Query) -> bool:
    """A query anywhere but at the top, in FROM, in WITH, or as a branch of a set operation."""
    if isinstance(node, exp.Subquery):
        return False
    parent = node.parent
    while isinstance(parent, exp.Subquery):
        parent = parent.parent
    return parent is not None and not isinstance(
        parent, exp.From | exp.Join | exp.CTE | exp.SetOperation | exp.Lateral
    )
