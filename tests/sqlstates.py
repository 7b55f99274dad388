"""SQLSTATEs to meet: one of each class of PostgreSQL's manual, and those that differ from their class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg

from headwater.db.sqlstates import RESPONSES, response

Connection = psycopg.Connection[Any]

KNOWN = sorted(
    error.sqlstate
    for error in vars(psycopg.errors).values()
    if isinstance(error, type) and issubclass(error, psycopg.Error) and isinstance(error.sqlstate, str)
)
"""All that the driver has a class for: what Appendix A of the manual lists, of the newest server it knows."""
OF_USERS = "HW123"
"""Of a class that PostgreSQL does not have."""


def _of_class(key: str) -> str:
    # PL/pgSQL takes 00000 for none.
    return next(code for code in [*KNOWN, f"{key}001"] if code.startswith(key) and code not in RESPONSES)


CODES = [*(key if len(key) == 5 else _of_class(key) for key in RESPONSES), OF_USERS]
RECOMPUTED = [code for code in CODES if response(code).recompute]
LEFT = [code for code in CODES if not response(code).recompute]


def raising(connection: Connection, code: str, called: list[str], original: Callable[..., Any]) -> Any:
    """What takes the place of a method that meets an error of the server, once, in the open transaction."""

    def met(*given: Any) -> Any:
        called.append(original.__name__)
        if len(called) > 1:
            return original(*given)
        text = f"RAISE EXCEPTION 'met by {original.__name__}' USING ERRCODE = '{code}'"
        connection.execute(f"DO $$ BEGIN {text}; END $$")
        raise AssertionError("it raises")

    return met
