"""Schedules: how a user writes one, which one applies, and when it is due next.

A schedule is a duration, a cron expression, or `calculated`: as tight as its readers need. Times go in and
come out as UTC: two times of one zone are compared by their wall clocks, which go back once a year.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice, pairwise
from math import ceil
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from headwater.clock import parse_duration
from headwater.errors import InvalidSetting

SHORTEST = timedelta(milliseconds=10)
LONGEST = timedelta(days=3650)
FORMS = "write a duration (500ms, 1s, 5m, 1h, 1d), a cron expression (*/5 * * * *) or calculated"
NOT_IN = timedelta(days=50 * 365)
"""A cron expression that does not fire within so many years never does."""
FIRST_DAY = datetime(2001, 1, 1, tzinfo=UTC)
"""The day from which cron expressions are compared: the same for all of them, and a Monday."""
COMPARED_FIRINGS = 32
"""The smallest gap between so many firings is the interval of a cron expression: more than a day of hours."""
_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000))


@dataclass(frozen=True)
class Every:
    """Due when this long has passed since the latest refresh began."""

    interval: timedelta

    def __str__(self) -> str:
        milliseconds = self.interval / timedelta(milliseconds=1)
        for unit, length in _UNITS:
            if milliseconds % length == 0:
                return f"{milliseconds / length:.0f}{unit}"
        return f"{milliseconds:g}ms" if milliseconds < 100_000 else f"{milliseconds / 1000:g}s"


@dataclass(frozen=True)
class Cron:
    """Due when the expression fires, by the wall clock of a time zone.

    Like Debian's cron: a job at a certain hour runs once on the day on which that hour comes twice, and right
    after the gap on the day on which that hour is missing. `*` for the minute or the hour follows elapsed
    time, and so do six fields.
    """

    expression: str
    time_zone: str

    def __str__(self) -> str:
        return self.expression


@dataclass(frozen=True)
class Calculated:
    """As tight as the tightest schedule of its readers; never due if no reader has one."""

    def __str__(self) -> str:
        return "calculated"


Schedule = Every | Cron | Calculated


def parse_schedule(text: str | None, time_zone: str) -> Schedule:
    """Parse a schedule from its text; no text means `calculated`.

    >>> str(parse_schedule("90s", "UTC")), str(parse_schedule("0  3 * * mon-fri", "UTC"))
    ('90s', '0 3 * * mon-fri')
    """
    if text is None or text.strip().lower() == "calculated":
        return Calculated()
    fields = text.split()
    if len(fields) > 2 or any(sign in text for sign in "*@"):
        return _checked_cron(text, Cron(" ".join(fields), time_zone))
    try:
        interval = parse_duration(text)
    except InvalidSetting as error:
        raise InvalidSetting(f"schedule: {error.message}", hint=FORMS) from error
    if interval < SHORTEST:
        raise InvalidSetting(f"schedule: {text!r} is shorter than 10ms", hint="use at least 10ms")
    if interval > LONGEST:
        raise InvalidSetting(f"schedule: {text!r} is longer than ten years", hint="use at most 3650d")
    return Every(interval)


def normalized(text: str, time_zone: str) -> str:
    """Return a checked schedule as it is stored: the user's text, in a normal form."""
    schedule = parse_schedule(text, time_zone)
    return text.strip() if isinstance(schedule, Every) else str(schedule)


def _checked_cron(text: str, cron: Cron) -> Cron:
    try:
        zone = ZoneInfo(cron.time_zone)
    except (KeyError, ValueError, OSError):
        raise InvalidSetting(
            f"schedule: {text!r} would go by the time zone {cron.time_zone!r}, which only the server knows",
            hint="give the role that creates it a TimeZone of the IANA database, for example Europe/Berlin",
        ) from None
    try:
        fires = CronSim(cron.expression, FIRST_DAY.astimezone(zone))
    except CronSimError as error:
        raise InvalidSetting(
            f"schedule: {text!r} is not a cron expression: {str(error).lower()}",
            hint="write minute, hour, day of the month, month, day of the week, for example */5 * * * *;"
            " with six fields the first is the second",
        ) from error
    if next(fires, None) is None:
        raise InvalidSetting(
            f"schedule: {text!r} never fires", hint="see that there is such a day in such a month"
        )
    return cron


@lru_cache(maxsize=4096)
def typical_interval(schedule: Every | Cron) -> timedelta:
    """Return the interval by which schedules are compared: for cron the smallest gap between firings.

    >>> str(typical_interval(Cron("0 9-17 * * mon-fri", "Europe/Berlin")))
    '1:00:00'
    """
    if isinstance(schedule, Every):
        return schedule.interval
    fires = islice(CronSim(schedule.expression, FIRST_DAY), COMPARED_FIRINGS)
    return min((later - earlier for earlier, later in pairwise(fires)), default=NOT_IN)


def effective(
    schedules: Mapping[int, Schedule], readers: Mapping[int, Collection[int]]
) -> dict[int, Every | Cron | None]:
    """Return the schedule that applies to each stream table; none where it is only refreshed on request.

    A calculated one follows the tightest of its readers, through readers that are calculated themselves. A
    reader with a schedule of its own is never fresher than that schedule, so the readers behind it do not
    count. In order, tightest first, each stream table passes its schedule to those that it reads and that
    have none. So each edge is visited once, and a cycle ends.
    """
    read: dict[int, list[int]] = {}
    for source, those in readers.items():
        for reader in those:
            read.setdefault(reader, []).append(source)
    found: dict[int, Every | Cron | None] = dict.fromkeys(schedules)
    own = {key: schedule for key, schedule in schedules.items() if not isinstance(schedule, Calculated)}
    found.update(own)
    for key in sorted(own, key=lambda key: (typical_interval(own[key]), key)):
        waiting = [key]
        while waiting:
            for source in read.get(waiting.pop(), ()):
                if source in found and found[source] is None:
                    found[source] = own[key]
                    waiting.append(source)
    return found


def next_due(schedule: Every | Cron, last: datetime, factor: float = 1.0) -> datetime:
    """Return when a stream table that was refreshed at `last` is due again, in UTC.

    A factor above one stretches an interval, or skips firings of a cron expression.
    """
    if isinstance(schedule, Every):
        return last.astimezone(UTC) + schedule.interval * factor
    missing = max(1, ceil(factor))
    due = last.astimezone(UTC)
    for firing in CronSim(schedule.expression, last.astimezone(ZoneInfo(schedule.time_zone))):
        # In the hour that comes twice, a job that runs once fires in the first of the two, which may be over.
        # A job of the hour that is missing fires right after the gap, possibly several times at once.
        if firing.astimezone(UTC) > due:
            due, missing = firing.astimezone(UTC), missing - 1
        if not missing:
            return due
    return last.astimezone(UTC) + NOT_IN
