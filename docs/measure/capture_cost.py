"""What capture costs writers: the same statements on a bare table and on two that stream tables read.

    .venv/bin/python docs/measure/capture_cost.py

Starts a private PostgreSQL with fsync on. Every statement is run on the three tables one after the other, in
an order that rotates, so that whatever else the machine does hits all three alike. Prints the median time on
the bare table and, for each captured table, the ratio of its median to that. Of the captured tables one is
read by a query of three of its eight columns, the other by a query of all eight. HEADWATER_PG_BIN names the
directory of another server's programs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from itertools import count

import psycopg

import headwater
from headwater.embedded import Server, find_installation

ROWS = 100_000
BULK = 10_000
SINGLE_STATEMENTS = 1_500
BULK_ROUNDS = 25
TABLES = ("bare", "narrow", "wide")
EVENTS = ("insert", "update", "delete")
Samples = dict[tuple[str, str], list[float]]


def rows(first: int, number: int) -> str:
    return (
        "SELECT g, g % 1000, g % 100, (g % 9973) / 7.0, g % 5, 'note ' || g, now(), 'new'"
        f" FROM generate_series({first}, {first + number - 1}) g"
    )


def statement(event: str, table: str, first: int, number: int) -> str:
    where = f"WHERE id BETWEEN {first} AND {first + number - 1}"
    return {
        "insert": f"INSERT INTO {table} {rows(first, number)}",
        "update": f"UPDATE {table} SET amount = amount + 1, status = 'paid' {where}",
        "delete": f"DELETE FROM {table} {where}",
    }[event]


def prepare(hw: headwater.Headwater, connection: psycopg.Connection) -> None:
    for table in TABLES:
        connection.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY, customer int NOT NULL, product int NOT NULL,"
            " amount numeric(10,2), quantity int, note text, placed_at timestamptz, status text)"
        )
        connection.execute(f"CREATE INDEX ON {table} (customer)")
        connection.execute(f"INSERT INTO {table} {rows(1, ROWS)}")
        connection.execute(f"VACUUM ANALYZE {table}")
    hw.create(
        "of_narrow", "SELECT customer, sum(amount) AS s FROM narrow WHERE status <> 'void' GROUP BY customer"
    )
    hw.create("of_wide", "SELECT * FROM wide WHERE customer < 0")
    connection.execute("CHECKPOINT")


def tables() -> Iterator[tuple[str, ...]]:
    for turn in count():
        shift = turn % len(TABLES)
        yield TABLES[shift:] + TABLES[:shift]


def measure(connection: psycopg.Connection, size: int, repetitions: int) -> Samples:
    """Seconds of each statement of this many rows, by event and table."""
    found: Samples = {}
    order = tables()
    for number in range(repetitions):
        for event in EVENTS:
            for table in next(order):
                text = statement(event, table, ROWS + 1 + number * size, size)
                start = time.perf_counter()
                connection.execute(text)
                found.setdefault((event, table), []).append(time.perf_counter() - start)
    return found


def main() -> None:
    installation = find_installation()
    print("PostgreSQL {}.{}".format(*installation.version))
    with Server.start(installation=installation) as server, headwater.connect(server.dsn()) as hw:
        hw.init()
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            prepare(hw, connection)
            kinds: dict[str, Callable[[], Samples]] = {
                "1 row, with its commit": lambda: measure(connection, 1, SINGLE_STATEMENTS),
                "1 row, without a commit": lambda: inside(connection),
                f"{BULK} rows, with the commit": lambda: measure(connection, BULK, BULK_ROUNDS),
            }
            for kind, samples_of in kinds.items():
                samples = samples_of()
                for event in EVENTS:
                    bare, narrow, wide = (statistics.median(samples[event, table]) for table in TABLES)
                    print(
                        f"{kind:24} {event:7} bare {bare * 1e3:8.3f} ms   3 columns {narrow / bare:5.2f}x"
                        f"   8 columns {wide / bare:5.2f}x"
                    )
                for name in ("of_narrow", "of_wide"):
                    hw.refresh(name)
                for table in TABLES:
                    connection.execute(f"VACUUM {table}")


def inside(connection: psycopg.Connection) -> Samples:
    with connection.transaction():
        return measure(connection, 1, SINGLE_STATEMENTS)


if __name__ == "__main__":
    main()
