"""Errors of every class that only a delta meets lead to recomputing; what the query raises is reported."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from tests.integration.support import assert_fresh, refresh, value
from tests.sqlstates import CODES, LEFT, RECOMPUTED, raising

import headwater
from headwater import Headwater, HeadwaterError, StreamTable
from headwater.db.connection import RETRYABLE
from headwater.engine.base import Engine
from headwater.engine.postgres.engine import PostgresEngine

pytestmark = pytest.mark.usefixtures("driver_only")

Connection = psycopg.Connection[Any]

TABLES = """
CREATE TABLE a (id int PRIMARY KEY, k int, v int, code text);
CREATE TABLE b (k int, v int);
INSERT INTO a VALUES (1, 1, 10, 'P0001'), (2, 2, 20, 'P0001');
INSERT INTO b VALUES (1, 1), (2, 2), (3, 3);
CREATE FUNCTION public.checked(v int, code text) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
    IF v < 0 THEN RAISE EXCEPTION '% is negative', v USING ERRCODE = code; END IF;
    RETURN v;
END $$;
"""
JOINED = "SELECT a.id, public.checked(a.v + b.v, a.code) AS r FROM a JOIN b ON b.k = a.k"
# Both rows change at once: a term joins the new one with the other as it was, and those were never together.
NEVER_TOGETHER = """
UPDATE b SET v = 1000 WHERE k = 1;
UPDATE a SET v = -500, code = '{code}' WHERE id = 1;
"""
TOGETHER = "UPDATE a SET v = -5000, code = '{code}' WHERE id = 1"
BACK = ("UPDATE a SET v = 10 WHERE id = 1", "UPDATE b SET v = 1 WHERE k = 1")


@pytest.fixture(autouse=True)
def tables(conn: Connection) -> None:
    conn.execute(TABLES)


def frontier(conn: Connection) -> str:
    return str(value(conn, "SELECT snapshot::text FROM headwater.frontier"))


def to_be_rebuilt(conn: Connection) -> str | None:
    found: str | None = value(conn, "SELECT rebuild_reason FROM headwater.stream_table")
    return found


def set_back(hw: Headwater, conn: Connection) -> None:
    """The data as it was at the beginning, taken in one by one."""
    for statement in BACK:
        conn.execute(statement)
        hw.refresh("st")
    assert hw.refresh("st")[-1].action == "nothing"


@pytest.mark.parametrize("mode", ["auto", "differential"])
def test_an_error_that_only_the_delta_meets(hw: Headwater, conn: Connection, mode: Any) -> None:
    hw.create("st", JOINED, mode=mode)
    for code in RECOMPUTED:
        conn.execute(NEVER_TOGETHER.format(code=code))
        outcome = refresh(hw, "st")
        assert (outcome.action, outcome.sqlstate, outcome.rows_in) == ("recompute", code, 4), code
        assert outcome.reason == (
            f"its delta met an error that the query itself need not meet: -499 is negative (SQLSTATE {code})"
        )
        entry = hw.history("st")[0]
        assert (entry.status, entry.reason, entry.sqlstate) == ("completed", outcome.reason, code)
        assert entry.abandoned_ms is not None
        assert entry.abandoned_ms > 0
        assert entry.error is None
        assert_fresh(hw, "st")
        assert to_be_rebuilt(conn) is None
        set_back(hw, conn)
        assert hw.history("st")[0].action == "delta"
    assert not [entry for entry in hw.history(limit=1000) if entry.status == "failed"]


def test_an_error_of_the_query_itself(hw: Headwater, conn: Connection) -> None:
    """It is reported as often as it is met, changes nothing, and is gone with its cause."""
    hw.create("st", JOINED)
    for code in RECOMPUTED:
        before = conn.execute("SELECT * FROM st ORDER BY id").fetchall(), frontier(conn)
        conn.execute(TOGETHER.format(code=code))
        for _ in range(2):
            with pytest.raises(HeadwaterError, match="-4999 is negative") as caught:
                hw.refresh("st")
            assert getattr(caught.value.__cause__, "sqlstate", None) == code
            [entry] = hw.history("st", limit=1)
            assert (entry.status, entry.sqlstate) == ("failed", code)
            assert (conn.execute("SELECT * FROM st ORDER BY id").fetchall(), frontier(conn)) == before
        conn.execute("UPDATE a SET v = 10 WHERE id = 1")
        assert refresh(hw, "st").action == "recompute"
        assert_fresh(hw, "st")
        conn.execute("UPDATE a SET v = 10 WHERE id = 1; UPDATE a SET v = v + 1 WHERE id = 2")
        assert refresh(hw, "st").action == "delta"
        assert_fresh(hw, "st")


def test_an_error_that_says_nothing_about_the_data(hw: Headwater, conn: Connection, dsn: str) -> None:
    """It fails this refresh, and nothing is recomputed for it."""
    hw.create("st", JOINED)
    for code in LEFT:
        conn.execute(NEVER_TOGETHER.format(code=code))
        with headwater.connect(dsn, lock_attempts="2") as other, pytest.raises(HeadwaterError):
            other.refresh("st")
        assert hw.history("st")[0].sqlstate == code
        assert to_be_rebuilt(conn) is None
        for statement in BACK:
            conn.execute(statement)
        hw.refresh("st")
        assert hw.history("st")[0].action in ("load", "delta"), code
        assert_fresh(hw, "st")


# Functions that raise an error of the server's own for a negative value.
BODIES = {
    "0A000": "DELETE FROM public.b;",
    "20000": "CASE v WHEN 1 THEN NULL; END CASE;",
    "21000": "v := (SELECT x FROM pg_catalog.generate_series(1, 2) AS x);",
    "22012": "v := v / 0;",
    "22P02": "v := 'x'::int;",
    "23514": "PERFORM v::public.positive;",
    "2D000": "COMMIT;",
    "2F005": "RETURN;",
    "34000": "CLOSE n;",
    "42P03": "OPEN c; OPEN c;",
    "42703": "EXECUTE 'SELECT nothing FROM public.a';",
    "42P01": "EXECUTE 'SELECT 1 FROM public.nowhere';",
    "54000": "PERFORM pg_catalog.repeat('x', 1100000000);",
    "54001": "RETURN public.own(v);",
    "55000": "v := r.nothing;",
    "P0002": "SELECT 1 INTO STRICT v WHERE false;",
    "P0003": "SELECT 1 INTO STRICT v FROM pg_catalog.generate_series(1, 2);",
    "P0004": "ASSERT false;",
}
OWN = """
CREATE OR REPLACE FUNCTION public.own(v int) RETURNS int IMMUTABLE LANGUAGE plpgsql
    SET search_path = public AS $$
