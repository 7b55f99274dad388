"""What users ask for in SQL: recorded, carried out by the service, answered with its result or its error."""

from __future__ import annotations

import itertools
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from tests.integration.support import WAITING_IS_LONG, assert_fresh, in_background, tick, value

import headwater
from headwater import Headwater, config
from headwater.catalog.cleanup import clean_up
from headwater.config import Settings
from headwater.db.scratch import statement
from headwater.embedded import Installation
from headwater.errors import InvalidSetting
from headwater.service.requests import MOST_ATTEMPTS, REQUEST_LOCK, SQLSTATES, VERBS, Requests, sqlstate_of

Connection = psycopg.Connection[Any]

SUMS = "SELECT region, sum(amount) AS total FROM sales GROUP BY region"
SECURITY = Path(__file__).parents[2] / "docs" / "operations" / "security.md"
OTHER_PROCESS = """
import sys, threading, headwater
from headwater.service.requests import Requests
Requests(lambda: headwater.connect(sys.argv[1])).run(threading.Event())
"""


@pytest.fixture
def sales(conn: Connection) -> None:
    conn.execute("CREATE TABLE sales (id int PRIMARY KEY, region text, amount int)")
    conn.execute("INSERT INTO sales VALUES (1, 'north', 10), (2, 'south', 7)")


@contextmanager
def answering(dsn: str, threads: int = 1) -> Iterator[None]:
    """The part of a service that answers."""
    stop = threading.Event()
    parts = [
        threading.Thread(target=Requests(lambda: headwater.connect(dsn)).run, args=(stop,))
        for _ in range(threads)
    ]
    for part in parts:
        part.start()
    try:
        yield
    finally:
        stop.set()
        with psycopg.connect(dsn, autocommit=True) as waking:
            waking.execute("NOTIFY headwater_requests")
        for part in parts:
            part.join()


@pytest.fixture
def service(dsn: str) -> Iterator[None]:
    with answering(dsn):
        yield


def call(conn: Connection, procedure: str, *arguments: Any, **named: Any) -> list[str]:
    """Calls a procedure; what it notes."""
    said: list[str] = []

    def note(diagnostic: psycopg.errors.Diagnostic) -> None:
        said.append(str(diagnostic.message_primary))

    conn.add_notice_handler(note)
    try:
        conn.execute(statement(f"CALL headwater.{procedure}({given(arguments, named)})"))
    finally:
        conn.remove_notice_handler(note)
    return said


def ask(conn: Connection, verb: str, *arguments: Any, **named: Any) -> int:
    """The number of a request that is only recorded."""
    return int(value(conn, f"SELECT headwater.request_{verb}_stream_table({given(arguments, named)})"))


def given(arguments: tuple[Any, ...], named: dict[str, Any]) -> str:
    parts: list[sql.Composable] = [sql.Literal(argument) for argument in arguments]
    parts += [sql.SQL("{} => {}").format(statement(name), sql.Literal(item)) for name, item in named.items()]
    return sql.SQL(", ").join(parts).as_string()


def refused(conn: Connection, procedure: str, *arguments: Any, **named: Any) -> psycopg.errors.Diagnostic:
    with pytest.raises(psycopg.Error) as caught:
        call(conn, procedure, *arguments, **named)
    return caught.value.diag


def status(conn: Connection, number: int) -> tuple[str, int]:
    row = conn.execute("SELECT status, attempt FROM headwater.request_status(%s)", [number]).fetchone()
    assert row is not None
    return str(row[0]), int(row[1])


def until_answered(conn: Connection, number: int) -> str:
    until(lambda: status(conn, number)[0] not in ("pending", "running"))
    return status(conn, number)[0]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAITING_IS_LONG
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# the verbs


