"""Ten writers and somebody who alters tables, each with a connection of its own, for as long as they are let.

They write in transactions that commit in any order: long ones, rolled-back ones, ones with savepoints inside
savepoints, prepared ones that somebody else ends, bulk loads, COPY, TRUNCATE, in every isolation level. They
may lose a race among themselves. What they must not meet is an error that has to do with Headwater.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from typing import Any

import psycopg
from psycopg import IsolationLevel

Connection = psycopg.Connection[Any]

WRITERS = 10
TABLES = """
CREATE TABLE t (id int PRIMARY KEY, g int, v numeric, note text);
CREATE TABLE u (id int PRIMARY KEY, g int, n text);
CREATE TABLE k (g int, x int);
CREATE TABLE p (day int NOT NULL, x int) PARTITION BY RANGE (day);
CREATE TABLE p_0 PARTITION OF p FOR VALUES FROM (0) TO (5);
CREATE TABLE p_1 PARTITION OF p FOR VALUES FROM (5) TO (10);
CREATE TABLE p_2 (day int NOT NULL, x int);
CREATE INDEX ON t (g);
INSERT INTO t SELECT i, i % 10, i, 'n' || i % 7 FROM generate_series(1, 500) i;
INSERT INTO u SELECT i, i % 10, 'n' || i % 4 FROM generate_series(1, 50) i;
INSERT INTO k SELECT i % 10, i FROM generate_series(1, 100) i;
INSERT INTO p SELECT i % 10, i FROM generate_series(1, 100) i;
INSERT INTO p_2 SELECT 10 + i % 5, i FROM generate_series(1, 50) i;
"""
STREAM_TABLES = {
    "groups": "SELECT u.n, count(*) AS c, sum(t.v) AS s, min(t.v) AS lo, max(t.id) AS hi"
    " FROM t JOIN u ON u.g = t.g GROUP BY u.n",
    "pairs": "SELECT t.id, t.v, k.x FROM t JOIN k ON k.g = t.g WHERE t.id < 100",
    "arrays": "SELECT g, array_agg(id ORDER BY id) AS ids FROM t GROUP BY g",
    "above": "SELECT hi, count(*) AS n FROM groups GROUP BY hi",
    "kinds": "SELECT DISTINCT g FROM k",
    "outside": "SELECT u.id, u.n, t.id AS item, t.v FROM u LEFT JOIN t ON t.g = u.g AND t.v > 90",
    "ranked": "SELECT id, g, rank() OVER (PARTITION BY g ORDER BY v DESC, id) AS place FROM t",
    "kept": "SELECT u.n, max(x.s) AS best FROM u"
    " JOIN (SELECT g, sum(v) AS s FROM t GROUP BY g) x ON x.g = u.g GROUP BY u.n",
    "top": "SELECT g, sum(v) AS s FROM t GROUP BY g ORDER BY s DESC NULLS LAST, g NULLS LAST LIMIT 3",
    "absent": "SELECT g, x FROM k WHERE g NOT IN (SELECT g FROM t WHERE g IS NOT NULL)",
    "daily": "SELECT day, count(*) AS c, sum(x) AS s FROM p GROUP BY day",
    "notes": "SELECT note, count(*) AS c FROM t GROUP BY note",
    "both": "SELECT n.note, a.hi FROM notes n JOIN above a ON a.n = n.c % 3",
}
OWN_RACES = {
    "40P01",  # a deadlock of two writers; looked at below
    "40001",  # two writers of one row, of which one reads an old snapshot
    "55P03",  # who alters a table does not wait for long
    "23514",  # a row for a partition that is detached just now
    "42P01",  # the partition itself, named in a statement, under its other name
}


class Load:
    """The writers; `problems` are the errors that they should not have met."""

    def __init__(self, dsn: str, seed: int) -> None:
        self._dsn = dsn
        self._seed = seed
        self._going_on = threading.Event()
        self._going_on.set()
        self._anybody_waits = threading.Event()  # maybe, for what was prepared
        self._anybody_waits.set()
        self._prepared: list[str] = []
        self._guard = threading.Lock()
        self.problems: list[str] = []
        self.done: Counter[str] = Counter()
        *self._threads, self._ender = [
            threading.Thread(target=self._work, args=(work, number, going_on))
            for number, (work, going_on) in enumerate(
                [
                    *([(self._write, self._going_on)] * WRITERS),
                    (self._alter, self._going_on),
                    (self._end_prepared, self._anybody_waits),
                ]
            )
        ]

    def start(self) -> None:
        for thread in (*self._threads, self._ender):
            thread.start()

    def stop(self) -> None:
        """Ends the writers, and then the prepared transactions, for which writers may have waited."""
        self._going_on.clear()
        for thread in self._threads:
            thread.join()
        self._anybody_waits.clear()
        self._ender.join()
        with psycopg.connect(self._dsn, autocommit=True) as conn:
            for gid in self._prepared:
                conn.execute(f"COMMIT PREPARED '{gid}'")

    def _work(self, work: Any, number: int, going_on: threading.Event) -> None:
        chance = random.Random(self._seed + number)
        try:
            with psycopg.connect(self._dsn) as conn:
                while going_on.is_set():
                    try:
                        work(conn, chance, number)
                    except psycopg.Error as error:
                        self._judge(error)
                        conn.rollback()
        except Exception as error:
            self.problems.append(f"writer {number} ended by {error!r}")

    def _judge(self, error: psycopg.Error) -> None:
        """Whether it is a race of users among themselves."""
        state = error.sqlstate or type(error).__name__
        with self._guard:
            self.done[state] += 1
        text = f"{error.diag.message_primary} {error.diag.message_detail} {error.diag.context}"
        # A serializable writer may learn of a race anywhere, also where its change rows are written. Nobody
        # else reads or writes those in a serializable transaction.
        if state not in OWN_RACES or ("headwater" in text and state != "40001"):
            self.problems.append(f"a writer met {state}: {text}")
        if state == "40P01":
            with psycopg.connect(self._dsn, autocommit=True) as conn:
                ours = conn.execute(
                    "SELECT pid::text FROM pg_stat_activity WHERE application_name ~ '^headwater'"
                ).fetchall()
            if {pid for (pid,) in ours} & set(text.replace(".", " ").replace(";", " ").split()):
                self.problems.append(f"a writer was the victim of a deadlock with a refresh: {text}")

    # writers

    def _write(self, conn: Connection, chance: random.Random, number: int) -> None:
        """One transaction."""
        conn.isolation_level = chance.choices(list(IsolationLevel)[1:], weights=(8, 1, 1))[0]
        kind = chance.choices(
            ("short", "long", "nested", "prepared", "bulk", "copy", "truncate"),
            weights=(50, 8, 15, 6, 6, 8, 1.5),
        )[0]
        with self._guard:
            self.done[kind] += 1
        match kind:
            case "long":
                for _ in range(3):
                    self._statement(conn, chance, number)
                    conn.execute("SELECT pg_sleep(%s)", (chance.random() / 2,))
            case "nested":
                self._nested(conn, chance, number, depth=3)
            case "bulk":
                self._bulk(conn, chance)
            case "copy":
                with conn.cursor().copy("COPY k FROM STDIN") as copy:
                    for row in range(chance.randint(1, 60)):
                        copy.write_row((row % 12 or None, row))
            case "truncate":
                conn.execute("SET LOCAL lock_timeout = '300ms'")
                conn.execute(chance.choice(["TRUNCATE k", "TRUNCATE p_0", "TRUNCATE k, u"]))
                if chance.random() < 0.5:
                    conn.execute(
                        "INSERT INTO u SELECT i, i % 10, 'n' || i % 4 FROM generate_series(1, 30) i"
                        " ON CONFLICT DO NOTHING"
                    )
            case _:
                for _ in range(chance.randint(1, 4)):
                    self._statement(conn, chance, number)
        if kind == "prepared" and len(self._prepared) < 5:
            gid = f"{number} {chance.random()}"
            conn.execute(f"PREPARE TRANSACTION '{gid}'")
            conn.rollback()  # ends what psycopg takes for the transaction
            with self._guard:
                self._prepared.append(gid)
        elif chance.random() < 0.2:
            conn.rollback()
        else:
            conn.commit()

    def _nested(self, conn: Connection, chance: random.Random, number: int, depth: int) -> None:
        self._statement(conn, chance, number)
        for _ in range(chance.randint(1, 2) if depth else 0):
            with conn.transaction() as savepoint:
                self._nested(conn, chance, number, depth - 1)
                if chance.random() < 0.4:
                    raise psycopg.Rollback(savepoint)

    def _statement(self, conn: Connection, chance: random.Random, number: int) -> None:
        # Mostly rows of its own, so that writers wait for each other sometimes and not always.
        row = chance.randint(0, 89) * 10 + (number if chance.random() < 0.9 else chance.randint(0, 9))
        group, value = chance.choice([*range(10), None]), chance.randint(0, 400) / 4
        match chance.choices(range(8), weights=(30, 20, 15, 10, 8, 10, 10, 5))[0]:
            case 0:
                conn.execute(
                    "INSERT INTO t (id, g, v) VALUES (%s, %s, %s)"
                    " ON CONFLICT (id) DO UPDATE SET v = excluded.v",
                    (row, group, value),
                )
            case 1:
                conn.execute("UPDATE t SET g = %s WHERE id = %s", (group, row))
            case 2:
                conn.execute("DELETE FROM t WHERE id = %s", (row,))
            case 3:
                conn.execute("INSERT INTO k VALUES (%s, %s)", (group, row % 5))
            case 4:
                conn.execute(
                    "DELETE FROM k WHERE ctid IN (SELECT ctid FROM k LIMIT 20 FOR UPDATE SKIP LOCKED)"
                )
            case 5:
                conn.execute("UPDATE u SET g = %s, n = 'n' || %s WHERE id = %s", (group, row % 4, row % 50))
            case 6:
                conn.execute("INSERT INTO p VALUES (%s, %s)", (chance.randint(0, 14), row))
            case _:
                conn.execute("DELETE FROM p WHERE x = %s", (row,))

    def _bulk(self, conn: Connection, chance: random.Random) -> None:
        low = 1000 + chance.randrange(4) * 500
        if chance.random() < 0.5:
            conn.execute(
                "INSERT INTO t (id, g, v) SELECT i, i %% 10, i %% 100"
                " FROM generate_series(%s::int, %s::int) i ON CONFLICT DO NOTHING",
                (low, low + 400),
            )
        else:
            conn.execute("DELETE FROM t WHERE id BETWEEN %s AND %s", (low, low + 400))
            conn.execute("DELETE FROM p WHERE x %% 3 = %s", (chance.randrange(3),))

    # others

    def _alter(self, conn: Connection, chance: random.Random, number: int) -> None:
        """One change of a table."""
        time.sleep(chance.random())
        conn.execute("SET lock_timeout = '300ms'")
        match chance.randrange(5):
            case 0:
                conn.execute("ALTER TABLE t ADD COLUMN IF NOT EXISTS extra int DEFAULT 7")
                conn.commit()
                conn.execute("ALTER TABLE t DROP COLUMN IF EXISTS extra")
            case 1:
                has = conn.execute(
                    "SELECT FROM pg_attribute WHERE attrelid = 't'::regclass AND attname = 'note'"
                )
                old, new = ("note", "remark") if has.fetchone() is not None else ("remark", "note")
                conn.execute(f"ALTER TABLE t RENAME COLUMN {old} TO {new}")
            case 2:
                conn.execute("CREATE INDEX IF NOT EXISTS t_v_idx ON t (v)")
                conn.commit()
                conn.execute("DROP INDEX IF EXISTS t_v_idx")
            case 3:
                attached = conn.execute("SELECT FROM pg_inherits WHERE inhrelid = 'p_2'::regclass").fetchone()
                if attached is not None:
                    conn.execute("ALTER TABLE p DETACH PARTITION p_2")
                else:
                    conn.execute("ALTER TABLE p ATTACH PARTITION p_2 FOR VALUES FROM (10) TO (15)")
            case _:
                conn.execute("ALTER TABLE u ALTER COLUMN n SET STATISTICS 50")
        conn.commit()
        with self._guard:
            self.done["ALTER"] += 1

    def _end_prepared(self, conn: Connection, chance: random.Random, number: int) -> None:
        """Ends one of the prepared transactions, whichever."""
        time.sleep(chance.random() / 5)
        conn.autocommit = True
        with self._guard:
            gid = self._prepared.pop(chance.randrange(len(self._prepared))) if self._prepared else None
        if gid is not None:
            conn.execute(f"{chance.choice(['COMMIT', 'COMMIT', 'ROLLBACK'])} PREPARED '{gid}'")
