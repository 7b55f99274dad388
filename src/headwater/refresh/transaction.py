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
from dataclasses import replace
from types import MappingProxyType

import psycopg
from psycopg import sql

from headwater.apply import storage, swap
from headwater.capture import buffers, consumers, marks
from headwater.capture.registry import LIFECYCLE_LOCK
from headwater.catalog import cleanup, history, installed
from headwater.catalog import stream_tables as catalog
from headwater.catalog.history import Outcome
from headwater.catalog.incidents import FoundBy
from headwater.catalog.stream_tables import Closure, StreamTable
from headwater.clock import Phases
from headwater.config import Settings
from headwater.db.connection import (
    RETRYABLE,
    Connection,
    TryAgain,
    retried,
    transaction,
    translated,
)
from headwater.db.queries import query
from headwater.db.scratch import Scratch, drop_unused
from headwater.definition.reader import DefinitionReader
from headwater.engine.observations import Took
from headwater.engine.select import EngineSelector
from headwater.errors import (
    ClaimLost,
    DeltaFailed,
    DeltaGivenUp,
    DriftDetected,
    HeadwaterError,
    NotFound,
    RefreshCancelled,
    RefreshFailed,
)
from headwater.refresh import incidents
from headwater.refresh.claim import Claim, check_claim, hold_claim
from headwater.refresh.compare import Difference, PlanRefuted
from headwater.refresh.decide import Request
from headwater.refresh.dependencies import Outdated, bring_up_to_date, follow_renames, outdated, register_anew
from headwater.refresh.fast_path import FastPath
from headwater.refresh.member import MemberRefresher, ScratchFactory, mark_for_rebuild

MOVED = frozenset({"42P01", "42703", "42883", "42704", "3F000"})
"""Something is not there under the name that the plan has for it."""
HISTORY_CLEANING_INTERVAL = 256
"""Old history is looked for once in so many refreshes."""


INCIDENTS: dict[FoundBy, str] = {
    "load": "the rows that its plan gives are not those of its query: {}",
    "refresh": "the rows that its plan gives are not those of its query: {}",
    "audit": "an audit found that its rows were not those of its query: {}",
}


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
        if isinstance(self.error, DeltaGivenUp | DeltaFailed):
            return self.error.message
        return None


