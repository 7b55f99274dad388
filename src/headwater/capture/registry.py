"""Which columns of which source are captured: as many as stream tables need."""

from __future__ import annotations

from collections.abc import Collection

from headwater.capture import change_tables, triggers
from headwater.db.connection import Connection, one
from headwater.db.queries import query
from headwater.definition.relations import read_source
from headwater.plan.operators import Source, SourceColumn

LIFECYCLE_LOCK = 4_855_311_378
"""Held by a transaction that changes what is captured."""


def share_patience(connection: Connection, relations: Collection[int], *, more: int = 0) -> None:
    """Share the patience of this transaction among the locks that it is about to take.

    A user who waits for the first of them looks for a deadlock after deadlock_timeout, and might be its
    victim if we were still waiting for the last.
    """
    connection.execute(query("catalog", "share_patience"), {"relations": sorted(relations), "more": more})


def capture(connection: Connection, source_id: int, source: Source, columns: Collection[str]) -> None:
    """Make sure that changes of these columns of a source reach its change table from now on.

    A table is locked against writers until the transaction ends. For a stream table the lock on its catalog
    row has the same effect: a refresh that began before fails, and the next one sees that its changes are
    wanted.
    """
    row = connection.execute(query("catalog", "captured_columns"), {"id": source_id}).fetchone()
    if row is not None and partitions_moved(connection, [source.relation]):
        reinstall(connection, source_id)
    captured = set(row[1]) if row is not None else set()
    missing = [
        column for column in source.columns if column.name in columns and column.attnum not in captured
    ]
    if row is not None and not missing:
        return
    is_table = source.kind == "table"
    if not is_table:
        connection.execute(query("catalog", "touch_source_stream_table"), {"id": source_id})
    if row is None:
        change_tables.create(connection, source.relation)
        connection.execute(
            query("catalog", "set_captured"),
            {"id": source_id, "change_table": change_tables.change_table(source.relation)},
        )
    elif is_table:
        triggers.install_triggers(connection, source)  # for its lock
    change_tables.add_columns(connection, source.relation, missing)
    for column in missing:
        connection.execute(
            query("catalog", "add_captured_column"), {"id": source_id, "attnum": column.attnum}
        )
    if is_table:
        captured |= {column.attnum for column in missing}
        wanted = [column for column in source.columns if column.attnum in captured]
        _install_function(connection, source_id, source, wanted)
        if row is None:
            triggers.install_triggers(connection, source)


def _install_function(
    connection: Connection, source_id: int, source: Source, columns: list[SourceColumn]
) -> None:
    triggers.install_function(connection, source, columns)
    connection.execute(query("catalog", "set_capture_signature"), {"id": source_id})


def reinstall(connection: Connection, source_id: int) -> None:
    """Restore the capture of a source after somebody dropped or disabled a part of it.

    Writes in between may have left no change rows, so every consumer is marked for a rebuild. The exception
    is a source that only has other columns than when the function was made, whose writes took the slow path.
    """
    relation, label = one(connection, query("catalog", "source"), {"id": source_id})
    source = read_source(connection, relation)
    row = connection.execute(query("catalog", "captured_columns"), {"id": source_id}).fetchone()
    if source is None or row is None:
        return
    wanted = [column for column in source.columns if column.attnum in set(row[1])]
    has_table, has_triggers, has_function = one(
        connection, query("catalog", "capture_parts"), {"id": source_id}
    )
    reasons = []
    if partitions_moved(connection, [relation]):
        triggers.remove_triggers(connection, relation)  # also from tables that are no longer partitions
        reasons.append(f"a partition of {label} was attached or detached")
        has_triggers = False
    elif not has_triggers:
        reasons.append(f"capture triggers of {label} were dropped or disabled, so changes may be missing")
    elif not has_function:
        reasons.append(f"the capture function of {label} was replaced, so changes may be missing")
    if not has_table:
        change_tables.create(connection, relation)
        reasons.append(f"the change table of {label} was dropped")
    if has_triggers and not has_table:
        triggers.install_triggers(connection, source)  # for its lock
    triggers.remove_guard(connection, relation)
    if change_tables.fit_columns(connection, relation, wanted) and has_table:
        reasons.append(f"the change table of {label} had lost columns")
    lost = connection.execute(query("catalog", "forget_lost"), {"relation": relation}).fetchall()
    reasons += [lost_reason(label, reason) for (reason,) in lost[:1]]
    _install_function(connection, source_id, source, wanted)
    if not has_triggers:
        triggers.install_triggers(connection, source)
    if reasons:
        connection.execute(
            query("catalog", "distrust_consumers"), {"source": source_id, "reason": "; ".join(reasons)}
        )


def renew_function(connection: Connection, source_id: int) -> bool:
    """Replace the capture function of a source if another version wrote it; return whether it did.

    No writer notices. A function that was changed since it was installed is left to `reinstall`, which
    handles the consequences.
    """
    relation, _ = one(connection, query("catalog", "source"), {"id": source_id})
    source = read_source(connection, relation)
    row = connection.execute(query("catalog", "captured_columns"), {"id": source_id}).fetchone()
    if source is None or source.kind != "table" or row is None or partitions_moved(connection, [relation]):
        return False
    wanted = [column for column in source.columns if column.attnum in set(row[1])]
    whole = all(one(connection, query("catalog", "capture_parts"), {"id": source_id}))
    if not whole or len(wanted) < len(row[1]) or triggers.is_current(connection, source, wanted):
        return False
    _install_function(connection, source_id, source, wanted)
    return True


def lost_reason(label: str, reason: str) -> str:
    """Return the reason for rebuilding consumers of a source whose changes could not be captured."""
    return f"changes of {label} could not be captured: {reason}"


def partitions_moved(connection: Connection, relations: Collection[int]) -> str | None:
    """Return the name of a captured table whose partitions are not those that are captured, if any."""
    row = connection.execute(
        query("catalog", "partitions_moved"), {"relations": sorted(relations)}
    ).fetchone()
    return str(row[0]) if row is not None else None


def release_superfluous(connection: Connection) -> None:
    """End capture that no differential stream table or consumer needs; forget unread sources."""
    for source_id, relation, change_table, is_read, needed, superfluous in connection.execute(
        query("catalog", "superfluous_capture")
    ).fetchall():
        if change_table is not None and not needed:
            triggers.remove_triggers(connection, relation)
            change_tables.drop(connection, relation)
            connection.execute(query("catalog", "forget_capture"), {"id": source_id})
        elif superfluous and (source := read_source(connection, relation)) is not None:
            if source.kind == "table":
                row = connection.execute(query("catalog", "captured_columns"), {"id": source_id}).fetchone()
                if partitions_moved(connection, [relation]):
                    reinstall(connection, source_id)
                kept = set(row[1] if row is not None else []) - set(superfluous)
                triggers.install_triggers(connection, source)  # for its lock
                triggers.remove_guard(connection, relation)
            change_tables.remove_columns(connection, relation, superfluous)
            if source.kind == "table":
                wanted = [column for column in source.columns if column.attnum in kept]
                _install_function(connection, source_id, source, wanted)
            connection.execute(
                query("catalog", "remove_captured_columns"), {"id": source_id, "numbers": superfluous}
            )
        if not is_read:
            connection.execute(query("catalog", "delete_source"), {"id": source_id})
