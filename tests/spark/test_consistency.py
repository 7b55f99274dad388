"""One cut: whatever is committed while tasks and the driver read, a refresh holds the query at its snapshot.

Writers keep every snapshot in balance: what all accounts hold is what all of them were opened with. They also
write down each version of each row, with its transaction, so that any past snapshot can be computed again.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import psycopg
import pytest
from tests.integration.support import contents, value
from tests.spark.gate import GATE, LONG, Gate, assert_clean, assert_right, until

import headwater
from headwater import Headwater
from headwater.engine.spark import engine, pipeline
from headwater.engine.spark.runtime.session import Runtime

Connection = psycopg.Connection[Any]
Result = TypeVar("Result")

ROUNDS = 1 + int(os.environ.get("HEADWATER_SOAK_SECONDS") or 0) // 20
ACCOUNTS, BRANCHES, PARTS = 2_400, 300, 4
FUNDS = 1_000
PAUSE = 0.01
"""Seconds between two transactions of a writer, so that others get to work too."""

SOURCES = f"""
CREATE TABLE account (id int PRIMARY KEY, branch int NOT NULL, balance bigint NOT NULL, note text);
CREATE TABLE opening (account int PRIMARY KEY, amount bigint NOT NULL);
CREATE TABLE branch (branch int PRIMARY KEY, name text NOT NULL);
CREATE TABLE version (
    seq bigint GENERATED ALWAYS AS IDENTITY, txid xid8 DEFAULT pg_current_xact_id(),
    source text, id int, gone boolean, number bigint, other int, name text
);
CREATE FUNCTION log_account() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO version (source, id, gone, number, other)
    SELECT 'account', r.id, TG_OP = 'DELETE', r.balance, r.branch
    FROM (SELECT (CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END).*) r;
    RETURN NULL;
END $$;
CREATE FUNCTION log_opening() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO version (source, id, gone, number)
    SELECT 'opening', r.account, TG_OP = 'DELETE', r.amount
    FROM (SELECT (CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END).*) r;
    RETURN NULL;
END $$;
CREATE FUNCTION log_branch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO version (source, id, gone, name) VALUES ('branch', NEW.branch, false, NEW.name);
    RETURN NULL;
END $$;
CREATE TRIGGER log AFTER INSERT OR UPDATE OR DELETE ON account FOR EACH ROW EXECUTE FUNCTION log_account();
CREATE TRIGGER log AFTER INSERT OR UPDATE OR DELETE ON opening FOR EACH ROW EXECUTE FUNCTION log_opening();
CREATE TRIGGER log AFTER INSERT OR UPDATE ON branch FOR EACH ROW EXECUTE FUNCTION log_branch();
INSERT INTO branch SELECT b, 'branch ' || b % 20 FROM generate_series(0, {BRANCHES - 1}) AS b;
INSERT INTO account SELECT i, i % {BRANCHES}, {FUNDS}, repeat('x', 100)
FROM generate_series(0, {ACCOUNTS - 1}) AS i;
INSERT INTO opening SELECT i, {FUNDS} FROM generate_series(0, {ACCOUNTS - 1}) AS i;
CREATE FUNCTION passes(id int) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF current_setting('application_name') LIKE 'headwater task%' THEN
        PERFORM pg_advisory_xact_lock_shared({GATE}, id % {PARTS});
    END IF;
    RETURN true;
