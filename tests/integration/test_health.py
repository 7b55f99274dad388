"""One notion of health: what was dropped is told alike everywhere, and what the remedy says cures it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg.rows import dict_row
from tests.integration.support import assert_fresh, value

from headwater import Headwater
from headwater.cli import run as run_program
from headwater.cli.invocation import Invocation
from headwater.errors import Broken, HeadwaterError

Connection = psycopg.Connection[Any]

TABLES = (
    "CREATE TABLE items (id int PRIMARY KEY, kind text)",
    "INSERT INTO items VALUES (1, 'a'), (2, 'a'), (3, 'b')",
)
THROUGH = "CREATE VIEW through AS SELECT * FROM items"
DEFINITION: LiteralString = (
    "DO $$ BEGIN EXECUTE 'DROP VIEW ' || headwater.definition("
    "(SELECT id FROM headwater.stream_table WHERE table_name = 'sums'))::regclass; END $$"
)
CAPTURE_FUNCTION: LiteralString = (
    "DO $$ BEGIN EXECUTE format('DROP FUNCTION headwater_changes.capture_%s() CASCADE',"
    " 'items'::regclass::oid); END $$"
)
CHANGE_TABLE: LiteralString = (
    "DO $$ BEGIN EXECUTE format('DROP TABLE headwater_changes.src_%s CASCADE', '{}'::regclass::oid); END $$"
)
STORAGE: LiteralString = (
    "DO $$ BEGIN EXECUTE (SELECT format('{}', id) FROM headwater.stream_table"
    " WHERE table_name = 'sums'); END $$"
)


@dataclass(frozen=True)
class Damage:
    """What somebody did, which stream tables it broke, and what users do of the remedy themselves."""

    statements: tuple[LiteralString, ...]
    faults: dict[str, str]
    says: str  # of the reason of the first of them
    by_hand: tuple[LiteralString, ...] = ()
    heals: bool = False  # a refresh does so by itself


DAMAGES = {
    "view": Damage(
        ("DROP VIEW shown.sums CASCADE",), {"sums": "view", "totals": "source"}, "view that shows it"
    ),
    "its schema": Damage(
        ("DROP SCHEMA shown CASCADE",), {"sums": "view", "totals": "source"}, "view that shows it"
    ),
    "view, and its name was taken": Damage(
        ("DROP VIEW shown.sums CASCADE", "CREATE TABLE shown.sums (mine int)"),
        {"sums": "view", "totals": "source"},
        "view that shows it",
        ("DROP TABLE shown.sums",),
    ),
    "storage": Damage(
        (STORAGE.format("DROP TABLE headwater_data.st_%s CASCADE"),),
        {"sums": "view", "totals": "source"},
        "view that shows it",
    ),
    "storage renamed": Damage(
        (STORAGE.format("ALTER TABLE headwater_data.st_%s RENAME TO mine"),),
        {"sums": "storage"},
        "the table that stores its rows",
    ),
    "view replaced": Damage(
        ("CREATE OR REPLACE VIEW shown.sums AS SELECT NULL::text AS kind, 1::bigint AS n",),
        {"sums": "replaced"},
        "was replaced",
    ),
    "view replaced, with more columns": Damage(
        ("CREATE OR REPLACE VIEW shown.sums AS SELECT NULL::text AS kind, 1::bigint AS n, 2 AS more",),
        {"sums": "replaced"},
        "was replaced",
    ),
    "definition": Damage((DEFINITION,), {"sums": "definition"}, "its definition was dropped"),
    "source": Damage(
        ("DROP TABLE items CASCADE",),
        {"sums": "source", "apart": "source"},
        "public.items, which it reads, was dropped",
        (*TABLES, THROUGH),
    ),
    "source that is there again": Damage(
        ("DROP TABLE items CASCADE", *TABLES, THROUGH),
        {"sums": "source", "apart": "source"},
        "public.items, which it reads, was dropped",
    ),
    "view that it reads": Damage(
        ("DROP VIEW through CASCADE",), {"apart": "definition"}, "something that its query uses", (THROUGH,)
    ),
    "capture function": Damage(
        (CAPTURE_FUNCTION,), {"sums": "capture", "apart": "capture"}, "changes of public.items", heals=True
    ),
    "triggers disabled": Damage(
        ("ALTER TABLE items DISABLE TRIGGER USER",),
        {"sums": "capture", "apart": "capture"},
        "changes of public.items",
        heals=True,
    ),
    "change table": Damage(
        (CHANGE_TABLE.format("items"),),
        {"sums": "capture", "apart": "capture"},
        "changes of public.items",
        heals=True,
    ),
    "change table of a stream table": Damage(
        (CHANGE_TABLE.format("shown.sums"),),
        {"sums": "changes", "totals": "changes"},
        "the table with the changes of shown.sums",
    ),
}
NAMES = {"sums": "shown.sums", "totals": "public.totals", "apart": "public.apart"}


@pytest.fixture
def shop(hw: Headwater, conn: Connection) -> None:
    """Two stream tables over a table, one of them through a view, and one over a stream table."""
    conn.execute("CREATE SCHEMA shown")
    for text in (*TABLES, THROUGH):
        conn.execute(text)
    hw.create("shown.sums", "SELECT kind, count(*) AS n FROM items GROUP BY kind")
    hw.create("totals", "SELECT sum(n) AS total FROM shown.sums")
    hw.create("apart", "SELECT kind FROM through")


def rows(conn: Connection, text: LiteralString) -> list[dict[str, Any]]:
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(text).fetchall()


def surfaces(
    hw: Headwater, conn: Connection, run: Callable[..., str]
) -> dict[str, dict[str, tuple[str, str | None, str | None]]]:
    """What each surface says of each stream table: its status, the reason and the remedy."""
    found = {
        "stream_tables": {
            row["stream_table"]: (row["status"], row["status_reason"], row["remedy"])
            for row in rows(conn, "SELECT * FROM headwater.stream_tables")
        },
        "health": {
            row["stream_table"]: (row["status"], row["reason"], row["remedy"])
            for row in rows(
                conn,
                "SELECT h.*, n.stream_table FROM headwater.health h"
                " JOIN headwater.stream_table_name n ON n.id = h.stream_table_id",
            )
        },
        "list": {each.stream_table: (each.status, each.status_reason, each.remedy) for each in hw.list()},
        "status": {
            (each := hw.status(name)).stream_table: (each.status, each.status_reason, each.remedy)
            for name in NAMES.values()
        },
    }
    for verb in ("list", "status"):
        documents = json.loads(run(verb, "--format", "json"))["stream_tables"]
        found[f"headwater {verb}"] = {
            each["stream_table"]: (each["status"], each["status_reason"], each["remedy"])
            for each in documents
        }
    return found


@pytest.fixture
def run(dsn: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Runs the program in this process; what it printed."""

    def program(*arguments: str) -> str:
        monkeypatch.setenv("HEADWATER_DSN", dsn)
        assert run_program(list(arguments), Invocation()) == 0
        return capsys.readouterr().out

    return program


