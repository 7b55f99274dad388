"""The scheduler of one database: decides what is refreshed when, and has it done.

It wakes every `scheduler_interval_ms`, when something is due, when a job has ended, when the catalog changed,
and with `event_driven_wake` when somebody writes. Then it reads and removes the marks of sources that
changed, looks at those who read them, and gives what is due to threads of its own process or to external
workers. So a tick costs what changed, not what there is.

All that it knows it can read again: it may be killed at any moment, and the next one looks at every change
table once. One scheduler leads in a database, by a lock of its session; another one waits to take its place.
"""

from __future__ import annotations

import itertools
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta

import psycopg
from psycopg import sql

from headwater import config
from headwater.api import Headwater
from headwater.capture import marks
from headwater.catalog import installed
from headwater.catalog.history import Outcome
from headwater.catalog.settings import effective
from headwater.config import Settings
from headwater.db.connection import Connection, one
from headwater.db.queries import query
from headwater.db.route import Route
from headwater.errors import (
    Broken,
    HeadwaterError,
    InvalidSetting,
    NotFound,
)
from headwater.scheduling.backoff import SUSPENDED_AFTER
from headwater.service import logs
from headwater.service.audits import Audited, Audits, tell_audited
from headwater.service.executor import MOST_AHEAD, Done, Executor, Task, at_fault
from headwater.service.history import HistoryCleaning
from headwater.service.journal import Job, Journal
from headwater.service.protocol import SCHEDULER, Demand
from headwater.service.queue import BEAT_SECONDS, ENDED_CHANNEL, External, Membership
from headwater.service.requests import Requests
from headwater.service.state import Place, SchedulerState
from headwater.service.wakeup import Wakeup

CATALOG_CHANNEL = "headwater_catalog"
WAITING_SECONDS = 2.0
"""Between two attempts to lead."""
RELOAD_SECONDS = 60.0
"""After so long the catalog is read again, though whoever changes it says so (`CATALOG_CHANNEL`)."""
REPORT_SECONDS = 1.0
SHORTEST_TICK = 0.005
"""Between two ticks, however many writers wake it."""
CLEANING_SECONDS = 60.0
ANSWERING = 2
"""Threads that carry out what users ask for in SQL: one that loads much does not hold up the others."""
CLAIMING_TICKS = 2
"""So many ticks external workers have to claim a job; then it is done here."""
STOPPING_SECONDS = 30.0
"""So long a scheduler that is told to stop waits for its jobs."""