END $$;
ANALYZE account, opening, branch;
"""
BOOKS = """
SELECT b.name, count(*) AS accounts, sum(a.balance) AS balance, sum(o.amount) AS opened
FROM account a JOIN opening o ON o.account = a.id JOIN branch b ON b.branch = a.branch
WHERE passes(a.id)
GROUP BY b.name
"""
BALANCES = """
SELECT b.name, count(*) AS accounts, sum(a.balance) AS balance
FROM account a JOIN branch b ON b.branch = a.branch WHERE passes(a.id)
GROUP BY b.name
"""
ENTRIES = """
SELECT a.id, b.name, a.balance FROM account a JOIN branch b ON b.branch = a.branch WHERE passes(a.id)
"""
# The same over the versions that a snapshot sees.
PAST = """
WITH seen AS (
    SELECT DISTINCT ON (source, id) * FROM version
    WHERE pg_visible_in_snapshot(txid, %(snapshot)s::pg_snapshot) ORDER BY source, id, seq DESC
), account AS (
    SELECT id, other AS branch, number AS balance FROM seen WHERE source = 'account' AND NOT gone
), opening AS (
    SELECT id AS account, number AS amount FROM seen WHERE source = 'opening' AND NOT gone
), branch AS (
    SELECT id AS branch, name FROM seen WHERE source = 'branch'
)
"""


@pytest.fixture(autouse=True)
def many_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks read what is here, in many parts; also change rows where they are."""
    monkeypatch.setattr(engine, "SMALL_ROWS", 1_000)
    monkeypatch.setattr(pipeline, "PAGES_PER_TASK", 8)
    monkeypatch.setattr(engine, "UNSTAGED_ROWS", 400)


@pytest.fixture
def hw(dsn: str, conn: Connection, spark_runtime: Runtime) -> Iterator[Headwater]:
    conn.execute(SOURCES)
    with headwater.connect(dsn, spark_master="local[2]") as handle:
        yield handle


@pytest.fixture
def gate(dsn: str) -> Iterator[Gate]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield Gate(connection)


class Writers:
    """Transactions without an end, from several connections."""

    def __init__(self, dsn: str, count: int) -> None:
        self._dsn = dsn
        self._enough = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(seed,)) for seed in range(count)]
        self.committed = 0
        self.problems: list[str] = []

    def __enter__(self) -> Writers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        for thread in self._threads:
            thread.join(LONG)

    def commit_more(self, count: int) -> None:
        """Waits until they have committed so many."""
        wanted = self.committed + count
        until(lambda: self.committed >= wanted or self.problems)
        assert not self.problems

    def _write(self, seed: int) -> None:
        chance = random.Random(seed)
        try:
            with psycopg.connect(self._dsn) as conn:
                while not self._enough.is_set():
                    with contextlib.suppress(psycopg.errors.DeadlockDetected), conn.transaction():
                        transaction(conn, chance)
                    self.committed += 1
                    time.sleep(PAUSE)
        except Exception as error:
            self.problems.append(repr(error))


def transaction(conn: Connection, chance: random.Random) -> None:
    """Keeps the balance of all, if not of each."""
    match chance.choices(("transfer", "open", "close", "move", "rename"), weights=(60, 10, 10, 10, 10))[0]:
        case "transfer":
            transfer(conn, chance)
        case "open":
            new = value(conn, "SELECT max(id) + 1 FROM account") + chance.randint(0, 500)
            branch, funds = chance.randrange(BRANCHES), chance.randint(1, 500)
            if not value(conn, "SELECT count(*) FROM account WHERE id = %s", new):
                with contextlib.suppress(psycopg.errors.UniqueViolation), conn.transaction():
                    conn.execute("INSERT INTO account VALUES (%s, %s, %s)", (new, branch, funds))
                    conn.execute("INSERT INTO opening VALUES (%s, %s)", (new, funds))
        case "close":
            closed, heir = (chance.randrange(ACCOUNTS) for _ in range(2))
            if closed != heir:
                close(conn, closed, heir)
        case "move":
            conn.execute(
                "UPDATE account SET branch = %s WHERE id = %s",
                (chance.randrange(BRANCHES), chance.randrange(ACCOUNTS)),
            )
        case _:
            conn.execute(
                "UPDATE branch SET name = 'branch ' || %s WHERE branch = %s",
                (chance.randrange(30), chance.randrange(BRANCHES)),
            )


