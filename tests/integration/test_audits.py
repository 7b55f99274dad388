"""Stream tables are compared with their queries when loaded, when recomputed, and from time to time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from tests.integration.support import assert_fresh, change_rows, value

from headwater import Headwater
from headwater.catalog import stream_tables as catalog
from headwater.config import Settings
from headwater.db.connection import connect
from headwater.db.queries import query
from headwater.db.route import Route
from headwater.definition import reader
from headwater.definition.reader import DefinitionReader
from headwater.engine.select import EngineSelector
from headwater.errors import ConnectionFailed, NotIncremental
from headwater.inspect import audit
from headwater.inspect.audit import Auditor, Turn
from headwater.plan.build import parse
from headwater.plan.operators import Node, Select, children, with_children
from headwater.refresh import compare
from headwater.refresh.transaction import Refresher

Connection = psycopg.Connection[Any]

QUERIES = {
    "bag": "SELECT id, v FROM t WHERE v > 10",
    "algebra": "SELECT k, count(*) AS n, sum(v) AS total FROM t WHERE v > 10 GROUP BY k",
    "having": "SELECT k, count(*) AS n FROM t WHERE v > 10 GROUP BY k HAVING count(*) > 1",
    "keyed groups": "SELECT k, count(DISTINCT v) AS n FROM t WHERE v > 10 GROUP BY k",
    "keyed": "SELECT id, rank() OVER (PARTITION BY k ORDER BY v) AS r FROM t WHERE v > 10",
    "distinct": "SELECT DISTINCT k FROM t WHERE v > 38",
}


def forgetful(node: Node) -> Node:
    """A plan that reads past its conditions."""
    made = with_children(node, [forgetful(child) for child in children(node)])
    return replace(made, predicates=()) if isinstance(made, Select) else made


class Planner:
    """The planner, which can be made to drop conditions and to be right again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wrong = True
        real = parse.parse_query

        def parsed(*arguments: Any) -> Any:
            found: Any = real(*arguments)
            return replace(found, root=forgetful(found.root)) if self.wrong and found.root else found

        monkeypatch.setattr(reader, "parse_query", parsed)


@pytest.fixture
def planner(monkeypatch: pytest.MonkeyPatch) -> Planner:
    return Planner(monkeypatch)


@pytest.fixture
def t(conn: Connection) -> None:
    conn.execute("CREATE TABLE t (id int PRIMARY KEY, k int, v int)")
    conn.execute("INSERT INTO t SELECT n, n % 4, n FROM generate_series(1, 40) n")


@pytest.fixture
def auditor(dsn: str) -> Iterator[Auditor]:
    """An auditor as the service has it."""
    with connect(dsn) as connection:
        yield auditor_over(connection, dsn)


def auditor_over(connection: Any, dsn: str, clock: Any = lambda: 0.0, **settings: str) -> Auditor:
    given = replace(Settings(), **settings)  # type: ignore[arg-type]
    refresher = Refresher(
        connection, given, DefinitionReader(connection), EngineSelector(Route.given(dsn, None, {}, {}))
    )
    return Auditor(connection, given, refresher, clock)


def audited(auditor: Auditor, hw: Headwater, name: str = "st") -> Turn:
    return auditor.turn(catalog.find(hw.connection, name).id)


def corrupt(conn: Connection, hw: Headwater, change: str, name: str = "st") -> None:
    conn.execute(change.format(f"headwater_data.st_{catalog.find(hw.connection, name).id}").encode())


def stored_rows(hw: Headwater) -> int:
    """Those that users do not see included."""
    return int(
        value(hw.connection, f"SELECT count(*) FROM headwater_data.st_{catalog.find(hw.connection, 'st').id}")
    )


# loading


@pytest.mark.parametrize("kind", QUERIES)
def test_a_plan_that_drops_a_condition_is_caught_when_it_is_created(
    hw: Headwater, conn: Connection, t: None, planner: Planner, kind: str
) -> None:
    found = hw.create("st", QUERIES[kind])
    assert (found.mode, found.requested_mode) == ("full", "auto")
    assert "are not those of its query" in found.mode_reasons[0]
    assert_fresh(hw, "st")
    [incident] = hw.audits()
    assert (incident.stream_table, incident.found_by, incident.status) == ("public.st", "load", "held")
    assert incident.missing or incident.surplus
    assert "v" in incident.query
    assert "t" in incident.plan
    conn.execute("INSERT INTO t VALUES (41, 1, 3), (42, 1, 41), (43, 1, 42)")
    assert hw.refresh("st")[-1].action == "recompute"
    assert_fresh(hw, "st")