@pytest.mark.usefixtures("sales", "service")
def test_a_life_by_procedures(hw: Headwater, conn: Connection) -> None:
    said = call(
        conn, "create_stream_table", "sums", SUMS, schedule="1s", refresh_mode="DIFFERENTIAL", tier="cold"
    )
    assert said == ["created public.sums: active, mode differential"]
    assert_fresh(hw, "sums")
    found = hw.status("sums")
    assert (found.schedule, found.requested_mode, found.tier) == ("1s", "differential", "cold")

    conn.execute("INSERT INTO sales VALUES (3, 'north', 1)")
    assert call(conn, "refresh_stream_table", "sums") == [
        "refreshed public.sums: delta, 1 change row in public.sales"
    ]
    assert_fresh(hw, "sums")
    assert "recompute" in call(conn, "refresh_stream_table", "sums", full=True)[0]

    call(
        conn,
        "alter_stream_table",
        "sums",
        query=f"{SUMS} HAVING sum(amount) > 7",
        tier="auto",
        no_schedule=True,
    )
    assert_fresh(hw, "sums")
    assert (hw.status("sums").tier, hw.status("sums").schedule) == (None, None)

    call(conn, "suspend_stream_table", "sums", "the load runs")
    assert (hw.status("sums").status, hw.status("sums").suspended_reason) == ("suspended", "the load runs")
    error = refused(conn, "refresh_stream_table", "sums")
    assert (error.sqlstate, error.message_primary) == ("55000", "public.sums is suspended")
    assert error.message_detail == "the load runs"
    assert "CALL headwater.resume_stream_table('public.sums')" in str(error.message_hint)
    call(conn, "resume_stream_table", "sums")
    call(conn, "refresh_stream_table", "sums")

    assert call(conn, "drop_stream_table", "sums") == ["dropped public.sums"]
    assert hw.list() == []
    rows = conn.execute("SELECT verb, status, attempt FROM headwater.requests ORDER BY id").fetchall()
    verbs = ["create", "refresh", "refresh", "alter", "suspend", "refresh", "resume", "refresh", "drop"]
    assert [row[0] for row in rows] == verbs
    assert [row[1] for row in rows] == ["done"] * 5 + ["failed"] + ["done"] * 3
    assert {row[2] for row in rows} == {1}


@pytest.mark.usefixtures("sales", "service")
def test_errors_of_the_service_are_raised_as_they_are(hw: Headwater, conn: Connection) -> None:
    call(conn, "create_stream_table", "sums", SUMS)
    call(conn, "create_stream_table", "above", "SELECT region FROM sums WHERE total > 5")
    error = refused(conn, "create_stream_table", "sums", SUMS)
    assert (error.sqlstate, error.message_hint) == ("42P07", "choose another name, or drop it first")
    assert error.message_detail is None
    error = refused(conn, "create_stream_table", "wrong", "SELECT nothing FROM sales")
    assert error.sqlstate == "42703"  # the server's own
    error = refused(conn, "create_stream_table", "r", "SELECT random() AS r", refresh_mode="differential")
    assert error.sqlstate == "0A000"
    error = refused(conn, "drop_stream_table", "sums")
    assert error.sqlstate == "2BP01"
    assert "public.above" in f"{error.message_primary} {error.message_detail}"
    assert error.message_hint
    assert refused(conn, "drop_stream_table", "nowhere").sqlstate == "42P01"
    assert call(conn, "drop_stream_table", "nowhere", if_exists=True) == ["there is no stream table nowhere"]
    recorded = conn.execute(
        "SELECT error, sqlstate FROM headwater.requests WHERE verb = 'drop' AND id = 6"
    ).fetchall()
    assert len(recorded) == 1
    assert recorded[0][1] == "2BP01"
    assert [found.stream_table for found in hw.list()] == ["public.sums", "public.above"]


def test_what_can_be_checked_is_refused_at_once(conn: Connection) -> None:
    """There is no service, and nothing is left for one."""
    for arguments, word in (
        (("", SUMS), "name"),
        ((None, SUMS), "name"),
        (("sums", "  "), "query"),
        (("sums", None), "query"),
        (("sums", SUMS, None, "sometimes"), "refresh_mode"),
        (("sums", SUMS, None, "auto", "flink"), "engine"),
        (("sums", SUMS, None, "auto", "auto", "lukewarm"), "tier"),
    ):
        error = refused(conn, "create_stream_table", *arguments)
        assert error.sqlstate == "22023"
        assert word in str(error.message_primary)
        assert error.message_hint
    assert value(conn, "SELECT count(*) FROM headwater.requests") == 0


