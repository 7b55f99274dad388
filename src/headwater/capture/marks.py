"""Marks of changed sources, by which a scheduler looks only at those.

Whatever adds rows to a change table calls `headwater.mark_changed` in the same transaction: a mark becomes
visible with the rows. There is one such function for all sources, so that its behaviour can be replaced at
once: with `event_driven_wake` it notifies, too. Without, it does not, because the server lets only one
transaction that notifies commit at a time.

Nothing waits for a mark or relies on it. A scheduler looks at every change table when it starts, and at a few
in each tick.
"""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import sql

from headwater.capture.buffers import CHANGES
from headwater.db.connection import Connection, one
from headwater.db.queries import query
from headwater.db.scratch import statement

CHANNEL = "headwater_changed"
MARKING = """
CREATE OR REPLACE FUNCTION headwater.mark_changed(relation oid) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO headwater.changed_source VALUES (relation);
{}END
$$"""
NOTIFYING = f"    PERFORM pg_catalog.pg_notify('{CHANNEL}', '');"
"""Equal notifications of one transaction are sent once."""
LOOKED_INTO = 100
"""Change tables in one statement, which locks each of them and its index; the server has room for 64 locks
for each connection that it allows."""


def mark(connection: Connection, stream_table_id: int) -> None:
    """Record that a stream table has new change rows for those that read it."""
    connection.execute(query("marks", "mark_stream_table"), {"id": stream_table_id})


def set_wake(connection: Connection, *, notify: bool) -> bool:
    """Make marks notify, or not; return False if nothing changed. Takes no lock that a writer waits for."""
    if bool(one(connection, query("marks", "notifies"))[0]) == notify:
        return False
    connection.execute(statement(MARKING.format(f"{NOTIFYING}\n" if notify else "")))
    return True


def forget(connection: Connection) -> None:
    """Remove all visible marks, where there is no scheduler to do so."""
    connection.execute(query("marks", "forget_unscheduled"))


def with_changes(connection: Connection, change_tables: Sequence[tuple[int, str]]) -> set[int]:
    """Return the sources, given with their change tables, that have change rows, consumed or not."""
    found = set[int]()
    for start in range(0, len(change_tables), LOOKED_INTO):
        parts = [
            sql.SQL("SELECT {}::bigint WHERE EXISTS (SELECT FROM {})").format(
                sql.Literal(relation), sql.Identifier(CHANGES, name)
            )
            for relation, name in change_tables[start : start + LOOKED_INTO]
        ]
        found |= {row[0] for row in connection.execute(sql.SQL(" UNION ALL ").join(parts), prepare=False)}
    return found
