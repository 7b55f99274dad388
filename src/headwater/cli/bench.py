"""The verbs that measure, except the service (see `bench_service`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from headwater.api import Headwater
from headwater.bench import capture as capturing
from headwater.bench import delta as deltas
from headwater.bench import plot as draw
from headwater.bench import refresh as refreshing
from headwater.bench import start as starting
from headwater.bench import tpch as tpc_h
from headwater.bench import transfer
from headwater.bench.server import bench_database
from headwater.cli import document
from headwater.cli.invocation import Invocation
from headwater.cli.output import present
from headwater.cli.show import measurements as show


def delta(
    invocation: Invocation,
    rows: tuple[int, ...],
    changes: tuple[int, ...],
    repetitions: int,
    plot: Path | None,
) -> None:
    """Measure deltas of some sizes on both engines."""
    with bench_database(invocation.dsn, invocation.tell) as dsn:
        settings = {**invocation.settings, "max_buffer_rows": str(deltas.BUFFER_ROWS)}
        with Headwater(dsn, settings, invocation.tell) as hw:
            hw.init()
            found = list(
                deltas.measure(
                    hw,
                    sizes=rows or deltas.SIZES,
                    changes=changes or deltas.CHANGES,
                    repetitions=repetitions,
                    progress=invocation.tell,
                )
            )
    if plot is not None:
        draw.deltas(found, plot)
    present(invocation, {"figure": "delta", "measurements": found}, show.deltas(found))


def capture(
    invocation: Invocation, rows: int, bulk: int, repetitions: int, seconds: float, plot: Path | None
) -> None:
    """Measure writers on captured and on bare tables."""
    with bench_database(invocation.dsn, invocation.tell, fsync=True) as dsn:
        with Headwater(dsn) as hw:
            hw.init()
            found = capturing.measure(
                hw,
                dsn,
                rows=rows,
                bulk=bulk,
                repetitions=repetitions,
                seconds=seconds,
                progress=invocation.tell,
            )
    if plot is not None:
        draw.captures(found, plot)
    present(invocation, {"figure": "capture", **document.plain(found)}, show.captures(found))


def tpch(
    invocation: Invocation,
    scale: float,
    change: tuple[float, ...],
    queries: tuple[int, ...],
    no_indexes: bool,
    repetitions: int,
    plot: Path | None,
) -> int:
    """Measure the queries of TPC-H; return 1 if a stream table differs from its query."""
    with bench_database(invocation.dsn, invocation.tell) as dsn:
        settings = {"max_buffer_rows": str(deltas.BUFFER_ROWS)}
        with Headwater(dsn) as hw:
            hw.init()
        found = tpc_h.measure(
            lambda: Headwater(dsn, settings),
            scale=scale,
            percents=sorted(set(change)) or tpc_h.PERCENTS,
            numbers=sorted(set(queries)) or None,
            repetitions=repetitions,
            indexes=not no_indexes,
            progress=invocation.tell,
        )
    if plot is not None:
        draw.tpch(found, scale, plot)
    means = tpc_h.means(found)
    written = {"figure": "tpch", "scale": scale, "measurements": found, "means": means}
    present(invocation, written, show.tpch(found, means))
    return int(not all(item.equal for item in found))


def read(invocation: Invocation, **given: Any) -> None:
    """Measure reading into Spark."""
    _transfer(invocation, "read", transfer.read, **given)


def write(invocation: Invocation, **given: Any) -> None:
    """Measure writing from Spark."""
    _transfer(invocation, "write", transfer.write, **given)


def _transfer(
    invocation: Invocation,
    direction: Literal["read", "write"],
    measure: Callable[..., transfer.Transfers],
    *,
    rows: int,
    tasks: Sequence[int],
    repetitions: int,
    plot: Path | None,
) -> None:
    counts = sorted(set(tasks)) or transfer.TASKS
    # This many tasks at once, also where there are fewer cores.
    given = {"spark_master": f"local[{max(counts)}]", **invocation.settings}
    with bench_database(invocation.dsn, invocation.tell) as dsn:
        with Headwater(dsn, given, invocation.tell) as hw:
            hw.init()
            found = measure(
                hw, dsn, rows=rows, tasks=counts, repetitions=repetitions, progress=invocation.tell
            )
    if plot is not None:
        draw.transfers(found.measurements, direction, plot)
    written = {"figure": direction, "measurements": found.measurements, "notes": found.notes}
    present(invocation, written, show.transfers(found))


def start(invocation: Invocation, repetitions: int) -> None:
    """Measure starts of the program."""
    with bench_database(invocation.dsn, invocation.tell) as dsn:
        with Headwater(dsn) as hw:
            hw.init()
            found = starting.measure(hw, dsn, repetitions=repetitions, progress=invocation.tell)
    measured = [{**document.plain(item), "against_baseline": item.against_baseline} for item in found]
    present(invocation, {"figure": "start", "measurements": measured}, show.starts(found))


def refresh(invocation: Invocation, changes: int) -> None:
    """Measure small refreshes."""
    with bench_database(invocation.dsn, invocation.tell) as dsn:
        with Headwater(dsn) as hw:
            hw.init()
            found = refreshing.measure(hw, dsn, changes=changes, progress=invocation.tell)
    measured = [
        {**document.plain(item), "p50_ratio": item.p50_ratio, "p99_ratio": item.p99_ratio} for item in found
    ]
    present(invocation, {"figure": "refresh", "measurements": measured}, show.refreshes(found))