def test_every_error_of_ours_has_a_code_and_every_verb_is_carried_out(conn: Connection) -> None:
    for kind, code in SQLSTATES.items():
        assert sqlstate_of(kind("it failed")) == code
        assert len(code) == 5
    check = value(
        conn,
        "SELECT pg_get_constraintdef(oid) FROM pg_constraint"
        " WHERE conrelid = 'headwater.request'::regclass AND conname = 'request_verb_check'",
    )
    assert set(re.findall(r"'(\w+)'", check)) == set(VERBS)


# transaction blocks


@pytest.mark.usefixtures("sales", "service")
def test_a_procedure_in_a_transaction_block(hw: Headwater, conn: Connection) -> None:
    for verb, arguments in (("create", ("sums", SUMS)), ("drop", ("sums",))):
        with pytest.raises(psycopg.errors.ActiveSqlTransaction) as caught, conn.transaction():
            call(conn, f"{verb}_stream_table", *arguments)
        assert f"headwater.request_{verb}_stream_table(…)" in str(caught.value.diag.message_hint)
    with pytest.raises(psycopg.errors.ActiveSqlTransaction):
        conn.execute(statement(f"SELECT 1; CALL headwater.create_stream_table('sums', $${SUMS}$$)"))
    assert value(conn, "SELECT count(*) FROM headwater.requests") == 0
    assert hw.list() == []


@pytest.mark.usefixtures("sales", "service")
def test_a_request_inside_a_transaction_block(dsn: str, hw: Headwater, conn: Connection) -> None:
    with psycopg.connect(dsn) as asking:
        asking.execute("CREATE TABLE returns (id int, amount int)")
        number = ask(asking, "create", "given_back", "SELECT sum(amount) AS total FROM returns")
        assert value(conn, "SELECT count(*) FROM headwater.requests") == 0, "it is not committed"
        asking.commit()
    assert until_answered(conn, number) == "done"
    result = value(conn, "SELECT result FROM headwater.requests WHERE id = %s", number)
    assert (result["stream_table"], result["mode"]) == ("public.given_back", "differential")
    assert_fresh(hw, "given_back")
    with psycopg.connect(dsn) as asking:
        ask(asking, "drop", "given_back")
        asking.rollback()
    assert value(conn, "SELECT count(*) FROM headwater.requests") == 1


@pytest.mark.usefixtures("sales", "service")
def test_from_psql(dsn: str, installation: Installation, hw: Headwater) -> None:
    psql = installation.bin_dir / "psql"
    if not psql.exists():
        pytest.skip("there is no psql")

    def run(*commands: str) -> subprocess.CompletedProcess[str]:
        arguments = [part for command in commands for part in ("-c", command)]
        return subprocess.run(
            [psql, "-X", "-v", "ON_ERROR_STOP=1", dsn, *arguments], capture_output=True, text=True, timeout=60
        )

    made = run(f"CALL headwater.create_stream_table('sums', $${SUMS}$$, schedule => '1s')")
    assert (made.returncode, made.stdout.strip()) == (0, "CALL")
    assert "NOTICE:  created public.sums: active, mode differential" in made.stderr
    assert_fresh(hw, "sums")
    again = run(f"CALL headwater.create_stream_table('sums', $${SUMS}$$)")
    assert again.returncode == 1
    assert "ERROR:  a stream table public.sums exists already\nHINT:  choose another name" in again.stderr
    inside = run("BEGIN", "CALL headwater.refresh_stream_table('sums')")
    assert "cannot be called inside a transaction block" in inside.stderr
    assert "HINT:" in inside.stderr


# who answers


