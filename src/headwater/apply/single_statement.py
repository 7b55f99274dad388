"""A small change applied by one statement, which may also be the one that computes it.

The steps are those of `merge`, each a part of a WITH instead of a temporary table. The files of such a table
come and go, or are emptied at each commit, and that takes longer than a small change itself.

All parts see the stored rows as they were before the statement. Those that write take turns: a unique index
of a user's own must not meet a new row while the old one is still there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headwater.apply.merge import BagStatements, GroupStatements, Target, emission_sql
from headwater.catalog.history import Applied
from headwater.plan.staged import Staged
from headwater.plan.steps import Steps, Tables, analyse, attempt, shape
from headwater.plan.storage_plan import BagPlan, GroupPlan, IncrementalPlan
from headwater.plan.values import WEIGHT, Column, consolidated_sql

NUMBER = "__hw_number"
DELTA, KEYS, AFFECTED, RESCANNED = "__hw_delta", "__hw_keys", "__hw_affected", "__hw_rescanned"
RESULT, CHANGED, GONE = "__hw_result", "__hw_changed", "__hw_gone"
EMITTED, STAGED = "__hw_emitted", "__hw_staged"
DELETED, UPDATED, INSERTED = "__hw_deleted", "__hw_updated", "__hw_inserted"


@dataclass(frozen=True)
class Counts:
    """Which columns of a statement's row count what, by their places."""

    columns: int
    deleted: int
    inserted: int
    updated: int | None
    differing: tuple[int, int] | None = (
        None  # two that are equal unless the stored rows are not what they were
    )
    nonzero: tuple[int, ...] = ()  # those that are zero if the statement could do it, and had nothing wrong


@dataclass(frozen=True)
class SingleStatement:
    """The statement, and what its only row says."""

    what: str
    sql: str
    applied: Callable[..., Applied | None]
    counts: Counts
    change: str | None = None  # the columns of the change, if it is wanted in this refresh

    def steps(self, tables: Tables) -> Steps[Applied | None]:
        """Run it; returns what it applied, or None if it found that steps must do it, and did nothing."""
        if self.change is not None:
            yield from shape(tables, "change", self.change)
        row = yield from attempt(self.what, self.sql)
        done = self.applied(*row) if row is not None else None
        if self.change is not None and done is not None and done != Applied():
            yield from analyse(tables, "change")
        return done


def take_in_by_one(plan: IncrementalPlan, target: Target, changes: Mapping[int, str]) -> SingleStatement:
    """Computes and applies what changes of sources, given as queries, mean."""
    what = "all at once, if few rows changed"
    staged = Staged({relation: f"__hw_source{number}" for number, relation in enumerate(changes)})
    read = {staged.tables[relation]: text for relation, text in changes.items()}
    if isinstance(plan, BagPlan):
        read[DELTA] = f"SELECT row_number() OVER () AS {NUMBER}, z.* FROM (\n{plan.delta_sql(staged)}\n) AS z"
        return _bag(what, plan, target, read, BagStatements(plan, target, DELTA, GONE, NUMBER))
    if plan.algebra is None:
        read[KEYS], read[RESULT] = plan.affected_sql(staged), _as_stored(target, plan.recompute_sql(KEYS))
        return _groups(what, plan, target, read, RESULT, KEYS)
    read[DELTA] = plan.state_delta_sql(staged)
    return _states(what, plan, target, read, DELTA)


def apply_in_one(
    plan: IncrementalPlan, target: Target, tables: Tables, affected: str | None
) -> SingleStatement:
    """Applies what was computed, with the affected keys or the delta of their states in the table named."""
    what = "apply at once, if few rows are affected"
    if isinstance(plan, BagPlan):
        statements = BagStatements(plan, target, tables.sql("delta"), GONE)
        return _bag(what, plan, target, {}, statements, tables.sql("change"))
    assert affected is not None
    if plan.algebra is None:
        result = tables.sql("result")
        return _groups(what, plan, target, {}, result, affected, change=tables.sql("change"))
    return _states(what, plan, target, {}, affected, tables.sql("change"))


