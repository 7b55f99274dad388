"""The threads that refresh: who gets which task, and how long a session lasts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest

from headwater import Headwater
from headwater.config import Settings
from headwater.db.route import Route
from headwater.definition.reader import Definitions
from headwater.engine.select import EngineSelector
from headwater.refresh import fast_path
from headwater.refresh.fast_path import REASON
from headwater.service import executor
from headwater.service.executor import Done, Executor, Task, ThreadWorker

SETTINGS = Settings()
SECONDS = 30


class Gate:
    """Holds each task until it is let go, and writes down in which order they began."""

    def __init__(self) -> None:
        self.began: list[int] = []
        self.done: list[int] = []
        self._changed = threading.Condition()
        self._free: set[int] = set()

    def do(self, worker: ThreadWorker, task: Task) -> Done:
        [number] = task.members
        with self._changed:
            self.began.append(number)
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: number in self._free, SECONDS)
        worker.known[task.members] = 0.0
        return Done(task)

    def finished(self, done: Done) -> None:
        with self._changed:
            self.done += done.task.members
            self._changed.notify_all()

    def let_go(self, number: int) -> None:
        with self._changed:
            self._free.add(number)
            self._changed.notify_all()

    def wait(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, SECONDS)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    gate = Gate()
    monkeypatch.setattr(ThreadWorker, "do", lambda worker, task: gate.do(worker, task))
    return gate


@pytest.fixture
def threads(gate: Gate) -> Iterator[Executor]:
    threads = Executor(Route("dbname=nobody"), gate.finished)
    yield threads
    for number in range(100):
        gate.let_go(number)
    while threads.busy:
        time.sleep(0.01)
    threads.close()


def task(number: int) -> Task:
    return Task((number,), SETTINGS)


def test_whoever_is_done_first_goes_on(threads: Executor, gate: Gate) -> None:
    """One that takes long holds up nothing but itself."""
    threads.start(task(1))
    threads.start(task(2))
    threads.offer([task(3), task(4)])
    gate.let_go(2)
    gate.let_go(3)
    gate.wait(lambda: gate.began[-1:] == [4] and 3 in gate.done)
    assert threads.busy == 2
    assert threads.withdraw() == [task(3), task(4)]
    gate.let_go(4)
    gate.wait(lambda: 4 in gate.done)
    assert 1 not in gate.done
    gate.let_go(1)
    gate.wait(lambda: 1 in gate.done)
    assert threads.busy == 0


def test_what_nobody_has_taken_can_be_withdrawn(threads: Executor, gate: Gate) -> None:
    threads.start(task(1))
    threads.offer([task(2)])
    assert threads.withdraw() == []
    gate.let_go(1)
    gate.wait(lambda: 1 in gate.done)
    assert gate.began == [1]
    assert threads.busy == 0


def test_a_thread_gets_again_what_it_had(threads: Executor, gate: Gate) -> None:
    threads.start(task(1))
    gate.let_go(1)
    gate.wait(lambda: 1 in gate.done)
    threads.start(task(2))
    threads.offer([task(3), task(1)])
    gate.let_go(2)
    gate.wait(lambda: len(gate.began) >= 4)
    assert gate.began[:4] == [1, 2, 1, 3]


def test_a_session_ends_with_its_plans(
    dsn: str, hw: Headwater, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (executor, fast_path):
        monkeypatch.setattr(module, "MOST_CALLED", 2)
    conn.execute("CREATE TABLE t (id int)")
    ids = [hw.create(f"st{number}", "SELECT id FROM t").id for number in range(3)]
    route = Route(dsn)
    worker = ThreadWorker(route, Definitions(), EngineSelector(route))
    backends = []
    for number in (*ids, ids[2], ids[0]):
        conn.execute("INSERT INTO t VALUES (1)")
        done = worker.do(Task((number,), SETTINGS))
        assert done.failure is None
        assert [outcome.engine_reason for outcome in done.outcomes] == [REASON]
        backends.append(worker.backend_pid)
    worker.close()
    assert backends[0] == backends[1] != backends[2] == backends[3] == backends[4]
