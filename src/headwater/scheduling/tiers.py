"""Tiers: stream tables whose sources rest are looked at less often.

A tier multiplies the schedule. It never delays much: a stream table is only cold while its sources rest, and
is hot again in the tick that sees them change, so that it is then due by its own interval and no longer one.
What tiers spare is the looking at what does not change, and a place behind what does.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

Tier = Literal["hot", "warm", "cold", "frozen"]

FACTORS: dict[Tier, float | None] = {"hot": 1.0, "warm": 2.0, "cold": 10.0, "frozen": None}
"""By which the interval is multiplied; frozen is refreshed only when somebody asks for it."""
RANKS: dict[Tier, int] = {"hot": 0, "warm": 1, "cold": 2, "frozen": 3}
"""In which order they are served."""

HOT_INTERVALS, HOT_AT_LEAST = 10, timedelta(seconds=10)
WARM_INTERVALS, WARM_AT_LEAST = 100, timedelta(seconds=60)


def tier_of(
    pinned: Tier | None, automatic: bool, since_changed: timedelta | None, interval: timedelta
) -> Tier:
    """The tier of a stream table, by when its sources changed last.

    None for that is not known: the service has not seen a change since it started. That counts as hot, for
    what it has not seen can have been a second before. A user's choice wins, and only a user freezes.
    """
    if pinned is not None:
        return pinned
    if not automatic or since_changed is None:
        return "hot"
    if since_changed <= max(HOT_INTERVALS * interval, HOT_AT_LEAST):
        return "hot"
    if since_changed <= max(WARM_INTERVALS * interval, WARM_AT_LEAST):
        return "warm"
    return "cold"
