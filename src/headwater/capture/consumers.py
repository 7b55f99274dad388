"""Consumers: queries outside the database that follow the changes of a stream table, each at its own pace.

A consumer is a dependent like a stream table. While it is registered, the stream table records its changes in
all columns, and change rows stay until the consumer has committed them.

A position is a snapshot. The change between two positions is the change rows whose transaction is visible in
the second and not in the first. These are the same rows whenever they are read, as long as they are kept. So
a consumer that records its positions before it reads, and commits them afterwards, sees each change exactly
once.

- Start: registering locks the stream table's row, so every refresh that commits later knows that its changes
  are wanted. Only after that has committed does the consumer take the snapshot where it begins.
- The contents at a position are the current ones minus the change rows after it. So a consumer that begins
  with the contents can read them again, and get the same.
- A new start under the same name begins a new epoch. Positions of the old one are refused from then on.
- A consumer that lags more than max_buffer_rows behind is given up: its change rows are deleted, and its next
  read fails.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from headwater.capture import buffers
from headwater.capture.buffers import change_table_sql, window
from headwater.capture.registry import LIFECYCLE_LOCK, capture, release_superfluous
from headwater.catalog import stream_tables as catalog
from headwater.catalog.stream_tables import CatalogSource, Frontier, StreamTable
from headwater.config import Settings
from headwater.db.connection import Connection, one, retried, transaction
from headwater.db.queries import query
from headwater.db.scratch import statement
from headwater.definition.relations import read_source
from headwater.errors import AlreadyExists, ConsumerLost, NotFound
from headwater.plan.operators import Source
from headwater.plan.quoting import identifier, literal
from headwater.plan.render import relation_name
from headwater.plan.values import WEIGHT, Column, consolidated_sql

Start = Literal["now", "snapshot"]
BEFORE_ALL = ""
"""The position before the contents: from here the contents themselves are a change."""
NOBODY = "0"
"""Stands in for the transaction that stored a position: no change row is a consumer's own."""


@dataclass(frozen=True)
class Consumer:
    """A consumer as it is in the catalog."""

    id: int
    name: str
    source_id: int
    stream_table_id: int
    label: str
    relation: int
    change_table: str | None
    columns: tuple[int, ...]
    epoch: int
    start: Start
    initial: str | None
    snapshot: str | None
    committed: bool
    given_up: str | None


@dataclass(frozen=True)
class Position:
    """How far a consumer has read, in one of its epochs."""

    consumer: str
    epoch: int
    snapshot: str


def find(connection: Connection, name: str) -> Consumer | None:
    row = connection.execute(query("consumers", "find"), {"name": name}).fetchone()
    if row is None:
        return None
    fields = dict(zip(Consumer.__dataclass_fields__, row, strict=True))
    return Consumer(**{**fields, "columns": tuple(fields["columns"])})


def begin(connection: Connection, stream_table: StreamTable, name: str, start: Start) -> Position:
    """Return where a consumer begins; register it, or restart it if it has moved on from there."""
    found = find(connection, name)
    if found is not None and found.stream_table_id != stream_table.id:
        raise AlreadyExists(
            f"consumer {name} follows {found.label}",
            hint=f"choose another name, or headwater.spark.drop_consumer(dsn, {name!r})",
        )
    if found is None or found.committed or found.given_up is not None or found.start != start:
        _register(connection, stream_table, name, start)
    connection.execute(query("consumers", "begin"), {"name": name})
    consumer = find(connection, name)
    if consumer is None or consumer.initial is None:
        raise _gone(name)
    snapshot = BEFORE_ALL if start == "snapshot" else consumer.initial
    return Position(name, consumer.epoch, snapshot)


def _register(connection: Connection, stream_table: StreamTable, name: str, start: Start) -> None:
    with transaction(connection):
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (LIFECYCLE_LOCK,))
        source = _source(connection, stream_table)
        source_id = one(
            connection,
            query("catalog", "upsert_source"),
            {
                "relation": source.relation,
                "schema": source.schema,
                "name": source.name,
                "stream_table_id": stream_table.id,
            },
        )[0]
        connection.execute(
            query("consumers", "register"),
            {
                "name": name,
                "source": source_id,
                "columns": [column.attnum for column in source.columns],
                "start": start,
            },
        )
        capture(connection, source_id, source, {column.name for column in source.columns})


def _source(connection: Connection, stream_table: StreamTable) -> Source:
    source = read_source(connection, stream_table.relation) if stream_table.relation is not None else None
    if source is None:
        raise NotFound(f"the view that shows {stream_table.label} is gone", hint="it was dropped by hand")
    return source


def latest(connection: Connection, position: Position, limit: str | None = None) -> Position:
    """Return the current position, or a given limit, if there are changes up to there; else the same one."""
    consumer = _lively(connection, position)
    snapshot = limit if limit is not None else one(connection, "SELECT pg_current_snapshot()::text")[0]
    if position.snapshot != BEFORE_ALL:
        table = change_table_sql(str(consumer.change_table))
        between = _between(position.snapshot, snapshot)
        if not one(connection, statement(f"SELECT EXISTS (SELECT FROM {table} WHERE {between})"))[0]:
            return position
    return Position(position.consumer, position.epoch, snapshot)


def check(connection: Connection, since: Position, until: Position) -> None:
    """Raise unless the changes between two positions are kept."""
    _lively(connection, until)
    kept = one(connection, query("consumers", "kept"), _protected(since, until))[0]
    if since.epoch != until.epoch or not kept:
        raise lost(until.consumer)


