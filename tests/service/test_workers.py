"""External workers: whatever becomes of them, nothing is lost and nothing is applied twice."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from tests.integration.support import value
from tests.service.conftest import StartProcess, StartScheduler
from tests.service.support import eventually
from tests.service.test_scheduler import BY_REGION, ORDERS, WAITING, fresh

from headwater import Headwater
from headwater.db.connection import connect as open_connection
from headwater.db.connection import transaction
from headwater.errors import ClaimLost
from headwater.refresh.claim import check_claim, hold_claim
from headwater.service import queue
from headwater.service.queue import ClaimedJob, External, Membership

Connection = psycopg.Connection[Any]


@contextmanager
def held(dsn: str) -> Iterator[None]:
    """Has every refresh wait until the end, with its transaction open."""
    with psycopg.connect(dsn) as blocker:
        blocker.execute("SELECT FROM headwater.stream_table FOR UPDATE")
        yield


def work(hw: Headwater, conn: Connection) -> None:
    conn.execute(ORDERS)
    hw.create("by_region", BY_REGION, schedule="50ms")


def registered(conn: Connection) -> int:
    return int(value(conn, "SELECT count(*) FROM headwater.worker_registry WHERE kind = 'worker'"))


def completed_by_workers(conn: Connection) -> int:
    query = (
        "SELECT count(*) FROM headwater.worker_jobs j JOIN headwater.worker_registry w USING (worker_id)"
        " WHERE w.kind = 'worker' AND j.status = 'COMPLETED'"
    )
    return int(value(conn, query))


def test_workers_do_the_work(
    dsn: str, hw: Headwater, conn: Connection, schedule: StartScheduler, program: StartProcess
) -> None:
    work(hw, conn)
    workers = [program("worker", "--log-format", "json") for _ in range(2)]
    eventually(lambda: registered(conn) == 2)
    schedule()
    for number in range(5):
        conn.execute("INSERT INTO orders VALUES (%s, 'north', 5)", [number])
        eventually(lambda: fresh(hw, "by_region"))
    eventually(lambda: completed_by_workers(conn) >= 1)
    assert any(worker.events("refreshed") for worker in workers)
    assert [worker.stop() for worker in workers] == [0, 0]
    assert registered(conn) == 0
    conn.execute("INSERT INTO orders VALUES (10, 'north', 5)")
    eventually(lambda: fresh(hw, "by_region"))  # by the scheduler itself


def test_a_killed_worker_loses_nothing(
    dsn: str, hw: Headwater, conn: Connection, schedule: StartScheduler, program: StartProcess
) -> None:
    work(hw, conn)
    worker = program("worker", "--jobs", "2")
    eventually(lambda: registered(conn) == 1)
    schedule()
    with held(dsn):
        conn.execute("INSERT INTO orders VALUES (1, 'north', 5)")
        eventually(lambda: value(conn, WAITING) == 1)
        os.kill(worker.pid, signal.SIGKILL)
        eventually(lambda: value(conn, "SELECT max(attempt) FROM headwater.worker_jobs") == 2)
    eventually(lambda: fresh(hw, "by_region"))
    assert value(conn, "SELECT n FROM by_region") == 1


def test_a_worker_that_stops_on_request_finishes_its_job(
    dsn: str, hw: Headwater, conn: Connection, schedule: StartScheduler, program: StartProcess
) -> None:
    work(hw, conn)
    worker = program("worker")
    eventually(lambda: registered(conn) == 1)
    schedule()
    with held(dsn):
        conn.execute("INSERT INTO orders VALUES (1, 'north', 5)")
        eventually(lambda: value(conn, WAITING) == 1)
        worker.popen.send_signal(signal.SIGTERM)
        draining = "SELECT count(*) FROM headwater.worker_registry WHERE status = 'draining'"
        eventually(lambda: value(conn, draining) == 1)
    assert worker.popen.wait(60) == 0
    assert fresh(hw, "by_region")
    assert value(conn, "SELECT array_agg(DISTINCT attempt) FROM headwater.worker_jobs") == [1]


def test_a_paused_worker_cannot_commit(
    dsn: str,
    hw: Headwater,
    conn: Connection,
    schedule: StartScheduler,
    program: StartProcess,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Stopped past its timeout and then continued, it finds its job given to another."""
    monkeypatch.setattr(queue, "TIMEOUT", "3s")
    work(hw, conn)
    worker = program("worker", "--log-format", "json")
    eventually(lambda: registered(conn) == 1)
    schedule()
    with held(dsn):
        conn.execute("INSERT INTO orders VALUES (1, 'north', 5)")
        eventually(lambda: value(conn, WAITING) == 1)
        os.kill(worker.pid, signal.SIGSTOP)
        eventually(lambda: value(conn, "SELECT max(attempt) FROM headwater.worker_jobs") == 2)
    eventually(lambda: fresh(hw, "by_region"))
    os.kill(worker.pid, signal.SIGCONT)
    eventually(lambda: worker.events("failed"))
    assert value(conn, "SELECT n FROM by_region") == 1
    conn.execute("INSERT INTO orders VALUES (2, 'north', 5)")
    eventually(lambda: fresh(hw, "by_region"))


