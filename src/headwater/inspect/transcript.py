"""Records the steps of a refresh instead of running them, for `explain`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from headwater.db.connection import Connection
from headwater.db.scratch import in_temp
from headwater.engine.base import Engines
from headwater.engine.spark.sizes import pages_of, source_size
from headwater.engine.spark.steps import Collect, PagesOf, ReadByTasks, ReadHere, SizeOf
from headwater.plan.steps import Analyse, Attempt, Fetch, Fill, Index, InPhase, Run, Shape, Step, Steps, drive
from headwater.refresh.steps import ByEngine

Result = TypeVar("Result")

ASSUMED_ROWS = 2
"""What each step is assumed to find: one existing row, and a new one."""


@dataclass(frozen=True)
class Statement:
    """One statement of a refresh."""

    name: str
    sql: str


class Transcript:
    """The statements of a refresh whose steps all find some rows."""

    def __init__(self, connection: Connection, engines: Engines) -> None:
        """Use `connection` only to find out how large tables are."""
        self._connection = connection
        self._engines = engines
        self.statements: list[Statement] = []

    def take(self, steps: Steps[Result]) -> Result:
        return drive(steps, self._execute)

    def _execute(self, step: Step) -> object:
        match step:
            case InPhase():
                return self.take(step.steps)
            case ByEngine():
                return self.take(step.steps(self._engines))
            case Shape() | Index() | Analyse():
                return None
            case Fill():
                self._note(f"fill {step.table}", f"INSERT INTO {in_temp(step.table)}\n{step.select}")
                return ASSUMED_ROWS
            case Run():
                self._note(step.what, step.sql)
                return 1
            case Fetch():
                self._note(step.what, step.sql)
                return (1, 1, 1, 1, 0) if step.what == "count" else (ASSUMED_ROWS, ASSUMED_ROWS)
            case Attempt():
                self._note(step.what, step.sql)
                return None  # so that optional steps are recorded, too
            case SizeOf():
                return source_size(self._connection, step.relation)
            case PagesOf():
                return pages_of(self._connection, step.relation)
            case ReadHere():
                self._note(f"read {step.what} through the driver", step.sql)
                return _frame(step.what), 1
            case ReadByTasks():
                read = step.read
                where = f" WHERE {' AND '.join(read.conditions)}" if read.conditions else ""
                self._note(f"read {step.what} by tasks", f"{read.select} FROM {read.source}{where}")
                return _frame(step.what)
            case Collect():
                self._note(f"compute {step.what} on Spark", step.sql)
                return None
            case _:
                raise NotImplementedError(f"no step of a delta: {step}")

    def _note(self, name: str, sql: str) -> None:
        self.statements.append(Statement(name, sql))


def _frame(what: str) -> str:
    return "".join(sign if sign.isalnum() else "_" for sign in what)
