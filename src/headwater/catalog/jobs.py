"""Refreshes that run outside the database, as other processes see them.

A job is a row of `headwater.job`. Whoever runs it holds a session-level advisory lock on its number, over a
connection that does nothing else: the lock ends with the process, however that ends, and it alone says
whether a job lives. The row shows how far the job is, and takes requests to end it.

The tables that a job makes for its tasks carry its number in their names, so they can be found when nothing
else is left of it. What happens when something dies:

- the process, or its connection: the server frees the lock, and the next `sweep` drops tables and row;
- the server: unlogged tables are emptied, so the row is gone; `sweep` finds the job's tables by their names;
- a task that outlives its job: its part's claim refers to the job's row, so it cannot commit without it.
  `close` and `sweep` end its backend, which they know by its name. One that holds its locks nevertheless,
  `sweep` does not wait for; the next one removes the job;
- the backend of the refresh: the job learns of it with the next look at its row, for nothing that is
  computed from then on can be applied;
- the refresh, after it renamed a table of the job into place: if it committed, the table no longer has a
  job's name; if not, it has it still, and is dropped.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

from headwater.catalog.stream_tables import StreamTable
from headwater.db.connection import Connection, connect, one, translated
from headwater.db.queries import query
from headwater.errors import HeadwaterError, NotRunning, RefreshCancelled, RefreshFailed

JOB_LOCK = 1_214_608
"""Class of the session locks that live jobs hold, one for each; the view running_jobs has it too."""
DATA = "headwater_data"
INTERVAL = 0.5
"""Seconds between two looks at a job's row, and between two reports within one phase."""
WAITING = "waiting"
"""Phase of a refresh inside the database that waits for a lock, as for another refresh of the same."""
CLOSING_LOCK_TIMEOUT = "2s"
SWEEPING_LOCK_TIMEOUT = "50ms"
CANCELLING_ATTEMPTS, CANCELLING_PAUSE = 20, 0.1
ENDING_MS = 2_000
"""How long the end of a task's backend is waited for."""


@dataclass(frozen=True, kw_only=True)
class RunningJob:
    """A row of headwater.running_jobs: a refresh that runs now."""

    id: int | None  # None for one inside the database
    stream_table: str
    engine: str
    action: str | None
    phase: str
    tasks: int | None
    tasks_done: int | None
    rows: int | None
    bytes: int | None
    stage: str | None
    started_at: datetime
    elapsed_ms: float
    coordinator: int
    client: str | None
    application: str | None
    ui: str | None
    cancel_requested: bool


@dataclass(frozen=True)
class Moved:
    """What tasks moved under one name."""

    rows: int = 0
    bytes: int = 0
    tasks: int = 0
    ms: float = 0.0  # that the database took, of all tasks together


