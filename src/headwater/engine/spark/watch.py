"""Watching what Spark, or the database, does for one refresh.

While Spark works, the refresh's transaction waits and holds its snapshot. It must not wait in vain, nor for
ever. A thread watches the action, and ends it when
- somebody cancels the refresh (`headwater cancel`), or it takes longer than spark_timeout;
- the backend of the refresh is gone, so that nothing could be applied;
- the connection that proves the job alive is gone, so that others may remove its tables.
If Spark does not end the action when told to, its JVM is killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, Protocol

from pyspark.sql import SparkSession

from headwater.catalog import jobs
from headwater.engine.spark.runtime import session
from headwater.errors import HeadwaterError

WATCH_SECONDS = 0.1
SHOWN_AFTER = 0.5
"""Seconds after which other processes see a refresh on Spark; a shorter one is over before they look."""
GRACE_SECONDS = 30.0
"""Seconds after which a Spark that was told to end an action, and did not, is killed."""


class Watched(Protocol):
    """The refresh that an action belongs to."""

    @property
    def label(self) -> str:
        """The name of its stream table."""

    @property
    def deadline(self) -> float:
        """The time, on the monotonic clock, at which spark_timeout is over."""

    @property
    def session(self) -> SparkSession: ...

    @property
    def job(self) -> jobs.Job:
        """The job by which other processes see the refresh."""

    def read_so_far(self) -> tuple[int | None, int | None]:
        """Return the rows and bytes that Spark has read."""

    def too_long(self) -> HeadwaterError:
        """Return the error of a refresh that took longer than spark_timeout."""

    def reason_to_end(self) -> HeadwaterError | None:
        """Return why the refresh cannot go on or was cancelled, or None."""


class Watch:
    """Watches one action from a thread of its own, and ends it when it must end; a context manager.

    `end` ends the action. `verdict` says afterwards why it was ended, if it was.
    """

    def __init__(self, watched: Watched, phase: str, end: Callable[[], None]) -> None:
        self._watched = watched
        self._phase = phase
        self._end = end
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headwater-spark-watch", daemon=True)
        self.verdict: HeadwaterError | None = None

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:  # such as Ctrl-C: the action goes on without us unless it is ended
            with contextlib.suppress(Exception):
                self._end()
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        begun = time.monotonic()
        while not self._done.wait(WATCH_SECONDS):
            if self.verdict is None:
                judged = self._judge(time.monotonic() - begun)
                if judged is not None:  # the timer's thread may have set a verdict meanwhile
                    self.verdict = judged
            if self.verdict is not None:
                # Repeatedly: the action may not have started yet when it is ended first.
                with contextlib.suppress(Exception):
                    self._end()

    def _judge(self, elapsed: float) -> HeadwaterError | None:
        watched = self._watched
        if time.monotonic() > watched.deadline:
            return watched.too_long()
        if elapsed < SHOWN_AFTER:
            return None
        try:
            job = watched.job
        except Exception:  # no connection is free: the refresh goes on, and others cannot see it
            return None
        try:
            job.report(self._phase, **self._figures())
            return watched.reason_to_end()
        except HeadwaterError as error:
            return error

    def _figures(self) -> dict[str, Any]:
        return {}


class SparkWatch(Watch):
    """Watches an action of Spark, reports its progress, and kills the JVM if it does not end when told to."""

    def __init__(self, watched: Watched, phase: str) -> None:
        super().__init__(watched, phase, self._cancel)
        self._tag = f"headwater-{uuid.uuid4().hex}"
        self._guard: threading.Timer | None = None

    def __enter__(self) -> None:
        spark = self._watched.session
        if session.is_connect(spark):
            spark.addTag(self._tag)
        else:
            label = f"headwater: {self._watched.label}"
            spark.sparkContext.setJobGroup(self._tag, label, interruptOnCancel=True)
        super().__enter__()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        super().__exit__(kind, error, trace)
        if self._guard is not None:
            self._guard.cancel()
        spark = self._watched.session
        with contextlib.suppress(Exception):
            if session.is_connect(spark):
                spark.removeTag(self._tag)
            else:
                spark.sparkContext._jsc.clearJobGroup()

    def _judge(self, elapsed: float) -> HeadwaterError | None:
        if self._guard is None and elapsed >= SHOWN_AFTER:
            # Set the timer before asking Spark anything: it may not answer.
            self._kill_after(self._watched.deadline - time.monotonic() + GRACE_SECONDS)
        verdict = super()._judge(elapsed)
        if verdict is not None:
            self._kill_after(GRACE_SECONDS)
        return verdict

    def _kill_after(self, seconds: float) -> None:
        if self._guard is not None:
            self._guard.cancel()
        self._guard = threading.Timer(max(0.0, seconds), self._kill)
        self._guard.daemon = True
        self._guard.start()

    def _kill(self) -> None:
        self.verdict = self.verdict or self._watched.too_long()
        pid = session.runtime().pid
        if pid is not None and not self._done.is_set():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _figures(self) -> dict[str, Any]:
        try:
            tasks, done, stage = self._counts()
        except Exception:  # the action itself fails for the same reason, and reports it
            return {}
        rows, size = self._watched.read_so_far()
        return {"tasks": tasks, "tasks_done": done, "stage": stage, "rows": rows, "bytes": size}

    def _counts(self) -> tuple[int | None, int | None, str | None]:
        spark = self._watched.session
        if session.is_connect(spark):
            return None, None, None
        tracker = spark.sparkContext.statusTracker()
        tasks = done = 0
        names = []
        for number in tracker.getJobIdsForGroup(self._tag):
            found = tracker.getJobInfo(number)
            for stage_id in found.stageIds if found is not None else ():
                stage = tracker.getStageInfo(stage_id)
                if stage is not None:
                    tasks += stage.numTasks
                    done += stage.numCompletedTasks
                    if stage.numActiveTasks:
                        names.append(f"{stage.stageId}: {stage.name}")
        return tasks or None, done, "; ".join(names) or None

    def _cancel(self) -> None:
        spark = self._watched.session
        if session.is_connect(spark):
            spark.interruptTag(self._tag)
        else:
            spark.sparkContext.cancelJobGroup(self._tag)
