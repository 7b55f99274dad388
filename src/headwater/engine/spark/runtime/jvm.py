"""The JVM of a Spark driver: how it is started and configured, and how it ends.

It is a child of this process. It reads from a pipe that this process holds, and ends when the pipe ends:
however this process dies, no JVM stays behind. Its output goes to the logger `headwater.spark`: Spark's
errors as errors, everything else as debugging output, so nothing of it reaches standard output.

Its files are in a scratch directory that this process holds by a lock. A directory that nobody holds any
more, because its process was killed, is removed by the next start.
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import logging
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import pyspark
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession, SQLContext

from headwater.config import spark_options
from headwater.engine.spark.runtime import java
from headwater.engine.spark.runtime.master import EXACT, Wanted, first_line, is_loopback
from headwater.errors import EngineUnavailable

SPARK_HOME = Path(pyspark.__file__).parent

_log = logging.getLogger("headwater.spark")
_START_SECONDS = 180.0
_LINES_KEPT = 60
_SCRATCH_PREFIX = "headwater-spark-"

# Task failures reach the caller as an exception; in the log they would be reported twice.
_LOG4J = """status = off
appender.err.type = Console
appender.err.name = err
appender.err.target = SYSTEM_ERR
appender.err.layout.type = PatternLayout
appender.err.layout.pattern = %p %c{1}: %m%n%ex
rootLogger.level = error
rootLogger.appenderRef.err.ref = err
logger.executor.name = org.apache.spark.executor.Executor
logger.executor.level = off
logger.tasks.name = org.apache.spark.scheduler.TaskSetManager
logger.tasks.level = off
logger.utils.name = org.apache.spark.util.Utils
logger.utils.level = off
"""


class Jvm:
    """The JVM of a Spark driver, its connection and its scratch directory."""

    def __init__(self, chosen: java.Java, wanted: Wanted, *, aot: str | None = None) -> None:
        self.connected = False
        self._wanted = wanted
        self._aot = aot
        self._options = spark_options(wanted.conf)
        self._scratch, self._held = _scratch_directory()
        try:
            self.process, self._output = self._launch(chosen)
        except OSError as error:
            self._remove_scratch()
            raise EngineUnavailable(
                f"Spark cannot be started: {error}",
                hint="Spark's scripts need bash; engine postgres needs no Spark",
            ) from error
        except BaseException:
            self._remove_scratch()
            raise

    def alive(self) -> bool:
        return self.process.poll() is None

    def session(self) -> SparkSession:
        """Return the session of this JVM, when it is ready."""
        try:
            port, secret = self._connection()
            interrupt = signal.getsignal(signal.SIGINT)
            try:
                # A program may have had a Spark of its own and stopped it; its JVM is not ours to use.
                forget()
                SparkContext._ensure_initialized(gateway=_gateway(port, secret))
                self.connected = True
                builder = SparkSession.builder.appName("headwater").master(self._wanted.master)
                session = builder.getOrCreate()
            finally:
                # Spark's own handler would replace that of the program it is embedded in.
                if threading.current_thread() is threading.main_thread() and interrupt is not None:
                    signal.signal(signal.SIGINT, interrupt)
            session.sparkContext.pythonExec = self._python()
            # It would print a traceback when the JVM dies.
            server: Any = session.sparkContext._accumulatorServer
            server.handle_error = _log_failed_request
        except (OSError, Py4JError, PySparkException, ValueError) as error:
            raise self._failure(error) from error
        return session

    def stop(self, seconds: float = 10.0) -> None:
        """End the JVM, by force after some seconds, and make PySpark forget it."""
        if self.connected:
            session = SparkSession._instantiatedSession
            if self.alive() and session is not None:
                with contextlib.suppress(Exception):
                    session.stop()
            _disconnect()
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._output.close()
        self._remove_scratch()

    def let_go(self) -> None:
        """Close, in a forked child, its copies of what ties the JVM to its parent."""
        # Replaced rather than closed: their objects will close the descriptors once more.
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None and not stream.closed:
                os.dup2(nothing, stream.fileno(), inheritable=False)
        os.dup2(nothing, self._held, inheritable=False)
        os.close(nothing)

    def _launch(self, chosen: java.Java) -> tuple[subprocess.Popen[bytes], _Output]:
        command: list[str | Path] = [SPARK_HOME / "bin" / "spark-submit"]
        for name, value in self._conf().items():
            command += ["--conf", f"{name}={value}"]
        command.append("pyspark-shell")
        environment = {
            **{name: value for name, value in os.environ.items() if name not in _NOT_INHERITED},
            "JAVA_HOME": str(chosen.home),
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_CONNECT_MODE": "0",
            "PYSPARK_PYTHON": self._python(),
            "_PYSPARK_DRIVER_CONN_INFO_PATH": str(self._connection_file),
        }
        process = subprocess.Popen(
            command,
            env=environment,
            # When this pipe ends, the JVM ends.
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # An interrupt at the terminal is ours to handle.
            start_new_session=True,
        )
        assert process.stdout is not None
        return process, _Output(process.stdout)

    def _conf(self) -> dict[str, str]:
        """Merge our settings, the user's over them, and over all those on which results depend."""
        given = self._options
        ours = {
            "spark.master": self._wanted.master,
            "spark.app.name": "headwater",
            "spark.driver.memory": _driver_memory(),
            "spark.ui.enabled": "true" if self._wanted.ui == "on" else "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.log.level": "ERROR",
            "spark.sql.execution.arrow.pyspark.enabled": "true",
            "spark.sql.execution.arrow.pyspark.fallback.enabled": "false",
            "spark.sql.catalogImplementation": "in-memory",
            "spark.sql.warehouse.dir": (self._scratch / "warehouse").as_uri(),
            "spark.local.dir": str(self._scratch),
        }
        if self._wanted.local or is_loopback(self._wanted.master):
            # With the default interface, a start can take 20 s.
            ours |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        if not self._wanted.local:
            # A directory of this machine means nothing to executors elsewhere.
            del ours["spark.local.dir"]
        return {**ours, **given, **EXACT, "spark.driver.extraJavaOptions": self._java_options(given)}

    def _java_options(self, given: Mapping[str, str]) -> str:
        users = given.get("spark.driver.extraJavaOptions", "")
        ours = [
            f"-Djava.io.tmpdir={self._scratch}",
            f"-XX:ErrorFile={self._scratch}/crash.log",
            "-XX:-CreateCoredumpOnCrash",
        ]
        if self._aot is not None:
            # Java would complain on standard output about a cache that does not fit.
            ours += [self._aot, "-Xlog:disable", "-Xlog:all=error:stderr"]
        if not re.search(r"-XX:\+Use\w+GC\b", users):
            ours.append("-XX:+UseParallelGC")
        configured = os.environ.get("SPARK_CONF_DIR")
        if not (configured and (Path(configured) / "log4j2.properties").exists()) and "log4j" not in users:
            path = self._scratch / "log4j2.properties"
            path.write_text(_LOG4J, encoding="utf-8")
            ours.append(f"-Dlog4j2.configurationFile={path.as_uri()}")
        return " ".join([*(f'"{each}"' if " " in each else each for each in ours), users]).strip()

    def _python(self) -> str:
        """Return the Python of the executors: in local mode this one."""
        if self._wanted.local:
            return sys.executable
        return self._options.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON") or "python3"

    @property
    def _connection_file(self) -> Path:
        return self._scratch / "connection"

    def _connection(self) -> tuple[int, str]:
        """Return the port and secret that the JVM writes once it listens; it renames the complete file."""
        give_up = time.monotonic() + _START_SECONDS
        while not self._connection_file.exists():
            if not self.alive():
                raise self._failure(None)
            if time.monotonic() > give_up:
                raise self._failure(TimeoutError(f"no answer within {_START_SECONDS:.0f} s"))
            time.sleep(0.02)
        content = self._connection_file.read_bytes()
        port, size = struct.unpack(">ii", content[:8])
        return port, content[8 : 8 + size].decode()

    def _failure(self, error: Exception | None) -> EngineUnavailable:
        if not self.alive():
            self._output.join()
        said = self._output.last()
        return EngineUnavailable(
            f"Spark does not start with master {self._wanted.master}"
            + (f": {first_line(error)}" if error is not None else ""),
            detail="\n".join(said),
            hint="check spark_master, spark_conf and JAVA_HOME; engine postgres needs no Spark",
        )

    def _remove_scratch(self) -> None:
        shutil.rmtree(self._scratch, ignore_errors=True)
        os.close(self._held)


