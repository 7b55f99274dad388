"""The restriction of rows to keys that are in a table: a semijoin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headwater.plan.operators import ColumnType
from headwater.plan.values import Column, equal, hash_sql, hashable, is_null, null_safe_equal, rechecked

HASH = "__hw_hash"
HAS_NULL = "__hw_null"


@dataclass(frozen=True)
class KeyFilter:
    """Restricts rows to those whose keys are in a table of distinct keys.

    Plain equality finds every key without a NULL and lets the server use indexes and hashes. Keys with a NULL
    are found by their hash and compared null-safely, in a branch of its own that runs only if the table holds
    any. A table of keys that may be NULL records for each whether it has one, and its hash.
    """

    table: str
    keys: tuple[Column, ...]
    null_safe: bool = False
    columns: tuple[str, ...] = ()  # of the restricted node, if they have other names
    exists: bool = False  # keys may be repeated, and a row appears once all the same
    first: bool = False  # they are few, and the server should begin with them
    hashed: bool = True  # the table has the hash of each key

    def branches(self) -> tuple[KeyFilter, ...]:
        if not self.null_safe and any(key.nullable for key in self.keys):
            return (self, replace(self, null_safe=True))
        return (self,)

    def named(self) -> list[tuple[str, Column]]:
        """Return each restricted column with its key."""
        return list(zip(self.columns or [key.name for key in self.keys], self.keys, strict=True))

    def predicates(self, expressions: Mapping[str, str]) -> list[str]:
        sides = [(f"({expressions[name]})", f"kk.{key.sql}", key.type) for name, key in self.named()]
        if not self.null_safe:
            return [equal(*side) for side in sides]
        nulls = [is_null(own) for (own, _, _), key in zip(sides, self.keys, strict=True) if key.nullable]
        return [
            *([f"({' OR '.join(nulls)})"] if nulls else []),
            *self._matched(sides),
            f"kk.{HAS_NULL}",
            f"(SELECT bool_or(kn.{HAS_NULL}) FROM {self.table} AS kn)",
        ]

    def _matched(self, sides: Sequence[tuple[str, str, ColumnType]]) -> list[str]:
        """Return null-safe equality of keys in a form by which the server can join and estimate matches."""
        own_hash = hash_sql([hashable(f"{own}::{kind.sql}", kind) for own, _, kind in sides])
        hashes = hash_sql([hashable(theirs, kind) for _, theirs, kind in sides])
        return [
            f"{own_hash} = {f'kk.{HASH}' if self.hashed else hashes}",
            rechecked(null_safe_equal(*side) for side in sides),
        ]

    def condition(self, expressions: Mapping[str, str]) -> str:
        """Return the filter as a condition on a row."""
        return f"EXISTS (SELECT FROM {self.table} AS kk WHERE {' AND '.join(self.predicates(expressions))})"

    def onto(self, below: Mapping[str, str | None]) -> KeyFilter | None:
        """Return the filter on other columns that hold the same values, where they are known."""
        pairs = [(inner, key) for name, key in self.named() if (inner := below.get(name)) is not None]
        if not pairs:
            return None
        return replace(
            self,
            keys=tuple(replace(key, nullable=False) for _, key in pairs),
            columns=tuple(inner for inner, _ in pairs),
            exists=True,
            hashed=False,  # its hash is over all keys
        )
