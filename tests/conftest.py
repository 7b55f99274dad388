"""Which server the tests run on, and a fresh database for each test.

HEADWATER_TEST_SERVER chooses: `embedded` (the default: the wheel's PostgreSQL), `system` (one found on this
machine), or the DSN of a superuser on a server that is already running.

`--engine` chooses what computes the refreshes of the tests marked `differential` (see tests/engines.py).

One template database is prepared per run; `dsn` clones it for each test, which is much cheaper than
installing the catalog each time. Databases of one server share roles, replication slots and settings.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from psycopg import sql
from psycopg.conninfo import make_conninfo
from tests.engines import LEDGER, SPARK_MASTER, Handle
from tests.oracle.chance import SEED
from tests.oracle.rounds import COVERAGE

import headwater
from headwater.catalog.stream_tables import EngineName
from headwater.embedded import Installation, Server, find_installations

TEST_SERVER = os.environ.get("HEADWATER_TEST_SERVER") or "embedded"
TEST_SETTINGS = {
    "max_connections": "200",
    "max_prepared_transactions": "10",
    "max_replication_slots": "20",
    "max_wal_senders": "20",
    "wal_level": "logical",
    # Checkpoints are forced by every clone; their log lines would bury the ones that matter.
    "log_checkpoints": "off",
}
_database_numbers = itertools.count(1)

# One process has one Spark: a table large enough for `auto` to start it must start the same as the others do.
os.environ["HEADWATER_SPARK_MASTER"] = SPARK_MASTER

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that starts us in the background has our children ignore interrupts, which some tests send.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A database per test is fine for an example too: properties make their own tables or clean up after each.
settings.register_profile(
    "ci",
    deadline=None,
    derandomize=False,
    print_blob=True,
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.register_profile("dev", settings.get_profile("ci"), max_examples=100)
settings.register_profile("soak", settings.get_profile("ci"), max_examples=200)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or "ci")


ENGINES: dict[str, tuple[EngineName, ...]] = {
    "postgres": ("postgres",),
    "spark": ("spark",),
    "both": ("postgres", "spark"),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--engine",
        choices=tuple(ENGINES),
        default="postgres",
        help="what computes in the differential tests; with spark, only these are run",
    )
    parser.addoption("--long", action="store_true", help="run also the tests of Spark that take minutes")
    parser.addoption(
        "--accept-refusals",
        action="store_true",
        help="write down what Spark refuses now, instead of comparing it with what is written",
    )
    parser.addoption(
        "--accept-coverage",
        action="store_true",
        help="write down in docs/coverage.md how each construct is maintained now, instead of comparing",
    )


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say what is tested; a DSN is not shown, for it may hold a password."""
    found = _installation_under_test() or f"no {TEST_SERVER} PostgreSQL found"
    given = TEST_SERVER not in ("embedded", "system")
    return [
        f"server: {'as given by HEADWATER_TEST_SERVER' if given else found}",
        f"engine: {config.getoption('--engine')}, HEADWATER_SEED={SEED}",
    ]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A differential test runs once for each engine, and is named after it where there are several."""
    wanted = _engines_of(metafunc.definition, metafunc.config)
    if "engine" in metafunc.fixturenames and len(wanted) > 1:
        metafunc.parametrize("engine", wanted, indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out differential tests of other engines, with Spark alone what has nothing to do with it, and
    those of Spark that take minutes, which have their own command."""
    long = config.getoption("--long")
    others = [
        item
        for item in items
        if not _engines_of(item, config) or (not long and "tests/spark/" in item.nodeid and _is_slow(item))
    ]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]


def _is_slow(item: pytest.Item) -> bool:
    return item.get_closest_marker("slow") is not None