class Refresher:
    """Refreshes stream tables over one connection."""

    def __init__(
        self,
        connection: Connection,
        settings: Settings,
        reader: DefinitionReader,
        selector: EngineSelector,
        scratch: ScratchFactory = Scratch,
    ) -> None:
        self._connection = connection
        self._settings = settings
        self.reader = reader
        self.selector = selector
        self.members = MemberRefresher(connection, settings, reader, selector, scratch)
        self.fast_path = FastPath(connection, settings, reader)

    def refresh(self, stream_table: StreamTable, request: Request) -> list[Outcome]:
        """Refreshes a stream table and those it reads; outcomes in the order of the graph."""
        try:
            if request.leaves_choice:
                outcomes = self._refresh_fast([stream_table.id], upstream=True)
                if outcomes is not None:
                    return outcomes
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
        outcomes = self._refresh_fast(members, claim, clean=clean)
        if outcomes is not None:
            return outcomes
        last = catalog.stream_table(self._connection, members[-1])
        return self._refresh(
            last, lambda: catalog.together(self._connection, members), Request(), claim, clean=clean
        )

    def _refresh_fast(
        self,
        members: Sequence[int],
        claim: Claim | None = None,
        *,
        upstream: bool = False,
        clean: bool = True,
    ) -> list[Outcome] | None:
        """Refreshes by compiled functions, with what is read if asked for; None if the driver is to do it."""
        batch = self.fast_path.batch(members, upstream=upstream)
        if batch is None:
            return None
        started = Phases()
        try:
            outcomes = self.fast_path.run(batch, claim)
        except KeyboardInterrupt:
            self._interrupted(self._looked_up(members[-1]), started)
            raise
        except (psycopg.Error, HeadwaterError) as error:
            raise self._failed(self._looked_up(members[-1]), error, started) from error
        if outcomes is not None:
            self._ended(outcomes, clean=clean)
        return outcomes

    def _looked_up(self, stream_table_id: int) -> StreamTable:
        """A stream table, over another connection if this one is broken."""
        if not self._connection.closed:
            return catalog.stream_table(self._connection, stream_table_id)
        with self.selector.another_connection() as another:
            return catalog.stream_table(another, stream_table_id)

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
        self.members.ledger.abandoned.clear()
        while True:
            try:
                outcomes = retried(
                    lambda: self.reader.prepared(
                        lambda: self._attempt(stream_table.id, find, request, claim)
                    ),
                    what=f"refresh of {label}",
                    attempts=self._settings.lock_attempts,
                )
                break
            except MemberFailed as failed:
                if isinstance(failed.error, PlanRefuted):
                    self.hold(
                        failed.stream_table.id, failed.stream_table.label, "refresh", failed.error.difference
                    )
                    continue
                reason = failed.remedied_by_recomputing
                if reason is not None and failed.stream_table.rebuild_reason is None:
                    self._distrust(failed.stream_table, reason)
                    continue
                self._record_failure(failed, started)
                raise
            except KeyboardInterrupt:
                self._interrupted(stream_table, started)
                raise
            except (psycopg.Error, HeadwaterError) as error:
                whole = self._failed(stream_table, error, started)
                raise whole from whole.error.__cause__
        self._ended(outcomes, clean=clean)
        self.fast_path.compile_missing(self.members.signatures)
        return outcomes

    def _interrupted(self, stream_table: StreamTable, started: Phases) -> None:
        interrupted = RefreshCancelled(f"refresh of {stream_table.label} was interrupted")
        self._record_failure(MemberFailed(stream_table, interrupted), started)

    def _failed(
        self, stream_table: StreamTable, error: psycopg.Error | HeadwaterError, started: Phases
    ) -> MemberFailed:
        """Records that a refresh failed as a whole, and says so."""
        failure = (
            translated(error, f"refresh of {stream_table.label}", RefreshFailed)
            if isinstance(error, psycopg.Error)
            else error
        )
        failure.__cause__ = error if isinstance(error, psycopg.Error) else error.__cause__
        whole = MemberFailed(stream_table, failure)
        if not isinstance(failure, ClaimLost):  # whoever has it now makes the record
            self._record_failure(whole, started)
        return whole

    def _ended(self, outcomes: list[Outcome], *, clean: bool) -> None:
        """Notes what refreshes took, and cleans up after them."""
        for outcome in outcomes:
            self.selector.observations.add(
                Took(
                    outcome.stream_table_id,
                    outcome.action,
                    outcome.engine,
                    outcome.rows_in,
                    outcome.duration_ms,
                    outcome.phases,
                    outcome.sqlstate,
                    outcome.fell_back,
                    outcome.abandoned_ms,
                )
            )
        if clean:
            self._clean(outcomes)

    def refresh_here(
        self,
        stream_table_id: int,
        request: Request,
        distrusted: dict[int, str],
        closure: Closure | None = None,
    ) -> list[Outcome]:
        """Refreshes inside the caller's REPEATABLE READ transaction: with all that it reads, or a closure.

        Recomputes the stream tables that are distrusted, by id, for their reasons. One whose delta fails is
        added to them, for the caller's next transaction: this one is lost.
        """
        try:
            return self._refresh_members(
                stream_table_id,
                closure or catalog.closure(self._connection, stream_table_id),
                replace(request, in_others_transaction=True),
                distrusted,
            )
        except MemberFailed as failed:
            if isinstance(failed.error, DeltaFailed):
                distrusted[failed.stream_table.id] = failed.error.message
            raise failed.error from failed.error.__cause__

    def follow_renames(self, closure: Closure) -> None:
        """Adopts the names that users gave to columns of stream tables."""
        follow_renames(self._connection, self.reader, closure.order)

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
        closure, found = self._adopt(find)
        self._require_intact(closure, {item.id for item in found if item.what == "broken"})
        try:
            with transaction(connection, repeatable_read=True):
                self.begin(stream_table_id, closure)
                installed.hold_version(connection)
                if claim is not None:
                    hold_claim(connection, claim)
                if find().sources != closure.sources:
                    # What was locked, before the snapshot was taken, is not what its query reads by now.
                    raise TryAgain("what it reads was changed in the meantime")
                outcomes = self._refresh_members(stream_table_id, closure, request)
                if claim is not None:
                    check_claim(connection, claim)
                return outcomes
        except (MemberFailed, psycopg.Error) as error:
            cause = error.error.__cause__ if isinstance(error, MemberFailed) else error
            if getattr(cause, "sqlstate", None) in MOVED and outdated(connection, closure.order):
                # Renaming a schema waits for nobody. What is locked later than the plan is made, neither.
                raise TryAgain("what it reads was renamed meanwhile") from error
            raise

    def adopt(self, stream_table_id: int) -> Closure:
        """Registers what changed under a stream table and those it reads; which these are now."""
        return self._adopt(lambda: catalog.closure(self._connection, stream_table_id))[0]

    def _require_intact(self, closure: Closure, broken: set[int]) -> None:
        """Raises MemberFailed for the first of the broken stream tables, unless it was repaired meanwhile."""
        for member in closure.order if broken else ():
            if member in broken:
                stream_table = catalog.stream_table(self._connection, member)
                error = catalog.broken(self._connection, stream_table)
                if error is not None:
                    raise MemberFailed(stream_table, error)

    def _adopt(self, find: Callable[[], Closure]) -> tuple[Closure, list[Outdated]]:
        """Registers what changed under the stream tables that are found; these, and what it left as it is."""
        closure, adopted = find(), list[Outdated]()
        while (found := bring_up_to_date(self._connection, self.reader, closure.order)) and found != adopted:
            adopted, closure = found, find()  # it may read more
        return closure, found

    def _refresh_members(
        self,
        stream_table_id: int,
        closure: Closure,
        request: Request,
        distrusted: Mapping[int, str] = MappingProxyType({}),
    ) -> list[Outcome]:
        by_id = {
            member.id: replace(member, rebuild_reason=member.rebuild_reason or distrusted.get(member.id))
            for member in catalog.stream_tables(self._connection, list(closure.order))
        }
        outcomes = []
        self.members.begin(closure.order)
        if len(by_id) < len(closure.order):
            raise NotFound(
                "a stream table that takes part in this refresh was dropped in the meantime", hint="repeat it"
            )
        for member in closure.order:
            wanted = request if member == stream_table_id else replace(request, full=False)
            try:
                outcomes.append(self.members.refresh(by_id[member], closure.sources[member], wanted))
            except HeadwaterError as error:
                raise MemberFailed(by_id[member], error) from error
            except psycopg.Error as error:
                if error.sqlstate in RETRYABLE:
                    raise
                failure = translated(error, f"refresh of {by_id[member].label}", RefreshFailed)
                failure.__cause__ = error
                raise MemberFailed(by_id[member], failure) from error
        return outcomes

    def hold(self, stream_table_id: int, label: str, found_by: FoundBy, difference: Difference) -> int | None:
        """Has a stream table recomputed from its query at each refresh, for its plan gave other rows.

        The next refresh, or the load that is under way, replaces what is stored. Until then it is marked, so
        a program that dies here leaves nothing undone. Returns the number of the incident; None if others
        came first.
        """

        def attempt() -> int | None:
            with transaction(self._connection):
                self._connection.execute("SELECT pg_advisory_xact_lock(%s)", (LIFECYCLE_LOCK,))
                installed.hold_version(self._connection)
                self._connection.execute(query("catalog", "lock_stream_table"), {"id": stream_table_id})
                stream_table = catalog.stream_table(self._connection, stream_table_id)
                definition = self.members.read_definition(stream_table)
                if stream_table.mode == "full" or definition.plan is None:
                    return None
                reason = INCIDENTS[found_by].format(difference)
                number = incidents.record(
                    self._connection, stream_table_id, label, definition, found_by, reason, difference
                )
                register_anew(self._connection, stream_table, definition, "full", reason)
                return number

        return retried(attempt, what=f"refresh of {label}", attempts=self._settings.lock_attempts)

    def record_incident(self, stream_table_id: int, label: str, difference: Difference) -> None:
        """Writes an incident down for a stream table that is given up for it."""
        with transaction(self._connection):
            definition = self.members.read_definition(catalog.stream_table(self._connection, stream_table_id))
            reason = INCIDENTS["load"].format(difference)
            incidents.record(self._connection, None, label, definition, "load", reason, difference)

    def _distrust(self, stream_table: StreamTable, reason: str) -> None:
        """Has the next attempt recompute; another refresh of the stream table may hold its row just now."""
        retried(
            lambda: mark_for_rebuild(self._connection, stream_table.id, reason),
            what=f"refresh of {stream_table.label}",
            attempts=self._settings.lock_attempts,
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
        with suppress(psycopg.Error, HeadwaterError), self.selector.another_connection() as another:
            self._record_failure_over(another, failed, started)

    def _record_failure_over(self, connection: Connection, failed: MemberFailed, started: Phases) -> None:
        stream_table, decision = (
            failed.stream_table,
            self.members.ledger.decisions.get(failed.stream_table.id),
        )
        if self.members.ledger.left_database:
            self.selector.sweep(connection)
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
                fell_back=decision is not None and decision.fell_back,
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
                if due := any((one.history_id or 0) % HISTORY_CLEANING_INTERVAL == 1 for one in moved):
                    marks.forget(self._connection)
            if due:
                cleanup.clean_up_if_due(self._connection, self._settings)
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
            swap.give_up_retired(self._connection, view, stream_table.relation, stream_table.id)
