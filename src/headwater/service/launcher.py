"""The launcher: one for a server, it starts a scheduler for each database that has a catalog.

A scheduler is a process of its own, so one that dies takes nothing else with it; it is started again. The two
talk over its standard streams: the scheduler says how many threads it uses and could use, the launcher how
many it grants. A scheduler whose launcher is gone reads the end of its input, and stops.

On a standby there is nothing to do but to wait for its promotion. Of two launchers one leads, by a lock of
its session in the database that they are connected to; schedulers have a lock of their own besides.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import psutil
import psycopg

from headwater.catalog import installed
from headwater.catalog.settings import effective
from headwater.config import Settings
from headwater.db.connection import Connection, one
from headwater.db.queries import query
from headwater.db.route import Route
from headwater.errors import HeadwaterError, InvalidSetting, SessionNeeded
from headwater.scheduling.pool import Limits, Measured, Pool, adapt
from headwater.scheduling.quota import allowed
from headwater.service import logs
from headwater.service.protocol import LAUNCHER, Demand

DISCOVERY_SECONDS = 10.0
STANDBY_SECONDS = 30.0
LEADING_SECONDS = 2.0
SHARING_SECONDS = 1.0
SHORTEST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Before a scheduler that died is started again; longer each time, unless it had lived for a while."""
LIVED_SECONDS = 60.0
STOPPING_SECONDS = 40.0


def shares(
    pool_size: int, quota: int, demands: Mapping[str, Demand], before: Mapping[str, int] | None = None
) -> dict[str, int]:
    """How many threads each database gets: what it can use, within its quota, by turns until none are left.

    Each gets one in any case, so that what becomes due need not wait for a grant. What nobody can use stays
    where it was: threads that are let go lose their connections and all that was prepared there.
    """
    busy = sum(demand.busy for demand in demands.values())
    limit = max(1, allowed(quota, pool_size, busy))
    granted = dict.fromkeys(demands, 1)
    left = pool_size - len(granted)
    usable = {database: demand.busy + demand.queued for database, demand in demands.items()}
    for wanted in (usable, before or {}):
        wanting = True
        while left > 0 and wanting:
            wanting = False
            for database in demands:
                if left > 0 and granted[database] < min(limit, wanted.get(database, 0)):
                    granted[database] += 1
                    left -= 1
                    wanting = True
    return granted


@dataclass(eq=False)
class Child:
    """A scheduler process."""

    database: str
    process: subprocess.Popen[str]
    born: float
    demand: Demand = field(default_factory=lambda: Demand(0, 0, 0.0))
    granted: int = 0

    def grant(self, threads: int) -> None:
        if threads != self.granted and self.process.stdin is not None:
            self.granted = threads
            with suppress(BrokenPipeError, ValueError):  # it is seen to be dead in the next round
                self.process.stdin.write(f"{threads}\n")
                self.process.stdin.flush()

    def release(self) -> None:
        """It has ended, and nobody talks to it any more."""
        if self.process.stdin is not None:
            with suppress(BrokenPipeError):  # what was still to be told
                self.process.stdin.close()


