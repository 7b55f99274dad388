"""The verb that measures the service, and how its figures are shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType

from headwater.api import Headwater
from headwater.bench import plot as draw
from headwater.bench import service
from headwater.bench.server import bench_database
from headwater.bench.service import Part, ServiceCosts
from headwater.bench.service_latency import GraphCost, Latency
from headwater.bench.service_pool import PoolRun
from headwater.bench.service_scale import ScaleCosts
from headwater.cli import document
from headwater.cli.invocation import Invocation
from headwater.cli.output import present
from headwater.cli.show.values import NOTHING, heading, lines, milliseconds, table

BLOCKS = " ▁▂▃▄▅▆▇█"
WIDEST = 100
"""Seconds that fit into one line of a chart; more are drawn two or more to a column."""


def bench_service(
    invocation: Invocation,
    /,
    parts: tuple[Part, ...],
    short: bool,
    keep: bool,
    plot: Path | None,
    **given: Any,
) -> int:
    """Measure the service; return 1 if a stream table differs from its query in the end."""
    sizes = replace(
        service.SHORT if short else service.Sizes(),
        **{name: value for name, value in given.items() if value is not None},
    )
    private = invocation.dsn is None
    with bench_database(invocation.dsn, invocation.tell) as dsn:
        with Headwater(dsn) as hw:
            hw.init()
        found = service.measure(
            dsn, sizes, parts=parts or service.PARTS, keep=keep or private, progress=invocation.tell
        )
    if plot is not None:
        draw.service(found, plot)
    present(invocation, {"figure": "service", **document.plain(found)}, shown(found))
    return int(not found.equal)


def shown(found: ServiceCosts) -> RenderableType:
    """Return all that was measured."""
    parts: list[RenderableType] = []
    if found.scale:
        parts += _scale(found.scale)
    if found.latency and found.latency.graphs:
        parts += _graphs(found.latency.graphs)
    if found.latency and found.latency.visible:
        parts += _visible(found.latency.visible)
    if found.workers:
        parts += _pools(found.workers.runs)
    load = ", ".join(f"{value:.1f}" for value in found.machine.load)
    equal = "every stream table equals its query" if found.equal else "A STREAM TABLE DIFFERS FROM ITS QUERY"
    where = f"PostgreSQL {found.machine.server}, {found.machine.cores} cores, load {load}"
    return Group(*parts, lines("", f"{where}; in the end {equal}"))


def _scale(found: ScaleCosts) -> list[RenderableType]:
    measured = table(
        (
            "stream tables",
            "changed",
            "ticks",
            "CPU of a tick",
            "of all ticks",
            "for each changed",
            "against fewest",
            "CPU of refreshes",
            "of the server",
            "service, of a core",
            "server, of a core",
        ),
        [
            (
                item.stream_tables,
                item.changed or "at rest",
                f"{item.ticks:.0f}",
                f"{item.tick_ms:.2f} ms",
                milliseconds(item.loop_ms),
                f"{item.loop_ms_per_change:.2f} ms" if item.loop_ms_per_change is not None else NOTHING,
                _times(item.against_fewest),
                milliseconds(item.hands_ms),
                milliseconds(item.server_ms),
                f"{item.core_share:.1%}",
                f"{item.server_share:.1%}" if item.server_share is not None else NOTHING,
            )
            for item in found.rounds
        ],
    )
    created = [
        f"{item.created:,} created in {item.seconds:,.0f} s by {item.processes} processes,"
        f" {item.stream_tables:,} in all"
        for item in found.creations
        if item.created
    ]
    return [heading("many stream tables, each with a source of its own"), measured, *map(lines, created)]


def _graphs(found: Sequence[GraphCost]) -> list[RenderableType]:
    measured = table(
        ("graph", "stream tables", "depth", "transactions", "commit to leaf", "one refresh", "against it"),
        [
            (
                item.graph,
                item.stream_tables,
                item.depth,
                item.transactions,
                milliseconds(item.elapsed_ms),
                milliseconds(item.bare_ms),
                _times(item.against_bare),
            )
            for item in found
        ],
    )
    return [heading("from a commit to the leaf, profile low-latency"), measured]


def _visible(found: Sequence[Latency]) -> list[RenderableType]:
    measured = table(
        ("way", "samples", "p50", "p99", "p50 against the limit", "p99 against the limit"),
        [
            (
                item.way,
                item.samples,
                milliseconds(item.p50_ms),
                milliseconds(item.p99_ms),
                _times(item.p50_against_hand),
                _times(item.p99_against_hand),
            )
            for item in found
        ],
    )
    title = "from commit to visible, profile low-latency; the limit is the MERGE by hand on the same NOTIFY"
    return [heading(title), measured]


def _pools(found: Sequence[PoolRun]) -> list[RenderableType]:
    measured = table(
        ("workers", "", "all refreshed in", "refreshes/s", "against fewest", "cores used"),
        [
            (
                item.workers,
                item.kind,
                f"{item.burst_seconds:.1f} s",
                f"{item.refreshes_per_second:.1f}",
                _times(item.against_fewest),
                f"{item.cores:.2f}",
            )
            for item in found
        ],
    )
    charts = []
    for item in found:
        queued = [second.queued / item.stream_tables for second in item.seconds]
        busy = [second.utilisation for second in item.seconds]
        most = max((second.queued for second in item.seconds), default=0)
        charts.append(
            lines(
                f"{item.workers} workers, {item.kind}",
                f"  queue       {chart(queued)}  most {most}",
                f"  utilisation {chart(busy)}  on average {sum(busy) / max(1, len(busy)):.0%}",
            )
        )
    tables = found[0].stream_tables if found else 0
    return [
        heading(f"{tables} stream tables that change at once"),
        measured,
        heading("each second"),
        *charts,
    ]


def chart(values: Sequence[float]) -> str:
    """Draw values from 0 to 1 as a line of blocks; if they do not fit, the highest of several.

    >>> chart([0, 0.5, 1, 0.01])
    ' ▄█▁'
    """
    group = -(-len(values) // WIDEST) or 1
    highest = [max(values[start : start + group]) for start in range(0, len(values), group)]
    return "".join(BLOCKS[-(-min(1.0, value) * (len(BLOCKS) - 1) // 1).__int__()] for value in highest)


def _times(ratio: float | None) -> str:
    return NOTHING if ratio is None else f"{ratio:,.2f} ×"
