"""Refreshes on Spark through PgBouncer in transaction mode: tasks read past it, under the same snapshot."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from tests.integration.support import assert_fresh
from tests.service import pooler as pgbouncer

import headwater
from headwater.db.connection import is_pooled

Connection = psycopg.Connection[Any]
JOINED = (
    "SELECT k.title, count(*) AS n, sum(i.price) AS total FROM items i JOIN kinds k ON k.id = i.kind"
    " GROUP BY k.title"
)


@pytest.mark.skipif(
    pgbouncer.PROGRAM is None, reason="there is no pgbouncer here (Debian's package pgbouncer)"
)
def test_loads_and_deltas(dsn: str, admin_dsn: str, conn: Connection) -> None:
    conn.execute("CREATE TABLE kinds (id int PRIMARY KEY, title text)")
    conn.execute("CREATE TABLE items (id int PRIMARY KEY, kind int, price numeric)")
    conn.execute("INSERT INTO kinds SELECT i, 'kind ' || i FROM generate_series(1, 5) AS i")
    conn.execute("INSERT INTO items SELECT i, 1 + i % 5, i FROM generate_series(1, 500) AS i")
    with pgbouncer.started(admin_dsn) as pooler:
        pooled = pooler.dsn(str(conninfo_to_dict(dsn)["dbname"]))
        with headwater.connect(pooled, direct_dsn=dsn, spark_master="local[2]") as hw:
            assert is_pooled(hw.connection)
            hw.create("st", JOINED, engine="spark")
            conn.execute("UPDATE items SET price = price + 1 WHERE id % 7 = 0")
            conn.execute("DELETE FROM kinds WHERE id = 3")
            outcome = hw.refresh("st")[-1]
            assert (outcome.action, outcome.engine) == ("delta", "spark")
            assert [entry.engine for entry in hw.history("st")] == ["spark", "spark"]
            assert_fresh(hw, "st")
