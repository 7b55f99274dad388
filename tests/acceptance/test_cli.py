"""The program as users run it: a process of its own, its output and its exit code."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from tests.integration.test_audits import Planner

import headwater
from headwater.catalog import stream_tables as catalog
from headwater.catalog.jobs import Job
from headwater.cli import run
from headwater.cli.group import cli
from headwater.cli.invocation import Invocation

REVENUE = "SELECT region, sum(amount) AS total, count(*) AS orders FROM sales GROUP BY region"
DRAWN = "SELECT id, random() AS lot FROM sales"
PROGRAM = (sys.executable, "-m", "headwater")
Completed = subprocess.CompletedProcess[str]


def environment(**more: str) -> dict[str, str]:
    """Ours without what would choose a database, a setting or colours by itself."""
    unwanted = ("HEADWATER_", "PG", "FORCE_COLOR", "NO_COLOR", "COLUMNS")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    return {**kept, "PYTHONUTF8": "1", **more}


class Program:
    """Headwater with its database in the environment, each run a process."""

    def __init__(self, dsn: str | None) -> None:
        self.environment = environment(**({"HEADWATER_DSN": dsn} if dsn else {}))

    def execute(self, arguments: Sequence[str], stdin: str, variables: dict[str, str]) -> Completed:
        return subprocess.run(
            [*PROGRAM, *arguments],
            input=stdin,
            capture_output=True,
            encoding="utf-8",
            timeout=60,
            env={**self.environment, **variables},
        )

    def run(self, *arguments: str, expect: int = 0, stdin: str = "", **variables: str) -> Completed:
        done = self.execute(arguments, stdin, variables)
        assert done.returncode == expect, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert ("Traceback" in done.stderr) == ("--debug" in arguments)
        return done

    def json(self, *arguments: str, expect: int = 0, **variables: str) -> Any:
        """The document on standard output; what is not one document does not parse."""
        return json.loads(
            self.run(*arguments, "--format", "json", expect=expect, stdin="", **variables).stdout
        )

    def fails(self, *arguments: str, expect: int = 1, **variables: str) -> str:
        """Standard error of a run that prints nothing else."""
        done = self.run(*arguments, expect=expect, stdin="", **variables)
        assert done.stdout == ""
        assert done.stderr.startswith("error: ")
        return done.stderr


class Inside(Program):
    """The same in this process, where starting costs nothing: for the many small cases."""

    def __init__(
        self, dsn: str | None, capsys: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch
    ) -> None:
        super().__init__(dsn)
        self._capsys = capsys
        self._patch = patch

    def execute(self, arguments: Sequence[str], stdin: str, variables: dict[str, str]) -> Completed:
        with self._patch.context() as patch:
            for name in os.environ.keys() - self.environment.keys():
                patch.delenv(name)
            for name, value in {**self.environment, **variables}.items():
                patch.setenv(name, value)
            self._capsys.readouterr()
            code = run(list(arguments), Invocation())
        captured = self._capsys.readouterr()
        return Completed(arguments, code, captured.out, captured.err)


@pytest.fixture
def sales(conn: psycopg.Connection) -> None:
    conn.execute("CREATE TABLE sales (id int PRIMARY KEY, region text, amount numeric)")
    conn.execute("INSERT INTO sales VALUES (1, 'north', 10.50), (2, 'south', 3), (3, 'north', 4)")


@pytest.fixture
def program(dsn: str, sales: None) -> Program:
    return Program(dsn)


@pytest.fixture
def inside(
    dsn: str, sales: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Inside:
    return Inside(dsn, capsys, monkeypatch)


@pytest.fixture
def alone(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Inside:
    """Without a database."""
    return Inside(None, capsys, monkeypatch)


@pytest.fixture
def weak_dsn(dsn: str, conn: psycopg.Connection, sales: None) -> Iterator[str]:
    """A role that may log in and nothing else."""
    name = f"headwater_weak_{os.getpid()}"
    role = sql.Identifier(name)
    conn.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'weak'").format(role))
    try:
        yield make_conninfo(dsn, user=name, password="weak")
    finally:
        conn.execute(sql.SQL("DROP ROLE {}").format(role))


def storage_of(conn: psycopg.Connection, table: str) -> sql.Identifier:
    row = conn.execute("SELECT id FROM headwater.stream_tables WHERE table_name = %s", [table]).fetchone()
    assert row is not None
    return sql.Identifier("headwater_data", f"st_{row[0]}")


# a stream table's life


@pytest.mark.smoke
def test_life_in_text(program: Program, conn: psycopg.Connection) -> None:
    assert "there are no stream tables" in program.run("list").stdout

    created = program.run("create", "revenue", "--query", REVENUE, "--schedule", "1s").stdout
    assert "created public.revenue" in created
    assert "mode: differential" in created
    assert "next: headwater refresh revenue" in created

    conn.execute("INSERT INTO sales VALUES (4, 'west', 7), (5, 'north', 1)")
    assert re.search(r"public\.revenue +active +differential +2 +2 ", program.run("status").stdout)
    header, refreshed = program.run("refresh", "revenue").stdout.splitlines()
    assert re.split("  +", header) == (
        "stream table,action,in,inserted,updated,deleted,took,engine,reason".split(",")
    )
    assert re.fullmatch(
        r"public\.revenue +delta +2 +1 +1 +0 +[\d.]+ m?s +postgres +2 change rows in public\.sales", refreshed
    )
    assert re.search(
        r"public\.revenue +nothing .* no source changed", program.run("refresh", "revenue").stdout
    )

    assert re.search(
        r"public\.revenue +active +differential +auto +1s +3 +public\.sales", program.run("list").stdout
    )
    status = program.run("status", "revenue").stdout
    assert re.search(r"waiting change rows +0", status)
    assert re.search(r"last refresh +delta \d+ s ago", status)
    history = program.run("history", "revenue").stdout.splitlines()
    assert [line.split()[4] for line in history[1:]] == ["delta", "load"]
    sums = program.run("history", "--by", "minute").stdout.splitlines()
    assert sums[0].split()[:6] == ["from", "stream", "table", "action", "engine", "refreshes"]
    assert {line.split()[3] for line in sums[1:]} >= {"delta", "load"}
    assert "public.revenue equals its query: 3 rows" in program.run("verify", "revenue").stdout

    altered = program.run("alter", "revenue", "--no-schedule", "--mode", "full").stdout
    assert "mode: full (asked for: full)" in altered
    assert "schedule: none" in altered
    assert "dropped public.revenue" in program.run("drop", "revenue").stdout
    assert "there are no stream tables" in program.run("list").stdout


def test_suspending_draining_and_tiers(inside: Inside, conn: psycopg.Connection) -> None:
    made = inside.json("create", "revenue", "--query", REVENUE, "--schedule", "1s", "--tier", "cold")
    assert made["tier"] == "cold"
    assert "1s, cold" in inside.run("list").stdout
    said = inside.run("suspend", "revenue", "--reason", "the load runs").stdout
    assert said == "suspended public.revenue: the load runs\nnext: headwater resume revenue\n"
    assert "suspended: the load runs" in inside.run("list").stdout
    shown = inside.run("status", "revenue").stdout
    assert re.search(r"because +the load runs", shown)
    assert re.search(r"remedy +headwater resume public.revenue", shown)
    assert re.search(r"tier +cold", shown)
    refused = inside.fails("refresh", "revenue")
    assert refused.startswith("error: public.revenue is suspended\n")
    assert "headwater resume public.revenue" in refused
    assert inside.json("status", "revenue")["suspended_reason"] == "the load runs"
    assert inside.run("resume", "revenue").stdout == "public.revenue is active\n"
    inside.run("refresh", "revenue")
    assert inside.json("alter", "revenue", "--tier", "auto")["tier"] is None
    assert inside.json("drain") == {"drain": "on"}
    stored = conn.execute("SELECT value FROM headwater.setting WHERE name = 'drain'").fetchone()
    assert stored == ("on",)
    inside.run("refresh", "revenue")  # who asks for it gets it
    assert inside.json("resume") == {"drain": "off"}
    inside.fails("suspend", "nowhere")
    inside.fails("create", "other", "--query", REVENUE, "--tier", "lukewarm", expect=2)


def test_life_in_json(program: Program, conn: psycopg.Connection) -> None:
    assert program.json("init") == {"installed": False, "database": conn.info.dbname}
    assert program.json("migrate") == {"applied": []}
    assert program.json("list") == {"stream_tables": []}

    created = program.json("create", "revenue", "--query", REVENUE, "--schedule", "1s")
    assert created.pop("id") > 0
    assert created.pop("did") == "it was created"
    assert created == {
        "stream_table": "public.revenue",
        "status": "active",
        "mode": "differential",
        "requested_mode": "auto",
        "engine": "auto",
        "schedule": "1s",
        "tier": None,
        "suspended_reason": None,
        "reasons": [],
        "load_check": "compared with its query: all 2 rows",
        "created": True,
        "indexes": [],
    }
    program.json("create", "big", "--query", "SELECT * FROM revenue WHERE total > 5")

    conn.execute("DELETE FROM sales WHERE region = 'north'")
    conn.execute("INSERT INTO sales VALUES (4, 'west', 7)")
    upstream, own = program.json("refresh", "big")["outcomes"]
    assert (upstream["stream_table"], own["stream_table"]) == ("public.revenue", "public.big")
    counts = ("action", "rows_in", "rows_inserted", "rows_updated", "rows_deleted", "engine")
    assert [upstream[name] for name in counts] == ["delta", 3, 1, 0, 1, "postgres"]
    assert upstream["reason"] == "3 change rows in public.sales"
    assert upstream["duration_ms"] > 0
    [full] = program.json("refresh", "revenue", "--full")["outcomes"]
    assert (full["action"], full["reason"]) == ("recompute", "a full refresh was asked for")

    listed = program.json("list")["stream_tables"]
    assert [item["stream_table"] for item in listed] == ["public.revenue", "public.big"]
    assert program.json("status")["stream_tables"][0] == listed[0]
    status = program.json("status", "revenue")
    assert (status["rows"], status["pending_rows"], status["last_action"]) == (2, 0, "recompute")
    assert status["sources"] == ["public.sales"]
    history = program.json("history", "--limit", "2")["refreshes"]
    assert [item["action"] for item in history] == ["recompute", "delta"]
    sums = program.json("history", "revenue", "--by", "hour")["sums"]
    assert sum(item["refreshes"] for item in sums if item["action"] == "recompute") == 1
    assert sums[0]["min_ms"] <= sums[0]["p50_ms"] <= sums[0]["p99_ms"] <= sums[0]["max_ms"]
    assert program.json("audits") == {"incidents": []}
    assert datetime.fromisoformat(history[0]["started_at"]).tzinfo is not None
    verified = program.json("verify", "big")
    assert (verified["equal"], verified["rows"], verified["missing"]) == (True, 1, [])

    altered = program.json("alter", "big", "--schedule", "5m", "--mode", "full")
    assert (altered["mode"], altered["schedule"]) == ("full", "5m")
    assert program.json("drop", "revenue", "--cascade")["dropped"] == ["public.big", "public.revenue"]
    assert program.json("drop", "revenue", "--if-exists") == {"dropped": []}


def test_a_plan_that_gives_other_rows_than_the_query(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `create` and `audits` say of it, and of one that is right."""
    counted = "SELECT region, count(*) AS n FROM sales WHERE amount > 4 GROUP BY region"
    assert "no stream table was found to differ" in inside.run("audits").stdout
    assert "compared with its query: all 1 rows" in inside.run("create", "right", "--query", counted).stdout
    Planner(monkeypatch)
    created = inside.json("create", "wrong", "--query", counted.replace("4", "5"))
    assert (created["mode"], created["load_check"]) == ("full", "its rows are its query's own")
    [incident] = inside.json("audits")["incidents"]
    assert (incident["stream_table"], incident["status"]) == ("public.wrong", "held")
    said = inside.run("audits", "wrong", "--limit", "1").stdout
    assert "incident 1: public.wrong" in said
    assert "region = south, n = 1" in said
    assert "incident 1" in inside.run("status", "wrong").stdout


