"""How to reach a database: through a pooler or not, and past it where a session is needed.

Most of the work is done in transactions, and a pooler may give each of them another session. Whatever
outlasts a transaction needs a session: locks that prove that a process is alive, LISTEN, and Spark, whose
tasks read at a snapshot that another connection holds. These use the direct DSN, to the server itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from psycopg.conninfo import make_conninfo

from headwater import config
from headwater.config import PoolerMode
from headwater.db.connection import Connection, connect, is_pooled, one
from headwater.errors import SessionNeeded

REMEDY = (
    "give the server's own address by --direct-dsn or HEADWATER_DIRECT_DSN, for example"
    " postgresql://user@host:5432/dbname"
)


@dataclass(frozen=True)
class Route:
    """The route to one database."""

    dsn: str = field(repr=False)
    direct_dsn: str | None = field(default=None, repr=False)
    mode: PoolerMode = "auto"

    @classmethod
    def given(
        cls, dsn: str, direct_dsn: str | None, overrides: Mapping[str, str], environment: Mapping[str, str]
    ) -> Route:
        """Return the route by settings that are known before the database is asked."""
        return cls(dsn, direct_dsn, config.pooler_mode(overrides, environment))

    def to(self, database: str) -> Route:
        """Return the route to another database of the same server."""
        direct = self.direct_dsn and make_conninfo(self.direct_dsn, dbname=database)
        return replace(self, dsn=make_conninfo(self.dsn, dbname=database), direct_dsn=direct)

    def connect(self) -> Connection:
        return connect(self.dsn, self.mode)

    def session(self, purpose: str) -> Connection:
        """Return a connection that owns its session; an error names the purpose if there can be none."""
        if self.direct_dsn is None:
            if self.mode == "transaction":
                raise _needed(purpose)
            found = connect(self.dsn, self.mode)
        else:
            found = connect(self.direct_dsn, "none" if self.mode == "none" else "auto")
        if found.pooled:
            found.close()
            raise _needed(purpose) if self.direct_dsn is None else _pooled_too(purpose)
        return found

    @contextmanager
    def session_of(self, connection: Connection, purpose: str) -> Iterator[Connection]:
        """Use the connection itself if it owns its session, otherwise another one for the duration."""
        if not is_pooled(connection):
            yield connection
            return
        with self.session(purpose) as found:
            _require_same(connection, found)
            yield found

    def session_dsn(self, connection: Connection, purpose: str) -> str:
        """Return the DSN by which others get sessions of their own for work of this connection."""
        if not is_pooled(connection):
            return self.dsn
        with self.session(purpose) as found:
            _require_same(connection, found)
        return self.direct_dsn or self.dsn

    def confirm(self, session: Connection) -> None:
        """Raise unless a session leads to where the other connections go."""
        if self.direct_dsn is not None:
            with self.connect() as connection:
                _require_same(connection, session)

    def has_sessions(self, connection: Connection) -> bool:
        """Tell whether sessions are available, as far as is known without trying."""
        return self.direct_dsn is not None or not is_pooled(connection)


def _require_same(connection: Connection, session: Connection) -> None:
    """Raise unless both are in one database: a lock elsewhere would block nobody."""
    place = (
        "SELECT pg_postmaster_start_time(), oid, datname FROM pg_database WHERE datname = current_database()"
    )
    here, there = one(connection, place), one(session, place)
    if here != there:
        where = f"database {there[2]}" if here[2] != there[2] else "another server"
        raise SessionNeeded(
            f"the direct DSN leads to {where} than the DSN, which leads to database {here[2]}", hint=REMEDY
        )


def _needed(purpose: str) -> SessionNeeded:
    return SessionNeeded(
        f"{purpose} needs a session of its own, and the connection goes through a pooler that shares them",
        hint=REMEDY,
    )


def _pooled_too(purpose: str) -> SessionNeeded:
    return SessionNeeded(
        f"{purpose} needs a session of its own, and the direct DSN leads to a pooler, too", hint=REMEDY
    )
