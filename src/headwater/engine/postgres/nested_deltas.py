"""The changes of nonlinear nodes inside a query, from the inside out, each in a table of its own.

For a node that has a key, let K be the keys that occur in the delta of what it reads. Its own delta is its
result over the current rows with these keys, minus that over the old rows. A node with lookups is linear in
its core; of the rows whose core did not change, only those can change that may find a change in a lookup.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from headwater.plan.expression import Expression
from headwater.plan.key_filter import HAS_NULL, HASH, KeyFilter
from headwater.plan.operators import CORE, Aggregate, Apply, Keyed, Lookup, Node, Nonlinear, Query, children
from headwater.plan.quoting import identifier
from headwater.plan.render import aggregate_sql, apply_sql, keyed_sql, lookup_filter, now_sql
from headwater.plan.staged import Staged
from headwater.plan.steps import Steps, Tables, fill, index
from headwater.plan.storage_plan import BagPlan, GroupPlan
from headwater.plan.values import (
    ANY_TYPE,
    WEIGHT,
    Column,
    consolidated_sql,
    hash_sql,
    hashable,
    is_null,
    old_sql,
)

INDEXED_ROWS = 200
"""Rows of a lookup from which making an index on it pays."""


DeltaOf = Callable[[Query, Staged], Steps[str]]
"""Makes the SQL of the change of what a nonlinear node reads, weighted and not consolidated."""


FILTERED_ROWS = 1000
"""Rows from which those that fail a condition are left out before the next lookup."""


def with_inner(tables: Tables, plan: BagPlan | GroupPlan, staged: Staged, delta_of: DeltaOf) -> Steps[Staged]:
    """Add to the staged changes of sources those of the nonlinear nodes inside the plan's query."""
    if not plan.columns:
        return staged
    return (yield from _Inside(tables, plan.columns, staged, delta_of).of(plan.root))


