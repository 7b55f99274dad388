"""Jobs as workers on other machines see them: rows that are claimed, kept alive by heartbeats, and fenced.

A worker claims a job over a connection that does nothing else, computes and applies in one transaction over
another, and beats over the first one meanwhile. If it is not heard of for 30 s, or its connection is gone,
the scheduler takes the job back and raises its attempt number. Whoever still works on the old attempt may
finish computing, but finds the number changed when it wants to commit (I4). The number is part of a key, so
that the transaction can lock it against such a change without minding heartbeats, which change the same row.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

import psycopg
from psycopg.types.json import Jsonb

from headwater.db.connection import Connection, one
from headwater.db.queries import query
from headwater.errors import ClaimLost
from headwater.version import version

BEAT_SECONDS = 5.0
TIMEOUT = "30s"
"""After so long without a beat a worker counts as dead."""
CHANNEL = "headwater_jobs"
"""On which workers are told of jobs."""
ENDED_CHANNEL = "headwater_job_ended"
"""On which the scheduler is told of what became of them."""

Kind = Literal["scheduler", "worker"]


@dataclass(frozen=True)
class ClaimedJob:
    """A job and the attempt at it; a `Claim` for its refresh."""

    id: int
    attempt: int
    members: tuple[int, ...]
    worker_id: uuid.UUID

    @property
    def hold_sql(self) -> str:
        """Takes the lock of each member until the transaction ends, however it ends."""
        return f"SELECT headwater.hold_claim('{{{','.join(map(str, self.members))}}}')"

    @property
    def check_sql(self) -> str:
        """Locks the attempt number as it is, if it still is."""
        return f"SELECT headwater.check_claim({self.id}, {self.attempt}, '{self.worker_id}')"

    def lost(self, error: psycopg.Error) -> ClaimLost:
        return ClaimLost(
            f"job {self.id}: {error.diag.message_primary}",
            hint="an earlier attempt has not ended, or this worker was not heard of for too long;"
            " it is tried again",
        )


class Membership:
    """A worker's place in the registry, over a connection that does nothing but claim and beat."""

    def __init__(
        self, connection: Connection, kind: Kind, capacity: int, capabilities: Mapping[str, object]
    ) -> None:
        self.worker_id = uuid.uuid4()
        self._connection = connection
        self._values = {
            "worker_id": self.worker_id,
            "kind": kind,
            "hostname": socket.gethostname(),
            "pid": os.getpid(),
            "capacity": capacity,
            "capabilities": Jsonb({"version": version(), **capabilities}),
        }
        self._register()

    def rejoin(self, connection: Connection) -> None:
        """Goes on over another connection, as when the first one broke."""
        self._connection = connection
        self._register()

    def _register(self) -> None:
        self._connection.execute(query("service", "register"), self._values)

    def beat(self, jobs: Collection[int], *, draining: bool = False) -> None:
        """Says that the worker and these jobs of it are alive."""
        values = {
            "worker_id": self.worker_id,
            "jobs": list(jobs),
            "status": "draining" if draining else "active",
        }
        if self._connection.execute(query("service", "beat"), values).rowcount == 0:
            self._register()  # it was taken for dead, or the server lost what is not logged

    def claim(self, backend_pid: int | None, job: int | None = None) -> ClaimedJob | None:
        """A job that nobody has, or this one if nobody has it."""
        values = {
            "worker_id": self.worker_id,
            "pid": os.getpid(),
            "backend_pid": backend_pid,
            "job": job,
        }
        row = self._connection.execute(query("service", "claim"), values).fetchone()
        return ClaimedJob(row[0], row[1], tuple(row[2]), self.worker_id) if row is not None else None

    def finish(
        self, job: ClaimedJob, engines: Collection[str], error: str | None, failed_member: int | None
    ) -> None:
        """Says what became of a job, unless it was taken back."""
        values = {
            "id": job.id,
            "attempt": job.attempt,
            "worker_id": self.worker_id,
            "status": "COMPLETED" if error is None else "FAILED",
            "engine": ", ".join(sorted(engines)) or None,
            "error": error,
            "failed_member": failed_member,
        }
        self._connection.execute(query("service", "finish"), values | {"channel": ENDED_CHANNEL})

    def leave(self) -> None:
        self._connection.execute(query("service", "deregister"), {"worker_id": self.worker_id})


@dataclass(frozen=True)
class Ended:
    """A job that an external worker has finished."""

    id: int
    error: str | None
    failed_member: int | None  # by whose fault, if that counts for suspending it
    took: timedelta


class External:
    """External workers, as the scheduler sees them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def capacity(self) -> tuple[int, int]:
        """Return how many jobs they take at once, and how many more they could take now."""
        self._connection.execute(query("service", "bury"), {"timeout": TIMEOUT})
        capacity, busy = one(self._connection, query("service", "capacity"))
        return int(capacity), max(0, int(capacity) - int(busy))

    def enqueue(self, members: Sequence[int]) -> int:
        values = {"last": members[-1], "members": list(members)}
        return int(one(self._connection, query("service", "enqueue"), values)[0])

    def announce(self) -> None:
        """Wakes workers that wait for a job."""
        self._connection.execute("SELECT pg_notify(%s, '')", (CHANNEL,))

    def ended(self, jobs: Collection[int]) -> list[Ended]:
        rows = self._connection.execute(query("service", "finished"), {"ids": list(jobs)})
        return [Ended(*row) for row in rows]

    def take_back(self, jobs: Collection[int]) -> list[int]:
        """Takes jobs of dead workers back; which these were."""
        values = {"ids": list(jobs), "timeout": TIMEOUT}
        return [row[0] for row in self._connection.execute(query("service", "take_back"), values)]

    def withdraw(self, jobs: Collection[int]) -> set[int]:
        """Removes those of these jobs that nobody has claimed."""
        rows = self._connection.execute(query("service", "withdraw"), {"ids": list(jobs)})
        return {row[0] for row in rows}

    def clear(self) -> None:
        """Removes what earlier schedulers left."""
        self._connection.execute(query("service", "abandoned"))
        self._connection.execute(query("service", "forget_jobs"))
