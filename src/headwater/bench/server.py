"""The database that a measurement runs in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headwater.embedded import Server, find_installation

SETTINGS = {"shared_buffers": "512MB", "max_wal_size": "4GB", "max_connections": "100"}


@contextmanager
def bench_database(dsn: str | None, progress: Callable[[str], None], *, fsync: bool = False) -> Iterator[str]:
    """Provide the named database, or one on a private server, without fsync by default, ended afterwards."""
    if dsn is not None:
        yield dsn
        return
    installation = find_installation()
    progress("starting a private PostgreSQL {}.{}".format(*installation.version))
    with Server.start(installation=installation, fsync=fsync, settings=SETTINGS) as server:
        yield server.dsn()
