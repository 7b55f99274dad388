"""The building blocks of all texts: values, tables, headings, lines."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from headwater.cli.document import plain
from headwater.cli.invocation import printable

NOTHING = "-"
PIPE_WIDTH = 1_000_000
"""Columns when standard output is no terminal: wide enough that no name is ever broken or cut."""
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))


def milliseconds(value: float | None) -> str:
    """
    >>> milliseconds(12.345), milliseconds(2500), milliseconds(125_000)
    ('12.3 ms', '2.50 s', '2 min')
    """
    if value is None:
        return NOTHING
    if value < 1_000:
        return f"{value:.1f} ms"
    return f"{value / 1_000:.2f} s" if value < 60_000 else seconds(value / 1_000)


def seconds(value: float) -> str:
    """
    >>> seconds(3.2), seconds(119), seconds(100_000)
    ('3 s', '119 s', '27 h')
    """
    whole = max(0, int(value))
    size, unit = next(((size, unit) for size, unit in _UNITS if whole >= 2 * size), (1, "s"))
    return f"{whole // size} {unit}"


def ago(moment: datetime | None, now: datetime) -> str:
    return NOTHING if moment is None else f"{seconds((now - moment).total_seconds())} ago"


def cell(value: Any) -> str:
    """Return a value of a row or of a table's column, on one line."""
    if value is None:
        return NOTHING
    flat = plain(value)
    return printable(flat if isinstance(flat, str) else str(flat)).replace("\n", "\\n").replace("\t", "\\t")


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    """Return an aligned table; on a narrow terminal the widest cells are folded, and nothing is cut off."""
    kept = [list(row) for row in rows]
    drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for number, column in enumerate(columns):
        numeric = any(isinstance(row[number], int) for row in kept)
        drawn.add_column(printable(column), justify="right" if numeric else "left", overflow="fold")
    for row in kept:
        drawn.add_row(*(cell(value) for value in row))
    return drawn


@dataclass(frozen=True)
class Reasoned:
    """A table by stream table whose last column is a reason; if that is too wide, reasons follow below."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        whole = table(self.columns, self.rows)
        if Measurement.get(console, options.update(max_width=PIPE_WIDTH), whole).maximum <= options.max_width:
            yield whole
            return
        yield table(self.columns[:-1], [row[:-1] for row in self.rows])
        label = self.columns.index("stream table")
        yield from (lines(f"{row[label]}: {row[-1]}") for row in self.rows if row[-1])


def pairs(rows: Iterable[tuple[str, Any]]) -> Table:
    drawn = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    drawn.add_column(style="bold", no_wrap=True)
    drawn.add_column()
    for name, value in rows:
        drawn.add_row(name, cell(value))
    return drawn


def lines(*texts: str) -> Text:
    return Text("\n".join(printable(text) for text in texts))


def heading(text: str) -> Text:
    return Text(f"\n{printable(text)}", style="bold")


def command(verb: str, name: str) -> str:
    """Return what to type for a verb and a stream table."""
    return f"headwater {verb} {shlex.quote(name)}"
