"""What taking one changed row in costs, from its commit until it is visible, against a MERGE written by hand.

Each case is a stream table and the statement that somebody would write who keeps such a table by hand: a
trigger queues the changed rows, and a transaction takes them out of the queue and into the table. Both take
turns over connections of their own, so that they find the machine in the same state. The writer's own time is
not counted: `bench capture` has that.

Headwater refreshes as a worker of its service does. `bench service` measures what comes before that: how a
worker learns of a change.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psycopg

from headwater.api import Headwater
from headwater.config import Settings
from headwater.db.connection import Connection, in_one_round_trip
from headwater.db.route import Route
from headwater.db.scratch import statement
from headwater.definition.reader import DefinitionReader
from headwater.engine.select import EngineSelector
from headwater.errors import HeadwaterError
from headwater.refresh.transaction import Refresher

SCHEMA = "headwater_bench_refresh"
WARM_UP = 20
CLEANING = 100
"""Changes after which a worker would have cleaned up, at that many in a second."""
ITEMS, SHOPS = 100_000, 1_000
CHAINS = (10, 50)

SOURCES = f"""
CREATE TABLE {SCHEMA}.shop AS SELECT i AS id, 'shop ' || i AS name FROM generate_series(1, {SHOPS}) AS i;
ALTER TABLE {SCHEMA}.shop ADD PRIMARY KEY (id);
CREATE TABLE {SCHEMA}.item AS
    SELECT i AS id, i % {SHOPS} + 1 AS shop, (i % 97)::numeric AS price FROM generate_series(1, {ITEMS}) AS i;
ALTER TABLE {SCHEMA}.item ADD PRIMARY KEY (id);
CREATE INDEX ON {SCHEMA}.item (shop);
CREATE TABLE {SCHEMA}.queue (id int, shop int, price numeric, w int);
CREATE FUNCTION {SCHEMA}.enqueue() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO {SCHEMA}.queue
    SELECT id, shop, price, -1 FROM gone UNION ALL SELECT id, shop, price, 1 FROM come;
    RETURN NULL;
END
$$;
CREATE TRIGGER enqueue AFTER UPDATE ON {SCHEMA}.item REFERENCING OLD TABLE AS gone NEW TABLE AS come
    FOR EACH STATEMENT EXECUTE FUNCTION {SCHEMA}.enqueue();
