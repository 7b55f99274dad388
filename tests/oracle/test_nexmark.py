"""Queries 0 to 9 of Nexmark as stream tables: after each change and refresh, each equals its query."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from tests.engines import EXCUSES
from tests.oracle.chance import SEED

from headwater import Headwater
from headwater.bench import nexmark
from headwater.catalog.stream_tables import EngineName

pytestmark = pytest.mark.differential

EVENTS = 5_000
CYCLES: dict[EngineName, int] = {"postgres": 6, "spark": 1}
FRACTIONS = (0.002, 0.02, 0.2)

Connect = Callable[[str], Headwater]


def test_every_query_gives_rows(dsn: str, connect: Connect) -> None:
    with connect(dsn) as hw:
        nexmark.load(hw.connection, EVENTS)
        for number, query in nexmark.QUERIES.items():
            assert hw.connection.execute(query).fetchall(), f"query {number} gives nothing"


@pytest.mark.slow
def test_queries_equal_recomputation(dsn: str, connect: Connect, engine: EngineName) -> None:
    print(f"HEADWATER_SEED={SEED}")
    chance = random.Random(SEED)
    with connect(dsn) as hw:
        nexmark.load(hw.connection, EVENTS)
        names = {number: f"{nexmark.SCHEMA}.q{number}" for number in nexmark.QUERIES}
        for number, query in nexmark.QUERIES.items():
            hw.create(names[number], query, mode="differential")  # never given up for recomputing
        for _ in range(CYCLES[engine]):
            fraction, seed = chance.choice(FRACTIONS), chance.randrange(1 << 31)
            print(f"change {fraction} with seed {seed}")
            nexmark.change(hw.connection, fraction, seed)
            for number, name in names.items():
                outcome = hw.refresh(name)[-1]
                assert outcome.action in ("delta", "nothing"), f"query {number}: {outcome.reason}"
                assert outcome.engine == engine or outcome.engine_reason in EXCUSES, outcome.engine_reason
                found = hw.verify(name)
                assert found.equal, f"query {number}: missing {found.missing}, surplus {found.surplus}"
