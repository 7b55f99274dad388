"""What capture costs a writer: the same statements on a bare table and on tables that stream tables read.

There are four tables of the same rows: a bare one, and with none, one and five stream tables. None means that
there was one and it was dropped; its figures show what is left of capture, which should be nothing, and how
far to trust the others. Every statement is run on all four, one after the other, each time in another order,
so that other work on the machine affects all alike. A time is the median.

Then TPC-B as pgbench runs it, by several clients at once, in rounds that also take turns. With one stream
table the accounts are captured, with five all of its tables. Where there is no pgbench, clients of this
process run the same transaction.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from headwater.api import Headwater
from headwater.db.connection import Connection
from headwater.db.scratch import statement
from headwater.embedded import find_installations
from headwater.errors import HeadwaterError

SCHEMA = "headwater_bench"
ROWS = 100_000
BULK = 10_000
REPETITIONS = 15
SINGLES = 60
"""Statements of one row for each repetition."""
SECONDS = 5.0
CLIENTS = 4
TPCB_ROUNDS = 3
TPCB_ACCOUNTS = 100_000
"""At scale 1, as pgbench makes it."""

BARE = "bare"
TABLES: dict[str, int] = {"none": 0, "one": 1, "five": 5}
EVENTS = ("insert", "update", "delete")
COMMITTED, INSIDE, AT_ONCE = "1 row with its commit", "1 row in a longer transaction", "rows at once"

QUERIES = (
    "SELECT customer, sum(amount) AS total FROM {table} WHERE status <> 'void' GROUP BY customer",
    "SELECT product, count(*) AS n, sum(quantity) AS pieces FROM {table} GROUP BY product",
    "SELECT id, amount FROM {table} WHERE amount > 1000",
    "SELECT status, max(placed_at) AS latest FROM {table} GROUP BY status",
    "SELECT customer, note FROM {table} WHERE quantity > 3",
)
TPCB_QUERIES = (
    "SELECT bid, count(*) AS n, sum(abalance) AS total FROM {schema}.pgbench_accounts GROUP BY bid",
    "SELECT aid, abalance FROM {schema}.pgbench_accounts WHERE abalance < 0",
    "SELECT bid, sum(tbalance) AS total FROM {schema}.pgbench_tellers GROUP BY bid",
    "SELECT bid, bbalance FROM {schema}.pgbench_branches",
    "SELECT tid, count(*) AS n, sum(delta) AS total FROM {schema}.pgbench_history GROUP BY tid",
)
Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class WriteCost:
    """One kind of statement on a table with this many stream tables."""

    kind: str
    event: str
    rows: int
    stream_tables: int
    bare_ms: float
    elapsed_ms: float
    against_bare: float  # how many times as long as on the bare table


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """Transactions a second of TPC-B over tables with this many stream tables."""

    clients: int
    stream_tables: int
    bare_tps: float
    tps: float
    against_bare: float  # how many times as long as a transaction over bare tables


@dataclass(frozen=True, kw_only=True)
class CaptureCosts:
    """All figures of one run."""

    statements: list[WriteCost]
    tpcb: list[Throughput]
    tpcb_by: str  # what ran the transactions
    server: str


def measure(
    hw: Headwater,
    dsn: str,
    *,
    rows: int = ROWS,
    bulk: int = BULK,
    repetitions: int = REPETITIONS,
    seconds: float = SECONDS,
    progress: Progress = lambda _: None,
) -> CaptureCosts:
    """Return the figures; without seconds for TPC-B, none of it."""
    program = _pgbench(dsn)
    with psycopg.connect(dsn, autocommit=True) as writer:
        try:
            _prepare(hw, writer, rows, progress)
            statements = list(_statements(hw, writer, rows, bulk, repetitions, progress))
            tpcb = _tpcb(hw, dsn, program, seconds, progress) if seconds else []
            return CaptureCosts(
                statements=statements,
                tpcb=tpcb,
                tpcb_by="pgbench" if program else "clients of this process",
                server=writer.info.parameter_status("server_version") or "",
            )
        finally:
            _clear(hw, writer)


# statements


def _statements(
    hw: Headwater, writer: Connection, rows: int, bulk: int, repetitions: int, progress: Progress
) -> Iterator[WriteCost]:
    for kind, size, times in (
        (COMMITTED, 1, repetitions * SINGLES),
        (INSIDE, 1, repetitions * SINGLES),
        (AT_ONCE, bulk, repetitions),
    ):
        progress(f"{size:,} {kind}" if kind == AT_ONCE else kind)
        if kind == INSIDE:
            with writer.transaction():
                samples = _sample(writer, rows + 1, size, times)
        else:
            samples = _sample(writer, rows + 1, size, times)
        for event in EVENTS:
            bare = statistics.median(samples[event, BARE])
            for table, number in TABLES.items():
                elapsed = statistics.median(samples[event, table])
                yield WriteCost(
                    kind=kind,
                    event=event,
                    rows=size,
                    stream_tables=number,
                    bare_ms=bare * 1e3,
                    elapsed_ms=elapsed * 1e3,
                    against_bare=elapsed / bare,
                )
        for item in hw.list():
            if item.stream_table.startswith(f"{SCHEMA}."):
                hw.refresh(item.stream_table)
        for table in (BARE, *TABLES):
            writer.execute(statement(f"VACUUM {SCHEMA}.{table}"))


def _sample(writer: Connection, first: int, size: int, times: int) -> dict[tuple[str, str], list[float]]:
    """Return the seconds of each statement of this many rows, by event and table."""
    tables = (BARE, *TABLES)
    found: dict[tuple[str, str], list[float]] = {(event, table): [] for event in EVENTS for table in tables}
    for number in range(times):
        for event in EVENTS:
            for table in random.sample(tables, len(tables)):
                text = statement(_text(event, f"{SCHEMA}.{table}", first + number * size, size))
                started = time.perf_counter()
                writer.execute(text)
                found[event, table].append(time.perf_counter() - started)
    return found


def _text(event: str, table: str, first: int, number: int) -> str:
    where = f"WHERE id BETWEEN {first} AND {first + number - 1}"
    return {
        "insert": f"INSERT INTO {table} {_rows(first, number)}",
        "update": f"UPDATE {table} SET amount = amount + 1, status = 'paid' {where}",
        "delete": f"DELETE FROM {table} {where}",
    }[event]


def _rows(first: int, number: int) -> str:
    return (
        "SELECT g, g % 1000, g % 100, (g % 9973) / 7.0, g % 5, 'note ' || g, now(), 'new'"
        f" FROM generate_series({first}, {first + number - 1}) g"
    )


def _prepare(hw: Headwater, writer: Connection, rows: int, progress: Progress) -> None:
    _clear(hw, writer)
    writer.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(SCHEMA)))
    for table in (BARE, *TABLES):
        progress(f"filling a table with {rows:,} rows")
        name = f"{SCHEMA}.{table}"
        writer.execute(
            statement(
                f"CREATE TABLE {name} (id int PRIMARY KEY, customer int NOT NULL, product int NOT NULL,"
                " amount numeric(10,2), quantity int, note text, placed_at timestamptz, status text)"
            )
        )
        writer.execute(statement(f"CREATE INDEX ON {name} (customer)"))
        writer.execute(statement(f"INSERT INTO {name} {_rows(1, rows)}"))
        writer.execute(statement(f"VACUUM ANALYZE {name}"))
    for table, number in TABLES.items():
        _create(hw, table, [query.format(table=f"{SCHEMA}.{table}") for query in QUERIES], number)


def _create(hw: Headwater, name: str, queries: Sequence[str], number: int) -> None:
    """Create this many stream tables; for none, one that is dropped again."""
    made = [f"{SCHEMA}.of_{name}_{place}" for place in range(max(number, 1))]
    for stream_table, query in zip(made, queries, strict=False):
        hw.create(stream_table, query, mode="differential", engine="postgres")
    if not number:
        hw.drop(made[0])


def _clear(hw: Headwater, writer: Connection) -> None:
    for item in hw.list():
        if item.stream_table.startswith(f"{SCHEMA}."):
            hw.drop(item.stream_table)
    for schema in (SCHEMA, *map(_schema, (BARE, *TABLES))):
        writer.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(schema)))


# TPC-B


def _pgbench(dsn: str) -> Path | None:
    """Return the program, beside a server's other ones or on the path; the first that can connect."""
    beside = [installation.bin_dir / "pgbench" for installation in find_installations()]
    on_path = shutil.which("pgbench")
    for program in (*beside, *([Path(on_path)] if on_path else [])):
        if os.access(program, os.X_OK):
            done = _run(program, dsn, SCHEMA, ["--version"])
            if done.returncode == 0:
                return program
    return None


