"""Partitioned tables as sources: whatever a statement names, and whatever is attached or detached."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel
from tests.integration.support import (
    Meddled,
    assert_fresh,
    footprint,
    in_background,
    refresh,
    value,
    wait_until_blocked,
)
from tests.statements import watched

from headwater import Headwater
from headwater.catalog import stream_tables as catalog
from headwater.config import Settings
from headwater.db.connection import connect
from headwater.db.route import Route
from headwater.db.scratch import statement
from headwater.definition.reader import DefinitionReader
from headwater.engine.select import EngineSelector
from headwater.refresh.decide import Request
from headwater.refresh.transaction import Refresher

Connection = psycopg.Connection[Any]

SUMS = "SELECT kind, count(*) AS n, sum(price) AS s FROM sales GROUP BY kind"
ROWS = "SELECT s.id, s.price, k.label FROM sales s JOIN kinds k ON k.kind = s.kind"
TABLES = """
CREATE TABLE sales (id int, gone int, kind text, price int) PARTITION BY RANGE (id);
ALTER TABLE sales DROP COLUMN gone;
CREATE TABLE low PARTITION OF sales FOR VALUES FROM (0) TO (100);
CREATE TABLE middle PARTITION OF sales FOR VALUES FROM (100) TO (200) PARTITION BY LIST (kind);
CREATE TABLE middle_a PARTITION OF middle FOR VALUES IN ('a');
CREATE TABLE middle_rest PARTITION OF middle DEFAULT;
CREATE TABLE high (price int, extra int, kind text, id int);
ALTER TABLE high DROP COLUMN extra;
INSERT INTO high VALUES (7, 'a', 201), (8, 'b', 202);
INSERT INTO sales VALUES (1, 'a', 1), (2, 'b', 2), (101, 'a', 3), (102, 'b', 4);
CREATE TABLE kinds (kind text PRIMARY KEY, label text);
INSERT INTO kinds VALUES ('a', 'A'), ('b', 'B');
"""
ATTACH = "ALTER TABLE sales ATTACH PARTITION high FOR VALUES FROM (200) TO (300)"
DETACH = "ALTER TABLE sales DETACH PARTITION high"
MOVED = "a partition of public.sales was attached or detached"
TRUNCATED = (
    "public.sales was truncated, or its rows were moved between partitions in a way that triggers do not see"
)


@pytest.fixture(autouse=True)
def tables(conn: Connection) -> None:
    conn.execute(TABLES)


def triggers_on(conn: Connection, table: str) -> int:
    found = value(
        conn,
        "SELECT count(*) FROM pg_trigger WHERE tgrelid = %s::regclass AND starts_with(tgname, 'headwater')",
        table,
    )
    return int(found)


@pytest.mark.parametrize(
    "write",
    [
        "INSERT INTO sales VALUES (3, 'a', 5), (103, 'c', 6), (203, 'a', 9)",
        "UPDATE sales SET price = price + 1",
        "UPDATE sales SET id = 299 - id WHERE id IN (1, 102, 201)",  # from one partition to another
        "UPDATE sales SET kind = 'z' WHERE id = 101",
        "DELETE FROM sales WHERE kind = 'a'",
        "INSERT INTO low VALUES (3, 'a', 5); UPDATE low SET price = 0 WHERE id = 1;"
        " DELETE FROM low WHERE id = 2",
        "INSERT INTO middle VALUES (150, 'a', 1), (151, 'c', 2); UPDATE middle SET kind = 'd' WHERE id = 101",
        "UPDATE middle_rest SET price = 9",
        "INSERT INTO high (id, kind, price) VALUES (210, 'b', 3); UPDATE high SET price = 1 WHERE id = 201",
        "WITH gone AS (DELETE FROM low RETURNING *) INSERT INTO sales SELECT id + 100, kind, price FROM gone",
        "MERGE INTO sales t USING (VALUES (1, 'x'), (250, 'y')) AS s(id, kind) ON s.id = t.id"
        " WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT VALUES (s.id, s.kind, 1)",
    ],
)
def test_whatever_a_statement_names_is_captured(hw: Headwater, conn: Connection, write: str) -> None:
    conn.execute(ATTACH)
    for name, query in (("sums", SUMS), ("rows", ROWS)):
        assert hw.create(name, query).mode == "differential"
    conn.execute(write)
    for name in ("sums", "rows"):
        assert refresh(hw, name).action == "delta"


def test_copy_into_a_partitioned_table_is_captured(hw: Headwater, conn: Connection) -> None:
    hw.create("sums", SUMS)
    for table in ("sales", "low"):
        with conn.cursor().copy(f"COPY {table} (id, kind, price) FROM STDIN") as copy:
            copy.write_row((50, "c", 5))
    outcome = refresh(hw, "sums")
    assert (outcome.action, outcome.rows_in) == ("delta", 2)


@pytest.mark.parametrize("table", ["sales", "low", "middle", "middle_a"])
def test_truncate_of_a_partition_is_recomputed(hw: Headwater, conn: Connection, table: str) -> None:
    hw.create("sums", SUMS)
    conn.execute(f"TRUNCATE {table}")
    outcome = refresh(hw, "sums")
    assert (outcome.action, outcome.reason) == ("recompute", TRUNCATED)


def test_a_partition_that_is_attached_or_detached_is_noticed(hw: Headwater, conn: Connection) -> None:
    hw.create("sums", SUMS)
    for change in (ATTACH, DETACH, "CREATE TABLE new PARTITION OF sales DEFAULT", "DROP TABLE middle_a"):
        conn.execute(change)
        outcome = refresh(hw, "sums")
        assert (outcome.action, outcome.reason) == ("recompute", MOVED)
        assert refresh(hw, "sums").action == "nothing"
        conn.execute("INSERT INTO sales VALUES (5, 'a', 5)")
        assert refresh(hw, "sums").action == "delta"


def test_what_is_no_partition_any_more_is_left_alone(hw: Headwater, conn: Connection) -> None:
    conn.execute(ATTACH)
    hw.create("sums", SUMS)
    assert triggers_on(conn, "high") == 4
    conn.execute(DETACH)
    refresh(hw, "sums")
    assert triggers_on(conn, "high") == 0
    conn.execute("INSERT INTO high (id, kind, price) VALUES (500, 'b', 3)")
    assert refresh(hw, "sums").action == "nothing"


@pytest.mark.parametrize("level", [IsolationLevel.READ_COMMITTED, IsolationLevel.REPEATABLE_READ])
def test_a_partition_that_comes_and_goes_between_two_refreshes(
    hw: Headwater, dsn: str, conn: Connection, level: IsolationLevel
) -> None:
    """What was written through the table while it was there is no part of it any more."""
    hw.create("sums", SUMS)
    with psycopg.connect(dsn) as writer:
        writer.isolation_level = level
        writer.execute("SELECT 1 FROM kinds")
        conn.execute(ATTACH)
        writer.execute("INSERT INTO sales VALUES (220, 'a', 100)")
        writer.execute("DELETE FROM sales WHERE id = 201")
        writer.commit()
    conn.execute(DETACH)
    refresh(hw, "sums")


def test_a_partition_that_goes_and_comes_between_two_refreshes(hw: Headwater, conn: Connection) -> None:
    conn.execute(ATTACH)
    hw.create("sums", SUMS)
    conn.execute(DETACH)
    conn.execute("UPDATE high SET price = 50; DELETE FROM high WHERE id = 202")
    conn.execute(ATTACH)
    refresh(hw, "sums")


@pytest.mark.usefixtures("either_way")
def test_a_partition_that_is_attached_while_a_refresh_runs(hw: Headwater, dsn: str, conn: Connection) -> None:
    hw.create("rows", ROWS)
    conn.execute(
        "INSERT INTO high (id, kind, price) VALUES (203, 'c', 9); INSERT INTO kinds VALUES ('c', 'C')"
    )
    attached: list[object] = []

    class Attaching(Meddled):
        def meddle(self) -> None:
            if not attached:
                attached.append(conn.execute(ATTACH))

    connection = connect(dsn)
    try:
        reader = DefinitionReader(connection)
        refresher = Refresher(connection, Settings(), reader, EngineSelector(Route(dsn)), Attaching)
        outcome = refresher.refresh(catalog.find(connection, "rows"), Request())[-1]
    finally:
        connection.close()
    assert (outcome.action, outcome.reason) == ("recompute", MOVED)
    assert_fresh(hw, "rows")


@pytest.mark.parametrize("level", list(IsolationLevel)[1:])
def test_a_writer_has_to_do_with_no_partition_but_its_own(
    hw: Headwater, dsn: str, conn: Connection, level: IsolationLevel
) -> None:
    """Two users who would not be in each other's way are not so by capture: no wait, no deadlock."""
    hw.create("st", SUMS)
    with psycopg.connect(dsn) as writer, psycopg.connect(dsn) as other:
        writer.isolation_level = level
        writer.execute("UPDATE kinds SET label = 'X' WHERE kind = 'a'")
        other.execute("TRUNCATE middle_a")
        with in_background(lambda: other.execute("UPDATE kinds SET label = 'Y' WHERE kind = 'a'")) as future:
            wait_until_blocked(conn, other.info.backend_pid, future)
            writer.execute("INSERT INTO sales VALUES (50, 'a', 5)")
            assert not value(
                conn,
                "SELECT EXISTS (SELECT FROM pg_locks WHERE pid = %s AND relation = 'middle_rest'::regclass)",
                writer.info.backend_pid,
            )
            writer.commit()
            future.result()
        other.commit()
    assert refresh(hw, "st").action == "recompute"  # after the TRUNCATE
    with psycopg.connect(dsn) as writer:
        writer.isolation_level = level
        writer.execute("INSERT INTO sales VALUES (51, 'a', 5)")
        assert value(writer, "SHOW lock_timeout") == value(conn, "SHOW lock_timeout")
    assert refresh(hw, "st").action == "delta"


