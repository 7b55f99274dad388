"""Waiting for notifications of a database and for threads of one's own at once."""

from __future__ import annotations

import os
import select
from contextlib import suppress

from headwater.db.connection import Connection


class Wakeup:
    """Wakes who waits for it. May be rung by any thread, and by a signal handler."""

    def __init__(self) -> None:
        self._heard, self._rung = os.pipe()
        os.set_blocking(self._heard, False)
        os.set_blocking(self._rung, False)

    def ring(self) -> None:
        with suppress(BlockingIOError):  # it has been rung often enough
            os.write(self._rung, b"x")

    def wait(self, connection: Connection, seconds: float) -> set[str]:
        """Until it is rung or a notification comes, at most so long; the channels that were notified."""
        # What came with the answer to a query is no longer there to be waited for.
        notified = _notified(connection)
        select.select([connection.fileno(), self._heard], [], [], 0.0 if notified else max(0.0, seconds))
        with suppress(BlockingIOError):
            os.read(self._heard, 4096)
        return notified | _notified(connection)


def _notified(connection: Connection) -> set[str]:
    return {notification.channel for notification in connection.notifies(timeout=0)}
