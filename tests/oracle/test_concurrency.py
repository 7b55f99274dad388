"""Writers and refreshers at once: whatever the order of commits, nothing is lost, nothing counted twice."""

from __future__ import annotations

import os
import random
import threading

import psycopg

import headwater

TRANSACTIONS = 60 * (1 + int(os.environ.get("HEADWATER_SOAK_SECONDS") or 0) // 10)
WRITERS, REFRESHERS = 4, 3
STREAM_TABLES = {
    "groups": "SELECT u.n, count(*) AS c, sum(t.v) AS s, min(t.v) AS lo, max(t.id) AS hi"
    " FROM t JOIN u ON u.g = t.g GROUP BY u.n",
    "pairs": "SELECT t.id, t.v, k.x FROM t JOIN k ON k.g = t.g",
    "arrays": "SELECT g, array_agg(id ORDER BY id) AS ids FROM t GROUP BY g",
    "above": "SELECT hi, count(*) AS n FROM groups GROUP BY hi",
    "kinds": "SELECT DISTINCT g FROM k",
}


def write(dsn: str, seed: int, finished: list[int]) -> None:
    """Transactions of random statements, some with savepoints, some slow, some rolled back."""
    chance = random.Random(seed)
    with psycopg.connect(dsn) as conn:
        for _ in range(TRANSACTIONS):
            try:
                for _ in range(chance.randint(1, 4)):
                    statement(conn, chance)
                conn.rollback() if chance.random() < 0.15 else conn.commit()
            except psycopg.errors.DeadlockDetected:  # of two writers; each takes its rows in a random order
                conn.rollback()
    finished.append(seed)


def statement(conn: psycopg.Connection, chance: random.Random) -> None:
    row, group, value = chance.randint(1, 900), chance.randint(0, 9), chance.randint(0, 400) / 4
    match chance.choices(range(8), weights=(30, 20, 15, 10, 5, 10, 0.5, 9))[0]:
        case 0:
            conn.execute(
                "INSERT INTO t VALUES (%s, %s, %s) ON CONFLICT (id) DO UPDATE SET v = excluded.v",
                (row, group, value),
            )
        case 1:
            conn.execute("UPDATE t SET g = %s WHERE id = %s", (group, row))
        case 2:
            conn.execute("DELETE FROM t WHERE id = %s", (row,))
        case 3:
            conn.execute("INSERT INTO k VALUES (%s, %s)", (group, row % 5))
        case 4:
            conn.execute("DELETE FROM k WHERE ctid IN (SELECT ctid FROM k LIMIT 2)")
        case 5:
            conn.execute("UPDATE u SET g = %s, n = 'n' || %s WHERE id = %s", (group, row % 4, row % 50))
        case 6:
            conn.execute("TRUNCATE k")
        case _:
            conn.execute("SAVEPOINT s")
            conn.execute("DELETE FROM t WHERE g = %s", (group,))
            conn.execute("ROLLBACK TO s")


def refresh(dsn: str, seed: int, writing: threading.Event, problems: list[str]) -> None:
    chance = random.Random(seed)
    with headwater.connect(dsn) as hw:
        while writing.is_set():
            name = chance.choice(sorted(STREAM_TABLES))
            try:
                hw.refresh(name, full=chance.random() < 0.03)
                found = hw.verify(name) if chance.random() < 0.2 else None
            except headwater.HeadwaterError as error:
                problems.append(f"refresh of {name}: {error}")
                return
            if found is not None and not found.equal:
                problems.append(f"{name} lacks {found.missing} and has {found.surplus}")
                return


def test_writers_and_refreshers_at_once(dsn: str, conn: psycopg.Connection) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    conn.execute("CREATE TABLE t (id int PRIMARY KEY, g int, v numeric)")
    conn.execute("CREATE TABLE u (id int PRIMARY KEY, g int, n text)")
    conn.execute("CREATE TABLE k (g int, x int)")
    conn.execute("INSERT INTO t SELECT i, i % 10, i FROM generate_series(1, 500) i")
    conn.execute("INSERT INTO u SELECT i, i % 10, 'n' || i % 4 FROM generate_series(1, 50) i")
    conn.execute("INSERT INTO k SELECT i % 10, i FROM generate_series(1, 100) i")
    with headwater.connect(dsn) as hw:
        for name, query in STREAM_TABLES.items():
            hw.create(name, query, mode="differential")
        writing = threading.Event()
        writing.set()
        problems: list[str] = []
        finished: list[int] = []
        writers = [
            threading.Thread(target=write, args=(dsn, seed + number, finished)) for number in range(WRITERS)
        ]
        refreshers = [
            threading.Thread(target=refresh, args=(dsn, seed - number, writing, problems))
            for number in range(1, REFRESHERS + 1)
        ]
        for thread in writers + refreshers:
            thread.start()
        for thread in writers:
            thread.join()
        writing.clear()
        for thread in refreshers:
            thread.join()
        assert problems == []
        assert len(finished) == WRITERS
        for name in STREAM_TABLES:
            hw.refresh(name)
            assert hw.verify(name).equal
        rows = conn.execute(
            "SELECT count(*) FROM headwater.refresh WHERE status = 'failed' OR reason LIKE '%does not hold%'"
        ).fetchone()
        assert rows == (0,)
