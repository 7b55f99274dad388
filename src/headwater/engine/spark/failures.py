"""Failures inside Spark's tasks, as the driver tells them: by SQLSTATE and the server's words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from py4j.protocol import Py4JError

from headwater.db.connection import CANCELLED, QUERY_CANCELED
from headwater.engine.spark.transport.tasks import TaskError
from headwater.errors import (
    ConnectionFailed,
    HeadwaterError,
    LockNotAvailable,
    MissingPrivilege,
    RefreshCancelled,
    RefreshFailed,
)

_CAUSES = 20


def task_error(error: BaseException) -> TaskError | None:
    """What a task said went wrong, out of the error that Spark raises on the driver.

    Python tasks put it into their error's text; behind one of the JDBC source is the server's own.
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
    """The same as an error of ours, or None if no task said anything."""
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


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(_CAUSES):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__


def _jdbc_error(error: BaseException) -> TaskError | None:
    """Asks the Java exception behind a Python one for its SQLSTATE; there is none through Spark Connect."""
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
