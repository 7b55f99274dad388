"""Processes that do not outlive the one that starts them.

A small shell is started in place of the program, leaves a watcher behind and becomes the program, like the
shell of a private server (`embedded`). The watcher reads from a pipe that we hold. End of file means that we
are gone, however we died, and the watcher stops the program; a line means that all is well.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO

_WATCHED = """
exec 3<&0
( { read -r _ <&3 || kill -TERM $$; } >/dev/null 2>&1 & )
exec 3<&-
exec "$@" </dev/null
"""


class Attached:
    """A running program; its output goes to `output`."""

    def __init__(self, program: Sequence[str], environment: Mapping[str, str], output: IO[bytes]) -> None:
        self.process = subprocess.Popen(
            ["/bin/sh", "-c", _WATCHED, "sh", *program],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env=dict(environment),
            # Its own session, so that Ctrl-C in the terminal reaches us and not the program.
            start_new_session=True,
        )

    @property
    def code(self) -> int | None:
        """The exit code, or None while it runs."""
        return self.process.poll()

    def ask(self) -> None:
        """Ask the program to stop."""
        self.process.terminate()

    def stop(self, seconds: float) -> None:
        """Stop the program, by force if it takes longer than this; harmless when it has ended."""
        self.ask()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        finally:
            assert self.process.stdin is not None
            with suppress(BrokenPipeError, ValueError):
                self.process.stdin.write(b"\n")
                self.process.stdin.close()
