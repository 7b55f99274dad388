"""The documentation does what it says: its commands run, and it names everything that there is.

A fenced `sh` or `python` block after the comment `<!-- tested -->` is run, those of one page in order and in
one database. What the reference must name is read from the code, so that it cannot fall behind.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import click
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import headwater
from headwater import config, errors
from headwater.catalog.history import HistoryEntry, HistorySum
from headwater.cli.group import cli
from headwater.engine.spark.runtime import java
from headwater.inspect.explain import Explanation
from headwater.inspect.status import StreamTableStatus
from headwater.inspect.verify import Verification

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
TEXTS = sorted([*PAGES, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.py")])
REFERENCE = "\n".join(
    page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs" / "reference").glob("*.md"))
)
VIEWS = (
    "stream_tables health refresh_history refresh_stats running_jobs consumers settings"
    " pg_stat_headwater requests worker_registry worker_jobs".split()
)
NAMED = set(re.findall(r"--?[\w-]+|\w+", REFERENCE))
"""Every word and every option in the reference."""

# Stands in for psql where there is none: statements from -c or from standard input, results without layout.
PSQL = f"""#!{sys.executable}
import sys, psycopg
dsn, *rest = sys.argv[1:]
texts = [text for flag, text in zip(rest[::2], rest[1::2]) if flag == "-c"] or [sys.stdin.read()]
with psycopg.connect(dsn, autocommit=True) as connection:
    for text in texts:
        cursor = connection.execute(text)
        while True:
            if cursor.description:
                print(*cursor.fetchall(), sep="\\n")
            if not cursor.nextset():
                break
"""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str
    tested: bool


def blocks(page: Path) -> Iterator[Block]:
    lines = page.read_text(encoding="utf-8").splitlines()
    start, language, tested = 0, "", False
    for number, line in enumerate(lines, 1):
        if not line.startswith("```"):
            continue
        if start:
            yield Block(page, start, language, "\n".join(lines[start : number - 1]) + "\n", tested)
            start = 0
        else:
            start, language = number, line.removeprefix("```")
            tested = lines[number - 2] == "<!-- tested -->"
    assert not start, f"{page.name}:{start}: the block does not end"


def commands(page: Path) -> list[Block]:
    return [block for block in blocks(page) if block.tested]


def environment(dsn: str, directory: Path) -> dict[str, str]:
    """A user's shell: the database in HEADWATER_DSN, the programs of this environment first."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HEADWATER_", "PG"))}
    programs = [str(Path(sys.executable).parent)]
    if shutil.which("psql") is None:
        stand_in = directory / "psql"
        stand_in.write_text(PSQL, encoding="utf-8")
        stand_in.chmod(0o755)
        programs.append(str(directory))
    path = os.pathsep.join([*programs, os.environ.get("PATH", "")])
    return {**kept, "PATH": path, "HEADWATER_DSN": dsn, "PYTHONUTF8": "1", "PSQLRC": os.devnull}


def run(block: Block, variables: dict[str, str], timeout: float = 120) -> str:
    # psql goes on after an error in its input unless told otherwise.
    shell = 'psql() { command psql -v ON_ERROR_STOP=1 "$@"; }\n' if shutil.which("psql") else ""
    program = {
        "sh": ["sh", "-eu", "-c", shell + block.text],
        "python": [sys.executable, "-W", "error", "-c", block.text],
    }[block.language]
    done = subprocess.run(
        program,
        capture_output=True,
        encoding="utf-8",
        timeout=timeout,
        env=variables,
        stdin=subprocess.DEVNULL,
    )
    where = f"{block.page.name}:{block.line}"
    assert done.returncode == 0, f"{where}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


# what is run


