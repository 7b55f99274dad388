"""Capture by statement triggers: one INSERT into the source's change table per writing statement.

A change row is a weight: +1 for a row that came, -1 for one that went, both for an update, 0 for a TRUNCATE.
The trigger function runs with the rights of its owner, so writers need no privilege on the change table.

Columns are stored under their number in the catalog. The function names them as they were called when it
was made; if one was renamed since, it notices and builds its statement anew, so a rename never makes a
user's write fail. A writer with an old snapshot sees the old names in the catalog, while its rows have the
new ones already; it asks a function that looks at the present.

Installing and extending replace the triggers, which waits until every transaction that writes to the source
has ended and lets none begin: a transaction that is not visible to the first refresh after it was captured
in full. They do so before they touch a change table that is in use, for a writer locks the two in that order.
Removal drops the function and lets the triggers go with it, for which the table's ownership is not
needed, as it would be for DROP TRIGGER.

A statement fires the triggers of the table that it names, and only these, also where it writes to partitions
of it. So each partition of a source has them, too. Attaching and detaching a partition changes the rows of
the source and fires nothing. Who refreshes looks whether the partitions are still those that have triggers;
and as one may have come and gone in between, each write looks as well, and if not, leaves the mark of a
TRUNCATE.

A MERGE that moves a row to another partition tells the triggers nothing of it, or half of it: the server puts
such rows into the transition tables of a DELETE and an INSERT, whose triggers do not fire if the statement
has no such action. So a partitioned table has a fifth trigger, which fires when an update names a column
that decides on the partition, and leaves the mark of a TRUNCATE if that was, or may have been, a MERGE.

After a restore from a dump, functions and change tables bear the numbers of tables of another database. A
function that is called for a table other than its own does nothing, so that no write fails; that the
database was restored is seen otherwise (`db/install.py`), and nothing is refreshed until it is repaired.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from psycopg import sql

from headwater.db.connection import Connection
from headwater.db.queries import query
from headwater.plan.operators import Source, SourceColumn

CHANGES = "headwater_changes"
MOVES = "headwater_capture_move"
EVENTS = {
    "insert": "REFERENCING NEW TABLE AS new_rows",
    "update": "REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows",
    "delete": "REFERENCING OLD TABLE AS old_rows",
    "truncate": "",
}


def change_table(relation: int) -> str:
    return f"src_{relation}"


def create_change_table(connection: Connection, relation: int) -> None:
    """An empty change table without columns of the source."""
    table = sql.Identifier(CHANGES, change_table(relation))
    connection.execute(
        sql.SQL(
            "CREATE TABLE {} (xid xid8 NOT NULL, node integer NOT NULL DEFAULT 0, w integer NOT NULL)"
        ).format(table)
    )
    connection.execute(sql.SQL("CREATE INDEX ON {} (xid)").format(table))


def add_columns(connection: Connection, relation: int, columns: Sequence[SourceColumn]) -> None:
    """More columns; the change rows that are there already are for consumers that do without them."""
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
    """Columns that nobody needs go, so that the source's own can be dropped or retyped."""
    connection.execute(
        sql.SQL("ALTER TABLE {} {}").format(
            sql.Identifier(CHANGES, change_table(relation)),
            sql.SQL(", ").join(
                sql.SQL("DROP COLUMN {}").format(sql.Identifier(f"c{number}")) for number in numbers
            ),
        )
    )


def install_function(connection: Connection, source: Source, columns: Sequence[SourceColumn]) -> None:
    """(Re)creates the capture function for these columns."""
    name = sql.Identifier(CHANGES, f"capture_{source.relation}")
    members = _members(connection, source.relation)
    partitioned = members[0].partitioned
    listed = sql.Literal("{" + ",".join(str(oid) for oid in sorted(member.oid for member in members)) + "}")
    moved = _partitions_moved(source.relation, listed) if partitioned else sql.SQL("false")
    connection.execute(_function(name, source, columns, moved, listed))
    if partitioned:  # by which others see what it captures
        connection.execute(sql.SQL("COMMENT ON FUNCTION {} IS {}").format(name, listed))