def assert_told_alike(
    hw: Headwater, conn: Connection, run: Callable[..., str], broken: dict[str, str]
) -> dict[str, str]:
    """Asserts that every surface names the same ones as broken; their remedies."""
    seen = surfaces(hw, conn, run)
    expected = seen["health"]
    assert {NAMES[name] for name in broken} == {
        name for name, (status, _, _) in expected.items() if status == "broken"
    }
    assert all(found == expected for found in seen.values()), seen
    statuses = {name: status for name, (status, _, _) in expected.items()}
    tree = conn.execute("SELECT node, status FROM headwater.dependency_tree() WHERE kind = 'stream table'")
    assert dict(tree.fetchall()) == statuses
    assert {
        f"{row['schema_name']}.{row['table_name']}": row["status"]
        for row in rows(conn, "SELECT * FROM headwater.pg_stat_headwater")
    } == statuses
    states = {glance.stream_table: glance for glance in hw.overview().stream_tables}
    text = run("list")
    for name, (status, reason, remedy) in expected.items():
        assert (states[name].state == "broken") == (status == "broken")
        if status == "broken":
            assert states[name].reason == f"{reason}: {remedy}"
            assert f"{reason}; {remedy}" in text
            assert run("status", name).count(str(remedy)) == 1
    [summary] = rows(conn, "SELECT * FROM headwater.health_summary()")
    assert (summary["broken_count"], summary["active_count"]) == (len(broken), len(NAMES) - len(broken))
    assert summary["error_count"] >= len(broken)
    return {name: remedy for name, (_, _, remedy) in expected.items() if remedy}


