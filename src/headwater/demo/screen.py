"""How a run looks: frames on a terminal, a line a second without one, and the summary at the end."""

from __future__ import annotations

import io
import re
import statistics
from decimal import Decimal

from rich import box
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console, ConsoleDimensions, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from headwater.demo.board import Board, Row
from headwater.demo.shop import SCHEMA
from headwater.inspect.verify import Verification

WIDE, WIDER = 84, 108
TALL = 30
PICTURE = ConsoleDimensions(112, 32)
BORDER = "bright_black"
ACCENT = "cyan"
GOOD, BAD = "green", "bold red"


# a frame


def frame(board: Board, size: ConsoleDimensions) -> RenderableType:
    """Return the whole picture for a terminal of this size."""
    wide, tall = size.width >= WIDE, size.height >= TALL
    with board.lock:
        parts: list[RenderableType] = [
            _title(board, size.width),
            _stream_tables(board, wide=wide, wider=size.width >= WIDER, tall=tall),
            _service_line(board),
            _verification_line(board),
        ]
        if wide:
            panels = Table.grid(expand=True, padding=(0, 0))
            panels.add_column(ratio=2)
            panels.add_column(ratio=3)
            panels.add_row(_writer_panel(board), _top_panel(board, rows=8, bars=True))
            parts.append(panels)
        else:
            parts.append(_writer_line(board))
            # The room under the table, which has two lines for each stream table if there is enough.
            used = 1 + (4 + len(board.rows) * (2 if tall else 1)) + 3 + 3 + 2
            parts.append(_top_panel(board, rows=max(1, min(8, size.height - used - 1)), bars=False))
        for problem in list(board.problems)[:2]:
            parts.append(Text(f"✗ {problem.splitlines()[0]}", style=BAD, overflow="ellipsis", no_wrap=True))
    return Group(*parts)


def _title(board: Board, width: int) -> RenderableType:
    grid = Table.grid(expand=True)
    grid.add_column(no_wrap=True, overflow="ellipsis")
    grid.add_column(justify="right", no_wrap=True)
    left = Text.assemble((" Headwater", f"bold {ACCENT}"))
    if width >= WIDE:
        left.append("  stream tables kept fresh incrementally, on a ")
        left.append(board.server, style="bold")
    else:
        left.append(f"  {board.server}")
    minutes, seconds = divmod(round(board.left), 60)
    grid.add_row(left, Text(f"{minutes}:{seconds:02d} left ", style="bold"))
    return grid


def _stream_tables(board: Board, *, wide: bool, wider: bool, tall: bool) -> RenderableType:
    table = Table(box=box.ROUNDED, border_style=BORDER, expand=True, header_style="bold", pad_edge=True)
    table.add_column("stream table", no_wrap=True, overflow="ellipsis", ratio=1 if wide else None)
    table.add_column("rows", justify="right", no_wrap=True)
    if wider:
        table.add_column("every", no_wrap=True)
    if wide:
        table.add_column("lag", justify="right", no_wrap=True, min_width=6)
    table.add_column("last refresh", no_wrap=True, overflow="ellipsis", ratio=1)
    if wide:
        table.add_column("refreshes", justify="right", no_wrap=True)
    table.add_column("verified" if wide else "✓", justify="right", no_wrap=True)
    for row in board.rows.values():
        name, last = Text(row.example.name, style=ACCENT), _last_refresh(row)
        if tall:
            name.append(f"\n{row.example.shows}", style="bright_black")
            last.append(f"\n{_how(row)}", style="bright_black")
        cells: list[RenderableType] = [name, _number(row.rows)]
        if wider:
            cells.append(row.example.schedule)
        if wide:
            cells.append("" if row.lag_seconds is None else f"{row.lag_seconds:.1f} s")
        cells.append(last)
        if wide:
            cells.append(_number(row.refreshes))
        cells.append(_tick(row))
        table.add_row(*cells)
    return table


def _last_refresh(row: Row) -> Text:
    if row.last is None:
        return Text("loaded", style="bright_black")
    inserted, updated = row.last.rows_inserted or 0, row.last.rows_updated or 0
    deleted = row.last.rows_deleted or 0
    return Text.assemble(
        f"{row.last.duration_ms:4.0f} ms  ",
        (f"+{inserted:,}", GOOD if inserted else "bright_black"),
        " ",
        (f"~{updated:,}", "yellow" if updated else "bright_black"),
        " ",
        (f"−{deleted:,}", "red" if deleted else "bright_black"),
    )


def _how(row: Row) -> str:
    if row.last is None:
        return ""
    what = f"delta of {row.last.rows_in or 0:,}" if row.last.action == "delta" else row.last.action
    return f"{what} on {row.last.engine}"


