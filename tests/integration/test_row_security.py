"""Row-level security: a stream table shows what its definer may read, whoever reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from tests.integration.support import assert_fresh, change_table, contents, value

import headwater
from headwater import Headwater
from headwater.catalog.installed import SCHEMAS
from headwater.errors import RefreshFailed

Connection = psycopg.Connection[Any]
NewRole = Callable[[], tuple[str, str]]


@pytest.fixture
def bare(empty_dsn: str) -> Iterator[Connection]:
    """A superuser's connection to a database without the catalog, with a table of three tenants' rows."""
    with psycopg.connect(empty_dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE notes (id int PRIMARY KEY, tenant text, body text)")
        connection.execute("INSERT INTO notes VALUES (1, 'red', 'a'), (2, 'red', 'b'), (3, 'blue', 'c')")
        yield connection


@pytest.fixture
def definer(new_role: NewRole, bare: Connection) -> Iterator[tuple[str, Headwater]]:
    """A role that Headwater uses there, no superuser, and its handle."""
    role, dsn = new_role()
    for schema in SCHEMAS:
        bare.execute(f"CREATE SCHEMA {schema} AUTHORIZATION {role}")
    bare.execute(f"GRANT USAGE, CREATE ON SCHEMA public TO {role}")
    bare.execute(f"GRANT SELECT, TRIGGER ON notes TO {role}")
    with headwater.connect(make_conninfo(dsn, dbname=bare.info.dbname)) as hw:
        hw.init()
        yield role, hw
    bare.execute(f"DROP OWNED BY {role} CASCADE")


QUERY = "SELECT id, body FROM public.notes"


def refreshed(hw: Headwater, conn: Connection) -> set[int]:
    hw.refresh("public.st")
    return {row[0] for row in conn.execute("SELECT id FROM st")}


def test_a_definer_with_policies(definer: tuple[str, Headwater], bare: Connection, new_role: NewRole) -> None:
    role, hw = definer
    bare.execute("ALTER TABLE notes ENABLE ROW LEVEL SECURITY")
    bare.execute(f"CREATE POLICY red ON notes FOR SELECT TO {role} USING (tenant = 'red')")
    made = hw.create("public.st", QUERY)
    assert made.mode == "full"
    assert "row-level security" in made.mode_reasons[0]
    assert change_table(bare, "notes") is None
    assert {row[0] for row in bare.execute("SELECT id FROM st")} == {1, 2}  # also to a superuser

    reader, dsn = new_role()
    bare.execute(f"GRANT SELECT ON st TO {reader}")
    with psycopg.connect(make_conninfo(dsn, dbname=bare.info.dbname), autocommit=True) as other:
        assert len(other.execute("SELECT * FROM st").fetchall()) == 2
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            other.execute("SELECT * FROM notes")
    bare.execute(f"REVOKE ALL ON st FROM {reader}")

    # The policy is changed between two refreshes, then row-level security ends, then it is back.
    bare.execute("ALTER POLICY red ON notes USING (tenant = 'blue')")
    assert refreshed(hw, bare) == {3}
    bare.execute("ALTER TABLE notes DISABLE ROW LEVEL SECURITY")
    assert refreshed(hw, bare) == {1, 2, 3}
    assert hw.status("public.st").mode == "differential"
    bare.execute("INSERT INTO notes VALUES (4, 'red', 'd')")
    assert hw.refresh("public.st")[-1].action == "delta"
    bare.execute("ALTER TABLE notes ENABLE ROW LEVEL SECURITY")
    bare.execute("INSERT INTO notes VALUES (5, 'blue', 'e')")
    assert refreshed(hw, bare) == {3, 5}
    assert hw.status("public.st").mode == "full"
    assert change_table(bare, "notes") is None  # nobody's change rows show the others
    assert hw.verify("public.st").equal


def test_a_role_that_bypasses_policies(definer: tuple[str, Headwater], bare: Connection) -> None:
    role, hw = definer
    bare.execute(f"ALTER ROLE {role} BYPASSRLS")
    bare.execute("ALTER TABLE notes ENABLE ROW LEVEL SECURITY")
    bare.execute("ALTER TABLE notes FORCE ROW LEVEL SECURITY")
    assert hw.create("public.st", QUERY).mode == "differential"
    bare.execute("INSERT INTO notes VALUES (4, 'red', 'd')")
    assert refreshed(hw, bare) == {1, 2, 3, 4}
    bare.execute(f"ALTER ROLE {role} NOBYPASSRLS")
    assert refreshed(hw, bare) == set()  # no policy lets it read anything
    assert hw.status("public.st").mode == "full"


def test_an_owner_and_forced_policies(definer: tuple[str, Headwater], bare: Connection) -> None:
    role, hw = definer
    bare.execute(f"ALTER TABLE notes OWNER TO {role}")
    bare.execute("ALTER TABLE notes ENABLE ROW LEVEL SECURITY")
    assert hw.create("public.st", QUERY).mode == "differential"
    bare.execute("CREATE POLICY red ON notes USING (tenant = 'red')")
    bare.execute("INSERT INTO notes VALUES (4, 'red', 'd')")
    assert refreshed(hw, bare) == {1, 2, 3, 4}
    bare.execute("ALTER TABLE notes FORCE ROW LEVEL SECURITY")
    assert refreshed(hw, bare) == {1, 2, 4}
    assert hw.status("public.st").mode == "full"


def test_a_view_of_somebody_whom_policies_concern(
    definer: tuple[str, Headwater], bare: Connection, new_role: NewRole
) -> None:
    """What is read through a view is what its owner may read, though Headwater's role may read more."""
    role, hw = definer
    other, _ = new_role()
    bare.execute(f"ALTER TABLE notes OWNER TO {role}")
    bare.execute(f"GRANT SELECT ON notes TO {other}")
    bare.execute(f"CREATE POLICY red ON notes FOR SELECT TO {other} USING (tenant = 'red')")
    bare.execute("CREATE VIEW theirs AS SELECT id, body FROM notes")
    bare.execute(f"ALTER VIEW theirs OWNER TO {other}")
    bare.execute(f"GRANT SELECT ON theirs TO {role}")
    assert hw.create("public.st", "SELECT id, body FROM public.theirs").mode == "differential"
    bare.execute("ALTER TABLE notes ENABLE ROW LEVEL SECURITY")
    bare.execute("INSERT INTO notes VALUES (4, 'blue', 'd'), (5, 'red', 'e')")
    assert refreshed(hw, bare) == {1, 2, 5}
    assert hw.status("public.st").mode == "full"
    bare.execute(f"ALTER ROLE {other} BYPASSRLS")
    assert refreshed(hw, bare) == {1, 2, 3, 4, 5}
    bare.execute("DROP VIEW theirs CASCADE")


