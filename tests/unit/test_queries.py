"""The named queries in `db/sql/*.sql` and their uses belong together."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.db.queries import query

SOURCE = Path(__file__).parents[2] / "src" / "headwater"
NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)

# Their names and texts say it: one statement of few words on one table.
SELF_EXPLAINING = re.compile(r"(add|delete|remove|set|forget)_\w+|source|signature")


def queries() -> dict[tuple[str, str], str]:
    """Every query by group and name, in the order of the files."""
    found = {}
    for path in sorted((SOURCE / "db" / "sql").glob("*.sql")):
        before, *parts = NAME.split(path.read_text(encoding="utf-8"))
        assert not before.strip(), f"{path.name} has text before its first query"
        for name, body in zip(parts[::2], parts[1::2], strict=True):
            assert (path.stem, name) not in found, f"{path.name} has two queries named {name}"
            found[path.stem, name] = body
    return found


def uses() -> Iterator[tuple[Path, int, tuple[str, str]]]:
    """Every call query("group", "name"); one whose arguments are not plain strings is a mistake."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "query":
                values = [item.value if isinstance(item, ast.Constant) else None for item in node.args]
                match values:
                    case [str(group), str(name)]:
                        yield path, node.lineno, (group, name)
                    case _:
                        pytest.fail(f"{path}:{node.lineno} does not name its query by two strings")


def test_every_query_that_is_used_exists() -> None:
    known = queries()
    missing = [f"{path.name}:{line} {used}" for path, line, used in uses() if used not in known]
    assert not missing


def test_every_query_is_used() -> None:
    used = {name for _, _, name in uses()}
    assert used, "no use was found at all"
    assert [name for name in queries() if name not in used] == []


@pytest.mark.parametrize("name", queries(), ids=".".join)
def test_a_query_says_what_it_does(name: tuple[str, str]) -> None:
    lines = queries()[name].strip().splitlines()
    described = lines[0].startswith("-- ") and len(lines[0].split()) > 3
    assert described or SELF_EXPLAINING.fullmatch(name[1])


@pytest.mark.parametrize("name", queries(), ids=".".join)
def test_a_query_is_one_statement_with_named_parameters(name: tuple[str, str]) -> None:
    text = query(*name)
    body = "\n".join(line for line in text.splitlines() if not line.startswith("--"))
    assert body.strip()
    assert ";" not in body
    assert "%" not in re.sub(r"%%|%\(\w+\)s", "", body), (
        "a percent sign that psycopg would take for a parameter"
    )


def test_an_unknown_query_is_an_error() -> None:
    with pytest.raises(KeyError):
        query("catalog", "no_such_query")
    with pytest.raises(FileNotFoundError):
        query("no_such_group", "stream_tables")
