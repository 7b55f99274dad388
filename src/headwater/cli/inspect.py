"""The verbs that list what the catalog has: stream tables, refreshes, incidents."""

from __future__ import annotations

from headwater.cli.database import handle, now
from headwater.cli.invocation import Invocation
from headwater.cli.output import present
from headwater.cli.show import refreshes, stream_tables


def list_(invocation: Invocation) -> None:
    """Lists the stream tables."""
    with handle(invocation) as hw:
        found = hw.list()
    present(invocation, {"stream_tables": found}, stream_tables.listing(found))


def history(invocation: Invocation, name: str | None, limit: int) -> None:
    """Shows refreshes."""
    with handle(invocation) as hw:
        found = hw.history(name, limit=limit)
        at = now(hw)
    present(invocation, {"refreshes": found}, refreshes.history(found, at))


def audits(invocation: Invocation, name: str | None, limit: int) -> None:
    """Shows incidents."""
    with handle(invocation) as hw:
        found = hw.audits(name, limit=limit)
        at = now(hw)
    present(invocation, {"incidents": found}, refreshes.incidents(found, at))
