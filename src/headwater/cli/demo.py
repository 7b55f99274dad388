"""The verb that shows stream tables at work."""

from __future__ import annotations

from headwater.catalog.choices import EngineName
from headwater.cli.invocation import Invocation
from headwater.cli.output import console
from headwater.demo import run


def demo(invocation: Invocation, seconds: float, engine: EngineName) -> int:
    """Run the demo for this long."""
    return run(seconds=seconds, dsn=invocation.dsn, console=console(), engine=engine)
