"""Durations, and the measuring of phases. The time of day is always the database's."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from headwater.errors import InvalidSetting

_UNITS = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "min": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|min|m|h|d)\s*")


def parse_duration(text: str) -> timedelta:
    """Parse a duration as users write it.

    >>> parse_duration("1.5s")
    datetime.timedelta(seconds=1, microseconds=500000)
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        raise InvalidSetting(
            f"{text!r} is not a duration",
            hint="write a number and a unit, for example 500ms, 1s, 5m, 1h or 1d",
        )
    try:
        duration = float(match.group(1)) * _UNITS[match.group(2)]
    except OverflowError:
        raise InvalidSetting(f"{text!r} is too long a duration", hint="use at most some years") from None
    if duration <= timedelta(0):
        raise InvalidSetting(f"{text!r} is not longer than zero", hint="use at least 1ms")
    return duration


class Phases:
    """Milliseconds by phase. The time of a phase inside another one does not count for the outer one."""

    def __init__(self) -> None:
        self.milliseconds: dict[str, float] = {}
        self._start = time.perf_counter()
        self._inner = [0.0]  # for each open phase, the time of the phases inside it

    @property
    def elapsed(self) -> timedelta:
        """Milliseconds since this object was made."""
        return timedelta(seconds=time.perf_counter() - self._start)

    @contextmanager
    def measure(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        self._inner.append(0.0)
        try:
            yield
        finally:
            elapsed = (time.perf_counter() - start) * 1000
            own = elapsed - self._inner.pop()
            self._inner[-1] += elapsed
            self.milliseconds[phase] = round(self.milliseconds.get(phase, 0.0) + own, 3)

    def move(self, milliseconds: float, phase: str, target: str) -> None:
        """Count a part of what was measured as one phase for another, which took place within it."""
        moved = min(milliseconds, self.milliseconds.get(phase, 0.0))
        if moved > 0:
            self.milliseconds[phase] = round(self.milliseconds[phase] - moved, 3)
            self.milliseconds[target] = round(self.milliseconds.get(target, 0.0) + moved, 3)
