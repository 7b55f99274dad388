"""What a launcher and its schedulers have in common: who leads, and what a scheduler tells the launcher."""

from __future__ import annotations

from dataclasses import dataclass

SCHEDULER, LAUNCHER = 0, 1
"""What one leads: a database, or a server."""


@dataclass(frozen=True)
class Demand:
    """How many threads a scheduler uses and could use, for the launcher, which shares them out."""

    busy: int
    queued: int
    lag_intervals: float
