"""Threads that refresh, each over a connection of its own, inside a scheduler or an external worker.

Plans are shared. What the server prepared for a connection and its temporary tables are not, so a job is
given to a thread that had it before, if one is free. A thread whose connection broke connects again for its
next job.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

import psycopg

from headwater.catalog.history import Outcome
from headwater.config import Settings
from headwater.db.connection import Connection, bound, is_pooled, translated
from headwater.db.route import Route
from headwater.definition.reader import DefinitionReader, Definitions
from headwater.engine.select import EngineSelector
from headwater.errors import (
    Broken,
    CatalogVersionMismatch,
    ClaimLost,
    ConnectionFailed,
    HeadwaterError,
    LockNotAvailable,
    NotFound,
    ReadOnlyServer,
    RefreshFailed,
)
from headwater.refresh.claim import Claim
from headwater.refresh.fast_path import MOST_CALLED
from headwater.refresh.transaction import MemberFailed, Refresher

MOST_AHEAD = 8
"""Tasks for each thread or external worker: the one it has, and those that it can go on with."""
CLEANING_SECONDS = 1.0
"""What is refreshed more often than this cleans up only so often."""

NO_FAULT = (
    ConnectionFailed,
    ClaimLost,
    LockNotAvailable,
    NotFound,
    Broken,
    CatalogVersionMismatch,
    ReadOnlyServer,
)
"""Errors that suspend no stream table: they are not its doing, or resuming it would not cure it."""


@dataclass(frozen=True)
class Task:
    """What a thread is to do, and with which settings."""

    members: tuple[int, ...]
    settings: Settings
    claim: Claim | None = None


@dataclass(frozen=True)
class Failure:
    """Why a task failed, and at which of its members; None if at none of them."""

    error: HeadwaterError
    stream_table_id: int | None = None


@dataclass(frozen=True)
class Done:
    """What became of a task."""

    task: Task
    outcomes: Sequence[Outcome] = ()
    failure: Failure | None = None
    took: timedelta = timedelta(0)


def at_fault(error: HeadwaterError) -> bool:
    """Whether an error counts for suspending a stream table."""
    return not isinstance(error, NO_FAULT)


class ThreadWorker:
    """Refreshes, one task at a time, over one connection that it makes when it is needed."""

    def __init__(self, route: Route, definitions: Definitions, selector: EngineSelector) -> None:
        """The threads of a process share what is known of definitions and engines."""
        self._route = route
        self._connection: Connection | None = None
        self._reader: DefinitionReader | None = None
        self._definitions = definitions
        self._selector = selector
        self._applied: Settings | None = None
        self.known: dict[tuple[int, ...], float] = {}  # the tasks that it had: when it cleaned up after them

    @property
    def backend_pid(self) -> int | None:
        """The server's number for its connection, by which others can end what it does; None if it varies."""
        connection, _ = self._connected()
        return None if is_pooled(connection) else connection.info.backend_pid

    def do(self, task: Task) -> Done:
        """Carries a task out; a failure is told, not raised."""
        try:
            connection, reader = self._connected()
            if len(reader.called.union(task.members)) > MOST_CALLED and not is_pooled(connection):
                self.close()  # with the plans that its session keeps
                connection, reader = self._connected()
            if task.settings != self._applied:
                bound(connection, task.settings)
                self._applied = task.settings
            refresher = Refresher(connection, task.settings, reader, self._selector)
            now = time.monotonic()
            clean = now - self.known.get(task.members, -CLEANING_SECONDS) >= CLEANING_SECONDS
            outcomes = refresher.refresh_together(task.members, task.claim, clean=clean)
            if clean:
                self.known[task.members] = now
            return Done(task, outcomes)
        except MemberFailed as failed:
            return Done(task, failure=Failure(failed.error, failed.stream_table.id))
        except HeadwaterError as error:
            return Done(task, failure=Failure(error))
        except psycopg.Error as error:
            return Done(task, failure=Failure(translated(error, "a refresh", RefreshFailed)))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connected(self) -> tuple[Connection, DefinitionReader]:
        if self._connection is None or self._connection.closed or self._reader is None:
            self._connection = self._route.connect()
            self._reader = DefinitionReader(self._connection, self._definitions)
            self._applied = None
            self.known.clear()
        return self._connection, self._reader


