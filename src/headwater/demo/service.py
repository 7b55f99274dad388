"""`headwater serve` as a process of the demo's own, which does not outlive it."""

from __future__ import annotations

import os
import sys
import tempfile
from types import TracebackType
from typing import Self

from headwater.util.child_process import Attached
from headwater.util.redact import masked

STOPPING_SECONDS = 60.0
SHOWN_LINES = 5


class Service:
    """A running `headwater serve` for one database. A context manager: it is stopped at the end."""

    def __init__(self, dsn: str, database: str) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115, it is closed with the service
        program = [sys.executable, "-m", "headwater", "serve", "--database", database]
        # In the environment, where other users of the machine do not see its password.
        environment = {**os.environ, "HEADWATER_DSN": dsn, "HEADWATER_DIRECT_DSN": dsn}
        self._program = Attached(program, environment, self._log)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def ended(self) -> str | None:
        """How it ended, if it has, with the end of its log."""
        code = self._program.code
        return None if code is None else f"headwater serve ended with code {code}: {self.said}"

    @property
    def said(self) -> str:
        """The end of its log."""
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").splitlines()[-SHOWN_LINES:]
        return masked("\n".join(lines))

    def stop(self) -> None:
        """Let it finish running refreshes, and wait for that; harmless when it has ended."""
        if self._log.closed:
            return
        self._program.stop(STOPPING_SECONDS)
        self._log.close()
