"""Incidents: a stream table, or what its plan computes, differed from its query.

An incident keeps what is needed to find the defect: differing rows, the plan, the versions, change rows.
While it stands, the stream table is recomputed from its query at each refresh. It stands for the definition
and the version of Headwater that it was found with; with another one the plan gets a new chance.
"""

from __future__ import annotations

from typing import Any

from psycopg.types.json import Jsonb

from headwater.capture.buffers import change_table_sql
from headwater.catalog import stream_tables as catalog
from headwater.catalog.incidents import FoundBy
from headwater.db.connection import Connection, one
from headwater.db.queries import query
from headwater.db.scratch import statement
from headwater.definition.reader import Definition
from headwater.plan.render import now_sql
from headwater.plan.storage_plan import BagPlan, IncrementalPlan
from headwater.refresh.compare import Difference
from headwater.version import version

KEPT_ROWS = 20
"""An incident keeps at most this many rows of each kind, and change rows of each source."""


def record(
    connection: Connection,
    stream_table_id: int | None,
    label: str,
    definition: Definition,
    found_by: FoundBy,
    reason: str,
    difference: Difference,
) -> int:
    """Writes an incident down, with the change rows that are still there; its number."""
    assert definition.plan is not None
    changes = _changes(connection, stream_table_id) if stream_table_id is not None else {}
    row = one(
        connection,
        query("incidents", "record"),
        {
            "stream_table_id": stream_table_id,
            "stream_table": label,
            "found_by": found_by,
            "reason": reason,
            "columns": list(difference.columns),
            "missing_count": len(difference.missing),
            "surplus_count": len(difference.surplus),
            "missing": Jsonb(difference.missing[:KEPT_ROWS]),
            "surplus": Jsonb(difference.surplus[:KEPT_ROWS]),
            "changes": Jsonb(changes),
            "query": definition.text,
            "plan": all_rows_sql(definition.plan),
            "fingerprint": definition.fingerprint("differential"),
            "version": version(),
        },
    )
    return int(row[0])


def all_rows_sql(plan: IncrementalPlan) -> str:
    """The SQL by which a plan computes all rows."""
    return now_sql(plan.body) if isinstance(plan, BagPlan) else plan.full_sql()


def standing(connection: Connection, stream_table_id: int, definition: Definition) -> list[str]:
    """Why a stream table is recomputed at each refresh, as far as incidents are the reason."""
    rows = connection.execute(query("incidents", "standing"), _case(stream_table_id, definition))
    return [
        f"{reason} (incident {number}, {found_at:%Y-%m-%d}; headwater audits)"
        for number, found_at, reason in rows
    ]


def release(connection: Connection, stream_table_id: int, definition: Definition) -> None:
    """Ends the consequences of incidents with another definition or version."""
    connection.execute(query("incidents", "release"), _case(stream_table_id, definition))


def record_load(connection: Connection, stream_table_id: int, said: str) -> None:
    """Writes down how rows were compared with their query when they were loaded."""
    connection.execute(query("incidents", "record_load"), {"id": stream_table_id, "said": said})


def _case(stream_table_id: int, definition: Definition) -> dict[str, Any]:
    fingerprint = definition.fingerprint("differential") if definition.plan is not None else None
    return {"id": stream_table_id, "fingerprint": fingerprint, "version": version()}


def _changes(connection: Connection, stream_table_id: int) -> dict[str, list[dict[str, Any]]]:
    found = {}
    for source in catalog.sources_of(connection, stream_table_id):
        if source.change_table is not None:
            rows = connection.execute(
                statement(
                    f"SELECT to_jsonb(c) FROM {change_table_sql(source.change_table)} AS c LIMIT {KEPT_ROWS}"
                )
            )
            found[source.label] = [row[0] for row in rows]
    return found
