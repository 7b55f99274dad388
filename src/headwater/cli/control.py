"""The verbs that tell others what to do: a refresh that runs, and the service."""

from __future__ import annotations

from headwater.cli.database import handle
from headwater.cli.invocation import Invocation
from headwater.cli.output import present
from headwater.cli.show import stream_tables as show
from headwater.cli.show.values import lines


def cancel(invocation: Invocation, name: str) -> None:
    """Cancels what runs; an error if that is nothing."""
    with handle(invocation) as hw:
        found = hw.cancel(name)
    present(invocation, {"cancelled": found}, show.cancelled(found))


def drain(invocation: Invocation) -> None:
    """Drains the service."""
    with handle(invocation) as hw:
        hw.drain()
    present(
        invocation, {"drain": "on"}, lines("the service begins no more refreshes", "next: headwater resume")
    )