def follow(hw: Headwater, conn: Connection, remedy: str, by_hand: tuple[LiteralString, ...]) -> None:
    """Does what a remedy says, to the letter; what is the user's to find out is given."""
    for step in remedy.partition("; or ")[0].split(", then "):
        if step.startswith("CREATE "):
            conn.execute(step.encode())
        elif step.startswith(("bring back ", "rename or drop ")):
            for text in by_hand:
                conn.execute(text)
        elif step.startswith("headwater resume "):
            hw.resume(step.removeprefix("headwater resume "))
        else:
            assert step in ("headwater repair", "headwater repair, which names what else is missing")
            failed = [each for each in hw.repair() if each.status == "failed"]
            if failed and "names what else" in step:
                assert "does not exist" in failed[0].error
                for text in by_hand:
                    conn.execute(text)
                failed = [each for each in hw.repair() if each.status == "failed"]
            assert not failed


def assert_followed(hw: Headwater, conn: Connection) -> None:
    """Every stream table takes in changes by deltas, and equals its query."""
    for name in NAMES.values():
        hw.refresh(name)
    conn.execute("INSERT INTO items VALUES (10, 'a'), (11, 'c')")
    for name in reversed(NAMES.values()):
        assert [each.action for each in hw.refresh(name)][-1] in ("delta", "nothing")
        assert_fresh(hw, name)
        assert hw.verify(name).equal
    assert value(conn, "SELECT total FROM totals") == value(conn, "SELECT count(*) FROM items")


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize("what", DAMAGES)
@pytest.mark.parametrize("suspended", [False, True], ids=["active", "suspended"])
def test_every_surface_agrees_and_the_remedy_cures(
    hw: Headwater, conn: Connection, run: Callable[..., str], what: str, suspended: bool
) -> None:
    damage = DAMAGES[what]
    assert assert_told_alike(hw, conn, run, {}) == {}
    for text in damage.statements:
        conn.execute(text)
    first = next(iter(damage.faults))
    if suspended:
        hw.suspend(NAMES[first])
    faults = {
        name.partition(".")[2]: fault
        for name, fault in conn.execute(
            "SELECT n.stream_table, h.fault FROM headwater.health h"
            " JOIN headwater.stream_table_name n ON n.id = h.stream_table_id WHERE h.fault IS NOT NULL"
        )
    }
    assert faults == damage.faults
    remedies = assert_told_alike(hw, conn, run, damage.faults)
    health = hw.status(NAMES[first])
    assert damage.says in str(health.status_reason)
    assert (f"headwater resume {NAMES[first]}" in str(health.remedy)) == suspended
    if not damage.heals:
        for verb in (hw.refresh, hw.verify, hw.explain):
            with pytest.raises(Broken) as caught:
                verb(NAMES[first])
            assert str(health.status_reason) in caught.value.message
            assert caught.value.hint == health.remedy
    follow(hw, conn, remedies[NAMES[first]], damage.by_hand)
    assert assert_told_alike(hw, conn, run, {}) == {}
    assert_followed(hw, conn)


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize("what", [name for name, damage in DAMAGES.items() if damage.heals])
def test_a_refresh_heals_capture(hw: Headwater, conn: Connection, run: Callable[..., str], what: str) -> None:
    for text in DAMAGES[what].statements:
        conn.execute(text)
    conn.execute("INSERT INTO items VALUES (9, 'z')")
    for name in NAMES.values():
        hw.refresh(name)
        assert_fresh(hw, name)
    assert_told_alike(hw, conn, run, {})
    assert_followed(hw, conn)


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize("what", DAMAGES)
def test_dropping_is_a_way_out_where_the_remedy_says_so(hw: Headwater, conn: Connection, what: str) -> None:
    for text in DAMAGES[what].statements:
        conn.execute(text)
    for name in reversed(NAMES.values()):
        alternative = str(hw.status(name).remedy).partition("; or ")[2]
        assert alternative in ("", f"headwater drop {name}")
        hw.drop(name)
    assert hw.list() == []
    assert value(conn, "SELECT count(*) FROM headwater.source") == 0


