"""`headwater status --watch`: all stream tables and the service, redrawn each second.

On a terminal it shows as many stream tables as there are lines, the most interesting ones first; elsewhere
one state is printed after the other. As JSON each state is a document on a line of its own.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import click
from rich.console import ConsoleDimensions, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headwater.catalog.jobs import RunningJob
from headwater.cli.document import plain
from headwater.cli.invocation import Invocation, printable
from headwater.cli.output import console, print_text
from headwater.cli.show import values as show
from headwater.cli.show.values import PIPE_WIDTH
from headwater.inspect.overview import COUNTED_ROWS, STATES, Glance, Overview, ServiceStatus, State

WATCH_SECONDS = 1.0
PIPED_LINES = 40
"""Stream tables that are shown where there is no terminal."""
AROUND = 7
"""Lines above and below those of the stream tables, and the one that a terminal's cursor is on."""
COLUMNS = {
    "stream table": 0,
    "state": 0,
    "schedule": 90,
    "tier": 110,
    "lag": 0,
    "waiting": 60,
    "last refresh": 80,
    "now": 110,
}
"""The columns, with the terminal width from which each is shown."""
STYLES: dict[State, str] = {
    "broken": "bold red",
    "failing": "bold red",
    "suspended": "magenta",
    "behind": "yellow",
    "running": "cyan",
    "waiting": "",
    "loading": "cyan",
    "current": "green",
}


def follow(
    invocation: Invocation, look: Callable[[], Any], drawn: Callable[[Any, ConsoleDimensions], RenderableType]
) -> None:
    """Redraw until interrupted. `drawn` is told how much room there is."""
    terminal = console()
    if invocation.format == "json":
        while True:
            click.echo(json.dumps(plain(look()), ensure_ascii=False, allow_nan=False).encode())
            time.sleep(WATCH_SECONDS)
    if not terminal.is_terminal:
        while True:
            print_text(drawn(look(), ConsoleDimensions(terminal.width, PIPED_LINES + AROUND)))
            time.sleep(WATCH_SECONDS)
    with Live(console=terminal, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            live.update(drawn(look(), terminal.size), refresh=True)
            time.sleep(WATCH_SECONDS)


def overview(found: Overview, size: ConsoleDimensions) -> RenderableType:
    """Return a state in as much room as there is."""
    if not found.stream_tables:
        return Group(
            *_header(found), show.lines("there are no stream tables", "next: headwater create --help")
        )
    shown = found.stream_tables[: max(1, size.height - AROUND)]
    columns = [name for name, width in COLUMNS.items() if size.width >= width]
    # The last text gets the room that is left, and no more.
    narrow = "now" in columns and size.width < PIPE_WIDTH
    drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", expand=narrow)
    for name in columns:
        drawn.add_column(
            name,
            justify="right" if name in ("lag", "waiting") else "left",
            no_wrap=True,
            overflow="ellipsis",
            max_width=max(20, size.width // 3) if name == "stream table" else None,
            ratio=1 if narrow and name == "now" else None,
        )
    for glance in shown:
        cells = _cells(glance, found)
        drawn.add_row(*(cells[name] for name in columns))
    rest = len(found.stream_tables) - len(shown)
    return Group(*_header(found), drawn, *([Text(f"and {rest:,} more", style="dim")] if rest else []))


def _cells(glance: Glance, found: Overview) -> dict[str, RenderableType]:
    last = show.NOTHING
    if glance.last_action is not None:
        took = show.milliseconds(glance.last_refresh_ms)
        last = f"{glance.last_action} {show.ago(glance.last_refresh_at, found.at)}, {took}"
    return {
        "stream table": printable(glance.stream_table),
        "state": Text(glance.state, style=STYLES[glance.state]),
        "schedule": glance.schedule or show.NOTHING,
        "tier": glance.tier or show.NOTHING,
        "lag": _lag(glance.lag_seconds),
        "waiting": _waiting(glance.pending_rows),
        "last refresh": last,
        "now": _now(glance),
    }


def _lag(seconds: float | None) -> str:
    """
    >>> _lag(None), _lag(0.0), _lag(1.26), _lag(300)
    ('?', '-', '1.3 s', '5 min')
    """
    if seconds is None:
        return "?"
    if not seconds:
        return show.NOTHING
    return f"{seconds:.1f} s" if seconds < 60 else show.seconds(seconds)


def _waiting(rows: int | None) -> str:
    if rows is None:
        return "?"
    return f"over {COUNTED_ROWS:,}" if rows > COUNTED_ROWS else f"{rows:,}"


def _now(glance: Glance) -> Text:
    if glance.job is not None:
        return Text(_progress(glance.job), style="cyan")
    if glance.reason is None:
        return Text("")
    again = f"{glance.failures} times: " if glance.failures > 1 and glance.state == "failing" else ""
    return Text(show.cell(again + glance.reason), style="dim")


def _progress(job: RunningJob) -> str:
    doing = "being cancelled" if job.cancel_requested else job.phase
    parts = [f"{job.action or 'refresh'} on {job.engine}", show.milliseconds(job.elapsed_ms), doing]
    if job.tasks:
        parts.append(f"{min(job.tasks_done or 0, job.tasks)} of {job.tasks} tasks")
    if job.rows is not None:
        parts.append(f"{job.rows:,} rows")
    return ", ".join(parts)


def _header(found: Overview) -> list[RenderableType]:
    counts = Counter(glance.state for glance in found.stream_tables)
    said = ", ".join(f"{counts[state]:,} {state}" for state in STATES if counts[state])
    tables = Text.assemble(
        (printable(found.database), "bold"),
        f": {len(found.stream_tables):,} stream tables",
        f" ({said})" if said else "",
    )
    return [_line(service_line(found)), _line(tables), _line(_workers(found)), Text("")]


def _line(text: Text) -> Text:
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def service_line(found: Overview) -> Text:
    """Return the state of the service."""
    service = found.service
    if service is None:
        return Text.assemble(
            ("no service is running", "yellow"), ": headwater serve keeps stream tables fresh"
        )
    return Text.assemble(
        "service ",
        (service.state, {"running": "green", "draining": "yellow"}.get(service.state, "bold red")),
        f" for {show.seconds((found.at - service.started_at).total_seconds())}"
        if service.state != "silent"
        else f" since {show.ago(service.ticked_at, found.at)}",
        f"; {_figures(service)}",
    )


def _figures(service: ServiceStatus) -> str:
    return (
        f"{service.ticks:,} ticks, {service.tick_ms:.1f} ms the last, busy {service.busy_share:.1%};"
        f" {service.active_workers} of {service.max_workers} workers, {service.queued_jobs:,} queued,"
        f" {service.changed:,} of {service.stream_tables:,} scheduled changed"
    )


def _workers(found: Overview) -> Text:
    if not found.workers:
        return Text("no external workers", style="dim")
    listed = ", ".join(
        f"{worker.hostname}:{worker.pid} {worker.jobs} of {worker.capacity}"
        + (f" {worker.status}" if worker.status != "active" else "")
        for worker in found.workers
    )
    return Text(f"{len(found.workers)} external workers: {printable(listed)}")
