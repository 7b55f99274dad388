"""The server itself stops in the middle of a verb, as if the power failed, and starts again.

For everyone else it is as if the client had died, but for what the server keeps in memory or unlogged.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from tests.conftest import TEST_SETTINGS, memory_directory
from tests.crash.conftest import Databases
from tests.crash.fate import Doom, Moment, Running
from tests.crash.test_killed import EVERY, assert_recovered, undisturbed
from tests.crash.verbs import VERBS

from headwater.embedded import Installation, Server

SEVERAL = 8
"""A restart takes longer than a death: so many times fewer are tried."""
SOME = ("create", "refresh of a graph", "refresh with a new meaning", "drop --cascade")


@pytest.fixture(scope="module")
def own_server(installation: Installation) -> Iterator[Server]:
    with Server.start(
        installation=installation, fsync=False, settings=TEST_SETTINGS, scratch_parent=memory_directory()
    ) as running:
        yield running


@pytest.fixture(scope="module")
def own_databases(own_server: Server) -> Iterator[Databases]:
    with closing(Databases(own_server.dsn())) as made:
        yield made


@pytest.mark.parametrize("verb", VERBS if EVERY else SOME)
@pytest.mark.timeout(0)
def test_the_server_stops_at_once(own_server: Server, own_databases: Databases, verb: str) -> None:
    expected = undisturbed(own_databases, verb)
    statements = len(expected.statements)
    last_commit = statements - expected.statements[::-1].index("COMMIT")
    places: list[tuple[int, Moment]] = [(statements * 3 // 4, "before"), (last_commit, "sent")]
    if EVERY:
        places = [(place, "sent") for place in range(1, statements + 1, SEVERAL * EVERY)]
    for place, moment in places:
        print(f"{verb}: the server stops at {place} of {statements} statements")
        with own_databases.ready_for(verb) as dsn:
            with closing(Running(dsn, verb, Doom(number=place, moment=moment, fate="paused"))) as running:
                running.wait_until_paused()
                own_server.kill()
                running.kill()
            own_server.restart()
            own_databases.reconnect()
            with psycopg.connect(dsn, autocommit=True) as conn:
                # What is left of temporary tables autovacuum removes, or the next session in the same place.
                assert_recovered(conn, dsn, verb, expected, temporary=False)


def test_change_rows_survive(own_server: Server, own_databases: Databases) -> None:
    """Capture is logged: what was committed before the stop is counted after it."""
    with own_databases.ready_for("refresh by a delta") as dsn:
        expected = undisturbed(own_databases, "refresh by a delta")
        own_server.kill()
        own_server.restart()
        own_databases.reconnect()
        with psycopg.connect(dsn, autocommit=True) as conn:
            assert_recovered(conn, dsn, "refresh by a delta", expected, temporary=False)
    assert Path(own_server.log_path).read_text().count("automatic recovery in progress") >= 1
