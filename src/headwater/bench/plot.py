"""The figures as charts."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.bench.capture import CaptureCosts
from headwater.bench.delta import DeltaCost
from headwater.bench.service import ServiceCosts
from headwater.bench.tpch import QueryCost
from headwater.bench.transfer import Transfer
from headwater.errors import HeadwaterError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = {"postgres": "#336791", "spark": "#e25a1c"}
CHANGES = ("#08306b", "#2171b5", "#6baed6", "#b3d2ea")
"""From the smallest change to the largest."""

WAYS = ("#888888", "#e25a1c", "#336791", "#a8c4de")
TITLES = {"postgres": "in PostgreSQL", "spark": "on Spark"}


def figure(columns: int, title: str, width: float = 4.6, rows: int = 1) -> tuple[Figure, Any]:
    """Return an empty figure with panels side by side, row by row."""
    try:
        import matplotlib
    except ImportError:
        raise HeadwaterError(
            "plots need matplotlib, which is not installed", hint="pip install 'headwater[bench]'"
        ) from None
    matplotlib.use("agg")
    from matplotlib import pyplot

    made, panels = pyplot.subplots(rows, columns, figsize=(width * columns, 4.2 * rows), squeeze=False)
    made.suptitle(title)
    return made, panels.flatten()


def save(made: Figure, path: Path) -> None:
    """Write a figure; the suffix of the path gives the format."""
    from matplotlib import pyplot

    made.tight_layout()
    made.savefig(path)
    pyplot.close(made)


def transfers(found: Sequence[Transfer], direction: str, path: Path) -> None:
    """Draw the rows a second of each way, grouped by the number of tasks."""
    titles = {"read": "from PostgreSQL into Spark", "write": "from Spark into PostgreSQL"}
    made, [panel] = figure(1, titles[direction])
    ways = list(dict.fromkeys(item.way for item in found))
    counts = sorted({item.tasks for item in found})
    width = 0.8 / len(ways)
    for number, way in enumerate(ways):
        heights = [
            next(item.rows_per_second for item in found if item.way == way and item.tasks == count)
            for count in counts
        ]
        places = [position + (number - (len(ways) - 1) / 2) * width for position in range(len(counts))]
        panel.bar(places, heights, width, label=way, color=WAYS[number % len(WAYS)])
    panel.set_xticks(range(len(counts)), [str(count) for count in counts])
    panel.set(xlabel=f"tasks, {found[0].rows:,} rows of six columns", ylabel="rows/s")
    panel.grid(axis="y", alpha=0.3)
    panel.legend(fontsize="small")
    save(made, path)


def deltas(found: Sequence[DeltaCost], path: Path) -> None:
    """Draw the time, and the database's share, by the size of the change; a panel for each table size."""
    sizes = sorted({item.table_rows for item in found})
    made, panels = figure(len(sizes), "a delta: join with aggregate, all rows changed by UPDATE")
    for panel, size in zip(panels, sizes, strict=True):
        for engine, colour in COLOURS.items():
            points = [item for item in found if item.table_rows == size and item.engine == engine]
            changed = [item.changed_rows for item in points]
            panel.plot(
                changed, [item.elapsed_ms for item in points], "o-", color=colour, label=TITLES[engine]
            )
            if engine == "spark":
                database = [item.database_ms for item in points]
                panel.plot(changed, database, "o--", color=colour, label="the database's share of it")
        full = next(item.elapsed_ms * item.against_full for item in found if item.table_rows == size)
        panel.axhline(full, color="#888888", linestyle=":", label="recomputed in PostgreSQL")
        panel.set(title=f"{size:,} rows", xscale="log", yscale="log", xlabel="rows changed", ylabel="ms")
        panel.grid(alpha=0.3)
    panels[0].legend(fontsize="small")
    save(made, path)


def captures(found: CaptureCosts, path: Path) -> None:
    """Draw the time of each kind of statement relative to the bare table, by number of stream tables."""
    made, [panel] = figure(1, f"what capture costs a writer, PostgreSQL {found.server}", width=11)
    numbers = sorted({item.stream_tables for item in found.statements})
    groups = list(dict.fromkeys((item.kind, item.event, item.rows) for item in found.statements))
    labels = [f"{event}\n{rows:,} {kind.removeprefix('1 ')}" for kind, event, rows in groups]
    heights = {(item.kind, item.event, item.stream_tables): item.against_bare for item in found.statements}
    if found.tpcb:
        groups.append(("TPC-B", found.tpcb_by, 0))
        labels.append(f"TPC-B\n{found.tpcb_by}")
        heights.update(
            {("TPC-B", found.tpcb_by, item.stream_tables): item.against_bare for item in found.tpcb}
        )
    width = 0.8 / len(numbers)
    for place, number in enumerate(numbers):
        panel.bar(
            [position + (place - (len(numbers) - 1) / 2) * width for position in range(len(groups))],
            [heights[kind, event, number] for kind, event, _ in groups],
            width,
            label=f"{number} stream tables",
            color=CHANGES[-1 - place],
        )
    panel.axhline(1, color="#888888", linestyle=":", label="bare table")
    panel.set_xticks(range(len(groups)), labels, fontsize="xx-small")
    panel.set(ylabel="time, as a multiple of the bare table")
    panel.grid(axis="y", alpha=0.3)
    panel.legend(fontsize="small")
    save(made, path)


