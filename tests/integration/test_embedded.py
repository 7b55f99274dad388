"""The private server: isolation, restarts, crashes, and nothing left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from headwater import embedded
from headwater.embedded import (
    EmbeddedServerError,
    Installation,
    Server,
    find_installation,
    find_installations,
)


def query(dsn: str, statement: str) -> object:
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(statement.encode()).fetchone()
        return row[0] if row else None


def execute(dsn: str, statement: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(statement.encode())


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return condition()


def is_gone(pid: int) -> bool:
    """True also for a zombie, which a container whose first process reaps nothing keeps."""
    status = Path(f"/proc/{pid}/stat")
    if not status.parent.parent.joinpath("self").exists():
        return subprocess.run(["ps", "-p", str(pid)], capture_output=True).returncode != 0
    try:
        return status.read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_installations_report_their_version(installation: Installation) -> None:
    assert installation in find_installations()
    assert installation.major >= 13
    assert (installation.bin_dir / "postgres").is_file()


def test_override_replaces_all_installations(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWATER_PG_BIN", str(installation.bin_dir))
    assert [each.bin_dir for each in find_installations()] == [installation.bin_dir]


def test_no_installation_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWATER_PG_BIN", str(tmp_path))
    with pytest.raises(EmbeddedServerError, match="HEADWATER_PG_BIN"):
        find_installation()


def test_two_at_once_are_separate(installation: Installation) -> None:
    with (
        Server.start(installation=installation, fsync=False) as one,
        Server.start(installation=installation, fsync=False) as two,
    ):
        execute(one.dsn(), "CREATE TABLE only_here ()")
        assert one.port != two.port
        assert query(one.dsn(), "SELECT to_regclass('only_here') IS NOT NULL") is True
        assert query(two.dsn(), "SELECT to_regclass('only_here') IS NOT NULL") is False
        directories = [one.directory, two.directory]
    assert not any(directory.exists() for directory in directories)


def test_speaks_utf8_and_listens_on_loopback_only(server: Server) -> None:
    assert query(server.dsn(), "SHOW server_encoding") == "UTF8"
    assert query(server.dsn(), "SHOW listen_addresses") == "127.0.0.1"
    assert query(server.dsn(), "SHOW unix_socket_directories") == ""
    assert query(server.dsn(), "SELECT 'a' > 'B'") is True, "byte order"


def test_wrong_password_is_refused(server: Server) -> None:
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(server.dsn(password="wrong"))
    with pytest.raises(psycopg.OperationalError, match="no password supplied"):
        psycopg.connect(
            make_conninfo(host=embedded.HOST, port=server.port, user="postgres", passfile="/dev/null")
        )


def test_data_survive_restart_and_a_second_start(installation: Installation, tmp_path: Path) -> None:
    data_dir = tmp_path / "kept"
    with Server.start(data_dir, installation=installation, fsync=False) as server:
        execute(server.dsn(), "CREATE TABLE kept AS SELECT 42 AS answer")
        port = server.port
        server.restart()
        assert server.port == port
        assert query(server.dsn(), "SELECT answer FROM kept") == 42
    assert data_dir.exists()
    with Server.start(data_dir, installation=installation, fsync=False) as server:
        assert query(server.dsn(), "SELECT answer FROM kept") == 42


def test_crash_is_recovered(installation: Installation) -> None:
    with Server.start(installation=installation, fsync=False) as server:
        execute(server.dsn(), "CREATE TABLE kept AS SELECT 42 AS answer")
        with psycopg.connect(server.dsn()) as open_transaction:
            open_transaction.execute("INSERT INTO kept VALUES (43)")
            server.kill()
            with pytest.raises(psycopg.OperationalError):
                open_transaction.execute("SELECT 1")
        assert server.pid is None
        server.restart()
        assert query(server.dsn(), "SELECT array_agg(answer) FROM kept") == [42]
        assert "automatic recovery in progress" in server.log_path.read_text()


def test_survives_the_thread_that_started_it(installation: Installation) -> None:
    started: list[Server] = []
    thread = threading.Thread(
        target=lambda: started.append(Server.start(installation=installation, fsync=False))
    )
    thread.start()
    thread.join()
    with started[0] as server:
        assert query(server.dsn(), "SELECT 1") == 1


OWNER = """
import sys, time
from pathlib import Path
from headwater.embedded import Server, find_installations
[installation] = [each for each in find_installations() if str(each.bin_dir) == sys.argv[1]]
server = Server.start(installation=installation, fsync=False)
print(server.pid, server.directory, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM], ids=lambda ending: ending.name)
def test_no_orphan_when_the_owner_is_killed(installation: Installation, ending: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(installation.bin_dir)], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        pid, directory = owner.stdout.readline().split()
        assert not is_gone(int(pid))
        owner.send_signal(ending)
        owner.wait(10)
    assert wait_until(lambda: is_gone(int(pid)), 20)
    # The watcher takes 30 s if nothing reaps the postmaster.
    assert wait_until(lambda: not Path(directory).exists(), 40)


