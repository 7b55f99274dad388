"""Capture by statement triggers: one INSERT into the source's change table per writing statement.

A change row is a weight: +1 for an added row, -1 for a removed one, both for an update, 0 for a TRUNCATE. The
trigger function runs with the rights of its owner, so writers need no privilege on the change table.

Columns are stored under their number in the catalog. The function takes those of a table by their position,
so a rename does not affect it; those of a partitioned table, whose partitions may have others, by their
names.

No failure of ours makes a user's write fail. An exception handler around the INSERT would ensure that, but it
takes a transaction number of its own for each statement, and a transaction of more than 64 of them slows down
everybody who looks at its rows. So the function first checks that everything is as it was made for, by
functions that read the server's catalog cache and take a fraction of a microsecond each: the change table has
its name and may be written to, and no column before the last captured one was dropped. A view of both tables,
the guard, makes the server itself ensure that the captured columns and those of the change table keep their
types: none can change while the guard exists. Only if a check fails does the function take the slow path, in
a handler: it inserts by current names; if that fails, too, it leaves the mark of a TRUNCATE; if even that
fails, a row in headwater.lost_change. Either forces a rebuild. What the function was made for is stored as
the source's capture_signature, by which a refresh notices that it has to be made again.

Installing and extending capture replaces the triggers. That waits until every transaction that writes to the
source has ended and lets none begin, so a transaction that is invisible to the first refresh afterwards was
captured in full. The triggers are replaced before a change table in use is touched, because a writer locks
the two in that order. Removal drops the function and, with it, the triggers; unlike DROP TRIGGER, this does
not require ownership of the table.

A statement fires the triggers of the table that it names, and only these, also where it writes to partitions
of it. So each partition of a source has them, too. Attaching and detaching a partition changes the rows of
the source and fires nothing. A refresh checks that the partitions are still those that have triggers. A
partition may have been attached and detached in between, so each write checks as well, and leaves the mark of
a TRUNCATE if they differ.

A MERGE that moves a row to another partition tells the triggers nothing of it, or half of it: the server puts
such rows into the transition tables of a DELETE and an INSERT, whose triggers do not fire if the statement
has no such action. So a partitioned table has a fifth trigger, which fires when an update names a column that
decides on the partition, and leaves the mark of a TRUNCATE if that was, or may have been, a MERGE.

Each statement also leaves a mark that the source changed (`capture/marks.py`), by which a scheduler finds it.

After a restore from a dump, functions and change tables bear the numbers of tables of another database. A
function that is called for a table other than its own does nothing, so that no write fails.
`catalog/installed.py` detects that the database was restored, and nothing is refreshed until it is repaired.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from psycopg import sql

from headwater.capture.buffers import CHANGES
from headwater.capture.change_tables import change_table
from headwater.db.connection import Connection, one
from headwater.db.queries import query
from headwater.plan.operators import Source, SourceColumn

MOVES = "headwater_capture_move"
GUARDS = "headwater_defs"
"""The schema of the guards: views by which the server keeps captured columns as they are."""
MOST_INLINE = 8_000
"""The most bytes that a change row may take: a little less than a page."""
EVENTS = {
    "insert": "REFERENCING NEW TABLE AS new_rows",
    "update": "REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows",
    "delete": "REFERENCING OLD TABLE AS old_rows",
    "truncate": "",
}


def install_function(connection: Connection, source: Source, columns: Sequence[SourceColumn]) -> None:
    """Create or replace the capture function for these columns, and their guard."""
    name = sql.Identifier(CHANGES, f"capture_{source.relation}")
    members = _members(connection, source.relation)
    guard = _install_guard(connection, source, columns)
    connection.execute(
        sql.SQL(
            "CREATE OR REPLACE FUNCTION {}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER"
            " SET search_path = pg_catalog, pg_temp AS {}"
        ).format(name, sql.Literal(_body(connection, source, columns, members, guard)))
    )
    if members[0].partitioned:  # others see by it what it captures
        connection.execute(sql.SQL("COMMENT ON FUNCTION {} IS {}").format(name, _listed_oids(members)))


def is_current(connection: Connection, source: Source, columns: Sequence[SourceColumn]) -> bool:
    """Tell whether the capture function of a source is what this version would make for these columns."""
    guard, text = one(connection, query("catalog", "capture_function"), {"relation": source.relation})
    members = _members(connection, source.relation)
    return guard is not None and text == _body(connection, source, columns, members, guard)


def _body(
    connection: Connection,
    source: Source,
    columns: Sequence[SourceColumn],
    members: Sequence[_Member],
    guard: int,
) -> str:
    """Return the text of a capture function."""
    row = one(
        connection,
        query("catalog", "capture_layout"),
        {"relation": source.relation, "schema": CHANGES, "table": change_table(source.relation)},
    )
    layout = _Layout(members[0].partitioned, _listed_oids(members), guard, *row)
    look = (
        _look(source.relation, layout.members)
        if layout.partitioned
        else sql.SQL("\n    moved := TG_OP = 'TRUNCATE';")
    )
    return _function(source, columns, look, layout).as_string()


def _listed_oids(members: Sequence[_Member]) -> sql.Literal:
    return sql.Literal("{" + ",".join(str(oid) for oid in sorted(member.oid for member in members)) + "}")


def _install_guard(connection: Connection, source: Source, columns: Sequence[SourceColumn]) -> int:
    """Create a view of the captured columns and of the change table; return its oid."""
    remove_guard(connection, source.relation)
    view = sql.Identifier(GUARDS, f"captured_{source.relation}")
    connection.execute(
        sql.SQL("CREATE VIEW {} AS SELECT {} FROM ONLY {} AS s, {} AS t").format(
            view,
            sql.SQL(", ").join(
                [
                    *(
                        sql.SQL("s.{} AS {}").format(
                            sql.Identifier(column.name), sql.Identifier(f"s{column.attnum}")
                        )
                        for column in columns
                    ),
                    sql.SQL("t.*"),
                ]
            ),
            sql.Identifier(source.schema, source.name),
            sql.Identifier(CHANGES, change_table(source.relation)),
        )
    )
    return int(one(connection, "SELECT %s::regclass::oid", (view.as_string(connection),))[0])


def remove_guard(connection: Connection, relation: int) -> None:
    """Remove the guard, so that a change table can lose columns, until the function is made again."""
    connection.execute(
        sql.SQL("DROP VIEW IF EXISTS {}").format(sql.Identifier(GUARDS, f"captured_{relation}"))
    )


def install_triggers(connection: Connection, source: Source) -> None:
    """Create or replace the triggers. No writer is then active on the source until the transaction ends."""
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
    """Return a table and all its partitions, in the order in which a writer locks them."""
    rows = connection.execute(query("catalog", "members"), {"relation": relation}).fetchall()
    return [_Member(oid, sql.Identifier(schema, name), kind == "p") for oid, schema, name, kind in rows]


def _partition_columns(connection: Connection, members: Sequence[int]) -> sql.Composable:
    """Return the columns that decide on a row's partition, as a trigger names them; all for expressions."""
    rows = connection.execute(query("catalog", "partition_columns"), {"members": list(members)}).fetchall()
    if any(name is None for (name,) in rows):
        return sql.SQL("")
    return sql.SQL(" OF {}").format(sql.SQL(", ").join(sql.Identifier(name) for (name,) in rows))


