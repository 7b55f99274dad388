"""What several integration tests need: comparing a stream table with its query, and what a database holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
from psycopg import sql

from headwater import Headwater, Outcome
from headwater.catalog import stream_tables as catalog
from headwater.db.scratch import Scratch, statement
from headwater.definition.views import definition_name
from headwater.plan.steps import Attempt, Fetch, Fill, Step

Connection = psycopg.Connection[Any]
Result = TypeVar("Result")

WAITING_IS_LONG = 30.0
"""Seconds after which a test gives up on another thread; nothing is asserted about the time it takes."""


class Meddled(Scratch):
    """The steps of a refresh, after each of which something happens."""

    def meddle(self) -> None:
        raise NotImplementedError

    def execute(self, step: Step) -> object:
        found = super().execute(step)
        if isinstance(step, Fill | Fetch | Attempt):
            self.meddle()
        return found


def value(conn: Connection, query: str, *parameters: object) -> Any:
    """The single value of a query."""
    row = conn.execute(statement(query), parameters or None).fetchone()
    assert row is not None
    return row[0]


def contents(conn: Connection, relation: str) -> Counter[str]:
    """The rows of a relation as text, with how often each occurs."""
    rows = conn.execute(
        statement(f"SELECT whole_row__::text, count(*) FROM {relation} AS whole_row__ GROUP BY 1")
    )
    return Counter(dict(rows.fetchall()))


def stored_and_wanted(hw: Headwater, name: str) -> tuple[Counter[str], Counter[str]]:
    """The rows that users see and those that the query gives now, in the text of their values."""
    found = catalog.find(hw.connection, name)
    view = sql.Identifier(found.schema, found.name).as_string(hw.connection)
    return contents(hw.connection, view), contents(hw.connection, definition(hw, found.id))


def definition(hw: Headwater, stream_table_id: int) -> str:
    """The SQL name of a stream table's definition view."""
    return definition_name(hw.connection, stream_table_id).as_string(hw.connection)


def assert_fresh(hw: Headwater, name: str) -> None:
    """Invariant I1 at this moment: the stream table holds what its query gives."""
    stored, wanted = stored_and_wanted(hw, name)
    assert stored == wanted


def assert_equal(hw: Headwater, name: str) -> None:
    """As `assert_fresh`, by the equality of the types: 1.0 may stand for 1.00 in a key of a group."""
    found = catalog.find(hw.connection, name)
    view = sql.Identifier(found.schema, found.name).as_string(hw.connection)
    query = definition(hw, found.id)
    for left, right in ((query, view), (view, query)):
        difference = statement(f"SELECT * FROM (TABLE {left} EXCEPT ALL TABLE {right}) AS d")
        assert hw.connection.execute(difference).fetchall() == [], f"{left} has what {right} lacks"


def refresh(hw: Headwater, name: str) -> Outcome:
    """Refreshes, asserts I1 and returns what was done."""
    outcome = hw.refresh(name)[-1]
    assert_fresh(hw, name)
    return outcome


def change_table(conn: Connection, table: str) -> str | None:
    """The SQL name of a table's change table, or None while it is not captured."""
    row = conn.execute(
        "SELECT 'headwater_changes.' || quote_ident(change_table) FROM headwater.source"
        " WHERE relation = %s::regclass AND change_table IS NOT NULL",
        (table,),
    ).fetchone()
    return None if row is None else str(row[0])


def change_rows(conn: Connection, table: str) -> int:
    """How many rows a table's change table holds."""
    name = change_table(conn, table)
    assert name is not None
    return int(value(conn, f"SELECT count(*) FROM {name}"))


def capture_triggers(conn: Connection, table: str) -> set[str]:
    rows = conn.execute(
        "SELECT tgname FROM pg_trigger WHERE tgrelid = %s::regclass AND tgname LIKE 'headwater%%'", (table,)
    )
    return {row[0] for row in rows}


def footprint(conn: Connection) -> set[tuple[str, ...]]:
    """All that a failed command could leave behind: relations, functions, triggers, locks, catalog rows."""
    found = {
        ("relation", *row)
        for row in conn.execute(
            "SELECT n.nspname, c.relname, c.relkind::text, c.relacl::text FROM pg_class c"
            " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname !~ '^pg_'"
            " AND n.nspname <> 'information_schema'"
        )
    }
    found |= {
        ("function", *row)
        for row in conn.execute(
            # The oid of a view that is made again with the function says nothing.
            "SELECT p.oid::regprocedure::text, md5(regexp_replace(p.prosrc, '[0-9]+::oid, .SELECT', ''))"
            " FROM pg_proc p"
            " JOIN pg_namespace n ON n.oid = p.pronamespace"
            " WHERE n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'"
        )
    }
    found |= {
        ("trigger", *row)
        for row in conn.execute(
            "SELECT tgrelid::regclass::text, tgname FROM pg_trigger WHERE NOT tgisinternal"
        )
    }
    found |= {
        ("advisory lock", *row)
        for row in conn.execute(
            "SELECT classid::text, objid::text, mode FROM pg_locks WHERE locktype = 'advisory'"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
    }
    for (table,) in conn.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'headwater'").fetchall():
        unsigned = "(SELECT id, relation, schema_name, table_name, stream_table_id, change_table FROM {})"
        rows = (unsigned if table == "source" else "{}").format(f"headwater.{table}")
        found |= {("row", table, text) for text in contents(conn, rows)}
    return found


def tick(conn: Connection, ticked_at: str = "clock_timestamp()", draining: bool = False) -> None:
    """What a scheduler leaves in each tick."""
    conn.execute(
        statement(
            "INSERT INTO headwater.scheduler (worker_id, started_at, ticked_at, ticks, tick_ms, busy_share,"
            " stream_tables, changed, queued_jobs, active_workers, max_workers, per_db_cap, parallel_mode,"
            " plan_cache_hits, plan_cache_misses, draining) VALUES (gen_random_uuid(), clock_timestamp(),"
            f" {ticked_at}, 1, 0.5, 0.25, 2, 1, 3, 2, 4, 0, 'on', 3, 1, {draining})"
            " ON CONFLICT (singleton) DO UPDATE"
            " SET ticked_at = excluded.ticked_at, draining = excluded.draining"
        )
    )


@contextmanager
def in_background(work: Callable[[], Result]) -> Iterator[Future[Result]]:
    """Runs something in another thread; it must end before the block is left for good."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        yield pool.submit(work)


def wait_until_blocked(conn: Connection, pid: int, future: Future[Any]) -> None:
    """Returns once a backend waits for a lock; fails if its work ended without having to."""
    while not value(conn, "SELECT cardinality(pg_blocking_pids(%s)) > 0", pid):
        assert not future.done(), f"it did not wait for a lock: {future.exception() or future.result()}"
