"""Statements of one refresh, and the temporary tables between them.

Each intermediate result goes into a temporary table that is created once in a session, emptied at every
commit, and analysed after it is filled, so that the statement that reads it is planned for what is there. In
a session that others share, it is dropped at the commit.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow

from headwater.db.connection import PINNED_SETTINGS, Connection, is_pooled, one
from headwater.db.queries import query

MOST_TABLES = 24
"""Temporary tables that a session keeps for later: each commit empties every one of them, used or not."""
OLDEST_TABLE = 20_000_000
"""Transactions after which a temporary table is made anew. Nobody can vacuum it but its own session, and the
server cannot forget the transactions of a database that are younger than its oldest table."""


def statement(text: str) -> sql.SQL:
    """SQL text made by the plan, in which every name is quoted already."""
    return sql.SQL(text)


def identify_by_row(connection: Connection, table: sql.Composable) -> None:
    """Lets a table without a key be updated and deleted from while a publication of all tables has it.

    The server refuses both for a published table whose rows it has nothing to tell a subscriber by. The whole
    row always does; it takes room in the log with wal_level = logical only.
    """
    connection.execute(sql.SQL("ALTER TABLE {} REPLICA IDENTITY FULL").format(table))


def prefix_of(stream_table_id: int) -> str:
    """How the names of a stream table's temporary tables begin."""
    return f"hw{stream_table_id}_"


def drop_unused(connection: Connection, used: Sequence[int], oldest: int = OLDEST_TABLE) -> None:
    """Drops the temporary tables of stream tables other than these, if they have become many.

    Also those that are in the way of users, and old ones, which are made anew when they are needed.
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


class OutOfPatience(Exception):
    """Statements took longer than they may; the transaction may be broken."""


class Patience:
    """How long statements may take: each one, which the server sees to, and all of them together."""

    def __init__(self, milliseconds: float) -> None:
        self.milliseconds = milliseconds
        self._started = time.perf_counter()

    @property
    def spent_ms(self) -> float:
        return (time.perf_counter() - self._started) * 1000

    @contextmanager
    def statement(self) -> Iterator[None]:
        """Around a statement that the server cancels after as many milliseconds."""
        if self.spent_ms >= self.milliseconds:
            raise OutOfPatience
        before = self.spent_ms
        try:
            yield
        except psycopg.errors.QueryCanceled as error:
            if self.spent_ms - before < self.milliseconds:
                raise  # somebody else did it
            raise OutOfPatience from error


class Scratch:
    """Temporary tables of one stream table; `prefix` keeps those of different plans apart."""

    patience: Patience | None = None
    """With what fills tables and changes rows, while it is limited."""

    def __init__(self, connection: Connection, prefix: str) -> None:
        self._connection = connection
        self._prefix = prefix

    def name(self, table: str) -> str:
        return f'pg_temp."{self._prefix}_{table}"'

    def part(self, name: str) -> Scratch:
        """Tables of a part of the work, apart from the others."""
        part = Scratch(self._connection, f"{self._prefix}_{name}")
        part.patience = self.patience
        return part

    def shape(self, table: str, select: str) -> None:
        """Makes a temporary table with the columns of a query, unless it is there."""
        self._connection.execute(statement(self._creation(table, select)))

    def fill(self, table: str, select: str) -> int:
        """Adds the rows of a query to a temporary table, made for them if need be; how many there were."""
        name = self.name(table)
        # One round trip; not prepared, for these are three statements. The INSERT's result is the second.
        with self._limited():
            cursor = self._connection.execute(
                statement(f"{self._creation(table, select)}; INSERT INTO {name} {select}; ANALYZE {name}"),
                prepare=False,
            )
        cursor.nextset()
        return cursor.rowcount

    def evaluate(self, table: str, view: str, path: str) -> str:
        """Put the rows of a view into a temporary table, evaluated under a search_path; its SQL name.

        Both names are SQL, with their schemas. Nothing else is parsed under that path, so that nobody who
        may create objects in one of its schemas can have our SQL mean something else.
        """
        select, name = f"SELECT * FROM {view}", self.name(table)
        self.shape(table, select)
        with self._limited():
            self._connection.execute(
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

    def _creation(self, table: str, select: str) -> str:
        end = "DROP" if is_pooled(self._connection) else "DELETE ROWS"
        return (
            f'CREATE TEMP TABLE IF NOT EXISTS "{self._prefix}_{table}" ON COMMIT {end}'
            f" AS {select} WITH NO DATA"
        )

    def index(self, table: str, columns: Sequence[str]) -> None:
        """Makes a temporary table quick to look into, unless it is."""
        self._connection.execute(
            sql.SQL("CREATE INDEX IF NOT EXISTS {} ON {} ({})").format(
                sql.Identifier(f"{self._prefix}_{table}_index"),
                statement(self.name(table)),
                sql.SQL(", ").join(map(sql.Identifier, columns)),
            )
        )

    def run(self, what: str, text: str) -> int:
        """Runs one data-modifying statement; the number of rows it touched."""
        with self._limited():
            return self._connection.execute(statement(text)).rowcount

    def row(self, what: str, text: str) -> TupleRow:
        """The single row of a query."""
        with self._limited():
            return one(self._connection, statement(text))

    @contextmanager
    def _limited(self) -> Iterator[None]:
        if self.patience is None:
            yield
        else:
            with self.patience.statement():
                yield

    def attempt(self, what: str, text: str) -> TupleRow | None:
        """The single row of a statement that may make later ones needless; None if it was not run."""
        return self.row(what, text)

    def analyse(self, table: str) -> None:
        """Tells the server what is in a temporary table."""
        self._connection.execute(statement(f"ANALYZE {self.name(table)}"))


RECORDED_ROWS = 2
"""What each step of a refresh has that is only written down: one row that was there, and a new one."""


class Recorder(Scratch):
    """Writes down the statements of a refresh instead of running them, for `explain`."""

    def __init__(self, prefix: str = "") -> None:
        self.statements: list[tuple[str, str]] = []
        self._prefix = prefix

    def name(self, table: str) -> str:
        return f"pg_temp.{self._prefix}{table}"

    def part(self, name: str) -> Recorder:
        part = Recorder(f"{self._prefix}{name}_")
        part.statements = self.statements
        return part

    def shape(self, table: str, select: str) -> None:
        pass

    def index(self, table: str, columns: Sequence[str]) -> None:
        pass

    def fill(self, table: str, select: str) -> int:
        self.run(f"fill {self._prefix}{table}", f"INSERT INTO {self.name(table)}\n{select}")
        return RECORDED_ROWS

    def run(self, what: str, text: str) -> int:
        self.note(what, text)
        return 1

    def note(self, what: str, text: str) -> None:
        self.statements.append((what, text))

    def row(self, what: str, text: str) -> TupleRow:
        self.note(what, text)
        return (1, 1, 1, 1, 0) if what == "count" else (RECORDED_ROWS, RECORDED_ROWS)

    def attempt(self, what: str, text: str) -> TupleRow | None:
        self.note(what, text)
        return None

    def analyse(self, table: str) -> None:
        pass