@pytest.mark.usefixtures("sales")
def test_without_a_service_a_request_waits_for_one(dsn: str, hw: Headwater, conn: Connection) -> None:
    error = refused(conn, "create_stream_table", "sums", SUMS, wait="10ms")
    number = value(conn, "SELECT id FROM headwater.requests")
    assert error.sqlstate == "55000"
    assert f"request {number} waits for one" in str(error.message_primary)
    assert "headwater serve" in str(error.message_hint)
    assert f"headwater.request_status({number})" in str(error.message_hint)
    assert status(conn, number) == ("pending", 0)
    with answering(dsn):
        assert until_answered(conn, number) == "done"
    assert_fresh(hw, "sums")


@pytest.mark.usefixtures("sales")
def test_who_waits_for_a_service_holds_nothing(dsn: str, conn: Connection) -> None:
    """A scheduler that ticks is a reason to wait; no transaction and no old snapshot is open meanwhile."""
    tick(conn)
    with psycopg.connect(dsn, autocommit=True) as asking:
        pid = asking.info.backend_pid
        with in_background(lambda: call(asking, "create_stream_table", "sums", SUMS, wait="0s")) as asked:
            until(lambda: bool(value(conn, "SELECT count(*) FROM headwater.requests")) or asked.done())
            for _ in range(3):
                young = value(conn, "SELECT pg_current_xact_id()::text::bigint")
                until(lambda young=young: holds_nothing(conn, pid, young))  # type: ignore[misc]
                assert not asked.done()
            with answering(dsn):
                assert asked.result(timeout=60)


def holds_nothing(conn: Connection, pid: int, young: int) -> bool:
    """Whether a backend has no snapshot older than a transaction; it must never have one of its own."""
    row = conn.execute(
        "SELECT backend_xid IS NULL, coalesce(age(backend_xmin) <= age(%s::text::xid), true)"
        " FROM pg_stat_activity WHERE pid = %s",
        (young, pid),
    ).fetchone()
    assert row is not None
    assert row[0], "it has a transaction"
    return bool(row[1])


@pytest.mark.usefixtures("sales", "service")
def test_a_broken_connection_is_made_anew(conn: Connection, hw: Headwater) -> None:
    call(conn, "create_stream_table", "sums", SUMS)
    listening = "query = 'LISTEN headwater_requests' OR application_name = 'headwater'"
    own = value(hw.connection, "SELECT pg_backend_pid()")
    ended = value(
        conn,
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
        f" WHERE datname = current_database() AND pid NOT IN (pg_backend_pid(), %s) AND ({listening})",
        own,
    )
    assert ended == 1
    conn.execute("INSERT INTO sales VALUES (3, 'east', 1)")
    call(conn, "refresh_stream_table", "sums", wait="1min")
    assert_fresh(hw, "sums")


@pytest.mark.usefixtures("sales")
def test_a_request_whose_process_was_killed_is_taken_up_again(
    dsn: str, hw: Headwater, conn: Connection
) -> None:
    number = ask(conn, "create", "sums", SUMS)
    with psycopg.connect(dsn) as holder:
        holder.execute("LOCK TABLE sales IN ROW EXCLUSIVE MODE")  # creating waits for writers
        with subprocess.Popen([sys.executable, "-c", OTHER_PROCESS, dsn]) as other:
            waits = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid)))"
            until(lambda: bool(value(conn, waits, holder.info.backend_pid)) or other.poll() is not None)
            assert status(conn, number) == ("running", 1)
            other.send_signal(signal.SIGKILL)
    with answering(dsn):
        assert until_answered(conn, number) == "done"
    assert status(conn, number)[1] >= 2
    assert_fresh(hw, "sums")


@pytest.mark.usefixtures("sales")
def test_what_was_done_and_not_answered_is_not_done_twice(dsn: str, hw: Headwater, conn: Connection) -> None:
    """A process that dies between the work and the answer leaves a running request without a lock."""
    created = ask(conn, "create", "sums", SUMS)
    hw.create("sums", SUMS)
    dropped = ask(conn, "drop", "gone")
    foreign = ask(conn, "create", "other", SUMS)
    conn.execute("CREATE TABLE other ()")
    poison = ask(conn, "refresh", "sums")
    conn.execute("UPDATE headwater.request SET status = 'running', attempt = 1, picked_at = now()")
    conn.execute("UPDATE headwater.request SET attempt = %s WHERE id = %s", (MOST_ATTEMPTS, poison))
    with answering(dsn):
        assert [until_answered(conn, number) for number in (created, dropped)] == ["done", "done"]
        assert until_answered(conn, foreign) == "failed"
        assert until_answered(conn, poison) == "failed"
    assert value(conn, "SELECT sqlstate FROM headwater.requests WHERE id = %s", foreign) == "42P07"
    assert "was given up" in value(conn, "SELECT error FROM headwater.requests WHERE id = %s", poison)
    assert [found.stream_table for found in hw.list()] == ["public.sums"]


