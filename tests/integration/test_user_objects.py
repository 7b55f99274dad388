"""What users put on a stream table survives whatever gives it other storage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from tests.integration.support import (
    assert_fresh,
    contents,
    in_background,
    refresh,
    value,
    wait_until_blocked,
)

import headwater
from headwater import Headwater
from headwater.errors import DependentsExist

Connection = psycopg.Connection[Any]
NewRole = Callable[[], tuple[str, str]]

QUERY = "SELECT kind, count(*) AS n, max(price) AS most FROM dear GROUP BY kind"


@pytest.fixture(autouse=True)
def tables(conn: Connection) -> None:
    conn.execute("CREATE TABLE items (id int PRIMARY KEY, kind text, price int)")
    conn.execute("INSERT INTO items VALUES (1, 'a', 10), (2, 'a', 20), (3, 'b', 5)")
    conn.execute("CREATE VIEW dear AS SELECT * FROM items WHERE price > 1")


def storage(conn: Connection) -> int:
    return int(value(conn, "SELECT 'headwater_data.st_1'::regclass::oid"))


def of_storage(conn: Connection) -> dict[str, object]:
    """All that users put on the storage, as the server describes it."""
    asked = {
        "indexes": "SELECT array_agg(pg_get_indexdef(indexrelid) || ' -- '"
        " || coalesce(obj_description(indexrelid, 'pg_class'), '') ORDER BY indexrelid::regclass::text)"
        " FROM pg_index WHERE indrelid = 'headwater_data.st_1'::regclass"
        " AND pg_get_indexdef(indexrelid) !~ '__hw_'",
        "security": "SELECT (relrowsecurity, relforcerowsecurity)::text FROM pg_class"
        " WHERE oid = 'headwater_data.st_1'::regclass",
        "policies": "SELECT array_agg((policyname, permissive, roles, cmd, qual, with_check)::text"
        " ORDER BY policyname) FROM pg_policies WHERE tablename = 'st_1'",
        "options": "SELECT array_agg(o ORDER BY o) FROM pg_class, unnest(reloptions) o"
        " WHERE oid = 'headwater_data.st_1'::regclass",
        "grants": "SELECT relacl::text FROM pg_class WHERE oid = 'headwater_data.st_1'::regclass",
        "comment": "SELECT obj_description('headwater_data.st_1'::regclass, 'pg_class')",
        "column comments": "SELECT array_agg(col_description(attrelid, attnum) ORDER BY attname)"
        " FROM pg_attribute WHERE attrelid = 'headwater_data.st_1'::regclass AND attname = 'kind'",
    }
    return {what: value(conn, query) for what, query in asked.items()}


def of_view(conn: Connection) -> dict[str, object]:
    """All that users put on the view."""
    asked = {
        "class": "SELECT array_agg(a::text ORDER BY a::text) FROM pg_class, unnest(relacl) a"
        " WHERE oid = 'st'::regclass",
        "options": "SELECT reloptions FROM pg_class WHERE oid = 'st'::regclass",
        "owner": "SELECT relowner::regrole::text FROM pg_class WHERE oid = 'st'::regclass",
        "columns": "SELECT array_agg((attname, array(SELECT a::text FROM unnest(attacl) a ORDER BY 1),"
        " col_description(attrelid, attnum))::text ORDER BY attname)"
        " FROM pg_attribute WHERE attrelid = 'st'::regclass AND attname IN ('kind', 'n')",
        "defaults": "SELECT array_agg(column_default::text ORDER BY column_name)"
        " FROM information_schema.columns WHERE table_name = 'st' AND column_name IN ('kind', 'n')",
        "comment": "SELECT obj_description('st'::regclass, 'pg_class')",
        "triggers": "SELECT array_agg(pg_get_triggerdef(oid) ORDER BY tgname) FROM pg_trigger"
        " WHERE tgrelid = 'st'::regclass",
    }
    return {what: value(conn, query) for what, query in asked.items()}


def furnish(conn: Connection, role: str) -> None:
    """Puts all kinds of things on the stream table."""
    for statement in (
        "CREATE INDEX by_kind ON headwater_data.st_1 (kind) WHERE n > 0",
        'CREATE INDEX "Odd ""%s"" {} ON headwater_data.st_1 USING " ON headwater_data.st_1'
        " (lower(kind), n DESC)",
        "CREATE INDEX hashed ON headwater_data.st_1 USING hash (kind)",
        "CREATE INDEX covering ON headwater_data.st_1 (n) INCLUDE (kind) WITH (fillfactor = 70)",
        "COMMENT ON INDEX headwater_data.by_kind IS 'for the \"board\"; it''s %s'",
        "COMMENT ON TABLE headwater_data.st_1 IS 'the rows'",
        "COMMENT ON COLUMN headwater_data.st_1.kind IS 'a column'",
        "ALTER TABLE headwater_data.st_1 SET (autovacuum_vacuum_scale_factor = 0.05)",
        "ALTER TABLE headwater_data.st_1 ENABLE ROW LEVEL SECURITY",
        f"CREATE POLICY few ON headwater_data.st_1 FOR SELECT TO {role} USING (n < 100 AND kind <> 'it''s')",
        "CREATE POLICY not_all ON headwater_data.st_1 AS RESTRICTIVE"
        " USING (kind IS NOT NULL) WITH CHECK (n > 0)",
        f"GRANT SELECT ON headwater_data.st_1 TO {role} WITH GRANT OPTION",
        f"GRANT SELECT ON st TO {role} WITH GRANT OPTION",
        f"GRANT UPDATE (kind), SELECT (n) ON st TO {role}",
        "GRANT SELECT (kind) ON st TO PUBLIC",
        "COMMENT ON VIEW st IS 'what is there; 100%'",
        "COMMENT ON COLUMN st.kind IS 'the \"kind\"'",
        "ALTER VIEW st SET (security_barrier = true, security_invoker = false)",
        "ALTER VIEW st ALTER COLUMN n SET DEFAULT 7",
        "CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
        "CREATE TRIGGER quiet AFTER INSERT ON st FOR EACH STATEMENT EXECUTE FUNCTION nothing()",
    ):
        conn.execute(statement)


REBUILDS: dict[str, Callable[[Headwater, Connection], object]] = {
    "mode": lambda hw, conn: hw.alter("st", mode="full"),
    "meaning": lambda hw, conn: (
        conn.execute("CREATE OR REPLACE VIEW dear AS SELECT * FROM items WHERE price > 7"),
        hw.refresh("st"),
    ),
    "query": lambda hw, conn: hw.alter("st", query=f"{QUERY.replace('dear', 'items')} HAVING count(*) > 1"),
    "columns": lambda hw, conn: hw.alter("st", query=f"SELECT q.*, 1 AS more FROM ({QUERY}) q"),
    "type": lambda hw, conn: hw.alter(
        "st", query="SELECT kind, count(*) AS n, avg(price) AS most FROM items GROUP BY kind"
    ),
    "order": lambda hw, conn: hw.alter("st", query="SELECT count(*) AS n, kind FROM items GROUP BY kind"),
    "full refresh": lambda hw, conn: hw.refresh("st", full=True),
}


@pytest.mark.parametrize("rebuild", REBUILDS.values(), ids=REBUILDS)
def test_everything_survives(
    hw: Headwater,
    conn: Connection,
    new_role: NewRole,
    rebuild: Callable[[Headwater, Connection], object],
) -> None:
    role, _ = new_role()
    hw.create("st", QUERY)
    furnish(conn, role)
    conn.execute(f"ALTER DEFAULT PRIVILEGES GRANT SELECT, DELETE ON TABLES TO {role}")  # not for these
    before, stored, shown = storage(conn), of_storage(conn), of_view(conn)
    assert all(stored.values())
    assert all(shown.values())
    rebuild(hw, conn)
    assert (storage(conn) == before) == (rebuild is REBUILDS["full refresh"])
    assert of_storage(conn) == stored
    assert of_view(conn) == shown
    assert "is gone" not in hw.history("st")[0].reason
    assert_fresh(hw, "st")
    conn.execute("INSERT INTO items VALUES (4, 'c', 30)")
    refresh(hw, "st")
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
        conn.execute("DELETE FROM st")


def test_what_cannot_survive_is_said(hw: Headwater, conn: Connection) -> None:
    hw.create("st", QUERY)
    conn.execute('CREATE INDEX "by most" ON headwater_data.st_1 (most)')
    conn.execute("CREATE INDEX by_kind ON headwater_data.st_1 (kind)")
    conn.execute("CREATE UNIQUE INDEX one_each ON headwater_data.st_1 (kind)")
    conn.execute("ALTER TABLE headwater_data.st_1 ADD CONSTRAINT positive CHECK (n > 0)")
    conn.execute("COMMENT ON COLUMN st.most IS 'the dearest'")
    hw.alter("st", query="SELECT kind, 1::bigint AS n FROM items")
    reason = hw.history("st")[0].reason
    assert 'index "by most" is gone: column "most" does not exist' in reason
    assert 'index "one_each" is gone: could not create unique index' in reason
    assert "constraint positive is gone" in reason
    indexes = (
        "SELECT array_agg(relname::text) FROM pg_class WHERE relname IN ('by most', 'by_kind', 'one_each')"
    )
    assert value(conn, indexes) == ["by_kind"]
    assert_fresh(hw, "st")


def test_a_policy_is_never_lost_silently(hw: Headwater, conn: Connection) -> None:
    hw.create("st", QUERY)
    conn.execute("ALTER TABLE headwater_data.st_1 ENABLE ROW LEVEL SECURITY")
    conn.execute("CREATE POLICY few ON headwater_data.st_1 AS RESTRICTIVE USING (most < 100)")
    with pytest.raises(DependentsExist, match='policy "few"'):
        hw.alter("st", query="SELECT kind FROM items")
    assert contents(conn, "st") == {"(a,2,20)": 1, "(b,1,5)": 1}
    assert refresh(hw, "st").action == "nothing"


def test_an_index_that_is_made_meanwhile_is_on_the_new_storage(
    hw: Headwater, dsn: str, conn: Connection
) -> None:
    hw.create("st", QUERY)
    with (
        headwater.connect(dsn, lock_timeout_ms="60000") as replacing,
        psycopg.connect(dsn) as reader,
        psycopg.connect(dsn, autocommit=True) as other,
    ):
        reader.execute("SELECT * FROM st")  # holds the replacement up at its very end
        with in_background(lambda: replacing.alter("st", query="SELECT kind, id FROM items")) as replacement:
            wait_until_blocked(conn, replacing.connection.info.backend_pid, replacement)
            create = "CREATE INDEX by_kind ON headwater_data.st_1 (kind)"
            with in_background(lambda: other.execute(create)) as creation:
                wait_until_blocked(conn, other.info.backend_pid, creation)
                reader.commit()
        replacement.result()
        creation.result()
    assert value(
        conn, "SELECT indrelid FROM pg_index WHERE indexrelid = 'headwater_data.by_kind'::regclass"
    ) == (storage(conn))
    assert_fresh(hw, "st")


def test_readers_with_grants_read_on(hw: Headwater, conn: Connection, new_role: NewRole) -> None:
    role, dsn = new_role()
    hw.create("st", QUERY)
    conn.execute(f"GRANT SELECT (kind) ON st TO {role}")
    for query in ("SELECT kind, price FROM items", "SELECT price, kind FROM items", QUERY):
        hw.alter("st", query=query)
        with psycopg.connect(dsn) as reader:
            assert reader.execute("SELECT kind FROM st").fetchall()
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                reader.execute("SELECT * FROM st")
