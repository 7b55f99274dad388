"""From a commit to what readers see: through graphs of stream tables, and against the least that it can take.

The time begins when the writer's commit has returned, and ends when another connection, which looks every
millisecond, sees the result. Graphs are compared with one refresh of one stream table on request.

The limit is a client that waits for the same notification and runs one MERGE of the change rows, written by
hand for this one query: no catalog, no frontier, no plan, no history. It has a table of its own and takes
turns with the service, so that other work on the machine affects both alike.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.synchronize import Event

import psycopg
from psycopg import sql

from headwater.api import Headwater
from headwater.bench.service_process import PATIENCE, Service, bystander
from headwater.bench.service_scale import Progress
from headwater.capture import marks
from headwater.db.connection import Connection, one
from headwater.db.scratch import statement
from headwater.errors import HeadwaterError

SCHEMA = "headwater_bench_latency"
SETTINGS = {"profile": "low-latency"}
DEPTHS = (10, 50)
LAYERS, WIDTH = 3, 20
REPETITIONS = 10
SAMPLES = 200
ROWS, KINDS = 1_000, 50
PAUSE = 0.3
"""The pause between two changes: longer than the schedules below, so that no time is spent waiting for them.
"""
SCHEDULES = ("100ms", "110ms")
"""Links of a chain with the same schedule are refreshed in one transaction; with alternating ones, each by
itself."""
LOOKING_SECONDS = 0.001
SERVED, BY_HAND = "the service", "by hand"
TOTALS = "SELECT kind, count(*) AS n, sum(amount) AS total FROM {table} GROUP BY kind"


@dataclass(frozen=True)
class Graph:
    """Stream tables over one table, each with its query and schedule, in the order in which they are read."""

    name: str
    source: str
    stream_tables: list[tuple[str, str, str]]
    leaves: list[str]
    transactions: int  # how many they are refreshed in
    depth: int


@dataclass(frozen=True, kw_only=True)
class GraphCost:
    """From a commit until all leaves of a graph show it; medians."""

    graph: str
    stream_tables: int
    depth: int
    transactions: int
    elapsed_ms: float
    bare_ms: float  # one refresh of one stream table
    against_bare: float


@dataclass(frozen=True, kw_only=True)
class Latency:
    """From a commit until its effect is seen."""

    way: str
    samples: int
    p50_ms: float
    p99_ms: float
    p50_against_hand: float
    p99_against_hand: float


@dataclass(frozen=True, kw_only=True)
class Latencies:
    graphs: list[GraphCost] = field(default_factory=list)
    visible: list[Latency] = field(default_factory=list)
    equal: bool = True  # all stream tables equalled their queries in the end


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that so many percent of all do not exceed.

    >>> percentile([3, 1, 2, 4], 50), percentile([3, 1, 2, 4], 99)
    (2, 4)
    """
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


def graphs(depths: Sequence[int], layers: int, width: int) -> list[Graph]:
    """Return the graphs that are measured."""
    found = list[Graph]()
    for depth in sorted(set(depths)):
        found.append(_chain(depth, 1, f"chain of {depth}"))
    shallow = min(depths)
    found.append(_chain(shallow, 2, f"chain of {shallow}, each link by itself"))
    found.append(_wide(layers, width))
    found.append(_diamond())
    return found


def _chain(depth: int, schedules: int, name: str) -> Graph:
    prefix = f"chain_{depth}_{schedules}"
    links = []
    for number in range(1, depth + 1):
        read = f"{prefix}_source" if number == 1 else f"{prefix}_{number - 1}"
        query = f"SELECT id, kind, amount + 1 AS amount FROM {SCHEMA}.{read}"
        links.append((f"{prefix}_{number}", query, SCHEDULES[number % schedules]))
    leaf = f"{prefix}_{depth}"
    return Graph(name, f"{prefix}_source", links, [leaf], 1 if schedules == 1 else depth, depth)


def _wide(layers: int, width: int) -> Graph:
    links = []
    for layer in range(1, layers + 1):
        for place in range(width):
            read = "wide_source" if layer == 1 else f"wide_{layer - 1}_{place}"
            query = f"SELECT id, kind, amount + {place} AS amount FROM {SCHEMA}.{read}"
            links.append((f"wide_{layer}_{place}", query, SCHEDULES[layer % 2]))
    leaves = [f"wide_{layers}_{place}" for place in range(width)]
    return Graph(f"{layers} layers of {width}", "wide_source", links, leaves, layers * width, layers)


