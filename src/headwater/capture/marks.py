"""Marks of sources that changed: by which a scheduler looks at those, and not at everything there is.

Whatever adds rows to a change table calls `headwater.mark_changed`, in the same transaction: a mark
is seen when the rows are. The function is one for all, so that what it does can be replaced at once: with
`event_driven_wake` it notifies, too. Without, it does not, for the server lets only one transaction that
notifies commit at a time.

A mark is never waited for or counted on. A scheduler that starts looks at every change table once, and at a
few in each tick.
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
"""Equal notifications of one transaction are one."""
LOOKED_INTO = 100
"""Change tables in one statement, which locks each of them and its index; the server has room for 64 locks
for each connection that it allows."""


def mark(connection: Connection, stream_table_id: int) -> None:
    """Says that a stream table has new change rows for those that read it."""
    connection.execute(query("marks", "mark_stream_table"), {"id": stream_table_id})


def set_wake(connection: Connection, *, notify: bool) -> bool:
    """Has marks notify, or not; False if they did so already. Takes no lock that a writer waits for."""
    if bool(one(connection, query("marks", "notifies"))[0]) == notify:
        return False
    connection.execute(statement(MARKING.format(f"{NOTIFYING}\n" if notify else "")))
    return True


def forget(connection: Connection) -> None:
    """Removes all marks that are seen, where there is no scheduler to do so."""
    connection.execute(query("marks", "forget_unscheduled"))


def with_changes(connection: Connection, change_tables: Sequence[tuple[int, str]]) -> set[int]:
    """The sources among these, given with their change tables, that have change rows, consumed or not."""
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
