"""What users put on a relation, taken down from one and put on another that takes its place.

Names come from the server's catalogs and go into composed statements as identifiers; expressions are the
server's own deparsing, with every name in them qualified.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import psycopg
from psycopg import sql

from headwater.db.connection import Connection, TryAgain, one
from headwater.db.queries import query
from headwater.db.scratch import statement
from headwater.errors import DependentsExist
from headwater.plan.key_filter import HASH
from headwater.plan.quoting import identifier

REFUSE_WRITE = "headwater_refuse_write"
"""The trigger that every view of a stream table has."""
Names = tuple[str, str]
"""A schema and a relation in it."""
Grant = tuple[str | None, str | None, str, bool]
"""Column (None for the relation), role (None for PUBLIC), privilege, whether it may be passed on."""


class ColumnKind(NamedTuple):
    """Of what kind a column is, as SQL writes it."""

    type: str
    collation: str | None


@dataclass(frozen=True)
class Index:
    """An index that a user made."""

    name: str
    unique: bool
    comment: str | None
    rest: str  # its definition from the method on, as the server writes it


@dataclass(frozen=True)
class Policy:
    """A policy of row-level security."""

    name: str
    permissive: bool
    command: str
    roles: tuple[str | None, ...]  # None for PUBLIC
    using: str | None
    check: str | None


@dataclass(frozen=True)
class UserObjects:
    """What users put on a table or a view."""

    owner: str
    options: tuple[tuple[str, str], ...]
    comment: str | None
    column_comments: tuple[tuple[str, str], ...]
    column_defaults: tuple[tuple[str, str], ...]
    grants: frozenset[Grant]
    secured: bool
    forced: bool
    policies: tuple[Policy, ...]
    indexes: tuple[Index, ...]
    triggers: tuple[tuple[str, str], ...]


def user_objects(connection: Connection, relation: int) -> UserObjects:
    """What users put on a relation.

    Raises TryAgain if an index is newer than the transaction's snapshot.
    """
    where = {"relation": relation, "own": HASH}
    if one(connection, query("succession", "indexes_unseen"), where)[0]:
        raise TryAgain("an index was made meanwhile")
    _, owner, comment, secured, forced, options = one(connection, query("succession", "facts"), where)
    policies = connection.execute(query("succession", "policies"), where).fetchall()
    return UserObjects(
        owner=owner,
        options=tuple((name, value) for name, value in options),
        comment=comment,
        column_comments=tuple(connection.execute(query("succession", "column_comments"), where).fetchall()),
        column_defaults=tuple(connection.execute(query("succession", "column_defaults"), where).fetchall()),
        grants=_grants(connection, relation),
        secured=secured,
        forced=forced,
        policies=tuple(
            Policy(name, permissive, command, tuple(roles), using, check)
            for name, permissive, command, roles, using, check in policies
        ),
        indexes=tuple(
            Index(*row) for row in connection.execute(query("succession", "indexes"), where).fetchall()
        ),
        triggers=tuple(
            connection.execute(
                query("succession", "triggers"), {"relation": relation, "own": REFUSE_WRITE}
            ).fetchall()
        ),
    )


def _grants(connection: Connection, relation: int) -> frozenset[Grant]:
    rows = connection.execute(query("succession", "grants"), {"relation": relation}).fetchall()
    return frozenset((column, role, privilege, passed) for column, role, privilege, passed in rows)


def columns(connection: Connection, relation: int) -> dict[str, ColumnKind]:
    """The columns of a relation, in their order."""
    rows = connection.execute(query("succession", "columns"), {"relation": relation}).fetchall()
    return {name: ColumnKind(*kind) for name, *kind in rows}


def left_behind(connection: Connection, relation: int) -> list[str]:
    """What users put on storage that no other storage gets."""
    rows = connection.execute(query("succession", "left_behind"), {"relation": relation}).fetchall()
    return [f"{what} is gone: it does not pass to new storage" for (what,) in rows]


def put_on_storage(
    connection: Connection,
    label: str,
    names: Names,
    relation: int,
    found: UserObjects,
    stored: Collection[str],
) -> tuple[list[tuple[str, Index]], list[str]]:
    """Puts what was on storage on its successor; indexes with the names they have for now, and what is lost.

    `stored` are the columns of the successor: if another session made it, this snapshot shows none of them.
    A policy that does not fit the successor is an error: without it, others might see more than they may.
    """
    table, kept, lost = sql.Identifier(*names), [], []
    for number, index in enumerate(found.indexes):
        name = f"{names[1]}_{number}"
        create = sql.SQL("CREATE {}INDEX {} ON {} USING {}").format(
            sql.SQL("UNIQUE " if index.unique else ""), sql.Identifier(name), table, statement(index.rest)
        )
        failure = _tried(connection, create)
        if failure is None:
            kept.append((name, index))
        else:
            lost.append(f"index {identifier(index.name)} is gone: {failure.diag.message_primary}")
    for policy in found.policies:
        failure = _tried(connection, _policy(table, policy))
        if failure is not None:
            raise DependentsExist(
                f"{label}: policy {identifier(policy.name)} on its storage does not fit the new query",
                detail=failure.diag.message_primary or "",
                hint="drop the policy first, or keep the columns that it names",
            ) from failure
    if found.secured:
        connection.execute(sql.SQL("ALTER TABLE {} ENABLE ROW LEVEL SECURITY").format(table))
    if found.forced:
        connection.execute(sql.SQL("ALTER TABLE {} FORCE ROW LEVEL SECURITY").format(table))
    if found.options:
        connection.execute(sql.SQL("ALTER TABLE {} SET ({})").format(table, options_sql(found.options)))
    _put_common(connection, "TABLE", names, relation, found, stored)
    return kept, lost


def name_indexes(connection: Connection, schema: str, kept: Sequence[tuple[str, Index]]) -> None:
    """Gives indexes the names that their predecessors had, once those are gone."""
    for name, index in kept:
        connection.execute(
            sql.SQL("ALTER INDEX {} RENAME TO {}").format(
                sql.Identifier(schema, name), sql.Identifier(index.name)
            )
        )
        if index.comment is not None:
            connection.execute(
                sql.SQL("COMMENT ON INDEX {} IS {}").format(
                    sql.Identifier(schema, index.name), sql.Literal(index.comment)
                )
            )


def put_on_view(connection: Connection, names: Names, relation: int, found: UserObjects) -> list[str]:
    """Puts what was on a view on the one that was created in its place; what is lost."""
    view, lost = sql.Identifier(*names), []
    for name, expression in found.column_defaults:
        failure = _tried(
            connection,
            sql.SQL("ALTER VIEW {} ALTER COLUMN {} SET DEFAULT {}").format(
                view, sql.Identifier(name), statement(expression)
            ),
        )
        if failure is not None:
            lost.append(f"the default of {identifier(name)} is gone: {failure.diag.message_primary}")
    for name, definition in found.triggers:
        failure = _tried(connection, statement(definition))
        if failure is not None:
            lost.append(f"trigger {identifier(name)} is gone: {failure.diag.message_primary}")
    _put_common(connection, "VIEW", names, relation, found, columns(connection, relation))
    return lost


def options_sql(options: Sequence[tuple[str, str]]) -> sql.Composed:
    """Storage parameters; a name of two parts (toast.…) has each quoted."""
    return sql.SQL(", ").join(
        sql.SQL("{} = {}").format(sql.Identifier(*name.split(".")), sql.Literal(value))
        for name, value in options
    )


def _put_common(
    connection: Connection,
    kind: str,
    names: Names,
    oid: int,
    found: UserObjects,
    there: Collection[str],
) -> None:
    relation = sql.Identifier(*names)
    _comment(connection, statement(kind), relation, found.comment)
    for name, comment in found.column_comments:
        if name in there:
            _comment(connection, sql.SQL("COLUMN"), sql.Identifier(*names, name), comment)
    owner = one(connection, query("succession", "facts"), {"relation": oid})[1]
    if owner != found.owner:
        connection.execute(
            sql.SQL("ALTER {} {} OWNER TO {}").format(statement(kind), relation, sql.Identifier(found.owner))
        )
    present = _grants(connection, oid)
    wanted = {grant for grant in found.grants if grant[0] is None or grant[0] in there}
    for column, role, privilege, _ in present - wanted:
        connection.execute(
            sql.SQL("REVOKE {} ON {} FROM {}").format(_privilege(privilege, column), relation, _role(role))
        )
    for column, role, privilege, passed in wanted - present:
        connection.execute(
            sql.SQL("GRANT {} ON {} TO {}{}").format(
                _privilege(privilege, column),
                relation,
                _role(role),
                sql.SQL(" WITH GRANT OPTION" if passed else ""),
            )
        )


def _comment(connection: Connection, kind: sql.SQL, what: sql.Identifier, comment: str | None) -> None:
    if comment is not None:
        connection.execute(sql.SQL("COMMENT ON {} {} IS {}").format(kind, what, sql.Literal(comment)))


def _policy(table: sql.Identifier, policy: Policy) -> sql.Composed:
    parts = [
        sql.SQL("CREATE POLICY {} ON {} AS {} FOR {} TO {}").format(
            sql.Identifier(policy.name),
            table,
            sql.SQL("PERMISSIVE" if policy.permissive else "RESTRICTIVE"),
            statement(policy.command),
            sql.SQL(", ").join(map(_role, policy.roles)),
        )
    ]
    if policy.using is not None:
        parts.append(sql.SQL("USING ({})").format(statement(policy.using)))
    if policy.check is not None:
        parts.append(sql.SQL("WITH CHECK ({})").format(statement(policy.check)))
    return sql.SQL(" ").join(parts)


def _privilege(privilege: str, column: str | None) -> sql.Composed:
    """A privilege as the server spells it, on one column or on all."""
    of_column = sql.SQL(" ({})").format(sql.Identifier(column)) if column is not None else sql.SQL("")
    return statement(privilege) + of_column


def _role(name: str | None) -> sql.Composable:
    return sql.SQL("PUBLIC") if name is None else sql.Identifier(name)


def _tried(connection: Connection, text: sql.SQL | sql.Composed) -> psycopg.Error | None:
    """Runs a statement in a savepoint; the error if it does not fit what it is for."""
    try:
        with connection.transaction():
            connection.execute(text)
    except (psycopg.ProgrammingError, psycopg.IntegrityError, psycopg.DataError) as error:
        return error
    return None