def install_triggers(connection: Connection, source: Source) -> None:
    """(Re)creates the triggers. Until the transaction ends no writer is at work on the source now."""
    function = sql.Identifier(CHANGES, f"capture_{source.relation}")
    members = _members(connection, source.relation)
    for member in members:
        for event, transition in EVENTS.items():
            connection.execute(
                sql.SQL(
                    "CREATE OR REPLACE TRIGGER {} AFTER {} ON {} {} FOR EACH STATEMENT EXECUTE FUNCTION {}()"
                ).format(
                    sql.Identifier(f"headwater_capture_{event}"),
                    sql.SQL(event.upper()),
                    member.name,
                    sql.SQL(transition),
                    function,
                )
            )
    columns = _partition_columns(connection, [member.oid for member in members])
    for member in (member for member in members if member.partitioned):
        connection.execute(
            sql.SQL(
                "CREATE OR REPLACE TRIGGER {} AFTER UPDATE{} ON {} FOR EACH STATEMENT"
                " EXECUTE FUNCTION {}('moves')"
            ).format(sql.Identifier(MOVES), columns, member.name, function)
        )


class _Member(NamedTuple):
    """A table that is captured, or one of its partitions."""

    oid: int
    name: sql.Identifier
    partitioned: bool


def _members(connection: Connection, relation: int) -> list[_Member]:
    """A table and all its partitions, as a writer locks them."""
    rows = connection.execute(query("catalog", "members"), {"relation": relation}).fetchall()
    return [_Member(oid, sql.Identifier(schema, name), kind == "p") for oid, schema, name, kind in rows]


def _partition_columns(connection: Connection, members: Sequence[int]) -> sql.Composable:
    """The columns that decide on the partition of a row, as a trigger names them; all if expressions do."""
    rows = connection.execute(query("catalog", "partition_columns"), {"members": list(members)}).fetchall()
    if any(name is None for (name,) in rows):
        return sql.SQL("")
    return sql.SQL(" OF {}").format(sql.SQL(", ").join(sql.Identifier(name) for (name,) in rows))


def _partitions_moved(relation: int, members: sql.Literal) -> sql.Composed:
    """A condition: the partitions are others than these.

    What a writer with an old snapshot reads in the catalog is old, too, so it asks the function that looks at
    the present. Others do not, for it locks each partition.
    """
    return sql.SQL(
        """(CASE current_setting('transaction_isolation') WHEN 'read committed' THEN (
            WITH RECURSIVE tree(relid) AS (
                SELECT {relation}::oid
              UNION ALL
                SELECT i.inhrelid FROM pg_catalog.pg_inherits i JOIN tree ON i.inhparent = tree.relid
                WHERE NOT i.inhdetachpending
            ) SELECT array_agg(relid ORDER BY relid) FROM tree)
        ELSE (SELECT array_agg(relid::oid ORDER BY relid::oid) FROM pg_catalog.pg_partition_tree({relation}))
        END) IS DISTINCT FROM {members}::oid[]"""
    ).format(relation=sql.Literal(relation), members=members)


def remove_triggers(connection: Connection, relation: int) -> None:
    connection.execute(
        sql.SQL("DROP FUNCTION IF EXISTS {}() CASCADE").format(sql.Identifier(CHANGES, f"capture_{relation}"))
    )


def drop_change_table(connection: Connection, relation: int) -> None:
    connection.execute(
        sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(CHANGES, change_table(relation)))
    )


