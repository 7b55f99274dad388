"""The verbs that create and change stream tables, and bring them up to date."""

from __future__ import annotations

from contextlib import suppress
from typing import BinaryIO

from headwater.api import Headwater
from headwater.catalog.history import HistoryEntry
from headwater.catalog.stream_tables import EngineName, Mode, StreamTable, TierChoice
from headwater.cli import document
from headwater.cli.connect import connect
from headwater.cli.invocation import Invocation, Misuse
from headwater.cli.output import present
from headwater.cli.show import stream_tables as show
from headwater.cli.show.refreshes import outcomes
from headwater.cli.show.values import command, lines
from headwater.errors import AlreadyExists, NotFound

STAYS = "what is stored stays"


def create(
    invocation: Invocation,
    name: str,
    query: str | None,
    file: BinaryIO | None,
    schedule: str | None,
    mode: Mode | None,
    engine: EngineName | None,
    tier: TierChoice | None,
    if_not_exists: bool,
    or_replace: bool,
    cascade: bool,
) -> None:
    """Create a stream table."""
    if if_not_exists and or_replace:
        raise Misuse("--if-not-exists and --or-replace exclude each other")
    if cascade and not or_replace:
        raise Misuse("--cascade is for --or-replace")
    text = _query(query, file)

    def attempt(hw: Headwater, lenient: bool) -> StreamTable:
        return hw.create(
            name,
            text,
            schedule=schedule,
            mode=mode or "auto",
            engine=engine or "auto",
            tier=tier or "auto",
            if_not_exists=lenient,
            or_replace=or_replace,
            cascade=cascade,
        )

    with connect(invocation) as hw:
        before = _latest(hw, name) if or_replace else None
        try:
            found, created = attempt(hw, False), True
        except AlreadyExists:
            if not if_not_exists:
                raise
            found, created = attempt(hw, True), False
        indexes = hw.missing_indexes(name)
        did = _did(before, _latest(hw, name)) if created else STAYS
    verb, following = "created" if created else "exists already:", command("refresh", name)
    said = show.definition(found, verb, following, indexes, did if or_replace else "", loaded=created)
    present(invocation, document.stream_table(found, created=created, indexes=indexes, did=did), said)


def _latest(hw: Headwater, name: str) -> HistoryEntry | None:
    """Return the latest entry in the history of a stream table, if there is one."""
    with suppress(NotFound):
        return next(iter(hw.history(name, limit=1)), None)
    return None


def _did(before: HistoryEntry | None, after: HistoryEntry | None) -> str:
    """Return what was done to a stream table, and what was dropped with it."""
    if after is None or (before is not None and before.id == after.id):
        return STAYS
    return after.reason


def _query(query: str | None, file: BinaryIO | None) -> str:
    if (query is None) == (file is None):
        raise Misuse("give the query by one of --query and --file", "--file - reads it from standard input")
    if query is not None:
        return query
    assert file is not None
    try:
        return file.read().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Misuse(f"{file.name}: this is no UTF-8", "save the query as UTF-8") from None


def alter(
    invocation: Invocation,
    name: str,
    query: str | None,
    file: BinaryIO | None,
    schedule: str | None,
    no_schedule: bool,
    mode: Mode | None,
    engine: EngineName | None,
    tier: TierChoice | None,
    cascade: bool,
) -> None:
    """Change a stream table."""
    text = _query(query, file) if query is not None or file is not None else None
    if schedule is not None and no_schedule:
        raise Misuse("--schedule and --no-schedule exclude each other")
    if not no_schedule and all(given is None for given in (text, schedule, mode, engine, tier)):
        raise Misuse(
            "nothing to change", "give --query, --file, --schedule, --no-schedule, --mode, --engine or --tier"
        )
    if cascade and text is None:
        raise Misuse("--cascade is for --query and --file")
    with connect(invocation) as hw:
        before = _latest(hw, name)
        found = hw.alter(
            name,
            query=text,
            schedule=schedule,
            unscheduled=no_schedule,
            mode=mode,
            engine=engine,
            tier=tier,
            cascade=cascade,
        )
        did = _did(before, _latest(hw, name))
    changed = text is not None or mode is not None
    said = show.definition(
        found, "altered", command("refresh", name), did=did if changed else "", loaded=text is not None
    )
    present(invocation, document.stream_table(found, did=did), said)


def drop(invocation: Invocation, name: str, cascade: bool, if_exists: bool) -> None:
    """Drop a stream table."""
    dropped: list[str] = []
    with connect(invocation) as hw:
        try:
            dropped = hw.drop(name, cascade=cascade)
        except NotFound:
            if not if_exists:
                raise
    said = [f"dropped {label}" for label in dropped] or [f"there is no stream table {name}"]
    present(invocation, {"dropped": dropped}, lines(*said))


def refresh(invocation: Invocation, name: str, full: bool, engine: EngineName | None) -> None:
    """Refresh a stream table."""
    with connect(invocation) as hw:
        found = hw.refresh(name, full=full, engine=engine)
    present(invocation, {"outcomes": [document.outcome(item) for item in found]}, outcomes(found))


def suspend(invocation: Invocation, name: str, reason: str | None) -> None:
    """Suspend a stream table."""
    with connect(invocation) as hw:
        found = hw.suspend(name, reason)
    said = [
        f"suspended {found.label}: {found.suspended_reason}",
        f"next: {command('resume', name)}",
    ]
    present(invocation, document.stream_table(found), lines(*said))


def resume(invocation: Invocation, name: str | None) -> None:
    """Resume a stream table, or the service."""
    with connect(invocation) as hw:
        if name is None:
            hw.undrain()
            present(invocation, {"drain": "off"}, lines("the service refreshes again"))
        else:
            found = hw.resume(name)
            health = hw.status(name)
            said = [f"{found.label} is {health.status}"]
            if health.remedy:  # it was not only suspended
                said = [f"{said[0]}: {health.status_reason}", f"next: {health.remedy}"]
            present(invocation, document.stream_table(found), lines(*said))
