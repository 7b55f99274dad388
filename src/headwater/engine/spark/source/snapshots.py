"""How planners find the keeper of snapshots, and how tasks ask it for one."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from pathlib import Path

import psycopg
from psycopg import sql

from headwater.engine.spark.source import keeper
from headwater.engine.spark.source.keeper import Address, Connection, Request
from headwater.errors import ConnectionFailed, EngineFailed, SnapshotLost

ANSWER_SECONDS = 30.0
ASK_AGAIN_SECONDS = 2.0


def ensure(dsn: str) -> Address:
    """Start the keeper of this JVM and database, unless it runs."""
    jvm = _jvm()
    address = Address.of(dsn, f"{os.uname().nodename} {jvm} {keeper.started(jvm)}")
    with psycopg.connect(dsn, autocommit=True, application_name="headwater") as connection:
        if not _serves(connection, address):
            _start(dsn, address, jvm)
    return address


def _start(dsn: str, address: Address, jvm: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-P", keeper.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
        text=True,
    )
    order = {"dsn": dsn, "channel": address.channel, "lock": address.lock, "watched": jvm}
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        with process.stdin as pipe:
            json.dump(order, pipe)
        with process.stdout as answers:
            answer = answers.readline().strip()
    except OSError as error:
        answer = str(error)
    process.wait()  # the serving process is its child
    if answer != "ready":
        raise EngineFailed(
            "the process that keeps snapshots for Spark did not start",
            detail=answer,
            hint="the driver must be able to start processes and to reach the database",
        )


def ask(dsn: str, address: Address, request: Request) -> str:
    """Return the snapshot of an action."""
    reply = f"headwater_{secrets.token_hex(16)}"
    payload = json.dumps({"do": "read", "reply": reply, **vars(request)})
    try:
        with psycopg.connect(dsn, autocommit=True, application_name="headwater") as connection:
            connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(reply)))
            answer = _answer(connection, address, payload)
    except psycopg.Error as error:
        raise ConnectionFailed("the keeper of snapshots cannot be asked", detail=str(error).strip()) from None
    if answer is None:
        raise SnapshotLost(
            "the process that keeps snapshots for this frame is gone",
            hint="load the frame again: spark.read.format('headwater')…load()",
        )
    if "error" in answer:
        raise SnapshotLost(answer["error"], hint=answer.get("hint", ""))
    return str(answer["snapshot"])


def _answer(connection: Connection, address: Address, payload: str) -> dict[str, str] | None:
    """Return the keeper's answer, or None if there is none."""
    deadline = time.monotonic() + ANSWER_SECONDS + keeper.LOCK_SECONDS
    while time.monotonic() < deadline:
        connection.execute("SELECT pg_notify(%s, %s)", (address.channel, payload))
        for notification in connection.notifies(timeout=ASK_AGAIN_SECONDS, stop_after=1):
            return dict(json.loads(notification.payload))
        if not _serves(connection, address):
            return None
    return {"error": "the keeper of snapshots does not answer"}


def done_sql(address: Address, request: Request) -> str:
    """Return what a task executes when it has read its part."""
    payload = json.dumps(
        {"do": "done", "frame": request.frame, "action": request.action, "part": request.part}
    )
    return sql.SQL("SELECT pg_notify({}, {})::text").format(address.channel, payload).as_string()


def _serves(connection: Connection, address: Address) -> bool:
    row = connection.execute(
        "SELECT EXISTS (SELECT FROM pg_catalog.pg_locks"
        " WHERE locktype = 'advisory' AND granted AND objsubid = 1"
        " AND classid = ((%(key)s::bigint >> 32) & 4294967295)::oid"
        " AND objid = (%(key)s::bigint & 4294967295)::oid"
        " AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database()))",
        {"key": address.lock},
    ).fetchone()
    assert row is not None
    return bool(row[0])


def _jvm() -> int:
    """Return the process id of the JVM above this process, or of its parent if there is none."""
    process = os.getppid()
    while process > 1:
        try:
            name = Path(f"/proc/{process}/comm").read_text().strip()
            parent = int(keeper.stat(process)[1])
        except (OSError, IndexError, ValueError):
            break
        if name == "java":
            return process
        process = parent
    return os.getppid()
