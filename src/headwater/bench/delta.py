"""What a delta costs on each engine, for changes and tables of several sizes.

Two stream tables of one definition, a join with an aggregate, get the same changes: one is computed inside
PostgreSQL, the other on Spark. The baseline is recomputing in PostgreSQL, in the same run. Everything is
warmed up first; a time is the median of the repetitions.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from psycopg import sql

from headwater.api import Headwater
from headwater.catalog.history import Outcome
from headwater.catalog.stream_tables import EngineName
from headwater.db.scratch import statement

SCHEMA = "headwater_bench"
SIZES = (100_000, 1_000_000, 10_000_000)
CHANGES = (1, 100, 10_000, 1_000_000)
WARM_UP = 5
REPETITIONS = 5
CUSTOMERS = 10_000
BUFFER_ROWS = 100_000_000
"""For max_buffer_rows: a change must be a delta, however large."""

ENGINES: tuple[EngineName, ...] = ("postgres", "spark")
QUERY = f"""
SELECT c.region, count(*) AS orders, sum(o.amount) AS amount, avg(o.amount) AS average
FROM {SCHEMA}.orders AS o JOIN {SCHEMA}.customers AS c ON c.id = o.customer_id
GROUP BY c.region
"""


@dataclass(frozen=True, kw_only=True)
class DeltaCost:
    """One engine, one size of the table, one size of the change."""

    engine: str
    table_rows: int
    changed_rows: int  # each makes two change rows, the old and the new one
    elapsed_ms: float
    database_ms: float  # without Spark's own computing
    against_full: float  # how many times faster than recomputing in PostgreSQL
    against_postgres: float  # how many times faster than the delta in PostgreSQL
    phases: dict[str, float]


def measure(
    hw: Headwater,
    *,
    sizes: Sequence[int] = SIZES,
    changes: Sequence[int] = CHANGES,
    repetitions: int = REPETITIONS,
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[DeltaCost]:
    """Yield the figures, as they come."""
    for size in sizes:
        progress(f"loading {size:,} rows")
        _prepare(hw, size)
        try:
            yield from _measure_size(
                hw, size, [count for count in changes if count <= size], repetitions, progress
            )
        finally:
            _clear(hw)


def _measure_size(
    hw: Headwater, size: int, changes: Sequence[int], repetitions: int, progress: Callable[[str], None]
) -> Iterator[DeltaCost]:
    for engine in ENGINES:
        progress(f"{size:,} rows: creating the stream table for {engine}")
        hw.create(_name(engine), QUERY, mode="differential", engine=engine)
    progress(f"{size:,} rows: recomputing")
    full = statistics.median(
        hw.refresh(_name("postgres"), full=True)[-1].duration_ms for _ in range(min(3, repetitions))
    )
    first = 0
    for count in changes:
        many = count > 10_000
        outcomes: dict[str, list[Outcome]] = {engine: [] for engine in ENGINES}
        for number in range((1 if many else WARM_UP) + repetitions):
            progress(f"{size:,} rows: {count:,} changed, {number + 1}")
            _change(hw, first, count, size)
            first = (first + count) % size
            for engine in ENGINES:
                outcomes[engine].append(hw.refresh(_name(engine), engine=engine)[-1])
        postgres = _median(outcomes["postgres"][-repetitions:], _elapsed)
        for engine in ENGINES:
            kept = outcomes[engine][-repetitions:]
            _check(kept, engine)
            elapsed = _median(kept, _elapsed)
            yield DeltaCost(
                engine=engine,
                table_rows=size,
                changed_rows=count,
                elapsed_ms=elapsed,
                database_ms=_median(kept, _database),
                against_full=full / elapsed,
                against_postgres=postgres / elapsed,
                phases=_phases(kept),
            )


def _prepare(hw: Headwater, size: int) -> None:
    _clear(hw)
    run = hw.connection.execute
    schema = sql.Identifier(SCHEMA)
    run(sql.SQL("CREATE SCHEMA {}").format(schema))
    run(statement(f"CREATE TABLE {SCHEMA}.customers (id integer PRIMARY KEY, region text NOT NULL)"))
    run(
        statement(
            f"CREATE TABLE {SCHEMA}.orders (id integer PRIMARY KEY, customer_id integer NOT NULL,"
            " amount numeric(12,2) NOT NULL, note text NOT NULL)"
        )
    )
    run(
        statement(
            f"INSERT INTO {SCHEMA}.customers SELECT i, 'region ' || i %% 50 FROM generate_series(1, %s) AS i"
        ),
        (CUSTOMERS,),
    )
    run(
        statement(
            f"INSERT INTO {SCHEMA}.orders"
            f" SELECT i, 1 + i %% {CUSTOMERS}, (i %% 100000) / 100.0, 'order ' || i"
            " FROM generate_series(0, %s - 1) AS i"
        ),
        (size,),
    )
    run(statement(f"ANALYZE {SCHEMA}.customers, {SCHEMA}.orders"))


def _clear(hw: Headwater) -> None:
    for item in hw.list():
        if item.stream_table.startswith(f"{SCHEMA}."):
            hw.drop(item.stream_table)
    hw.connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(SCHEMA)))


def _change(hw: Headwater, first: int, count: int, size: int) -> None:
    """Change adjacent rows, wrapping around."""
    hw.connection.execute(
        statement(f"UPDATE {SCHEMA}.orders SET amount = amount + 1 WHERE id >= %s AND id < %s"),
        (first, first + count),
    )
    if first + count > size:
        hw.connection.execute(
            statement(f"UPDATE {SCHEMA}.orders SET amount = amount + 1 WHERE id < %s"),
            (first + count - size,),
        )


def _check(outcomes: Sequence[Outcome], engine: str) -> None:
    """Raise if another engine computed it, or everything was recomputed: the figure would be wrong."""
    for outcome in outcomes:
        if outcome.engine != engine or outcome.action != "delta":
            raise RuntimeError(f"wanted a delta on {engine}, got {outcome.action}: {outcome.engine_reason}")


def _name(engine: str) -> str:
    return f"{SCHEMA}.on_{engine}"


def _elapsed(outcome: Outcome) -> float:
    return outcome.duration_ms


def _database(outcome: Outcome) -> float:
    outside = ("start", "compute") if outcome.engine == "spark" else ()
    return outcome.duration_ms - sum(outcome.phases.get(phase, 0.0) for phase in outside)


def _phases(outcomes: Sequence[Outcome]) -> dict[str, float]:
    names = dict.fromkeys(name for outcome in outcomes for name in outcome.phases)
    return {
        name: round(statistics.median(outcome.phases.get(name, 0.0) for outcome in outcomes), 2)
        for name in names
    }


def _median(outcomes: Sequence[Outcome], of: Callable[[Outcome], float]) -> float:
    return statistics.median(of(outcome) for outcome in outcomes)
