"""The steps of a refresh that Spark takes: reading rows into frames, computing, and returning results."""

from __future__ import annotations

from dataclasses import dataclass

from headwater.engine.spark.transport.wire import BulkRead, Column
from headwater.plan.steps import Steps, Tables, analyse, shape


@dataclass(frozen=True)
class Size:
    """The size of a source, and where tasks read it."""

    rows: float
    pages: int
    relation: str  # SQL name of the table that holds its rows
    condition: str | None  # condition under which a row of that table belongs to the source


@dataclass(frozen=True)
class SizeOf:
    """Estimate the size of a table, or of the storage behind a stream table's view."""

    relation: int


@dataclass(frozen=True)
class PagesOf:
    """Count the pages of a table."""

    relation: str  # SQL name


@dataclass(frozen=True)
class ReadHere:
    """Read the rows of a query of the refresh's own transaction into a frame."""

    what: str
    sql: str
    columns: tuple[Column, ...]


@dataclass(frozen=True)
class ReadByTasks:
    """Have tasks read rows into a frame."""

    what: str
    read: BulkRead
    pages: int


@dataclass(frozen=True)
class Collect:
    """Compute on Spark, and bring the result into a temporary table."""

    what: str
    table: str  # SQL name
    sql: str  # in Spark's dialect
    columns: tuple[Column, ...]


@dataclass(frozen=True)
class Store:
    """Compute on Spark, and have tasks finish the result into a table that everybody sees."""

    what: str
    sql: str  # in Spark's dialect
    columns: tuple[Column, ...]
    table: str  # SQL name
    finish: str


def size_of(relation: int) -> Steps[Size]:
    size: Size = yield SizeOf(relation)
    return size


def pages_of(relation: str) -> Steps[int]:
    pages: int = yield PagesOf(relation)
    return pages


def read_here(what: str, sql: str, columns: tuple[Column, ...]) -> Steps[tuple[str, int]]:
    """Read rows through the driver; return the name of the frame and how many rows it has."""
    frame: tuple[str, int] = yield ReadHere(what, sql, columns)
    return frame


def read_by_tasks(what: str, read: BulkRead, pages: int) -> Steps[str]:
    """Read rows by tasks; return the name of the frame."""
    frame: str = yield ReadByTasks(what, read, pages)
    return frame


def collect(tables: Tables, table: str, sql: str, columns: tuple[Column, ...]) -> Steps[str]:
    """Compute a temporary table on Spark; return its SQL name."""
    name = tables.sql(table)
    listed = ", ".join(f"NULL::{column.kind} AS {column.name}" for column in columns)
    yield from shape(tables, table, f"SELECT {listed}")
    yield Collect(table, name, sql, columns)
    yield from analyse(tables, table)
    return name


def store(what: str, sql: str, columns: tuple[Column, ...], table: str, finish: str) -> Steps[int]:
    """Compute rows on Spark and store them; return how many."""
    rows: int = yield Store(what, sql, columns, table, finish)
    return rows
