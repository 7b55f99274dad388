"""One stream table, brought to what its query gives: by a delta, by recomputing, by replacing its storage.

All of it happens inside a transaction that is open already, at its snapshot; `transaction` opens those that
refresh, `lifecycle.create` those that load for the first time or under another query.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

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
from headwater.config import Settings
from headwater.db.connection import Connection, TryAgain, one
from headwater.db.queries import query
from headwater.db.scratch import Scratch, prefix_of
from headwater.db.sqlstates import leads_to_recomputing
from headwater.definition.reader import Definition, DefinitionReader
from headwater.engine.base import Engines
from headwater.engine.cost_model import FEW_ROWS
from headwater.engine.postgres.engine import PostgresEngine
from headwater.engine.select import Action, Decision, EngineSelector
from headwater.errors import DriftDetected, RefreshFailed
from headwater.plan.steps import Steps, Tables, in_phase, shape
from headwater.plan.storage_plan import BagPlan, GroupPlan, MaintenancePlan, RecomputePlan
from headwater.refresh import incidents
from headwater.refresh.decide import Choice, Request, choose
from headwater.refresh.fast_path import own_target
from headwater.refresh.index_advice import is_slow, want_of_index
from headwater.refresh.intermediates import stored_layers
from headwater.refresh.load import Loader, PlanFailure, plan_failure
from headwater.refresh.run import Ledger, Runner
from headwater.refresh.steps import NOTHING_CHANGED, Inputs, delta, reconcile

if TYPE_CHECKING:
    from headwater.engine.spark.pipeline import Traffic

ScratchFactory = Callable[[Connection], Scratch]

LOCK_STREAM_TABLE = "SELECT FROM headwater.stream_table WHERE id = {} FOR NO KEY UPDATE"
"""Holds off other refreshes; raises TryAgain if the row changed since this transaction's snapshot."""
LOCK_FRONTIER = "SELECT FROM headwater.frontier WHERE stream_table_id = {} FOR NO KEY UPDATE"
"""Fails with 40001 if another refresh has moved the frontier since this transaction's snapshot."""


@dataclass(frozen=True)
class _Work:
    """One stream table in the middle of its refresh."""

    stream_table: StreamTable
    definition: Definition
    tables: Tables
    target: Target
    phases: Phases
    engine: EngineName
    may_give_up: bool  # a delta, for recomputing


class _Done(NamedTuple):
    """What was applied, and by which engine."""

    applied: Applied
    decision: Decision
    traffic: Traffic | None
    lost: Sequence[str] = ()  # what users had put on storage and new storage could not have
    failure: PlanFailure | None = None


