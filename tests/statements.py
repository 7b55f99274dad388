"""Every statement that this process sends, where psycopg waits for the server; so BEGIN and COMMIT, too.

With it, tests let a process or a session meet its end at the statement they choose, without any code for it
in the product.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from types import GeneratorType
from typing import Any

import psycopg
from psycopg import sql

Connection = psycopg.Connection[Any]
Seen = Callable[[Connection, str], Callable[[], None] | None]


@contextmanager
def watched(seen: Seen) -> Iterator[None]:
    """Has `seen` told of each statement before it is sent; what that returns is called once it is sent."""
    wait = psycopg.Connection.wait

    def wait_watched(self: Connection, gen: Any, *arguments: Any, **options: Any) -> Any:
        text = _text(gen)
        once_sent = seen(self, text) if text is not None else None
        if once_sent is not None:
            gen = _interrupted(gen, once_sent)
        return wait(self, gen, *arguments, **options)

    psycopg.Connection.wait = wait_watched  # type: ignore[method-assign]
    try:
        yield
    finally:
        psycopg.Connection.wait = wait  # type: ignore[method-assign]


class Ending:
    """The end of a session before one of its statements; `left` are those that it had until then."""

    def __init__(self, killer: Connection, victim: Connection, left: int) -> None:
        self.left = left
        self._killer = killer
        self._victim = victim.info.backend_pid

    @property
    def survived(self) -> bool:
        return self.left > 0

    def seen(self, connection: Connection, text: str) -> None:
        if connection.info.backend_pid != self._victim:
            return
        if self.left == 0:
            self._killer.execute("SELECT pg_terminate_backend(%s, 10000)", (self._victim,))
        self.left -= 1


@contextmanager
def ended_after(number: int, victim: Connection, killer: Connection) -> Iterator[Ending]:
    """A session comes to its end after so many statements."""
    ending = Ending(killer, victim, number)
    with watched(ending.seen):
        yield ending


def _interrupted(gen: Generator[Any, Any, Any], act: Callable[[], None]) -> Generator[Any, Any, Any]:
    """The same conversation with the server, with something in between when its first half is over."""
    wanted = next(gen)  # psycopg has flushed its buffer and wants to wait for the answer
    act()
    while True:
        try:
            wanted = gen.send((yield wanted))
        except StopIteration as end:
            return end.value


def _text(gen: Any) -> str | None:
    """What a conversation is about, or None if nothing is sent."""
    assert isinstance(gen, GeneratorType)
    name = gen.gi_code.co_name
    if name.startswith("_set_"):
        return None  # a property of the connection
    query = gen.gi_frame.f_locals.get("query") if gen.gi_frame is not None else None
    if query is None:
        return {"_enter_gen": "BEGIN", "_exit_gen": "COMMIT"}.get(name, name)
    return query.as_string(None) if isinstance(query, sql.Composable) else str(query)
