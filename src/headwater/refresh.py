"""One refresh, end to end.

1. Lock the sources against TRUNCATE and rewrites, which no snapshot protects from; then take the snapshot.
2. Choose: nothing changed, a delta, or recomputing.
3. Compute with the engine, apply, write the change rows of dependents, the frontier and the history.
4. Commit. All of 1 to 3 is one REPEATABLE READ transaction: a crash leaves the old state or the new one.
5. In a transaction of its own, delete the change rows that nobody needs any more.

A stream table that reads other stream tables is refreshed together with them, in the order of the graph, in
one transaction at one snapshot, so a diamond is never seen with one side ahead of the other. A scheduler,
which knows where paths meet, refreshes fewer at a time (`refresh_together`): those outside stay as they are.

Two refreshes of one stream table at once: the second waits at the row lock and then fails with 40001, for
the row changed after its snapshot; `retried` runs it again, and it finds little or nothing left to do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar, cast

import psycopg
from psycopg import sql

from headwater import catalog, history
from headwater.advice import is_slow, want_of_index
from headwater.apply import storage, succession
from headwater.apply.merge import Applied, Target, emit_difference
from headwater.capture import buffers, consumers, marks
from headwater.capture.registry import lost_reason, partitions_moved
from headwater.catalog import CatalogSource, Closure, EngineName, StreamTable
from headwater.clock import Phases
from headwater.config import Settings
from headwater.db import install
from headwater.db.connection import (
    RETRYABLE,
    Connection,
    one,
    retried,
    transaction,
    translated,
)
from headwater.db.queries import query
from headwater.db.work import Recorder, Scratch, drop_unused, prefix_of
from headwater.definition import Definition, DefinitionReader, definition_oid
from headwater.engine.base import Engines, Inexact
from headwater.engine.dispatch import Action, Decision, Dispatch
from headwater.engine.experience import Prediction, Took
from headwater.engine.postgres import PostgresEngine, in_postgres
from headwater.errors import (
    ClaimLost,
    DriftDetected,
    EngineFailed,
    EngineUnavailable,
    HeadwaterError,
    NotFound,
    RefreshCancelled,
    RefreshFailed,
)
from headwater.history import Outcome
from headwater.keeping import keep_anew, kept_layers
from headwater.maintenance import apply, bring_kept_up_to_date, compute, concerns, stage
from headwater.plan.maintain import GroupPlan, MaintenancePlan
from headwater.registration import Outdated, bring_up_to_date, follow_renames, outdated

if TYPE_CHECKING:
    from headwater.engine.spark.engine import SparkEngine
    from headwater.engine.spark.pipeline import Traffic

Result = TypeVar("Result")
ScratchFactory = Callable[[Connection, str], Scratch]


@dataclass(frozen=True)
class Request:
    """What the caller wants of a refresh."""

    full: bool = False
    engine: EngineName | None = None  # overrides the stream table's own


@dataclass(frozen=True)
class _Choice:
    action: history.Action
    reason: str
    rows_in: int = 0
    changed: frozenset[int] = frozenset()
    pending: Mapping[int, int] = field(default_factory=dict)  # change rows by source
    release: bool = False  # nothing to do, but moving the frontier lets consumed change rows go


class Claim(Protocol):
    """The right to refresh, where others may take it away meanwhile (I4)."""

    def hold(self, connection: Connection) -> None:
        """Called when the transaction has its snapshot; raises if another has the right."""

    def check(self, connection: Connection) -> None:
        """Called last before the commit; raises if the right was taken away."""


class MemberFailed(Exception):
    """A refresh of several stream tables failed, at this one; nothing of it was applied."""

    def __init__(self, stream_table: StreamTable, error: HeadwaterError) -> None:
        super().__init__(str(error))
        self.stream_table = stream_table
        self.error = error

    @property
    def remedied_by_recomputing(self) -> str | None:
        """The reason to recompute, if that can help."""
        if isinstance(self.error, DriftDetected):
            return f"{self.error.message}: {self.error.detail}"
        if (getattr(self.error.__cause__, "sqlstate", None) or "").startswith(
            (DATA_EXCEPTION, *DOMAIN_VIOLATIONS)
        ):
            # A term may join a new row with an old one that were never there together, and divide by zero.
            return f"its delta met an error that the query itself need not meet: {self.error.message}"
        return None


LOCK_STREAM_TABLE = "SELECT FROM headwater.stream_table WHERE id = {} FOR NO KEY UPDATE"
"""Holds off other refreshes; fails with 40001 if the row changed since this transaction's snapshot."""
LOCK_FRONTIER = "SELECT FROM headwater.frontier WHERE stream_table_id = {} FOR NO KEY UPDATE"
"""Fails with 40001 if another refresh has moved the frontier since this transaction's snapshot."""
DATA_EXCEPTION = "22"
DOMAIN_VIOLATIONS = ("23502", "23514")
"""A domain was given a constraint that rows which were there before need not meet."""
MOVED = frozenset({"42P01", "42703", "42883", "42704", "3F000"})
"""Something is not there under the name that the plan has for it."""
FEW_ROWS = 100
"""So few change rows are always taken in as a delta; what that takes is known again then."""
NOTHING_CHANGED = ""
"""In place of the table of affected keys, when there was nothing to compute."""
HISTORY_CLEANING_INTERVAL = 256
"""Old history is looked for once in so many refreshes."""


