"""What the database's catalog of Headwater says: stream tables, their sources, who reads whom."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Literal

from headwater.catalog.choices import EngineName as EngineName
from headwater.catalog.choices import Mode as Mode
from headwater.catalog.choices import Tier as Tier
from headwater.catalog.choices import TierChoice as TierChoice
from headwater.db.connection import Connection, one
from headwater.db.queries import query
from headwater.errors import Broken, InvalidName, NotFound

Status = Literal["initializing", "active", "suspended"]
Fault = Literal["source", "definition", "view", "storage", "replaced", "changes", "capture"]


@dataclass(frozen=True, kw_only=True)
class Frontier:
    """The snapshot that a stream table shows."""

    snapshot: str
    applied_by: str  # the transaction that stored it; what it wrote earlier was seen as well


@dataclass(frozen=True, kw_only=True)
class StreamTable:
    """A stream table as the catalog has it."""

    id: int
    schema: str
    name: str
    label: str  # both, quoted where SQL needs it
    relation: int | None  # oid of the view that users read; None if there is none (yet)
    query: str
    fingerprint: str | None  # of what its storage holds
    requested_mode: Mode
    mode: Literal["differential", "full"]
    mode_reasons: tuple[str, ...]
    engine: EngineName
    schedule: str | None
    status: Status
    rebuild_reason: str | None
    time_zone: str
    search_path: str  # of its definer
    tier: Tier | None  # None: by how often its sources change
    suspended_reason: str | None
    load_check: str | None  # how its rows were compared with its query when they were loaded
    frontier: Frontier | None


@dataclass(frozen=True)
class Health:
    """How a stream table is, as the view `headwater.health` decides."""

    status: Literal["initializing", "active", "suspended", "broken"]
    fault: Fault | None  # the first part that is missing
    reason: str | None  # why it is broken or suspended
    remedy: str | None  # what makes it active again


STREAM_TABLE_FIELDS = tuple(StreamTable.__dataclass_fields__)[:-1]
"""In the order of the columns of the named query `stream_tables`; the frontier is put together from two."""


@dataclass(frozen=True, kw_only=True)
class CatalogSource:
    """A relation that a stream table reads."""

    id: int
    relation: int
    schema: str | None  # None when the relation is gone
    name: str | None
    label: str
    stream_table_id: int | None
    change_table: str | None
    lockable: bool = True  # foreign tables, materialized views and sequences are not
    partitioned: bool = False
    members: int = 1  # tables that it is made of: itself and its partitions


def stream_tables(connection: Connection, ids: list[int] | None = None) -> list[StreamTable]:
    """All stream tables, or those with these ids, by id."""
    found = []
    for row in connection.execute(query("catalog", "stream_tables"), {"ids": ids}):
        *fields, snapshot, applied_by = row
        frontier = Frontier(snapshot=snapshot, applied_by=applied_by) if snapshot is not None else None
        values = dict(zip(STREAM_TABLE_FIELDS, fields, strict=True))
        values["mode_reasons"] = tuple(values["mode_reasons"])
        found.append(StreamTable(**values, frontier=frontier))
    return found


def stream_table(connection: Connection, stream_table_id: int) -> StreamTable:
    found = stream_tables(connection, [stream_table_id])
    if not found:
        raise NotFound(f"stream table {stream_table_id} is gone", hint="it was dropped in the meantime")
    return found[0]


# Surrogates are no characters: PostgreSQL has no bytes for them.
_UNQUOTED = r"[A-Za-z_\x80-\ud7ff\ue000-\U0010ffff][A-Za-z0-9_$\x80-\ud7ff\ue000-\U0010ffff]*"
_QUOTED = r'"(?:[^"\x00\ud800-\udfff]|"")+"'
_PART = f"(?:{_UNQUOTED}|{_QUOTED})"
_NAME = re.compile(rf"\s*(?:({_PART})\.)?({_PART})\s*")
_FOLDED = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
LONGEST_NAME = 63


def split_name(name: str) -> tuple[str | None, str]:
    """A name as users write it, schema.table or table, quoted or not, the way PostgreSQL reads it.

    >>> split_name('Sales."Per Region"')
    ('sales', 'Per Region')
    """
    match = _NAME.fullmatch(name)
    parts = [_unquoted(part) for part in match.groups() if part is not None] if match else []
    if not parts or any(len(part.encode()) > LONGEST_NAME for part in parts):
        raise InvalidName(
            f"{name!r} is not a name of a table",
            hint="write table or schema.table, quoted where PostgreSQL needs it, at most 63 bytes each",
        )
    return (parts[0] if len(parts) == 2 else None, parts[-1])


def _unquoted(part: str) -> str:
    """The server folds the letters A to Z of an unquoted name, and no others."""
    return part[1:-1].replace('""', '"') if part.startswith('"') else part.translate(_FOLDED)


def find(connection: Connection, name: str) -> StreamTable:
    """The stream table of a name."""
    schema, table = split_name(name)
    row = connection.execute(
        query("catalog", "find_stream_table"),
        {"schema": schema, "name": table, "path": user_schemas(connection)},
    ).fetchone()
    if row is None:
        raise NotFound(f"there is no stream table {name}", hint="headwater list shows those there are")
    return stream_table(connection, row[0])


def suspended(connection: Connection, stream_table_id: int) -> list[StreamTable]:
    """The stream table and those it reads, directly or not, as far as they are suspended."""
    members = sorted(_reachable(stream_table_id, _edges(connection)))
    return [member for member in stream_tables(connection, members) if member.status == "suspended"]


def user_schemas(connection: Connection) -> list[str]:
    """The schemas that the user's own search_path names, in order. Outside a transaction only."""
    row = one(
        connection,
        "SELECT set_config('search_path', current_setting('headwater.user_search_path'), true),"
        " current_schemas(false)::text[]",
    )
    return list(row[1])


