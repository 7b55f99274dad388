"""Time limits for the statements of a refresh."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg


class DeadlineExceeded(Exception):
    """Statements took longer than allowed; the transaction may be broken."""


class Deadline:
    """Limits each statement, which the server enforces, and all of them together."""

    def __init__(self, milliseconds: float) -> None:
        self.milliseconds = milliseconds
        self._started = time.perf_counter()

    @property
    def spent_ms(self) -> float:
        return (time.perf_counter() - self._started) * 1000

    @contextmanager
    def statement(self) -> Iterator[None]:
        """Surround a statement that the server cancels after as many milliseconds."""
        if self.spent_ms >= self.milliseconds:
            raise DeadlineExceeded
        before = self.spent_ms
        try:
            yield
        except psycopg.errors.QueryCanceled as error:
            if self.spent_ms - before < self.milliseconds:
                raise  # somebody else cancelled it
            raise DeadlineExceeded from error
