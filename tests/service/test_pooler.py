"""Everything works through PgBouncer in transaction mode, and leaves nothing in its sessions."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from tests.integration.support import assert_fresh, value
from tests.service import pooler as pgbouncer
from tests.service.conftest import StartProcess
from tests.service.pooler import Pooler
from tests.service.support import eventually
from tests.service.test_scheduler import fresh

import headwater
from headwater import Headwater
from headwater.cli import run
from headwater.cli.invocation import Invocation
from headwater.db.connection import connect as open_connection
from headwater.db.connection import is_pooled, one, transaction
from headwater.errors import AlreadyExists, InvalidQuery, InvalidSetting, RefreshFailed, SessionNeeded
from headwater.lifecycle.create import Place
from headwater.lifecycle.options import Options
from headwater.refresh.claim import hold_claim
from headwater.service.launcher import Launcher
from headwater.service.queue import ClaimedJob, External, Membership
from headwater.service.scheduler import Scheduler
from headwater.service.worker import Worker

Connection = psycopg.Connection[Any]

pytestmark = pytest.mark.skipif(
    pgbouncer.PROGRAM is None, reason="there is no pgbouncer here (Debian's package pgbouncer)"
)

ORDERS = "CREATE TABLE orders (id int PRIMARY KEY, region text, amount int)"
BY_REGION = "SELECT region, count(*) AS n, sum(amount) AS total FROM orders GROUP BY region"
DIVIDED = "SELECT id, 100 / amount AS share FROM orders"


@pytest.fixture(scope="module")
def pooler(admin_dsn: str) -> Iterator[Pooler]:
    with pgbouncer.started(admin_dsn) as running:
        yield running


@pytest.fixture
def pooled_dsn(pooler: Pooler, dsn: str) -> str:
    """The test's database, through the pooler."""
    return pooler.dsn(str(conninfo_to_dict(dsn)["dbname"]))


@pytest.fixture
def hw(pooled_dsn: str, dsn: str) -> Iterator[Headwater]:
    """Through the pooler, which it finds out."""
    with headwater.connect(pooled_dsn, direct_dsn=dsn) as handle:
        assert is_pooled(handle.connection)
        yield handle


@pytest.fixture
def nothing_left(pooled_dsn: str) -> Iterator[None]:
    """Holds that the sessions of the pool are afterwards the same, and as they were."""
    before = pgbouncer.sessions(pooled_dsn)
    yield
    assert pgbouncer.sessions(pooled_dsn) == before


# the connection


def test_a_pooler_is_found_out(pooled_dsn: str, dsn: str) -> None:
    with open_connection(dsn) as direct, open_connection(pooled_dsn) as pooled:
        assert (is_pooled(direct), is_pooled(pooled)) == (False, True)
    with open_connection(dsn, "transaction") as told, open_connection(pooled_dsn, "none") as trusting:
        assert (is_pooled(told), is_pooled(trusting)) == (True, False)


@pytest.mark.usefixtures("nothing_left")
def test_settings_are_pinned_in_every_transaction_and_statement(pooled_dsn: str) -> None:
    asked = "SELECT current_setting('search_path'), current_setting('DateStyle'), current_setting('jit')"
    with open_connection(pooled_dsn) as connection:
        assert one(connection, asked) == ("pg_catalog, pg_temp", "ISO, MDY", "off")
        with transaction(connection):
            assert one(connection, asked) == ("pg_catalog, pg_temp", "ISO, MDY", "off")
            with pytest.raises(psycopg.errors.DivisionByZero), connection.transaction():
                connection.execute("SELECT 1 / 0")
            assert one(connection, asked) == ("pg_catalog, pg_temp", "ISO, MDY", "off")
        with pytest.raises(psycopg.errors.DivisionByZero):
            connection.execute("SELECT 1 / 0")
        connection.bind({"statement_timeout": "7s"})
        assert one(connection, "SHOW statement_timeout")[0] == "7s"
    with psycopg.connect(pooled_dsn, autocommit=True) as other:
        assert value(other, "SHOW statement_timeout") == "0"


