"""Constructs that have no delta rule yet, as data: the node, and the reason that a user reads.

`parse` raises for whatever it does not know; this list exists so that `explain` can name every reason at
once instead of the first one met.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp


def _with(node: exp.Expression) -> str | None:
    return "WITH RECURSIVE has no delta rule" if node.args.get("recursive") else None


def _always(reason: str) -> Callable[[exp.Expression], str | None]:
    return lambda _: reason


UNSUPPORTED: dict[type[exp.Expression], Callable[[exp.Expression], str | None]] = {
    exp.With: _with,
    exp.Lock: _always("FOR UPDATE or FOR SHARE locks rows of a source, which a refresh must not do"),
    exp.TableSample: _always("TABLESAMPLE gives other rows each time"),
}


def unsupported_constructs(tree: exp.Expression) -> list[str]:
    """Every reason found in a query, each once."""
    reasons: dict[str, None] = {}
    for node in tree.find_all(exp.Expression, bfs=False):
        check = UNSUPPORTED.get(type(node))
        reason = check(node) if check else None
        if reason:
            reasons[reason] = None
    return list(reasons)
