"""`headwater serve` as a process: discovers databases, restarts what dies, hands over, ends in order."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import psutil
import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from tests.integration.support import value
from tests.service.conftest import StartProcess
from tests.service.support import Process, eventually
from tests.service.test_scheduler import BY_REGION, ORDERS, fresh

from headwater import Headwater
from headwater.embedded import Installation, Server

Connection = psycopg.Connection[Any]


@pytest.fixture
def own_server(installation: Installation) -> Iterator[Server]:
    """One in which there are no databases but the test's."""
    with Server.start(installation=installation, fsync=False) as running:
        yield running


def served(dsn: str, name: str, query: str = BY_REGION) -> None:
    """A database with a stream table."""
    with Headwater(dsn) as hw:
        hw.init()
        hw.connection.execute(f"CREATE TABLE public.{ORDERS.removeprefix('CREATE TABLE ')}")
        hw.create(name, query, schedule="100ms")


def children(process: Process) -> list[int]:
    return [child.pid for child in psutil.Process(process.pid).children()]


def test_databases_are_found_and_served(own_server: Server, program: StartProcess) -> None:
    with psycopg.connect(own_server.dsn(), autocommit=True) as admin:
        for name in ("one", "two", "other"):
            admin.execute(f"CREATE DATABASE {name}")
        one, two = (make_conninfo(own_server.dsn(), dbname=name) for name in ("one", "two"))
        served(one, "by_region")
        service = program("serve", "--log-format", "json", dsn=own_server.dsn())
        with psycopg.connect(one, autocommit=True) as conn, Headwater(one) as hw:
            conn.execute("INSERT INTO orders VALUES (1, 'north', 5)")
            eventually(lambda: fresh(hw, "by_region"))
            served(two, "by_region")
            with psycopg.connect(two, autocommit=True) as there, Headwater(two) as elsewhere:
                there.execute("INSERT INTO orders VALUES (1, 'south', 5)")
                eventually(lambda: fresh(elsewhere, "by_region"))
            assert len(children(service)) == 2
            # one that dies is started again
            victim = next(line["pid"] for line in service.events("scheduling") if line["database"] == "one")
            os.kill(victim, signal.SIGKILL)
            eventually(lambda: len(service.events("scheduling")) == 3)
            conn.execute("INSERT INTO orders VALUES (2, 'north', 5)")
            eventually(lambda: fresh(hw, "by_region"))
        pids = children(service)
        assert service.stop() == 0
        assert not any(psutil.pid_exists(pid) for pid in pids)
        password = psycopg.conninfo.conninfo_to_dict(own_server.dsn()).get("password")
        assert not password or str(password) not in service.log.read_text()


def test_a_launcher_that_is_killed_takes_its_schedulers_along(
    dsn: str, hw: Headwater, conn: Connection, program: StartProcess
) -> None:
    conn.execute(ORDERS)
    hw.create("by_region", BY_REGION, schedule="50ms")
    service = program("serve", "--database", conn.info.dbname)
    eventually(lambda: value(conn, "SELECT count(*) FROM headwater.scheduler") == 1)
    pids = children(service)
    os.kill(service.pid, signal.SIGKILL)
    eventually(lambda: not any(psutil.pid_exists(pid) for pid in pids))
    assert value(conn, "SELECT count(*) FROM headwater.scheduler") == 0


def test_a_second_launcher_takes_over(hw: Headwater, conn: Connection, program: StartProcess) -> None:
    conn.execute(ORDERS)
    hw.create("by_region", BY_REGION, schedule="50ms")
    first = program("serve", "--database", conn.info.dbname, "--log-format", "json")
    eventually(lambda: first.events("scheduling"))
    second = program("serve", "--database", conn.info.dbname, "--log-format", "json")
    eventually(lambda: second.events("waiting"))
    assert not second.events("scheduling")
    os.kill(first.pid, signal.SIGKILL)
    eventually(lambda: second.events("scheduling"))
    conn.execute("INSERT INTO orders VALUES (1, 'north', 5)")
    eventually(lambda: fresh(hw, "by_region"))


def test_the_server_may_go_and_come_back(own_server: Server, program: StartProcess) -> None:
    served(own_server.dsn(), "by_region")
    service = program("serve", "--log-format", "json", dsn=own_server.dsn())
    eventually(lambda: service.events("scheduling"))
    own_server.restart("immediate")
    eventually(lambda: service.events("disconnected"))
    with psycopg.connect(own_server.dsn(), autocommit=True) as conn, Headwater(own_server.dsn()) as hw:
        conn.execute("INSERT INTO orders VALUES (1, 'north', 5)")
        eventually(lambda: fresh(hw, "by_region"))
    assert service.stop() == 0
