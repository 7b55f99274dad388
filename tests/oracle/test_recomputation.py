"""Deltas against recomputation: one batch, many batches and the query itself give the same multiset."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from hypothesis import Phase, given, note, seed, settings
from hypothesis import strategies as st
from tests.engines import LEDGER
from tests.oracle import shop
from tests.oracle.chance import SEED

import headwater
from headwater import HeadwaterError
from headwater.catalog.stream_tables import EngineName
from headwater.errors import NotFound

SOAK_SECONDS = float(os.environ.get("HEADWATER_SOAK_SECONDS") or 0)
SPARK_EXAMPLES = 10
"""Of the property on Spark, where each takes seconds."""

Connect = Callable[..., headwater.Headwater]


class Script:
    """What was done, as SQL and commands that do it again."""

    def __init__(self) -> None:
        self.lines: list[str] = [shop.SCHEMA.strip()]

    def show(self) -> None:
        note("-- reproduce with:\n" + "\n".join(self.lines))


def run_transaction(conn: psycopg.Connection, statements: list[str], script: Script) -> None:
    script.lines.append("BEGIN; " + "; ".join(statements) + "; COMMIT;")
    try:
        with conn.transaction():
            for statement in statements:
                conn.execute(statement)
    except psycopg.errors.UniqueViolation:
        script.lines.append("-- (fails with a duplicate key and leaves nothing)")


def rows(conn: psycopg.Connection, relation: str, *, exact: bool) -> list[str]:
    """The multiset of a relation: by the rows' texts, or with equal numbers made alike."""
    described = conn.execute(f"SELECT * FROM {relation} AS q LIMIT 0").description or []
    columns = ", ".join(f'q."{column.name}"' if exact else _normalized(column) for column in described)
    query = f"SELECT ROW({columns})::text FROM {relation} AS q"
    return sorted(row[0] for row in conn.execute(query))


def _normalized(column: psycopg.Column) -> str:
    name = f'q."{column.name}"'
    if column.type_code == 1700:
        return f"trim_scale({name})"
    if column.type_code == 1042:
        return f"{name}::text"
    if column.type_code == 1186:
        return f"justify_interval({name})"
    return f"{name} + 0.0" if column.type_code in (700, 701) else name


def _fails(conn: psycopg.Connection, query: shop.Query) -> bool:
    """Whether the query itself cannot be computed now."""
    try:
        rows(conn, f"({query.text})", exact=True)
    except psycopg.DataError:
        return True
    return False


def check(
    hw: headwater.Headwater, conn: psycopg.Connection, name: str, query: shop.Query, script: Script
) -> None:
    expected = rows(conn, f"({query.text})", exact=query.exact)
    found = rows(conn, name, exact=query.exact)
    if found != expected:
        script.lines.append(f"-- {name} has {found}\n-- the query gives {expected}")
        script.show()
    assert found == expected
    assert hw.verify(name).equal, script.lines


def refresh(
    hw: headwater.Headwater,
    conn: psycopg.Connection,
    name: str,
    queries: dict[str, shop.Query],
    script: Script,
    **options: Any,
) -> None:
    """Refreshes and compares; where a query fails, so must the refresh."""
    said = "".join(f" --{option} {value}" for option, value in options.items() if value)
    script.lines.append(f"headwater refresh {name}{said}")
    if any(_fails(conn, query) for query in queries.values()):
        with pytest.raises(HeadwaterError):
            hw.refresh(name, **options)
        return
    hw.refresh(name, **options)
    for each, query in queries.items():
        check(hw, conn, each, query, script)


@pytest.mark.differential
def test_batches_equal_recomputation(dsn: str, connect: Connect, engine: EngineName) -> None:
    run_examples(dsn, connect, examples=None if engine == "postgres" else SPARK_EXAMPLES)


def run_examples(dsn: str, connect: Connect, *, examples: int | None = None) -> None:
    """One run of examples; by `make soak`, run after run until the time is over.

    With a number of examples they are slow ones. Then one that fails is shown as it is, not made smaller, and
    runs are short: after the first ten examples of a run, most have the query of another one.
    """
    started = time.monotonic()
    chosen = settings()
    if examples is not None:
        chosen = settings(max_examples=examples, phases=[Phase.generate])
    for number in itertools.count():
        print(f"HEADWATER_SEED={SEED + number}")

        @seed(SEED + number)
        @chosen
        @given(data=st.data())
        def example(data: st.DataObject) -> None:
            batches_equal_recomputation(dsn, connect, data)

        example()
        if time.monotonic() - started > SOAK_SECONDS:
            break


def batches_equal_recomputation(dsn: str, connect: Connect, data: st.DataObject) -> None:
    script = Script()
    compiled = data.draw(st.sampled_from(("on", "off")), label="compiled_refreshes")
    with psycopg.connect(dsn, autocommit=True) as conn, connect(dsn, compiled_refreshes=compiled) as hw:
        conn.execute("DROP SCHEMA IF EXISTS public CASCADE; CREATE SCHEMA public")
        conn.execute(shop.SCHEMA)
        for _ in range(8):
            run_transaction(conn, [data.draw(shop.statements(), label="load")], script)
        query = data.draw(shop.queries(), label="query")
        above = data.draw(st.booleans(), label="stream table on top")
        if _fails(conn, query):
            return
        LEDGER.examples += 1
        try:
            compare(hw, conn, query, above, script, data)
        except Exception:
            script.show()
            raise
        finally:
            for stream_table in ("top", "many", "once"):
                with contextlib.suppress(NotFound):
                    hw.drop(stream_table)


def compare(
    hw: headwater.Headwater,
    conn: psycopg.Connection,
    query: shop.Query,
    above: bool,
    script: Script,
    data: st.DataObject,
) -> None:
    # The one that is loaded by PostgreSQL and refreshed by another engine has to fit together as well.
    for name, options in (("many", {}), ("once", {"engine": "postgres"})):
        script.lines.append(f"headwater create {name} --mode differential --query {query.text!r} {options}")
        hw.create(name, query.text, mode="differential", **options)  # type: ignore[arg-type]
    queries = {"many": query}
    check(hw, conn, "many", query, script)
    if above and "o0" in query.text:
        queries["top"] = shop.Query("SELECT o0 AS p, count(*) AS n FROM many GROUP BY o0", False)
        script.lines.append(f"headwater create top --query {queries['top'].text!r}")
        hw.create("top", queries["top"].text, mode="differential")
    last = "top" if "top" in queries else "many"
    for batch in data.draw(st.lists(shop.transactions(), min_size=1, max_size=5), label="batches"):
        run_transaction(conn, batch, script)
        other = data.draw(st.sampled_from((None, None, None, "postgres")), label="engine")
        refresh(hw, conn, last, queries, script, engine=other)
    refresh(hw, conn, "once", {"once": query}, script)
    refresh(hw, conn, "many", {"many": query}, script, full=True)
