"""Runs the steps of a refresh inside PostgreSQL, with temporary tables between them.

Each intermediate result goes into a temporary table. A session creates it once, empties it at every commit
and analyses it after filling it, so that the statement that reads it is planned for its actual rows. In a
session that others share, it is dropped at the commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

from psycopg import sql

from headwater.db.connection import PINNED_SETTINGS, Connection, is_pooled, one
from headwater.db.deadline import Deadline
from headwater.db.queries import query
from headwater.plan.quoting import identifier
from headwater.plan.steps import Analyse, Attempt, Fetch, Fill, Index, Run, Shape, Step, Steps, Tables, drive

Result = TypeVar("Result")

MOST_TABLES = 24
"""Temporary tables that a session keeps for later: each commit empties every one of them, used or not."""
OLDEST_TABLE = 20_000_000
"""Transactions after which a temporary table is recreated. Only its own session can vacuum it, and the server
cannot freeze transactions of a database that are younger than its oldest table."""


def statement(text: str) -> sql.SQL:
    """Return SQL text made by the plan as a statement; every name in it is quoted already."""
    return sql.SQL(text)


def identify_by_row(connection: Connection, table: sql.Composable) -> None:
    """Allow updates and deletes in a table without a key while a publication of all tables contains it.

    The server refuses both for a published table whose rows it cannot identify to a subscriber. The whole row
    always identifies them; it takes room in the log with wal_level = logical only.
    """
    connection.execute(sql.SQL("ALTER TABLE {} REPLICA IDENTITY FULL").format(table))


def prefix_of(stream_table_id: int) -> str:
    """Return the prefix of the names of a stream table's temporary tables."""
    return f"hw{stream_table_id}_"


def drop_unused(connection: Connection, used: Sequence[int], oldest: int = OLDEST_TABLE) -> None:
    """Drop the temporary tables of stream tables other than these, if there are too many.

    Also those that block users, and old ones; they are created again when they are needed.
    """
    found = connection.execute(query("refresh", "temporary_tables")).fetchall()
    kept = tuple(map(prefix_of, used)) if len(found) > MOST_TABLES else ("",)
    names = [
        sql.Identifier("pg_temp", name)
        for name, in_the_way, age in found
        if in_the_way or age > oldest or not name.startswith(kept)
    ]
    if names:
        connection.execute(sql.SQL("DROP TABLE {}").format(sql.SQL(", ").join(names)))


class Scratch:
    """Takes steps over one connection."""

    deadline: Deadline | None = None
    """Limits the steps that read and write rows, if set."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def run(self, steps: Steps[Result]) -> Result:
        """Take steps to their end and return what they come to."""
        return drive(steps, self.execute)

    def execute(self, step: Step) -> object:
        """Take one step, and return what it found."""
        match step:
            case Shape():
                self.connection.execute(statement(self._creation(step)))
            case Fill():
                return self._fill(step)
            case Index():
                self._index(step)
            case Analyse():
                self.connection.execute(statement(f"ANALYZE {in_temp(step.table)}"))
            case Run():
                with self._limited():
                    return self.connection.execute(statement(step.sql)).rowcount
            case Fetch() | Attempt():
                with self._limited():
                    return one(self.connection, statement(step.sql))
            case _:
                raise NotImplementedError(f"no step of PostgreSQL: {step}")
        return None

    def _fill(self, step: Fill) -> int:
        name = in_temp(step.table)
        # One round trip; not prepared, because these are three statements. The INSERT's result is the second.
        with self._limited():
            cursor = self.connection.execute(
                statement(f"{self._creation(step)}; INSERT INTO {name} {step.select}; ANALYZE {name}"),
                prepare=False,
            )
        cursor.nextset()
        return cursor.rowcount

    def _index(self, step: Index) -> None:
        self.connection.execute(
            sql.SQL("CREATE INDEX IF NOT EXISTS {} ON {} ({})").format(
                sql.Identifier(f"{step.table}_index"),
                sql.Identifier("pg_temp", step.table),
                sql.SQL(", ").join(map(sql.Identifier, step.columns)),
            )
        )

    def _creation(self, step: Shape | Fill) -> str:
        end = "DROP" if is_pooled(self.connection) else "DELETE ROWS"
        return (
            f"CREATE TEMP TABLE IF NOT EXISTS {identifier(step.table)} ON COMMIT {end}"
            f" AS ({step.select}) WITH NO DATA"
        )

    def _limited(self) -> AbstractContextManager[None]:
        return nullcontext() if self.deadline is None else self.deadline.statement()

    def evaluate(self, tables: Tables, view: str, path: str) -> str:
        """Put the rows of a view into a temporary table, evaluated under a search_path; return its SQL name.

        The name of the view is SQL, with its schema. Nothing else is parsed under that path, so that nobody
        who may create objects in one of its schemas can change the meaning of our SQL.
        """
        select, name = f"SELECT * FROM {view}", tables.sql("rows")
        self.execute(Shape(tables.name("rows"), select))
        with self._limited():
            self.connection.execute(
                sql.SQL(
                    "DELETE FROM {name}; SELECT set_config('search_path', {path}, true);"
                    " INSERT INTO {name} {select}; SET LOCAL search_path = {pinned}; ANALYZE {name}"
                ).format(
                    name=statement(name),
                    path=sql.Literal(path),
                    select=statement(select),
                    pinned=sql.SQL(PINNED_SETTINGS["search_path"]),
                ),
                prepare=False,
            )
        return name


def in_temp(table: str) -> str:
    """Return the SQL name of a temporary table."""
    return f"pg_temp.{identifier(table)}"
