"""The verbs that list what is in the catalog: stream tables, refreshes, incidents."""

from __future__ import annotations

from headwater.catalog.choices import BucketLength
from headwater.cli.database import handle, now
from headwater.cli.invocation import Invocation
from headwater.cli.output import present
from headwater.cli.show import refreshes, stream_tables


def list_(invocation: Invocation) -> None:
    """List the stream tables."""
    with handle(invocation) as hw:
        found = hw.list()
    present(invocation, {"stream_tables": found}, stream_tables.listing(found))


def history(invocation: Invocation, name: str | None, limit: int, by: BucketLength | None) -> None:
    """Show refreshes, or sums of them."""
    with handle(invocation) as hw:
        if by is not None:
            sums = hw.history_sums(name, by=by, limit=limit)
            present(invocation, {"sums": sums}, refreshes.sums(sums))
            return
        found = hw.history(name, limit=limit)
        at = now(hw)
    present(invocation, {"refreshes": found}, refreshes.history(found, at))


def audits(invocation: Invocation, name: str | None, limit: int) -> None:
    """Show incidents."""
    with handle(invocation) as hw:
        found = hw.audits(name, limit=limit)
        at = now(hw)
    present(invocation, {"incidents": found}, refreshes.incidents(found, at))
