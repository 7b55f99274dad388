"""The service as people run it, as a measured process: what it uses, and what the server uses for it."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
from psycopg.conninfo import conninfo_to_dict

from headwater.db.connection import Connection, connect, one
from headwater.errors import HeadwaterError
from headwater.util.child_process import Attached

PATIENCE = 600.0
"""Seconds after which a measurement gives up waiting for the service."""
LOOKING_SECONDS = 0.05
STOPPING_SECONDS = 60.0

SCHEDULING = "SELECT count(*) FROM headwater.scheduler"
OURS = """
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name ~ '^headwater'
"""
QUIET = """
SELECT count(*) FROM headwater.scheduler
WHERE ticked_at > %s AND changed = 0 AND queued_jobs = 0 AND active_workers = 0
"""


@dataclass(frozen=True)
class Used:
    """Processor time in milliseconds; the difference of two values is the time of a period."""

    loop_ms: float  # the scheduler's own thread, for its ticks
    hands_ms: float  # threads and external workers that refresh, and the launcher
    server_ms: float | None  # processes of the server for these; None if it is on another machine
    ticks: int

    def __sub__(self, other: Used) -> Used:
        known = self.server_ms is not None and other.server_ms is not None
        return Used(
            self.loop_ms - other.loop_ms,
            self.hands_ms - other.hands_ms,
            (self.server_ms or 0.0) - (other.server_ms or 0.0) if known else None,
            self.ticks - other.ticks,
        )


def cpu_ms(process: psutil.Process, thread: int | None = None) -> float:
    """Return the processor time of a process or of one of its threads, by the finest available clock."""
    tasks = Path(f"/proc/{process.pid}/task")
    chosen = [tasks / str(thread)] if thread is not None else list(tasks.glob("*"))
    try:
        return sum(int((task / "schedstat").read_text().split()[0]) for task in chosen) / 1e6
    except (OSError, ValueError):  # not every system has it; the other goes in steps of 10 ms
        threads = [each for each in process.threads() if thread in (None, each.id)]
        return sum(each.user_time + each.system_time for each in threads) * 1000


def bystander(dsn: str) -> Connection:
    """Return a connection of the measurement itself, which does not count as the service's."""
    connection = connect(dsn)
    connection.execute("SELECT set_config('application_name', 'bench', false)")
    return connection


def wait_for(condition: Callable[[], bool], what: str, seconds: float = LOOKING_SECONDS) -> None:
    """Wait until a condition holds, checking it once in so many seconds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise HeadwaterError(f"the measurement waited {PATIENCE:g} s in vain: {what}")
        time.sleep(seconds)


@dataclass
class Service:
    """`headwater serve` of one database, with external workers if wanted, while the block runs."""

    dsn: str
    settings: Mapping[str, str]
    workers: int = 0  # external ones, each a process
    _started: list[Attached] = field(default_factory=list)
    _log: Path = field(default_factory=lambda: Path(tempfile.mkstemp(prefix="headwater-bench-")[1]))

    def __enter__(self) -> Self:
        self._connection = bystander(self.dsn)
        if one(self._connection, SCHEDULING)[0]:
            raise HeadwaterError(
                "a service runs in this database already",
                hint="stop it, name another database, or leave --dsn out",
            )
        self._run("serve", "--database", self._connection.info.dbname)
        try:
            wait_for(lambda: self._alive() and bool(one(self._connection, SCHEDULING)[0]), "it did not start")
            for _ in range(self.workers):
                self._run("worker")
            registered = "SELECT count(*) FROM headwater.worker_registry WHERE kind = 'worker'"
            wait_for(
                lambda: self._alive() and one(self._connection, registered)[0] == self.workers,
                "its workers did not start",
            )
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for program in reversed(self._started):
            program.ask()
        for program in self._started:
            program.stop(STOPPING_SECONDS)
        self._connection.close()
        self._log.unlink(missing_ok=True)

    def wait_until_quiet(self) -> None:
        """Wait until everything that changed is refreshed, and the service has said so."""
        now = one(self._connection, "SELECT clock_timestamp()")[0]
        wait_for(lambda: self._alive() and bool(one(self._connection, QUIET, (now,))[0]), "it is never done")

    def used(self) -> Used:
        """Return what it has used until now."""
        loop = hands = 0.0
        [serve, *workers] = [psutil.Process(program.process.pid) for program in self._started]
        for process in [serve, *serve.children(recursive=True), *workers]:
            with suppress(psutil.NoSuchProcess):
                spent = cpu_ms(process)
                if "headwater.service" in process.cmdline():
                    own = cpu_ms(process, thread=process.pid)
                    loop += own
                    spent -= own
                hands += max(0.0, spent)
        ticks = one(self._connection, "SELECT coalesce(max(ticks), 0) FROM headwater.scheduler")[0]
        return Used(loop, hands, self._of_server(), ticks)

    def _of_server(self) -> float | None:
        host = conninfo_to_dict(self.dsn).get("host") or ""
        if host not in ("localhost", "127.0.0.1", "::1") and not str(host).startswith("/"):
            return None
        total = 0.0
        for (pid,) in self._connection.execute(OURS):
            try:
                total += cpu_ms(psutil.Process(pid))
            except psutil.NoSuchProcess:
                return None  # it is in a container, behind a port of this machine
        return total

    def _run(self, *arguments: str) -> None:
        settings = {f"HEADWATER_{name.upper()}": value for name, value in self.settings.items()}
        with self._log.open("ab") as log:
            program = [sys.executable, "-m", "headwater", *arguments, "--log-level", "warning"]
            environment = {**os.environ, "HEADWATER_DSN": self.dsn, **settings}
            self._started.append(Attached(program, environment, log))

    def _alive(self) -> bool:
        """Return True, or raise an error with the end of its log."""
        for program in self._started:
            if program.code is not None:
                detail = self._log.read_text(errors="replace")[-2000:]
                raise HeadwaterError(f"the service ended with code {program.code}", detail=detail)
        return True