def sources_of(connection: Connection, stream_table_id: int) -> list[CatalogSource]:
    return _sources(connection, [stream_table_id])[stream_table_id]


def _sources(connection: Connection, ids: list[int]) -> dict[int, list[CatalogSource]]:
    found: dict[int, list[CatalogSource]] = {stream_table_id: [] for stream_table_id in ids}
    for row in connection.execute(query("catalog", "sources_of"), {"ids": ids}):
        found[row[0]].append(
            CatalogSource(
                id=row[1],
                relation=row[2],
                schema=row[3],
                name=row[4],
                label=row[5],
                stream_table_id=row[6],
                change_table=row[7],
                lockable=row[8],
                partitioned=row[9],
                members=row[10],
            )
        )
    return found


def health(connection: Connection, ids: Sequence[int] | None = None) -> dict[int, Health]:
    """How all stream tables are, or those with these ids."""
    values = {"ids": list(ids) if ids is not None else None}
    return {row[0]: Health(*row[1:]) for row in connection.execute(query("catalog", "health"), values)}


def broken(connection: Connection, stream_table: StreamTable) -> Broken | None:
    """The error for a stream table that lacks a part which only `repair` makes again, if it lacks one."""
    found = health(connection, [stream_table.id]).get(stream_table.id)
    if found is None or found.fault is None or found.fault == "capture":
        return None
    return Broken(f"{stream_table.label} is broken: {found.reason}", hint=found.remedy or "")


@dataclass(frozen=True)
class Closure:
    """Stream tables that are refreshed together, each after what it reads of the others."""

    order: tuple[int, ...]
    sources: dict[int, list[CatalogSource]]

    @property
    def tables(self) -> list[tuple[str, str]]:
        """The tables that are read and can be locked, in a fixed order."""
        return sorted(self._members)

    @property
    def locks(self) -> int:
        """How many locks these take, with their partitions."""
        return sum(self._members.values())

    @property
    def _members(self) -> dict[tuple[str, str], int]:
        return {
            (source.schema, source.name): source.members
            for member in self.order
            for source in self.sources[member]
            if source.stream_table_id is None and source.schema is not None and source.name is not None
            if source.lockable
        }


def closure(connection: Connection, stream_table_id: int) -> Closure:
    """All that must be refreshed for one stream table to be up to date."""
    edges = _edges(connection)
    order = _ordered(_reachable(stream_table_id, edges), edges)
    return Closure(tuple(order), _sources(connection, order))


def together(connection: Connection, members: Sequence[int]) -> Closure:
    """These alone, in this order: what else they read is taken as it is."""
    return Closure(tuple(members), _sources(connection, list(members)))


def upstream_of(connection: Connection, stream_table_id: int) -> set[int]:
    """The stream tables that this one reads, directly or not; itself only if there is a cycle."""
    edges = _edges(connection)
    return set().union(*(_reachable(read, edges) for read in edges.get(stream_table_id, set())))


def in_order(connection: Connection) -> list[int]:
    """All stream tables, each after what it reads."""
    edges = _edges(connection)
    everything = [row[0] for row in connection.execute(query("catalog", "ids"))]
    return list(TopologicalSorter({member: edges.get(member, set()) for member in everything}).static_order())


def with_dependents(connection: Connection, stream_table_id: int) -> list[int]:
    """The stream table and all that read it, directly or not, each after what it reads."""
    edges = _edges(connection)
    readers: dict[int, set[int]] = {}
    for reader, read in ((reader, read) for reader, reads in edges.items() for read in reads):
        readers.setdefault(read, set()).add(reader)
    return _ordered(_reachable(stream_table_id, readers), edges)


def _edges(connection: Connection) -> dict[int, set[int]]:
    edges: dict[int, set[int]] = {}
    for reader, read in connection.execute(query("catalog", "source_edges")):
        edges.setdefault(reader, set()).add(read)
    return edges


def _reachable(start: int, edges: dict[int, set[int]]) -> set[int]:
    found, pending = {start}, [start]
    while pending:
        for following in edges.get(pending.pop(), set()) - found:
            found.add(following)
            pending.append(following)
    return found


def _ordered(members: set[int], edges: dict[int, set[int]]) -> list[int]:
    """Each after what it reads."""
    sorter = TopologicalSorter({member: edges.get(member, set()) & members for member in members})
    return list(sorter.static_order())
