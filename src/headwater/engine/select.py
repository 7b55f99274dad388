"""Which engine computes a refresh; the choice is recorded with its reason."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Literal

import psycopg
from psycopg import sql

from headwater.catalog import jobs
from headwater.catalog.stream_tables import EngineName, StreamTable
from headwater.clock import Phases
from headwater.config import Settings
from headwater.db.connection import Connection, one
from headwater.db.queries import query
from headwater.db.route import Route
from headwater.definition.reader import Definition
from headwater.definition.types import expression_types
from headwater.definition.views import definition_name
from headwater.engine.base import Engine, Engines
from headwater.engine.cost_model import Verdict, at_least, choose, crossover, dearer_than_full, patience_ms
from headwater.engine.observations import Observations
from headwater.engine.postgres.engine import PostgresEngine, in_postgres
from headwater.engine.spark.compile import compile_program, full_refusal
from headwater.engine.spark.engine import SparkEngine
from headwater.engine.spark.program import Program
from headwater.engine.spark.transport.encoding import Refused
from headwater.plan.storage_plan import IncrementalPlan, MaintenancePlan
from headwater.scheduling.schedules import Calculated, parse_schedule, typical_interval
from headwater.util.lru_cache import LRUCache

if TYPE_CHECKING:
    from headwater.engine.spark.pipeline import Pipeline

REMEMBERED = 64
"""Programs that are kept; each belongs to one version of a definition."""
Action = Literal["delta", "recompute", "load"]
COST_UNIT_MS = 0.01
"""Milliseconds for a unit of the planner's cost, which is the sequential read of a page."""


@dataclass(frozen=True)
class Decision:
    """The engine of one refresh."""

    engine: Literal["postgres", "spark"]
    reason: str
    programs: Mapping[MaintenancePlan, Program] = field(default_factory=dict)  # of Spark's plans
    forced: bool = False  # the user asked for this engine and no other
    predicted_ms: float | None = None  # how long the refresh is expected to take, if there was one like it
    fell_back: bool = False  # it was made for Spark, which failed

    def instead(self, reason: str) -> Decision:
        """Return the decision for PostgreSQL, because this one failed."""
        return Decision("postgres", f"instead of Spark: {reason}", fell_back=True)


