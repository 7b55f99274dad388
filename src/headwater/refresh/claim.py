"""The right to refresh, where others may take it away meanwhile (I4).

A claim is two statements: one for the beginning of a refresh and one for its end, right before the commit.
Both fail with a SQLSTATE of their own if another has the right, so that they fit into a compiled refresh.
"""

from __future__ import annotations

from typing import Protocol

import psycopg

from headwater.db.connection import Connection
from headwater.db.scratch import statement
from headwater.errors import ClaimLost

CLAIM_LOST = "HW003"


class Claim(Protocol):
    """The right to refresh certain stream tables."""

    @property
    def hold_sql(self) -> str:
        """The statement for when the transaction has its locks."""

    @property
    def check_sql(self) -> str:
        """The statement for when it is about to commit."""

    def lost(self, error: psycopg.Error) -> ClaimLost:
        """Say what the failure of either of them means."""


def hold_claim(connection: Connection, claim: Claim) -> None:
    """Keep others off until the transaction ends; raises ClaimLost if another has the right."""
    _execute(connection, claim, claim.hold_sql)


def check_claim(connection: Connection, claim: Claim) -> None:
    """Make sure that the right lasts until the commit; raises ClaimLost if it was taken away."""
    _execute(connection, claim, claim.check_sql)


def _execute(connection: Connection, claim: Claim, text: str) -> None:
    try:
        connection.execute(statement(text))
    except psycopg.Error as error:
        if error.sqlstate != CLAIM_LOST:
            raise
        raise claim.lost(error) from error
