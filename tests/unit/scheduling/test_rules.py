"""Tiers, quotas, the size of the pool, pauses: each threshold from both sides."""

from __future__ import annotations

from datetime import timedelta

import pytest

from headwater.scheduling.backoff import SUSPENDED_AFTER, pause, slowed
from headwater.scheduling.pool import Limits, Measured, Pool, Wish, adapt, wish_of
from headwater.scheduling.quota import allowed
from headwater.scheduling.tiers import FACTORS, Tier, tier_of


def s(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("interval", "since_changed", "tier"),
    [
        # Ten intervals and a hundred, where these are longer than ten seconds and a minute
        (60, 0, "hot"),
        (60, 600, "hot"),
        (60, 600.001, "warm"),
        (60, 6000, "warm"),
        (60, 6000.001, "cold"),
        # Ten seconds and a minute, where ten intervals and a hundred are shorter
        (0.1, 10, "hot"),
        (0.1, 10.001, "warm"),
        (0.1, 60, "warm"),
        (0.1, 60.001, "cold"),
        # Ten intervals are ten seconds, a hundred are more than a minute
        (1, 10, "hot"),
        (1, 10.001, "warm"),
        (1, 100, "warm"),
        (1, 100.001, "cold"),
        (3650 * 86400, 86400, "hot"),
        (1, None, "hot"),
    ],
)
def test_the_tier_goes_by_the_latest_change(interval: float, since_changed: float | None, tier: Tier) -> None:
    since = None if since_changed is None else s(since_changed)
    assert tier_of(None, True, since, s(interval)) == tier
    assert tier_of(None, False, since, s(interval)) == "hot"


@pytest.mark.parametrize("pinned", ["hot", "warm", "cold", "frozen"])
@pytest.mark.parametrize("automatic", [True, False])
@pytest.mark.parametrize("since_changed", [None, s(0), s(1e6)])
def test_what_a_user_pinned_wins(pinned: Tier, automatic: bool, since_changed: timedelta | None) -> None:
    assert tier_of(pinned, automatic, since_changed, s(1)) == pinned


def test_factors() -> None:
    assert FACTORS == {"hot": 1, "warm": 2, "cold": 10, "frozen": None}


@pytest.mark.parametrize(
    ("quota", "pool_size", "pool_busy", "workers"),
    [
        (0, 8, 0, 8),  # no quota
        (0, 8, 8, 8),
        (4, 10, 0, 6),  # half as many again
        (4, 10, 7, 6),
        (4, 10, 8, 4),  # 80 % is busy
        (4, 10, 10, 4),
        (4, 16, 12, 6),  # 75 %
        (4, 16, 13, 4),  # 81 %
        (1, 10, 0, 1),  # rounded down, and never below the quota
        (3, 10, 0, 4),
        (5, 10, 0, 7),
        (8, 10, 0, 10),  # never more than there are
        (8, 10, 9, 8),
        (20, 10, 9, 10),
        (4, 0, 0, 0),
        (0, 0, 0, 0),
    ],
)
def test_quota(quota: int, pool_size: int, pool_busy: int, workers: int) -> None:
    assert allowed(quota, pool_size, pool_busy) == workers


IDLE = Measured(cpu=0.1, queued=0, busy=0, lag_intervals=0)
CONTENT = Measured(cpu=0.7, queued=8, busy=1, lag_intervals=5)  # at each threshold, above none, for 4 workers
HEAVY = Measured(cpu=0.71, queued=8, busy=4, lag_intervals=5)
LATE = Measured(cpu=0.7, queued=8, busy=4, lag_intervals=5.01)
DEEP = Measured(cpu=0.7, queued=9, busy=4, lag_intervals=5)


@pytest.mark.parametrize(
    ("measured", "wish"),
    [
        pytest.param(CONTENT, None, id="at each threshold"),
        pytest.param(IDLE, "rest", id="idle"),
        pytest.param(HEAVY, "fewer", id="CPU"),
        pytest.param(LATE, "catch up", id="lag"),
        pytest.param(DEEP, "more", id="queue"),
        pytest.param(Measured(0.1, 1, 0, 0), None, id="none busy, but one waits"),
        pytest.param(Measured(0.1, 0, 1, 0), None, id="none waits, but one is busy"),
        # Two at once
        pytest.param(Measured(0.9, 0, 0, 0), "rest", id="idle before CPU"),
        pytest.param(Measured(0.1, 0, 0, 9), "rest", id="idle before lag"),
        pytest.param(Measured(0.9, 9, 4, 0), "fewer", id="CPU before queue"),
        pytest.param(Measured(0.9, 0, 4, 9), "fewer", id="CPU before lag"),
        pytest.param(Measured(0.1, 9, 4, 9), "catch up", id="lag before queue"),
        pytest.param(Measured(0.9, 9, 4, 9), "fewer", id="all but idle"),
    ],
)
def test_which_wish_counts(measured: Measured, wish: Wish | None) -> None:
    assert wish_of(4, measured) == wish


