"""The tables that hold a stream table's rows. How users get to see them is in `swap`."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from psycopg import sql

from headwater.db.connection import Connection, one
from headwater.db.queries import query
from headwater.db.scratch import identify_by_row, statement
from headwater.plan.key_filter import HASH
from headwater.plan.quoting import identifier
from headwater.plan.storage_plan import GroupPlan, IncrementalPlan, MaintenancePlan

DATA = "headwater_data"
SHORT_TYPES = frozenset(
    "boolean, smallint, integer, bigint, oid, date, uuid, interval, time without time zone"
    ", timestamp without time zone, timestamp with time zone".split(", ")
)


RETIRED = "_until_"
"""Between the name of storage and the transaction that replaced it, while older snapshots may need it."""


def storage_name(stream_table_id: int) -> str:
    return f"st_{stream_table_id}"


def storage_sql(stream_table_id: int) -> str:
    return in_data(storage_name(stream_table_id))


def successor_name(stream_table_id: int) -> str:
    """The name of storage that will replace the present one."""
    return f"st_{stream_table_id}_successor"


def successor_sql(stream_table_id: int) -> str:
    return in_data(successor_name(stream_table_id))


def retired(connection: Connection, stream_table_id: int) -> list[tuple[str, int, str]]:
    """Storage that was replaced, oldest first: its name, its oid and the transaction that replaced it."""
    prefix = f"{storage_name(stream_table_id)}{RETIRED}"
    rows = connection.execute(query("refresh", "retired_tables"), {"schema": DATA, "prefix": prefix})
    return [(name, int(oid), xid) for name, oid, xid in rows]


def with_retired(connection: Connection, stream_table_ids: Sequence[int]) -> list[int]:
    """Those of these stream tables that have storage which was replaced."""
    wanted = {"ids": list(stream_table_ids), "retired": RETIRED}
    return [int(number) for (number,) in connection.execute(query("refresh", "with_retired"), wanted)]


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
    table = in_data(kept_name(stream_table_id, part))
    load(connection, table, plan)
    if isinstance(plan, GroupPlan) and plan.keys:
        # Who reads it looks for its groups by their keys, and knows no hash. A long key fits no btree.
        keys = [key.sql for key in plan.keys]
        fits = all(key.type.base in SHORT_TYPES for key in plan.keys)
        method = f"({', '.join(keys)})" if fits else f"USING hash ({keys[0]})"
        if fits or plan.keys[0].type.hashable:
            connection.execute(statement(f"CREATE INDEX ON {table} {method}"))
    return int(one(connection, "SELECT %s::regclass::oid", (table,))[0])


def drop_kept(connection: Connection, stream_table_id: int, parts: Collection[str] | None = None) -> None:
    """Drops the storage of all parts, or of these."""
    for part in kept(connection, stream_table_id):
        if parts is None or part in parts:
            connection.execute(statement(f"DROP TABLE {in_data(kept_name(stream_table_id, part))}"))


def move_kept(connection: Connection, stream_table_id: int, to: int) -> None:
    """Gives what is kept of one stream table to another, in place of what that one kept."""
    drop_kept(connection, to)
    for part in kept(connection, stream_table_id):
        connection.execute(
            sql.SQL("ALTER TABLE {} RENAME TO {}").format(
                sql.Identifier(DATA, kept_name(stream_table_id, part)), sql.Identifier(kept_name(to, part))
            )
        )


def load(connection: Connection, table: str, plan: MaintenancePlan) -> int:
    """Creates storage of this SQL name and fills it from the query; the number of its rows."""
    rows = connection.execute(_creation(table, plan)).rowcount
    identify_by_row(connection, statement(table))
    index(connection, table)
    return rows


def shape(connection: Connection, table: str, plan: MaintenancePlan) -> None:
    """Creates storage of this SQL name without rows."""
    connection.execute(_creation(table, plan) + statement(" WITH NO DATA"))
    identify_by_row(connection, statement(table))


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
    return sql.Composed([statement(f"CREATE TABLE {table} WITH (fillfactor = 90) AS ({plan.full_sql()})")])


def rename_columns(
    connection: Connection, kind: str, relation: sql.Identifier, renamed: Sequence[tuple[int, str, str]]
) -> None:
    """Renames columns, given as number, old and new name; in two steps, for they may change places."""
    between = [(f"__hw_renamed_{number}", old, new) for number, old, new in renamed]
    steps = [(old, name) for name, old, _ in between] + [(name, new) for name, _, new in between]
    for old, new in steps:
        connection.execute(
            sql.SQL("ALTER {} {} RENAME COLUMN {} TO {}").format(
                statement(kind), relation, sql.Identifier(old), sql.Identifier(new)
            )
        )


def drop(connection: Connection, stream_table_id: int) -> None:
    """Drops storage, also what is retired of it."""
    connection.execute(statement(f"DROP TABLE IF EXISTS {storage_sql(stream_table_id)}"))
    for table, _, _ in retired(connection, stream_table_id):
        connection.execute(statement(f"DROP TABLE {in_data(table)}"))


def in_data(table: str) -> str:
    return f"{identifier(DATA)}.{identifier(table)}"
