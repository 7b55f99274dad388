"""What several tests of the service need."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

Result = TypeVar("Result")

QUICK = {"scheduler_interval_ms": "50"}
PATIENCE = 60.0
"""Seconds after which a test gives up; nothing is asserted about the time that something takes."""


def eventually(condition: Callable[[], Result], what: str = "") -> Result:
    """What a condition gives as soon as that is true."""
    deadline = time.monotonic() + PATIENCE
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, f"it never came about: {what or condition}, {found!r}"
        time.sleep(0.02)


@dataclass
class Process:
    """A running program and its log."""

    popen: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        return self.popen.pid

    def lines(self) -> list[dict[str, Any]]:
        """The log of a program that was started with --log-format json."""
        found = []
        for line in self.log.read_text().splitlines():
            if line.startswith("{"):
                found.append(json.loads(line))
        return found

    def events(self, name: str) -> list[dict[str, Any]]:
        return [line for line in self.lines() if line["event"] == name]

    def stop(self) -> int:
        """Asks it to stop, and waits; its exit code."""
        self.popen.send_signal(signal.SIGTERM)
        return self.popen.wait(PATIENCE)

    def end(self) -> None:
        """By force if need be."""
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGCONT)
            self.popen.terminate()
            try:
                self.popen.wait(20)
            except subprocess.TimeoutExpired:
                self.popen.kill()
                self.popen.wait()
        self.log.unlink(missing_ok=True)