def test_full_under_auto_says_why(inside: Inside) -> None:
    said = inside.run("create", "drawn", "--query", DRAWN).stdout
    assert "mode: full (asked for: auto)" in said
    assert "random() is volatile" in said
    assert "random() is volatile" in inside.run("list").stdout
    [reason] = inside.json("create", "drawn2", "--query", DRAWN)["reasons"]
    assert "random() is volatile" in reason
    assert (
        "cannot be maintained"
        not in inside.run("create", "chosen", "--query", REVENUE, "--mode", "full").stdout
    )


def test_explain(program: Program, inside: Inside) -> None:
    inside.run("create", "revenue", "--query", REVENUE)
    text = program.run("explain", "revenue").stdout
    assert "differential (asked for: auto)" in text
    assert re.search(r"^aggregate by .*\n└── scan public\.sales", text, re.MULTILINE)
    assert re.search(r"^step 1: all at once, if few rows changed\nWITH ", text, re.MULTILINE)
    assert re.search(r"^step 2: .*\nINSERT INTO ", text, re.MULTILINE)
    assert "\x1b" not in text

    found = program.json("explain", "revenue")
    assert [(item["depth"], item["name"]) for item in found["operators"]] == [(0, "aggregate"), (1, "scan")]
    assert found["engine"] == "postgres"
    for step in found["steps"]:
        assert step["sql"] in text


