"""Deltas against recomputation: one batch, many batches and the query itself give the same multiset."""

from __future__ import annotations

import os
import time

import psycopg
from hypothesis import given, note
from hypothesis import strategies as st
from tests.oracle import shop

import headwater

SOAK_SECONDS = float(os.environ.get("HEADWATER_SOAK_SECONDS") or 0)


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
    return f"{name} + 0.0" if column.type_code == 701 else name


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


def test_batches_equal_recomputation(dsn: str) -> None:
    """One run of examples; by `make soak`, run after run until the time is over."""
    started = time.monotonic()
    while True:
        batches_equal_recomputation(dsn)
        if time.monotonic() - started > SOAK_SECONDS:
            break


@given(data=st.data())
def batches_equal_recomputation(dsn: str, data: st.DataObject) -> None:
    script = Script()
    with psycopg.connect(dsn, autocommit=True) as conn, headwater.connect(dsn) as hw:
        conn.execute("DROP SCHEMA IF EXISTS public CASCADE; CREATE SCHEMA public")
        conn.execute(shop.SCHEMA)
        for _ in range(8):
            run_transaction(conn, [data.draw(shop.statements(), label="load")], script)
        query = data.draw(shop.queries(), label="query")
        above = data.draw(st.booleans(), label="stream table on top")
        names = ["many", "once"]
        for name in names:
            script.lines.append(f"headwater create {name} --mode differential --query {query.text!r}")
            try:
                hw.create(name, query.text, mode="differential")
            except Exception:
                script.show()
                raise
        top = shop.Query("SELECT o0 AS p, count(*) AS n FROM many GROUP BY o0", False)
        if above and "o0" in query.text:
            script.lines.append(f"headwater create top --query {top.text!r}")
            hw.create("top", top.text, mode="differential")
        else:
            above = False
        try:
            for batch in data.draw(st.lists(shop.transactions(), min_size=1, max_size=5), label="batches"):
                run_transaction(conn, batch, script)
                script.lines.append("headwater refresh " + ("top" if above else "many"))
                hw.refresh("top" if above else "many")
                check(hw, conn, "many", query, script)
                if above:
                    check(hw, conn, "top", top, script)
            script.lines.append("headwater refresh once")
            hw.refresh("once")
            check(hw, conn, "once", query, script)
            hw.refresh("many", full=True)
            check(hw, conn, "many", query, script)
        except Exception:
            script.show()
            raise
        finally:
            for name in (["top"] if above else []) + names:
                hw.drop(name)