@dataclass(frozen=True)
class _Work:
    """One stream table in the middle of its refresh."""

    stream_table: StreamTable
    definition: Definition
    scratch: Scratch
    target: Target
    phases: Phases
    engine: EngineName


class _Done(NamedTuple):
    """What was applied, and by which engine."""

    applied: Applied
    decision: Decision
    traffic: Traffic | None
    lost: Sequence[str] = ()  # what users had put on storage and new storage could not have


class Refresher:
    """Refreshes stream tables over one connection."""

    def __init__(
        self,
        connection: Connection,
        settings: Settings,
        reader: DefinitionReader,
        dispatch: Dispatch,
        scratch: ScratchFactory = Scratch,
    ) -> None:
        self._connection = connection
        self._settings = settings
        self._reader = reader
        self._dispatch = dispatch
        self._scratch = scratch
        self._written: set[int] = set()  # views of stream tables that the open transaction has written to
        self._decisions: dict[int, Decision] = {}  # of the latest attempt, for the record if it fails
        self._left_database = False

    def refresh(self, stream_table: StreamTable, request: Request) -> list[Outcome]:
        """Refreshes a stream table and those it reads; outcomes in the order of the graph."""
        try:
            return self._refresh(
                stream_table, lambda: catalog.closure(self._connection, stream_table.id), request
            )
        except MemberFailed as failed:
            raise failed.error from failed.error.__cause__

    def refresh_together(
        self, members: Sequence[int], claim: Claim | None = None, *, clean: bool = True
    ) -> list[Outcome]:
        """Refreshes these stream tables and no others, each after what it reads of them.

        Who refreshes often need not clean up each time.

        Raises MemberFailed. Nobody must be able to see them disagree with what they read otherwise: where two
        paths lead to one stream table from one source, all that lies between must be among them.
        """
        last = catalog.stream_table(self._connection, members[-1])
        return self._refresh(
            last, lambda: catalog.together(self._connection, members), Request(), claim, clean=clean
        )

    def _refresh(
        self,
        stream_table: StreamTable,
        find: Callable[[], Closure],
        request: Request,
        claim: Claim | None = None,
        *,
        clean: bool = True,
    ) -> list[Outcome]:
        """Refreshes what is found, at its end the stream table that the request is for."""
        label, started = stream_table.label, Phases()
        while True:
            try:
                outcomes = retried(
                    lambda: self._attempt(stream_table.id, find, request, claim),
                    what=f"refresh of {label}",
                    attempts=self._settings.lock_attempts,
                )
                break
            except MemberFailed as failed:
                reason = failed.remedied_by_recomputing
                if reason is not None and failed.stream_table.rebuild_reason is None:
                    self._distrust(failed.stream_table, reason)
                    continue
                self._record_failure(failed, started)
                raise
            except KeyboardInterrupt:
                interrupted = RefreshCancelled(f"refresh of {label} was interrupted")
                self._record_failure(MemberFailed(stream_table, interrupted), started)
                raise
            except (psycopg.Error, HeadwaterError) as error:
                failure = (
                    translated(error, f"refresh of {label}", RefreshFailed)
                    if isinstance(error, psycopg.Error)
                    else error
                )
                failure.__cause__ = error if isinstance(error, psycopg.Error) else error.__cause__
                whole = MemberFailed(stream_table, failure)
                if not isinstance(failure, ClaimLost):  # whoever has it now makes the record
                    self._record_failure(whole, started)
                raise whole from failure.__cause__
        for outcome in outcomes:
            self._dispatch.experience.add(
                Took(
                    outcome.stream_table_id,
                    outcome.action,
                    outcome.engine,
                    outcome.engine_reason,
                    outcome.rows_in,
                    outcome.duration_ms,
                    outcome.phases,
                )
            )
        if clean:
            self._clean(outcomes)
        return outcomes

    def refresh_here(self, stream_table_id: int, request: Request) -> list[Outcome]:
        """Refreshes inside the caller's REPEATABLE READ transaction."""
        try:
            return self._refresh_members(
                stream_table_id, catalog.closure(self._connection, stream_table_id), request
            )
        except MemberFailed as failed:
            raise failed.error from failed.error.__cause__

    def follow_renames(self, closure: Closure) -> None:
        """Adopts the names that users gave to columns of stream tables."""
        follow_renames(self._connection, self._reader, closure.order)

    def begin(self, stream_table_id: int, closure: Closure) -> None:
        """Opens the transaction that refreshes a stream table; takes no snapshot.

        Others find it by its name, to cancel it. TRUNCATE and rewrites, which no snapshot shows as they were,
        are kept off the tables that are read from here on.
        """
        name = sql.SQL("SET LOCAL application_name = {}").format(
            sql.Literal(f"headwater refresh {stream_table_id}")
        )
        self._connection.execute(sql.SQL("; ").join([name, *self._locks(closure)]), prepare=False)

    def lock_tables(self, closure: Closure) -> None:
        """As `begin` does, in a transaction that refreshes nothing."""
        if locks := self._locks(closure):
            self._connection.execute(sql.SQL("; ").join(locks), prepare=False)

    def _locks(self, closure: Closure) -> list[sql.Composable]:
        if not closure.tables:
            return []
        names = sql.SQL(", ").join(sql.Identifier(*table) for table in closure.tables)
        timeout = self._settings.lock_timeout_ms
        limit = sql.SQL("SET LOCAL lock_timeout = {}")
        return [
            limit.format(sql.Literal(max(1, timeout // max(1, closure.locks)))),
            sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(names),
            limit.format(sql.Literal(timeout)),
        ]

    def _attempt(
        self, stream_table_id: int, find: Callable[[], Closure], request: Request, claim: Claim | None
    ) -> list[Outcome]:
        connection = self._connection
        closure = self._adopt(find)
        try:
            with transaction(connection, repeatable_read=True):
                self.begin(stream_table_id, closure)
                install.hold_version(connection)
                if claim is not None:
                    claim.hold(connection)
                if find().sources != closure.sources:
                    # What was locked, before the snapshot was taken, is not what its query reads by now.
                    raise psycopg.errors.SerializationFailure("what it reads was changed in the meantime")
                outcomes = self._refresh_members(stream_table_id, closure, request)
                if claim is not None:
                    claim.check(connection)
                return outcomes
        except (MemberFailed, psycopg.Error) as error:
            cause = error.error.__cause__ if isinstance(error, MemberFailed) else error
            if getattr(cause, "sqlstate", None) in MOVED and outdated(connection, closure.order):
                # Renaming a schema waits for nobody. What is locked later than the plan is made, neither.
                raise psycopg.errors.SerializationFailure("what it reads was renamed meanwhile") from error
            raise

    def adopt(self, stream_table_id: int) -> Closure:
        """Registers what changed under a stream table and those it reads; which these are now."""
        return self._adopt(lambda: catalog.closure(self._connection, stream_table_id))

    def _adopt(self, find: Callable[[], Closure]) -> Closure:
        closure, adopted = find(), list[Outdated]()
        while (found := bring_up_to_date(self._connection, self._reader, closure.order)) and found != adopted:
            adopted, closure = found, find()  # it may read more
        return closure

    def _refresh_members(self, stream_table_id: int, closure: Closure, request: Request) -> list[Outcome]:
        by_id = {member.id: member for member in catalog.stream_tables(self._connection, list(closure.order))}
        outcomes = []
        self._written.clear()
        self._decisions.clear()
        if len(by_id) < len(closure.order):
            raise NotFound(
                "a stream table that takes part in this refresh was dropped in the meantime", hint="repeat it"
            )
        for member in closure.order:
            wanted = request if member == stream_table_id else Request(engine=request.engine)
            try:
                outcomes.append(self._refresh_one(by_id[member], closure.sources[member], wanted))
            except HeadwaterError as error:
                raise MemberFailed(by_id[member], error) from error
            except psycopg.Error as error:
                if error.sqlstate in RETRYABLE:
                    raise
                failure = translated(error, f"refresh of {by_id[member].label}", RefreshFailed)
                failure.__cause__ = error
                raise MemberFailed(by_id[member], failure) from error
        return outcomes

    def _refresh_one(
        self, stream_table: StreamTable, sources: list[CatalogSource], request: Request
    ) -> Outcome:
        connection, phases = self._connection, Phases()
        with phases.measure("choose"):
            _check_intact(stream_table, sources)
            choice = self._choose(stream_table, sources, request)
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
        work = _Work(stream_table, definition, scratch, target, phases, request.engine or stream_table.engine)
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
            self._written.add(stream_table.relation)
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
                self._mark_for_rebuild(stream_table.id, None)
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

    def _choose(self, stream_table: StreamTable, sources: list[CatalogSource], request: Request) -> _Choice:
        if request.full:
            return _Choice("recompute", "a full refresh was asked for")
        if stream_table.rebuild_reason is not None:
            return _Choice("recompute", stream_table.rebuild_reason)
        if stream_table.mode == "full":
            return _Choice("recompute", "; ".join(stream_table.mode_reasons) or "its mode is full")
        assert stream_table.frontier is not None
        limit = self._settings.max_buffer_rows
        found = buffers.pending(self._connection, sources, stream_table.frontier, limit)
        labels = {source.relation: source.label for source in sources}
        truncated = {source.relation: _what_a_mark_means(source) for source in sources}
        for relation, waiting in found.items():
            if waiting.lost is not None:
                return _Choice("recompute", lost_reason(labels[relation], waiting.lost), waiting.rows)
            if waiting.truncated:
                return _Choice("recompute", labels[relation] + truncated[relation], waiting.rows)
            if waiting.rows > limit:
                return _Choice(
                    "recompute",
                    f"the change table of {labels[relation]} holds more than {limit} rows for it"
                    " (headwater.max_buffer_rows)",
                    waiting.rows,
                )
        changed = frozenset(relation for relation, waiting in found.items() if waiting.rows)
        if not changed:
            release = any(waiting.consumed for waiting in found.values()) and self._frontier_can_move(
                stream_table
            )
            return _Choice("nothing", "no source changed", release=release)
        rows = sum(waiting.rows for waiting in found.values())
        names = ", ".join(sorted(labels[relation] for relation in changed))
        if stream_table.requested_mode == "auto" and rows > FEW_ROWS:
            dearer = self._dispatch.dearer_than_full(self._connection, stream_table, rows)
            if dearer is not None:
                return _Choice("recompute", dearer, rows)
        reason = f"{rows} change row{'s' if rows != 1 else ''} in {names}"
        pending = {relation: waiting.rows for relation, waiting in found.items()}
        return _Choice("delta", reason, rows, changed, pending)

    def _frontier_can_move(self, stream_table: StreamTable) -> bool:
        assert stream_table.frontier is not None
        moved: bool = one(
            self._connection,
            "SELECT pg_snapshot_xmin(pg_current_snapshot()) > pg_snapshot_xmin(%s::pg_snapshot)",
            (stream_table.frontier.snapshot,),
        )[0]
        return moved

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

    def _delta(self, work: _Work, sources: list[CatalogSource], choice: _Choice) -> _Done:
        plan, frontier = work.definition.plan, work.stream_table.frontier
        assert plan is not None
        assert frontier is not None
        tables = {source.relation: str(source.change_table) for source in sources}
        with work.phases.measure("choose"):
            layers = kept_layers(self._connection, work.stream_table.id, work.definition)
            plans = [*(part.plan for part in layers.kept), layers.top]
            decision = self._decide(work, plans, "delta", choice.rows_in)
        self._written.update(part.source.relation for part in layers.kept)

        def run(engines: Engines) -> str | None:
            engine, label = engines(layers.top), work.stream_table.label
            with work.phases.measure("stage"):
                left = frozenset() if layers.kept else engine.in_place(layers.top, choice.pending)
                staged = stage(work.scratch, plan, choice.pending, tables, frontier, left)
            staged = bring_kept_up_to_date(engines, work.scratch, layers.kept, staged, label, work.phases)
            if not concerns(staged, layers.top):
                # What changed cancels out, or the query does not read it, or what is kept stayed the same.
                return NOTHING_CHANGED
            return compute(engine, work.scratch, layers.top, staged, work.target, work.phases)

        affected, decision, traffic = self._computed(work, decision, "delta", run)
        if affected is NOTHING_CHANGED:
            return _Done(Applied(), Decision("postgres", "the changes cancel out"), None)
        with work.phases.measure("apply"):
            return _Done(apply(work.scratch, layers.top, work.target, affected), decision, traffic)

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
                return _Done(apply(scratch, plan, work.target, None), decision, traffic)
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
        self._written.update(part.source.relation for part in layers.kept)
        return layers.top

    # engines

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
            self._left_database = True
            try:
                with self._dispatch.spark(
                    connection,
                    self._settings,
                    stream_table,
                    decision,
                    "load",
                    hidden=frozenset(self._written),
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
                decision = self._decisions[stream_table.id] = _fallback(decision, error)
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
        self._decisions[work.stream_table.id] = decision
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
            self._left_database = True
            try:
                with self._dispatch.spark(
                    self._connection,
                    self._settings,
                    work.stream_table,
                    decision,
                    action,
                    hidden=frozenset(self._written),
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
            self._decisions[work.stream_table.id] = decision
        return run(in_postgres), decision, None

    def _distrust(self, stream_table: StreamTable, reason: str) -> None:
        """Has the next attempt recompute; another refresh of the stream table may hold its row just now."""
        retried(
            lambda: self._mark_for_rebuild(stream_table.id, reason),
            what=f"refresh of {stream_table.label}",
            attempts=self._settings.lock_attempts,
        )

    def _mark_for_rebuild(self, stream_table_id: int, reason: str | None) -> None:
        self._connection.execute(
            query("catalog", "set_rebuild_reason"), {"id": stream_table_id, "reason": reason}
        )

    def _record_failure(self, failed: MemberFailed, started: Phases) -> None:
        """Leaves nothing of a failed refresh but the record of it, over another connection if need be."""
        try:
            if not self._connection.closed:
                self._record_failure_over(self._connection, failed, started)
                return
        except psycopg.Error:
            if not self._connection.closed:
                raise
        with suppress(psycopg.Error, HeadwaterError), self._dispatch.another_connection() as another:
            self._record_failure_over(another, failed, started)

    def _record_failure_over(self, connection: Connection, failed: MemberFailed, started: Phases) -> None:
        stream_table, decision = failed.stream_table, self._decisions.get(failed.stream_table.id)
        if self._left_database:
            self._dispatch.sweep(connection)
        if not catalog.stream_tables(connection, [stream_table.id]):
            return
        history.record(
            connection,
            Outcome(
                stream_table=stream_table.label,
                stream_table_id=stream_table.id,
                action="delta" if stream_table.mode == "differential" else "recompute",
                mode=stream_table.mode,
                engine=decision.engine if decision is not None else stream_table.engine,
                engine_reason=decision.reason if decision is not None else "",
                reason="the refresh failed; nothing of it was applied",
                elapsed=started.elapsed,
                status="failed",
                error=str(failed.error),
                sqlstate=getattr(failed.error.__cause__, "sqlstate", None),
            ),
        )

    def _clean(self, outcomes: list[Outcome]) -> None:
        """Deletes what is no longer needed. What it does not get now, the next refresh gets."""
        moved = [outcome for outcome in outcomes if outcome.frontier_moved]
        if not moved:
            return
        sources = {
            source.id: source
            for outcome in moved
            for source in catalog.sources_of(self._connection, outcome.stream_table_id)
            if source.change_table is not None
        }
        # A dependent cleans up what it has consumed; a consumer outside the database may never come.
        for source in consumers.followed(self._connection, [outcome.stream_table_id for outcome in moved]):
            sources[source.id] = source
        try:
            with transaction(self._connection):
                captured = list(sources.values())
                buffers.remove_consumed(self._connection, captured)
                buffers.give_up_laggards(self._connection, captured, self._settings.max_buffer_rows)
                drop_unused(self._connection, [outcome.stream_table_id for outcome in outcomes])
                if any((outcome.history_id or 0) % HISTORY_CLEANING_INTERVAL == 1 for outcome in moved):
                    marks.forget(self._connection)
                    history.forget(self._connection, self._settings.history_retention)
            retired = storage.with_retired(self._connection, [outcome.stream_table_id for outcome in moved])
            for stream_table in catalog.stream_tables(self._connection, retired) if retired else ():
                self.give_up_retired(stream_table)
        except psycopg.Error as error:
            if error.sqlstate is None:
                raise

    def give_up_retired(self, stream_table: StreamTable) -> None:
        """Drops storage that was replaced, once no snapshot needs it."""
        if stream_table.relation is not None:
            view = (stream_table.schema, stream_table.name)
            succession.give_up_retired(self._connection, view, stream_table.relation, stream_table.id)


def _what_a_mark_means(source: CatalogSource) -> str:
    unseen = ", or its rows were moved between partitions in a way that triggers do not see"
    return " was truncated" + (unseen if source.partitioned else "")


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
