"""Errors that a refresh meets on Spark, and the errors that its caller sees.

A failure inside a task reaches the driver as text. It is reported by its SQLSTATE and the server's message.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from headwater.db.connection import CANCELLED, QUERY_CANCELED, translated
from headwater.db.sqlstates import leads_to_recomputing
from headwater.engine.base import Inexact
from headwater.engine.spark.runtime import session
from headwater.engine.spark.transport.tasks import TaskError
from headwater.errors import (
    ConnectionFailed,
    EngineFailed,
    HeadwaterError,
    LockNotAvailable,
    MissingPrivilege,
    RefreshCancelled,
    RefreshFailed,
)

_CAUSES = 20
"""How deep a chain of causes is followed."""
DATA_EXCEPTION = "22"
"""Class of SQLSTATEs for a value that cannot be held or computed."""


def task_error(error: BaseException) -> TaskError | None:
    """Find the error that a task reported in the one that Spark raises on the driver.

    Python tasks put it into their error's text; an error of the JDBC source has the server's own behind it.
    """
    for each in _chain(error):
        try:
            found = TaskError.found_in(str(each)) or _jdbc_error(each)
        except (Py4JError, OSError):
            continue  # the JVM, which keeps its texts, is gone
        if found is not None:
            return found
    return None


def failure(error: BaseException, what: str) -> HeadwaterError | None:
    """Return the error that a task reported as one of Headwater's, or None if no task did."""
    found = task_error(error)
    if found is None:
        return None
    code = f" (SQLSTATE {found.sqlstate})" if found.sqlstate else ""
    kind: type[HeadwaterError] = RefreshFailed
    if found.sqlstate.startswith(("08", "57P")):
        kind = ConnectionFailed
    elif found.sqlstate == QUERY_CANCELED:
        kind = RefreshCancelled
        found.hint = found.hint or CANCELLED
    elif found.sqlstate == "42501":
        kind = MissingPrivilege
    elif found.sqlstate == "55P03":
        kind = LockNotAvailable
    return kind(f"{what}: {found.message}{code}", detail=found.detail, hint=found.hint)


def refresh_error(error: Exception, label: str) -> HeadwaterError | Inexact:
    """Translate an error that a refresh on Spark met into the one that its caller sees.

    Inexact asks for PostgreSQL to compute instead; any other error ends the refresh.
    """
    task = task_error(error)
    if task is not None and leads_to_recomputing(task):
        return Inexact(f"a task met an error that the query itself need not meet: {task.message}")
    state = error.getSqlState() if isinstance(error, PySparkException) else None
    if state is not None and str(state).startswith(DATA_EXCEPTION):
        return Inexact(f"Spark cannot hold or compute a value exactly ({_condition(error)})")
    failed = failure(error, f"refresh of {label} on Spark")
    if failed is not None:
        return failed
    if isinstance(error, HeadwaterError):
        return error
    if isinstance(error, psycopg.Error):
        if leads_to_recomputing(error):
            return Inexact(f"{error.diag.message_primary} (SQLSTATE {error.sqlstate})")
        return translated(error, f"refresh of {label}", RefreshFailed)
    if session.is_dead(error) or not session.runtime().running():
        return EngineFailed(
            f"refresh of {label}: Spark went away while it worked",
            hint="the next refresh starts it again; its log is that of the logger headwater.spark",
        )
    return EngineFailed(
        f"refresh of {label}: Spark failed ({_condition(error)})",
        detail=_said(error),
        hint="its log is that of the logger headwater.spark; engine postgres needs no Spark",
    )


def raise_interrupt(error: BaseException) -> None:
    """Raise KeyboardInterrupt if an error comes from one: PySpark raises others on its way out."""
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, KeyboardInterrupt):
            raise KeyboardInterrupt from error
        link = link.__context__


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(_CAUSES):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__


def _jdbc_error(error: BaseException) -> TaskError | None:
    """Read the SQLSTATE of the Java exception behind a Python one; Spark Connect does not pass it on."""
    cause: Any = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
    for _ in range(_CAUSES):
        if cause is None:
            return None
        if hasattr(cause, "getSQLState") and "SQL" in cause.getClass().getName():
            said = cause.getServerErrorMessage() if "PSQL" in cause.getClass().getName() else None
            return TaskError(
                (said.getMessage() if said is not None else None) or cause.getMessage() or "",
                sqlstate=cause.getSQLState() or "",
                detail=(said.getDetail() if said is not None else None) or "",
                hint=(said.getHint() if said is not None else None) or "",
            )
        cause = cause.getCause()
    return None


def _condition(error: BaseException) -> str:
    """Return the name that Spark, or the operating system, has for what went wrong."""
    if isinstance(error, PySparkException) and error.getCondition():
        return str(error.getCondition())
    if isinstance(error, Py4JJavaError):
        return str(error.java_exception.getClass().getSimpleName())
    return str(getattr(error, "strerror", None) or type(error).__name__)


def _said(error: BaseException) -> str:
    """Return the first lines of Spark's message, without the stack trace of the JVM."""
    text = str(error.java_exception.getMessage()) if isinstance(error, Py4JJavaError) else str(error)
    lines = [line.strip() for line in text.splitlines()]
    kept = [line for line in lines if line and not line.startswith(("at ", "Suppressed: ", "... "))]
    return "\n".join(kept[:5])
