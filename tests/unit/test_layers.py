"""Imports go down only, also those inside functions and under TYPE_CHECKING."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

# Lowest first. A name is a module or package directly under headwater. It may import itself and the layers
# below, not its neighbours in the same layer.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "version"),
    ("clock", "util"),
    ("config", "embedded"),
    ("plan", "scheduling"),
    ("db",),
    ("catalog",),
    ("definition",),
    ("capture",),
    ("apply", "engine"),
    ("refresh",),
    ("inspect", "install", "lifecycle"),
    ("handle",),
    ("api", "spark"),
    ("__init__",),
    ("service",),
    ("bench", "demo"),
    ("cli",),
    ("__main__",),
)

# What these must not reach: they are pure, so that a plan can be built and printed without a server, and a
# rule be tested without waiting.
PURE = frozenset({"plan", "scheduling"})
IMPURE = frozenset(
    "asyncio ctypes glob http io logging multiprocessing os pathlib psycopg psycopg_pool random"
    " select selectors shutil signal socket socketserver sqlite3 ssl subprocess sys tempfile threading"
    " time urllib".split()
)

# Packages that only one part may import, by the prefix of the importing module.
CONFINED = {"pyspark": "headwater.engine.spark", "py4j": "headwater.engine.spark"}

SOURCE = Path(__file__).parents[2] / "src" / "headwater"
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}


def violations(module: str, source: str, *, is_package: bool = False) -> Iterator[str]:
    """One sentence for each import of `module` (a dotted name) that breaks a rule."""
    layer = layer_of(module)
    if layer not in RANK:
        yield f"{module}: no layer names {layer!r}; add it to LAYERS in tests/unit/test_layers.py"
        return
    for imported, line in imports(module, source, is_package=is_package):
        root = imported.partition(".")[0]
        reason = ""
        if root == "headwater":
            reason = upward(layer, layer_of(imported))
        elif layer in PURE and root in IMPURE:
            reason = f"{layer} is pure: no connection, no I/O"
        elif root in CONFINED and not f"{module}.".startswith(f"{CONFINED[root]}."):
            reason = f"only {CONFINED[root]} may import {root}"
        if reason:
            yield f"{module}:{line} imports {imported}: {reason}"


def upward(layer: str, target: str) -> str:
    """Why `layer` may not import `target`, or nothing."""
    if target == layer:
        return ""
    if target not in RANK:
        return f"no layer names {target!r}"
    if RANK[target] == RANK[layer]:
        return f"{layer} and {target} are neighbours in one layer"
    if RANK[target] > RANK[layer]:
        return f"{target} lies above {layer}"
    return ""


def layer_of(module: str) -> str:
    """headwater.plan.syntax → plan; headwater → __init__"""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def imports(module: str, source: str, *, is_package: bool) -> Iterator[tuple[str, int]]:
    """Every imported module with its line; `from headwater import x` counts as headwater.x if that is one."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                package = parts[: len(parts) - node.level + is_package]
                base = ".".join([*package, base] if base else package)
            if base.partition(".")[0] != "headwater":
                yield base, node.lineno
                continue
            for alias in node.names:
                yield f"{base}.{alias.name}" if _is_module(base, alias.name) else base, node.lineno


def _is_module(package: str, name: str) -> bool:
    folder = SOURCE.parent.joinpath(*package.split("."))
    known = package == "headwater" and name in RANK
    return known or (folder / name).is_dir() or (folder / f"{name}.py").exists()


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def test_imports_go_down_only() -> None:
    found = [
        violation
        for module, path in modules()
        for violation in violations(module, path.read_text(), is_package=path.name == "__init__.py")
    ]
    assert not found, "layers are broken:\n  " + "\n  ".join(found)


def test_modules_of_a_package_do_not_import_each_other_in_a_circle() -> None:
    known = dict(modules())
    graph = {
        module: {
            imported
            for imported, _ in imports(module, path.read_text(), is_package=path.name == "__init__.py")
            if imported in known
        }
        for module, path in known.items()
    }
    assert list(TopologicalSorter(graph).static_order())  # raises CycleError, which names the circle


def test_modules_are_found() -> None:
    assert "headwater.errors" in dict(modules())


def test_the_table_has_each_module_once_and_no_other() -> None:
    names = [name for layer in LAYERS for name in layer]
    assert sorted(names) == sorted({layer_of(module) for module, _ in modules()})


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("headwater.db.route", "from headwater.errors import HeadwaterError"),
        (
            "headwater.db.route",
            "from headwater.db import queries\nfrom . import queries\nfrom .queries import query",
        ),
        (
            "headwater.plan.syntax",
            "import dataclasses\nimport postgast\nfrom headwater.errors import InvalidQuery",
        ),
        ("headwater.engine.spark.pipeline", "import pyspark.sql\nfrom py4j import java_gateway"),
        ("headwater", "from headwater.api import connect\nfrom headwater import errors"),
        ("headwater.cli", "from headwater import connect"),
        ("headwater.__main__", "from headwater.cli import main"),
    ],
)
def test_synthetic_source_that_is_allowed(module: str, source: str) -> None:
    assert list(violations(module, source)) == []


@pytest.mark.parametrize(
    ("module", "source", "reason"),
    [
        ("headwater.errors", "import headwater.config", "config lies above errors"),
        ("headwater.errors", "def f():\n    from headwater.db import route", "errors:2 imports headwater.db"),
        ("headwater.db.route", "from headwater import api", "api lies above db"),
        ("headwater.db.route", "from headwater import connect", "__init__ lies above db"),
        ("headwater.db.route", "from ..catalog import jobs", "catalog lies above db"),
        ("headwater.db.route", "from .. import catalog", "catalog lies above db"),
        ("headwater.engine.base", "from headwater.apply import merge", "neighbours in one layer"),
        ("headwater", "from headwater.cli import main", "cli lies above __init__"),
        ("headwater.cli", "import headwater.unheard_of", "no layer names 'unheard_of'"),
        ("headwater.unheard_of", "", "no layer names 'unheard_of'"),
        ("headwater.plan.syntax", "import psycopg.sql", "plan is pure"),
        ("headwater.plan.syntax", "if True:\n    from os import path", "plan is pure"),
        ("headwater.scheduling.pool", "import time", "scheduling is pure"),
        ("headwater.scheduling.graph", "from headwater import plan", "neighbours in one layer"),
        ("headwater.engine.postgres", "import pyspark", "only headwater.engine.spark may import pyspark"),
        ("headwater.engine.sparkling", "from pyspark import sql", "only headwater.engine.spark"),
        ("headwater.bench", "def f():\n    import pyspark.sql", "only headwater.engine.spark"),
    ],
)
def test_synthetic_source_that_breaks_a_rule(module: str, source: str, reason: str) -> None:
    [violation] = violations(module, source)
    assert reason in violation
    assert violation.startswith(module)


def test_relative_import_in_a_package_counts_from_the_package() -> None:
    assert list(violations("headwater.db", "from .route import Route", is_package=True)) == []
    [violation] = violations("headwater.db", "from ..api import connect", is_package=True)
    assert "api lies above db" in violation
