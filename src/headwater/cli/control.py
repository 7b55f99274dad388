"""The verbs that control a running refresh, and the service."""

from __future__ import annotations

from headwater.cli.database import handle
from headwater.cli.invocation import Invocation
from headwater.cli.output import present
from headwater.cli.show import stream_tables as show
from headwater.cli.show.values import lines


def cancel(invocation: Invocation, name: str) -> None:
    """Cancel running refreshes; raise an error if there are none."""
    with handle(invocation) as hw:
        found = hw.cancel(name)
    present(invocation, {"cancelled": found}, show.cancelled(found))


def drain(invocation: Invocation) -> None:
    """Drain the service."""
    with handle(invocation) as hw:
        hw.drain()
    present(
        invocation, {"drain": "on"}, lines("the service begins no more refreshes", "next: headwater resume")
    )
