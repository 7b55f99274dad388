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
    """The engine met a value that it cannot represent or compute exactly; PostgreSQL can. Says which."""


class Engine(Protocol):
    """Computes deltas and recomputes groups at the snapshot of the refresh's transaction."""

    @property
    def name(self) -> str:
        """The name that the history records."""

    def in_place(self, plan: IncrementalPlan, pending: Mapping[int, int]) -> frozenset[int]:
        """Return the sources (oids) whose change rows it reads in place, given how many wait for each."""

    def bag_delta(self, tables: Tables, plan: BagPlan, staged: Staged) -> Steps[int]:
        """Fill `delta` of a bag. Like the other methods, return the number of rows."""

    def state_delta(self, tables: Tables, plan: GroupPlan, staged: Staged) -> Steps[int]:
        """Fill `delta` of groups with an algebra."""

    def affected_keys(self, tables: Tables, plan: GroupPlan, staged: Staged) -> Steps[int]:
        """Fill `keys` of groups without an algebra."""

    def recompute(self, tables: Tables, plan: GroupPlan, keys: str) -> Steps[int]:
        """Fill `result` with the rows of the groups in a key table, as they are now."""

    def recompute_all(self, tables: Tables, plan: MaintenancePlan, storage: str) -> Steps[int]:
        """Fill `result` of groups with all groups, or `delta` of a bag with its difference from storage."""


Engines = Callable[[MaintenancePlan], Engine]
"""The engine of each plan, of the several that a refresh executes."""