@pytest.mark.parametrize("waiting", [False, True], ids=["nothing else waits", "changes wait, too"])
def test_a_partition_that_waits_for_a_refresh_is_no_drift(
    hw: Headwater, conn: Connection, waiting: bool
) -> None:
    hw.create("st", SUMS)
    hw.create("above", "SELECT max(s) AS most FROM st")
    for move in (ATTACH, DETACH):
        if waiting:
            conn.execute("UPDATE sales SET price = price + 1 WHERE id = 1")
        conn.execute(move)
        for name in ("st", "above"):
            assert hw.verify(name).equal
        assert MOVED in hw.verify("st").note
        assert refresh(hw, "above").action in ("delta", "nothing")
        assert hw.verify("above").note == ""


def test_a_partition_that_is_attached_while_it_is_verified(hw: Headwater, conn: Connection) -> None:
    hw.create("st", SUMS)
    attached = False

    def attach(connection: Connection, text: str) -> None:
        nonlocal attached
        if not attached and "__hw_copy" in text and connection is hw.connection:
            attached = True
            conn.execute(ATTACH)

    with watched(attach):
        found = hw.verify("st")
    assert attached
    assert found.equal
    assert MOVED in found.note


def test_another_reader_does_not_hide_what_moved(hw: Headwater, conn: Connection) -> None:
    """Creating or dropping one installs the triggers anew; those that were there must still be rebuilt."""
    hw.create("ids", "SELECT id FROM sales")
    conn.execute(ATTACH)
    hw.create("sums", SUMS)
    assert refresh(hw, "ids").reason == MOVED
    conn.execute(DETACH)
    hw.drop("sums")
    assert refresh(hw, "ids").reason == MOVED