@pytest.mark.usefixtures("sales")
def test_requests_for_one_stream_table_keep_their_order(dsn: str, hw: Headwater, conn: Connection) -> None:
    """Also when several threads answer; those for different ones need not wait for each other."""
    with conn.transaction():
        for name in ("first", "second", "third"):
            ask(conn, "create", name, SUMS)
            ask(conn, "suspend", name)
            ask(conn, "resume", name)
            ask(conn, "alter", name, tier="warm")
            last = ask(conn, "drop" if name == "third" else "refresh", name)
    with answering(dsn, threads=3):
        assert until_answered(conn, last) == "done"
        until(lambda: not value(conn, "SELECT count(*) FROM headwater.requests WHERE finished_at IS NULL"))
    assert value(conn, "SELECT count(*) FROM headwater.requests WHERE status <> 'done' OR attempt <> 1") == 0
    for name in ("first", "second", "third"):
        times = conn.execute(
            "SELECT picked_at, finished_at FROM headwater.requests WHERE stream_table = %s ORDER BY id",
            [name],
        ).fetchall()
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(times))
    left = {(found.stream_table, found.tier) for found in hw.list()}
    assert left == {("public.first", "warm"), ("public.second", "warm")}


# how names are read, and rights


@pytest.mark.usefixtures("service")
def test_names_are_looked_up_as_who_asks_would(hw: Headwater, conn: Connection) -> None:
    conn.execute('CREATE SCHEMA "A b"; CREATE SCHEMA other')
    conn.execute('CREATE TABLE "A b".items (at timestamptz); CREATE TABLE other.items (wrong int)')
    conn.execute("""SET search_path = "A b", other; SET TimeZone = 'Asia/Tokyo'""")
    conn.execute("INSERT INTO items VALUES ('2026-01-01 20:00+00')")
    call(conn, "create_stream_table", "days", "SELECT date_trunc('day', at)::date::text AS day FROM items")
    assert value(conn, 'SELECT day FROM "A b".days') == "2026-01-02"
    call(conn, "refresh_stream_table", "days")
    call(conn, "create_stream_table", "named", "SELECT tableoid::regclass::text AS name FROM items")
    assert (
        value(conn, "SELECT name FROM named") == "items"
    )  # not '"A b".items', as the service would write it
    conn.execute("SET search_path = other")
    assert refused(conn, "refresh_stream_table", "days").sqlstate == "42P01"
    call(conn, "refresh_stream_table", '"A b".days')
    # What one asked for is not left behind for the next.
    conn.execute("RESET search_path; RESET TimeZone")
    assert refused(conn, "refresh_stream_table", "days").sqlstate == "42P01"
    assert hw.list()[0].stream_table == '"A b".days'


@pytest.mark.usefixtures("sales", "service")
def test_names_and_queries_never_become_other_sql(hw: Headwater, conn: Connection) -> None:
    conn.execute("CREATE TABLE victim ()")
    hostile = "x'; DROP TABLE victim; --"
    for procedure, arguments in (
        ("create_stream_table", (hostile, SUMS)),
        ("create_stream_table", ("sums", f"{SUMS}; DROP TABLE victim")),
        ("create_stream_table", ("sums", SUMS, hostile)),
        ("drop_stream_table", (hostile,)),
        ("refresh_stream_table", ('public"."sums',)),
        ("suspend_stream_table", (hostile, hostile)),
    ):
        assert refused(conn, procedure, *arguments).sqlstate in ("42601", "42602", "22023")
    call(conn, "create_stream_table", '"x\'; DROP TABLE victim; --"', SUMS)
    call(conn, "suspend_stream_table", '"x\'; DROP TABLE victim; --"', hostile)
    assert value(conn, "SELECT to_regclass('victim') IS NOT NULL")
    assert hw.list()[0].suspended_reason == hostile


