"""Creating, altering and dropping stream tables.

Creating takes two transactions. The first makes the definition view, plans, installs capture and leaves a
row with status `initializing`; when it commits, every later write to the sources is captured. The second
takes its snapshot after that, loads, and makes the stream table readable. Between them the creator holds a
session lock; a row without it was left by a creator that died. Whoever starts next clears it away (`sweep`),
for until then writers pay for its capture and change rows are kept for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import psycopg
from psycopg import sql

from headwater import catalog, history
from headwater.apply import storage
from headwater.apply.merge import Applied
from headwater.capture import consumers
from headwater.capture.registry import LIFECYCLE_LOCK, release_superfluous, share_patience
from headwater.capture.triggers import CHANGES
from headwater.catalog import EngineName, Mode, StreamTable
from headwater.clock import Phases, parse_duration
from headwater.config import Settings
from headwater.db.connection import Connection, one, retried, transaction, translated
from headwater.db.queries import query
from headwater.db.work import statement
from headwater.definition import (
    Definition,
    DefinitionReader,
    ReadRelation,
    definition_name,
    definition_oid,
)
from headwater.errors import (
    AlreadyExists,
    DependentsExist,
    HeadwaterError,
    InvalidName,
    InvalidQuery,
    InvalidSetting,
    InvalidSource,
    MissingPrivilege,
)
from headwater.history import Outcome
from headwater.plan.dialect import identifier
from headwater.plan.maintain import HIDDEN
from headwater.plan.scope import SYSTEM_COLUMNS
from headwater.refresh import Refresher, Request
from headwater.registration import effective_mode, register, register_anew

CREATOR_LOCK = 1_214_607
"""Class of the session locks that creators hold, one for each stream table."""
SWEEPING_LOCK_TIMEOUT = "50ms"
"""So long writers may have to wait behind who clears away; what is not had by then, the next one gets."""
INVALID_TABLE_DEFINITION = "42P16"
DEPENDENT_OBJECTS = "2BP01"


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a user may choose for a stream table."""

    mode: Mode = "auto"
    engine: EngineName = "auto"
    schedule: str | None = None


