"""The storage of one stream table, brought to what its query gives: by a delta, by recomputing, by loading.

All of it happens inside a transaction that is open already, at its snapshot; `transaction` opens those
that refresh, `lifecycle.create` those that load for the first time or under another query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast

import psycopg
from psycopg import sql

from headwater.apply import storage, swap
from headwater.apply.merge import Target, emit_difference
from headwater.capture import marks
from headwater.capture.registry import partitions_moved
from headwater.catalog import history
from headwater.catalog import stream_tables as catalog
from headwater.catalog.history import Applied, Outcome
from headwater.catalog.stream_tables import CatalogSource, EngineName, StreamTable
from headwater.clock import Phases
from headwater.config import Settings, milliseconds
from headwater.db.connection import Connection, one
from headwater.db.queries import query
from headwater.db.scratch import OutOfPatience, Patience, Recorder, Scratch, prefix_of
from headwater.db.sqlstates import leads_to_recomputing
from headwater.definition.reader import Definition, DefinitionReader
from headwater.engine.base import Engines, Inexact
from headwater.engine.cost_model import FEW_ROWS
from headwater.engine.observations import FAILED, GIVEN_UP, Prediction
from headwater.engine.postgres.engine import PostgresEngine, in_postgres
from headwater.engine.select import Action, Decision, Dispatch
from headwater.errors import (
    DeltaFailed,
    DeltaGivenUp,
    DriftDetected,
    EngineFailed,
    EngineUnavailable,
    HeadwaterError,
    RefreshFailed,
)
from headwater.plan.materialize import Layers
from headwater.plan.render import now_sql
from headwater.plan.storage_plan import (
    BagPlan,
    GroupPlan,
    IncrementalPlan,
    MaintenancePlan,
    RecomputePlan,
    where_shown,
)
from headwater.refresh import incidents
from headwater.refresh.compare import PlanRefuted, Undecided, compare, compare_beside
from headwater.refresh.decide import Choice, Request, choose
from headwater.refresh.index_advice import is_slow, want_of_index
from headwater.refresh.intermediates import keep_anew, kept_layers
from headwater.refresh.steps import (
    Computed,
    apply,
    bring_kept_up_to_date,
    compute,
    concerns,
    reconcile,
    small_change,
    stage,
)

if TYPE_CHECKING:
    from headwater.engine.spark.engine import SparkEngine
    from headwater.engine.spark.pipeline import Pipeline, Traffic

Result = TypeVar("Result")
ScratchFactory = Callable[[Connection, str], Scratch]

LOCK_STREAM_TABLE = "SELECT FROM headwater.stream_table WHERE id = {} FOR NO KEY UPDATE"
"""Holds off other refreshes; fails with 40001 if the row changed since this transaction's snapshot."""
LOCK_FRONTIER = "SELECT FROM headwater.frontier WHERE stream_table_id = {} FOR NO KEY UPDATE"
"""Fails with 40001 if another refresh has moved the frontier since this transaction's snapshot."""
NOTHING_CHANGED = Computed(0)
"""There was nothing to compute."""


@dataclass(frozen=True)
class _Work:
    """One stream table in the middle of its refresh."""

    stream_table: StreamTable
    definition: Definition
    scratch: Scratch
    target: Target
    phases: Phases
    engine: EngineName
    may_give_up: bool  # a delta, for recomputing


class GivenUp(NamedTuple):
    """A delta that took too long, or met an error."""

    rows: int
    milliseconds: float
    sqlstate: str | None = None


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


class _Done(NamedTuple):
    """What was applied, and by which engine."""

    applied: Applied
    decision: Decision
    traffic: Traffic | None
    lost: Sequence[str] = ()  # what users had put on storage and new storage could not have
    failure: PlanFailure | None = None


