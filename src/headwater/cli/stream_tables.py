"""The verbs that create and change stream tables, and bring them up to date."""

from __future__ import annotations

from contextlib import suppress
from typing import BinaryIO, get_args

import click

from headwater.api import Headwater
from headwater.catalog.history import HistoryEntry
from headwater.catalog.stream_tables import EngineName, Mode, StreamTable, Tier, TierChoice
from headwater.cli import document, show
from headwater.cli.group import cli
from headwater.cli.invocation import Invocation, Misuse
from headwater.cli.options import name_argument, shared_options, spark_options
from headwater.errors import AlreadyExists, NotFound

STAYS = "what is stored stays"

mode_option = click.option("--mode", type=click.Choice(get_args(Mode)), help="How it is kept fresh.")
engine_option = click.option("--engine", type=click.Choice(get_args(EngineName)), help="What computes it.")
schedule_option = click.option(
    "--schedule",
    metavar="SCHEDULE",
    help="How fresh it should be: 500ms, 1s, 5m, 1h; a cron expression; calculated, from those who read it.",
)
tier_option = click.option(
    "--tier",
    type=click.Choice(("auto", *get_args(Tier))),
    help="Refresh it as scheduled (hot), half as often (warm), a tenth as often (cold), or never (frozen).",
)
cascade_option = click.option(
    "--cascade", is_flag=True, help="Drop stream tables and consumers that do not fit the new columns."
)


@cli.command()
@name_argument
@click.option("--query", metavar="SQL", help="The defining query.")
@click.option("--file", type=click.File("rb"), help="A file with the query; - for standard input.")
@schedule_option
@mode_option
@engine_option
@tier_option
@click.option("--if-not-exists", is_flag=True, help="Do nothing if there is a stream table of that name.")
@click.option("--or-replace", is_flag=True, help="Give the stream table of that name, if any, this query.")
@cascade_option
@spark_options
@shared_options
@click.pass_obj
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
    """Create a stream table from a query and load it.

    With --or-replace, a stream table of that name gets the query and the options in place: readers see the
    old rows until they see the new ones.

    \b
    Example: headwater create revenue --query "SELECT region, sum(amount) FROM sales GROUP BY region"
    """
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

    with invocation.connect() as hw:
        before = _latest(hw, name) if or_replace else None
        try:
            found, created = attempt(hw, False), True
        except AlreadyExists:
            if not if_not_exists:
                raise
            found, created = attempt(hw, True), False
        indexes = hw.missing_indexes(name)
        did = _did(before, _latest(hw, name)) if created else STAYS
    verb, following = "created" if created else "exists already:", show.command("refresh", name)
    said = show.definition(found, verb, following, indexes, did if or_replace else "", loaded=created)
    invocation.present(document.stream_table(found, created=created, indexes=indexes, did=did), said)


def _latest(hw: Headwater, name: str) -> HistoryEntry | None:
    """The latest entry in the history of a stream table, if there is one."""
    with suppress(NotFound):
        return next(iter(hw.history(name, limit=1)), None)
    return None


def _did(before: HistoryEntry | None, after: HistoryEntry | None) -> str:
    """What was done to a stream table, and what went with it."""
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


@cli.command()
@name_argument
@click.option("--query", metavar="SQL", help="Another defining query.")
@click.option("--file", type=click.File("rb"), help="A file with the query; - for standard input.")
@schedule_option
@click.option("--no-schedule", is_flag=True, help="Refresh only when asked to.")
@mode_option
@engine_option
@tier_option
@cascade_option
@spark_options
@shared_options
@click.pass_obj
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
    """Change the query, schedule, mode, engine or tier of a stream table.

    Another query is put in place: readers see the old rows until they see the new ones.

    \b
    Example: headwater alter revenue --schedule 5s
    """
    text = _query(query, file) if query is not None or file is not None else None
    if schedule is not None and no_schedule:
        raise Misuse("--schedule and --no-schedule exclude each other")
    if not no_schedule and all(given is None for given in (text, schedule, mode, engine, tier)):
        raise Misuse(
            "nothing to change", "give --query, --file, --schedule, --no-schedule, --mode, --engine or --tier"
        )
    if cascade and text is None:
        raise Misuse("--cascade is for --query and --file")
    with invocation.connect() as hw:
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
        found, "altered", show.command("refresh", name), did=did if changed else "", loaded=text is not None
    )
    invocation.present(document.stream_table(found, did=did), said)


