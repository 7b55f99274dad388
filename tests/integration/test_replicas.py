"""Physical copies of a database: stream tables go on by deltas in them, and a standby says what it is."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from tests.integration.servers import carrier, new_database, oldest_and_newest, run, start
from tests.integration.support import WAITING_IS_LONG, assert_fresh, value
from tests.service.support import eventually
from tests.service.test_scheduler import fresh

import headwater
from headwater import Headwater
from headwater.embedded import Installation, Server, _identity
from headwater.errors import ReadOnlyServer
from headwater.service import launcher, logs

Connection = psycopg.Connection[Any]
COUNTS = "SELECT kind, count(*) AS n FROM public.items GROUP BY kind"
MOST = "SELECT max(n) AS n FROM public.counts"


@pytest.fixture
def primary(installation: Installation, tmp_path: Path) -> Iterator[Server]:
    """A server with stream tables, one of which has changes waiting and is older than a long transaction."""
    with start(installation, tmp_path / "primary") as server:
        prepare(server)
        yield server


def prepare(server: Server) -> None:
    with headwater.connect(new_database(server, "shop")) as hw:
        hw.init()
        hw.connection.execute("CREATE TABLE public.items (id int, kind text)")
        hw.connection.execute("INSERT INTO public.items SELECT n, 'k' || n % 5 FROM generate_series(1, 50) n")
        hw.create("public.counts", COUNTS)
        hw.create("public.most", MOST)
        with psycopg.connect(server.dsn("shop")) as long:
            long.execute("INSERT INTO items VALUES (-1, 'k0')")
            hw.connection.execute("INSERT INTO public.items VALUES (100, 'k1')")
            hw.refresh("public.most")  # its frontier has the open transaction in it
        hw.connection.execute("DELETE FROM public.items WHERE id = 7")


def assert_goes_on(dsn: str, *, waiting: int = 2) -> None:
    """What waited is taken in by a delta, and what is written from now on."""
    with headwater.connect(dsn) as hw:
        first = hw.refresh("public.most")[0]
        assert (first.action, first.rows_in) == ("delta", waiting)
        hw.connection.execute("INSERT INTO public.items VALUES (101, 'k2')")
        assert hw.refresh("public.most")[0].action == "delta"
        for name in ("public.counts", "public.most"):
            assert_fresh(hw, name)
            assert hw.verify(name).equal
        assert {item.status for item in hw.repair()} == {"intact"}


def test_a_copy_of_a_stopped_server(primary: Server, tmp_path: Path) -> None:
    primary.stop()
    shutil.copytree(tmp_path / "primary", tmp_path / "copy")
    with start(primary.installation, tmp_path / "copy") as copy:
        assert_goes_on(copy.dsn("shop"))


def test_rows_that_were_frozen_and_rewritten(primary: Server) -> None:
    """What tells a restored catalog survives vacuum."""
    with psycopg.connect(primary.dsn("shop"), autocommit=True) as conn:
        conn.execute("VACUUM FREEZE headwater.frontier")
        conn.execute("VACUUM FULL headwater.migration")
        conn.execute("CLUSTER headwater.frontier USING frontier_pkey")
    assert_goes_on(primary.dsn("shop"))


def test_a_clone_of_a_database(primary: Server) -> None:
    with psycopg.connect(primary.dsn(), autocommit=True) as admin:
        admin.execute("CREATE DATABASE clone TEMPLATE shop")
    assert_goes_on(primary.dsn("clone"))


@pytest.fixture
def standby(primary: Server, tmp_path: Path) -> Iterator[Server]:
    """A server that follows the primary, made while that was at work."""
    directory = tmp_path / "standby"
    directory.mkdir(mode=0o700)
    shutil.copy2(tmp_path / "primary" / "password", directory)
    run(
        primary.installation,
        "pg_basebackup",
        "--dbname",
        primary.dsn(),
        "--pgdata",
        str(directory / "data"),
        "--write-recovery-conf",
        "--checkpoint=fast",
    )
    with start(primary.installation, directory) as server:
        yield server


def caught_up(primary: Server, standby: Server) -> None:
    with psycopg.connect(primary.dsn(), autocommit=True) as conn:
        position = value(conn, "SELECT pg_current_wal_flush_lsn()::text")
    with psycopg.connect(standby.dsn(), autocommit=True) as conn:
        deadline = time.monotonic() + WAITING_IS_LONG
        while not value(conn, "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", position):
            assert time.monotonic() < deadline, "the standby does not follow"


WRITING: dict[str, Callable[[Headwater], object]] = {
    "refresh": lambda hw: hw.refresh("public.counts"),
    "verify": lambda hw: hw.verify("public.counts"),
    "create": lambda hw: hw.create("public.more", COUNTS),
    "drop": lambda hw: hw.drop("public.counts"),
    "alter": lambda hw: hw.alter("public.counts", mode="full"),
    "explain": lambda hw: hw.explain("public.counts"),
    "set": lambda hw: hw.set("lock_attempts", "3"),
    "repair": lambda hw: hw.repair(),
    "migrate": lambda hw: hw.migrate(),
    "init": lambda hw: hw.init(),
}


def test_a_standby_and_its_promotion(primary: Server, standby: Server) -> None:
    with headwater.connect(primary.dsn("shop")) as hw:
        hw.connection.execute("INSERT INTO public.items VALUES (102, 'k3')")
        hw.refresh("public.counts")
        hw.connection.execute("DELETE FROM public.items WHERE id = 8")
    caught_up(primary, standby)
    with headwater.connect(standby.dsn("shop")) as hw:
        for name, verb in WRITING.items():
            with pytest.raises(ReadOnlyServer, match="standby") as caught:
                verb(hw)
            assert "connect to the primary" in caught.value.hint, name
        assert [status.stream_table for status in hw.list()] == ["public.counts", "public.most"]
        assert hw.status("public.counts").pending_rows == 1
        seen = hw.overview()
        waiting = {glance.stream_table: glance.pending_rows for glance in seen.stream_tables}
        assert (seen.service, waiting["public.counts"]) == (None, 1)
        assert hw.history()[0].stream_table == "public.counts"
        primary.kill()
        assert value(hw.connection, "SELECT pg_promote(wait_seconds => 60)")
    assert_goes_on(standby.dsn("shop"), waiting=1)


class Said(logging.Handler):
    """What a service of this process says."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.events.append(record.getMessage())


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    handler = Said()
    monkeypatch.setattr(logs.LOGGER, "handlers", [handler])
    monkeypatch.setattr(logs.LOGGER, "level", logging.INFO)
    return handler.events


