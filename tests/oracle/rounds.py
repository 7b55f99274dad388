"""Rounds of random queries and writes, and what became of them.

A round has views and stream tables over a few tables, and steps of transactions; after each step every stream
table is refreshed and compared with its query. All of it follows from a seed.
"""

from __future__ import annotations

import math
import random
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import psycopg
from tests.oracle import tables
from tests.oracle.queries import Query, random_query
from tests.oracle.reduction import reduced

import headwater
from headwater import HeadwaterError, Outcome, StreamTable

QUERIES, STEPS = 10, 4
DULL = 2
"""So many of the queries are taken whether the steps change their results or not."""
TRIALS = 3
"""So many queries are drawn for each that is taken."""
DEPTHS = (0, 1, 1, 2, 2)
"""How deep queries nest; the flat ones show a construct by itself."""
MOST_ROWS, MOST_ROWS_OF_SOURCE = 300, 40
SOURCES = {"r0": 1, "r1": 1, "s0": 0, "s1": 1}
"""The views and stream tables that queries read, and their depths."""

IMPOSSIBLE = ("42", "0A", "XX")
"""The classes of SQLSTATEs that no value causes: the server does not understand what it is asked."""
DISTRUST = (
    "are not those of its query",
    "PostgreSQL's analysis of it differs",
    "the server does not accept what the planner made of it",
    "the SQL parser's tree of it is not understood",
)
"""What the guards of the product say of a plan that is wrong; the stream table is then recomputed."""

Transaction = list[str]


class Mismatch(Exception):
    """A stream table does not hold what its query gives."""


class BadPlan(Exception):
    """A plan is wrong, which its stream table does not show, because it is recomputed instead."""


class Rejected(Exception):
    """PostgreSQL does not accept a query: a mistake of the grammar."""


FAILURES = (HeadwaterError, Mismatch, BadPlan, Rejected)


@dataclass
class Coverage:
    """What was tried, and how it was kept up to date."""

    rounds: int = 0
    refreshes: int = 0
    deltas: int = 0
    changes: int = 0  # refreshes that changed the result
    modes: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    constructs: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    def created(self, query: Query, made: StreamTable) -> None:
        self.modes[made.mode] += 1
        self.reasons.update(made.mode_reasons)
        for tag in query.tags:
            self.constructs[tag][made.mode] += 1

    def refreshed(self, outcome: Outcome) -> None:
        self.refreshes += 1
        self.deltas += outcome.action == "delta"
        self.changes += any((outcome.applied.inserted, outcome.applied.updated, outcome.applied.deleted))

    def lines(self) -> Iterator[str]:
        yield (
            f"{self.rounds} rounds, {self.modes.total()} queries, {self.modes['differential']} differential;"
            f" {self.refreshes} refreshes, {self.deltas} by a delta, {self.changes} changed the result"
        )
        for reason, count in self.reasons.most_common(30):
            yield f"{count:6d}  {reason}"
        yield "queries with each construct: differential, all"
        for tag, modes in sorted(self.constructs.items()):
            yield f"{modes['differential']:6d} {modes.total():6d}  {tag}"


COVERAGE = Coverage()
"""Of this run; shown at its end."""


