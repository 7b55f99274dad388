"""The relations that a query reads, directly or through plain views."""

from __future__ import annotations

from dataclasses import dataclass

from headwater.db.connection import Connection
from headwater.db.queries import query
from headwater.definition.types import TypeReader
from headwater.plan.operators import Source, SourceColumn, SourceKind


@dataclass(frozen=True)
class ReadRelation:
    """A relation that a query reads, directly or through plain views."""

    oid: int
    schema: str
    name: str
    label: str  # schema and name, quoted where SQL needs it
    kind: str  # relkind
    stream_table_id: int | None
    temporary: bool
    system: bool
    may_select: bool
    may_trigger: bool
    obstacle: str | None  # why its changes cannot be captured


def relations_read(connection: Connection, view: int) -> list[ReadRelation]:
    found = []
    for row in connection.execute(query("definition", "relations_read"), {"view": view}):
        (
            oid,
            schema,
            name,
            label,
            kind,
            persistence,
            stream_table_id,
            children,
            parents,
            partition,
            secured,
            system,
            select,
            trigger,
        ) = row
        obstacle = None
        if partition:
            obstacle = f"{label} is a partition, and writes through the table it is part of are not captured"
        elif kind == "p" and children:
            obstacle = f"{label} has foreign tables as partitions: this server does not see their changes"
        elif kind == "r" and children:
            obstacle = f"{label} has inheritance children, whose changes are not captured"
        elif kind == "r" and parents:
            obstacle = f"{label} inherits from a table, and writes through that one are not captured"
        elif kind == "f":
            obstacle = f"{label} is a foreign table: this server does not see its changes"
        elif kind == "m":
            obstacle = f"{label} is a materialized view: its refresh leaves no change rows"
        elif kind == "S":
            obstacle = f"{label} is a sequence: its changes are not captured"
        elif secured:
            obstacle = (
                f"{label} has row-level security: its changes would show rows that the definer may not read"
            )
        found.append(
            ReadRelation(
                oid=oid,
                schema=schema,
                name=name,
                label=label,
                kind=kind,
                stream_table_id=stream_table_id,
                temporary=persistence == "t",
                system=system,
                may_select=select,
                may_trigger=trigger,
                obstacle=obstacle,
            )
        )
    return found


def read_source(connection: Connection, relation: int) -> Source | None:
    """Return a relation as a source, or None if it does not exist."""
    row = connection.execute(query("definition", "relation"), {"relation": relation}).fetchone()
    if row is None:
        return None
    schema, name, is_stream_table = row
    columns = TypeReader(connection).columns_of([relation])[relation]
    return Source(relation, schema, name, "stream_table" if is_stream_table else "table", tuple(columns))


def source_of(item: ReadRelation, columns: list[SourceColumn]) -> Source:
    kind: SourceKind = "stream_table" if item.stream_table_id else "table"
    return Source(item.oid, item.schema, item.name, kind, tuple(columns))
