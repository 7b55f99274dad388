"""The keeper of snapshots: a small process beside a Spark driver, one for each JVM and database.

Spark plans the partitions of a data source once, when a frame is first used, and reads them in every action
after that. So no snapshot can be chosen while planning. Instead the first task of an action asks the keeper
for one, and every other task of that action gets the same.

- Who keeps what: for each (frame, action) the keeper holds a READ ONLY REPEATABLE READ transaction, and one
  that locked the relations before, because no snapshot protects from TRUNCATE and rewrites. It remembers
  which ones have ended. A task that comes after the end gets an error, never another snapshot.
- How they talk: by NOTIFY through the database, so that an executor needs no other route.
- When a snapshot ends: some seconds after all its partitions were read; if tasks vanish or none comes, after
  a while; at once when the connection breaks.
- When the keeper ends: when the JVM that it serves is gone, or the database is. It leaves nothing behind,
  because it holds only connections.
- If the keeper is killed: its snapshots end, tasks get an error, and frames that are loaded again start
  another.

The DSN comes by a pipe: arguments and environments of processes can be read by others. The process runs this
file alone, and so starts in a fraction of the time that the package takes to import.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import psycopg
from psycopg import sql

Connection = psycopg.Connection[Any]

TICK_SECONDS = 1.0
LOCK_SECONDS = 10
RETRY_SECONDS = 60.0
"""How long a snapshot waits for the next attempt of a task that vanished: it failed, or is no longer needed.
"""
REMEMBERED = 100_000


@dataclass(frozen=True)
class Address:
    """Where the keeper of a JVM and database is found."""

    channel: str
    lock: int

    @classmethod
    def of(cls, dsn: str, jvm: str) -> Address:
        # The channel is a secret: anybody who knows it can make the keeper open transactions.
        digest = hashlib.sha256(f"{jvm}\n{dsn}".encode()).digest()
        return cls(f"headwater_{digest[:16].hex()}", int.from_bytes(digest[16:24], "big", signed=True))


@dataclass(frozen=True)
class Request:
    """What a task asks for: the snapshot under which an action reads a frame."""

    frame: str
    action: str
    part: int
    parts: int
    reader: int  # process id of the backend that will read
    relations: tuple[str, ...]  # SQL names, to be locked
    timeout: float  # seconds
    linger: float


def stat(process: int) -> list[str]:
    """Return the fields of /proc/…/stat after the name, which may contain anything."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()


def started(process: int) -> str:
    """Return when a process started, which distinguishes it from a later one of the same number."""
    with contextlib.suppress(OSError, IndexError):
        return stat(process)[19]
    return ""


class Snapshot:
    """An exported snapshot, and locks from before it on what will be read."""

    def __init__(self, dsn: str, relations: Sequence[str]) -> None:
        self._guard = self._holder = _connect(dsn)
        try:
            self._guard.execute("BEGIN READ ONLY")
            for relation in relations:
                self._lock(relation)
            self._holder = _connect(dsn)
            self._holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            row = self._holder.execute("SELECT pg_catalog.pg_export_snapshot()").fetchone()
            assert row is not None
            self.id = str(row[0])
        except BaseException:
            self.close()
            raise

    @property
    def backends(self) -> set[int]:
        """The process ids on the server that it consists of."""
        return {self._guard.info.backend_pid, self._holder.info.backend_pid}

    @property
    def broken(self) -> bool:
        return self._guard.closed or self._holder.closed

    def close(self) -> None:
        self._guard.close()
        self._holder.close()

    def _lock(self, relation: str) -> None:
        """Lock as a query does, because LOCK TABLE takes neither a materialized view nor a foreign table."""
        try:
            with self._guard.transaction():
                self._guard.execute(sql.SQL("SELECT FROM {} LIMIT 0").format(sql.SQL(relation)))
        except psycopg.errors.InsufficientPrivilege:
            pass  # it is read through a view, and locked with that


def _connect(dsn: str) -> Connection:
    connection: Connection = psycopg.connect(dsn, autocommit=True, application_name="headwater snapshot")
    # Such limits are meant for forgotten transactions.
    connection.execute("SET idle_in_transaction_session_timeout = 0")
    connection.execute(sql.SQL("SET lock_timeout = {}").format(f"{LOCK_SECONDS}s"))
    return connection


@dataclass
class Kept:
    """A snapshot and its readers."""

    held: Snapshot
    parts: int
    timeout: float
    linger: float
    touched: float
    done: set[int] = field(default_factory=set)
    readers: dict[int, int] = field(default_factory=dict)  # process id of a backend to its part
    vanished: bool = False

    def allowed(self) -> float:
        """Return how long it waits while nobody reads."""
        if len(self.done) == self.parts:
            return self.linger
        return min(self.timeout, RETRY_SECONDS) if self.vanished else self.timeout

    def why_ended(self) -> str:
        if len(self.done) == self.parts:
            return f"all of it had been read {self.linger:g} s before"
        return f"no task read under it for {self.allowed():g} s"