def _look(relation: int, members: sql.Literal) -> sql.Composed:
    """Return statements that find out whether the partitions differ from these.

    A writer with an old snapshot reads an old catalog, so it calls the function that looks at the current
    one. That locks each partition, also those that the writer does not touch. Waiting for such a lock, or
    keeping it, could cause a deadlock between two users who would have had none. So it does not wait, and the
    locks are released with the subtransaction, which is always rolled back.
    """
    return sql.SQL(
        """
    IF TG_NARGS > 0 OR TG_OP = 'TRUNCATE' THEN
        moved := true;
    ELSIF current_setting('transaction_isolation') = 'read committed' THEN
        moved := (
            WITH RECURSIVE tree(relid) AS (
                SELECT {relation}::oid
              UNION ALL
                SELECT i.inhrelid FROM pg_catalog.pg_inherits i JOIN tree ON i.inhparent = tree.relid
                WHERE NOT i.inhdetachpending
            ) SELECT array_agg(relid ORDER BY relid) FROM tree) IS DISTINCT FROM {members}::oid[];
    ELSE
        moved := true;
        BEGIN
            PERFORM set_config('lock_timeout', '1ms', true);
            moved := (SELECT array_agg(relid::oid ORDER BY relid::oid)
                      FROM pg_catalog.pg_partition_tree({relation})) IS DISTINCT FROM {members}::oid[];
            RAISE SQLSTATE 'HW000';
        EXCEPTION WHEN lock_not_available OR SQLSTATE 'HW000' THEN
        END;
    END IF;"""
    ).format(relation=sql.Literal(relation), members=members)