def test_renamed_columns_of_a_partitioned_table(hw: Headwater, conn: Connection) -> None:
    conn.execute(ATTACH)
    hw.create("sums", SUMS)
    conn.execute("ALTER TABLE sales RENAME price TO cost")
    conn.execute(
        "INSERT INTO sales VALUES (4, 'a', 5); INSERT INTO high (id, kind, cost) VALUES (204, 'b', 6)"
    )
    assert refresh(hw, "sums").action == "delta"


def test_dropping_the_last_reader_leaves_no_partition_with_triggers(hw: Headwater, conn: Connection) -> None:
    before = footprint(conn)
    hw.create("sums", SUMS)
    conn.execute(ATTACH)
    refresh(hw, "sums")
    conn.execute(DETACH)
    hw.drop("sums")
    assert footprint(conn) == before


def test_what_of_partitions_is_recomputed(hw: Headwater, conn: Connection) -> None:
    for query, reason in (
        ("SELECT id FROM low", "public.low is a partition"),
        ("SELECT id FROM middle", "public.middle is a partition"),
        ("SELECT id FROM ONLY sales", "ONLY public.sales in FROM has no delta rule"),
    ):
        made = hw.create("st", query)
        assert made.mode == "full"
        assert made.mode_reasons[0].startswith(reason)
        hw.drop("st")


