"""How a stream table's stored rows follow its query: the plan that a refresh executes and `explain` prints.

Two shapes of storage cover every operator:

- a *bag* holds the rows of a linear or bilinear query, duplicates included; its delta is a weighted relation;
- *groups* hold one row per key; a refresh finds the affected keys, computes their new rows, and reconciles
  them with the stored ones. With an algebra the new rows come from the stored state and the delta of the
  input; without one the query itself recomputes them, restricted to the affected keys.

Everything besides the user's columns is in hidden columns whose names start with `__hw_`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from headwater.plan.aggregates import (
    ROW_COUNT,
    Algebra,
    delta_columns,
    merged,
    over_delta,
    over_rows,
    rescan_condition,
)
from headwater.plan.build.parse import GROUP
from headwater.plan.expression import Expression
from headwater.plan.join_steps import JoinSteps, join_steps
from headwater.plan.key_filter import HAS_NULL, HASH, KeyFilter
from headwater.plan.operators import (
    Aggregate,
    Keyed,
    Output,
    Query,
    Scan,
    Select,
    Source,
    UnionAll,
    referenced_columns,
    sources_of,
)
from headwater.plan.quoting import identifier
from headwater.plan.render import delta_sql, now_sql
from headwater.plan.semijoin import own_conditions
from headwater.plan.staged import Staged
from headwater.plan.terms import Term
from headwater.plan.values import (
    WEIGHT,
    Column,
    consolidated_sql,
    hash_sql,
    hashable,
    identity,
    is_null,
    null_safe_equal,
    rechecked,
)

HIDDEN = "__hw_"
VISIBLE = "__hw_visible"


@dataclass(frozen=True)
class RecomputePlan:
    """Maintenance by recomputing and comparing; the rows are a bag, whatever the query."""

    outputs: tuple[Column, ...]
    query: str

    @cached_property
    def stored_columns(self) -> tuple[str, ...]:
        return (*(column.name for column in self.outputs), HASH)

    @property
    def hides_groups(self) -> bool:
        return False

    def full_sql(self, rows: str | None = None) -> str:
        """Return all rows as they are stored: of the query, or of another one that computes the same."""
        columns = ", ".join(f"z.{column.sql}" for column in self.outputs)
        return f"SELECT {columns}, {self._hash('z')} AS {HASH} FROM (\n{rows or self.query}\n) AS z"

    def difference_sql(self, storage: str, rows: str | None = None) -> str:
        """Return the weighted change that turns the stored rows into the query's current result."""
        columns = ", ".join(column.sql for column in self.outputs)
        return self.weighted_sql(
            f"SELECT {columns}, 1::bigint AS {WEIGHT} FROM (\n{rows or self.query}\n) AS n\n"
            f"UNION ALL\nSELECT {columns}, -1 FROM {storage}"
        )

    def same_row(self, left: str, right: str) -> str:
        """Return the condition that two stored rows are indistinguishable."""
        return _same(
            left,
            right,
            [
                f"{identity(f'{left}.{column.sql}', column.type)} IS NOT DISTINCT FROM "
                f"{identity(f'{right}.{column.sql}', column.type)}"
                for column in self.outputs
            ],
        )

    def weighted_sql(self, weighted: str) -> str:
        """Return weighted rows consolidated into the change of the stored rows."""
        columns = ", ".join(f"z.{column.sql}" for column in self.outputs)
        delta = consolidated_sql(weighted, self.outputs)
        return f"SELECT {columns}, {self._hash('z')} AS {HASH}, z.{WEIGHT} FROM (\n{delta}\n) AS z"

    def _hash(self, alias: str) -> str:
        return hash_sql([identity(f"{alias}.{column.sql}", column.type) for column in self.outputs])