class Launcher:
    """Starts, watches and stops the schedulers of one server."""

    def __init__(
        self,
        dsn: str,
        overrides: Mapping[str, str],
        arguments: Sequence[str],
        databases: Sequence[str] = (),
        *,
        direct_dsn: str | None = None,
    ) -> None:
        """`arguments` go to each scheduler; `databases`, if given, are the only ones that are looked at."""
        self._overrides = dict(overrides)
        self._route = Route.given(dsn, direct_dsn, self._overrides, os.environ)
        self._arguments = list(arguments)
        self._databases = tuple(databases)
        self._children: dict[str, Child] = {}
        self._pauses: dict[str, float] = {}
        self._due: dict[str, float] = {}  # when a scheduler that died is started again
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._settings = Settings()
        self._pool = Pool(self._settings.max_dynamic_refresh_workers)

    def stop(self) -> None:
        """By any thread or signal handler."""
        self._stop.set()
        self._wake.set()

    def run(self) -> None:
        """Until it is stopped. What goes wrong with the server is waited out."""
        logs.say(logging.INFO, "started", pid=os.getpid())
        pause = SHORTEST_PAUSE
        while not self._stop.is_set():
            try:
                with self._route.session("the service") as control:
                    control.execute("SELECT set_config('application_name', 'headwater launcher', false)")
                    pause = SHORTEST_PAUSE
                    self._serve(control)
            except SessionNeeded:
                raise
            except (HeadwaterError, psycopg.Error) as error:
                message = error.message if isinstance(error, HeadwaterError) else str(error).strip()
                detail = error.detail if isinstance(error, HeadwaterError) else None
                logs.say(logging.ERROR, "disconnected", error=message, detail=detail, again_in=f"{pause:g}s")
                self._stop.wait(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
        self._end_children()
        logs.say(logging.INFO, "ended", pid=os.getpid())

    def _serve(self, control: Connection) -> None:
        """Leads, as long as the connection and the server's being a primary last."""
        if not self._lead(control):
            return
        discovered = -1e9
        while not self._stop.is_set():
            if time.monotonic() - discovered >= DISCOVERY_SECONDS:
                discovered = time.monotonic()
                if one(control, "SELECT pg_is_in_recovery()")[0]:
                    self._end_children()
                    self._wait_for_promotion(control)
                self._read_settings(control)
                self._discover(control)
            self._bury()
            self._revive()
            self._share()
            self._wake.wait(SHARING_SECONDS)
            self._wake.clear()

    def _lead(self, control: Connection) -> bool:
        told = False
        while not self._stop.is_set():
            if one(control, query("service", "lead"), {"role": LAUNCHER})[0]:
                return True
            if not told:
                logs.say(logging.INFO, "waiting", reason="another launcher leads")
                told = True
            self._stop.wait(LEADING_SECONDS)
        return False

    def _wait_for_promotion(self, control: Connection) -> None:
        logs.say(
            logging.INFO, "standby", reason="this server follows a primary", again_in=f"{STANDBY_SECONDS:g}s"
        )
        while not self._stop.is_set() and one(control, "SELECT pg_is_in_recovery()")[0]:
            self._stop.wait(STANDBY_SECONDS)
        if not self._stop.is_set():
            logs.say(logging.INFO, "promoted")

    def _read_settings(self, control: Connection) -> None:
        """Those of the pool: from flags, the environment, and the database that this one is connected to."""
        try:
            self._settings = effective(installed.read_state(control), self._overrides, os.environ)
        except InvalidSetting as error:
            logs.failed(control.info.dbname, "settings", error)

    # schedulers

    def _discover(self, control: Connection) -> None:
        names = [row[0] for row in control.execute(query("service", "databases"))]
        for name in names:
            if self._databases and name not in self._databases:
                continue
            if name not in self._children and name not in self._due and self._is_installed(name):
                self._start(name)
        for name in self._children.keys() - set(names):
            self._children[name].process.terminate()  # the database is gone

    def _is_installed(self, database: str) -> bool:
        try:
            with self._route.to(database).session("the service") as connection:
                return bool(one(connection, query("service", "is_installed"))[0])
        except (HeadwaterError, psycopg.Error) as error:
            logs.say(logging.DEBUG, "skipped", database=database, reason=str(error).strip())
            return False

    def _start(self, database: str) -> None:
        route = self._route.to(database)
        environment = {**os.environ, "HEADWATER_DSN": route.dsn}
        if route.direct_dsn is not None:
            environment["HEADWATER_DIRECT_DSN"] = route.direct_dsn
        process = subprocess.Popen(
            [sys.executable, "-m", "headwater.service", *self._arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            # A terminal's interrupt reaches all its processes; who starts them ends them.
            start_new_session=True,
        )
        child = Child(database, process, time.monotonic())
        self._children[database] = child
        threading.Thread(target=self._listen, args=(child,), name=f"of {database}", daemon=True).start()

    def _listen(self, child: Child) -> None:
        """Until it ends."""
        assert child.process.stdout is not None
        with child.process.stdout as lines:
            for line in lines:
                child.demand = Demand(**json.loads(line))
                self._wake.set()
        self._wake.set()

    def _bury(self) -> None:
        for name, child in list(self._children.items()):
            code = child.process.poll()
            if code is None:
                continue
            del self._children[name]
            child.release()
            lived = time.monotonic() - child.born
            pause = SHORTEST_PAUSE if lived > LIVED_SECONDS else self._pauses.get(name, SHORTEST_PAUSE)
            self._pauses[name] = min(2 * pause, LONGEST_PAUSE)
            self._due[name] = time.monotonic() + pause
            logs.say(logging.ERROR, "scheduler died", database=name, code=code, again_in=f"{pause:g}s")

    def _revive(self) -> None:
        """Starts schedulers again that died, if they are still wanted."""
        for name, due in list(self._due.items()):
            if time.monotonic() >= due:
                del self._due[name]
                if self._is_installed(name):
                    self._start(name)

    def _share(self) -> None:
        """Grants threads to the schedulers."""
        demands = {name: child.demand for name, child in self._children.items()}
        if self._settings.adaptive_workers:
            measured = Measured(
                cpu=psutil.cpu_percent() / 100,
                queued=sum(demand.queued for demand in demands.values()),
                busy=sum(demand.busy for demand in demands.values()),
                lag_intervals=max((demand.lag_intervals for demand in demands.values()), default=0.0),
            )
            before = self._pool
            self._pool = adapt(
                before, measured, Limits(self._settings.min_workers, self._settings.max_workers)
            )
            if self._pool.size != before.size:
                logs.say(logging.INFO, "pool", workers=self._pool.size, before=before.size, wish=before.wish)
        else:
            self._pool = Pool(self._settings.max_dynamic_refresh_workers)
        had = {name: child.granted for name, child in self._children.items()}
        granted = shares(self._pool.size, self._settings.per_database_worker_quota, demands, had)
        for name, threads in granted.items():
            if (child := self._children.get(name)) is not None:
                child.grant(threads)

    def _end_children(self) -> None:
        for child in self._children.values():
            child.process.terminate()
        deadline = time.monotonic() + STOPPING_SECONDS
        for child in self._children.values():
            try:
                child.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                logs.say(logging.ERROR, "killed", database=child.database, reason="it did not stop in time")
                child.process.kill()
                child.process.wait()
            child.release()
        self._children.clear()
