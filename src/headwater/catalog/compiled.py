"""Which stream tables have a compiled refresh, and what must be known to call it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headwater.db.connection import Connection
from headwater.db.queries import query


@dataclass(frozen=True)
class CompiledRefresh:
    """A row of headwater.compiled_refresh."""

    stream_table_id: int
    version: str  # of the program that compiled it
    signature: str  # of the definition that it was compiled from
    token: str | None = None  # for which its function runs; None if there is no function
    tables: tuple[str, ...] = ()  # SQL names of what is locked before the snapshot is taken
    reads: tuple[int, ...] = ()  # stream tables
    refused: str | None = None  # why there is no function


def entries(
    connection: Connection, stream_tables: Iterable[int], *, upstream: bool = False
) -> list[CompiledRefresh]:
    """What is known of these stream tables, and of those that they read if asked for."""
    rows = connection.execute(
        query("compiled", "entries"), {"ids": list(stream_tables), "upstream": upstream}
    )
    return [
        CompiledRefresh(number, version, signature, token, tuple(tables), tuple(reads), refused)
        for number, version, signature, token, tables, reads, refused in rows
    ]


def put(connection: Connection, entry: CompiledRefresh) -> None:
    """Write down what became of compiling a refresh."""
    connection.execute(
        query("compiled", "put"),
        {
            "id": entry.stream_table_id,
            "version": entry.version,
            "signature": entry.signature,
            "token": entry.token,
            "tables": list(entry.tables),
            "reads": list(entry.reads),
            "refused": entry.refused,
        },
    )
