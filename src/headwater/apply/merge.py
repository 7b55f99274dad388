"""Applying: the stored rows of a stream table are changed, and its dependents get the difference.

Rows to change are addressed by ctid. That is safe because a refresh is the only writer of a storage table
and holds the lock on its stream table until it commits.
"""

from __future__ import annotations

from dataclasses import dataclass

from headwater.capture.buffers import change_table_sql
from headwater.catalog.history import Applied
from headwater.errors import DriftDetected
from headwater.plan.aggregates import ROW_COUNT
from headwater.plan.quoting import identifier
from headwater.plan.steps import Steps, Tables, fetch, fill, run
from headwater.plan.storage_plan import VISIBLE, GroupPlan, MaintenancePlan, RecomputePlan, where_shown
from headwater.plan.values import WEIGHT, Column, consolidated_sql

ROW = "__hw_row"
"""Where a stored row is."""
SHOWN = "__hw_shown"
"""Whether users saw the row before."""
DIFFERS = "__hw_differs"
"""Whether a column that users see differs."""


@dataclass(frozen=True)
class Target:
    """The storage of a stream table, and where its own changes go."""

    label: str
    storage: str  # SQL name
    change_table: str | None  # name in headwater_changes, if somebody reads its changes
    change_columns: tuple[tuple[str, int], ...] = ()  # output column, its number in the view
    staged: bool = False  # whether its change is wanted in this refresh, in the scratch table `change`


@dataclass(frozen=True)
class BagStatements:
    """The statements that apply the weighted rows of one table to a bag, by way of another one."""

    plan: RecomputePlan
    target: Target
    delta: str  # SQL name
    gone: str  # SQL name
    number: str = "ctid"  # what tells the rows of the delta apart

    @property
    def gone_sql(self) -> str:
        """Where the stored rows are that go."""
        return (
            f"SELECT c.{ROW} FROM (SELECT s.ctid AS {ROW}, -d.{WEIGHT} AS wanted,"
            f" row_number() OVER (PARTITION BY d.{self.number}) AS copy"
            f" FROM {self.delta} AS d JOIN {self.target.storage} AS s ON {self.plan.same_row('s', 'd')}"
            f" WHERE d.{WEIGHT} < 0) AS c WHERE c.copy <= c.wanted"
        )

    @property
    def counts_sql(self) -> str:
        """How many rows are to go and to come."""
        return (
            f"SELECT coalesce(sum(-{WEIGHT}) FILTER (WHERE {WEIGHT} < 0), 0)::bigint,"
            f" coalesce(sum({WEIGHT}) FILTER (WHERE {WEIGHT} > 0), 0)::bigint FROM {self.delta}"
        )

    @property
    def change_sql(self) -> str:
        """What changes for those that read it, weighted."""
        return f"SELECT * FROM {self.delta}"

    @property
    def delete(self) -> str:
        return _deletion(self.target, self.gone)

    @property
    def insert(self) -> str:
        columns = ", ".join(identifier(name) for name in self.plan.stored_columns)
        qualified = ", ".join(f"d.{identifier(name)}" for name in self.plan.stored_columns)
        return (
            f"INSERT INTO {self.target.storage} ({columns}) SELECT {qualified} FROM {self.delta} AS d,"
            f" generate_series(1, d.{WEIGHT}) AS copy WHERE d.{WEIGHT} > 0"
        )

    def checked(self, gone: int, wanted: int, coming: int) -> Applied:
        """What was applied; raises if not all that should go was there."""
        if gone != wanted:
            raise _drift(self.target, f"{wanted} rows should go, {gone} of them are stored")
        return Applied(inserted=coming, deleted=gone)


def apply_bag(tables: Tables, plan: RecomputePlan, target: Target) -> Steps[Applied]:
    """Apply the weighted rows in table `delta`."""
    statements = BagStatements(plan, target, tables.sql("delta"), tables.sql("gone"))
    gone = yield from fill(tables, "gone", statements.gone_sql)
    wanted, coming = yield from fetch("check", statements.counts_sql)
    applied = statements.checked(gone, wanted, coming)
    yield from _emit(tables, target, plan.outputs, statements.change_sql)
    if applied.deleted:
        yield from run("delete", statements.delete)
    if applied.inserted:
        yield from run("insert", statements.insert)
    return applied


