"""A PgBouncer in transaction mode before the server under test, with very few sessions.

Nothing is reset when a session goes from one client to the next, so that what one leaves there, others find.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from headwater.embedded import _identity

PROGRAM = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")
PORT = 6432  # only part of a socket's name
SESSIONS = 2
PATIENCE = 30.0


@dataclass(frozen=True)
class Pooler:
    """A running one."""

    directory: Path
    user: str

    def dsn(self, database: str) -> str:
        return make_conninfo(host=str(self.directory), port=PORT, dbname=database, user=self.user)


@contextmanager
def started(server_dsn: str) -> Iterator[Pooler]:
    """Before the server of this DSN; all its databases can be reached through it."""
    assert PROGRAM is not None
    server = conninfo_to_dict(server_dsn)
    given = {name: str(server[name]) for name in ("host", "port", "password") if server.get(name)}
    user = str(server["user"])
    with tempfile.TemporaryDirectory(prefix="hw") as folder:
        directory = Path(folder)
        settings = directory / "pgbouncer.ini"
        settings.write_text(
            "[databases]\n"
            f"* = {make_conninfo(user=user, **given)}\n"
            "[pgbouncer]\n"
            "listen_addr =\n"
            f"listen_port = {PORT}\n"
            f"unix_socket_dir = {directory}\n"
            "auth_type = any\n"
            "pool_mode = transaction\n"
            f"default_pool_size = {SESSIONS}\n"
            "max_client_conn = 200\n"
            "server_reset_query =\n"
        )
        identity = _identity()
        if identity.uid is not None and identity.gid is not None:
            for path in (directory, settings):
                os.chown(path, identity.uid, identity.gid)
        log = directory / "log"
        with log.open("w") as output:
            process = subprocess.Popen(
                [*identity.prefix, PROGRAM, str(settings)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                user=identity.uid,
                group=identity.gid,
                extra_groups=None if identity.uid is None else [],
            )
        try:
            pooler = Pooler(directory, user)
            _wait(pooler.dsn(str(server["dbname"])), process, log)
            yield pooler
        finally:
            process.terminate()
            process.wait()


def _wait(dsn: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            psycopg.connect(dsn).close()
            return
        except psycopg.OperationalError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"PgBouncer does not run: {error}\n{log.read_text()}") from error
            time.sleep(0.05)


@dataclass(frozen=True)
class Session:
    """What is in a session of the pool, for whoever gets it next."""

    pid: int
    settings: tuple[str, ...]
    temporary: tuple[str, ...]
    locks: int
    prepared: int
    channels: tuple[str, ...]


def sessions(dsn: str) -> list[Session]:
    """All sessions of a pool, each held by a transaction until the others are, too.

    The name of the client, the pooler itself gives to a session before each transaction.
    """
    found = []
    named = make_conninfo(dsn, application_name="a look at the sessions")
    with ExitStack() as stack:
        for _ in range(SESSIONS):
            client = stack.enter_context(psycopg.connect(named, prepare_threshold=None))
            row = client.execute(
                "SELECT pg_backend_pid(),"
                " array(SELECT name || '=' || setting FROM pg_settings WHERE source = 'session' ORDER BY 1),"
                " array(SELECT relname::text FROM pg_class WHERE relnamespace = pg_my_temp_schema()),"
                " (SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'),"
                " (SELECT count(*) FROM pg_prepared_statements),"
                " array(SELECT pg_listening_channels())"
            ).fetchone()
            assert row is not None
            pid, settings, temporary, locks, prepared, channels = row
            found.append(Session(pid, tuple(settings), tuple(temporary), locks, prepared, tuple(channels)))
    return sorted(found, key=lambda session: session.pid)


def transactions(pooler: Pooler, database: str) -> int:
    """How many the pooler has brought to a database so far."""
    with psycopg.connect(pooler.dsn("pgbouncer"), autocommit=True) as console:
        cursor = console.execute("SHOW STATS_TOTALS")
        names = [column.name for column in cursor.description or ()]
        for row in cursor:
            shown = dict(zip(names, row, strict=True))
            if shown["database"] == database:
                return int(shown["xact_count"])
    return 0
