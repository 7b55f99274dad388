"""The verb that shows how fresh stream tables are, once or each second."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType

from headwater.cli.database import handle, now
from headwater.cli.invocation import Invocation
from headwater.cli.output import present
from headwater.cli.show import stream_tables as show
from headwater.cli.watch import follow, overview
from headwater.handle import Handle


def status(invocation: Invocation, name: str | None, watch: bool) -> None:
    """Show one stream table or all, once or each second."""
    with handle(invocation) as hw:
        if not watch:
            present(invocation, *_status(hw, name))
        elif name is None:
            follow(invocation, hw.overview, overview)
        else:
            follow(invocation, lambda: hw.status(name), lambda found, _: show.status(found, now(hw)))


def _status(hw: Handle, name: str | None) -> tuple[Any, RenderableType]:
    if name is not None:
        one_found = hw.status(name)
        return one_found, show.status(one_found, now(hw))
    found = hw.list()
    return {"stream_tables": found}, show.statuses(found, now(hw))