def remove_triggers(connection: Connection, relation: int) -> None:
    connection.execute(
        sql.SQL("DROP FUNCTION IF EXISTS {}() CASCADE").format(sql.Identifier(CHANGES, f"capture_{relation}"))
    )
    remove_guard(connection, relation)


@dataclass(frozen=True)
class _Layout:
    """The objects that a capture function is made for."""

    partitioned: bool
    members: sql.Literal  # oids of the table and its partitions
    guard: int  # oid of the view that protects the captured columns
    schema: int  # oid of the schema of the change tables
    table: int  # oid of the change table
    lost: int  # oid of headwater.lost_change
    catalog: int  # oid of the schema of the catalog
    marks: int  # oid of the table of marks
    mark: int  # oid of the function that leaves a mark
    targets: list[str]  # the columns of the change table
    live: list[int]  # numbers of the source's columns
    widest: int | None  # most bytes that its columns take in a change row; None if there is no limit


def _function(
    source: Source, columns: Sequence[SourceColumn], look: sql.Composable, layout: _Layout
) -> sql.Composed:
    table = sql.Identifier(CHANGES, change_table(source.relation))

    def insert(*parts: sql.Composed) -> sql.Composed:
        return sql.SQL("INSERT INTO {} {};").format(table, sql.SQL(" UNION ALL ").join(parts))

    def selected(weight: int, of: dict[str, sql.Composable]) -> sql.Composed:
        known: dict[str, sql.Composable] = {
            "xid": sql.SQL("pg_catalog.pg_current_xact_id()"),
            "node": sql.SQL("0"),
            "w": sql.SQL(str(weight)),
            **of,
        }
        values = [known.get(target, sql.SQL("NULL")) for target in layout.targets]
        return sql.SQL("SELECT {}").format(sql.SQL(", ").join(values))

    before = [number for number in layout.live if number <= max((c.attnum for c in columns), default=0)]
    aliases = sql.SQL("") if layout.partitioned or not before else _listed(f"p{n}" for n in before)

    def rows(weight: int, transition: str) -> sql.Composed:
        values = {
            column.change_column: sql.SQL("r.{}").format(
                sql.Identifier(column.name if layout.partitioned else f"p{column.attnum}")
            )
            for column in columns
        }
        return sql.SQL("{} FROM {} AS r{}").format(
            selected(weight, dict(values)), sql.SQL(transition), aliases
        )

    return sql.SQL(
        """
DECLARE
    columns text;
    targets text;
    failure text;
    stack text;
    caller text;
    moved boolean;
BEGIN
    IF TG_RELID <> ALL ({members}::oid[]) THEN
        RETURN NULL;
    END IF;
    IF TG_NARGS > 0 THEN
        GET DIAGNOSTICS stack = PG_CONTEXT;
        caller := substring(stack FROM E'\\n(.*)');
        -- Of a statement in an SQL function the stack has no text.
        IF (coalesce(caller, current_query()) ~* E'\\\\m(merge|execute|SQL function)\\\\M'
            OR caller !~* E'\\\\mupdate\\\\M') IS NOT TRUE THEN
            RETURN NULL;
        END IF;
    END IF;{look}
    IF {intact} THEN
        IF moved THEN
            {marked}
        ELSE
            CASE TG_OP
                WHEN 'INSERT' THEN {inserted}
                WHEN 'DELETE' THEN {deleted}
                ELSE {updated}
            END CASE;
        END IF;
        PERFORM headwater.mark_changed({relation});
        RETURN NULL;
    END IF;
    BEGIN
        PERFORM headwater.mark_changed({relation});
    EXCEPTION WHEN OTHERS THEN
        -- A scheduler looks at every source from time to time, marked or not.
    END;
    BEGIN
        IF moved THEN
            EXECUTE {mark};
            RETURN NULL;
        END IF;
        SELECT string_agg(', ' || format('%I', names[place]), ''), string_agg(', c' || number, '')
        INTO columns, targets
        FROM (SELECT {names} AS names) AS n, unnest({numbers}) WITH ORDINALITY AS u(number, place);
        IF TG_OP <> 'INSERT' THEN
            EXECUTE format('INSERT INTO %s (xid, w%s) SELECT pg_current_xact_id(), -1%s FROM old_rows',
                           {oid}::oid::regclass, targets, columns);
        END IF;
        IF TG_OP <> 'DELETE' THEN
            EXECUTE format('INSERT INTO %s (xid, w%s) SELECT pg_current_xact_id(), 1%s FROM new_rows',
                           {oid}::oid::regclass, targets, columns);
        END IF;
        RETURN NULL;
    EXCEPTION WHEN OTHERS THEN
        failure := SQLERRM;
    END;
    BEGIN
        EXECUTE {mark};
        RETURN NULL;
    EXCEPTION WHEN OTHERS THEN
        failure := SQLERRM;
    END;
    BEGIN
        EXECUTE format('INSERT INTO %s (relation, reason) VALUES (%s, %L)',
                       {lost}::oid::regclass, {relation}, failure);
    EXCEPTION WHEN OTHERS THEN
        RAISE WARNING 'Headwater could not capture a change of %: %', {relation}::oid::regclass, failure
            USING HINT = 'Run headwater refresh --full for each stream table that reads it.';
    END;
    RETURN NULL;
END
"""
    ).format(
        members=layout.members,
        names=_names(source.relation, columns),
        intact=_intact(source, columns, layout, before),
        look=look,
        marked=insert(selected(0, {})),
        mark=sql.SQL(
            "format('INSERT INTO %s (xid, w) VALUES (pg_current_xact_id(), 0)', {}::oid::regclass)"
        ).format(sql.Literal(layout.table)),
        relation=sql.Literal(source.relation),  # a partition's columns may have other numbers
        oid=sql.Literal(layout.table),
        lost=sql.Literal(layout.lost),
        numbers=sql.SQL("{}::smallint[]").format(
            sql.Literal("{" + ",".join(str(column.attnum) for column in columns) + "}")
        ),
        inserted=insert(rows(1, "new_rows")),
        deleted=insert(rows(-1, "old_rows")),
        updated=insert(rows(-1, "old_rows"), rows(1, "new_rows")),
    )