ANALYZE {SCHEMA}.item, {SCHEMA}.shop;
"""


@dataclass(frozen=True)
class Case:
    """A query, and the MERGE that keeps its rows by hand from what is in the queue."""

    query: str
    key: str
    merge: str


MATCHED = "WHEN MATCHED AND h.n + d.n = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET"
CASES = {
    "filter": Case(
        f"SELECT id, price FROM {SCHEMA}.item WHERE price > 20",
        "id",
        "USING (SELECT id, sum(price) FILTER (WHERE w > 0) AS price FROM {queue}"
        " WHERE price > 20 GROUP BY id) AS d ON h.id = d.id WHEN MATCHED AND d.price IS NULL THEN DELETE"
        " WHEN MATCHED THEN UPDATE SET price = d.price"
        " WHEN NOT MATCHED AND d.price IS NOT NULL THEN INSERT VALUES (d.id, d.price)",
    ),
    "join": Case(
        f"SELECT i.id, i.price, s.name FROM {SCHEMA}.item i JOIN {SCHEMA}.shop s ON s.id = i.shop",
        "id",
        "USING (SELECT q.id, sum(q.price) FILTER (WHERE q.w > 0) AS price,"
        " max(s.name) FILTER (WHERE q.w > 0) AS name"
        f" FROM {{queue}} q JOIN {SCHEMA}.shop s ON s.id = q.shop GROUP BY q.id) AS d"
        " ON h.id = d.id WHEN MATCHED AND d.price IS NULL THEN DELETE"
        " WHEN MATCHED THEN UPDATE SET price = d.price, name = d.name"
        " WHEN NOT MATCHED AND d.price IS NOT NULL THEN INSERT VALUES (d.id, d.price, d.name)",
    ),
    "aggregate over a join": Case(
        f"SELECT s.name, sum(i.price) AS total, count(*) AS n"
        f" FROM {SCHEMA}.item i JOIN {SCHEMA}.shop s ON s.id = i.shop GROUP BY s.name",
        "name",
        "USING (SELECT s.name, sum(q.w * q.price) AS total, sum(q.w) AS n"
        f" FROM {{queue}} q JOIN {SCHEMA}.shop s ON s.id = q.shop GROUP BY s.name) AS d ON h.name = d.name"
        f" {MATCHED} total = h.total + d.total, n = h.n + d.n"
        " WHEN NOT MATCHED THEN INSERT VALUES (d.name, d.total, d.n)",
    ),
    "distinct": Case(
        f"SELECT DISTINCT shop, price FROM {SCHEMA}.item",
        "shop, price",
        "USING (SELECT shop, price, sum(w) AS n FROM {queue} GROUP BY shop, price) AS d"
        " ON h.shop = d.shop AND h.price = d.price"
        f" {MATCHED} n = h.n + d.n WHEN NOT MATCHED THEN INSERT VALUES (d.shop, d.price, d.n)",
    ),
}
COUNTED = {"distinct": f"SELECT shop, price, count(*) AS n FROM {SCHEMA}.item GROUP BY shop, price"}
"""What is kept by hand where that is more than the query shows."""


@dataclass(frozen=True)
class Spent:
    """What one refresh takes besides time."""

    round_trips: float
    client_cpu_ms: float
    server_cpu_ms: float


@dataclass(frozen=True)
class RefreshCost:
    """One changed row in one case."""

    case: str
    p50_ms: float
    p99_ms: float
    hand_p50_ms: float
    hand_p99_ms: float
    spent: Spent

    @property
    def p50_ratio(self) -> float:
        return self.p50_ms / self.hand_p50_ms

    @property
    def p99_ratio(self) -> float:
        return self.p99_ms / self.hand_p99_ms


def measure(hw: Headwater, dsn: str, *, changes: int, progress: Callable[[str], None]) -> list[RefreshCost]:
    """Measure every case, in a schema of its own that is dropped afterwards."""
    with psycopg.connect(dsn, autocommit=True) as writer:
        _clear(hw, writer)
        writer.execute(statement(f"CREATE SCHEMA {SCHEMA}; {SOURCES}"))
        try:
            found = []
            for name, case in CASES.items():
                progress(f"{name}: {changes} changes")
                found.append(_measured(hw, dsn, writer, name, case, changes))
            aggregate = found[list(CASES).index("aggregate over a join")]
            for length in CHAINS:
                progress(f"a chain of {length}: {changes} changes")
                found.append(_chain(hw, dsn, writer, length, changes, aggregate))
            return found
        finally:
            _clear(hw, writer)


def _clear(hw: Headwater, writer: psycopg.Connection) -> None:
    for stream_table in reversed([item.stream_table for item in hw.list()]):
        if stream_table.startswith(f"{SCHEMA}."):
            hw.drop(stream_table, cascade=True)
    writer.execute(statement(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE"))


def _measured(
    hw: Headwater, dsn: str, writer: psycopg.Connection, name: str, case: Case, changes: int
) -> RefreshCost:
    by_hand, stream_table = f"{SCHEMA}.by_hand", f"{SCHEMA}.kept"
    writer.execute(statement(f"CREATE TABLE {by_hand} AS {COUNTED.get(name, case.query)}"))
    writer.execute(statement(f"ALTER TABLE {by_hand} ADD PRIMARY KEY ({case.key}); ANALYZE {by_hand}"))
    writer.execute(statement(f"TRUNCATE {SCHEMA}.queue"))
    created = hw.create(stream_table, case.query)
    merge = [
        f"MERGE INTO {by_hand} AS h {case.merge.format(queue=f'{SCHEMA}.queue')}",
        f"DELETE FROM {SCHEMA}.queue",
    ]
    kept: list[float] = []
    hand: list[float] = []
    with psycopg.connect(dsn, autocommit=True) as other:
        refresh = _Refresh(hw, dsn, [created.id])
        for number in range(changes + WARM_UP):
            writer.execute(_change(number))
            for times, work in (
                (kept, refresh.once),
                (hand, partial(in_one_round_trip, other, merge)),
            )[:: 1 if number % 2 else -1]:
                times.append(_timed(work))
            if number % CLEANING == 0:
                refresh.clean()
            if number + 1 == WARM_UP:
                refresh.begin()
        cost = refresh.end(changes)
    if not hw.verify(stream_table).equal:
        raise HeadwaterError(f"bench refresh: {stream_table} is not what its query gives")
    columns = "shop, price" if name == "distinct" else "*"
    differing = hw.connection.execute(
        statement(f"(SELECT {columns} FROM {by_hand} EXCEPT {case.query})")
    ).fetchall()
    if differing:
        raise HeadwaterError(f"bench refresh: the table that is kept by hand is wrong ({name})")
    hw.drop(stream_table)
    writer.execute(statement(f"DROP TABLE {by_hand}"))
    return RefreshCost(name, *_percentiles(kept[WARM_UP:]), *_percentiles(hand[WARM_UP:]), cost)


def _chain(
    hw: Headwater, dsn: str, writer: psycopg.Connection, length: int, changes: int, single: RefreshCost
) -> RefreshCost:
    """Stream tables that read each other, refreshed together; against what one alone took by hand."""
    aggregate = CASES["aggregate over a join"].query
    created = [hw.create(f"{SCHEMA}.c1", aggregate)]
    for number in range(2, length + 1):
        created.append(
            hw.create(f"{SCHEMA}.c{number}", f"SELECT name, total, n FROM {SCHEMA}.c{number - 1} WHERE n > 0")
        )
    refresh = _Refresh(hw, dsn, [item.id for item in created])
    times = []
    for number in range(changes + WARM_UP):
        writer.execute(_change(number))
        times.append(_timed(refresh.once))
        if number % CLEANING == 0:
            refresh.clean()
        if number + 1 == WARM_UP:
            refresh.begin()
    cost = refresh.end(changes)
    if not hw.verify(created[-1].label).equal:
        raise HeadwaterError(f"bench refresh: {created[-1].label} is not what its query gives")
    for item in reversed(created):
        hw.drop(item.label)
    return RefreshCost(
        f"chain of {length}", *_percentiles(times[WARM_UP:]), single.hand_p50_ms, single.hand_p99_ms, cost
    )


class _Refresh:
    """Refreshes as a worker does, and counts what that takes."""

    def __init__(self, hw: Headwater, dsn: str, members: Sequence[int]) -> None:
        self._connection: Connection = hw.connection
        self._refresher = Refresher(
            self._connection, Settings(), DefinitionReader(self._connection), EngineSelector(Route(dsn))
        )
        self._members = list(members)
        self._trace = Path(tempfile.mkstemp(prefix="headwater-trace-")[1])
        self._file = self._trace.open("wb")
        self._client = self._server = 0.0

    def once(self) -> None:
        started = time.thread_time()
        self._refresher.refresh_together(self._members, clean=False)
        self._client += time.thread_time() - started

    def clean(self) -> None:
        """Clean up, which a worker does once a second and after what it did is visible; it is not counted."""
        before = self._server_cpu()
        self._connection.pgconn.untrace()
        self._refresher.refresh_together(self._members)
        self._connection.pgconn.trace(self._file.fileno())
        self._server += self._server_cpu() - before

    def begin(self) -> None:
        """Count from here on."""
        self._file.truncate(0)
        self._client, self._server = 0.0, self._server_cpu()
        self._connection.pgconn.trace(self._file.fileno())

    def end(self, changes: int) -> Spent:
        """Say what was spent for each change."""
        self._connection.pgconn.untrace()
        self._file.close()
        lines = self._trace.read_text(errors="replace").splitlines()
        self._trace.unlink()
        trips = sum("\tF\t" in line and ("\tQuery\t" in line or "\tSync" in line) for line in lines)
        server = self._server_cpu() - self._server
        return Spent(trips / changes, self._client * 1000 / changes, server * 1000 / changes)

    def _server_cpu(self) -> float:
        """Seconds of CPU time of the backend; zero if it is on another machine."""
        try:
            stat = Path(f"/proc/{self._connection.info.backend_pid}/stat").read_text()
        except OSError:
            return 0.0
        fields = stat.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _change(number: int) -> psycopg.sql.SQL:
    item = number * 7919 % ITEMS + 1
    return statement(f"UPDATE {SCHEMA}.item SET price = price + 1 WHERE id = {item}")


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1000


def _percentiles(times: Sequence[float]) -> tuple[float, float]:
    ordered = sorted(times)
    return ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
