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
from headwater.catalog import EngineName

CASES: dict[EngineName, int] = {"postgres": 48, "spark": 12}
SOAK_SECONDS = float(os.environ.get("HEADWATER_SOAK_SECONDS") or 0)
REDUCE_SECONDS = float(os.environ.get("HEADWATER_REDUCE_SECONDS", "60"))
MOST_FAILURES = 3
# In a short run the same queries each time: new ones are for a soak, where somebody looks at what they find.
FIRST = SEED if os.environ.get("HEADWATER_SEED") or SOAK_SECONDS else 7000


@pytest.mark.differential
def test_all_of_sql(
    dsn: str, conn: psycopg.Connection, connect: Callable[[str], headwater.Headwater], engine: EngineName
) -> None:
    """Rounds until there were enough cases; by `make soak`, until the time is over."""
    conn.prepare_threshold = None  # the same text may mean other columns in the next round
    conn.execute(tables.SCHEMA)
    started = time.monotonic()
    cases = int(os.environ.get("HEADWATER_CASES") or CASES[engine])
    failures: list[str] = []
    with connect(dsn) as hw:
        bench = Bench(conn, hw, REDUCE_SECONDS)
        for number in itertools.count():
            print(f"HEADWATER_SEED={FIRST + number} HEADWATER_CASES=1")
            failures += bench.play(Round.draw(FIRST + number, conn))
            enough = COVERAGE.modes.total() >= cases and time.monotonic() - started > SOAK_SECONDS
            if enough or len(failures) >= MOST_FAILURES:
                break
    assert not failures, "\n\n".join(failures)