# Variables of another Spark, or that would make PySpark connect to another JVM.
_NOT_INHERITED = frozenset(
    "SPARK_HOME SPARK_REMOTE SPARK_CONNECT_MODE_ENABLED SPARK_LOCAL_REMOTE PYSPARK_SUBMIT_ARGS"
    " PYSPARK_GATEWAY_PORT PYSPARK_GATEWAY_SECRET PYSPARK_DRIVER_PYTHON SPARK_ENV_LOADED".split()
)


class _Output:
    """The output of a JVM: goes into the log, and the last lines are kept for an error."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._lines: collections.deque[str] = collections.deque(maxlen=_LINES_KEPT)
        self._thread = threading.Thread(target=self._drain, name="headwater-spark-output", daemon=True)
        self._thread.start()

    def last(self) -> list[str]:
        return [line for line in list(self._lines) if line and not line.startswith("WARNING:")][-15:]

    def join(self) -> None:
        self._thread.join(2)

    def close(self) -> None:
        self.join()
        # A process that the JVM started may still hold the other end; nobody needs its output.
        if not self._thread.is_alive():
            self._stream.close()

    def _drain(self) -> None:
        with contextlib.suppress(ValueError, OSError):
            for raw in self._stream:
                line = raw.decode(errors="replace").rstrip()
                self._lines.append(line)
                _log.log(logging.ERROR if line.startswith("ERROR ") else logging.DEBUG, "%s", line)


def _log_failed_request(request: object, address: object) -> None:
    _log.debug("a connection from Spark at %s broke", address, exc_info=True)


def _gateway(port: int, secret: str) -> Any:
    """Return PySpark's connection to a running JVM, which PySpark looks for in the environment."""
    given = {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
    os.environ.update(given)
    try:
        return launch_gateway()  # type: ignore[no-untyped-call]
    finally:
        for name in given:
            os.environ.pop(name, None)


def _disconnect() -> None:
    """End PySpark's side of a JVM that has ended or is about to."""
    context, gateway = SparkContext._active_spark_context, SparkContext._gateway
    server = getattr(context, "_accumulatorServer", None)
    if server is not None:
        with contextlib.suppress(Exception):
            server.shutdown()
            server.server_close()
    if gateway is not None:
        with contextlib.suppress(Exception):
            gateway.shutdown()
    forget()


def forget() -> None:
    """Make PySpark believe that it never had a JVM."""
    SparkContext._active_spark_context = SparkContext._gateway = SparkContext._jvm = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None
    SQLContext._instantiatedContext = None


def _scratch_directory() -> tuple[Path, int]:
    """Return a locked directory for the files of one JVM; remove those that nobody holds any more."""
    parent = Path(tempfile.gettempdir())
    for old in parent.glob(f"{_SCRATCH_PREFIX}*"):
        with contextlib.suppress(OSError):
            if old.stat().st_uid != os.getuid():
                continue
            held = os.open(old, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(old, ignore_errors=True)
            finally:
                os.close(held)
    made = Path(tempfile.mkdtemp(prefix=_SCRATCH_PREFIX, dir=parent))
    held = os.open(made, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return made, held


def _driver_memory() -> str:
    """Return a quarter of the memory that this process may use, at least 1 and at most 4 GB."""
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):
        available = min(available, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return f"{min(4096, max(1024, available // 4 // 2**20))}m"