def _diamond() -> Graph:
    links = [
        ("diamond_left", f"SELECT id, amount + 1 AS more FROM {SCHEMA}.diamond_source", SCHEDULES[0]),
        ("diamond_right", f"SELECT id, amount - 1 AS less FROM {SCHEMA}.diamond_source", SCHEDULES[0]),
        (
            "diamond_bottom",
            f"SELECT l.id, l.more, r.less FROM {SCHEMA}.diamond_left AS l"
            f" JOIN {SCHEMA}.diamond_right AS r ON r.id = l.id",
            SCHEDULES[0],
        ),
    ]
    return Graph("diamond", "diamond_source", links, ["diamond_bottom"], 1, 2)


def measure(
    dsn: str,
    *,
    depths: Sequence[int] = DEPTHS,
    layers: int = LAYERS,
    width: int = WIDTH,
    repetitions: int = REPETITIONS,
    samples: int = SAMPLES,
    progress: Progress = lambda _: None,
) -> Latencies:
    """Return the figures; without repetitions none of graphs, without samples none of the limit."""
    shapes = graphs(depths, layers, width) if repetitions else []
    with Headwater(dsn) as hw:
        hw.connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(SCHEMA)))
        for shape in shapes:
            progress(f"creating a {shape.name}")
            _create(hw, shape)
        _make_source(hw.connection, "bare_source")
        hw.create(f"{SCHEMA}.bare", f"SELECT id, kind, amount + 1 AS amount FROM {SCHEMA}.bare_source")
        for name in ("fast", "hand"):
            _make_source(hw.connection, f"{name}_source")
            schedule = "10ms" if name == "fast" else None  # only captured: the service leaves it alone
            hw.create(f"{SCHEMA}.{name}", TOTALS.format(table=f"{SCHEMA}.{name}_source"), schedule=schedule)
        hw.connection.execute("ANALYZE")  # as autovacuum does within a minute
        with Service(dsn, SETTINGS), bystander(dsn) as writer, bystander(dsn) as reader:
            time.sleep(2 * PAUSE)
            costs = _graphs(hw, shapes, writer, reader, repetitions, progress) if shapes else []
            visible = _visible(dsn, writer, reader, samples, progress) if samples else []
            time.sleep(2 * PAUSE)
        names = [name for shape in shapes for name, _, _ in shape.stream_tables]
        equal = all(hw.verify(f"{SCHEMA}.{name}").equal for name in [*names, "fast"])
    return Latencies(graphs=costs, visible=visible, equal=equal)


# graphs


def _graphs(
    hw: Headwater,
    shapes: Sequence[Graph],
    writer: Connection,
    reader: Connection,
    repetitions: int,
    progress: Progress,
) -> list[GraphCost]:
    bare, times = list[float](), {shape.name: list[float]() for shape in shapes}
    for number in range(repetitions + 1):  # the first round makes the plans
        progress(f"from a commit to the leaf, {number + 1} of {repetitions + 1}")
        added = ROWS + 1 + number
        _insert(writer, "bare_source", added)
        began = time.perf_counter()
        hw.refresh(f"{SCHEMA}.bare")
        bare.append(_milliseconds_since(began))
        for shape in shapes:
            time.sleep(PAUSE)
            _insert(writer, shape.source, added)
            began = time.perf_counter()
            seen = " + ".join(
                f"(SELECT count(*) FROM {SCHEMA}.{leaf} WHERE id = {added})" for leaf in shape.leaves
            )
            _look(reader, f"SELECT ({seen}) = {len(shape.leaves)}")
            times[shape.name].append(_milliseconds_since(began))
    one_refresh = statistics.median(bare[1:])
    return [
        GraphCost(
            graph=shape.name,
            stream_tables=len(shape.stream_tables),
            depth=shape.depth,
            transactions=shape.transactions,
            elapsed_ms=statistics.median(times[shape.name][1:]),
            bare_ms=one_refresh,
            against_bare=statistics.median(times[shape.name][1:]) / one_refresh,
        )
        for shape in shapes
    ]


def _create(hw: Headwater, shape: Graph) -> None:
    _make_source(hw.connection, shape.source)
    for name, query, schedule in shape.stream_tables:
        hw.create(f"{SCHEMA}.{name}", query, schedule=schedule)


# the limit


