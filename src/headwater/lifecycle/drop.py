"""Dropping stream tables, and what dead creators left behind.

A creator holds a session lock while its stream table is `initializing` (see `create`); a row without it was
left by a creator that died. The next process removes it (`sweep`), because until then writers pay for its
capture and change rows are kept for it.
"""

from __future__ import annotations

import psycopg
from psycopg import sql

from headwater.apply import storage
from headwater.capture import consumers
from headwater.capture.buffers import CHANGES
from headwater.capture.registry import LIFECYCLE_LOCK, release_superfluous, share_patience
from headwater.catalog import installed
from headwater.catalog import stream_tables as catalog
from headwater.catalog.stream_tables import StreamTable
from headwater.db.connection import DEPENDENT_OBJECTS, Connection, one, retried, transaction, translated
from headwater.db.queries import query
from headwater.definition.views import definition_name, find_definition
from headwater.errors import AlreadyExists, DependentsExist, HeadwaterError
from headwater.refresh.fast_path import drop_function

CREATOR_LOCK = 1_214_607
"""Class of the session locks that creators hold, one for each stream table."""
SWEEPING_LOCK_TIMEOUT = "50ms"
"""How long writers may have to wait behind a sweep; what it cannot lock by then is left to the next one."""


class Removal:
    """Removes stream tables with everything that belongs to them."""

    def __init__(self, connection: Connection, lock_attempts: int) -> None:
        self._connection = connection
        self._lock_attempts = lock_attempts

    def drop(self, stream_table: StreamTable, *, cascade: bool = False) -> list[str]:
        """Drop a stream table, and with cascade all its readers; return the names of what was dropped."""
        try:
            return self.remove(stream_table.id, cascade=cascade)
        except psycopg.Error as error:
            if error.sqlstate == DEPENDENT_OBJECTS:
                raise DependentsExist(
                    f"drop {stream_table.label}: other objects read it",
                    detail=error.diag.message_detail or "",
                    hint="drop them first, or use --cascade to drop them with it",
                ) from error
            raise translated(error, f"drop {stream_table.label}", HeadwaterError) from error

    def remove(self, stream_table_id: int, *, cascade: bool) -> list[str]:
        """Remove in a transaction of its own, which is retried when others use the objects."""
        return retried(
            lambda: self._remove_once(stream_table_id, cascade=cascade),
            what=f"drop of stream table {stream_table_id}",
            attempts=self._lock_attempts,
        )

    def _remove_once(self, stream_table_id: int, *, cascade: bool) -> list[str]:
        with transaction(self._connection):
            return self._remove_here(stream_table_id, cascade=cascade)

    def _remove_here(self, stream_table_id: int, *, cascade: bool) -> list[str]:
        """Remove inside the caller's transaction."""
        connection, dropped = self._connection, []
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (LIFECYCLE_LOCK,))
        installed.hold_version(connection)
        members = catalog.with_dependents(connection, stream_table_id)
        readers = [
            catalog.stream_table(connection, member) for member in members if member != stream_table_id
        ]
        if readers and not cascade:
            label = catalog.stream_table(connection, stream_table_id).label
            raise DependentsExist(
                f"drop {label}: other stream tables read it",
                detail=", ".join(reader.label for reader in readers),
                hint="drop them first, or use --cascade to drop them with it",
            )
        followers = consumers.names(connection, members)
        if followers and not cascade:
            label = catalog.stream_table(connection, stream_table_id).label
            raise DependentsExist(
                f"drop {label}: streaming queries follow its changes",
                detail=", ".join(f"consumer {name}" for name in followers),
                hint="headwater.spark.drop_consumer(dsn, name) ends one, --cascade drops all with it",
            )
        sources = {source.relation for member in members for source in catalog.sources_of(connection, member)}
        share_patience(connection, sources, more=2 * len(members))  # each has a view and storage
        for member in reversed(members):
            dropped.append(self.remove_one(member, cascade=cascade))
        release_superfluous(connection)
        return [*dropped, *(f"consumer {name}" for name in followers)]

    def remove_one(self, stream_table_id: int, *, cascade: bool) -> str:
        """Remove one stream table, but not its readers, inside the caller's transaction; return its name."""
        connection = self._connection
        connection.execute(query("catalog", "lock_stream_table"), {"id": stream_table_id})
        stream_table = catalog.stream_table(connection, stream_table_id)
        candidate = initializing(connection, storage.DATA, storage.storage_name(stream_table_id))
        if candidate is not None:
            self.remove_one(candidate, cascade=cascade)
        if stream_table.relation is not None:
            connection.execute(
                sql.SQL("DROP VIEW IF EXISTS {}{}").format(
                    sql.Identifier(stream_table.schema, stream_table.name),
                    sql.SQL(" CASCADE" if cascade else ""),
                )
            )
        self.drop_definition(stream_table_id)
        drop_function(connection, stream_table_id)
        storage.drop(connection, stream_table_id)
        storage.drop_kept(connection, stream_table_id)
        self.forget_as_source(stream_table_id)
        connection.execute(query("catalog", "delete_stream_table"), {"id": stream_table_id})
        return stream_table.label

    def drop_definition(self, stream_table_id: int) -> None:
        if find_definition(self._connection, stream_table_id) is not None:
            name = definition_name(self._connection, stream_table_id)
            self._connection.execute(sql.SQL("DROP VIEW {}").format(name))

    def forget_as_source(self, stream_table_id: int) -> None:
        """Record that nobody reads the changes of a stream table any more."""
        self.drop_own_changes(stream_table_id)
        self._connection.execute(query("catalog", "delete_own_source"), {"id": stream_table_id})

    def drop_own_changes(self, stream_table_id: int) -> None:
        """End the capture of a stream table as a source."""
        connection = self._connection
        own = connection.execute(query("refresh", "own_change_table"), {"id": stream_table_id}).fetchone()
        if own is not None:
            connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(CHANGES, own[0])))
            connection.execute(query("catalog", "forget_own_capture"), {"id": stream_table_id})

    # dead creators

    def clear_dead_creation(self, schema: str, table: str) -> None:
        """Remove what a creator left that died between its two transactions."""
        found = initializing(self._connection, schema, table)
        if found is None:
            return
        if not retried(
            lambda: self._remove_dead(found),
            what=f"drop of stream table {found}",
            attempts=self._lock_attempts,
        ):
            raise being_created(schema, table)

    def sweep(self) -> None:
        """Remove what dead creators left. Call it outside a transaction; it never waits for long."""
        connection = self._connection
        for (found,) in connection.execute(query("catalog", "initializing"), {"id": None}).fetchall():
            try:
                self._remove_dead(found, lock_timeout=SWEEPING_LOCK_TIMEOUT)
            except (psycopg.Error, HeadwaterError):
                if connection.closed:
                    raise

    def _remove_dead(self, stream_table_id: int, lock_timeout: str | None = None) -> bool:
        """Remove what a creator left; return False if it is alive or has just finished."""
        connection = self._connection
        with transaction(connection):
            if lock_timeout is not None:
                connection.execute("SELECT set_config('lock_timeout', %s, true)", (lock_timeout,))
            lock = (CREATOR_LOCK, stream_table_id)
            if not one(connection, "SELECT pg_try_advisory_xact_lock(%s, %s)", lock)[0]:
                return False
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (LIFECYCLE_LOCK,))
            # A creator that only lost its session may still be about to finish.
            connection.execute(query("catalog", "lock_stream_table"), {"id": stream_table_id})
            if connection.execute(query("catalog", "initializing"), {"id": stream_table_id}).fetchone():
                self._remove_here(stream_table_id, cascade=False)
        return True


def initializing(connection: Connection, schema: str, table: str) -> int | None:
    """Return the stream table of this name that is not loaded yet."""
    row = connection.execute(
        "SELECT id FROM headwater.stream_table"
        " WHERE schema_name = %s AND table_name = %s AND status = 'initializing'",
        (schema, table),
    ).fetchone()
    return None if row is None else int(row[0])


def being_created(schema: str, table: str) -> AlreadyExists:
    return AlreadyExists(
        f"{schema}.{table} is being created by another session", hint="wait for it to finish"
    )
