"""New storage in place of the old one, under a view that is read all the while.

The new rows are loaded beside the old ones. What users put on the old storage is put on the new one. Then, in
one moment at the end of the transaction, the view is locked against its readers and made to show the new
storage. A view whose columns stay, with more at the end at most, is replaced, and all that depends on it
stays; any other is dropped and created, with what users put on it.

A transaction that took its snapshot before that moment may read the view for the first time after it. It
sees the view as it is now, but no row of the new storage, for its snapshot does not show who wrote them. So
the old storage is only retired: the number of that transaction goes into its name, and until no such
snapshot is left, the view reads from the one or the other, by what the reader's snapshot shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql

from headwater.apply.storage import DATA, RETIRED, retired, storage_name
from headwater.apply.user_objects import (
    REFUSE_WRITE,
    ColumnKind,
    Index,
    Names,
    columns,
    left_behind,
    name_indexes,
    options_sql,
    put_on_storage,
    put_on_view,
    user_objects,
)
from headwater.db.connection import Connection, TryAgain, one, retried, transaction
from headwater.db.queries import query
from headwater.db.scratch import statement
from headwater.plan.quoting import identifier, literal
from headwater.plan.storage_plan import VISIBLE, MaintenancePlan

IMPATIENCE = "100ms"
"""How long readers may have to wait when retired storage is given up, which has time."""


@dataclass(frozen=True)
class Prepared:
    """A successor that has what users put on the storage it will replace."""

    table: str  # its name in headwater_data
    indexes: tuple[tuple[str, Index], ...]
    lost: tuple[str, ...]  # what could not be put on it, with the reason


def hold(connection: Connection, view: Names) -> None:
    """Keeps others from changing a view and what is below it; readers and refreshes go on.

    Raises TryAgain if the view has got another name meanwhile.
    """
    try:
        connection.execute(
            sql.SQL("LOCK TABLE {} IN SHARE UPDATE EXCLUSIVE MODE").format(sql.Identifier(*view))
        )
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName) as error:
        raise TryAgain(str(error)) from error


def prepare(
    connection: Connection, label: str, stream_table_id: int, table: str, plan: MaintenancePlan
) -> Prepared:
    """Puts what users put on a stream table's storage on a table that will replace it."""
    present, successor = _oid(connection, storage_name(stream_table_id)), _oid(connection, table)
    assert successor is not None
    if present is None:
        return Prepared(table, (), ())
    found = user_objects(connection, present)
    kept, lost = put_on_storage(connection, label, (DATA, table), successor, found, plan.stored_columns)
    return Prepared(table, tuple(kept), (*lost, *left_behind(connection, present)))


def succeed(
    connection: Connection,
    view: Names,
    relation: int,
    stream_table_id: int,
    prepared: Prepared,
    plan: MaintenancePlan,
    *,
    attempts: int,
) -> tuple[int, list[str]]:
    """Puts a successor under the view in place of the present storage; the view's oid and what was lost.

    Takes the locks that keep readers waiting, in the readers' own order, and is the last thing that a
    transaction does but for its records. A lock that cannot be had is tried again without loading anew.
    """

    def lock() -> None:
        with connection.transaction():
            _lock(connection, view)

    retried(lock, what=f"showing the new rows of {identifier(view[1])}", attempts=attempts)
    name = storage_name(stream_table_id)
    present = _oid(connection, name)
    if present is not None:
        _retire(connection, name, present)
    _rename(connection, prepared.table, name)
    oid, lost = show(connection, view, relation, stream_table_id, plan)
    name_indexes(connection, DATA, prepared.indexes)
    return oid, [*prepared.lost, *lost]


def show(
    connection: Connection, view: Names, relation: int | None, stream_table_id: int, plan: MaintenancePlan
) -> tuple[int, list[str]]:
    """Lets a view show a stream table's storage, and what is retired of it; its oid, and what was lost.

    Writes through it are refused with an error.
    """
    name = sql.Identifier(*view)
    storage = _oid(connection, storage_name(stream_table_id))
    assert storage is not None
    stored = columns(connection, storage)  # none, if another session made the table since this snapshot
    outputs = {
        column.name: stored.get(column.name, ColumnKind(column.type.sql, column.type.collation))
        for column in plan.outputs
    }
    old = retired(connection, stream_table_id)
    text = _shown_sql(connection, stream_table_id, outputs, old, hides_rows=plan.hides_groups)
    if relation is None:
        _create_view(connection, view, text, ())
        return _regclass(connection, name), []
    found = user_objects(connection, relation)
    if _continues(outputs, columns(connection, relation)):
        _create_view(connection, view, text, found.options)
        return relation, []
    connection.execute(sql.SQL("DROP VIEW {}").format(name))
    _create_view(connection, view, text, found.options)
    created = _regclass(connection, name)
    return created, put_on_view(connection, view, created, found)


def give_up_retired(connection: Connection, view: Names, relation: int, stream_table_id: int) -> None:
    """Drops retired storage that no snapshot needs any more; in a transaction of its own, if it is its turn.

    Readers that hold the view keep it: then it goes another time.
    """
    found = retired(connection, stream_table_id)
    gone = [
        item for item in found if one(connection, query("succession", "out_of_sight"), {"xid": item[2]})[0]
    ]
    if not gone:
        return
    with transaction(connection):
        connection.execute("SELECT set_config('lock_timeout', %s, true)", (IMPATIENCE,))
        _lock(connection, view)
        storage = _oid(connection, storage_name(stream_table_id))
        assert storage is not None
        shown, stored = columns(connection, relation), columns(connection, storage)
        if any(stored.get(name) != kind for name, kind in shown.items()):
            return  # a column was renamed, which the next refresh follows
        left = [item for item in found if item not in gone]
        text = _shown_sql(connection, stream_table_id, shown, left, hides_rows=VISIBLE in stored)
        _create_view(connection, view, text, user_objects(connection, relation).options)
        for table, _, _ in gone:
            connection.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(DATA, table)))


