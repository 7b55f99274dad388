"""Replacing the query of a stream table.

This is a creation (see `create`) except for its end. A candidate is created beside the stream table, with a
definition, capture and storage of its own, under the name of the storage that it is to replace. The second
transaction locks the stream table as a refresh of it does, so that none commits on the old definition later.
Once everything is loaded, the stream table takes over what the candidate has: its storage goes under the
view, and its definition and dependencies get the stream table's number. Until that commits, the old one is as
it was.
"""

from __future__ import annotations

from contextlib import suppress

import psycopg
from psycopg import sql

from headwater.apply import storage, swap
from headwater.capture import consumers
from headwater.capture.registry import LIFECYCLE_LOCK, release_superfluous
from headwater.catalog import history
from headwater.catalog import stream_tables as catalog
from headwater.catalog.history import Outcome
from headwater.catalog.stream_tables import StreamTable
from headwater.db.connection import Connection, retried, transaction
from headwater.db.queries import query
from headwater.db.scratch import prefix_of
from headwater.definition.reader import Definition
from headwater.definition.roundtrip import same_meaning
from headwater.definition.views import (
    DEFINITIONS,
    definition_name,
    definition_oid,
    find_definition,
    new_definition_name,
)
from headwater.errors import DependentsExist, LockNotAvailable
from headwater.lifecycle.drop import Removal
from headwater.plan.steps import Tables
from headwater.plan.storage_plan import MaintenancePlan
from headwater.refresh.transaction import Refresher


class Unchanged(Exception):
    """The new query is the same as the old one."""


class Replacement:
    """What the creation of a candidate does beyond that of a new stream table."""

    def __init__(
        self, connection: Connection, lock_attempts: int, refresher: Refresher, removal: Removal
    ) -> None:
        self._connection = connection
        self._lock_attempts = lock_attempts
        self._refresher = refresher
        self._removal = removal

    def check_unchanged(
        self, replaced: StreamTable, candidate: int, view: int, definition: Definition
    ) -> None:
        """Raise Unchanged if a candidate equals what it is to replace."""
        present = find_definition(self._connection, replaced.id)
        new = catalog.stream_table(self._connection, candidate)
        if present is None or new.time_zone != replaced.time_zone:
            return
        if definition.follows_path and new.search_path != replaced.search_path:
            return
        if same_meaning(self._connection, present, view):
            raise Unchanged

    def in_the_way(self, replaced: StreamTable, view: int, *, cascade: bool) -> tuple[list[int], list[str]]:
        """Return the stream tables and consumers that a new definition displaces: none if the columns stay.

        Raises if that is not allowed, or if views of users would have to be dropped.
        """
        connection, relation = self._connection, replaced.relation
        assert relation is not None
        if swap.fits(connection, relation, view):
            return [], []
        members = catalog.with_dependents(connection, replaced.id)
        readers = [member for member in members if member != replaced.id]
        followers = consumers.names(connection, members)
        what = f"replace the query of {replaced.label}: {swap.misfit(connection, relation, view)}"
        remedy = "keep the columns that there are, in their order, and add new ones at the end"
        views = swap.dependents(connection, relation, DEFINITIONS)
        if views:
            raise DependentsExist(
                f"{what}, but other objects read it",
                detail=", ".join(views),
                hint=f"{remedy}; or drop them first, and create them again afterwards",
            )
        if (readers or followers) and not cascade:
            labels = [item.label for item in catalog.stream_tables(connection, readers)]
            raise DependentsExist(
                f"{what}, but others read it",
                detail=", ".join([*labels, *(f"consumer {name}" for name in followers)]),
                hint=f"{remedy}; or --cascade drops them",
            )
        return readers, followers

    def take_over(
        self,
        replaced: StreamTable,
        candidate: int,
        definition: Definition,
        plan: MaintenancePlan,
        readers: list[int],
        followers: list[str],
    ) -> list[str]:
        """Put a loaded candidate in the place of a stream table; return what else that did."""
        connection = self._connection
        said = [
            f"{self._removal.remove_one(reader, cascade=False)} was dropped" for reader in reversed(readers)
        ]
        said += [f"consumer {name} was dropped" for name in followers]
        assert replaced.relation is not None
        if not swap.fits(connection, replaced.relation, definition_oid(connection, candidate)):
            self._removal.forget_as_source(replaced.id)  # through the view that is about to be dropped
        target = self._refresher.members.target(replaced, definition)
        table = storage.storage_name(candidate)
        prepared = swap.prepare(connection, replaced.label, replaced.id, table, plan)
        tables = Tables(f"{prefix_of(candidate)}load_")
        said += self._refresher.members.put_in_place(tables, target, replaced, prepared, plan)
        self._removal.drop_definition(replaced.id)
        label = f"{replaced.schema}.{replaced.name}"
        connection.execute(
            sql.SQL("ALTER VIEW {} RENAME TO {}").format(
                definition_name(connection, candidate),
                sql.Identifier(new_definition_name(replaced.id, label)),
            )
        )
        storage.move_kept(connection, candidate, replaced.id)
        ids = {"id": replaced.id, "candidate": candidate}
        connection.execute(query("catalog", "take_over"), ids)
        connection.execute(query("catalog", "take_over_dependencies"), ids)
        connection.execute(query("catalog", "delete_stream_table"), {"id": candidate})
        return said

    def tidy(self, stream_table_id: int) -> None:
        """End the capture of what only the old query read, and drop its storage if no snapshot needs it.

        What cannot be locked now is removed with the next change of what is captured, or by the next refresh.
        """

        def release() -> None:
            with transaction(self._connection):
                self._connection.execute("SELECT pg_advisory_xact_lock(%s)", (LIFECYCLE_LOCK,))
                release_superfluous(self._connection)

        with suppress(LockNotAvailable):
            retried(release, what="ending superfluous capture", attempts=self._lock_attempts)
        with suppress(psycopg.errors.LockNotAvailable):
            self._refresher.give_up_retired(catalog.stream_table(self._connection, stream_table_id))

    def record_failure(
        self, replaced: StreamTable | None, failure: BaseException, cause: BaseException
    ) -> None:
        """Record a failed replacement in the history of the stream table, which stays as it was."""
        if replaced is None or self._connection.closed:
            return
        if not catalog.stream_tables(self._connection, [replaced.id]):
            return
        history.record(
            self._connection,
            Outcome(
                stream_table=replaced.label,
                stream_table_id=replaced.id,
                action="load",
                mode="full",
                engine=replaced.engine,
                reason="its query could not be replaced; it stays as it was",
                status="failed",
                error=str(failure) or type(failure).__name__,
                sqlstate=getattr(cause, "sqlstate", None),
            ),
        )