class _WorkedOutOnce:
    """What every delta of a plan needs and that depends on the plan alone."""

    @property
    @abstractmethod
    def root(self) -> Query: ...

    @cached_property
    def wanted(self) -> dict[int, tuple[str, ...]]:
        """The columns that are read of each source (by oid)."""
        return referenced_columns(self.root)

    @cached_property
    def own_conditions(self) -> dict[int, str]:
        """Conditions that change rows of a source (by oid) must meet to matter, where there are any."""
        found = {relation: own_conditions(self.root, relation) for relation in self.wanted}
        return {relation: tree.text for relation, tree in found.items() if tree is not None}

    @cached_property
    def _join_steps(self) -> dict[tuple[Select, Term], JoinSteps]:
        return {}

    def join_steps(self, block: Select, term: Term) -> JoinSteps:
        """Return the steps by which a term of one of its joins is joined."""
        key = (block, term)
        if key not in self._join_steps:
            self._join_steps[key] = join_steps(block, term)
        return self._join_steps[key]


@dataclass(frozen=True)
class BagPlan(RecomputePlan, _WorkedOutOnce):
    """Maintenance of a query without grouping: its weighted delta is applied as it is."""

    body: Query
    columns: Mapping[Query, tuple[Column, ...]] = field(
        default_factory=dict, compare=False
    )  # of the nodes inside

    @property
    def root(self) -> Query:
        return self.body

    @property
    def is_whole(self) -> bool:
        """True if any change may affect all of it, as with the first rows in an order: no part has a key."""
        return isinstance(self.body, Keyed) and not self.body.keys[0]

    @property
    def sources(self) -> tuple[Source, ...]:
        return sources_of(self.body)

    def delta_sql(self, staged: Staged) -> str:
        """Return the weighted change of the stored rows."""
        return self.weighted_sql(delta_sql(self.body, staged))