class Upkeep:
    """Brings stored rows up to date over one connection, one stream table after the other."""

    def __init__(
        self,
        connection: Connection,
        settings: Settings,
        reader: DefinitionReader,
        dispatch: Dispatch,
        scratch: ScratchFactory,
    ) -> None:
        self._connection = connection
        self._settings = settings
        self._reader = reader
        self._dispatch = dispatch
        self._scratch = scratch
        self.written: set[int] = set()  # views of stream tables that the open transaction has written to
        self.decisions: dict[int, Decision] = {}  # of the latest attempt, for the record if it fails
        self.left_database = False  # some of it ran elsewhere, and may have left something
        self.given_up: dict[int, GivenUp] = {}  # deltas of this refresh, by stream table
        self._members: Sequence[int] = ()
        self._replaced_storage = False  # in the open transaction; other definitions may read what shows it

    def begin(self, members: Sequence[int]) -> None:
        """Another transaction, which has written nothing yet and refreshes these stream tables."""
        self.written.clear()
        self.decisions.clear()
        self._members = members
        self._replaced_storage = False

    def refresh(self, stream_table: StreamTable, sources: list[CatalogSource], request: Request) -> Outcome:
        """Refreshes one stream table after those that it reads, and writes that down."""
        connection, phases = self._connection, Phases()
        with phases.measure("choose"):
            _check_intact(connection, stream_table, sources)
            choice = choose(connection, self._settings, self._dispatch, stream_table, sources, request)
        tried = self.given_up.get(stream_table.id)
        if tried is not None and choice.action == "recompute":  # unless another refresh has done it meanwhile
            phases.add(tried.milliseconds, FAILED if tried.sqlstate else GIVEN_UP)
            choice = replace(choice, rows_in=tried.rows)
        outcome = Outcome(
            stream_table=stream_table.label,
            stream_table_id=stream_table.id,
            action=choice.action,
            mode="full" if choice.action == "recompute" else stream_table.mode,
            engine=PostgresEngine.name,
            reason=choice.reason,
            rows_in=choice.rows_in,
            sqlstate=tried.sqlstate if tried is not None and choice.action == "recompute" else None,
        )
        if choice.action == "nothing":
            if choice.release:
                connection.execute(query("catalog", "set_frontier"), {"id": stream_table.id})
            return replace(
                outcome, frontier_moved=choice.release, elapsed=phases.elapsed, phases=phases.milliseconds
            )
        with phases.measure("plan"):
            self.lock(stream_table)
            definition = self.read_definition(stream_table)
            self.check_storage(stream_table)
            self._set_work_mem(len(sources))
        # The signature tells the temporary tables of different plans apart within a session.
        prefix = f"{prefix_of(stream_table.id)}{stream_table.mode}_{definition.signature[:8]}"
        scratch = self._scratch(connection, prefix)
        target = self.target(stream_table, definition)
        engine = request.engine or stream_table.engine
        may_give_up = stream_table.requested_mode == "auto" and not request.in_others_transaction
        work = _Work(stream_table, definition, scratch, target, phases, engine, may_give_up)
        if choice.action == "delta" and self._is_current(stream_table, definition):
            applied, decision, traffic, *_ = self._delta(work, sources, choice)
            if decision.engine == PostgresEngine.name and is_slow(phases):
                layers = kept_layers(connection, stream_table.id, definition)
                lacking = want_of_index(connection, layers, choice.changed, choice.rows_in)
                outcome = replace(outcome, reason=choice.reason + lacking)
        else:
            applied, decision, traffic, lost, failure = self._recompute(
                work, distrusts_plan=choice.distrusts_plan
            )
            reason = "; ".join([choice.reason, *([failure.reason] if failure else []), *lost])
            outcome = replace(outcome, action="recompute", mode="full", reason=reason)
            if failure is not None:
                outcome = replace(outcome, sqlstate=failure.sqlstate)
        if applied != Applied() and stream_table.relation is not None:
            self.written.add(stream_table.relation)
            if target.change_table is not None:
                marks.mark(connection, stream_table.id)
        outcome = replace(
            outcome,
            engine=decision.engine,
            engine_reason=decision.reason,
            predicted_ms=decision.predicted_ms,
            bytes_in=traffic.bytes_read if traffic and traffic.known else None,
            bytes_out=traffic.bytes_written if traffic else None,
        )
        with phases.measure("record"):
            self._check_partitions(stream_table, sources)
            snapshot = one(connection, query("catalog", "set_frontier"), {"id": stream_table.id})[0]
            if stream_table.rebuild_reason is not None:
                mark_for_rebuild(connection, stream_table.id, None)
        outcome = replace(
            outcome, applied=applied, snapshot=snapshot, elapsed=phases.elapsed, phases=phases.milliseconds
        )
        return replace(outcome, history_id=history.record(connection, outcome))

    @contextmanager
    def _guarded(self, work: _Work, choice: Choice) -> Iterator[None]:
        """Raises DeltaFailed for whatever error a delta meets and the query itself need not.

        It is around all that a delta does, whichever engine computes it, so that no step of it is left out.
        """
        try:
            yield
        except psycopg.Error as error:
            if not leads_to_recomputing(error):
                raise
            spent = work.phases.elapsed.total_seconds() * 1000
            self.given_up[work.stream_table.id] = GivenUp(choice.rows_in, round(spent, 3), error.sqlstate)
            raise DeltaFailed(
                f"its delta met an error that the query itself need not meet: {_said(error)}"
            ) from error

    @contextmanager
    def _limited(self, work: _Work, choice: Choice) -> Iterator[None]:
        """Gives a delta inside the database up that takes much longer than recomputing.

        By prediction most of those are not begun; this is for what nobody foresaw, such as a bad plan.
        """
        own, limit = milliseconds(self._settings.statement_timeout), None
        if work.may_give_up and choice.rows_in > FEW_ROWS:
            limit = self._dispatch.patience_ms(self._connection, work.stream_table)
        if limit is None or 0 < own <= limit:
            yield
            return
        work.scratch.patience = Patience(limit)
        timeout = sql.SQL("SET LOCAL statement_timeout = {}")
        self._connection.execute(timeout.format(sql.Literal(round(limit))))
        try:
            yield
        except OutOfPatience as error:
            spent = work.scratch.patience.spent_ms
            self.given_up[work.stream_table.id] = GivenUp(choice.rows_in, round(spent, 3))
            raise DeltaGivenUp(
                f"a delta of {choice.rows_in:,} change rows was given up after {spent:,.0f} ms:"
                " it took much longer than recomputing does"
            ) from error
        work.scratch.patience = None
        self._connection.execute(timeout.format(sql.Literal(own)))

    def _set_work_mem(self, sources: int) -> None:
        """Gives the statements of one stream table's refresh the memory that the settings say."""
        settings = self._settings
        if settings.merge_work_mem_mb or settings.delta_work_mem_cap_mb:
            # The stream table before it in this transaction may have been held to less.
            self._connection.execute("SET LOCAL work_mem TO DEFAULT")
            self._connection.execute(
                query("refresh", "set_work_mem"),
                {
                    "megabytes": settings.merge_work_mem_mb,
                    "cap": settings.delta_work_mem_cap_mb,
                    "sources": sources,
                },
            )

    def check_storage(self, stream_table: StreamTable) -> None:
        """Rows that are hidden from who maintains them would be taken for missing ones."""
        row = self._connection.execute(
            query("refresh", "storage_secured"), {"storage": storage.storage_sql(stream_table.id)}
        ).fetchone()
        if row is not None and row[0]:
            raise RefreshFailed(
                f"{stream_table.label} cannot be refreshed: row-level security of its storage {row[1]}"
                f" applies to role {row[2]} too",
                hint=f"ALTER TABLE {row[1]} NO FORCE ROW LEVEL SECURITY",
            )

    def _check_partitions(self, stream_table: StreamTable, sources: list[CatalogSource]) -> None:
        """A partition that was attached while this refresh ran is read by some of it: then it is repeated.

        It cannot be detached again before the end, which the lock on its table prevents.
        """
        partitioned = [source.relation for source in sources if source.partitioned and source.change_table]
        moved = partitions_moved(self._connection, partitioned) if partitioned else None
        if moved and stream_table.mode == "differential":
            raise psycopg.errors.SerializationFailure(f"a partition of {moved} was attached meanwhile")

    def lock(self, stream_table: StreamTable) -> None:
        """Waits as long as it takes for another refresh of the stream table, which keeps no user waiting.

        Who was overtaken stops here: kept results that were made anew since are empty in its snapshot.
        """
        self._connection.execute(
            sql.SQL(
                "SET LOCAL lock_timeout = 0; {}; {}; SET LOCAL lock_timeout = {}; SET LOCAL TimeZone = {}"
            ).format(
                sql.SQL(LOCK_STREAM_TABLE).format(sql.Literal(stream_table.id)),
                sql.SQL(LOCK_FRONTIER).format(sql.Literal(stream_table.id)),
                sql.Literal(self._settings.lock_timeout_ms),
                sql.Literal(stream_table.time_zone),
            ),
            prepare=False,
        )

    def read_definition(self, stream_table: StreamTable) -> Definition:
        """The definition of a stream table; raises Unread if the transaction must be left to read it."""
        return self._reader.current(stream_table.id, self._members, changed_here=self._replaced_storage)

    def _is_current(self, stream_table: StreamTable, definition: Definition) -> bool:
        """Whether what is stored is what the definition says."""
        if stream_table.mode == "differential" and definition.plan is None:
            return False
        return stream_table.fingerprint == definition.fingerprint(stream_table.mode)

    def target(self, stream_table: StreamTable, definition: Definition) -> Target:
        row = self._connection.execute(
            query("refresh", "own_change_table"), {"id": stream_table.id}
        ).fetchone()
        table, numbers = row if row is not None else (None, [])
        columns = tuple((definition.columns[number - 1].name, number) for number in numbers)
        return Target(stream_table.label, storage.storage_sql(stream_table.id), table, columns)

    def has_readers(self, stream_table: StreamTable) -> bool:
        """Whether somebody is given the changes of a stream table."""
        found = self._connection.execute(query("refresh", "own_change_table"), {"id": stream_table.id})
        return found.fetchone() is not None

    def _delta(self, work: _Work, sources: list[CatalogSource], choice: Choice) -> _Done:
        with work.phases.measure("choose"):
            layers = kept_layers(self._connection, work.stream_table.id, work.definition)
            plans = [*(part.plan for part in layers.kept), layers.top]
            decision = self._decide(work, plans, "delta", choice.rows_in)
        self.written.update(part.source.relation for part in layers.kept)
        limit = nullcontext() if decision.programs else self._limited(work, choice)
        with self._guarded(work, choice), limit:
            return self._taken_in(work, sources, choice, layers, decision)

    def _taken_in(
        self, work: _Work, sources: list[CatalogSource], choice: Choice, layers: Layers, decision: Decision
    ) -> _Done:
        """Computes what the changes mean, and applies it."""
        plan, frontier = work.definition.plan, work.stream_table.frontier
        assert plan is not None
        assert frontier is not None
        tables = {source.relation: str(source.change_table) for source in sources}
        if not decision.programs:
            small = small_change(layers, choice.pending, tables, frontier, work.target)
            if small is not None:
                with work.phases.measure("compute"):  # and applied: what takes long is the former
                    done = small.run(work.scratch)
                if done is not None:
                    return _Done(done, decision, None)

        def run(engines: Engines) -> Computed:
            engine, label = engines(layers.top), work.stream_table.label
            with work.phases.measure("stage"):
                left = frozenset() if layers.kept else engine.in_place(layers.top, choice.pending)
                staged = stage(work.scratch, plan, choice.pending, tables, frontier, left)
            staged = bring_kept_up_to_date(engines, work.scratch, layers.kept, staged, label, work.phases)
            if not concerns(staged, layers.top):
                # What changed cancels out, or the query does not read it, or what is kept stayed the same.
                return NOTHING_CHANGED
            return compute(engine, work.scratch, layers.top, staged, work.target, work.phases)

        computed, decision, traffic = self._computed(work, decision, "delta", run)
        if computed is NOTHING_CHANGED:
            return _Done(Applied(), Decision("postgres", "the changes cancel out"), None)
        with work.phases.measure("apply"):
            return _Done(apply(work.scratch, layers.top, work.target, computed), decision, traffic)

    def _recompute(self, work: _Work, *, distrusts_plan: bool) -> _Done:
        """Brings the stored rows to the query's present result, touching only those that differ.

        If the plan meets an error in computing that the query itself does not, the definition view has the
        rows, and storage has no room for the plan's state until it can be loaded by the plan again.
        """
        stream_table, definition, scratch = work.stream_table, work.definition, work.scratch
        mode = definition.mode_for(stream_table.mode)
        if distrusts_plan and stream_table.fingerprint == definition.fingerprint("full"):
            mode, scratch = "full", scratch.part("full")  # whose tables have other columns
        if stream_table.fingerprint != definition.fingerprint(mode):
            return self._replace_storage(work, mode)
        plan = self.keep_anew(stream_table, definition, mode, work.phases)
        with work.phases.measure("choose"):
            decision = self._decide(work, [plan], "recompute")
        if isinstance(plan, GroupPlan):
            scratch.shape("result", plan.stored_sql(work.target.storage))

        def recompute(engines: Engines) -> tuple[int, str]:
            engine = engines(plan)
            inside = isinstance(plan, BagPlan) and engine.name == PostgresEngine.name
            whole = definition.maintenance("full") if inside else plan
            with work.phases.measure("compute"):
                return engine.recompute_all(scratch, whole, work.target.storage), engine.name

        try:
            (rows, engine), decision, traffic = self._computed(work, decision, "recompute", recompute)
        except psycopg.Error as error:
            if isinstance(plan, RecomputePlan) or not leads_to_recomputing(error):
                raise
            return self._replace_storage(work, "full", _plan_failure(error))
        if isinstance(plan, GroupPlan):
            self._check_plan(
                stream_table, definition, plan, scratch.name("result"), rows, engine, work.phases
            )
        with work.phases.measure("apply"):
            try:
                applied = reconcile(scratch, plan, work.target, None)
            except (
                DriftDetected
            ):  # the stored hashes are of texts that were changed since, as by a renamed label
                return self._replace_storage(work, mode)
        if isinstance(plan, BagPlan) and engine != PostgresEngine.name:
            stored = work.target.storage
            self._check_plan(stream_table, definition, plan, stored, rows, engine, work.phases)
        return _Done(applied, decision, traffic)

    def _replace_storage(self, work: _Work, mode: str, failure: PlanFailure | None = None) -> _Done:
        """Loads new storage beside the old one, for what is stored has changed its shape or meaning."""
        connection, stream_table = self._connection, work.stream_table

        def decide(plan: MaintenancePlan) -> Decision:
            if work.target.change_table:
                return Decision("postgres", "those that read it need the difference")
            return self._decide(work, [plan], "recompute")

        view = (stream_table.schema, stream_table.name)
        assert stream_table.relation is not None
        swap.hold(connection, view)
        successor = storage.successor_sql(stream_table.id)
        loaded = self.load(stream_table, work.definition, mode, successor, work.phases, decide)
        incidents.record_load(connection, stream_table.id, loaded.check)
        with work.phases.measure("apply"):
            table = storage.successor_name(stream_table.id)
            prepared = swap.prepare(connection, stream_table.label, stream_table.id, table, loaded.plan)
            lost = self.put_in_place(work.scratch, work.target, stream_table, prepared, loaded.plan)
            connection.execute(
                query("catalog", "set_fingerprint"),
                {"id": stream_table.id, "fingerprint": work.definition.fingerprint(loaded.mode)},
            )
        applied = Applied(inserted=loaded.rows)
        return _Done(applied, loaded.decision, loaded.traffic, lost, failure or loaded.failure)

    def put_in_place(
        self,
        scratch: Scratch,
        target: Target,
        stream_table: StreamTable,
        prepared: swap.Prepared,
        plan: MaintenancePlan,
    ) -> list[str]:
        """Shows new storage in place of a stream table's own, whose dependents get the difference."""
        assert stream_table.relation is not None
        view = (stream_table.schema, stream_table.name)
        emit_difference(
            scratch,
            replace(target, storage=storage.in_data(prepared.table)),
            plan,
            sql.Identifier(*view).as_string(self._connection),
        )
        self._give_way_to_waiting()
        relation, lost = swap.succeed(
            self._connection,
            view,
            stream_table.relation,
            stream_table.id,
            prepared,
            plan,
            attempts=self._settings.lock_attempts,
        )
        self._connection.execute(
            query("catalog", "set_active"), {"id": stream_table.id, "relation": relation}
        )
        if target.change_table is not None:
            marks.mark(self._connection, stream_table.id)
        self._replaced_storage = True
        return lost

    def _give_way_to_waiting(self) -> None:
        """Before locks that readers may hold: who waits for ours already may be one of them, in a circle.

        Who comes later looks for a deadlock later than we stop waiting.
        """
        if one(self._connection, query("refresh", "somebody_waits"))[0]:
            raise psycopg.errors.LockNotAvailable("a user waits for a table that this refresh reads")

    def keep_anew(
        self, stream_table: StreamTable, definition: Definition, mode: str, phases: Phases
    ) -> MaintenancePlan:
        """Loads what is worth keeping of a query's inner results; the plan by which all else is computed."""
        with phases.measure("keep"):
            if mode != "differential":
                storage.drop_kept(self._connection, stream_table.id)
                rows = self.evaluated(stream_table, definition)
                return RecomputePlan(definition.columns, f"SELECT * FROM {rows}")
            layers = keep_anew(self._connection, self._settings, stream_table.id, definition)
        self.written.update(part.source.relation for part in layers.kept)
        return layers.top

    def evaluated(self, stream_table: StreamTable, definition: Definition) -> str:
        """What has the rows of a stream table's query: the definition view, or a table if they depend on
        search_path, evaluated under that of the definer."""
        if not definition.follows_path:
            return definition.view
        scratch = self._scratch(self._connection, f"{prefix_of(stream_table.id)}{definition.signature[:8]}")
        return scratch.evaluate("rows", definition.view, stream_table.search_path)

    def decide_load(
        self, stream_table: StreamTable, definition: Definition, plan: MaintenancePlan
    ) -> Decision:
        """The engine for the first load of a stream table."""
        return self._dispatch.decide(
            self._connection, self._settings, stream_table, definition, [plan], stream_table.engine, "load"
        )

    def load(
        self,
        stream_table: StreamTable,
        definition: Definition,
        mode: str,
        table: str,
        phases: Phases,
        decide: Callable[[MaintenancePlan], Decision],
    ) -> Loaded:
        """Makes new storage of this SQL name with all rows of the query, for a mode.

        If the plan meets an error that the query itself does not, storage is that of mode full. Raises
        PlanRefuted if the plan, by which deltas will be computed, gives other rows than the query.
        """
        plan = self.keep_anew(stream_table, definition, mode, phases)
        try:
            return Loaded(
                plan, mode, *self._load(stream_table, definition, plan, table, phases, decide(plan))
            )
        except psycopg.Error as error:
            if isinstance(plan, RecomputePlan) or not leads_to_recomputing(error):
                raise
            loaded = self.load(stream_table, definition, "full", table, phases, decide)
            return loaded._replace(failure=_plan_failure(error))

    def _load(
        self,
        stream_table: StreamTable,
        definition: Definition,
        plan: MaintenancePlan,
        table: str,
        phases: Phases,
        decision: Decision,
    ) -> tuple[int, Decision, Traffic | None, str]:
        """Fills new storage by a plan and compares it with the query; the number of its rows first.

        PostgreSQL can go on where it fails.
        """
        connection = self._connection
        if decision.programs:
            try:
                with self._on_spark(stream_table, decision, "load", phases) as (engines, pipeline):
                    loaded = pipeline.job.table("load")
                    storage.shape(pipeline.job.connection, loaded, plan)
                    scratch = self._scratch(connection, f"{prefix_of(stream_table.id)}load")
                    rows = cast("SparkEngine", engines(plan)).load(scratch, loaded)
                    with phases.measure("index"):
                        pipeline.beside("indexing", lambda beside: storage.index(beside, loaded))
                    beside = pipeline.job.connection  # which sees what tasks have written
                    check = self._check_plan(
                        stream_table, definition, plan, loaded, rows, "spark", phases, beside
                    )
                    storage.adopt(connection, loaded, table)
                    pipeline.job.adopted("load")
                    return rows, decision, pipeline.traffic, check
            except (Inexact, EngineFailed, EngineUnavailable) as error:
                decision = self.decisions[stream_table.id] = _fallback(decision, error)
        # A bag is stored as the query gives it; groups need the state that only the plan has.
        whole = definition.maintenance("full") if isinstance(plan, BagPlan) else plan
        with connection.transaction():
            with phases.measure("load"):
                rows = storage.load(connection, table, whole)
            check = self._check_plan(stream_table, definition, plan, table, rows, PostgresEngine.name, phases)
        return rows, decision, None, check

    def _check_plan(
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
        """Compares the rows that a plan computes with those of the query; how.

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

    def _decide(
        self, work: _Work, plans: Sequence[MaintenancePlan], action: Action, rows: int = 0
    ) -> Decision:
        decision = self._dispatch.decide(
            self._connection,
            self._settings,
            work.stream_table,
            work.definition,
            plans,
            work.engine,
            action,
            rows,
        )
        expected = self._dispatch.experience.predicted_ms(
            self._connection,
            work.stream_table.id,
            full=action != "delta",
            engine=decision.engine,
            rows=rows,
        )
        decision = replace(decision, predicted_ms=expected)
        self.decisions[work.stream_table.id] = decision
        return decision

    def explained(
        self,
        stream_table: StreamTable,
        definition: Definition,
        plans: Sequence[MaintenancePlan],
        recorder: Recorder,
    ) -> tuple[Engines, Decision]:
        """The engines of an ordinary delta, writing down what they would do."""
        return self._dispatch.explained(self._connection, stream_table, definition, plans, recorder)

    def predictions(self, stream_table: StreamTable) -> tuple[Prediction, ...]:
        """What refreshes of several sizes are expected to take."""
        return self._dispatch.experience.predictions(self._connection, stream_table.id)

    def _computed(
        self, work: _Work, decision: Decision, action: Action, run: Callable[[Engines], Result]
    ) -> tuple[Result, Decision, Traffic | None]:
        """Computes with the chosen engine, or with PostgreSQL where that one cannot after all."""
        if decision.programs:
            try:
                with self._on_spark(work.stream_table, decision, action, work.phases) as (engines, pipeline):
                    return run(engines), decision, pipeline.traffic
            except (Inexact, EngineFailed, EngineUnavailable) as error:
                decision = _fallback(decision, error)
            self.decisions[work.stream_table.id] = decision
        if action == "delta":
            return run(in_postgres), decision, None  # if it fails, the transaction is begun anew
        with self._connection.transaction():
            return run(in_postgres), decision, None

    @contextmanager
    def _on_spark(
        self, stream_table: StreamTable, decision: Decision, action: Action, phases: Phases
    ) -> Iterator[tuple[Engines, Pipeline]]:
        """Around all that the engine on Spark does. PostgreSQL can go on where it stops.

        Raises Inexact for whatever error it meets and PostgreSQL need not, whichever method meets it.
        """
        self.left_database = True
        with self._dispatch.spark(
            self._connection,
            self._settings,
            stream_table,
            decision,
            action,
            hidden=frozenset(self.written),
            phases=phases,
        ) as (engines, pipeline):
            try:
                with self._connection.transaction():
                    yield engines, pipeline
            except psycopg.Error as error:
                if not leads_to_recomputing(error):
                    raise
                raise Inexact(_said(error)) from error


def mark_for_rebuild(connection: Connection, stream_table_id: int, reason: str | None) -> None:
    """Has the next refresh recompute, for this reason; without one, not any more."""
    connection.execute(query("catalog", "set_rebuild_reason"), {"id": stream_table_id, "reason": reason})


def _check_intact(connection: Connection, stream_table: StreamTable, sources: list[CatalogSource]) -> None:
    """Raises if the stream table cannot be refreshed; asks why only if a known part is missing."""
    if stream_table.status == "initializing":
        raise RefreshFailed(
            f"{stream_table.label} is being created, or its creation was interrupted",
            hint="wait for it to finish, or create it again",
        )
    if stream_table.relation is None or any(source.schema is None for source in sources):
        error = catalog.broken(connection, stream_table)
        if error is None:
            raise psycopg.errors.SerializationFailure("what it reads was changed in the meantime")
        raise error


def _plan_failure(error: psycopg.Error) -> PlanFailure:
    reason = f"its plan met an error that the query itself does not: {_said(error)}"
    return PlanFailure(reason, error.sqlstate)


def _said(error: psycopg.Error) -> str:
    """What the server said, as the history has it."""
    return f"{error.diag.message_primary} (SQLSTATE {error.sqlstate})"


def _fallback(decision: Decision, error: Inexact | HeadwaterError) -> Decision:
    """PostgreSQL instead of Spark: always for a value that Spark cannot hold, else unless Spark is forced."""
    if isinstance(error, HeadwaterError) and decision.forced:
        raise error
    reason = str(error) if isinstance(error, Inexact) else error.message
    return decision.instead(reason)
