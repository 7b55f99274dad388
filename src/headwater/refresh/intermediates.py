"""Which inner results of a stream table are kept, and bringing them about.

Whether a part is kept is decided whenever the stream table is loaded or recomputed, by the server's own
estimate of what a delta would read without it: the rows of one group, or all rows where no part has a key.
What is kept is what has storage; nothing else says so.
"""

from __future__ import annotations

from dataclasses import replace

import psycopg

from headwater.apply import storage
from headwater.config import Settings
from headwater.db.connection import Connection, one
from headwater.db.scratch import statement
from headwater.db.sqlstates import leads_to_recomputing
from headwater.definition.reader import Definition
from headwater.plan.key_filter import HAS_NULL, KeyFilter
from headwater.plan.materialize import Candidate, Layers, layers, source_of
from headwater.plan.operators import Query, Source
from headwater.plan.storage_plan import GroupPlan, IncrementalPlan

DEAR = 20.0
"""From this cost on, in the planner's units, reading a group is dearer than keeping its state."""


def stored_layers(connection: Connection, stream_table_id: int, definition: Definition) -> Layers:
    """The plan of a stream table over what is kept of it."""
    found = _found(connection, stream_table_id, definition)
    return definition.layers({part.name: source for part, source in found})


def stored_parts(connection: Connection, stream_table_id: int, definition: Definition) -> dict[Query, str]:
    """The parts of a stream table's query that are kept, with the tables that hold them."""
    return {part.node: source.label for part, source in _found(connection, stream_table_id, definition)}


def _found(
    connection: Connection, stream_table_id: int, definition: Definition
) -> list[tuple[Candidate, Source]]:
    stored = storage.kept(connection, stream_table_id) if definition.candidates else {}
    return [
        (part, _source(part, stream_table_id, stored[part.name]))
        for part in definition.candidates
        if part.name in stored
    ]


def store_intermediates(
    connection: Connection, settings: Settings, stream_table_id: int, definition: Definition
) -> Layers:
    """Decides what to keep and loads it, in place of what was kept before.

    A part that cannot be loaded is not kept: the query around it need not evaluate it for all rows.
    """
    storage.drop_kept(connection, stream_table_id)
    sources: dict[str, Source] = {}
    for part in definition.candidates if settings.keep_inner != "never" else ():
        if part.name in sources:
            continue
        plan = layers(part.plan, definition.candidates, sources).top
        if settings.keep_inner == "always" or _is_worth_keeping(connection, plan, part.whole):
            try:
                with connection.transaction():
                    oid = storage.load_kept(connection, stream_table_id, part.name, plan)
            except psycopg.Error as error:
                if not leads_to_recomputing(error):
                    raise
            else:
                sources[part.name] = _source(part, stream_table_id, oid)
    return definition.layers(sources)


def _source(part: Candidate, stream_table_id: int, oid: int) -> Source:
    return source_of(part, oid, storage.DATA, storage.kept_name(stream_table_id, part.name))


def _is_worth_keeping(connection: Connection, plan: IncrementalPlan, whole: bool) -> bool:
    """Whether a delta without the kept part would read much more than one with it."""
    if isinstance(plan, GroupPlan) and plan.keys and not whole:
        nulls = ", ".join(f"NULL::{key.type.sql} AS {key.sql}" for key in plan.keys)
        # OFFSET hides from the planner that the key is NULL.
        one_key = f"(SELECT {nulls}, false AS {HAS_NULL} OFFSET 0)"
        known = tuple(replace(key, nullable=False) for key in plan.keys)
        cost, _ = _estimate(connection, plan.restricted_sql(KeyFilter(one_key, known)))
        return cost > DEAR
    cost, rows = _estimate(connection, plan.full_sql())
    return cost > DEAR and cost > 4 * _reading_cost(rows)


def _reading_cost(rows: float) -> float:
    return 0.02 * rows


def _estimate(connection: Connection, text: str) -> tuple[float, float]:
    """What the planner thinks that a query costs, and how many rows it gives."""
    plan = one(connection, statement(f"EXPLAIN (FORMAT JSON) {text}"))[0][0]["Plan"]
    return float(plan["Total Cost"]), float(plan["Plan Rows"])
