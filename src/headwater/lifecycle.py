"""Creating, altering and dropping stream tables.

Creating takes two transactions. The first makes the definition view, plans, installs capture and leaves a
row with status `initializing`; when it commits, every later write to the sources is captured. The second
takes its snapshot after that, loads, and makes the stream table readable. Between them the creator holds a
session lock; a row without it was left by a creator that died. Whoever starts next clears it away (`sweep`),
for until then writers pay for its capture and change rows are kept for it.

Replacing the query of a stream table is the same, but for its end. A candidate is created beside it, with a
definition, capture and storage of its own, under the name of the storage that it is to replace. The second
transaction locks the stream table as a refresh of it does, so that none commits on the old definition later.
Once all is loaded, the stream table takes over what the candidate has: its storage goes under the view, its
definition and dependencies get the stream table's number. Until that commits, the old one is as it was.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import LiteralString, get_args

import psycopg
from psycopg import sql

from headwater import catalog, history
from headwater.apply import storage, succession
from headwater.apply.merge import Applied
from headwater.capture import consumers
from headwater.capture.registry import LIFECYCLE_LOCK, release_superfluous, share_patience
from headwater.capture.triggers import CHANGES
from headwater.catalog import EngineName, Mode, StreamTable, Tier, TierChoice
from headwater.clock import Phases
from headwater.config import Settings, storable
from headwater.db import install
from headwater.db.connection import (
    DEPENDENT_OBJECTS,
    PINNED_SETTINGS,
    Connection,
    one,
    retried,
    transaction,
    translated,
)
from headwater.db.queries import query
from headwater.db.route import Route
from headwater.db.work import Scratch, prefix_of, statement
from headwater.definition import (
    DEFINITIONS,
    Definition,
    DefinitionReader,
    ReadRelation,
    definition_name,
    definition_oid,
    find_definition,
    new_definition_name,
    same_meaning,
)
from headwater.engine.dispatch import Decision
from headwater.errors import (
    AlreadyExists,
    CyclicDependency,
    DependentsExist,
    HeadwaterError,
    InvalidName,
    InvalidQuery,
    InvalidSetting,
    InvalidSource,
    LockNotAvailable,
    MissingPrivilege,
    NotFound,
    RefreshFailed,
)
from headwater.history import Outcome
from headwater.plan.dialect import identifier
from headwater.plan.maintain import HIDDEN, BagPlan, MaintenancePlan
from headwater.plan.scope import SYSTEM_COLUMNS
from headwater.refresh import Refresher, Request
from headwater.registration import effective_mode, register, register_anew
from headwater.scheduling.schedules import normalized

CREATOR_LOCK = 1_214_607
"""Class of the session locks that creators hold, one for each stream table."""
SWEEPING_LOCK_TIMEOUT = "50ms"
"""So long writers may have to wait behind who clears away; what is not had by then, the next one gets."""
INVALID_TABLE_DEFINITION = "42P16"


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a user may choose for a stream table."""

    mode: Mode = "auto"
    engine: EngineName = "auto"
    schedule: str | None = None
    tier: TierChoice = "auto"


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
        """How errors begin."""
        return f"{'create' if self.replaced is None else 'replace the query of'} {self.label}"


class _Unchanged(Exception):
    """The query that is to replace another one is the same."""


