"""Bringing up what an earlier version installed beside the catalog: capture functions, indexes, identities.

After the steps of a migration everything is compared with what this version would make; so it does not matter
which version that was, and a run that was interrupted, or had to leave something, is finished by the next.

A capture function is replaced where its text is another one. That takes no lock that a writer waits for: a
statement that runs goes on with the old text, the next one has the new.

Change tables get the index of this version for the one that they have, and like storage a replica identity.
That locks each of them for a moment against everybody, writers of the source included. So each has a
transaction of its own that waits no longer than lock_timeout_ms and is tried again, and a change table that
is large, whose index would take a while, keeps the old one. What is left works as before; it is told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import psycopg
from psycopg import sql

from headwater.capture import change_tables
from headwater.capture.buffers import CHANGES
from headwater.capture.registry import LIFECYCLE_LOCK, renew_function
from headwater.catalog import installed
from headwater.db.connection import Connection, retried, transaction, translated
from headwater.db.queries import query
from headwater.db.scratch import identify_by_row
from headwater.errors import HeadwaterError

LARGEST = 64 << 20
"""Bytes of a change table that is indexed while writers wait: read in a fraction of a second."""


def upgrade(connection: Connection, attempts: int) -> list[str]:
    """Brings everything up to this version; a note on each thing that had to be left."""
    notes = []

    def attempt(what: str, change: Callable[[], object]) -> None:
        try:
            _again(connection, change, what, attempts)
        except HeadwaterError as error:
            notes.append(f"{what} was left as an earlier version made it: {error}")

    for source_id, label in connection.execute(query("upgrade", "captured_tables")).fetchall():
        attempt(f"the capture function of {label}", partial(renew_function, connection, source_id))
    for schema, name, size, *outdated in connection.execute(query("upgrade", "tables")).fetchall():
        found = _Table(sql.Identifier(schema, name), *outdated)
        what = f"table {schema}.{name}"
        if found.reindexed and size > LARGEST:
            notes.append(
                f"{what} is large and keeps its old index: refresh the stream tables that read it, then"
                " repeat headwater migrate"
            )
            found = replace(found, old_indexes=(), lacks_index=False)
        attempt(what, partial(found.renew, connection))
    return notes


@dataclass(frozen=True)
class _Table:
    """A change table, or storage, that this version would have made otherwise."""

    name: sql.Identifier
    old_indexes: Sequence[str]
    lacks_index: bool
    lacks_identity: bool

    @property
    def reindexed(self) -> bool:
        return bool(self.old_indexes) or self.lacks_index

    def renew(self, connection: Connection) -> None:
        if not (self.reindexed or self.lacks_identity):
            return
        connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(self.name))
        if self.lacks_index:
            change_tables.create_index(connection, self.name)
        for name in self.old_indexes:
            connection.execute(sql.SQL("DROP INDEX IF EXISTS {}").format(sql.Identifier(CHANGES, name)))
        if self.lacks_identity:
            identify_by_row(connection, self.name)


def _again(connection: Connection, change: Callable[[], object], what: str, attempts: int) -> None:
    def transacted() -> None:
        with transaction(connection):
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (LIFECYCLE_LOCK,))
            installed.hold_version(connection)
            change()

    try:
        retried(transacted, what=what, attempts=attempts)
    except psycopg.Error as error:
        raise translated(error, what, HeadwaterError) from error