def test_five_minutes_of_the_readme(empty_dsn: str, tmp_path: Path) -> None:
    page = ROOT / "README.md"
    variables = environment(empty_dsn, tmp_path)
    outputs = [run(block, variables) for block in commands(page)]
    everything = "\n".join(outputs)
    for expected in ("mode: differential", "public.revenue equals its query: 3 rows", "16.00", "[algebraic"):
        assert expected in everything
    with psycopg.connect(empty_dsn) as connection:
        triggers = connection.execute("SELECT count(*) FROM pg_trigger WHERE tgname ~ '^headwater'")
        assert triggers.fetchone() == (0,), "the page says that nothing is left on the table"


def test_how_to(dsn: str, tmp_path: Path) -> None:
    variables = environment(dsn, tmp_path)
    for block in commands(ROOT / "docs" / "howto.md"):
        run(block, variables)
    with psycopg.connect(dsn) as connection:
        left = connection.execute("SELECT count(*) FROM pg_namespace WHERE nspname ~ '^headwater'")
        assert left.fetchone() == (0,), "the page ends with removing everything"


@pytest.mark.parametrize("page", ["recipes.md", "coming-from.md", "troubleshooting.md"])
def test_pages_by_task(empty_dsn: str, tmp_path: Path, page: str) -> None:
    found = commands(ROOT / "docs" / page)
    assert found
    for block in found:
        run(block, environment(empty_dsn, tmp_path))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_spark(empty_dsn: str, tmp_path: Path) -> None:
    """A Spark user's own session, which finds the Java that comes along."""
    variables = {**environment(empty_dsn, tmp_path), "JAVA_HOME": str(java.find().home)}
    for block in commands(ROOT / "docs" / "spark.md"):
        run(block, variables, timeout=280)


def test_shown_output_is_what_is_printed(empty_dsn: str, tmp_path: Path) -> None:
    """The lines of README's text blocks appear in what the commands before them print, but for times."""
    variables = environment(empty_dsn, tmp_path)
    printed = ""
    for block in blocks(ROOT / "README.md"):
        if block.tested:
            printed = _comparable(run(block, variables))
        elif block.language == "text" and "* * * * *" not in block.text:
            for line in filter(None, map(str.strip, _comparable(block.text).splitlines())):
                if shutil.which("psql") or ("|" not in line and "+" not in line):
                    assert line in printed, f"README.md:{block.line}: {line!r} is not printed"