@dataclass(frozen=True)
class GroupStatements:
    """The statements that reconcile stored groups with new rows in a table, by way of two others."""

    plan: GroupPlan
    target: Target
    result: str  # SQL names
    changed: str
    gone: str

    @property
    def changed_sql(self) -> str:
        """The new rows that differ from what is stored, and where that is."""
        stored, new = (", ".join(f"{alias}.{column}" for column in self._columns) for alias in ("s", "r"))
        before, after = (
            ", ".join(f"{alias}.{column.sql}" for column in self.plan.outputs) for alias in ("s", "r")
        )
        differs = f"record_image_ne(ROW({before}), ROW({after}))"
        return (
            f"SELECT s.ctid AS {ROW}, coalesce({self._shown_before}, false) AS {SHOWN},"
            f" {differs} AS {DIFFERS}, {new}"
            f" FROM {self.result} AS r LEFT JOIN {self.target.storage} AS s"
            f" ON {self.plan.same_stored('s', 'r')}"
            f" WHERE s.ctid IS NULL OR record_image_ne(ROW({stored}), ROW({new}))"
        )

    def gone_sql(self, affected: str | None) -> str:
        """Where stored rows are that have no new one, of the keys in a table or of all."""
        candidates = f"{self.target.storage} AS s"
        if affected:
            candidates = f"{affected} AS a JOIN {candidates} ON {self.plan.same_key('s', 'a')}"
        return (
            f"SELECT s.ctid AS {ROW}, {self._shown_before} AS {SHOWN} FROM {candidates}"
            f" WHERE NOT EXISTS (SELECT FROM {self.result} AS r WHERE {self.plan.same_stored('r', 's')})"
        )

    @property
    def counts_sql(self) -> str:
        """How many of the rows that users see come, change and go; how many are new; how many cannot be."""
        shown_now = VISIBLE if self.plan.hides_groups else "true"
        negative = f"{ROW_COUNT} < 0" if self.plan.algebra else "false"  # such a group cannot be stored
        return (
            f"SELECT count(*) FILTER (WHERE {shown_now} AND NOT {SHOWN}),"
            f" count(*) FILTER (WHERE {shown_now} AND {SHOWN} AND {DIFFERS}),"
            f" count(*) FILTER (WHERE NOT {shown_now} AND {SHOWN})"
            f" + (SELECT count(*) FROM {self.gone} WHERE {SHOWN}),"
            f" count(*) FILTER (WHERE {ROW} IS NULL), count(*) FILTER (WHERE {negative}) FROM {self.changed}"
        )

    @property
    def change_sql(self) -> str:
        """What changes for those that read it, weighted."""
        outputs = ", ".join(column.sql for column in self.plan.outputs)
        old = ", ".join(f"s.{column.sql}" for column in self.plan.outputs)
        return (
            f"SELECT {old}, -1 AS {WEIGHT} FROM {self.target.storage} AS s"
            f" JOIN (SELECT {ROW}, {SHOWN} FROM {self.changed}"
            f" UNION ALL SELECT {ROW}, {SHOWN} FROM {self.gone}) AS c ON s.ctid = c.{ROW} AND c.{SHOWN}"
            f" UNION ALL SELECT {outputs}, 1 FROM {self.changed}{where_shown(self.plan)}"
        )

    @property
    def delete(self) -> str:
        return _deletion(self.target, self.gone)

    @property
    def update(self) -> str:
        assignments = ", ".join(f"{column} = c.{column}" for column in self._columns)
        return (
            f"UPDATE {self.target.storage} AS s SET {assignments} FROM {self.changed} AS c"
            f" WHERE s.ctid = c.{ROW}"
        )

    @property
    def insert(self) -> str:
        columns = ", ".join(self._columns)
        return (
            f"INSERT INTO {self.target.storage} ({columns}) SELECT {columns} FROM {self.changed}"
            f" WHERE {ROW} IS NULL"
        )

    def checked(self, inserted: int, updated: int, deleted: int, impossible: int) -> Applied:
        """What was applied; raises if a group would have to be what none can be."""
        if impossible:
            raise _drift(self.target, f"{impossible} groups would have fewer than no rows")
        return Applied(inserted, updated, deleted)

    @property
    def _columns(self) -> list[str]:
        return [identifier(name) for name in self.plan.stored_columns]

    @property
    def _shown_before(self) -> str:
        return f"s.{VISIBLE}" if self.plan.hides_groups else "s.ctid IS NOT NULL"


