"""Sums of refreshes as text for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType

from headwater.catalog.history import HistorySum
from headwater.cli import show

COLUMNS = (
    "from,stream table,action,engine,refreshes,failed,in,inserted,updated,deleted,mean,p50,p95,p99".split(",")
)


def shown(found: Sequence[HistorySum]) -> RenderableType:
    if not found:
        return show.lines("nothing was refreshed yet")
    return show.table(
        COLUMNS,
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
                show.milliseconds(each.avg_ms),
                show.milliseconds(each.p50_ms),
                show.milliseconds(each.p95_ms),
                show.milliseconds(each.p99_ms),
            )
            for each in found
        ],
    )
