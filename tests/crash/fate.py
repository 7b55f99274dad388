"""A process that runs one verb of Headwater and meets its fate at one of the statements it sends.

The statements are counted where psycopg waits for the server, so BEGIN, COMMIT and savepoints are among
them. After statement n and before statement n + 1 is the same to the server; so there are two moments for
each: before it is sent, and when it is sent but not answered. In the second case the server goes on with a
statement whose client is gone.

The processes are forked from a server that has imported Headwater already: each is a process of its own with
connections of its own, and takes milliseconds to start.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from typing import Literal

import psycopg
from tests.crash.verbs import VERBS
from tests.statements import Connection, Seen, watched

import headwater

Moment = Literal["before", "sent"]
Fate = Literal["killed", "cut", "paused"]
LONG = 60.0
"""Seconds after which a test gives up on a process; nothing is asserted about the time it takes."""


@dataclass(frozen=True)
class Ending:
    """How a process ended."""

    code: int  # negative for a signal
    statements: tuple[str, ...]  # what it sent, as far as it could tell
    error: str | None  # the class of what the verb raised


@dataclass(frozen=True)
class Doom:
    """What happens at which statement; the first is number 1."""

    number: int
    moment: Moment
    fate: Fate

    def __str__(self) -> str:
        return f"{self.fate} {'before' if self.moment == 'before' else 'in the midst of'} {self.number}"


def run(dsn: str, verb: str, doom: Doom | None = None) -> Ending:
    """Runs a verb in a process of its own, to its end or to its doom."""
    with closing(Running(dsn, verb, doom)) as running:
        return running.end()


class Running:
    """A process that runs a verb; with the fate `paused` it waits at its statement until it is killed."""

    def __init__(self, dsn: str, verb: str, doom: Doom | None = None) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.crash.fate"])
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=_main, args=(dsn, verb, doom, theirs), daemon=True)
        self.process.start()
        theirs.close()

    def wait_until_paused(self) -> None:
        assert self._pipe.poll(LONG), "it does not come to the statement"
        assert self._pipe.recv() == "paused"

    def kill(self) -> None:
        self.process.kill()
        self.process.join(LONG)

    def end(self) -> Ending:
        self.process.join(LONG)
        assert self.process.exitcode is not None, "it does not end"
        try:
            statements, error = self._pipe.recv()
        except EOFError:
            statements, error = (), None
        return Ending(self.process.exitcode, statements, error)

    def close(self) -> None:
        if self.process.is_alive():
            self.kill()
        self._pipe.close()


def _main(dsn: str, verb: str, doom: Doom | None, pipe: Pipe) -> None:
    """The process."""
    statements: list[str] = []
    error = None
    try:
        with watched(_watch(statements, doom, pipe)), headwater.connect(dsn) as hw:
            VERBS[verb].run(hw)
    except Exception as raised:
        error = type(raised).__name__
    pipe.send((tuple(statements), error))


def _watch(statements: list[str], doom: Doom | None, pipe: Pipe) -> Seen:
    """Writes down every statement of this process, and has its doom come at the right one."""

    def seen(connection: Connection, text: str) -> Callable[[], None] | None:
        if doom is None or len(statements) < doom.number:
            statements.append(text)
            if doom is not None and len(statements) == doom.number:
                if doom.moment == "sent":
                    return lambda: _meet(doom, connection, pipe)
                _meet(doom, connection, pipe)
        return None

    return seen


def _meet(doom: Doom, connection: Connection, pipe: Pipe) -> None:
    match doom.fate:
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "cut":
            with psycopg.connect(connection.info.dsn, password=connection.info.password) as other:
                other.execute("SELECT pg_terminate_backend(%s, 10000)", (connection.info.backend_pid,))
        case "paused":
            pipe.send("paused")
            pipe.poll(LONG)
