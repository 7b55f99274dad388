"""Applying: the stored rows of a stream table are changed, and its dependents get the difference.

Rows to change are addressed by ctid. That is safe because a refresh is the only writer of a storage table
and holds the lock on its stream table until it commits.
"""

from __future__ import annotations

from dataclasses import dataclass

from headwater.capture.buffers import change_table_sql
from headwater.db.work import Scratch
from headwater.errors import DriftDetected
from headwater.plan.aggregates import ROW_COUNT
from headwater.plan.dialect import identifier
from headwater.plan.maintain import VISIBLE, GroupPlan, MaintenancePlan, RecomputePlan, where_shown
from headwater.plan.render import WEIGHT, Column, consolidated_sql

ROW = "__hw_row"
"""Where a stored row is."""
SHOWN = "__hw_shown"
"""Whether users saw the row before."""
DIFFERS = "__hw_differs"
"""Whether a column that users see differs."""


@dataclass(frozen=True)
class Applied:
    """How many of the rows that users see came, changed and went."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0


@dataclass(frozen=True)
class Target:
    """The storage of a stream table, and where its own changes go."""

    label: str
    storage: str  # SQL name
    change_table: str | None  # name in headwater_changes, if somebody reads its changes
    change_columns: tuple[tuple[str, int], ...] = ()  # output column, its number in the view
    staged: bool = False  # whether its change is wanted in this refresh, in the scratch table `change`


def apply_bag(scratch: Scratch, plan: RecomputePlan, target: Target) -> Applied:
    """Applies the weighted rows in the scratch table `delta`."""
    delta = scratch.name("delta")
    columns = ", ".join(identifier(name) for name in plan.stored_columns)
    qualified = ", ".join(f"d.{identifier(name)}" for name in plan.stored_columns)
    gone = scratch.fill(
        "gone",
        f"SELECT c.{ROW} FROM (SELECT s.ctid AS {ROW}, -d.{WEIGHT} AS wanted,"
        f" row_number() OVER (PARTITION BY d.ctid) AS copy"
        f" FROM {delta} AS d JOIN {target.storage} AS s ON {plan.same_row('s', 'd')}"
        f" WHERE d.{WEIGHT} < 0) AS c WHERE c.copy <= c.wanted",
    )
    wanted, coming = scratch.row(
        "check",
        f"SELECT coalesce(sum(-{WEIGHT}) FILTER (WHERE {WEIGHT} < 0), 0)::bigint,"
        f" coalesce(sum({WEIGHT}) FILTER (WHERE {WEIGHT} > 0), 0)::bigint FROM {delta}",
    )
    if gone != wanted:
        raise _drift(target, f"{wanted} rows should go, {gone} of them are stored")
    _emit(scratch, target, plan.outputs, f"SELECT * FROM {delta}")
    if gone:
        scratch.run(
            "delete",
            f"DELETE FROM {target.storage} AS s USING {scratch.name('gone')} AS c WHERE s.ctid = c.{ROW}",
        )
    if coming:
        scratch.run(
            "insert",
            f"INSERT INTO {target.storage} ({columns}) SELECT {qualified} FROM {delta} AS d,"
            f" generate_series(1, d.{WEIGHT}) AS copy WHERE d.{WEIGHT} > 0",
        )
    return Applied(inserted=coming, deleted=gone)


def apply_groups(scratch: Scratch, plan: GroupPlan, target: Target, affected: str | None) -> Applied:
    """Reconciles the stored groups with the new rows in the scratch table `result`.

    Affected are the keys in the table named, or all groups there are.
    """
    result, storage = scratch.name("result"), target.storage
    columns = [identifier(name) for name in plan.stored_columns]
    shown_before = f"s.{VISIBLE}" if plan.hides_groups else "s.ctid IS NOT NULL"
    stored, new = (", ".join(f"{alias}.{column}" for column in columns) for alias in ("s", "r"))
    before, after = (", ".join(f"{alias}.{column.sql}" for column in plan.outputs) for alias in ("s", "r"))
    differs = f"record_image_ne(ROW({before}), ROW({after}))"
    changed_rows = scratch.fill(
        "changed",
        f"SELECT s.ctid AS {ROW}, coalesce({shown_before}, false) AS {SHOWN}, {differs} AS {DIFFERS}, {new}"
        f" FROM {result} AS r LEFT JOIN {storage} AS s ON {plan.same_stored('s', 'r')}"
        f" WHERE s.ctid IS NULL OR record_image_ne(ROW({stored}), ROW({new}))",
    )
    candidates = f"{storage} AS s"
    if affected:
        candidates = f"{affected} AS a JOIN {candidates} ON {plan.same_key('s', 'a')}"
    gone_rows = scratch.fill(
        "gone",
        f"SELECT s.ctid AS {ROW}, {shown_before} AS {SHOWN} FROM {candidates}"
        f" WHERE NOT EXISTS (SELECT FROM {result} AS r WHERE {plan.same_stored('r', 's')})",
    )
    if not changed_rows and not gone_rows and not target.staged:
        return Applied()
    changed, gone = scratch.name("changed"), scratch.name("gone")
    shown_now = VISIBLE if plan.hides_groups else "true"
    negative = f"{ROW_COUNT} < 0" if plan.algebra else "false"  # such a group cannot be what is stored
    *counts, new_rows, impossible = scratch.row(
        "count",
        f"SELECT count(*) FILTER (WHERE {shown_now} AND NOT {SHOWN}),"
        f" count(*) FILTER (WHERE {shown_now} AND {SHOWN} AND {DIFFERS}),"
        f" count(*) FILTER (WHERE NOT {shown_now} AND {SHOWN})"
        f" + (SELECT count(*) FROM {gone} WHERE {SHOWN}),"
        f" count(*) FILTER (WHERE {ROW} IS NULL), count(*) FILTER (WHERE {negative}) FROM {changed}",
    )
    if impossible:
        raise _drift(target, f"{impossible} groups would have fewer than no rows")
    if target.change_table or target.staged:
        outputs = ", ".join(column.sql for column in plan.outputs)
        old = ", ".join(f"s.{column.sql}" for column in plan.outputs)
        _emit(
            scratch,
            target,
            plan.outputs,
            f"SELECT {old}, -1 AS {WEIGHT} FROM {storage} AS s JOIN (SELECT {ROW}, {SHOWN} FROM {changed}"
            f" UNION ALL SELECT {ROW}, {SHOWN} FROM {gone}) AS c ON s.ctid = c.{ROW} AND c.{SHOWN}"
            f" UNION ALL SELECT {outputs}, 1 FROM {changed}{where_shown(plan)}",
        )
    if gone_rows:
        scratch.run("delete", f"DELETE FROM {storage} AS s USING {gone} AS c WHERE s.ctid = c.{ROW}")
    if changed_rows > new_rows:
        assignments = ", ".join(f"{column} = c.{column}" for column in columns)
        scratch.run(
            "update", f"UPDATE {storage} AS s SET {assignments} FROM {changed} AS c WHERE s.ctid = c.{ROW}"
        )
    if new_rows:
        scratch.run(
            "insert",
            f"INSERT INTO {storage} ({', '.join(columns)}) SELECT {', '.join(columns)} FROM {changed}"
            f" WHERE {ROW} IS NULL",
        )
    return Applied(*counts)


def _emit(scratch: Scratch, target: Target, outputs: tuple[Column, ...], weighted: str) -> None:
    """Gives the change of what users see to those that read it."""
    if target.staged:
        scratch.fill("change", consolidated_sql(weighted, outputs))
    if not target.change_table:
        return
    by_name = {column.name: column for column in outputs}
    captured = [(by_name[name], f"c{number}") for name, number in target.change_columns]
    changes = consolidated_sql(weighted, [column for column, _ in captured])
    names = "".join(f", {number}" for _, number in captured)
    values = "".join(f", e.{column.sql}" for column, _ in captured)
    scratch.run(
        "emit",
        f"INSERT INTO {change_table_sql(target.change_table)} (xid, w{names})"
        f" SELECT pg_current_xact_id(), e.{WEIGHT}{values} FROM (\n{changes}\n) AS e",
    )


def _drift(target: Target, detail: str) -> DriftDetected:
    return DriftDetected(
        f"{target.label} does not hold the rows that its changes start from",
        detail=detail,
        hint="somebody wrote to its storage or switched triggers off; it is rebuilt from its query",
    )


def emit_difference(scratch: Scratch, target: Target, plan: MaintenancePlan, view: str) -> None:
    """Gives dependents the difference between new storage and what the view, still on the old one, shows."""
    if not target.change_table:
        return
    wanted = {name for name, _ in target.change_columns}
    captured = tuple(column for column in plan.outputs if column.name in wanted)  # the view may lack others
    listed = "".join(f"{column.sql}, " for column in captured)
    _emit(
        scratch,
        target,
        captured,
        f"SELECT {listed}1 AS {WEIGHT} FROM {target.storage}{where_shown(plan)}"
        f" UNION ALL SELECT {listed}-1 FROM {view}",
    )
