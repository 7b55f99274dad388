"""Results as text for people."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from headwater.bench.capture import CaptureCosts
from headwater.bench.delta import DeltaCost
from headwater.bench.tpch import Means, QueryCost
from headwater.bench.transfer import Transfers
from headwater.catalog.history import HistoryEntry, Outcome
from headwater.catalog.jobs import RunningJob
from headwater.catalog.stream_tables import StreamTable
from headwater.cli.document import plain
from headwater.cli.invocation import PIPE_WIDTH, printable
from headwater.config import Setting
from headwater.engine.observations import INSTEAD, Prediction
from headwater.inspect.explain import Explanation, Operator
from headwater.inspect.status import StreamTableStatus
from headwater.inspect.verify import Verification
from headwater.install.privileges import Check
from headwater.lifecycle.repair import Repaired
from headwater.refresh.compare import MOST_DIFFERENCES
from headwater.refresh.incidents import Incident
from headwater.refresh.index_advice import MissingIndex

NOTHING = "-"
OUTCOME_COLUMNS = "stream table,action,in,inserted,updated,deleted,took,engine,reason".split(",")
BAR_WIDTH = 30
INCIDENT_STATUS = {
    "held": "it is recomputed at each refresh, until its definition or Headwater's version changes",
    "released": "its definition or Headwater's version changed since",
    "dropped": "the stream table was dropped",
}
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))


# values


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


def lag(status: StreamTableStatus) -> str:
    if status.lag_seconds is None:
        return NOTHING
    return seconds(status.lag_seconds) if status.lag_seconds else "current"


def cell(value: Any) -> str:
    """A value of a row or of a table's column, on one line."""
    if value is None:
        return NOTHING
    flat = plain(value)
    return printable(flat if isinstance(flat, str) else str(flat)).replace("\n", "\\n").replace("\t", "\\t")


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    """An aligned table; on a narrow terminal cells are folded, the widest first, and nothing is cut off."""
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
    """A table by stream table whose last column is a reason; where that is too wide, reasons follow below."""

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


def command(verb: str, name: str) -> str:
    """What to type for a verb and a stream table."""
    return f"headwater {verb} {shlex.quote(name)}"


# results


def checks(found: Sequence[Check]) -> RenderableType:
    missing = [check for check in found if check.required and not check.ok]
    drawn = table(
        ("", "privilege", "remedy"),
        [
            (
                "ok" if check.ok else "missing" if check.required else "if wanted",
                check.name,
                f"{check.remedy};" if check.remedy else "",
            )
            for check in found
        ],
    )
    verdict = (
        f"{len(missing)} missing: run the statements above as the owner or a superuser"
        if missing
        else "nothing is missing"
    )
    return Group(drawn, lines(verdict))


def definition(
    stream_table: StreamTable,
    verb: str,
    following: str,
    indexes: Sequence[MissingIndex] = (),
    did: str = "",
    *,
    loaded: bool = False,
) -> Text:
    """What `create` and `alter` say: the mode and, when it recomputes though nobody asked for that, why; what
    was done to one that was there, how its rows were checked, and what would make it cheaper."""
    said = [
        f"{verb} {stream_table.label}{f': {did}' if did else ''}",
        f"mode: {stream_table.mode} (asked for: {stream_table.requested_mode}),"
        f" engine: {stream_table.engine}, schedule: {stream_table.schedule or 'none'}"
        + (f", tier: {stream_table.tier}" if stream_table.tier else ""),
    ]
    if stream_table.mode == "full" and stream_table.requested_mode != "full":
        said.append("it recomputes at each refresh, because it cannot be maintained incrementally:")
        said += [f"  {reason}" for reason in stream_table.mode_reasons]
    if loaded and stream_table.load_check:
        said.append(stream_table.load_check)
    if indexes:
        said.append("refreshes read whole tables that an index would let them look into:")
        said += _indexes(indexes)
    return lines(*said, f"next: {following}")


def _indexes(found: Sequence[MissingIndex]) -> list[str]:
    return [f"  {item.statement}  -- {item.reason}" for item in found]


def outcomes(found: Sequence[Outcome]) -> RenderableType:
    return Reasoned(
        OUTCOME_COLUMNS,
        [
            (
                outcome.stream_table,
                outcome.action,
                outcome.rows_in,
                outcome.applied.inserted,
                outcome.applied.updated,
                outcome.applied.deleted,
                milliseconds(outcome.duration_ms),
                outcome.engine,
                _reason(outcome),
            )
            for outcome in found
        ],
    )


def _reason(found: Outcome | HistoryEntry) -> str:
    """Why it was refreshed this way, and why not by PostgreSQL, or not by Spark after all."""
    if found.engine == "spark" or found.engine_reason.startswith(INSTEAD):
        return f"{found.reason}; {found.engine}: {found.engine_reason}"
    return found.reason


