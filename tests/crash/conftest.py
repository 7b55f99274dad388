"""A database with stream tables of many kinds, cloned for each disaster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from tests.crash.verbs import VERBS, prepare

import headwater


class Databases:
    """Makes databases in the state in which a verb is run."""

    def __init__(self, admin_dsn: str) -> None:
        self._admin_dsn = admin_dsn
        self._admin = psycopg.connect(admin_dsn, autocommit=True)
        self._number = 0
        self._made: list[str] = []
        self._shop = self._create("template0")
        with headwater.connect(self.dsn(self._shop)) as hw:
            hw.init()
            prepare(hw)

    def dsn(self, name: str) -> str:
        return make_conninfo(self._admin_dsn, dbname=name)

    @contextmanager
    def ready_for(self, verb: str) -> Iterator[str]:
        """The DSN of a database in which a verb has work to do; it is dropped afterwards."""
        name = self._create(self._shop if VERBS[verb].installed else "template0")
        try:
            with psycopg.connect(self.dsn(name), autocommit=True) as conn:
                conn.execute(VERBS[verb].before)
            yield self.dsn(name)
        finally:
            self._drop(name)

    def reconnect(self) -> None:
        """After the server was restarted."""
        self._admin.close()
        self._admin = psycopg.connect(self._admin_dsn, autocommit=True)

    def close(self) -> None:
        for name in list(self._made):
            self._drop(name)
        self._admin.close()

    def _create(self, template: str) -> str:
        self._number += 1
        name = f"{conninfo_to_dict(self._admin_dsn)['dbname']}_crash_{id(self)}_{self._number}"
        self._admin.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy").format(
                sql.Identifier(name), sql.Identifier(template)
            )
        )
        self._made.append(name)
        return name

    def _drop(self, name: str) -> None:
        self._admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
        self._made.remove(name)


@pytest.fixture(scope="session")
def databases(admin_dsn: str) -> Iterator[Databases]:
    made = Databases(admin_dsn)
    try:
        yield made
    finally:
        made.close()
