"""The Python interface: `headwater.connect(dsn)` and the verbs of the command line as methods."""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable, Mapping
from types import TracebackType

from headwater import catalog, config, history, jobs, uninstall
from headwater.advice import MissingIndex, missing_indexes
from headwater.catalog import EngineName, Mode, StreamTable
from headwater.config import Setting, Settings
from headwater.db import install, privileges
from headwater.db.connection import Connection, bound, transaction
from headwater.db.connection import connect as open_connection
from headwater.db.privileges import Check
from headwater.definition import DefinitionReader
from headwater.engine.dispatch import Dispatch
from headwater.errors import AlreadyExists, ConnectionFailed, NotFound
from headwater.explain import Explanation, explain
from headwater.history import HistoryEntry, Outcome
from headwater.jobs import RunningJob
from headwater.keeping import kept_layers
from headwater.lifecycle import Lifecycle, Options
from headwater.monitor import StreamTableStatus, statuses
from headwater.refresh import Refresher, Request
from headwater.uninstall import Installation
from headwater.verify import Verification, verify


class Headwater:
    """A connection to one database with Headwater's verbs. Not for use by several threads at once."""

    def __init__(
        self,
        dsn: str,
        overrides: Mapping[str, str] | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        """`progress` is told what takes a while, such as the start of Spark."""
        self._connection = open_connection(dsn)
        self._overrides = dict(overrides or {})
        self._reader = DefinitionReader(self._connection)
        self._dispatch = Dispatch(dsn, progress)
        self._applied: Settings | None = None

    def __enter__(self) -> Headwater:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    @property
    def connection(self) -> Connection:
        """The connection itself, in autocommit; its search_path is empty."""
        return self._connection

    # the catalog

    def init(self) -> bool:
        """Installs the catalog; False if it was there already."""
        return install.install(self._connection)

    def check(self) -> builtins.list[Check]:
        """Every privilege that Headwater needs here, and whether this role has it."""
        return privileges.check(self._connection)

    def migrate(self) -> builtins.list[int]:
        """Brings an older catalog up to date; the versions that were applied."""
        return install.migrate(self._connection)

    def installation(self) -> Installation:
        """What of Headwater is in the database, also if that is not whole or of another version."""
        return uninstall.find(self._connection)

    def uninstall(self, *, cascade: bool = False) -> builtins.list[str]:
        """Removes everything of Headwater from the database; what that was."""
        settings = config.resolve(*self._given())[0]
        bound(self._connection, settings)
        return uninstall.uninstall(self._connection, settings.lock_attempts, cascade=cascade)

    def settings(self) -> builtins.list[Setting]:
        """Every setting with its value and where it came from."""
        return self._resolved()[1]

    def set(self, name: str, value: str) -> None:
        """Stores a setting in the database."""
        install.require_current(self._connection)
        config.checked(name, value)
        self._connection.execute(
            "INSERT INTO headwater.setting (name, value) VALUES (%s, %s)"
            " ON CONFLICT (name) DO UPDATE SET value = excluded.value, changed_at = clock_timestamp(),"
            " changed_by = current_user",
            (name.removeprefix(config.PREFIX), value),
        )

    # stream tables

    def create(
        self,
        name: str,
        query: str,
        *,
        schedule: str | None = None,
        mode: Mode = "auto",
        engine: EngineName = "auto",
        if_not_exists: bool = False,
    ) -> StreamTable:
        """Creates a stream table from a query and loads it."""
        lifecycle = self._lifecycle()
        jobs.sweep(self._connection)
        try:
            return lifecycle.create(name, query, Options(mode=mode, engine=engine, schedule=schedule))
        except AlreadyExists as error:
            if not if_not_exists:
                raise
            try:
                found = catalog.find(self._connection, name)
                if found.status == "initializing":
                    raise error
                return found
            except NotFound:  # something else has the name
                raise error from None

    def alter(
        self,
        name: str,
        *,
        mode: Mode | None = None,
        engine: EngineName | None = None,
        schedule: str | None = None,
        unscheduled: bool = False,
    ) -> StreamTable:
        """Changes the options that are given."""
        lifecycle = self._lifecycle()
        return lifecycle.alter(
            catalog.find(self._connection, name),
            mode=mode,
            engine=engine,
            schedule=schedule,
            unscheduled=unscheduled,
        )

    def drop(self, name: str, *, cascade: bool = False) -> builtins.list[str]:
        """Drops a stream table; the names of all that went."""
        lifecycle = self._lifecycle()
        jobs.sweep(self._connection)
        return lifecycle.drop(catalog.find(self._connection, name), cascade=cascade)

    def refresh(
        self, name: str, *, full: bool = False, engine: EngineName | None = None
    ) -> builtins.list[Outcome]:
        """Refreshes a stream table and those it reads; the last outcome is its own."""
        refresher = self._refresher()
        stream_table = catalog.find(self._connection, name)
        return refresher.refresh(stream_table, Request(full=full, engine=engine))

    def start_spark(self) -> None:
        """Starts Spark in the background, so that what needs it first need not wait."""
        from headwater.engine.spark.session import runtime

        runtime().start_in_background(self._settings())

    def cancel(self, name: str) -> builtins.list[RunningJob]:
        """Ends the refreshes of a stream table that run now; which these are."""
        install.require_current(self._connection)
        return jobs.cancel(self._connection, catalog.find(self._connection, name))

    def verify(self, name: str) -> Verification:
        """Compares a stream table with its query at one snapshot."""
        settings, refresher = self._settings(), self._refresher()
        return verify(self._connection, settings, refresher, catalog.find(self._connection, name))

    def explain(self, name: str) -> Explanation:
        """What a refresh would do, and why."""
        refresher = self._refresher()
        return explain(self._connection, refresher, catalog.find(self._connection, name))

    def missing_indexes(self, name: str) -> builtins.list[MissingIndex]:
        """The indexes on sources that would turn scans of a refresh into look-ups; none is ever created."""
        refresher = self._refresher()
        found = catalog.find(self._connection, name)
        with transaction(self._connection, rollback=True):
            definition = refresher.read_definition(found)
            if definition.mode_for(found.mode) == "full":
                return []
            layers = kept_layers(self._connection, found.id, definition)
            return builtins.list(missing_indexes(self._connection, layers))

    def list(self) -> builtins.list[StreamTableStatus]:
        """Every stream table."""
        settings = self._settings()
        return statuses(self._connection, None, settings)

    def status(self, name: str) -> StreamTableStatus:
        """One stream table."""
        settings = self._settings()
        found = catalog.find(self._connection, name)
        return statuses(self._connection, [found.id], settings)[0]

    def history(self, name: str | None = None, *, limit: int = 20) -> builtins.list[HistoryEntry]:
        """The latest refreshes, newest first."""
        install.require_current(self._connection)
        stream_table_id = catalog.find(self._connection, name).id if name is not None else None
        return history.recent(self._connection, stream_table_id, limit)

    # parts

    def _settings(self) -> Settings:
        """The effective settings; those that the session itself has are applied to it."""
        settings = self._resolved()[0]
        if settings != self._applied:
            bound(self._connection, settings)
            self._applied = settings
        return settings

    def _resolved(self) -> tuple[Settings, builtins.list[Setting]]:
        version, stored, server = install.read_state(self._connection, sorted(config.RULES))
        install.require_version(version)
        return config.resolve(*self._given(), ("table", stored), ("server", server))

    def _given(self) -> builtins.list[tuple[str, Mapping[str, str]]]:
        """The settings that do not come from the database."""
        environment = {
            name: os.environ[variable]
            for name in config.RULES
            if (variable := f"HEADWATER_{name.upper()}") in os.environ
        }
        return [("flag", self._overrides), ("environment", environment)]

    def _refresher(self) -> Refresher:
        return Refresher(self._connection, self._settings(), self._reader, self._dispatch)

    def _lifecycle(self) -> Lifecycle:
        settings = self._settings()
        refresher = Refresher(self._connection, settings, self._reader, self._dispatch)
        return Lifecycle(self._connection, settings, self._reader, refresher)


def connect(dsn: str | None = None, **settings: str) -> Headwater:
    """Connects to a database; without a DSN, to the one in the environment variable HEADWATER_DSN."""
    chosen = dsn or os.environ.get("HEADWATER_DSN")
    if not chosen:
        raise ConnectionFailed("no database was given", hint="pass a DSN, or set HEADWATER_DSN")
    return Headwater(chosen, {name: str(value) for name, value in settings.items()})
