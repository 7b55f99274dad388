"""Refreshes whose statements run under EXPLAIN ANALYZE, for tests of what they read and join."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from psycopg.rows import TupleRow

from headwater import Outcome
from headwater.catalog import stream_tables as catalog
from headwater.config import Settings
from headwater.db.connection import Connection, connect, one
from headwater.db.route import Route
from headwater.db.scratch import Scratch, statement
from headwater.definition.reader import DefinitionReader
from headwater.engine.select import Dispatch
from headwater.refresh.decide import Request
from headwater.refresh.transaction import Refresher

Plan = dict[str, Any]


@dataclass
class Explained:
    """What a refresh did, and each of its statements with its plan."""

    statements: list[tuple[str, Plan]] = field(default_factory=list)
    outcome: Outcome | None = None


class ExplainingScratch(Scratch):
    """Runs every statement under EXPLAIN ANALYZE."""

    def __init__(self, connection: Connection, prefix: str, found: Explained) -> None:
        super().__init__(connection, prefix)
        self._found = found

    def part(self, name: str) -> Scratch:
        return ExplainingScratch(self._connection, f"{self._prefix}_{name}", self._found)

    def fill(self, table: str, select: str) -> int:
        self.shape(table, select)
        rows = self.run(f"fill {table}", f"INSERT INTO {self.name(table)} {select}")
        self.analyse(table)
        return rows

    def run(self, what: str, text: str) -> int:
        source: dict[str, float] = self._explain(what, text)["Plans"][0]
        return round(source["Actual Rows"] * source["Actual Loops"])

    def row(self, what: str, text: str) -> TupleRow:
        """Once for its plan, rolled back, and once for what it does and returns."""
        with self._connection.transaction(force_rollback=True):
            self._explain(what, text)
        return super().row(what, text)

    def _explain(self, what: str, text: str) -> Plan:
        plan: Plan = one(self._connection, statement(f"EXPLAIN (ANALYZE, FORMAT JSON) {text}"))[0][0]["Plan"]
        self._found.statements.append((what, plan))
        return plan


def explained_refresh(dsn: str, name: str, *, work_mem: str | None = None) -> Explained:
    """Refreshes a stream table by a delta inside PostgreSQL."""
    found = Explained()
    connection = connect(dsn)
    try:
        if work_mem is not None:
            connection.execute("SELECT set_config('work_mem', %s, false)", [work_mem])
        refresher = Refresher(
            connection,
            Settings(),
            DefinitionReader(connection),
            Dispatch(Route(dsn)),
            lambda connection, prefix: ExplainingScratch(connection, prefix, found),
        )
        found.outcome = refresher.refresh(catalog.find(connection, name), Request())[-1]
        assert found.outcome.action == "delta"
    finally:
        connection.close()
    return found