@pytest.mark.parametrize(
    "ddl",
    [
        ["CREATE TABLE fresh PARTITION OF sales FOR VALUES FROM (300) TO (400)"],
        ["CREATE TABLE middle_z PARTITION OF middle FOR VALUES IN ('z')"],
        ["CREATE TABLE rest PARTITION OF sales DEFAULT", "INSERT INTO rest VALUES (900, 'a', 1)"],
        [
            "CREATE TABLE tree (LIKE sales) PARTITION BY LIST (kind)",
            "CREATE TABLE leaf PARTITION OF tree DEFAULT",
            "INSERT INTO tree VALUES (301, 'a', 1)",
            "ALTER TABLE sales ATTACH PARTITION tree FOR VALUES FROM (300) TO (400)",
        ],
        ["ALTER TABLE middle DETACH PARTITION middle_a", "INSERT INTO sales VALUES (103, 'a', 9)"],
        ["ALTER TABLE sales DETACH PARTITION low CONCURRENTLY", "INSERT INTO low VALUES (5, 'a', 5)"],
        ["ALTER TABLE sales DETACH PARTITION middle"],
        ["INSERT INTO low VALUES (6, 'a', 5)", "DROP TABLE low"],
        ["DROP TABLE middle"],
        ["TRUNCATE middle_a", "INSERT INTO sales VALUES (104, 'a', 5)"],
        ["INSERT INTO sales VALUES (105, 'b', 5)", "TRUNCATE middle"],
        ["CREATE TABLE brief PARTITION OF sales FOR VALUES FROM (400) TO (500)", "DROP TABLE brief"],
    ],
    ids=lambda ddl: ddl[0].removeprefix("ALTER TABLE sales ")[:40],
)
def test_whatever_becomes_of_partitions(hw: Headwater, conn: Connection, ddl: list[str]) -> None:
    hw.create("sums", SUMS)
    hw.create("rows", ROWS)
    conn.execute("INSERT INTO sales VALUES (9, 'b', 3)")  # waits while the partitions move
    for step in ddl:
        conn.execute(statement(step))
    refresh(hw, "rows")
    refresh(hw, "sums")
    leaves = conn.execute(
        "SELECT relid::regclass::text FROM pg_partition_tree('sales') WHERE relid <> 'sales'::regclass"
    ).fetchall()
    conn.execute("UPDATE sales SET price = price + 1")
    for (table,) in leaves:
        conn.execute(statement(f"UPDATE {table} SET price = price * 2 WHERE id % 2 = 0"))
    conn.execute("DELETE FROM sales WHERE id = (SELECT min(id) FROM sales)")
    assert refresh(hw, "sums").action == "delta"
    assert refresh(hw, "rows").action == "delta"


def test_rows_that_move_through_a_default_partition(hw: Headwater, conn: Connection) -> None:
    """An update may take a row from a partition of a partition to a default one and back."""
    conn.execute("CREATE TABLE rest PARTITION OF sales DEFAULT")
    hw.create("sums", SUMS)
    hw.create("rows", ROWS)
    for move in (
        "UPDATE sales SET id = id + 1000 WHERE id < 200",
        "UPDATE rest SET kind = CASE kind WHEN 'a' THEN 'b' ELSE 'a' END",
        "UPDATE sales SET id = id - 1000, kind = 'a' WHERE id > 1000",
        "UPDATE middle SET kind = 'q'",
    ):
        conn.execute(move)
        for name in ("sums", "rows"):
            assert refresh(hw, name).action == "delta"


