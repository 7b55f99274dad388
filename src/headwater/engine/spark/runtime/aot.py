"""The training run for Java's cache of classes: once per machine, in a process of its own with low priority.

It is started after the first Spark without a cache, and may outlive the process that started it: otherwise a
command that ends after a few seconds would never get a cache. It waits until that Spark has had its time,
ends by itself within minutes, and only one runs at a time. The cache is renamed into place when it is
complete. A run that fails leaves a mark that prevents another for a day.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_log = logging.getLogger("headwater.spark")
_DELAY_SECONDS = 20
_LIMIT_SECONDS = 600
_RETRY_SECONDS = 24 * 3600
_UNUSED_SECONDS = 30 * 24 * 3600


def train_in_background(cache: Path) -> None:
    """Start a training run unless one failed lately; the run itself checks whether another is running."""
    with contextlib.suppress(OSError):
        if time.time() - _mark(cache).stat().st_mtime < _RETRY_SECONDS:
            return
    _log.info("preparing faster starts of Spark in the background, once")
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        # The shell exits at once, so that nobody has to wait for what it started.
        subprocess.run(
            [
                "sh",
                "-c",
                '"$@" &',
                "sh",
                sys.executable,
                "-P",
                "-m",
                __name__,
                str(cache),
                str(_DELAY_SECONDS),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            timeout=60,
            check=False,
        )


def train(cache: Path, delay: float = 0) -> bool:
    """Make the cache unless it exists or another process is making it; return whether it exists then."""
    cache.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _alone(cache.parent / "lock") as alone:
        if not alone:
            return False
        time.sleep(delay)
        if cache.exists():
            return True
        unfinished = cache.with_suffix(f".{os.getpid()}.new")
        try:
            _run_and_record(unfinished)
            unfinished.rename(cache)
        except Exception as error:
            _log.info("no cache of classes: %s", error)
            _mark(cache).touch()
            return False
        finally:
            # Java keeps its recording beside the cache until it has made the cache.
            for left in cache.parent.glob(f"{unfinished.name}*"):
                left.unlink(missing_ok=True)
        _mark(cache).unlink(missing_ok=True)
        for other in cache.parent.glob("*.aot"):
            if other != cache and time.time() - other.stat().st_mtime > _UNUSED_SECONDS:
                other.unlink(missing_ok=True)
        return True


def _run_and_record(target: Path) -> None:
    from headwater.config import Settings
    from headwater.engine.spark.runtime import java
    from headwater.engine.spark.runtime.jvm import Jvm
    from headwater.engine.spark.runtime.master import Wanted
    from headwater.engine.spark.runtime.workload import exercise

    settings = Settings(spark_master="local[2]", spark_conf="spark.driver.memory=1g")
    jvm = Jvm(java.find(), Wanted.of(settings), aot=f"-XX:AOTCacheOutput={target}")
    try:
        exercise(jvm.session())
    finally:
        # Java writes the cache while it shuts down.
        jvm.stop(_LIMIT_SECONDS)


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[bool]:
    """Tell whether no other process is in here."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(lock)


def _mark(cache: Path) -> Path:
    return cache.with_suffix(".failed")


if __name__ == "__main__":
    os.nice(19)
    signal.alarm(_LIMIT_SECONDS)
    sys.exit(0 if train(Path(sys.argv[1]), float(sys.argv[2])) else 1)
