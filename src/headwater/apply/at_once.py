"""A small change, computed and applied by one statement.

The steps are those of `merge`, each a part of a WITH instead of a temporary table. The files of such a table
come and go, or are emptied at each commit, and that takes longer than a small change itself.

All parts see the stored rows as they were before the statement. Those that write take turns: a unique index
of a user's own must not meet a new row while the old one is still there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headwater.apply.merge import Applied, BagStatements, GroupStatements, Target, emission_sql
from headwater.db.work import Scratch
from headwater.plan.maintain import BagPlan, GroupPlan, IncrementalPlan
from headwater.plan.render import Column, Staged

NUMBER = "__hw_number"
DELTA, KEYS, AFFECTED, RESCANNED = "__hw_delta", "__hw_keys", "__hw_affected", "__hw_rescanned"
RESULT, CHANGED, GONE = "__hw_result", "__hw_changed", "__hw_gone"
EMITTED, DELETED, UPDATED, INSERTED = "__hw_emitted", "__hw_deleted", "__hw_updated", "__hw_inserted"


@dataclass(frozen=True)
class AtOnce:
    """The statement, and what its only row says."""

    sql: str
    applied: Callable[..., Applied | None]

    def run(self, scratch: Scratch) -> Applied | None:
        """What it applied; None if it found that steps must do it, and did nothing."""
        return self.applied(*scratch.row("at once", self.sql))


def at_once(plan: IncrementalPlan, target: Target, changes: Mapping[int, str]) -> AtOnce:
    """Takes in the changes of sources, given as queries."""
    staged = Staged({relation: f"__hw_source{number}" for number, relation in enumerate(changes)})
    sources = {staged.tables[relation]: text for relation, text in changes.items()}
    if isinstance(plan, GroupPlan):
        return _groups(plan, target, staged, sources)
    return _bag(plan, target, staged, sources)


def _bag(plan: BagPlan, target: Target, staged: Staged, sources: Mapping[str, str]) -> AtOnce:
    statements = BagStatements(plan, target, DELTA, GONE, NUMBER)
    read = {
        **sources,
        DELTA: f"SELECT row_number() OVER () AS {NUMBER}, z.* FROM (\n{plan.delta_sql(staged)}\n) AS z",
        GONE: statements.gone_sql,
    }
    written = {
        DELETED: f"{statements.delete} RETURNING 1",
        INSERTED: f"{statements.insert} AND {_after(DELETED)}",
    }
    counted = f"SELECT (SELECT count(*) FROM {GONE}), c.* FROM (\n{statements.counts_sql}\n) AS c"
    emitted = _emitted(target, plan.outputs, statements.change_sql)
    return AtOnce(_with(read, emitted | written, counted), statements.checked)


def _groups(plan: GroupPlan, target: Target, staged: Staged, sources: Mapping[str, str]) -> AtOnce:
    statements = GroupStatements(plan, target, RESULT, CHANGED, GONE)
    read = dict(sources)
    rescan = None
    if plan.algebra is None:
        read[KEYS], affected = plan.affected_sql(staged), KEYS
        result = plan.recompute_sql(KEYS)
    else:
        read[DELTA], affected = plan.state_delta_sql(staged), DELTA
        rescan = plan.rescan_sql(DELTA, target.storage)
        if rescan is not None:
            # Then steps do it: this one would have to read those groups for nothing, whenever there are none.
            read[RESCANNED], affected = rescan, AFFECTED
            read[AFFECTED] = f"SELECT * FROM {DELTA} WHERE NOT EXISTS (SELECT FROM {RESCANNED})"
        result = plan.merge_sql(affected, target.storage, None)
    # In the types of the stored rows, by their order: a sum of counts is no bigint by itself.
    read[RESULT] = (
        f"SELECT (z.r).* FROM (SELECT ROW(y.*)::{target.storage} AS r FROM (\n{result}\n) AS y) AS z"
    )
    read[CHANGED] = statements.changed_sql
    read[GONE] = statements.gone_sql(affected)
    written = {
        DELETED: f"{statements.delete} RETURNING 1",
        UPDATED: f"{statements.update} AND {_after(DELETED)} RETURNING 1",
        INSERTED: f"{statements.insert} AND {_after(UPDATED)}",
    }

    def applied(
        inserted: int, updated: int, deleted: int, _new: int, impossible: int, rescanned: int
    ) -> Applied | None:
        return None if rescanned else statements.checked(inserted, updated, deleted, impossible)

    rescanned = f"(SELECT count(*) FROM {RESCANNED})" if rescan is not None else "0"
    counted = f"SELECT c.*, {rescanned} FROM (\n{statements.counts_sql}\n) AS c"
    emitted = _emitted(target, plan.outputs, statements.change_sql)
    return AtOnce(_with(read, emitted | written, counted), applied)


def _emitted(target: Target, outputs: tuple[Column, ...], weighted: str) -> dict[str, str]:
    if target.change_table is None:
        return {}
    return {EMITTED: emission_sql(target.change_table, target, outputs, weighted)}


def _after(part: str) -> str:
    """A condition that holds, once another part is done."""
    return f"(SELECT count(*) FROM {part}) IS NOT NULL"


def _with(read: Mapping[str, str], written: Mapping[str, str], last: str) -> str:
    parts = [f"{name} AS MATERIALIZED (\n{text}\n)" for name, text in read.items()]
    parts += [f"{name} AS (\n{text}\n)" for name, text in written.items()]
    return f"WITH {', '.join(parts)}\n{last}"