def test_pinning_takes_no_snapshot(pooled_dsn: str, conn: Connection) -> None:
    """What a refresh locks must be locked before its snapshot is taken."""
    conn.execute(ORDERS)
    with open_connection(pooled_dsn) as connection, transaction(connection, repeatable_read=True):
        conn.execute("INSERT INTO orders VALUES (1, 'north', 5)")
        assert one(connection, "SELECT count(*) FROM public.orders")[0] == 1


def test_a_statement_by_itself_has_the_isolation_of_one(pooled_dsn: str) -> None:
    with open_connection(pooled_dsn) as connection:
        with transaction(connection, repeatable_read=True):
            assert one(connection, "SHOW transaction_isolation")[0] == "repeatable read"
        assert one(connection, "SHOW transaction_isolation")[0] == "read committed"


def test_names_are_found_by_the_path_of_role_and_database(
    pooled_dsn: str, dsn: str, conn: Connection, admin: Connection
) -> None:
    """Not by that which another client left in the session."""
    conn.execute("CREATE SCHEMA shop; CREATE SCHEMA elsewhere")
    conn.execute("CREATE TABLE shop.items (id int PRIMARY KEY); CREATE TABLE elsewhere.items (other int)")
    admin.execute(f"ALTER DATABASE {conn.info.dbname} SET search_path = shop, public")
    with psycopg.connect(pooled_dsn, autocommit=True) as careless:
        careless.execute("SET search_path = elsewhere")
    with headwater.connect(pooled_dsn, direct_dsn=dsn) as hw:
        assert hw.create("all_items", "SELECT * FROM items").label == "shop.all_items"
    assert value(conn, "SELECT count(*) FROM shop.all_items WHERE id > 0") == 0


# the verbs


def test_every_verb(
    pooler: Pooler,
    empty_dsn: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pooled = pooler.dsn(str(conninfo_to_dict(empty_dsn)["dbname"]))
    monkeypatch.setenv("HEADWATER_DSN", pooled)
    monkeypatch.setenv("HEADWATER_DIRECT_DSN", empty_dsn)
    monkeypatch.setenv("HEADWATER_CONNECTION_POOLER_MODE", "transaction")

    def does(*arguments: str, code: int = 0) -> None:
        assert run(list(arguments), Invocation()) == code, (arguments, capsys.readouterr())

    before = pgbouncer.sessions(pooled)
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        conn.execute(ORDERS)
        conn.execute("INSERT INTO orders SELECT i, 'r' || i % 3, i FROM generate_series(1, 30) AS i")
        does("init", "--check")
        does("init")
        does("migrate")
        does("set", "lock_attempts", "20")
        does("settings")
        does("create", "by_region", "--query", BY_REGION, "--schedule", "1m")
        does("create", "large", "--query", "SELECT region FROM by_region WHERE total > 100")
        conn.execute("INSERT INTO orders VALUES (31, 'r1', 500)")
        does("refresh", "large")
        assert value(conn, "SELECT total FROM by_region WHERE region = 'r1'") == 645
        does("alter", "large", "--mode", "full")
        does("alter", "large", "--mode", "auto", "--schedule", "calculated")
        does("alter", "large", "--query", "SELECT region, n FROM by_region WHERE total > 200")
        does("create", "large", "--or-replace", "--query", "SELECT region FROM by_region WHERE total > 99")
        does("refresh", "large", "--full")
        does("verify", "large")
        for verb in ("explain", "status", "history"):
            does(verb, "large")
        does("list")
        does("suspend", "large")
        assert (
            value(conn, "SELECT status FROM headwater.stream_tables WHERE table_name = 'large'")
            == "suspended"
        )
        does("resume", "large")
        does("drain")
        assert value(conn, "SELECT value FROM headwater.setting WHERE name = 'drain'") == "on"
        does("resume")
        does("cancel", "large", code=1)
        does("repair")
        does("drop", "by_region", code=1)
        does("drop", "by_region", "--cascade")
        does("uninstall", "--yes")
        assert value(conn, "SELECT count(*) FROM pg_namespace WHERE nspname ~ '^headwater'") == 0
    assert pgbouncer.sessions(pooled) == before


@pytest.mark.usefixtures("nothing_left")
def test_several_clients_share_two_sessions(pooled_dsn: str, dsn: str, conn: Connection) -> None:
    clients, rounds = 4, 2
    for client in range(clients):
        conn.execute(f"CREATE TABLE t{client} (id int PRIMARY KEY, kind text, size int)")

    def work(client: int) -> None:
        table, name = f"t{client}", f"s{client}"
        with headwater.connect(pooled_dsn, direct_dsn=dsn) as hw:
            hw.create(name, f"SELECT kind, sum(size) AS size FROM {table} GROUP BY kind")
            with psycopg.connect(pooled_dsn, autocommit=True, prepare_threshold=None) as writer:
                for number in range(rounds):
                    writer.execute(f"INSERT INTO {table} VALUES ({number}, 'k{number % 2}', {client})")
                    assert hw.refresh(name)[-1].action == "delta"
            assert hw.verify(name).equal
            hw.alter(name, query=f"SELECT kind, count(*) AS size FROM {table} GROUP BY kind")
            assert hw.status(name).rows == 2
            if client % 2:
                hw.drop(name)

    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(work, range(clients)))
    left = "SELECT string_agg(stream_table, ' ' ORDER BY stream_table) FROM headwater.stream_tables"
    assert value(conn, left) == "public.s0 public.s2"


