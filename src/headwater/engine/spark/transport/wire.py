"""What travels between PostgreSQL and Spark: two types, whatever the types of the columns.

A value is encoded by PostgreSQL when it leaves and decoded by PostgreSQL when it comes back, so no type has
rules of its own in CSV, ADBC, JDBC or Spark that could change it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["bigint", "text"]


@dataclass(frozen=True)
class Column:
    """A column on the wire."""

    name: str
    kind: Kind