def tpch(found: Sequence[QueryCost], scale: float, path: Path) -> None:
    """Draw the time of each way by query; a recomputed change is a cross instead of a dot."""
    made, [panel] = figure(1, f"TPC-H at scale {scale:g}", width=11)
    numbers = sorted({item.query for item in found})
    percents = sorted({item.percent for item in found})
    places = {number: place for place, number in enumerate(numbers)}
    for title, marker, colour, name in (
        ("REFRESH MATERIALIZED VIEW", "_", "#e25a1c", "view_ms"),
        ("full refresh", "_", "#888888", "full_ms"),
    ):
        heights = [
            statistics.median(getattr(item, name) for item in found if item.query == number)
            for number in numbers
        ]
        panel.scatter(range(len(numbers)), heights, s=220, marker=marker, color=colour, label=title)
    for number, percent in enumerate(percents):
        colour = CHANGES[number % len(CHANGES)]
        shift = 0.6 * ((number + 0.5) / len(percents) - 0.5)
        label = f"refresh, {percent:g} % changed"
        for marker, recomputed in (("o", False), ("x", True)):
            points = [
                item
                for item in found
                if item.percent == percent and (item.action == "recompute") == recomputed
            ]
            panel.scatter(
                [places[item.query] + shift for item in points],
                [item.refresh_ms for item in points],
                s=26,
                marker=marker,
                color=colour,
                label=None if recomputed else label,
            )
    panel.scatter([], [], s=26, marker="x", color=CHANGES[0], label="recomputed")
    panel.set_xticks(range(len(numbers)), [str(number) for number in numbers])
    panel.set(yscale="log", xlabel="query", ylabel="ms")
    panel.grid(axis="y", alpha=0.3)
    panel.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    save(made, path)


def service(found: ServiceCosts, path: Path) -> None:
    """Draw a panel for each measured part; two for workers, second by second."""
    wanted = [
        *([_draw_scale] if found.scale else []),
        *([_draw_graphs] if found.latency and found.latency.graphs else []),
        *([_draw_visible] if found.latency and found.latency.visible else []),
        *([_draw_queue, _draw_utilisation] if found.workers else []),
    ]
    columns = min(3, len(wanted))
    made, panels = figure(columns, "the service", width=5.2, rows=-(-len(wanted) // columns))
    for panel, draw in zip(panels, wanted, strict=False):
        draw(found, panel)
    for panel in panels[len(wanted) :]:
        panel.axis("off")
    save(made, path)


def _draw_scale(found: ServiceCosts, panel: Any) -> None:
    rounds = [item for item in (found.scale.rounds if found.scale else ()) if item.changed]
    for number, size in enumerate(sorted({item.stream_tables for item in rounds})):
        points = [item for item in rounds if item.stream_tables == size]
        colour = CHANGES[number % len(CHANGES)]
        changed = [item.changed for item in points]
        panel.plot(changed, [item.loop_ms for item in points], "o-", color=colour, label=f"{size:,}")
    panel.set(xscale="log", xlabel="stream tables whose source changed", ylabel="CPU ms")
    panel.set_title("the scheduler's CPU time until all are refreshed,\nby the number of stream tables")
    panel.grid(alpha=0.3)
    panel.legend(fontsize="small")


def _draw_graphs(found: ServiceCosts, panel: Any) -> None:
    items = found.latency.graphs if found.latency else []
    panel.barh(range(len(items)), [item.against_bare for item in items], color=COLOURS["postgres"])
    panel.set_yticks(range(len(items)), [item.graph for item in items], fontsize="small")
    panel.invert_yaxis()
    panel.set(xlabel="times one refresh", title="from a commit to the leaf")
    panel.grid(axis="x", alpha=0.3)


def _draw_visible(found: ServiceCosts, panel: Any) -> None:
    items = found.latency.visible if found.latency else []
    for number, (name, colour) in enumerate((("p50", CHANGES[2]), ("p99", CHANGES[0]))):
        places = [place + 0.4 * (number - 0.5) for place in range(len(items))]
        heights = [getattr(item, f"{name}_ms") for item in items]
        bars = panel.bar(places, heights, 0.4, color=colour, label=name)
        panel.bar_label(bars, fmt="%.0f", fontsize="small")
    panel.set_xticks(range(len(items)), [item.way for item in items])
    panel.set(ylabel="ms", title="from commit to visible")
    panel.legend(fontsize="small")


def _draw_queue(found: ServiceCosts, panel: Any) -> None:
    _draw_seconds(found, panel, "queued", 1)
    panel.set(xlabel="second", ylabel="refreshes that wait", title="queue")
    panel.legend(fontsize="small")


def _draw_utilisation(found: ServiceCosts, panel: Any) -> None:
    _draw_seconds(found, panel, "utilisation", 100)
    panel.set(xlabel="second", ylabel="% of the workers' time", title="utilisation")


def _draw_seconds(found: ServiceCosts, panel: Any, name: str, factor: int) -> None:
    runs = found.workers.runs if found.workers else []
    sizes = sorted({run.workers for run in runs})
    for run in runs:
        panel.plot(
            [second.second + 1 for second in run.seconds],
            [factor * getattr(second, name) for second in run.seconds],
            "-" if run.kind == "in-process" else ":",
            color=CHANGES[sizes.index(run.workers) % len(CHANGES)],
            label=f"{run.workers} {run.kind}",
        )
    panel.grid(alpha=0.3)