@dataclass(frozen=True)
class Round:
    """Queries and transactions."""

    seed: int
    load: Transaction
    views: dict[str, Query]
    stream_tables: dict[str, Query]  # s0 and s1 are sources of others
    steps: list[list[Transaction]]  # each ends with a refresh

    @staticmethod
    def draw(seed: int, conn: psycopg.Connection) -> Round:
        """Chosen by trial, for most random queries give nothing, or the same whatever is written."""
        chance = random.Random(seed)
        version = conn.info.server_version // 10_000
        steps = [
            [tables.transaction(chance) for _ in range(chance.choice((1, 2, 2, 3)))] for _ in range(STEPS)
        ]
        drawn = Round(seed, tables.load(chance), {}, {}, steps)
        with conn.transaction(force_rollback=True):
            run(conn, drawn.load)
            relations = [*tables.TABLES, *tables.TABLES]
            for name, depth in SOURCES.items():
                trials = [random_query(chance, relations, depth, version=version) for _ in range(TRIALS)]
                query = max(trials, key=lambda each: worth(result(conn, each).size))
                conn.execute(f"CREATE VIEW {name} AS {query.text}")
                if name.startswith("r"):
                    drawn.views[name] = query
                    tag = "view on view" if "r0 AS" in query.text else "view"
                else:
                    drawn.stream_tables[name] = query
                    tag = "stream table as source"
                relations.append(query.relation(name, tag, stored=name.startswith("s")))
            candidates = [
                random_query(chance, relations, chance.choice(DEPTHS), version=version)
                for _ in range(TRIALS * QUERIES)
            ]
            rank = lively_first(conn, candidates, steps)
            lively = sorted((query for query in candidates if rank(query) < FAILING), key=rank)
        # What never changes is worth a look at times: that it does not may be what is difficult.
        chosen = lively[: QUERIES - DULL] + chance.sample(lively[QUERIES - DULL :], k=DULL)
        drawn.stream_tables.update({f"q{number}": query for number, query in enumerate(chosen)})
        return drawn


def lively_first(
    conn: psycopg.Connection, queries: list[Query], steps: list[list[Transaction]]
) -> Callable[[Query], int]:
    """An order in which queries whose result the steps change come first, and large ones last.

    Those that fail for a defect of the server's are `FAILING`.
    """
    before = {query: result(conn, query) for query in queries}
    ranks = {query: 1 if before[query].size <= MOST_ROWS else 2 for query in queries}
    ranks |= {query: FAILING for query in queries if before[query] == FAILED}
    for step in steps:
        for transaction in step:
            run(conn, transaction)
        for query in queries:
            if ranks[query] < 2:
                now = result(conn, query)
                if now == FAILED:
                    ranks[query] = FAILING
                elif now.size > MOST_ROWS:
                    ranks[query] = 2
                elif now != before[query]:
                    ranks[query] = 0
    return ranks.__getitem__


def worth(count: float) -> float:
    """Say how much what has so many rows is worth reading: the more the better, up to a limit."""
    return count if count <= MOST_ROWS_OF_SOURCE else -min(count, sys.maxsize)


class Result(NamedTuple):
    """How many rows a query gives, and a hash of them."""

    size: float
    hash: int


FAILED = Result(-math.inf, 0)
FAILING = 3


def result(conn: psycopg.Connection, query: Query) -> Result:
    """What a query gives; one that takes long counts as endless."""
    text = f"SELECT count(*), coalesce(sum(hashtextextended(q::text, 0)), 0) FROM ({query.text}) AS q"
    try:
        with conn.transaction():
            conn.execute("SET LOCAL statement_timeout = '1s'")
            found = Result(*conn.execute(text).fetchall()[0])
            conn.execute("SET LOCAL statement_timeout = 0")  # or the end of the subtransaction could meet it
            return found
    except psycopg.errors.QueryCanceled:
        return Result(math.inf, 0)
    except psycopg.errors.InternalError_:  # such as "unsupported join alias expression" of a whole row
        return FAILED
    except psycopg.Error as error:
        raise Rejected(f"{error}: {query.text}") from error


def run(conn: psycopg.Connection, transaction: Transaction) -> None:
    with conn.transaction():
        for statement in transaction:
            conn.execute(statement)


@dataclass(frozen=True)
class Failure:
    """A stream table that went wrong, and after which step; 0 is its creation."""

    name: str
    query: Query
    step: int
    error: Exception