def _visible(
    dsn: str, writer: Connection, reader: Connection, samples: int, progress: Progress
) -> list[Latency]:
    times: dict[str, list[float]] = {SERVED: [], BY_HAND: []}
    _prepare_hand(writer)
    with _hand(dsn) as turn:
        for number in range(samples + 1):  # the first of each makes plans
            if number % 20 == 0:
                progress(f"from a commit to what is seen, {number} of {samples}")
            for way, name, result in ((SERVED, "fast", "fast"), (BY_HAND, "hand", "by_hand")):
                time.sleep(PAUSE / 3)
                if way == BY_HAND:
                    turn.set()
                kind = number % KINDS
                rows = one(reader, statement(f"SELECT n FROM {SCHEMA}.{result} WHERE kind = {kind}"))[0]
                _insert(writer, f"{name}_source", ROWS + KINDS + number, kind)
                began = time.perf_counter()
                _look(reader, f"SELECT n > {rows} FROM {SCHEMA}.{result} WHERE kind = {kind}")
                times[way].append(_milliseconds_since(began))
                turn.clear()
    found = {way: [percentile(values[1:], percent) for percent in (50, 99)] for way, values in times.items()}
    return [
        Latency(
            way=way,
            samples=samples,
            p50_ms=p50,
            p99_ms=p99,
            p50_against_hand=p50 / found[BY_HAND][0],
            p99_against_hand=p99 / found[BY_HAND][1],
        )
        for way, (p50, p99) in found.items()
    ]


def _prepare_hand(connection: Connection) -> None:
    """Create the table that is maintained by hand, with its current rows."""
    table = f"{SCHEMA}.by_hand"
    connection.execute(
        statement(f"CREATE TABLE {table} (kind int PRIMARY KEY, n bigint NOT NULL, total numeric NOT NULL)")
    )
    connection.execute(
        statement(f"INSERT INTO {table} {TOTALS.format(table=f'{SCHEMA}.hand_source')}"), prepare=False
    )


@contextmanager
def _hand(dsn: str) -> Iterator[Event]:
    """Run the client in a process of its own; it works while the event is set."""
    context = get_context("spawn")
    turn, ready, over = context.Event(), context.Event(), context.Event()
    process = context.Process(target=_work_by_hand, args=(dsn, turn, ready, over), daemon=True)
    process.start()
    try:
        if not ready.wait(PATIENCE):
            raise HeadwaterError("the client that works by hand did not start")
        yield turn
    finally:
        over.set()
        process.join(PATIENCE)


def _work_by_hand(dsn: str, turn: Event, ready: Event, over: Event) -> None:
    with psycopg.connect(dsn, autocommit=True, prepare_threshold=0) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        changes = one(
            connection,
            "SELECT format('headwater_changes.%%I', change_table) FROM headwater.source"
            " WHERE relation = %s::regclass",
            (f"{SCHEMA}.hand_source",),
        )[0]
        # Grouped like the query; a captured column is named after its number.
        merge = statement(
            f"MERGE INTO {SCHEMA}.by_hand AS t USING (SELECT c2 AS kind, sum(w) AS n, sum(w * c3) AS total"
            f" FROM {changes} GROUP BY c2) AS d ON t.kind = d.kind"
            " WHEN MATCHED AND t.n + d.n = 0 THEN DELETE"
            " WHEN MATCHED THEN UPDATE SET n = t.n + d.n, total = t.total + d.total"
            " WHEN NOT MATCHED THEN INSERT VALUES (d.kind, d.n, d.total)"
        )
        clear = statement(f"DELETE FROM {changes}")
        connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(marks.CHANNEL)))
        ready.set()
        while not over.is_set():
            # All of them first: the connection cannot do anything else meanwhile.
            heard = list(connection.notifies(timeout=0.2, stop_after=1))
            if heard and turn.is_set():
                with connection.pipeline(), connection.transaction():
                    connection.execute(merge)
                    connection.execute(clear)


def _make_source(connection: Connection, name: str) -> None:
    table = f"{SCHEMA}.{name}"
    connection.execute(
        statement(f"CREATE TABLE {table} (id int PRIMARY KEY, kind int NOT NULL, amount numeric NOT NULL)")
    )
    text = f"INSERT INTO {table} SELECT i, i % {KINDS}, i FROM generate_series(1, {ROWS}) AS i"
    connection.execute(statement(text), prepare=False)


def _insert(connection: Connection, name: str, number: int, kind: int = 0) -> None:
    text = f"INSERT INTO {SCHEMA}.{name} VALUES ({number}, {kind}, 1)"
    connection.execute(statement(text), prepare=False)


def _look(connection: Connection, question: str) -> None:
    """Look until the answer is yes."""
    deadline = time.monotonic() + PATIENCE
    while not one(connection, statement(question))[0]:
        if time.monotonic() > deadline:
            raise HeadwaterError(f"what was written was never seen: {question}")
        time.sleep(LOOKING_SECONDS)


def _milliseconds_since(began: float) -> float:
    return (time.perf_counter() - began) * 1000