def _comparable(text: str) -> str:
    return re.sub(r"[ \t]+", " ", re.sub(r"\d+\.\d+ ms", "0 ms", text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_say_what_they_are(page: Path) -> None:
    for block in blocks(page):
        assert block.language in ("sh", "python", "sql", "text"), f"{page.name}:{block.line}"
        if block.language == "python":
            assert block.tested, f"{page.name}:{block.line}: Python that is not tested"


# the reference


def test_reference_names_every_verb_and_option() -> None:
    for verb, command in cli.commands.items():
        assert re.search(rf"^\| `{verb}\b", REFERENCE, re.MULTILINE), f"no row for the verb {verb}"
        for parameter in [*command.params, *cli.params]:
            if isinstance(parameter, click.Option):
                missing = [name for name in parameter.opts if name not in NAMED]
                assert not missing, f"{verb} {missing}"


def test_reference_names_every_setting_with_its_default() -> None:
    for setting in fields(config.Settings):
        assert f"| `{setting.name}` | `{config.written(setting.default)}` |" in REFERENCE


def test_reference_names_every_error() -> None:
    found = {kind.__name__ for kind in vars(errors).values() if _is_error(kind)}
    assert {"HeadwaterError", "NotIncremental"} <= found
    rows = set(re.findall(r"^\| `(\w+)` \|", REFERENCE, re.MULTILINE))
    assert found <= rows, found - rows


def _is_error(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, errors.HeadwaterError)


def test_reference_names_what_python_offers() -> None:
    methods = {name for name in dir(headwater.Headwater) if not name.startswith("_")}
    assert {"create", "list"} <= methods
    assert methods <= NAMED, methods - NAMED
    results = (Explanation, HistoryEntry, HistorySum, StreamTableStatus, Verification, headwater.Setting)
    names = {field.name for result in results for field in fields(result)}
    assert names <= NAMED, names - NAMED
    assert set(headwater.__all__) <= NAMED, set(headwater.__all__) - NAMED


@pytest.mark.parametrize("view", VIEWS)
def test_reference_names_every_column_of_the_views(conn: psycopg.Connection, view: str) -> None:
    section = re.split(r"^\*\*`headwater\.", REFERENCE, flags=re.MULTILINE)
    text = next(part for part in section if part.startswith(f"{view}`**"))
    rows = conn.execute(
        "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0", [f"headwater.{view}"]
    ).fetchall()
    missing = [name for (name,) in rows if f"`{name}`" not in text.partition("###")[0]]
    assert rows
    assert not missing


def test_every_view_for_users_is_in_the_reference(conn: psycopg.Connection) -> None:
    rows = conn.execute(
        "SELECT relname FROM pg_class WHERE relkind = 'v' AND relnamespace = 'headwater'::regnamespace"
    ).fetchall()
    assert rows
    assert all(f"`headwater.{name}`" in REFERENCE for (name,) in rows)


def test_reference_names_every_function_for_users_with_what_it_takes_and_returns(
    conn: psycopg.Connection,
) -> None:
    """Those that operators call, and those that are granted to who asks; the others are parts of them."""
    rows = conn.execute(
        "SELECT proname, coalesce(proargnames, '{}') FROM pg_proc p"
        " WHERE pronamespace = 'headwater'::regnamespace"
        " AND NOT has_function_privilege('public', p.oid, 'EXECUTE') AND proname NOT IN ('scheduler_status',"
        " 'waiting_changes', 'lags', 'deadlines', 'find_stream_table', 'recommendations', 'record_request',"
        " 'sum_refreshes', 'fingerprint', 'move_frontier', 'record_delta', 'hold_claim', 'check_claim')"
    ).fetchall()
    assert len(rows) > 20
    missing = {name for function, names in rows for name in (function, *names) if name not in NAMED}
    assert missing <= {"number"}


def test_security_has_every_grant(empty_dsn: str) -> None:
    """What `init --check` asks of a role that has nothing, with the names that the page uses."""
    text = (ROOT / "docs" / "operations" / "security.md").read_text(encoding="utf-8")
    role = f"headwater_docs_{os.getpid()}"
    with psycopg.connect(empty_dsn, autocommit=True) as connection:
        database = connection.info.dbname
        connection.execute(f"REVOKE TEMP ON DATABASE {database} FROM PUBLIC")
        connection.execute("CREATE TABLE orders ()")
        connection.execute("CREATE SCHEMA headwater")
        connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'weak'")
        try:
            with headwater.connect(make_conninfo(empty_dsn, user=role, password="weak")) as hw:
                wanted = [check.remedy for check in hw.check() if not check.ok]
        finally:
            connection.execute(f"DROP ROLE {role}")
    assert len(wanted) == 5
    for statement in wanted:
        assert statement.replace(role, "hw").replace(database, "shop") in text


# links and what must not be there


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match(r"https?://", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{page.name}: {target}"
        if anchor:
            assert anchor in anchors(linked), f"{page.name}: {target}"


def anchors(page: Path) -> set[str]:
    """The anchors of headings, as a Markdown host makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_private_addresses_or_paths(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    unwanted = (
        r"(?<![\w.])/(?:work|home|root|tmp|Users|usr/lib|opt)/",  # of one machine
        r"\b(?:\d{1,3}\.){3}\d{1,3}\b",
        r"--(?:extra-)?index-url",
        r"\b(?:pypi|files\.pythonhosted|artifactory|nexus)\b",
    )
    for pattern in unwanted:
        found = re.search(pattern, text)
        assert found is None, f"{page.name}: {found}"