def _tick(row: Row) -> Text:
    if row.difference is not None:
        return Text(f"{row.verified} ✗", style=BAD)
    if not row.verified:
        return Text("·", style="bright_black")
    return Text(f"{row.verified} ✓", style=GOOD)


def _service_line(board: Board) -> RenderableType:
    service = board.service
    if service is None:
        return Text(" headwater serve has not reported yet", style="bright_black")
    text = Text.assemble(
        (" headwater serve", ACCENT),
        f"  {service.ticks:,} ticks, its loop busy {service.busy_share:.1%} of the time,",
        f" {service.active_workers} of {service.max_workers} workers at work, {service.queued_jobs} queued",
    )
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _verification_line(board: Board) -> RenderableType:
    last = board.last_verification
    if last is None:
        return Text(" the first verification is under way", style="bright_black")
    name = last.stream_table.removeprefix(f"{SCHEMA}.")
    if last.equal:
        text = Text.assemble((" ✓ verified equal", GOOD), " at snapshot ", (last.snapshot, "bold"))
    else:
        text = Text.assemble((" ✗ different", BAD), " at snapshot ", (last.snapshot, "bold"))
    text.append(f"  {name}, {last.rows:,} rows")
    text.append(f"  ({board.verified:,} equal so far)", style="bright_black")
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _writer_panel(board: Board) -> RenderableType:
    done = board.written
    grid = Table.grid(expand=True, padding=(0, 1))
    grid.add_column()
    grid.add_column(justify="right")
    rate = done.transactions / board.elapsed if board.elapsed else 0.0
    grid.add_row("transactions", Text.assemble((f"{rate:.0f}/s  ", "bright_black"), f"{done.transactions:,}"))
    grid.add_row("orders placed", f"{done.placed:,}")
    grid.add_row("orders shipped", f"{done.shipped:,}")
    grid.add_row("orders cancelled", f"{done.cancelled:,}")
    grid.add_row("prices changed", f"{done.priced:,}")
    grid.add_row("customers moved", f"{done.moved:,}")
    grid.add_row("pages viewed", f"{done.viewed:,}")
    grid.add_row("rows", _row_counts(board))
    return Panel(grid, title="the shop writes", title_align="left", border_style=BORDER)


def _writer_line(board: Board) -> RenderableType:
    text = Text.assemble(
        " the shop: ", f"{board.written.transactions:,} transactions, rows ", _row_counts(board)
    )
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _row_counts(board: Board) -> Text:
    done = board.written
    return Text.assemble(
        (f"+{done.inserted:,}", GOOD), (f" ~{done.updated:,}", "yellow"), (f" −{done.deleted:,}", "red")
    )