def test_a_service_on_a_standby_waits_for_its_promotion(
    primary: Server, standby: Server, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says why it does nothing, and after the promotion takes in by deltas what had waited."""
    monkeypatch.setattr(launcher, "STANDBY_SECONDS", 0.2)
    with headwater.connect(primary.dsn("shop")) as hw:
        hw.alter("public.most", schedule="100ms")
        latest = hw.history(limit=1)[0].id
    caught_up(primary, standby)
    quick = {"scheduler_interval_ms": "50"}
    arguments = [part for name, value in quick.items() for part in ("--setting", f"{name}={value}")]
    service = launcher.Launcher(standby.dsn(), quick, arguments, ["shop"])
    thread = threading.Thread(target=service.run, daemon=True)
    thread.start()
    try:
        eventually(lambda: "standby" in said)
        primary.kill()
        with psycopg.connect(standby.dsn("shop"), autocommit=True) as conn:
            assert value(conn, "SELECT pg_is_in_recovery()")
            assert said == ["started", "standby"]
            assert value(conn, "SELECT pg_promote(wait_seconds => 60)")
            eventually(lambda: "promoted" in said)
            conn.execute("INSERT INTO items VALUES (101, 'k2')")
        with headwater.connect(standby.dsn("shop")) as hw:
            eventually(lambda: fresh(hw, "public.counts", "public.most"))
    finally:
        service.stop()
        thread.join(WAITING_IS_LONG)
    assert not thread.is_alive()
    assert said == ["started", "standby", "promoted", "ended"]
    with headwater.connect(standby.dsn("shop")) as hw:
        done = [entry for entry in hw.history() if entry.id > latest]
        assert {(entry.stream_table, entry.action) for entry in done} == {
            ("public.counts", "delta"),
            ("public.most", "delta"),
        }
        assert all(hw.verify(name).equal for name in ("public.counts", "public.most"))
        assert {item.status for item in hw.repair()} == {"intact"}


def test_a_server_that_is_read_only(primary: Server) -> None:
    with psycopg.connect(primary.dsn(), autocommit=True) as admin:
        admin.execute("ALTER DATABASE shop SET default_transaction_read_only = on")
    with headwater.connect(primary.dsn("shop")) as hw:
        with pytest.raises(ReadOnlyServer, match="default_transaction_read_only"):
            hw.refresh("public.counts")
        assert len(hw.list()) == 2


def test_pg_upgrade(tmp_path: Path) -> None:
    """It keeps oids and transactions, also their epoch, so stream tables need nothing."""
    old, new = oldest_and_newest()
    carrier(old, new, tmp_path, newest_only=True)  # pg_upgrade dumps by the new one
    start(old, tmp_path / "old").stop()
    reset = [str(old.bin_dir / "pg_resetwal"), "--epoch=3", f"--pgdata={tmp_path / 'old' / 'data'}"]
    subprocess.run([*_identity().prefix, *reset], check=True, capture_output=True, timeout=60)
    with start(old, tmp_path / "old") as server:
        prepare(server)
        with psycopg.connect(server.dsn("shop")) as conn:
            xmin = value(conn, "SELECT pg_snapshot_xmin(snapshot)::text FROM headwater.frontier LIMIT 1")
            assert int(xmin) >> 32 == 3
        secret = str(conninfo_to_dict(server.dsn())["password"])
    (tmp_path / "new").mkdir()
    shutil.copy2(tmp_path / "old" / "password", tmp_path / "new")
    work = tmp_path / "work"
    work.mkdir()
    options = ["--no-sync", "--username=postgres", "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C"]
    if new.major >= 18:
        options.append("--no-data-checksums")
    for program in (
        [
            "initdb",
            f"--pgdata={tmp_path / 'new' / 'data'}",
            f"--pwfile={tmp_path / 'new' / 'password'}",
            *options,
        ],
        [
            "pg_upgrade",
            f"--old-bindir={old.bin_dir}",
            f"--new-bindir={new.bin_dir}",
            f"--old-datadir={tmp_path / 'old' / 'data'}",
            f"--new-datadir={tmp_path / 'new' / 'data'}",
            "--username=postgres",
        ],
    ):
        done = subprocess.run(
            [*_identity().prefix, str(new.bin_dir / program[0]), *program[1:]],
            cwd=work,
            env={**os.environ, "PGPASSWORD": secret, "LC_ALL": "C"},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    with start(new, tmp_path / "new") as server:
        assert_goes_on(server.dsn("shop"))
