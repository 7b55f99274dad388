"""The jobs of a scheduler's own process, as others see them in `headwater.worker_jobs`.

They are recorded once in a while, all at once, and so is what waits for a thread. A job keeps its number when
it begins. So the record costs what comes and goes, not what waits.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from psycopg.types.json import Jsonb

from headwater.db.connection import Connection
from headwater.db.queries import query
from headwater.service.queue import ClaimedJob
from headwater.service.state import Place

NUMBERS = 64
"""Of jobs, drawn at once."""


@dataclass
class Job:
    """A unit that is being refreshed, or waits for a thread of this process or for an external worker."""

    id: int
    members: tuple[int, ...]
    queued_at: datetime  # since when the unit was ready
    waits_since: datetime | None  # the oldest change that it takes in was seen then
    assigned_at: datetime | None = None
    started: float = 0.0
    status: str = "RUNNING"
    finished_at: datetime | None = None
    engine: str | None = None
    error: str | None = None
    external: bool = False
    claim: ClaimedJob | None = None  # of an external job that is done here after all
    asked: float = 0.0  # when it was put up for external workers

    @property
    def is_under_way(self) -> bool:
        return self.status == "RUNNING" and self.finished_at is None

    @property
    def record(self) -> dict[str, object]:
        return {
            "id": self.id,
            "stream_table_id": self.members[-1],
            "members": list(self.members),
            "status": self.status,
            "engine": self.engine,
            "queued_at": self.queued_at.isoformat(),
            "assigned_at": self.assigned_at.isoformat() if self.assigned_at else None,
            "finished_at": self.finished_at.isoformat() if self.finished_at else None,
            "error": self.error,
        }


class Journal:
    """Numbers the jobs of one process and records them."""

    def __init__(self, connection: Connection, worker_id: uuid.UUID) -> None:
        self._connection = connection
        self._worker_id = worker_id
        self._numbers: list[int] = []
        self._jobs: dict[int, Job] = {}  # that are to be recorded
        self._queue: dict[tuple[int, ...], Job] = {}  # that were recorded, and wait

    def number_of(self, members: tuple[int, ...]) -> int:
        """Returns the number of a job that begins: the one that it waited with, or a new one."""
        queued = self._queue.pop(members, None)
        return queued.id if queued is not None else self._number()

    def add(self, job: Job) -> None:
        """Has a job recorded from now on until it has ended."""
        self._jobs[job.id] = job

    def write(self, backlog: Sequence[Place]) -> None:
        """Records the jobs as they are now, and those of the units that wait for a thread."""
        self._write_queue(backlog)
        if self._jobs:
            jobs = Jsonb([job.record for job in self._jobs.values()])
            values = {"jobs": jobs, "worker_id": self._worker_id, "pid": os.getpid()}
            self._connection.execute(query("service", "journal"), values)
        self._jobs = {number: job for number, job in self._jobs.items() if job.is_under_way}

    def _write_queue(self, backlog: Sequence[Place]) -> None:
        """Takes up what waits by now, and forgets what does so no more and was not begun."""
        waiting = {place.unit.members: place for place in backlog}
        gone = [self._queue.pop(members).id for members in self._queue.keys() - waiting.keys()]
        if gone:
            values = {"ids": gone, "worker_id": self._worker_id}
            self._connection.execute(query("service", "unqueue"), values)
        new = [members for members in waiting if members not in self._queue]
        for left, members in zip(range(len(new), 0, -1), new, strict=True):
            since = waiting[members].ready_since
            assert since is not None
            job = Job(self._number(left), members, since, None, status="QUEUED")
            self._queue[members] = self._jobs[job.id] = job

    def _number(self, wanted: int = 1) -> int:
        """Returns the number of another job, of which so many more are wanted at once."""
        if not self._numbers:
            rows = self._connection.execute(query("service", "numbers"), {"count": max(NUMBERS, wanted)})
            self._numbers = [row[0] for row in reversed(rows.fetchall())]
        return self._numbers.pop()