def test_explain_prints_the_compiled_refresh(program: Program, inside: Inside) -> None:
    inside.run("create", "revenue", "--query", REVENUE)
    found = program.json("explain", "revenue")
    assert found["not_compiled"] is None
    assert found["compiled"].startswith("CREATE OR REPLACE FUNCTION headwater_defs.refresh_")
    assert "-- 5. The delta" in found["compiled"]
    assert program.run("explain", "revenue", "--compiled").stdout.strip() == found["compiled"].strip()
    assert "compiled      yes, for small changes" in program.run("explain", "revenue").stdout

    inside.run("create", "sorted", "--query", "SELECT region FROM sales ORDER BY amount LIMIT 3")
    text = program.run("explain", "sorted", "--compiled").stdout
    assert text.startswith("public.sorted has no compiled refresh: its delta needs steps")


def test_a_missing_index_is_mentioned(inside: Inside, conn: psycopg.Connection) -> None:
    conn.execute("CREATE TABLE places (region text, country int)")
    conn.execute("INSERT INTO places SELECT 'r' || i, i FROM generate_series(1, 20000) i; ANALYZE places")
    query = "SELECT s.id, p.country FROM sales s JOIN places p ON p.region = s.region"
    statement = "CREATE INDEX ON public.places (region);"
    reason = "a change of public.sales looks for public.places by region"

    assert f"  {statement}  -- {reason}\n" in inside.run("create", "placed", "--query", query).stdout
    assert f"\nmissing indexes\n  {statement}  -- {reason}\n" in inside.run("explain", "placed").stdout
    described = {"table": "public.places", "columns": ["region"], "statement": statement, "reason": reason}
    assert inside.json("explain", "placed")["indexes"] == [described]
    assert inside.json("create", "again", "--query", query)["indexes"] == [described]

    conn.execute(statement)
    assert "index" not in inside.run("create", "third", "--query", query).stdout
    assert "missing indexes" not in inside.run("explain", "placed").stdout


