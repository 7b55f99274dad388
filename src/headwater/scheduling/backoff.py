"""When to refresh again after a failure, and after a refresh that took too long."""

from __future__ import annotations

from datetime import timedelta

SUSPENDED_AFTER = 3
"""Failures in a row after which a stream table is suspended until somebody resumes it."""
SHORTEST_PAUSE = timedelta(seconds=1)
LONGEST_PAUSE = timedelta(minutes=5)
BREATH = 1.25
"""A refresh that takes longer than its interval starts at most once in this many times its duration."""


def pause(failures: int, interval: timedelta) -> timedelta:
    """Return how long to wait after so many failures in a row.

    First one interval, at least a second, then twice as long each time, up to five minutes; or the interval,
    if that is longer, because the stream table is due no sooner anyway.
    """
    if failures < 1:
        return timedelta(0)
    longest = max(LONGEST_PAUSE, interval)
    doublings = min(failures - 1, 9)  # doublings of a second: more than five minutes
    return min(max(SHORTEST_PAUSE, interval) * (1 << doublings), longest)


def slowed(interval: timedelta, took: timedelta) -> timedelta:
    """Return the interval of a stream table whose refresh took this long.

    One that is slower than its interval would occupy a worker all the time, and give its database no rest.
    """
    return max(interval, took * BREATH) if took > interval else interval
