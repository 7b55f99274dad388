"""The Python interface: `headwater.connect(dsn)`, and the verbs of the command line as methods."""

from __future__ import annotations

import builtins
import logging
import os
import time
from collections.abc import Callable, Mapping

import psycopg

from headwater.catalog import installed, jobs
from headwater.catalog import settings as catalog_settings
from headwater.catalog import stream_tables as catalog
from headwater.catalog.history import Outcome
from headwater.catalog.stream_tables import EngineName, Mode, StreamTable, TierChoice
from headwater.db.connection import bound, transaction
from headwater.definition.reader import DefinitionReader
from headwater.definition.views import definition_oid
from headwater.engine.select import EngineSelector
from headwater.errors import AlreadyExists, ConnectionFailed, NotFound, Suspended
from headwater.handle import Handle, verb
from headwater.inspect.explain import Explanation, explain
from headwater.inspect.verify import Verification, verify
from headwater.install import migrate, uninstall
from headwater.install.uninstall import Installation
from headwater.install.upgrade import upgrade
from headwater.lifecycle.alter import Alteration
from headwater.lifecycle.create import Creation
from headwater.lifecycle.drop import Removal
from headwater.lifecycle.options import Options, altered_options
from headwater.lifecycle.repair import Repair, Repaired
from headwater.plan.quoting import literal
from headwater.refresh.decide import Request
from headwater.refresh.index_advice import MissingIndex, missing_indexes
from headwater.refresh.intermediates import stored_layers
from headwater.refresh.transaction import Refresher

SWEEPING_INTERVAL = 60.0
"""Seconds after which a long-lived handle looks again for what dead processes left behind."""