class Lifecycle:
    """Changes to which stream tables there are."""

    def __init__(
        self,
        connection: Connection,
        settings: Settings,
        reader: DefinitionReader,
        refresher: Refresher,
        route: Route,
    ) -> None:
        self._connection = connection
        self._settings = settings
        self._reader = reader
        self._refresher = refresher
        self._route = route

    # create and replace

    def create(
        self, name: str, text: str, options: Options, *, or_replace: bool = False, cascade: bool = False
    ) -> StreamTable:
        """Creates a stream table and loads it; with or_replace in place of one of that name."""
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
        return self._build(Place(schema, table), text, options, cascade=False)

    def replace(
        self, stream_table: StreamTable, text: str, options: Options, *, cascade: bool = False
    ) -> StreamTable:
        """Gives a stream table another query and options, in place; cascade drops what would not fit it."""
        options = self._checked(stream_table.label, options)
        if stream_table.status == "initializing":
            raise _being_created(stream_table.schema, stream_table.name)
        if stream_table.relation is None:
            raise InvalidQuery(
                f"{stream_table.label} cannot get another query: the view that shows it was dropped",
                hint=f"headwater drop {stream_table.label}, then create it again",
            )
        place = Place(storage.DATA, storage.storage_name(stream_table.id), stream_table)
        try:
            return self._build(place, text, options, cascade=cascade)
        except _Unchanged:
            self._connection.execute(query("catalog", "set_query"), {"id": stream_table.id, "query": text})
            return self.alter(
                stream_table,
                mode=options.mode,
                engine=options.engine,
                schedule=options.schedule,
                unscheduled=options.schedule is None,
                tier=options.tier,
            )

    def _build(self, place: Place, text: str, options: Options, *, cascade: bool) -> StreamTable:
        if not storable(text):
            raise InvalidQuery(
                f"{place.what}: the query has a character that PostgreSQL cannot store", hint="leave it out"
            )
        self.clear_dead_creation(place.schema, place.table)
        with self._route.session_of(self._connection, place.what) as session:
            return self._build_in(session, place, text, options, cascade=cascade)

    def _build_in(
        self, session: Connection, place: Place, text: str, options: Options, *, cascade: bool
    ) -> StreamTable:
        """In two transactions, between which the session says by a lock that their creator lives."""
        try:
            candidate = retried(
                lambda: self._prepare(session, place, text, options, cascade=cascade),
                what=place.what,
                attempts=self._settings.lock_attempts,
            )
        except psycopg.Error as error:
            raise translated(error, place.what, InvalidQuery) from error
        try:
            retried(
                lambda: self._load(candidate, place, cascade=cascade),
                what=place.what,
                attempts=self._settings.lock_attempts,
            )
        except (Exception, KeyboardInterrupt) as error:
            left = self._clear_away(session, candidate, f"{place.schema}.{place.table}")
            if isinstance(error, psycopg.Error):
                kept = "" if left else ", nothing was kept"
                kept = kept if place.replaced is None else ", it stays as it was"
                failure = translated(error, f"{place.what}: loading failed{kept}", InvalidQuery)
                failure.hint = left or failure.hint
                self._record_failure(place, failure, error)
                raise failure from error
            self._record_failure(place, error, error)
            raise
        _unlock_creator(session, candidate)
        if place.replaced is None:
            return catalog.stream_table(self._connection, candidate)
        self._tidy(place.replaced.id)
        return catalog.stream_table(self._connection, place.replaced.id)

    def _prepare(
        self, session: Connection, place: Place, text: str, options: Options, *, cascade: bool = False
    ) -> int:
        """The first transaction; returns the id with the creator's session lock held."""
        connection, replaced = self._connection, place.replaced
        candidate: int | None = None
        try:
            with transaction(connection):
                connection.execute("SELECT pg_advisory_xact_lock(%s)", (LIFECYCLE_LOCK,))
                install.hold_version(connection)
                if replaced is None:
                    self._check_free(place.schema, place.table)
                elif self._initializing(place.schema, place.table) is not None:
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
                view = self._create_definition(candidate, text, place)
                definition = self._reader.read(view)
                self._check_definition(place.what, definition)
                mode = effective_mode(place.label, options.mode, definition)
                if mode == "differential":
                    self._check_triggers(place.what, definition)
                if replaced is not None:
                    self._check_unchanged(replaced, candidate, view)
                    self._in_the_way(replaced, view, cascade=cascade)
                register(connection, candidate, place.label, definition, mode)
                if replaced is not None and replaced.id in catalog.upstream_of(connection, candidate):
                    raise CyclicDependency(
                        f"{place.what}: it would depend on itself",
                        hint="the new query reads it, directly or through what reads it",
                    )
                # Protects the change rows after this moment until the load has its own snapshot.
                connection.execute(query("catalog", "set_frontier"), {"id": candidate})
        except BaseException:
            if candidate is not None and not session.closed:
                _unlock_creator(session, candidate)
            raise
        return candidate

    def _check_unchanged(self, replaced: StreamTable, candidate: int, view: int) -> None:
        """Raises _Unchanged if a candidate is what it is to replace."""
        present = find_definition(self._connection, replaced.id)
        time_zone = catalog.stream_table(self._connection, candidate).time_zone
        if present is None or time_zone != replaced.time_zone:
            return
        if same_meaning(self._connection, present, view):
            raise _Unchanged

    def _in_the_way(self, replaced: StreamTable, view: int, *, cascade: bool) -> tuple[list[int], list[str]]:
        """The stream tables and consumers that must go for a new definition: none if the columns stay.

        Raises if that is not allowed, or if views of users' own would have to go.
        """
        connection, relation = self._connection, replaced.relation
        assert relation is not None
        if succession.fits(connection, relation, view):
            return [], []
        members = catalog.with_dependents(connection, replaced.id)
        readers = [member for member in members if member != replaced.id]
        followers = consumers.names(connection, members)
        what = f"replace the query of {replaced.label}: {succession.misfit(connection, relation, view)}"
        remedy = "keep the columns that there are, in their order, and add new ones at the end"
        views = succession.dependents(connection, relation, DEFINITIONS)
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

    def _check_free(self, schema: str, table: str) -> None:
        connection = self._connection
        if not one(connection, "SELECT to_regnamespace(quote_ident(%s)) IS NOT NULL", (schema,))[0]:
            raise InvalidName(f"there is no schema {schema}", hint=f"CREATE SCHEMA {identifier(schema)}")
        if not one(connection, "SELECT has_schema_privilege(%s, 'CREATE')", (schema,))[0]:
            role = one(connection, "SELECT current_user")[0]
            raise MissingPrivilege(
                f"role {role} may not create {schema}.{table}: it lacks CREATE on the schema",
                hint=f"GRANT CREATE ON SCHEMA {identifier(schema)} TO {identifier(role)}",
            )
        row = connection.execute(
            "SELECT CASE c.relkind WHEN 'v' THEN 'view' WHEN 'm' THEN 'materialized view'"
            " WHEN 'i' THEN 'index' WHEN 'S' THEN 'sequence' WHEN 'f' THEN 'foreign table' ELSE 'table' END,"
            " EXISTS (SELECT FROM headwater.stream_table st WHERE st.relation = c.oid)"
            " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE n.nspname = %s AND c.relname = %s",
            (schema, table),
        ).fetchone()
        if row is not None:
            kind, is_stream_table = row
            raise AlreadyExists(
                f"{'a stream table' if is_stream_table else f'a {kind}'} {schema}.{table} exists already",
                hint="choose another name, or drop it first",
            )
        if self._initializing(schema, table) is not None:
            raise _being_created(schema, table)

    def _create_definition(self, stream_table_id: int, text: str, place: Place) -> int:
        """The definition view, made from the user's text under the user's own search_path."""
        connection, what = self._connection, place.what
        name = sql.Identifier(DEFINITIONS, new_definition_name(stream_table_id, place.label))
        body = statement(text.strip().rstrip(";"))
        try:
            with connection.transaction():
                self._create_view(sql.SQL("VIEW {}").format(name), body)
        except psycopg.Error as error:
            if error.sqlstate == INVALID_TABLE_DEFINITION:
                self._refuse_temporary(body, what)
            failure = translated(error, f"{what}: the server refuses the query", InvalidQuery)
            if isinstance(failure, InvalidQuery) and not failure.hint:
                failure.hint = "it must be one SELECT that could define a view; try it in psql first"
            raise failure from error
        return definition_oid(connection, stream_table_id)

    def _create_view(self, kind: sql.Composable, body: sql.SQL) -> None:
        """Runs one statement under the path of the user, and no other: who knows what its schemas hold."""
        connection = self._connection
        connection.execute(
            "SELECT set_config('search_path', current_setting('headwater.user_search_path'), true)"
        )
        # In binary, for the protocol that takes one statement and no more.
        connection.execute(sql.SQL("CREATE {} AS {}").format(kind, body), binary=True)
        connection.execute(
            "SELECT pg_catalog.set_config('search_path'::pg_catalog.text, %s::pg_catalog.text, true)",
            (PINNED_SETTINGS["search_path"],),
        )

    def _refuse_temporary(self, body: sql.SQL, what: str) -> None:
        """Raises if the query reads a temporary table, which only a temporary view can."""
        connection = self._connection
        self._create_view(sql.SQL("TEMP VIEW hw_probe"), body)
        view = int(one(connection, "SELECT 'pg_temp.hw_probe'::regclass::oid")[0])
        self._check_definition(what, self._reader.read(view))

    def _check_definition(self, what: str, definition: Definition) -> None:
        for relation in definition.reads:
            _check_source(what, relation, self._role())
        if not definition.columns:
            raise InvalidQuery(f"{what}: the query has no columns", hint="select at least one")
        for column in definition.columns:
            if column.name in SYSTEM_COLUMNS:
                raise InvalidQuery(
                    f"{what}: a table cannot have a column {column.name}, which is a system column",
                    hint="give it another alias",
                )
            if column.name.startswith(HIDDEN):
                raise InvalidQuery(
                    f"{what}: the column name {column.name} is reserved",
                    hint=f"names that start with {HIDDEN} are Headwater's own: give it another alias",
                )

    def _check_triggers(self, what: str, definition: Definition) -> None:
        role = self._role()
        for relation in definition.reads:
            if relation.kind in ("r", "p") and not relation.may_trigger:
                raise MissingPrivilege(
                    f"{what}: role {role} lacks TRIGGER on {relation.label}",
                    hint=f"GRANT TRIGGER ON {relation.label} TO {identifier(role)}; mode full does without",
                )

    def _load(self, candidate: int, place: Place, *, cascade: bool, reason: str = "it was created") -> None:
        """The second transaction: the first rows, at a snapshot that is the first frontier."""
        connection, refresher, phases = self._connection, self._refresher, Phases()
        loaded = catalog.stream_table(connection, candidate)
        replaced = catalog.stream_table(connection, place.replaced.id) if place.replaced is not None else None
        shown = replaced or loaded
        closure = catalog.closure(connection, candidate)
        with transaction(connection, repeatable_read=True):
            refresher.begin(shown.id, closure)
            install.hold_version(connection)
            if replaced is not None:
                succession.hold(connection, (replaced.schema, replaced.name))
                refresher.lock(replaced)
            # At once, for a refresh that finds nothing to do may move it without that lock.
            connection.execute(query("catalog", "set_frontier"), {"id": shown.id})
            with phases.measure("plan"):
                connection.execute("SELECT set_config('TimeZone', %s, true)", (loaded.time_zone,))
                view = definition_oid(connection, candidate)
                definition = self._reader.read(view)
            going = self._in_the_way(replaced, view, cascade=cascade) if replaced is not None else ([], [])
            plan = refresher.keep_anew(loaded, definition, loaded.mode, phases)
            table = storage.storage_sql(candidate)
            decision = self._decide(loaded, replaced, definition, plan)
            rows, decision, traffic = refresher.load(loaded, plan, table, phases, decision)
            if replaced is None:
                relation, _ = succession.show(connection, (loaded.schema, loaded.name), None, candidate, plan)
                connection.execute(query("catalog", "set_active"), {"id": candidate, "relation": relation})
                connection.execute(
                    query("catalog", "set_fingerprint"),
                    {"id": candidate, "fingerprint": definition.fingerprint(loaded.mode)},
                )
                connection.execute(query("catalog", "set_rebuild_reason"), {"id": candidate, "reason": None})
            else:
                with phases.measure("apply"):
                    said = self._take_over(replaced, candidate, definition, plan, *going)
                reason = "; ".join(["its query was replaced", *said])
            history.record(
                connection,
                Outcome(
                    stream_table=shown.label,
                    stream_table_id=shown.id,
                    action="load",
                    mode="full",
                    engine=decision.engine,
                    engine_reason=decision.reason,
                    bytes_in=traffic.bytes_read if traffic and traffic.known else None,
                    bytes_out=traffic.bytes_written if traffic else None,
                    reason=reason,
                    elapsed=phases.elapsed,
                    snapshot=one(connection, "SELECT pg_current_snapshot()::text")[0],
                    rows_in=rows,
                    applied=Applied(inserted=rows),
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
        if replaced is not None and self._refresher.has_readers(replaced):
            return Decision("postgres", "those that read it need the difference")
        return self._refresher.decide_load(loaded, definition, plan)

    def _take_over(
        self,
        replaced: StreamTable,
        candidate: int,
        definition: Definition,
        plan: MaintenancePlan,
        readers: list[int],
        followers: list[str],
    ) -> list[str]:
        """Puts a loaded candidate in the place of a stream table; what that did beside it."""
        connection = self._connection
        said = [f"{self._remove_one(reader, cascade=False)} was dropped" for reader in reversed(readers)]
        said += [f"consumer {name} was dropped" for name in followers]
        assert replaced.relation is not None
        if not succession.fits(connection, replaced.relation, definition_oid(connection, candidate)):
            self._forget_as_source(replaced.id)  # by the view that is about to go
        target = self._refresher.target(replaced, definition)
        table = storage.storage_name(candidate)
        prepared = succession.prepare(connection, replaced.label, replaced.id, table, plan)
        scratch = Scratch(connection, f"{prefix_of(candidate)}load")
        said += self._refresher.put_in_place(scratch, target, replaced, prepared, plan)
        self._drop_definition(replaced.id)
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

    def _drop_definition(self, stream_table_id: int) -> None:
        if find_definition(self._connection, stream_table_id) is not None:
            name = definition_name(self._connection, stream_table_id)
            self._connection.execute(sql.SQL("DROP VIEW {}").format(name))

    def _forget_as_source(self, stream_table_id: int) -> None:
        """Nobody reads the changes of a stream table any more."""
        self._drop_own_changes(stream_table_id)
        self._connection.execute(query("catalog", "delete_own_source"), {"id": stream_table_id})

    def _tidy(self, stream_table_id: int) -> None:
        """Ends the capture of what only the old query read, and drops its storage if no snapshot needs it.

        What cannot be had now goes with the next change of what is captured, or the next refresh.
        """

        def release() -> None:
            with transaction(self._connection):
                self._connection.execute("SELECT pg_advisory_xact_lock(%s)", (LIFECYCLE_LOCK,))
                release_superfluous(self._connection)

        with suppress(LockNotAvailable):
            retried(release, what="ending superfluous capture", attempts=self._settings.lock_attempts)
        with suppress(psycopg.errors.LockNotAvailable):
            self._refresher.give_up_retired(catalog.stream_table(self._connection, stream_table_id))

    def _record_failure(self, place: Place, failure: BaseException, cause: BaseException) -> None:
        """A replacement that failed is in the history of the stream table, which stays as it was."""
        replaced = place.replaced
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

    def _clear_away(self, session: Connection, stream_table_id: int, label: str) -> str:
        """Removes what the first transaction made; the hint if that fails, which must not hide the cause."""
        if self._connection.closed:
            return ""
        try:
            if catalog.stream_tables(self._connection, [stream_table_id]):
                self._remove(stream_table_id, cascade=False)
        except (psycopg.Error, HeadwaterError):
            return f"what was prepared could not be removed yet: headwater drop {label} does it"
        finally:
            if not session.closed:
                _unlock_creator(session, stream_table_id)
        return ""

    def clear_dead_creation(self, schema: str, table: str) -> None:
        """Removes what a creator left that died between its two transactions."""
        found = self._initializing(schema, table)
        if found is None:
            return
        if not retried(
            lambda: self._remove_dead(found),
            what=f"drop of stream table {found}",
            attempts=self._settings.lock_attempts,
        ):
            raise _being_created(schema, table)

    def sweep(self) -> None:
        """Removes what dead creators left, of any name. Outside a transaction; never waits for long."""
        connection = self._connection
        for (found,) in connection.execute(query("catalog", "initializing"), {"id": None}).fetchall():
            try:
                self._remove_dead(found, lock_timeout=SWEEPING_LOCK_TIMEOUT)
            except (psycopg.Error, HeadwaterError):
                if connection.closed:
                    raise

    def _initializing(self, schema: str, table: str) -> int | None:
        """The stream table of this name that is not loaded yet."""
        row = self._connection.execute(
            "SELECT id FROM headwater.stream_table"
            " WHERE schema_name = %s AND table_name = %s AND status = 'initializing'",
            (schema, table),
        ).fetchone()
        return None if row is None else int(row[0])

    # repair

    def reload(self, stream_table: StreamTable, reason: str) -> None:
        """Loads a stream table whose view or storage is gone, and shows it under its name again."""

        def attempt() -> None:
            with transaction(self._connection):
                storage.drop(self._connection, stream_table.id)
                self._drop_own_changes(stream_table.id)
                self._connection.execute(
                    query("repair", "give_up_followers"), {"id": stream_table.id, "reason": reason}
                )
            place = Place(stream_table.schema, stream_table.name)
            self._load(stream_table.id, place, cascade=False, reason=reason)

        what = f"repair of {stream_table.label}"
        try:
            retried(attempt, what=what, attempts=self._settings.lock_attempts)
        except psycopg.Error as error:
            raise translated(error, what, RefreshFailed) from error

    # alter

    def alter(
        self,
        stream_table: StreamTable,
        *,
        text: str | None = None,
        mode: Mode | None = None,
        engine: EngineName | None = None,
        schedule: str | None = None,
        unscheduled: bool = False,
        tier: TierChoice | None = None,
        cascade: bool = False,
    ) -> StreamTable:
        """Changes what is given. Another query replaces the storage, and so does a mode that needs other."""
        if text is not None:
            options = Options(
                mode=mode or stream_table.requested_mode,
                engine=engine or stream_table.engine,
                schedule=None if unscheduled else schedule or stream_table.schedule,
                tier=tier or stream_table.tier or "auto",
            )
            return self.replace(stream_table, text, options, cascade=cascade)
        given = Options(mode=mode or "auto", engine=engine or "auto", schedule=schedule, tier=tier or "auto")
        schedule = _checked_options(stream_table.label, given, stream_table.time_zone).schedule
        refreshing = False

        def change() -> None:
            nonlocal refreshing
            with transaction(self._connection):
                self._connection.execute("SELECT pg_advisory_xact_lock(%s)", (LIFECYCLE_LOCK,))
                install.hold_version(self._connection)
                self._connection.execute(query("catalog", "lock_stream_table"), {"id": stream_table.id})
                self._connection.execute(
                    query("catalog", "set_options"),
                    {
                        "id": stream_table.id,
                        "change_schedule": schedule is not None or unscheduled,
                        "schedule": schedule,
                        "engine": engine,
                        "mode": mode,
                        "tier": tier,
                    },
                )
                refreshing = mode is not None and self._change_mode(stream_table.id, mode)

        try:
            retried(change, what=f"alter {stream_table.label}", attempts=self._settings.lock_attempts)
        except psycopg.Error as error:
            raise translated(error, f"alter {stream_table.label}", HeadwaterError) from error
        if refreshing:
            self._refresher.refresh(stream_table, Request())
        return catalog.stream_table(self._connection, stream_table.id)

    def _change_mode(self, stream_table_id: int, mode: Mode) -> bool:
        """Registers a stream table in another mode; whether it must be refreshed for that.

        A bag of rows is stored in the same way in both modes. From deltas to recomputing it stays as it is;
        the other way it is recomputed once, in place, for what was written meanwhile left no change rows.
        """
        connection = self._connection
        stream_table = catalog.stream_table(connection, stream_table_id)
        definition = self._reader.read(definition_oid(connection, stream_table_id))
        effective = effective_mode(stream_table.label, mode, definition)
        if effective == stream_table.mode:
            return False
        reason = f"its mode was changed to {effective}"
        if stream_table.fingerprint != definition.fingerprint(
            definition.mode_for(stream_table.mode)
        ) or not isinstance(definition.plan, BagPlan):
            register_anew(connection, stream_table, definition, effective, reason)
            return True
        register(connection, stream_table_id, stream_table.label, definition, effective)
        if effective == "differential":
            connection.execute(
                query("catalog", "set_rebuild_reason"), {"id": stream_table_id, "reason": reason}
            )
            # Protects the change rows from here on until the refresh has its own snapshot.
            connection.execute(query("catalog", "set_frontier"), {"id": stream_table_id})
            return True
        storage.drop_kept(connection, stream_table_id)
        release_superfluous(connection)
        return False

    # suspend and resume

    def suspend(self, stream_table: StreamTable, reason: str | None) -> StreamTable:
        """Has nobody refresh a stream table until it is resumed; waits for a refresh that runs."""
        if stream_table.status == "initializing":
            raise _being_created(stream_table.schema, stream_table.name)
        return self._set_status(stream_table, "suspend", query("catalog", "suspend"), {"reason": reason})

    def resume(self, stream_table: StreamTable) -> StreamTable:
        """Lets a stream table be refreshed again; does nothing to one that is not suspended."""
        return self._set_status(stream_table, "resume", query("catalog", "resume"), {})

    def _set_status(
        self, stream_table: StreamTable, verb: str, text: LiteralString, values: dict[str, str | None]
    ) -> StreamTable:
        what = f"{verb} {stream_table.label}"

        def change() -> None:
            with transaction(self._connection):
                install.hold_version(self._connection)
                self._connection.execute(text, {**values, "id": stream_table.id})

        try:
            retried(change, what=what, attempts=self._settings.lock_attempts)
        except psycopg.Error as error:
            raise translated(error, what, HeadwaterError) from error
        return catalog.stream_table(self._connection, stream_table.id)

    # drop

    def drop(self, stream_table: StreamTable, *, cascade: bool = False) -> list[str]:
        """Drops a stream table, and with cascade all that read it; the names of what was dropped."""
        try:
            return self._remove(stream_table.id, cascade=cascade)
        except psycopg.Error as error:
            if error.sqlstate == DEPENDENT_OBJECTS:
                raise DependentsExist(
                    f"drop {stream_table.label}: other objects read it",
                    detail=error.diag.message_detail or "",
                    hint="drop them first, or use --cascade to drop them with it",
                ) from error
            raise translated(error, f"drop {stream_table.label}", HeadwaterError) from error

    def _remove(self, stream_table_id: int, *, cascade: bool) -> list[str]:
        return retried(
            lambda: self._remove_once(stream_table_id, cascade=cascade),
            what=f"drop of stream table {stream_table_id}",
            attempts=self._settings.lock_attempts,
        )

    def _remove_once(self, stream_table_id: int, *, cascade: bool) -> list[str]:
        with transaction(self._connection):
            return self._remove_here(stream_table_id, cascade=cascade)

    def _remove_dead(self, stream_table_id: int, lock_timeout: str | None = None) -> bool:
        """Removes what a creator left; False if it lives. One that has just finished is left alone."""
        connection = self._connection
        with transaction(connection):
            if lock_timeout is not None:
                connection.execute("SELECT set_config('lock_timeout', %s, true)", (lock_timeout,))
            lock = (CREATOR_LOCK, stream_table_id)
            if not one(connection, "SELECT pg_try_advisory_xact_lock(%s, %s)", lock)[0]:
                return False
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (LIFECYCLE_LOCK,))
            # A creator whose session broke, and only that, may be about to finish nevertheless.
            connection.execute(query("catalog", "lock_stream_table"), {"id": stream_table_id})
            if connection.execute(query("catalog", "initializing"), {"id": stream_table_id}).fetchone():
                self._remove_here(stream_table_id, cascade=False)
        return True

    def _remove_here(self, stream_table_id: int, *, cascade: bool) -> list[str]:
        """Inside the caller's transaction."""
        connection, dropped = self._connection, []
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (LIFECYCLE_LOCK,))
        install.hold_version(connection)
        members = catalog.with_dependents(connection, stream_table_id)
        readers = [
            catalog.stream_table(connection, member) for member in members if member != stream_table_id
        ]
        if readers and not cascade:
            label = catalog.stream_table(connection, stream_table_id).label
            raise DependentsExist(
                f"drop {label}: other stream tables read it",
                detail=", ".join(reader.label for reader in readers),
                hint="drop them first, or use --cascade to drop them with it",
            )
        followers = consumers.names(connection, members)
        if followers and not cascade:
            label = catalog.stream_table(connection, stream_table_id).label
            raise DependentsExist(
                f"drop {label}: streaming queries follow its changes",
                detail=", ".join(f"consumer {name}" for name in followers),
                hint="headwater.spark.drop_consumer(dsn, name) ends one, --cascade drops all with it",
            )
        sources = {source.relation for member in members for source in catalog.sources_of(connection, member)}
        share_patience(connection, sources, more=2 * len(members))  # each has a view and storage
        for member in reversed(members):
            dropped.append(self._remove_one(member, cascade=cascade))
        release_superfluous(connection)
        return [*dropped, *(f"consumer {name}" for name in followers)]

    def _remove_one(self, stream_table_id: int, *, cascade: bool) -> str:
        connection = self._connection
        connection.execute(query("catalog", "lock_stream_table"), {"id": stream_table_id})
        stream_table = catalog.stream_table(connection, stream_table_id)
        candidate = self._initializing(storage.DATA, storage.storage_name(stream_table_id))
        if candidate is not None:
            self._remove_one(candidate, cascade=cascade)
        if stream_table.relation is not None:
            connection.execute(
                sql.SQL("DROP VIEW IF EXISTS {}{}").format(
                    sql.Identifier(stream_table.schema, stream_table.name),
                    sql.SQL(" CASCADE" if cascade else ""),
                )
            )
        self._drop_definition(stream_table_id)
        storage.drop(connection, stream_table_id)
        storage.drop_kept(connection, stream_table_id)
        self._forget_as_source(stream_table_id)
        connection.execute(query("catalog", "delete_stream_table"), {"id": stream_table_id})
        return stream_table.label

    # shared

    def _drop_own_changes(self, stream_table_id: int) -> None:
        """Ends the capture of a stream table as a source."""
        connection = self._connection
        own = connection.execute(query("refresh", "own_change_table"), {"id": stream_table_id}).fetchone()
        if own is not None:
            connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(CHANGES, own[0])))
            connection.execute(query("catalog", "forget_own_capture"), {"id": stream_table_id})

    def _checked(self, label: str, options: Options) -> Options:
        """Checked options of what will be created by this session, and so in its time zone."""
        time_zone = self._connection.info.parameter_status("TimeZone")
        return _checked_options(label, options, time_zone or "UTC")

    def _role(self) -> str:
        return str(one(self._connection, "SELECT current_user")[0])


