"""Durations as users write them, and the time that phases take."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.clock import Phases, parse_duration
from headwater.errors import InvalidSetting

UNITS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1ms", 0.001),
        ("500ms", 0.5),
        ("1s", 1),
        ("1.5s", 1.5),
        ("5m", 300),
        ("5min", 300),
        ("0.5h", 1800),
        ("7d", 604800),
        (" 10 s ", 10),
        ("007s", 7),
    ],
)
def test_duration(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@given(st.integers(1, 10_000), st.sampled_from(sorted(UNITS)))
def test_a_number_and_a_unit(number: int, unit: str) -> None:
    assert parse_duration(f"{number}{unit}") == timedelta(seconds=number * UNITS[unit])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "s",
        "5 5s",
        "-1s",
        "+1s",
        "1e3s",
        "1,5s",
        "1.s",
        ".5s",
        "1S",
        "1 week",
        "1h30m",
        "1s; DROP",
        "∞s",
    ],
)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        parse_duration(text)
    assert refused.value.message == f"{text!r} is not a duration"
    assert "500ms" in refused.value.hint


@pytest.mark.parametrize("text", ["0s", "0.0d", "0.0000001ms"])
def test_no_time_at_all(text: str) -> None:
    with pytest.raises(InvalidSetting, match="is not longer than zero"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["9999999999d", "1" * 400 + "s"])
def test_a_duration_beyond_all_bounds(text: str) -> None:
    with pytest.raises(InvalidSetting):
        parse_duration(text)


def test_phases_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([100.0, 100.5, 101.0, 102.0, 102.25, 110.0])
    monkeypatch.setattr("headwater.clock.time.perf_counter", lambda: next(ticks))
    phases = Phases()
    with phases.measure("apply"):
        pass
    with phases.measure("apply"):
        pass
    assert phases.milliseconds == {"apply": 750.0}
    assert phases.elapsed == timedelta(seconds=10)


def test_a_phase_that_fails_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([0.0, 1.0, 1.002])
    monkeypatch.setattr("headwater.clock.time.perf_counter", lambda: next(ticks))
    phases = Phases()
    with pytest.raises(ZeroDivisionError), phases.measure("compute"):
        _ = 1 / 0
    assert phases.milliseconds == {"compute": 2.0}