DECLARE c CURSOR FOR SELECT 1; n refcursor := 'nowhere'; r record;
BEGIN
    IF v < 0 THEN {body} END IF;
    {last}
END $$;
"""


@pytest.mark.parametrize("code", BODIES)
def test_errors_of_functions(hw: Headwater, conn: Connection, code: str) -> None:
    ends_early = code == "2F005"
    body = "NULL;" if ends_early else BODIES[code]
    last = "IF v >= 0 THEN RETURN v; END IF;" if ends_early else "RETURN v;"
    conn.execute("CREATE DOMAIN public.positive AS int CHECK (VALUE > 0)")
    conn.execute(OWN.format(body=body, last=last))
    hw.create("st", "SELECT a.id, public.own(a.v + b.v) AS r FROM a JOIN b ON b.k = a.k")
    conn.execute(NEVER_TOGETHER.format(code=""))
    outcome = refresh(hw, "st")
    assert (outcome.action, outcome.sqlstate) == ("recompute", code)
    assert_fresh(hw, "st")
    set_back(hw, conn)
    assert hw.history("st")[0].action == "delta"


def test_a_subquery_with_several_rows_that_were_never_there_together(hw: Headwater, conn: Connection) -> None:
    hw.create("st", "SELECT a.id, (SELECT b.v FROM b WHERE b.k = a.k) AS x FROM a", mode="differential")
    conn.execute("UPDATE a SET k = 3 WHERE id = 1; INSERT INTO b VALUES (1, 5)")
    outcome = refresh(hw, "st")
    assert (outcome.action, outcome.sqlstate) == ("recompute", "21000")
    assert_fresh(hw, "st")
    conn.execute("UPDATE b SET v = v + 1")
    assert refresh(hw, "st").action == "delta"
    conn.execute("INSERT INTO b VALUES (2, 5)")
    with pytest.raises(HeadwaterError, match="more than one row"):
        hw.refresh("st")
    conn.execute("DELETE FROM b WHERE v = 5 AND k = 2")
    hw.refresh("st")
    assert_fresh(hw, "st")


def test_a_domain_refuses_what_only_a_delta_has(hw: Headwater, conn: Connection) -> None:
    conn.execute("CREATE DOMAIN public.positive AS int CHECK (VALUE > 0)")
    query = "SELECT a.id, (a.v + b.v)::public.positive AS r FROM a JOIN b ON b.k = a.k"
    hw.create("st", query, mode="differential")
    conn.execute(NEVER_TOGETHER.format(code=""))
    assert refresh(hw, "st").sqlstate == "23514"
    assert_fresh(hw, "st")


def test_one_of_several_in_a_transaction(hw: Headwater, conn: Connection) -> None:
    hw.create("st", JOINED)
    hw.create("reader", "SELECT count(*) AS n, sum(r) AS r FROM st")
    conn.execute(NEVER_TOGETHER.format(code="P0001"))
    first, reader = hw.refresh("reader")
    assert (first.action, first.sqlstate) == ("recompute", "P0001")
    assert (reader.action, reader.sqlstate) == ("delta", None)
    assert_fresh(hw, "st")
    assert_fresh(hw, "reader")


def test_verify_recomputes_for_a_delta_that_fails(hw: Headwater, conn: Connection) -> None:
    hw.create("st", JOINED)
    hw.create("reader", "SELECT count(*) AS n, sum(r) AS r FROM st")
    conn.execute(NEVER_TOGETHER.format(code="P0001"))
    found = hw.verify("st")
    assert found.equal
    assert "its delta met an error" in found.note
    assert hw.verify("reader").equal
    assert to_be_rebuilt(conn) is None
    assert len(hw.history("st")) == 1


# What each method of an engine is called for.
BY_METHOD = {
    "bag": "SELECT a.id, a.v + b.v AS r FROM a JOIN b ON b.k = a.k",
    "states": "SELECT k, sum(v) AS v FROM a GROUP BY k",
    "groups": "SELECT k, array_agg(v ORDER BY id) AS vs FROM a GROUP BY k",
    "whole": "SELECT id, v FROM a ORDER BY v, id LIMIT 3",
}
METHODS = [name for name, member in vars(Engine).items() if callable(member) and not name.startswith("_")]


@pytest.fixture
def by_method(hw: Headwater, conn: Connection) -> dict[str, StreamTable]:
    return {name: hw.create(name, query, engine="postgres") for name, query in BY_METHOD.items()}


@pytest.mark.usefixtures("in_steps")
@pytest.mark.parametrize("method", METHODS)
def test_each_method_of_the_engine(
    hw: Headwater,
    conn: Connection,
    by_method: dict[str, StreamTable],
    method: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whichever method meets an error: a new one is tested by itself, and needs a query that calls it."""
    monkeypatch.setattr("headwater.refresh.decide.passed_over", lambda failures: 0)
    name = next(name for name in BY_METHOD if _calls(hw, conn, name, method, monkeypatch))
    for code in CODES:
        called: list[str] = []
        conn.execute("UPDATE a SET v = v + 1")
        with monkeypatch.context() as patched:
            original = getattr(PostgresEngine, method)
            patched.setattr(PostgresEngine, method, raising(hw.connection, code, called, original))
            if code in LEFT and code not in RETRYABLE:
                with pytest.raises(HeadwaterError):
                    hw.refresh(name)
                assert hw.history(name)[0].sqlstate == code
            else:
                outcome = refresh(hw, name)
                recomputed = ("recompute", code) if code in RECOMPUTED else ("delta", None)
                assert (outcome.action, outcome.sqlstate) == recomputed
                assert_fresh(hw, name)
        assert called
    conn.execute("UPDATE a SET v = v + 1")
    refresh(hw, name)
    assert_fresh(hw, name)


