"""The fast path of small refreshes: compiled functions, called together in one round trip.

Who refreshes asks for the members of a batch (`FastPath.batch`) and runs it. A batch is one message: it opens
a REPEATABLE READ transaction, locks what is read, calls the functions in the order of the graph, and commits.
If a function leaves what it does not cover to the driver, nothing is done yet, and the driver does all of it.

What is known of functions is kept by the process. That cannot mislead it: a function runs for the token that
its caller read with it, and compares what it was made from with what there is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from graphlib import TopologicalSorter
from typing import Any

import psycopg
from psycopg import sql

from headwater.apply import storage
from headwater.apply.merge import Target
from headwater.capture.buffers import change_table_sql
from headwater.catalog import compiled
from headwater.catalog import stream_tables as catalog
from headwater.catalog.compiled import CompiledRefresh
from headwater.catalog.history import Applied, Outcome
from headwater.catalog.stream_tables import StreamTable
from headwater.config import Settings
from headwater.db.connection import (
    QUERY_CANCELED,
    RETRYABLE,
    Connection,
    TryAgain,
    in_one_round_trip,
    is_pooled,
    one,
    transaction,
)
from headwater.db.queries import query
from headwater.db.scratch import statement
from headwater.definition.reader import Definition, DefinitionReader
from headwater.engine.postgres.engine import MOST_AT_ONCE
from headwater.errors import HeadwaterError
from headwater.plan.quoting import identifier, literal
from headwater.refresh.claim import CLAIM_LOST, Claim
from headwater.refresh.compile import (
    OUTDATED,
    NotCovered,
    Subject,
    compile_refresh,
    function_name,
    most_rows,
)
from headwater.refresh.index_advice import is_slow, want_of_index
from headwater.version import version

REASON = "its compiled refresh takes small changes"
MOST_CALLED = 200
"""Functions that one session calls. It keeps the plans of each, about 1 MB, for as long as it lasts."""
MOST_CALLED_POOLED = 50
"""The same behind a pooler, where others call theirs in the same session."""
LONG = timedelta(milliseconds=500)
"""After a delta that took longer, the driver decides whether recomputing is cheaper."""
REFRESHES_BY_DRIVER = 16
"""So often, before the function is called again."""


class FastPath:
    """Calls compiled refreshes over one connection, and has them compiled."""

    def __init__(self, connection: Connection, settings: Settings, reader: DefinitionReader) -> None:
        self._connection = connection
        self._settings = settings
        self._reader = reader
        self._known = reader.compiled

    # calling

    def batch(self, members: Sequence[int], *, upstream: bool) -> tuple[CompiledRefresh, ...] | None:
        """Find the compiled refreshes of stream tables, and of those that they read if asked for.

        Returns None if one of them has none.
        """
        if not self._settings.compiled_refreshes or self._settings.max_buffer_rows < MOST_AT_ONCE:
            return None
        found = self._collect(members, upstream=upstream)
        if any(member not in self._known for member in found):
            for entry in compiled.entries(self._connection, members, upstream=upstream):
                self._known[entry.stream_table_id] = entry
            found = self._collect(members, upstream=upstream)
            for member in found:
                self._known.setdefault(member, CompiledRefresh(member, version(), signature=""))
        entries = {}
        for member in found:
            known = self._known.get(member)  # another thread may have forgotten it meanwhile
            if known is None or known.token is None or known.version != version():
                return None
            entries[member] = known
        if self._were_slow(found):
            return None
        most = MOST_CALLED_POOLED if is_pooled(self._connection) else MOST_CALLED
        if len(self._reader.called | found) > most:
            return None
        order = members
        if upstream:
            reads = {member: entry.reads for member, entry in entries.items()}
            order = list(TopologicalSorter(reads).static_order())
        return tuple(entries[member] for member in order)

    def _were_slow(self, members: set[int]) -> bool:
        left = self._reader.left_to_driver
        for member in members & left.keys():
            left[member] -= 1
            if left[member] == 0:
                del left[member]
            return True
        return False

    def _collect(self, members: Sequence[int], *, upstream: bool) -> set[int]:
        """Find these stream tables and, if asked for, those that they read, as far as is known."""
        found: set[int] = set()
        waiting = list(members)
        while waiting:
            member = waiting.pop()
            if member not in found:
                found.add(member)
                if upstream and (entry := self._known.get(member)) is not None:
                    waiting += entry.reads
        return found

    def run(self, members: Sequence[CompiledRefresh], claim: Claim | None) -> list[Outcome] | None:
        """Refresh; None, with nothing done, if the driver is to do it.

        Raises what the driver could not remedy either: that it was cancelled, that the connection broke, that
        the claim was lost.
        """
        self._reader.called.update(member.stream_table_id for member in members)
        try:
            results = in_one_round_trip(self._connection, self._statements(members, claim))
        except psycopg.Error as error:
            self.forget(member.stream_table_id for member in members if error.sqlstate == OUTDATED)
            if error.sqlstate == CLAIM_LOST and claim is not None:
                raise claim.lost(error) from error
            if error.sqlstate is None or error.sqlstate == QUERY_CANCELED or self._connection.closed:
                raise
            return None
        found = [rows[0][0] for rows in results if rows and isinstance(rows[0][0], dict)]
        outcomes = []
        for member, result in zip(members, found, strict=True):
            outcome = _outcome(member.stream_table_id, result)
            if outcome.elapsed > LONG:
                self._reader.left_to_driver[member.stream_table_id] = REFRESHES_BY_DRIVER
            if is_slow(outcome.phases):
                outcome = self._with_advice(outcome, frozenset(result["changed"]))
            outcomes.append(outcome)
        return outcomes

    def _with_advice(self, outcome: Outcome, changed: frozenset[int]) -> Outcome:
        """Say which index a slow delta lacked, in the history, too."""

        def attempt() -> str:
            with transaction(self._connection):
                definition = self._reader.current(outcome.stream_table_id)
                layers = definition.layers({})
                lacking = want_of_index(self._connection, layers, changed, outcome.rows_in)
                if lacking:
                    self._connection.execute(
                        query("history", "add_to_reason"), {"id": outcome.history_id, "more": lacking}
                    )
                return lacking

        try:
            return replace(outcome, reason=outcome.reason + self._reader.prepared(attempt))
        except (psycopg.Error, HeadwaterError, TryAgain):  # the refresh itself is done
            if self._connection.closed:
                raise
            return outcome

    def _statements(self, members: Sequence[CompiledRefresh], claim: Claim | None) -> list[str]:
        tables = sorted({table for member in members for table in member.tables})
        limit = self._settings.lock_timeout_ms
        return [
            f"SET LOCAL application_name = 'headwater refresh {members[-1].stream_table_id}'",
            f"SET LOCAL lock_timeout = {max(1, limit // (len(tables) + 1))}",
            f"LOCK TABLE {', '.join([*tables, 'headwater.migration'])} IN ACCESS SHARE MODE",
            f"SET LOCAL lock_timeout = {limit}",
            *([claim.hold_sql] if claim is not None else []),
            *(
                f"SELECT {function_name(member.stream_table_id)}({literal(str(member.token))})"
                for member in members
            ),
            *([claim.check_sql] if claim is not None else []),
        ]

    # compiling

    def explained(self, stream_table_id: int) -> tuple[str | None, str | None]:
        """Return the function of a stream table as it is stored, or why it has none."""
        if not self._settings.compiled_refreshes:
            return None, "headwater.compiled_refreshes is off"
        entry = next(iter(compiled.entries(self._connection, [stream_table_id])), None)
        if entry is None or entry.refused is not None:
            return None, entry.refused if entry is not None else "the next refresh compiles it"
        row = self._connection.execute(
            "SELECT pg_get_functiondef(to_regprocedure(%s)) WHERE to_regprocedure(%s) IS NOT NULL",
            [f"{function_name(stream_table_id)}(text)"] * 2,
        ).fetchone()
        return (str(row[0]), None) if row is not None else (None, "the next refresh compiles it")

    def forget(self, stream_tables: Iterable[int]) -> None:
        """Have what is known of these looked up again, and compiled anew if need be."""
        for stream_table_id in stream_tables:
            self._known.pop(stream_table_id, None)

    def compile_missing(self, signatures: Mapping[int, str]) -> None:
        """Compile those stream tables, given with their signatures, that have no function of these.

        It is no part of a refresh: what does not work out now, the next refresh by the driver tries again.
        """
        if not self._settings.compiled_refreshes:
            return
        for stream_table_id, signature in signatures.items():
            known = self._known.get(stream_table_id)
            if known is None or (known.version, known.signature) != (version(), signature):
                try:
                    self._reader.prepared(partial(self.compile, stream_table_id))
                except (HeadwaterError, TryAgain):
                    pass
                except psycopg.Error as error:
                    if self._connection.closed:
                        return
                    if error.sqlstate not in RETRYABLE:  # such as for want of a privilege: not each time
                        self._known[stream_table_id] = CompiledRefresh(
                            stream_table_id, version(), signature, refused=str(error)
                        )

    def compile(self, stream_table_id: int) -> CompiledRefresh | None:
        """Make the function of a stream table, or write down why it has none; None if it is not the time."""
        connection = self._connection
        with transaction(connection, repeatable_read=True):
            if not one(connection, query("compiled", "lock"), {"id": stream_table_id})[0]:
                return None
            found = catalog.stream_tables(connection, [stream_table_id])
            if not found or found[0].mode != "differential" or found[0].status != "active":
                return None
            definition = self._reader.current(stream_table_id)
            if definition.plan is None or found[0].fingerprint != definition.fingerprint("differential"):
                return None
            entry = self._compile(found[0], definition)
        self._known[stream_table_id] = entry
        return entry

    def _compile(self, stream_table: StreamTable, definition: Definition) -> CompiledRefresh:
        connection = self._connection
        number, made_by = stream_table.id, version()
        known = next(iter(compiled.entries(connection, [number])), None)
        try:
            subject, tables, reads = self._subject(stream_table, definition)
        except NotCovered as error:
            entry = CompiledRefresh(number, made_by, definition.signature, refused=str(error))
        else:
            function = compile_refresh(subject)
            entry = CompiledRefresh(
                number, made_by, definition.signature, function.token, tuple(tables), tuple(reads)
            )
            if known is None or known.token != function.token:
                connection.execute(statement(function.sql), prepare=False)
        if entry != known:
            compiled.put(connection, entry)
        return entry

    def _subject(
        self, stream_table: StreamTable, definition: Definition
    ) -> tuple[Subject, list[str], list[int]]:
        """What a function is made from, the tables to lock, and the stream tables that it reads."""
        connection, number, plan = self._connection, stream_table.id, definition.plan
        assert plan is not None
        assert stream_table.relation is not None
        if stream_table.engine == "spark":
            raise NotCovered("Spark computes its deltas")
        if definition.candidates or definition.follows_path:
            raise NotCovered("parts of its query may be stored, or depend on the search_path")
        most_rows(plan)
        sources = catalog.sources_of(connection, number)
        change_tables = {source.relation: str(source.change_table) for source in sources}
        target = own_target(connection, stream_table, definition)
        own = [change_table_sql(target.change_table)] if target.change_table is not None else []
        names = [storage.storage_sql(number), *map(change_table_sql, change_tables.values()), *own]
        planned, *looked_up = one(
            connection,
            query("compiled", "subject"),
            {
                "id": number,
                "relations": list(definition.relations),
                "names": names,
                "captured": [source.relation for source in sources if source.stream_table_id is None],
            },
        )
        if planned != definition.signature:
            raise TryAgain("its definition changed while its refresh was compiled")
        checked = dict(zip(("relations", "functions", "types", "collations"), looked_up, strict=True))
        uncovered = connection.execute(query("compiled", "uncovered"), checked).fetchone()
        if uncovered is not None:
            raise NotCovered(str(uncovered[0]))
        fingerprint = one(connection, query("compiled", "fingerprint"), checked)
        subject = Subject(
            number,
            stream_table.label,
            stream_table.time_zone,
            definition.signature,
            definition.layers({}).top,
            target,
            change_tables,
            {source.relation: source.label for source in sources},
            stream_table.relation,
            tuple(looked_up),
            str(fingerprint[0]),
        )
        tables = [f"{identifier(str(source.schema))}.{identifier(str(source.name))}" for source in sources]
        reads = [source.stream_table_id for source in sources if source.stream_table_id is not None]
        return subject, tables, reads


def own_target(connection: Connection, stream_table: StreamTable, definition: Definition) -> Target:
    """The storage of a stream table, and where its own changes go."""
    row = connection.execute(query("refresh", "own_change_table"), {"id": stream_table.id}).fetchone()
    table, numbers = row if row is not None else (None, [])
    columns = tuple((definition.columns[number - 1].name, number) for number in numbers)
    return Target(stream_table.label, storage.storage_sql(stream_table.id), table, columns)


def drop_function(connection: Connection, stream_table_id: int) -> None:
    """Drop the compiled refresh of a stream table, if it has one."""
    connection.execute(
        sql.SQL("DROP FUNCTION IF EXISTS {}(text)").format(sql.SQL(function_name(stream_table_id)))
    )


def _outcome(stream_table_id: int, result: dict[str, Any]) -> Outcome:
    """What a function said of its refresh."""
    return Outcome(
        stream_table=str(result["label"]),
        stream_table_id=stream_table_id,
        action=result["action"],
        mode="differential",
        engine="postgres",
        reason=str(result["reason"]),
        elapsed=timedelta(seconds=float(result["elapsed"])),
        snapshot=result.get("snapshot"),
        rows_in=int(result.get("rows", 0)),
        applied=Applied(*result.get("applied", ())),
        phases=result.get("phases", {}),
        frontier_moved=bool(result["moved"]),
        history_id=result.get("history"),
        engine_reason=REASON if result["action"] == "delta" else "",
    )
