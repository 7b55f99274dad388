"""Makes a query that fails smaller, so that what is left is what matters."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import sqlglot
from sqlglot import exp

Fails = Callable[[str], bool]


def reduced(query: str, fails: Fails, seconds: float) -> str:
    """A smaller query that fails as well, the smallest found in a time; the query itself if none is."""
    until = time.monotonic() + seconds
    tree = sqlglot.parse_one(query, read="postgres")
    if not fails(_text(tree)):
        return query
    tried: set[str] = set()
    progress = True
    while progress:
        progress = False
        for candidate in _smaller(tree):
            text = _text(candidate)
            if time.monotonic() > until:
                return _text(tree)
            if text in tried or len(text) >= len(_text(tree)):
                continue
            tried.add(text)
            if fails(text):
                tree, progress = candidate, True
                break
    return _text(tree)


def _text(tree: exp.Expr) -> str:
    return tree.sql(dialect="postgres")


def _smaller(tree: exp.Expr) -> Iterator[exp.Expr]:
    """The tree less one part, or with a part of a part in its place; large steps come first."""
    nodes = list(tree.walk())
    for number, node in enumerate(nodes):
        if node.find_ancestor(exp.Order) or isinstance(node, exp.Order):
            continue  # without its order, a result may depend on chance
        for key, value in node.args.items():
            if isinstance(value, list):
                for position in range(len(value)):
                    copy, twin = _twin(tree, number)
                    twin.set(key, twin.args[key][:position] + twin.args[key][position + 1 :])
                    yield copy
            elif isinstance(value, exp.Expr) and not isinstance(value, exp.Order) and key != "this":
                copy, twin = _twin(tree, number)
                twin.set(key, None)
                yield copy
        for inner in _replacements(node):
            copy, twin = _twin(tree, number)
            if twin is copy:
                yield inner.copy()
            else:
                twin.replace(inner.copy())
                yield copy


def _twin(tree: exp.Expr, number: int) -> tuple[exp.Expr, exp.Expr]:
    """A copy of the tree, and in it the node with this number."""
    copy = tree.copy()
    return copy, list(copy.walk())[number]


def _replacements(node: exp.Expr) -> Iterator[exp.Expr]:
    """Parts of a node that might stand in its place."""
    if isinstance(node, exp.Query):
        yield from (each for each in node.find_all(exp.Query) if each is not node)
    elif isinstance(node, exp.Condition) and not isinstance(node, exp.Column | exp.Literal):
        yield from node.iter_expressions()
        yield from list(node.find_all(exp.Column))[:2]
