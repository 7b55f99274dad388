"""Makes a query that fails smaller, so that what is left is what matters.

The query is taken apart as PostgreSQL's own parser sees it. Whether the rest means anything, the server says.
The deparser expects some parts and crashes without them, so it has a process of its own.
"""

from __future__ import annotations

import base64
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Self

import postgast
from google.protobuf.message import Message
from postgast.pg_query_pb2 import (
    JOIN_INNER,
    Node,
    ParseResult,
    SelectStmt,
)

Fails = Callable[[str], bool]

OPTIONAL = {
    "SelectStmt": ("with_clause", "where_clause", "having_clause", "limit_offset", "limit_count"),
    "JoinExpr": ("quals", "join_using_alias"),
    "FuncCall": ("agg_filter", "over"),
    "CaseExpr": ("arg", "defresult"),
    "CommonTableExpr": ("search_clause", "cycle_clause"),
}
"""The parts of a node that it can do without."""
SWITCHES = {
    "SelectStmt": ("distinct_clause", "group_distinct", "all"),
    "FuncCall": ("agg_distinct",),
    "RangeFunction": ("ordinality",),
}
"""What is there as a whole or not at all."""
LISTS = {
    "SelectStmt": {
        "target_list": 1,
        "from_clause": 0,
        "group_clause": 0,
        "window_clause": 0,
        "values_lists": 1,
    },
    "WithClause": {"ctes": 1},
    "FuncCall": {"args": 0},
    "BoolExpr": {"args": 1},
    "CoalesceExpr": {"args": 1},
    "MinMaxExpr": {"args": 1},
    "CaseExpr": {"args": 1},
    "RowExpr": {"args": 1},
    "A_ArrayExpr": {"elements": 0},
    "GroupingSet": {"content": 1},
    "GroupingFunc": {"args": 1},
    "WindowDef": {"partition_clause": 0},
    "JoinExpr": {"using_clause": 1},
    "RangeFunction": {"functions": 1},
    "List": {"items": 1},
}
"""Lists whose elements can go, and how many have to stay."""
ORDERS = ("sort_clause", "agg_order", "order_clause")
"""Without its order, a result may depend on chance."""
EXPRESSIONS = (
    "a_array_expr",
    "a_const",
    "a_expr",
    "a_indirection",
    "bool_expr",
    "boolean_test",
    "case_expr",
    "coalesce_expr",
    "collate_clause",
    "column_ref",
    "func_call",
    "grouping_func",
    "json_array_agg",
    "json_array_constructor",
    "json_func_expr",
    "json_is_predicate",
    "json_object_agg",
    "json_object_constructor",
    "min_max_expr",
    "null_test",
    "row_expr",
    "sub_link",
    "type_cast",
)
LEAVES = ("column_ref", "a_const")
MOST_LEAVES = 2
"""So many columns and constants of an expression are tried in its place."""

DEPARSER = """
import base64, sys
import postgast
from postgast.pg_query_pb2 import ParseResult

for line in sys.stdin:
    try:
        text = postgast.deparse(ParseResult.FromString(base64.b64decode(line)))
    except postgast.PgQueryError:
        text = ""
    print(base64.b64encode(text.encode()).decode(), flush=True)
"""
"""Answers each line with a tree by one with its text."""

Change = Callable[[Message], None]


def reduced(query: str, fails: Fails, seconds: float) -> str:
    """Return the smallest query found in a time that fails as well; the query itself if none is smaller."""
    until = time.monotonic() + seconds
    tree = postgast.parse(query)
    text: str = postgast.deparse(tree)
    if not fails(text):
        return query
    tried: set[str] = set()
    with Deparser() as deparser:
        progress = True
        while progress:
            progress = False
            for candidate in smaller(tree):
                if time.monotonic() > until:
                    return text
                shorter = deparser.text(candidate)
                if not shorter or shorter in tried or len(shorter) >= len(text):
                    continue
                tried.add(shorter)
                if fails(shorter):
                    tree, text, progress = candidate, shorter, True
                    break
    return text


class Deparser:
    """Deparses trees in a process of its own, which is started again when it crashes."""

    def __enter__(self) -> Self:
        self._process = self._start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop()

    def text(self, tree: ParseResult) -> str:
        """Return the text of a tree, or nothing if it has none."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(base64.b64encode(tree.SerializeToString()) + b"\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            self._stop()
            self._process = self._start()
        return base64.b64decode(answer).decode()

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-c", DEPARSER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def _stop(self) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


def smaller(tree: ParseResult) -> Iterator[ParseResult]:
    """Yield the tree less one part, or with a part of a part in its place; large steps come first."""
    for number, message in enumerate(messages(tree)):
        for change in changes(message):
            copy = ParseResult()
            copy.CopyFrom(tree)
            change(messages(copy)[number])
            yield copy


def messages(root: Message) -> list[Message]:
    """List the messages of a tree, outer ones first, except for what is below an ORDER BY."""
    found: list[Message] = []
    level = [root]
    while level:
        found += level
        level = [below for message in level for below in children(message)]
    return found


def children(message: Message) -> list[Message]:
    below: list[Message] = []
    for field, value in message.ListFields():
        if field.message_type is None or field.name in ORDERS:
            continue
        below += [value] if isinstance(value, Message) else list(value)
    return below


def changes(message: Message) -> Iterator[Change]:
    """Yield what can be done to a message."""
    kind = message.DESCRIPTOR.name
    for name, least in LISTS.get(kind, {}).items():
        if len(getattr(message, name)) > least:
            yield from (partial(shorten, name, position) for position in range(len(getattr(message, name))))
    yield from (partial(clear, name) for name in OPTIONAL.get(kind, ()) if message.HasField(name))
    yield from (partial(clear, name) for name in SWITCHES.get(kind, ()) if getattr(message, name))
    if isinstance(message, Node | SelectStmt):
        yield from (partial(replace, part) for part in replacements(message))


def shorten(name: str, position: int, message: Message) -> None:
    del getattr(message, name)[position]


def replace(part: Message, message: Message) -> None:
    message.CopyFrom(part)


def clear(name: str, message: Message) -> None:
    message.ClearField(name)
    if name == "limit_count":
        message.ClearField("limit_option")  # WITH TIES says nothing without it
    if name == "quals" and message.jointype != JOIN_INNER:
        message.quals.a_const.boolval.boolval = True  # an outer join needs a condition


def replacements(message: Node | SelectStmt) -> Iterator[Message]:
    """Yield copies of the parts of a message that might stand in its place."""
    if isinstance(message, SelectStmt):
        found: list[Message] = [each for each in messages(message)[1:] if isinstance(each, SelectStmt)]
    elif message.HasField("join_expr"):
        found = [message.join_expr.larg, message.join_expr.rarg]
    elif message.WhichOneof("node") in EXPRESSIONS and message.WhichOneof("node") not in LEAVES:
        inner = [each for each in messages(message)[1:] if isinstance(each, Node) and is_expression(each)]
        leaves = [each for each in inner if each.WhichOneof("node") in LEAVES]
        found = [*(each for each in inner if each not in leaves), *leaves[:MOST_LEAVES]]
    else:
        found = []
    for part in found:
        copy = type(message)()
        copy.CopyFrom(part)
        yield copy


def is_expression(node: Node) -> bool:
    return node.WhichOneof("node") in EXPRESSIONS
