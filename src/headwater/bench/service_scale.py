"""Thousands of stream tables in one database, few of whose sources change: the cost of ticks, and of rest.

Each stream table has a source of its own, so there is as much to look at as possible. A round changes one row
of some sources and lasts until all their stream tables are refreshed. Then everything is compared.

Creating thousands takes minutes, by the same `create` that users have, in several processes at once.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context

from psycopg import sql

from headwater.api import Headwater
from headwater.bench.service_process import Service, Used, bystander, wait_for
from headwater.db.connection import Connection, one
from headwater.db.scratch import statement

SCHEMA = "headwater_bench"
SIZES = (1_000, 5_000)
PERCENTS = (0.2, 1.0, 5.0)
"""Shares of the sources: with 1,000 and 5,000 some absolute numbers are the same, and can be compared."""
SECONDS = 30.0
REPETITIONS = 3
CREATORS = 4
"""Processes; more of them would wait for each other, because dependencies are recorded one after the other.
"""
PORTION = 50
"""Stream tables that a process creates before it takes others."""
COMPARED = 100
"""Stream tables that are compared in one statement."""
ROWS, KINDS = 20, 5
SETTINGS = {"scheduler_interval_ms": "1000", "max_concurrent_refreshes": "4", "tiered_scheduling": "on"}
QUERY = "SELECT kind, count(*) AS n, sum(amount) AS total FROM {schema}.source_{number} GROUP BY kind"
Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class ScaleCost:
    """This many stream tables, of which so many sources changed; times are processor time."""

    stream_tables: int
    changed: int  # in each round; 0 for rest
    seconds: float  # elapsed time of a round, or of the rest
    ticks: float
    tick_ms: float  # of the scheduler's thread, for one tick
    loop_ms: float  # of the scheduler's thread, for all ticks of a round
    hands_ms: float  # of those that refresh, in the same process
    server_ms: float | None  # of the server's processes for both
    loop_ms_per_change: float | None
    against_fewest: float | None  # loop_ms, relative to the fewest stream tables with as many changed
    core_share: float  # share of one core that the service used
    server_share: float | None  # share of one core that the server used for it


@dataclass(frozen=True, kw_only=True)
class Creation:
    """The cost of creating stream tables beside others."""

    stream_tables: int  # how many there were in the end
    created: int
    seconds: float
    processes: int


@dataclass(frozen=True, kw_only=True)
class ScaleCosts:
    creations: list[Creation]
    rounds: list[ScaleCost]
    equal: int  # stream tables that equal their query in the end
    different: int


def measure(
    dsn: str,
    *,
    sizes: Sequence[int] = SIZES,
    percents: Sequence[float] = PERCENTS,
    seconds: float = SECONDS,
    repetitions: int = REPETITIONS,
    progress: Progress = lambda _: None,
) -> ScaleCosts:
    """Return the figures, from few stream tables to many; the stream tables stay."""
    creations, rounds = [], list[ScaleCost]()
    with bystander(dsn) as writer:
        for size in sorted(set(sizes)):
            creations.append(prepare(dsn, size, progress))
            with Service(dsn, SETTINGS) as service:
                service.wait_until_quiet()
                progress(f"{size:,} stream tables at rest")
                rounds.append(_rest(service, size, seconds, rounds))
                for count in dict.fromkeys(max(1, round(size * percent / 100)) for percent in percents):
                    progress(f"{size:,} stream tables, {count:,} sources change")
                    rounds.append(_changed(service, writer, size, count, repetitions, rounds))
        equal = compare(writer, max(sizes))
    return ScaleCosts(creations=creations, rounds=rounds, equal=equal, different=max(sizes) - equal)


def prepare(dsn: str, size: int, progress: Progress) -> Creation:
    """Make the stream tables that are missing."""
    began = time.monotonic()
    with bystander(dsn) as connection:
        connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(SCHEMA)))
        there = set(_numbers(connection))
        missing = [number for number in range(size) if number not in there]
        for portion in portions(missing, PORTION):
            connection.execute(statement("; ".join(map(_source, portion))), prepare=False)
    done, processes = 0, min(CREATORS, max(1, len(missing) // PORTION))
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        jobs = [pool.submit(_create, dsn, portion) for portion in portions(missing, PORTION)]
        for job in as_completed(jobs):
            done += job.result()
            progress(f"{size:,} stream tables: {len(there) + done:,} created")
    with bystander(dsn) as connection:
        connection.execute("ANALYZE")  # as autovacuum does within a minute
    return Creation(
        stream_tables=size, created=done, seconds=time.monotonic() - began, processes=processes if done else 0
    )


def compare(connection: Connection, size: int) -> int:
    """Return how many of the stream tables equal their query."""
    equal = 0
    for portion in portions(range(size), COMPARED):
        parts = " UNION ALL ".join(map(_comparison, portion))
        equal += len(connection.execute(statement(parts), prepare=False).fetchall())
    return equal


def change(connection: Connection, numbers: Sequence[int]) -> None:
    """Change one row of each of these sources."""
    for number in numbers:
        text = f"UPDATE {SCHEMA}.source_{number} SET amount = amount + 1 WHERE id = 1"
        connection.execute(statement(text), prepare=False)


def wait_until_refreshed(connection: Connection, refresh: int, count: int) -> None:
    """Wait until this many stream tables were refreshed after that refresh."""
    found = (
        "SELECT count(DISTINCT stream_table_id) >= %s FROM headwater.refresh"
        " WHERE id > %s AND status = 'completed'"
    )
    wait_for(lambda: bool(one(connection, found, (count, refresh))[0]), "not all of them were refreshed")


def latest_refresh(connection: Connection) -> int:
    return int(one(connection, "SELECT coalesce(max(id), 0) FROM headwater.refresh")[0])


def portions(numbers: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    """
    >>> list(portions([1, 2, 3], 2))
    [[1, 2], [3]]
    """
    return (numbers[start : start + size] for start in range(0, len(numbers), size))


def _rest(service: Service, size: int, seconds: float, before: Sequence[ScaleCost]) -> ScaleCost:
    first, began = service.used(), time.monotonic()
    time.sleep(seconds)
    return _cost(size, 0, time.monotonic() - began, [service.used() - first], before)


def _changed(
    service: Service,
    writer: Connection,
    size: int,
    count: int,
    repetitions: int,
    before: Sequence[ScaleCost],
) -> ScaleCost:
    used, lengths = [], []
    for number in range(repetitions):
        service.wait_until_quiet()
        latest, first, began = latest_refresh(writer), service.used(), time.monotonic()
        change(writer, [(number * count + each * (size // count)) % size for each in range(count)])
        wait_until_refreshed(writer, latest, count)
        lengths.append(time.monotonic() - began)
        used.append(service.used() - first)
    return _cost(size, count, statistics.mean(lengths), used, before)


def _cost(
    size: int, changed: int, seconds: float, used: Sequence[Used], before: Sequence[ScaleCost]
) -> ScaleCost:
    loop = statistics.mean(each.loop_ms for each in used)
    hands = statistics.mean(each.hands_ms for each in used)
    ticks = statistics.mean(each.ticks for each in used)
    known = [each.server_ms for each in used if each.server_ms is not None]
    server = statistics.mean(known) if known else None
    alike = [each for each in before if each.changed == changed]
    return ScaleCost(
        stream_tables=size,
        changed=changed,
        seconds=seconds,
        ticks=ticks,
        tick_ms=loop / max(1, ticks),
        loop_ms=loop,
        hands_ms=hands,
        server_ms=server,
        loop_ms_per_change=loop / changed if changed else None,
        against_fewest=loop / max(1.0, alike[0].loop_ms) if alike else None,
        core_share=(loop + hands) / 1000 / seconds,
        server_share=server / 1000 / seconds if server is not None else None,
    )


def _numbers(connection: Connection) -> Iterator[int]:
    rows = connection.execute(
        "SELECT substring(table_name FROM '^stream_table_([0-9]+)$')::int FROM headwater.stream_tables"
        " WHERE schema_name = %s AND status = 'active' AND table_name ~ '^stream_table_[0-9]+$'",
        (SCHEMA,),
    )
    return (row[0] for row in rows)


def _source(number: int) -> str:
    name = f"{SCHEMA}.source_{number}"
    return (
        f"CREATE TABLE IF NOT EXISTS {name} (id int PRIMARY KEY, kind int NOT NULL, amount numeric NOT NULL);"
        f" INSERT INTO {name} SELECT i, i % {KINDS}, i FROM generate_series(1, {ROWS}) AS i"
        " ON CONFLICT DO NOTHING"
    )


def _create(dsn: str, numbers: Sequence[int]) -> int:
    """Create some of them, in a process of its own."""
    with Headwater(dsn) as hw:
        for number in numbers:
            name, query = f"{SCHEMA}.stream_table_{number}", QUERY.format(schema=SCHEMA, number=number)
            hw.create(name, query, schedule="1s", if_not_exists=True)
    return len(numbers)


def _comparison(number: int) -> str:
    stored, query = f"TABLE {SCHEMA}.stream_table_{number}", QUERY.format(schema=SCHEMA, number=number)
    return (
        f"(SELECT {number} WHERE NOT EXISTS (({stored} EXCEPT ALL {query})"
        f" UNION ALL ({query} EXCEPT ALL {stored})))"
    )
