"""Connections as Headwater needs them: pinned settings, explicit transactions, errors by SQLSTATE.

A pooler may give each transaction whichever session is free. Then there is no session in which settings could
be pinned: what one statement sets, another client may find, and the next statement may not. In that case
settings are pinned in each transaction, a single statement gets a transaction of its own, and nothing is
prepared.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
from psycopg import IsolationLevel, sql
from psycopg.pq import TransactionStatus
from psycopg.rows import TupleRow

from headwater.config import PoolerMode, Settings, milliseconds
from headwater.errors import (
    ConnectionFailed,
    HeadwaterError,
    LockNotAvailable,
    MissingPrivilege,
    RefreshCancelled,
    RefreshFailed,
)

Connection = psycopg.Connection[TupleRow]
Result = TypeVar("Result")

PINNED_SETTINGS = {
    # The server's deparser qualifies every name that is not its own, and no schema can shadow ours. If left
    # out, pg_temp would come first: a temporary table called pg_class would be taken for the catalog.
    "search_path": "pg_catalog, pg_temp",
    # Functions that depend on these are marked stable; pinned, they give the same value at every refresh.
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "xmlbinary": "base64",
    "xmloption": "content",
    # Values go through text and back: an array's NULL must not become the word.
    "array_nulls": "on",
    "standard_conforming_strings": "on",
    "transform_null_equals": "off",
    "quote_all_identifiers": "off",
    # Compiling costs more than a delta takes to run.
    "jit": "off",
    # A delta looks up few rows in tables whose indexes are in memory or on flash. The server's default is
    # meant for spinning disks, and would make it read whole tables instead.
    "random_page_cost": "1.1",
    # Each step of a delta is analysed, and a sample of 1,500 rows is enough for a result that is used once.
    "default_statistics_target": "5",
    # Prepared statements read a few rows of the catalog by their numbers, with the same plan each time.
    "plan_cache_mode": "force_generic_plan",
    "client_min_messages": "warning",
}

USER_SEARCH_PATH = "headwater.user_search_path"
"""The setting that keeps the user's own search_path."""

SERIALIZATION_FAILURES = frozenset({"40001", "40P01"})
LOCK_NOT_AVAILABLE = "55P03"
RETRYABLE = SERIALIZATION_FAILURES | {LOCK_NOT_AVAILABLE}
INSUFFICIENT_PRIVILEGE = "42501"
DEPENDENT_OBJECTS = "2BP01"
# The program was idle for longer than the server allows, and the server ended the connection.
IDLE_IN_TRANSACTION, TRANSACTION_TOO_LONG = "25P03", "25P04"
TRANSACTION_TIMEOUT_SINCE = 170_000
CANCELLED = "nothing of it was applied; if it took too long, headwater set statement_timeout allows more"
QUERY_CANCELED = "57014"  # cancelled by somebody, or by statement_timeout: only the message tells which


class PinnedConnection(psycopg.Connection[TupleRow]):
    """A connection that runs every statement under the pinned settings."""

    pooled = False
    """True if its session changes from transaction to transaction, so that it cannot keep anything."""
    _user_search_path = ""
    _limits: Mapping[str, str] = {}
    _pinning: bytes = b""

    def share_sessions(self) -> None:
        """Pin settings in each transaction from now on, and keep nothing in a session."""
        self.pooled = True
        self.prepare_threshold = None
        self._pin()
        # The defaults of the role and the database: the session's values may have been left by somebody else.
        row = one(self, "SELECT reset_val FROM pg_settings WHERE name = 'search_path'")
        self._user_search_path = str(row[0])
        self._pin()

    def bind(self, limits: Mapping[str, str]) -> None:
        """Pin further settings."""
        self._limits = limits
        self._pin()

    def _pin(self) -> None:
        # Statements that take no snapshot: locks must be taken before the snapshot, or later changes are not
        # seen.
        pinned = {USER_SEARCH_PATH: self._user_search_path, **PINNED_SETTINGS, **self._limits}
        self._pinning = (
            sql.SQL("; ")
            .join(
                sql.SQL("SET LOCAL {} = {}").format(
                    sql.Identifier(*name.split(".")),
                    # A list of names: as one string it would be a single name.
                    sql.SQL(", ").join(map(sql.Identifier, value.split(", ")))
                    if name == "search_path"
                    else sql.Literal(value),
                )
                for name, value in pinned.items()
            )
            .as_bytes(self)
        )

    @property
    def pinning(self) -> bytes:
        """The statements that pin the settings in a transaction."""
        return self._pinning

    @contextmanager
    def transaction(
        self, savepoint_name: str | None = None, force_rollback: bool = False
    ) -> Iterator[psycopg.Transaction]:
        begins = self.pooled and self._is_idle
        with super().transaction(savepoint_name, force_rollback) as opened:
            if begins:
                super().execute(self._pinning, prepare=False)
            yield opened

    def execute(
        self, query: Any, params: Any = None, *, prepare: bool | None = None, binary: bool = False
    ) -> psycopg.Cursor[TupleRow]:
        if not self.pooled or not self._is_idle:
            return super().execute(query, params, prepare=prepare, binary=binary)
        self.set_isolation_level(None)  # the default, as for a single statement
        with self.transaction():
            return super().execute(query, params, prepare=prepare, binary=binary)

    @property
    def _is_idle(self) -> bool:
        return self.pgconn.transaction_status == TransactionStatus.IDLE