class MemberRefresher:
    """Refreshes the members of a transaction, one stream table after the other."""

    def __init__(
        self,
        connection: Connection,
        settings: Settings,
        reader: DefinitionReader,
        selector: EngineSelector,
        scratch: ScratchFactory,
    ) -> None:
        self._connection = connection
        self._settings = settings
        self._reader = reader
        self._selector = selector
        self._scratch = scratch(connection)
        self.ledger = Ledger()
        self.loader = Loader(connection, settings, selector, self._scratch, self.ledger)
        self.signatures: dict[int, str] = {}  # of the definitions by which members were refreshed
        self._members: Sequence[int] = ()
        self._replaced_storage = False  # in the open transaction; other definitions may read what shows it

    def begin(self, members: Sequence[int]) -> None:
        """Start another transaction, which has written nothing yet and refreshes these stream tables."""
        self.ledger.begin()
        self._scratch.deadline = None
        self.signatures.clear()
        self._members = members
        self._replaced_storage = False

    def refresh(self, stream_table: StreamTable, sources: list[CatalogSource], request: Request) -> Outcome:
        """Refresh one stream table after those that it reads, and write that down."""
        connection, phases = self._connection, Phases()
        with phases.measure("choose"):
            _check_intact(connection, stream_table, sources)
            choice = choose(connection, self._settings, self._selector, stream_table, sources, request)
        tried = None
        if choice.action == "recompute":  # unless another refresh has done it meanwhile
            tried = self.ledger.abandoned.get(stream_table.id)
        if tried is not None:
            choice = replace(choice, rows_in=tried.rows)
        outcome = Outcome(
            stream_table=stream_table.label,
            stream_table_id=stream_table.id,
            action=choice.action,
            mode="full" if choice.action == "recompute" else stream_table.mode,
            engine=PostgresEngine.name,
            reason=choice.reason,
            rows_in=choice.rows_in,
            sqlstate=tried.sqlstate if tried is not None else None,
            abandoned_ms=tried.milliseconds if tried is not None else None,
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
            if stream_table.mode == "differential":
                self.signatures[stream_table.id] = definition.signature
            self.check_storage(stream_table)
            self._set_work_mem(len(sources))
        # The signature tells the temporary tables of different plans apart within a session.
        tables = Tables(f"{prefix_of(stream_table.id)}{stream_table.mode}_{definition.signature[:8]}_")
        target = self.target(stream_table, definition)
        engine = request.engine or stream_table.engine
        may_give_up = stream_table.requested_mode == "auto" and not request.in_others_transaction
        work = _Work(stream_table, definition, tables, target, phases, engine, may_give_up)
        if choice.action == "delta" and self._is_current(stream_table, definition):
            applied, decision, traffic, *_ = self._delta(work, sources, choice)
            if decision.engine == PostgresEngine.name and is_slow(phases.milliseconds):
                layers = stored_layers(connection, stream_table.id, definition)
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
            self.ledger.written.add(stream_table.relation)
            if target.change_table is not None:
                marks.mark(connection, stream_table.id)
        outcome = replace(
            outcome,
            engine=decision.engine,
            engine_reason=decision.reason,
            fell_back=decision.fell_back,
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
            raise TryAgain(f"a partition of {moved} was attached meanwhile")

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
        return own_target(self._connection, stream_table, definition)

    def has_readers(self, stream_table: StreamTable) -> bool:
        """Whether somebody is given the changes of a stream table."""
        found = self._connection.execute(query("refresh", "own_change_table"), {"id": stream_table.id})
        return found.fetchone() is not None

    def _delta(self, work: _Work, sources: list[CatalogSource], choice: Choice) -> _Done:
        """Compute what the changes mean, and apply it."""
        stream_table, plan, frontier = work.stream_table, work.definition.plan, work.stream_table.frontier
        assert plan is not None
        assert frontier is not None
        with work.phases.measure("choose"):
            layers = stored_layers(self._connection, stream_table.id, work.definition)
            plans = [*(part.plan for part in layers.kept), layers.top]
            decision = self._decide(work, plans, "delta", choice.rows_in)
        self.ledger.written.update(part.source.relation for part in layers.kept)
        inputs = Inputs(
            label=stream_table.label,
            layers=layers,
            plan=plan,
            pending=choice.pending,
            change_tables={source.relation: str(source.change_table) for source in sources},
            frontier=frontier,
            target=work.target,
            tables=work.tables,
        )
        runner = self._runner(work, "delta", decision)
        limit = None
        if work.may_give_up and not decision.programs and choice.rows_in > FEW_ROWS:
            limit = self._selector.patience_ms(self._connection, stream_table)
        with runner.guarded(choice.rows_in), runner.limited(choice.rows_in, limit):
            applied, computed = runner.run(delta(inputs, in_postgres=not decision.programs))
        if computed is NOTHING_CHANGED:
            return _Done(applied, Decision("postgres", "the changes cancel out"), None)
        return _Done(applied, runner.decision, runner.traffic)

    def _runner(self, work: _Work, action: Action, decision: Decision) -> Runner:
        return Runner(
            self._connection,
            self._settings,
            self._selector,
            self._scratch,
            self.ledger,
            work.stream_table,
            action,
            decision,
            work.phases,
        )

    def _recompute(self, work: _Work, *, distrusts_plan: bool) -> _Done:
        """Bring the stored rows to the query's present result, touching only those that differ.

        If the plan meets an error in computing that the query itself does not, the definition view has the
        rows, and storage has no room for the plan's state until it can be loaded by the plan again.
        """
        stream_table, definition, tables = work.stream_table, work.definition, work.tables
        mode = definition.mode_for(stream_table.mode)
        if distrusts_plan and stream_table.fingerprint == definition.fingerprint("full"):
            mode, tables = "full", tables.part("full")  # whose tables have other columns
        if stream_table.fingerprint != definition.fingerprint(mode):
            return self._replace_storage(work, mode)
        plan = self.loader.store_intermediates(stream_table, definition, mode, work.phases)
        with work.phases.measure("choose"):
            decision = self._decide(work, [plan], "recompute")
        runner = self._runner(work, "recompute", decision)
        if isinstance(plan, GroupPlan):
            runner.run(shape(tables, "result", plan.stored_sql(work.target.storage)))

        def recompute(engines: Engines) -> Steps[tuple[int, str]]:
            engine = engines(plan)
            inside = isinstance(plan, BagPlan) and engine.name == PostgresEngine.name
            whole = definition.maintenance("full") if inside else plan
            rows = yield from in_phase("compute", engine.recompute_all(tables, whole, work.target.storage))
            return rows, engine.name

        try:
            rows, engine = runner.by_engine(recompute)
        except psycopg.Error as error:
            if isinstance(plan, RecomputePlan) or not leads_to_recomputing(error):
                raise
            return self._replace_storage(work, "full", plan_failure(error))
        check = self.loader.check_plan
        if isinstance(plan, GroupPlan):
            check(stream_table, definition, plan, tables.sql("result"), rows, engine, work.phases)
        with work.phases.measure("apply"):
            try:
                applied = runner.run(reconcile(tables, plan, work.target, None))
            except DriftDetected:
                # The stored hashes are of texts that were changed since, as by a renamed label.
                return self._replace_storage(work, mode)
        if isinstance(plan, BagPlan) and engine != PostgresEngine.name:
            check(stream_table, definition, plan, work.target.storage, rows, engine, work.phases)
        return _Done(applied, runner.decision, runner.traffic)

    def _replace_storage(self, work: _Work, mode: str, failure: PlanFailure | None = None) -> _Done:
        """Load new storage beside the old one, for what is stored has changed its shape or meaning."""
        connection, stream_table = self._connection, work.stream_table

        def decide(plan: MaintenancePlan) -> Decision:
            if work.target.change_table:
                return Decision("postgres", "those that read it need the difference")
            return self._decide(work, [plan], "recompute")

        view = (stream_table.schema, stream_table.name)
        assert stream_table.relation is not None
        swap.hold(connection, view)
        successor = storage.successor_sql(stream_table.id)
        loaded = self.loader.load(stream_table, work.definition, mode, successor, work.phases, decide)
        incidents.record_load(connection, stream_table.id, loaded.check)
        with work.phases.measure("apply"):
            table = storage.successor_name(stream_table.id)
            prepared = swap.prepare(connection, stream_table.label, stream_table.id, table, loaded.plan)
            lost = self.put_in_place(work.tables, work.target, stream_table, prepared, loaded.plan)
            connection.execute(
                query("catalog", "set_fingerprint"),
                {"id": stream_table.id, "fingerprint": work.definition.fingerprint(loaded.mode)},
            )
        applied = Applied(inserted=loaded.rows)
        return _Done(applied, loaded.decision, loaded.traffic, lost, failure or loaded.failure)

    def put_in_place(
        self,
        tables: Tables,
        target: Target,
        stream_table: StreamTable,
        prepared: swap.Prepared,
        plan: MaintenancePlan,
    ) -> list[str]:
        """Show new storage in place of a stream table's own, whose dependents get the difference."""
        assert stream_table.relation is not None
        view = (stream_table.schema, stream_table.name)
        shown = sql.Identifier(*view).as_string(self._connection)
        new = replace(target, storage=storage.in_data(prepared.table))
        self._scratch.run(emit_difference(tables, new, plan, shown))
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
            raise TryAgain("a user waits for a table that this refresh reads")

    def _decide(
        self, work: _Work, plans: Sequence[MaintenancePlan], action: Action, rows: int = 0
    ) -> Decision:
        decision = self._selector.decide(
            self._connection,
            self._settings,
            work.stream_table,
            work.definition,
            plans,
            work.engine,
            action,
            rows,
        )
        expected = self._selector.observations.predicted_ms(
            self._connection,
            work.stream_table.id,
            full=action != "delta",
            engine=decision.engine,
            rows=rows,
        )
        decision = replace(decision, predicted_ms=expected)
        self.ledger.decisions[work.stream_table.id] = decision
        return decision


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
            raise TryAgain("what it reads was changed in the meantime")
        raise error