@pytest.mark.usefixtures("nothing_left")
def test_what_fails_leaves_nothing_either(hw: Headwater, conn: Connection) -> None:
    conn.execute(ORDERS)
    hw.create("divided", DIVIDED)
    for mistake in ("SELECT * FROM nowhere", "SELECT 1 / 0 AS never FROM orders"):
        conn.execute("INSERT INTO orders SELECT 1, 'north', 5 ON CONFLICT DO NOTHING")
        with pytest.raises(InvalidQuery):
            hw.create("mistake", mistake)
    conn.execute("INSERT INTO orders VALUES (2, 'north', 0)")
    with pytest.raises(RefreshFailed):
        hw.refresh("divided")
    conn.execute("DELETE FROM orders WHERE id = 2")
    hw.refresh("divided")
    assert_fresh(hw, "divided")


# past the pooler


def test_without_a_direct_dsn_what_needs_no_session_works(
    pooled_dsn: str, hw: Headwater, conn: Connection
) -> None:
    conn.execute(ORDERS)
    hw.create("by_region", BY_REGION)
    conn.execute("INSERT INTO orders VALUES (1, 'north', 5)")
    with headwater.connect(pooled_dsn) as alone:
        assert alone.refresh("by_region")[-1].action == "delta"
        assert alone.verify("by_region").equal
        alone.alter("by_region", schedule="5s")
        for needing in (
            lambda: alone.create("other", "SELECT id FROM orders"),
            lambda: alone.alter("by_region", query="SELECT region, 1 AS n, 1 AS total FROM orders"),
            lambda: alone.uninstall(),
        ):
            with pytest.raises(SessionNeeded, match="a pooler that shares them") as caught:
                needing()
            assert "--direct-dsn or HEADWATER_DIRECT_DSN" in caught.value.hint
        assert alone.drop("by_region") == ["public.by_region"]


def test_a_direct_dsn_that_leads_elsewhere_is_refused(
    pooled_dsn: str, dsn: str, admin_dsn: str, conn: Connection
) -> None:
    conn.execute(ORDERS)
    another = make_conninfo(dsn, dbname=conninfo_to_dict(admin_dsn)["dbname"])
    for wrong, reason in (
        (pooled_dsn, "the direct DSN leads to a pooler, too"),
        (another, "the direct DSN leads to database"),
    ):
        with (
            headwater.connect(pooled_dsn, direct_dsn=wrong) as hw,
            pytest.raises(SessionNeeded, match=reason),
        ):
            hw.create("by_region", BY_REGION)


