"""The rules of scheduling, seen at work in a running service; tests/unit/scheduling has each by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from tests.integration.support import value
from tests.service.conftest import StartProcess, StartScheduler
from tests.service.support import eventually
from tests.service.test_launcher import own_server, served
from tests.service.test_scheduler import BY_REGION, ORDERS, fresh

from headwater import Headwater
from headwater.embedded import Server
from headwater.service.launcher import shares
from headwater.service.protocol import Demand
from headwater.service.queue import Membership

Connection = psycopg.Connection[Any]
__all__ = ["own_server"]


@contextmanager
def held(dsn: str) -> Iterator[None]:
    """Has every refresh that has something to do wait, with its worker."""
    with psycopg.connect(dsn) as blocker:
        blocker.execute("SELECT FROM headwater.stream_table FOR UPDATE")
        yield


def scheduler(conn: Connection, column: str) -> Any:
    return value(conn, f"SELECT max({column}) FROM headwater.scheduler")


def set_tier(conn: Connection, name: str, tier: str | None) -> None:
    conn.execute(
        "UPDATE headwater.stream_table SET tier = %s"
        " WHERE id = (SELECT id FROM headwater.stream_tables WHERE table_name = %s)",
        [tier, name],
    )


def test_what_is_frozen_stays_as_it_is(hw: Headwater, conn: Connection, schedule: StartScheduler) -> None:
    conn.execute(ORDERS)
    for name in ("hot", "frozen"):
        hw.create(name, BY_REGION, schedule="50ms")
        set_tier(conn, name, name)
    schedule()
    conn.execute("INSERT INTO orders VALUES (1, 'north', 5)")
    eventually(lambda: fresh(hw, "hot"))
    ticks = scheduler(conn, "ticks") or 0
    eventually(lambda: (scheduler(conn, "ticks") or 0) > ticks + 10)
    assert value(conn, "SELECT count(*) FROM frozen") == 0
    set_tier(conn, "frozen", None)
    eventually(lambda: fresh(hw, "frozen"))


def test_who_comes_first(dsn: str, hw: Headwater, conn: Connection, schedule: StartScheduler) -> None:
    """One at a time: what belongs together first, then hot before cold, each after what it reads."""
    conn.execute(ORDERS)
    for name, tier in (("cold", "cold"), ("warm", "warm"), ("hot", "hot")):
        hw.create(name, BY_REGION, schedule="50ms")
        set_tier(conn, name, tier)
    hw.create("left_side", BY_REGION, schedule="50ms")
    hw.create("right_side", BY_REGION, schedule="50ms")
    hw.create(
        "whole",
        "SELECT region, l.n, r.total FROM left_side l JOIN right_side r USING (region)",
        schedule="50ms",
    )
    conn.execute("INSERT INTO orders VALUES (1, 'north', 5)")
    hw.set("drain", "on")  # until all are due, the cold one after ten times its interval
    schedule(parallel_refresh_mode="off")
    latest = (
        "SELECT max(last_refresh_at) + interval '1 second' < clock_timestamp() FROM headwater.stream_tables"
    )
    eventually(lambda: scheduler(conn, "ticks") and value(conn, latest))
    hw.set("drain", "off")
    names = ("cold", "warm", "hot", "whole")
    eventually(lambda: fresh(hw, *names))
    first = (
        "SELECT array_agg(table_name::text ORDER BY first) FROM (SELECT st.table_name, min(j.id) AS first"
        " FROM headwater.worker_jobs j JOIN headwater.stream_tables st ON st.id = j.stream_table_id"
        " GROUP BY st.table_name) AS t"
    )
    eventually(lambda: len(value(conn, first) or ()) == 4)
    assert value(conn, first) == ["whole", "hot", "warm", "cold"]


def test_no_more_at_once_than_allowed(
    dsn: str, hw: Headwater, conn: Connection, schedule: StartScheduler
) -> None:
    conn.execute(ORDERS)
    for number in range(5):
        hw.create(f"s{number}", BY_REGION, schedule="50ms")
    schedule(max_concurrent_refreshes="2")
    with held(dsn):
        conn.execute("INSERT INTO orders VALUES (1, 'north', 5)")
        eventually(lambda: scheduler(conn, "queued_jobs") == 3)
        assert scheduler(conn, "active_workers") == scheduler(conn, "max_workers") == 2
        hw.set("max_concurrent_refreshes", "3")  # a flag beats what is stored
        assert scheduler(conn, "max_workers") == 2
    eventually(lambda: fresh(hw, *(f"s{number}" for number in range(5))))


def test_what_waits_for_a_worker_of_the_service_is_shown(
    dsn: str, hw: Headwater, conn: Connection, schedule: StartScheduler
) -> None:
    conn.execute(ORDERS)
    names = [f"s{number}" for number in range(5)]
    for name in names:
        hw.create(name, BY_REGION, schedule="50ms")
    schedule(max_concurrent_refreshes="2")

    def shown(status: str) -> dict[str, int]:
        return {
            row[0].removeprefix("public."): row[1]
            for row in conn.execute(
                "SELECT stream_table, job_id FROM headwater.parallel_job_status(5) WHERE status = %s",
                [status],
            )
        }

    with held(dsn):
        conn.execute("INSERT INTO orders VALUES (1, 'north', 5)")
        eventually(lambda: len(shown("RUNNING")) == 2)
        queued = eventually(lambda: found if len(found := shown("QUEUED")) == 3 else {})
        assert queued.keys() | shown("RUNNING").keys() == set(names)
        assert value(conn, "SELECT queued_jobs FROM headwater.worker_pool_status()") == 3
        # No worker elsewhere may claim what waits here.
        outsider = Membership(hw.connection, "worker", 0, {})
        assert outsider.claim(None) is None
        outsider.leave()
        hw.set("drain", "on")  # then nothing waits for a worker
        eventually(lambda: not shown("QUEUED"))
        hw.set("drain", "off")
        queued = eventually(lambda: found if len(found := shown("QUEUED")) == 3 else {})
    eventually(lambda: fresh(hw, *names))
    eventually(lambda: not shown("QUEUED") and not shown("RUNNING"))
    done = conn.execute(
        "SELECT job_id, wait_ms > 0, started_at >= queued_at, duration_ms IS NOT NULL"
        " FROM headwater.parallel_job_status(60) WHERE status = 'COMPLETED' AND job_id = ANY (%s)",
        [list(queued.values())],
    ).fetchall()
    assert sorted(done) == [(number, True, True, True) for number in sorted(queued.values())]


def test_a_scheduler_that_stops_leaves_nothing_in_the_queue(
    dsn: str, hw: Headwater, conn: Connection, schedule: StartScheduler
) -> None:
    conn.execute(ORDERS)
    for number in range(3):
        hw.create(f"s{number}", BY_REGION, schedule="50ms")
    first = schedule(max_concurrent_refreshes="1")
    queued = "SELECT count(*) FROM headwater.worker_jobs WHERE status = 'QUEUED'"
    with held(dsn):
        conn.execute("INSERT INTO orders VALUES (1, 'north', 5)")
        eventually(lambda: value(conn, queued) == 2)
        first.stop()
    eventually(lambda: value(conn, queued) == 0)


def test_a_profile_takes_effect_at_the_next_tick(
    hw: Headwater, conn: Connection, schedule: StartScheduler
) -> None:
    notifies = "SELECT prosrc LIKE '%pg_notify%' FROM pg_proc WHERE proname = 'mark_changed'"
    schedule()
    eventually(lambda: scheduler(conn, "ticks"))
    assert value(conn, notifies) is False
    hw.set("profile", "low-latency")
    eventually(lambda: value(conn, notifies))
    hw.set("profile", "none")
    eventually(lambda: not value(conn, notifies))


@pytest.mark.parametrize(
    ("pool", "quota", "demands", "granted"),
    [
        (4, 0, {"a": (0, 0)}, {"a": 1}),
        (4, 0, {"a": (2, 9)}, {"a": 4}),
        (4, 0, {"a": (0, 9), "b": (0, 1)}, {"a": 3, "b": 1}),
        (4, 0, {"a": (0, 9), "b": (0, 9)}, {"a": 2, "b": 2}),
        # a quota of two: three while the pool is quiet, two from 80 % on
        (10, 2, {"a": (0, 9)}, {"a": 3}),
        (10, 2, {"a": (7, 9)}, {"a": 3}),
        (10, 2, {"a": (8, 9)}, {"a": 2}),
        (10, 2, {"a": (2, 9), "b": (6, 9)}, {"a": 2, "b": 2}),
        # each has one, however small the pool
        (2, 0, {"a": (0, 5), "b": (0, 5), "c": (0, 5)}, {"a": 1, "b": 1, "c": 1}),
    ],
)
def test_hands_are_shared(
    pool: int, quota: int, demands: dict[str, tuple[int, int]], granted: dict[str, int]
) -> None:
    wanted = {name: Demand(busy, queued, 0.0) for name, (busy, queued) in demands.items()}
    assert shares(pool, quota, wanted) == granted


@pytest.mark.parametrize(
    ("quota", "demands", "before", "granted"),
    [
        (0, {"a": (0, 0)}, {"a": 4}, {"a": 4}),
        (0, {"a": (0, 0)}, {"a": 9}, {"a": 4}),
        (0, {"a": (0, 0), "b": (0, 9)}, {"a": 4}, {"a": 1, "b": 3}),
        (0, {"a": (0, 0), "b": (0, 2)}, {"a": 4}, {"a": 2, "b": 2}),
        (2, {"a": (0, 0)}, {"a": 4}, {"a": 3}),
    ],
)
def test_hands_stay_where_they_were_until_another_wants_them(
    quota: int, demands: dict[str, tuple[int, int]], before: dict[str, int], granted: dict[str, int]
) -> None:
    wanted = {name: Demand(busy, queued, 0.0) for name, (busy, queued) in demands.items()}
    assert shares(4, quota, wanted, before) == granted


def test_databases_share_the_pool_and_it_grows_with_the_queue(
    own_server: Server, program: StartProcess
) -> None:
    """With a quota of one, a database has one worker, whatever waits; then the pool adapts."""
    dsn = own_server.dsn()
    served(dsn, "s0")
    with Headwater(dsn) as hw, psycopg.connect(dsn, autocommit=True) as conn:
        for number in range(1, 8):
            hw.create(f"s{number}", BY_REGION, schedule="100ms")
        hw.set("per_database_worker_quota", "1")
        hw.set("max_dynamic_refresh_workers", "1")
        hw.set("max_concurrent_refreshes", "6")
        service = program("serve", "--log-format", "json", dsn=make_conninfo(dsn))
        eventually(lambda: scheduler(conn, "ticks"))
        with held(dsn):
            conn.execute("INSERT INTO orders VALUES (1, 'north', 5)")
            eventually(lambda: scheduler(conn, "queued_jobs") == 7)
            assert scheduler(conn, "active_workers") == 1
            hw.set("per_database_worker_quota", "0")
            hw.set("adaptive_workers", "on")
            hw.set("max_workers", "3")
            hw.set("min_workers", "2")
            eventually(lambda: scheduler(conn, "active_workers") >= 2)
            assert scheduler(conn, "active_workers") <= 3
        eventually(lambda: fresh(hw, *(f"s{number}" for number in range(8))))
        assert {event["workers"] for event in service.events("pool")} <= {2, 3}
        assert service.events("pool")
