"""What the start of the program loads: each verb what it needs, and help and version next to nothing."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache

import click
import pytest

import headwater
from headwater.cli.group import cli
from headwater.cli.verb import Verb

PARTS = {
    "parser": ("postgast", "google.protobuf"),
    "driver": ("psycopg",),
    "Spark": ("pyspark", "py4j", "pyarrow", "pandas", "adbc_driver_manager", "adbc_driver_postgresql"),
    "terminal": ("rich",),
}
"""What costs much to load."""

LOOKS = {"driver", "terminal"}
SERVES = {"driver"}
WORKS = {"driver", "terminal", "parser"}
NEEDS = {
    "init": LOOKS,
    "migrate": WORKS,
    "repair": WORKS,
    "set": LOOKS,
    "settings": LOOKS,
    "uninstall": WORKS,
    "demo": WORKS,
    "create": WORKS,
    "alter": WORKS,
    "drop": WORKS,
    "refresh": WORKS,
    "cancel": LOOKS,
    "suspend": WORKS,
    "resume": WORKS,
    "drain": LOOKS,
    "serve": SERVES,
    "worker": {"driver", "parser"},
    "list": LOOKS,
    "status": LOOKS,
    "history": LOOKS,
    "explain": WORKS,
    "verify": WORKS,
    "audits": LOOKS,
    **{f"bench {name}": WORKS for name in "capture delta read refresh service start tpch write".split()},
}
"""What each verb loads before it begins. Spark is loaded by a refresh that is computed on it."""


def verbs(group: click.Group = cli, prefix: str = "") -> Iterator[tuple[str, Verb]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from verbs(command, f"{prefix}{name} ")
        else:
            assert isinstance(command, Verb)
            yield prefix + name, command


@cache
def loaded_by(code: str) -> set[str]:
    """The parts that a process of its own has loaded after some code."""
    report = f"""
import json, sys
{code}
print(json.dumps([part for part, names in {PARTS!r}.items() if any(name in sys.modules for name in names)]))
"""
    done = subprocess.run(
        [sys.executable, "-c", report], capture_output=True, text=True, check=True, timeout=60
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_parts_are_recognised_when_they_are_loaded() -> None:
    assert loaded_by("import psycopg, postgast, pyarrow, rich") == set(PARTS)


def test_the_package_alone_loads_nothing() -> None:
    assert loaded_by("import headwater") == set()


def test_help_and_version_load_nothing() -> None:
    calls = [["--version"], ["--help"], ["bench", "--help"]]
    calls += [[*name.split(), "--help"] for name, _ in verbs()]
    code = "\n".join(
        [
            "from headwater.cli import run",
            "from headwater.cli.invocation import Invocation",
            *(f"assert run({call!r}, Invocation()) == 0" for call in calls),
        ]
    )
    assert loaded_by(code) == set()


def test_every_verb_is_in_the_table() -> None:
    assert set(NEEDS) == {name for name, _ in verbs()}


@pytest.mark.parametrize("name", NEEDS)
def test_a_verb_loads_what_it_needs(name: str) -> None:
    module = dict(verbs())[name].body.partition(":")[0]
    assert loaded_by(f"import headwater.cli.{module}") == NEEDS[name]


@pytest.mark.parametrize("name", NEEDS)
def test_a_verb_takes_what_is_declared(name: str) -> None:
    verb = dict(verbs())[name]
    invocation, *taken = inspect.signature(verb.load()).parameters.values()
    assert invocation.name == "invocation"
    declared = {str(parameter.name) for parameter in verb.params if parameter.expose_value}
    named = {parameter.name for parameter in taken if parameter.kind != parameter.VAR_KEYWORD}
    assert named == declared or (named < declared and len(named) < len(taken))


def test_the_public_names_are_where_the_package_says() -> None:
    assert set(headwater._HOMES) == set(headwater.__all__) <= set(dir(headwater))
    for name in headwater.__all__:
        assert getattr(headwater, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'Headwaters'"):
        headwater.Headwaters  # noqa: B018
