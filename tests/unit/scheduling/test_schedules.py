from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from headwater.errors import InvalidSetting
from headwater.scheduling.schedules import (
    Calculated,
    Cron,
    Every,
    Schedule,
    effective,
    next_due,
    normalized,
    parse_schedule,
    typical_interval,
)

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
BERLIN = "Europe/Berlin"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, Calculated()),
        ("calculated", Calculated()),
        (" CALCULATED ", Calculated()),
        ("10ms", Every(timedelta(milliseconds=10))),
        (" 1.5 s ", Every(timedelta(milliseconds=1500))),
        ("3650d", Every(3650 * DAY)),
        ("*/5 * * * *", Cron("*/5 * * * *", BERLIN)),
        (" 0  3 * * Mon-Fri ", Cron("0 3 * * Mon-Fri", BERLIN)),
        ("*/10 * * * * *", Cron("*/10 * * * * *", BERLIN)),
        ("0 0 29 2 *", Cron("0 0 29 2 *", BERLIN)),
        ("0 0 l * *", Cron("0 0 l * *", BERLIN)),
    ],
)
def test_what_a_schedule_can_be(text: str | None, expected: Schedule) -> None:
    assert parse_schedule(text, BERLIN) == expected


@pytest.mark.parametrize(
    ("text", "reason", "remedy"),
    [
        ("", "'' is not a duration", "calculated"),
        ("often", "'often' is not a duration", "cron expression"),
        ("0s", "not longer than zero", "duration"),
        ("9.9ms", "shorter than 10ms", "at least 10ms"),
        ("3651d", "longer than ten years", "at most 3650d"),
        ("99999999999999d", "too long", "duration"),
        ("@hourly", "'@hourly' is not a cron expression: wrong number of fields", "minute, hour"),
        ("* * * *", "wrong number of fields", "minute, hour"),
        ("* * * * * * *", "wrong number of fields", "minute, hour"),
        ("60 * * * *", "bad minute", "minute, hour"),
        ("* 24 * * *", "bad hour", "minute, hour"),
        ("* * 0 * *", "bad day-of-month", "minute, hour"),
        ("* * 31 2 *", "bad day-of-month", "minute, hour"),
        ("* * * 13 *", "bad month", "minute, hour"),
        ("* * * * 8", "bad day-of-week", "minute, hour"),
        ("*/0 * * * *", "bad minute", "minute, hour"),
        ("5-1 * * * *", "bad minute", "minute, hour"),
        ("61 * * * * *", "bad second", "minute, hour"),
        ("0 0 */20 * 1L", "never fires", "such a day"),
    ],
)
def test_what_it_cannot_be(text: str, reason: str, remedy: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        parse_schedule(text, "UTC")
    assert reason in caught.value.message
    assert remedy in caught.value.hint


@pytest.mark.parametrize("zone", ["<+02>-02", "Middle/Earth", "../UTC", ""])
def test_a_time_zone_that_only_the_server_knows_is_no_use_for_cron(zone: str) -> None:
    with pytest.raises(InvalidSetting, match="which only the server knows") as caught:
        parse_schedule("0 3 * * *", zone)
    assert "IANA" in caught.value.hint
    assert parse_schedule("1s", zone) == Every(timedelta(seconds=1))


@pytest.mark.parametrize(
    ("schedule", "text"),
    [
        (Every(timedelta(milliseconds=10)), "10ms"),
        (Every(timedelta(milliseconds=10.5)), "10.5ms"),
        (Every(timedelta(milliseconds=1500)), "1500ms"),
        (Every(timedelta(seconds=90)), "90s"),
        (Every(timedelta(seconds=60)), "1m"),
        (Every(90 * MINUTE), "90m"),
        (Every(24 * HOUR), "1d"),
        (Cron("*/5 * * * *", BERLIN), "*/5 * * * *"),
        (Calculated(), "calculated"),
    ],
)
def test_as_users_write_it(schedule: Schedule, text: str) -> None:
    assert str(schedule) == text
    assert parse_schedule(text, BERLIN) == schedule


@pytest.mark.parametrize(
    ("text", "stored"),
    [(" 60s ", "60s"), ("Calculated", "calculated"), (" 0  3 * * MON", "0 3 * * MON")],
)
def test_what_is_stored(text: str, stored: str) -> None:
    assert normalized(text, "UTC") == stored


@pytest.mark.parametrize(
    ("expression", "interval"),
    [
        ("* * * * *", MINUTE),
        ("*/5 * * * *", 5 * MINUTE),
        ("*/10 * * * * *", timedelta(seconds=10)),
        ("0 * * * *", HOUR),
        ("0 3 * * *", DAY),
        ("0 0,1 * * *", HOUR),
        ("0 9-17 * * 1-5", HOUR),
        ("0 0 * * 1", 7 * DAY),
        ("0 0 1 * *", 28 * DAY),
    ],
)
def test_the_interval_of_a_cron_expression_is_its_smallest_gap(expression: str, interval: timedelta) -> None:
    # Where clocks are changed too: the hour that comes twice makes no schedule tighter.
    assert typical_interval(Cron(expression, BERLIN)) == interval


SECOND, FIVE, NIGHTLY = Every(timedelta(seconds=1)), Cron("*/5 * * * *", "UTC"), Cron("0 3 * * *", "UTC")
A, B, C, D = 1, 2, 3, 4


@pytest.mark.parametrize(
    ("schedules", "readers", "expected"),
    [
        pytest.param({A: SECOND}, {}, {A: SECOND}, id="its own"),
        pytest.param({A: Calculated()}, {}, {A: None}, id="nobody reads it"),
        pytest.param({A: Calculated(), B: SECOND}, {A: [B]}, {A: SECOND}, id="its reader's"),
        pytest.param({A: Calculated(), B: FIVE, C: SECOND}, {A: [B, C]}, {A: SECOND}, id="the tightest"),
        pytest.param({A: Calculated(), B: FIVE, C: NIGHTLY}, {A: [B, C]}, {A: FIVE}, id="the tightest cron"),
        pytest.param(
            {A: Calculated(), B: Every(5 * MINUTE), C: FIVE}, {A: [C, B]}, {A: Every(5 * MINUTE)}, id="a tie"
        ),
        pytest.param(
            {A: Calculated(), B: Calculated(), C: FIVE},
            {A: [B], B: [C]},
            {A: FIVE, B: FIVE},
            id="through others",
        ),
        pytest.param(
            {A: Calculated(), B: NIGHTLY, C: SECOND},
            {A: [B], B: [C]},
            {A: NIGHTLY, B: NIGHTLY},
            id="not through one that has its own",
        ),
        pytest.param(
            {A: Calculated(), B: Calculated(), C: Calculated(), D: SECOND},
            {A: [B, C], B: [D], C: []},
            {A: SECOND, B: SECOND, C: None},
            id="a reader that nobody reads",
        ),
        pytest.param({A: NIGHTLY, B: SECOND}, {A: [B]}, {A: NIGHTLY}, id="its own, whoever reads it"),
        pytest.param({A: Calculated(), B: SECOND}, {A: [B], 99: [B]}, {A: SECOND}, id="unknown ones"),
        pytest.param(
            {A: Calculated(), B: Calculated()}, {A: [B], B: [A]}, {A: None, B: None}, id="a cycle ends"
        ),
    ],
)
def test_calculated_follows_the_tightest_reader(
    schedules: dict[int, Schedule],
    readers: dict[int, list[int]],
    expected: dict[int, Every | Cron | None],
) -> None:
    found = effective(schedules, readers)
    assert found.keys() == schedules.keys()
    assert {key: found[key] for key in expected} == expected


def test_a_long_chain_of_calculated_ones() -> None:
    schedules: dict[int, Schedule] = {key: Calculated() for key in range(5000)}
    schedules[5000] = SECOND
    found = effective(schedules, {key: [key + 1] for key in range(5000)})
    assert set(found.values()) == {SECOND}


LAST = datetime(2026, 5, 4, 12, 0, 30, 500_000, tzinfo=UTC)


@pytest.mark.parametrize(
    ("schedule", "factor", "after"),
    [
        (SECOND, 1.0, timedelta(seconds=1)),
        (SECOND, 2.0, timedelta(seconds=2)),
        (SECOND, 10.0, timedelta(seconds=10)),
        (SECOND, 1.25, timedelta(seconds=1.25)),
    ],
)
def test_a_duration_is_due_after_it(schedule: Every, factor: float, after: timedelta) -> None:
    assert next_due(schedule, LAST, factor) == LAST + after


@pytest.mark.parametrize(
    ("expression", "last", "factor", "due"),
    [
        ("*/5 * * * *", "12:00:30.5", 1.0, "12:05"),
        ("*/5 * * * *", "12:05:00", 1.0, "12:10"),  # not the firing that it was refreshed for
        ("*/5 * * * *", "12:04:59.9", 1.0, "12:05"),
        ("*/5 * * * *", "12:05:00.1", 1.0, "12:10"),
        ("*/5 * * * *", "12:00:30", 2.0, "12:10"),
        ("*/5 * * * *", "12:00:30", 10.0, "12:50"),
        ("*/5 * * * *", "12:00:30", 1.25, "12:10"),
        ("*/5 * * * *", "12:00:30", 0.5, "12:05"),
        ("*/15 * * * * *", "12:00:30.5", 1.0, "12:00:45"),
    ],
)
def test_cron_is_due_when_it_fires(expression: str, last: str, factor: float, due: str) -> None:
    found = next_due(Cron(expression, "UTC"), datetime.fromisoformat(f"2026-05-04T{last}Z"), factor)
    assert found == datetime.fromisoformat(f"2026-05-04T{due}Z")


# In Berlin 2:00 became 3:00 on March 29th, 2026, and 3:00 became 2:00 on October 25th, both at 01:00 UTC.
@pytest.mark.parametrize(
    ("expression", "last", "due"),
    [
        pytest.param("30 2 * * *", "2026-03-28T01:30", "2026-03-29T01:00", id="in the gap: right after it"),
        pytest.param("30 2 * * *", "2026-03-29T01:00", "2026-03-30T00:30", id="after that as ever"),
        pytest.param("10,20 2 * * *", "2026-03-29T01:00", "2026-03-30T00:10", id="two in the gap are one"),
        pytest.param("0 3 * * *", "2026-03-28T02:00", "2026-03-29T01:00", id="at its end"),
        pytest.param("*/30 * * * *", "2026-03-29T00:30", "2026-03-29T01:00", id="a star follows the time"),
        pytest.param("0 * * * *", "2026-03-29T00:00", "2026-03-29T01:00", id="hours too"),
        pytest.param("30 2 * * *", "2026-10-24T00:30", "2026-10-25T00:30", id="twice: at the first"),
        pytest.param("30 2 * * *", "2026-10-25T00:30", "2026-10-26T01:30", id="and not at the second"),
        pytest.param("45 2 * * *", "2026-10-25T01:30", "2026-10-26T01:45", id="nor from between them"),
        pytest.param("30 * * * *", "2026-10-25T00:30", "2026-10-25T01:30", id="a star again"),
        pytest.param("0 3 * * *", "2026-10-24T01:00", "2026-10-25T02:00", id="a day of 25 hours"),
        pytest.param("0 30 2 * * *", "2026-10-25T00:30", "2026-10-25T01:30", id="six fields: both"),
    ],
)
def test_cron_when_clocks_are_changed(expression: str, last: str, due: str) -> None:
    since = datetime.fromisoformat(f"{last}Z")
    expected = datetime.fromisoformat(f"{due}Z")
    assert next_due(Cron(expression, BERLIN), since) == expected
    assert next_due(Cron(expression, BERLIN), since.astimezone(ZoneInfo(BERLIN))) == expected


def test_a_duration_is_time_that_passes_also_when_clocks_are_changed() -> None:
    before = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo(BERLIN))
    assert next_due(Every(HOUR), before) == datetime(2026, 10, 25, 1, 30, tzinfo=UTC)


def test_each_time_is_later_than_the_one_before() -> None:
    for expression in ("30 2 * * *", "*/20 1-3 * * *", "15,45 2 * * *", "0 */7 * * *"):
        due = datetime(2026, 10, 20, tzinfo=UTC)
        for _ in range(200):
            later = next_due(Cron(expression, BERLIN), due)
            assert later > due, expression
            due = later


def test_a_leap_day_is_waited_for() -> None:
    assert next_due(Cron("0 0 29 2 *", "UTC"), LAST) == datetime(2028, 2, 29, tzinfo=UTC)
