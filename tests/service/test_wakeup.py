"""Who waits is woken by what happened before it began to wait, too."""

from __future__ import annotations

from headwater.db.connection import connect
from headwater.service.wakeup import Wakeup

LONG = 3600.0
"""Longer than a test may take."""


def test_a_notification_that_came_with_an_answer_is_not_missed(dsn: str) -> None:
    with connect(dsn) as listening, connect(dsn) as telling:
        listening.execute("LISTEN something")
        telling.execute("NOTIFY something")
        listening.execute("SELECT pg_sleep(0.1)")
        assert Wakeup().wait(listening, LONG) == {"something"}


def test_a_ring_before_the_wait_is_not_missed(dsn: str) -> None:
    alarm = Wakeup()
    alarm.ring()
    with connect(dsn) as listening:
        assert alarm.wait(listening, LONG) == set()
        assert alarm.wait(listening, 0.0) == set()
