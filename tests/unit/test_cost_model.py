"""The choice of an engine: the database is spared, within the schedule, by what was seen."""

from __future__ import annotations

import math

import pytest

from headwater.engine.cost_model import (
    PRIORS,
    START_MS,
    Line,
    Observation,
    choose,
    crossover,
    dearer_than_full,
    fitted,
)


def seen(engine: str, fixed: float, per_row: float, *, outside: float = 0.0) -> list[Observation]:
    """Refreshes of one engine along a line; `outside` is what Spark takes of its own."""
    return [
        Observation(engine, rows, fixed + per_row * rows + outside, fixed + per_row * rows)
        for rows in (1, 10, 100, 1_000, 10_000, 100_000) * 4
    ]


def test_a_small_delta_stays_in_the_database_and_a_large_one_leaves_it() -> None:
    small = choose(10, [], interval_ms=None, spark_runs=True)
    large = choose(2_000_000, [], interval_ms=None, spark_runs=True)
    assert (small.engine, large.engine) == ("postgres", "spark")
    assert "a first guess" in small.reason
    assert "ms of the database's work" in large.reason


@pytest.mark.parametrize(
    ("postgres", "spark", "rows", "engine"),
    [
        # For this table a row costs PostgreSQL ten times as much as sending it: the crossover is low.
        ((5, 1.0), (50, 0.1), 20, "postgres"),
        ((5, 1.0), (50, 0.1), 200, "spark"),
        # For this one it is cheaper than sending it: there is none.
        ((5, 0.001), (50, 0.1), 1_000_000, "postgres"),
    ],
)
def test_the_crossover_is_learned_from_the_history(
    postgres: tuple[float, float], spark: tuple[float, float], rows: int, engine: str
) -> None:
    history = seen("postgres", *postgres) + seen("spark", *spark, outside=100)
    verdict = choose(rows, history, interval_ms=None, spark_runs=True)
    assert verdict.engine == engine
    assert "from 24 refreshes" in verdict.reason


def test_spark_is_not_started_for_less_than_its_start_takes() -> None:
    rows = 2_000_000
    assert choose(rows, [], interval_ms=None, spark_runs=True).engine == "spark"
    idle = choose(rows, [], interval_ms=None, spark_runs=False)
    assert idle.engine == "postgres"
    assert "starting Spark" in idle.reason
    dear = int(START_MS / PRIORS["postgres"].database.per_row_ms) * 2
    assert choose(dear, [], interval_ms=None, spark_runs=False).engine == "spark"


def test_the_schedule_comes_before_the_database() -> None:
    history = seen("postgres", 5, 0.1) + seen("spark", 5, 0.01, outside=2_000)
    assert choose(10_000, history, interval_ms=None, spark_runs=True).engine == "spark"
    hurried = choose(10_000, history, interval_ms=1_500, spark_runs=True)
    assert hurried.engine == "postgres"
    assert "more than its schedule of 1500 ms" in hurried.reason
    # Where neither keeps the schedule, the database is spared all the same.
    assert choose(10_000, history, interval_ms=500, spark_runs=True).engine == "spark"


def test_the_guess_gives_way() -> None:
    line = fitted("postgres", seen("postgres", 100, 2.0)).database
    assert line.at(1_000) == pytest.approx(2_100, rel=0.01)


def test_little_experience_scales_the_guess() -> None:
    guess = PRIORS["spark"].database
    twice = [Observation("spark", 500, 0, 2 * guess.at(500))] * 20
    line = fitted("spark", twice).database
    assert line.at(500) == pytest.approx(2 * guess.at(500))
    assert line.at(50_000) == pytest.approx(2 * guess.at(50_000))


def test_a_cost_is_never_negative_and_never_falls() -> None:
    odd = [Observation("postgres", 1_000, 5, 5), Observation("postgres", 10, 5_000, 5_000)] * 50
    line = fitted("postgres", odd).elapsed
    assert isinstance(line, Line)
    assert line.fixed_ms >= 0
    assert line.per_row_ms >= 0


def test_the_crossover_in_words() -> None:
    cheap = seen("postgres", 5, 1.0) + seen("spark", 50, 0.1)
    assert crossover(cheap).startswith("in PostgreSQL up to about ")
    never = seen("postgres", 5, 0.001) + seen("spark", 50, 0.1)
    assert crossover(never) == "PostgreSQL takes each row in for less than it takes to send it"