class Lifecycle:
    """Changes to which stream tables there are."""

    def __init__(
        self, connection: Connection, settings: Settings, reader: DefinitionReader, refresher: Refresher
    ) -> None:
        self._connection = connection
        self._settings = settings
        self._reader = reader
        self._refresher = refresher

    # create

    def create(self, name: str, text: str, options: Options) -> StreamTable:
        """Creates a stream table and loads it."""
        _check_options(name, options)
        schema, table = catalog.split_name(name)
        if schema is None:
            schemas = catalog.user_schemas(self._connection)
            if not schemas:
                raise InvalidName(
                    f"{name} has no schema, and the search_path names none that exists",
                    hint=f"write schema.{table}",
                )
            schema = schemas[0]
        label = f"{schema}.{table}"
        self._clear_dead_creation(schema, table)
        try:
            stream_table_id = retried(
                lambda: self._prepare(schema, table, text, options),
                what=f"create {label}",
                attempts=self._settings.lock_attempts,
            )
        except psycopg.Error as error:
            raise translated(error, f"create {label}", InvalidQuery) from error
        try:
            retried(
                lambda: self._load(stream_table_id),
                what=f"create {label}",
                attempts=self._settings.lock_attempts,
            )
        except (Exception, KeyboardInterrupt) as error:
            left = self._clear_away(stream_table_id, label)
            if isinstance(error, psycopg.Error):
                kept = "" if left else ", nothing was kept"
                failure = translated(error, f"create {label}: loading failed{kept}", InvalidQuery)
                failure.hint = left or failure.hint
                raise failure from error
            raise
        self._unlock_creator(stream_table_id)
        return catalog.stream_table(self._connection, stream_table_id)

    def _prepare(self, schema: str, table: str, text: str, options: Options) -> int:
        """The first transaction; returns the id with the creator's session lock held."""
        connection, label = self._connection, f"{schema}.{table}"
        stream_table_id: int | None = None
        try:
            with transaction(connection):
                connection.execute("SELECT pg_advisory_xact_lock(%s)", (LIFECYCLE_LOCK,))
                self._check_free(schema, table)
                stream_table_id = one(
                    connection,
                    query("catalog", "insert_stream_table"),
                    {
                        "schema": schema,
                        "name": table,
                        "query": text,
                        "mode": options.mode,
                        "engine": options.engine,
                        "schedule": options.schedule,
                    },
                )[0]
                connection.execute("SELECT pg_advisory_lock(%s, %s)", (CREATOR_LOCK, stream_table_id))
                view = self._create_definition(stream_table_id, text, label)
                definition = self._reader.read(view)
                self._check_definition(label, definition)
                mode = effective_mode(label, options.mode, definition)
                if mode == "differential":
                    self._check_triggers(label, definition)
                register(connection, stream_table_id, label, definition, mode)
                # Protects the change rows after this moment until the load has its own snapshot.
                connection.execute(query("catalog", "set_frontier"), {"id": stream_table_id})
        except BaseException:
            if stream_table_id is not None and not connection.closed:
                self._unlock_creator(stream_table_id)
            raise
        return stream_table_id

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

    def _create_definition(self, stream_table_id: int, text: str, label: str) -> int:
        """The definition view, made from the user's text under the user's own search_path."""
        connection = self._connection
        name = definition_name(stream_table_id)
        body = statement(text.strip().rstrip(";"))
        connection.execute(
            "SELECT set_config('search_path', current_setting('headwater.user_search_path'), true)"
        )
        try:
            with connection.transaction():
                # In binary, for the protocol that takes one statement and no more.
                connection.execute(sql.SQL("CREATE VIEW {} AS {}").format(name, body), binary=True)
        except psycopg.Error as error:
            if error.sqlstate == INVALID_TABLE_DEFINITION:
                self._refuse_temporary(body, label)
            failure = translated(error, f"create {label}: the server refuses the query", InvalidQuery)
            if isinstance(failure, InvalidQuery) and not failure.hint:
                failure.hint = "it must be one SELECT that could define a view; try it in psql first"
            raise failure from error
        connection.execute("SELECT set_config('search_path', '', true)")
        return definition_oid(connection, stream_table_id)

    def _refuse_temporary(self, body: sql.SQL, label: str) -> None:
        """Raises if the query reads a temporary table, which only a temporary view can."""
        connection = self._connection
        connection.execute(sql.SQL("CREATE TEMP VIEW hw_probe AS {}").format(body), binary=True)
        view = int(one(connection, "SELECT 'pg_temp.hw_probe'::regclass::oid")[0])
        connection.execute("SELECT set_config('search_path', '', true)")
        self._check_definition(label, self._reader.read(view))

    def _check_definition(self, label: str, definition: Definition) -> None:
        for relation in definition.reads:
            _check_source(label, relation, self._role())
        if not definition.columns:
            raise InvalidQuery(f"create {label}: the query has no columns", hint="select at least one")
        for column in definition.columns:
            if column.name in SYSTEM_COLUMNS:
                raise InvalidQuery(
                    f"create {label}: a table cannot have a column {column.name}, which is a system column",
                    hint="give it another alias",
                )
            if column.name.startswith(HIDDEN):
                raise InvalidQuery(
                    f"create {label}: the column name {column.name} is reserved",
                    hint=f"names that start with {HIDDEN} are Headwater's own: give it another alias",
                )

    def _check_triggers(self, label: str, definition: Definition) -> None:
        role = self._role()
        for relation in definition.reads:
            if relation.kind in ("r", "p") and not relation.may_trigger:
                raise MissingPrivilege(
                    f"create {label}: role {role} lacks TRIGGER on {relation.label}",
                    hint=f"GRANT TRIGGER ON {relation.label} TO {identifier(role)}; mode full does without",
                )

    def _load(self, stream_table_id: int) -> None:
        """The second transaction: the first rows, at a snapshot that is the first frontier."""
        connection, phases = self._connection, Phases()
        stream_table = catalog.stream_table(connection, stream_table_id)
        closure = catalog.closure(connection, stream_table_id)
        with transaction(connection, repeatable_read=True):
            self._refresher.name_transaction(stream_table_id)
            self._refresher.lock_tables(closure)
            with phases.measure("plan"):
                connection.execute("SELECT set_config('TimeZone', %s, true)", (stream_table.time_zone,))
                definition = self._reader.read(definition_oid(connection, stream_table_id))
                plan = self._refresher.keep_anew(stream_table, definition, stream_table.mode, phases)
            table = storage.storage_sql(stream_table_id)
            decision = self._refresher.decide_load(stream_table, definition, plan)
            rows, decision, traffic = self._refresher.load(stream_table, plan, table, phases, decision)
            view = storage.create_view(connection, stream_table.schema, stream_table.name, table, plan)
            connection.execute(query("catalog", "set_active"), {"id": stream_table_id, "relation": view})
            connection.execute(query("catalog", "set_frontier"), {"id": stream_table_id})
            history.record(
                connection,
                Outcome(
                    stream_table=stream_table.label,
                    stream_table_id=stream_table_id,
                    action="load",
                    mode="full",
                    engine=decision.engine,
                    engine_reason=decision.reason,
                    bytes_in=traffic.bytes_read if traffic and traffic.known else None,
                    bytes_out=traffic.bytes_written if traffic else None,
                    reason="it was created",
                    elapsed=phases.elapsed,
                    snapshot=one(connection, "SELECT pg_current_snapshot()::text")[0],
                    rows_in=rows,
                    applied=Applied(inserted=rows),
                    phases=phases.milliseconds,
                ),
            )

    def _clear_away(self, stream_table_id: int, label: str) -> str:
        """Removes what the first transaction made; the hint if that fails, which must not hide the cause."""
        if self._connection.closed:
            return ""
        try:
            self._remove(stream_table_id, cascade=False)
        except (psycopg.Error, HeadwaterError):
            return f"what was prepared could not be removed yet: headwater drop {label} does it"
        finally:
            if not self._connection.closed:
                self._unlock_creator(stream_table_id)
        return ""

    def _clear_dead_creation(self, schema: str, table: str) -> None:
        """Removes what a creator left that died between its two transactions."""
        found = self._initializing(schema, table)
        if found is None:
            return
        if not one(self._connection, "SELECT pg_try_advisory_lock(%s, %s)", (CREATOR_LOCK, found))[0]:
            raise _being_created(schema, table)
        try:
            if self._initializing(schema, table) == found:  # its creator may just have finished
                self._remove(found, cascade=False)
        finally:
            self._unlock_creator(found)

    def sweep(self) -> None:
        """Removes what dead creators left, of any name. Outside a transaction; never waits for long."""
        connection = self._connection
        for (found,) in connection.execute(query("catalog", "initializing"), {"id": None}).fetchall():
            if not one(connection, "SELECT pg_try_advisory_lock(%s, %s)", (CREATOR_LOCK, found))[0]:
                continue
            try:
                # Its creator may just have finished, or somebody else have cleared it away.
                if connection.execute(query("catalog", "initializing"), {"id": found}).fetchone() is not None:
                    self._remove_once(found, cascade=False, lock_timeout=SWEEPING_LOCK_TIMEOUT)
            except (psycopg.Error, HeadwaterError):
                if connection.closed:
                    raise
            finally:
                if not connection.closed:
                    self._unlock_creator(found)

    def _initializing(self, schema: str, table: str) -> int | None:
        """The stream table of this name that is not loaded yet."""
        row = self._connection.execute(
            "SELECT id FROM headwater.stream_table"
            " WHERE schema_name = %s AND table_name = %s AND status = 'initializing'",
            (schema, table),
        ).fetchone()
        return None if row is None else int(row[0])

    def _unlock_creator(self, stream_table_id: int) -> None:
        self._connection.execute("SELECT pg_advisory_unlock(%s, %s)", (CREATOR_LOCK, stream_table_id))

    # alter

    def alter(
        self,
        stream_table: StreamTable,
        *,
        mode: Mode | None = None,
        engine: EngineName | None = None,
        schedule: str | None = None,
        unscheduled: bool = False,
    ) -> StreamTable:
        """Changes options; a mode that needs other storage rebuilds it."""
        _check_options(
            stream_table.label, Options(mode=mode or "auto", engine=engine or "auto", schedule=schedule)
        )
        effective = stream_table.mode

        def change() -> None:
            nonlocal effective
            with transaction(self._connection):
                self._connection.execute("SELECT pg_advisory_xact_lock(%s)", (LIFECYCLE_LOCK,))
                self._connection.execute(query("catalog", "lock_stream_table"), {"id": stream_table.id})
                self._connection.execute(
                    query("catalog", "set_options"),
                    {
                        "id": stream_table.id,
                        "change_schedule": schedule is not None or unscheduled,
                        "schedule": schedule,
                        "engine": engine,
                        "mode": mode,
                    },
                )
                if mode is not None:
                    definition = self._reader.read(definition_oid(self._connection, stream_table.id))
                    effective = effective_mode(stream_table.label, mode, definition)
                    if effective != stream_table.mode:
                        reason = f"its mode was changed to {effective}"
                        register_anew(self._connection, stream_table, definition, effective, reason)

        try:
            retried(change, what=f"alter {stream_table.label}", attempts=self._settings.lock_attempts)
        except psycopg.Error as error:
            raise translated(error, f"alter {stream_table.label}", HeadwaterError) from error
        if effective != stream_table.mode:
            self._refresher.refresh(stream_table, Request())
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

    def _remove_once(
        self, stream_table_id: int, *, cascade: bool, lock_timeout: str | None = None
    ) -> list[str]:
        connection, dropped = self._connection, []
        with transaction(connection):
            if lock_timeout is not None:
                connection.execute("SELECT set_config('lock_timeout', %s, true)", (lock_timeout,))
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (LIFECYCLE_LOCK,))
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
            sources = {
                source.relation for member in members for source in catalog.sources_of(connection, member)
            }
            share_patience(connection, sources, more=2 * len(members))  # each has a view and storage
            for member in reversed(members):
                dropped.append(self._remove_one(member, cascade=cascade))
            release_superfluous(connection)
        return [*dropped, *(f"consumer {name}" for name in followers)]

    def _remove_one(self, stream_table_id: int, *, cascade: bool) -> str:
        connection = self._connection
        connection.execute(query("catalog", "lock_stream_table"), {"id": stream_table_id})
        stream_table = catalog.stream_table(connection, stream_table_id)
        if stream_table.relation is not None:
            connection.execute(
                sql.SQL("DROP VIEW IF EXISTS {}{}").format(
                    sql.Identifier(stream_table.schema, stream_table.name),
                    sql.SQL(" CASCADE" if cascade else ""),
                )
            )
        connection.execute(sql.SQL("DROP VIEW IF EXISTS {}").format(definition_name(stream_table_id)))
        storage.drop(connection, stream_table_id)
        storage.drop_kept(connection, stream_table_id)
        own = connection.execute(query("refresh", "own_change_table"), {"id": stream_table_id}).fetchone()
        if own is not None:
            connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(CHANGES, own[0])))
        connection.execute(query("catalog", "delete_stream_table"), {"id": stream_table_id})
        return stream_table.label

    # shared

    def _role(self) -> str:
        return str(one(self._connection, "SELECT current_user")[0])


def _check_options(label: str, options: Options) -> None:
    for name, value, known in (
        ("mode", options.mode, get_args(Mode)),
        ("engine", options.engine, get_args(EngineName)),
    ):
        if value not in known:
            raise InvalidSetting(f"{label}: there is no {name} {value!r}", hint=f"use {', '.join(known)}")
    if options.schedule is not None:
        parse_duration(options.schedule)


def _being_created(schema: str, table: str) -> AlreadyExists:
    return AlreadyExists(
        f"{schema}.{table} is being created by another session", hint="wait for it to finish"
    )


def _check_source(label: str, relation: ReadRelation, role: str) -> None:
    if relation.temporary:
        raise InvalidSource(
            f"create {label}: {relation.label} is a temporary table, which ends with its session",
            hint="use a permanent table",
        )
    if relation.system:
        raise InvalidSource(
            f"create {label}: {relation.label} is a system catalog, whose changes cannot be captured",
            hint="copy what you need into a table of your own",
        )
    if not relation.may_select:
        raise MissingPrivilege(
            f"create {label}: role {role} lacks SELECT on {relation.label}",
            hint=f"GRANT SELECT, TRIGGER ON {relation.label} TO {identifier(role)}",
        )
