"""The figures of `headwater bench`, except those of the service."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType

from headwater.bench.capture import CaptureCosts
from headwater.bench.delta import DeltaCost
from headwater.bench.refresh import RefreshCost
from headwater.bench.start import StartCost
from headwater.bench.tpch import Means, QueryCost
from headwater.bench.transfer import Transfers
from headwater.cli.show.values import NOTHING, heading, lines, milliseconds, table


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


def starts(found: Sequence[StartCost]) -> RenderableType:
    return table(
        ("headwater …", "CPU", "baseline", "its CPU", "against it"),
        [
            (
                item.arguments,
                milliseconds(item.cpu_ms),
                item.baseline,
                milliseconds(item.baseline_cpu_ms),
                f"{item.against_baseline:,.2f} ×",
            )
            for item in found
        ],
    )


def refreshes(found: Sequence[RefreshCost]) -> RenderableType:
    return table(
        (
            "one changed row",
            "p50",
            "p99",
            "by hand",
            "p99",
            "p50 ×",
            "p99 ×",
            "round trips",
            "client",
            "server",
        ),
        [
            (
                item.case,
                milliseconds(item.p50_ms),
                milliseconds(item.p99_ms),
                milliseconds(item.hand_p50_ms),
                milliseconds(item.hand_p99_ms),
                f"{item.p50_ratio:,.2f}",
                f"{item.p99_ratio:,.2f}",
                f"{item.spent.round_trips:,.1f}",
                milliseconds(item.spent.client_cpu_ms),
                milliseconds(item.spent.server_cpu_ms),
            )
            for item in found
        ],
    )
