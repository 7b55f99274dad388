"""What a refresh of each query of TPC-H costs after changes of several sizes, against recomputing.

Each query is a stream table, another one in mode full, and a materialized view over the same tables. After
each change all tables are read once, so that none of the measured operations pays for being the first reader.
Then the stream table is refreshed and compared with its query, and the other two get the same change. A time
includes the commit; it is the median of the repetitions.

First all stream tables are refreshed, then what they are compared with: between refreshes nothing is
recomputed. Each query has a session of its own: a commit empties every temporary table of its session, also
those of the other queries.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal, TypeVar

from psycopg import sql

from headwater.api import Headwater
from headwater.bench import tpch_data
from headwater.bench.tpch_queries import queries
from headwater.catalog.history import Action, Outcome
from headwater.db.connection import Connection

PERCENTS = (0.01, 0.1, 1.0, 10.0)
REPETITIONS = 3
WARM_UP = 2

Argument = TypeVar("Argument")
Result = TypeVar("Result")
Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class QueryCost:
    """One query after changes of one size."""

    query: int
    percent: float  # share of the rows that changed
    mode: str
    action: Action
    reason: str
    refresh_ms: float
    full_ms: float
    view_ms: float  # REFRESH MATERIALIZED VIEW
    against_full: float  # how many times faster than the full refresh
    against_view: float  # how many times faster than REFRESH MATERIALIZED VIEW
    equal: bool  # to its query, after each refresh


@dataclass(frozen=True, kw_only=True)
class Means:
    """Geometric means over queries."""

    percent: float
    of: Literal["all", "incremental"]
    queries: int
    against_full: float
    against_view: float


@dataclass(frozen=True)
class _Round:
    outcome: Outcome
    refresh_ms: float
    full_ms: float
    view_ms: float
    equal: bool


def measure(
    connect: Callable[[], Headwater],
    *,
    scale: float,
    percents: Sequence[float] = PERCENTS,
    numbers: Sequence[int] | None = None,
    repetitions: int = REPETITIONS,
    indexes: bool = True,
    progress: Progress = lambda _: None,
) -> list[QueryCost]:
    """Return the figures, by query and by the size of the change."""
    wanted = {number: text for number, text in queries(scale).items() if not numbers or number in numbers}
    with ExitStack() as stack:
        hw = stack.enter_context(connect())
        stack.callback(_clear, hw)
        _clear(hw)
        progress(f"loading TPC-H at scale {scale:g}")
        tpch_data.load(hw.connection, scale, indexes=indexes)
        handles = {number: stack.enter_context(connect()) for number in wanted}
        for number, text in wanted.items():
            progress(f"creating query {number}")
            hw.create(_name(number), text, engine="postgres")
            hw.create(_full(number), text, engine="postgres", mode="full")
            hw.connection.execute(
                sql.SQL("CREATE MATERIALIZED VIEW {} AS {}").format(_view(number), sql.SQL(text))
            )
        found = list(_rounds(hw.connection, handles, percents, repetitions, progress))
    return sorted(found, key=lambda item: (item.query, item.percent))


def means(found: Sequence[QueryCost]) -> list[Means]:
    """Return means over all queries that a change affected, and over those of them not recomputed."""
    made = []
    for percent in sorted({item.percent for item in found}):
        concerned = [item for item in found if item.percent == percent and item.action != "nothing"]
        incremental = [item for item in concerned if item.action == "delta"]
        kinds: tuple[tuple[Literal["all", "incremental"], list[QueryCost]], ...] = (
            ("all", concerned),
            ("incremental", incremental),
        )
        made += [
            Means(
                percent=percent,
                of=kind,
                queries=len(items),
                against_full=statistics.geometric_mean(item.against_full for item in items),
                against_view=statistics.geometric_mean(item.against_view for item in items),
            )
            for kind, items in kinds
            if items
        ]
    return made


def _rounds(
    connection: Connection,
    handles: Mapping[int, Headwater],
    percents: Sequence[float],
    repetitions: int,
    progress: Progress,
) -> Iterator[QueryCost]:
    seed = tpch_data.SEED
    for number in range(WARM_UP):
        progress(f"warming up, {number + 1}")
        tpch_data.change(connection, percents[0] / 100, seed := seed + 1)
        for query, hw in handles.items():
            hw.refresh(_name(query))
    for percent in percents:
        rounds = []
        for number in range(repetitions):
            progress(f"{percent:g} % changed, {number + 1}")
            tpch_data.change(connection, percent / 100, seed := seed + 1)
            tpch_data.read_once(connection)
            rounds.append(_round(handles))
        for query in handles:
            yield _cost(query, percent, [each[query] for each in rounds])


def _round(handles: Mapping[int, Headwater]) -> dict[int, _Round]:
    refreshed = {query: _took(hw.refresh, _name(query)) for query, hw in handles.items()}
    found = {}
    for query, hw in handles.items():
        refresh_ms, outcomes = refreshed[query]
        equal = hw.verify(_name(query)).equal
        full_ms, _ = _took(hw.refresh, _full(query))
        renewal = sql.SQL("REFRESH MATERIALIZED VIEW {}").format(_view(query))
        view_ms, _ = _took(hw.connection.execute, renewal)
        found[query] = _Round(outcomes[-1], refresh_ms, full_ms, view_ms, equal)
    return found


def _cost(query: int, percent: float, rounds: Sequence[_Round]) -> QueryCost:
    # A small change may not touch a query's tables: that costs nothing, and says nothing.
    concerned = [each for each in rounds if each.outcome.action != "nothing"] or rounds
    refresh, full, view = (
        statistics.median(getattr(each, name) for each in concerned)
        for name in ("refresh_ms", "full_ms", "view_ms")
    )
    outcome = concerned[-1].outcome
    return QueryCost(
        query=query,
        percent=percent,
        mode=outcome.mode,
        action=outcome.action,
        reason=outcome.reason,
        refresh_ms=refresh,
        full_ms=full,
        view_ms=view,
        against_full=full / refresh,
        against_view=view / refresh,
        equal=all(each.equal for each in rounds),
    )


def _took(action: Callable[[Argument], Result], argument: Argument) -> tuple[float, Result]:
    """Return the milliseconds that a call took, and its result."""
    begun = time.perf_counter()
    result = action(argument)
    return round((time.perf_counter() - begun) * 1000, 3), result


def _clear(hw: Headwater) -> None:
    for item in hw.list():
        if item.stream_table.startswith(f"{tpch_data.SCHEMA}."):
            hw.drop(item.stream_table)
    tpch_data.clear(hw.connection)


def _name(query: int) -> str:
    return f"{tpch_data.SCHEMA}.q{query}"


def _full(query: int) -> str:
    return f"{tpch_data.SCHEMA}.full{query}"


def _view(query: int) -> sql.Identifier:
    return sql.Identifier(tpch_data.SCHEMA, f"view{query}")
