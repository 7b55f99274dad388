"""Whether the catalog in a database is there, in the version this program knows, and of this database.

A program that works on the catalog holds its version: a migration waits for refreshes that run, which hold a
lock on `headwater.migration`, and those that begin find another version than they know.

A catalog that came from a dump is full of numbers of another database: oids, transactions, snapshots. It is
told by rows that name the transaction that wrote them: those of migrations and of frontiers. In a physical
copy, after a promotion, `pg_upgrade` or in a clone made by CREATE DATABASE, the server's own `xmin` of such a
row is still that transaction; a restored row has the transaction of the restore. No privilege is needed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

import psycopg

from headwater import config
from headwater.db.connection import Connection, one, translated
from headwater.db.queries import query
from headwater.errors import (
    CatalogVersionMismatch,
    HeadwaterError,
    NotInstalled,
    ReadOnlyServer,
    RepairNeeded,
)

SCHEMAS = ("headwater", "headwater_defs", "headwater_data", "headwater_changes")


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


def latest_version() -> int:
    return migrations()[-1].version


def installed_version(connection: Connection) -> int | None:
    """The version of the catalog in this database, or None without one; 0 if its tables are empty."""
    if one(connection, "SELECT to_regclass('headwater.migration') IS NULL")[0]:
        return None
    return int(one(connection, "SELECT coalesce(max(version), 0) FROM headwater.migration")[0])


def hold_version(connection: Connection) -> None:
    """Keeps the catalog in this program's version until the transaction ends; takes no older snapshot."""
    cursor = connection.execute(
        "LOCK TABLE headwater.migration IN ACCESS SHARE MODE;"
        " SELECT coalesce(max(version), 0) FROM headwater.migration",
        prepare=False,
    )
    cursor.nextset()
    (version,) = cursor.fetchall()[0]
    require_version(version)


@dataclass(frozen=True)
class State:
    """What a program must know of a database before it does anything there."""

    version: int | None
    restored: bool = False  # from a dump, and not repaired since
    read_only: bool = False  # as on a standby
    stored: dict[str, str] = field(default_factory=dict)  # settings in the catalog
    server: dict[str, str] = field(default_factory=dict)  # settings of the server
    deadlock_timeout_ms: int = 0  # of the server


def read_state(connection: Connection) -> State:
    """The state of this database."""
    try:
        return State(*one(connection, query("install", "state"), {"names": sorted(config.RULES)}))
    except (
        psycopg.errors.UndefinedTable,
        psycopg.errors.UndefinedColumn,
        psycopg.errors.InvalidSchemaName,
    ):  # there is no catalog, or one of another version
        return State(installed_version(connection))
    except psycopg.errors.InsufficientPrivilege as error:
        raise translated(error, "the catalog of Headwater cannot be read", HeadwaterError) from error


def require_current(connection: Connection) -> None:
    """Raises unless the catalog is there in the version that this program knows."""
    require_version(installed_version(connection))


def require_ready(connection: Connection) -> None:
    """Raises unless the catalog is there in the version that this program knows, and of this database."""
    state = read_state(connection)
    require_version(state.version)
    require_repaired(state)


def require_version(installed: int | None) -> None:
    if installed is None:
        raise not_installed()
    if installed == 0:
        raise without_rows()
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


def require_repaired(state: State) -> None:
    """Raises if what the catalog says is of another database."""
    if state.restored:
        raise RepairNeeded(
            "this database was restored from a dump: its stream tables are as old as the dump, and changes"
            " since then were not captured",
            hint="headwater repair makes them follow their queries here",
        )


def require_primary(connection: Connection) -> None:
    """Raises if this server takes no writes."""
    standby, read_only = one(
        connection, "SELECT pg_is_in_recovery(), current_setting('transaction_read_only')::boolean"
    )
    if standby:
        raise ReadOnlyServer(
            "this server is a standby: it follows its primary and cannot refresh or change stream tables",
            hint="connect to the primary, whose changes arrive here by themselves; a DSN of several hosts"
            " with target_session_attrs=read-write finds it",
        )
    if read_only:
        raise ReadOnlyServer(
            "transactions are read-only here (default_transaction_read_only)",
            hint="ALTER ROLE … SET default_transaction_read_only = off for the role of Headwater",
        )


def settle(connection: Connection) -> None:
    """Says that the catalog belongs here, after all that a dump brought along has been corrected."""
    connection.execute("UPDATE headwater.migration SET applied_by = pg_current_xact_id()")


def without_rows() -> RepairNeeded:
    return RepairNeeded(
        "the catalog of Headwater in this database has no rows: it was restored without its data",
        hint=f"restore the data of the schema headwater, too; or DROP SCHEMA {', '.join(SCHEMAS)} CASCADE,"
        " run headwater init and create the stream tables again",
    )


def not_installed() -> NotInstalled:
    return NotInstalled("this database has no catalog of Headwater", hint="run headwater init")
