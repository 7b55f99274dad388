"""The size of the pool of workers, decided again in each tick.

There are four rules; the first whose condition holds applies:

1. rest: no worker is busy and nothing waits. Use the fewest workers. Idle workers can cause neither the load
   of the machine nor a lag, and more of them would change neither.
2. fewer: the CPU is above 70 %. One worker fewer, even if much waits: more workers would only share the same
   CPU.
3. catch up: capture lags by more than 5 intervals. Twice as many, up to the maximum.
4. more: more than two refreshes wait for each worker. One more.

The pool changes when the same rule has applied in three ticks in a row; then the counting begins again.
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
    """`min_workers` and `max_workers`; if they contradict each other, the latter wins."""

    minimum: int
    maximum: int

    def hold(self, size: int) -> int:
        return min(max(size, self.minimum), self.maximum)


@dataclass(frozen=True)
class Measured:
    """The measurements of one tick."""

    cpu: float  # used share of all cores, 0 to 1
    queued: int  # refreshes that are due and wait for a worker
    busy: int  # workers that are busy
    lag_intervals: float  # the longest lag of capture, in intervals of the schedule that it is behind


@dataclass(frozen=True)
class Pool:
    """The number of workers, and for how many ticks in a row another number was wanted."""

    size: int
    wish: Wish | None = None
    streak: int = 0


def wish_of(size: int, measured: Measured) -> Wish | None:
    """Return which change this tick wants for a pool of so many workers."""
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
    """Return the pool after a tick. Changed limits take effect at once."""
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
