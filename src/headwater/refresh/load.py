"""Loading new storage, and the comparison of what a plan gives with the query itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, cast

import psycopg

from headwater.apply import storage
from headwater.catalog.stream_tables import StreamTable
from headwater.clock import Phases
from headwater.config import Settings
from headwater.db.connection import Connection
from headwater.db.scratch import Scratch, prefix_of
from headwater.db.sqlstates import leads_to_recomputing
from headwater.definition.reader import Definition
from headwater.engine.base import Inexact
from headwater.engine.postgres.engine import PostgresEngine
from headwater.engine.select import Decision, EngineSelector
from headwater.engine.spark.engine import SparkEngine
from headwater.errors import EngineFailed, EngineUnavailable
from headwater.plan.render import now_sql
from headwater.plan.steps import Tables
from headwater.plan.storage_plan import (
    BagPlan,
    IncrementalPlan,
    MaintenancePlan,
    RecomputePlan,
    where_shown,
)
from headwater.refresh.compare import PlanRefuted, Undecided, compare, compare_beside
from headwater.refresh.intermediates import store_intermediates
from headwater.refresh.run import Ledger, Runner, told

if TYPE_CHECKING:
    from headwater.engine.spark.pipeline import Traffic


class PlanFailure(NamedTuple):
    """An error that a plan met and the query itself did not: the rows come from the definition view."""

    reason: str
    sqlstate: str | None


class Loaded(NamedTuple):
    """New storage, and the plan that its rows fit."""

    plan: MaintenancePlan
    mode: str
    rows: int
    decision: Decision
    traffic: Traffic | None
    check: str  # how its rows were compared with those of the query
    failure: PlanFailure | None = None


class Loader:
    """Fills storage with all rows of a query."""

    def __init__(
        self,
        connection: Connection,
        settings: Settings,
        selector: EngineSelector,
        scratch: Scratch,
        ledger: Ledger,
    ) -> None:
        self._connection = connection
        self._settings = settings
        self._selector = selector
        self._scratch = scratch
        self._ledger = ledger

    def load(
        self,
        stream_table: StreamTable,
        definition: Definition,
        mode: str,
        table: str,
        phases: Phases,
        decide: Callable[[MaintenancePlan], Decision],
    ) -> Loaded:
        """Make new storage of this SQL name with all rows of the query, for a mode.

        If the plan meets an error that the query itself does not, storage is that of mode full. Raises
        PlanRefuted if the plan, by which deltas will be computed, gives other rows than the query.
        """
        plan = self.store_intermediates(stream_table, definition, mode, phases)
        runner = Runner(
            self._connection,
            self._settings,
            self._selector,
            self._scratch,
            self._ledger,
            stream_table,
            "load",
            decide(plan),
            phases,
        )
        try:
            rows, check = self._load(runner, stream_table, definition, plan, table)
        except psycopg.Error as error:
            if isinstance(plan, RecomputePlan) or not leads_to_recomputing(error):
                raise
            loaded = self.load(stream_table, definition, "full", table, phases, decide)
            return loaded._replace(failure=plan_failure(error))
        return Loaded(plan, mode, rows, runner.decision, runner.traffic, check)

    def _load(
        self,
        runner: Runner,
        stream_table: StreamTable,
        definition: Definition,
        plan: MaintenancePlan,
        table: str,
    ) -> tuple[int, str]:
        """Fill new storage by a plan and compare it with the query; how many rows there are, and how.

        PostgreSQL can go on where Spark fails.
        """
        connection, phases = self._connection, runner.phases
        if runner.decision.programs:
            try:
                with runner.on_spark() as (engines, pipeline):
                    loaded = pipeline.job.table("load")
                    storage.shape(pipeline.job.connection, loaded, plan)
                    rows = runner.run(cast(SparkEngine, engines(plan)).load(loaded))
                    with phases.measure("index"):
                        pipeline.beside("indexing", lambda beside: storage.index(beside, loaded))
                    beside = pipeline.job.connection  # which sees what tasks have written
                    check = self.check_plan(
                        stream_table, definition, plan, loaded, rows, "spark", phases, beside
                    )
                    storage.adopt(connection, loaded, table)
                    pipeline.job.adopted("load")
                    return rows, check
            except (Inexact, EngineFailed, EngineUnavailable) as error:
                runner.fall_back(error)
        # A bag is stored as the query gives it; groups need the state that only the plan has.
        whole = definition.maintenance("full") if isinstance(plan, BagPlan) else plan
        with connection.transaction():
            with phases.measure("load"):
                rows = storage.load(connection, table, whole)
            check = self.check_plan(stream_table, definition, plan, table, rows, PostgresEngine.name, phases)
        return rows, check

    def check_plan(
        self,
        stream_table: StreamTable,
        definition: Definition,
        plan: MaintenancePlan,
        stored: str,
        rows: int,
        engine: str,
        phases: Phases,
        beside: Connection | None = None,
    ) -> str:
        """Compare the rows that a plan computes with those of the query; returns how that was done.

        The table has the rows that the plan computed, except for a bag that PostgreSQL loaded: those are the
        query's own, and the plan is evaluated here. `beside` sees the table if this connection does not.
        """
        if not isinstance(plan, IncrementalPlan):
            return "its rows are its query's own"
        columns = ", ".join(column.sql for column in definition.columns)
        wanted = f"SELECT {columns} FROM {definition.view}"
        found = f"SELECT {columns} FROM {stored}{where_shown(plan)}"
        if isinstance(plan, BagPlan) and engine == PostgresEngine.name:
            wanted, found = found, now_sql(plan.body)
        try:
            with phases.measure("check"), self._connection.transaction():
                if beside is None:
                    comparison = compare(self._connection, definition, wanted, found, stored, rows)
                else:
                    comparison = compare_beside(
                        self._connection, beside, definition, wanted, found, stored, rows
                    )
        except Undecided as error:
            raise Inexact(str(error)) from error
        except psycopg.Error as error:
            if not leads_to_recomputing(error):
                raise
            # In another order of evaluation, an expression may meet values that it is kept from else.
            return f"not compared with its query, which raised an error: {error.diag.message_primary}"
        if comparison.difference:
            raise PlanRefuted(stream_table.label, engine, comparison.difference)
        return f"compared with its query: {comparison.said}"

    def store_intermediates(
        self, stream_table: StreamTable, definition: Definition, mode: str, phases: Phases
    ) -> MaintenancePlan:
        """Load the inner results that are worth storing; returns the plan by which all else is computed."""
        with phases.measure("keep"):
            if mode != "differential":
                storage.drop_kept(self._connection, stream_table.id)
                rows = self.evaluated(stream_table, definition)
                return RecomputePlan(definition.columns, f"SELECT * FROM {rows}")
            layers = store_intermediates(self._connection, self._settings, stream_table.id, definition)
        self._ledger.written.update(part.source.relation for part in layers.kept)
        return layers.top

    def evaluated(self, stream_table: StreamTable, definition: Definition) -> str:
        """What has the rows of a stream table's query: the definition view, or a table if they depend on
        search_path, evaluated under that of the definer."""
        if not definition.follows_path:
            return definition.view
        tables = Tables(f"{prefix_of(stream_table.id)}{definition.signature[:8]}_")
        return self._scratch.evaluate(tables, definition.view, stream_table.search_path)

    def decide_load(
        self, stream_table: StreamTable, definition: Definition, plan: MaintenancePlan
    ) -> Decision:
        """The engine for the first load of a stream table."""
        return self._selector.decide(
            self._connection, self._settings, stream_table, definition, [plan], stream_table.engine, "load"
        )


def plan_failure(error: psycopg.Error) -> PlanFailure:
    reason = f"its plan met an error that the query itself does not: {told(error)}"
    return PlanFailure(reason, error.sqlstate)
