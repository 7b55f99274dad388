"""Refreshes and their results: outcomes, the history, incidents."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType

from headwater.cli.show.values import Reasoned, ago, heading, lines, milliseconds, pairs, table

if TYPE_CHECKING:
    from headwater.catalog.history import HistoryEntry, HistorySum, Outcome
    from headwater.catalog.incidents import Incident

OUTCOME_COLUMNS = "stream table,action,in,inserted,updated,deleted,took,engine,reason".split(",")
SUM_COLUMNS = (
    "from,stream table,action,engine,refreshes,failed,in,inserted,updated,deleted,mean,p50,p95,p99".split(",")
)
INCIDENT_STATUS = {
    "held": "it is recomputed at each refresh, until its definition or Headwater's version changes",
    "released": "its definition or Headwater's version changed since",
    "dropped": "the stream table was dropped",
}


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
    """Return why it was refreshed this way, and why not by PostgreSQL, or not by Spark after all."""
    if found.engine == "spark" or found.fell_back:
        return f"{found.reason}; {found.engine}: {found.engine_reason}"
    return found.reason


def sums(found: Sequence[HistorySum]) -> RenderableType:
    if not found:
        return lines("nothing was refreshed yet")
    return table(
        SUM_COLUMNS,
        [
            (
                f"{each.bucket_start:%Y-%m-%d %H:%M}",
                each.stream_table,
                each.action,
                each.engine,
                each.refreshes,
                each.failures,
                each.rows_in,
                each.rows_inserted,
                each.rows_updated,
                each.rows_deleted,
                milliseconds(each.avg_ms),
                milliseconds(each.p50_ms),
                milliseconds(each.p95_ms),
                milliseconds(each.p99_ms),
            )
            for each in found
        ],
    )


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


def _against(took: float, predicted: float | None) -> str:
    """Return how long a refresh took, and how long it was expected to take."""
    return milliseconds(took) + (f" ({predicted:,.0f})" if predicted is not None else "")


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