class _Inside:
    def __init__(
        self,
        tables: Tables,
        columns: Mapping[Query, tuple[Column, ...]],
        staged: Staged,
        delta_of: DeltaOf,
    ) -> None:
        self._tables = tables
        self._columns = columns
        self._delta_of = delta_of
        self._inner: dict[Nonlinear, str] = {}
        self._rows = dict(staged.rows)
        self._staged = replace(staged, inner=self._inner, rows=self._rows)
        self._numbers: dict[Nonlinear, int] = {}

    def of(self, root: Query) -> Steps[Staged]:
        for child in children(root):
            yield from self._visit(child)
        if not isinstance(root, Aggregate):
            yield from self._stage(root)
        return self._staged

    def _visit(self, node: Node) -> Steps[None]:
        for child in children(node):
            yield from self._visit(child)
        yield from self._stage(node)

    def _stage(self, node: Node) -> Steps[None]:
        match node:
            case Aggregate() | Keyed() | Apply() if node not in self._numbers:
                self._numbers[node] = len(self._numbers) + 1
                if any(self._staged.changes(child) for child in children(node)):
                    found = yield from (self._applied(node) if isinstance(node, Apply) else self._keyed(node))
                    if found is not None:
                        self._inner[node] = found
            case _:
                pass

    def _fill(self, node: Nonlinear, what: str, select: str) -> Steps[str | None]:
        """Fill a table with the rows of a query; return its name, or None if there are no rows."""
        table = f"n{self._numbers[node]}_{what}"
        rows = yield from fill(self._tables, table, select)
        self._rows[self._tables.sql(table)] = rows
        return self._tables.sql(table) if rows else None

    def _changed(self, node: Nonlinear, what: str, child: Query) -> Steps[str | None]:
        """Return the consolidated change of what a node reads."""
        if not self._staged.changes(child):
            return None
        weighted = yield from self._delta_of(child, self._staged)
        return (yield from self._fill(node, what, consolidated_sql(weighted, self._columns[child])))

    def _consolidated(self, node: Nonlinear, parts: list[str]) -> Steps[str | None]:
        weighted = "\nUNION ALL\n".join(parts)
        return (yield from self._fill(node, "delta", consolidated_sql(weighted, self._columns[node])))

    # keys

    def _keyed(self, node: Aggregate | Keyed) -> Steps[str | None]:
        if isinstance(node, Aggregate):
            sides: list[tuple[Query, tuple[str, ...]]] = [(node.input, node.keys)]
        else:
            sides = [(item.node, keys) for item, keys in zip(node.inputs, node.keys, strict=True)]  # type: ignore[misc]
        deltas: list[str | None] = []
        for number, (child, _) in enumerate(sides):
            deltas.append((yield from self._changed(node, f"in{number}", child)))
        if not any(deltas):
            return None
        now = []
        key_filter = yield from self._affected(node, sides, deltas)
        for number, (child, keys) in enumerate(sides):
            if key_filter is None:
                now.append(now_sql(child))
            else:
                rows = now_sql(child, replace(key_filter, columns=keys))
                yield from self._fill(node, f"now{number}", rows)
                now.append(f"SELECT * FROM {self._tables.sql(f'n{self._numbers[node]}_now{number}')}")
        before = [
            old_sql(rows, delta, self._columns[child]) if delta else rows
            for rows, delta, (child, _) in zip(now, deltas, sides, strict=True)
        ]
        parts = [
            self._weighted(node, self._over(node, now), "1"),
            self._weighted(node, self._over(node, before), "-1"),
        ]
        return (yield from self._consolidated(node, parts))

    def _over(self, node: Aggregate | Keyed, rows: list[str]) -> str:
        return aggregate_sql(node, rows[0]) if isinstance(node, Aggregate) else keyed_sql(node, rows)

    def _weighted(self, node: Nonlinear, rows: str, weight: str) -> str:
        listed = "".join(f"z.{identifier(name)}, " for name in node.output_names)
        return f"SELECT {listed}{weight}::bigint AS {WEIGHT} FROM (\n{rows}\n) AS z"

    def _affected(
        self, node: Nonlinear, sides: list[tuple[Query, tuple[str, ...]]], deltas: list[str | None]
    ) -> Steps[KeyFilter | None]:
        """Return the keys that occur in the deltas of what a node reads."""
        if not sides[0][1]:
            return None
        types = {column.name: column.type for column in self._columns[sides[0][0]]}
        kinds = [types[name] for name in sides[0][1]]
        if len(sides) > 1:  # keys are whole rows, compared in the types of the result
            kinds = [column.type for column in self._columns[node]]
        keys = tuple(Column(f"k{number}", kind) for number, kind in enumerate(kinds))
        parts = []
        for delta, (_, names) in zip(deltas, sides, strict=True):
            if delta:
                values = [
                    f"(d.{identifier(name)})::{key.type.sql} AS {key.sql}"
                    for name, key in zip(names, keys, strict=True)
                ]
                parts.append(f"SELECT {', '.join(values)} FROM {delta} AS d")
        nulls = " OR ".join(is_null(f"a.{key.sql}") for key in keys)
        hashed = hash_sql([hashable(f"a.{key.sql}", key.type) for key in keys])
        listed = ", ".join(f"a.{key.sql}" for key in keys)
        union = " UNION ALL ".join(parts)
        distinct = f"SELECT DISTINCT {listed} FROM ({union}) AS a"
        table = yield from self._fill(
            node, "keys", f"SELECT a.*, {hashed} AS {HASH}, {nulls} AS {HAS_NULL} FROM ({distinct}) AS a"
        )
        return KeyFilter(table or "", keys) if table else None

    # lookups

    def _applied(self, node: Apply) -> Steps[str | None]:
        core = yield from self._changed(node, "core", node.core)
        changed: dict[str, str] = {}
        for lookup in node.lookups:
            table = yield from self._changed(node, lookup.name, lookup.node)
            if table is not None:
                changed[lookup.name] = table
        touched = yield from self._touched(node, core, changed)
        names = ", ".join(column.sql for column in self._columns[node.core])
        now, before = {}, {}
        for number, lookup in enumerate(node.lookups, 1):
            rows = " UNION ALL ".join(f"SELECT {names} FROM {table}" for table in (core, touched) if table)
            if not rows:
                return None
            # Old states of lookups are needed only for rows whose core did not change.
            delta = changed.get(lookup.name) if touched else None
            sides = yield from self._found(node, lookup, f"({rows})", delta)
            now[lookup.name], before[lookup.name] = sides
            if number < len(node.lookups):
                core, touched = yield from self._passing(node, lookup, sides, core, touched)
        if core is None and touched is None:
            return None
        parts = [
            self._weighted(node, apply_sql(node, f"SELECT * FROM {table}", now, weighted=True), f"z.{WEIGHT}")
            for table in (core, touched)
            if table
        ]
        if touched:
            old = apply_sql(node, f"SELECT * FROM {touched}", before, weighted=True)
            parts.append(self._weighted(node, old, f"-z.{WEIGHT}"))
        return (yield from self._consolidated(node, parts))

    def _passing(
        self,
        node: Apply,
        lookup: Lookup,
        sides: tuple[str, str],
        core: str | None,
        touched: str | None,
    ) -> Steps[tuple[str | None, str | None]]:
        """Return the rows that may pass the conditions on one lookup alone, before others are searched.

        A changed row must pass them now; any other row must pass them now or before, or it is shown in
        neither state.
        """
        answered = _answered_alone(node, lookup)
        many = sum(self._rows.get(table, 0) for table in (core, touched) if table) >= FILTERED_ROWS
        if not answered or not many:
            return core, touched
        bound = ", ".join(
            f"{identifier(name)} AS NOT MATERIALIZED (\n{rows}\n)"
            for name, rows in zip((lookup.name, _before(lookup)), sides, strict=True)
        )
        passes = " AND ".join(f"({tree.text})" for tree in answered)
        passed = " AND ".join(f"({_asked_before(tree, lookup).text})" for tree in answered)

        def filtered(table: str | None, what: str, condition: str) -> Steps[str | None]:
            if table is None:
                return None
            select = f"WITH {bound} SELECT {CORE}.* FROM {table} AS {CORE} WHERE {condition}"
            return (yield from self._fill(node, f"{what}_{lookup.name}", select))

        core = yield from filtered(core, "core", passes)
        touched = yield from filtered(touched, "touched", f"({passes}) OR ({passed})")
        return core, touched

    def _touched(self, node: Apply, core: str | None, changed: Mapping[str, str]) -> Steps[str | None]:
        """Return the rows of the old core that may find a change in a lookup."""
        columns = self._columns[node.core]
        listed = "".join(f"{CORE}.{column.sql}, " for column in columns)
        parts: list[str] = []
        earlier: list[str] = []
        bound: list[str] = []
        for lookup in node.lookups:
            if lookup.name not in changed:
                continue
            delta = changed[lookup.name]
            finds = _finds(node, lookup, delta)
            if not lookup.conditions:
                now = now_sql(lookup.node)
                sides = {lookup.name: now, _before(lookup): old_sql(now, delta, self._columns[lookup.node])}
                bound += [f"{identifier(name)} AS MATERIALIZED (\n{rows}\n)" for name, rows in sides.items()]
            where = " AND ".join([finds, *(f"NOT {other}" for other in earlier)])
            rows = now_sql(node.core, _finders(lookup, delta))
            parts.append(f"SELECT {listed}1::bigint AS {WEIGHT} FROM (\n{rows}\n) AS {CORE} WHERE {where}")
            if core is not None:
                parts.append(f"SELECT {listed}-{CORE}.{WEIGHT} FROM {core} AS {CORE} WHERE {where}")
            earlier.append(finds)
        if not parts:
            return None
        weighted = (f"WITH {', '.join(bound)} " if bound else "") + "\nUNION ALL\n".join(parts)
        return (yield from self._fill(node, "touched", consolidated_sql(weighted, columns)))

    def _found(self, node: Apply, lookup: Lookup, core: str, delta: str | None) -> Steps[tuple[str, str]]:
        """Return what rows of a core can find in a lookup, now and before."""
        restriction = lookup_filter(lookup, core)
        now = now_sql(lookup.node, restriction)
        if restriction is not None:
            now = yield from self._kept(node, lookup, "now", now)
        if delta is None:
            return now, now
        # Rows of the delta outside the restriction may stay: no row of the core finds them.
        before = old_sql(now, delta, self._columns[lookup.node])
        if not lookup.exempt:
            # A reference to outer rows is evaluated for each of them; do not read the whole lookup each time.
            before = yield from self._kept(node, lookup, "old", before)
        return now, before

    def _kept(self, node: Apply, lookup: Lookup, when: str, rows: str) -> Steps[str]:
        """Put rows of a lookup into a table of their own."""
        table = f"n{self._numbers[node]}_{lookup.name}_{when}"
        count = yield from fill(self._tables, table, rows)
        if lookup.equals and not node.joins and count >= INDEXED_ROWS:
            # A subquery searches it once for each row; only a join has other ways.
            yield from index(self._tables, table, [column for column, _ in lookup.equals])
        return f"SELECT * FROM {self._tables.sql(table)}"


