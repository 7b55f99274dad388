"""The table that holds a stream table's rows, and the view by which users read them."""

from __future__ import annotations

from psycopg import sql

from headwater.db.connection import Connection, one
from headwater.db.queries import query
from headwater.db.work import statement
from headwater.plan.dialect import identifier
from headwater.plan.maintain import GroupPlan, IncrementalPlan, MaintenancePlan, where_shown
from headwater.plan.render import HASH

DATA = "headwater_data"
SHORT_TYPES = frozenset(
    "boolean, smallint, integer, bigint, oid, date, uuid, interval, time without time zone"
    ", timestamp without time zone, timestamp with time zone".split(", ")
)


def storage_sql(stream_table_id: int) -> str:
    return _in_data(f"st_{stream_table_id}")


def successor_sql(stream_table_id: int) -> str:
    """The name of storage that will replace the present one."""
    return _in_data(f"st_{stream_table_id}_successor")


def kept_name(stream_table_id: int, part: str) -> str:
    """The name of the storage of a part of a stream table's query."""
    return f"st_{stream_table_id}_kept_{part}"


def kept(connection: Connection, stream_table_id: int) -> dict[str, int]:
    """The parts of a stream table's query that have storage, with its oid."""
    prefix = kept_name(stream_table_id, "")
    rows = connection.execute(query("refresh", "kept_tables"), {"schema": DATA, "prefix": prefix})
    return {str(name).removeprefix(prefix): int(oid) for name, oid in rows}


def load_kept(connection: Connection, stream_table_id: int, part: str, plan: IncrementalPlan) -> int:
    """Creates the storage of a part and fills it; its oid."""
    table = _in_data(kept_name(stream_table_id, part))
    load(connection, table, plan)
    if isinstance(plan, GroupPlan) and plan.keys:
        # Who reads it looks for its groups by their keys, and knows no hash. A long key fits no btree.
        keys = [key.sql for key in plan.keys]
        fits = all(key.type.base in SHORT_TYPES for key in plan.keys)
        method = f"({', '.join(keys)})" if fits else f"USING hash ({keys[0]})"
        if fits or plan.keys[0].type.hashable:
            connection.execute(statement(f"CREATE INDEX ON {table} {method}"))
    return int(one(connection, "SELECT %s::regclass::oid", (table,))[0])


def drop_kept(connection: Connection, stream_table_id: int) -> None:
    for part in kept(connection, stream_table_id):
        connection.execute(statement(f"DROP TABLE {_in_data(kept_name(stream_table_id, part))}"))


def load(connection: Connection, table: str, plan: MaintenancePlan) -> int:
    """Creates storage of this SQL name and fills it from the query; the number of its rows."""
    rows = connection.execute(_creation(table, plan)).rowcount
    index(connection, table)
    return rows


def shape(connection: Connection, table: str, plan: MaintenancePlan) -> None:
    """Creates storage of this SQL name without rows."""
    connection.execute(_creation(table, plan) + statement(" WITH NO DATA"))


def index(connection: Connection, table: str) -> None:
    """Completes storage that was filled."""
    connection.execute(statement(f"CREATE INDEX ON {table} ({HASH})"))
    # What users read deserves the statistics that they have chosen.
    connection.execute(
        statement(f"SET LOCAL default_statistics_target = DEFAULT; ANALYZE {table}"), prepare=False
    )


def adopt(connection: Connection, table: str, name: str) -> None:
    """Gives a table of a job the SQL name of storage."""
    bare = sql.Identifier(name.rpartition(".")[2].strip('"'))
    connection.execute(sql.SQL("ALTER TABLE {} RENAME TO {}").format(statement(table), bare))


def _creation(table: str, plan: MaintenancePlan) -> sql.Composed:
    # Room in each page lets an updated group stay in it, without a new index entry.
    return sql.Composed([statement(f"CREATE TABLE {table} WITH (fillfactor = 90) AS {plan.full_sql()}")])


def succeed(
    connection: Connection, schema: str, name: str, stream_table_id: int, plan: MaintenancePlan
) -> None:
    """Puts the successor under the view in place of the present storage.

    Takes the locks that keep readers waiting, in the readers' own order, and is the last thing that a
    transaction does but for its records.
    """
    successor = f"st_{stream_table_id}_successor"
    create_view(connection, schema, name, _in_data(successor), plan)
    drop(connection, stream_table_id)
    connection.execute(
        sql.SQL("ALTER TABLE {} RENAME TO {}").format(
            sql.Identifier(DATA, successor), sql.Identifier(f"st_{stream_table_id}")
        )
    )


def drop(connection: Connection, stream_table_id: int) -> None:
    connection.execute(statement(f"DROP TABLE IF EXISTS {storage_sql(stream_table_id)}"))


def _in_data(table: str) -> str:
    return f"{identifier(DATA)}.{identifier(table)}"


def create_view(connection: Connection, schema: str, name: str, storage: str, plan: MaintenancePlan) -> int:
    """Creates or repoints the view that users read; its oid. Writes through it are refused with an error."""
    view = sql.Identifier(schema, name)
    columns = ", ".join(column.sql for column in plan.outputs)
    connection.execute(
        sql.SQL("CREATE OR REPLACE VIEW {} AS {}").format(
            view, statement(f"SELECT {columns} FROM {storage}{where_shown(plan)}")
        )
    )
    connection.execute(
        sql.SQL(
            "CREATE OR REPLACE TRIGGER headwater_refuse_write INSTEAD OF INSERT OR UPDATE OR DELETE ON {}"
            " FOR EACH ROW EXECUTE FUNCTION headwater.refuse_write()"
        ).format(view)
    )
    return int(one(connection, "SELECT %s::regclass::oid", (view.as_string(connection),))[0])
