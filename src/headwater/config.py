"""Settings: what there is, what a value may be, and where it came from.

Strongest first: a flag or environment variable (`HEADWATER_MAX_BUFFER_ROWS`); the table `headwater.setting`;
a parameter of the server (`headwater.max_buffer_rows` in postgresql.conf or by ALTER DATABASE … SET); the
default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any

from headwater.clock import parse_duration
from headwater.errors import InvalidSetting


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Every setting with its effective value."""

    max_buffer_rows: int = 1_000_000
    lock_timeout_ms: int = 2_000
    lock_attempts: int = 10
    statement_timeout: str = "0ms"
    history_retention: str = "7d"
    verify_max_rows: int = 20


@dataclass(frozen=True)
class Setting:
    """One setting as `headwater settings` shows it."""

    name: str
    value: str
    origin: str  # flag, environment, table, server or default
    default: str
    description: str


@dataclass(frozen=True)
class _Rule:
    description: str
    minimum: int | None = None
    maximum: int = 2**31 - 1
    duration: bool = False
    zero_is_off: bool = False


RULES: dict[str, _Rule] = {
    "max_buffer_rows": _Rule(
        "a change table with more rows than this for one stream table makes it recompute instead",
        minimum=1,
        maximum=2**62,
    ),
    "lock_timeout_ms": _Rule("how long a statement of ours waits for a lock on a user's table", minimum=1),
    "lock_attempts": _Rule(
        "how often an operation that could not get its locks is tried", minimum=1, maximum=1000
    ),
    "statement_timeout": _Rule(
        "longest time for one statement of a refresh, 0ms for no limit", duration=True, zero_is_off=True
    ),
    "history_retention": _Rule("how long refreshes stay in the history", duration=True),
    "verify_max_rows": _Rule("how many differing rows verify shows", minimum=1),
}
PREFIX = "headwater."


def checked(name: str, text: str) -> Any:
    """The value of a setting from its text."""
    bare = name.removeprefix(PREFIX)
    if bare not in RULES:
        raise InvalidSetting(
            f"there is no setting {name!r}",
            hint=f"there are {', '.join(sorted(RULES))}; see headwater settings",
        )
    rule = RULES[bare]
    if rule.duration:
        if not (rule.zero_is_off and text.strip() in ("0", "0ms", "0s")):
            try:
                if parse_duration(text) > timedelta(milliseconds=rule.maximum):
                    raise InvalidSetting(f"{text!r} is too long", hint="use at most 24d")
            except InvalidSetting as error:
                raise InvalidSetting(f"setting {bare}: {error.message}", hint=error.hint) from error
            return text.strip()
        return "0ms"
    try:
        value = int(text.replace("_", ""))
    except ValueError:
        raise InvalidSetting(
            f"setting {bare}: {text!r} is not a whole number", hint=rule.description
        ) from None
    if rule.minimum is not None and value < rule.minimum:
        raise InvalidSetting(f"setting {bare}: {value} is below {rule.minimum}", hint=rule.description)
    if value > rule.maximum:
        raise InvalidSetting(f"setting {bare}: {value} is above {rule.maximum}", hint=rule.description)
    return value


def milliseconds(duration: str) -> int:
    """A checked duration for the server, which has other units."""
    return 0 if duration == "0ms" else max(1, round(parse_duration(duration) / timedelta(milliseconds=1)))


def resolve(*layers: tuple[str, Mapping[str, str]]) -> tuple[Settings, list[Setting]]:
    """The effective settings from layers of texts, strongest first, and where each came from."""
    values: dict[str, Any] = {}
    shown = []
    for field in fields(Settings):
        origin, text = next(
            ((name, layer[field.name]) for name, layer in layers if field.name in layer),
            ("default", str(field.default)),
        )
        values[field.name] = checked(field.name, text)
        shown.append(
            Setting(
                field.name, str(values[field.name]), origin, str(field.default), RULES[field.name].description
            )
        )
    for name, layer in layers:
        for unknown in layer.keys() - RULES.keys():
            raise InvalidSetting(
                f"unknown setting {unknown!r} in {name}", hint=f"there are {', '.join(sorted(RULES))}"
            )
    return Settings(**values), shown
