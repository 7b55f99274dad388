"""What a refresh does, as values: generators of steps.

A generator yields one step after the other and is sent what each of them found, such as a number of rows. So
choices that depend on the data are made here, without a connection, and whoever drives the generator decides
what a step means: the driver of a refresh runs it, `explain` writes it down and assumes a number.

>>> def example(tables: Tables) -> Steps[int]:
...     rows = yield from fill(tables, "delta", "SELECT 1")
...     return rows + 1
>>> steps = example(Tables("hw1_"))
>>> next(steps)
Fill(table='hw1_delta', select='SELECT 1')
>>> steps.send(41)
Traceback (most recent call last):
StopIteration: 42
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

from headwater.plan.quoting import identifier

Result = TypeVar("Result")
Row = tuple[Any, ...]


class Step(Protocol):
    """Anything that a driver knows how to run."""


Steps: TypeAlias = Generator[Step, Any, Result]
"""Steps, and the result that they return in the end."""


@dataclass(frozen=True)
class Tables:
    """The temporary tables of one plan; the prefix separates those of different plans in a session."""

    prefix: str = ""

    def name(self, table: str) -> str:
        """Return the name of a table, as it stands in the catalog."""
        return f"{self.prefix}{table}"

    def sql(self, table: str) -> str:
        """Return the name of a table for use in SQL."""
        return f"pg_temp.{identifier(self.name(table))}"

    def part(self, name: str) -> Tables:
        """Return the tables of a part of the work, separate from the others."""
        return Tables(f"{self.prefix}{name}_")


@dataclass(frozen=True)
class Shape:
    """Make a temporary table with the columns of a query, unless it exists."""

    table: str
    select: str


@dataclass(frozen=True)
class Fill:
    """Add the rows of a query to a temporary table, which is made if need be, and analyse it."""

    table: str
    select: str


@dataclass(frozen=True)
class Index:
    """Index columns of a temporary table, unless they are indexed."""

    table: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Analyse:
    """Collect statistics of a temporary table."""

    table: str


@dataclass(frozen=True)
class Run:
    """Change stored rows by one statement."""

    what: str
    sql: str


@dataclass(frozen=True)
class Fetch:
    """Fetch the single row of a query."""

    what: str
    sql: str


@dataclass(frozen=True)
class Attempt:
    """Run a statement that may make later steps unnecessary; its single row says whether it did."""

    what: str
    sql: str


@dataclass(frozen=True)
class InPhase:
    """Take steps that are measured as one phase of the refresh."""

    phase: str
    steps: Steps[Any]


def shape(tables: Tables, table: str, select: str) -> Steps[None]:
    yield Shape(tables.name(table), select)


def fill(tables: Tables, table: str, select: str) -> Steps[int]:
    """Fill a table; return how many rows were added."""
    rows: int = yield Fill(tables.name(table), select)
    return rows


def index(tables: Tables, table: str, columns: Sequence[str]) -> Steps[None]:
    yield Index(tables.name(table), tuple(columns))


def analyse(tables: Tables, table: str) -> Steps[None]:
    yield Analyse(tables.name(table))


def run(what: str, sql: str) -> Steps[int]:
    """Run a data-modifying statement; return how many rows it touched."""
    rows: int = yield Run(what, sql)
    return rows


def fetch(what: str, sql: str) -> Steps[Row]:
    row: Row = yield Fetch(what, sql)
    return row


def attempt(what: str, sql: str) -> Steps[Row | None]:
    """Run a statement that may do all that is left; return its row, or None if it is only recorded."""
    row: Row | None = yield Attempt(what, sql)
    return row


def in_phase(phase: str, steps: Steps[Result]) -> Steps[Result]:
    result: Result = yield InPhase(phase, steps)
    return result


def drive(steps: Steps[Result], execute: Callable[[Step], object]) -> Result:
    """Run steps to their end and return their result."""
    answer: object = None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as end:
            result: Result = end.value
            return result
        answer = execute(step)
