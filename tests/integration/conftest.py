"""Fixtures of the integration tests: a handle, and roles that are no superusers."""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Callable, Iterator

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from tests.integration.history import STREAM_TABLES, add_stream_tables

from headwater import Headwater

_role_numbers = itertools.count(1)


@pytest.fixture
def hw(dsn: str, connect: Callable[[str], Headwater]) -> Iterator[Headwater]:
    """A superuser's handle to the test's database, in which the catalog is installed."""
    with connect(dsn) as handle:
        handle.init()
        yield handle


@pytest.fixture
def in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has small changes taken in as larger ones are, by several statements with temporary tables."""
    monkeypatch.setattr("headwater.refresh.steps.is_one_query", lambda plan, pending: False)
    monkeypatch.setattr("headwater.refresh.steps.MOST_AT_ONCE", 0)


@pytest.fixture(params=["at once", "in steps"])
def either_way(request: pytest.FixtureRequest) -> None:
    """Small changes taken in by one statement, and by several."""
    if request.param == "in steps":
        request.getfixturevalue("in_steps")


@pytest.fixture
def new_role(dsn: str, admin: psycopg.Connection) -> Iterator[Callable[[], tuple[str, str]]]:
    """Makes a role without any privilege; its name and a DSN by which it reaches the test's database."""
    made: list[str] = []

    def make() -> tuple[str, str]:
        name = f"headwater_role_{os.getpid()}_{next(_role_numbers)}"
        password = secrets.token_urlsafe(12)
        admin.execute(
            sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(name), sql.Literal(password))
        )
        made.append(name)
        return name, make_conninfo(dsn, user=name, password=password)

    yield make
    with psycopg.connect(dsn, autocommit=True) as inside:
        for name in made:
            inside.execute(sql.SQL("DROP OWNED BY {} CASCADE").format(sql.Identifier(name)))
    for name in made:
        admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


@pytest.fixture
def stream_tables(conn: psycopg.Connection) -> list[int]:
    """Stream tables as far as the history knows of them."""
    return add_stream_tables(conn, STREAM_TABLES)
