"""Which engine ran, and why: as the history and `explain` tell it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import psycopg
import pytest
from pyspark.sql import SparkSession

from headwater import Headwater
from headwater.config import Settings

JOINED = """
SELECT c.region, count(*) AS n, sum(o.amount) AS total
FROM orders AS o JOIN customers AS c ON c.id = o.customer_id GROUP BY c.region
"""
# A numeric quotient over two tables: how many digits it has is PostgreSQL's secret.
REFUSED = "SELECT c.region, sum(o.amount / c.weight) AS x FROM orders o, customers c GROUP BY c.region"


@pytest.fixture
def hw(
    dsn: str, conn: psycopg.Connection, spark: SparkSession, spark_settings: Settings
) -> Iterator[Headwater]:
    conn.execute("CREATE TABLE customers (id int PRIMARY KEY, region text, weight numeric DEFAULT 1)")
    conn.execute("CREATE TABLE orders (id int PRIMARY KEY, customer_id int, amount numeric)")
    conn.execute("INSERT INTO customers SELECT i, 'r' || i % 3 FROM generate_series(1, 20) AS i")
    conn.execute("INSERT INTO orders SELECT i, 1 + i % 20, i FROM generate_series(1, 500) AS i")
    conn.execute("ANALYZE")
    with Headwater(dsn, {"spark_master": spark_settings.spark_master, "spark_min_rows": "400"}) as handle:
        yield handle


def last(hw: Headwater, name: str) -> tuple[str, str, str]:
    entry = hw.history(name, limit=1)[0]
    return entry.action, entry.engine, entry.engine_reason


def test_a_large_load_is_sparks_and_a_small_one_is_not(hw: Headwater) -> None:
    hw.create("large", JOINED)
    action, engine, reason = last(hw, "large")
    assert (action, engine) == ("load", "spark")
    assert reason == "about 520 rows to read"
    hw.create("small", "SELECT region, count(*) AS n FROM customers GROUP BY region")
    assert last(hw, "small") == ("load", "postgres", "about 20 rows to read; Spark from spark_min_rows (400)")
    assert hw.verify("large").equal


@pytest.mark.usefixtures("driver_only")
def test_a_small_delta_stays_in_the_database(hw: Headwater, conn: psycopg.Connection) -> None:
    hw.create("joined", JOINED)
    conn.execute("UPDATE orders SET amount = amount + 1 WHERE id = 7")
    [outcome] = hw.refresh("joined")
    assert (outcome.action, outcome.engine) == ("delta", "postgres")
    assert "ms of the database's work" in outcome.engine_reason
    # Which of the two depends on how fast this machine was at this moment.
    reason = hw.explain("joined").engine_reason
    assert reason.startswith(("in PostgreSQL up to about", "PostgreSQL takes each row in for less"))


def test_a_forced_engine_is_used(hw: Headwater, conn: psycopg.Connection) -> None:
    hw.create("joined", JOINED, engine="spark")
    conn.execute("UPDATE orders SET amount = amount + 1 WHERE id < 30")
    assert [(item.engine, item.engine_reason) for item in hw.refresh("joined")] == [("spark", "asked for")]
    conn.execute("UPDATE customers SET region = 'r0' WHERE id = 5")
    assert hw.refresh("joined", engine="postgres")[-1].engine == "postgres"
    assert hw.refresh("joined", full=True)[-1].engine == "spark"
    assert hw.verify("joined").equal


def test_what_spark_refuses_runs_in_the_database(hw: Headwater, conn: psycopg.Connection) -> None:
    hw.create("quotients", REFUSED, engine="spark")
    conn.execute("UPDATE orders SET amount = amount + 1 WHERE id = 7")
    assert hw.refresh("quotients")[-1].engine == "postgres"
    for reason in (last(hw, "quotients")[2], hw.explain("quotients").engine_reason):
        assert reason == (
            "Spark cannot do it exactly: r1.amount / r2.weight:"
            " how many digits a quotient has is a rule of PostgreSQL's own"
        )
    assert hw.verify("quotients").equal


def test_a_value_that_spark_cannot_hold_sends_the_refresh_back(
    hw: Headwater, conn: psycopg.Connection
) -> None:
    hw.create("joined", JOINED, engine="spark")
    conn.execute("UPDATE orders SET amount = 1e-30 WHERE id = 7")
    [outcome] = hw.refresh("joined")
    assert (outcome.action, outcome.engine) == ("delta", "postgres")
    assert outcome.engine_reason.startswith("instead of Spark: ")
    assert hw.verify("joined").equal


def test_explain_shows_what_is_read_and_what_spark_computes(hw: Headwater) -> None:
    hw.create("joined", JOINED, engine="spark")
    found = hw.explain("joined")
    assert found.engine == "spark"
    names = [step.name for step in found.steps]
    assert "read the change of public.orders through the driver" in names
    assert "compute raw0 on Spark" in names
    by_name = {step.name: step.sql for step in found.steps}
    assert "GROUP BY k0" in by_name["compute raw0 on Spark"]


@pytest.mark.parametrize("engine", ["auto", "spark"])
def test_without_spark_auto_goes_on_and_spark_does_not(
    dsn: str, hw: Headwater, conn: psycopg.Connection, engine: str
) -> None:
    """In a process of its own, for this one has a Spark: its master cannot be reached."""
    program = (
        "import sys, headwater\n"
        "hw = headwater.connect(sys.argv[1], spark_master='spark://127.0.0.1:1', spark_min_rows='1')\n"
        f"hw.create('joined', {JOINED!r}, engine='{engine}')\n"
        "print(hw.history('joined')[0].engine_reason)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, dsn], capture_output=True, text=True, check=False)
    if engine == "auto":
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("instead of Spark: Spark at spark://127.0.0.1:1 cannot be reached")
    else:
        assert done.returncode != 0
        assert "EngineUnavailable" in done.stderr
        assert [item.stream_table for item in hw.list()] == []
