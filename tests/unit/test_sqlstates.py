"""What a refresh does about each class of errors."""

from __future__ import annotations

import psycopg
import pytest
from tests.sqlstates import KNOWN, LEFT, OF_USERS, RECOMPUTED

from headwater.db.connection import RETRYABLE
from headwater.db.sqlstates import RESPONSES, UNKNOWN, leads_to_recomputing, response

# Appendix A of PostgreSQL's manual; class 10 came with version 17.
APPENDIX_A = (
    "00 01 02 03 08 09 0A 0B 0F 0L 0P 0Z 10 20 21 22 23 24 25 26 27 28 2B 2D 2F 34 38 39 3B 3D 3F"
    " 40 42 44 53 54 55 57 58 72 F0 HV P0 XX"
).split()


def test_each_class_of_the_manual_has_an_answer_with_a_reason() -> None:
    assert [key for key in RESPONSES if len(key) == 2] == APPENDIX_A
    assert {code[:2] for code in KNOWN} <= set(APPENDIX_A)
    assert all(answer.why for answer in RESPONSES.values())
    # What is listed by itself differs from its class, or it need not be.
    for code in (key for key in RESPONSES if len(key) != 2):
        assert code in KNOWN
        assert RESPONSES[code].recompute != RESPONSES[code[:2]].recompute


OF_ROWS = (
    "21000 22012 22P02 23502 23505 23514 2F005 38001 39004 42803 42P01 53400 54000 54001"
    " P0001 P0004 XX000 XX001"
)
OF_CIRCUMSTANCES = "08006 25P02 25P03 25P04 40001 40P01 42501 53100 53200 53300 55P03 57014 57P01 57P05 58030"


@pytest.mark.parametrize("code", OF_ROWS.split())
def test_what_a_row_can_cause_leads_to_recomputing(code: str) -> None:
    assert leads_to_recomputing(psycopg.errors.lookup(code)())


@pytest.mark.parametrize("code", OF_CIRCUMSTANCES.split())
def test_what_says_nothing_about_the_data_does_not(code: str) -> None:
    assert not leads_to_recomputing(psycopg.errors.lookup(code)())


def test_a_race_is_repeated_and_never_recomputed_for() -> None:
    assert not any(response(code).recompute for code in RETRYABLE)


def test_others() -> None:
    assert response(OF_USERS) is UNKNOWN
    assert UNKNOWN.recompute
    assert not leads_to_recomputing(psycopg.OperationalError("the server closed the connection"))
    assert not leads_to_recomputing(ValueError())
    assert {code[:2] for code in RECOMPUTED + LEFT} == {*APPENDIX_A, OF_USERS[:2]}