@pytest.mark.smoke
def test_verify_shows_what_differs(program: Program, inside: Inside, conn: psycopg.Connection) -> None:
    inside.run("create", "revenue", "--query", REVENUE)
    storage = storage_of(conn, "revenue")
    conn.execute(sql.SQL("UPDATE {} SET total = 99 WHERE region = 'north'").format(storage))

    found = program.json("verify", "revenue", expect=1)
    assert found["equal"] is False
    assert (found["missing_count"], found["surplus_count"]) == (1, 1)
    assert found["columns"] == ["region", "total", "orders"]
    assert found["missing"] == [["north", "14.50", "2"]]
    assert found["surplus"] == [["north", "99", "2"]]

    text = program.run("verify", "revenue", expect=1).stdout
    assert "public.revenue differs from its query: 1 missing, 1 surplus, 2 stored" in text
    assert re.search(r"^missing: .*\nregion +total +orders\nnorth +14\.50 +2$", text, re.MULTILINE)
    assert re.search(r"^surplus: .*\nregion +total +orders\nnorth +99 +2$", text, re.MULTILINE)
    assert "next: headwater refresh revenue --full" in text
    inside.run("refresh", "revenue", "--full")
    inside.run("verify", "revenue")


def test_verify_shows_values_of_all_kinds(inside: Inside, conn: psycopg.Connection) -> None:
    conn.execute("CREATE TABLE kinds (b bytea, j jsonb, f float8, d date, r int4range, t text)")
    conn.execute(
        "INSERT INTO kinds VALUES ('\\x00ff', '{\"a\": [1, null]}', 'NaN', '2026-01-31', '[1,5)', %s),"
        " (NULL, NULL, NULL, NULL, NULL, '[b]:x:')",
        ["two\nlines\x1b[2J"],
    )
    inside.run("create", "same", "--query", "SELECT * FROM kinds")
    conn.execute(sql.SQL("DELETE FROM {}").format(storage_of(conn, "same")))
    rows = inside.json("verify", "same", expect=1)["missing"]
    assert ["\\x00ff", '{"a": [1, null]}', "NaN", "2026-01-31", "[1,5)", "two\nlines\x1b[2J"] in rows
    assert [None, None, None, None, None, "[b]:x:"] in rows
    text = inside.run("verify", "same", expect=1).stdout
    assert "two\\nlines\\x1b[2J" in text
    assert "[b]:x:" in text
    assert "NULL" in text


def test_query_from_a_file_and_from_standard_input(program: Program, inside: Inside, tmp_path: Path) -> None:
    file = tmp_path / "query.sql"
    file.write_text(f"\ufeff-- größer als nichts\n{REVENUE};\n", encoding="utf-8")
    program.run("create", "filed", "--file", str(file))
    program.run("create", "piped", "--file", "-", stdin=REVENUE)
    assert [item["rows"] for item in inside.json("list")["stream_tables"]] == [2, 2]

    file.write_bytes(b"SELECT '\xff'")
    assert "no UTF-8" in inside.fails("create", "binary", "--file", str(file), expect=2)
    inside.fails("create", "absent", "--file", str(tmp_path / "absent.sql"), expect=2)


