"""What an engine does for a refresh.

The tables that an engine fills are the contract with `apply`, whichever engine computed them:

- `delta` of a bag: the user's columns, the hash of the row, the weight;
- `delta` of groups with an algebra: the key, its hash, and what to add to each state;
- `keys` of groups without one: the affected keys;
- `result` of groups: the complete new rows of the affected keys that still exist.
"""

from __future__ import annotations

from typing import Protocol

from headwater.db.work import Scratch
from headwater.plan.maintain import BagPlan, GroupPlan
from headwater.plan.render import Staged


class Engine(Protocol):
    """Computes deltas and recomputes groups at the snapshot of the refresh's transaction."""

    @property
    def name(self) -> str:
        """As the history records it."""

    def bag_delta(self, scratch: Scratch, plan: BagPlan, staged: Staged) -> None:
        """Fills `delta` of a bag."""

    def state_delta(self, scratch: Scratch, plan: GroupPlan, staged: Staged) -> None:
        """Fills `delta` of groups with an algebra."""

    def affected_keys(self, scratch: Scratch, plan: GroupPlan, staged: Staged) -> None:
        """Fills `keys` of groups without an algebra."""

    def recompute(self, scratch: Scratch, plan: GroupPlan, keys: str) -> None:
        """Fills `result` with the rows of the groups in a key table, as they are now."""