@dataclass(frozen=True)
class GroupPlan(_WorkedOutOnce):
    """Maintenance of a query with GROUP BY or DISTINCT at the top."""

    aggregate: Aggregate
    rows: tuple[Column, ...]  # columns of the aggregate's input
    outputs: tuple[Column, ...]
    algebra: Algebra | None
    columns: Mapping[Query, tuple[Column, ...]] = field(
        default_factory=dict, compare=False
    )  # of the nodes inside

    @property
    def root(self) -> Query:
        return self.aggregate

    @property
    def sources(self) -> tuple[Source, ...]:
        return sources_of(self.aggregate)

    @cached_property
    def keys(self) -> tuple[Column, ...]:
        """The columns of the input by which rows are grouped."""
        return tuple(
            Column(column.name, column.type, nullable=not self._never_null(column.name))
            for name in self.aggregate.keys
            for column in self.rows
            if column.name == name
        )

    @cached_property
    def stored_keys(self) -> dict[str, str]:
        """Key to the stored column that holds it: a user's column if one shows just the key."""
        shown: dict[str, str] = {}
        for output in self.aggregate.outputs:
            if output.expression.column is not None:
                shown.setdefault(output.expression.column.name, output.name)
        return {key.name: shown.get(key.name, f"{HIDDEN}{key.name}") for key in self.keys}

    @cached_property
    def stored_columns(self) -> tuple[str, ...]:
        names = [column.name for column in self.outputs]
        names += [name for name in self.stored_keys.values() if name not in names]
        if self.algebra:
            names += [state.name for state in self.algebra.states]
        if self.hides_groups:
            names.append(VISIBLE)
        return (*names, HASH)

    @property
    def hides_groups(self) -> bool:
        """True if groups that HAVING excludes are stored, because their state is needed when they return."""
        return self.algebra is not None and self.aggregate.having is not None

    def stored_sql(self, storage: str) -> str:
        """Return the stored rows."""
        return f"SELECT {', '.join(identifier(name) for name in self.stored_columns)} FROM {storage}"

    def full_sql(self) -> str:
        """Return all rows as they are stored, recomputed from the sources."""
        return self._groups_sql(now_sql(self.aggregate.input))

    def recompute_sql(self, key_table: str) -> str:
        """Return the rows of the groups in a key table, recomputed from the sources."""
        return self.restricted_sql(KeyFilter(key_table, self.keys))

    def restricted_sql(self, key_filter: KeyFilter) -> str:
        """Return the rows of some groups, recomputed from the sources."""
        return self._groups_sql(now_sql(self.aggregate.input, key_filter))

    def affected_sql(self, staged: Staged) -> str:
        """Return the distinct keys that occur in the input's delta."""
        delta = consolidated_sql(delta_sql(self.aggregate.input, staged), self.rows)
        return f"SELECT DISTINCT {self.key_columns('d')} FROM (\n{delta}\n) AS d"

    def state_delta_sql(self, staged: Staged) -> str:
        """Return what to add to the stored state of each affected key."""
        assert self.algebra is not None
        delta = delta_sql(self.aggregate.input, staged)
        if self.algebra.extremes:
            # An extreme is taken over single rows, so rows that cancel out must be removed first.
            delta = consolidated_sql(delta, self.rows)
        columns = [
            f"{expression} AS {identifier(name)}"
            for state in self.algebra.states
            for name, expression in zip(delta_columns(state), over_delta(state, WEIGHT), strict=True)
        ]
        keys = [f"d.{key.sql}" for key in self.keys]
        group = f" GROUP BY {', '.join(keys)}" if keys else ""
        return f"SELECT {', '.join([self.key_columns('d'), *columns])} FROM (\n{delta}\n) AS d{group}"

    def rescan_sql(self, delta_table: str, storage: str) -> str | None:
        """Return the keys whose state cannot be updated by adding, or None if there are none."""
        assert self.algebra is not None
        conditions = [found for state in self.algebra.states if (found := rescan_condition(state))]
        if not conditions:
            return None
        keys = ", ".join(f"d.{name}" for name in self.key_table_columns)
        return (
            f"SELECT {keys} FROM {delta_table} AS d LEFT JOIN {storage} AS s ON {self.same_key('s', 'd')}"
            f" WHERE {' OR '.join(conditions)}"
        )

    def merge_sql(self, delta_table: str, storage: str, rescanned: str | None) -> str:
        """Return the new rows of the affected groups from stored state and delta, without rescanned ones."""
        assert self.algebra is not None
        states = [f"{merged(state)} AS {identifier(state.name)}" for state in self.algebra.states]
        keys = [f"d.{key.sql}" for key in self.keys]
        conditions = []
        if rescanned:
            conditions.append(
                f"NOT EXISTS (SELECT FROM {rescanned} AS k WHERE {self.same_affected('k', 'd')})"
            )
        merged_states = (
            f"SELECT {', '.join([*keys, *states])} FROM {delta_table} AS d"
            f" LEFT JOIN {storage} AS s ON {self.same_key('s', 'd')}"
            + (f" WHERE {' AND '.join(conditions)}" if conditions else "")
        )
        return self.finished_sql(merged_states) + (f" WHERE g.{ROW_COUNT} <> 0" if self.keys else "")

    @cached_property
    def key_table_columns(self) -> tuple[str, ...]:
        return (*(key.sql for key in self.keys), HASH, HAS_NULL)

    def same_key(self, stored: str, affected: str) -> str:
        """Return the condition that a stored row has the key of a row in a key table."""
        return self._same_key(stored, affected, self.stored_keys)

    def same_affected(self, left: str, right: str) -> str:
        """Return the condition that two rows of key tables have the same key."""
        return self._same_key(left, right, {key.name: key.name for key in self.keys})

    def same_stored(self, left: str, right: str) -> str:
        """Return the condition that two stored rows have the same key."""
        keys = [
            null_safe_equal(f"{left}.{identifier(name)}", f"{right}.{identifier(name)}", key.type)
            for key in self.keys
            for name in [self.stored_keys[key.name]]
        ]
        return _same(left, right, keys)

    def _same_key(self, left: str, right: str, names: dict[str, str]) -> str:
        keys = [
            null_safe_equal(f"{left}.{identifier(names[key.name])}", f"{right}.{key.sql}", key.type)
            for key in self.keys
        ]
        return _same(left, right, keys)

    def key_columns(self, alias: str) -> str:
        """Return the key, its hash, and whether it has a NULL."""
        keys = [f"{alias}.{key.sql}" for key in self.keys]
        nullable = [is_null(f"{alias}.{key.sql}") for key in self.keys if key.nullable]
        return ", ".join(
            [*keys, f"{self._key_hash(alias)} AS {HASH}", f"{' OR '.join(nullable) or 'false'} AS {HAS_NULL}"]
        )

    def _key_hash(self, alias: str) -> str:
        return hash_sql([hashable(f"{alias}.{key.sql}", key.type) for key in self.keys])

    def _groups_sql(self, rows: str) -> str:
        """Return rows aggregated and finished into stored rows."""
        keys = [f"i.{key.sql}" for key in self.keys]
        if self.algebra:
            columns = [f"{over_rows(state)} AS {identifier(state.name)}" for state in self.algebra.states]
        else:
            columns = [f"{call.text} AS {identifier(call.name)}" for call in self.aggregate.calls]
        group = f" GROUP BY {', '.join(keys)}" if keys else ""
        return self.finished_sql(f"SELECT {', '.join([*keys, *columns])} FROM (\n{rows}\n) AS i{group}")

    def finished_sql(self, groups: str) -> str:
        """Turn state or call values into the stored columns: outputs, hidden keys, states, hash."""
        if self.algebra:
            finals = [f"{sql} AS {identifier(name)}" for name, sql in self.algebra.finals]
            groups = f"SELECT {', '.join(['s.*', *finals])} FROM (\n{groups}\n) AS s"
        columns = [f"{self._shown_only(out)} AS {identifier(out.name)}" for out in self.aggregate.outputs]
        shown = {output.name for output in self.aggregate.outputs}
        columns += [
            f"{GROUP}.{identifier(key)} AS {identifier(stored)}"
            for key, stored in self.stored_keys.items()
            if stored not in shown
        ]
        if self.algebra:
            columns += [f"{GROUP}.{identifier(state.name)}" for state in self.algebra.states]
        having = f"({self.aggregate.having_sql})" if self.aggregate.having_sql is not None else ""
        if self.hides_groups:
            columns.append(f"{GROUP}.{VISIBLE}")
            groups = f"SELECT {GROUP}.*, {having} IS TRUE AS {VISIBLE} FROM (\n{groups}\n) AS {GROUP}"
        columns.append(f"{self._key_hash(GROUP)} AS {HASH}")
        condition = f" WHERE {having}" if having and not self.hides_groups else ""
        return f"SELECT {', '.join(columns)} FROM (\n{groups}\n) AS {GROUP}{condition}"

    def _shown_only(self, output: Output) -> str:
        """Return an output, not evaluated for a group that HAVING excludes: there it may divide by zero."""
        if not self.hides_groups or output.expression.column is not None:
            return output.text
        return f"CASE WHEN {GROUP}.{VISIBLE} THEN {output.text} END"

    def _never_null(self, name: str) -> bool:
        """Tell whether a key is a NOT NULL column of a source in every branch of the input."""
        body = self.aggregate.input
        blocks = body.branches if isinstance(body, UnionAll) else (body,)
        position = body.output_names.index(name)
        return all(
            isinstance(block, Select) and _is_not_null_column(block, block.outputs[position].expression)
            for block in blocks
        )


def _same(left: str, right: str, compared: list[str]) -> str:
    """Return the condition that two rows are the same: first by a hash, on which the server can join."""
    hashes = f"{left}.{HASH} = {right}.{HASH}"
    return f"{hashes} AND {rechecked(compared)}" if compared else hashes


def _is_not_null_column(block: Select, expression: Expression) -> bool:
    own = expression.column
    if own is None:
        return False
    node = next((item.node for item in block.inputs if item.alias == own.alias), None)
    return isinstance(node, Scan) and node.source.column(own.name).not_null


IncrementalPlan = BagPlan | GroupPlan
MaintenancePlan = RecomputePlan | GroupPlan


def where_shown(plan: MaintenancePlan) -> str:
    """Return the condition under which users see a stored row, as a WHERE clause if there is one."""
    return f" WHERE {VISIBLE}" if plan.hides_groups else ""
