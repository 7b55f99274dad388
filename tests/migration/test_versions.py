"""Programs and catalogs of different versions, and migrations that meet each other, refreshes and death."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from tests.integration.support import (
    WAITING_IS_LONG,
    Meddled,
    in_background,
    refresh,
    value,
    wait_until_blocked,
)

import headwater
from headwater import Headwater
from headwater.catalog import installed
from headwater.catalog import stream_tables as catalog
from headwater.catalog.installed import Migration, latest_version, migrations
from headwater.config import Settings
from headwater.db.connection import connect
from headwater.db.route import Route
from headwater.definition.reader import DefinitionReader
from headwater.engine.select import EngineSelector
from headwater.errors import CatalogVersionMismatch
from headwater.install import migrate
from headwater.lifecycle.alter import Alteration
from headwater.lifecycle.create import Creation
from headwater.lifecycle.drop import Removal
from headwater.lifecycle.options import Options
from headwater.refresh.decide import Request
from headwater.refresh.transaction import Refresher

Connection = psycopg.Connection[Any]
OLD = migrations()[:3]
NEXT = Migration(latest_version() + 1, "colours", "ALTER TABLE headwater.stream_table ADD COLUMN colour text")


@pytest.fixture
def old(empty_dsn: str) -> Iterator[Headwater]:
    """A handle to a database whose catalog is of an older version."""
    with headwater.connect(empty_dsn) as hw:
        migrate.migrate(hw.connection, steps=OLD)
        yield hw


@contextmanager
def program(dsn: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-m", "headwater", *arguments],
        env={**os.environ, "HEADWATER_DSN": dsn},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(conn: Connection, condition: str) -> None:
    deadline = time.monotonic() + WAITING_IS_LONG
    while not value(conn, f"SELECT EXISTS (SELECT FROM pg_stat_activity WHERE {condition})"):
        assert time.monotonic() < deadline, condition


WAITS = "datname = current_database() AND application_name = 'headwater' AND wait_event_type = 'Lock'"


def test_an_older_catalog_is_told_by_every_verb(old: Headwater) -> None:
    with pytest.raises(CatalogVersionMismatch) as caught:
        old.refresh("public.st")
    assert f"has version {OLD[-1].version}, this program needs {latest_version()}" in caught.value.message
    with pytest.raises(CatalogVersionMismatch):
        old.repair()
    assert old.migrate() == [step.version for step in migrations() if step not in OLD]
    old.connection.execute("CREATE TABLE public.items (id int)")
    old.create("public.st", "SELECT id FROM public.items")


def test_two_migrations_at_once(old: Headwater, empty_dsn: str) -> None:
    with psycopg.connect(empty_dsn) as holder, psycopg.connect(empty_dsn, autocommit=True) as conn:
        holder.execute("TABLE headwater.stream_table")  # so that the first one cannot finish at once
        with program(empty_dsn, "migrate") as first, program(empty_dsn, "migrate") as second:
            wait_for(conn, f"{WAITS} AND wait_event = 'relation'")
            wait_for(conn, f"{WAITS} AND wait_event = 'advisory'")
            holder.rollback()
            said = [process.communicate()[0].strip() for process in (first, second)]
    # They may take turns, for each step is a transaction of its own.
    applied = sorted(int(number) for text in said for number in re.findall(r"\d+", text))
    assert applied == [step.version for step in migrations() if step not in OLD]
    for text in said:
        assert text.startswith("applied migration") or text == "the catalog is up to date"


def test_a_migration_that_is_killed_in_the_middle_of_a_step(old: Headwater, empty_dsn: str) -> None:
    with psycopg.connect(empty_dsn) as holder, psycopg.connect(empty_dsn, autocommit=True) as conn:
        holder.execute("TABLE headwater.stream_table")
        with program(empty_dsn, "migrate") as process:
            wait_for(conn, f"{WAITS} AND wait_event = 'relation'")
            process.send_signal(signal.SIGKILL)
            process.wait()
        holder.rollback()
        assert old.migrate()[-1] == latest_version()  # waits for the backend of the dead one, if need be
    assert old.list() == []


def test_steps_that_a_killed_migration_had_finished_stay(empty_dsn: str) -> None:
    with psycopg.connect(empty_dsn, autocommit=True) as conn, headwater.connect(empty_dsn) as hw:
        migrate.migrate(hw.connection, steps=migrations()[:1])
        with psycopg.connect(empty_dsn) as holder:
            holder.execute("TABLE headwater.stream_table")
            with program(empty_dsn, "migrate") as process:
                wait_for(conn, f"{WAITS} AND wait_event = 'relation'")
                process.send_signal(signal.SIGKILL)
                process.wait()
        finished = installed.installed_version(hw.connection)
        assert finished is not None
        assert finished >= OLD[-1].version
        assert hw.migrate() == [step.version for step in migrations() if step.version > finished]


def test_a_migration_waits_for_a_refresh_and_later_ones_see_it(dsn: str) -> None:
    """The worker that refreshes is of the older version: it finishes, and stops at the next refresh."""
    with headwater.connect(dsn) as hw, connect(dsn) as worker, connect(dsn) as migrating:
        hw.connection.execute("CREATE TABLE public.items (id int)")
        hw.create("public.st", "SELECT id FROM public.items")
        hw.connection.execute("INSERT INTO public.items VALUES (1)")
        migrated: list[object] = []

        class Meeting(Meddled):
            def meddle(self) -> None:
                if not migrated:
                    future = pool.submit(lambda: migrate.migrate(migrating, steps=[*migrations(), NEXT]))
                    migrated.append(future)
                    wait_until_blocked(hw.connection, migrating.info.backend_pid, future)

        refresher = Refresher(
            worker,
            Settings(compiled_refreshes=False),
            DefinitionReader(worker),
            EngineSelector(Route(dsn)),
            Meeting,
        )
        st = catalog.find(worker, "public.st")
        with ThreadPoolExecutor(max_workers=1) as pool:
            assert refresher.refresh(st, Request())[-1].action == "delta"
        assert migrated
        assert installed.installed_version(hw.connection) == NEXT.version
        hw.connection.execute("INSERT INTO public.items VALUES (2)")
        with pytest.raises(CatalogVersionMismatch, match=f"knows up to {latest_version()}"):
            refresher.refresh(st, Request())
        hw.connection.execute("DELETE FROM headwater.migration WHERE version = %s", (NEXT.version,))
        assert refresh(hw, "public.st").action == "delta"


def test_a_refresh_waits_for_a_migration_that_runs(dsn: str) -> None:
    with headwater.connect(dsn) as hw, connect(dsn) as worker, psycopg.connect(dsn) as migrating:
        hw.connection.execute("CREATE TABLE public.items (id int)")
        hw.create("public.st", "SELECT id FROM public.items")
        hw.connection.execute("INSERT INTO public.items VALUES (1)")
        settings, reader, route = Settings(), DefinitionReader(worker), Route(dsn)
        attempts = settings.lock_attempts
        refresher = Refresher(worker, settings, reader, EngineSelector(route))
        creation = Creation(worker, attempts, reader, refresher, route)
        st = catalog.find(worker, "public.st")
        migrating.execute("LOCK TABLE headwater.migration IN ACCESS EXCLUSIVE MODE")
        migrating.execute("INSERT INTO headwater.migration VALUES (%s, 'next')", (NEXT.version,))
        with in_background(lambda: refresher.refresh(st, Request())) as future:
            wait_until_blocked(hw.connection, worker.info.backend_pid, future)
            migrating.commit()
            with pytest.raises(CatalogVersionMismatch):
                future.result()
        for verb in (
            lambda: Removal(worker, attempts).drop(st),
            lambda: Alteration(worker, attempts, reader, refresher).alter(st, mode="full"),
            lambda: creation.create("public.more", "SELECT 1 AS one", Options()),
        ):  # as of a program that has looked at the version before
            with pytest.raises(CatalogVersionMismatch):
                verb()