class Job:
    """One refresh outside the database, from the side of the process that runs it.

    A context manager. `report`, `cancelled`, `check` and `moved` may be called by any thread; `connection` is
    for one at a time. If the refresh renames one of its tables into place, close it after that is committed,
    or say so by `adopted`: dropping would wait for it.
    """

    def __init__(
        self, dsn: str, stream_table: StreamTable, life: Connection, number: int, phase: str
    ) -> None:
        self.id = number
        self._dsn = dsn
        self._stream_table = stream_table
        self._life = life
        self._connection: Connection | None = None
        self._tables: set[str] = set()
        self._guard = threading.Lock()
        self._phase = phase
        self._figures: dict[str, int | str] = {}
        self._application: str | None = None
        self._ui: str | None = None
        self._looked = time.monotonic()
        self._cancelled = False
        self._closed = False
        self.forsaken = False  # the backend of the refresh is gone

    @classmethod
    def open(
        cls,
        dsn: str,
        stream_table: StreamTable,
        *,
        coordinator: int,
        action: str,
        engine: str = "spark",
        phase: str = "starting",
    ) -> Job:
        """Starts a job; `coordinator` is the backend of the refresh's transaction.

        The DSN must lead to sessions of one's own, past any pooler.
        """
        life = connect(dsn, "none")
        try:
            life.execute(
                "SELECT set_config('lock_timeout', %s, false), set_config('statement_timeout', '0', false),"
                " set_config('idle_session_timeout', '0', false)",
                (CLOSING_LOCK_TIMEOUT,),
            )
            values = {
                "stream_table_id": stream_table.id,
                "coordinator": coordinator,
                "client": f"{socket.gethostname()}:{os.getpid()}",
                "engine": engine,
                "action": action,
                "phase": phase,
                "lock": JOB_LOCK,
            }
            number = int(one(life, query("jobs", "open"), values)[0])
        except BaseException as error:
            life.close()
            if isinstance(error, psycopg.Error):
                raise translated(error, f"refresh of {stream_table.label}", RefreshFailed) from error
            raise
        return cls(dsn, stream_table, life, number, phase)

    def __enter__(self) -> Job:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def connection(self) -> Connection:
        """A connection beside the refresh's own, in autocommit: what it does others see at once."""
        if self._connection is None:
            self._connection = connect(self._dsn, "none")
        return self._connection

    @property
    def task_name(self) -> str:
        """By which the backends of its tasks are known; tasks must set it as their application_name."""
        return task_name(self.id)

    # tables

    def table(self, name: str) -> str:
        """The SQL name of a table of this job, which `close` drops; who asks for it creates it."""
        self._tables.add(name)
        return self._table(name).as_string(None)

    def adopted(self, name: str) -> None:
        """The refresh's transaction makes this table its own: `close` does not touch it."""
        self._tables.discard(name)

    def _table(self, name: str) -> sql.Identifier:
        return sql.Identifier(DATA, table_name(self.id, name))

    # progress

    def report(
        self,
        phase: str,
        *,
        tasks: int | None = None,
        tasks_done: int | None = None,
        rows: int | None = None,
        bytes: int | None = None,
        stage: str | None = None,
    ) -> None:
        """Shows how far the job is; within a phase, a figure that is not given stays.

        May be called at every event: what comes too soon is shown with the next report.
        """
        figures = {"tasks": tasks, "tasks_done": tasks_done, "rows": rows, "bytes": bytes, "stage": stage}
        given = {name: value for name, value in figures.items() if value is not None}
        with self._guard:
            new = phase != self._phase
            self._figures = given if new else self._figures | given
            self._phase = phase
            if new or time.monotonic() - self._looked >= INTERVAL:
                self._write()

    def runs_as(self, application: str, ui: str | None) -> None:
        """Shows Spark's name for what runs the job, and the address of its user interface."""
        with self._guard:
            self._application, self._ui = application, ui
            self._write()

    def cancelled(self) -> bool:
        """Whether somebody wants the job to end; asks the database from time to time."""
        with self._guard:
            if not self._cancelled and time.monotonic() - self._looked >= INTERVAL:
                self._look(lambda: self._life.execute(query("jobs", "look"), {"id": self.id}))
            return self._cancelled

    def look(self) -> None:
        """Learns now what others want of the job and what it lost; raises if that is its own connection."""
        with self._guard:
            self._look(lambda: self._life.execute(query("jobs", "look"), {"id": self.id}))

    @property
    def was_cancelled(self) -> bool:
        """What is known of it; after `close`, whether anybody asked before it was too late."""
        return self._cancelled

    def check(self) -> None:
        """Raises if somebody wants the job to end."""
        if self.cancelled():
            raise RefreshCancelled(
                f"refresh of {self._stream_table.label} was cancelled", hint="nothing of it was applied"
            )

    def moved(self) -> dict[str, Moved]:
        """What tasks have moved so far, by part."""
        try:
            with self._guard:
                rows = self._life.execute(query("jobs", "moved"), {"id": self.id}).fetchall()
        except psycopg.Error as error:
            raise translated(error, f"refresh of {self._stream_table.label}", RefreshFailed) from error
        return {part: Moved(*figures) for part, *figures in rows}

    def sweep(self) -> None:
        """Removes what jobs left that are dead."""
        with self._guard, suppress(psycopg.Error):
            sweep(self._life)

    def _write(self) -> None:
        values = {
            "id": self.id,
            "phase": self._phase,
            "progress": Jsonb(self._figures),
            "application": self._application,
            "ui": self._ui,
        }
        self._look(lambda: self._life.execute(query("jobs", "report"), values))

    def _look(self, statement: Callable[[], psycopg.Cursor[tuple[object, ...]]]) -> None:
        """Runs a statement that tells whether the job is to end."""
        if self._closed:
            return
        try:
            row = statement().fetchone()
        except psycopg.Error as error:
            if self._life.closed:  # without it others take the job for dead, and its tables for rubbish
                raise translated(error, f"refresh of {self._stream_table.label}", RefreshFailed) from error
        else:
            if row is not None:
                self._cancelled = self._cancelled or bool(row[0])
                self.forsaken = bool(row[1])
        self._looked = time.monotonic()

    # the end

    def close(self) -> None:
        """Drops the job's tables and removes it. What cannot be removed now, the next `sweep` gets."""
        with self._guard:
            if self._closed:
                return
            self._closed = True
            if self._connection is not None:
                self._connection.close()
            try:
                self._life.execute(query("jobs", "end_tasks"), {"name": self.task_name, "wait": ENDING_MS})
                for name in sorted(self._tables):
                    with suppress(psycopg.errors.LockNotAvailable):
                        self._life.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(self._table(name)))
                row = one(self._life, query("jobs", "close"), {"id": self.id, "lock": JOB_LOCK})
                self._cancelled = self._cancelled or bool(row[1])
            except psycopg.Error:
                self._life.close()
                with suppress(psycopg.Error, HeadwaterError), connect(self._dsn, "none") as another:
                    sweep(another)
            finally:
                self._life.close()


