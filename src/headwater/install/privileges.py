"""The privileges that Headwater needs, each with the statement that grants it.

A role that is no superuser is enough: it owns the four schemas, may create views where users want their
stream tables, and may read the sources and create triggers on them.
"""

from __future__ import annotations

from dataclasses import dataclass

from headwater.catalog.installed import SCHEMAS
from headwater.db.connection import Connection, one


@dataclass(frozen=True)
class Check:
    """One privilege and whether this role has it."""

    name: str
    ok: bool
    remedy: str  # the statement to run, empty when nothing is missing
    required: bool = True  # else only for what this schema or table is to be used for


def check(connection: Connection) -> list[Check]:
    """Every privilege that is needed in this database."""
    role, database = one(connection, "SELECT quote_ident(current_user), quote_ident(current_database())")
    checks = [_version(connection)]
    existing = [
        row[0]
        for row in connection.execute(
            "SELECT nspname FROM pg_namespace WHERE nspname = ANY (%s)", (list(SCHEMAS),)
        )
    ]
    for schema in SCHEMAS:
        if schema in existing:
            owned, owner, installed = one(
                connection,
                "SELECT pg_has_role(nspowner, 'USAGE'), quote_ident(pg_get_userbyid(nspowner)),"
                " EXISTS (SELECT FROM pg_class c WHERE c.relname = 'migration'"
                " AND c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = 'headwater'))"
                " FROM pg_namespace n WHERE nspname = %s",
                (schema,),
            )
            # What is installed belongs to its owner with all its tables; empty schemas can be handed over.
            remedy = f"GRANT {owner} TO {role}" if installed else f"ALTER SCHEMA {schema} OWNER TO {role}"
            checks.append(_check(f"owns schema {schema}", owned, remedy))
    for privilege, purpose in (("CREATE", "to create its schemas"), ("TEMP", "for the steps of a refresh")):
        if privilege == "CREATE" and len(existing) == len(SCHEMAS):
            continue
        granted = one(connection, "SELECT has_database_privilege(current_database(), %s)", (privilege,))[0]
        checks.append(
            _check(
                f"{privilege} on database {database} ({purpose})",
                granted,
                f"GRANT {privilege} ON DATABASE {database} TO {role}",
            )
        )
    checks += _schema_checks(connection, role)
    checks += _table_checks(connection, role)
    return checks


def _version(connection: Connection) -> Check:
    number = connection.info.server_version
    return _check(
        f"PostgreSQL {number // 10000}, 15 or later", number >= 150000, "upgrade the server to 15 or later"
    )


def _schema_checks(connection: Connection, role: str) -> list[Check]:
    """Schemas with tables: stream tables are created beside them as views."""
    rows = connection.execute(
        """
        SELECT quote_ident(n.nspname),
               has_schema_privilege(n.oid, 'USAGE'), has_schema_privilege(n.oid, 'CREATE')
        FROM pg_namespace n
        WHERE n.nspname !~ '^pg_' AND n.nspname <> 'information_schema' AND n.nspname <> ALL (%s)
          AND (n.nspname = 'public' OR EXISTS (
              SELECT FROM pg_class c WHERE c.relnamespace = n.oid AND c.relkind IN ('r', 'p')))
        ORDER BY 1
        """,
        (list(SCHEMAS),),
    )
    return [
        _check(
            f"USAGE and CREATE on schema {schema} (to read its tables and create stream tables in it)",
            usage and create,
            f"GRANT USAGE, CREATE ON SCHEMA {schema} TO {role}",
            required=False,
        )
        for schema, usage, create in rows
    ]


def _table_checks(connection: Connection, role: str) -> list[Check]:
    """Tables that can be sources."""
    rows = connection.execute(
        """
        SELECT format('%%I.%%I', n.nspname, c.relname),
               has_table_privilege(c.oid, 'SELECT'), has_table_privilege(c.oid, 'TRIGGER')
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE c.relkind IN ('r', 'p') AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
          AND n.nspname <> ALL (%s)
        ORDER BY 1
        """,
        (list(SCHEMAS),),
    )
    return [
        _check(
            f"SELECT and TRIGGER on table {table} (to use it as a source)",
            select and trigger,
            f"GRANT SELECT, TRIGGER ON {table} TO {role}",
            required=False,
        )
        for table, select, trigger in rows
    ]


def _check(name: str, ok: bool, remedy: str, *, required: bool = True) -> Check:
    return Check(name, ok, "" if ok else remedy, required)