def _engines_of(item: pytest.Item, config: pytest.Config) -> tuple[EngineName, ...]:
    """The engines on which a test runs; `auto` stands for a test that leaves the choice to Headwater."""
    option = config.getoption("--engine")
    marker = item.get_closest_marker("differential")
    if marker is None:
        return () if option == "spark" else ("auto",)
    return tuple(engine for engine in ENGINES[option] if engine in (marker.args or ENGINES["both"]))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What random queries covered; what Spark computed, what it refused and what it gave back."""
    if COVERAGE.rounds:
        terminalreporter.section("all of SQL")
        for line in COVERAGE.lines():
            terminalreporter.write_line(line)
    if LEDGER.entries:
        terminalreporter.section("on Spark")
        for line in LEDGER.summary():
            terminalreporter.write_line(line)


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> EngineName:
    """The engine under test; Spark is started by the first test that needs it, and ended after the last."""
    chosen: EngineName = getattr(request, "param", None) or _engines_of(request.node, request.config)[0]
    if chosen == "spark":
        request.getfixturevalue("spark_process")
        LEDGER.test = request.node.nodeid
    return chosen


@pytest.fixture(scope="session")
def spark_process() -> Iterator[None]:
    from headwater.engine.spark.runtime.session import runtime

    yield
    runtime().stop()


@pytest.fixture
def connect(engine: EngineName) -> Callable[..., Handle]:
    """Opens handles whose stream tables have the engine under test."""
    return lambda dsn, **settings: Handle(dsn, engine, settings)


@pytest.fixture(scope="session")
def installation() -> Installation:
    """The programs of the server under test; with a given DSN, those that would start a private one."""
    found = _installation_under_test()
    if found is None:
        pytest.exit(f"HEADWATER_TEST_SERVER={TEST_SERVER}: no such PostgreSQL was found here", returncode=2)
    return found


@pytest.fixture(scope="session")
def server(installation: Installation) -> Iterator[Server]:
    """The private server of this run. Tests that stop or crash a server start their own."""
    if TEST_SERVER not in ("embedded", "system"):
        pytest.skip("the server was given by its DSN and is not ours")
    with Server.start(
        installation=installation, fsync=False, settings=TEST_SETTINGS, scratch_parent=memory_directory()
    ) as running:
        yield running


@pytest.fixture(scope="session")
def admin_dsn(request: pytest.FixtureRequest) -> str:
    """A superuser's DSN of the server's own database."""
    if TEST_SERVER not in ("embedded", "system"):
        return TEST_SERVER
    running: Server = request.getfixturevalue("server")
    return running.dsn()


@pytest.fixture(scope="session")
def admin(admin_dsn: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(admin_dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture(scope="session")
def template_dsn(admin_dsn: str, admin: psycopg.Connection) -> Iterator[str]:
    """The prepared database that `dsn` clones; nothing may stay connected to it."""
    name = _new_database_name()
    admin.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(sql.Identifier(name)))
    try:
        template = make_conninfo(admin_dsn, dbname=name)
        prepare_template(template)
        yield template
    finally:
        _drop_database(admin, name)


@pytest.fixture
def empty_dsn(admin_dsn: str, admin: psycopg.Connection) -> Iterator[str]:
    """A fresh database without the catalog: what an installation starts from."""
    yield from _clone(admin_dsn, admin, "template0")


@pytest.fixture
def dsn(admin_dsn: str, admin: psycopg.Connection, template_dsn: str) -> Iterator[str]:
    """A fresh database with the catalog installed."""
    yield from _clone(admin_dsn, admin, psycopg.conninfo.conninfo_to_dict(template_dsn)["dbname"])


@pytest.fixture
def driver_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small changes, too, are taken in by the driver's steps, where a test has its hooks."""
    monkeypatch.setenv("HEADWATER_COMPILED_REFRESHES", "off")


@pytest.fixture
def conn(dsn: str) -> Iterator[psycopg.Connection]:
    """An autocommit connection to the test's database."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


def prepare_template(dsn: str) -> None:
    """Install the catalog."""
    with headwater.connect(dsn) as hw:
        hw.init()


def memory_directory() -> Path | None:
    """A roomy memory file system, where a clone takes a sixth of the time, or None."""
    shared = Path("/dev/shm")
    if shared.is_dir() and os.access(shared, os.W_OK) and shutil.disk_usage(shared).free > 4 << 30:
        return shared
    return None


def _installation_under_test() -> Installation | None:
    found = find_installations()
    if TEST_SERVER == "system":
        return next((each for each in found if each.origin != "wheel"), None)
    return found[0] if found else None


def _clone(admin_dsn: str, admin: psycopg.Connection, template: object) -> Iterator[str]:
    name = _new_database_name()
    statement = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy")
    admin.execute(statement.format(sql.Identifier(name), sql.Identifier(str(template))))
    try:
        yield make_conninfo(admin_dsn, dbname=name)
    finally:
        _drop_database(admin, name)


def _new_database_name() -> str:
    return f"headwater_test_{os.getpid()}_{next(_database_numbers)}"


def _drop_database(admin: psycopg.Connection, name: str) -> None:
    """Drop also what a failed test left behind that would forbid it: slots and prepared transactions."""
    admin.execute(
        "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots"
        " WHERE database = %s AND active_pid IS NOT NULL",
        [name],
    )
    admin.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s", [name]
    )
    prepared = admin.execute("SELECT gid FROM pg_prepared_xacts WHERE database = %s", [name]).fetchall()
    if prepared:
        inside_dsn = make_conninfo(admin.info.dsn, password=admin.info.password, dbname=name)
        with psycopg.connect(inside_dsn, autocommit=True) as inside:
            for (gid,) in prepared:
                inside.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(gid)))
    admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