def test_quoted_name_beyond_ascii(program: Program, inside: Inside) -> None:
    name = 'public."Umsätze je Région ✓"'
    said = program.run("create", name, "--query", REVENUE).stdout
    assert f"created {name}" in said
    assert f"next: headwater refresh '{name}'" in said
    assert inside.json("status", name)["stream_table"] == name
    assert f"{name} " in program.run("list", PYTHONUTF8="0", LC_ALL="C").stdout
    assert inside.json("drop", name)["dropped"] == [name]


def test_long_names_are_not_wrapped_in_a_pipe(program: Program, inside: Inside) -> None:
    name = "n" * 63
    inside.run("create", name, "--query", REVENUE)
    assert f"public.{name} " in program.run("list", COLUMNS="40").stdout
    assert "\x1b" not in program.run("list", FORCE_COLOR="1").stdout


def test_create_if_not_exists_twice(inside: Inside) -> None:
    arguments = ("create", "revenue", "--query", REVENUE, "--if-not-exists")
    first, second = inside.json(*arguments), inside.json(*arguments)
    assert (first.pop("created"), second.pop("created")) == (True, False)
    assert (first.pop("did"), second.pop("did")) == ("it was created", "what is stored stays")
    assert first == second
    assert "exists already: public.revenue" in inside.run(*arguments).stdout


# settings


def test_settings_and_which_of_them_wins(inside: Inside) -> None:
    def shown(**variables: str) -> tuple[str, str]:
        found = inside.json("settings", expect=0, **variables)["settings"]
        [item] = [item for item in found if item["name"] == "verify_max_rows"]
        return item["value"], item["origin"]

    assert shown() == ("20", "default")
    assert "stored verify_max_rows = 3" in inside.run("set", "verify_max_rows", "3").stdout
    assert shown() == ("3", "table")
    assert shown(HEADWATER_VERIFY_MAX_ROWS="7") == ("7", "environment")
    assert re.search(r"verify_max_rows +3 +table +20 ", inside.run("settings").stdout)

    stored = inside.json("set", "headwater.verify_max_rows", "4", HEADWATER_VERIFY_MAX_ROWS="7")
    assert (stored["stored"], stored["value"], stored["origin"]) == ("4", "7", "environment")
    assert shown() == ("4", "table")


# errors


def test_errors_name_what_is_wrong_and_what_to_do(inside: Inside) -> None:
    inside.run("create", "revenue", "--query", REVENUE)
    for arguments, parts in {
        ("create", "x", "--query", "SELECT * FROM nowhere"): ("create public.x", "nowhere", "hint: "),
        ("create", "x", "--query", "SELEC 1"): ("the server refuses the query", "SELEC", "hint: "),
        ("create", "x", "--query", "SELECT nothing FROM sales"): ("create public.x", "nothing"),
        ("create", "revenue", "--query", REVENUE): ("a stream table public.revenue exists already",),
        ("create", "sales", "--query", REVENUE): ("a table public.sales exists already",),
        ("create", "x", "--query", REVENUE, "--schedule", "soon"): ("'soon' is not a duration", "hint: "),
        ("create", "x", "--query", REVENUE, "--engine", "spark", "--spark-master", "spark://127.0.0.1:1"): (
            "Spark at spark://127.0.0.1:1 cannot be reached",
            "hint: check the setting spark_master",
        ),
        ("create", "x", "--query", REVENUE, "--engine", "spark", "--spark-conf", "cores=2"): (
            "spark_conf",
            "cores=2",
        ),
        ("create", "x", "--query", DRAWN, "--mode", "differential"): (
            "public.x cannot be maintained incrementally: random() is volatile",
            "hint: use mode auto or full",
        ),
        ("alter", "revenue", "--schedule", "0s"): ("'0s' is not longer than zero",),
        ("refresh", "revenue", "--full", "--engine", "spark", "--spark-master", "spark://127.0.0.1:1"): (
            "cannot be reached",
        ),
        ("set", "no_such_setting", "1"): ("no setting 'no_such_setting'", "hint: there are "),
        ("set", "verify_max_rows", "many"): ("'many' is not a whole number",),
    }.items():
        said = inside.fails(*arguments)
        for part in parts:
            assert part in said, f"{arguments}: {said}"
    assert [item["stream_table"] for item in inside.json("list")["stream_tables"]] == ["public.revenue"]