def test_a_partition_whose_detaching_was_interrupted(hw: Headwater, dsn: str, conn: Connection) -> None:
    """It is no partition for new statements any more, although it is not detached yet."""
    hw.create("sums", SUMS)
    with psycopg.connect(dsn) as reader, psycopg.connect(dsn, autocommit=True) as impatient:
        reader.execute("SELECT count(*) FROM sales")
        impatient.execute("SET lock_timeout = '50ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            impatient.execute("ALTER TABLE sales DETACH PARTITION low CONCURRENTLY")
    assert value(conn, "SELECT inhdetachpending FROM pg_inherits WHERE inhrelid = 'low'::regclass")
    refresh(hw, "sums")
    conn.execute("INSERT INTO low VALUES (7, 'b', 4); INSERT INTO sales VALUES (107, 'b', 4)")
    refresh(hw, "sums")
    conn.execute("ALTER TABLE sales DETACH PARTITION low FINALIZE")
    conn.execute("INSERT INTO low VALUES (8, 'b', 4); INSERT INTO sales VALUES (108, 'b', 4)")
    refresh(hw, "sums")
    conn.execute("INSERT INTO sales VALUES (110, 'b', 4)")
    assert refresh(hw, "sums").action == "delta"


def test_a_partition_that_is_created_by_a_transaction_that_writes_to_it(
    hw: Headwater, dsn: str, conn: Connection
) -> None:
    hw.create("sums", SUMS)
    with psycopg.connect(dsn) as writer:
        writer.execute("INSERT INTO sales VALUES (3, 'b', 4)")
        writer.execute("CREATE TABLE fresh PARTITION OF sales FOR VALUES FROM (300) TO (400)")
        writer.execute("INSERT INTO fresh VALUES (301, 'a', 4)")
        writer.execute("SAVEPOINT undone")
        writer.execute("DROP TABLE low")
        writer.execute("ROLLBACK TO undone")
        writer.execute("UPDATE sales SET id = 302 WHERE id = 3")
    assert refresh(hw, "sums").reason == MOVED
    conn.execute("UPDATE fresh SET price = 1")
    assert refresh(hw, "sums").action == "delta"


MOVING = "MERGE INTO sales s USING (VALUES (101)) AS n(id) ON s.id = n.id WHEN MATCHED THEN UPDATE SET id = 1"


@pytest.mark.parametrize(
    "write",
    [
        MOVING,
        "MERGE INTO sales s USING (VALUES (102), (5)) AS n(id) ON s.id = n.id"
        " WHEN MATCHED THEN UPDATE SET id = 3 WHEN NOT MATCHED THEN INSERT VALUES (5, 'a', 0)",
        "MERGE INTO middle s USING (VALUES (101)) AS n(id) ON s.id = n.id"
        " WHEN MATCHED THEN UPDATE SET kind = 'b'",
        f"DO $$ BEGIN {MOVING}; END $$",
        f"DO $$ BEGIN EXECUTE $q$ {MOVING} $q$; END $$",
        f"PREPARE moving AS {MOVING}; EXECUTE moving",
        f"CREATE FUNCTION moved() RETURNS void LANGUAGE sql AS $$ {MOVING} $$; SELECT moved()",
    ],
    ids=["merge", "with insert", "of a partition", "in a block", "by a string", "prepared", "in a function"],
)
def test_a_merge_that_moves_rows_is_recomputed(hw: Headwater, conn: Connection, write: str) -> None:
    """The server tells triggers nothing of such a row, or only that it came."""
    hw.create("sums", SUMS)
    hw.create("rows", ROWS)
    for step in write.split("; ") if write.startswith("PREPARE") else [write]:
        conn.execute(statement(step))
    assert refresh(hw, "sums").reason == TRUNCATED
    refresh(hw, "rows")


def test_other_writes_that_name_what_decides_on_the_partition_are_not(
    hw: Headwater, conn: Connection
) -> None:
    hw.create("sums", SUMS)
    for write in (
        "UPDATE sales SET id = id + 1",
        "DO $$ BEGIN UPDATE sales SET id = id - 1 WHERE id = 2; END $$",
        "MERGE INTO sales s USING (VALUES (102)) AS n(id) ON s.id = n.id"
        " WHEN MATCHED THEN UPDATE SET price = 9",
    ):
        conn.execute(statement(write))
        assert refresh(hw, "sums").action == "delta"
