"""The options of stream tables: the choices, and what was chosen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import get_args

from headwater.catalog.stream_tables import EngineName, Mode, StreamTable, Tier, TierChoice
from headwater.errors import InvalidSetting
from headwater.scheduling.schedules import normalized


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options that a user may choose for a stream table."""

    mode: Mode = "auto"
    engine: EngineName = "auto"
    schedule: str | None = None
    tier: TierChoice = "auto"


def altered_options(
    stream_table: StreamTable,
    *,
    mode: Mode | None = None,
    engine: EngineName | None = None,
    schedule: str | None = None,
    unscheduled: bool = False,
    tier: TierChoice | None = None,
) -> Options:
    """Return the options of a stream table, with those that are given replaced."""
    return Options(
        mode=mode or stream_table.requested_mode,
        engine=engine or stream_table.engine,
        schedule=None if unscheduled else schedule or stream_table.schedule,
        tier=tier or stream_table.tier or "auto",
    )


def checked_options(label: str, options: Options, time_zone: str) -> Options:
    """Return the options with the schedule in its stored form; raise if one is not available."""
    for name, value, known in (
        ("mode", options.mode, get_args(Mode)),
        ("engine", options.engine, get_args(EngineName)),
        ("tier", options.tier, ("auto", *get_args(Tier))),
    ):
        if value not in known:
            raise InvalidSetting(f"{label}: there is no {name} {value!r}", hint=f"use {', '.join(known)}")
    if options.schedule is None:
        return options
    try:
        return replace(options, schedule=normalized(options.schedule, time_zone))
    except InvalidSetting as error:
        raise InvalidSetting(f"{label}: {error.message}", hint=error.hint) from error