@pytest.mark.usefixtures("sales", "service")
def test_a_users_own_functions_and_operators_are_not_called(
    hw: Headwater, conn: Connection, new_role: Callable[[], tuple[str, str]]
) -> None:
    """Those that a search_path puts before PostgreSQL's, in what runs with the rights of the owner."""
    role, role_dsn = new_role()
    hw.create("sums", SUMS)
    allow(conn, role)
    conn.execute(statement(f"CREATE SCHEMA trap; GRANT USAGE ON SCHEMA trap TO {role}"))
    conn.execute("CREATE TABLE trap.caught (who text); GRANT INSERT ON trap.caught TO PUBLIC")
    for name, arguments, returns in (
        ("current_setting", "text", "text"),
        ("jsonb_build_object", "VARIADIC text[]", "jsonb"),
        ("concat", "VARIADIC text[]", "text"),
        ("pg_sleep", "double precision", "void"),
    ):
        conn.execute(
            statement(
                f"CREATE FUNCTION trap.{name}({arguments}) RETURNS {returns} LANGUAGE plpgsql AS"
                " $$ BEGIN INSERT INTO trap.caught VALUES (current_user); RETURN NULL; END $$"
            )
            if returns != "void"
            else statement(
                f"CREATE FUNCTION trap.{name}({arguments}) RETURNS void LANGUAGE plpgsql AS"
                " $$ BEGIN INSERT INTO trap.caught VALUES (current_user); END $$"
            )
        )
    conn.execute(
        "CREATE FUNCTION trap.same(text, text) RETURNS boolean LANGUAGE plpgsql AS"
        " $$ BEGIN INSERT INTO trap.caught VALUES (current_user); RETURN false; END $$;"
        " CREATE OPERATOR trap.= (LEFTARG = text, RIGHTARG = text, FUNCTION = trap.same)"
    )
    with psycopg.connect(role_dsn, autocommit=True) as asking:
        asking.execute("SET search_path = trap, pg_catalog, public")
        call(asking, "refresh_stream_table", "public.sums")
        assert until_answered(conn, ask(asking, "refresh", "sums")) == "done"
        with pytest.raises(psycopg.errors.ActiveSqlTransaction), asking.transaction():
            call(asking, "refresh_stream_table", "sums")
    assert conn.execute("TABLE trap.caught").fetchall() == []


