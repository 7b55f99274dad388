"""The only driver of a refresh's steps.

It takes them on either engine, inside a transaction that is open already. It measures phases and keeps
deadlines. It is also the one place where an engine's failure becomes a fallback: what Spark cannot do,
PostgreSQL does, and a delta that fails or takes too long gives way to recomputing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import psycopg
from psycopg import sql

from headwater.catalog.stream_tables import StreamTable
from headwater.clock import Phases
from headwater.config import Settings, milliseconds
from headwater.db.connection import Connection
from headwater.db.deadline import Deadline, DeadlineExceeded
from headwater.db.scratch import Scratch
from headwater.db.sqlstates import leads_to_recomputing
from headwater.engine.base import Engines, Inexact
from headwater.engine.postgres.engine import in_postgres
from headwater.engine.select import Action, Decision, EngineSelector
from headwater.errors import DeltaFailed, DeltaGivenUp, EngineFailed, EngineUnavailable, HeadwaterError
from headwater.plan.steps import Analyse, Attempt, Fetch, Fill, Index, InPhase, Run, Shape, Step, Steps, drive
from headwater.refresh.steps import ByEngine

if TYPE_CHECKING:
    from headwater.engine.spark.pipeline import Pipeline, Traffic

Result = TypeVar("Result")


class Abandoned(NamedTuple):
    """A delta that took too long, or met an error."""

    rows: int
    milliseconds: float
    sqlstate: str | None = None


@dataclass
class Ledger:
    """What the refreshes of one transaction have done so far."""

    written: set[int] = field(default_factory=set)
    """Views of stream tables, and stored inner results, that the transaction has written to."""
    decisions: dict[int, Decision] = field(default_factory=dict)
    """The engine of each stream table's latest attempt, for the record if it fails."""
    abandoned: dict[int, Abandoned] = field(default_factory=dict)
    """Deltas, by stream table; they are remembered when the transaction is begun anew."""
    left_database: bool = False
    """Some of it ran elsewhere, and may have left something."""

    def begin(self) -> None:
        """Forget what a transaction did that was rolled back."""
        self.written.clear()
        self.decisions.clear()


class Runner:
    """Takes the steps of one stream table's refresh."""

    def __init__(
        self,
        connection: Connection,
        settings: Settings,
        selector: EngineSelector,
        scratch: Scratch,
        ledger: Ledger,
        stream_table: StreamTable,
        action: Action,
        decision: Decision,
        phases: Phases,
    ) -> None:
        self._connection = connection
        self._settings = settings
        self._selector = selector
        self._scratch = scratch
        self._ledger = ledger
        self._stream_table = stream_table
        self._action = action
        self.decision = decision
        self.phases = phases
        self.traffic: Traffic | None = None
        self._pipeline: Pipeline | None = None

    def run(self, steps: Steps[Result]) -> Result:
        """Take steps to their end and return what they come to."""
        return drive(steps, self._execute)

    def _execute(self, step: Step) -> object:
        match step:
            case InPhase():
                with self.phases.measure(step.phase):
                    return self.run(step.steps)
            case ByEngine():
                return self.by_engine(step.steps)
            case Shape() | Fill() | Index() | Analyse() | Run() | Fetch() | Attempt():
                return self._scratch.execute(step)
            case _:
                assert self._pipeline is not None, f"no pipeline for {step}"
                return self._pipeline.execute(step)

    def by_engine(self, steps: Callable[[Engines], Steps[Result]]) -> Result:
        """Take steps on the chosen engine, or in PostgreSQL where that one cannot after all."""
        if self.decision.programs:
            try:
                with self.on_spark() as (engines, _):
                    return self.run(steps(engines))
            except (Inexact, EngineFailed, EngineUnavailable) as error:
                self.fall_back(error)
        if self._action == "delta":
            return self.run(steps(in_postgres))  # if it fails, the transaction is begun anew
        with self._connection.transaction():
            return self.run(steps(in_postgres))

    @contextmanager
    def on_spark(self) -> Iterator[tuple[Engines, Pipeline]]:
        """Surround all that Spark does. PostgreSQL can go on where it stops.

        Raises Inexact for whatever error it meets and PostgreSQL need not, whichever step meets it.
        """
        self._ledger.left_database = True
        with self._selector.spark(
            self._connection,
            self._settings,
            self._stream_table,
            self.decision,
            self._action,
            hidden=frozenset(self._ledger.written),
            phases=self.phases,
        ) as (engines, pipeline):
            self._pipeline = pipeline
            try:
                with self._connection.transaction():
                    yield engines, pipeline
                self.traffic = pipeline.traffic
            except psycopg.Error as error:
                if not leads_to_recomputing(error):
                    raise
                raise Inexact(told(error)) from error
            finally:
                self._pipeline = None

    def fall_back(self, error: Inexact | HeadwaterError) -> None:
        """Go on in PostgreSQL: always for a value that Spark cannot hold, else unless Spark is forced."""
        if isinstance(error, HeadwaterError) and self.decision.forced:
            raise error
        reason = str(error) if isinstance(error, Inexact) else error.message
        self.decision = self._ledger.decisions[self._stream_table.id] = self.decision.instead(reason)

    @contextmanager
    def guarded(self, rows: int) -> Iterator[None]:
        """Raise DeltaFailed for whatever error a delta meets and the query itself need not.

        It is around all that a delta does, whichever engine computes it, so that no step of it is left out.
        """
        try:
            yield
        except psycopg.Error as error:
            if not leads_to_recomputing(error):
                raise
            spent = self.phases.elapsed.total_seconds() * 1000
            self._ledger.abandoned[self._stream_table.id] = Abandoned(rows, round(spent, 3), error.sqlstate)
            raise DeltaFailed(
                f"its delta met an error that the query itself need not meet: {told(error)}"
            ) from error

    @contextmanager
    def limited(self, rows: int, limit_ms: float | None) -> Iterator[None]:
        """Give a delta inside the database up that takes much longer than recomputing.

        By prediction most of those are not begun; this is for what nobody foresaw, such as a bad plan.
        """
        own = milliseconds(self._settings.statement_timeout)
        if limit_ms is None or 0 < own <= limit_ms:
            yield
            return
        self._scratch.deadline = deadline = Deadline(limit_ms)
        timeout = sql.SQL("SET LOCAL statement_timeout = {}")
        self._connection.execute(timeout.format(sql.Literal(round(limit_ms))))
        try:
            yield
        except DeadlineExceeded as error:
            spent = deadline.spent_ms
            self._ledger.abandoned[self._stream_table.id] = Abandoned(rows, round(spent, 3))
            raise DeltaGivenUp(
                f"a delta of {rows:,} change rows was given up after {spent:,.0f} ms:"
                " it took much longer than recomputing does"
            ) from error
        self._scratch.deadline = None
        self._connection.execute(timeout.format(sql.Literal(own)))


def told(error: psycopg.Error) -> str:
    """What the server said, as the history has it."""
    return f"{error.diag.message_primary} (SQLSTATE {error.sqlstate})"
