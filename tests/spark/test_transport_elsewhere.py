"""Transports under other settings of Spark: tasks are tried again, the JDBC driver is on the class path.

HEADWATER_JDBC_JAR names the driver; otherwise Debian's package is looked for.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

JAR = os.environ.get("HEADWATER_JDBC_JAR") or "/usr/share/java/postgresql.jar"
HAVE_JAR = Path(JAR).exists()
needs_jar = pytest.mark.skipif(not HAVE_JAR, reason="no JDBC driver; HEADWATER_JDBC_JAR may name it")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found(admin_dsn: str, admin: psycopg.Connection, template_dsn: str) -> Any:
    """What one run of the trials found."""
    name = sql.Identifier("headwater_transport_elsewhere")
    template = sql.Identifier(str(conninfo_to_dict(template_dsn)["dbname"]))
    admin.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(name, template))
    try:
        dsn = make_conninfo(admin_dsn, dbname="headwater_transport_elsewhere")
        answer = subprocess.run(
            [sys.executable, "-m", "tests.spark.transport_elsewhere", dsn, JAR if HAVE_JAR else ""],
            capture_output=True,
            text=True,
            cwd=Path(__file__).parents[2],
            timeout=240,
        )
        assert answer.returncode == 0, answer.stderr
        assert str(conninfo_to_dict(dsn)["password"]) not in answer.stdout
        return json.loads(answer.stdout.splitlines()[-1])
    finally:
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))


def test_tasks_that_fail_after_their_commit_double_nothing(found: Any) -> None:
    assert found["attempts"] == {"stored": 1000, "rows": 1000}


@needs_jar
def test_both_transports_read_the_same_rows(found: Any) -> None:
    rows = found["rows"]
    for transport in ("adbc", "jdbc"):
        assert rows[transport]["equal"], transport
        assert rows[transport]["types"] == ["int64", "string"]
        assert rows[transport]["partitions"] == 3
    assert "JDBCRelation" in rows["jdbc"]["plan"]
    assert rows["setting"] == "Asia/Tokyo"
    assert rows["connections"] == 0


@needs_jar
def test_jdbc_failures_are_told_by_sqlstate(found: Any) -> None:
    failures = found["failures"]
    assert failures["division"] == ["RefreshFailed", "read: division by zero (SQLSTATE 22012)"]
    kind, message = failures["cut"]
    assert kind == "ConnectionFailed"
    assert "57P01" in message or "08" in message
    assert failures["asked"]
    assert not any("boundary" in query for query in failures["asked"]), "the server was given Spark's filter"
    assert failures["connections"] == 0


@needs_jar
def test_long_values_go_by_adbc(found: Any) -> None:
    assert found["available"]
    choice = found["choice"]
    assert choice["public.s"]
    assert not choice["public.long"]
    assert choice["public.long rows"] == 50
