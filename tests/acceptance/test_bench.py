"""The measurements as people run them, small: what they print, not how fast it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow


def bench(*arguments: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "headwater", "bench", *arguments, "--format", "json"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HEADWATER_SPARK_AOT": "off"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


def test_deltas_on_both_engines(tmp_path: Path) -> None:
    picture = tmp_path / "delta.svg"
    found = bench(
        "delta", "--rows", "500", "--changes", "1", "--changes", "100", "--changes", "1000",
        "--repetitions", "1", "--plot", str(picture),
    )  # fmt: skip
    assert found["figure"] == "delta"
    measured = found["measurements"]
    # As many rows as there are not cannot change.
    assert [(item["engine"], item["changed_rows"]) for item in measured] == [
        ("postgres", 1), ("spark", 1), ("postgres", 100), ("spark", 100),
    ]  # fmt: skip
    for item in measured:
        assert item["table_rows"] == 500
        assert 0 < item["database_ms"] <= item["elapsed_ms"]
        assert item["against_full"] > 0
        assert item["phases"]["apply"] > 0
    assert all(item["against_postgres"] == 1 for item in measured if item["engine"] == "postgres")
    assert "<svg" in picture.read_text()


def test_tpch(tmp_path: Path) -> None:
    picture = tmp_path / "tpch.svg"
    found = bench(
        "tpch", "--scale", "0.001", "--change", "1", "--change", "0.1", "--queries", "6", "--queries", "1",
        "--queries", "11", "--repetitions", "1", "--plot", str(picture),
    )  # fmt: skip
    assert (found["figure"], found["scale"]) == ("tpch", 0.001)
    measured = found["measurements"]
    assert [(item["query"], item["percent"]) for item in measured] == [
        (query, percent) for query in (1, 6, 11) for percent in (0.1, 1)
    ]
    for item in measured:
        assert item["equal"]
        assert (
            item["action"]
            in {"differential": ("delta", "nothing"), "full": ("recompute", "nothing")}[item["mode"]]
        )
        assert min(item["refresh_ms"], item["full_ms"], item["view_ms"]) > 0
    assert {item["percent"] for item in found["means"]} == {0.1, 1}
    assert "<svg" in picture.read_text()


@pytest.mark.parametrize("direction", ["read", "write"])
def test_transfers(tmp_path: Path, direction: str) -> None:
    picture = tmp_path / "transfer.svg"
    jar = os.environ.get("HEADWATER_JDBC_JAR") or "/usr/share/java/postgresql.jar"
    with_jdbc = Path(jar).exists()
    found = bench(
        direction, "--rows", "300", "--tasks", "2", "--tasks", "1", "--repetitions", "1",
        "--plot", str(picture), *(["--spark-conf", f"spark.jars={jar}"] if with_jdbc else []),
    )  # fmt: skip
    assert found["figure"] == direction
    ways = ["bare COPY", "ADBC"] if direction == "read" else ["bare COPY", "tasks, ADBC"]
    if with_jdbc:
        ways += ["JDBC, binary", "JDBC, defaults"] if direction == "read" else ["JDBC, defaults"]
    measured = found["measurements"]
    assert [(item["tasks"], item["way"]) for item in measured] == [(n, way) for n in (1, 2) for way in ways]
    for item in measured:
        assert item["rows"] == 300
        assert item["rows_per_second"] > 0
        assert (item["against_jdbc"] is None) == (not with_jdbc)
        assert (item["against_copy"] == 1) == (item["way"] == "bare COPY")
    assert bool(found["notes"]) == (not with_jdbc)
    assert "<svg" in picture.read_text()
