"""What Spark users need besides frames: a snapshot for several of them, and their consumers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

import psycopg

from headwater.capture import consumers as registered
from headwater.catalog import installed
from headwater.catalog.stream_tables import split_name
from headwater.db.connection import connect, translated
from headwater.engine.spark.source import keeper
from headwater.errors import ConnectionFailed, HeadwaterError, NotFound
from headwater.plan.quoting import identifier


@dataclass(frozen=True, kw_only=True)
class Consumer:
    """A streaming query that follows a stream table, as `headwater.consumers` shows it."""

    consumer: str
    stream_table: str
    status: str  # starting, active or given up
    reason: str | None
    snapshot: str | None  # how far it has read
    created_at: datetime
    last_seen_at: datetime


@contextmanager
def snapshot(dsn: str, *relations: str) -> Iterator[str]:
    """Provide a snapshot for option("snapshot", …) of any number of frames, while the block runs.

    No snapshot protects from TRUNCATE and rewrites; relations that are named here are locked against those.
    """
    names = [
        ".".join(identifier(part) for part in split_name(relation) if part is not None)
        for relation in relations
    ]
    try:
        held = keeper.Snapshot(dsn, names)
    except psycopg.Error as error:
        raise translated(error, "snapshot", ConnectionFailed) from error
    try:
        yield held.id
    finally:
        held.close()


def consumers(dsn: str) -> list[Consumer]:
    """Return every consumer of this database."""
    fields = tuple(Consumer.__dataclass_fields__)
    with connect(dsn) as connection:
        installed.require_current(connection)
        rows = connection.execute(
            "SELECT consumer, stream_table, status, reason, snapshot::text, created_at, last_seen_at"
            " FROM headwater.consumers ORDER BY consumer"
        )
        return [Consumer(**dict(zip(fields, row, strict=True))) for row in rows]


def drop_consumer(dsn: str, name: str) -> None:
    """Remove a consumer; change rows are no longer kept for it."""
    with connect(dsn) as connection:
        installed.require_current(connection)
        try:
            found = registered.drop(connection, name)
        except psycopg.Error as error:
            raise translated(error, f"drop consumer {name}", HeadwaterError) from error
    if not found:
        raise NotFound(f"there is no consumer {name}", hint="headwater.spark.consumers(dsn) lists them")