def test_a_delta_that_costs_more_than_recomputing_is_given_up() -> None:
    slow = seen("postgres", 50, 1.0)
    assert dearer_than_full(10_000, slow, 300.0) == (
        "a delta of 10,000 change rows would take about 10,050 ms, recomputing 300 ms"
    )
    assert dearer_than_full(100, slow, 300.0) is None
    assert dearer_than_full(10_000, slow, 9_000.0) is None
    assert dearer_than_full(10_000, slow, None) is None
    assert dearer_than_full(10_000, [], 300.0) is None


def test_with_few_deltas_only_those_of_its_size_count() -> None:
    once = [Observation("postgres", 10_000, 5_000.0, 5_000.0)]
    assert dearer_than_full(12_000, once, 300.0) is not None
    assert dearer_than_full(1_000_000, once, 300.0) is None
    assert dearer_than_full(200, once, 300.0) is None


def test_deltas_of_about_its_size_count_more_than_a_line_through_all() -> None:
    # A line through the small ones alone would say 10 s.
    history = [Observation("postgres", 30_000, 400.0, 400.0), *seen("postgres", 50, 0.33)[:4] * 4]
    assert dearer_than_full(30_000, history, 500.0) is None
    assert dearer_than_full(30_000, history[1:], 500.0) is not None


def test_a_first_large_delta_is_tried_unless_it_is_sure_to_lose() -> None:
    small = seen("postgres", 10, 0.02)[:4] * 4  # up to 1,000 rows
    assert dearer_than_full(100_000, small, 1_200.0) is None  # about 2 s: it may do better
    assert dearer_than_full(100_000, small, 900.0) is not None


def test_what_was_given_up_is_tried_again_and_the_later_the_more_it_loses() -> None:
    slow = [Observation("postgres", 10_000, 600.0, 600.0)]
    assert dearer_than_full(10_000, slow, 300.0, given_up=15) is not None
    assert dearer_than_full(10_000, slow, 300.0, given_up=16) is None
    assert dearer_than_full(10_000, slow, 30.0, given_up=159) is not None
    assert dearer_than_full(10_000, slow, 30.0, given_up=160) is None


def short(rows: int, *elapsed_ms: float) -> list[Observation]:
    """Deltas of one size, the latest first."""
    return [Observation("postgres", rows, took, took) for took in elapsed_ms]


@pytest.mark.parametrize("rows", [1, 50, 5_000])
def test_short_deltas_are_given_up_when_several_of_their_size_took_longer(rows: int) -> None:
    history = short(rows, 48.0, 47.0, 52.0, 44.0, 50.0)
    changed = "1 change row" if rows == 1 else f"{rows:,} change rows"
    assert dearer_than_full(rows, history, 9.0) == (
        f"a delta of {changed} would take about 48 ms, recomputing 9 ms"
    )
    assert dearer_than_full(rows, history[:4], 9.0) is None
    assert dearer_than_full(rows, history, 40.0) is None


def test_what_saves_next_to_nothing_is_not_worth_it() -> None:
    assert dearer_than_full(1, short(1, *[12.0] * 5), 4.0) is None
    assert dearer_than_full(1, short(1, *[15.0] * 5), 4.0) is not None


def test_deltas_of_few_rows_are_alike() -> None:
    history = [Observation("postgres", rows, 48.0, 48.0) for rows in (1, 3, 20, 80, 100)]
    assert dearer_than_full(7, history, 9.0) is not None
    assert dearer_than_full(300, history, 9.0) is None


def test_a_long_delta_of_few_rows_is_repeated_until_several_were_seen() -> None:
    history = short(10, *[5_000.0] * 5)
    assert dearer_than_full(10, history[:1], 300.0) is None
    assert dearer_than_full(10, history, 300.0) is not None


def test_a_delta_that_was_tried_again_and_took_less_is_followed_by_others() -> None:
    assert dearer_than_full(10, short(10, 5.0, 48.0, 47.0, 52.0, 44.0, 50.0), 9.0) is None
    assert dearer_than_full(10, short(10, 60.0, 48.0, 47.0, 52.0, 44.0, 50.0), 9.0) is not None


def test_a_cost_that_nobody_knows_is_no_reason_to_recompute() -> None:
    assert dearer_than_full(10, short(10, *[5_000.0] * 5), math.inf) is None
