"""Creating stream tables and replacing their queries.

Creating takes two transactions. The first makes the definition view, plans, installs capture and leaves a row
with status `initializing`; when it commits, every later write to the sources is captured. The second takes
its snapshot after that, loads, and makes the stream table readable. Between them the creator holds a session
lock, which proves that it is alive (see `drop`).

A query is replaced in the same two transactions; `replace` describes the differences.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import psycopg

from headwater.apply import storage, swap
from headwater.capture.registry import LIFECYCLE_LOCK
from headwater.catalog import history, installed
from headwater.catalog import stream_tables as catalog
from headwater.catalog.history import Applied, Outcome
from headwater.catalog.stream_tables import StreamTable
from headwater.clock import Phases
from headwater.config import storable
from headwater.db.connection import DEPENDENT_OBJECTS, Connection, one, retried, transaction, translated
from headwater.db.queries import query
from headwater.db.route import Route
from headwater.definition.reader import Definition, DefinitionReader
from headwater.definition.views import definition_oid
from headwater.engine.select import Decision
from headwater.errors import (
    AlreadyExists,
    CyclicDependency,
    HeadwaterError,
    InvalidName,
    InvalidQuery,
    NotFound,
    NotIncremental,
    RefreshFailed,
)
from headwater.lifecycle.alter import Alteration
from headwater.lifecycle.drop import CREATOR_LOCK, Removal, being_created, initializing
from headwater.lifecycle.options import Options, checked_options
from headwater.lifecycle.replace import Replacement, Unchanged
from headwater.lifecycle.validate import Admission
from headwater.plan.quoting import identifier
from headwater.plan.storage_plan import MaintenancePlan
from headwater.refresh import incidents
from headwater.refresh.compare import PlanRefuted
from headwater.refresh.dependencies import effective_mode, register
from headwater.refresh.transaction import Refresher


@dataclass(frozen=True)
class Place:
    """Where a new definition goes: under a free name, or in the place of a stream table."""

    schema: str
    table: str
    replaced: StreamTable | None = None

    @property
    def label(self) -> str:
        return self.replaced.label if self.replaced is not None else f"{self.schema}.{self.table}"

    @property
    def what(self) -> str:
        """The beginning of error messages."""
        return f"{'create' if self.replaced is None else 'replace the query of'} {self.label}"


class Creation:
    """Creates stream tables, each in two transactions."""

    def __init__(
        self,
        connection: Connection,
        lock_attempts: int,
        reader: DefinitionReader,
        refresher: Refresher,
        route: Route,
    ) -> None:
        self._connection = connection
        self._lock_attempts = lock_attempts
        self._reader = reader
        self._refresher = refresher
        self._route = route
        self._admission = Admission(connection, reader)
        self._alteration = Alteration(connection, lock_attempts, reader, refresher)
        self._removal = Removal(connection, lock_attempts)
        self._replacement = Replacement(connection, lock_attempts, refresher, self._removal)

    def create(
        self, name: str, text: str, options: Options, *, or_replace: bool = False, cascade: bool = False
    ) -> StreamTable:
        """Create a stream table and load it; with or_replace, replace one of that name."""
        options = self._checked(name, options)
        schema, table = catalog.split_name(name)
        if schema is None:
            schemas = catalog.user_schemas(self._connection)
            if not schemas:
                raise InvalidName(
                    f"{name} has no schema, and the search_path names none that exists",
                    hint=f"write schema.{table}",
                )
            schema = schemas[0]
        if or_replace:
            with suppress(NotFound):
                found = catalog.find(self._connection, f"{identifier(schema)}.{identifier(table)}")
                if found.status != "initializing":
                    return self.replace(found, text, options, cascade=cascade)
        created = self._build(Place(schema, table), text, options, cascade=False)
        self._refresher.fast_path.compile_missing({created.id: ""})
        return created

    def replace(
        self, stream_table: StreamTable, text: str, options: Options, *, cascade: bool = False
    ) -> StreamTable:
        """Give a stream table another query and options; cascade drops dependents that do not fit."""
        options = self._checked(stream_table.label, options)
        if stream_table.status == "initializing":
            raise being_created(stream_table.schema, stream_table.name)
        if stream_table.relation is None:
            raise InvalidQuery(
                f"{stream_table.label} cannot get another query: the view that shows it was dropped",
                hint="headwater repair, which shows it again, and then repeat this;"
                f" or headwater drop {stream_table.label}, then create it again",
            )
        place = Place(storage.DATA, storage.storage_name(stream_table.id), stream_table)
        try:
            return self._build(place, text, options, cascade=cascade)
        except Unchanged:
            self._connection.execute(query("catalog", "set_query"), {"id": stream_table.id, "query": text})
            return self._alteration.alter(
                stream_table,
                mode=options.mode,
                engine=options.engine,
                schedule=options.schedule,
                unscheduled=options.schedule is None,
                tier=options.tier,
            )

    def reload(self, stream_table: StreamTable, reason: str) -> None:
        """Load a stream table whose view or storage is gone, and show it under its name again.

        Its readers must be repaired next: its changes are gone. A view that somebody put in its place may
        have to be dropped for the right one, so the definitions that read that view are dropped first.
        """

        def attempt() -> None:
            with transaction(self._connection):
                storage.drop(self._connection, stream_table.id)
                self._removal.drop_own_changes(stream_table.id)
                distrusted = {"id": stream_table.id, "reason": f"{stream_table.label} was repaired: {reason}"}
                readers = self._connection.execute(query("repair", "distrust_readers"), distrusted).fetchall()
                for (reader,) in readers if stream_table.relation is not None else ():
                    self._removal.drop_definition(reader)
                self._connection.execute(
                    query("repair", "give_up_followers"), {"id": stream_table.id, "reason": reason}
                )
            place = Place(stream_table.schema, stream_table.name)
            self._load_checked(stream_table.id, place, cascade=False, reason=reason)

        what = f"repair of {stream_table.label}"
        try:
            retried(attempt, what=what, attempts=self._lock_attempts)
        except psycopg.Error as error:
            failure = translated(error, what, RefreshFailed)
            if error.sqlstate == DEPENDENT_OBJECTS:
                failure.hint = "drop these, repeat headwater repair, and create them again"
            raise failure from error

    def _checked(self, label: str, options: Options) -> Options:
        """Return checked options for a creation by this session, and so in its time zone."""
        time_zone = self._connection.info.parameter_status("TimeZone")
        return checked_options(label, options, time_zone or "UTC")

    def _build(self, place: Place, text: str, options: Options, *, cascade: bool) -> StreamTable:
        if not storable(text):
            raise InvalidQuery(
                f"{place.what}: the query has a character that PostgreSQL cannot store", hint="leave it out"
            )
        self._removal.clear_dead_creation(place.schema, place.table)
        with self._route.session_of(self._connection, place.what) as session:
            return self._build_in(session, place, text, options, cascade=cascade)

    def _build_in(
        self, session: Connection, place: Place, text: str, options: Options, *, cascade: bool
    ) -> StreamTable:
        """Run both transactions; between them, a session lock proves that the creator is alive."""
        try:
            candidate = retried(
                lambda: self._prepare(session, place, text, options, cascade=cascade),
                what=place.what,
                attempts=self._lock_attempts,
            )
        except psycopg.Error as error:
            raise translated(error, place.what, InvalidQuery) from error
        try:
            self._load_checked(candidate, place, cascade=cascade, refuse=options.mode == "differential")
        except (Exception, KeyboardInterrupt) as error:
            left = self._clear_away(session, candidate, f"{place.schema}.{place.table}")
            if isinstance(error, psycopg.Error):
                kept = "" if left else ", nothing was kept"
                kept = kept if place.replaced is None else ", it stays as it was"
                failure = translated(error, f"{place.what}: loading failed{kept}", InvalidQuery)
                failure.hint = left or failure.hint
                self._replacement.record_failure(place.replaced, failure, error)
                raise failure from error
            self._replacement.record_failure(place.replaced, error, error)
            raise
        _unlock_creator(session, candidate)
        if place.replaced is None:
            return catalog.stream_table(self._connection, candidate)
        self._replacement.tidy(place.replaced.id)
        return catalog.stream_table(self._connection, place.replaced.id)

    def _prepare(
        self, session: Connection, place: Place, text: str, options: Options, *, cascade: bool = False
    ) -> int:
        """Run the first transaction; return the id with the creator's session lock held."""
        connection, replaced = self._connection, place.replaced
        candidate: int | None = None
        try:
            with transaction(connection):
                connection.execute("SELECT pg_advisory_xact_lock(%s)", (LIFECYCLE_LOCK,))
                installed.hold_version(connection)
                if replaced is None:
                    self._admission.check_free(place.schema, place.table)
                elif initializing(connection, place.schema, place.table) is not None:
                    raise AlreadyExists(
                        f"{place.what}: another session is replacing it", hint="wait for it to finish"
                    )
                candidate = one(
                    connection,
                    query("catalog", "insert_stream_table"),
                    {
                        "schema": place.schema,
                        "name": place.table,
                        "query": text,
                        "mode": options.mode,
                        "engine": options.engine,
                        "schedule": options.schedule,
                        "tier": options.tier,
                    },
                )[0]
                session.execute("SELECT pg_advisory_lock(%s, %s)", (CREATOR_LOCK, candidate))
                view = self._admission.create_definition(candidate, text, place.label, place.what)
                definition = self._reader.read(view)
                self._admission.check_definition(place.what, definition)
                mode = effective_mode(place.label, options.mode, definition)
                if mode == "differential":
                    self._admission.check_triggers(place.what, definition)
                if replaced is not None:
                    self._replacement.check_unchanged(replaced, candidate, view, definition)
                    self._replacement.in_the_way(replaced, view, cascade=cascade)
                register(connection, candidate, place.label, definition, mode)
                if replaced is not None and replaced.id in catalog.upstream_of(connection, candidate):
                    raise CyclicDependency(
                        f"{place.what}: it would depend on itself",
                        hint="the new query reads it, directly or through what reads it",
                    )
                # Protects the change rows after this moment, until the load has its own snapshot.
                connection.execute(query("catalog", "set_frontier"), {"id": candidate})
        except BaseException:
            if candidate is not None and not session.closed:
                _unlock_creator(session, candidate)
            raise
        return candidate

    def _load_checked(
        self,
        candidate: int,
        place: Place,
        *,
        cascade: bool,
        refuse: bool = False,
        reason: str = "it was created",
    ) -> None:
        """Load by the plan; if its rows differ from the query's, refuse it or load from the query."""

        def load() -> None:
            retried(
                lambda: self._reader.prepared(
                    lambda: self._load(candidate, place, cascade=cascade, reason=reason)
                ),
                what=place.what,
                attempts=self._lock_attempts,
            )

        try:
            load()
        except PlanRefuted as refuted:
            if refuse:
                self._refresher.record_incident(candidate, place.label, refuted.difference)
                raise NotIncremental(
                    f"{place.label} cannot be maintained incrementally: {refuted.message}",
                    detail=refuted.detail,
                    hint=f"use mode auto or full to recompute it at each refresh; {refuted.hint}",
                ) from refuted
            self._refresher.hold(candidate, place.label, "load", refuted.difference)
            load()

    def _load(self, candidate: int, place: Place, *, cascade: bool, reason: str) -> None:
        """Run the second transaction: load the rows, at a snapshot that becomes the first frontier."""
        connection, refresher, phases = self._connection, self._refresher, Phases()
        loaded = catalog.stream_table(connection, candidate)
        replaced = catalog.stream_table(connection, place.replaced.id) if place.replaced is not None else None
        shown = replaced or loaded
        closure = catalog.closure(connection, candidate)
        with transaction(connection, repeatable_read=True):
            refresher.begin(shown.id, closure)
            installed.hold_version(connection)
            if replaced is not None:
                swap.hold(connection, (replaced.schema, replaced.name))
                refresher.members.lock(replaced)
            # At once, because a refresh that finds nothing to do may move it without that lock.
            connection.execute(query("catalog", "set_frontier"), {"id": shown.id})
            with phases.measure("plan"):
                connection.execute("SELECT set_config('TimeZone', %s, true)", (loaded.time_zone,))
                view = definition_oid(connection, candidate)
                definition = self._reader.current(candidate)
            going: tuple[list[int], list[str]] = ([], [])
            if replaced is not None:
                going = self._replacement.in_the_way(replaced, view, cascade=cascade)
            first = refresher.members.loader.load(
                loaded,
                definition,
                loaded.mode,
                storage.storage_sql(candidate),
                phases,
                partial(self._decide, loaded, replaced, definition),
            )
            fingerprint = {"id": candidate, "fingerprint": definition.fingerprint(first.mode)}
            connection.execute(query("catalog", "set_fingerprint"), fingerprint)
            if replaced is None:
                view_name = (loaded.schema, loaded.name)
                relation, _ = swap.show(connection, view_name, loaded.relation, candidate, first.plan)
                connection.execute(query("catalog", "set_active"), {"id": candidate, "relation": relation})
                connection.execute(query("catalog", "set_rebuild_reason"), {"id": candidate, "reason": None})
            else:
                with phases.measure("apply"):
                    said = self._replacement.take_over(replaced, candidate, definition, first.plan, *going)
                reason = "; ".join(["its query was replaced", *said])
            if first.failure is not None:
                reason = f"{reason}; {first.failure.reason}"
            decision, traffic = first.decision, first.traffic
            incidents.record_load(connection, shown.id, first.check)
            history.record(
                connection,
                Outcome(
                    stream_table=shown.label,
                    stream_table_id=shown.id,
                    action="load",
                    mode="full",
                    engine=decision.engine,
                    engine_reason=decision.reason,
                    fell_back=decision.fell_back,
                    bytes_in=traffic.bytes_read if traffic and traffic.known else None,
                    bytes_out=traffic.bytes_written if traffic else None,
                    reason=reason,
                    elapsed=phases.elapsed,
                    snapshot=one(connection, "SELECT pg_current_snapshot()::text")[0],
                    rows_in=first.rows,
                    applied=Applied(inserted=first.rows),
                    sqlstate=first.failure.sqlstate if first.failure is not None else None,
                    phases=phases.milliseconds,
                ),
            )

    def _decide(
        self,
        loaded: StreamTable,
        replaced: StreamTable | None,
        definition: Definition,
        plan: MaintenancePlan,
    ) -> Decision:
        if replaced is not None and self._refresher.members.has_readers(replaced):
            return Decision("postgres", "those that read it need the difference")
        return self._refresher.members.loader.decide_load(loaded, definition, plan)

    def _clear_away(self, session: Connection, stream_table_id: int, label: str) -> str:
        """Remove what the first transaction made; return a hint if that fails, not to hide the cause."""
        if self._connection.closed:
            return ""
        try:
            if catalog.stream_tables(self._connection, [stream_table_id]):
                self._removal.remove(stream_table_id, cascade=False)
        except (psycopg.Error, HeadwaterError):
            return f"what was prepared could not be removed yet: headwater drop {label} does it"
        finally:
            if not session.closed:
                _unlock_creator(session, stream_table_id)
        return ""


def _unlock_creator(session: Connection, stream_table_id: int) -> None:
    session.execute("SELECT pg_advisory_unlock(%s, %s)", (CREATOR_LOCK, stream_table_id))