class Keeper:
    """Answers tasks, and ends snapshots that are no longer needed."""

    def __init__(
        self, dsn: str, address: Address, alive: Callable[[], bool], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._dsn = dsn
        self._address = address
        self._alive = alive
        self._now = now
        self._kept: dict[tuple[str, str], Kept] = {}
        self._ended: dict[tuple[str, str], str] = {}
        self._control = _connect(dsn)

    def begin(self) -> bool:
        """Take the address; return False if another keeper has it."""
        row = self._control.execute("SELECT pg_try_advisory_lock(%s)", (self._address.lock,)).fetchone()
        if row is None or not row[0]:
            return False
        self._control.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._address.channel)))
        return True

    def serve(self) -> None:
        """Serve until the JVM or the database is gone."""
        with contextlib.suppress(psycopg.Error):
            while self._alive():
                # All at once: the connection cannot send an answer while they are being listed.
                for notification in list(self._control.notifies(timeout=TICK_SECONDS, stop_after=1)):
                    self.handle(notification.payload)
                self.tick()

    def handle(self, payload: str) -> None:
        """Handle one message of a task; ignore messages that are not for us."""
        try:
            message = json.loads(payload)
            kind = message.pop("do")
            reply = message.pop("reply", "")
            if kind == "read":
                request = Request(**{**message, "relations": tuple(message["relations"])})
                self._reply(reply, self.answer(request))
            elif kind == "done":
                self.done((message["frame"], message["action"]), int(message["part"]))
        except (ValueError, TypeError, KeyError, AttributeError):
            return

    def answer(self, request: Request) -> dict[str, str]:
        """Return the snapshot for a task, or why there is none."""
        key = (request.frame, request.action)
        if key in self._ended:
            return {
                "error": f"the snapshot of this action has ended: {self._ended[key]}",
                "hint": "run the action again; snapshot_timeout and snapshot_linger make it stay longer",
            }
        if key not in self._kept:
            try:
                self._kept[key] = Kept(
                    Snapshot(self._dsn, request.relations),
                    request.parts,
                    request.timeout,
                    request.linger,
                    touched=self._now(),
                )
            except psycopg.Error as error:
                said = error.diag.message_primary or str(error).strip()
                return {"error": f"no snapshot could be had: {said}", "hint": error.diag.message_hint or ""}
        kept = self._kept[key]
        kept.touched = self._now()
        kept.vanished = False
        kept.readers[request.reader] = request.part
        return {"snapshot": kept.held.id}

    def done(self, key: tuple[str, str], part: int) -> None:
        """Record that a part was read to its end."""
        kept = self._kept.get(key)
        if kept is None:
            return
        kept.done.add(part)
        kept.touched = self._now()
        for reader in [reader for reader, read in kept.readers.items() if read == part]:
            del kept.readers[reader]

    def tick(self) -> None:
        """Notice readers that vanished and snapshots that broke; end those that nobody needs."""
        if not self._kept:
            return
        backends = [
            backend for kept in self._kept.values() for backend in (*kept.held.backends, *kept.readers)
        ]
        rows = self._control.execute(
            "SELECT pid FROM pg_catalog.pg_stat_activity WHERE pid = ANY (%s)", (backends,)
        )
        present = {row[0] for row in rows}
        for key, kept in list(self._kept.items()):
            self._look_after(key, kept, present)

    def _look_after(self, key: tuple[str, str], kept: Kept, present: set[int]) -> None:
        if kept.held.broken or not kept.held.backends <= present:
            self._end(key, "the server ended the transaction that held it")
            return
        now = self._now()
        for reader in [reader for reader in kept.readers if reader not in present]:
            del kept.readers[reader]
            kept.vanished = True
            kept.touched = now
        if not kept.readers and now - kept.touched > kept.allowed():
            self._end(key, kept.why_ended())

    def close(self) -> None:
        for key in list(self._kept):
            self._end(key, "its keeper ended")
        self._control.close()

    def _end(self, key: tuple[str, str], reason: str) -> None:
        self._ended[key] = reason
        while len(self._ended) > REMEMBERED:
            del self._ended[next(iter(self._ended))]
        self._kept.pop(key).held.close()

    def _reply(self, channel: str, answer: dict[str, str]) -> None:
        self._control.execute("SELECT pg_notify(%s, %s)", (channel, json.dumps(answer)))


def main(orders: TextIO, answers: TextIO) -> None:
    """Read what to do, print `ready` or the error, and serve, detached from the parent."""
    order = json.load(orders)
    if os.fork():
        os._exit(0)
    watched: int = order["watched"]
    since = started(watched)

    def alive() -> bool:
        try:
            os.kill(watched, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return started(watched) == since

    try:
        keeper = Keeper(order["dsn"], Address(order["channel"], order["lock"]), alive)
        served = keeper.begin()
    except psycopg.Error as error:
        print(" ".join(str(error).split()), file=answers, flush=True)
        return
    print("ready", file=answers, flush=True)
    answers.close()
    try:
        if served:
            keeper.serve()
    finally:
        keeper.close()


if __name__ == "__main__":
    main(sys.stdin, sys.stdout)
