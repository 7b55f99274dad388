"""The service's log: one line for each refresh and each thing that happens, as text or as JSON.

A line never has a DSN in it, and what an error says is masked like everywhere else.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Literal

from headwater.catalog.history import Outcome
from headwater.errors import HeadwaterError
from headwater.util.redact import masked

LogFormat = Literal["text", "json"]
LOGGER = logging.getLogger("headwater.service")


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields = " ".join(f"{name}={_quoted(value)}" for name, value in _fields(record).items())
        return masked(f"{moment} {record.levelname:<7} {record.getMessage()} {fields}".rstrip())


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"time": moment, "level": record.levelname.lower(), "event": record.getMessage()}
        texts = {
            name: masked(value) if isinstance(value, str) else value
            for name, value in _fields(record).items()
        }
        return json.dumps({**line, **texts}, default=str, ensure_ascii=False)


def set_up(format: LogFormat, level: str) -> None:
    """Sends the log to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if format == "json" else _Text())
    LOGGER.handlers[:] = [handler]
    LOGGER.setLevel(level.upper())
    LOGGER.propagate = False


def say(level: int, event: str, /, **fields: Any) -> None:
    """One line: what happened, and its particulars."""
    LOGGER.log(level, event, extra={"fields": fields})


def refreshed(database: str, outcome: Outcome, lag_ms: float | None, worker: str) -> None:
    """One refresh that did its work; one that found nothing to do is only for debugging."""
    applied = outcome.applied
    say(
        logging.DEBUG if outcome.action == "nothing" else logging.INFO,
        "refreshed",
        database=database,
        stream_table=outcome.stream_table,
        action=outcome.action,
        engine=outcome.engine,
        ms=outcome.duration_ms,
        rows_in=outcome.rows_in,
        inserted=applied.inserted,
        updated=applied.updated,
        deleted=applied.deleted,
        lag_ms=round(lag_ms, 1) if lag_ms is not None else None,
        worker=worker,
        reason=outcome.reason,
    )


def failed(database: str, what: str, error: HeadwaterError, **fields: Any) -> None:
    say(
        logging.ERROR,
        "failed",
        database=database,
        what=what,
        error=error.message,
        detail=error.detail or None,
        hint=error.hint or None,
        **fields,
    )


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    given: dict[str, Any] = getattr(record, "fields", {})
    return {name: value for name, value in given.items() if value is not None}


def _quoted(value: object) -> str:
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if not text or any(sign in text for sign in ' "\n=') else text
