"""A connection to one database, with the verbs that need neither the parser nor an engine.

`headwater.api` adds the others. They are separate so that a program that only reads, such as `headwater
list`, starts without loading them.
"""

from __future__ import annotations

import builtins
import functools
import os
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Concatenate, ParamSpec, Self, TypeVar

import psycopg

from headwater import config
from headwater.catalog import history, incidents, installed, jobs
from headwater.catalog import settings as catalog_settings
from headwater.catalog import stream_tables as catalog
from headwater.catalog.choices import BucketLength
from headwater.catalog.history import HistoryEntry, HistorySum
from headwater.catalog.incidents import Incident
from headwater.catalog.jobs import RunningJob
from headwater.config import Setting, Settings
from headwater.db.connection import Connection, TryAgain, bound, repeatedly_overtaken, translated
from headwater.db.route import Route
from headwater.errors import HeadwaterError
from headwater.inspect.overview import Overview, OverviewReader
from headwater.inspect.status import StreamTableStatus, statuses
from headwater.install import migrate, privileges
from headwater.install.privileges import Check

Bound = TypeVar("Bound", bound="Handle")
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def verb(
    method: Callable[Concatenate[Bound, Parameters], Result],
) -> Callable[Concatenate[Bound, Parameters], Result]:
    """Translate errors of the server that the modules below do not expect, such as its shutdown."""

    @functools.wraps(method)
    def told(handle: Bound, /, *arguments: Parameters.args, **options: Parameters.kwargs) -> Result:
        try:
            return method(handle, *arguments, **options)
        except TryAgain as error:
            raise repeatedly_overtaken(method.__name__, error) from error
        except psycopg.Error as error:
            raise translated(error, method.__name__, HeadwaterError) from error

    return told


class Handle:
    """A connection to one database. Do not share one between threads."""

    def __init__(
        self,
        dsn: str,
        overrides: Mapping[str, str] | None = None,
        *,
        direct_dsn: str | None = None,
    ) -> None:
        """Connect; `direct_dsn` goes past a pooler, for operations that need a session."""
        self._overrides = dict(overrides or {})
        self._route = Route.given(dsn, direct_dsn, self._overrides, os.environ)
        self._connection = self._route.connect()
        self._applied: Settings | None = None
        self._overviews = OverviewReader(self._connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    @property
    def connection(self) -> Connection:
        """The connection itself, in autocommit; its search_path contains no schema of users."""
        return self._connection

    # the catalog

    @verb
    def init(self) -> bool:
        """Install the catalog; return False if it was installed already."""
        return migrate.install(self._connection)

    @verb
    def check(self) -> builtins.list[Check]:
        """Return every privilege that Headwater needs here, and whether this role has it."""
        return privileges.check(self._connection)

    @verb
    def settings(self) -> builtins.list[Setting]:
        """Return every setting with its value and where it came from."""
        return catalog_settings.listed(self._state(), self._overrides, os.environ)

    @verb
    def effective_settings(self) -> Settings:
        """Return the effective settings, as one object."""
        return self._settings()

    @verb
    def set(self, name: str, value: str) -> None:
        """Store a setting in the database."""
        installed.require_current(self._connection)
        installed.require_primary(self._connection)
        stored = config.written(config.checked(name, value))
        config.check_storable(name)
        self._connection.execute(
            "INSERT INTO headwater.setting (name, value) VALUES (%s, %s)"
            " ON CONFLICT (name) DO UPDATE SET value = excluded.value, changed_at = clock_timestamp(),"
            " changed_by = current_user",
            (name.removeprefix(config.PREFIX), stored),
        )

    # the service

    def drain(self) -> None:
        """Let the service start no more refreshes in this database; capture goes on."""
        self.set("drain", "on")

    def undrain(self) -> None:
        """End drain: the service starts refreshes again."""
        self.set("drain", "off")

    @verb
    def cancel(self, name: str) -> builtins.list[RunningJob]:
        """Cancel the running refreshes of a stream table; return them."""
        installed.require_current(self._connection)
        return jobs.cancel(self._connection, catalog.find(self._connection, name))

    # reading

    @verb
    def list(self) -> builtins.list[StreamTableStatus]:
        """Return every stream table."""
        settings = self._settings()
        return statuses(self._connection, None, settings)

    @verb
    def status(self, name: str) -> StreamTableStatus:
        """Return one stream table."""
        settings = self._settings()
        found = catalog.find(self._connection, name)
        return statuses(self._connection, [found.id], settings)[0]

    @verb
    def overview(self) -> Overview:
        """Return all stream tables and the service at a glance; cheap enough to call each second."""
        return self._overviews.read(self._settings())

    @verb
    def history(self, name: str | None = None, *, limit: int = 20) -> builtins.list[HistoryEntry]:
        """Return the latest refreshes, newest first."""
        installed.require_current(self._connection)
        stream_table_id = catalog.find(self._connection, name).id if name is not None else None
        return history.recent(self._connection, stream_table_id, limit)

    @verb
    def history_sums(
        self, name: str | None = None, *, by: BucketLength = "hour", limit: int = 20
    ) -> builtins.list[HistorySum]:
        """Return sums of refreshes by the minute or the hour in which they finished, newest first."""
        installed.require_current(self._connection)
        stream_table_id = catalog.find(self._connection, name).id if name is not None else None
        return history.sums(self._connection, stream_table_id, by, limit)

    @verb
    def audits(self, name: str | None = None, *, limit: int = 20) -> builtins.list[Incident]:
        """Return the latest incidents, newest first: a stream table or its plan differed from its query."""
        installed.require_current(self._connection)
        stream_table_id = catalog.find(self._connection, name).id if name is not None else None
        return incidents.recent(self._connection, stream_table_id, limit)

    # parts

    def _settings(self, *, writing: bool = False) -> Settings:
        """Return the effective settings, and apply to the session those that concern it."""
        state = self._state()
        installed.require_repaired(state)
        if writing and state.read_only:
            installed.require_primary(self._connection)
        return self._applied_settings(state)

    def _applied_settings(self, state: installed.State) -> Settings:
        settings = catalog_settings.effective(state, self._overrides, os.environ)
        if settings != self._applied:
            bound(self._connection, settings)
            self._applied = settings
        return settings

    def _state(self) -> installed.State:
        """Return the state of the database; raise unless its catalog has the right version."""
        state = installed.read_state(self._connection)
        installed.require_version(state.version)
        return state
