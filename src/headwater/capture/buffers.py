"""The change tables between capture and refresh: what is pending, and what can be deleted.

A refresh consumes the change rows whose transaction is visible in its own snapshot and not in the frontier of
its stream table. Its transaction is REPEATABLE READ, so the first half is the server's own visibility; the
second is the predicate below. A transaction that was open while others committed is therefore consumed by the
first refresh after its commit, and by no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import sql

from headwater.catalog.stream_tables import CatalogSource, Frontier
from headwater.db.connection import Connection, one
from headwater.db.queries import query
from headwater.db.scratch import statement
from headwater.plan.quoting import identifier, literal

CHANGES = "headwater_changes"
"""The schema of the change tables."""
XID_NUMBER = "(xid::text::bigint)"
"""The transaction of a change row as a number; the index on a change table is on this expression."""
SMALLEST_ROW = 44
"""The fewest bytes that a change row takes: its pointer, its header, transaction, node and weight."""


@dataclass(frozen=True)
class Pending:
    """The change rows in one change table that wait for one stream table."""

    rows: int  # counted no further than one above the limit
    truncated: bool
    consumed: bool  # some rows were consumed already and can be deleted once the frontier moves on
    lost: str | None  # why changes could not be captured at all, if so


def window(frontier: Frontier) -> str:
    """Return the condition for the rows of a change table that lie after a frontier."""
    snapshot = f"{literal(frontier.snapshot)}::pg_snapshot"
    return window_sql(not_before(frontier), snapshot, f"{literal(frontier.applied_by)}::xid8")


def window_sql(not_before: str, snapshot: str, applied_by: str) -> str:
    """Return the same condition for a frontier whose parts are given as SQL."""
    return f"{not_before} AND NOT pg_visible_in_snapshot(xid, {snapshot}) AND xid <> {applied_by}"


def not_before(frontier: Frontier) -> str:
    """Return the condition for rows from the oldest transaction on that a frontier does not include."""
    xmin = frontier.snapshot.partition(":")[0]
    return not_before_sql(str(int(xmin)), f"{literal(xmin)}::xid8")


def not_before_sql(number: str, xid: str) -> str:
    """Return the same condition for a transaction that is given as SQL, as a number and as it is.

    The index is on the number; that of a change table of an earlier version is on the transaction itself.
    """
    return f"{XID_NUMBER} >= {number} AND xid >= {xid}"


def change_table_sql(name: str) -> str:
    return f"{identifier(CHANGES)}.{identifier(name)}"


def pending(
    connection: Connection, sources: Sequence[CatalogSource], frontier: Frontier, limit: int
) -> dict[int, Pending]:
    """Return what waits for a stream table, for each captured source by oid."""
    captured = [source for source in sources if source.change_table]
    if not captured:
        return {}
    parts = []
    for source in captured:
        table = change_table_sql(str(source.change_table))
        parts.append(
            f"SELECT {source.relation}::bigint, count(*), coalesce(bool_or(w = 0), false),"
            f" EXISTS (SELECT FROM {table} WHERE {not_before(frontier)}),"
            f" (SELECT max(reason) FROM headwater.lost_change WHERE relation = {source.relation})"
            f" FROM (SELECT w FROM {table} WHERE {window(frontier)} LIMIT {limit + 1}) AS t"
        )
    rows = connection.execute(statement(" UNION ALL ".join(parts)))
    return {relation: Pending(*found) for relation, *found in rows}


def remove_consumed(connection: Connection, sources: Sequence[CatalogSource]) -> None:
    """Delete the change rows that every consumer has consumed.

    A frontier protects every row that is not visible in it. A stream table that is being loaded or rebuilt
    has a provisional one from before its snapshot; one that was given up (`give_up_laggards`) has none.
    """
    captured = {source.id: str(source.change_table) for source in sources if source.change_table}
    rows = connection.execute(query("buffers", "oldest_needed"), {"sources": list(captured)}).fetchall()
    deletions = [
        sql.SQL("DELETE FROM {} WHERE {} < {} AND xid < {}::xid8").format(
            sql.Identifier(CHANGES, captured[source]),
            sql.SQL(XID_NUMBER),
            sql.Literal(int(oldest)),
            sql.Literal(oldest),
        )
        for source, oldest in rows
    ]
    if deletions:
        connection.execute(sql.SQL("; ").join(deletions), prepare=False)


def give_up_laggards(connection: Connection, sources: Sequence[CatalogSource], limit: int) -> None:
    """Mark for a rebuild the consumers that keep a change table above the limit, so that it can shrink.

    Skips a consumer that is being refreshed at this moment: it is about to catch up.
    """
    captured = {
        change_table_sql(str(source.change_table)): source for source in sources if source.change_table
    }
    sizes = connection.execute(
        "SELECT t, pg_relation_size(t::regclass) FROM unnest(%s::text[]) AS t", (list(captured),)
    ).fetchall()
    for table, size in sizes:
        source = captured[table]
        if size <= limit * SMALLEST_ROW:
            continue  # its size cannot hold so many rows
        consumers = connection.execute(query("buffers", "lock_consumers"), {"source": source.id}).fetchall()
        for stream_table_id, snapshot, applied_by in consumers:
            behind = window(Frontier(snapshot=snapshot, applied_by=applied_by))
            rows = f"SELECT FROM {table} WHERE {behind} LIMIT {limit + 1}"
            if one(connection, statement(f"SELECT count(*) > {limit} FROM ({rows}) AS t"))[0]:
                reason = (
                    f"the change table of {source.label} holds more than {limit} rows for it"
                    " (headwater.max_buffer_rows), so they were given up"
                )
                connection.execute(query("buffers", "give_up"), {"id": stream_table_id, "reason": reason})
        _give_up_followers(connection, source, limit)


def _give_up_followers(connection: Connection, source: CatalogSource, limit: int) -> None:
    """Give up consumers outside the database, which must start again from the contents."""
    table = change_table_sql(str(source.change_table))
    followers = connection.execute(query("consumers", "lock_followers"), {"source": source.id}).fetchall()
    for consumer, snapshot in followers:
        behind = window(Frontier(snapshot=snapshot, applied_by="0"))
        rows = f"SELECT FROM {table} WHERE {behind} LIMIT {limit + 1}"
        if one(connection, statement(f"SELECT count(*) > {limit} FROM ({rows}) AS t"))[0]:
            reason = f"more than {limit} change rows waited for it (headwater.max_buffer_rows)"
            connection.execute(query("consumers", "give_up"), {"id": consumer, "reason": reason})
