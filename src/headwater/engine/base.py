"""What an engine does for a refresh.

The tables that an engine fills are the contract with `apply`, whichever engine computed them:

- `delta` of a bag: the user's columns, the hash of the row, the weight;
- `delta` of groups with an algebra: the key, its hash, and what to add to each state;
- `keys` of groups without one: the affected keys;
- `result` of groups: the complete new rows of the affected keys that still exist, or of all keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from headwater.plan.staged import Staged
from headwater.plan.steps import Steps, Tables
from headwater.plan.storage_plan import BagPlan, GroupPlan, IncrementalPlan, MaintenancePlan


class Inexact(Exception):
    """The engine met a value that it cannot hold or compute exactly; PostgreSQL can. Says which."""


class Engine(Protocol):
    """Computes deltas and recomputes groups at the snapshot of the refresh's transaction."""

    @property
    def name(self) -> str:
        """As the history records it."""

    def in_place(self, plan: IncrementalPlan, pending: Mapping[int, int]) -> frozenset[int]:
        """The sources whose change rows it reads where they are, by oid, given how many wait for each."""

    def bag_delta(self, tables: Tables, plan: BagPlan, staged: Staged) -> Steps[int]:
        """Fills `delta` of a bag; how many rows that is, as of the others."""

    def state_delta(self, tables: Tables, plan: GroupPlan, staged: Staged) -> Steps[int]:
        """Fills `delta` of groups with an algebra."""

    def affected_keys(self, tables: Tables, plan: GroupPlan, staged: Staged) -> Steps[int]:
        """Fills `keys` of groups without an algebra."""

    def recompute(self, tables: Tables, plan: GroupPlan, keys: str) -> Steps[int]:
        """Fills `result` with the rows of the groups in a key table, as they are now."""

    def recompute_all(self, tables: Tables, plan: MaintenancePlan, storage: str) -> Steps[int]:
        """Fills `result` of groups with all there are, or `delta` of a bag with what differs from storage."""


Engines = Callable[[MaintenancePlan], Engine]
"""Which engine computes a plan, of several that a refresh takes."""
