"""What starting the program costs, in CPU time, against importing what it cannot do without.

A start at the prompt, in a script or in a health check is short, so elapsed time says more about the machine
than about the program. CPU time of user and system, averaged over many starts, is steadier. The baselines
take turns with the others, so that all of them find the machine in the same state.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from tempfile import TemporaryDirectory

from psycopg import sql

from headwater.api import Headwater
from headwater.errors import HeadwaterError

SCHEMA = "headwater_bench_start"

BARE, DRIVER = "import click", "import click, psycopg"
"""The baselines: nothing can start with less."""
STARTS = {
    ("--version",): BARE,
    ("--help",): BARE,
    ("create", "--help"): BARE,
    ("list",): DRIVER,
    ("status",): DRIVER,
    ("history",): DRIVER,
}
"""What is measured, and against which baseline."""


@dataclass(frozen=True)
class StartCost:
    """The cost of one way of starting the program."""

    arguments: str
    cpu_ms: float
    baseline: str
    baseline_cpu_ms: float

    @property
    def against_baseline(self) -> float:
        return self.cpu_ms / self.baseline_cpu_ms


def measure(hw: Headwater, dsn: str, *, repetitions: int, progress: Callable[[str], None]) -> list[StartCost]:
    """Start each this many times, in turns, in a database with one stream table."""
    connection = hw.connection
    drop = sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(SCHEMA))
    connection.execute(drop)
    connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(SCHEMA)))
    try:
        source = sql.SQL("CREATE TABLE {} AS SELECT 1 AS a").format(sql.Identifier(SCHEMA, "source"))
        connection.execute(source)
        hw.create(f"{SCHEMA}.sums", f"SELECT sum(a) FROM {SCHEMA}.source")
        found = _measured(dsn, repetitions, progress)
        hw.drop(f"{SCHEMA}.sums")
    finally:
        connection.execute(drop)
    return found


def _measured(dsn: str, repetitions: int, progress: Callable[[str], None]) -> list[StartCost]:
    commands: dict[tuple[str, ...], list[str]] = {
        (code,): [sys.executable, "-c", code] for code in (BARE, DRIVER)
    }
    commands |= {arguments: [sys.executable, "-m", "headwater", *arguments] for arguments in STARTS}
    used = dict.fromkeys(commands, 0.0)
    with TemporaryDirectory() as bytecode:
        # As after an installation: modules are compiled, whatever this environment says.
        environment = {**os.environ, "HEADWATER_DSN": dsn, "PYTHONPYCACHEPREFIX": bytecode}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for number in range(repetitions + 1):
            progress(f"starting each, {number} of {repetitions} times")
            for key, command in commands.items():
                cpu_ms = _cpu_ms(command, environment)
                if number:  # the first one finds nothing compiled
                    used[key] += cpu_ms / repetitions
    return [
        StartCost(" ".join(arguments), used[arguments], baseline, used[baseline,])
        for arguments, baseline in STARTS.items()
    ]


def _cpu_ms(command: list[str], environment: dict[str, str]) -> float:
    """Run a process; return its CPU time."""
    before = _children()
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise HeadwaterError(f"{' '.join(command)} fails, so that it cannot be measured", detail=done.stderr)
    return (_children() - before) * 1000


def _children() -> float:
    """Return the CPU seconds of all processes that this one has started and seen end."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