def listing(found: Sequence[StreamTableStatus]) -> RenderableType:
    if not found:
        return lines("there are no stream tables", "next: headwater create --help")
    drawn = Reasoned(
        ("stream table", "status", "mode", "engine", "schedule", "rows", "sources", "reason"),
        [
            (
                status.stream_table,
                status.status,
                status.mode,
                status.engine,
                _schedule(status),
                status.rows,
                ", ".join(status.sources),
                _why(status),
            )
            for status in found
        ],
    )
    return Group(drawn, *running(found))


def statuses(found: Sequence[StreamTableStatus], now: datetime) -> RenderableType:
    if not found:
        return lines("there are no stream tables", "next: headwater create --help")
    drawn = Reasoned(
        ("stream table", "status", "mode", "rows", "waiting", "lag", "last refresh", "reason"),
        [
            (
                status.stream_table,
                status.status,
                status.mode,
                status.rows,
                status.pending_rows,
                lag(status),
                _last(status, now),
                _why(status),
            )
            for status in found
        ],
    )
    return Group(drawn, *running(found))


def status(found: StreamTableStatus, now: datetime) -> RenderableType:
    drawn = pairs(
        [
            ("stream table", found.stream_table),
            ("status", found.status),
            *([("because", found.status_reason), ("remedy", found.remedy)] if found.remedy else []),
            ("mode", f"{found.mode} (asked for: {found.requested_mode})"),
            ("reason", found.reason),
            ("engine", found.engine),
            ("schedule", found.schedule),
            ("tier", found.tier),
            ("sources", ", ".join(found.sources) or None),
            ("rows", found.rows),
            ("waiting change rows", found.pending_rows),
            ("lag", lag(found)),
            ("last refresh", _last(found, now)),
            ("took", milliseconds(found.last_refresh_ms)),
            ("to be recomputed", found.rebuild_reason),
            ("loaded", found.load_check),
            ("audited", _audited(found, now)),
            ("frontier", found.frontier),
        ]
    )
    return Group(drawn, *running([found]))


def _audited(found: StreamTableStatus, now: datetime) -> str | None:
    if found.audited_at is None:
        return None
    return f"{ago(found.audited_at, now)}: {found.audit_result}"


def running(found: Sequence[StreamTableStatus]) -> list[RenderableType]:
    """The refreshes that run now; nothing if none does."""
    shown = [part for status in found if status.job is not None for part in _job(status.job)]
    return [heading("running"), *shown] if shown else []


def _job(job: RunningJob) -> Iterable[RenderableType]:
    stage = f": {job.stage}" if job.stage else ""
    doing = "being cancelled" if job.cancel_requested else f"{job.phase}{stage}"
    yield lines(f"{job.stream_table}  {_kind(job)}  {milliseconds(job.elapsed_ms)}  {doing}")
    rows = _count(job.rows, "row") if job.rows is not None else ""
    if job.tasks:
        done = min(job.tasks_done or 0, job.tasks)
        drawn = Table.grid(padding=(0, 2, 0, 0))
        drawn.add_row(
            Padding(ProgressBar(total=job.tasks, completed=done, width=BAR_WIDTH), (0, 0, 0, 2)),
            f"{done} of {_count(job.tasks, 'task')}",
            rows,
        )
        yield drawn
    elif rows:
        yield lines(f"  {rows}")
    if job.ui:
        yield lines(f"  Spark UI: {job.ui}")


def _kind(job: RunningJob) -> str:
    return f"{job.action or 'refresh'} on {job.engine}"


def repaired(found: Sequence[Repaired]) -> RenderableType:
    if not found:
        return lines("there are no stream tables")
    return Reasoned(
        ("stream table", "status", "reason"),
        [
            (item.stream_table, item.status, "; ".join(filter(None, (item.reason, item.error))) or None)
            for item in found
        ],
    )


def cancelled(found: Sequence[RunningJob]) -> Text:
    return lines(
        *(
            f"cancelled {_kind(job)} of {job.stream_table} after {milliseconds(job.elapsed_ms)}"
            for job in found
        ),
        "next: headwater history shows how it ended",
    )


def _last(status: StreamTableStatus, now: datetime) -> str | None:
    return f"{status.last_action} {ago(status.last_refresh_at, now)}" if status.last_action else None


def _schedule(status: StreamTableStatus) -> str | None:
    return f"{status.schedule or 'none'}, {status.tier}" if status.tier else status.schedule