def allow(conn: Connection, role: str) -> None:
    """What the documentation says to grant to who may refresh, suspend and resume."""
    found = re.search(r"<!-- granting -->\n```sql\n(.*?)```", SECURITY.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    conn.execute(statement(re.sub(r"\bann\b", role, found.group(1))))


@pytest.mark.usefixtures("sales", "service")
def test_rights(hw: Headwater, conn: Connection, new_role: Callable[[], tuple[str, str]]) -> None:
    hw.create("sums", SUMS)
    role, role_dsn = new_role()
    with psycopg.connect(role_dsn, autocommit=True) as asking:
        conn.execute(statement(f"GRANT USAGE ON SCHEMA headwater TO {role}"))
        denied = [
            "CALL headwater.refresh_stream_table('sums')",
            "CALL headwater.create_stream_table('mine', 'SELECT 1 AS a')",
            "SELECT headwater.request_drop_stream_table('sums')",
            "SELECT headwater.record_request('drop', '{\"name\": \"sums\"}', 'public', 'UTC')",
            "SELECT headwater.set_config('drain', 'on')",
            "SELECT headwater.drain()",
            "SELECT headwater.resume()",
            "SELECT * FROM headwater.request_status(1)",
            "TABLE headwater.request",
        ]
        for text in denied:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                asking.execute(statement(text))
        allow(conn, role)
        conn.execute("INSERT INTO sales VALUES (3, 'east', 1)")
        assert "delta" in call(asking, "refresh_stream_table", "sums")[0]
        for text in denied[1:7]:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                asking.execute(statement(text))
    assert conn.execute("SELECT verb, requested_by FROM headwater.requests").fetchall() == [("refresh", role)]
    assert_fresh(hw, "sums")


# settings, drain and what is forgotten


def test_settings_in_sql_take_what_the_program_takes(hw: Headwater, conn: Connection) -> None:
    values = [
        "1",
        "-1",
        "0",
        "1_000",
        "99999999999",
        "1.5",
        "5m",
        "0ms",
        "0s",
        "1 h",
        "30d",
        "1w",
        "on",
        "OFF",
    ]
    values += ["never", "auto", "", "1'; DROP TABLE x"]
    accepted = 0
    for name, given_value in itertools.product(config.RULES, values):
        if config.RULES[name].text is not None or not config.RULES[name].stored:
            with pytest.raises(psycopg.errors.FeatureNotSupported):
                conn.execute("SELECT headwater.set_config(%s, %s)", (name, given_value))
            continue
        try:
            wanted = config.written(config.checked(name, given_value))
        except InvalidSetting:
            with pytest.raises(psycopg.errors.InvalidParameterValue):
                conn.execute("SELECT headwater.set_config(%s, %s)", (name, given_value))
        else:
            accepted += 1
            assert value(conn, "SELECT headwater.set_config(%s, %s)", name, given_value) == wanted
            shown = {setting.name: setting for setting in hw.settings()}
            assert (shown[name].value, shown[name].origin) == (wanted, "table")
    assert accepted > len(config.RULES)
    assert value(conn, "SELECT headwater.set_config('headwater.lock_attempts', '7')") == "7"
    for unknown in ("no_such", "HEADWATER.lock_attempts", None):
        with pytest.raises(psycopg.errors.UndefinedObject) as caught:
            conn.execute("SELECT headwater.set_config(%s, '1')", [unknown])
        assert "lock_attempts" in str(caught.value.diag.message_hint)


def test_drain_in_sql_and_in_python(hw: Headwater, conn: Connection) -> None:
    def drain() -> str:
        return next(setting.value for setting in hw.settings() if setting.name == "drain")

    assert drain() == "off"
    conn.execute("SELECT headwater.drain()")
    assert drain() == "on"
    hw.undrain()
    assert drain() == "off"
    hw.drain()
    conn.execute("SELECT headwater.resume()")
    assert drain() == "off"


def test_a_migration_tells_sql_of_new_settings(hw: Headwater, conn: Connection) -> None:
    conn.execute("DELETE FROM headwater.known_setting WHERE name = 'drain'")
    conn.execute("INSERT INTO headwater.known_setting VALUES ('colour', 'text', NULL, NULL, false, '{}', '')")
    assert hw.migrate() == []
    names = {name for (name,) in conn.execute("SELECT name FROM headwater.known_setting")}
    assert names == set(config.RULES)


def test_answered_requests_are_forgotten_with_the_history(hw: Headwater, conn: Connection) -> None:
    old, young, waiting = (ask(conn, "refresh", name) for name in ("a", "b", "c"))
    conn.execute(
        "UPDATE headwater.request SET status = 'done',"
        " finished_at = now() - CASE id WHEN %s THEN interval '8 days' ELSE interval '6 days' END"
        " WHERE id IN (%s, %s)",
        (old, old, young),
    )
    conn.execute("UPDATE headwater.request SET requested_at = now() - interval '1 year'")
    assert clean_up(hw.connection, Settings(), WAITING_IS_LONG)
    left = [number for (number,) in conn.execute("SELECT id FROM headwater.requests ORDER BY id")]
    assert left == [young, waiting]


def test_the_lock_of_requests_is_the_one_that_sql_looks_for(conn: Connection) -> None:
    assert str(REQUEST_LOCK) in value(conn, "SELECT prosrc FROM pg_proc WHERE proname = 'answer'")
