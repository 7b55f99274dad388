"""One refresh, end to end.

1. Lock the sources against TRUNCATE and rewrites, which no snapshot protects from; then take the snapshot.
2. Choose: nothing changed, a delta, or recomputing.
3. Compute with the engine, apply, write the change rows of dependents, the frontier and the history.
4. Commit. All of 1 to 3 is one REPEATABLE READ transaction: a crash leaves the old state or the new one.
5. In a transaction of its own, delete the change rows that nobody needs any more.

A stream table that reads other stream tables is refreshed together with them, in the order of the graph, in
one transaction at one snapshot, so a diamond is never seen with one side ahead of the other.

Two refreshes of one stream table at once: the second waits at the row lock and then fails with 40001, for
the row changed after its snapshot; `retried` runs it again, and it finds little or nothing left to do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import psycopg
from psycopg import sql

from headwater import catalog, history
from headwater.apply import storage
from headwater.apply.merge import Applied, Target, apply_bag, apply_groups, emit_difference
from headwater.capture import buffers
from headwater.catalog import CatalogSource, Closure, Frontier, StreamTable
from headwater.clock import Phases
from headwater.config import Settings
from headwater.db.connection import (
    RETRYABLE,
    Connection,
    one,
    retried,
    transaction,
    translated,
)
from headwater.db.queries import query
from headwater.db.work import Scratch
from headwater.definition import Definition, DefinitionReader, definition_oid
from headwater.engine.base import Engine
from headwater.engine.postgres import PostgresEngine
from headwater.errors import (
    DriftDetected,
    EngineUnavailable,
    HeadwaterError,
    NotFound,
    RefreshFailed,
)
from headwater.history import Outcome
from headwater.plan.maintain import BagPlan, GroupPlan
from headwater.plan.operators import referenced_columns
from headwater.plan.render import Staged
from headwater.registration import bring_up_to_date

ScratchFactory = Callable[[Connection, str], Scratch]


@dataclass(frozen=True)
class Request:
    """What the caller wants of a refresh."""

    full: bool = False
    engine: str | None = None  # overrides the stream table's own


@dataclass(frozen=True)
class _Choice:
    action: history.Action
    reason: str
    rows_in: int = 0
    changed: frozenset[int] = frozenset()
    release: bool = False  # nothing to do, but moving the frontier lets consumed change rows go


DATA_EXCEPTION = "22"
HISTORY_CLEANING_INTERVAL = 256
"""Old history is looked for once in so many refreshes."""


class _Failed(Exception):
    """A refresh of a closure failed, at this stream table, with this error."""

    def __init__(self, stream_table: StreamTable, error: HeadwaterError) -> None:
        super().__init__(str(error))
        self.stream_table = stream_table
        self.error = error

    @property
    def remedied_by_recomputing(self) -> str | None:
        """The reason to recompute, if that can help."""
        if isinstance(self.error, DriftDetected):
            return f"{self.error.message}: {self.error.detail}"
        if (getattr(self.error.__cause__, "sqlstate", None) or "").startswith(DATA_EXCEPTION):
            # A term may join a new row with an old one that were never there together, and divide by zero.
            return f"its delta met an error that the query itself need not meet: {self.error.message}"
        return None


class Refresher:
    """Refreshes stream tables over one connection."""

    def __init__(
        self,
        connection: Connection,
        settings: Settings,
        reader: DefinitionReader,
        scratch: ScratchFactory = Scratch,
    ) -> None:
        self._connection = connection
        self._settings = settings
        self._reader = reader
        self._scratch = scratch

    def refresh(self, stream_table: StreamTable, request: Request) -> list[Outcome]:
        """Refreshes a stream table and those it reads; outcomes in the order of the graph."""
        label, started = stream_table.label, Phases()
        while True:
            try:
                outcomes = retried(
                    lambda: self._attempt(stream_table.id, request),
                    what=f"refresh of {label}",
                    attempts=self._settings.lock_attempts,
                )
                break
            except _Failed as failed:
                reason = failed.remedied_by_recomputing
                if reason is not None and failed.stream_table.rebuild_reason is None:
                    self._mark_for_rebuild(failed.stream_table.id, reason)
                    continue
                self._record_failure(failed, started)
                raise failed.error from failed.error.__cause__
            except (psycopg.Error, HeadwaterError) as error:
                failure = (
                    translated(error, f"refresh of {label}", RefreshFailed)
                    if isinstance(error, psycopg.Error)
                    else error
                )
                failure.__cause__ = error if isinstance(error, psycopg.Error) else error.__cause__
                self._record_failure(_Failed(stream_table, failure), started)
                raise failure from failure.__cause__
        self._clean(outcomes)
        return outcomes

    def refresh_here(self, stream_table_id: int, request: Request) -> list[Outcome]:
        """Refreshes inside the caller's REPEATABLE READ transaction."""
        try:
            return self._refresh_members(
                stream_table_id, catalog.closure(self._connection, stream_table_id), request
            )
        except _Failed as failed:
            raise failed.error from failed.error.__cause__

    def lock_tables(self, tables: list[tuple[str, str]]) -> None:
        """Keeps TRUNCATE and rewrites, which no snapshot shows as they were, off tables from here on."""
        if tables:
            names = sql.SQL(", ").join(sql.Identifier(*table) for table in tables)
            self._connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(names))

    def _attempt(self, stream_table_id: int, request: Request) -> list[Outcome]:
        connection = self._connection
        closure = catalog.closure(connection, stream_table_id)
        members = catalog.stream_tables(connection, list(closure.order))
        bring_up_to_date(connection, self._reader, members)
        for member in members:
            if member.mode == "differential" and member.frontier is None:
                # Protects the change rows from here on until the rebuild has its own snapshot.
                connection.execute(query("catalog", "set_frontier"), {"id": member.id})
                self._mark_for_rebuild(member.id, member.rebuild_reason or "it has never been loaded")
        with transaction(connection, repeatable_read=True):
            self.lock_tables(closure.tables)
            return self._refresh_members(stream_table_id, closure, request)

    def _refresh_members(self, stream_table_id: int, closure: Closure, request: Request) -> list[Outcome]:
        by_id = {member.id: member for member in catalog.stream_tables(self._connection, list(closure.order))}
        outcomes = []
        if len(by_id) < len(closure.order):
            raise NotFound(
                "a stream table that takes part in this refresh was dropped in the meantime", hint="repeat it"
            )
        for member in closure.order:
            wanted = request if member == stream_table_id else Request(engine=request.engine)
            try:
                outcomes.append(self._refresh_one(by_id[member], closure.sources[member], wanted))
            except HeadwaterError as error:
                raise _Failed(by_id[member], error) from error
            except psycopg.Error as error:
                if error.sqlstate in RETRYABLE:
                    raise
                failure = translated(error, f"refresh of {by_id[member].label}", RefreshFailed)
                failure.__cause__ = error
                raise _Failed(by_id[member], failure) from error
        return outcomes

    def _refresh_one(
        self, stream_table: StreamTable, sources: list[CatalogSource], request: Request
    ) -> Outcome:
        connection, phases = self._connection, Phases()
        with phases.measure("choose"):
            _check_intact(stream_table, sources)
            choice = self._choose(stream_table, sources, request)
            engine = self.engine_for(stream_table, request)
        outcome = Outcome(
            stream_table=stream_table.label,
            stream_table_id=stream_table.id,
            action=choice.action,
            mode="full" if choice.action == "recompute" else stream_table.mode,
            engine=engine.name,
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
            self._lock(stream_table)
            connection.execute("SELECT set_config('TimeZone', %s, true)", (stream_table.time_zone,))
            definition = self.read_definition(stream_table)
        # The signature tells the temporary tables of different plans apart within a session.
        prefix = f"hw{stream_table.id}_{stream_table.mode}_{definition.signature[:8]}"
        scratch = self._scratch(connection, prefix)
        target = self.target(stream_table, definition)
        if choice.action == "delta" and self._is_current(stream_table, definition):
            applied = self._delta(stream_table, definition, sources, choice, engine, scratch, target, phases)
        else:
            with phases.measure("apply"):
                applied = self._recompute(stream_table, definition, scratch, target)
            outcome = replace(outcome, action="recompute", mode="full")
        with phases.measure("record"):
            connection.execute(query("catalog", "set_frontier"), {"id": stream_table.id})
            if stream_table.rebuild_reason is not None:
                self._mark_for_rebuild(stream_table.id, None)
            snapshot = one(connection, "SELECT pg_current_snapshot()::text")[0]
        outcome = replace(
            outcome, applied=applied, snapshot=snapshot, elapsed=phases.elapsed, phases=phases.milliseconds
        )
        return replace(outcome, history_id=history.record(connection, outcome))

    def _lock(self, stream_table: StreamTable) -> None:
        """Waits as long as it takes for another refresh of the stream table, which keeps no user waiting."""
        self._connection.execute("SET LOCAL lock_timeout = 0")
        self._connection.execute(query("catalog", "lock_stream_table"), {"id": stream_table.id})
        self._connection.execute(f"SET LOCAL lock_timeout = {self._settings.lock_timeout_ms:d}")

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
        for relation, waiting in found.items():
            if waiting.truncated:
                return _Choice("recompute", f"{labels[relation]} was truncated", waiting.rows)
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
        return _Choice("delta", f"{rows} change row{'s' if rows != 1 else ''} in {names}", rows, changed)

    def _frontier_can_move(self, stream_table: StreamTable) -> bool:
        assert stream_table.frontier is not None
        moved: bool = one(
            self._connection,
            "SELECT pg_snapshot_xmin(pg_current_snapshot()) > pg_snapshot_xmin(%s::pg_snapshot)",
            (stream_table.frontier.snapshot,),
        )[0]
        return moved

    def engine_for(self, stream_table: StreamTable, request: Request) -> Engine:
        wanted = request.engine or stream_table.engine
        if wanted == "spark":
            raise EngineUnavailable(
                f"{stream_table.label} cannot be refreshed on Spark: this version has no Spark engine",
                hint=f"headwater alter {stream_table.label} --engine auto",
            )
        return PostgresEngine()

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

    def _delta(
        self,
        stream_table: StreamTable,
        definition: Definition,
        sources: list[CatalogSource],
        choice: _Choice,
        engine: Engine,
        scratch: Scratch,
        target: Target,
        phases: Phases,
    ) -> Applied:
        plan, frontier = definition.plan, stream_table.frontier
        assert plan is not None
        assert frontier is not None
        with phases.measure("stage"):
            tables = {source.relation: str(source.change_table) for source in sources}
            staged = stage(scratch, plan, choice.changed, tables, frontier)
        if not staged.tables:  # what changed cancels out, or is in columns that the query does not read
            return Applied()
        return compute_and_apply(engine, scratch, plan, staged, target, phases)

    def _recompute(
        self, stream_table: StreamTable, definition: Definition, scratch: Scratch, target: Target
    ) -> Applied:
        """Brings the stored rows to the query's present result, touching only those that differ."""
        mode = definition.mode_for(stream_table.mode)
        if mode != stream_table.mode or not self._is_current(stream_table, definition):
            return self._replace_storage(stream_table, definition, mode, scratch, target)
        plan = definition.maintenance(mode)
        if isinstance(plan, GroupPlan):
            scratch.shape("result", plan.stored_sql(target.storage))
            scratch.fill("result", plan.full_sql())
            return apply_groups(scratch, plan, target, affected=None)
        scratch.fill("delta", plan.difference_sql(target.storage))
        try:
            return apply_bag(scratch, plan, target)
        except DriftDetected:  # the stored hashes are of texts that were changed since, as by a renamed label
            return self._replace_storage(stream_table, definition, mode, scratch, target)

    def _replace_storage(
        self, stream_table: StreamTable, definition: Definition, mode: str, scratch: Scratch, target: Target
    ) -> Applied:
        """Loads new storage beside the old one, for what is stored has changed its shape or meaning."""
        connection = self._connection
        plan = definition.maintenance(mode)
        successor, rows = storage.load_successor(connection, stream_table.id, plan)
        view = sql.Identifier(stream_table.schema, stream_table.name).as_string(connection)
        emit_difference(scratch, replace(target, storage=successor), plan, view)
        storage.succeed(connection, stream_table.schema, stream_table.name, stream_table.id, plan)
        connection.execute(
            query("catalog", "set_fingerprint"),
            {"id": stream_table.id, "fingerprint": definition.fingerprint(mode)},
        )
        return Applied(inserted=rows)

    def _mark_for_rebuild(self, stream_table_id: int, reason: str | None) -> None:
        self._connection.execute(
            query("catalog", "set_rebuild_reason"), {"id": stream_table_id, "reason": reason}
        )

    def _record_failure(self, failed: _Failed, started: Phases) -> None:
        if self._connection.closed or not catalog.stream_tables(self._connection, [failed.stream_table.id]):
            return
        stream_table = failed.stream_table
        history.record(
            self._connection,
            Outcome(
                stream_table=stream_table.label,
                stream_table_id=stream_table.id,
                action="delta" if stream_table.mode == "differential" else "recompute",
                mode=stream_table.mode,
                engine=stream_table.engine,
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
        try:
            with transaction(self._connection):
                captured = list(sources.values())
                buffers.remove_consumed(self._connection, captured)
                buffers.give_up_laggards(self._connection, captured, self._settings.max_buffer_rows)
                if any((outcome.history_id or 0) % HISTORY_CLEANING_INTERVAL == 1 for outcome in moved):
                    history.forget(self._connection, self._settings.history_retention)
        except psycopg.Error as error:
            if error.sqlstate is None:
                raise


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
            hint=f"headwater drop {stream_table.label}, then create it again",
        )


def stage(
    scratch: Scratch,
    plan: BagPlan | GroupPlan,
    changed: frozenset[int],
    change_tables: dict[int, str],
    frontier: Frontier,
) -> Staged:
    """Puts the consolidated change of each changed source into a table of its own, less those without any."""
    wanted = referenced_columns(plan.root)
    staged = {}
    for number, source in enumerate(plan.sources):
        if source.relation in changed:
            table = f"source{number}"
            changes = buffers.staging_sql(
                source, wanted[source.relation], change_tables[source.relation], frontier
            )
            if scratch.fill(table, changes):
                staged[source.relation] = scratch.name(table)
    return Staged(staged)


def compute_and_apply(
    engine: Engine,
    scratch: Scratch,
    plan: BagPlan | GroupPlan,
    staged: Staged,
    target: Target,
    phases: Phases,
) -> Applied:
    """The delta of a plan from staged changes of its sources, computed and applied."""
    if isinstance(plan, BagPlan):
        with phases.measure("compute"):
            engine.bag_delta(scratch, plan, staged)
        with phases.measure("apply"):
            return apply_bag(scratch, plan, target)
    scratch.shape("result", plan.stored_sql(target.storage))
    if plan.algebra is None:
        with phases.measure("compute"):
            engine.affected_keys(scratch, plan, staged)
            engine.recompute(scratch, plan, scratch.name("keys"))
        affected = scratch.name("keys")
    else:
        with phases.measure("compute"):
            engine.state_delta(scratch, plan, staged)
            rescan = plan.rescan_sql(scratch.name("delta"), target.storage)
            rescanned = None
            if rescan is not None and scratch.fill("keys", rescan):
                rescanned = scratch.name("keys")
                engine.recompute(scratch, plan, rescanned)
            scratch.fill("result", plan.merge_sql(scratch.name("delta"), target.storage, rescanned))
        affected = scratch.name("delta")
    with phases.measure("apply"):
        return apply_groups(scratch, plan, target, affected)
