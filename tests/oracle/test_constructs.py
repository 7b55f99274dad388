"""Each construct of SELECT by itself: maintained by deltas, it equals recomputation after each of them.

What passes here is written down in docs/coverage.md, which must not say more, nor less.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import psycopg
import pytest
from tests.oracle.chance import SEED
from tests.oracle.constructs import INCREMENTAL, MORE_TABLES, RECOMPUTED, REFUSED, TABLES
from tests.oracle.coverage import PAGE, Coverage, code, incremental_line, line

from headwater import Headwater, HeadwaterError
from headwater.catalog.stream_tables import EngineName
from headwater.errors import NotIncremental

ROUNDS: dict[EngineName, int] = {"postgres": 4, "spark": 1}
CONSTRUCTS = {title: query for queries in INCREMENTAL.values() for title, query in queries.items()}
FOUND = Coverage()


class Writer:
    """Random writes to the tables; small domains, so that rows meet."""

    def __init__(self, conn: psycopg.Connection, chance: random.Random) -> None:
        self.conn, self.chance, self.last = conn, chance, 0

    def write(self, statements: int) -> None:
        with self.conn.transaction():
            for _ in range(statements):
                table = self.chance.choice("aabbck")
                kind = self.chance.random()
                if kind < 0.5:
                    self._insert(table)
                else:
                    self._change(table, delete=kind > 0.8)

    def _insert(self, table: str) -> None:
        self.last += 1
        other = self._number(self.last + 1)
        values: dict[str, tuple[object, ...]] = {
            "a": (
                self.last,
                self._number(6),
                self._text(),
                self._array(),
                self.chance.choice((None, "[1, 2]")),
            ),
            "b": (self.last, other, self._number(6), self._text()),
            "c": (self.last, other, self._number(6)),
            "k": (self._number(4), self._text()),
        }
        marks = ", ".join(["%s"] * len(values[table]))
        self.conn.execute(f"INSERT INTO {table} VALUES ({marks})", values[table])

    def _change(self, table: str, *, delete: bool) -> None:
        key = "v" if table == "k" else "id"
        rows = self.conn.execute(f"SELECT DISTINCT {key} FROM {table} ORDER BY 1").fetchall()
        if not rows:
            return
        chosen = self.chance.choice(rows)[0]
        if delete:
            self.conn.execute(f"DELETE FROM {table} WHERE {key} IS NOT DISTINCT FROM %s", (chosen,))
            return
        column = self.chance.choice({"a": ["x"], "b": ["y", "aid"], "c": ["z", "bid"], "k": ["v"]}[table])
        self.conn.execute(
            f"UPDATE {table} SET {column} = %s WHERE {key} IS NOT DISTINCT FROM %s", (self._number(6), chosen)
        )

    def _number(self, below: int) -> int | None:
        return None if self.chance.random() < 0.15 else self.chance.randrange(below)

    def _text(self) -> str | None:
        return self.chance.choice(("p", "q", None))

    def _array(self) -> list[int | None] | None:
        return (
            None if self.chance.random() < 0.2 else [self._number(4) for _ in range(self.chance.randrange(3))]
        )


@pytest.mark.differential
def test_constructs(
    dsn: str, conn: psycopg.Connection, connect: Callable[..., Headwater], engine: EngineName
) -> None:
    print(f"HEADWATER_SEED={SEED}")
    conn.execute(TABLES)
    writer = Writer(conn, random.Random(SEED))
    writer.write(60)
    with connect(dsn, keep_inner="never") as hw:  # the rule of a construct, whatever it costs
        failures = compare(hw, writer, ROUNDS[engine])
        FOUND.incremental = {
            kind: [described(hw, title) for title in queries if title not in failures]
            for kind, queries in INCREMENTAL.items()
        }
    assert not failures


def name_of(title: str) -> str:
    return f"s{list(CONSTRUCTS).index(title)}"


def compare(hw: Headwater, writer: Writer, rounds: int) -> dict[str, str]:
    """What went wrong, by construct."""
    failures: dict[str, str] = {}
    for title, query in CONSTRUCTS.items():
        try:
            # Loads are not what is tried here; and no delta is given up for recomputing.
            hw.create(name_of(title), query, mode="differential", engine="postgres")
        except NotIncremental as error:
            failures[title] = str(error)
    for _ in range(rounds):
        writer.write(writer.chance.choice((1, 1, 3, 8)))
        for title in [title for title in CONSTRUCTS if title not in failures]:
            outcome = hw.refresh(name_of(title))[-1]
            found = hw.verify(name_of(title))
            if outcome.action not in ("delta", "nothing"):
                failures[title] = outcome.reason
            elif not found.equal:
                failures[title] = f"missing {found.missing}, surplus {found.surplus}"
    return failures


def described(hw: Headwater, title: str) -> str:
    """The line of a construct; its rules are noted."""
    operators = hw.explain(name_of(title)).operators
    FOUND.note_rules(operators)
    return incremental_line(title, CONSTRUCTS[title], operators)


@pytest.mark.differential("postgres")
def test_recomputed(dsn: str, conn: psycopg.Connection, connect: Callable[[str], Headwater]) -> None:
    conn.execute(TABLES)
    conn.execute(MORE_TABLES)
    writer = Writer(conn, random.Random(SEED))
    writer.write(30)
    lines, failures = [], {}
    with connect(dsn) as hw:
        for number, (title, query) in enumerate(RECOMPUTED.items()):
            made = hw.create(f"r{number}", query)
            writer.write(3)
            outcome = hw.refresh(f"r{number}")[-1]
            reason = "; ".join(made.mode_reasons)
            if (made.mode, outcome.action, outcome.reason) != ("full", "recompute", reason):
                failures[title] = (made, outcome)
            elif hw.verify(f"r{number}").equal:
                lines.append(line(title, code(query), reason))
            else:
                failures[title] = (made, outcome)
    FOUND.recomputed = lines
    assert not failures


@pytest.mark.differential("postgres")
def test_refused(dsn: str, conn: psycopg.Connection, connect: Callable[[str], Headwater]) -> None:
    conn.execute(TABLES)
    lines = []
    with connect(dsn) as hw:
        for title, query in REFUSED.items():
            with pytest.raises(HeadwaterError) as caught:
                hw.create("st", query)
            # What the server says depends on its version and language.
            reason = caught.value.message.removeprefix("create public.st: ").partition(": ")[0]
            lines.append(line(title, code(query), f"`{type(caught.value).__name__}`: {reason}"))
    FOUND.refused = lines


@pytest.mark.differential("postgres")
def test_the_page_shows_what_passed(pytestconfig: pytest.Config) -> None:
    if not FOUND.is_complete:
        pytest.skip("it needs the other tests of this file")
    if pytestconfig.getoption("--accept-coverage"):
        PAGE.write_text(FOUND.page(), encoding="utf-8")
    written = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    assert written == FOUND.page(), (
        f"if that is right: pytest {__file__} --accept-coverage, and look at the difference"
    )
