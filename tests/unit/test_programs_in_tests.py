"""Programs that tests run in processes of their own are strings, which the type checker does not read.

A name that moved would fail only where such a program runs, with an error at its far end.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

TESTS = Path(__file__).parents[1]

# Their programs name what is not there, on purpose.
EXAMPLES = frozenset({Path(__file__), TESTS / "unit" / "test_layers.py"})


def programs(path: Path) -> Iterator[tuple[int, ast.Module]]:
    """Yield each string of a file that is a program and imports headwater, with its line."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "import" in node.value:
            try:
                program = ast.parse(node.value)
            except SyntaxError:
                continue
            if any(module.partition(".")[0] == "headwater" for module, _ in imports(program)):
                yield node.lineno, program


def imports(program: ast.Module) -> Iterator[tuple[str, list[ast.alias]]]:
    for node in ast.walk(program):
        if isinstance(node, ast.Import):
            yield from ((alias.name, []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module, node.names


def missing(program: ast.Module) -> Iterator[str]:
    """Yield the names of headwater that a program imports, or reads from a module, and that do not exist."""
    modules: dict[str, ModuleType] = {}
    for name, aliases in imports(program):
        if name.partition(".")[0] != "headwater":
            continue
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError:
            yield name
            continue
        for alias in aliases:
            found = attribute(module, alias.name)
            if found is None:
                yield f"{name}.{alias.name}"
            elif isinstance(found, ModuleType):
                modules[alias.asname or alias.name] = found
    for node in ast.walk(program):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            module = modules[node.value.id]
            if attribute(module, node.attr) is None:
                yield f"{module.__name__}.{node.attr}"


def attribute(module: ModuleType, name: str) -> object | None:
    """Return a module's attribute or submodule, or None."""
    if not hasattr(module, name):
        try:
            importlib.import_module(f"{module.__name__}.{name}")
        except ModuleNotFoundError:
            return None
    found: object = getattr(module, name)
    return found


def test_every_name_that_a_program_uses_exists() -> None:
    found = [
        f"{path.relative_to(TESTS)}:{line}: {name}"
        for path in sorted(TESTS.rglob("*.py"))
        if path not in EXAMPLES
        for line, program in programs(path)
        for name in missing(program)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("from headwater.db.connection import connect", []),
        ("from headwater.unheard_of import x", ["headwater.unheard_of"]),
        ("from headwater.db.connection import unheard_of", ["headwater.db.connection.unheard_of"]),
        (
            "from headwater.db import connection\nconnection.connect; connection.unheard_of",
            ["headwater.db.connection.unheard_of"],
        ),
    ],
)
def test_a_name_that_is_missing_is_found(program: str, expected: list[str]) -> None:
    assert list(missing(ast.parse(program))) == expected
