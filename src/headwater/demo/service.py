"""`headwater serve` as a process of the demo's own, which does not outlive it.

A small shell is started in its place, leaves a watcher behind and becomes the program, like the shell of a
private server (`embedded`). The watcher reads from a pipe that the demo holds: its end means that the demo is
gone, however it died, and that the service is to stop; a line means that all is well.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from types import TracebackType
from typing import Self

from headwater.secrets import masked

STOPPING_SECONDS = 60.0
SHOWN_LINES = 5
_WATCHED = """
exec 3<&0
( { read -r _ <&3 || kill -TERM $$; } >/dev/null 2>&1 & )
exec 3<&-
exec "$@" </dev/null
"""


class Service:
    """A running `headwater serve` for one database. A context manager: it is stopped at the end."""

    def __init__(self, dsn: str, database: str) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115, it is closed with the service
        program = [sys.executable, "-m", "headwater", "serve", "--database", database]
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", _WATCHED, "sh", *program],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            # By the environment, where other users of the machine do not see its password.
            env={**os.environ, "HEADWATER_DSN": dsn, "HEADWATER_DIRECT_DSN": dsn},
            # Its own session, so that Ctrl-C in the terminal reaches the demo and not the service.
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def ended(self) -> str | None:
        """How it ended, if it has, with the end of its log."""
        if self._process.poll() is None:
            return None
        return f"headwater serve ended with code {self._process.returncode}: {self.said}"

    @property
    def said(self) -> str:
        """The end of its log."""
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").splitlines()[-SHOWN_LINES:]
        return masked("\n".join(lines))

    def stop(self) -> None:
        """Has it finish what runs, and waits for that; harmless when it has ended."""
        if self._log.closed:
            return
        self._process.terminate()
        try:
            self._process.wait(STOPPING_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        finally:
            self._log.close()
            assert self._process.stdin is not None
            with suppress(BrokenPipeError):
                self._process.stdin.write(b"\n")
                self._process.stdin.close()
