"""The verbs that only look."""

from __future__ import annotations

from datetime import datetime
from typing import Any, get_args

import click
from rich.console import RenderableType

from headwater.api import Headwater
from headwater.catalog.history import BucketLength
from headwater.cli import show, sums
from headwater.cli.group import cli
from headwater.cli.invocation import Invocation
from headwater.cli.options import name_argument, shared_options
from headwater.cli.watch import follow, overview
from headwater.db.connection import one


@cli.command("list")
@shared_options
@click.pass_obj
def list_(invocation: Invocation) -> None:
    """List the stream tables.

    \b
    Example: headwater list --format json
    """
    with invocation.connect() as hw:
        found = hw.list()
    invocation.present({"stream_tables": found}, show.listing(found))


@cli.command()
@click.argument("name", required=False)
@click.option(
    "--watch", is_flag=True, help="Update it each second until Ctrl-C, with the service and what runs."
)
@shared_options
@click.pass_obj
def status(invocation: Invocation, name: str | None, watch: bool) -> None:
    """Show how fresh stream tables are, and what waits for them.

    With --watch the most interesting ones come first, as many as there are lines; with --format json each
    second is a document on a line of its own.

    \b
    Example: headwater status --watch
    """
    with invocation.connect() as hw:
        if not watch:
            invocation.present(*_status(hw, name))
        elif name is None:
            follow(invocation, hw.overview, overview)
        else:
            follow(invocation, lambda: hw.status(name), lambda found, _: show.status(found, _now(hw)))


def _status(hw: Headwater, name: str | None) -> tuple[Any, RenderableType]:
    if name is not None:
        one_found = hw.status(name)
        return one_found, show.status(one_found, _now(hw))
    found = hw.list()
    return {"stream_tables": found}, show.statuses(found, _now(hw))


@cli.command()
@click.argument("name", required=False)
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="How many.")
@click.option(
    "--by", type=click.Choice(get_args(BucketLength)), help="Show sums by the minute or hour instead."
)
@shared_options
@click.pass_obj
def history(invocation: Invocation, name: str | None, limit: int, by: BucketLength | None) -> None:
    """Show the latest refreshes, newest first.

    Single deltas are forgotten after a while; sums by the minute and by the hour are kept for longer.

    \b
    Example: headwater history revenue --limit 5
    """
    with invocation.connect() as hw:
        if by is not None:
            found_sums = hw.history_sums(name, by=by, limit=limit)
            invocation.present({"sums": found_sums}, sums.shown(found_sums))
            return
        found = hw.history(name, limit=limit)
        now = _now(hw)
    invocation.present({"refreshes": found}, show.history(found, now))


@cli.command()
@click.argument("name", required=False)
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="How many.")
@shared_options
@click.pass_obj
def audits(invocation: Invocation, name: str | None, limit: int) -> None:
    """Show where stream tables, or their plans, were found to differ from their queries, newest first.

    \b
    Example: headwater audits --format json
    """
    with invocation.connect() as hw:
        found = hw.audits(name, limit=limit)
        now = _now(hw)
    invocation.present({"incidents": found}, show.incidents(found, now))


@cli.command()
@name_argument
@shared_options
@click.pass_obj
def explain(invocation: Invocation, name: str) -> None:
    """Show what a refresh does, and why: operators, rules and SQL.

    \b
    Example: headwater explain revenue
    """
    with invocation.connect() as hw:
        found = hw.explain(name)
    invocation.present(found, show.explanation(found, invocation.console))


@cli.command()
@name_argument
@shared_options
@click.pass_obj
def verify(invocation: Invocation, name: str) -> int:
    """Compare a stream table with its query; exit code 1 if they differ.

    \b
    Example: headwater verify revenue
    """
    with invocation.connect() as hw:
        found = hw.verify(name)
    invocation.present(found, show.verification(found, f"{show.command('refresh', name)} --full"))
    return 0 if found.equal else 1


def _now(hw: Headwater) -> datetime:
    """The database's time, by which everything it recorded is dated."""
    now: datetime = one(hw.connection, "SELECT clock_timestamp()")[0]
    return now
