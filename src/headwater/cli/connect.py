"""Connecting a verb to its database with all of Headwater: the parser, plans and engines."""

from __future__ import annotations

from headwater.api import Headwater
from headwater.cli.database import checked_direct_dsn, checked_dsn
from headwater.cli.invocation import Invocation


def connect(invocation: Invocation) -> Headwater:
    """Connect for a verb that works on stream tables."""
    return Headwater(
        checked_dsn(invocation),
        invocation.settings,
        invocation.tell,
        direct_dsn=checked_direct_dsn(invocation),
    )
