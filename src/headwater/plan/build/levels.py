"""A second opinion on each level of a query, from the server's own analysis.

The builder reads the text of a query; the server has analysed the same query and keeps the result in
`pg_rewrite.ev_action`. Both say of every SELECT whether it aggregates, by how many keys it groups, and so on.
Where they differ, the plan would compute something else, so the query is refused.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields

from postgast import pg_query_pb2 as pg
from postgast.pg_query_pb2 import Node, SelectStmt

from headwater.plan import syntax
from headwater.plan.build.relations import Relations
from headwater.plan.build.scope import is_window_call
from headwater.plan.syntax import kind_of


@dataclass(frozen=True)
class Level:
    """What one SELECT, VALUES or set operation does."""

    aggregates: bool = False
    window_functions: bool = False
    set_returning_functions: bool = False
    subqueries_in_expressions: bool = False
    distinct: bool = False
    distinct_on: bool = False
    group_by_distinct: bool = False
    grouping_sets: bool = False
    having: bool = False
    limit: bool = False
    offset: bool = False
    sort_keys: int = 0
    group_keys: int = 0  # not counted for grouping sets, which share keys


@dataclass(frozen=True)
class Levels:
    """A level, and the levels directly below it; equal ones occur once.

    A subquery that is a key occurs in the text wherever the key is used, and in the analysis once or more
    often, depending on the version of the server.
    """

    own: Level
    below: frozenset[Levels]

    def all(self) -> Iterator[Level]:
        yield self.own
        for levels in self.below:
            yield from levels.all()


def _levels(own: Level, below: Iterable[Levels]) -> Levels:
    """Leave out levels that do nothing: the server may count a list of VALUES in FROM as one, or not."""
    return Levels(own, frozenset(levels for levels in below if levels.below or levels.own != Level()))


def disagreement(read: Levels, analysed: Levels) -> str | None:
    """Say how the levels that were read differ from those that the server has, or return None."""
    if read == analysed:
        return None
    ours, theirs = Counter(read.all()), Counter(analysed.all())
    others = list((theirs - ours).elements())
    nearest = (min((_differ(mine, other) for other in others), key=len, default=()) for mine in ours - theirs)
    named = {name for names in nearest for name in names}
    return ", ".join(sorted(named)) or "how its subqueries are nested"


def _differ(one: Level, other: Level) -> tuple[str, ...]:
    names = [field.name for field in fields(Level) if getattr(one, field.name) != getattr(other, field.name)]
    return tuple(name.replace("_", " ") for name in names)


# As the text is read


def levels_read(query: SelectStmt, relations: Relations) -> Levels:
    """Return the levels of a query, from its parse tree."""
    inside = [
        node.select_stmt
        for part in _own_parts(query)
        for node in syntax.walk(part, into_queries=False)
        if kind_of(node) == "select_stmt"
    ]
    below = (levels_read(found, relations) for found in [*inside, *_leaves(query)])
    return _levels(_level(query, relations), below)


def _leaves(query: SelectStmt) -> Iterator[SelectStmt]:
    """Yield the queries that a set operation combines; a plain one nested in it is part of it."""
    if query.op == pg.SETOP_NONE:
        return
    for side in (query.larg, query.rarg):
        own = side.sort_clause or side.HasField("limit_count") or side.HasField("limit_offset")
        if side.op == pg.SETOP_NONE or own or side.HasField("with_clause") or side.locking_clause:
            yield side
        else:
            yield from _leaves(side)


def _own_parts(query: SelectStmt) -> Iterator[Node]:
    """Yield everything in a query except the queries that a set operation combines."""
    for field, value in query.ListFields():
        if field.name in ("larg", "rarg") or field.message_type is None:
            continue
        if field.name == "with_clause":
            yield from value.ctes
        elif isinstance(value, Node):
            yield value
        else:
            yield from value


def _level(query: SelectStmt, relations: Relations) -> Level:
    own = [
        node
        for part in _own_parts(query)
        if kind_of(part) != "common_table_expr"
        for node in syntax.walk(part, into_queries=False)
    ]
    shown = [*query.target_list, *query.sort_clause, *query.group_clause, *query.distinct_clause]
    sets = any(kind_of(node) == "grouping_set" for node in query.group_clause)
    return Level(
        # The server counts GROUPING as an aggregate.
        aggregates=any(relations.is_aggregate(node) or kind_of(node) == "grouping_func" for node in own),
        window_functions=any(is_window_call(node) for node in own),
        set_returning_functions=any(relations.returns_set(node) for node in shown),
        subqueries_in_expressions=any(kind_of(node) == "sub_link" for node in own),
        distinct=bool(query.distinct_clause),
        distinct_on=any(map(kind_of, query.distinct_clause)),
        group_by_distinct=query.group_distinct,
        grouping_sets=sets,
        having=query.HasField("having_clause"),
        limit=query.HasField("limit_count"),
        offset=query.HasField("limit_offset"),
        sort_keys=len(query.sort_clause),
        group_keys=0 if sets else len(query.group_clause),
    )


# As the server analysed it


def levels_analysed(tree: str) -> Levels:
    """Return the levels of a query, from the server's analysed tree.

    >>> found = levels_analysed("({QUERY :hasAggs true :sortClause ({SORTGROUPCLAUSE :x 1})})")
    >>> found.own.aggregates, found.own.sort_keys, found.own.group_keys
    (True, 1, 0)
    """
    [levels] = _analysed(tree)
    return levels


_TOKEN = re.compile(
    r"\{(?P<node>\w+)|(?P<end>\})|[()]|:(?P<field>\w+)|(?P<atom>(?:\\.|[^\s(){}\\])+)", re.DOTALL
)


@dataclass
class _Frame:
    """A node of the tree being read: how many nodes each field holds, or the word in it."""

    kind: str
    field: str
    nodes: Counter[str]
    words: dict[str, str]
    below: list[Levels]  # levels of the queries in it


def _analysed(tree: str) -> list[Levels]:
    frames = [_Frame("", "", Counter(), {}, [])]
    for token in _TOKEN.finditer(tree):
        top = frames[-1]
        if token["node"]:
            top.nodes[top.field] += 1
            frames.append(_Frame(token["node"], "", Counter(), {}, []))
        elif token["end"]:
            frames.pop()
            is_query = top.kind == "QUERY"
            frames[-1].below += [_levels(_query_level(top), top.below)] if is_query else top.below
        elif token["field"]:
            top.field = token["field"]
        elif token["atom"]:
            top.words.setdefault(top.field, token["atom"])
    return frames[0].below


def _query_level(query: _Frame) -> Level:
    def holds(name: str) -> bool:
        return query.words.get(name) == "true"

    sets = query.nodes["groupingSets"] > 0
    return Level(
        aggregates=holds("hasAggs"),
        window_functions=holds("hasWindowFuncs"),
        set_returning_functions=holds("hasTargetSRFs"),
        subqueries_in_expressions=holds("hasSubLinks"),
        distinct=query.nodes["distinctClause"] > 0,
        distinct_on=holds("hasDistinctOn"),
        group_by_distinct=holds("groupDistinct"),
        grouping_sets=sets,
        having=query.nodes["havingQual"] > 0,
        limit=query.nodes["limitCount"] > 0,
        offset=query.nodes["limitOffset"] > 0,
        sort_keys=query.nodes["sortClause"],
        group_keys=0 if sets else query.nodes["groupClause"],
    )
