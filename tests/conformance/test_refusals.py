"""What Spark refuses, and why, as a list: nothing joins it or leaves it unnoticed.

`refusals.toml` has a line for each construct that Spark refuses; those without one it computes. Where only
loads and full refreshes are refused, the name ends with "(in full)".
"""

from __future__ import annotations

import json
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psycopg
import pytest
from tests.conformance.constructs import SETUP, Construct, all_constructs

from headwater.db.connection import Connection, connect, one, transaction
from headwater.db.scratch import statement
from headwater.definition.reader import DefinitionReader
from headwater.definition.types import expression_types
from headwater.engine.spark.compile import compile_program, full_refusal
from headwater.engine.spark.transport.encoding import Refused
from headwater.plan.storage_plan import MaintenancePlan

LIST = Path(__file__).with_name("refusals.toml")
HEAD = """# What Spark does not compute exactly, and why. PostgreSQL does that; Spark does what is not listed.
# Made by: pytest tests/conformance/test_refusals.py --accept-refusals
"""
IN_FULL = " (in full)"

Refusals = dict[str, dict[str, str]]  # section to construct to reason


@pytest.fixture
def own(dsn: str) -> Iterator[Connection]:
    """A connection as a refresh has it, to a database with the tables of the constructs."""
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(statement(SETUP))
    with connect(dsn) as connection:
        yield connection


def test_what_spark_refuses(own: Connection, pytestconfig: pytest.Config) -> None:
    listed: Refusals = tomllib.loads(LIST.read_text(encoding="utf-8")) if LIST.exists() else {}
    found: Refusals = defaultdict(dict)
    expected: Refusals = defaultdict(dict)
    for section, name, construct in all_constructs():
        names = (name, name + IN_FULL)
        known = {key: listed[section][key] for key in names if key in listed.get(section, {})}
        reasons = refusals(own, construct)
        if reasons is None:
            found[section] |= known  # this server cannot tell
        else:
            found[section] |= {key: reason for key, reason in zip(names, reasons, strict=True) if reason}
        expected[section] |= known
    if pytestconfig.getoption("--accept-refusals"):
        LIST.write_text(rendered(found), encoding="utf-8")
        return
    unknown = {
        (section, key) for section in listed for key in listed[section] if key not in expected[section]
    }
    assert not unknown, "refusals.toml lists what is no construct"
    assert found == expected, (
        f"if that is right: pytest {__file__} --accept-refusals, and look at the difference"
    )


def refusals(connection: Connection, construct: Construct) -> tuple[str | None, str | None] | None:
    """Why Spark refuses a construct altogether, or in full; None if the server does not have it."""
    if connection.info.server_version < construct.since * 10_000:
        return None
    with transaction(connection, rollback=True):
        connection.execute("SELECT set_config('search_path', 'public', true)")
        try:
            with connection.transaction():
                connection.execute(statement(construct.setup or "SELECT"))
                connection.execute(statement(f"CREATE VIEW construct AS {construct.query}"))
        except (psycopg.ProgrammingError, psycopg.NotSupportedError):
            if not construct.optional:
                raise
            return None
        view = one(connection, "SELECT 'construct'::regclass::oid")[0]
        connection.execute("SELECT set_config('search_path', '', true)")
        definition = DefinitionReader(connection).read(int(view))
        plan: MaintenancePlan = definition.maintenance("differential" if definition.plan else "full")
        try:
            compile_program(plan, partial(expression_types, connection))
        except Refused as refused:
            return str(refused), None
        return None, full_refusal(definition.plan) if definition.plan else None


def rendered(refused: Refusals) -> str:
    """The list as it is stored."""
    lines = [HEAD]
    for section, reasons in refused.items():
        if reasons:
            lines.append(f"[{quoted(section)}]")
            lines += [f"{quoted(name)} = {quoted(reason)}" for name, reason in reasons.items()]
            lines.append("")
    return "\n".join(lines)


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