def test_operators_see_workers_and_their_jobs_by_the_names_they_know(dsn: str, conn: Connection) -> None:
    with open_connection(dsn) as connection:
        membership = Membership(connection, "worker", 2, {"engines": ["postgres"]})
        External(connection).enqueue([7])
        job = membership.claim(None)
        assert job is not None
        registered = (
            "SELECT hostname, pid, status, last_heartbeat >= started_at FROM headwater.worker_registry"
        )
        assert conn.execute(registered).fetchone() == (socket.gethostname(), os.getpid(), "active", True)
        assigned = (
            "SELECT stream_table_id, worker_id, assigned_at >= queued_at, heartbeat_at >= assigned_at"
            " FROM headwater.worker_jobs"
        )
        assert conn.execute(assigned).fetchone() == (7, membership.worker_id, True, True)
        membership.beat([job.id], draining=True)
        assert value(conn, "SELECT status FROM headwater.worker_registry") == "draining"


def test_a_job_that_nobody_claims_is_done_in_process(
    dsn: str, hw: Headwater, conn: Connection, schedule: StartScheduler
) -> None:
    """A worker that is registered, connected, and never claims anything."""
    work(hw, conn)
    with open_connection(dsn) as connection:
        Membership(connection, "worker", 4, {})
        schedule()
        conn.execute("INSERT INTO orders VALUES (1, 'north', 5)")
        eventually(lambda: fresh(hw, "by_region"))
        done = "SELECT count(*) FROM headwater.worker_jobs WHERE status = 'COMPLETED'"
        eventually(lambda: value(conn, done) == 1)


@pytest.fixture
def claimed(dsn: str) -> Iterator[tuple[Membership, External, ClaimedJob]]:
    with open_connection(dsn) as mine, open_connection(dsn) as theirs:
        membership, external = Membership(mine, "worker", 1, {}), External(theirs)
        external.enqueue([7])
        job = membership.claim(None)
        assert job is not None
        yield membership, external, job


Claimed = tuple[Membership, External, ClaimedJob]


def test_heartbeats_do_not_disturb_a_commit(dsn: str, claimed: Claimed) -> None:
    membership, _, job = claimed
    with open_connection(dsn) as refresh, transaction(refresh, repeatable_read=True):
        hold_claim(refresh, job)
        membership.beat([job.id])
        membership.beat([job.id])
        check_claim(refresh, job)


def test_a_job_that_was_taken_back_cannot_commit(dsn: str, claimed: Claimed) -> None:
    membership, external, job = claimed
    with open_connection(dsn) as refresh, transaction(refresh, repeatable_read=True, rollback=True):
        hold_claim(refresh, job)
        membership.leave()
        assert external.take_back([job.id]) == [job.id]
        with pytest.raises(ClaimLost):
            check_claim(refresh, job)


def test_a_job_that_commits_just_now_is_not_taken_back(dsn: str, claimed: Claimed) -> None:
    membership, external, job = claimed
    with open_connection(dsn) as refresh, transaction(refresh, repeatable_read=True):
        hold_claim(refresh, job)
        check_claim(refresh, job)
        membership.leave()
        assert external.take_back([job.id]) == []


def test_two_attempts_do_not_work_at_once(dsn: str, claimed: Claimed) -> None:
    _, _, job = claimed
    with open_connection(dsn) as first, open_connection(dsn) as second:
        with transaction(first, repeatable_read=True):
            hold_claim(first, job)
            with pytest.raises(ClaimLost), transaction(second, repeatable_read=True):
                hold_claim(second, job)
        with transaction(second, repeatable_read=True):
            hold_claim(second, job)


def test_the_attempt_of_a_lost_server_row_cannot_commit(
    dsn: str, claimed: Claimed, conn: Connection, connect: Callable[..., Headwater]
) -> None:
    """Jobs are not logged: after a crash their rows are gone."""
    _, _, job = claimed
    with open_connection(dsn) as refresh, transaction(refresh, repeatable_read=True, rollback=True):
        hold_claim(refresh, job)
        conn.execute("TRUNCATE headwater.worker_jobs")
        with pytest.raises(ClaimLost):
            check_claim(refresh, job)
