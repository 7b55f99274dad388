"""Refreshes whose statements run under EXPLAIN ANALYZE, for tests of what they read and join."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headwater import Outcome
from headwater.catalog import stream_tables as catalog
from headwater.config import Settings
from headwater.db.connection import Connection, connect, one
from headwater.db.route import Route
from headwater.db.scratch import Scratch, in_temp, statement
from headwater.definition.reader import DefinitionReader
from headwater.engine.select import EngineSelector
from headwater.plan.steps import Analyse, Attempt, Fetch, Fill, Run, Shape, Step
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

    def __init__(self, connection: Connection, found: Explained) -> None:
        super().__init__(connection)
        self._found = found

    def execute(self, step: Step) -> object:
        match step:
            case Fill():
                super().execute(Shape(step.table, step.select))
                what = f"fill {step.table.partition('_')[2]}"
                rows = self._modify(what, f"INSERT INTO {in_temp(step.table)} {step.select}")
                super().execute(Analyse(step.table))
                return rows
            case Run():
                return self._modify(step.what, step.sql)
            case Fetch() | Attempt():
                # Once for its plan, rolled back, and once for what it does and returns.
                with self.connection.transaction(force_rollback=True):
                    self._explain(step.what, step.sql)
        return super().execute(step)

    def _modify(self, what: str, text: str) -> int:
        source: dict[str, float] = self._explain(what, text)["Plans"][0]
        return round(source["Actual Rows"] * source["Actual Loops"])

    def _explain(self, what: str, text: str) -> Plan:
        plan: Plan = one(self.connection, statement(f"EXPLAIN (ANALYZE, FORMAT JSON) {text}"))[0][0]["Plan"]
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
            EngineSelector(Route(dsn)),
            lambda connection: ExplainingScratch(connection, found),
        )
        found.outcome = refresher.refresh(catalog.find(connection, name), Request())[-1]
        assert found.outcome.action == "delta"
    finally:
        connection.close()
    return found