def test_interrupted_start_leaves_nothing(
    installation: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    spawned: list[int] = []

    def interrupted(self: Server, process: subprocess.Popen[bytes], log_start: int) -> bool:
        spawned.append(process.pid)
        raise KeyboardInterrupt

    monkeypatch.setattr(Server, "_wait_until_ready", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Server.start(installation=installation, fsync=False)
    assert all(is_gone(pid) for pid in spawned)
    assert len(spawned) == 1
    assert list(tmp_path.iterdir()) == []


def test_bad_setting_shows_the_log(installation: Installation, tmp_path: Path) -> None:
    data_dir = tmp_path / "never"
    with pytest.raises(EmbeddedServerError, match="no_such_setting") as caught:
        Server.start(data_dir, installation=installation, fsync=False, settings={"no_such_setting": "1"})
    assert str(data_dir) in caught.value.message
    assert not data_dir.exists()


def test_taken_port_is_exchanged_unless_it_was_asked_for(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose = embedded._free_port
    with socket.socket() as occupied:
        occupied.bind((embedded.HOST, 0))
        occupied.listen()
        taken = occupied.getsockname()[1]
        answers = iter([taken, choose()])
        monkeypatch.setattr(embedded, "_free_port", lambda: next(answers))
        with Server.start(installation=installation, fsync=False) as server:
            assert server.port != taken
            assert query(server.dsn(), "SELECT 1") == 1
        with pytest.raises(EmbeddedServerError, match="Address already in use"):
            Server.start(installation=installation, fsync=False, port=taken)


def test_cluster_of_another_version_is_refused(installation: Installation, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "PG_VERSION").write_text("9\n")
    with pytest.raises(EmbeddedServerError, match="created by PostgreSQL 9"):
        Server.start(tmp_path, installation=installation)
    assert (tmp_path / "data").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root needs another identity")
class TestRoot:
    def test_runs_under_a_closed_parent_directory(self, installation: Installation, tmp_path: Path) -> None:
        if not embedded._identity().prefix:
            pytest.skip("user namespaces are not allowed here")
        closed = tmp_path / "closed"
        closed.mkdir(mode=0o700)
        with Server.start(closed / "server", installation=installation, fsync=False) as server:
            assert query(server.dsn(), "SELECT 1") == 1
        assert closed.stat().st_mode & 0o777 == 0o700

    def test_without_namespaces_runs_as_another_user(
        self, installation: Installation, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        identity = embedded._unprivileged_user()
        monkeypatch.setattr(embedded, "_identity", lambda: identity)
        embedded._version.cache_clear()
        try:
            if installation not in find_installations():
                pytest.skip("the programs are in a directory that the other user cannot enter")
            with Server.start(installation=installation, fsync=False) as server:
                assert server.pid is not None
                assert Path(f"/proc/{server.pid}").stat().st_uid == identity.uid
                assert query(server.dsn(), "SELECT 1") == 1
                directory = server.directory
            assert not directory.exists()
        finally:
            embedded._version.cache_clear()
