"""Servers of a test's own, and the programs that copy databases between them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from headwater.embedded import Installation, Server, find_installations


def start(installation: Installation, directory: Path | None = None) -> Server:
    """A server that can be copied from and follow another."""
    return Server.start(
        directory,
        installation=installation,
        fsync=False,
        settings={"wal_level": "replica", "max_wal_senders": "4", "hot_standby": "on"},
    )


def new_database(server: Server, name: str, owner: str | None = None) -> str:
    """A fresh database; a superuser's DSN."""
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(sql.Identifier(name)))
        if owner is not None:
            admin.execute(
                sql.SQL("ALTER DATABASE {} OWNER TO {}").format(sql.Identifier(name), sql.Identifier(owner))
            )
    return server.dsn(name)


def run(installation: Installation, program: str, *arguments: str, check: bool = True) -> str:
    """Runs a program of an installation; what it printed."""
    done = subprocess.run(
        [str(installation.bin_dir / program), *arguments], capture_output=True, text=True, timeout=120
    )
    if check:
        assert done.returncode == 0, done.stderr
    return done.stdout


def dump(installation: Installation, dsn: str, file: Path, *options: str) -> None:
    run(installation, "pg_dump", "--dbname", dsn, "--file", str(file), *options)


def restore(installation: Installation, dsn: str, file: Path, *options: str, check: bool = True) -> None:
    """Restores a dump of either format."""
    if file.read_bytes()[:5] == b"PGDMP":
        run(installation, "pg_restore", "--dbname", dsn, *options, str(file), check=check)
        return
    stop = ["-v", "ON_ERROR_STOP=1"] if check else []
    run(installation, "psql", "-X", "-q", *stop, "--dbname", dsn, "--file", str(file), check=check)


def as_role(dsn: str, role: str, password: str) -> str:
    return make_conninfo(dsn, user=role, password=password)


def oldest_and_newest() -> tuple[Installation, Installation]:
    """The oldest and the newest PostgreSQL here; skips the test if they are of one major version."""
    found = sorted(find_installations(), key=lambda each: each.version)
    if found[0].major == found[-1].major:
        pytest.skip("only one version of PostgreSQL is installed here")
    return found[0], found[-1]


def carrier(
    old: Installation, new: Installation, directory: Path, *, newest_only: bool = False
) -> Installation:
    """The installation whose pg_dump carries a table from one server to the other: the new one, if it can.

    The table has nothing to do with us. If no pg_dump can carry it, these servers cannot exchange anything,
    and the test that wanted to is skipped.
    """
    with start(old) as source, start(new) as target:
        with psycopg.connect(new_database(source, "plain"), autocommit=True) as connection:
            connection.execute("CREATE TABLE plain (id int PRIMARY KEY, name text)")
            connection.execute("INSERT INTO plain VALUES (1, 'one')")
        complaints = []
        for number, program in enumerate([new] if newest_only else [new, old]):
            file = directory / f"plain{number}.sql"
            dump(program, source.dsn("plain"), file)
            dsn = new_database(target, f"plain{number}")
            done = subprocess.run(
                [str(new.bin_dir / "psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", dsn, "-f", str(file)],
                capture_output=True,
                text=True,
                timeout=120,
            )
            if done.returncode == 0:
                with psycopg.connect(dsn) as connection:
                    assert connection.execute("TABLE plain").fetchall() == [(1, "one")]
                return program
            complaints.append(f"{program}: {done.stderr.strip()}")
    pytest.skip(f"{new} does not take a plain table from {old}, dumped by {'; by '.join(complaints)}")
