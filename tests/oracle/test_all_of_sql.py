"""Every construct of SELECT: whatever is written, a stream table holds what its query gives."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable

import psycopg
import pytest
from tests.oracle import tables
from tests.oracle.chance import SEED
from tests.oracle.rounds import COVERAGE, Bench, Round

import headwater
from headwater.catalog.stream_tables import EngineName
from headwater.engine.postgres import nested_deltas, stepwise_joins
from headwater.refresh import steps

EMBEDDED = (os.environ.get("HEADWATER_TEST_SERVER") or "embedded") == "embedded"
# On both servers and on Spark 500 together.
CASES: dict[EngineName, int] = {"postgres": 440 if EMBEDDED else 48, "spark": 12}
SOAK_SECONDS = float(os.environ.get("HEADWATER_SOAK_SECONDS") or 0)
REDUCE_SECONDS = float(os.environ.get("HEADWATER_REDUCE_SECONDS", "60"))
MOST_FAILURES = 3
# In a short run the same queries each time: new ones are for a soak, where somebody looks at what they find.
FIRST = SEED if os.environ.get("HEADWATER_SEED") or SOAK_SECONDS else 7000


@pytest.mark.differential
@pytest.mark.timeout(
    0 if SOAK_SECONDS else 2400
)  # hundreds of stream tables, each created, compared and refreshed several times
def test_all_of_sql(
    dsn: str,
    conn: psycopg.Connection,
    connect: Callable[..., headwater.Headwater],
    engine: EngineName,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rounds until there were enough cases; by `make soak`, until the time is over.

    Tables are small here. Every other round does what is worth it only with large ones: it keeps inner
    results, joins step by step, and leaves rows out between lookups; every fourth applies in steps, too.
    Of the rounds between, every other one has compiled refreshes.
    """
    conn.prepare_threshold = None  # the same text may mean other columns in the next round
    conn.execute(tables.SCHEMA)
    started = time.monotonic()
    cases = int(os.environ.get("HEADWATER_CASES") or CASES[engine])
    failures: list[str] = []
    with (
        connect(dsn) as compiled,
        connect(dsn, compiled_refreshes="off") as small,
        connect(dsn, keep_inner="always", compiled_refreshes="off") as large,
    ):
        for number in itertools.count(FIRST):
            print(f"HEADWATER_SEED={number} HEADWATER_CASES=1")
            if number % 2:
                monkeypatch.setattr(stepwise_joins, "MANY_ROWS", 1)
                monkeypatch.setattr(nested_deltas, "FILTERED_ROWS", 1)
                monkeypatch.setattr(steps, "is_one_query", lambda plan, pending: False)
            if number % 4 == 1:
                monkeypatch.setattr(steps, "MOST_AT_ONCE", 0)
            bench = Bench(conn, (compiled, large, small, large)[number % 4], REDUCE_SECONDS)
            found = bench.play(Round.draw(number, conn))
            print(*found, sep="\n\n", flush=True)  # at once, for a soak may be interrupted
            failures += found
            monkeypatch.undo()
            enough = COVERAGE.modes.total() >= cases and time.monotonic() - started > SOAK_SECONDS
            if enough or len(failures) >= MOST_FAILURES:
                break
    assert not failures, "\n\n".join(failures)