def connect(dsn: str, mode: PoolerMode = "auto") -> PinnedConnection:
    """Return an autocommit connection; the setting headwater.user_search_path keeps the user's search_path.

    A pooler is detected because it reports another process number to its client than the backend has.
    """
    try:
        connection = PinnedConnection.connect(dsn, autocommit=True, application_name="headwater")
        if mode == "transaction" or not _pin_session(connection, unless_pooled=mode == "auto"):
            connection.share_sessions()
    except psycopg.Error as error:  # also if it broke right after it was opened
        raise ConnectionFailed(
            "cannot connect to the database",
            detail=str(error).strip(),
            hint="check --dsn or HEADWATER_DSN, for example postgresql://user@host:5432/dbname",
        ) from error
    return connection


def _pin_session(connection: Connection, *, unless_pooled: bool) -> bool:
    """Pin the settings for the session; return False, and set nothing, if the session is not our own."""
    connection.prepare_threshold = 2  # a refresh repeats the queries of the one before
    # One statement for all, because one for each would take longer than connecting does. They are evaluated
    # from left to right, and it is parsed under the user's own search_path, in which anything may be called
    # set_config.
    setting = "pg_catalog.set_config(%s::pg_catalog.text, %s::pg_catalog.text, false)"
    pinned = connection.execute(
        sql.SQL(
            "SELECT pg_catalog.set_config(%s::pg_catalog.text,"
            " pg_catalog.current_setting('search_path'::pg_catalog.text), false), {}"
            " WHERE %s OR pg_catalog.pg_backend_pid() OPERATOR(pg_catalog.=) %s::pg_catalog.int4"
        ).format(sql.SQL(", ").join([sql.SQL(setting)] * len(PINNED_SETTINGS))),
        [
            USER_SEARCH_PATH,
            *(part for setting in PINNED_SETTINGS.items() for part in setting),
            not unless_pooled,
            connection.info.backend_pid,
        ],
    )
    return pinned.rowcount == 1


def is_pooled(connection: Connection) -> bool:
    """Tell whether a session can keep nothing: no settings, temporary tables or locks."""
    return isinstance(connection, PinnedConnection) and connection.pooled


def bound(connection: Connection, settings: Settings) -> None:
    """Apply the limits of the settings to a session.

    Waiting for a lock blocks everybody who asks for it later; a transaction that is left open, because its
    program was stopped or cut off, holds back vacuum. So the server ends both.
    """
    limits = {
        "lock_timeout": f"{settings.lock_timeout_ms}ms",
        "statement_timeout": f"{milliseconds(settings.statement_timeout)}ms",
        "idle_in_transaction_session_timeout": f"{milliseconds(settings.idle_in_transaction_timeout)}ms",
    }
    if connection.info.server_version >= TRANSACTION_TIMEOUT_SINCE:
        limits["transaction_timeout"] = f"{milliseconds(settings.transaction_timeout)}ms"
    if isinstance(connection, PinnedConnection) and connection.pooled:
        connection.bind(limits)
        return
    for name, limit in limits.items():
        connection.execute("SELECT set_config(%s, %s, false)", (name, limit))


