"""The logs of the service and its workers: one line for each refresh, and never a password."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from tests.integration.support import value
from tests.service.conftest import StartProcess
from tests.service.support import Process, eventually
from tests.service.test_scheduler import BY_REGION, ORDERS, fresh

from headwater import Headwater
from headwater.embedded import Installation, Server

Connection = psycopg.Connection[Any]
SECRET = "p ss/w@rd:='7x\\"
FORMATS = ("text", "json")


def assert_silent_about(secret: str, *processes: Process) -> None:
    """No log has a secret, nor a form of it in which a DSN is written."""
    forms = {secret, quote(secret, safe=""), json.dumps(secret)[1:-1], make_conninfo(password=secret)}
    for process in processes:
        text = process.log.read_text()
        assert text
        assert not [form for form in forms if form in text]
        assert "Traceback" not in text


def said(process: Process, event: str) -> Callable[[], bool]:
    """Whether a log of either format has an event."""
    return lambda: bool(re.search(rf'(?:[A-Z]+ +|"event": "){event}\b', process.log.read_text()))


@pytest.fixture
def secretive(dsn: str, admin: Connection) -> Iterator[str]:
    """A superuser's DSN whose password is as hard to write as it gets."""
    name = f"headwater_secretive_{os.getpid()}"
    role = sql.Identifier(name)
    statement = sql.SQL("CREATE ROLE {} LOGIN SUPERUSER PASSWORD {}")
    admin.execute(statement.format(role, sql.Literal(SECRET)))
    yield make_conninfo(dsn, user=name, password=SECRET)
    admin.execute(sql.SQL("DROP ROLE {}").format(role))


def in_both_forms(dsn: str) -> list[str]:
    """A DSN as keywords and as a URI."""
    parts = conninfo_to_dict(dsn)
    user, password = (quote(str(parts[name]), safe="") for name in ("user", "password"))
    return [dsn, f"postgresql://{user}:{password}@{parts['host']}:{parts['port']}/{parts['dbname']}"]


def test_a_wrong_password_is_not_told(secretive: str, admin: Connection, program: StartProcess) -> None:
    keywords, uri = in_both_forms(make_conninfo(secretive, password=SECRET + "x"))
    for wrong, options in ((keywords, []), (uri, ["--dsn", uri, "--direct-dsn", uri])):
        services = [program("serve", *options, "--log-format", each, dsn=wrong) for each in FORMATS]
        worker = program("worker", *options, dsn=wrong)
        for service in services:
            eventually(said(service, "disconnected"))
            assert service.stop() == 0
        assert worker.popen.wait(60) == 1
        assert "cannot connect" in worker.log.read_text()
        assert_silent_about(SECRET, worker, *services)


def test_a_dsn_that_cannot_be_read_is_not_told(dsn: str, program: StartProcess) -> None:
    unreadable = f"postgresql://ann:{SECRET}@nowhere/shop"
    for verb in ("serve", "worker"):
        process = program(verb, "--dsn", unreadable)
        assert process.popen.wait(60) == 2
        assert "the DSN cannot be read" in process.log.read_text()
        assert "ss/w" not in process.log.read_text()


def test_a_server_that_is_gone_says_nothing_of_the_password(
    installation: Installation, program: StartProcess
) -> None:
    with Server.start(installation=installation, fsync=False) as server:
        with Headwater(server.dsn()) as hw:
            hw.init()
            hw.connection.execute("CREATE ROLE ann LOGIN SUPERUSER")
            password = sql.SQL("ALTER ROLE ann PASSWORD {}").format(sql.Literal(SECRET))
            hw.connection.execute(password)
        dsn = make_conninfo(server.dsn(), user="ann", password=SECRET)
        first, second = (program("serve", "--log-format", each, dsn=dsn) for each in FORMATS)
        workers = [program("worker", "--log-format", each, dsn=dsn) for each in FORMATS]
        processes = [first, second, *workers]
        eventually(lambda: said(first, "scheduling")() or said(second, "scheduling")())
        eventually(lambda: said(first, "waiting")() or said(second, "waiting")())
        for worker in workers:
            eventually(said(worker, "working"))
        server.stop("immediate")
        for process in processes:
            eventually(said(process, "disconnected"))
            process.popen.send_signal(signal.SIGTERM)
        for process in processes:
            assert process.popen.wait(60) == 0
        assert_silent_about(SECRET, *processes)


@pytest.mark.parametrize("by_worker", [False, True], ids=["in-process", "by a worker"])
def test_each_refresh_is_one_line(
    hw: Headwater, conn: Connection, program: StartProcess, by_worker: bool
) -> None:
    conn.execute(ORDERS)
    hw.create("by_region", BY_REGION, schedule="50ms")
    hw.create("above", "SELECT sum(n) AS n FROM by_region", schedule="100ms")
    database = conn.info.dbname
    # Of the two formats, each is the service's once and the worker's once.
    log_format, other = FORMATS if by_worker else FORMATS[::-1]
    processes = [program("worker", "--log-format", other)] if by_worker else []
    for process in processes:
        eventually(said(process, "working"))
    processes.append(program("serve", "--database", database, "--log-format", log_format))
    for number in range(5):
        conn.execute("INSERT INTO orders VALUES (%s, 'north', 5)", [number])
        eventually(lambda: fresh(hw, "by_region", "above"))
    processes.reverse()
    assert [process.stop() for process in processes] == [0] * len(processes)
    done = "SELECT stream_table, count(*) FROM headwater.refresh_history WHERE action = 'delta' GROUP BY 1"
    wanted = dict(conn.execute(done).fetchall())
    assert wanted.keys() == {"public.by_region", "public.above"}
    lines = [line for process in processes for line in process.log.read_text().splitlines()]
    for label, count in wanted.items():
        pattern = rf'refreshed\b.*stream_table(?:=|": "){label}\b'
        assert len([line for line in lines if re.search(pattern, line)]) == count
    assert value(conn, "SELECT count(*) FROM headwater.refresh_history WHERE status <> 'completed'") == 0


def test_a_failure_is_one_line_on_one_line(hw: Headwater, conn: Connection, program: StartProcess) -> None:
    conn.execute("CREATE TABLE numbers (id int PRIMARY KEY, n int)")
    hw.create("inverse", "SELECT id, 1 / n AS x FROM numbers", schedule="50ms")
    service = program("serve", "--database", conn.info.dbname, "--log-format", "json")
    conn.execute("INSERT INTO numbers VALUES (1, 0)")
    eventually(lambda: service.events("suspended"))
    assert service.stop() == 0
    assert [(line["what"], line["level"]) for line in service.events("failed")] == [
        ("public.inverse", "error")
    ] * 3
    assert len(service.lines()) == len(service.log.read_text().splitlines())
