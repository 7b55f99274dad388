"""The size of the pool of workers, worked out anew in each tick.

Four wishes, the first that holds counts:

1. rest: no worker is busy and nothing waits. The fewest workers; neither the load of the machine nor a lag
   can be the doing of workers that do nothing, and more of them would change neither.
2. fewer: the CPU is above 70 %. One fewer, although much waits: more workers would only share what there is.
3. catch up: capture lags by more than 5 intervals. Twice as many, up to the most.
4. more: more than two refreshes wait for each worker. One more.

A wish is granted when three ticks in a row had it; then the counting begins again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Wish = Literal["rest", "fewer", "catch up", "more"]

BUSY_CPU = 0.7
DEEP_QUEUE = 2
LONG_LAG = 5.0
TICKS = 3


@dataclass(frozen=True)
class Limits:
    """`min_workers` and `max_workers`; where they contradict each other, the latter counts."""

    minimum: int
    maximum: int

    def hold(self, size: int) -> int:
        return min(max(size, self.minimum), self.maximum)


@dataclass(frozen=True)
class Measured:
    """What one tick saw."""

    cpu: float  # used share of all cores, 0 to 1
    queued: int  # refreshes that are due and wait for a worker
    busy: int  # workers
    lag_intervals: float  # the longest lag of capture, in intervals of the schedule it is behind


@dataclass(frozen=True)
class Pool:
    """How many workers there are, and for how many ticks in a row something else was wished for."""

    size: int
    wish: Wish | None = None
    streak: int = 0


def wish_of(size: int, measured: Measured) -> Wish | None:
    """What this tick asks of a pool of so many workers."""
    if not measured.busy and not measured.queued:
        return "rest"
    if measured.cpu > BUSY_CPU:
        return "fewer"
    if measured.lag_intervals > LONG_LAG:
        return "catch up"
    if measured.queued > DEEP_QUEUE * size:
        return "more"
    return None


def adapt(pool: Pool, measured: Measured, limits: Limits) -> Pool:
    """The pool after a tick. Limits that were changed hold at once."""
    held = limits.hold(pool.size)
    if held != pool.size:
        return Pool(held)
    wish = wish_of(pool.size, measured)
    if wish is None:
        return Pool(pool.size)
    streak = pool.streak + 1 if wish == pool.wish else 1
    if streak < TICKS:
        return replace(pool, wish=wish, streak=streak)
    wanted = {
        "rest": limits.minimum,
        "fewer": pool.size - 1,
        "catch up": 2 * pool.size,
        "more": pool.size + 1,
    }[wish]
    return Pool(limits.hold(wanted))
