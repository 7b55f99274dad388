"""Which names and queries a stream table can have, and the definition view that is made from a query."""

from __future__ import annotations

import psycopg
from psycopg import sql

from headwater.db.connection import PINNED_SETTINGS, Connection, one, translated
from headwater.db.scratch import statement
from headwater.definition.reader import Definition, DefinitionReader
from headwater.definition.relations import ReadRelation
from headwater.definition.views import DEFINITIONS, definition_oid, new_definition_name
from headwater.errors import AlreadyExists, InvalidName, InvalidQuery, InvalidSource, MissingPrivilege
from headwater.lifecycle.drop import being_created, initializing
from headwater.plan.build.scope import SYSTEM_COLUMNS
from headwater.plan.quoting import identifier
from headwater.plan.storage_plan import HIDDEN

INVALID_TABLE_DEFINITION = "42P16"


READING_SETTINGS = (
    "DateStyle",
    "IntervalStyle",
    "standard_conforming_strings",
    "transform_null_equals",
    "array_nulls",
    "xmloption",
)
"""Settings that decide what the text of a query means when it is read: 01/02/2003 is a day in January or in
February. A query means what it would mean in the user's own session, as the role and the database set it."""


class Admission:
    """Validates what is to be created. Errors begin with `what`, which names the operation."""

    def __init__(self, connection: Connection, reader: DefinitionReader) -> None:
        self._connection = connection
        self._reader = reader

    def check_free(self, schema: str, table: str) -> None:
        """Raise if there cannot be a new stream table of this name."""
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
        if initializing(connection, schema, table) is not None:
            raise being_created(schema, table)

    def create_definition(self, stream_table_id: int, text: str, label: str, what: str) -> int:
        """Make the definition view from the user's text, read under the user's own settings."""
        connection = self._connection
        name = sql.Identifier(DEFINITIONS, new_definition_name(stream_table_id, label))
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
        """Run this one statement under the user's own settings: their schemas may hold anything."""
        connection = self._connection
        connection.execute(
            "SELECT set_config(name, reset_val, true) FROM pg_settings WHERE name = ANY (%s)",
            (list(READING_SETTINGS),),
        )
        connection.execute(
            "SELECT set_config('search_path', current_setting('headwater.user_search_path'), true)"
        )
        # In binary, for the protocol that takes exactly one statement.
        connection.execute(sql.SQL("CREATE {} AS {}").format(kind, body), binary=True)
        setting = "pg_catalog.set_config(%s::pg_catalog.text, %s::pg_catalog.text, true)"
        names = ("search_path", *READING_SETTINGS)
        connection.execute(
            sql.SQL("SELECT {}").format(sql.SQL(", ").join([sql.SQL(setting)] * len(names))),
            [part for name in names for part in (name, PINNED_SETTINGS[name])],
        )

    def _refuse_temporary(self, body: sql.SQL, what: str) -> None:
        """Raise if the query reads a temporary table, which only a temporary view can."""
        connection = self._connection
        self._create_view(sql.SQL("TEMP VIEW hw_probe"), body)
        view = int(one(connection, "SELECT 'pg_temp.hw_probe'::regclass::oid")[0])
        self.check_definition(what, self._reader.read(view))

    def check_definition(self, what: str, definition: Definition) -> None:
        """Raise if a query reads what cannot be a source, or gives columns that cannot be stored."""
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

    def check_triggers(self, what: str, definition: Definition) -> None:
        """Raise if this role may not capture what a query reads."""
        role = self._role()
        for relation in definition.reads:
            if relation.kind in ("r", "p") and not relation.may_trigger:
                raise MissingPrivilege(
                    f"{what}: role {role} lacks TRIGGER on {relation.label}",
                    hint=f"GRANT TRIGGER ON {relation.label} TO {identifier(role)}; mode full does without",
                )

    def _role(self) -> str:
        return str(one(self._connection, "SELECT current_user")[0])


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
