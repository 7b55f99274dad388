"""Refreshes on Spark that stop in the middle, at a gate, until a test has done what it wants to do to them.

A source's predicate calls a function that, in a task, waits for an advisory lock that the test holds. So
tasks stand still within their COPY for as long as it takes, and no test depends on time.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import psycopg
from tests.integration.support import contents, stored_and_wanted, value

from headwater import Headwater
from headwater.catalog import jobs
from headwater.catalog.stream_tables import EngineName

Connection = psycopg.Connection[Any]
Result = TypeVar("Result")

LONG = 120.0
"""Seconds after which a test gives up; nothing is asserted about the time it takes."""
GATE = 4_242
ITEMS, KINDS, ITEMS_PER_GATE = 3_000, 600, 500
FINISH_GATE = ITEMS // ITEMS_PER_GATE
GATES = FINISH_GATE + 1
FIRST = 4_243

SOURCES = f"""
CREATE TABLE item (id int PRIMARY KEY, kind int NOT NULL, amount bigint NOT NULL, note text);
CREATE TABLE kind (kind int PRIMARY KEY, label text NOT NULL);
INSERT INTO item SELECT i, i % {KINDS}, i * 7 % 1000, repeat('x', 150)
FROM generate_series(0, {ITEMS - 1}) AS i;
INSERT INTO kind SELECT k, 'kind ' || k % 50 FROM generate_series(0, {KINDS - 1}) AS k;
CREATE FUNCTION passes(id int) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF current_setting('application_name') LIKE 'headwater task%' THEN
        PERFORM pg_advisory_xact_lock_shared({GATE}, id / {ITEMS_PER_GATE});
    END IF;
    RETURN true;
END $$;
CREATE FUNCTION finishes(n bigint) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF current_setting('application_name') LIKE 'headwater task%'
       AND pg_try_advisory_xact_lock({FIRST}, 0) THEN
        PERFORM pg_advisory_xact_lock_shared({GATE}, {FINISH_GATE});
    END IF;
    RETURN n;
END $$;
ANALYZE item, kind;
"""
TOTALS = (
    "SELECT k.label, count(*) AS items, sum(i.amount) AS total FROM item i JOIN kind k ON k.kind = i.kind"
    " WHERE passes(i.id) GROUP BY k.label"
)
# The first task that finishes rows waits, with all of its input behind it.
FINISHED = (
    "SELECT k.label, finishes(count(*)) AS items, sum(i.amount) AS total FROM item i"
    " JOIN kind k ON k.kind = i.kind GROUP BY k.label"
)
LISTED = "SELECT i.id, k.label, i.amount FROM item i JOIN kind k ON k.kind = i.kind WHERE passes(i.id)"

# Changes so many rows of one side of the join that tasks read all of the other.
MANY_CHANGES = "UPDATE kind SET label = label || '+' WHERE kind % 2 = 0"


# Refreshes what it is told, with a Spark of its own, and says how that went.
CHILD = """
import json, subprocess, sys
import headwater
from headwater.engine.spark import engine, pipeline

engine.SMALL_ROWS = 1_000
for line in sys.stdin:
    wanted = json.loads(line)
    try:
        if "shell" in wanted:
            subprocess.run(wanted["shell"], shell=True, check=True)
            said = {}
        elif "margin" in wanted:
            pipeline.LONGEST_MARGIN_MS = wanted["margin"]
            said = {}
        else:
            with headwater.connect(sys.argv[1], **wanted["settings"]) as hw:
                outcome = hw.refresh(wanted["refresh"], engine=wanted["engine"], full=wanted["full"])[-1]
            said = {"engine": outcome.engine, "action": outcome.action, "reason": outcome.engine_reason}
    except headwater.HeadwaterError as error:
        said = {"error": type(error).__name__, "message": error.message, "detail": error.detail}
    print(json.dumps(said), flush=True)
