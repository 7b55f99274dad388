"""What a query leaves open, so that two evaluations of it over the same rows may differ.

An aggregate such as array_agg without ORDER BY takes its rows in any order. LIMIT, DISTINCT ON, and window
functions that number rows choose among rows that their ORDER BY does not distinguish. Both are found in the
stored parse tree of a view (`pg_rewrite.ev_action`), in which the server has resolved every call.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal

from headwater.plan.volatility import FIRST_OWN_OID

Freedom = Literal["none", "order", "rows"]
"""Nothing is left open, or the order in which an aggregate takes its rows, or which rows there are."""

_ORDERED_AGGREGATE = re.compile(r"(array|string|jsonb?|jsonb?_object|xml)_?agg(_\w+)?")
_POSITIONAL = frozenset({"row_number", "ntile", "lag", "lead", "first_value", "last_value", "nth_value"})
_AGGREGATE = re.compile(r"\{AGGREF :aggfnoid (\d+)")
_WINDOW_FUNCTION = re.compile(r"\{WINDOWFUNC :winfnoid (\d+)")
_CHOOSES_ROWS = re.compile(r":(?:limitCount|limitOffset) \{|:hasDistinctOn true")
_FRAME = re.compile(r":frameOptions (\d+)")
_FRAME_ROWS = 0x4
"""The bit of frameOptions for ROWS: where such a frame ends depends on the order among equals."""


def called(tree: str) -> set[int]:
    """Return the aggregates and window functions that a parse tree calls."""
    return {int(oid) for pattern in (_AGGREGATE, _WINDOW_FUNCTION) for oid in pattern.findall(tree)}


def freedom(trees: Iterable[str], names: Mapping[int, str]) -> Freedom:
    """Return what the query of these parse trees leaves open; `names` has those of the functions it calls."""
    found: Freedom = "none"
    for tree in trees:
        frames = any(int(options) & _FRAME_ROWS for options in _FRAME.findall(tree))
        windows = [int(oid) for oid in _WINDOW_FUNCTION.findall(tree)]
        if (
            _CHOOSES_ROWS.search(tree)
            or (windows and frames)
            or any(names.get(oid) in _POSITIONAL or _takes_any_order(oid, names) for oid in windows)
        ):
            return "rows"
        for match in _AGGREGATE.finditer(tree):
            if _takes_any_order(int(match[1]), names) and not _is_ordered(tree, match.start()):
                found = "order"
    return found


def _takes_any_order(oid: int, names: Mapping[int, str]) -> bool:
    return oid >= FIRST_OWN_OID or _ORDERED_AGGREGATE.fullmatch(names.get(oid, "")) is not None


def _is_ordered(tree: str, start: int) -> bool:
    """Tell whether the aggregate that begins here has an ORDER BY of its own."""
    depth = 0
    for position in range(start, len(tree)):
        if tree[position] in "{}" and tree[position - 1] != "\\":
            depth += 1 if tree[position] == "{" else -1
            if depth == 0:
                break
        elif depth == 1 and tree.startswith(":aggorder ", position):
            return not tree.startswith(":aggorder <>", position)
    return False
