"""An external worker: claims jobs that a scheduler put up, refreshes, and says what became of them.

It keeps no state. Its registration and its claims go over one connection, each refresh over another. Killed,
it leaves a transaction that the server rolls back and a job that the scheduler takes back. Cut off, it
connects again; what was taken back meanwhile it cannot commit (`queue`).
"""

from __future__ import annotations

import logging
import os
import queue
import time
from collections.abc import Mapping

import psycopg
from psycopg import sql

from headwater.catalog import installed
from headwater.catalog.settings import effective
from headwater.config import Settings
from headwater.db.connection import Connection
from headwater.db.route import Route
from headwater.errors import HeadwaterError
from headwater.service import logs
from headwater.service.executor import Done, Executor, Task, at_fault
from headwater.service.queue import BEAT_SECONDS, CHANNEL, ClaimedJob, Membership
from headwater.service.wakeup import Wakeup

LOOKING_SECONDS = 1.0
"""Between two looks for jobs of which nobody told."""
SETTINGS_SECONDS = 10.0
SHORTEST_PAUSE, LONGEST_PAUSE = 1.0, 30.0


class Worker:
    """Works for the scheduler of one database."""

    def __init__(
        self,
        dsn: str,
        overrides: Mapping[str, str] | None = None,
        *,
        capacity: int = 1,
        direct_dsn: str | None = None,
    ) -> None:
        """`capacity`: jobs at once. `direct_dsn` goes past a pooler, for what needs a session."""
        self._overrides = dict(overrides or {})
        self._route = Route.given(dsn, direct_dsn, self._overrides, os.environ)
        self._capacity = capacity
        self._stopping = False
        self._done: queue.SimpleQueue[Done] = queue.SimpleQueue()
        self._wakeup = Wakeup()
        self._executor = Executor(self._route, self._take_done)
        self._jobs: dict[tuple[int, ...], ClaimedJob] = {}
        self._membership: Membership | None = None
        self._settings = Settings()
        self._read = -1e9

    def stop(self) -> None:
        """Has it finish its jobs and take no others; by any thread or signal handler."""
        self._stopping = True
        self._wakeup.ring()

    def run(self) -> None:
        """Until it is stopped. A database that cannot be reached is waited for, once it was there."""
        pause = SHORTEST_PAUSE
        while not self._stopping or self._jobs:
            try:
                with self._route.session("a worker") as control:
                    control.execute("SELECT set_config('application_name', 'headwater worker', false)")
                    self._join(control)
                    pause = SHORTEST_PAUSE
                    self._work(control)
            except (HeadwaterError, psycopg.Error) as error:
                if self._membership is None:
                    raise
                message = error.message if isinstance(error, HeadwaterError) else str(error).strip()
                logs.say(logging.ERROR, "disconnected", error=message, again_in=f"{pause:g}s")
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
        self._executor.close()

    def _join(self, control: Connection) -> None:
        installed.require_primary(control)
        installed.require_ready(control)
        self._route.confirm(control)
        control.execute(sql.SQL("LISTEN {}").format(sql.Identifier(CHANNEL)))
        self._database = control.info.dbname
        self._read_settings(control)
        if self._membership is not None:
            self._membership.rejoin(control)
        else:
            capabilities = {"engines": ["postgres", "spark"], "spark_master": self._settings.spark_master}
            self._membership = Membership(control, "worker", self._capacity, capabilities)
        logs.say(logging.INFO, "working", database=self._database, worker=str(self._membership.worker_id))

    def _work(self, control: Connection) -> None:
        membership = self._membership
        assert membership is not None
        beaten = time.monotonic()
        while not self._stopping or self._jobs:
            self._collect(membership)
            if time.monotonic() - self._read >= SETTINGS_SECONDS:
                self._read_settings(control)
            while not self._stopping and len(self._jobs) < self._capacity and self._claim(membership):
                pass
            if time.monotonic() - beaten >= BEAT_SECONDS:
                membership.beat([job.id for job in self._jobs.values()], draining=self._stopping)
                beaten = time.monotonic()
            self._wakeup.wait(control, LOOKING_SECONDS)
        membership.leave()
        logs.say(logging.INFO, "stopped", database=self._database)

    def _claim(self, membership: Membership) -> bool:
        reserved = self._executor.reserve()
        job = None
        try:
            job = membership.claim(reserved.worker.backend_pid)
        finally:
            if job is None:
                self._executor.give_back(reserved)
        if job is None:
            return False
        self._jobs[job.members] = job
        self._executor.start(Task(job.members, self._settings, job), reserved)
        return True

    def _collect(self, membership: Membership) -> None:
        while not self._done.empty():
            done = self._done.get()
            job, failure = self._jobs.pop(done.task.members), done.failure
            for outcome in done.outcomes:
                logs.refreshed(self._database, outcome, None, str(membership.worker_id))
            if failure is not None:
                logs.failed(self._database, f"job {job.id}", failure.error)
            membership.finish(
                job,
                {outcome.engine for outcome in done.outcomes},
                str(failure.error) if failure else None,
                failure.stream_table_id if failure and at_fault(failure.error) else None,
            )

    def _read_settings(self, control: Connection) -> None:
        self._settings = effective(installed.read_state(control), self._overrides, os.environ)
        self._read = time.monotonic()

    def _take_done(self, done: Done) -> None:
        self._done.put(done)
        self._wakeup.ring()
