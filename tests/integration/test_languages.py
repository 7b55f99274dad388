"""A server that does not speak English: errors are told by their SQLSTATE, never by their text."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg import errors
from psycopg.pq import DiagnosticField
from tests.integration.support import in_background, refresh

import headwater
from headwater import Headwater
from headwater.errors import (
    AlreadyExists,
    DependentsExist,
    InvalidQuery,
    LockNotAvailable,
    RefreshFailed,
)

Connection = psycopg.Connection[Any]
SAID = "Das ist auf Deutsch gesagt"


@pytest.fixture(autouse=True)
def translated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every message of the server in other words; which languages a server has depends on its packaging."""
    made, field = errors.error_from_result, errors.Diagnostic._error_message

    def error_from_result(result: Any, encoding: str = "utf-8") -> errors.Error:
        error = made(result, encoding)
        error.args = (SAID,)
        return error

    def message(diagnostic: errors.Diagnostic, wanted: DiagnosticField) -> str | None:
        texts = (
            DiagnosticField.MESSAGE_PRIMARY,
            DiagnosticField.MESSAGE_DETAIL,
            DiagnosticField.MESSAGE_HINT,
            DiagnosticField.SEVERITY,
        )
        return SAID if wanted in texts else field(diagnostic, wanted)

    monkeypatch.setattr(errors, "error_from_result", error_from_result)
    monkeypatch.setattr(errors.Diagnostic, "_error_message", message)


@pytest.fixture(autouse=True)
def tables(translated: None, conn: Connection) -> None:
    conn.execute("CREATE TABLE items (id int, kind text, price int)")
    conn.execute("INSERT INTO items VALUES (1, 'a', 0), (2, 'b', 5)")
    conn.execute("CREATE TABLE parts (item int, n int)")
    conn.execute("INSERT INTO parts VALUES (2, 10)")


def test_a_non_english_server_is_heard(conn: Connection) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero, match=SAID) as caught:
        conn.execute("SELECT 1 / 0")
    assert caught.value.diag.message_primary == SAID


def test_a_non_english_server_refuses_a_query(hw: Headwater, conn: Connection) -> None:
    for query in ("SELEC id FROM items", "SELECT nothing FROM items", "SELECT id, 1 / price AS r FROM items"):
        with pytest.raises(InvalidQuery, match=SAID):
            hw.create("st", query)
    with pytest.raises(AlreadyExists):
        hw.create("items", "SELECT id FROM items")


def test_a_non_english_server_meets_an_error_in_a_delta(hw: Headwater, conn: Connection) -> None:
    """It is recomputed if the query itself need not meet it, else reported."""
    hw.create("st", "SELECT i.id, p.n / i.price AS r FROM items i JOIN parts p ON p.item = i.id")
    conn.execute("UPDATE items SET price = 4 WHERE id = 1")
    conn.execute("INSERT INTO parts VALUES (1, 8)")
    assert refresh(hw, "st").action in ("delta", "recompute")
    conn.execute("UPDATE items SET price = 0")
    with pytest.raises(RefreshFailed, match=SAID):
        hw.refresh("st")
    assert hw.history("st")[0].sqlstate == "22012"


def test_a_non_english_server_gives_no_lock(hw: Headwater, dsn: str, conn: Connection) -> None:
    hw.create("st", "SELECT kind, count(*) AS n FROM items GROUP BY kind")
    conn.execute("INSERT INTO items VALUES (3, 'c', 7)")
    with (
        psycopg.connect(dsn) as holder,
        headwater.connect(dsn, lock_timeout_ms="1", lock_attempts="2") as other,
    ):
        holder.execute("TRUNCATE items")
        with pytest.raises(LockNotAvailable):
            other.refresh("st")
        holder.rollback()
    assert refresh(hw, "st").action == "delta"


def test_a_non_english_server_lets_two_refreshes_race(hw: Headwater, dsn: str, conn: Connection) -> None:
    """The loser gets a serialization failure and is run again."""
    hw.create("st", "SELECT kind, sum(price) AS s FROM items GROUP BY kind")

    def refresh_often() -> int:
        with headwater.connect(dsn, lock_attempts="100") as other:
            return sum(other.refresh("st")[-1].action == "delta" for _ in range(20))

    with in_background(refresh_often) as first, in_background(refresh_often) as second:
        while not (first.done() and second.done()):
            conn.execute("INSERT INTO items VALUES (9, 'a', 1)")
    assert first.result() + second.result() > 0
    refresh(hw, "st")


def test_a_non_english_server_names_dependents(hw: Headwater, conn: Connection) -> None:
    hw.create("st", "SELECT id FROM items")
    conn.execute("CREATE VIEW reader AS SELECT id FROM st")
    with pytest.raises(DependentsExist):
        hw.drop("st")
