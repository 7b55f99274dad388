"""How a database grows while stream tables are refreshed: change tables, and what temporary ones leave."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

Connection = psycopg.Connection[Any]

CATALOGS = ("pg_class", "pg_attribute", "pg_statistic", "pg_depend", "pg_type", "pg_index")
SLACK = 1 << 20
"""Bytes by which a file may grow: room that vacuum keeps, and temporary tables of other sessions."""


@dataclass(frozen=True)
class Growth:
    """Sizes at one moment, in bytes, and dead rows that no vacuum has been at yet."""

    refreshes: int
    change_tables: int
    change_rows: int
    storage: int
    catalogs: dict[str, int]
    dead: dict[str, int]
    own: int  # the tables of the schema headwater

    def line(self) -> str:
        sizes = " ".join(
            f"{name[3:]} {size >> 10}k/{self.dead[name]}" for name, size in self.catalogs.items()
        )
        return (
            f"{self.refreshes} refreshes;"
            f" change tables {self.change_tables >> 10}k with {self.change_rows} rows;"
            f" storage {self.storage >> 10}k; headwater {self.own >> 10}k; size/dead rows: {sizes}"
        )

    def problems(self, later: Growth) -> list[str]:
        """What has grown from one moment to a later one, both after a vacuum, by more than chance."""
        pairs = [
            ("change tables", self.change_tables, later.change_tables),
            ("storage", self.storage, later.storage),
            *((name, size, later.catalogs[name]) for name, size in self.catalogs.items()),
        ]
        return [
            f"{name} grew from {before} to {after} bytes"
            for name, before, after in pairs
            if after > 1.25 * before + SLACK
        ]


def measure(conn: Connection) -> Growth:
    sizes = dict(
        conn.execute("""
        SELECT n.nspname, sum(pg_table_size(c.oid))::bigint FROM pg_class c
        JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE c.relkind = 'r' AND n.nspname ~ '^headwater' GROUP BY 1""").fetchall()
    )
    catalogs = conn.execute(
        "SELECT relname::text, pg_table_size(relid), n_dead_tup FROM pg_stat_sys_tables"
        " WHERE schemaname = 'pg_catalog' AND relname = ANY (%s)",
        (list(CATALOGS),),
    ).fetchall()
    rows = 0
    for (table,) in conn.execute(
        "SELECT change_table FROM headwater.source WHERE change_table IS NOT NULL"
    ).fetchall():
        rows += conn.execute(f'SELECT count(*) FROM headwater_changes."{table}"').fetchone()[0]  # type: ignore[index]
    refreshes = conn.execute("SELECT coalesce(max(id), 0) FROM headwater.refresh").fetchone()
    assert refreshes is not None
    return Growth(
        refreshes=refreshes[0],
        change_tables=sizes.get("headwater_changes", 0),
        change_rows=rows,
        storage=sizes.get("headwater_data", 0),
        own=sizes.get("headwater", 0),
        catalogs={name: size for name, size, _ in sorted(catalogs)},
        dead={name: dead for name, _, dead in catalogs},
    )


def vacuum(conn: Connection) -> None:
    """Everything, and what it does is seen at once."""
    conn.execute("VACUUM (ANALYZE)")
    conn.execute("SELECT pg_stat_clear_snapshot()")


def held_back(conn: Connection) -> list[str]:
    """Idle sessions of Headwater that keep vacuum from its work."""
    rows = conn.execute(
        "SELECT pid || ' ' || application_name || ' ' || state FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name ~ '^headwater' AND state <> 'active'"
        " AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)"
    )
    return [text for (text,) in rows]