@dataclass(eq=False)
class Reserved:
    """A worker that waits for its task, with the thread that it works in."""

    worker: ThreadWorker
    tasks: queue.SimpleQueue[Task | None] = field(default_factory=queue.SimpleQueue)
    thread: threading.Thread | None = None


class Executor:
    """Runs tasks in threads, as many as are busy at once; `done` is called by these threads.

    Short tasks can be offered to whichever busy thread is done first, so that none has to wait until it is
    looked after. An offer that nobody has taken can be withdrawn.
    """

    def __init__(self, route: Route, done: Callable[[Done], None]) -> None:
        self._route = route
        self._done = done
        self._idle: list[Reserved] = []
        self._busy: set[Reserved] = set()
        self._offers: list[Task] = []
        self._taken: list[Task] = []
        self._passed_over = 0  # how often in a row the first offer was
        self._guard = threading.Lock()
        self.definitions = Definitions()
        self._selector = EngineSelector(route)

    @property
    def busy(self) -> int:
        return len(self._busy)

    def start(self, task: Task, reserved: Reserved | None = None) -> None:
        """Give a task to a thread at once; the caller knows how many may be at work."""
        chosen = reserved or self.reserve(task.members)
        if chosen.thread is None:
            chosen.thread = threading.Thread(target=self._work, args=(chosen,), name="refresh", daemon=True)
            chosen.thread.start()
        chosen.tasks.put(task)

    def offer(self, tasks: Sequence[Task]) -> None:
        """Let threads that are done go on with these, in this order."""
        with self._guard:
            self._offers = list(tasks)

    def withdraw(self) -> list[Task]:
        """Take back what was offered and not taken; return what was taken since the last time."""
        with self._guard:
            taken, self._taken, self._offers = self._taken, [], []
        return taken

    def reserve(self, members: tuple[int, ...] | None = None) -> Reserved:
        """Reserve a thread for a task to come, one that had it before if there is such a one."""
        with self._guard:
            knowing = next((each for each in self._idle if members in each.worker.known), None)
            chosen = knowing or (self._idle[-1] if self._idle else self._new())
            if chosen in self._idle:
                self._idle.remove(chosen)
            self._busy.add(chosen)
        return chosen

    def _new(self) -> Reserved:
        return Reserved(ThreadWorker(self._route, self.definitions, self._selector))

    def give_back(self, reserved: Reserved) -> None:
        """The task did not come."""
        with self._guard:
            self._rest(reserved)

    def shrink(self, most: int) -> None:
        """Let idle threads go that are more than so many in all."""
        with self._guard:
            while self._idle and len(self._idle) + len(self._busy) > max(1, most):
                self._idle.pop(0).tasks.put(None)

    def close(self) -> None:
        """Let all idle threads go, and the busy ones when they have finished."""
        with self._guard:
            for each in [*self._idle, *self._busy]:
                each.tasks.put(None)

    def _work(self, mine: Reserved) -> None:
        task = mine.tasks.get()
        while task is not None:
            began = time.monotonic()
            done = mine.worker.do(task)
            took = timedelta(seconds=time.monotonic() - began)
            following = self._next(mine)
            self._done(replace(done, took=took))
            task = following or mine.tasks.get()
        mine.worker.close()

    def _next(self, mine: Reserved) -> Task | None:
        """Take an offer, the first one or one near it that this thread had before; without one it is idle."""
        with self._guard:
            if self._offers:
                near = self._offers[:MOST_AHEAD]
                chosen = next((each for each in near if each.members in mine.worker.known), near[0])
                self._passed_over += 1
                if chosen is near[0] or self._passed_over > MOST_AHEAD:  # nobody may have had the first one
                    chosen, self._passed_over = near[0], 0
                self._offers.remove(chosen)
                self._taken.append(chosen)
                return chosen
            self._rest(mine)
            return None

    def _rest(self, reserved: Reserved) -> None:
        """Count a thread as idle; the caller has the guard."""
        self._busy.discard(reserved)
        self._idle.append(reserved)
