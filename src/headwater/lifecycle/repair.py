"""Repairing stream tables after a restore from a dump, or after somebody's DROP … CASCADE.

A dump contains every table and view, and with them numbers that mean nothing where it is restored: oids in
the catalog and in the names of change tables and trigger functions, transactions in change rows, snapshots in
frontiers. Changes between the restore and now left no trace. So none of it is used:

1. In one transaction capture is removed, and everything that the catalog knows by number is forgotten; the
   views that users read are found again by what they read. From then on the catalog belongs to this database,
   and every stream table is marked for recomputing. If the program ends here, refreshes do the rest.
2. Each stream table is refreshed, in the order of creation: it registers what it reads, with new capture, and
   is loaded beside its old rows. Readers see the old rows until then.

Apart from restores, `headwater.health` says which part of a stream table is missing. A definition view that
was dropped with a table it reads is made again from the query as it was last planned, once everything in it
exists again; a view that was dropped or replaced comes back with its rows; capture is installed again. The
readers of a stream table that was loaded again have lost its changes, and are repaired after it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import psycopg
from psycopg import sql

from headwater.capture.buffers import CHANGES
from headwater.capture.registry import LIFECYCLE_LOCK
from headwater.capture.triggers import GUARDS
from headwater.catalog import installed, jobs
from headwater.catalog import stream_tables as catalog
from headwater.catalog.stream_tables import Health, StreamTable
from headwater.db.connection import Connection, one, retried, transaction, translated
from headwater.db.queries import query
from headwater.db.scratch import statement
from headwater.definition.views import DEFINITIONS, new_definition_name
from headwater.errors import HeadwaterError, RefreshFailed
from headwater.lifecycle.create import Creation
from headwater.lifecycle.drop import Removal
from headwater.refresh.decide import Request
from headwater.refresh.transaction import Refresher

RESTORED = "the database was restored from a dump"


@dataclass(frozen=True, kw_only=True)
class Repaired:
    """The result for one stream table."""

    stream_table: str
    status: Literal["intact", "rebuilt", "removed", "failed"]
    reason: str  # why it had to be repaired; empty if it had not
    error: str = ""


class Repair:
    """Repairs the stream tables of one database."""

    def __init__(
        self,
        connection: Connection,
        lock_attempts: int,
        refresher: Refresher,
        creation: Creation,
        removal: Removal,
    ) -> None:
        self._connection = connection
        self._lock_attempts = lock_attempts
        self._refresher = refresher
        self._creation = creation
        self._removal = removal

    def run(self, *, restored: bool) -> list[Repaired]:
        """Repair what needs it; return one entry for each stream table, in the order of creation."""
        if restored:
            self._again(self._settle, "repair")
        jobs.sweep(self._connection)
        found = []
        for number in catalog.in_order(self._connection):
            stream_table = catalog.stream_table(self._connection, number)
            try:
                found.append(self._repair(stream_table))
            except HeadwaterError as error:
                reason = stream_table.rebuild_reason or ""
                found.append(
                    Repaired(
                        stream_table=stream_table.label, status="failed", reason=reason, error=str(error)
                    )
                )
        return found

    def _settle(self) -> None:
        """Forget everything that belongs to another database."""
        connection = self._connection
        with transaction(connection):
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (LIFECYCLE_LOCK,))
            functions = connection.execute(query("repair", "capture_functions"), {"schema": CHANGES})
            for (name,) in functions.fetchall():
                connection.execute(
                    sql.SQL("DROP FUNCTION {}() CASCADE").format(sql.Identifier(CHANGES, name))
                )
            guards = connection.execute(query("repair", "guards"), {"schema": GUARDS})
            for (name,) in guards.fetchall():
                connection.execute(sql.SQL("DROP VIEW {}").format(sql.Identifier(GUARDS, name)))
            tables = connection.execute(query("repair", "change_tables"), {"schema": CHANGES})
            for (name,) in tables.fetchall():
                connection.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(CHANGES, name)))
            connection.execute(query("repair", "forget_sources"))
            connection.execute(query("repair", "forget_tables"))
            connection.execute(query("repair", "out_of_the_way"))
            connection.execute(query("repair", "find_views"))
            connection.execute(query("repair", "lose_views"))
            connection.execute(query("repair", "distrust_all"), {"reason": RESTORED})
            connection.execute(query("repair", "give_up_consumers"), {"reason": RESTORED})
            installed.settle(connection)

    def _repair(self, stream_table: StreamTable) -> Repaired:
        label = stream_table.label
        if stream_table.status == "initializing":
            self._removal.clear_dead_creation(stream_table.schema, stream_table.name)
            return Repaired(stream_table=label, status="removed", reason="its creation was interrupted")
        health = self._health(stream_table)
        reason = (health.reason if health.fault is not None else stream_table.rebuild_reason) or ""
        if health.fault in ("source", "definition"):
            self._again(lambda: self._define(stream_table, reason), f"repair of {label}")
            health = self._health(stream_table)
        if health.fault in ("view", "storage", "replaced"):
            self._refresher.adopt(stream_table.id)
            self._creation.reload(stream_table, reason)
        elif reason:
            if health.fault == "changes":
                self._again(lambda: self._forget_changes(stream_table, reason), f"repair of {label}")
            self._refresher.refresh(stream_table, Request())
        return Repaired(stream_table=label, status="rebuilt" if reason else "intact", reason=reason)

    def _health(self, stream_table: StreamTable) -> Health:
        return catalog.health(self._connection, [stream_table.id])[stream_table.id]

    def _forget_changes(self, stream_table: StreamTable, reason: str) -> None:
        """Make those that read the changes of a stream table register again, so that its changes are kept."""
        values = {"id": stream_table.id, "reason": reason}
        with transaction(self._connection):
            self._connection.execute("SELECT pg_advisory_xact_lock(%s)", (LIFECYCLE_LOCK,))
            self._removal.drop_own_changes(stream_table.id)
            self._connection.execute(query("repair", "distrust_readers"), values)
            self._connection.execute(query("repair", "give_up_followers"), values)

    def _define(self, stream_table: StreamTable, reason: str) -> None:
        """Make the definition view again. Names in the text are qualified, so search_path does not matter."""
        again = f"headwater drop {stream_table.label}, then create it again"
        (text,) = one(self._connection, query("repair", "planned_query"), {"id": stream_table.id})
        if text is None:
            raise RefreshFailed(f"the definition of {stream_table.label} is gone", hint=again)
        label = f"{stream_table.schema}.{stream_table.name}"
        name = sql.Identifier(DEFINITIONS, new_definition_name(stream_table.id, label))
        try:
            with transaction(self._connection):
                self._connection.execute("SELECT pg_advisory_xact_lock(%s)", (LIFECYCLE_LOCK,))
                self._connection.execute(
                    sql.SQL("CREATE VIEW {} AS {}").format(name, statement(text.rstrip(";")))
                )
                self._connection.execute(
                    query("repair", "distrust"), {"id": stream_table.id, "reason": reason}
                )
        except psycopg.ProgrammingError as error:
            failure = translated(error, f"the definition of {stream_table.label} is gone", RefreshFailed)
            failure.hint = f"bring back what it reads and repeat headwater repair; or {again}"
            raise failure from error

    def _again(self, attempt: Callable[[], None], what: str) -> None:
        try:
            retried(attempt, what=what, attempts=self._lock_attempts)
        except psycopg.Error as error:
            raise translated(error, what, HeadwaterError) from error