def _why(status: StreamTableStatus) -> str | None:
    state = f"{status.status}: {status.status_reason}; {status.remedy}" if status.status_reason else None
    rebuild = f"to be recomputed: {status.rebuild_reason}" if status.rebuild_reason else None
    return "; ".join(reason for reason in (state, status.reason, rebuild) if reason) or None


def history(found: Sequence[HistoryEntry], now: datetime) -> RenderableType:
    if not found:
        return lines("nothing was refreshed yet")
    return Reasoned(
        ("started", *OUTCOME_COLUMNS),
        [
            (
                ago(entry.started_at, now),
                entry.stream_table,
                entry.action if entry.status == "completed" else entry.status,
                entry.rows_in,
                entry.rows_inserted,
                entry.rows_updated,
                entry.rows_deleted,
                _against(entry.duration_ms, entry.predicted_ms),
                entry.engine,
                f"{entry.reason}: {entry.error}" if entry.error else _reason(entry),
            )
            for entry in found
        ],
    )


def incidents(found: Sequence[Incident], now: datetime) -> RenderableType:
    if not found:
        return lines("no stream table was found to differ from its query")
    shown: list[RenderableType] = []
    for incident in found:
        shown.append(heading(f"incident {incident.id}: {incident.stream_table}"))
        shown.append(
            pairs(
                [
                    ("found", f"{ago(incident.found_at, now)}, by {incident.found_by}"),
                    ("reason", incident.reason),
                    ("status", INCIDENT_STATUS[incident.status]),
                    ("versions", f"Headwater {incident.version}, PostgreSQL {incident.server_version}"),
                    ("query", incident.query),
                ]
            )
        )
        for what, rows in (("missing", incident.missing), ("wrong", incident.surplus)):
            if rows:
                shown.append(lines(f"  {what}:", *(f"    {_row(incident.columns, row)}" for row in rows)))
    return Group(*shown)


def _row(columns: Sequence[str], row: Sequence[str | None]) -> str:
    named = zip(columns, row, strict=True)
    return ", ".join(f"{name} = {'NULL' if value is None else value}" for name, value in named)


def _against(took: float, predicted: float | None) -> str:
    """What a refresh took, and what it was expected to take."""
    return milliseconds(took) + (f" ({predicted:,.0f})" if predicted is not None else "")


def explanation(found: Explanation, console: Console) -> RenderableType:
    shown: list[RenderableType] = [
        pairs(
            [
                ("stream table", found.stream_table),
                ("mode", f"{found.mode} (asked for: {found.requested_mode})"),
                ("engine", f"{found.engine} ({found.engine_reason})"),
                ("schedule", found.schedule or "none"),
                *(("reason", reason) for reason in found.reasons),
            ]
        ),
        *_trees(found.operators),
        *_predictions(found.predictions),
        *([heading("missing indexes"), lines(*_indexes(found.indexes))] if found.indexes else []),
        heading("query"),
        _sql(found.query, console),
    ]
    for number, step in enumerate(found.steps, 1):
        shown += [heading(f"step {number}: {step.name}"), _sql(step.sql, console)]
    return Group(*shown)


def _predictions(found: Sequence[Prediction]) -> list[RenderableType]:
    """Nothing as long as there is no refresh to go by."""
    if not any(item.postgres_ms or item.spark_ms for item in found):
        return []
    columns = ("change rows", "delta in PostgreSQL", "delta on Spark", "recomputing")
    rows = [
        (
            f"{item.rows:,}",
            *(
                f"{ms:,.1f} ms" if ms is not None else None
                for ms in (item.postgres_ms, item.spark_ms, item.full_ms)
            ),
        )
        for item in found
    ]
    return [heading("expected, from its own history"), table(columns, rows)]


def deltas(found: Sequence[DeltaCost]) -> RenderableType:
    return table(
        ("rows", "changed", "engine", "ms", "of the database", "against recomputing", "against PostgreSQL"),
        [
            (
                f"{item.table_rows:,}",
                f"{item.changed_rows:,}",
                item.engine,
                f"{item.elapsed_ms:,.1f}",
                f"{item.database_ms:,.1f}",
                f"{item.against_full:,.2f} ×",
                f"{item.against_postgres:,.2f} ×",
            )
            for item in found
        ],
    )