def _run(program: Path, dsn: str, schema: str, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run pgbench with the database in its environment, where nobody sees a password."""
    names = {"host": "PGHOST", "port": "PGPORT", "user": "PGUSER", "password": "PGPASSWORD"}
    given = conninfo_to_dict(dsn)
    environment = {
        **os.environ,
        **{variable: str(given[name]) for name, variable in names.items() if given.get(name) is not None},
        "PGDATABASE": str(given.get("dbname") or given.get("user") or ""),
        "PGOPTIONS": f"-c search_path={schema}",
        "LC_ALL": "C",
    }
    return subprocess.run(
        [str(program), *arguments], env=environment, capture_output=True, text=True, check=False
    )


def _schema(table: str) -> str:
    return f"{SCHEMA}_tpcb_{table}"


def _tpcb(
    hw: Headwater, dsn: str, program: Path | None, seconds: float, progress: Progress
) -> list[Throughput]:
    tables = (BARE, *TABLES)
    for table in tables:
        progress("filling the tables of TPC-B")
        schema = _schema(table)
        hw.connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        _fill_tpcb(dsn, program, schema)
        if table in TABLES:
            queries = [query.format(schema=schema) for query in TPCB_QUERIES]
            _create(hw, f"tpcb_{table}", queries, TABLES[table])
    found: dict[str, list[float]] = {table: [] for table in tables}
    for turn in range(TPCB_ROUNDS):
        for table in tables[turn % 4 :] + tables[: turn % 4]:
            progress(f"TPC-B by {CLIENTS} clients, round {turn + 1} of {TPCB_ROUNDS}")
            found[table].append(_transactions(dsn, program, _schema(table), seconds))
    bare = statistics.median(found[BARE])
    return [
        Throughput(
            clients=CLIENTS,
            stream_tables=number,
            bare_tps=bare,
            tps=statistics.median(found[table]),
            against_bare=bare / statistics.median(found[table]),
        )
        for table, number in TABLES.items()
    ]


def _fill_tpcb(dsn: str, program: Path | None, schema: str) -> None:
    if program is not None:
        done = _run(program, dsn, schema, ["--initialize", "--quiet", "--scale", "1"])
        if done.returncode:
            raise HeadwaterError("pgbench could not make its tables", detail=done.stderr.strip())
        return
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("SET search_path TO {}").format(sql.Identifier(schema)))
        connection.execute(
            "CREATE TABLE pgbench_branches (bid int PRIMARY KEY, bbalance int, filler char(88));"
            " CREATE TABLE pgbench_tellers (tid int PRIMARY KEY, bid int, tbalance int, filler char(84));"
            " CREATE TABLE pgbench_accounts (aid int PRIMARY KEY, bid int, abalance int, filler char(84));"
            " CREATE TABLE pgbench_history"
            " (tid int, bid int, aid int, delta int, mtime timestamp, filler char(22));"
            " INSERT INTO pgbench_branches VALUES (1, 0);"
            " INSERT INTO pgbench_tellers SELECT t, 1, 0 FROM generate_series(1, 10) t;"
            f" INSERT INTO pgbench_accounts SELECT a, 1, 0, '' FROM generate_series(1, {TPCB_ACCOUNTS}) a"
        )
        connection.execute("VACUUM ANALYZE")


def _transactions(dsn: str, program: Path | None, schema: str, seconds: float) -> float:
    """Return the transactions a second."""
    if program is None:
        with ThreadPoolExecutor(CLIENTS) as pool:
            return sum(pool.map(lambda _: _client(dsn, schema, seconds), range(CLIENTS)))
    whole = str(max(1, round(seconds)))
    arguments = ["--no-vacuum", "--time", whole, "--client", str(CLIENTS), "--jobs", "2"]
    done = _run(program, dsn, schema, arguments)
    tps = re.search(r"^tps = ([\d.]+)", done.stdout, re.MULTILINE)
    if done.returncode or tps is None:
        raise HeadwaterError("pgbench failed", detail=done.stderr.strip())
    return float(tps[1])


def _client(dsn: str, schema: str, seconds: float) -> float:
    """Run pgbench's transaction repeatedly; return how many a second."""
    with psycopg.connect(dsn, options=f"-c search_path={schema}", autocommit=True) as connection:
        done, started = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - started) < seconds:
            account, teller = random.randint(1, TPCB_ACCOUNTS), random.randint(1, 10)
            delta = random.randint(-5000, 5000)
            with connection.transaction():
                run = connection.execute
                run("UPDATE pgbench_accounts SET abalance = abalance + %s WHERE aid = %s", (delta, account))
                run("SELECT abalance FROM pgbench_accounts WHERE aid = %s", (account,))
                run("UPDATE pgbench_tellers SET tbalance = tbalance + %s WHERE tid = %s", (delta, teller))
                run("UPDATE pgbench_branches SET bbalance = bbalance + %s WHERE bid = 1", (delta,))
                run(
                    "INSERT INTO pgbench_history (tid, bid, aid, delta, mtime)"
                    " VALUES (%s, 1, %s, %s, CURRENT_TIMESTAMP)",
                    (teller, account, delta),
                )
            done += 1
        return done / elapsed