def table_name(number: int, name: str) -> str:
    """The name of a job's table; `sweep` knows it by this form."""
    return f"job_{number}_{name}"


def task_name(number: int) -> str:
    """The application_name of a job's tasks."""
    return f"headwater task {number}"


def sweep(connection: Connection) -> int:
    """Removes what dead jobs left, and how many they were. Outside a transaction; never waits for long."""
    removed = 0
    for number, tables in connection.execute(query("jobs", "dead"), {"lock": JOB_LOCK}).fetchall():
        try:
            with connection.transaction():
                if not one(connection, query("jobs", "claim_dead"), {"id": number, "lock": JOB_LOCK})[0]:
                    continue
                connection.execute("SELECT set_config('lock_timeout', %s, true)", (SWEEPING_LOCK_TIMEOUT,))
                ending = {"name": task_name(number), "wait": ENDING_MS}
                connection.execute(query("jobs", "end_tasks"), ending)
                for table in tables:
                    connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(DATA, table)))
                connection.execute(query("jobs", "delete_job"), {"id": number})
            removed += 1
        except psycopg.Error:
            if connection.closed:
                raise
    return removed


def running(connection: Connection) -> list[RunningJob]:
    """Every refresh that runs now, the oldest first."""
    if one(connection, "SELECT pg_is_in_recovery()")[0]:
        return []  # a standby has no unlogged tables, and nothing is refreshed there
    names = RunningJob.__dataclass_fields__
    found = []
    for row in connection.execute(query("jobs", "running")):
        values = dict(zip(names, row, strict=True))
        values["elapsed_ms"] = float(values["elapsed_ms"])
        found.append(RunningJob(**values))
    return found


def cancel(connection: Connection, stream_table: StreamTable) -> list[RunningJob]:
    """Ends the refreshes of a stream table that run now; which these are.

    One that refreshes it together with what it reads is ended as a whole. A job outside the database gets a
    request, which it looks for; a statement inside is cancelled at once. A job may be doing either. One that
    is between two statements, or has not shown itself yet, is asked again.
    """
    for _ in range(CANCELLING_ATTEMPTS):
        found = running(connection)
        coordinators = {job.coordinator for job in found if job.stream_table == stream_table.label}
        wanted = [job for job in found if job.coordinator in coordinators]
        ended = _cancel(connection, stream_table, wanted) if wanted else []
        if ended:
            return ended
        if not wanted:
            break
        time.sleep(CANCELLING_PAUSE)
    raise NotRunning(
        f"no refresh of {stream_table.label} is running", hint="headwater status shows what runs"
    )


def _cancel(connection: Connection, stream_table: StreamTable, wanted: list[RunningJob]) -> list[RunningJob]:
    """Those that did not end by themselves in the meantime."""
    numbers = [job.id for job in wanted if job.id is not None]
    backends = [job.coordinator for job in wanted]
    try:
        asked = connection.execute(query("jobs", "request_cancel"), {"ids": numbers}).fetchall()
        told = connection.execute(query("jobs", "cancel_statements"), {"pids": backends}).fetchall()
    except psycopg.Error as error:
        raise translated(error, f"cancel {stream_table.label}", HeadwaterError) from error
    ids = {row[0] for row in asked}
    # One coordinator refreshes several stream tables: ending one of them ends all.
    stopped = {pid for pid, done in told if done} | {job.coordinator for job in wanted if job.id in ids}
    return [job for job in wanted if (job.coordinator in stopped if job.id is None else job.id in ids)]
