"""Changing the options of a stream table, except its query; suspending and resuming it."""

from __future__ import annotations

from typing import LiteralString

import psycopg

from headwater.apply import storage
from headwater.capture.registry import LIFECYCLE_LOCK, release_superfluous
from headwater.catalog import installed
from headwater.catalog import stream_tables as catalog
from headwater.catalog.stream_tables import EngineName, Mode, StreamTable, TierChoice
from headwater.db.connection import Connection, retried, transaction, translated
from headwater.db.queries import query
from headwater.definition.reader import DefinitionReader
from headwater.definition.views import definition_oid
from headwater.errors import HeadwaterError
from headwater.lifecycle.drop import being_created
from headwater.lifecycle.options import Options, checked_options
from headwater.plan.storage_plan import BagPlan
from headwater.refresh import incidents
from headwater.refresh.decide import Request
from headwater.refresh.dependencies import effective_mode, register, register_anew
from headwater.refresh.transaction import Refresher


class Alteration:
    """Changes existing stream tables."""

    def __init__(
        self, connection: Connection, lock_attempts: int, reader: DefinitionReader, refresher: Refresher
    ) -> None:
        self._connection = connection
        self._lock_attempts = lock_attempts
        self._reader = reader
        self._refresher = refresher

    def alter(
        self,
        stream_table: StreamTable,
        *,
        mode: Mode | None = None,
        engine: EngineName | None = None,
        schedule: str | None = None,
        unscheduled: bool = False,
        tier: TierChoice | None = None,
    ) -> StreamTable:
        """Change the options that are given. A mode that needs other storage replaces it."""
        given = Options(mode=mode or "auto", engine=engine or "auto", schedule=schedule, tier=tier or "auto")
        schedule = checked_options(stream_table.label, given, stream_table.time_zone).schedule
        refreshing = False

        def change() -> None:
            nonlocal refreshing
            with transaction(self._connection):
                self._connection.execute("SELECT pg_advisory_xact_lock(%s)", (LIFECYCLE_LOCK,))
                installed.hold_version(self._connection)
                self._connection.execute(query("catalog", "lock_stream_table"), {"id": stream_table.id})
                self._connection.execute(
                    query("catalog", "set_options"),
                    {
                        "id": stream_table.id,
                        "change_schedule": schedule is not None or unscheduled,
                        "schedule": schedule,
                        "engine": engine,
                        "mode": mode,
                        "tier": tier,
                    },
                )
                refreshing = mode is not None and self._change_mode(stream_table.id, mode)

        try:
            retried(change, what=f"alter {stream_table.label}", attempts=self._lock_attempts)
        except psycopg.Error as error:
            raise translated(error, f"alter {stream_table.label}", HeadwaterError) from error
        if refreshing:
            self._refresher.refresh(stream_table, Request())
        return catalog.stream_table(self._connection, stream_table.id)

    def _change_mode(self, stream_table_id: int, mode: Mode) -> bool:
        """Register a stream table in another mode; return whether it must be refreshed for that.

        A bag of rows is stored in the same way in both modes. From deltas to recomputing it stays as it is.
        In the other direction it is recomputed once, in place, because writes in between left no change rows.
        """
        connection = self._connection
        stream_table = catalog.stream_table(connection, stream_table_id)
        definition = self._reader.read(definition_oid(connection, stream_table_id))
        standing = incidents.standing(connection, stream_table_id, definition)
        effective = effective_mode(stream_table.label, mode, definition, standing)
        if effective == stream_table.mode:
            return False
        reason = f"its mode was changed to {effective}"
        if stream_table.fingerprint != definition.fingerprint(
            definition.mode_for(stream_table.mode)
        ) or not isinstance(definition.plan, BagPlan):
            register_anew(connection, stream_table, definition, effective, reason)
            return True
        register(connection, stream_table_id, stream_table.label, definition, effective)
        if effective == "differential":
            connection.execute(
                query("catalog", "set_rebuild_reason"), {"id": stream_table_id, "reason": reason}
            )
            # Protects the change rows from here on, until the refresh has its own snapshot.
            connection.execute(query("catalog", "set_frontier"), {"id": stream_table_id})
            return True
        storage.drop_kept(connection, stream_table_id)
        release_superfluous(connection)
        return False

    def suspend(self, stream_table: StreamTable, reason: str | None) -> StreamTable:
        """Stop refreshes of a stream table until it is resumed; wait for a running one."""
        if stream_table.status == "initializing":
            raise being_created(stream_table.schema, stream_table.name)
        return self._set_status(stream_table, "suspend", query("catalog", "suspend"), {"reason": reason})

    def resume(self, stream_table: StreamTable) -> StreamTable:
        """Allow refreshes of a stream table again; do nothing to one that is not suspended."""
        return self._set_status(stream_table, "resume", query("catalog", "resume"), {})

    def _set_status(
        self, stream_table: StreamTable, verb: str, text: LiteralString, values: dict[str, str | None]
    ) -> StreamTable:
        what = f"{verb} {stream_table.label}"

        def change() -> None:
            with transaction(self._connection):
                installed.hold_version(self._connection)
                self._connection.execute(text, {**values, "id": stream_table.id})

        try:
            retried(change, what=what, attempts=self._lock_attempts)
        except psycopg.Error as error:
            raise translated(error, what, HeadwaterError) from error
        return catalog.stream_table(self._connection, stream_table.id)