class Headwater(Handle):
    """A connection to one database with all of Headwater's verbs. Do not share one between threads."""

    def __init__(
        self,
        dsn: str,
        overrides: Mapping[str, str] | None = None,
        progress: Callable[[str], None] | None = None,
        *,
        direct_dsn: str | None = None,
    ) -> None:
        """Connect; `progress` is told about slow operations, such as the start of Spark.

        `direct_dsn` goes past a pooler, for operations that need a session.
        """
        super().__init__(dsn, overrides, direct_dsn=direct_dsn)
        self._reader = DefinitionReader(self._connection)
        self._selector = EngineSelector(self._route, progress)
        self._swept: float | None = None

    # the catalog

    @verb
    def migrate(self) -> builtins.list[int]:
        """Upgrade what an older version installed; return the versions of the catalog that were applied.

        What could not be replaced, because others used it all the time, is logged as a warning.
        """
        applied = migrate.migrate(self._connection)
        state = self._state()
        if not state.restored:  # a restored database is repaired first, which makes all of it again
            settings = self._applied_settings(state)
            for note in upgrade(self._connection, settings.lock_attempts):
                logging.getLogger(__name__).warning("%s", note)
        return applied

    @verb
    def repair(self) -> builtins.list[Repaired]:
        """Repair what a restore from a dump or a DROP … CASCADE damaged; return what became of each."""
        state = self._state()
        installed.require_primary(self._connection)
        settings = self._applied_settings(state)
        refresher = Refresher(self._connection, settings, self._reader, self._selector)
        attempts = settings.lock_attempts
        creation = Creation(self._connection, attempts, self._reader, refresher, self._route)
        repair = Repair(self._connection, attempts, refresher, creation, Removal(self._connection, attempts))
        return repair.run(restored=state.restored)

    @verb
    def installation(self) -> Installation:
        """Return what is installed here of Headwater, even if it is incomplete or of another version."""
        return uninstall.find(self._connection)

    @verb
    def uninstall(self, *, cascade: bool = False) -> builtins.list[str]:
        """Remove everything of Headwater from the database; return what was removed."""
        settings = catalog_settings.effective(installed.State(None), self._overrides, os.environ)
        with self._route.session_of(self._connection, "uninstall") as session:
            bound(session, settings)
            return uninstall.uninstall(session, settings.lock_attempts, cascade=cascade)

    # stream tables

    @verb
    def create(
        self,
        name: str,
        query: str,
        *,
        schedule: str | None = None,
        mode: Mode = "auto",
        engine: EngineName = "auto",
        tier: TierChoice = "auto",
        if_not_exists: bool = False,
        or_replace: bool = False,
        cascade: bool = False,
    ) -> StreamTable:
        """Create a stream table from a query and load it; with or_replace, replace one of that name.

        With cascade, dependents of the replaced one that do not fit the new columns are dropped.
        """
        self._sweep(now=True)
        creation = self._creation()
        options = Options(mode=mode, engine=engine, schedule=schedule, tier=tier)
        try:
            return creation.create(name, query, options, or_replace=or_replace, cascade=cascade)
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

    @verb
    def alter(
        self,
        name: str,
        *,
        query: str | None = None,
        mode: Mode | None = None,
        engine: EngineName | None = None,
        schedule: str | None = None,
        unscheduled: bool = False,
        tier: TierChoice | None = None,
        cascade: bool = False,
    ) -> StreamTable:
        """Change the query and the options that are given; cascade drops what does not fit a new query."""
        self._sweep()
        if query is None:
            alteration = self._alteration()
            return alteration.alter(
                catalog.find(self._connection, name),
                mode=mode,
                engine=engine,
                schedule=schedule,
                unscheduled=unscheduled,
                tier=tier,
            )
        creation = self._creation()
        jobs.sweep(self._connection)
        found = catalog.find(self._connection, name)
        options = altered_options(
            found, mode=mode, engine=engine, schedule=schedule, unscheduled=unscheduled, tier=tier
        )
        return creation.replace(found, query, options, cascade=cascade)

    @verb
    def drop(self, name: str, *, cascade: bool = False) -> builtins.list[str]:
        """Drop a stream table; return the names of everything that was dropped."""
        removal = self._removal()
        dropped = removal.drop(catalog.find(self._connection, name), cascade=cascade)
        self._sweep(now=True)  # after the drop, which itself finds by name what a dead creator left
        return dropped

    @verb
    def refresh(
        self, name: str, *, full: bool = False, engine: EngineName | None = None
    ) -> builtins.list[Outcome]:
        """Refresh a stream table and those it reads; the last outcome is its own."""
        self._sweep()
        refresher = self._refresher()
        stream_table = catalog.find(self._connection, name)
        self._require_resumed(stream_table)
        return refresher.refresh(stream_table, Request(full=full, engine=engine))

    @verb
    def suspend(self, name: str, reason: str | None = None) -> StreamTable:
        """Stop refreshes of a stream table and of its readers until it is resumed; capture goes on."""
        alteration = self._alteration()
        return alteration.suspend(catalog.find(self._connection, name), reason)

    @verb
    def resume(self, name: str) -> StreamTable:
        """Allow refreshes of a suspended stream table again, from where it was."""
        alteration = self._alteration()
        return alteration.resume(catalog.find(self._connection, name))

    def start_spark(self) -> None:
        """Start Spark in the background, so that the first refresh on Spark need not wait for it."""
        from headwater.engine.spark.runtime.session import runtime

        runtime().start_in_background(self._settings())

    @verb
    def verify(self, name: str) -> Verification:
        """Compare a stream table with its query at one snapshot."""
        settings, refresher = self._settings(), self._refresher()
        return verify(self._connection, settings, refresher, self._intact(name))

    @verb
    def explain(self, name: str) -> Explanation:
        """Explain what a refresh would do, and why."""
        refresher = self._refresher()
        return explain(self._connection, refresher, self._intact(name))

    @verb
    def missing_indexes(self, name: str) -> builtins.list[MissingIndex]:
        """Return indexes on sources that would turn scans of a refresh into look-ups; creates none."""
        refresher = self._refresher()
        found = self._intact(name)
        with transaction(self._connection, rollback=True):
            definition = refresher.reader.read(definition_oid(self._connection, found.id))
            if definition.mode_for(found.mode) == "full":
                return []
            layers = stored_layers(self._connection, found.id, definition)
            return builtins.list(missing_indexes(self._connection, layers))

    # parts

    def _sweep(self, *, now: bool = False) -> None:
        """Remove what dead processes left behind: at the start, then once a minute, or now."""
        started = time.monotonic()
        if not now and self._swept is not None and started - self._swept < SWEEPING_INTERVAL:
            return
        removal = self._removal()
        try:
            jobs.sweep(self._connection)
            removal.sweep()
        except psycopg.Error:
            if self._connection.closed:
                raise
        self._swept = started

    def _intact(self, name: str) -> StreamTable:
        """Return the stream table of a name; raise if a part of it is missing."""
        found = catalog.find(self._connection, name)
        if (error := catalog.broken(self._connection, found)) is not None:
            raise error
        return found

    def _require_resumed(self, stream_table: StreamTable) -> None:
        """Raise if the stream table or one that it reads is suspended; if that one is also broken, say so."""
        for found in catalog.suspended(self._connection, stream_table.id):
            if (error := catalog.broken(self._connection, found)) is not None:
                raise error
            reads = "" if found.id == stream_table.id else f" reads {found.label}, which"
            raise Suspended(
                f"{stream_table.label}{reads} is suspended",
                detail=found.suspended_reason or "",
                hint=f"headwater resume {found.label},"
                f" or CALL headwater.resume_stream_table({literal(found.label)})",
            )

    def _refresher(self) -> Refresher:
        return Refresher(self._connection, self._settings(writing=True), self._reader, self._selector)

    def _creation(self) -> Creation:
        settings = self._settings(writing=True)
        refresher = Refresher(self._connection, settings, self._reader, self._selector)
        return Creation(self._connection, settings.lock_attempts, self._reader, refresher, self._route)

    def _alteration(self) -> Alteration:
        settings = self._settings(writing=True)
        refresher = Refresher(self._connection, settings, self._reader, self._selector)
        return Alteration(self._connection, settings.lock_attempts, self._reader, refresher)

    def _removal(self) -> Removal:
        return Removal(self._connection, self._settings(writing=True).lock_attempts)


def connect(dsn: str | None = None, *, direct_dsn: str | None = None, **settings: str) -> Headwater:
    """Connect to a database; without a DSN, to the one in the environment variable HEADWATER_DSN.

    `direct_dsn`, or HEADWATER_DIRECT_DSN, goes past a pooler, for operations that need a session.
    """
    chosen = dsn or os.environ.get("HEADWATER_DSN")
    if not chosen:
        raise ConnectionFailed("no database was given", hint="pass a DSN, or set HEADWATER_DSN")
    return Headwater(
        chosen,
        {name: str(value) for name, value in settings.items()},
        direct_dsn=direct_dsn or os.environ.get("HEADWATER_DIRECT_DSN"),
    )