def _top_panel(board: Board, *, rows: int, bars: bool) -> RenderableType:
    grid = Table.grid(expand=True, padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(justify="right", no_wrap=True, min_width=9)
    if bars:
        grid.add_column(ratio=1)
    highest = max((revenue for _, revenue, _ in board.top), default=Decimal(1)) or Decimal(1)
    for region, revenue, _ in board.top[:rows]:
        cells: list[RenderableType] = [region, f"{revenue:,.2f}", _movement(board, region, revenue)]
        if bars:
            cells.append(Text("━" * max(1, int(24 * revenue / highest)), style=ACCENT, no_wrap=True))
        grid.add_row(*cells)
    title = "SELECT … FROM revenue_by_region" if bars else "revenue_by_region"
    return Panel(grid, title=title, title_align="left", border_style=BORDER)


def _movement(board: Board, region: str, revenue: Decimal) -> Text:
    change = revenue - board.top_before.get(region, revenue)
    if not change:
        return Text("")
    return Text(f"{change:+,.0f}".replace("-", "−"), style=GOOD if change > 0 else "red")


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def picture(board: Board) -> str:
    """Return a frame as an SVG."""
    return svg(frame(board, PICTURE), "headwater demo", PICTURE.width)


def svg(shown: RenderableType, title: str, width: int) -> str:
    """Return what a terminal would show, as a self-contained SVG."""
    console = Console(
        record=True, file=io.StringIO(), width=width, force_terminal=True, color_system="truecolor"
    )
    console.print(shown)
    # The template names fonts on a third party's server; the reader's own are good enough.
    template = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    template = re.sub(r"<!--.*?-->\s*", "", template, flags=re.DOTALL)
    template = template.replace("font-family: Fira Code, monospace", "font-family: ui-monospace, monospace")
    # Without this some programs drop the spaces that align the columns.
    template = template.replace("<svg ", '<svg xml:space="preserve" ', 1)
    return console.export_svg(title=title, code_format=template)


# without a terminal


def line(board: Board) -> str:
    """Return one second in one line."""
    with board.lock:
        parts = [f"{board.elapsed:4.0f} s", f"{board.written.transactions} transactions"]
        for row in board.rows.values():
            last = f" {row.last.action} {row.last.duration_ms:.0f} ms" if row.last else ""
            parts.append(f"{row.example.name} {row.rows} rows{last} verified {row.verified}")
        last_one = board.last_verification
        if last_one is not None:
            verdict = "verified equal" if last_one.equal else "DIFFERENT"
            parts.append(f"{verdict} at snapshot {last_one.snapshot} {_short(last_one)}")
        if board.service is not None:
            parts.append(f"serve {board.service.ticks} ticks, {board.service.active_workers} workers")
    return " | ".join(parts)


def _short(verification: Verification) -> str:
    return verification.stream_table.removeprefix(f"{SCHEMA}.")


# the end


def summary(board: Board, *, given: bool) -> RenderableType:
    """Return the summary: what was shown, whether it held, and what to try next."""
    parts: list[RenderableType] = [Text(""), _verdict(board), _totals(board)]
    if board.problems:
        parts.append(_problems(board))
    if board.speeds:
        parts += [Text(""), _speeds(board)]
    return Group(*parts, Text(""), _next_steps(given=given))


def _verdict(board: Board) -> Text:
    if board.problems:
        return Text("✗ Not everything held", style=BAD)
    tables = sum(1 for row in board.rows.values() if row.verified)
    return Text(
        f"✓ {tables} stream tables verified equal to their queries, {board.verified:,} times in all",
        style=f"bold {GOOD}",
    )


def _totals(board: Board) -> Text:
    times = [ms for row in board.rows.values() for ms in row.milliseconds]
    lags = [1000 * lag for row in board.rows.values() for lag in row.lags]
    changes = sum(row.delta_rows for row in board.rows.values())
    done = board.written
    text = (
        f"  {board.elapsed:.0f} s, {done.transactions:,} transactions"
        f" (rows +{done.inserted:,} ~{done.updated:,} −{done.deleted:,})\n"
        f"  {board.refreshes:,} refreshes by headwater serve took in {changes:,} change rows{_spread(times)}"
    )
    if lags:
        text += f"\n  behind their queries, looked at {len(lags):,} times{_spread(lags)}"
    return Text(text)


def _spread(milliseconds: list[float]) -> str:
    if len(milliseconds) < 2:
        return ""
    middle, high = statistics.median(milliseconds), statistics.quantiles(milliseconds, n=20)[18]
    return f"; p50 {middle:,.0f} ms, p95 {high:,.0f} ms"


def _problems(board: Board) -> Text:
    text = Text()
    for problem, count in board.problems.items():
        text.append(f"\n  {problem}" + (f" ({count} times)" if count > 1 else ""), style="red")
    for row in board.rows.values():
        if row.difference is not None:
            text.append(f"\n{_difference(row.difference)}")
    return text


def _difference(found: Verification) -> str:
    lines = [f"  {found.stream_table} at snapshot {found.snapshot}, columns {', '.join(found.columns)}:"]
    for sign, what, rows, count in (
        ("-", "missing", found.missing, found.missing_count),
        ("+", "surplus", found.surplus, found.surplus_count),
    ):
        if count:
            lines.append(f"    {count:,} rows {what}")
            lines += [f"    {sign} {', '.join(map(str, values))}" for values in rows[:5]]
    return "\n".join(lines)


def _speeds(board: Board) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", border_style=BORDER, pad_edge=False)
    table.add_column("ms for a second's changes", no_wrap=True)
    for title in ("as a delta", "recomputed", "ratio"):
        table.add_column(title, justify="right")
    for speed in board.speeds:
        table.add_row(
            speed.name,
            f"{speed.delta_ms:.0f}",
            f"{speed.full_ms:.0f}",
            Text(f"{speed.ratio:.1f}×", style="bold"),
        )
    delta = sum(speed.delta_ms for speed in board.speeds)
    full = sum(speed.full_ms for speed in board.speeds)
    table.add_row("all", f"{delta:.0f}", f"{full:.0f}", Text(f"{full / delta:.1f}×", style="bold"))
    remark = (
        "This shop is small. A delta's cost follows the changes, recomputing follows the size of the tables."
    )
    return Group(table, Text(remark, style="bright_black"))


def _next_steps(*, given: bool) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    init = "it is installed in this database already" if given else "installs it in your database"
    for command, what in (
        ("headwater init --dsn postgresql://…", init),
        ("headwater create NAME --schedule 1s --query 'SELECT …'", "makes a stream table of a query"),
        ("headwater serve", "keeps all of them fresh"),
        ("headwater status --watch", "shows how they are doing"),
        ("headwater verify NAME", "compares it with its query"),
        ("docs/", "explains the rest"),
    ):
        grid.add_row(Text(f"  {command}", style=ACCENT), what)
    return Group(Text("Next:", style="bold"), grid)
