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


@dataclass(frozen=True)
class BulkRead:
    """A read of one source by many tasks."""

    select: str
    """SELECT and its list, such as `SELECT (o.id)::bigint AS c0, (o.note)::text AS c1`."""
    source: str
    """The text after FROM."""
    conditions: tuple[str, ...]
    """All must hold."""
    columns: tuple[Column, ...]
    """Names and kinds of the list."""
    ctid: str | None
    """The ctid of the source if it is one plain table; without it, one task reads everything."""
    relation: str | None
    """That table's name."""
