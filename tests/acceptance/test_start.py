"""What a run of the program against a real server loads, and that its start can be measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence

import pytest

import headwater

PARSER = {"postgast", "google.protobuf"}
SPARK = {"pyspark", "py4j", "pyarrow", "pandas", "adbc_driver_manager", "adbc_driver_postgresql"}


def imported(arguments: Sequence[str], dsn: str) -> set[str]:
    """Every module that one run of the program imports."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "headwater", *arguments],
        env={**os.environ, "HEADWATER_DSN": dsn},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in lines}


@pytest.fixture
def revenue(dsn: str) -> str:
    with headwater.connect(dsn) as hw:
        hw.init()
        hw.connection.execute("CREATE TABLE public.sales AS SELECT 'north' AS region, 3 AS amount")
        hw.create("revenue", "SELECT region, sum(amount) FROM public.sales GROUP BY region")
    return dsn


@pytest.mark.parametrize(
    "arguments",
    [
        "list",
        "status",
        "status revenue",
        "history",
        "audits",
        "settings",
        "set lock_attempts 3",
        "init",
        "drain",
    ],
)
def test_what_looks_loads_the_driver_alone(revenue: str, arguments: str) -> None:
    found = imported(arguments.split(), revenue)
    assert "psycopg" in found
    assert not found & (PARSER | SPARK)


@pytest.mark.parametrize("arguments", ["refresh revenue", "verify revenue", "explain revenue"])
def test_a_refresh_in_the_database_loads_no_spark(revenue: str, arguments: str) -> None:
    found = imported(arguments.split(), revenue)
    assert found >= PARSER
    assert not found & SPARK


def test_starts_are_measured_against_their_baselines(dsn: str) -> None:
    command = [sys.executable, "-m", "headwater", "bench", "start", "--repetitions", "1", "--dsn", dsn]
    done = subprocess.run([*command, "--format", "json"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)["measurements"]
    assert {item["arguments"]: item["baseline"] for item in measured} == {
        "--version": "import click",
        "--help": "import click",
        "create --help": "import click",
        "list": "import click, psycopg",
        "status": "import click, psycopg",
        "history": "import click, psycopg",
    }
    for item in measured:
        assert item["against_baseline"] == pytest.approx(item["cpu_ms"] / item["baseline_cpu_ms"])
    with headwater.connect(dsn) as hw:
        assert hw.list() == []