def _protected(since: Position, until: Position) -> dict[str, object]:
    """Return the snapshot from which changes must still be kept to read those between two positions."""
    snapshot = until.snapshot if since.snapshot == BEFORE_ALL else since.snapshot
    return {"name": until.consumer, "epoch": until.epoch, "snapshot": snapshot}


def commit(connection: Connection, position: Position) -> None:
    """Record that a consumer has processed everything up to a position; delete change rows nobody needs."""
    with transaction(connection):
        row = connection.execute(query("consumers", "commit"), _protected(position, position)).fetchone()
        if row is not None:
            consumer = find(connection, position.consumer)
            assert consumer is not None
            buffers.remove_consumed(connection, followed(connection, [consumer.stream_table_id]))
            return
    _lively(connection, position)  # otherwise it was committed before


def seen(connection: Connection, name: str) -> None:
    connection.execute(query("consumers", "seen"), {"name": name})


def drop(connection: Connection, name: str) -> bool:
    """Remove a consumer, and end capture that nobody else needs; return False if there is none."""
    limits = Settings()

    def forget() -> bool:
        with transaction(connection):
            # A table that is no longer captured may be one that others write to.
            connection.execute(
                "SELECT set_config('lock_timeout', %s, true)", (f"{limits.lock_timeout_ms}ms",)
            )
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (LIFECYCLE_LOCK,))
            if connection.execute(query("consumers", "delete"), {"name": name}).fetchone() is None:
                return False
            release_superfluous(connection)
        return True

    return retried(forget, what=f"drop consumer {name}", attempts=limits.lock_attempts)


def names(connection: Connection, stream_table_ids: list[int]) -> list[str]:
    """Return the names of the consumers of stream tables."""
    return [row[0] for row in connection.execute(query("consumers", "names"), {"ids": stream_table_ids})]


def followed(connection: Connection, stream_table_ids: list[int]) -> list[CatalogSource]:
    """Return those of these stream tables that have consumers, as sources."""
    return [
        CatalogSource(
            id=row[0],
            relation=row[1],
            schema=row[2],
            name=row[3],
            label=row[4],
            stream_table_id=row[5],
            change_table=row[6],
        )
        for row in connection.execute(query("consumers", "followed"), {"ids": stream_table_ids})
    ]


def changes_sql(connection: Connection, since: Position, until: Position) -> str:
    """Return SQL for the consolidated change between two positions: the columns and the weight."""
    consumer = _lively(connection, until)
    source = _source(connection, catalog.stream_table(connection, consumer.stream_table_id))
    columns = [column for column in source.columns if column.attnum in consumer.columns]
    casts = "".join(
        f"{column.change_column}::{column.type.sql} AS {identifier(column.name)}, " for column in columns
    )
    table = change_table_sql(str(consumer.change_table))
    if since.snapshot == BEFORE_ALL:
        names = "".join(f"{identifier(column.name)}, " for column in columns)
        after = window(Frontier(snapshot=until.snapshot, applied_by=NOBODY))
        rows = (
            f"SELECT {names}1::bigint AS {WEIGHT} FROM {relation_name(source)}"
            f" UNION ALL SELECT {casts}-w FROM {table} WHERE {after}"
        )
    else:
        between = _between(since.snapshot, until.snapshot)
        rows = f"SELECT {casts}w AS {WEIGHT} FROM {table} WHERE {between}"
    return consolidated_sql(rows, [Column(column.name, column.type) for column in columns])


def kept_sql(since: Position, until: Position) -> str:
    """Return a query that tells whether the changes between two positions are kept.

    It runs in the transaction that reads them. Rows are deleted only after the consumer's row has changed: a
    snapshot that shows the old row has them all.
    """
    values = _protected(since, until)
    # In one pass: a value may look like a placeholder.
    return re.sub(r"%\((\w+)\)s", lambda found: literal(str(values[found[1]])), query("consumers", "kept"))


def lost(name: str, reason: str = "") -> ConsumerLost:
    return ConsumerLost(
        f"consumer {name}: the changes to read next are not kept any more"
        + (f": {reason}" if reason else ""),
        detail="" if reason else "Another query went on under this name, or the checkpoint is an older copy.",
        hint='start anew: a new checkpointLocation and option("start", "snapshot")',
    )


def _lively(connection: Connection, position: Position) -> Consumer:
    """Return the consumer of a position; raise if the position can no longer be used."""
    consumer = find(connection, position.consumer)
    if consumer is None:
        raise _gone(position.consumer)
    if consumer.given_up is not None:
        raise lost(consumer.name, consumer.given_up)
    if consumer.epoch != position.epoch:
        raise lost(consumer.name, "it was started anew by another query")
    if (
        position.snapshot != BEFORE_ALL
        and one(
            connection,
            "SELECT pg_snapshot_xmax(%s::pg_snapshot) > pg_snapshot_xmax(pg_current_snapshot())",
            (position.snapshot,),
        )[0]
    ):
        raise lost(consumer.name, "the database is older than the checkpoint; it was restored from a backup")
    return consumer


def _gone(name: str) -> ConsumerLost:
    return ConsumerLost(
        f"there is no consumer {name}: it was dropped, or its stream table was",
        hint='start anew: a new checkpointLocation and option("start", "snapshot")',
    )


def _between(since: str, until: str) -> str:
    after = window(Frontier(snapshot=since, applied_by=NOBODY))
    return f"{after} AND pg_visible_in_snapshot(xid, {literal(until)}::pg_snapshot)"