def fits(connection: Connection, view: int, definition: int) -> bool:
    """Whether a definition has the columns of the view that users read, with more at the end at most."""
    return _continues(columns(connection, definition), columns(connection, view))


def misfit(connection: Connection, view: int, definition: int) -> str:
    """What keeps the columns of a definition from being those of the view, in words."""
    present, wanted = columns(connection, view), columns(connection, definition)
    gone = [name for name in present if name not in wanted]
    retyped = [name for name, kind in present.items() if name in wanted and wanted[name] != kind]
    said = [
        f"{what} {', '.join(map(identifier, names))}"
        for what, names in (("it would lose column", gone), ("it would change the type of column", retyped))
        if names
    ]
    return " and ".join(said) or "it would change the order of its columns"


def dependents(connection: Connection, view: int, definitions: str) -> list[str]:
    """Objects of users' own that need a view, less those in the schema of definitions."""
    rows = connection.execute(
        query("succession", "dependents"), {"view": view, "definitions": definitions}
    ).fetchall()
    return [name for (name,) in rows]


def _continues(wanted: Mapping[str, ColumnKind], present: Mapping[str, ColumnKind]) -> bool:
    return list(wanted.items())[: len(present)] == list(present.items())


def _lock(connection: Connection, view: Names) -> None:
    """A view and the storage below it, which LOCK TABLE locks after it."""
    connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(sql.Identifier(*view)))


def _retire(connection: Connection, name: str, relation: int) -> None:
    """Puts storage aside for those whose snapshots do not show this transaction."""
    for index in user_objects(connection, relation).indexes:  # whose names are needed now
        connection.execute(sql.SQL("DROP INDEX {}").format(sql.Identifier(DATA, index.name)))
    xid = one(connection, "SELECT pg_current_xact_id()::text")[0]
    _rename(connection, name, f"{name}{RETIRED}{xid}")


def _create_view(connection: Connection, view: Names, text: str, options: Sequence[tuple[str, str]]) -> None:
    """CREATE OR REPLACE takes all options away that it does not name."""
    given = sql.SQL(" WITH ({})").format(options_sql(options)) if options else sql.SQL("")
    connection.execute(
        sql.SQL("CREATE OR REPLACE VIEW {}{} AS {}").format(sql.Identifier(*view), given, statement(text))
    )
    connection.execute(
        sql.SQL(
            "CREATE OR REPLACE TRIGGER {} INSTEAD OF INSERT OR UPDATE OR DELETE ON {}"
            " FOR EACH ROW EXECUTE FUNCTION headwater.refuse_write()"
        ).format(sql.Identifier(REFUSE_WRITE), sql.Identifier(*view))
    )


def _shown_sql(
    connection: Connection,
    stream_table_id: int,
    outputs: Mapping[str, ColumnKind],
    old: Sequence[tuple[str, int, str]],
    *,
    hides_rows: bool,
) -> str:
    """The query of the view: the storage; with retired ones, that of them all that a snapshot shows."""
    since = [xid for _, _, xid in old]
    hidden = {VISIBLE: ColumnKind("boolean", None)} if hides_rows else {}
    conditions = [f"({_done(since[-1])})"] if since else []
    branches = [_branch(storage_name(stream_table_id), {**outputs, **hidden}, outputs, conditions)]
    for number, (table, relation, until) in reversed(list(enumerate(old))):
        conditions = [f"NOT ({_done(until)})", *([f"({_done(since[number - 1])})"] if number else [])]
        branches.append(_branch(table, columns(connection, relation), outputs, conditions))
    return " UNION ALL ".join(branches)


def _branch(
    table: str,
    stored: Mapping[str, ColumnKind],
    outputs: Mapping[str, ColumnKind],
    conditions: Sequence[str],
) -> str:
    """The rows of one table; a column that it does not have, or has otherwise, is NULL."""
    listed = []
    for name, kind in outputs.items():
        collation = f" COLLATE {kind.collation}" if kind.collation else ""
        null = f"NULL::{kind.type}{collation} AS {identifier(name)}"
        listed.append(identifier(name) if stored.get(name) == kind else null)
    conditions = [*([VISIBLE] if VISIBLE in stored else []), *conditions]
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    return f"SELECT {', '.join(listed)} FROM {identifier(DATA)}.{identifier(table)}{where}"


def _done(xid: str) -> str:
    """A condition: the reader's snapshot shows what a transaction did, or it is the reader's own."""
    number = f"{literal(xid)}::xid8"
    return (
        f"pg_visible_in_snapshot({number}, pg_current_snapshot())"
        f" OR pg_current_xact_id_if_assigned() IS NOT DISTINCT FROM {number}"
    )


def _rename(connection: Connection, table: str, name: str) -> None:
    connection.execute(
        sql.SQL("ALTER TABLE {} RENAME TO {}").format(sql.Identifier(DATA, table), sql.Identifier(name))
    )


def _oid(connection: Connection, table: str) -> int | None:
    name = f"{identifier(DATA)}.{identifier(table)}"
    found: int | None = one(connection, "SELECT to_regclass(%s)::oid", (name,))[0]
    return found


def _regclass(connection: Connection, name: sql.Identifier) -> int:
    return int(one(connection, "SELECT %s::regclass::oid", (name.as_string(connection),))[0])
