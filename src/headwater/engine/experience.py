"""What refreshes of stream tables took: from their history, and each refresh of this process adds to it.

A refresh whose engine gave up is left out: what it took is neither engine's. So is planning, which a session
does once. The history is read again from time to time, for other processes refresh as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from headwater.db.connection import Connection
from headwater.db.queries import query
from headwater.engine.choice import Name, Observation, fitted
from headwater.remembered import Remembered

RECENT, RECENT_FULL = 50, 5
"""So many deltas, and so many times that everything was computed, tell what one takes."""
READ_AGAIN = 16
"""After so many refreshes of a stream table its history is read again."""
REMEMBERED = 10_000
"""Stream tables of which this process remembers what they took."""
SHOWN_ROWS = (1, 100, 10_000, 1_000_000)
"""Sizes of changes for which predictions are shown."""
GIVEN_UP = "given up"
"""The phase of a refresh that recomputed in which it had tried a delta: it would have taken even longer."""
INSTEAD = "instead of Spark"
"""How the reason of a refresh begins that Spark was to compute and PostgreSQL did."""


@dataclass
class _Known:
    deltas: list[Observation] = field(default_factory=list)  # the latest first
    full: list[float] = field(default_factory=list)
    added: int = 0  # since the history was read


@dataclass(frozen=True)
class Prediction:
    """What a refresh with so many change rows would take in each way, in milliseconds; None if unknown."""

    rows: int
    postgres_ms: float | None
    spark_ms: float | None
    full_ms: float | None


@dataclass(frozen=True)
class Took:
    """What one refresh took."""

    stream_table_id: int
    action: str
    engine: str
    engine_reason: str
    rows: int
    elapsed_ms: float
    phases: Mapping[str, float]


class Experience:
    """Of one process with the stream tables of one database."""

    def __init__(self) -> None:
        self._known = Remembered[int, _Known](REMEMBERED)

    def deltas(self, connection: Connection, stream_table_id: int) -> list[Observation]:
        """What recent deltas took, the latest first."""
        return self._of(connection, stream_table_id).deltas

    def full_ms(self, connection: Connection, stream_table_id: int) -> float | None:
        """What computing everything took lately; None if that is not known."""
        found = self._of(connection, stream_table_id).full
        return median(found) if found else None

    def predicted_ms(
        self, connection: Connection, stream_table_id: int, *, full: bool, engine: Name, rows: int
    ) -> float | None:
        """What a refresh is expected to take; None if there was none like it."""
        if full:
            return self.full_ms(connection, stream_table_id)
        seen = [item for item in self.deltas(connection, stream_table_id) if item.engine == engine]
        return fitted(engine, seen).elapsed.at(rows) if seen else None

    def predictions(self, connection: Connection, stream_table_id: int) -> tuple[Prediction, ...]:
        """For changes of several sizes."""
        full = self.full_ms(connection, stream_table_id)

        def delta(engine: Name, rows: int) -> float | None:
            return self.predicted_ms(connection, stream_table_id, full=False, engine=engine, rows=rows)

        return tuple(
            Prediction(rows, delta("postgres", rows), delta("spark", rows), full) for rows in SHOWN_ROWS
        )

    def add(self, took: Took) -> None:
        """What a refresh took that has been committed."""
        known = self._known.get(took.stream_table_id)
        if known is None or took.engine_reason.startswith(INSTEAD):
            return
        known.added += 1
        if took.action in ("load", "recompute"):
            known.full = [took.elapsed_ms, *known.full][:RECENT_FULL]
            if (tried := took.phases.get(GIVEN_UP)) is not None:
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
            values = {
                "id": stream_table_id,
                "recent": RECENT,
                "recent_full": RECENT_FULL,
                "instead": f"{INSTEAD}%",
                "given_up": GIVEN_UP,
            }
            known = _Known()
            for kind, engine, rows, elapsed, database in connection.execute(
                query("engine", "experience"), values
            ):
                if kind == "full":
                    known.full.append(elapsed)
                else:
                    known.deltas.append(Observation(engine, rows, elapsed, database))
            self._known.put(stream_table_id, known)
        return known
