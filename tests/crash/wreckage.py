"""What a database holds after a disaster: whether all of it belongs to something, and what users see."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import psycopg
from psycopg import sql
from tests.integration.support import assert_fresh, contents

from headwater import Headwater
from headwater.errors import HeadwaterError

Connection = psycopg.Connection[Any]

# Each finds things of one kind that belong to nothing in the catalog.
ORPHANS = {
    "compiled refresh": """
        SELECT proname FROM pg_proc WHERE pronamespace = 'headwater_defs'::regnamespace
        AND NOT EXISTS (SELECT FROM headwater.stream_table st WHERE proname = 'refresh_' || st.id)""",
    "definition": """
        SELECT relname FROM pg_class c WHERE relnamespace = 'headwater_defs'::regnamespace
        AND NOT EXISTS (SELECT FROM headwater.stream_table st WHERE c.oid = headwater.definition(st.id))
        AND NOT EXISTS (SELECT FROM headwater.source s WHERE s.change_table IS NOT NULL
                        AND c.relname = 'captured_' || s.relation)""",
    "storage": r"""
        SELECT relname FROM pg_class WHERE relnamespace = 'headwater_data'::regnamespace AND relkind = 'r'
        AND NOT EXISTS (SELECT FROM headwater.stream_table st
                        WHERE st.status = 'active'
                          AND relname ~ ('^st_' || st.id || '(_kept_\w+|_until_\d+)?$'))""",
    "change table": """
        SELECT relname FROM pg_class WHERE relnamespace = 'headwater_changes'::regnamespace AND relkind = 'r'
        AND relname NOT IN (SELECT change_table FROM headwater.source WHERE change_table IS NOT NULL)""",
    "capture function": """
        SELECT proname FROM pg_proc WHERE pronamespace = 'headwater_changes'::regnamespace
        AND NOT EXISTS (SELECT FROM headwater.source s
                        WHERE proname = 'capture_' || s.relation AND s.change_table IS NOT NULL)""",
    "trigger": """
        SELECT tgrelid::regclass::text || '.' || tgname FROM pg_trigger t
        WHERE tgname ~ '^headwater_capture' AND NOT EXISTS (
            SELECT FROM pg_proc p
            WHERE p.oid = t.tgfoid AND p.pronamespace = 'headwater_changes'::regnamespace)""",
    "view": """
        SELECT c.oid::regclass::text FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
        WHERE tgname = 'headwater_refuse_write' AND c.oid NOT IN (
            SELECT relation FROM headwater.stream_table WHERE relation IS NOT NULL)""",
    "source": """
        SELECT table_name FROM headwater.source s
        WHERE NOT EXISTS (SELECT FROM headwater.dependency d WHERE d.source_id = s.id)""",
    "source that is captured for nobody": """
        SELECT table_name FROM headwater.source s WHERE change_table IS NOT NULL AND NOT EXISTS (
            SELECT FROM headwater.dependency d JOIN headwater.stream_table st ON st.id = d.stream_table_id
            WHERE d.source_id = s.id AND st.mode = 'differential')""",
    "half a stream table": "SELECT table_name FROM headwater.stream_table WHERE status <> 'active'",
    "stream table without storage": """
        SELECT table_name FROM headwater.stream_table st WHERE to_regclass('headwater_data.st_' || id) IS NULL
        OR headwater.definition(id) IS NULL
        OR NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = st.relation)""",
    "job": "SELECT id::text FROM headwater.job",
    "part of a job": "SELECT part FROM headwater.job_part",
    "advisory lock": """
        SELECT format('%s %s', classid, objid) FROM pg_locks WHERE locktype = 'advisory'
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())""",
    "temporary table": """
        SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname ~ '^pg_temp_' AND c.relkind = 'r'""",
    "prepared transaction": "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()",
}  # fmt: skip

# What there is, by names that do not depend on numbers that differ from run to run. Retired storage goes when
# nobody can need it any more, which may be later in one run than in another. Refreshes are compiled after the
# transaction of a command, by the next refresh if the command was killed.
OBJECTS = {
    "relation": """
        SELECT concat_ws(' ', n.nspname, c.relname, c.relkind) FROM pg_class c
        JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
        AND NOT (n.nspname = 'headwater_data'
                 AND (c.relkind = 'i' OR c.relname ~ '_until_[0-9]+$'))""",
    "function": """
        SELECT p.oid::regprocedure::text FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
        WHERE n.nspname !~ '^pg_' AND n.nspname NOT IN ('information_schema', 'headwater_defs')""",
    "trigger": "SELECT concat_ws(' ', tgrelid::regclass, tgname, tgenabled) FROM pg_trigger"
    " WHERE NOT tgisinternal",
}
ROWS = {
    "stream table": "SELECT concat_ws(' ', table_name, requested_mode, mode, status, rebuild_reason)"
    " FROM headwater.stream_table",
    "captured": "SELECT concat_ws(' ', s.table_name, c.attnum, s.change_table IS NOT NULL)"
    " FROM headwater.source s LEFT JOIN headwater.source_column c ON c.source_id = s.id",
    "dependency": "SELECT concat_ws(' ', st.table_name, s.table_name, d.columns) FROM headwater.dependency d"
    " JOIN headwater.stream_table st ON st.id = d.stream_table_id"
    " JOIN headwater.source s ON s.id = d.source_id",
    "lineage": "SELECT concat_ws(' ', st.table_name, s.table_name, l.attnum, l.output_column)"
    " FROM headwater.lineage l JOIN headwater.stream_table st ON st.id = l.stream_table_id"
    " JOIN headwater.source s ON s.id = l.source_id",
    "frontier": "SELECT st.table_name FROM headwater.frontier f"
    " JOIN headwater.stream_table st ON st.id = f.stream_table_id",
    "migration": "SELECT concat_ws(' ', version, name) FROM headwater.migration",
}


def orphans(conn: Connection, *, temporary: bool = True) -> list[str]:
    """Everything of Headwater that belongs to nothing."""
    return [
        f"{kind} {name}"
        for kind, query in ORPHANS.items()
        if temporary or kind != "temporary table"
        for (name,) in conn.execute(query).fetchall()
    ]


def inventory(conn: Connection) -> Counter[str]:
    """Everything there is in a database but its contents, by names that two runs have in common."""
    found = Counter(f"{kind} {name}" for kind, query in OBJECTS.items() for (name,) in conn.execute(query))
    if not installed(conn):
        return found
    found.update(f"{kind} {name}" for kind, query in ROWS.items() for (name,) in conn.execute(query))
    names = dict(conn.execute("SELECT id::text, table_name FROM headwater.stream_table").fetchall())
    names |= dict(conn.execute("SELECT relation::text, table_name FROM headwater.source").fetchall())

    def known(match: re.Match[str]) -> str:
        return f"{match[1]}{names.get(match[2], match[2])}"

    renamed: Counter[str] = Counter()
    for item, count in found.items():
        renamed[re.sub(r"(\b(?:def|st|src|captured?)_)(\d+)", known, item)] += count
    return renamed


def installed(conn: Connection) -> bool:
    row = conn.execute("SELECT to_regclass('headwater.stream_table') IS NOT NULL").fetchone()
    return row == (True,)


def shown(conn: Connection) -> dict[str, Counter[str]]:
    """What users see of each stream table."""
    if not installed(conn):
        return {}
    rows = conn.execute("SELECT schema_name, table_name FROM headwater.stream_tables WHERE status = 'active'")
    return {
        name: contents(conn, sql.Identifier(schema, name).as_string(conn)) for schema, name in rows.fetchall()
    }


def settle(hw: Headwater) -> dict[str, str]:
    """Brings every stream table up to date; what was done for each. What others read comes with them."""
    unread = hw.connection.execute(
        "SELECT stream_table FROM headwater.stream_tables st WHERE NOT EXISTS ("
        "SELECT FROM headwater.source s JOIN headwater.dependency d ON d.source_id = s.id"
        " WHERE s.stream_table_id = st.id)"
    ).fetchall()
    return {done.stream_table: done.action for (name,) in unread for done in hw.refresh(name)}


def assert_right(hw: Headwater, *, verify: bool = True) -> None:
    """I1: every stream table equals its query, as we see it and as `verify` does."""
    for item in hw.list():
        assert_fresh(hw, item.stream_table)
        if verify:
            found = hw.verify(item.stream_table)
            assert found.equal, (item.stream_table, found.missing, found.surplus)


def wait_until_gone(conn: Connection) -> None:
    """Until the server has noticed that the clients are gone; it does so as soon as their statements end."""
    for _ in range(3000):
        row = conn.execute(
            "SELECT count(*), pg_sleep(CASE WHEN count(*) > 0 THEN 0.02 ELSE 0 END) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name ~ '^headwater'"
        ).fetchone()
        if row is not None and row[0] == 0:
            return
    raise HeadwaterError("the backends of a dead client do not end")
