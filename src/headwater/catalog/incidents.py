"""Incidents as the catalog has them; `refresh/incidents.py` records them and draws the consequences."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from headwater.db.connection import Connection
from headwater.db.queries import query

FoundBy = Literal["load", "refresh", "audit"]


@dataclass(frozen=True, kw_only=True)
class Incident:
    """A row of headwater.audits."""

    id: int
    stream_table: str
    found_at: datetime
    found_by: FoundBy
    reason: str
    status: str  # held: it is recomputed for this; released; or dropped
    missing_count: int
    surplus_count: int
    columns: list[str]
    missing: list[list[str | None]]
    surplus: list[list[str | None]]
    changes: dict[str, list[dict[str, Any]]]
    query: str
    plan: str
    version: str
    server_version: str
    released_at: datetime | None


def recent(connection: Connection, stream_table_id: int | None, limit: int) -> list[Incident]:
    """The latest incidents, newest first."""
    rows = connection.execute(
        query("incidents", "recent"), {"stream_table_id": stream_table_id, "limit": limit}
    )
    return [Incident(**dict(zip(Incident.__dataclass_fields__, row, strict=True))) for row in rows]