def captures(found: CaptureCosts) -> RenderableType:
    numbers = sorted({item.stream_tables for item in found.statements})
    ratios = {(item.kind, item.event, item.stream_tables): item.against_bare for item in found.statements}
    first = [item for item in found.statements if item.stream_tables == numbers[0]]
    statements = table(
        ("statement", "on the bare table", *(f"{number} stream tables" for number in numbers)),
        [
            (
                f"{item.event} of {item.rows:,} {item.kind.removeprefix('1 ')}",
                milliseconds(item.bare_ms),
                *(f"{ratios[item.kind, item.event, number]:,.2f} ×" for number in numbers),
            )
            for item in first
        ],
    )
    if not found.tpcb:
        return statements
    throughput = table(
        ("stream tables", "transactions/s", "on bare tables", "time of a transaction"),
        [
            (item.stream_tables, f"{item.tps:,.0f}", f"{item.bare_tps:,.0f}", f"{item.against_bare:,.2f} ×")
            for item in found.tpcb
        ],
    )
    return Group(
        statements, heading(f"TPC-B, {found.tpcb[0].clients} clients, by {found.tpcb_by}"), throughput
    )


def tpch(found: Sequence[QueryCost], means: Sequence[Means]) -> RenderableType:
    measured = table(
        (
            "query",
            "changed",
            "action",
            "refresh",
            "full refresh",
            "materialized view",
            "against full",
            "against view",
            "equal",
        ),
        [
            (
                item.query,
                f"{item.percent:g} %",
                item.action,
                milliseconds(item.refresh_ms),
                milliseconds(item.full_ms),
                milliseconds(item.view_ms),
                f"{item.against_full:,.2f} ×",
                f"{item.against_view:,.2f} ×",
                "yes" if item.equal else "NO",
            )
            for item in found
        ],
    )
    summary = table(
        ("changed", "queries", "", "against full", "against view"),
        [
            (
                f"{item.percent:g} %",
                item.queries,
                item.of,
                f"{item.against_full:,.2f} ×",
                f"{item.against_view:,.2f} ×",
            )
            for item in means
        ],
    )
    recomputed = {item.query: item.reason for item in found if item.action == "recompute"}
    return Group(
        measured,
        heading("geometric means"),
        summary,
        *([heading("recomputed")] if recomputed else []),
        *(lines(f"query {query}: {reason}") for query, reason in recomputed.items()),
    )


def transfers(found: Transfers) -> RenderableType:
    measured = table(
        ("tasks", "way", "rows/s", "against bare COPY", "against JDBC"),
        [
            (
                str(item.tasks),
                item.way,
                f"{item.rows_per_second:,.0f}",
                f"{item.against_copy:,.2f} ×",
                NOTHING if item.against_jdbc is None else f"{item.against_jdbc:,.2f} ×",
            )
            for item in found.measurements
        ],
    )
    return Group(measured, *found.notes)


def heading(text: str) -> Text:
    return Text(f"\n{printable(text)}", style="bold")


def _trees(operators: Sequence[Operator]) -> list[RenderableType]:
    roots: list[Tree] = []
    path: list[Tree] = []
    for operator in operators:
        label = Text.assemble(
            (operator.name, "bold"), " ", printable(operator.detail), "  ", (f"[{operator.rule}]", "dim")
        )
        del path[operator.depth :]
        if path:
            path.append(path[-1].add(label))
        else:
            path.append(Tree(label))
            roots.append(path[0])
    return [heading("operators"), *roots] if roots else []


def _sql(text: str, console: Console) -> RenderableType:
    text = printable(text.strip("\n"))
    if not console.is_terminal:
        return Text(text)
    return Syntax(text, "postgresql", background_color="default", word_wrap=True)


def verification(found: Verification, remedy: str) -> RenderableType:
    note = [f"note: {found.note}"] if found.note else []
    if found.equal:
        return lines(f"{found.stream_table} equals its query: {_count(found.rows, 'row')}", *note)
    return Group(
        lines(
            f"{found.stream_table} differs from its query: {_differing(found.missing_count)} missing,"
            f" {_differing(found.surplus_count)} surplus, {found.rows} stored",
            *note,
        ),
        *_rows(
            "missing: the query gives these rows, the stream table lacks them",
            found.columns,
            found.missing,
            found.missing_count,
        ),
        *_rows(
            "surplus: the stream table has these rows, the query does not give them",
            found.columns,
            found.surplus,
            found.surplus_count,
        ),
        lines("", f"next: {remedy}"),
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _differing(number: int) -> str:
    return f"{number} or more" if number == MOST_DIFFERENCES else str(number)


def _rows(
    title: str, columns: Sequence[str], rows: Sequence[tuple[Any, ...]], count: int
) -> list[RenderableType]:
    if not rows:
        return []
    part = f" ({len(rows)} of {_differing(count)})" if len(rows) < count else ""
    shown = [tuple("NULL" if value is None else value for value in row) for row in rows]
    return [heading(f"{title}{part}"), table(columns, shown)]


def settings(found: Sequence[Setting]) -> Table:
    return table(
        ("setting", "value", "from", "default", "description"),
        [
            (setting.name, setting.value, setting.origin, setting.default, setting.description)
            for setting in found
        ],
    )
