"""Errors that nothing below the command line expects."""

from __future__ import annotations

import psycopg

from headwater.db.connection import translated
from headwater.errors import HeadwaterError


def server_error(error: Exception) -> HeadwaterError | None:
    """Return what the server reported, such as its shutdown; None if the error is not the server's."""
    if isinstance(error, psycopg.Error) and (error.sqlstate or isinstance(error, psycopg.OperationalError)):
        return translated(error, "the server reports an error", HeadwaterError)
    return None
