"""A real cluster on this machine: a standalone master and its workers, each a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

HOST = "127.0.0.1"

# The program, with a watcher that ends it when the pipe from the tests ends, however they end.
_LAUNCHER = """
exec 3<&0
( { read -r _ <&3 || kill -KILL $$; } >/dev/null 2>&1 & )
exec 3<&-
exec "$@" </dev/null
"""


@dataclass
class Cluster:
    """A running cluster."""

    url: str
    directory: Path
    monitor: str
    master: subprocess.Popen[bytes]
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @cached_property
    def spark_conf(self) -> str:
        """What the setting spark_conf needs for small executors with this Python.

        Worked out once: the options change when a class cache comes to be meanwhile.
        """
        options = f"spark.executor.extraJavaOptions='{' '.join(_java_options())}'"
        return f"spark.pyspark.python={sys.executable} spark.executor.memory=512m {options}"

    def state(self) -> dict[str, object]:
        """What the master says about itself."""
        with urllib.request.urlopen(f"{self.monitor}/json/", timeout=10) as answer:
            found = json.load(answer)
        assert isinstance(found, dict)
        return found

    def executors(self, worker: int) -> list[int]:
        """The process ids of a worker's executors."""
        parent = self.workers[worker].pid
        listed = subprocess.run(
            ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(parent)],
            capture_output=True,
            text=True,
            check=False,
        )
        lines = [line.split(None, 1) for line in listed.stdout.splitlines()]
        return [int(pid) for pid, arguments in lines if "CoarseGrainedExecutorBackend" in arguments]


@contextlib.contextmanager
def standalone(
    workers: int = 2, cores: int = 1, memory: str = "1g", hosts: Sequence[str] = (HOST,)
) -> Iterator[Cluster]:
    """A master with that many workers, all bound to the loopback; stopped and removed at the end.

    Several addresses of the loopback make them look like several machines.
    """
    directory = Path(tempfile.mkdtemp(prefix="headwater-cluster-"))
    started: list[subprocess.Popen[bytes]] = []
    try:
        port, monitor = _free_port(), _free_port()
        url = f"spark://{HOST}:{port}"
        ports = ["--port", str(port), "--webui-port", str(monitor)]
        master = _start(directory, "master.Master", "--host", HOST, *ports)
        started.append(master)
        cluster = Cluster(url, directory, f"http://{HOST}:{monitor}", master)
        _wait(cluster, lambda: bool(cluster.state()))
        for number in range(workers):
            limits = ["--cores", str(cores), "--memory", memory, "--webui-port", "0"]
            host = hosts[number % len(hosts)]
            place = ["--host", host, "--work-dir", str(directory / f"worker-{number}")]
            started.append(_start(directory, "worker.Worker", *place, *limits, url))
            cluster.workers.append(started[-1])
        _wait(cluster, lambda: cluster.state()["aliveworkers"] == workers)
        yield cluster
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdin is not None
            process.stdin.close()
        shutil.rmtree(directory, ignore_errors=True)


def _start(directory: Path, name: str, *arguments: str) -> subprocess.Popen[bytes]:
    from headwater.engine.spark.runtime import java
    from headwater.engine.spark.runtime.jvm import SPARK_HOME

    environment = {
        **os.environ,
        "JAVA_HOME": str(java.find().home),
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": HOST,
        "SPARK_DAEMON_JAVA_OPTS": " ".join(_java_options()),
        "SPARK_DAEMON_MEMORY": "256m",
    }
    program = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
    with (directory / "log").open("ab") as log:
        return subprocess.Popen(
            ["sh", "-c", _LAUNCHER, "sh", *program],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=environment,
            cwd=directory,
            start_new_session=True,
        )


def _java_options() -> list[str]:
    """Those that let Java start faster."""
    from headwater.engine.spark.runtime import java
    from headwater.engine.spark.runtime.jvm import SPARK_HOME

    cache = java.aot_cache(java.find(), SPARK_HOME)
    used = [f"-XX:AOTCache={cache}", "-Xlog:disable"] if cache is not None and cache.exists() else []
    return ["-XX:+UseParallelGC", *used]


def _wait(cluster: Cluster, ready: Callable[[], bool], seconds: float = 60) -> None:
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up:
        with contextlib.suppress(OSError):
            if ready():
                return
        if any(process.poll() is not None for process in (cluster.master, *cluster.workers)):
            break
        time.sleep(0.1)
    log = (cluster.directory / "log").read_text(errors="replace")
    raise RuntimeError(f"the cluster does not start:\n{log[-4000:]}")


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        return int(taken.getsockname()[1])