@pytest.mark.parametrize(
    "verb",
    [
        "refresh x",
        "drop x",
        "status x",
        "history x",
        "audits x",
        "explain x",
        "verify x",
        "alter x --mode full",
    ],
)
def test_unknown_stream_table(inside: Inside, verb: str) -> None:
    done = inside.run(*verb.split(), "--format", "json", expect=1)
    assert done.stdout == ""
    assert json.loads(done.stderr) == {
        "error": {
            "type": "NotFound",
            "message": "there is no stream table x",
            "detail": "",
            "hint": "headwater list shows those there are",
        }
    }


def test_drop_refuses_while_others_read_it(inside: Inside) -> None:
    inside.run("create", "revenue", "--query", REVENUE)
    inside.run("create", "big", "--query", "SELECT * FROM revenue WHERE total > 5")
    said = inside.fails("drop", "revenue")
    assert "detail: public.big" in said
    assert "--cascade" in said


def test_wrong_usage(alone: Inside) -> None:
    for arguments, part in {
        ("frobnicate",): "frobnicate",
        ("list", "--frobnicate"): "--frobnicate",
        ("refresh",): "NAME",
        ("create", "x"): "--file",
        ("create", "x", "--query", "SELECT 1", "--file", "-"): "--file",
        ("create", "x", "--query", "SELECT 1", "--mode", "sometimes"): "differential",
        ("alter", "x"): "nothing to change",
        ("alter", "x", "--schedule", "1s", "--no-schedule"): "exclude each other",
        ("history", "--limit", "0"): "--limit",
        ("history", "--by", "day"): "minute",
        ("status", "--watch", "--format", "xml"): "json",
    }.items():
        assert part in alone.fails(*arguments, expect=2)
    for misused, message in {
        ("alter", "x"): "nothing to change",
    }.items():
        error = json.loads(alone.run(*misused, "--format", "json", expect=2).stderr)["error"]
        assert (error["type"], error["message"]) == ("UsageError", message)


def test_no_database_was_given(alone: Inside) -> None:
    for verb in ("list", "init", "settings"):
        said = alone.fails(verb, expect=2)
        assert "no database was given" in said
        assert "--dsn" in said
        assert "HEADWATER_DSN" in said


def test_database_is_not_prepared(empty_dsn: str) -> None:
    program = Program(empty_dsn)
    assert "hint: run headwater init" in program.fails("list")
    assert program.json("init")["installed"] is True
    assert program.json("list") == {"stream_tables": []}


def test_uninstall(program: Program, inside: Inside, conn: psycopg.Connection) -> None:
    inside.run("create", "revenue", "--query", REVENUE)
    assert "--yes" in program.fails("uninstall", expect=2)
    assert inside.json("list")["stream_tables"]
    conn.execute("CREATE TABLE headwater_data.mine AS SELECT 1 AS one")
    said = program.run("uninstall", "--yes").stdout.splitlines()
    assert {"removed stream table public.revenue", "removed the triggers on public.sales"} <= set(said)
    assert "left table headwater_data.mine, which is not Headwater's" in said
    assert "removed schema headwater" in said
    conn.execute("DROP TABLE headwater_data.mine")
    left = inside.json("uninstall", "--yes")
    assert (left["removed"], left["left"]) == (["schema headwater_data"], [])
    assert inside.json("uninstall")["removed"] == []  # nothing is there, so nothing is asked
    assert conn.execute("SELECT count(*) FROM sales").fetchone() == (3,)


@pytest.mark.parametrize(("answer", "gone"), [("n", False), ("y", True)])
def test_uninstall_asks(program: Program, inside: Inside, answer: str, gone: bool) -> None:
    inside.run("create", "revenue", "--query", REVENUE)
    ours, theirs = pty.openpty()
    try:
        os.write(ours, f"{answer}\n".encode())
        done = subprocess.run(
            [*PROGRAM, "uninstall"],
            stdin=theirs, capture_output=True, text=True, timeout=60, env=program.environment,
        )  # fmt: skip
    finally:
        os.close(ours)
        os.close(theirs)
    assert "1 stream tables, triggers on 1 tables" in done.stdout
    assert done.returncode == (0 if gone else 130)
    assert ("Headwater is uninstalled" in done.stdout) == gone
    if not gone:
        assert len(inside.json("list")["stream_tables"]) == 1


