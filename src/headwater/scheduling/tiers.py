"""Tiers: stream tables whose sources seldom change are checked less often.

A tier multiplies the schedule. It never delays much: a stream table is cold only while its sources do not
change. In the tick that sees a change it is hot again, and due by its own interval. Tiers save checking what
does not change, and serve it after what does.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

Tier = Literal["hot", "warm", "cold", "frozen"]

FACTORS: dict[Tier, float | None] = {"hot": 1.0, "warm": 2.0, "cold": 10.0, "frozen": None}
"""Factors by which the interval is multiplied; frozen ones are refreshed only on request."""
RANKS: dict[Tier, int] = {"hot": 0, "warm": 1, "cold": 2, "frozen": 3}
"""The order in which tiers are served."""

HOT_INTERVALS, HOT_AT_LEAST = 10, timedelta(seconds=10)
WARM_INTERVALS, WARM_AT_LEAST = 100, timedelta(seconds=60)


def tier_of(
    pinned: Tier | None, automatic: bool, since_changed: timedelta | None, interval: timedelta
) -> Tier:
    """Return the tier of a stream table, by when its sources changed last.

    None means not known: the service has seen no change since it started. That counts as hot, because a
    change may have come just before the start. A user's choice wins, and only a user can freeze a stream
    table.
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
