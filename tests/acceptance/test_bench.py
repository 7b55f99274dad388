"""The measurements as people run them, small: what they print, not how fast it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import headwater
from headwater.bench import capture

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
        assert item["phases"]["compute"] > 0
        at_once = item["engine"] == "postgres" and item["changed_rows"] == 1
        assert ("apply" in item["phases"]) != at_once  # then it is computed and applied by one statement
    assert all(item["against_postgres"] == 1 for item in measured if item["engine"] == "postgres")
    assert "<svg" in picture.read_text()


def test_what_capture_costs(tmp_path: Path) -> None:
    picture = tmp_path / "capture.svg"
    found = bench(
        "capture", "--rows", "500", "--bulk", "100", "--repetitions", "1", "--seconds", "1",
        "--plot", str(picture),
    )  # fmt: skip
    assert found["figure"] == "capture"
    assert found["tpcb_by"] in ("pgbench", "clients of this process")
    kinds = ("1 row with its commit", "1 row in a longer transaction", "rows at once")
    assert [(item["kind"], item["event"], item["stream_tables"]) for item in found["statements"]] == [
        (kind, event, number)
        for kind in kinds
        for event in ("insert", "update", "delete")
        for number in (0, 1, 5)
    ]
    assert [item["rows"] for item in found["statements"]] == [1] * 18 + [100] * 9
    assert [item["stream_tables"] for item in found["tpcb"]] == [0, 1, 5]
    assert all(item["against_bare"] > 0 for item in found["statements"] + found["tpcb"])
    assert "<svg" in picture.read_text()


def test_small_refreshes_against_a_merge_by_hand() -> None:
    found = bench("refresh", "--changes", "3")
    assert found["figure"] == "refresh"
    measured = {item["case"]: item for item in found["measurements"]}
    assert list(measured) == [
        "filter", "join", "aggregate over a join", "distinct", "chain of 10", "chain of 50",
    ]  # fmt: skip
    for item in measured.values():
        assert item["p50_ratio"] == pytest.approx(item["p50_ms"] / item["hand_p50_ms"])
        assert item["spent"]["round_trips"] == 1, "a chain, too, is one message"
        assert item["spent"]["client_cpu_ms"] > 0


def test_tpcb_without_pgbench(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "_pgbench", lambda _: None)
    with headwater.connect(dsn) as hw:
        found = capture.measure(hw, dsn, rows=10, bulk=5, repetitions=1, seconds=0.1)
        assert hw.list() == []
    assert found.tpcb_by == "clients of this process"
    assert [item.stream_tables for item in found.tpcb] == [0, 1, 5]
    assert all(item.tps > 0 for item in found.tpcb)


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


def test_the_service(tmp_path: Path) -> None:
    picture = tmp_path / "service.png"
    found = bench("service", "--short", "--plot", str(picture))
    assert found["figure"] == "service"
    scale, latency, workers = found["scale"], found["latency"], found["workers"]
    assert [(item["stream_tables"], item["changed"]) for item in scale["rounds"]] == [
        (5, 0), (5, 1), (10, 0), (10, 2),
    ]  # fmt: skip
    # The first five were made for the workers.
    assert [(item["stream_tables"], item["created"]) for item in scale["creations"]] == [(5, 0), (10, 5)]
    assert (scale["equal"], scale["different"]) == (10, 0)
    assert {item["graph"]: item["transactions"] for item in latency["graphs"]} == {
        "chain of 2": 1,
        "chain of 2, each link by itself": 2,
        "2 layers of 2": 4,
        "diamond": 1,
    }
    assert [(item["way"], item["samples"]) for item in latency["visible"]] == [
        ("the service", 3),
        ("by hand", 3),
    ]
    assert all(0 < item["p50_ms"] <= item["p99_ms"] for item in latency["visible"])
    assert latency["equal"]
    assert [(run["kind"], run["workers"]) for run in workers["runs"]] == [("in-process", 2), ("external", 2)]
    for run in workers["runs"]:
        assert [second["second"] for second in run["seconds"]] == list(range(len(run["seconds"])))
        assert any(second["utilisation"] > 0 for second in run["seconds"])
        assert all(0 <= second["utilisation"] <= 1 for second in run["seconds"])
    assert (workers["equal"], workers["different"]) == (5, 0)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_sizes_that_cannot_be_read() -> None:
    for wrong in ("many", "5,0"):
        done = subprocess.run(
            [sys.executable, "-m", "headwater", "bench", "service", "--workers", wrong],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2
        assert wrong in done.stderr
