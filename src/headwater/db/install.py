"""Installing the catalog and bringing an older one up to date.

`schema.sql` is the catalog as it is now and is what `init` runs; `migrations/` are the steps that lead there,
and `migrate` runs those that a database has not seen, each in a transaction of its own. Replaying all of them
gives the same as `schema.sql`; a test says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import psycopg

from headwater.db.connection import Connection, one, transaction, translated
from headwater.db.queries import query
from headwater.db.work import statement
from headwater.errors import CatalogVersionMismatch, HeadwaterError, NotInstalled

SCHEMAS = ("headwater", "headwater_defs", "headwater_data", "headwater_changes")
INSTALL_LOCK = 4_855_311_377  # an arbitrary number, the same in every version


@dataclass(frozen=True)
class Migration:
    """One step from a version of the catalog to the next."""

    version: int
    name: str
    text: str


@cache
def migrations() -> list[Migration]:
    folder = files("headwater.db") / "migrations"
    found = []
    for item in folder.iterdir():
        if item.name.endswith(".sql"):
            number, _, name = item.name.removesuffix(".sql").partition("_")
            found.append(Migration(int(number), name, item.read_text(encoding="utf-8")))
    return sorted(found, key=lambda migration: migration.version)


def schema() -> str:
    return (files("headwater.db") / "schema.sql").read_text(encoding="utf-8")


def latest_version() -> int:
    return migrations()[-1].version


def installed_version(connection: Connection) -> int | None:
    """The version of the catalog in this database, or None without one."""
    if one(connection, "SELECT to_regclass('headwater.migration') IS NULL")[0]:
        return None
    version: int | None = one(connection, "SELECT max(version) FROM headwater.migration")[0]
    return version


def install(connection: Connection) -> bool:
    """Installs the catalog; False if it was there already in this version."""
    try:
        with transaction(connection):
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (INSTALL_LOCK,))
            if installed_version(connection) is not None:
                require_current(connection)
                return False
            connection.execute(statement(schema()))
            for migration in migrations():
                _mark(connection, migration)
    except psycopg.Error as error:
        raise translated(error, "init", HeadwaterError) from error
    return True


def migrate(connection: Connection, steps: list[Migration] | None = None) -> list[int]:
    """Runs the migrations that this database has not seen; their versions."""
    applied = []
    for migration in steps if steps is not None else migrations():
        try:
            with transaction(connection):
                connection.execute("SELECT pg_advisory_xact_lock(%s)", (INSTALL_LOCK,))
                installed = installed_version(connection)
                if installed is None and migration.version > 1:
                    raise _not_installed()
                if installed is not None and migration.version <= installed:
                    continue
                connection.execute(statement(migration.text))
                _mark(connection, migration)
        except psycopg.Error as error:
            raise translated(
                error, f"migration {migration.version} ({migration.name})", HeadwaterError
            ) from error
        applied.append(migration.version)
    if steps is None:
        require_current(connection)
    return applied


def read_state(
    connection: Connection, names: list[str]
) -> tuple[int | None, dict[str, str], dict[str, str], int]:
    """The catalog's version, the settings stored in it, those of these names that the server has, and its
    deadlock_timeout in milliseconds."""
    try:
        version, stored, server, deadlock_ms = one(connection, query("install", "state"), {"names": names})
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        return None, {}, {}, 0
    return version, stored, server, deadlock_ms


def require_current(connection: Connection) -> None:
    """Raises unless the catalog is there in the version that this program knows."""
    require_version(installed_version(connection))


def require_version(installed: int | None) -> None:
    if installed is None:
        raise _not_installed()
    if installed < latest_version():
        raise CatalogVersionMismatch(
            f"the catalog of Headwater in this database has version {installed}, this program needs"
            f" {latest_version()}",
            hint="run headwater migrate",
        )
    if installed > latest_version():
        raise CatalogVersionMismatch(
            f"the catalog of Headwater in this database has version {installed}, this program knows up to"
            f" {latest_version()}",
            hint="upgrade this program: pip install --upgrade headwater",
        )


def _mark(connection: Connection, migration: Migration) -> None:
    connection.execute(
        "INSERT INTO headwater.migration (version, name) VALUES (%s, %s)", (migration.version, migration.name)
    )


def _not_installed() -> NotInstalled:
    return NotInstalled("this database has no catalog of Headwater", hint="run headwater init")
