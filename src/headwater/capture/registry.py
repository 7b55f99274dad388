"""Which columns of which source are captured: more when a stream table needs more, none when nobody does."""

from __future__ import annotations

from collections.abc import Collection

from headwater.capture import triggers
from headwater.db.connection import Connection, one
from headwater.db.queries import query
from headwater.definition import read_source
from headwater.plan.operators import Source

LIFECYCLE_LOCK = 4_855_311_378
"""Held by who changes what is captured."""


def share_patience(connection: Connection, relations: Collection[int], *, more: int = 0) -> None:
    """Shares the patience of this transaction among the locks that it is about to take.

    A user who waits for the first of them looks for a deadlock after deadlock_timeout, and might be its
    victim if we were still waiting for the last.
    """
    connection.execute(query("catalog", "share_patience"), {"relations": sorted(relations), "more": more})


def capture(connection: Connection, source_id: int, source: Source, columns: Collection[str]) -> None:
    """Makes sure that changes of these columns of a source reach its change table from now on.

    A table is locked against writers until the transaction ends. For a stream table the lock on its catalog
    row does the same: a refresh that began before fails, and the next one sees that its changes are wanted.
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
        triggers.create_change_table(connection, source.relation)
        connection.execute(
            query("catalog", "set_captured"),
            {"id": source_id, "change_table": triggers.change_table(source.relation)},
        )
    elif is_table:
        triggers.install_triggers(connection, source)  # for the lock
    triggers.add_columns(connection, source.relation, missing)
    for column in missing:
        connection.execute(
            query("catalog", "add_captured_column"), {"id": source_id, "attnum": column.attnum}
        )
    if is_table:
        captured |= {column.attnum for column in missing}
        wanted = [column for column in source.columns if column.attnum in captured]
        triggers.install_function(connection, source, wanted)
        if row is None:
            triggers.install_triggers(connection, source)


def reinstall(connection: Connection, source_id: int) -> None:
    """Makes the triggers of a source again after somebody dropped or disabled one, or moved a partition.

    What was written meanwhile left no change rows, so every consumer is marked for a rebuild.
    """
    relation, label = one(connection, query("catalog", "source"), {"id": source_id})
    source = read_source(connection, relation)
    row = connection.execute(query("catalog", "captured_columns"), {"id": source_id}).fetchone()
    if source is None or row is None:
        return
    wanted = [column for column in source.columns if column.attnum in set(row[1])]
    reason = f"capture triggers of {label} were dropped or disabled, so changes may be missing"
    if partitions_moved(connection, [relation]):
        triggers.remove_triggers(connection, relation)  # also those of what is no partition any more
        reason = f"a partition of {label} was attached or detached"
    triggers.install_function(connection, source, wanted)
    triggers.install_triggers(connection, source)
    connection.execute(query("catalog", "distrust_consumers"), {"source": source_id, "reason": reason})


def partitions_moved(connection: Connection, relations: Collection[int]) -> str | None:
    """The name of a captured table among these whose partitions are not those that are captured, if any."""
    row = connection.execute(
        query("catalog", "partitions_moved"), {"relations": sorted(relations)}
    ).fetchone()
    return str(row[0]) if row is not None else None


def release_superfluous(connection: Connection) -> None:
    """Ends the capture of what no differential stream table and no consumer needs; forgets the unread."""
    for source_id, relation, change_table, is_read, needed, superfluous in connection.execute(
        query("catalog", "superfluous_capture")
    ).fetchall():
        if change_table is not None and not needed:
            triggers.remove_triggers(connection, relation)
            triggers.drop_change_table(connection, relation)
            connection.execute(query("catalog", "forget_capture"), {"id": source_id})
        elif superfluous and (source := read_source(connection, relation)) is not None:
            if source.kind == "table":
                row = connection.execute(query("catalog", "captured_columns"), {"id": source_id}).fetchone()
                if partitions_moved(connection, [relation]):
                    reinstall(connection, source_id)
                kept = set(row[1] if row is not None else []) - set(superfluous)
                triggers.install_triggers(connection, source)  # for the lock
                triggers.install_function(
                    connection, source, [column for column in source.columns if column.attnum in kept]
                )
            triggers.remove_columns(connection, relation, superfluous)
            connection.execute(
                query("catalog", "remove_captured_columns"), {"id": source_id, "numbers": superfluous}
            )
        if not is_read:
            connection.execute(query("catalog", "delete_source"), {"id": source_id})