def _function(
    name: sql.Identifier,
    source: Source,
    columns: Sequence[SourceColumn],
    moved: sql.Composable,
    members: sql.Literal,
) -> sql.Composed:
    table = sql.Identifier(CHANGES, change_table(source.relation))

    def insert(*parts: sql.Composed) -> sql.Composed:
        names = [sql.Identifier(column.change_column) for column in columns]
        return sql.SQL("INSERT INTO {} ({}) {};").format(
            table,
            sql.SQL(", ").join([sql.SQL("xid"), sql.SQL("w"), *names]),
            sql.SQL(" UNION ALL ").join(parts),
        )

    def rows(weight: int, transition: str) -> sql.Composed:
        values = [sql.SQL("r.{}").format(sql.Identifier(column.name)) for column in columns]
        return sql.SQL("SELECT {} FROM {} AS r").format(
            sql.SQL(", ").join([sql.SQL("pg_catalog.pg_current_xact_id()"), sql.SQL(str(weight)), *values]),
            sql.SQL(transition),
        )

    body = sql.SQL(
        """
DECLARE
    columns text;
    targets text;
    stack text;
    caller text;
BEGIN
    IF TG_RELID <> ALL ({members}::oid[]) THEN
        RETURN NULL;
    END IF;
    IF TG_NARGS > 0 THEN
        GET DIAGNOSTICS stack = PG_CONTEXT;
        caller := substring(stack FROM E'\\n(.*)');
        -- Of a statement in an SQL function the stack has no text.
        IF coalesce(caller, current_query()) ~* E'\\\\m(merge|execute|SQL function)\\\\M'
           OR caller !~* E'\\\\mupdate\\\\M' THEN
            INSERT INTO {table} (xid, w) VALUES (pg_catalog.pg_current_xact_id(), 0);
        END IF;
        RETURN NULL;
    END IF;
    IF TG_OP = 'TRUNCATE' OR {moved} THEN
        INSERT INTO {table} (xid, w) VALUES (pg_catalog.pg_current_xact_id(), 0);
        RETURN NULL;
    END IF;
    IF {unchanged} THEN
        CASE TG_OP
            WHEN 'INSERT' THEN {inserted}
            WHEN 'DELETE' THEN {deleted}
            ELSE {updated}
        END CASE;
    ELSE
        SELECT string_agg(', ' || format('%I', names[place]), ''), string_agg(', c' || number, '')
        INTO columns, targets
        FROM (SELECT {names} AS names) AS n, unnest({numbers}) WITH ORDINALITY AS u(number, place);
        IF TG_OP <> 'INSERT' THEN
            EXECUTE format('INSERT INTO %s (xid, w%s) SELECT pg_current_xact_id(), -1%s FROM old_rows',
                           {table_literal}, targets, columns);
        END IF;
        IF TG_OP <> 'DELETE' THEN
            EXECUTE format('INSERT INTO %s (xid, w%s) SELECT pg_current_xact_id(), 1%s FROM new_rows',
                           {table_literal}, targets, columns);
        END IF;
    END IF;
    RETURN NULL;
END
"""
    ).format(
        table=table,
        members=members,
        moved=moved,
        names=_names(source.relation, columns),
        table_literal=sql.Literal(f"{CHANGES}.{change_table(source.relation)}"),
        numbers=sql.SQL("{}::smallint[]").format(
            sql.Literal("{" + ",".join(str(column.attnum) for column in columns) + "}")
        ),
        unchanged=_names_unchanged(source.relation, columns),
        inserted=insert(rows(1, "new_rows")),
        deleted=insert(rows(-1, "old_rows")),
        updated=insert(rows(-1, "old_rows"), rows(1, "new_rows")),
    )
    return sql.SQL(
        "CREATE OR REPLACE FUNCTION {}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER"
        " SET search_path = pg_catalog, pg_temp AS {}"
    ).format(name, sql.Literal(body.as_string()))


def _names_unchanged(relation: int, columns: Sequence[SourceColumn]) -> sql.Composable:
    if not columns:
        return sql.SQL("true")
    return sql.SQL("{} = {}::name[]").format(
        _names(relation, columns),
        sql.SQL("ARRAY[{}]").format(sql.SQL(", ").join(sql.Literal(column.name) for column in columns)),
    )


def _names(relation: int, columns: Sequence[SourceColumn]) -> sql.Composed:
    """What columns of a table, whose numbers a partition's need not have, are called at present."""
    return sql.SQL(
        """(CASE current_setting('transaction_isolation') WHEN 'read committed' THEN (
            SELECT array_agg(attname ORDER BY attnum) FROM pg_catalog.pg_attribute
            WHERE attrelid = {relation} AND attnum = ANY ({numbers}::smallint[]))
        ELSE (
            SELECT array_agg(a.object_names[3] ORDER BY number)::name[]
            FROM unnest({numbers}::smallint[]) AS number, pg_catalog.pg_identify_object_as_address(
                'pg_catalog.pg_class'::regclass, {relation}, number) AS a)
        END)"""
    ).format(
        relation=sql.Literal(relation),
        numbers=sql.Literal("{" + ",".join(str(column.attnum) for column in columns) + "}"),
    )