class EngineSelector:
    """Chooses engines for the refreshes of one database, and makes the Spark engine; threads may share it."""

    def __init__(self, route: Route, progress: Callable[[str], None] | None = None) -> None:
        self._route = route
        self._progress = progress
        self._programs = LRUCache[tuple[str, MaintenancePlan], Program | Refused](REMEMBERED)
        self.observations = Observations()

    def decide(
        self,
        connection: Connection,
        settings: Settings,
        stream_table: StreamTable,
        definition: Definition,
        plans: Sequence[MaintenancePlan],
        wanted: EngineName,
        action: Action,
        rows: int = 0,
    ) -> Decision:
        """Return the engine for a refresh that consumes this many change rows, or computes everything.

        Of several plans of a refresh, PostgreSQL computes those that Spark cannot.
        """
        if wanted == "postgres":
            return Decision("postgres", "asked for")
        verdict = (
            self._weighed(connection, stream_table, rows) if (wanted, action) == ("auto", "delta") else None
        )
        if verdict is not None and verdict.engine == "postgres":
            return Decision("postgres", verdict.reason)  # most are small: their plans need not be translated
        programs, refusal = self._programs_of(connection, definition, plans, action)
        if not programs:
            return Decision("postgres", f"Spark cannot do it exactly: {refusal}")
        if wanted == "spark":
            return Decision("spark", "asked for", programs, forced=True)
        if not self._route.has_sessions(connection):
            return Decision("postgres", "through a pooler, Spark needs a direct DSN beside it")
        if verdict is not None:
            return Decision("spark", verdict.reason, programs)
        return self._decide_full(connection, settings, programs)

    def _weighed(self, connection: Connection, stream_table: StreamTable, rows: int) -> Verdict:
        """Return the engine for a delta by cost, whether or not Spark can compute it."""
        seen, running = self.observations.deltas(connection, stream_table.id), spark_runs()
        verdict = choose(rows, seen, interval_ms=None, spark_runs=running)
        if not verdict.weighed:
            return verdict
        interval = self.interval_ms(connection, stream_table)
        return choose(rows, seen, interval_ms=interval, spark_runs=running)

    def dearer_than_full(self, connection: Connection, stream_table: StreamTable, rows: int) -> str | None:
        """Return why recomputing costs less than a delta of this many change rows, if it does."""
        seen = self.observations.deltas(connection, stream_table.id)
        full_ms = self.observations.full_ms(connection, stream_table.id)
        if full_ms is None or dearer_than_full(rows, seen, full_ms) is None:
            return None
        values = {"id": stream_table.id, "rows": at_least(rows)}
        given_up = one(connection, query("engine", "given_up"), values)[0]
        if not given_up and self.observations.computes_all_here(connection, stream_table.id):
            # The latest full computation may be long ago, when there was less data.
            full_ms = max(full_ms, estimated_ms(connection, stream_table.id))
        return dearer_than_full(rows, seen, full_ms, given_up)

    def patience_ms(self, connection: Connection, stream_table: StreamTable) -> float | None:
        """Return after how long a delta is given up for recomputing; None if never."""
        return patience_ms(self.observations.full_ms(connection, stream_table.id))

    def _programs_of(
        self, connection: Connection, definition: Definition, plans: Sequence[MaintenancePlan], action: Action
    ) -> tuple[dict[MaintenancePlan, Program], str]:
        """Return the programs of the plans that Spark computes exactly, and why it refused another."""
        programs, refusal = {}, ""
        for plan in plans:
            try:
                program = self.program(connection, definition, plan)
                if action != "delta":
                    _check_full(plan)
                programs[plan] = program
            except Refused as refused:
                refusal = str(refused)
        return programs, refusal

    def program(self, connection: Connection, definition: Definition, plan: MaintenancePlan) -> Program:
        """Return the program of a plan; raise Refused if Spark cannot compute it exactly."""
        key = (definition.signature, plan)
        found = self._programs.get(key)
        if found is None:
            encoding = connection.info.parameter_status("server_encoding")
            try:
                if encoding != "UTF8":
                    raise Refused(f"the database's encoding is {encoding}, and text on Spark is UTF-8")
                found = compile_program(plan, partial(expression_types, connection))
            except Refused as refused:
                found = refused
            self._programs.put(key, found)
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
    ) -> Iterator[tuple[Engines, Pipeline]]:
        """Provide the engine for each plan, and the pipeline, inside the transaction of a refresh."""
        from headwater.engine.spark.pipeline import Pipeline

        dsn = self._route.session_dsn(connection, f"a refresh of {stream_table.label} on Spark")
        pipeline = Pipeline(
            connection, dsn, settings, stream_table, action, phases=phases, progress=self._progress
        )
        with pipeline:
            yield partial(_engine_of, decision, hidden), pipeline

    def explained(
        self,
        connection: Connection,
        stream_table: StreamTable,
        definition: Definition,
        plans: Sequence[MaintenancePlan],
    ) -> tuple[Engines, Decision]:
        """Return the engines of an ordinary delta, and the reason."""
        if stream_table.engine == "postgres":
            return in_postgres, Decision("postgres", "asked for")
        programs, refusal = self._programs_of(connection, definition, plans, "delta")
        if not programs:
            return in_postgres, Decision("postgres", f"Spark cannot do it exactly: {refusal}")
        if stream_table.engine == "spark":
            decision = Decision("spark", "asked for", programs, forced=True)
            return partial(_engine_of, decision, frozenset[int]()), decision
        return in_postgres, Decision(
            "postgres", crossover(self.observations.deltas(connection, stream_table.id))
        )

    def another_connection(self) -> Connection:
        """Connect to the same database again, for instance when the connection of the refresh broke."""
        return self._route.connect()

    def sweep(self, connection: Connection) -> None:
        """Remove what dead refreshes on Spark left behind. Call it outside a transaction."""
        jobs.sweep(connection)

    def _decide_full(
        self, connection: Connection, settings: Settings, programs: Mapping[MaintenancePlan, Program]
    ) -> Decision:
        relations = [source.relation for program in programs.values() for source in program.plan.sources]
        rows = sum(
            float(one(connection, query("engine", "source_size"), {"relation": relation})[0])
            for relation in relations
        )
        if rows < settings.spark_min_rows:
            return Decision(
                "postgres",
                f"about {rows:,.0f} rows to read; Spark from spark_min_rows ({settings.spark_min_rows:,})",
            )
        return Decision("spark", f"about {rows:,.0f} rows to read", programs)

    @staticmethod
    def interval_ms(connection: Connection, stream_table: StreamTable) -> float | None:
        """Return how often a stream table is refreshed; if that is calculated, by its readers."""
        schedule = parse_schedule(stream_table.schedule, stream_table.time_zone)
        if isinstance(schedule, Calculated):
            readers = connection.execute(query("engine", "reader_schedules"), {"id": stream_table.id})
            schedules = [parse_schedule(*row) for row in readers]
        else:
            schedules = [schedule]
        intervals = [typical_interval(found) for found in schedules if not isinstance(found, Calculated)]
        return min(intervals) / timedelta(milliseconds=1) if intervals else None


def _engine_of(decision: Decision, hidden: frozenset[int], plan: MaintenancePlan) -> Engine:
    program = decision.programs.get(plan)
    return PostgresEngine() if program is None else SparkEngine(program, hidden)


def estimated_ms(connection: Connection, stream_table_id: int) -> float:
    """Return the least time that a query takes, as the server's planner estimates it now."""
    explain = sql.SQL("EXPLAIN (FORMAT JSON) TABLE {}")
    try:
        with connection.transaction():  # a savepoint: planning evaluates constants, and may fail
            found = one(connection, explain.format(definition_name(connection, stream_table_id)))
    except psycopg.Error as error:
        if error.sqlstate is None:
            raise
        return math.inf
    return float(found[0][0]["Plan"]["Total Cost"]) * COST_UNIT_MS


def spark_runs() -> bool:
    """Tell whether this process has a Spark; does not start or even import one."""
    loaded = sys.modules.get("headwater.engine.spark.runtime.session")
    return bool(loaded is not None and loaded.runtime().running())


def _check_full(plan: MaintenancePlan) -> None:
    if isinstance(plan, IncrementalPlan):
        if any(source.kind == "kept" for source in plan.sources):
            raise Refused("what is kept of it is loaded inside PostgreSQL, and not seen outside yet")
        reason = full_refusal(plan)
        if reason is not None:
            raise Refused(reason)
