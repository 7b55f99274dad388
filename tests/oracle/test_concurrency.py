"""Writers and refreshers at once: whatever the order of commits, nothing is lost, nothing counted twice.

The writers are threads (see load.py), the refreshers processes, for these are what runs side by side in
practice. HEADWATER_LOAD_SECONDS says how long; `make soak-concurrency` is for an hour.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import time
import traceback
from multiprocessing.synchronize import Event
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from tests.oracle.growth import Growth, held_back, measure, vacuum
from tests.oracle.load import STREAM_TABLES, TABLES, Load

import headwater

SECONDS = int(
    os.environ.get("HEADWATER_LOAD_SECONDS") or int(os.environ.get("HEADWATER_SOAK_SECONDS") or 0) // 10 or 15
)
SEED = int(os.environ.get("HEADWATER_SEED") or random.SystemRandom().randrange(1 << 32))
REFRESHERS = 3
ROUNDS_AFTERWARDS = 10
LONG = 600
"""Seconds that it may take to come to rest."""


def refresh(dsn: str, seed: int, going_on: Event, problems: Any) -> None:
    """A process that refreshes and verifies stream tables in a random order until it is told to stop."""
    chance = random.Random(seed)
    while going_on.is_set():
        with headwater.connect(dsn) as hw:
            while going_on.is_set() and chance.random() > 0.01:  # else in a new session
                name = chance.choice(sorted(STREAM_TABLES))
                try:
                    hw.refresh(name, full=chance.random() < 0.02)
                    found = hw.verify(name) if chance.random() < 0.1 else None
                except Exception:
                    problems.put(f"refresh of {name}: {traceback.format_exc()}")
                    return
                if found is not None and not found.equal:
                    problems.put(f"{name} lacks {found.missing} and has {found.surplus}")
                    return


@pytest.mark.timeout(SECONDS + LONG)
def test_writers_and_refreshers_at_once(dsn: str, conn: psycopg.Connection) -> None:
    print(f"HEADWATER_SEED={SEED}, {SECONDS} s")
    conn.execute(TABLES)
    # Races are decided sooner, and a refresh has little time to give way.
    conn.execute(f"ALTER DATABASE \"{conninfo_to_dict(dsn)['dbname']}\" SET deadlock_timeout = '200ms'")
    with headwater.connect(dsn) as hw:
        for name, query in STREAM_TABLES.items():
            hw.create(name, query, mode="differential")
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["tests.oracle.test_concurrency"])
    going_on, problems = processes.Event(), processes.Queue()
    going_on.set()
    refreshers = [
        processes.Process(target=refresh, args=(dsn, SEED - number, going_on, problems), daemon=True)
        for number in range(1, REFRESHERS + 1)
    ]
    load = Load(dsn, SEED)
    for process in refreshers:
        process.start()
    load.start()
    found = []
    started = shown = time.monotonic()
    try:
        while time.monotonic() - started < SECONDS and not load.problems and problems.empty():
            time.sleep(0.2)
            if time.monotonic() - shown > max(3, SECONDS / 40):
                shown = time.monotonic()
                print(f"{shown - started:.0f} s: {measure(conn).line()}")
    finally:
        load.stop()
        going_on.clear()
        for process in refreshers:
            process.join()
        while not problems.empty():
            found.append(problems.get())
    print(f"writers: {dict(load.done.most_common())}", *found, *load.problems, sep="\n")
    assert found == []
    assert load.problems == []
    assert all(process.exitcode == 0 for process in refreshers)
    with headwater.connect(dsn) as hw:
        for name in STREAM_TABLES:
            hw.refresh(name)
            assert hw.verify(name).equal
        assert [entry.error for entry in hw.history(limit=100_000) if entry.status == "failed"] == []
        drifts = "SELECT reason FROM headwater.refresh WHERE reason LIKE '%does not hold%'"
        assert conn.execute(drifts).fetchall() == []
        vacuum(conn)
        print(f"at rest: {measure(conn).line()}")
        first, second = afterwards(conn, hw), afterwards(conn, hw)
        assert first.problems(second) == []
        assert held_back(conn) == []
        assert second.change_rows == 0


def afterwards(conn: psycopg.Connection, hw: headwater.Headwater) -> Growth:
    """What some more refreshes and a vacuum leave."""
    for number in range(ROUNDS_AFTERWARDS):
        conn.execute("UPDATE t SET v = v + 1 WHERE id %% 50 = %s", (number,))
        conn.execute("INSERT INTO p VALUES (1, %s)", (number,))
        for name in STREAM_TABLES:
            hw.refresh(name)
    before = measure(conn)
    print(f"before a vacuum: {before.line()}")
    for name in STREAM_TABLES:
        hw.refresh(name)  # lets go of change rows that were consumed while others needed them
    vacuum(conn)
    after = measure(conn)
    print(f"after it: {after.line()}")
    return after