def _bag(
    what: str,
    plan: BagPlan,
    target: Target,
    read: Mapping[str, str],
    statements: BagStatements,
    change: str = "",
) -> SingleStatement:
    written = {
        DELETED: f"{statements.delete} RETURNING 1",
        INSERTED: f"{statements.insert} AND {_after(DELETED)}",
    }
    counted = f"SELECT (SELECT count(*) FROM {GONE}), c.* FROM (\n{statements.counts_sql}\n) AS c"
    given = _given(target, plan.outputs, statements.change_sql, change)
    sql = _with({**read, GONE: statements.gone_sql}, given | written, counted)
    counts = Counts(columns=3, deleted=0, inserted=2, updated=None, differing=(0, 1))
    return SingleStatement(what, sql, statements.checked, counts, _change_columns(target, plan))


def _states(
    what: str, plan: GroupPlan, target: Target, read: Mapping[str, str], delta: str, change: str = ""
) -> SingleStatement:
    """Groups whose new rows come from stored state and a delta of it."""
    read, affected = dict(read), delta
    rescan = plan.rescan_sql(delta, target.storage)
    if rescan is not None:
        # Then steps do it: this one would have to read those groups for nothing, whenever there are none.
        read[RESCANNED], affected = rescan, AFFECTED
        read[AFFECTED] = f"SELECT * FROM {delta} WHERE NOT EXISTS (SELECT FROM {RESCANNED})"
    read[RESULT] = _as_stored(target, plan.merge_sql(affected, target.storage, None))
    return _groups(what, plan, target, read, RESULT, affected, rescans=rescan is not None, change=change)


def _groups(
    what: str,
    plan: GroupPlan,
    target: Target,
    read: Mapping[str, str],
    result: str,
    affected: str,
    *,
    rescans: bool = False,
    change: str = "",
) -> SingleStatement:
    statements = GroupStatements(plan, target, result, CHANGED, GONE)
    read = {**read, CHANGED: statements.changed_sql, GONE: statements.gone_sql(affected)}
    written = {
        DELETED: f"{statements.delete} RETURNING 1",
        UPDATED: f"{statements.update} AND {_after(DELETED)} RETURNING 1",
        INSERTED: f"{statements.insert} AND {_after(UPDATED)}",
    }

    def checked(
        inserted: int, updated: int, deleted: int, _new: int, impossible: int, rescanned: int
    ) -> Applied | None:
        return None if rescanned else statements.checked(inserted, updated, deleted, impossible)

    rescanned = f"(SELECT count(*) FROM {RESCANNED})" if rescans else "0"
    counted = f"SELECT c.*, {rescanned} FROM (\n{statements.counts_sql}\n) AS c"
    given = _given(target, plan.outputs, statements.change_sql, change)
    counts = Counts(columns=6, inserted=0, updated=1, deleted=2, nonzero=(4, 5))
    return SingleStatement(
        what, _with(read, given | written, counted), checked, counts, _change_columns(target, plan)
    )


def _as_stored(target: Target, rows: str) -> str:
    """Rows in the types of the stored ones, by their order: a sum of counts is no bigint by itself."""
    return f"SELECT (z.r).* FROM (SELECT ROW(y.*)::{target.storage} AS r FROM (\n{rows}\n) AS y) AS z"


def _given(target: Target, outputs: tuple[Column, ...], weighted: str, change: str) -> dict[str, str]:
    """The change of what users see, to those that read it, and to the rest of this refresh."""
    given = {}
    if target.change_table is not None:
        given[EMITTED] = emission_sql(target.change_table, target, outputs, weighted)
    if target.staged:
        given[STAGED] = f"INSERT INTO {change} {consolidated_sql(weighted, outputs)}"
    return given


def _change_columns(target: Target, plan: IncrementalPlan) -> str | None:
    if not target.staged:
        return None
    listed = "".join(f"{column.sql}, " for column in plan.outputs)
    return f"SELECT {listed}0::bigint AS {WEIGHT} FROM {target.storage}"


def _after(part: str) -> str:
    """A condition that holds, once another part is done."""
    return f"(SELECT count(*) FROM {part}) IS NOT NULL"


def _with(read: Mapping[str, str], written: Mapping[str, str], last: str) -> str:
    parts = [f"{name} AS MATERIALIZED (\n{text}\n)" for name, text in read.items()]
    parts += [f"{name} AS (\n{text}\n)" for name, text in written.items()]
    return f"WITH {', '.join(parts)}\n{last}"
