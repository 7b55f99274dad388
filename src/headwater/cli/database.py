"""Connecting a verb to its database.

libpq quotes the part of a DSN that it cannot parse. So that no password is printed, a DSN is parsed here
first and refused without quoting it.
"""

from __future__ import annotations

import os
from datetime import datetime

import psycopg
from psycopg.conninfo import conninfo_to_dict

from headwater.cli.invocation import DIRECT_VARIABLE, DSN_VARIABLE, Invocation, Misuse
from headwater.db.connection import one
from headwater.handle import Handle


def handle(invocation: Invocation) -> Handle:
    """Connect for a verb that needs neither the parser nor an engine; see `connect` for the others."""
    direct_dsn = checked_direct_dsn(invocation)
    return Handle(checked_dsn(invocation), invocation.settings, direct_dsn=direct_dsn)


def checked_dsn(invocation: Invocation) -> str:
    """Return the DSN that was given; raise if it cannot be parsed."""
    dsn = invocation.dsn or os.environ.get(DSN_VARIABLE)
    if not dsn:
        raise Misuse(
            "no database was given",
            f"use --dsn postgresql://user@host:5432/dbname, or set the environment variable {DSN_VARIABLE}",
        )
    _check_dsn(dsn)
    return dsn


def checked_direct_dsn(invocation: Invocation) -> str | None:
    """Return the DSN past a pooler, if one was given; raise if it cannot be parsed."""
    dsn = invocation.direct_dsn or os.environ.get(DIRECT_VARIABLE)
    if dsn:
        _check_dsn(dsn)
    return dsn or None


def now(hw: Handle) -> datetime:
    """Return the database's time, by which everything it recorded is dated."""
    found: datetime = one(hw.connection, "SELECT clock_timestamp()")[0]
    return found


def _check_dsn(dsn: str) -> None:
    try:
        parts = conninfo_to_dict(dsn)
    except psycopg.Error:
        readable = False
    else:
        # A password with a bare / or @ in it ends up in the port or the host.
        readable = str(parts.get("port") or "0").replace(",", "").isdecimal() and "@" not in str(
            parts.get("host") or ""
        ).removeprefix("@")
    if not readable:
        raise Misuse(
            "the DSN cannot be read",
            "write postgresql://user@host:5432/dbname with special characters percent-encoded (@ is %40, / is"
            " %2F), or host=… port=… dbname=… user=… with values that hold spaces in single quotes",
        )
