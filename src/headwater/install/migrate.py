"""Installing the catalog and bringing an older one up to date.

`schema.sql` is the catalog as it is now and is what `init` runs; `migrations/` are the steps that lead there,
and `migrate` runs those that a database has not seen, each in a transaction of its own. Replaying all of them
gives the same as `schema.sql`; a test says so.

A migration waits for refreshes that run (see `headwater.catalog.installed`), so no program works on a catalog
that changes under it. One that is killed leaves the steps that it had finished; the next one goes on there.
"""

from __future__ import annotations

from functools import partial
from importlib.resources import files

import psycopg
from psycopg.types.json import Jsonb

from headwater import config
from headwater.catalog.installed import (
    Migration,
    installed_version,
    migrations,
    not_installed,
    require_current,
    require_primary,
    without_rows,
)
from headwater.db.connection import Connection, retried, transaction, translated
from headwater.db.queries import query
from headwater.db.scratch import statement
from headwater.errors import HeadwaterError

ATTEMPTS = 10
"""So often a step is tried that meets a deadlock with what still runs."""
INSTALL_LOCK = 4_855_311_377  # an arbitrary number, the same in every version


def schema() -> str:
    return (files("headwater.db") / "schema.sql").read_text(encoding="utf-8")


def install(connection: Connection) -> bool:
    """Installs the catalog; False if it was there already in this version."""
    require_primary(connection)
    try:
        with transaction(connection):
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (INSTALL_LOCK,))
            if installed_version(connection) is not None:
                require_current(connection)
                return False
            connection.execute(statement(schema()))
            for migration in migrations():
                _mark(connection, migration)
            _describe_settings(connection)
    except psycopg.Error as error:
        raise translated(error, "init", HeadwaterError) from error
    return True


def migrate(connection: Connection, steps: list[Migration] | None = None) -> list[int]:
    """Runs the migrations that this database has not seen; their versions."""
    require_primary(connection)
    applied = []
    for migration in steps if steps is not None else migrations():
        what = f"migration {migration.version} ({migration.name})"
        try:
            if retried(partial(_step, connection, migration), what=what, attempts=ATTEMPTS):
                applied.append(migration.version)
        except psycopg.Error as error:
            raise translated(error, what, HeadwaterError) from error
    if steps is None:
        require_current(connection)
        _describe_settings(connection)
    return applied


def _step(connection: Connection, migration: Migration) -> bool:
    """Runs one migration; False if the database has seen it."""
    with transaction(connection):
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (INSTALL_LOCK,))
        installed = installed_version(connection)
        if installed is None and migration.version > 1:
            raise not_installed()
        if installed == 0:
            raise without_rows()
        if installed is not None:
            if migration.version <= installed:
                return False
            connection.execute("LOCK TABLE headwater.migration IN ACCESS EXCLUSIVE MODE")
        connection.execute(statement(migration.text))
        _mark(connection, migration)
    return True


def _describe_settings(connection: Connection) -> None:
    """Lets SQL know the settings of this program."""
    connection.execute(query("install", "describe_settings"), {"rules": Jsonb(config.described())})


def _mark(connection: Connection, migration: Migration) -> None:
    connection.execute(
        "INSERT INTO headwater.migration (version, name) VALUES (%s, %s)", (migration.version, migration.name)
    )
