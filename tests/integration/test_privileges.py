"""A role that is no superuser: what it needs, how it is told what is missing, and that it then suffices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from tests.integration.support import capture_triggers, change_rows, contents, refresh, value

import headwater
from headwater import Headwater
from headwater.catalog.installed import SCHEMAS
from headwater.errors import MissingPrivilege

Connection = psycopg.Connection[Any]
NewRole = Callable[[], tuple[str, str]]


@pytest.fixture
def bare(empty_dsn: str) -> Iterator[Connection]:
    """A superuser's connection to a database without the catalog, with two tables."""
    connection = psycopg.connect(empty_dsn, autocommit=True)
    connection.execute("CREATE TABLE items (id int PRIMARY KEY, kind text, price int)")
    connection.execute('CREATE SCHEMA "Odd shop"')
    connection.execute('CREATE TABLE "Odd shop"."Per cent %" (id int)')
    connection.execute("INSERT INTO items VALUES (1, 'a', 10), (2, 'b', 20)")
    yield connection
    connection.close()


@pytest.fixture
def role_in_bare(new_role: NewRole, bare: Connection) -> Iterator[tuple[str, str]]:
    """A role without privileges, and its DSN of that database."""
    name, dsn = new_role()
    database = conninfo_to_dict(bare.info.dsn)["dbname"]
    yield name, make_conninfo(dsn, dbname=database)
    bare.execute(sql.SQL("DROP OWNED BY {} CASCADE").format(sql.Identifier(name)))


def live(hw: Headwater, writer: Connection) -> None:
    """The whole life of stream tables by a role, with writes by somebody else."""
    query = "SELECT kind, count(*) AS n, sum(price) AS total FROM public.items GROUP BY kind"
    assert hw.create("public.sums", query).mode == "differential"
    hw.create("public.over", "SELECT count(*) AS kinds FROM public.sums")
    writer.execute("INSERT INTO items VALUES (3, 'c', 30)")
    writer.execute("UPDATE items SET price = 11 WHERE id = 1")
    assert refresh(hw, "public.over").action == "delta"
    assert hw.verify("public.sums").equal
    assert hw.explain("public.sums") is not None
    writer.execute("TRUNCATE items")
    assert refresh(hw, "public.over").action in ("recompute", "delta")
    hw.alter("public.sums", mode="full")
    hw.alter("public.sums", mode="differential")
    hw.set("lock_attempts", "3")
    assert hw.history()
    hw.drop("public.sums", cascade=True)
    assert hw.list() == []
    assert capture_triggers(writer, "items") == set()
    writer.execute("INSERT INTO items VALUES (4, 'd', 40)")


def grant(superuser: Connection, role: str, *grants: str) -> None:
    for text in grants:
        superuser.execute(f"GRANT {text} TO {role}")


SOURCE_GRANTS = ("SELECT, TRIGGER ON public.items", "USAGE, CREATE ON SCHEMA public")


def test_a_role_with_create_on_the_database_suffices(role_in_bare: tuple[str, str], bare: Connection) -> None:
    role, dsn = role_in_bare
    grant(bare, role, f'CREATE ON DATABASE "{bare.info.dbname}"', *SOURCE_GRANTS)
    with headwater.connect(dsn) as hw:
        assert hw.init()
        live(hw, bare)


@pytest.mark.differential
def test_a_role_that_owns_the_four_schemas_suffices(
    role_in_bare: tuple[str, str], bare: Connection, connect: Callable[[str], Headwater]
) -> None:
    role, dsn = role_in_bare
    for schema in SCHEMAS:
        bare.execute(f"CREATE SCHEMA {schema} AUTHORIZATION {role}")
    grant(bare, role, *SOURCE_GRANTS)
    with connect(dsn) as hw:
        assert hw.init()
        live(hw, bare)