class Scheduler:
    """Keeps the stream tables of one database within their schedules."""

    def __init__(
        self,
        dsn: str,
        overrides: Mapping[str, str] | None = None,
        *,
        direct_dsn: str | None = None,
        tell_demand: Callable[[Demand], None] | None = None,
    ) -> None:
        """`direct_dsn` goes past a pooler, for what needs a session."""
        self._overrides = dict(overrides or {})
        self._route = Route.given(dsn, direct_dsn, self._overrides, os.environ)
        self._tell_demand = tell_demand
        self.allowance: int | None = None  # threads that the launcher grants; None if there is none
        self._stopping = False
        self._done: queue.SimpleQueue[Done] = queue.SimpleQueue()
        self._wakeup = Wakeup()
        self._executor = Executor(self._route, self._take_done)
        self._audits = Audits(self._route, self._take_audited)
        self._history = HistoryCleaning(
            self._route, lambda error: logs.failed(self._database, "the history", error)
        )
        self._audited: queue.SimpleQueue[Audited] = queue.SimpleQueue()
        self._next_audit = -1e9
        self._state = SchedulerState()
        self._jobs: dict[tuple[int, ...], Job] = {}
        self._backlog: list[Place] = []  # that are ready, and for which no thread is free
        self._settings = Settings()
        self._stored: dict[str, str] | None = None
        self._stale = True
        self._examined = self._reported = self._beaten = self._cleaned = -1e9
        self._looked: float | None = None
        self._looked_outside = -1e9
        self._ticks, self._tick_ms, self._worked = 0, 0.0, 0.0
        self._lag = 0.0  # the longest, in intervals, when it was last reported
        self._slow: set[int] = set()  # units, by their last members, that take longer than they may
        self._outside = False  # there are external workers
        self._capacity = 0  # jobs that they take at once

    # life

    def stop(self) -> None:
        """Has it finish what it has begun, and end; by any thread or signal handler."""
        self._stopping = True
        self.wake()

    def wake(self) -> None:
        self._wakeup.ring()

    def run(self) -> None:
        """Until it is stopped. Raises if the database cannot be reached or is not for this program."""
        with self._route.session("the service") as control:
            control.execute("SELECT set_config('application_name', 'headwater scheduler', false)")
            self._database = control.info.dbname
            if not self._lead(control):
                return
            installed.require_primary(control)
            installed.require_ready(control)
            self._route.confirm(control)
            for channel in (marks.CHANNEL, CATALOG_CHANNEL, ENDED_CHANNEL):
                control.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
            self._membership = Membership(control, "scheduler", 0, {"engines": ["postgres", "spark"]})
            self._external = External(control)
            self._external.clear()
            self._journal = Journal(control, self._membership.worker_id)
            self._started_at: datetime = one(control, "SELECT clock_timestamp()")[0]
            logs.say(logging.INFO, "scheduling", database=self._database, pid=os.getpid())
            stop_answering = threading.Event()
            answering = [
                threading.Thread(
                    target=Requests(self._connect_handle).run,
                    args=(stop_answering,),
                    name="requests",
                    daemon=True,
                )
                for _ in range(ANSWERING)
            ]
            for thread in answering:
                thread.start()
            try:
                self._loop(control)
            finally:
                stop_answering.set()
                self._audits.stop()
                self._history.stop()
                self._executor.close()
                if not control.closed:
                    self._membership.leave()
                    control.execute(
                        query("service", "forget_scheduler"), {"worker_id": self._membership.worker_id}
                    )
                logs.say(logging.INFO, "stopped", database=self._database)

    def _connect_handle(self) -> Headwater:
        """For requests, which hold locks of their session."""
        return Headwater(
            self._route.direct_dsn or self._route.dsn,
            {**self._overrides, "connection_pooler_mode": "none"},
        )

    def _lead(self, control: Connection) -> bool:
        waiting = False
        while not self._stopping:
            if one(control, query("service", "lead"), {"role": SCHEDULER})[0]:
                return True
            if not waiting:
                logs.say(logging.INFO, "waiting", database=self._database, reason="another scheduler leads")
                waiting = True
            self._sleep(control, WAITING_SECONDS)
        return False

    def _loop(self, control: Connection) -> None:
        self._tick(control)
        while not self._stopping:
            self._sleep(control, self._pause)
            time.sleep(max(0.0, self._ticked + SHORTEST_TICK - time.monotonic()))
            self._tick(control)
        self._withdraw()
        self._take_up(one(control, "SELECT clock_timestamp()")[0])
        deadline = time.monotonic() + STOPPING_SECONDS
        while self._jobs and time.monotonic() < deadline:
            self._sleep(control, 0.2)
            now = one(control, "SELECT clock_timestamp()")[0]
            self._collect(control, now)
            self._beat()
        self._backlog = []
        self._journal.write(self._backlog)

    def _sleep(self, control: Connection, seconds: float) -> None:
        """Until something happens, at most so long."""
        if CATALOG_CHANNEL in self._wakeup.wait(control, seconds):
            self._stale = True

    # one tick

    def _tick(self, control: Connection) -> None:
        self._ticked = began = time.monotonic()
        worked = time.thread_time()
        now, stored, relations = one(control, query("service", "tick"))
        self._take_up(now)
        self._apply(control, stored)
        if self._stale or began - self._examined >= RELOAD_SECONDS:
            self._load(control, now, began)
            self._next_audit = min(self._next_audit, self._audits.earliest)
        self._state.changed({*relations, *self._unmarked(control, began)}, now)
        self._collect(control, now)
        self._dispatch(now, began)
        self._audit(control, now, began)
        self._beat()
        self._ticks += 1
        self._tick_ms = (time.thread_time() - worked) * 1000
        self._worked += self._tick_ms
        if began - self._reported >= REPORT_SECONDS:
            self._report(control, now, began)

    def _unmarked(self, control: Connection, began: float) -> set[int]:
        """Sources that have changes though no mark may say so: of all at first, then of some each second."""
        if self._looked is None:
            tables = sorted(self._state.change_tables.items())
        elif began - self._looked >= 1.0:
            tables = self._state.unmarked(began - self._looked)
        else:
            return set()
        try:
            found = marks.with_changes(control, tables)
        except psycopg.errors.UndefinedTable:  # dropped since the catalog was read, which is done again
            self._examined = -1e9
            return set()
        self._looked = began
        return found

    def _apply(self, control: Connection, stored: dict[str, str]) -> None:
        """The settings as they are now; what cannot be read leaves those before in place."""
        if stored == self._stored:
            return
        self._stored = stored
        try:
            settings = effective(installed.read_state(control), self._overrides, os.environ)
        except InvalidSetting as error:
            logs.failed(self._database, "settings", error)
            return
        self._settings = settings
        self._state.automatic_tiers = settings.tiered_scheduling
        if marks.set_wake(control, notify=settings.event_driven_wake):
            how = "by writers, too" if settings.event_driven_wake else "by the clock"
            logs.say(logging.INFO, "woken", database=self._database, how=how)
        self._stale = True

    def _load(self, control: Connection, now: datetime, began: float) -> None:
        installed.require_current(control)
        known = self._state.faults
        examine = began - self._examined >= RELOAD_SECONDS
        self._state.load(control, now, examine=examine)
        for number, error in self._state.broken.items():
            logs.failed(self._database, self._state.members[number].label, error)
        for number, fault in self._state.faults.items():
            if fault != known.get(number) and number in self._state.members:
                logs.say(
                    logging.ERROR,
                    "broken",
                    database=self._database,
                    stream_table=self._state.members[number].label,
                    reason=fault.reason,
                    hint=fault.remedy if not fault.heals else "its next refresh puts them back",
                )
        self._stale = False
        if examine:
            self._examined = began

    @property
    def _most(self) -> int:
        """Refreshes at once, here and outside."""
        if not self._settings.parallel_refresh_mode:
            return 1
        granted = self.allowance if self.allowance is not None else self._settings.max_dynamic_refresh_workers
        return max(1, min(self._settings.max_concurrent_refreshes, granted))

    def _dispatch(self, now: datetime, began: float) -> None:
        """Have what is due refreshed: by external workers, by idle threads, what is short by busy ones."""
        self._pause = self._settings.scheduler_interval_ms / 1000
        self._backlog = []
        if self._stopping or self._settings.drain:
            return
        ready, next_time = self._state.ready(now)
        if next_time is not None:
            self._pause = min(self._pause, max(0.001, (next_time - now).total_seconds()))
        outside = self._look_outside(began)
        announced = False
        external = sum(job.external and job.claim is None for job in self._jobs.values())
        ahead = max(0, self._capacity * MOST_AHEAD - external)
        at_work = self._executor.busy + min(external, self._capacity)
        for number, place in enumerate(ready):
            if at_work < self._most:
                at_work += 1
                if outside > 0:
                    outside, ahead, announced = outside - 1, ahead - 1, True
                    self._enqueue(place, now, began)
                else:
                    self._start(self._begun(place, now), now)
            elif ahead > 0 and self._state.is_short(place.unit.members):
                ahead, announced = ahead - 1, True
                self._enqueue(place, now, began)
            else:
                self._backlog = ready[number:]
                self._offer()
                break
        if announced:
            self._external.announce()
        self._executor.shrink(self._most)
        if self._tell_demand is not None:
            self._tell_demand(Demand(at_work, len(self._backlog), self._lag))

    def _begun(self, place: Place, now: datetime) -> Job:
        """Return the job of a unit that is refreshed from now on."""
        members = place.unit.members
        job = Job(0, members, place.ready_since or now, place.waits_since)
        self._state.began(place, now)
        self._jobs[members] = job
        return job

    def _enqueue(self, place: Place, now: datetime, began: float) -> None:
        """Put a unit up for external workers."""
        job = self._begun(place, now)
        job.id, job.external, job.asked = self._external.enqueue(job.members), True, began

    def _offer(self) -> None:
        """Let threads go on with the first that wait, as long as these are short.

        They wait no less for that: the next tick takes back what no thread has taken.
        """
        members = (place.unit.members for place in self._backlog[: (MOST_AHEAD - 1) * self._executor.busy])
        short = itertools.takewhile(self._state.is_short, members)
        self._executor.offer([Task(each, self._settings) for each in short])

    def _take_up(self, now: datetime) -> None:
        """Count what threads have gone on with as begun."""
        for task in self._executor.withdraw():
            place = self._state.places.get(task.members[-1])
            if place is not None and place.unit.members == task.members:
                job = self._begun(place, now)
            else:  # the graph has changed
                job = self._jobs[task.members] = Job(0, task.members, now, None)
            self._record(job, now)

    def _start(self, job: Job, now: datetime) -> None:
        self._record(job, now)
        self._executor.start(Task(job.members, self._settings, job.claim))

    def _record(self, job: Job, now: datetime) -> None:
        """Have others see that a job of this process runs."""
        job.assigned_at, job.started, job.status = now, time.monotonic(), "RUNNING"
        if job.claim is None:
            job.id = self._journal.number_of(job.members)
            self._journal.add(job)

    # audits

    def _audit(self, control: Connection, now: datetime, began: float) -> None:
        """Starts what is due, one turn at a time, while no refresh waits for a worker."""
        while not self._audited.empty():
            tell_audited(self._database, self._audited.get())
            self._next_audit = began + self._audits.pause
        interval = config.milliseconds(self._settings.audit_interval) / 1000
        idle = not (self._stopping or self._settings.drain or self._backlog or self._audits.busy)
        if not interval or not idle or began < self._next_audit:
            return
        due, next_at = one(control, query("audit", "due"), {"seconds": interval})
        if due is not None:
            self._audits.start(due, self._settings)
        wait = RELOAD_SECONDS if next_at is None else max(0.0, (next_at - now).total_seconds())
        self._next_audit = began + min(RELOAD_SECONDS, wait)

    def _take_audited(self, audited: Audited) -> None:
        self._audited.put(audited)
        self.wake()

    # external workers

    def _look_outside(self, began: float) -> int:
        """How many jobs external workers could take now; takes jobs back from those that died."""
        asked = {job.id: job for job in self._jobs.values() if job.external and job.claim is None}
        if not self._outside and began - self._looked_outside < REPORT_SECONDS:
            self._capacity = 0
            return 0
        self._looked_outside = began
        self._capacity, free = self._external.capacity()
        self._outside = free > 0 or bool(asked)
        if not asked:
            return free
        for number in self._external.take_back(asked):
            logs.say(logging.WARNING, "reclaimed", database=self._database, job=number)
            asked[number].asked = began - 1e6  # whoever is there has had time
        late = CLAIMING_TICKS * self._settings.scheduler_interval_ms / 1000
        for job in asked.values():
            if began - job.asked > late:
                job.claim = self._membership.claim(None, job.id)
                if job.claim is not None:
                    self._start(job, job.queued_at)
        return max(0, free - sum(job.started == 0.0 for job in asked.values()))

    def _withdraw(self) -> None:
        """Takes back what nobody has begun."""
        asked = {job.id: job for job in self._jobs.values() if job.external and job.claim is None}
        for number in self._external.withdraw(asked) if asked else ():
            del self._jobs[asked[number].members]

    # what has ended

    def _take_done(self, done: Done) -> None:
        self._done.put(done)
        self.wake()

    def _collect(self, control: Connection, now: datetime) -> None:
        while not self._done.empty():
            done = self._done.get()
            job = self._jobs.pop(done.task.members)
            job.engine = ", ".join(sorted({outcome.engine for outcome in done.outcomes})) or None
            failure = done.failure
            if job.claim is not None:
                culprit = failure.stream_table_id if failure and at_fault(failure.error) else None
                error = str(failure.error) if failure else None
                self._membership.finish(job.claim, {job.engine or ""} - {""}, error, culprit)
            if failure is None:
                self._succeeded(job, done.outcomes, done.took, now)
            else:
                culprit = failure.stream_table_id or job.members[-1]
                self._failed(control, job, culprit, failure.error, now, counts=at_fault(failure.error))
        outside = {job.id: job for job in self._jobs.values() if job.external and job.claim is None}
        for ended in self._external.ended(outside) if outside else ():
            job = self._jobs.pop(outside[ended.id].members)
            if ended.error is None:
                self._succeeded(job, (), ended.took, now)
            else:
                culprit = ended.failed_member or job.members[-1]
                counts = ended.failed_member is not None
                self._failed(control, job, culprit, HeadwaterError(ended.error), now, counts=counts)

    def _succeeded(self, job: Job, outcomes: Sequence[Outcome], took: timedelta, now: datetime) -> None:
        job.status, job.finished_at = "COMPLETED", now
        place = self._state.places.get(job.members[-1])
        self._state.ended(job.members, took, now)
        lag = (now - job.waits_since).total_seconds() * 1000 if job.waits_since else None
        for outcome in outcomes:
            logs.refreshed(self._database, outcome, lag, "in-process")
        if place is not None and place.interval:
            self._watch_pace(place, took)

    def _watch_pace(self, place: Place, took: timedelta) -> None:
        """Says when a unit cannot keep its schedule any more, and when it can again."""
        slow, last = took > place.interval, place.unit.members[-1]
        if slow == (last in self._slow):
            return
        (self._slow.add if slow else self._slow.remove)(last)
        logs.say(
            logging.WARNING if slow else logging.INFO,
            "slow" if slow else "in time again",
            database=self._database,
            stream_table=self._state.members[last].label,
            ms=round(took.total_seconds() * 1000, 1),
            schedule=str(place.schedule),
            reason="it takes longer than its schedule allows, and is refreshed less often" if slow else None,
        )

    def _failed(
        self,
        control: Connection,
        job: Job,
        culprit: int,
        error: HeadwaterError,
        now: datetime,
        *,
        counts: bool,
    ) -> None:
        job.status, job.finished_at, job.error = "FAILED", now, error.message
        strikes = self._state.failed(job.members, culprit, now, counts=counts)
        self._stale = self._stale or isinstance(error, NotFound)
        if isinstance(error, Broken):
            self._examined = -1e9  # so that it is not tried again before it is repaired
        member = self._state.members.get(culprit)
        label = member.label if member else str(culprit)
        if isinstance(error, NotFound) and member is None:
            return  # it was dropped
        logs.failed(self._database, label, error, failures=strikes or None)
        if strikes >= SUSPENDED_AFTER:
            reason = f"{strikes} refreshes in a row failed, the last one with: {error.message}"
            control.execute(query("catalog", "suspend"), {"id": culprit, "reason": reason})
            logs.say(logging.ERROR, "suspended", database=self._database, stream_table=label, reason=reason)
            self._stale = True

    # what others see

    def _beat(self) -> None:
        if time.monotonic() - self._beaten >= BEAT_SECONDS:
            self._beaten = time.monotonic()
            self._membership.beat([job.id for job in self._jobs.values() if job.claim is not None])

    def _report(self, control: Connection, now: datetime, began: float) -> None:
        since = max(0.001, began - self._reported) if self._reported > 0 else REPORT_SECONDS
        self._lag = self._state.lag(now)
        control.execute(
            query("service", "report"),
            {
                "worker_id": self._membership.worker_id,
                "started_at": self._started_at,
                "ticks": self._ticks,
                "tick_ms": self._tick_ms,
                "busy_share": self._worked / 1000 / since,
                "stream_tables": sum(place.schedule is not None for place in self._state.places.values()),
                "changed": len(self._state.waiting),
                "queued_jobs": len(self._backlog),
                "active_workers": len(self._jobs),
                "max_workers": self._most,
                "per_db_cap": self._settings.max_concurrent_refreshes,
                "parallel_mode": "on" if self._settings.parallel_refresh_mode else "off",
                "plan_cache_hits": self._executor.definitions.found,
                "plan_cache_misses": self._executor.definitions.read,
                "draining": self._settings.drain,
            },
        )
        self._journal.write(self._backlog)
        self._reported, self._worked = began, 0.0
        if began - self._cleaned >= CLEANING_SECONDS:
            self._cleaned = began
            control.execute(query("service", "forget_jobs"))
            self._history.start(self._settings)