def apply_groups(tables: Tables, plan: GroupPlan, target: Target, affected: str | None) -> Steps[Applied]:
    """Reconcile the stored groups with the new rows in table `result`.

    Affected are the keys in the table named, or all groups there are.
    """
    statements = GroupStatements(plan, target, *map(tables.sql, ("result", "changed", "gone")))
    changed_rows = yield from fill(tables, "changed", statements.changed_sql)
    gone_rows = yield from fill(tables, "gone", statements.gone_sql(affected))
    if not changed_rows and not gone_rows and not target.staged:
        return Applied()
    inserted, updated, deleted, new_rows, impossible = yield from fetch("count", statements.counts_sql)
    applied = statements.checked(inserted, updated, deleted, impossible)
    yield from _emit(tables, target, plan.outputs, statements.change_sql)
    if gone_rows:
        yield from run("delete", statements.delete)
    if changed_rows > new_rows:
        yield from run("update", statements.update)
    if new_rows:
        yield from run("insert", statements.insert)
    return applied


def _emit(tables: Tables, target: Target, outputs: tuple[Column, ...], weighted: str) -> Steps[None]:
    """Give the change of what users see to those that read it."""
    if target.staged:
        yield from fill(tables, "change", consolidated_sql(weighted, outputs))
    if target.change_table:
        yield from run("emit", emission_sql(target.change_table, target, outputs, weighted))


def emission_sql(change_table: str, target: Target, outputs: tuple[Column, ...], weighted: str) -> str:
    """Adds a change of what users see to the change table of those that read it."""
    by_name = {column.name: column for column in outputs}
    captured = [(by_name[name], f"c{number}") for name, number in target.change_columns]
    changes = consolidated_sql(weighted, [column for column, _ in captured])
    names = "".join(f", {number}" for _, number in captured)
    values = "".join(f", e.{column.sql}" for column, _ in captured)
    return (
        f"INSERT INTO {change_table_sql(change_table)} (xid, w{names})"
        f" SELECT pg_current_xact_id(), e.{WEIGHT}{values} FROM (\n{changes}\n) AS e"
    )


def _deletion(target: Target, gone: str) -> str:
    """Deletes the stored rows whose places are in a table."""
    return f"DELETE FROM {target.storage} AS s USING {gone} AS c WHERE s.ctid = c.{ROW}"


def _drift(target: Target, detail: str) -> DriftDetected:
    return DriftDetected(
        f"{target.label} does not hold the rows that its changes start from",
        detail=detail,
        hint="it is rebuilt from its query; somebody wrote to its storage or switched triggers off, or the"
        " query leaves open which rows it returns (a tie at a LIMIT, 1.0 and 1.00 as equal rows of EXCEPT)",
    )


def emit_difference(tables: Tables, target: Target, plan: MaintenancePlan, view: str) -> Steps[None]:
    """Give dependents the difference between new storage and what the view, still on the old one, shows."""
    if not target.change_table:
        return
    wanted = {name for name, _ in target.change_columns}
    captured = tuple(column for column in plan.outputs if column.name in wanted)  # the view may lack others
    listed = "".join(f"{column.sql}, " for column in captured)
    yield from _emit(
        tables,
        target,
        captured,
        f"SELECT {listed}1 AS {WEIGHT} FROM {target.storage}{where_shown(plan)}"
        f" UNION ALL SELECT {listed}-1 FROM {view}",
    )