def test_check_names_each_missing_grant_and_these_suffice(
    role_in_bare: tuple[str, str], bare: Connection
) -> None:
    role, dsn = role_in_bare
    bare.execute("REVOKE ALL ON SCHEMA public FROM PUBLIC")
    bare.execute(f'REVOKE TEMP ON DATABASE "{bare.info.dbname}" FROM PUBLIC')
    with headwater.connect(dsn) as hw:
        missing = [check for check in hw.check() if not check.ok]
        assert {check.remedy for check in missing} == {
            f"GRANT CREATE ON DATABASE {bare.info.dbname} TO {role}",
            f"GRANT TEMP ON DATABASE {bare.info.dbname} TO {role}",
            f"GRANT USAGE, CREATE ON SCHEMA public TO {role}",
            f'GRANT USAGE, CREATE ON SCHEMA "Odd shop" TO {role}',
            f"GRANT SELECT, TRIGGER ON public.items TO {role}",
            f'GRANT SELECT, TRIGGER ON "Odd shop"."Per cent %" TO {role}',
        }
        before = own_schemas(bare)
        with pytest.raises(MissingPrivilege):
            hw.init()
        assert own_schemas(bare) == before
        for check in missing:
            bare.execute(check.remedy)
        assert all(check.ok and not check.remedy for check in hw.check())
        assert hw.init()
        assert all(check.ok for check in hw.check())
        live(hw, bare)


def own_schemas(conn: Connection) -> set[tuple[Any, ...]]:
    return set(conn.execute("SELECT nspname, nspowner FROM pg_namespace WHERE nspname LIKE 'headwater%'"))


def test_check_tells_a_role_that_does_not_own_the_schemas(
    hw: Headwater, conn: Connection, new_role: NewRole
) -> None:
    role, dsn = new_role()
    with headwater.connect(dsn) as other:
        remedies = [check.remedy for check in other.check() if not check.ok]
    owner = conn.execute("SELECT quote_ident(current_user)").fetchone()
    assert remedies.count(f"GRANT {owner and owner[0]} TO {role}") == len(SCHEMAS)
    assert all(check.ok for check in hw.check())


def test_capture_needs_no_privilege_of_the_writer(
    role_in_bare: tuple[str, str], bare: Connection, new_role: NewRole
) -> None:
    role, dsn = role_in_bare
    writing_role, writing_dsn = new_role()
    grant(bare, role, f'CREATE ON DATABASE "{bare.info.dbname}"', *SOURCE_GRANTS)
    bare.execute(f"GRANT INSERT, UPDATE, DELETE, SELECT ON items TO {writing_role}")
    try:
        with headwater.connect(dsn) as hw:
            hw.init()
            hw.create("public.st", "SELECT id, kind FROM public.items")
            database = conninfo_to_dict(bare.info.dsn)["dbname"]
            with psycopg.connect(make_conninfo(writing_dsn, dbname=database), autocommit=True) as writer:
                writer.execute("INSERT INTO items VALUES (3, 'c', 30)")
                bare.execute("ALTER TABLE items RENAME COLUMN kind TO sort")
                writer.execute("UPDATE items SET sort = 'z'")
                writer.execute("DELETE FROM items WHERE id = 2")
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    writer.execute("SELECT * FROM headwater_changes.src_1")
            assert change_rows(bare, "items") == 8
            assert refresh(hw, "public.st").action == "delta"
            assert contents(bare, "st") == {"(1,z)": 1, "(3,z)": 1}
            hw.drop("public.st")
    finally:
        bare.execute(f"DROP OWNED BY {writing_role}")


def test_a_reader_needs_select_on_the_stream_table_alone(
    hw: Headwater, conn: Connection, new_role: NewRole
) -> None:
    conn.execute("CREATE TABLE items (id int)")
    conn.execute("INSERT INTO items VALUES (1)")
    hw.create("st", "SELECT id FROM items")
    role, dsn = new_role()
    conn.execute(f"GRANT SELECT ON st TO {role}")
    hw.alter("st", mode="full")
    conn.execute("INSERT INTO items VALUES (2)")
    hw.refresh("st")
    with psycopg.connect(dsn, autocommit=True) as reader:
        assert contents(reader, "st") == {"(1)": 1, "(2)": 1}
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            reader.execute("SELECT * FROM items")
    assert value(conn, "SELECT count(*) FROM st") == 2