def test_the_mode_is_not_stored_where_it_would_be_read_too_late(hw: Headwater) -> None:
    with pytest.raises(InvalidSetting, match="cannot be stored") as caught:
        hw.set("connection_pooler_mode", "transaction")
    assert "HEADWATER_CONNECTION_POOLER_MODE" in caught.value.hint


def test_a_creator_lives_as_long_as_its_session(
    hw: Headwater, dsn: str, pooled_dsn: str, conn: Connection
) -> None:
    conn.execute(ORDERS)
    place = Place("public", "by_region")
    with headwater.connect(pooled_dsn, direct_dsn=dsn) as dying:
        with open_connection(dsn) as session:
            dying._creation()._prepare(session, place, BY_REGION, Options())
            with pytest.raises(AlreadyExists, match="is being created by another session"):
                hw.create("by_region", BY_REGION)
        assert hw.create("by_region", BY_REGION).status == "active"


# the service


def test_the_service_and_a_worker_refresh_through_it(
    hw: Headwater,
    conn: Connection,
    dsn: str,
    pooled_dsn: str,
    pooler: Pooler,
    program: StartProcess,
) -> None:
    before = pgbouncer.sessions(pooled_dsn)
    conn.execute(ORDERS)
    hw.create("by_region", BY_REGION, schedule="100ms")
    serve = program(
        "serve",
        "--database",
        conn.info.dbname,
        "--log-format",
        "json",
        dsn=pooled_dsn,
        direct_dsn=dsn,
        connection_pooler_mode="transaction",
        scheduler_interval_ms="1000",  # workers have two of these to claim a job
    )
    eventually(lambda: serve.events("scheduling"), "scheduling")
    seen = pgbouncer.transactions(pooler, conn.info.dbname)
    conn.execute("INSERT INTO orders VALUES (1, 'north', 5)")
    eventually(lambda: serve.events("refreshed"), "refreshed")
    assert pgbouncer.transactions(pooler, conn.info.dbname) > seen
    with psycopg.connect(pooled_dsn, autocommit=True, prepare_threshold=None) as client:
        client.execute("CALL headwater.create_stream_table('numbers', 'SELECT id FROM orders')")
    assert value(conn, "SELECT count(*) FROM numbers") == 1
    worker = program("worker", "--log-format", "json", dsn=pooled_dsn, direct_dsn=dsn)
    eventually(lambda: worker.events("working"), "working")
    conn.execute("INSERT INTO orders VALUES (2, 'north', 5)")
    eventually(lambda: fresh(hw, "by_region"))
    eventually(lambda: worker.events("refreshed"), "refreshed outside")
    assert (serve.stop(), worker.stop()) == (0, 0)
    assert pgbouncer.sessions(pooled_dsn) == before


def test_the_service_says_that_it_needs_sessions(pooled_dsn: str) -> None:
    for part in (Launcher(pooled_dsn, {}, []), Scheduler(pooled_dsn), Worker(pooled_dsn)):
        with pytest.raises(SessionNeeded, match="needs a session of its own") as caught:
            part.run()
        assert "--direct-dsn or HEADWATER_DIRECT_DSN" in caught.value.hint


def test_a_lost_worker_behind_a_pooler_is_ended(dsn: str, pooled_dsn: str) -> None:
    """It does not know the number of its backend; who holds the right to refresh is ended."""
    with open_connection(dsn) as mine, open_connection(dsn) as theirs, open_connection(pooled_dsn) as lost:
        membership, external = Membership(mine, "worker", 1, {}), External(theirs)
        external.enqueue([7])
        job = membership.claim(None)
        assert job is not None

        def refresh(job: ClaimedJob) -> None:
            with transaction(lost, repeatable_read=True):
                lost.execute("SET LOCAL application_name = 'headwater refresh 7'")
                hold_claim(lost, job)
                membership.leave()
                assert external.take_back([job.id]) == [job.id]
                lost.execute("SELECT 1")

        with pytest.raises(psycopg.OperationalError):
            refresh(job)
        again = membership.claim(None)
        assert again is not None
        with transaction(mine, repeatable_read=True):
            hold_claim(mine, again)
