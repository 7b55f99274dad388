"""Fixtures of the service's tests: a handle, schedulers in threads, services and workers as processes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest
from tests.service.support import QUICK, Process

from headwater import Headwater
from headwater.service.scheduler import Scheduler


@pytest.fixture
def hw(dsn: str, connect: Callable[[str], Headwater]) -> Iterator[Headwater]:
    """A superuser's handle to the test's database, in which the catalog is installed."""
    with connect(dsn) as handle:
        yield handle


class StartScheduler(Protocol):
    def __call__(self, **settings: str) -> Scheduler: ...


@pytest.fixture
def schedule(dsn: str) -> Iterator[StartScheduler]:
    """Starts schedulers of the test's database in threads, which must end well."""
    started: list[tuple[Scheduler, threading.Thread]] = []
    failures: list[BaseException] = []

    def start(**settings: str) -> Scheduler:
        scheduler = Scheduler(dsn, QUICK | settings)

        def run() -> None:
            try:
                scheduler.run()
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        started.append((scheduler, thread))
        return scheduler

    yield start
    for scheduler, thread in started:
        scheduler.stop()
        thread.join(60)
        assert not thread.is_alive()
    if failures:
        raise failures[0]


class StartProcess(Protocol):
    def __call__(self, *arguments: str, dsn: str | None = None, **settings: str) -> Process: ...


@pytest.fixture
def program(dsn: str) -> Iterator[StartProcess]:
    """Starts the program as a process, which is stopped after the test."""
    started: list[Process] = []
    given = dsn

    def start(*arguments: str, dsn: str | None = None, **settings: str) -> Process:
        log = Path(tempfile.mkstemp(suffix=".log")[1])
        environment = {
            **os.environ,
            "HEADWATER_DSN": dsn or given,
            **{f"HEADWATER_{name.upper()}": value for name, value in (QUICK | settings).items()},
        }
        with log.open("w") as output:
            popen = subprocess.Popen(
                [sys.executable, "-m", "headwater", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )
        process = Process(popen, log)
        started.append(process)
        return process

    yield start
    for process in started:
        process.end()
