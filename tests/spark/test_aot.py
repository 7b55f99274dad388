"""The training run for Java's cache of classes, but for Java itself."""

from __future__ import annotations

import fcntl
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from headwater.engine.spark.runtime import aot


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "aot" / "java-25.aot"


def test_a_complete_cache_is_put_in_place(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def record(target: Path) -> None:
        assert not cache.exists()
        target.write_text("classes")
        target.with_name(f"{target.name}.config").write_text("recorded")

    monkeypatch.setattr(aot, "_run_and_record", record)
    assert aot.train(cache)
    assert cache.read_text() == "classes"
    assert {path.name for path in cache.parent.iterdir()} == {cache.name, "lock"}

    def unexpected(_: Path) -> None:
        raise AssertionError("it is there already")

    monkeypatch.setattr(aot, "_run_and_record", unexpected)
    assert aot.train(cache)


def test_a_run_that_fails_is_not_repeated_soon(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []

    def fail(target: Path) -> None:
        target.write_text("half")
        raise OSError("no space left on device")

    monkeypatch.setattr(aot, "_run_and_record", fail)
    monkeypatch.setattr(subprocess, "run", lambda *arguments, **_: started.append(arguments))
    aot.train_in_background(cache)
    assert len(started) == 1
    assert not aot.train(cache)
    assert {path.name for path in cache.parent.iterdir()} == {"java-25.failed", "lock"}
    aot.train_in_background(cache)
    assert len(started) == 1
    yesterday = time.time() - 25 * 3600
    os.utime(cache.with_suffix(".failed"), (yesterday, yesterday))
    aot.train_in_background(cache)
    assert len(started) == 2


def test_a_run_that_writes_nothing_has_failed(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aot, "_run_and_record", lambda _: None)
    assert not aot.train(cache)
    assert not cache.exists()


def test_one_run_at_a_time(cache: Path) -> None:
    cache.parent.mkdir()
    with (cache.parent / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert not aot.train(cache)
    assert not cache.with_suffix(".failed").exists()


def test_caches_that_nobody_uses_are_removed(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.parent.mkdir()
    unused, used = (cache.with_name(f"{name}.aot") for name in ("unused", "used"))
    for path in (unused, used):
        path.touch()
    long_ago = time.time() - 60 * 24 * 3600
    os.utime(unused, (long_ago, long_ago))
    monkeypatch.setattr(aot, "_run_and_record", lambda target: target.touch())
    assert aot.train(cache)
    assert (used.exists(), unused.exists()) == (True, False)
