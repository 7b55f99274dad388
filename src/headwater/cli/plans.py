"""The verbs that show what a refresh does, and whether it did right."""

from __future__ import annotations

from headwater.cli.connect import connect
from headwater.cli.invocation import Invocation
from headwater.cli.output import console, present
from headwater.cli.show import plans as show
from headwater.cli.show.values import command


def explain(invocation: Invocation, name: str, *, compiled: bool) -> None:
    """Show what a refresh does."""
    with connect(invocation) as hw:
        found = hw.explain(name)
    shown = show.compiled if compiled else show.explanation
    present(invocation, found, shown(found, console()))


def verify(invocation: Invocation, name: str) -> int:
    """Compare a stream table with its query; return 1 if they differ."""
    with connect(invocation) as hw:
        found = hw.verify(name)
    present(invocation, found, show.verification(found, f"{command('refresh', name)} --full"))
    return 0 if found.equal else 1
