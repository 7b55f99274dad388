"""The figures of a run: several threads write them, the screen reads them."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field, replace
from decimal import Decimal

from headwater.catalog.history import HistoryEntry
from headwater.demo.shop import EXAMPLES, Example, Written
from headwater.inspect.overview import ServiceStatus
from headwater.inspect.status import StreamTableStatus
from headwater.inspect.verify import Verification


@dataclass
class Row:
    """What is known about one stream table."""

    example: Example
    rows: int | None = None
    lag_seconds: float | None = None
    lags: list[float] = field(default_factory=list)  # seconds, each time it was looked at
    last: HistoryEntry | None = None
    refreshes: int = 0
    delta_rows: int = 0  # change rows that its deltas consumed
    milliseconds: list[float] = field(default_factory=list)
    verified: int = 0  # equal
    difference: Verification | None = None  # the latest that was not equal


@dataclass(frozen=True)
class Speed:
    """One stream table with the same changes: applied as a delta, and recomputed."""

    name: str
    delta_ms: float
    full_ms: float

    @property
    def ratio(self) -> float:
        return self.full_ms / self.delta_ms


class Board:
    """The state of a run. Its fields are read and written under its lock."""

    def __init__(self, server: str, seconds: float, written: Written) -> None:
        self.lock = threading.RLock()
        self.server = server
        self.seconds = seconds
        self.written = written
        self.rows = {example.label: Row(example) for example in EXAMPLES}
        self.last_verification: Verification | None = None
        self.problems: dict[str, int] = {}  # each with how often it occurred
        self.top: list[tuple[str, Decimal, int]] = []  # region, revenue, items
        self.top_before: dict[str, Decimal] = {}
        self.speeds: list[Speed] = []
        self.service: ServiceStatus | None = None
        self.pictured = False
        self._started: float | None = None
        self._ended: float | None = None

    def start(self) -> None:
        self._started = time.monotonic()

    def end(self) -> None:
        """Stop counting what the shop writes."""
        self._ended = time.monotonic()
        self.written = replace(self.written)

    @property
    def elapsed(self) -> float:
        if self._started is None:
            return 0.0
        return (self._ended or time.monotonic()) - self._started

    @property
    def left(self) -> float:
        return 0.0 if self._ended is not None else max(0.0, self.seconds - self.elapsed)

    def refreshed(self, entry: HistoryEntry) -> None:
        """Count a refresh. In this run nothing should ever be recomputed, so that is a problem."""
        with self.lock:
            row = self.rows.get(entry.stream_table)
            if row is None:  # belongs to somebody else, in a database that was given
                return
            if entry.status != "completed":
                self.problem(f"the refresh of {entry.stream_table} failed: {entry.error}")
                return
            row.last = entry
            row.refreshes += 1
            row.delta_rows += entry.rows_in or 0
            row.milliseconds.append(entry.duration_ms)
            if entry.action == "recompute":
                self.problem(f"{entry.stream_table} had to be recomputed: {entry.reason}")

    def compared(self, verification: Verification) -> None:
        with self.lock:
            row = self.rows[verification.stream_table]
            self.last_verification = verification
            if verification.equal:
                row.verified += 1
            else:
                row.difference = verification
                self.problem(f"{verification.stream_table} differed from its query")

    def observed(self, status: StreamTableStatus) -> None:
        with self.lock:
            row = self.rows[status.stream_table]
            row.rows, row.lag_seconds = status.rows, status.lag_seconds
            if status.lag_seconds is not None:
                row.lags.append(status.lag_seconds)

    def saw_top(self, top: list[tuple[str, Decimal, int]]) -> None:
        with self.lock:
            self.top_before = {region: revenue for region, revenue, _ in self.top}
            self.top = top

    def problem(self, text: str) -> None:
        with self.lock:
            self.problems[text] = self.problems.get(text, 0) + 1

    @property
    def verified(self) -> int:
        return sum(row.verified for row in self.rows.values())

    @property
    def refreshes(self) -> int:
        return sum(row.refreshes for row in self.rows.values())
