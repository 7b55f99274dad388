"""A process that is killed, or loses its connection, at any statement: the next one goes on without help.

Each run of the suite tries some statements of each verb, the same ones each time; `make crash`, which sets
HEADWATER_EVERY=1, tries them all.
"""

from __future__ import annotations

import os
import signal
import traceback
from collections import Counter
from dataclasses import dataclass

import psycopg
import pytest
from tests.crash.conftest import Databases
from tests.crash.fate import Doom, Ending, Fate, Moment, run
from tests.crash.verbs import ONE_MORE, VERBS
from tests.crash.wreckage import assert_right, inventory, orphans, settle, shown, wait_until_gone

import headwater

EVERY = int(os.environ.get("HEADWATER_EVERY") or 0)
"""Each so-manieth statement meets each kind of disaster; 0 for two disasters of each verb."""
KINDS: list[tuple[Fate, Moment]] = [("killed", "before"), ("killed", "sent"), ("cut", "before")]
ORDERLY_ERRORS = {None, "ConnectionFailed"}


@dataclass(frozen=True)
class Undisturbed:
    """A run of a verb from its beginning to its end."""

    statements: tuple[str, ...]
    before: dict[str, Counter[str]]
    after: dict[str, Counter[str]]
    inventory: Counter[str]


def undisturbed(databases: Databases, verb: str) -> Undisturbed:
    with databases.ready_for(verb) as dsn, psycopg.connect(dsn, autocommit=True) as conn:
        before = shown(conn)
        ending = run(dsn, verb)
        assert (ending.code, ending.error) == (0, None)
        wait_until_gone(conn)
        assert orphans(conn) == []
        after = shown(conn)
        with headwater.connect(dsn) as hw:
            settle(hw)
        return Undisturbed(ending.statements, before, after, inventory(conn))


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.timeout(0)
def test_any_statement_can_be_the_last(databases: Databases, verb: str) -> None:
    expected = undisturbed(databases, verb)
    dooms = chosen(list(VERBS).index(verb), len(expected.statements))
    print(f"{verb}: {len(expected.statements)} statements, {len(dooms)} disasters")
    problems = []
    for doom in dooms:
        try:
            meets(databases, verb, doom, expected)
        except Exception as error:
            problems.append(f"{doom}: {expected.statements[doom.number - 1][:200]}\n{error!r}")
            print(problems[-1])
            traceback.print_exc()
    assert problems == []


def chosen(verb: int, statements: int) -> list[Doom]:
    """Which disasters are tried: all, each so-manieth, or two of different kinds."""
    found = []
    for number, (fate, moment) in enumerate(KINDS):
        if EVERY:
            places = range(1 + number % EVERY, statements + 1, EVERY)
        elif number != verb % len(KINDS):
            # Not among the first, which only read.
            places = range(statements - (2 * number + 1) * statements // 8, statements + 1, statements)
        else:
            places = range(0)
        found += [Doom(number=place, moment=moment, fate=fate) for place in places]
    return found


def meets(databases: Databases, verb: str, doom: Doom, expected: Undisturbed) -> None:
    with databases.ready_for(verb) as dsn, psycopg.connect(dsn, autocommit=True) as conn:
        ending = run(dsn, verb, doom)
        assert_met(doom, ending)
        wait_until_gone(conn)
        assert_recovered(conn, dsn, verb, expected)


def assert_met(doom: Doom, ending: Ending) -> None:
    if doom.fate == "killed":
        assert ending.code == -signal.SIGKILL
    else:
        assert ending.code == 0
        assert ending.error in ORDERLY_ERRORS


def assert_recovered(
    conn: psycopg.Connection, dsn: str, verb: str, expected: Undisturbed, *, temporary: bool = True
) -> None:
    """Users see the state before or the one after; then all goes on, and nothing is left lying about."""
    seen = shown(conn)
    assert seen in (expected.before, expected.after), "neither the old state nor the new one"
    if VERBS[verb].installed:
        with headwater.connect(dsn) as hw:
            names = [item.stream_table for item in hw.list() if item.status == "active"]
            if "public.daily" in names:
                hw.refresh("daily")  # which need not have to do with what was interrupted
        wait_until_gone(conn)
        assert orphans(conn, temporary=temporary) == []
    with headwater.connect(dsn) as hw:
        VERBS[verb].again(hw)
        settle(hw)
        assert_right(hw, verify=False)
        assert inventory(conn) == expected.inventory
        conn.execute(ONE_MORE)
        acted = settle(hw)
        deltas = {item.stream_table for item in hw.list() if item.mode == "differential"}
        assert all(action != "recompute" for name, action in acted.items() if name in deltas)
        assert_right(hw)
    wait_until_gone(conn)
    assert orphans(conn, temporary=temporary) == []