def _calls(hw: Headwater, conn: Connection, name: str, method: str, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a delta of a stream table calls a method of the engine."""
    called: list[str] = []
    conn.execute("UPDATE a SET v = v + 1")
    with monkeypatch.context() as patched:
        original = getattr(PostgresEngine, method)
        patched.setattr(PostgresEngine, method, raising(hw.connection, "P0001", called, original))
        refresh(hw, name)
    conn.execute("UPDATE a SET v = v + 1")
    refresh(hw, name)
    return bool(called)


def test_deltas_that_fail_again_and_again_are_tried_ever_more_seldom(
    hw: Headwater, conn: Connection, dsn: str
) -> None:
    """The refreshes that try one are the first, second, fourth, eighth, and so on, in whichever process."""
    query = "SELECT k, array_agg(public.checked(v, code)) FILTER (WHERE v >= 0) AS vs FROM a GROUP BY k"
    hw.create("st", query)
    tried = []
    for number in range(1, 18):
        conn.execute("INSERT INTO a VALUES (%s, 1, -1, 'P0001')", (100 + number,))
        if number % 3:
            outcome = refresh(hw, "st")
        else:
            with headwater.connect(dsn) as other:
                outcome = refresh(other, "st")
            hw.close()
            hw = headwater.connect(dsn)
        assert outcome.action == "recompute"
        assert_fresh(hw, "st")
        if outcome.sqlstate is not None:
            tried.append(number)
        else:
            assert "deltas in a row met errors" in outcome.reason
    assert tried == [1, 2, 4, 8, 16]
    conn.execute("DELETE FROM a WHERE v < 0")
    for number in range(200, 215):
        conn.execute("INSERT INTO a VALUES (%s, 1, 1, 'P0001')", (number,))
        outcome = refresh(hw, "st")
    assert outcome.action == "delta"
    conn.execute("INSERT INTO a VALUES (300, 1, -1, 'P0001')")
    assert refresh(hw, "st").sqlstate == "P0001"  # which was long ago: it is tried at once
    hw.close()


# The plan evaluates the subquery before the filter: for the second table's rows that come twice, too.
FILTERED = """
SELECT a.k, sum((SELECT b.v FROM b WHERE b.k = a.k)) FILTER (WHERE a.v > 0) AS s FROM a GROUP BY a.k
"""
TWICE = "INSERT INTO b VALUES (7, 1), (7, 2); INSERT INTO a VALUES (7, 7, 0, '')"


@pytest.mark.parametrize("mode", ["auto", "differential"])
def test_a_plan_that_cannot_load_what_the_query_gives(hw: Headwater, conn: Connection, mode: Any) -> None:
    conn.execute(TWICE)
    hw.create("st", FILTERED, mode=mode)
    hw.create("reader", "SELECT count(*) AS n, sum(s) AS s FROM st")
    assert_fresh(hw, "st")
    entry = hw.history("st")[0]
    assert (entry.action, entry.status, entry.sqlstate) == ("load", "completed", "21000")
    assert entry.reason.startswith("it was created; its plan met an error that the query itself does not:")
    for sqlstate in ("21000", None, "21000", None, None, None, "21000"):  # in which refreshes it is tried
        conn.execute("UPDATE b SET v = v + 1")
        outcome, _ = hw.refresh("reader")
        assert (outcome.action, outcome.sqlstate) == ("recompute", sqlstate)
        assert_fresh(hw, "st")
        assert_fresh(hw, "reader")
        assert hw.verify("st").equal
    conn.execute("DELETE FROM b WHERE k = 7")
    for action in (*["recompute"] * 7, "recompute", "delta"):  # the last but one is by the plan, for the last
        conn.execute("UPDATE b SET v = v + 1")
        outcome, _ = hw.refresh("reader")
        assert (outcome.action, outcome.sqlstate) == (action, None)
        assert_fresh(hw, "st")
        assert_fresh(hw, "reader")


def test_a_plan_that_cannot_recompute_what_the_query_gives(hw: Headwater, conn: Connection) -> None:
    hw.create("st", FILTERED)
    conn.execute("CREATE INDEX st_k ON headwater_data.st_1 (k)")
    conn.execute(TWICE)
    outcome = refresh(hw, "st")
    assert (outcome.action, outcome.sqlstate) == ("recompute", "21000")
    assert "its delta met an error" in outcome.reason
    assert "its plan met an error" in outcome.reason
    assert_fresh(hw, "st")
    assert value(conn, "SELECT count(*) FROM pg_indexes WHERE indexname = 'st_k'") == 1
    conn.execute("UPDATE a SET v = 1 WHERE id = 7")
    before = conn.execute("SELECT * FROM st ORDER BY k").fetchall()
    with pytest.raises(HeadwaterError, match="more than one row"):
        hw.refresh("st")
    assert conn.execute("SELECT * FROM st ORDER BY k").fetchall() == before
    conn.execute("UPDATE a SET v = 0 WHERE id = 7")
    refresh(hw, "st")
    assert_fresh(hw, "st")


def test_another_query_whose_plan_cannot_load_it(hw: Headwater, conn: Connection) -> None:
    conn.execute(TWICE)
    hw.create("st", "SELECT k, sum(v) AS s FROM a GROUP BY k")
    hw.create("st", FILTERED, or_replace=True, cascade=True)
    assert hw.history("st")[0].sqlstate == "21000"
    assert_fresh(hw, "st")
    conn.execute("DELETE FROM b WHERE k = 7 AND v = 1")
    assert refresh(hw, "st").sqlstate is None
    conn.execute("UPDATE b SET v = v + 1")
    assert refresh(hw, "st").action == "delta"
    assert_fresh(hw, "st")


def test_what_cannot_be_kept_of_a_query_is_not(hw: Headwater, conn: Connection) -> None:
    """The query evaluates the groups that it asks for; what is kept would have all of them."""
    query = """
    SELECT b.k, g.s FROM b JOIN (SELECT k, sum(100 / v) AS s FROM a GROUP BY k) AS g ON g.k = b.k
    WHERE g.k >= 0
    """
    hw.set("keep_inner", "always")
    hw.create("st", query, mode="differential")
    kept = "SELECT count(*) FROM pg_tables WHERE tablename LIKE 'st\\_%\\_kept%'"
    assert value(conn, kept) == 1
    conn.execute("INSERT INTO a VALUES (3, -1, 0, ''), (4, 1, 5, '')")
    outcome = refresh(hw, "st")
    assert (outcome.action, outcome.sqlstate) == ("recompute", "22012")
    assert_fresh(hw, "st")
    assert value(conn, kept) == 0
    conn.execute("INSERT INTO a VALUES (6, 1, 5, '')")
    assert refresh(hw, "st").action == "delta"
    assert_fresh(hw, "st")
    hw.create("another", query, mode="differential")
    assert hw.history("another")[0].sqlstate is None
    assert_fresh(hw, "another")
