"""Errors that only a delta meets: a term joins rows that were never there together."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from tests.integration.support import refresh

from headwater import Headwater, HeadwaterError

Connection = psycopg.Connection[Any]

pytestmark = pytest.mark.differential
RATIO = "SELECT n.id, n.v / d.v AS ratio FROM numerators n JOIN divisors d ON d.id = n.id"


@pytest.fixture(autouse=True)
def tables(conn: Connection) -> None:
    conn.execute("CREATE TABLE numerators (id int, v int)")
    conn.execute("CREATE TABLE divisors (id int, v int)")
    conn.execute("INSERT INTO divisors VALUES (1, 0), (2, 5)")
    conn.execute("INSERT INTO numerators VALUES (2, 10)")


def test_a_partner_that_was_never_there_is_no_error(hw: Headwater, conn: Connection) -> None:
    """The divisor was zero before the numerator came, and is not any more."""
    hw.create("ratios", RATIO, mode="differential")
    conn.execute("UPDATE divisors SET v = 4 WHERE id = 1")
    conn.execute("INSERT INTO numerators VALUES (1, 8)")
    outcome = refresh(hw, "ratios")
    assert outcome.action in ("delta", "recompute")
    if outcome.action == "recompute":
        assert "its delta met an error" in outcome.reason
    assert hw.verify("ratios").equal
    conn.execute("INSERT INTO numerators VALUES (1, 12)")
    assert refresh(hw, "ratios").action == "delta"


def test_an_error_of_the_query_itself_is_reported_and_passes(hw: Headwater, conn: Connection) -> None:
    hw.create("ratios", RATIO, mode="differential")
    conn.execute("INSERT INTO numerators VALUES (1, 8)")
    for _ in range(2):
        with pytest.raises(HeadwaterError, match="division by zero"):
            hw.refresh("ratios")
        assert (hw.history("ratios")[0].status, hw.history("ratios")[0].sqlstate) == ("failed", "22012")
    assert conn.execute("SELECT * FROM ratios").fetchall() == [(2, 2)]
    conn.execute("UPDATE divisors SET v = 2 WHERE id = 1")
    hw.refresh("ratios")
    assert conn.execute("SELECT * FROM ratios ORDER BY id").fetchall() == [(1, 4), (2, 2)]