"""


class Child:
    """Another process that refreshes."""

    def __init__(self, dsn: str, *prefix: str, scratch: Path | None = None) -> None:
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-c", CHILD, dsn],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(scratch)} if scratch is not None else None,
        )

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(LONG)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def tell(self, **wanted: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(wanted) + "\n")
        self.process.stdin.flush()

    def refresh(
        self, name: str, settings: dict[str, str], *, engine: EngineName = "spark", full: bool = False
    ) -> None:
        self.tell(refresh=name, engine=engine, full=full, settings=settings)

    def answer(self) -> dict[str, str]:
        assert self.process.stdout is not None
        said: dict[str, str] = json.loads(self.process.stdout.readline())
        return said


class Gate:
    """The lock that tasks wait for, over a connection of its own."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def close(self) -> None:
        for number in range(GATES):
            self.connection.execute("SELECT pg_advisory_lock(%s, %s)", (GATE, number))

    def open(self, number: int | None = None) -> None:
        """One part of it, or all of it for good."""
        if number is None:
            with contextlib.suppress(psycopg.OperationalError):  # of a server that is gone
                self.connection.execute("SELECT pg_advisory_unlock_all()")
        else:
            self.connection.execute("SELECT pg_advisory_unlock(%s, %s)", (GATE, number))

    def waiting(self) -> list[int]:
        """The backends that wait."""
        rows = self.connection.execute(
            "SELECT DISTINCT pid FROM pg_locks WHERE locktype = 'advisory' AND classid = %s AND NOT granted"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
            (GATE,),
        )
        return [row[0] for row in rows]

    @contextlib.contextmanager
    def held(self, work: Callable[[], Result], tasks: int = 1) -> Iterator[Future[Result]]:
        """Work in a thread, with so many tasks at the closed gate; afterwards it is open."""
        self.close()
        with ThreadPoolExecutor(max_workers=1) as pool:
            try:
                future = pool.submit(work)
                until(lambda: len(self.waiting()) >= tasks or future.done())
                if future.done():
                    raise AssertionError(f"it did not come to the gate: {future.result()}")
                yield future
            finally:
                self.open()


def until(condition: Callable[[], object]) -> None:
    """Waits for a condition; fails when that takes much too long."""
    deadline = time.monotonic() + LONG
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("this never came to be")
        time.sleep(0.02)


def jobs_left(conn: Connection) -> dict[str, int]:
    """What jobs leave while they live, and must not leave when they are gone."""
    here = "(SELECT oid FROM pg_database WHERE datname = current_database())"
    queries = {
        "jobs": "SELECT count(*) FROM headwater.job",
        "parts": "SELECT count(*) FROM headwater.job_part",
        "tables": "SELECT count(*) FROM pg_class WHERE relnamespace = 'headwater_data'::regnamespace"
        " AND relkind = 'r' AND (relname ~ '^job_' OR relname ~ '_successor')",
        "locks": f"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = {jobs.JOB_LOCK}"
        f" AND database = {here}",
        "temporary files": "SELECT count(*) FROM pg_ls_tmpdir()",
    }
    return {what: count for what, query in queries.items() if (count := value(conn, query))}


def backends(conn: Connection) -> Counter[str]:
    """What Headwater's connections do, by their names."""
    rows = conn.execute(
        "SELECT application_name || ': ' || coalesce(state, '') FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name LIKE 'headwater%'"
    )
    return Counter(row[0] for row in rows)


def activity(conn: Connection) -> list[tuple[Any, ...]]:
    """What each of them did last, for whoever reads a failure."""
    return conn.execute(
        "SELECT pid, application_name, state, wait_event, now() - state_change, left(query, 200)"
        " FROM pg_stat_activity WHERE datname = current_database()"
    ).fetchall()


def assert_clean(conn: Connection, *, handles: int = 1) -> None:
    """Nothing is left of any job, and no connection but those of the handles, which do nothing.

    A connection that a task lost is gone when the server has noticed.
    """
    expected = Counter({"headwater: idle": handles} if handles else {})
    with contextlib.suppress(TimeoutError):
        until(lambda: backends(conn) == expected and not jobs_left(conn))
    found = backends(conn)
    assert found == expected, f"{found}: {activity(conn)}"
    left = jobs_left(conn)
    assert left == {}, left


def assert_right(hw: Headwater, *names: str) -> None:
    """Invariant I1 where nobody writes: the stream tables hold what their queries give."""
    for name in names:
        stored, wanted = stored_and_wanted(hw, name)
        assert stored == wanted


def state(conn: Connection, name: str) -> tuple[Counter[str], Counter[str]]:
    """The rows of a stream table and its frontier: what a refresh that failed must not touch."""
    return contents(conn, name), contents(conn, "headwater.frontier")
