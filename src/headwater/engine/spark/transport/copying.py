"""COPY out of PostgreSQL by many rows at a time.

The server sends each row as a message of its own. The driver returns them one by one, which takes three times
as long as returning all that have arrived.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

from psycopg import errors, pq, sql
from psycopg.pq.abc import PGconn
from psycopg.waiting import Ready, Wait

from headwater.db.connection import Connection

AT_ONCE = 1 << 18
"""About how many bytes are returned together."""


def copied(connection: Connection, command: sql.Composed) -> Iterator[list[memoryview]]:
    """Yield what a COPY … TO STDOUT sends: lists of the messages that have arrived, each a row."""
    with connection.cursor() as cursor, cursor.copy(command):
        ended = False
        while not ended:
            messages, ended = connection.wait(_gather(connection.pgconn))
            if messages:
                yield messages


def _gather(connection: PGconn) -> Generator[Wait, Ready | int, tuple[list[memoryview], bool]]:
    """Return the messages that have arrived, at least one, and whether they were the last."""
    messages: list[memoryview] = []
    size = 0
    while True:
        length, message = connection.get_copy_data(1)
        if length > 0:
            messages.append(message)
            size += length
            if size >= AT_ONCE:
                return messages, False
        elif length == 0:
            if messages:
                return messages, False
            yield Wait.R
            connection.consume_input()
        else:
            _finish(connection)
            return messages, True


def _finish(connection: PGconn) -> None:
    """Take the result of the whole command, which may also be an error in the middle of it."""
    failed = None
    while (result := connection.get_result()) is not None:
        if result.status != pq.ExecStatus.COMMAND_OK:
            failed = result
    if failed is not None:
        raise errors.error_from_result(failed)