@contextmanager
def transaction(
    connection: Connection,
    *,
    repeatable_read: bool = False,
    rollback: bool = False,
) -> Iterator[None]:
    """Run a block in one transaction; with repeatable_read, all its queries see one snapshot."""
    level = IsolationLevel.REPEATABLE_READ if repeatable_read else IsolationLevel.READ_COMMITTED
    connection.set_isolation_level(level)
    with connection.transaction(force_rollback=rollback):
        yield


def in_one_round_trip(connection: Connection, statements: Sequence[str]) -> list[list[TupleRow]]:
    """Run statements as one REPEATABLE READ transaction in one message; the rows of each that has any.

    Nothing of it is left open, however it ends.
    """
    pinned = []
    if isinstance(connection, PinnedConnection) and connection.pooled:
        pinned.append(connection.pinning.decode())
    text = "; ".join(["BEGIN ISOLATION LEVEL REPEATABLE READ", *pinned, *statements, "COMMIT"])
    found = []
    try:
        # Past the class's own `execute`, which opens a transaction behind a pooler: this one is in the text.
        cursor = psycopg.Connection.execute(connection, text.encode(), prepare=False)
        while True:
            if cursor.description is not None:
                found.append(cursor.fetchall())
            if not cursor.nextset():
                return found
    finally:
        if not connection.closed and connection.pgconn.transaction_status != TransactionStatus.IDLE:
            connection.rollback()


class TryAgain(Exception):
    """Others changed what this transaction relies on, or wait for it: it must start over. Says why."""


def retried(attempt: Callable[[], Result], *, what: str, attempts: int) -> Result:
    """Run a transaction again when it lost a race: a serialization failure, a deadlock, a lock timeout."""
    for number in range(1, attempts + 1):
        try:
            return attempt()
        except TryAgain as error:
            if number == attempts:
                raise repeatedly_overtaken(what, error, attempts) from error
        except psycopg.Error as error:
            if error.sqlstate not in RETRYABLE:
                raise
            if number == attempts:
                if error.sqlstate == LOCK_NOT_AVAILABLE:
                    raise LockNotAvailable(
                        f"{what}: a lock could not be had in time, {attempts} times in a row",
                        detail=str(error).strip(),
                        hint="look for long transactions in pg_stat_activity, then repeat the command",
                    ) from error
                raise
        time.sleep(random.uniform(0, min(2.0, 0.05 * 2 ** min(number, 6))))
    raise AssertionError("unreachable")


def repeatedly_overtaken(what: str, error: TryAgain, attempts: int = 1) -> LockNotAvailable:
    """Return the error for a transaction that was overtaken too often."""
    times = f", {attempts} times in a row" if attempts > 1 else ""
    return LockNotAvailable(f"{what}: {error}{times}", hint="repeat the command")


def translated(error: psycopg.Error, what: str, kind: type[HeadwaterError]) -> HeadwaterError:
    """Translate a server's error into one of ours, by its SQLSTATE."""
    message = error.diag.message_primary or str(error).strip()
    detail = error.diag.message_detail or ""
    hint = error.diag.message_hint or ""
    broken = error.sqlstate is None and isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    if broken or (error.sqlstate or "").startswith(("08", "57P", IDLE_IN_TRANSACTION, TRANSACTION_TOO_LONG)):
        return ConnectionFailed(f"{what}: the connection to the database broke", detail=message)
    if error.sqlstate == INSUFFICIENT_PRIVILEGE:
        return MissingPrivilege(
            f"{what}: {message}",
            detail=detail,
            hint=hint or "headwater init --check lists each privilege that is needed, with its GRANT",
        )
    if error.sqlstate == LOCK_NOT_AVAILABLE:
        return LockNotAvailable(f"{what}: {message}", detail=detail, hint="repeat the command")
    if error.sqlstate == QUERY_CANCELED and kind is RefreshFailed:
        return RefreshCancelled(f"{what} was cancelled: {message}", detail=detail, hint=CANCELLED)
    return kind(f"{what}: {message}", detail=detail, hint=hint)


def one(connection: Connection, query: Any, parameters: Any = None) -> TupleRow:
    """Return the single row of a query."""
    row = connection.execute(query, parameters).fetchone()
    assert row is not None
    return row