def test_dsn_before_and_after_the_verb(inside: Inside, alone: Inside, dsn: str, empty_dsn: str) -> None:
    inside.run("create", "revenue", "--query", REVENUE)
    both = ("--dsn", empty_dsn, "list", "--dsn", dsn)
    for arguments in (("--dsn", dsn, "list"), ("list", "--dsn", dsn), both):
        assert len(alone.json(*arguments)["stream_tables"]) == 1
    assert len(alone.json("--dsn", dsn, "list", HEADWATER_DSN=empty_dsn)["stream_tables"]) == 1
    assert json.loads(alone.run("--format", "json", "--dsn", dsn, "list").stdout)["stream_tables"]


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://ann:s3cret@127.0.0.1:1/nowhere",
        "host=127.0.0.1 port=1 user=ann password=s3cret",
        "host=127.0.0.1 password=two s3cret",
        "postgresql:/ann:s3cret@127.0.0.1:1/nowhere",
        "postgresql://ann:s3cret/more@127.0.0.1:1/nowhere",
        "postgresql://ann:more@s3cret@127.0.0.1:1/nowhere",
    ],
)
def test_passwords_are_not_shown(alone: Inside, dsn: str) -> None:
    for arguments in (["list"], ["list", "--debug"], ["list", "--format", "json"], ["list", dsn]):
        done = alone.execute(arguments, "", {"HEADWATER_DSN": dsn})
        assert done.returncode in (1, 2)
        assert "s3cret" not in done.stdout + done.stderr


def test_debug_shows_where_an_error_came_from(inside: Inside) -> None:
    said = inside.run("status", "x", "--debug", expect=1).stderr
    assert said.startswith("Traceback")
    assert "error: there is no stream table x" in said


def test_arguments_that_are_no_text(dsn: str) -> None:
    done = subprocess.run([*PROGRAM, "status", b"\xff"], capture_output=True, env=Program(dsn).environment)
    assert done.returncode == 2
    assert done.stderr.startswith(b"error: ")


# privileges


def test_init_check(inside: Inside, weak_dsn: str) -> None:
    complete = inside.json("init", "--check")
    assert complete["ok"] is True
    assert all(item["ok"] and not item["remedy"] for item in complete["checks"])
    assert "nothing is missing" in inside.run("init", "--check").stdout

    weak = Program(weak_dsn)
    found = weak.json("init", "--check", expect=1)
    assert found["ok"] is False
    remedies = [item["remedy"] for item in found["checks"] if not item["ok"]]
    assert any(re.match(r"GRANT SELECT, TRIGGER ON public\.sales TO ", remedy) for remedy in remedies)
    text = weak.run("init", "--check", expect=1).stdout
    assert all(f"{remedy};" in text for remedy in remedies)
    assert re.search(r"^missing +", text, re.MULTILINE)
    assert re.search(r"^ok +PostgreSQL", text, re.MULTILINE)


def test_verbs_of_a_role_without_privileges(weak_dsn: str) -> None:
    assert "hint: headwater init --check" in Program(weak_dsn).fails("list")


# refreshes that run


@pytest.fixture
def job(inside: Inside, dsn: str) -> Iterator[Job]:
    """A refresh on Spark as it is seen from outside."""
    inside.run("create", "revenue", "--query", REVENUE)
    with headwater.connect(dsn) as hw:
        found = catalog.find(hw.connection, "revenue")
    with Job.open(dsn, found, coordinator=0, action="delta") as running:
        running.runs_as("local-1", "http://localhost:4040")
        running.report("read", tasks=40, tasks_done=10, rows=1234, stage="sales")
        yield running


@pytest.mark.parametrize("arguments", [("list",), ("status",), ("status", "revenue")], ids=" ".join)
def test_a_running_job_in_text(inside: Inside, job: Job, arguments: tuple[str, ...]) -> None:
    shown = inside.run(*arguments).stdout.partition("\nrunning\n")[2]
    assert re.fullmatch(
        r"public\.revenue  delta on spark  [\d.]+ m?s  read: sales\n"
        r"  ━{7}╸? +10 of 40 tasks  1234 rows\n"
        r"  Spark UI: http://localhost:4040\n",
        shown,
    )
    job.report("write", rows=1)
    assert re.search(r"delta on spark  [\d.]+ m?s  write\n  1 row\n", inside.run(*arguments).stdout)


def test_a_running_job_in_json(inside: Inside, job: Job) -> None:
    shown = inside.json("status", "revenue")["job"]
    assert inside.json("list")["stream_tables"][0]["job"]["id"] == shown["id"] == job.id
    assert {name: shown[name] for name in ("phase", "tasks", "tasks_done", "rows", "stage", "ui")} == {
        "phase": "read",
        "tasks": 40,
        "tasks_done": 10,
        "rows": 1234,
        "stage": "sales",
        "ui": "http://localhost:4040",
    }
    job.close()
    assert inside.json("status", "revenue")["job"] is None
    assert "running" not in inside.run("status").stdout


