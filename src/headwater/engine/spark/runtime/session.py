"""One Spark per process: started on first use, started again after its JVM died, ended with the process.

Each thread gets a Spark session of its own (its settings and temporary views), all in the one JVM. jvm.py
says how that starts and ends, connect.py what differs with Spark Connect. In a program that has a Spark of
its own, that one is used and never stopped, with sessions of ours beside the program's.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any, cast

import pyspark
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark import SparkContext
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from headwater.config import Settings
from headwater.engine.spark.runtime import aot, java
from headwater.engine.spark.runtime.cluster import check_executors
from headwater.engine.spark.runtime.connect import connect, disconnected, is_connect, is_of_a_lost_server
from headwater.engine.spark.runtime.jvm import SPARK_HOME, Jvm, forget
from headwater.engine.spark.runtime.master import EXACT, Wanted, check_reachable
from headwater.engine.spark.runtime.workload import warm_up
from headwater.errors import EngineUnavailable

__all__ = [
    "Runtime",
    "is_connect",
    "is_dead",
    "runtime",
]

Progress = Callable[[str], None]

_log = logging.getLogger("headwater.spark")


class Runtime:
    """Spark in this process; see `runtime`."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._started: Wanted | None = None
        self._root: SparkSession | None = None
        self._jvm: Jvm | None = None
        self._lost = False
        self._generation = 0
        self._own = threading.local()

    def session(self, settings: Settings, progress: Progress | None = None) -> SparkSession:
        """Return this thread's session; start Spark if it does not run."""
        wanted = Wanted.of(settings)
        with self._lock:
            if self._root is not None and not self._alive():
                _log.info("Spark is gone; starting it again")
                self._discard()
            if self._root is None:
                self._start(wanted, progress or (lambda _: None))
            elif self._started != wanted:
                assert self._started is not None
                raise EngineUnavailable(
                    f"Spark already runs in this process with other settings (master {self._started.master})",
                    hint="use the same spark_master, spark_conf and spark_ui, or another process",
                )
            assert self._root is not None
            if getattr(self._own, "generation", None) != self._generation:
                is_main = threading.current_thread() is threading.main_thread()
                # A Connect session is already a session of its own, and several threads may use it.
                shared = is_main or is_connect(self._root)
                self._own.session = self._root if shared else _beside(self._root)
                self._own.generation = self._generation
            return cast(SparkSession, self._own.session)

    def start_in_background(self, settings: Settings) -> None:
        """Start Spark and warm it up, in a thread; a failure is logged and raised again by `session`."""

        def start() -> None:
            try:
                warm_up(self.session(settings, _log.info))
            except Exception as error:
                _log.warning("Spark did not start in the background: %s", error)

        threading.Thread(target=start, name="headwater-spark-start", daemon=True).start()

    def running(self) -> bool:
        """Tell whether Spark is started and alive; starts nothing."""
        # Without the lock, which a start holds for seconds; the attribute that is set last says that the rest
        # is set.
        return self._started is not None and self._alive()

    @property
    def ui_address(self) -> str | None:
        """The address of Spark's web pages, if they are on and Spark runs here."""
        root = self._root
        if root is None or is_connect(root) or not self.running():
            return None
        return root.sparkContext.uiWebUrl

    @property
    def pid(self) -> int | None:
        """The process id of the JVM, if there is one."""
        jvm = self._jvm
        return jvm.process.pid if jvm is not None and jvm.alive() else None

    def stop(self) -> None:
        """End Spark and remove its files; harmless when it does not run."""
        with self._lock:
            self._discard()

    def lost_with(self, errors: list[BaseException]) -> bool:
        """Tell whether these errors come from the end of the JVM or server; see `is_dead`."""
        root, jvm = self._root, self._jvm
        if root is not None and is_connect(root):
            # Only the errors tell: nothing here ends with a server elsewhere.
            self._lost = self._lost or any(is_of_a_lost_server(each) for each in errors)
            return self._lost
        if jvm is None or not any(isinstance(each, (Py4JError, OSError, EOFError)) for each in errors):
            return False
        # A connection breaks a moment before the process is gone.
        with contextlib.suppress(subprocess.TimeoutExpired):
            jvm.process.wait(1)
        return not self.running()

    def abandon(self) -> None:
        """Forget the JVM in a forked child: it belongs to the parent, with everything that could reach it."""
        _inherited.append((self._root, self._jvm, self._own, SparkContext._active_spark_context))
        if self._jvm is not None:
            self._jvm.let_go()
        if self._root is not None:
            forget()
        self.__init__()  # type: ignore[misc]

    def _alive(self) -> bool:
        root, jvm = self._root, self._jvm
        if root is None:
            return False
        if is_connect(root):
            return not self._lost and not cast(Any, root).is_stopped
        if jvm is not None and not jvm.alive():
            return False
        try:
            return not root.sparkContext._jsc.sc().isStopped()
        except (Py4JError, AttributeError, OSError):
            return False

    def _start(self, wanted: Wanted, progress: Progress) -> None:
        begun = time.monotonic()
        # PySpark prints the errors of queries that it also raises.
        for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
            PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
        if not wanted.connect and SparkContext._active_spark_context is not None:
            progress("using the Spark that this program has started")
            self._root = _beside(SparkSession(SparkContext._active_spark_context))
        elif wanted.connect:
            progress(f"connecting to Spark at {wanted.master}")
            self._root = connect(wanted)
        else:
            chosen = java.find()
            where = "" if wanted.local else f", master {wanted.master}"
            progress(f"starting Spark {pyspark.__version__} on {chosen}{where}")
            check_reachable(wanted.master)
            self._root = self._start_jvm(chosen, wanted)
        if wanted.connect or not str(self._root.sparkContext.master).startswith("local"):
            try:
                check_executors(self._root)
            except BaseException:
                self._discard()
                raise
        self._started = wanted
        self._generation += 1
        progress(f"Spark is ready in {time.monotonic() - begun:.1f} s")

    def _start_jvm(self, chosen: java.Java, wanted: Wanted) -> SparkSession:
        cache = java.aot_cache(chosen, SPARK_HOME)
        if cache is None:
            return self._started_jvm(Jvm(chosen, wanted))
        if not cache.exists():
            session = self._started_jvm(Jvm(chosen, wanted))
            aot.train_in_background(cache)
            return session
        with contextlib.suppress(OSError):
            os.utime(cache)  # a cache that is no longer used is removed some day
        jvm = Jvm(chosen, wanted, aot=f"-XX:AOTCache={cache}")
        try:
            return self._started_jvm(jvm)
        except EngineUnavailable:
            if jvm.connected:
                raise
            session = self._started_jvm(Jvm(chosen, wanted))
        _log.warning("Spark starts only without its cache of classes, which is removed: %s", cache)
        cache.unlink(missing_ok=True)
        return session

    def _started_jvm(self, jvm: Jvm) -> SparkSession:
        self._jvm = jvm
        try:
            return jvm.session()
        except BaseException:
            self._discard()
            raise

    def _discard(self) -> None:
        root, jvm = self._root, self._jvm
        self._root = self._jvm = self._started = None
        self._lost = False
        self._generation += 1
        if root is not None and is_connect(root):
            with contextlib.suppress(Exception):
                root.stop()
            disconnected()
        if jvm is not None:
            jvm.stop()


_inherited: list[object] = []
"""What a forked child keeps but never uses: disposing of it would talk to the parent's JVM."""

_runtime = Runtime()
atexit.register(_runtime.stop)
os.register_at_fork(after_in_child=_runtime.abandon)


def runtime() -> Runtime:
    """Return the Spark of this process."""
    return _runtime


def _beside(session: SparkSession) -> SparkSession:
    """Return another session in the same Spark."""
    new = session.newSession()
    # It has the settings that Spark was started with, not those of the session it comes from.
    for name, value in EXACT.items():
        new.conf.set(name, value)
    return new


def is_dead(error: BaseException) -> bool:
    """Tell whether an error means that Spark went away while working; the next `session` restarts it."""
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain:
        chain.append(link)
        link = link.__cause__ or link.__context__
    if any(isinstance(each, Py4JNetworkError) for each in chain):
        return True
    return _runtime.lost_with(chain)