@cli.command()
@name_argument
@click.option("--cascade", is_flag=True, help="Drop also what reads it.")
@click.option("--if-exists", is_flag=True, help="Do nothing if there is no stream table of that name.")
@shared_options
@click.pass_obj
def drop(invocation: Invocation, name: str, cascade: bool, if_exists: bool) -> None:
    """Drop a stream table.

    \b
    Example: headwater drop revenue
    """
    dropped: list[str] = []
    with invocation.connect() as hw:
        try:
            dropped = hw.drop(name, cascade=cascade)
        except NotFound:
            if not if_exists:
                raise
    said = [f"dropped {label}" for label in dropped] or [f"there is no stream table {name}"]
    invocation.present({"dropped": dropped}, show.lines(*said))


@cli.command()
@name_argument
@click.option("--full", is_flag=True, help="Recompute it from its query.")
@engine_option
@spark_options
@shared_options
@click.pass_obj
def refresh(invocation: Invocation, name: str, full: bool, engine: EngineName | None) -> None:
    """Bring a stream table, and those it reads, up to date.

    \b
    Example: headwater refresh revenue
    """
    with invocation.connect() as hw:
        found = hw.refresh(name, full=full, engine=engine)
    invocation.present({"outcomes": [document.outcome(item) for item in found]}, show.outcomes(found))


@cli.command()
@name_argument
@shared_options
@click.pass_obj
def cancel(invocation: Invocation, name: str) -> None:
    """Cancel the refresh of a stream table that runs now.

    It ends with an error that says so, and nothing of it is applied. The exit code is 1 if none is running.

    \b
    Example: headwater cancel revenue
    """
    with invocation.connect() as hw:
        found = hw.cancel(name)
    invocation.present({"cancelled": found}, show.cancelled(found))


@cli.command()
@name_argument
@click.option("--reason", metavar="TEXT", help="Why, for those who wonder.")
@shared_options
@click.pass_obj
def suspend(invocation: Invocation, name: str, reason: str | None) -> None:
    """Stop refreshing a stream table until it is resumed.

    Its sources are captured all the same, and it keeps its rows. What reads it is not refreshed either.

    \b
    Example: headwater suspend revenue --reason "the nightly load runs"
    """
    with invocation.connect() as hw:
        found = hw.suspend(name, reason)
    said = [
        f"suspended {found.label}: {found.suspended_reason}",
        f"next: {show.command('resume', name)}",
    ]
    invocation.present(document.stream_table(found), show.lines(*said))


@cli.command()
@click.argument("name", required=False)
@shared_options
@click.pass_obj
def resume(invocation: Invocation, name: str | None) -> None:
    """Refresh a suspended stream table again; without a name, end drain.

    \b
    Example: headwater resume revenue
    """
    with invocation.connect() as hw:
        if name is None:
            hw.undrain()
            invocation.present({"drain": "off"}, show.lines("the service refreshes again"))
        else:
            found = hw.resume(name)
            health = hw.status(name)
            said = [f"{found.label} is {health.status}"]
            if health.remedy:  # it was not suspended only
                said = [f"{said[0]}: {health.status_reason}", f"next: {health.remedy}"]
            invocation.present(document.stream_table(found), show.lines(*said))


@cli.command()
@shared_options
@click.pass_obj
def drain(invocation: Invocation) -> None:
    """Have the service begin no more refreshes in this database.

    Those that run are finished, and capture goes on. It stays so until headwater resume.

    \b
    Example: headwater drain
    """
    with invocation.connect() as hw:
        hw.drain()
    invocation.present(
        {"drain": "on"}, show.lines("the service begins no more refreshes", "next: headwater resume")
    )
