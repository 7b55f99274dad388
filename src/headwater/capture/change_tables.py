"""Change tables: created, given columns, and dropped.

The index is a BRIN: rows arrive nearly in the order of their transactions, and a B-tree would take as long as
the rows themselves. BRIN has no operator class for xid8, so the index is on the number as a bigint.
"""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import sql

from headwater.capture.buffers import CHANGES, XID_NUMBER
from headwater.db.connection import Connection
from headwater.db.queries import query
from headwater.db.scratch import identify_by_row
from headwater.plan.operators import SourceColumn


def change_table(relation: int) -> str:
    return f"src_{relation}"


def create(connection: Connection, relation: int) -> None:
    """Create an empty change table without columns of the source."""
    table = sql.Identifier(CHANGES, change_table(relation))
    connection.execute(
        sql.SQL(
            "CREATE TABLE {} (xid xid8 NOT NULL, node integer NOT NULL DEFAULT 0, w integer NOT NULL)"
        ).format(table)
    )
    identify_by_row(connection, table)
    create_index(connection, table)


def create_index(connection: Connection, table: sql.Identifier) -> None:
    """Create the index on a change table."""
    connection.execute(
        sql.SQL("CREATE INDEX ON {} USING brin ({}) WITH (autosummarize = on)").format(
            table, sql.SQL(XID_NUMBER)
        )
    )


def add_columns(connection: Connection, relation: int, columns: Sequence[SourceColumn]) -> None:
    """Add columns; existing change rows are for consumers that do not need them."""
    if not columns:
        return
    additions = [
        sql.SQL("ADD COLUMN {} {}{}").format(
            sql.Identifier(column.change_column),
            sql.SQL(column.type.base),
            sql.SQL(f" COLLATE {column.type.collation}" if column.type.collation else ""),
        )
        for column in columns
    ]
    connection.execute(
        sql.SQL("ALTER TABLE {} {}").format(
            sql.Identifier(CHANGES, change_table(relation)), sql.SQL(", ").join(additions)
        )
    )


def remove_columns(connection: Connection, relation: int, numbers: Sequence[int]) -> None:
    """Remove columns that nobody needs, so that the source's own can be dropped or retyped."""
    connection.execute(
        sql.SQL("ALTER TABLE {} {}").format(
            sql.Identifier(CHANGES, change_table(relation)),
            sql.SQL(", ").join(
                sql.SQL("DROP COLUMN {}").format(sql.Identifier(f"c{number}")) for number in numbers
            ),
        )
    )


def fit_columns(connection: Connection, relation: int, columns: Sequence[SourceColumn]) -> bool:
    """Give the change table exactly these columns and types; return False if it had them."""
    table = sql.Identifier(CHANGES, change_table(relation))
    names = [column.change_column for column in columns]
    fitting = {
        name
        for (name,) in connection.execute(
            query("catalog", "fitting_columns"),
            {
                "table": table.as_string(connection),
                "names": names,
                "types": [column.type.base for column in columns],
            },
        )
    }
    wrong = [column for column in columns if column.change_column not in fitting]
    for column in wrong:
        connection.execute(
            sql.SQL("ALTER TABLE {} DROP COLUMN IF EXISTS {}").format(
                table, sql.Identifier(column.change_column)
            )
        )
    add_columns(connection, relation, wrong)
    return bool(wrong)


def drop(connection: Connection, relation: int) -> None:
    connection.execute(
        sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(CHANGES, change_table(relation)))
    )