def _checked_options(label: str, options: Options, time_zone: str) -> Options:
    for name, value, known in (
        ("mode", options.mode, get_args(Mode)),
        ("engine", options.engine, get_args(EngineName)),
        ("tier", options.tier, ("auto", *get_args(Tier))),
    ):
        if value not in known:
            raise InvalidSetting(f"{label}: there is no {name} {value!r}", hint=f"use {', '.join(known)}")
    if options.schedule is None:
        return options
    try:
        return replace(options, schedule=normalized(options.schedule, time_zone))
    except InvalidSetting as error:
        raise InvalidSetting(f"{label}: {error.message}", hint=error.hint) from error


def _unlock_creator(session: Connection, stream_table_id: int) -> None:
    session.execute("SELECT pg_advisory_unlock(%s, %s)", (CREATOR_LOCK, stream_table_id))


def _being_created(schema: str, table: str) -> AlreadyExists:
    return AlreadyExists(
        f"{schema}.{table} is being created by another session", hint="wait for it to finish"
    )


def _check_source(what: str, relation: ReadRelation, role: str) -> None:
    if relation.temporary:
        raise InvalidSource(
            f"{what}: {relation.label} is a temporary table, which ends with its session",
            hint="use a permanent table",
        )
    if relation.system:
        raise InvalidSource(
            f"{what}: {relation.label} is a system catalog, whose changes cannot be captured",
            hint="copy what you need into a table of your own",
        )
    if not relation.may_select:
        raise MissingPrivilege(
            f"{what}: role {role} lacks SELECT on {relation.label}",
            hint=f"GRANT SELECT, TRIGGER ON {relation.label} TO {identifier(role)}",
        )