def _names(relation: int, columns: Sequence[SourceColumn]) -> sql.Composed:
    """Return the current names of columns of a table; a partition's may have other numbers."""
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


def _listed(names: Iterable[str]) -> sql.Composed:
    return sql.SQL(" ({})").format(sql.SQL(", ").join(map(sql.Identifier, names)))


def _intact(
    source: Source, columns: Sequence[SourceColumn], layout: _Layout, before: Sequence[int]
) -> sql.Composable:
    """Return a condition without a query under which the function's INSERTs cannot fail by our fault.

    Each function gives NULL for an object that is gone. The order matters: looking up a name in a schema
    without the right to do so is an error.
    """
    if layout.widest is None or layout.widest > MOST_INLINE:
        return sql.SQL("false")  # a row that just fits into a page of the source need not fit into ours
    table = sql.Literal(layout.table)
    conditions: list[sql.Composable] = [
        sql.SQL("has_schema_privilege({}::oid, 'USAGE')").format(sql.Literal(layout.schema)),
        sql.SQL("to_regclass({}) = {}::oid").format(
            sql.Literal(f"{CHANGES}.{change_table(source.relation)}"), table
        ),
        sql.SQL("has_table_privilege({}::oid, 'INSERT')").format(table),
        sql.SQL("has_table_privilege({}::oid, 'SELECT') IS NOT NULL").format(sql.Literal(layout.guard)),
        sql.SQL("has_schema_privilege({}::oid, 'USAGE')").format(sql.Literal(layout.catalog)),
        sql.SQL("to_regclass('headwater.changed_source') = {}::oid").format(sql.Literal(layout.marks)),
        sql.SQL("has_table_privilege({}::oid, 'INSERT')").format(sql.Literal(layout.marks)),
        sql.SQL("to_regproc('headwater.mark_changed') = {}::oid").format(sql.Literal(layout.mark)),
        sql.SQL("has_function_privilege({}::oid, 'EXECUTE')").format(sql.Literal(layout.mark)),
    ]
    if layout.partitioned:
        conditions += [
            sql.SQL("(pg_identify_object_as_address(1259, {}, {})).object_names[3] = {}").format(
                sql.Literal(source.relation), sql.Literal(column.attnum), sql.Literal(column.name)
            )
            for column in columns
        ]
    else:
        captured = {column.attnum for column in columns}
        conditions += [
            sql.SQL("has_column_privilege({}::oid, {}::smallint, 'SELECT') IS NOT NULL").format(
                sql.Literal(source.relation), sql.Literal(number)
            )
            for number in before
            if number not in captured
        ]
    return sql.SQL(" AND ").join(conditions)