def test_policies_on_the_storage_restrict_readers(
    definer: tuple[str, Headwater], bare: Connection, new_role: NewRole
) -> None:
    """With security_invoker the reader's own policies apply, also after the storage was replaced."""
    _, hw = definer
    reader, dsn = new_role()
    number = hw.create("public.st", "SELECT id, tenant FROM public.notes").id
    storage = f"headwater_data.st_{number}"
    for statement in (
        f"ALTER TABLE {storage} ENABLE ROW LEVEL SECURITY",
        f"CREATE POLICY red ON {storage} FOR SELECT TO {reader} USING (tenant = 'red')",
        f"GRANT SELECT ON {storage}, st TO {reader}",
        f"GRANT USAGE ON SCHEMA headwater_data TO {reader}",
        "ALTER VIEW st SET (security_invoker = true)",
    ):
        bare.execute(statement)
    with psycopg.connect(make_conninfo(dsn, dbname=bare.info.dbname), autocommit=True) as other:
        assert contents(other, "st") == {"(1,red)": 1, "(2,red)": 1}
        hw.alter(
            "public.st", query="SELECT id + 10 AS id, tenant, count(*) AS n FROM public.notes GROUP BY 1, 2"
        )
        assert contents(other, "st") == {"(11,red,1)": 1, "(12,red,1)": 1}
    bare.execute("INSERT INTO notes VALUES (4, 'blue', 'd')")
    assert hw.refresh("public.st")[-1].action == "delta"
    assert_fresh(hw, "public.st")

    bare.execute(f"ALTER TABLE {storage} FORCE ROW LEVEL SECURITY")
    bare.execute("INSERT INTO notes VALUES (5, 'blue', 'd')")
    with pytest.raises(RefreshFailed, match="row-level security of its storage") as caught:
        hw.refresh("public.st")
    bare.execute(caught.value.hint)
    hw.refresh("public.st")
    assert_fresh(hw, "public.st")
    assert value(bare, "SELECT count(*) FROM st") == 5
    bare.execute(f"DROP OWNED BY {reader}")
