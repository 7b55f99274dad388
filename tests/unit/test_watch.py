"""What `status --watch` draws of a state: no more lines than there are, what matters first."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from rich.console import Console, ConsoleDimensions

from headwater.catalog.jobs import RunningJob
from headwater.cli import watch
from headwater.inspect.overview import COUNTED_ROWS, Glance, Overview, ServiceStatus, WorkerStatus

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
GLANCE = Glance(
    stream_table="public.revenue",
    state="current",
    mode="differential",
    engine="auto",
    schedule="1s",
    tier="warm",
    pending_rows=0,
    lag_seconds=0.0,
    last_action="delta",
    last_refresh_at=NOW - timedelta(seconds=5),
    last_refresh_ms=12.5,
    failures=0,
    reason=None,
    job=None,
)
JOB = RunningJob(
    id=7,
    stream_table="public.revenue",
    engine="spark",
    action="delta",
    phase="read",
    tasks=40,
    tasks_done=10,
    rows=1234,
    bytes=None,
    stage=None,
    started_at=NOW,
    elapsed_ms=2500.0,
    coordinator=1,
    client=None,
    application=None,
    ui=None,
    cancel_requested=False,
)
SERVICE = ServiceStatus(
    state="running",
    started_at=NOW - timedelta(hours=3),
    ticked_at=NOW,
    ticks=10_800,
    tick_ms=1.25,
    busy_share=0.021,
    stream_tables=900,
    changed=9,
    queued_jobs=3,
    active_workers=2,
    max_workers=4,
)
WORKER = WorkerStatus(
    worker_id="00000000-0000-0000-0000-000000000001",
    hostname="far",
    pid=42,
    status="draining",
    capacity=3,
    jobs=1,
    spark_master="local[*]",
    started_at=NOW,
    last_heartbeat=NOW,
)


def drawn(found: Overview, height: int, width: int = 160) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, color_system=None)
    with console.capture() as capture:
        console.print(watch.overview(found, ConsoleDimensions(width, height)))
    return capture.get().removesuffix("\n").split("\n")


def overview(*glances: Glance, service: ServiceStatus | None = SERVICE) -> Overview:
    return Overview(at=NOW, database="shop", service=service, workers=(WORKER,), stream_tables=glances)


@pytest.mark.parametrize("height", [8, 24, 60])
@pytest.mark.parametrize("width", [40, 80, 200])
def test_it_fits_the_terminal(height: int, width: int) -> None:
    many = [replace(GLANCE, stream_table=f"public.t{number}", job=JOB) for number in range(1000)]
    lines = drawn(overview(*many), height, width)
    assert len(lines) < height
    assert all(len(line) <= width for line in lines)
    shown = sum(line.startswith("public.t") for line in lines)
    assert shown
    assert lines[-1] == f"and {1000 - shown:,} more"


def test_the_header_says_how_the_service_does() -> None:
    lines = drawn(overview(GLANCE, replace(GLANCE, state="behind")), 30)
    assert lines[0] == (
        "service running for 3 h; 10,800 ticks, 1.2 ms the last, busy 2.1%; 2 of 4 workers, 3 queued,"
        " 9 of 900 scheduled changed"
    )
    assert lines[1] == "shop: 2 stream tables (1 behind, 1 current)"
    assert lines[2] == "1 external workers: far:42 1 of 3 draining"


def test_a_service_that_is_missing_or_silent_is_told() -> None:
    assert drawn(overview(GLANCE, service=None), 30)[0].startswith("no service is running: headwater serve")
    silent = replace(SERVICE, state="silent", ticked_at=NOW - timedelta(minutes=4))
    assert drawn(overview(GLANCE, service=silent), 30)[0].startswith("service silent since 4 min ago;")


@pytest.mark.parametrize(
    ("glance", "words"),
    [
        (GLANCE, ["current", "1s", "warm", "delta 5 s ago, 12.5 ms"]),
        (replace(GLANCE, job=JOB), ["delta on spark, 2.50 s, read, 10 of 40 tasks, 1,234 rows"]),
        (replace(GLANCE, lag_seconds=3.26, pending_rows=7, state="waiting"), ["waiting", "3.3 s", " 7 "]),
        (replace(GLANCE, lag_seconds=None, pending_rows=None), [" ? "]),
        (replace(GLANCE, pending_rows=COUNTED_ROWS + 1), ["over 10,000"]),
        (
            replace(GLANCE, state="failing", failures=2, reason="division by zero\nin a row"),
            ["failing", "2 times: division by zero\\nin a row"],
        ),
        (replace(GLANCE, state="suspended", failures=3, reason="by ann"), ["suspended", " by ann"]),
        (replace(GLANCE, last_action=None, schedule=None, tier=None), ["public.revenue  current  - "]),
    ],
)
def test_a_line_for_each(glance: Glance, words: list[str]) -> None:
    [line] = [line for line in drawn(overview(glance), 30) if line.startswith("public.revenue")]
    for word in words:
        assert word in line


@pytest.mark.parametrize("width", [110, 130, 150])
def test_a_long_reason_takes_no_room_from_others(width: int) -> None:
    failing = replace(GLANCE, state="suspended", schedule="0 3 * * mon-fri", reason="why " * 100)
    line = drawn(overview(failing), 30, width)[5]
    for word in (
        "public.revenue",
        "suspended",
        "0 3 * * mon-fri",
        "warm",
        "delta 5 s ago, 12.5 ms",
        "why why",
    ):
        assert word in line


def test_without_stream_tables_it_says_what_is_next() -> None:
    assert drawn(overview(), 30)[-1] == "next: headwater create --help"
