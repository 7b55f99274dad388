"""Results as JSON documents."""

from __future__ import annotations

import json
import math
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwater.catalog.history import Outcome
    from headwater.catalog.stream_tables import StreamTable


def encoded(value: Any) -> bytes:
    """Return a JSON document in UTF-8, whatever the locale says."""
    text = json.dumps(plain(value), ensure_ascii=False, allow_nan=False, indent=2)
    # Only bytes of the command line that are not UTF-8 cannot be encoded; \udcXX is also how JSON writes
    # them.
    return text.encode("utf-8", "backslashreplace")


def plain(value: Any) -> Any:
    """Return a value with strings for everything that JSON cannot express.

    >>> plain({"at": date(2026, 1, 31), "raw": b"\\x01", "row": (1, float("nan"))})
    {'at': '2026-01-31', 'raw': '\\\\x01', 'row': [1, 'nan']}
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, bytes | bytearray | memoryview):
        return "\\x" + bytes(value).hex()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    return str(value)


def stream_table(value: StreamTable, **more: Any) -> dict[str, Any]:
    return {
        "stream_table": value.label,
        "id": value.id,
        "status": value.status,
        "mode": value.mode,
        "requested_mode": value.requested_mode,
        "engine": value.engine,
        "schedule": value.schedule,
        "tier": value.tier,
        "suspended_reason": value.suspended_reason,
        "reasons": value.mode_reasons,
        "load_check": value.load_check,
        **more,
    }


def outcome(value: Outcome) -> dict[str, Any]:
    return {
        "stream_table": value.stream_table,
        "action": value.action,
        "mode": value.mode,
        "engine": value.engine,
        "reason": value.reason,
        "rows_in": value.rows_in,
        "rows_inserted": value.applied.inserted,
        "rows_updated": value.applied.updated,
        "rows_deleted": value.applied.deleted,
        "duration_ms": value.duration_ms,
        "phases": value.phases,
        "snapshot": value.snapshot,
        "engine_reason": value.engine_reason,
        "predicted_ms": value.predicted_ms,
        "bytes_in": value.bytes_in,
        "bytes_out": value.bytes_out,
    }