@pytest.mark.parametrize("kind", QUERIES)
def test_a_plan_that_is_right_is_used(hw: Headwater, t: None, kind: str) -> None:
    found = hw.create("st", QUERIES[kind])
    assert found.mode == "differential"
    assert found.load_check == f"compared with its query: all {stored_rows(hw)} rows"
    assert hw.audits() == []


def test_a_plan_that_is_wrong_is_refused_where_deltas_were_asked_for(
    hw: Headwater, conn: Connection, t: None, planner: Planner
) -> None:
    with pytest.raises(NotIncremental, match="are not those of its query") as caught:
        hw.create("st", QUERIES["bag"], mode="differential")
    assert "mode auto or full" in caught.value.hint
    assert hw.list() == []
    [incident] = hw.audits()
    assert (incident.stream_table, incident.status) == ("public.st", "dropped")


def test_a_wrong_plan_of_another_query_is_caught(
    hw: Headwater, conn: Connection, t: None, planner: Planner
) -> None:
    planner.wrong = False
    assert hw.create("st", QUERIES["bag"]).mode == "differential"
    planner.wrong = True
    found = hw.alter("st", query=QUERIES["bag"].replace("10", "20"))
    assert found.mode == "full"
    assert [(incident.stream_table, incident.status) for incident in hw.audits("st")] == [
        ("public.st", "held")
    ]
    assert_fresh(hw, "st")
    planner.wrong = False
    assert hw.alter("st", query=QUERIES["bag"].replace("10", "30")).mode == "differential"
    assert_fresh(hw, "st")


@pytest.mark.parametrize("kind", ["bag", "algebra", "keyed groups"])
def test_a_full_refresh_with_a_plan_that_became_wrong_heals(
    hw: Headwater, dsn: str, conn: Connection, t: None, planner: Planner, kind: str
) -> None:
    """As a version would that misreads a query which the one before it read right."""
    planner.wrong = False
    hw.create("st", QUERIES[kind])
    planner.wrong = True
    with Headwater(dsn) as another:  # which has not read the definition yet
        outcome = another.refresh("st", full=True)[-1]
        assert outcome.action == "recompute"
        assert_fresh(another, "st")
        assert another.status("st").mode == "full"


def test_storage_that_was_changed_is_healed_by_a_full_refresh(
    hw: Headwater, conn: Connection, t: None
) -> None:
    for kind, name in (("bag", "bag"), ("algebra", "groups")):
        hw.create(name, QUERIES[kind])
        column = "v" if kind == "bag" else "total"
        corrupt(conn, hw, f"UPDATE {{}} SET {column} = {column} + 1", name)
        hw.refresh(name, full=True)
        assert_fresh(hw, name)
    assert hw.audits() == []


