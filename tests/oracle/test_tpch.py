"""The 22 queries of TPC-H as stream tables: after each change and refresh, each equals its query."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from tests.engines import EXCUSES
from tests.oracle.chance import SHORT_SEED as SEED

from headwater import Headwater
from headwater.bench import tpch_data
from headwater.bench.tpch_queries import queries
from headwater.catalog.stream_tables import EngineName

pytestmark = pytest.mark.differential

SCALE = 0.001
CYCLES: dict[EngineName, int] = {"postgres": 4, "spark": 1}
FRACTIONS = (0.001, 0.01, 0.1)

# What a change of the usual kind seldom does, or never.
RARE = (
    "UPDATE headwater_tpch.nation SET n_regionkey = (n_regionkey + 1) % 5 WHERE n_nationkey = {number} % 25",
    "UPDATE headwater_tpch.region SET r_name = 'EUROPE' WHERE r_regionkey = {number} % 5",
    "UPDATE headwater_tpch.lineitem SET l_quantity = 50 WHERE l_orderkey % 97 = {number} % 97",
    "DELETE FROM headwater_tpch.orders WHERE o_custkey % 40 = {number} % 40",
    "DELETE FROM headwater_tpch.supplier WHERE s_suppkey = 1 + {number} % 100",
    "UPDATE headwater_tpch.lineitem SET l_partkey = 1 + {number} % 30 WHERE l_orderkey % 89 = {number} % 89",
    "UPDATE headwater_tpch.orders SET o_orderdate = o_orderdate + 30 WHERE o_orderkey % 50 = {number} % 50",
)

Connect = Callable[[str], Headwater]


def test_every_query_gives_rows(dsn: str, connect: Connect) -> None:
    with connect(dsn) as hw:
        tpch_data.load(hw.connection, SCALE)
        for number, query in queries(SCALE).items():
            rows = hw.connection.execute(query).fetchall()
            assert any(value is not None for row in rows for value in row), f"query {number} gives nothing"


@pytest.mark.slow
def test_queries_equal_recomputation(dsn: str, connect: Connect, engine: EngineName) -> None:
    print(f"HEADWATER_SEED={SEED}")
    chance = random.Random(SEED)
    with connect(dsn) as hw:
        tpch_data.load(hw.connection, SCALE)
        names = {number: f"{tpch_data.SCHEMA}.q{number}" for number in queries(SCALE)}
        for number, query in queries(SCALE).items():
            hw.create(names[number], query, mode="differential")  # never given up for recomputing
        for _ in range(CYCLES[engine]):
            fraction, seed = chance.choice(FRACTIONS), chance.randrange(1 << 31)
            print(f"change {fraction} with seed {seed}")
            tpch_data.change(hw.connection, fraction, seed)
            compare(hw, names, engine)
            rare = chance.choice(RARE).format(number=chance.randrange(1 << 16))
            print(rare)
            hw.connection.execute(rare)
            compare(hw, names, engine)


def compare(hw: Headwater, names: dict[int, str], engine: EngineName) -> None:
    for number, name in names.items():
        outcome = hw.refresh(name)[-1]
        assert outcome.action in ("delta", "nothing"), f"query {number}: {outcome.reason}"
        assert outcome.engine == engine or outcome.engine_reason in EXCUSES, outcome.engine_reason
        found = hw.verify(name)
        assert found.equal, f"query {number}: missing {found.missing}, surplus {found.surplus}"
