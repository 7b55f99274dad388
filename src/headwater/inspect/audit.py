"""Audits: stream tables compared with their queries from time to time, so that we find our own defects.

An audit goes through a stream table in slices, by ranges of the values of one column; a small one is one
slice. For each slice the stream table is brought up to date in a REPEATABLE READ transaction, its rows in the
range are compared with those of the definition view at that snapshot, and the transaction is rolled back. So
a slice changes nothing, and holds its locks and its snapshot only while it runs. The progress of an audit is
stored after each slice: a program that is killed loses one slice.

An audit works in turns. A turn ends when its budget is used up, and the service waits before the next. A
statement that takes much longer than that is cancelled, and the audit is given up until the next interval.

Rows that differ are an incident. It is recorded, and the stream table is marked, recomputed from its query,
and recomputed at each refresh from then on (see `refresh.incidents`). A stream table that recomputes at each
refresh anyway is not audited: each of its refreshes compares the stored rows with the query.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass

import psycopg
from psycopg import sql

from headwater.apply import storage
from headwater.capture.registry import partitions_moved
from headwater.catalog import stream_tables as catalog
from headwater.catalog.stream_tables import StreamTable
from headwater.config import Settings, milliseconds
from headwater.db.connection import (
    QUERY_CANCELED,
    Connection,
    TryAgain,
    one,
    retried,
    transaction,
    translated,
)
from headwater.db.queries import query
from headwater.db.scratch import statement
from headwater.definition.reader import Definition
from headwater.errors import DeltaFailed, DriftDetected, HeadwaterError, LockNotAvailable, RefreshFailed
from headwater.plan.quoting import identifier, literal
from headwater.plan.storage_plan import where_shown
from headwater.refresh.compare import Difference, PlanRefuted, differences, disregarding, estimated_cost
from headwater.refresh.decide import Request
from headwater.refresh.dependencies import outdated
from headwater.refresh.transaction import Refresher

SLICE_ROWS = 100_000
"""About how many rows a slice has."""
PATIENCE = 10
"""A statement that takes this many times the budget is cancelled."""
SLICEABLE = storage.SHORT_TYPES | {"text", "character varying", "numeric"}
"""Types by whose order a stream table can be sliced."""
TYPMOD = re.compile(r"\(.*?\)")


@dataclass(frozen=True, kw_only=True)
class Turn:
    """The result of one turn of an audit."""

    stream_table: str
    slices: int  # compared in this turn
    finished: bool = False
    result: str = ""
    incident: int | None = None


@dataclass(frozen=True)
class _Position:
    """How far an audit has got."""

    slice: int
    column: str | None = None  # the column by whose values it is sliced
    after: str | None = None  # the greatest value that was compared


@dataclass(frozen=True)
class _Slice:
    """The result of one slice."""

    difference: Difference
    next: _Position | None  # None after the last slice


class _Postponed(Exception):
    """A stream table cannot be audited in its present state."""


class Auditor:
    """Audits stream tables over one connection."""

    def __init__(
        self,
        connection: Connection,
        settings: Settings,
        refresher: Refresher,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection = connection
        self._settings = settings
        self._refresher = refresher
        self._clock = clock

    def turn(self, stream_table_id: int) -> Turn:
        """Compare slices of a stream table until its audit is finished or the budget is used up."""
        label = catalog.stream_table(self._connection, stream_table_id).label
        started, slices = self._clock(), 0
        position = _Position(*one(self._connection, query("audit", "begin"), {"id": stream_table_id}))
        try:
            while True:
                done = self._compared(stream_table_id, label, position)
                slices += 1
                if done.difference:
                    return self._differs(stream_table_id, label, position.slice + 1, slices, done.difference)
                if done.next is None:
                    note = f": {done.difference.note}" if done.difference.note else ""
                    return self._finished(stream_table_id, label, position.slice + 1, slices, f"equal{note}")
                position = done.next
                values = {"slice": position.slice, "column": position.column, "after": position.after}
                self._connection.execute(query("audit", "advance"), {"id": stream_table_id, **values})
                if self._clock() - started >= milliseconds(self._settings.audit_budget) / 1000:
                    return Turn(stream_table=label, slices=slices)
        except (_Postponed, LockNotAvailable) as reason:
            said = f"postponed: {reason.message if isinstance(reason, HeadwaterError) else reason}"
            return self._finished(stream_table_id, label, position.slice, slices, said)

    def _finished(self, number: int, label: str, total: int, slices: int, result: str) -> Turn:
        values = {"id": number, "slices": total, "result": result}
        self._connection.execute(query("audit", "finish"), values)
        return Turn(stream_table=label, slices=slices, finished=True, result=result)

    def _differs(self, number: int, label: str, total: int, slices: int, difference: Difference) -> Turn:
        """Record an incident, and recompute the stream table from its query."""
        incident = self._refresher.hold(number, label, "audit", difference)
        turn = self._finished(number, label, total, slices, f"different: {difference}")
        self._refresher.refresh_together([number])
        return Turn(
            stream_table=label, slices=turn.slices, finished=True, result=turn.result, incident=incident
        )

    def _compared(self, number: int, label: str, position: _Position) -> _Slice:
        """Compare one slice, in a transaction of its own."""
        what = f"audit of {label}"
        try:
            return retried(
                lambda: self._refresher.reader.prepared(lambda: self._compare(number, position)),
                what=what,
                attempts=self._settings.lock_attempts,
            )
        except (DeltaFailed, DriftDetected, PlanRefuted) as error:
            raise _Postponed(f"its next refresh recomputes it: {error.message}") from error
        except psycopg.Error as error:
            if error.sqlstate == QUERY_CANCELED:
                raise _Postponed("a slice takes much longer than audit_budget") from error
            raise translated(error, what, RefreshFailed) from error

    def _compare(self, number: int, position: _Position) -> _Slice:
        connection, refresher = self._connection, self._refresher
        closure = catalog.together(connection, [number])
        stream_table = catalog.stream_table(connection, number)
        if stream_table.mode == "full":
            raise _Postponed("it is recomputed at each refresh")
        if stream_table.rebuild_reason is not None or outdated(connection, [number]):
            raise _Postponed("its next refresh recomputes it")
        with transaction(connection, repeatable_read=True, rollback=True):
            connection.execute(self._limits(number), prepare=False)
            refresher.lock_tables(closure)
            outcome = refresher.refresh_here(number, Request(engine="postgres"), {}, closure)[-1]
            if outcome.action == "recompute":
                raise _Postponed(f"its next refresh recomputes it: {outcome.reason}")
            connection.execute("SELECT set_config('TimeZone', %s, true)", (stream_table.time_zone,))
            definition = refresher.members.read_definition(stream_table)
            refresher.members.check_storage(stream_table)
            found = self._slice(stream_table, definition, position)
            partitioned = [source.relation for source in closure.sources[number] if source.partitioned]
            if partitioned and partitions_moved(connection, partitioned):
                raise TryAgain("a partition was attached meanwhile")
        return found

    def _limits(self, number: int) -> sql.Composed:
        """Limit the session to one process and short statements: an audit can wait, and users cannot."""
        own, limit = (
            milliseconds(duration)
            for duration in (self._settings.statement_timeout, self._settings.audit_budget)
        )
        limit *= PATIENCE
        return sql.SQL(
            "SET LOCAL application_name = {}; SET LOCAL max_parallel_workers_per_gather = 0;"
            " SET LOCAL statement_timeout = {}"
        ).format(sql.Literal(f"headwater audit {number}"), sql.Literal(min(own, limit) if own else limit))

    def _slice(self, stream_table: StreamTable, definition: Definition, position: _Position) -> _Slice:
        stored, view = storage.storage_sql(stream_table.id), definition.view
        column = position.column or self._slice_column(definition, stored)
        condition, upper = "true", None
        if column is not None:
            upper = self._upper(definition, stored, column, position.after)
            condition = self._range(definition, column, position.after, upper)
        columns = ", ".join(item.sql for item in definition.columns)
        shown = where_shown(definition.maintenance("differential"))
        difference = differences(
            self._connection,
            definition.columns,
            f"SELECT * FROM {view} AS whole WHERE {condition}",
            f"SELECT * FROM (SELECT {columns} FROM {stored}{shown}) AS whole WHERE {condition}",
        )
        following = _Position(position.slice + 1, column, upper) if upper is not None else None
        return _Slice(disregarding(self._connection, definition, difference), following)

    def _slice_column(self, definition: Definition, stored: str) -> str | None:
        """Return the column by which slices of a large stream table's query cost least."""
        rows = one(self._connection, query("audit", "stored_rows"), {"table": stored})[0]
        if rows <= SLICE_ROWS:
            return None
        usable = [
            column.name for column in definition.columns if TYPMOD.sub("", column.type.base) in SLICEABLE
        ]
        found = self._connection.execute(
            query("audit", "varied_columns"),
            {"table": stored, "columns": usable, "least": rows / SLICE_ROWS},
        ).fetchall()
        costs = {}
        for (name,) in found:
            condition = self._range(definition, name, None, self._upper(definition, stored, name, None))
            costs[name] = estimated_cost(
                self._connection, f"SELECT * FROM {definition.view} AS whole WHERE {condition}"
            )
        return min(costs, key=lambda name: costs[name], default=None)

    def _upper(self, definition: Definition, stored: str, column: str, after: str | None) -> str | None:
        """Return the greatest value of the slice that follows a value; None if that is the last slice."""
        name = f"s.{identifier(column)}"
        following = f"> {self._value(definition, column, after)}" if after is not None else "IS NOT NULL"
        row = self._connection.execute(
            statement(
                f"SELECT {name}::text FROM {stored} AS s WHERE {name} {following} ORDER BY {name}"
                f" OFFSET {SLICE_ROWS - 1} LIMIT 1"
            )
        ).fetchone()
        return str(row[0]) if row is not None else None

    def _range(self, definition: Definition, column: str, after: str | None, upper: str | None) -> str:
        """Return the condition of a slice; all slices together cover every value, and NULL, once."""
        name = f"whole.{identifier(column)}"
        bounds = [] if after is None else [f"{name} > {self._value(definition, column, after)}"]
        if upper is not None:
            return " AND ".join([*bounds, f"{name} <= {self._value(definition, column, upper)}"])
        return f"({bounds[0]} OR {name} IS NULL)" if bounds else "true"

    def _value(self, definition: Definition, column: str, text: str) -> str:
        kind = next(item.type for item in definition.columns if item.name == column)
        return f"{literal(text)}::{kind.sql}"