def test_large_results_are_compared_by_a_checksum_and_dear_ones_by_a_sample(
    hw: Headwater, conn: Connection, t: None, planner: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    planner.wrong = False
    monkeypatch.setattr(compare, "MOST_ROWS", 5)
    assert (
        hw.create("summed", QUERIES["bag"]).load_check == "compared with its query: a checksum over 30 rows"
    )
    planner.wrong = True
    assert hw.create("summed_up_wrong", QUERIES["bag"].replace("10", "11")).mode == "full"
    planner.wrong = False
    monkeypatch.setattr(compare, "DEAREST", 0.0)
    check = hw.create("sampled", QUERIES["bag"].replace("10", "12")).load_check
    assert check == "compared with its query: a sample of 28 keys"
    planner.wrong = True
    found = hw.create("sampled_wrong", QUERIES["algebra"].replace("10", "13"))
    assert found.mode == "full"
    assert_fresh(hw, "sampled_wrong")


def test_every_type_has_a_checksum(hw: Headwater, conn: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "MOST_ROWS", 0)
    conn.execute(
        "CREATE TABLE every (id int, f float8, r real, n numeric, j json, b jsonb, p point, v tsvector,"
        " a float8[], c char(5), i interval, x bit(3), m money, t timestamptz, z bytea)"
    )
    conn.execute(
        "INSERT INTO every VALUES (1, 'NaN', '-Infinity', '1.00', '{\"a\": 1}', '[1]', '(1,2)', 'a b',"
        " '{1,NULL}', 'a', '1 day', '101', '1.5', 'infinity', '\\x00')"
    )
    conn.execute("INSERT INTO every (id, f, r, n) VALUES (2, 1e308, 1e-30, 'NaN'), (3, 0.1, '-0', '-0.0')")
    checked = "compared with its query: a checksum over 3 rows"
    assert hw.create("st", "SELECT * FROM every").load_check == checked
    sums = "SELECT n, sum(f) AS f, min(t) AS t, array_agg(id ORDER BY id) AS a FROM every GROUP BY n"
    assert hw.create("sums", sums).load_check == checked


def test_what_a_query_leaves_open_is_no_incident(
    hw: Headwater, dsn: str, conn: Connection, t: None, auditor: Auditor
) -> None:
    """As the order in which an aggregate without ORDER BY takes its rows."""
    hw.create("st", "SELECT k, array_agg(v) AS all_v FROM t GROUP BY k")
    hw.create("first", "SELECT id, row_number() OVER (PARTITION BY k) AS n FROM t")
    corrupt(conn, hw, "UPDATE {} SET all_v = array(SELECT unnest(all_v) ORDER BY 1 DESC)")
    corrupt(conn, hw, "UPDATE {} SET n = 11 - n", "first")
    assert audited(auditor, hw).result.startswith("equal: 4 rows differ in the order")
    assert audited(auditor, hw, "first").result.startswith("equal: 40 rows differ: its query does not say")
    assert hw.audits() == []
    corrupt(conn, hw, "UPDATE {} SET all_v = all_v || 7")
    assert audited(auditor, hw).result.startswith("different")


# audits


@pytest.mark.parametrize("kind", QUERIES)
def test_an_audit_finds_no_fault_in_what_is_right(
    hw: Headwater, conn: Connection, t: None, auditor: Auditor, kind: str
) -> None:
    hw.create("st", QUERIES[kind])
    conn.execute("DELETE FROM t WHERE id % 7 = 0")
    waiting = change_rows(conn, "t")
    before = hw.status("st").frontier
    assert audited(auditor, hw) == Turn(stream_table="public.st", slices=1, finished=True, result="equal")
    assert change_rows(conn, "t") == waiting
    assert hw.status("st").frontier == before
    assert hw.status("st").audit_result == "equal"
    assert hw.audits() == []


def test_a_difference_is_recorded_healed_and_held_until_the_definition_changes(
    hw: Headwater, conn: Connection, t: None, auditor: Auditor
) -> None:
    hw.create("st", QUERIES["algebra"])
    hw.create("reader", "SELECT k, total FROM st WHERE total > 0")
    corrupt(conn, hw, "UPDATE {} SET total = total + 1 WHERE k = 2")
    conn.execute("INSERT INTO t VALUES (41, 1, 100)")
    turn = audited(auditor, hw)
    assert turn.result == "different: 1 rows are missing and 1 are wrong"
    assert_fresh(hw, "st")
    found = hw.status("st")
    assert (found.mode, found.requested_mode) == ("full", "auto")
    assert found.reason is not None
    assert f"incident {turn.incident}" in found.reason
    [incident] = hw.audits("st")
    assert (incident.id, incident.found_by, incident.status) == (turn.incident, "audit", "held")
    assert incident.columns == ["k", "n", "total"]
    assert [row[0] for row in incident.surplus] == ["2"]
    assert [row[0] for row in incident.missing] == ["2"]
    assert incident.changes["public.t"][-1]["w"] == 1
    assert incident.server_version == value(conn, "SHOW server_version")
    assert value(conn, "SELECT incident_count FROM headwater.health_summary()") == 1
    assert value(conn, "SELECT status FROM headwater.audits") == "held"
    hw.refresh("reader")
    assert_fresh(hw, "reader")

    conn.execute("INSERT INTO t VALUES (42, 1, 100)")
    assert hw.refresh("st")[-1].action == "recompute"
    with pytest.raises(NotIncremental, match=f"incident {turn.incident}"):
        hw.alter("st", mode="differential")
    assert hw.alter("st", mode="auto").mode == "full"

    hw.alter("st", query=QUERIES["algebra"].replace("10", "9"))
    assert hw.status("st").mode == "differential"
    conn.execute("INSERT INTO t VALUES (43, 1, 100)")
    assert hw.refresh("st")[-1].action == "delta"
    assert_fresh(hw, "st")


def test_another_meaning_of_a_view_that_is_read_releases_it(
    hw: Headwater, conn: Connection, t: None, auditor: Auditor
) -> None:
    conn.execute("CREATE VIEW chosen AS SELECT * FROM t WHERE v > 5")
    hw.create("st", "SELECT k, sum(v) AS total FROM chosen GROUP BY k")
    corrupt(conn, hw, "DELETE FROM {} WHERE k = 2")
    assert audited(auditor, hw).incident is not None
    assert hw.refresh("st")[-1].mode == "full"
    conn.execute("CREATE OR REPLACE VIEW chosen AS SELECT * FROM t WHERE v > 6")
    hw.refresh("st")
    assert hw.status("st").mode == "differential"
    assert [incident.status for incident in hw.audits()] == ["released"]
    assert value(conn, "SELECT incident_count FROM headwater.health_summary()") == 0
    assert_fresh(hw, "st")


def test_another_version_releases_it_and_tries_its_own_plan(
    hw: Headwater, dsn: str, conn: Connection, t: None, planner: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    hw.create("st", QUERIES["algebra"], mode="auto")
    assert hw.status("st").mode == "full"
    for module in ("incidents", "dependencies"):
        monkeypatch.setattr(f"headwater.refresh.{module}.version", lambda: "0.2.0")
    hw.refresh("st")  # by a version that is as wrong
    assert hw.status("st").mode == "full"
    assert hw.audits()[0].version == "0.2.0"
    assert [incident.status for incident in hw.audits()] == ["held", "released"]
    for module in ("incidents", "dependencies"):
        monkeypatch.setattr(f"headwater.refresh.{module}.version", lambda: "0.3.0")
    planner.wrong = False
    with Headwater(dsn) as later:  # which reads the definition anew
        later.refresh("st")
        assert later.status("st").mode == "differential"
        conn.execute("INSERT INTO t VALUES (43, 1, 100)")
        assert later.refresh("st")[-1].action == "delta"
        assert_fresh(later, "st")


def test_what_deltas_get_wrong_is_found(hw: Headwater, conn: Connection, t: None, auditor: Auditor) -> None:
    """A writer whose changes are not captured, as one is that switches triggers off for its session."""
    hw.create("st", QUERIES["bag"])
    conn.execute(
        "SET session_replication_role = replica; INSERT INTO t VALUES (50, 1, 50), (51, 1, 51); RESET ALL"
    )
    assert audited(auditor, hw).result == "different: 2 rows are missing and 0 are wrong"
    assert_fresh(hw, "st")


def test_a_stream_table_that_must_be_recomputed_first_is_postponed(
    hw: Headwater, conn: Connection, t: None, auditor: Auditor
) -> None:
    hw.create("st", QUERIES["bag"])
    conn.execute("TRUNCATE t")
    assert audited(auditor, hw).result.startswith("postponed: its next refresh recomputes it")
    assert hw.audits() == []
    hw.alter("st", mode="full")
    assert audited(auditor, hw).result == "postponed: it is recomputed at each refresh"


# slices


@pytest.fixture
def large(hw: Headwater, conn: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream table of ten slices, the last of which has the NULLs."""
    monkeypatch.setattr(audit, "SLICE_ROWS", 100)
    conn.execute("CREATE TABLE large (id int PRIMARY KEY, name text, v int)")
    conn.execute("INSERT INTO large SELECT n, 'name ' || n, n % 5 FROM generate_series(1, 950) n")
    conn.execute("ANALYZE large")
    hw.create("st", "SELECT name, id, v FROM large")


def test_a_large_stream_table_is_compared_in_slices_by_the_column_that_costs_least(
    hw: Headwater, dsn: str, conn: Connection, large: None
) -> None:
    with connect(dsn) as connection:
        ticking = iter(range(1000))
        auditor = auditor_over(connection, dsn, lambda: float(next(ticking)), audit_budget="3s")
        turns = [audited(auditor, hw) for _ in range(4)]
    assert [turn.slices for turn in turns] == [3, 3, 3, 1]
    assert [turn.finished for turn in turns] == [False, False, False, True]
    assert turns[-1].result == "equal"
    assert value(conn, "SELECT slices FROM headwater.audit") == 10


def test_each_slice_is_compared_whatever_its_place(
    hw: Headwater, conn: Connection, large: None, auditor: Auditor
) -> None:
    for number, change in enumerate(
        (
            "UPDATE {} SET v = 7 WHERE id = 1",
            "DELETE FROM {} WHERE id = 500",
            "UPDATE {} SET id = NULL WHERE id = 950",
            "INSERT INTO {} (name, id, v) VALUES ('x', 1000000, 1)",
            "INSERT INTO {} (name, id, v) VALUES ('x', -1000000, 1)",
        )
    ):
        corrupt(conn, hw, change)
        assert audited(auditor, hw).result.startswith("different"), change
        assert_fresh(hw, "st")
        hw.alter("st", query=f"SELECT name, id, v FROM large WHERE v > {-number - 1}")
        assert hw.status("st").mode == "differential"


def test_an_audit_goes_on_where_one_that_was_killed_stopped(
    hw: Headwater, dsn: str, conn: Connection, large: None
) -> None:
    number = catalog.find(hw.connection, "st").id
    with connect(dsn) as connection:
        looks = iter(range(1000))

        def clock() -> float:
            if next(looks) == 4:  # after as many slices
                conn.execute("SELECT pg_terminate_backend(%s)", (connection.info.backend_pid,))
            return 0.0

        with pytest.raises(ConnectionFailed):
            auditor_over(connection, dsn, clock).turn(number)
    row = conn.execute("SELECT slice, slice_column, after FROM headwater.audit").fetchone()
    assert row == (4, "id", "400")
    corrupt(conn, hw, "UPDATE {} SET v = 7 WHERE id = 1")  # behind it: for the next audit to find
    conn.execute("INSERT INTO large VALUES (951, 'late', 1)")
    with connect(dsn) as connection:
        turn = auditor_over(connection, dsn).turn(number)
        assert (turn.slices, turn.result) == (6, "equal")
        assert auditor_over(connection, dsn).turn(number).result.startswith("different")


def test_a_slice_that_takes_too_long_is_given_up(hw: Headwater, dsn: str, conn: Connection, t: None) -> None:
    conn.execute(
        "CREATE FUNCTION slow(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS"
        " 'BEGIN PERFORM pg_sleep(0.01); RETURN $1; END'"
    )
    hw.create("st", "SELECT id, public.slow(v) AS v FROM t")
    with connect(dsn) as connection:
        turn = audited(auditor_over(connection, dsn, audit_budget="1ms"), hw)
    assert turn.result == "postponed: a slice takes much longer than audit_budget"
    assert hw.audits() == []


def test_an_audit_holds_up_no_refresh_between_its_slices(
    hw: Headwater, dsn: str, conn: Connection, large: None
) -> None:
    """Refreshes come between any two slices, and the audit still compares each at its own snapshot."""
    number = catalog.find(hw.connection, "st").id
    refreshed = []

    def between() -> float:
        conn.execute("UPDATE large SET v = v + 1 WHERE id % 10 = 0")
        refreshed.append(hw.refresh("st")[-1].action)
        return 0.0

    with connect(dsn) as connection:
        turn = auditor_over(connection, dsn, between).turn(number)
    assert (turn.finished, turn.result) == (True, "equal")
    assert refreshed
    assert set(refreshed) <= {"delta", "recompute"}


# when


def due(conn: Connection, seconds: float) -> Any:
    return conn.execute(query("audit", "due"), {"seconds": seconds}).fetchone()


def test_audits_are_spread_over_the_interval(hw: Headwater, conn: Connection, t: None) -> None:
    for number in range(8):
        hw.create(f"st{number}", f"SELECT id FROM t WHERE v > {number}")
    conn.execute("UPDATE headwater.stream_table SET created_at = now() - interval '2 days'")
    seen = []
    while (found := due(conn, 86400)[0]) is not None:
        seen.append(found)
        conn.execute("UPDATE headwater.audit SET audited_at = now() WHERE stream_table_id = %s", (found,))
    assert len(seen) == 8
    phases = conn.execute(
        "SELECT count(DISTINCT (hashint8(id) & 2147483647) / 268435456) FROM headwater.stream_table"
    ).fetchone()
    assert phases is not None
    assert phases[0] > 2  # of eight parts of the interval


def test_what_is_not_audited(hw: Headwater, conn: Connection, t: None) -> None:
    hw.create("recomputed", "SELECT id FROM t", mode="full")
    hw.create("suspended", "SELECT id FROM t")
    hw.suspend("suspended")
    conn.execute("UPDATE headwater.stream_table SET created_at = now() - interval '2 days'")
    assert due(conn, 60)[0] is None
    hw.resume("suspended")
    assert due(conn, 60)[0] == catalog.find(hw.connection, "suspended").id


# who may see it


def test_monitoring_roles_see_incidents_but_no_rows_of_users(
    hw: Headwater, dsn: str, conn: Connection, t: None, planner: Planner, new_role: Any
) -> None:
    hw.create("st", QUERIES["bag"])
    name, their_dsn = new_role()
    conn.execute(f"GRANT pg_monitor TO {name}".encode())
    with psycopg.connect(their_dsn, autocommit=True) as theirs:
        assert value(theirs, "SELECT stream_table FROM headwater.audits") == "public.st"
        assert value(theirs, "SELECT incident_count FROM headwater.health_summary()") == 1
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            theirs.execute("SELECT surplus FROM headwater.audits")
