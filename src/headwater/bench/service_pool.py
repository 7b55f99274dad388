"""Pools of several sizes at work: all sources change at once, repeatedly, and the queue is worked off.

Workers are threads of the scheduler, or external ones, each a process. Once a second the queue is read as
operators read it, from `headwater.scheduler`; the times of the jobs show how busy the workers were.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from headwater.bench import service_scale
from headwater.bench.service_process import Service, bystander
from headwater.bench.service_scale import Progress
from headwater.db.connection import Connection, one

STREAM_TABLES = 200
WORKERS = (4, 8, 16)
BURSTS = 5
SETTINGS = {"scheduler_interval_ms": "500"}
Kind = Literal["in-process", "external"]
KINDS: tuple[Kind, ...] = ("in-process", "external")

JOBS = """
SELECT extract(epoch FROM assigned_at - %(began)s)::float8,
       extract(epoch FROM finished_at - %(began)s)::float8
FROM headwater.worker_jobs WHERE finished_at > %(began)s AND assigned_at IS NOT NULL
"""

WORKED = """
SELECT extract(epoch FROM max(finished_at) - min(started_at))::float8 FROM headwater.refresh WHERE id > %s
"""


@dataclass(frozen=True, kw_only=True)
class Second:
    """One second of a run."""

    second: int
    queued: int  # refreshes that are due and wait for a worker, at its end
    utilisation: float  # of all workers, 0 to 1


@dataclass(frozen=True, kw_only=True)
class PoolRun:
    """This many workers, of one kind."""

    kind: Kind
    workers: int
    stream_tables: int
    burst_seconds: float  # from the commit until all are refreshed, the median
    refreshes_per_second: float  # from the start of the first to the end of the last, the median
    against_fewest: float  # refreshes a second, relative to the fewest workers of this kind
    cores: float  # how many cores service and server used meanwhile
    seconds: list[Second]


@dataclass(frozen=True, kw_only=True)
class PoolRuns:
    runs: list[PoolRun]
    equal: int
    different: int


def utilisation(jobs: Sequence[tuple[float, float]], workers: int, second: int) -> float:
    """Return the share of all workers' time in one second that jobs took, by their starts and ends.

    >>> utilisation([(0.5, 2.0), (0.0, 1.0)], 2, 0)
    0.75
    """
    overlaps = (max(0.0, min(end, second + 1) - max(start, second)) for start, end in jobs)
    return min(1.0, sum(overlaps) / workers)


def measure(
    dsn: str,
    *,
    stream_tables: int = STREAM_TABLES,
    workers: Sequence[int] = WORKERS,
    kinds: Sequence[Kind] = KINDS,
    bursts: int = BURSTS,
    progress: Progress = lambda _: None,
) -> PoolRuns:
    """Return the figures; the stream tables stay."""
    service_scale.prepare(dsn, stream_tables, progress)
    runs = list[PoolRun]()
    with bystander(dsn) as writer:
        for kind in kinds:
            for size in sorted(set(workers)):
                progress(f"{stream_tables} stream tables, {size} workers, {kind}")
                runs.append(_run(dsn, writer, kind, size, stream_tables, bursts, runs))
        equal = service_scale.compare(writer, stream_tables)
    return PoolRuns(runs=runs, equal=equal, different=stream_tables - equal)


def _run(
    dsn: str,
    writer: Connection,
    kind: Kind,
    workers: int,
    stream_tables: int,
    bursts: int,
    before: Sequence[PoolRun],
) -> PoolRun:
    limit = {"max_concurrent_refreshes": str(workers), "max_dynamic_refresh_workers": str(workers)}
    external = workers if kind == "external" else 0
    lengths, working = list[float](), list[float]()
    with Service(dsn, SETTINGS | limit, external) as service, _Watch(dsn) as watch:
        service.wait_until_quiet()
        first, began = service.used(), watch.begin()
        clock = time.monotonic()
        for _ in range(bursts):
            latest, start = service_scale.latest_refresh(writer), time.monotonic()
            with writer.transaction():
                service_scale.change(writer, range(stream_tables))
            service_scale.wait_until_refreshed(writer, latest, stream_tables)
            lengths.append(time.monotonic() - start)
            working.append(float(one(writer, WORKED, (latest,))[0]))
            service.wait_until_quiet()
        used, length = service.used() - first, time.monotonic() - clock
        queue = watch.end()
    jobs = [(start, end) for start, end in writer.execute(JOBS, {"began": began})]
    rate = stream_tables / statistics.median(working)
    fewest = next((run for run in before if run.kind == kind), None)
    spent = used.loop_ms + used.hands_ms + (used.server_ms or 0.0)
    return PoolRun(
        kind=kind,
        workers=workers,
        stream_tables=stream_tables,
        burst_seconds=statistics.median(lengths),
        refreshes_per_second=rate,
        against_fewest=rate / fewest.refreshes_per_second if fewest else 1.0,
        cores=spent / 1000 / length,
        seconds=[
            Second(second=second, queued=queued, utilisation=utilisation(jobs, workers, second))
            for second, queued in enumerate(queue)
        ],
    )


class _Watch:
    """Reads the length of the queue once a second, from a thread of its own."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    def __enter__(self) -> _Watch:
        self._connection = bystander(self._dsn)
        self._over = threading.Event()
        self._queue: list[int] = []
        self._thread = threading.Thread(target=self._look, name="watch", daemon=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._connection.close()

    def begin(self) -> datetime:
        """Return when the second began, by the server's clock."""
        now: datetime = one(self._connection, "SELECT clock_timestamp()")[0]
        self._thread.start()
        return now

    def end(self) -> list[int]:
        self._over.set()
        self._thread.join()
        return self._queue

    def _look(self) -> None:
        while not self._over.wait(1.0):
            row = self._connection.execute("SELECT queued_jobs FROM headwater.scheduler").fetchone()
            self._queue.append(row[0] if row else 0)
