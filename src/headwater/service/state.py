"""What the scheduler knows of a database: stream tables in units, their schedules, and how each is doing.

What the catalog says is read as a whole, when it changed and now and then; how a stream table is doing is
kept from one reading to the next. Nothing here waits or connects by itself, so a tick costs what changed.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import cast

from headwater.db.connection import Connection
from headwater.db.queries import query
from headwater.errors import InvalidSetting
from headwater.scheduling.backoff import pause, slowed
from headwater.scheduling.graph import Unit, dispatch_key, units
from headwater.scheduling.schedules import (
    Calculated,
    Cron,
    Every,
    Schedule,
    effective,
    next_due,
    parse_schedule,
    typical_interval,
)
from headwater.scheduling.tiers import FACTORS, Tier, tier_of

MOMENT = timedelta(milliseconds=20)
"""A refresh that takes no longer can wait for one that is as short."""
ROUND_SECONDS = 60.0
"""Once in so long each change table is looked into, whether it is marked or not."""


@dataclass(frozen=True)
class Member:
    """A stream table as the catalog has it."""

    id: int
    label: str
    schedule: Schedule
    tier: Tier | None  # that a user chose
    clocked: bool  # refreshed by the clock alone, for nobody captures what it reads
    active: bool  # neither suspended nor broken
    distrusted: bool  # a refresh must rebuild it or repair its capture, whether anything changed or not
    reads: frozenset[int]  # stream tables
    tables: frozenset[int]


@dataclass(frozen=True)
class Fault:
    """A part that a stream table lacks."""

    part: str
    reason: str
    remedy: str

    @property
    def heals(self) -> bool:
        """Whether a refresh makes it again."""
        return self.part == "capture"


@dataclass
class Condition:
    """How a stream table is doing."""

    began: datetime | None = None  # its latest refresh
    took: timedelta = timedelta(0)
    failures: int = 0  # in a row
    strikes: int = 0  # of these, those that count for suspending it
    failed_at: datetime | None = None
    changed_at: datetime | None = None  # what it reads, last
    changed_before: datetime | None = None


@dataclass
class Place:
    """A unit and where it stands."""

    unit: Unit
    schedule: Every | Cron | None  # the tightest of its members; None if it is refreshed only when asked
    ready_since: datetime | None = None  # due, and nothing that it reads is to be refreshed before it
    waits_since: datetime | None = None  # something that it reads has changed
    busy: bool = False  # a job has it
    again: bool = False  # something changed after its job began

    @property
    def interval(self) -> timedelta:
        return typical_interval(self.schedule) if self.schedule else timedelta(0)


@dataclass
class SchedulerState:
    """All units of a database."""

    members: dict[int, Member] = field(default_factory=dict)
    conditions: dict[int, Condition] = field(default_factory=dict)
    places: dict[int, Place] = field(default_factory=dict)  # by member
    waiting: dict[Unit, Place] = field(default_factory=dict)  # whose sources changed
    faults: dict[int, Fault] = field(default_factory=dict)  # what was missing when it was last looked at
    broken: dict[int, InvalidSetting] = field(default_factory=dict)  # schedules that cannot be read
    change_tables: dict[int, str] = field(default_factory=dict)  # by relation
    automatic_tiers: bool = False
    _readers: dict[int, set[int]] = field(default_factory=dict)  # of a relation: members
    _views: dict[int, int] = field(default_factory=dict)  # of a stream table: its relation
    _alarms: list[tuple[datetime, int]] = field(default_factory=list)  # when members are due by the clock
    _order: dict[int, Place] | None = None  # by identity: those that are ready, until that may have changed
    _next_time: datetime | None = None  # when the next of the others that wait is due
    _looked_at: int = 0
    _owed: float = 0.0  # change tables to look into

    # what the catalog says

    def load(self, connection: Connection, now: datetime, *, examine: bool = True) -> None:
        """Reads the catalog; what is known of a stream table that is still there stays.

        Whether a stream table has all its parts costs more to find out than the rest. That is asked of those
        that lacked some, and of all when told to examine them.
        """
        self.broken.clear()
        asked = None if examine else list(self.faults)
        if asked != []:
            rows = connection.execute(query("service", "faults"), {"ids": asked}).fetchall()
            self.faults = {number: Fault(*found) for number, *found in rows}
        members = {}
        for (
            number,
            label,
            schedule,
            zone,
            tier,
            mode,
            status,
            distrusted,
            reads,
            tables,
        ) in connection.execute(query("service", "members"), {}).fetchall():
            members[number] = Member(
                number,
                label,
                self._schedule(number, schedule, zone),
                cast("Tier | None", tier),
                clocked=mode != "differential",
                active=status == "active" and (number not in self.faults or self.faults[number].heals),
                distrusted=distrusted or number in self.faults,
                reads=frozenset(reads),
                tables=frozenset(tables),
            )
        fresh = [number for number in members if number not in self.conditions]
        for number, began, took, failures in (
            connection.execute(query("service", "past"), {"ids": fresh}) if fresh else ()
        ):
            self.conditions[number] = Condition(
                began, took or timedelta(0), failures=failures, strikes=failures, failed_at=now
            )
        rows = connection.execute(query("service", "sources")).fetchall()
        self.change_tables = {relation: name for relation, name, _ in rows}
        self._views = {stream_table: relation for relation, _, stream_table in rows if stream_table}
        self._readers = {}
        for member in members.values():
            for relation in (*member.tables, *(self._views.get(read, 0) for read in member.reads)):
                self._readers.setdefault(relation, set()).add(member.id)
        changed = members != self.members
        self.members = members
        self.conditions = {number: self.conditions[number] for number in members}
        self._order = None
        if changed:
            self._arrange(now)

    def _schedule(self, number: int, text: str | None, zone: str) -> Schedule:
        try:
            return parse_schedule(text, zone)
        except InvalidSetting as error:
            self.broken[number] = error
            return Calculated()

    def _arrange(self, now: datetime) -> None:
        """Makes the units anew; jobs that run keep theirs busy."""
        members = {number: member for number, member in self.members.items() if member.active}
        reads = {number: member.reads & members.keys() for number, member in members.items()}
        readers: dict[int, set[int]] = {}
        for number, those in reads.items():
            for read in those:
                readers.setdefault(read, set()).add(number)
        schedules = effective({number: member.schedule for number, member in members.items()}, readers)
        before = self.places
        self.places, self.waiting, self._alarms, self._order = {}, {}, [], None
        # What fails is not fused with what it reads, which need not wait until it is suspended.
        alike = {
            number: (schedule, number if self.conditions[number].failures else None)
            for number, schedule in schedules.items()
        }
        for unit in units(reads, {number: member.tables for number, member in members.items()}, alike):
            own = [found for member in unit.members if (found := schedules[member]) is not None]
            place = Place(unit, min(own, key=typical_interval, default=None))
            earlier = [before[member] for member in unit.members if member in before]
            place.ready_since = min((each.ready_since for each in earlier if each.ready_since), default=None)
            place.busy = any(each.busy for each in earlier)
            place.again = any(each.again for each in earlier)
            self.places.update(dict.fromkeys(unit.members, place))
            since = [each.waits_since for each in earlier if each.waits_since]
            if since or any(members[member].distrusted for member in unit.members):
                self._wait(place, min(since, default=now))
            elif place.schedule and any(members[member].clocked for member in unit.members):
                heapq.heappush(self._alarms, (self.due(place, now), unit.members[-1]))

    # what happens

    def changed(self, relations: Iterable[int], now: datetime) -> None:
        """Something wrote to these relations."""
        for number in {reader for relation in relations for reader in self._readers.get(relation, ())}:
            condition, place = self.conditions[number], self.places.get(number)
            if condition.changed_at != now:
                condition.changed_before, condition.changed_at = condition.changed_at, now
            if place is not None:
                self._wait(place, now)

    def began(self, place: Place, now: datetime) -> None:
        """A job has a unit."""
        place.busy, place.again, place.waits_since, place.ready_since = True, False, None, None
        self.waiting.pop(place.unit, None)
        if self._order is not None:
            self._order.pop(id(place), None)
        for member in place.unit.members:
            self.conditions[member].began = now

    def is_short(self, members: Sequence[int]) -> bool:
        """Whether refreshing these took a moment the last time."""
        return all(
            (condition := self.conditions.get(member)) is not None
            and condition.failures == 0
            and timedelta(0) < condition.took <= MOMENT
            for member in members
        )

    def ended(self, members: Sequence[int], took: timedelta, now: datetime) -> None:
        """A job has done its work."""
        recovered = False
        for member in members:
            if (condition := self.conditions.get(member)) is not None:
                recovered = recovered or condition.failures > 0
                condition.took, condition.failures, condition.strikes = took, 0, 0
        self._released(members, now)
        if recovered:
            self._arrange(now)

    def failed(self, members: Sequence[int], culprit: int, now: datetime, *, counts: bool) -> int:
        """A job failed at this member; how often that one has in a row, by its own fault."""
        condition = self.conditions.get(culprit)
        if condition is not None:
            condition.failures += 1
            condition.strikes += counts
            condition.failed_at = now
        self._released(members, now, again=True)
        if len(members) > 1:
            self._arrange(now)
        return condition.strikes if condition is not None else 0

    def _released(self, members: Sequence[int], now: datetime, *, again: bool = False) -> None:
        if again or any(self._views.get(member) in self._readers for member in members):
            self._order = None  # who reads them need not wait for them any more
        for place in {id(each): each for member in members if (each := self.places.get(member))}.values():
            place.busy = False
            if place.again or again:
                self._wait(place, now)
            elif place.schedule and any(self.members[member].clocked for member in place.unit.members):
                heapq.heappush(self._alarms, (self.due(place, now), place.unit.members[-1]))

    def _wait(self, place: Place, now: datetime) -> None:
        if place.busy:
            place.again = True
        elif place.unit not in self.waiting:
            place.waits_since = now
            self.waiting[place.unit] = place
            self._order = None

    # what is to be done

    def due(self, place: Place, now: datetime) -> datetime:
        """When a unit may be refreshed next; never before it is time after a failure."""
        assert place.schedule is not None
        conditions = [self.conditions[member] for member in place.unit.members]
        factors = [FACTORS[self.tier(member, now)] for member in place.unit.members]
        factor = min((factor for factor in factors if factor is not None), default=None)
        if factor is None:
            return datetime.max.replace(tzinfo=now.tzinfo)
        due = now
        if all(condition.began is not None for condition in conditions):
            began = max(condition.began for condition in conditions if condition.began is not None)
            due = next_due(place.schedule, began, factor)
            took = max(condition.took for condition in conditions)
            if took > place.interval:
                due = max(due, began + slowed(place.interval, took))
        for condition in conditions:
            if condition.failures and condition.failed_at is not None:
                due = max(due, condition.failed_at + pause(condition.failures, place.interval))
        return due

    def tier(self, member: int, now: datetime) -> Tier:
        condition, place = self.conditions[member], self.places[member]
        changed = condition.changed_before
        since = now - changed if changed is not None else None
        return tier_of(self.members[member].tier, self.automatic_tiers, since, place.interval)

    def ready(self, now: datetime) -> tuple[list[Place], datetime | None]:
        """The units to be refreshed now, those first that come first, and when the next of the others is due.

        One that reads another which is to be refreshed, or is being refreshed, waits for that. With thousands
        waiting this is looked for when it may have changed, not each time that a thread is free.
        """
        while self._alarms and self._alarms[0][0] <= now:
            _, member = heapq.heappop(self._alarms)
            if (place := self.places.get(member)) is not None:
                self._wait(place, now)
        if self._order is None or (self._next_time is not None and self._next_time <= now):
            self._order, self._next_time = self._ordered(now)
        times = [self._next_time, self._alarms[0][0] if self._alarms else None]
        return list(self._order.values()), min((time for time in times if time is not None), default=None)

    def _ordered(self, now: datetime) -> tuple[dict[int, Place], datetime | None]:
        found, next_time = [], None
        for place in self.waiting.values():
            if place.schedule is None:
                continue
            due = self.due(place, now)
            if due <= now:
                found.append(place)
            elif next_time is None or due < next_time:
                next_time = due
        coming = {id(place) for place in found}
        clear = [
            place
            for place in found
            if not any(
                (other := self.places.get(read)) is not None and (other.busy or id(other) in coming)
                for read in place.unit.reads
            )
        ]
        ready = {id(place) for place in clear}
        for place in found:
            place.ready_since = (place.ready_since or now) if id(place) in ready else None
        clear.sort(key=lambda place: dispatch_key(place.unit, lambda member: self.tier(member, now)))
        return {id(place): place for place in clear}, next_time

    def lag(self, now: datetime) -> float:
        """The longest that a unit has waited beyond its interval, in intervals."""
        lags = [
            (now - place.waits_since) / place.interval
            for place in self.waiting.values()
            if place.waits_since is not None and place.interval
        ]
        return max(lags, default=0.0)

    def unmarked(self, seconds: float) -> list[tuple[int, str]]:
        """Change tables to look into although no mark says so: as many as are due after so many seconds."""
        tables = sorted(self.change_tables.items())
        self._owed += min(1.0, seconds / ROUND_SECONDS) * len(tables)
        count = int(self._owed)
        self._owed -= count
        start, self._looked_at = self._looked_at, (self._looked_at + count) % max(1, len(tables))
        return (tables + tables)[start : start + count]
