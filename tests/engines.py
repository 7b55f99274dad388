"""The differential tests on an engine of choice, and a ledger of who really computed what.

`pytest --engine spark` runs the tests marked `differential` on Spark, `--engine both` on each engine. A
refusal is no failure here: `tests/conformance` holds the list of what is refused. But PostgreSQL never
computes in Spark's place without saying why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from headwater import Headwater, Outcome, StreamTable
from headwater.catalog.stream_tables import EngineName, Mode, TierChoice

SPARK_MASTER = "local[2]"

REFUSED = "Spark cannot do it exactly: "
GAVE_UP = "instead of Spark: "
# Spark is asked for and not needed: there is nothing to compute, or PostgreSQL must see the rows anyway.
EXCUSES = frozenset({"", "the changes cancel out", "those that read it need the difference"})

Verdict = Literal["spark", "refused", "gave up", "excused", "postgres"]


@dataclass(frozen=True)
class Entry:
    """One load or refresh, as the history has it."""

    test: str
    query: str
    action: str
    engine: str
    reason: str

    @property
    def verdict(self) -> Verdict:
        if self.engine == "spark":
            return "spark"
        if self.reason.startswith(REFUSED):
            return "refused"
        if self.reason.startswith(GAVE_UP):
            return "gave up"
        return "excused" if self.reason in EXCUSES else "postgres"


@dataclass
class Ledger:
    """What Spark was asked for in this run."""

    test: str = ""
    examples: int = 0  # of properties
    entries: list[Entry] = field(default_factory=list)

    def record(self, query: str, action: str, engine: str, reason: str) -> None:
        entry = Entry(self.test, query, action, engine, reason)
        assert entry.verdict != "postgres", f"PostgreSQL computed what Spark was asked for: {reason}"
        self.entries.append(entry)

    def summary(self) -> Iterator[str]:
        """Who computed how much, and why it was not Spark."""
        verdicts = Counter(entry.verdict for entry in self.entries)
        queries = len({entry.query for entry in self.entries})
        counts = ", ".join(
            f"{verdicts[verdict]} {verdict}" for verdict in ("spark", "refused", "gave up", "excused")
        )
        examples = f" in {self.examples} random examples and others" if self.examples else ""
        yield f"{len(self.entries)} loads and refreshes of {queries} queries{examples}: {counts}"
        reasons = Counter(
            _general(entry.reason) for entry in self.entries if entry.verdict in ("refused", "gave up")
        )
        for reason, count in reasons.most_common():
            yield f"{count:6d}  {reason}"


def _general(reason: str) -> str:
    """A reason less the expression that it is about."""
    for start in (REFUSED, GAVE_UP):
        if reason.startswith(start):
            return start + reason.removeprefix(start).rpartition(": ")[2]
    return reason


LEDGER = Ledger()


class Handle(Headwater):
    """A handle whose stream tables have the engine under test unless they ask for another."""

    def __init__(self, dsn: str, engine: EngineName, settings: dict[str, str] | None = None) -> None:
        master = {"spark_master": SPARK_MASTER} if engine == "spark" else {}
        super().__init__(dsn, {**master, **(settings or {})})
        self.engine = engine
        self._queries: dict[str, str] = {}

    def create(
        self,
        name: str,
        query: str,
        *,
        schedule: str | None = None,
        mode: Mode = "auto",
        engine: EngineName = "auto",
        tier: TierChoice = "auto",
        if_not_exists: bool = False,
        or_replace: bool = False,
        cascade: bool = False,
    ) -> StreamTable:
        chosen = self.engine if engine == "auto" else engine
        made = super().create(
            name,
            query,
            schedule=schedule,
            mode=mode,
            engine=chosen,
            tier=tier,
            if_not_exists=if_not_exists,
            or_replace=or_replace,
            cascade=cascade,
        )
        self._queries[made.label] = query
        if chosen == "spark":
            entry = self.history(name, limit=1)[0]
            LEDGER.record(query, entry.action, entry.engine, entry.engine_reason)
        return made

    def refresh(self, name: str, *, full: bool = False, engine: EngineName | None = None) -> list[Outcome]:
        chosen = engine or (self.engine if self.engine != "auto" else None)
        outcomes = super().refresh(name, full=full, engine=chosen)
        if chosen == "spark":
            for outcome in outcomes:
                query = self._queries.get(outcome.stream_table, outcome.stream_table)
                LEDGER.record(query, outcome.action, outcome.engine, outcome.engine_reason)
        return outcomes