def _finds(node: Apply, lookup: Lookup, delta: str) -> str:
    """Return the condition that a row of the core may find something else in a lookup than before."""
    if lookup.conditions:
        conditions = " AND ".join(f"({condition})" for condition in lookup.condition_sql)
        return f"EXISTS (SELECT FROM {delta} AS {identifier(lookup.name)} WHERE {conditions})"
    # Every row asks the same question, and most of them still get the same answer.
    differ = [
        f"(({tree.text}) IS TRUE) <> (({_asked_before(tree, lookup).text}) IS TRUE)"
        for tree in _answered_alone(node, lookup)
    ]
    return f"({' OR '.join(differ) or 'true'})"


def _before(lookup: Lookup) -> str:
    """Return the name of a lookup's old state."""
    return f"{lookup.name}_before"


def _asked_before(tree: Expression, lookup: Lookup) -> Expression:
    """Return an expression that reads a lookup's old state."""
    return tree.reading({lookup.name: _before(lookup)})


def _answered_alone(node: Apply, lookup: Lookup) -> list[Expression]:
    """Return the core's conditions that read one lookup, if nothing else does and they read no other."""
    names = {other.name for other in node.lookups}

    def read(tree: Expression) -> set[str]:
        return set(tree.tables & names)

    shown = [output.expression for output in node.outputs] + [joined.item for joined in node.joins]
    joining = [joined.condition for joined in node.joins if joined.condition is not None]
    if any(lookup.name in read(tree) for tree in [*shown, *joining]):
        return []
    reading = [tree for tree in node.predicates if lookup.name in read(tree)]
    if any(read(tree) != {lookup.name} or not tree.aliases <= {CORE, lookup.name} for tree in reading):
        return []
    return reading


def _finders(lookup: Lookup, delta: str) -> KeyFilter | None:
    """Restrict a core to the rows whose values occur in the delta of a lookup."""
    if not lookup.equals or lookup.exempt:
        return None
    listed = ", ".join(
        f"d.{identifier(column)} AS k{number}" for number, (column, _) in enumerate(lookup.equals)
    )
    return KeyFilter(
        f"(SELECT DISTINCT {listed} FROM {delta} AS d)",
        tuple(Column(f"k{number}", ANY_TYPE, nullable=False) for number in range(len(lookup.equals))),
        columns=tuple(column for _, column in lookup.equals),
        exists=True,
        first=True,
    )