@pytest.mark.usefixtures("shop")
def test_resuming_a_broken_one_says_that_it_is_broken(
    hw: Headwater, conn: Connection, run: Callable[..., str]
) -> None:
    hw.suspend("shown.sums", "for a while")
    assert hw.status("shown.sums").remedy == "headwater resume shown.sums"
    conn.execute("DROP VIEW shown.sums CASCADE")
    said = run("resume", "shown.sums")
    assert "shown.sums is broken: the view that shows it was dropped" in said
    assert "next: headwater repair" in said
    hw.repair()
    assert hw.status("shown.sums").status == "active"


@pytest.mark.usefixtures("shop")
def test_another_query_for_one_whose_view_is_gone(hw: Headwater, conn: Connection) -> None:
    conn.execute("DROP VIEW shown.sums CASCADE")
    with pytest.raises(HeadwaterError, match="the view that shows it was dropped") as caught:
        hw.alter("shown.sums", query="SELECT kind, count(*) + 1 AS n FROM items GROUP BY kind")
    assert caught.value.hint.startswith("headwater repair")
    hw.repair()
    hw.alter("shown.sums", query="SELECT kind, count(*) + 1 AS n FROM items GROUP BY kind")
    assert_fresh(hw, "shown.sums")


@pytest.mark.usefixtures("shop")
def test_a_users_view_in_the_way_of_a_repair(hw: Headwater, conn: Connection) -> None:
    conn.execute("CREATE OR REPLACE VIEW shown.sums AS SELECT NULL::text AS kind, 1::bigint AS n, 2 AS more")
    conn.execute("CREATE VIEW mine AS SELECT more FROM shown.sums")
    failed = {each.stream_table: each.error for each in hw.repair() if each.status == "failed"}
    assert "view public.mine depends on view shown.sums" in failed["shown.sums"]
    assert "drop these, repeat headwater repair" in failed["shown.sums"]
    conn.execute("DROP VIEW mine")
    assert {each.status for each in hw.repair()} <= {"rebuilt", "intact"}
    assert_followed(hw, conn)


@pytest.mark.usefixtures("shop")
def test_a_reader_that_is_older_than_what_it_reads_is_repaired_after_it(
    hw: Headwater, conn: Connection
) -> None:
    hw.create("younger", "SELECT kind FROM items")
    hw.alter("apart", query="SELECT kind FROM younger")
    conn.execute("DROP VIEW younger CASCADE")
    assert {each.stream_table: each.status for each in hw.repair()}["public.apart"] == "rebuilt"
    conn.execute("INSERT INTO items VALUES (20, 'q')")
    assert [each.action for each in hw.refresh("apart")] == ["delta", "delta"]
    assert_fresh(hw, "apart")


def test_looking_costs_a_few_lookups_for_each_stream_table(conn: Connection) -> None:
    """No part of the plan reads a catalog of the server as a whole for each stream table."""
    conn.execute(
        "INSERT INTO headwater.stream_table (schema_name, table_name, query, requested_mode, mode, engine,"
        " status, time_zone, search_path, relation) SELECT 'public', 's' || n, 'SELECT', 'auto',"
        " 'differential', 'auto', 'active', 'UTC', 'public', 900000000 + n FROM generate_series(1, 2000) n"
    )
    conn.execute(
        "INSERT INTO headwater.source (relation, schema_name, table_name, change_table, stream_table_id)"
        " SELECT 910000000 + n, 'public', 't' || n, 'src_' || n, CASE WHEN n % 2 = 0 THEN n END"
        " FROM generate_series(1, 2000) n"
    )
    conn.execute(
        "INSERT INTO headwater.dependency SELECT st.id, s.id, '{}'"
        " FROM headwater.stream_table st JOIN headwater.source s ON s.id IN (st.id, st.id + 7)"
    )
    conn.execute("ANALYZE headwater.stream_table, headwater.source, headwater.dependency")
    for query in (
        "SELECT stream_table_id, fault FROM headwater.health",
        "SELECT * FROM headwater.health",
        "SELECT * FROM headwater.stream_tables",
        "SELECT * FROM headwater.stream_tables WHERE id = 77",
        "SELECT * FROM headwater.health_summary()",
    ):
        [[plan]] = conn.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {query}").fetchall()
        for node in nodes(plan[0]["Plan"]):
            repeated = node["Actual Loops"] > 10 and node["Node Type"] == "Seq Scan"
            assert not repeated, f"{query}: {node['Relation Name']} is read {node['Actual Loops']} times"


def nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(node for part in plan.get("Plans", ()) for node in nodes(part))]
