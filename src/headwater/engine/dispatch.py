"""Which engine computes a refresh, and its making: the choice is recorded with its reason."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Literal

from headwater import jobs
from headwater.catalog import EngineName, StreamTable
from headwater.clock import Phases, parse_duration
from headwater.config import Settings
from headwater.db.connection import Connection, connect, one
from headwater.db.queries import query
from headwater.db.work import Recorder
from headwater.definition import Definition, expression_types
from headwater.engine.base import Engine
from headwater.engine.choice import Observation, choose, crossover, dearer_than_full
from headwater.engine.postgres import PostgresEngine
from headwater.engine.spark.compile import compile_program, full_refusal
from headwater.engine.spark.encoding import Refused
from headwater.engine.spark.program import Program
from headwater.plan.maintain import IncrementalPlan, MaintenancePlan

if TYPE_CHECKING:
    from headwater.engine.spark.engine import SparkEngine
    from headwater.engine.spark.pipeline import Pipeline

REMEMBERED = 64
"""Programs that are kept; each belongs to a definition as it is."""
Action = Literal["delta", "recompute", "load"]
INSTEAD = "instead of Spark"
"""How the reason of a refresh begins that Spark was to compute and PostgreSQL did."""


@dataclass(frozen=True)
class Decision:
    """The engine of one refresh."""

    engine: Literal["postgres", "spark"]
    reason: str
    program: Program | None = None
    forced: bool = False  # the user asked for this engine and no other

    def instead(self, reason: str) -> Decision:
        """PostgreSQL, because this did not work out."""
        return Decision("postgres", f"{INSTEAD}: {reason}")


class Dispatch:
    """Chooses engines for the refreshes over one connection, and makes the one on Spark."""

    def __init__(self, dsn: str, progress: Callable[[str], None] | None = None) -> None:
        self._dsn = dsn
        self._progress = progress
        self._programs: dict[tuple[str, str, tuple[int, ...]], Program | Refused] = {}

    def decide(
        self,
        connection: Connection,
        settings: Settings,
        stream_table: StreamTable,
        definition: Definition,
        plan: MaintenancePlan,
        wanted: EngineName,
        action: Action,
        rows: int = 0,
    ) -> Decision:
        """The engine for a refresh that takes in this many change rows, or computes everything."""
        if wanted == "postgres":
            return Decision("postgres", "asked for")
        try:
            program = self.program(connection, definition, plan)
            if action != "delta":
                _check_full(plan)
        except Refused as refused:
            return Decision("postgres", f"Spark cannot do it exactly: {refused}")
        if wanted == "spark":
            return Decision("spark", "asked for", program, forced=True)
        if action != "delta":
            return self._decide_full(connection, settings, definition, program)
        interval = (
            parse_duration(stream_table.schedule) / timedelta(milliseconds=1)
            if stream_table.schedule
            else None
        )
        verdict = choose(
            rows,
            self._observations(connection, stream_table),
            interval_ms=interval,
            spark_runs=spark_runs(),
        )
        return Decision(verdict.engine, verdict.reason, program if verdict.engine == "spark" else None)

    def dearer_than_full(self, connection: Connection, stream_table: StreamTable, rows: int) -> str | None:
        """Why recomputing costs less than a delta of this many change rows, if it does."""
        full = one(connection, query("engine", "full_cost"), {"id": stream_table.id})[0]
        return dearer_than_full(rows, self._observations(connection, stream_table), full)

    def program(self, connection: Connection, definition: Definition, plan: MaintenancePlan) -> Program:
        """The program of a plan; raises Refused if Spark cannot compute it exactly."""
        reads = tuple(source.relation for source in plan.sources) if isinstance(plan, IncrementalPlan) else ()
        key = (definition.signature, type(plan).__name__, reads)
        if key not in self._programs:
            encoding = connection.info.parameter_status("server_encoding")
            try:
                if encoding != "UTF8":
                    raise Refused(f"the database's encoding is {encoding}, and text on Spark is UTF-8")
                self._programs[key] = compile_program(plan, partial(expression_types, connection))
            except Refused as refused:
                self._programs[key] = refused
            while len(self._programs) > REMEMBERED:
                del self._programs[next(iter(self._programs))]
        found = self._programs[key]
        if isinstance(found, Refused):
            raise Refused(str(found))
        return found

    @contextmanager
    def spark(
        self,
        connection: Connection,
        settings: Settings,
        stream_table: StreamTable,
        decision: Decision,
        action: Action,
        *,
        hidden: frozenset[int],
        phases: Phases,
    ) -> Iterator[tuple[SparkEngine, Pipeline]]:
        """The engine on Spark with what moves its rows, inside the transaction of a refresh."""
        from headwater.engine.spark.engine import SparkEngine
        from headwater.engine.spark.pipeline import Pipeline

        assert decision.program is not None
        pipeline = Pipeline(
            connection, self._dsn, settings, stream_table, action, phases=phases, progress=self._progress
        )
        with pipeline:
            yield SparkEngine(connection, pipeline, decision.program, phases, hidden), pipeline

    def explained(
        self,
        connection: Connection,
        stream_table: StreamTable,
        definition: Definition,
        plan: MaintenancePlan,
        recorder: Recorder,
    ) -> tuple[Engine, Decision]:
        """The engine of an ordinary delta, writing down what it would do, and why it is this one."""
        wanted = stream_table.engine
        try:
            program = self.program(connection, definition, plan)
        except Refused as refused:
            reason = "asked for" if wanted == "postgres" else f"Spark cannot do it exactly: {refused}"
            return PostgresEngine(), Decision("postgres", reason)
        if wanted == "spark":
            from headwater.engine.spark.engine import SparkEngine
            from headwater.engine.spark.pipeline import Sketch

            engine = SparkEngine(connection, Sketch(recorder.note), program, Phases())
            return engine, Decision("spark", "asked for", program, forced=True)
        reason = (
            "asked for" if wanted == "postgres" else crossover(self._observations(connection, stream_table))
        )
        return PostgresEngine(), Decision("postgres", reason)

    def another_connection(self) -> Connection:
        """To the same database, as when that of the refresh broke."""
        return connect(self._dsn)

    def sweep(self, connection: Connection) -> None:
        """Removes what refreshes on Spark left that died; outside a transaction."""
        jobs.sweep(connection)

    def _decide_full(
        self, connection: Connection, settings: Settings, definition: Definition, program: Program
    ) -> Decision:
        relations = [source.relation for source in program.plan.sources]
        rows = sum(
            float(one(connection, query("engine", "source_size"), {"relation": relation})[0])
            for relation in relations
        )
        if rows < settings.spark_min_rows:
            return Decision(
                "postgres",
                f"about {rows:,.0f} rows to read; Spark from spark_min_rows ({settings.spark_min_rows:,})",
            )
        return Decision("spark", f"about {rows:,.0f} rows to read", program)

    @staticmethod
    def _observations(connection: Connection, stream_table: StreamTable) -> list[Observation]:
        rows = connection.execute(query("engine", "observations"), {"id": stream_table.id})
        return [Observation(*row) for row in rows]


def spark_runs() -> bool:
    """Whether this process has a Spark; does not start or even import one."""
    loaded = sys.modules.get("headwater.engine.spark.session")
    return bool(loaded is not None and loaded.runtime().running())


def _check_full(plan: MaintenancePlan) -> None:
    if isinstance(plan, IncrementalPlan):
        if any(source.kind == "kept" for source in plan.sources):
            raise Refused("what is kept of it is loaded inside PostgreSQL, and not seen outside yet")
        reason = full_refusal(plan)
        if reason is not None:
            raise Refused(reason)