def test_cancel(inside: Inside, job: Job) -> None:
    assert "cancelled delta on spark of public.revenue after" in inside.run("cancel", "revenue").stdout
    assert "being cancelled" in inside.run("status").stdout
    assert [item["id"] for item in inside.json("cancel", "revenue")["cancelled"]] == [job.id]
    job.close()
    said = inside.fails("cancel", "revenue")
    assert "no refresh of public.revenue is running" in said
    assert "there is no stream table unheard_of" in inside.fails("cancel", "unheard_of")


def test_watch_shows_a_running_job(program: Program, job: Job) -> None:
    with subprocess.Popen(
        [*PROGRAM, "status", "revenue", "--watch"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        env=program.environment,
    ) as watching:
        assert watching.stdout is not None
        for done in (10, 20):
            while f"{done} of 40 tasks" not in (line := watching.stdout.readline()):
                assert line, "it ended"
                job.report("read", tasks_done=done)  # what comes too soon after another is not shown
        watching.send_signal(signal.SIGINT)
        _, errors = watching.communicate(timeout=60)
    assert watching.returncode == 130
    assert "Traceback" not in errors


# watching, help


def test_watch_ends_with_an_interrupt(program: Program, inside: Inside) -> None:
    inside.run("create", "revenue", "--query", REVENUE)
    with subprocess.Popen(
        [*PROGRAM, "status", "--watch"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        env=program.environment,
    ) as watching:
        assert watching.stdout is not None
        service, tables, _, _, header, state = (watching.stdout.readline() for _ in range(6))
        assert service.startswith("no service is running: headwater serve")
        assert ": 1 stream tables (1 current)" in tables
        assert header.startswith("stream table")
        assert state.startswith("public.revenue")
        watching.send_signal(signal.SIGINT)
        _, errors = watching.communicate(timeout=60)
    assert watching.returncode == 130
    assert "Traceback" not in errors


def test_watch_as_json_is_a_document_a_line(program: Program, inside: Inside, job: Job) -> None:
    with subprocess.Popen(
        [*PROGRAM, "status", "--watch", "--format", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        env=program.environment,
    ) as watching:
        assert watching.stdout is not None
        first, second = (json.loads(watching.stdout.readline()) for _ in range(2))
        watching.send_signal(signal.SIGINT)
        _, errors = watching.communicate(timeout=60)
    assert watching.returncode == 130
    assert "Traceback" not in errors
    assert first["at"] < second["at"]
    assert (first["service"], first["workers"]) == (None, [])
    [glance] = first["stream_tables"]
    assert (glance["stream_table"], glance["job"]["tasks"]) == ("public.revenue", 40)


def test_help_and_version(alone: Inside) -> None:
    program = Program(None)
    assert re.fullmatch(r"headwater \d+\.\d+\.\d+\n", program.run("--version").stdout)
    assert "Usage: headwater" in program.run(expect=2).stderr
    text = program.run("--help").stdout
    for verb in cli.commands:
        assert re.search(rf"^  {verb} +\w", text, re.MULTILINE)
        about = alone.run(verb, "--help").stdout
        assert f"Example: headwater {verb}" in about
        assert "--dsn" in about


def test_another_query_in_place(inside: Inside, conn: psycopg.Connection) -> None:
    inside.run("create", "revenue", "--query", REVENUE, "--or-replace")
    more = REVENUE.replace(" FROM", ", max(amount) AS most FROM")
    said = inside.run("alter", "revenue", "--query", more).stdout
    assert said.startswith("altered public.revenue: its query was replaced\n")
    assert "what is stored stays" in inside.run("create", "revenue", "--query", more, "--or-replace").stdout
    conn.execute("CREATE VIEW mine AS SELECT total FROM revenue")
    refused = inside.fails("create", "revenue", "--query", DRAWN, "--or-replace", "--cascade")
    assert "public.mine" in refused
    conn.execute("DROP VIEW mine")
    inside.run("create", "above", "--query", "SELECT sum(total) AS total FROM revenue")
    assert "--cascade" in inside.fails("alter", "revenue", "--query", DRAWN)
    assert "public.above was dropped" in inside.json("alter", "revenue", "--query", DRAWN, "--cascade")["did"]
    for misuse in (
        ("alter", "revenue", "--cascade"),
        ("create", "revenue", "--query", REVENUE, "--cascade"),
        ("create", "revenue", "--query", REVENUE, "--or-replace", "--if-not-exists"),
        ("alter", "revenue", "--query", REVENUE, "--file", "-"),
    ):
        inside.fails(*misuse, expect=2)
