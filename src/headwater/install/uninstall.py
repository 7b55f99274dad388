"""Removing everything of Headwater from a database.

It goes by what the server's own catalog shows, not by ours, which may be missing, half there or of another
version. The triggers go first, for they are what writers notice. Each object is dropped by itself, in a
transaction that waits no longer than lock_timeout_ms for its locks and is tried again, so that nobody queues
behind it for longer; what was removed stays removed, and a run that was interrupted is finished by the next.

Users' own objects stay. Those in Headwater's schemas are told by their names; a schema that holds some is
kept. Those that read stream tables, such as a view, would have to go with them, which needs cascade.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import psycopg

from headwater.capture.registry import LIFECYCLE_LOCK
from headwater.catalog import installed
from headwater.catalog.installed import SCHEMAS
from headwater.db.connection import DEPENDENT_OBJECTS, Connection, retried, translated
from headwater.db.queries import query
from headwater.db.scratch import statement
from headwater.errors import DependentsExist, HeadwaterError
from headwater.install import migrate

KINDS = {
    "r": "table",
    "p": "table",
    "v": "view",
    "m": "materialized view",
    "f": "foreign table",
    "S": "sequence",
}


@dataclass(frozen=True)
class Item:
    """One object: what it is, its name in SQL, and its oid."""

    kind: str
    name: str
    oid: int

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True)
class Installation:
    """What of Headwater is in a database, in the order in which it can go."""

    captures: list[tuple[Item, list[str]]]  # functions, each with the tables that it captures
    definitions: list[Item]  # views that read stream tables and the tables of users
    stream_tables: list[Item]  # the views that users read
    rest: list[Item]
    schemas: list[str]
    foreign: list[str]  # what is in the schemas and not of Headwater's making

    @property
    def empty(self) -> bool:
        return not (self.captures or self.definitions or self.stream_tables or self.rest or self.schemas)

    @property
    def summary(self) -> str:
        tables = {table for _, captured in self.captures for table in captured}
        return (
            f"{len(self.stream_tables)} stream tables, triggers on {len(tables)} tables,"
            f" {len(self.rest) + len(self.definitions) + len(self.captures)} tables, views and functions of"
            f" Headwater's own, the schemas {', '.join(self.schemas) or '(none)'}"
        )


def find(connection: Connection) -> Installation:
    """What of Headwater is in a database."""
    known = {"schemas": list(SCHEMAS), "known": _known(), "any": _is_of_another_version(connection)}
    captures = [
        (Item("function", name, oid), tables)
        for oid, name, tables in connection.execute(query("uninstall", "captured"))
    ]
    stream_tables = [
        Item("stream table", name, oid)
        for oid, name in connection.execute(query("uninstall", "stream_tables"))
    ]
    definitions, rest, foreign = [], [], []
    for oid, name, kind, ours in connection.execute(query("uninstall", "relations"), known):
        item = Item(KINDS[kind], name, oid)
        if not ours:
            foreign.append(str(item))
        elif name.startswith("headwater_defs."):
            definitions.append(item)
        else:
            rest.append(item)
    for oid, name, kind, ours in connection.execute(query("uninstall", "functions"), known):
        item = Item(kind, name, oid)
        if ours:
            rest.append(item)
        else:
            foreign.append(str(item))
    schemas = [name for (name,) in connection.execute(query("uninstall", "schemas"), known)]
    return Installation(captures, definitions, stream_tables, rest, schemas, sorted(foreign))


def uninstall(connection: Connection, attempts: int, *, cascade: bool = False) -> list[str]:
    """Removes everything; what that was."""
    try:
        # Nobody creates meanwhile what would be missed. Held by the session, for there are many transactions.
        retried(
            lambda: connection.execute("SELECT pg_advisory_lock(%s)", (LIFECYCLE_LOCK,)),
            what="uninstall",
            attempts=attempts,
        )
        try:
            return _Removal(connection, attempts, cascade).run()
        finally:
            if not connection.closed:
                connection.execute("SELECT pg_advisory_unlock(%s)", (LIFECYCLE_LOCK,))
    except psycopg.Error as error:
        if error.sqlstate == DEPENDENT_OBJECTS:
            raise _dependents(error.diag.message_detail or "") from error
        raise translated(error, "uninstall", HeadwaterError) from error


class _Removal:
    """One run; `removed` is what has gone so far."""

    def __init__(self, connection: Connection, attempts: int, cascade: bool) -> None:
        self._connection = connection
        self._attempts = attempts
        self._cascade = cascade
        self._removed: list[str] = []

    def run(self) -> list[str]:
        found = find(self._connection)
        relations = [item.oid for item in (*found.definitions, *found.stream_tables, *found.rest)]
        readers = [
            Item(KINDS[kind], name, oid)
            for oid, name, kind in self._connection.execute(
                query("uninstall", "dependents"), {"relations": relations}
            )
        ]
        if readers and not (self._cascade and all("view" in item.kind for item in readers)):
            raise _dependents(", ".join(map(str, readers)))
        for function, tables in found.captures:
            self._drop(function, "FUNCTION", " CASCADE")
            self._removed += [f"the triggers on {table}" for table in tables]
        for item in readers:
            self._drop(item, item.kind.upper(), " CASCADE")
        for item in (*found.definitions, *found.stream_tables):
            self._drop(item, "VIEW")
        # Views before what they read, tables before what refers to them: until nothing more can go.
        pending = found.rest
        while pending:
            pending = self._pass(pending)
        for schema in found.schemas:
            left = [name for name in found.foreign if f" {schema}." in name]
            if not left:
                self._execute(f"DROP SCHEMA IF EXISTS {schema}")
                self._removed.append(f"schema {schema}")
        return self._removed

    def _pass(self, items: list[Item]) -> list[Item]:
        """Drops those that nothing else depends on; those that are left."""
        left = []
        for item in items:
            try:
                self._drop(item, item.kind.upper())
            except psycopg.errors.DependentObjectsStillExist:
                left.append(item)
        if len(left) == len(items):
            self._drop(left[0], left[0].kind.upper())  # for the error
        return left

    def _drop(self, item: Item, kind: str, how: str = "") -> None:
        """Drops an object by its number, for somebody may rename it meanwhile, or drop it."""
        routine = kind in ("FUNCTION", "PROCEDURE")
        one_of, catalog = ("regprocedure", "pg_proc") if routine else ("regclass", "pg_class")
        row = self._connection.execute(
            statement(f"SELECT oid::{one_of}::text FROM {catalog} WHERE oid = %s"), (item.oid,)
        ).fetchone()
        if row is not None:
            self._execute(f"DROP {kind} {row[0]}{how}")
            self._removed.append(str(item))

    def _execute(self, text: str) -> None:
        retried(lambda: self._connection.execute(statement(text)), what="uninstall", attempts=self._attempts)


def _known() -> list[str]:
    """The names in the schema `headwater` that this version makes."""
    return re.findall(
        r"^CREATE (?:UNLOGGED )?(?:TABLE|VIEW|FUNCTION|PROCEDURE) headwater\.(\w+)", migrate.schema(), re.M
    )


def _is_of_another_version(connection: Connection) -> bool:
    """Whether the catalog may have objects whose names this version does not know."""
    try:
        version: Any = installed.installed_version(connection)
    except psycopg.Error:
        return True
    return version is not None and version > installed.latest_version()


def _dependents(detail: str) -> DependentsExist:
    return DependentsExist(
        "uninstall: objects of yours read stream tables",
        detail=detail,
        hint="drop them first, or use --cascade to drop them with it",
    )