@pytest.mark.parametrize(
    ("measured", "sizes"),
    [
        pytest.param(CONTENT, [4, 4, 4, 4, 4, 4], id="content"),
        pytest.param(IDLE, [4, 4, 1, 1, 1, 1], id="idle: down to the fewest"),
        pytest.param(HEAVY, [4, 4, 3, 3, 3, 2, 2, 2, 1, 1, 1, 1], id="CPU: one fewer each time"),
        pytest.param(LATE, [4, 4, 8, 8, 8, 10, 10, 10, 10], id="lag: twice as many, up to the most"),
        pytest.param(Measured(0.7, 99, 4, 5), [4, 4, 5, 5, 5, 6, 6, 6, 7], id="queue: one more each time"),
        pytest.param(DEEP, [4, 4, 5, 5, 5, 5, 5, 5, 5], id="queue: until it is not deep for so many"),
    ],
)
def test_a_wish_is_granted_when_three_ticks_had_it(measured: Measured, sizes: list[int]) -> None:
    pool, found = Pool(4), []
    for _ in sizes:
        pool = adapt(pool, measured, Limits(1, 10))
        found.append(pool.size)
    assert found == sizes


@pytest.mark.parametrize("first", [IDLE, HEAVY, LATE, DEEP])
@pytest.mark.parametrize("second", [IDLE, HEAVY, LATE, DEEP, CONTENT])
def test_another_wish_begins_anew(first: Measured, second: Measured) -> None:
    """Each pair: two ticks of the one, then one tick of the other, change nothing."""
    pool = Pool(4)
    for measured in (first, first, second):
        pool = adapt(pool, measured, Limits(1, 10))
    assert (pool.size == 4) is (first is not second)
    if first is not second:
        assert pool.streak == (0 if second is CONTENT else 1)


@pytest.mark.parametrize(
    ("size", "limits", "measured", "expected"),
    [
        (12, Limits(1, 10), CONTENT, 10),
        (1, Limits(3, 10), CONTENT, 3),
        (4, Limits(6, 2), CONTENT, 2),
        (12, Limits(1, 10), IDLE, 10),
    ],
)
def test_changed_limits_hold_at_once(size: int, limits: Limits, measured: Measured, expected: int) -> None:
    assert adapt(Pool(size), measured, limits) == Pool(expected)


@pytest.mark.parametrize(
    ("size", "measured"), [(2, IDLE), (2, HEAVY), (10, LATE), (10, Measured(0.1, 99, 10, 0))]
)
def test_limits_are_never_left(size: int, measured: Measured) -> None:
    pool = Pool(size)
    for _ in range(9):
        pool = adapt(pool, measured, Limits(2, 10))
        assert pool.size == size


@pytest.mark.parametrize(
    ("failures", "interval", "expected"),
    [
        (0, 1, 0),
        (1, 1, 1),
        (2, 1, 2),
        (3, 1, 4),
        (1, 0.01, 1),  # at least a second
        (2, 0.01, 2),
        (1, 60, 60),
        (2, 60, 120),
        (3, 60, 240),
        (4, 60, 300),  # at most five minutes
        (1000, 1, 300),
        (1, 300, 300),
        (2, 300, 300),
        (1, 301, 301),  # or the interval
        (5, 3600, 3600),
        (1000, 3650 * 86400, 3650 * 86400),
    ],
)
def test_pause_after_failures(failures: int, interval: float, expected: float) -> None:
    assert pause(failures, s(interval)) == s(expected)


def test_three_failures_suspend() -> None:
    assert SUSPENDED_AFTER == 3


@pytest.mark.parametrize(
    ("interval", "took", "expected"),
    [(1, 0, 1), (1, 0.999, 1), (1, 1, 1), (1, 1.001, 1.25125), (1, 4, 5), (60, 80, 100)],
)
def test_a_refresh_that_takes_longer_than_its_interval_is_slowed_down(
    interval: float, took: float, expected: float
) -> None:
    assert slowed(s(interval), s(took)) == s(expected)
