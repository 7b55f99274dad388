"""The storage of one stream table, brought to what its query gives: by a delta, by recomputing, by loading.

All of it happens inside a transaction that is open already, at its snapshot; `refresh` opens those that
refresh, `creation` those that load for the first time or under another query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast

import psycopg
from psycopg import sql

from headwater import catalog, history
from headwater.advice import is_slow, want_of_index
from headwater.apply import storage, succession
from headwater.apply.merge import Applied, Target, emit_difference
from headwater.capture import marks
from headwater.capture.registry import partitions_moved
from headwater.catalog import CatalogSource, EngineName, StreamTable
from headwater.choosing import FEW_ROWS, Choice, Request, choose
from headwater.clock import Phases
from headwater.config import Settings, milliseconds
from headwater.db.connection import Connection, one
from headwater.db.queries import query
from headwater.db.work import OutOfPatience, Patience, Recorder, Scratch, prefix_of
from headwater.definition import Definition, DefinitionReader, definition_oid
from headwater.engine.base import Engines, Inexact
from headwater.engine.dispatch import Action, Decision, Dispatch
from headwater.engine.experience import GIVEN_UP, Prediction
from headwater.engine.postgres import PostgresEngine, in_postgres
from headwater.errors import (
    DeltaGivenUp,
    DriftDetected,
    EngineFailed,
    EngineUnavailable,
    HeadwaterError,
    RefreshFailed,
)
from headwater.history import Outcome
from headwater.keeping import keep_anew, kept_layers
from headwater.maintenance import (
    Computed,
    apply,
    bring_kept_up_to_date,
    compute,
    concerns,
    reconcile,
    small_change,
    stage,
)
from headwater.plan.keep import Layers
from headwater.plan.maintain import GroupPlan, MaintenancePlan

if TYPE_CHECKING:
    from headwater.engine.spark.engine import SparkEngine
    from headwater.engine.spark.pipeline import Traffic

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
    """A delta that took too long."""

    rows: int
    milliseconds: float


class _Done(NamedTuple):
    """What was applied, and by which engine."""

    applied: Applied
    decision: Decision
    traffic: Traffic | None
    lost: Sequence[str] = ()  # what users had put on storage and new storage could not have


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

    def begin(self) -> None:
        """Another transaction, which has written nothing yet."""
        self.written.clear()
        self.decisions.clear()

    def refresh(self, stream_table: StreamTable, sources: list[CatalogSource], request: Request) -> Outcome:
        """Refreshes one stream table after those that it reads, and writes that down."""
        connection, phases = self._connection, Phases()
        with phases.measure("choose"):
            _check_intact(stream_table, sources)
            choice = choose(connection, self._settings, self._dispatch, stream_table, sources, request)
        tried = self.given_up.get(stream_table.id)
        if tried is not None and choice.action == "recompute":  # unless another refresh has done it meanwhile
            phases.add(tried.milliseconds, GIVEN_UP)
            choice = replace(choice, rows_in=tried.rows)
        outcome = Outcome(
            stream_table=stream_table.label,
            stream_table_id=stream_table.id,
            action=choice.action,
            mode="full" if choice.action == "recompute" else stream_table.mode,
            engine=PostgresEngine.name,
            reason=choice.reason,
            rows_in=choice.rows_in,
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
            self._check_storage(stream_table)
            self._set_work_mem(len(sources))
        # The signature tells the temporary tables of different plans apart within a session.
        prefix = f"{prefix_of(stream_table.id)}{stream_table.mode}_{definition.signature[:8]}"
        scratch = self._scratch(connection, prefix)
        target = self.target(stream_table, definition)
        engine = request.engine or stream_table.engine
        may_give_up = stream_table.requested_mode == "auto" and not request.in_others_transaction
        work = _Work(stream_table, definition, scratch, target, phases, engine, may_give_up)
        if choice.action == "delta" and self._is_current(stream_table, definition):
            applied, decision, traffic, _ = self._delta(work, sources, choice)
            if decision.engine == PostgresEngine.name and is_slow(phases):
                layers = kept_layers(connection, stream_table.id, definition)
                lacking = want_of_index(connection, layers, choice.changed, choice.rows_in)
                outcome = replace(outcome, reason=choice.reason + lacking)
        else:
            applied, decision, traffic, lost = self._recompute(work)
            reason = "; ".join([choice.reason, *lost])
            outcome = replace(outcome, action="recompute", mode="full", reason=reason)
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

    def _check_storage(self, stream_table: StreamTable) -> None:
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
        return self._reader.read(definition_oid(self._connection, stream_table.id))

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
        with nullcontext() if decision.programs else self._limited(work, choice):
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

    def _recompute(self, work: _Work) -> _Done:
        """Brings the stored rows to the query's present result, touching only those that differ."""
        stream_table, definition, scratch = work.stream_table, work.definition, work.scratch
        mode = definition.mode_for(stream_table.mode)
        if mode != stream_table.mode or not self._is_current(stream_table, definition):
            return self._replace_storage(work, mode)
        plan = self.keep_anew(stream_table, definition, mode, work.phases)
        with work.phases.measure("choose"):
            decision = self._decide(work, [plan], "recompute")
        if isinstance(plan, GroupPlan):
            scratch.shape("result", plan.stored_sql(work.target.storage))

        def recompute(engines: Engines) -> None:
            with work.phases.measure("compute"):
                engines(plan).recompute_all(scratch, plan, work.target.storage)

        _, decision, traffic = self._computed(work, decision, "recompute", recompute)
        with work.phases.measure("apply"):
            try:
                return _Done(reconcile(scratch, plan, work.target, None), decision, traffic)
            except (
                DriftDetected
            ):  # the stored hashes are of texts that were changed since, as by a renamed label
                return self._replace_storage(work, mode)

    def _replace_storage(self, work: _Work, mode: str) -> _Done:
        """Loads new storage beside the old one, for what is stored has changed its shape or meaning."""
        connection, stream_table = self._connection, work.stream_table
        plan = self.keep_anew(stream_table, work.definition, mode, work.phases)
        if work.target.change_table:
            decision = Decision("postgres", "those that read it need the difference")
        else:
            decision = self._decide(work, [plan], "recompute")
        view = (stream_table.schema, stream_table.name)
        assert stream_table.relation is not None
        succession.hold(connection, view)
        successor = storage.successor_sql(stream_table.id)
        rows, decision, traffic = self.load(work.stream_table, plan, successor, work.phases, decision)
        with work.phases.measure("apply"):
            table = storage.successor_name(stream_table.id)
            prepared = succession.prepare(connection, stream_table.label, stream_table.id, table, plan)
            lost = self.put_in_place(work.scratch, work.target, stream_table, prepared, plan)
            connection.execute(
                query("catalog", "set_fingerprint"),
                {"id": stream_table.id, "fingerprint": work.definition.fingerprint(mode)},
            )
        return _Done(Applied(inserted=rows), decision, traffic, lost)

    def put_in_place(
        self,
        scratch: Scratch,
        target: Target,
        stream_table: StreamTable,
        prepared: succession.Prepared,
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
        relation, lost = succession.succeed(
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
                return definition.maintenance(mode)
            layers = keep_anew(self._connection, self._settings, stream_table.id, definition)
        self.written.update(part.source.relation for part in layers.kept)
        return layers.top

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
        plan: MaintenancePlan,
        table: str,
        phases: Phases,
        decision: Decision,
    ) -> tuple[int, Decision, Traffic | None]:
        """Makes new storage of this SQL name with all rows of the query; their number."""
        connection = self._connection
        if decision.programs:
            self.left_database = True
            try:
                with self._dispatch.spark(
                    connection,
                    self._settings,
                    stream_table,
                    decision,
                    "load",
                    hidden=frozenset(self.written),
                    phases=phases,
                ) as (engines, pipeline):
                    loaded = pipeline.job.table("load")
                    storage.shape(pipeline.job.connection, loaded, plan)
                    scratch = self._scratch(connection, f"{prefix_of(stream_table.id)}load")
                    rows = cast("SparkEngine", engines(plan)).load(scratch, loaded)
                    with phases.measure("index"):
                        pipeline.beside("indexing", lambda beside: storage.index(beside, loaded))
                    storage.adopt(connection, loaded, table)
                    pipeline.job.adopted("load")
                    return rows, decision, pipeline.traffic
            except (Inexact, EngineFailed, EngineUnavailable) as error:
                decision = self.decisions[stream_table.id] = _fallback(decision, error)
        with phases.measure("load"):
            return storage.load(connection, table, plan), decision, None

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
            self.left_database = True
            try:
                with self._dispatch.spark(
                    self._connection,
                    self._settings,
                    work.stream_table,
                    decision,
                    action,
                    hidden=frozenset(self.written),
                    phases=work.phases,
                ) as (engines, pipeline):
                    with self._connection.transaction():  # so that PostgreSQL can go on where Spark stopped
                        return run(engines), decision, pipeline.traffic
            except (Inexact, EngineFailed, EngineUnavailable) as error:
                decision = _fallback(decision, error)
            except (
                psycopg.DataError
            ) as error:  # met while reading for Spark; the query itself need not meet it
                decision = _fallback(decision, Inexact(str(error.diag.message_primary)))
            self.decisions[work.stream_table.id] = decision
        return run(in_postgres), decision, None


def mark_for_rebuild(connection: Connection, stream_table_id: int, reason: str | None) -> None:
    """Has the next refresh recompute, for this reason; without one, not any more."""
    connection.execute(query("catalog", "set_rebuild_reason"), {"id": stream_table_id, "reason": reason})


def _check_intact(stream_table: StreamTable, sources: list[CatalogSource]) -> None:
    if stream_table.status == "initializing":
        raise RefreshFailed(
            f"{stream_table.label} is being created, or its creation was interrupted",
            hint="wait for it to finish, or create it again",
        )
    gone = catalog.dropped_part(stream_table, sources)
    if gone:
        raise RefreshFailed(
            f"{stream_table.label} cannot be refreshed: {gone} was dropped",
            hint=f"headwater repair, once it is there again; or headwater drop {stream_table.label}",
        )


def _fallback(decision: Decision, error: Inexact | HeadwaterError) -> Decision:
    """PostgreSQL instead of Spark: always for a value that Spark cannot hold, else unless Spark is forced."""
    if isinstance(error, HeadwaterError) and decision.forced:
        raise error
    reason = str(error) if isinstance(error, Inexact) else error.message
    return decision.instead(reason)
