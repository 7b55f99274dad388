"""How long refreshes of stream tables took: from their history, to which each refresh of this process adds.

A refresh whose engine gave up is left out: its time belongs to neither engine. Planning is left out as well,
because a session does it once. The history is read again from time to time, because other processes refresh,
too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from headwater.db.connection import Connection, one
from headwater.db.queries import query
from headwater.engine.cost_model import Name, Observation, fitted
from headwater.util.lru_cache import LRUCache

RECENT, RECENT_FULL = 50, 5
"""The latest deltas and full computations, from which the next is predicted."""
READ_AGAIN = 16
"""The history of a stream table is read again after this many of its refreshes."""
REMEMBERED = 10_000
"""Stream tables that this process remembers."""
SHOWN_ROWS = (1, 100, 10_000, 1_000_000)
"""Sizes of changes for which predictions are shown."""
LOOKED_AT = 256
"""The latest refreshes that are searched for deltas that failed in a row. Even if each came after
`MOST_PASSED_OVER` others, these contain enough of them to pass over as many again."""


class Failures(NamedTuple):
    """The deltas of a stream table that met errors, since its last successful one."""

    in_a_row: int = 0
    recomputed_since: int = 0  # refreshes after the latest of them
    sqlstate: str | None = None  # of the latest


NO_FAILURES = Failures()


@dataclass(frozen=True)
class Full:
    """One full computation: the time of computing, comparing and writing, without planning."""

    action: str  # load or recompute
    engine: str
    elapsed_ms: float


@dataclass
class _Known:
    deltas: list[Observation] = field(default_factory=list)  # the latest first
    full: list[Full] = field(default_factory=list)  # the latest first
    failures: Failures = NO_FAILURES
    added: int = 0  # since the history was read


@dataclass(frozen=True)
class Prediction:
    """The milliseconds that a refresh of this many change rows would take each way; None if unknown."""

    rows: int
    postgres_ms: float | None
    spark_ms: float | None
    full_ms: float | None


@dataclass(frozen=True)
class Took:
    """How long one refresh took."""

    stream_table_id: int
    action: str
    engine: str
    rows: int
    elapsed_ms: float
    phases: Mapping[str, float]
    sqlstate: str | None = None  # of the error that a delta met before
    fell_back: bool = False  # one engine began and the other finished
    abandoned_ms: float | None = None  # of a delta that was tried before


class Observations:
    """The observations of one process about the stream tables of one database."""

    def __init__(self) -> None:
        self._known = LRUCache[int, _Known](REMEMBERED)

    def deltas(self, connection: Connection, stream_table_id: int) -> list[Observation]:
        """Return how long recent deltas took, the latest first."""
        return self._of(connection, stream_table_id).deltas

    def full_ms(self, connection: Connection, stream_table_id: int) -> float | None:
        """Return how long recomputing took lately, or else loading; None if neither is known.

        Loading is a fair guess: it computes the same, and writing all rows with an index takes no less than
        comparing them with the stored ones and writing those that differ.
        """
        found = self._of(connection, stream_table_id).full
        recomputed = [item.elapsed_ms for item in found if item.action == "recompute"]
        return median(recomputed or [item.elapsed_ms for item in found]) if found else None

    def computes_all_here(self, connection: Connection, stream_table_id: int) -> bool:
        """Tell whether PostgreSQL did the latest full computation."""
        found = self._of(connection, stream_table_id).full
        return bool(found) and found[0].engine == "postgres"

    def failures(self, connection: Connection, stream_table_id: int) -> Failures:
        """Return the deltas that met errors one after the other, if the latest ones did."""
        return self._of(connection, stream_table_id).failures

    def predicted_ms(
        self, connection: Connection, stream_table_id: int, *, full: bool, engine: Name, rows: int
    ) -> float | None:
        """Return how long a refresh is expected to take; None if there was none like it."""
        if full:
            return self.full_ms(connection, stream_table_id)
        seen = [item for item in self.deltas(connection, stream_table_id) if item.engine == engine]
        return fitted(engine, seen).elapsed.at(rows) if seen else None

    def predictions(self, connection: Connection, stream_table_id: int) -> tuple[Prediction, ...]:
        """Return predictions for changes of several sizes."""
        full = self.full_ms(connection, stream_table_id)

        def delta(engine: Name, rows: int) -> float | None:
            return self.predicted_ms(connection, stream_table_id, full=False, engine=engine, rows=rows)

        return tuple(
            Prediction(rows, delta("postgres", rows), delta("spark", rows), full) for rows in SHOWN_ROWS
        )

    def add(self, took: Took) -> None:
        """Add how long a committed refresh took."""
        known = self._known.get(took.stream_table_id)
        if known is None:
            return
        known.added += 1
        known.failures = _with(known.failures, took)
        if took.fell_back:
            return
        if took.action == "recompute":
            elapsed = took.elapsed_ms - took.phases.get("plan", 0.0)
            known.full = [Full(took.action, took.engine, elapsed), *known.full][:RECENT_FULL]
            if (tried := took.abandoned_ms) is not None and took.sqlstate is None:
                known.deltas = [Observation("postgres", took.rows, tried, tried), *known.deltas][:RECENT]
        elif took.action == "delta" and took.rows > 0:
            elapsed = took.elapsed_ms - took.phases.get("plan", 0.0)
            database = elapsed - took.phases.get("start", 0.0)
            if took.engine == "spark":
                database -= took.phases.get("compute", 0.0)
            known.deltas = [Observation(took.engine, took.rows, elapsed, database), *known.deltas][:RECENT]

    def _of(self, connection: Connection, stream_table_id: int) -> _Known:
        known = self._known.get(stream_table_id)
        if known is None or known.added >= READ_AGAIN:
            values = {"id": stream_table_id, "recent": RECENT, "recent_full": RECENT_FULL}
            found = one(
                connection, query("engine", "failures"), {"id": stream_table_id, "looked_at": LOOKED_AT}
            )
            known = _Known(failures=Failures(*found))
            for kind, engine, rows, elapsed, database in connection.execute(
                query("engine", "observations"), values
            ):
                if kind == "delta":
                    known.deltas.append(Observation(engine, rows, elapsed, database))
                else:
                    known.full.append(Full(kind, engine, elapsed))
            self._known.put(stream_table_id, known)
        return known


def _with(failures: Failures, took: Took) -> Failures:
    if took.action == "delta":
        return NO_FAILURES
    if took.action not in ("load", "recompute"):
        return failures
    if took.sqlstate is not None:
        return Failures(failures.in_a_row + 1, 0, took.sqlstate)
    return failures._replace(recomputed_since=failures.recomputed_since + 1)
