"""Which engine a refresh uses: the one that costs the database less, within what the schedule allows.

The cost of each engine is a straight line over the number of change rows, fitted to the stream table's own
history. Before there is any history it is a guess; while there is little, the guess is scaled to what was
observed. Inside PostgreSQL all of a refresh is work of the database; with Spark it is staging, reading,
writing and applying.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

Name = Literal["postgres", "spark"]

START_MS = 8_000.0
"""About how long starting Spark takes; only a longer refresh is worth it."""


@dataclass(frozen=True)
class Observation:
    """One past delta refresh, without the time for planning; the latest come first."""

    engine: str
    rows: int
    elapsed_ms: float
    database_ms: float


@dataclass(frozen=True)
class Line:
    """A cost that grows with the number of rows."""

    fixed_ms: float
    per_row_ms: float

    def at(self, rows: int) -> float:
        return self.fixed_ms + self.per_row_ms * rows


@dataclass(frozen=True)
class Cost:
    """What an engine takes: elapsed time, and work of the database."""

    elapsed: Line
    database: Line


# As `headwater bench delta` measures for a join with an aggregate; see docs/spark.md.
PRIORS: dict[Name, Cost] = {
    "postgres": Cost(Line(12.0, 0.0012), Line(12.0, 0.0012)),
    "spark": Cost(Line(140.0, 0.0027), Line(100.0, 0.0011)),
}
ENOUGH = 3
"""This many observations make a line of their own, if their sizes differ enough."""
SPREAD = 5


FEW_ROWS = 100
"""A delta of up to this many change rows takes about as long as one of a single row."""
LONG_MS = 250.0
"""A delta that takes longer is not repeated once it was seen to take longer than recomputing."""
WORTH_SAVING_MS = 10.0
"""For a shorter delta, or one of few rows: several deltas must show that recomputing saves this much."""
DEARER = 1.25
"""How many times as long as recomputing a delta must take to be given up."""
MUCH_DEARER = 2.0
"""The same where no delta of such a size was observed: a first one is worth a try."""
TRIED_AGAIN = 8
"""A delta that was given up is tried again after this many refreshes, times the factor by which it loses."""
MOST_PASSED_OVER = 31
"""At most this many refreshes recompute before a delta is tried again, however many have failed."""
SHORTEST_PATIENCE_MS = 5_000.0
"""A delta that takes less is never interrupted."""
ALIKE = 5
"""This many of the latest deltas of about one size predict the next."""


@dataclass(frozen=True)
class Verdict:
    """The engine for a delta, and why."""

    engine: Name
    reason: str
    weighed: bool = True  # the schedule could make a difference


def choose(
    rows: int,
    observations: Sequence[Observation],
    *,
    interval_ms: float | None,
    spark_runs: bool,
) -> Verdict:
    """Return the engine for a delta of this many change rows."""
    costs = {name: fitted(name, observations) for name in PRIORS}
    database = {name: cost.database.at(rows) for name, cost in costs.items()}
    elapsed = {name: cost.elapsed.at(rows) for name, cost in costs.items()}
    if not spark_runs:
        elapsed["spark"] += START_MS
        if database["postgres"] < START_MS:
            return Verdict(
                "postgres",
                f"about {database['postgres']:.0f} ms in PostgreSQL, less than starting Spark takes",
                weighed=False,
            )
    best: Name = "spark" if database["spark"] < database["postgres"] else "postgres"
    other: Name = "postgres" if best == "spark" else "spark"
    if interval_ms is not None and elapsed[best] > interval_ms > elapsed[other]:
        return Verdict(
            other,
            f"about {elapsed[other]:.0f} ms; {_title(best)} would take {elapsed[best]:.0f} ms,"
            f" more than its schedule of {interval_ms:.0f} ms",
        )
    seen = sum(item.engine == best for item in observations)
    return Verdict(
        best,
        f"about {database[best]:.0f} ms of the database's work, {database[other]:.0f} ms with {_title(other)}"
        f" ({'from ' + str(seen) + ' refreshes' if seen else 'a first guess'};"
        f" {crossover(observations)})",
    )


def dearer_than_full(
    rows: int, observations: Sequence[Observation], full_ms: float | None, given_up: int = 0
) -> str | None:
    """Return why recomputing costs less than a delta of this many change rows, if it is known to.

    One long delta is evidence enough. Short ones, and those of few rows, vary with the load of the server:
    several of about this size are needed, and a saving that is worth it.

    `given_up` counts the refreshes that recomputed since the last delta of such a size. After some of them a
    delta is tried again, because there may be a new index or other data. The more it is expected to lose, the
    later that is, so that trying costs a fixed share of the total.
    """
    if full_ms is None or not observations:
        return None
    expected = _expected(rows, [(item.rows, item.elapsed_ms) for item in observations])
    if rows > FEW_ROWS and expected.ms >= LONG_MS:
        dearer = expected.ms >= full_ms * (DEARER if expected.is_known else MUCH_DEARER)
    else:
        dearer = expected.alike >= ALIKE and expected.ms >= max(DEARER * full_ms, full_ms + WORTH_SAVING_MS)
    if not dearer or given_up >= TRIED_AGAIN * expected.ms / max(full_ms, 1.0):
        return None
    return (
        f"a delta of {rows:,} change row{'s' if rows != 1 else ''} would take about {expected.ms:,.0f} ms,"
        f" recomputing {full_ms:,.0f} ms"
    )


def passed_over(failures: int) -> int:
    """Return how many refreshes recompute before a delta is tried again, after this many errors in a row.

    One that failed may be the only one, so the next is tried at once.

    >>> [passed_over(failures) for failures in range(8)]
    [0, 0, 1, 3, 7, 15, 31, 31]
    """
    return min((1 << max(failures - 1, 0)) - 1, MOST_PASSED_OVER)


def patience_ms(full_ms: float | None) -> float | None:
    """Return after how long a delta is given up for recomputing, whatever was expected; None if never."""
    return max(SHORTEST_PATIENCE_MS, MUCH_DEARER * full_ms) if full_ms is not None else None


@dataclass(frozen=True)
class _Expectation:
    """How long a delta is expected to take."""

    ms: float
    alike: int = 0  # from this many deltas of about its size; if none, a line is extrapolated
    is_known: bool = False  # there were such deltas, or smaller and larger ones


def _expected(rows: int, points: Sequence[tuple[int, float]]) -> _Expectation:
    """Return the median of the latest deltas of about this size, or the latest alone, if that took less."""
    alike = [elapsed for size, elapsed in points if are_alike(rows, size)][:ALIKE]
    if alike:
        return _Expectation(min(median(alike), alike[0]), len(alike), is_known=True)
    sizes = [size for size, _ in points]
    if len(points) < ENOUGH or max(sizes) < SPREAD * max(1, min(sizes)):
        return _Expectation(0.0)
    return _Expectation(_least_squares(points).at(rows), is_known=min(sizes) < rows < max(sizes))


def are_alike(one: int, other: int) -> bool:
    """Tell whether deltas of these sizes take about the same time."""
    small, large = sorted((one, other))
    return large <= max(FEW_ROWS, 2 * small)


def at_least(rows: int) -> int:
    """Return the size from which a delta counts as one of this size or larger."""
    return rows // 2 if rows > FEW_ROWS else 0


def fitted(name: Name, observations: Sequence[Observation]) -> Cost:
    """Return the cost of an engine as far as it is known."""
    prior = PRIORS[name]
    seen = [item for item in observations if item.engine == name]
    return Cost(
        _line([(item.rows, item.elapsed_ms) for item in seen], prior.elapsed),
        _line([(item.rows, item.database_ms) for item in seen], prior.database),
    )


def _line(points: Sequence[tuple[int, float]], prior: Line) -> Line:
    if not points:
        return prior
    rows = [x for x, _ in points]
    if len(points) >= ENOUGH and max(rows) >= SPREAD * max(1, min(rows)):
        return _least_squares(points)
    factor = median(y / prior.at(x) for x, y in points)
    return Line(prior.fixed_ms * factor, prior.per_row_ms * factor)


def _least_squares(points: Sequence[tuple[int, float]]) -> Line:
    """Fit a line by the relative error: a millisecond counts more in a small refresh than in a large one."""
    weights = [1 / max(y, 1.0) ** 2 for _, y in points]
    total = sum(weights)
    mean_x = sum(w * x for w, (x, _) in zip(weights, points, strict=True)) / total
    mean_y = sum(w * y for w, (_, y) in zip(weights, points, strict=True)) / total
    spread = sum(w * (x - mean_x) ** 2 for w, (x, _) in zip(weights, points, strict=True))
    together = sum(w * (x - mean_x) * (y - mean_y) for w, (x, y) in zip(weights, points, strict=True))
    slope = max(0.0, together / spread) if spread else 0.0
    return Line(max(0.0, mean_y - slope * mean_x), slope)


def crossover(observations: Sequence[Observation]) -> str:
    """Say from how many change rows on Spark costs the database less."""
    postgres, spark = (fitted(name, observations).database for name in PRIORS)
    if postgres.per_row_ms <= spark.per_row_ms:
        return "PostgreSQL takes each row in for less than it takes to send it"
    rows = (spark.fixed_ms - postgres.fixed_ms) / (postgres.per_row_ms - spark.per_row_ms)
    return f"in PostgreSQL up to about {max(1, round(rows)):,} change rows, on Spark from there"


def _title(name: Name) -> str:
    return {"postgres": "PostgreSQL", "spark": "Spark"}[name]