@dataclass
class Bench:
    """A database in which rounds are played."""

    conn: psycopg.Connection
    hw: headwater.Headwater
    seconds_to_reduce: float

    def play(self, drawn: Round) -> list[str]:
        """One round; what went wrong, with the way there."""
        run(self.conn, drawn.load)
        try:
            failures = self._failures(drawn)
            self._drop([name for name in drawn.stream_tables if name.startswith("q")])
            return [self._told(drawn, failure) for failure in failures]
        finally:
            self._drop(list(drawn.stream_tables))
            for name in reversed(drawn.views):
                self.conn.execute(f"DROP VIEW IF EXISTS {name}")

    def _failures(self, drawn: Round) -> list[Failure]:
        COVERAGE.rounds += 1
        failures: list[Failure] = []
        made: dict[str, Query] = {}
        for name, query in drawn.views.items():
            self.conn.execute(f"CREATE VIEW {name} AS {query.text}")
        for name, query in drawn.stream_tables.items():
            try:
                self._create(name, query)
                made[name] = query
            except FAILURES as error:
                failures.append(Failure(name, query, 0, error))
                if name.startswith("s"):
                    return failures  # others need it
        for number, step in enumerate(drawn.steps, start=1):
            for transaction in step:
                run(self.conn, transaction)
            for name, query in list(made.items()):
                try:
                    COVERAGE.refreshed(self._refresh(name, query.text))
                    if number == len(drawn.steps):
                        self._verify(name)
                except FAILURES as error:
                    failures.append(Failure(name, query, number, error))
                    del made[name]
        return failures

    def _create(self, name: str, query: Query) -> None:
        self._accept(query.text)
        COVERAGE.created(query, self._made(name, query.text))
        self._compare(name, query.text)

    def _made(self, name: str, query: str) -> StreamTable:
        made = self.hw.create(name, query)
        loaded = self.hw.history(name, limit=1)[0]
        trust(name, "; ".join([*made.mode_reasons, loaded.reason]), loaded.sqlstate)
        return made

    def _accept(self, query: str) -> None:
        try:
            self.conn.execute(query)
        except psycopg.Error as error:
            raise Rejected(str(error)) from error

    def _refresh(self, name: str, query: str) -> Outcome:
        outcome = self.hw.refresh(name)[-1]
        if "does not hold" in outcome.reason:
            raise Mismatch(f"{name} was rebuilt: {outcome.reason}")
        trust(name, outcome.reason, outcome.sqlstate)
        self._compare(name, query)
        return outcome

    def _compare(self, name: str, query: str) -> None:
        text = (
            f"WITH expected AS MATERIALIZED ({query}), found AS MATERIALIZED (SELECT * FROM {name})"
            " SELECT 'lacks ' || d::text FROM (SELECT * FROM expected EXCEPT ALL SELECT * FROM found) AS d"
            " UNION ALL"
            " SELECT 'has ' || d::text FROM (SELECT * FROM found EXCEPT ALL SELECT * FROM expected) AS d"
        )
        try:
            differences = [row[0] for row in self.conn.execute(text)]
        except psycopg.Error as error:
            raise Rejected(str(error)) from error
        if differences:
            raise Mismatch(f"{name} {', '.join(differences[:10])}")

    def _verify(self, name: str) -> None:
        found = self.hw.verify(name)
        if not found.equal:
            raise Mismatch(f"{name} is not verified: lacks {found.missing}, has {found.surplus}")

    def _drop(self, names: list[str]) -> None:
        for name in reversed(names):
            if self.conn.execute("SELECT to_regclass(%s)", [name]).fetchone() != (None,):
                self.hw.drop(name)

    # what is told of a failure

    def _told(self, drawn: Round, failure: Failure) -> str:
        """What failed, made smaller, as commands that lead there."""
        told = failure.error
        try:
            drawn, query = self._reduced(drawn, failure)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            # A tree that lost a part it cannot do without: the whole query is better than none.
            query = failure.query.text
            print(f"not made smaller: {error!r}")
        lines = [f"-- HEADWATER_SEED={drawn.seed} HEADWATER_CASES=1: {failure.name}, {told}"]
        lines += [f"-- the query was: {failure.query.text}", tables.SCHEMA.strip()]
        lines += [f"{statement};" for statement in drawn.load]
        sources = {**drawn.views, **drawn.stream_tables}
        for name in read_by(query, {name: sources[name].text for name in SOURCES if name != failure.name}):
            text = sources[name].text
            if name in drawn.views:
                lines.append(f"CREATE VIEW {name} AS {text};")
            else:
                lines.append(f"headwater create {name} --query '{quoted(text)}'")
        lines.append(f"headwater create {failure.name} --query '{quoted(query)}'")
        for step in drawn.steps:
            lines += [f"BEGIN; {'; '.join(transaction)}; COMMIT;" for transaction in step]
            lines.append(f"headwater refresh {failure.name}")
        return "\n".join(lines)

    def _reduced(self, drawn: Round, failure: Failure) -> tuple[Round, str]:
        """A shorter round and a smaller query that fail in the same way."""
        steps, query = drawn.steps[: failure.step], failure.query.text
        drawn = replace(drawn, steps=steps)
        if isinstance(failure.error, Rejected) or self.seconds_to_reduce <= 0:
            return drawn, query
        if steps:
            before = [statement for step in steps[:-1] for each in step for statement in each]
            short = replace(drawn, load=drawn.load + before, steps=steps[-1:])
            if self._fails(short, query, failure.error):
                drawn = short
        query = reduced(query, lambda text: self._fails(drawn, text, failure.error), self.seconds_to_reduce)
        return self._shortened(drawn, query, failure.error), query

    def _shortened(self, drawn: Round, query: str, like: Exception) -> Round:
        """A round less the statements that a failure does not need."""
        for number in reversed(range(1, len(drawn.load))):
            shorter = replace(drawn, load=drawn.load[:number] + drawn.load[number + 1 :])
            if self._fails(shorter, query, like):
                drawn = shorter
        places = [
            (step, transaction, statement)
            for step, transactions in enumerate(drawn.steps)
            for transaction, statements in enumerate(transactions)
            for statement in range(len(statements))
        ]
        for step, transaction, statement in reversed(places):
            steps = deepcopy(drawn.steps)
            del steps[step][transaction][statement]
            shorter = replace(drawn, steps=steps)
            if self._fails(shorter, query, like):
                drawn = shorter
        return replace(drawn, steps=[[each for each in some if each] for some in drawn.steps])

    def _fails(self, drawn: Round, query: str, like: Exception) -> bool:
        """Whether a query fails in a round, in the way of another failure."""
        run(self.conn, drawn.load)
        try:
            self._accept(query)
            self._made("reduced", query)
            self._compare("reduced", query)
            for step in drawn.steps:
                for transaction in step:
                    run(self.conn, transaction)
                self._refresh("reduced", query)
        except FAILURES as error:
            return type(error) is type(like)
        finally:
            self._drop(["reduced"])
        return False


def trust(name: str, reason: str, sqlstate: str | None) -> None:
    """Raise if a stream table was recomputed because its plan is wrong, and not because of some value."""
    met = [*re.findall(r"SQLSTATE (\w{5})", reason), *([sqlstate] if sqlstate else [])]
    if any(each.startswith(IMPOSSIBLE) for each in met) or any(words in reason for words in DISTRUST):
        raise BadPlan(f"{name} was recomputed: {reason}")


def read_by(query: str, sources: dict[str, str]) -> list[str]:
    """The names of the sources that a query reads, itself or through others."""
    found: list[str] = []
    for name in reversed(sources):  # the later ones may read the earlier ones
        if any(re.search(rf"\b{name}\b", text) for text in (query, *(sources[each] for each in found))):
            found.insert(0, name)
    return found


def quoted(text: str) -> str:
    """For a shell, between single quotes."""
    return text.replace("'", "'\\''")
