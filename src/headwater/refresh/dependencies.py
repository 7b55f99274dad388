"""What a stream table depends on: recorded when it is created, and again when that changed under it.

A definition changes without us when a plain view that the query reads is replaced, or when something in it
is renamed; capture breaks when somebody drops or disables its triggers. Each refresh asks for both first
(`outdated`). A rename only brings the records up to date. A changed meaning is registered like a new
definition, and the stream table is rebuilt; so is every consumer of a source whose capture was broken.

Who renames a column of the view that shows a stream table (`ALTER VIEW … RENAME COLUMN`) wants it to be
called so. Before all else, the column of the definition and that of the storage get the name, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import psycopg
from psycopg import sql

from headwater.apply import storage
from headwater.capture.registry import (
    LIFECYCLE_LOCK,
    capture,
    reinstall,
    release_superfluous,
    share_patience,
)
from headwater.catalog import installed
from headwater.catalog import stream_tables as catalog
from headwater.catalog.stream_tables import Mode, StreamTable
from headwater.db.connection import Connection, TryAgain, one, transaction
from headwater.db.queries import query
from headwater.definition.reader import Definition, DefinitionReader
from headwater.definition.views import definition_name, definition_oid
from headwater.errors import CyclicDependency, NotIncremental, RefreshFailed
from headwater.plan.build.scope import SYSTEM_COLUMNS
from headwater.plan.lineage import lineage
from headwater.plan.quoting import identifier
from headwater.plan.storage_plan import HIDDEN
from headwater.refresh import incidents
from headwater.version import version


def effective_mode(
    label: str, requested: Mode, definition: Definition, standing: Sequence[str] = ()
) -> Literal["differential", "full"]:
    """The mode that a definition and its incidents allow, or the error that the requested one deserves."""
    if requested == "full":
        return "full"
    if definition.plan is not None and not standing:
        return "differential"
    if requested == "differential":
        raise NotIncremental(
            f"{label} cannot be maintained incrementally: {'; '.join([*definition.reasons, *standing])}",
            hint="use mode auto or full to recompute it at each refresh",
        )
    return "full"


def register(
    connection: Connection, stream_table_id: int, label: str, definition: Definition, mode: str
) -> None:
    """Records what a stream table reads, and captures it if deltas will be wanted."""
    reasons = [*definition.reasons, *incidents.standing(connection, stream_table_id, definition)]
    connection.execute(
        query("catalog", "set_planned"),
        {
            "id": stream_table_id,
            "definition": definition.text,
            "fingerprint": definition.fingerprint(mode),
            "signature": definition.signature,
            "signature_of": list(definition.relations),
            "mode": mode,
            "reasons": reasons if mode == "full" else [],
        },
    )
    connection.execute(query("catalog", "delete_dependencies"), {"id": stream_table_id})
    plan = definition.plan
    sources = plan.sources if plan is not None else ()
    wanted = plan.wanted if plan is not None else {}
    numbers = {
        source.relation: [source.column(name).attnum for name in wanted[source.relation]]
        for source in sources
    }
    source_ids = {}
    for relation in definition.reads:
        source_ids[relation.oid] = one(
            connection,
            query("catalog", "upsert_source"),
            {
                "relation": relation.oid,
                "schema": relation.schema,
                "name": relation.name,
                "stream_table_id": relation.stream_table_id,
            },
        )[0]
        connection.execute(
            query("catalog", "add_dependency"),
            {
                "stream_table_id": stream_table_id,
                "source_id": source_ids[relation.oid],
                "columns": numbers.get(relation.oid, []),
            },
        )
    if stream_table_id in catalog.upstream_of(connection, stream_table_id):
        raise CyclicDependency(
            f"{label} would depend on itself", hint="a view that its query reads shows this very stream table"
        )
    for output, columns in (lineage(plan.root) if plan is not None else {}).items():
        for relation_oid, attnum in columns:
            connection.execute(
                query("catalog", "add_lineage"),
                {
                    "stream_table_id": stream_table_id,
                    "source_id": source_ids[relation_oid],
                    "attnum": attnum,
                    "output_column": output,
                },
            )
    share_patience(connection, source_ids)  # which are about to be captured, or no longer
    if mode == "differential":
        # In the order of their oids: two registrations at once take their locks in the same order.
        for source in sorted(sources, key=lambda source: source.relation):
            capture(connection, source_ids[source.relation], source, wanted[source.relation])


def register_anew(
    connection: Connection, stream_table: StreamTable, definition: Definition, mode: str, reason: str
) -> None:
    """Registers another meaning or mode of a stream table; what is stored is replaced by the next refresh."""
    register(connection, stream_table.id, stream_table.label, definition, mode)
    connection.execute(query("catalog", "distrust_storage"), {"id": stream_table.id, "reason": reason})
    # Protects the change rows from here on until the rebuild has its own snapshot.
    connection.execute(query("catalog", "set_frontier"), {"id": stream_table.id})
    release_superfluous(connection)


class Outdated(NamedTuple):
    """Something that a refresh cannot trust: of a stream table, or the capture of a source."""

    what: Literal["broken", "renamed", "frontier", "definition", "capture"]
    id: int


def outdated(connection: Connection, members: Sequence[int]) -> list[Outdated]:
    """What a refresh of these stream tables cannot trust."""
    values = {"ids": sorted(members), "version": version()}
    try:
        found = connection.execute(query("catalog", "outdated"), values).fetchall()
    except psycopg.errors.InternalError_ as error:  # a definition was replaced while it was looked at
        raise TryAgain(str(error)) from error
    return [Outdated(*row) for row in found]


def bring_up_to_date(
    connection: Connection, reader: DefinitionReader, members: Sequence[int]
) -> list[Outdated]:
    """Adopts changed names and definitions and repairs capture, for a refresh to trust; what it found.

    What is broken stays so: it is for the caller to tell.
    """
    found = outdated(connection, members)
    if any(item.what == "renamed" for item in found):
        follow_renames(connection, reader, members)
        found = outdated(connection, members)
    for item in found:
        if item.what == "broken":
            continue
        if item.what == "frontier":
            # Protects the change rows from here on until the rebuild has its own snapshot.
            connection.execute(query("catalog", "set_frontier"), {"id": item.id})
            stream_table = catalog.stream_table(connection, item.id)
            reason = stream_table.rebuild_reason or "it has never been loaded"
            connection.execute(query("catalog", "set_rebuild_reason"), {"id": item.id, "reason": reason})
            continue
        with transaction(connection):
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (LIFECYCLE_LOCK,))
            installed.hold_version(connection)
            if item.what == "capture":
                share_patience(connection, [one(connection, query("catalog", "source"), {"id": item.id})[0]])
                reinstall(connection, item.id)
            else:
                connection.execute(query("catalog", "lock_stream_table"), {"id": item.id})
                _adopt(connection, reader, catalog.stream_table(connection, item.id))
    return found


def follow_renames(connection: Connection, reader: DefinitionReader, members: Sequence[int]) -> None:
    """Lets definition and storage call columns what users have renamed them to."""
    wanted = {"ids": sorted(members)}
    for number in {row[0] for row in connection.execute(query("catalog", "renamed_columns"), wanted)}:
        with transaction(connection):
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (LIFECYCLE_LOCK,))
            connection.execute(query("catalog", "lock_stream_table"), {"id": number})
            rows = connection.execute(query("catalog", "renamed_columns"), {"ids": [number]}).fetchall()
            if rows:
                stream_table = catalog.stream_table(connection, number)
                _rename(connection, reader, stream_table, [row[1:] for row in rows])


def _rename(
    connection: Connection,
    reader: DefinitionReader,
    stream_table: StreamTable,
    renamed: list[tuple[int, str, str]],
) -> None:
    for _, _, new in renamed:
        if new.startswith(HIDDEN) or new in SYSTEM_COLUMNS:
            shown = sql.Identifier(stream_table.schema, stream_table.name).as_string(connection)
            raise RefreshFailed(
                f"{stream_table.label} cannot have a column {new}: the name is reserved",
                hint=f"ALTER VIEW {shown} RENAME COLUMN {identifier(new)} TO …",
            )
    view = definition_oid(connection, stream_table.id)
    before = reader.read(view)
    current = (
        stream_table.mode == before.mode_for(stream_table.mode)
        and before.fingerprint(stream_table.mode) == stream_table.fingerprint
    )
    storage.rename_columns(connection, "VIEW", definition_name(connection, stream_table.id), renamed)
    if not current:
        _adopt(connection, reader, stream_table)  # it is loaded anew, with the new names
        return
    stored = sql.Identifier(storage.DATA, storage.storage_name(stream_table.id))
    storage.rename_columns(connection, "TABLE", stored, renamed)
    definition = reader.read(view)
    register(connection, stream_table.id, stream_table.label, definition, stream_table.mode)
    # A part that is not the same to the new definition would be stale, should the old names come back.
    known = {part.name for part in definition.candidates}
    stale = [part for part in storage.kept(connection, stream_table.id) if part not in known]
    storage.drop_kept(connection, stream_table.id, stale)


def _adopt(connection: Connection, reader: DefinitionReader, stream_table: StreamTable) -> None:
    definition = reader.read(definition_oid(connection, stream_table.id))
    incidents.release(connection, stream_table.id, definition)
    mode: Literal["differential", "full"] = "full"
    if not incidents.standing(connection, stream_table.id, definition):
        mode = effective_mode(stream_table.label, stream_table.requested_mode, definition)
    if mode == stream_table.mode and definition.fingerprint(mode) == stream_table.fingerprint:
        register(connection, stream_table.id, stream_table.label, definition, mode)
    else:
        reason = stream_table.rebuild_reason or "the meaning of its query changed"
        register_anew(connection, stream_table, definition, mode, reason)
