"""Stopping a program that runs until it is stopped."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType


def until_stopped(stop: Callable[[], None]) -> None:
    """Let SIGTERM and an interrupt end it in order, and a second one at once."""

    def handle(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)
