"""The ways by which Spark's engine reads, forced upon tables that are far too small for most of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from headwater.engine.spark import engine, pipeline


@dataclass(frozen=True)
class Reading:
    """Where the limits between the ways are."""

    literal_rows: int = pipeline.LITERAL_ROWS
    small_rows: int = engine.SMALL_ROWS
    pushdown_factor: int = engine.PUSHDOWN_FACTOR
    unstaged_rows: int = engine.UNSTAGED_ROWS

    @contextmanager
    def forced(self) -> Iterator[None]:
        """Sets the limits for a while."""
        before = Reading(
            pipeline.LITERAL_ROWS, engine.SMALL_ROWS, engine.PUSHDOWN_FACTOR, engine.UNSTAGED_ROWS
        )
        self._set()
        try:
            yield
        finally:
            before._set()

    def _set(self) -> None:
        pipeline.LITERAL_ROWS = self.literal_rows
        engine.SMALL_ROWS = self.small_rows
        engine.PUSHDOWN_FACTOR = self.pushdown_factor
        engine.UNSTAGED_ROWS = self.unstaged_rows


READINGS = {
    "as literals": Reading(),
    "as frames": Reading(literal_rows=-1),
    "by tasks": Reading(literal_rows=-1, small_rows=-1, pushdown_factor=10**9, unstaged_rows=-1),
    "by keys": Reading(small_rows=-1, pushdown_factor=0),
}
"""Through the driver, as arguments of the statement or as a frame; by tasks; by tasks unless keys are few."""