def transfer(conn: Connection, chance: random.Random) -> None:
    one, other = sorted(chance.sample(range(ACCOUNTS), 2))
    found = conn.execute(
        "SELECT id FROM account WHERE id IN (%s, %s) ORDER BY id FOR UPDATE", (one, other)
    ).fetchall()
    if len(found) == 2:
        amount = chance.randint(-200, 200)
        conn.execute("UPDATE account SET balance = balance + %s WHERE id = %s", (amount, one))
        conn.execute("UPDATE account SET balance = balance - %s WHERE id = %s", (amount, other))


def close(conn: Connection, closed: int, heir: int) -> None:
    """Its heir gets what it holds, and what it was opened with."""
    found = conn.execute(
        "SELECT id, balance FROM account WHERE id IN (%s, %s) ORDER BY id FOR UPDATE", (closed, heir)
    ).fetchall()
    if len(found) == 2:
        conn.execute("DELETE FROM account WHERE id = %s", (closed,))
        (amount,) = conn.execute(
            "DELETE FROM opening WHERE account = %s RETURNING amount", (closed,)
        ).fetchall()[0]
        conn.execute("UPDATE account SET balance = balance + %s WHERE id = %s", (dict(found)[closed], heir))
        conn.execute("UPDATE opening SET amount = amount + %s WHERE account = %s", (amount, heir))


def assert_holds_its_snapshot(conn: Connection, name: str, query: str) -> None:
    """Invariant I1: what is stored is the query at the recorded snapshot, whatever was committed since."""
    snapshot = value(
        conn,
        "SELECT snapshot::text FROM headwater.refresh_history"
        " WHERE stream_table = %s AND snapshot IS NOT NULL ORDER BY id DESC LIMIT 1",
        f"public.{name}",
    )
    rows = conn.execute(
        f"{PAST} SELECT q::text, count(*) FROM ({query}) AS q GROUP BY 1", {"snapshot": snapshot}
    )
    assert contents(conn, name) == Counter(dict(rows.fetchall()))


def assert_balanced(conn: Connection) -> None:
    accounts, balance, opened = conn.execute(
        "SELECT sum(accounts), sum(balance), sum(opened) FROM books"
    ).fetchall()[0]
    assert accounts > 0
    assert balance == opened


def slowly(
    gate: Gate, writers: Writers, work: Callable[[], Result], late: Connection | None = None
) -> Result:
    """Does something through the gate, which opens part by part, with commits while tasks are reading."""
    with gate.held(work) as future:
        if late is not None:
            late.commit()
        for number in range(PARTS):
            until(lambda: gate.waiting() or future.done())
            writers.commit_more(5)
            gate.open(number)
        return future.result(LONG)


@pytest.mark.parametrize(
    ("name", "query"),
    [
        ("balances", BALANCES),
        pytest.param("books", BOOKS, marks=pytest.mark.slow),
        pytest.param("entries", ENTRIES, marks=pytest.mark.slow),
    ],
)
def test_a_load_and_deltas_among_writers(
    hw: Headwater, conn: Connection, gate: Gate, dsn: str, name: str, query: str
) -> None:
    with Writers(dsn, 2) as writers:
        slowly(gate, writers, lambda: hw.create(name, query, engine="spark"))
        assert hw.history(name)[0].engine == "spark"
        assert_holds_its_snapshot(conn, name, query)
        for number in range(ROUNDS):
            with psycopg.connect(dsn) as late:
                # Written before the refresh takes its snapshot, committed while that is read.
                late.execute("UPDATE branch SET name = name || '!' WHERE branch %% 3 = %s", (number % 3,))
                transfer(late, random.Random(number))
                conn.execute("UPDATE branch SET name = name || '?' WHERE branch %% 3 <> %s", (number % 3,))
                outcome = slowly(gate, writers, lambda: hw.refresh(name)[-1], late)
            assert (outcome.engine, outcome.action) == ("spark", "delta")
            assert_holds_its_snapshot(conn, name, query)
            if name == "books":
                assert_balanced(conn)
    assert not writers.problems
    hw.refresh(name)
    assert_right(hw, name)
    assert_holds_its_snapshot(conn, name, query)
    assert hw.verify(name).equal
    assert_clean(conn)
