"""The engine on Spark.

PostgreSQL reads each input and evaluates what concerns it alone, Spark joins and aggregates, PostgreSQL
finishes (`program`). The rows that are read follow the change: from the delta of a term outwards along the
join's equalities, PostgreSQL reduces each further input to the rows that can match what was reached before,
as long as that is much less than the whole. Only the rest is read by tasks, in parallel.

Groups without an algebra, and groups whose minimum or maximum was deleted, are recomputed by PostgreSQL:
their keys are known then, and only their rows are read. Nonlinear nodes inside a query are treated alike:
Spark joins what they read, and PostgreSQL computes their change, restricted to the keys that occur there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from headwater.engine.postgres.engine import PostgresEngine
from headwater.engine.postgres.nested_deltas import with_inner
from headwater.engine.spark.program import (
    BagPart,
    BagProgram,
    BlockProgram,
    Frames,
    GroupProgram,
    Part,
    Program,
    RowsProgram,
    W,
)
from headwater.engine.spark.steps import Size, collect, pages_of, read_by_tasks, read_here, size_of, store
from headwater.engine.spark.translate import Leaf
from headwater.engine.spark.transport.wire import BulkRead, Column
from headwater.plan.expression import Expression
from headwater.plan.key_filter import KeyFilter
from headwater.plan.operators import Query, Scan, scanned_directly, scans
from headwater.plan.quoting import identifier
from headwater.plan.render import delta_sql, input_sql, now_sql
from headwater.plan.semijoin import can_restrict
from headwater.plan.staged import Changes, Staged
from headwater.plan.steps import Steps, Tables, fill, in_phase
from headwater.plan.storage_plan import BagPlan, GroupPlan, IncrementalPlan, MaintenancePlan
from headwater.plan.substitute import substituted
from headwater.plan.terms import Term, Version, terms
from headwater.plan.values import ANY_TYPE, WEIGHT
from headwater.plan.values import Column as KeyColumn

SMALL_ROWS = 20_000
"""Up to about this many rows, an input comes through the driver."""
UNSTAGED_ROWS = 50_000
"""From this many change rows on, tasks read them from the change table."""
PUSHDOWN_FACTOR = 8
"""Keys are pushed down when the table has this many times more rows than there are keys."""


@dataclass(frozen=True)
class _Reached:
    """Rows of an input that are known in the refresh's transaction."""

    source: str  # a FROM item under the input's alias
    predicates: tuple[str, ...]
    rows: int


class SparkEngine:
    """The steps of one stream table's program; made for one refresh."""

    name = "spark"

    def __init__(self, program: Program, hidden: frozenset[int] = frozenset()) -> None:
        """Prepare; `hidden` are sources that this transaction wrote to: tasks cannot see their state."""
        self._program = program
        self._hidden = hidden
        self._sizes: dict[int, Size] = {}
        self._changes: dict[tuple[str, str], tuple[str, int]] = {}
        self._wholes: dict[tuple[str, str], str] = {}
        self._inner_deltas: dict[Query, str] = {}
        self._inner_tables: dict[Query, str] = {}
        self._postgres = PostgresEngine()

    # the contract

    def in_place(self, plan: IncrementalPlan, pending: Mapping[int, int]) -> frozenset[int]:
        """Return sources with many committed change rows, which tasks read and consolidate themselves."""
        many = {relation for relation, rows in pending.items() if rows > UNSTAGED_ROWS}
        return scanned_directly(plan.root) & many - self._hidden

    def bag_delta(self, tables: Tables, plan: BagPlan, staged: Staged) -> Steps[int]:
        staged = yield from self._with_inner(tables, plan, staged)
        rows = self._bag().rows
        if rows is None or not staged.changes(plan.body):
            return (yield from fill(tables, "delta", plan.delta_sql(staged)))
        weighted = yield from self._joined_delta(tables, rows, staged)
        return (yield from fill(tables, "delta", plan.weighted_sql(weighted)))

    def state_delta(self, tables: Tables, plan: GroupPlan, staged: Staged) -> Steps[int]:
        staged = yield from self._with_inner(tables, plan, staged)
        if not staged.changes(plan.aggregate.input):
            return (yield from fill(tables, "delta", plan.state_delta_sql(staged)))
        part = self._group().part
        statement = part.statement((yield from self._delta_rows(tables, part, staged)), weighted=True)
        raw = yield from collect(tables, "raw0", statement, part.columns(weighted=True))
        return (yield from fill(tables, "delta", self._group().finish_state_delta(raw)))

    def affected_keys(self, tables: Tables, plan: GroupPlan, staged: Staged) -> Steps[int]:
        staged = yield from self._with_inner(tables, plan, staged)
        if not staged.changes(plan.aggregate.input):
            return (yield from fill(tables, "keys", plan.affected_sql(staged)))
        part = self._group().part
        statement = part.keys_statement((yield from self._delta_rows(tables, part, staged)))
        raw = yield from collect(tables, "raw0", statement, part.key_columns)
        return (yield from fill(tables, "keys", self._group().finish_keys(raw)))

    def recompute(self, tables: Tables, plan: GroupPlan, keys: str) -> Steps[int]:
        return self._postgres.recompute(tables, plan, keys)

    def recompute_all(self, tables: Tables, plan: MaintenancePlan, storage: str) -> Steps[int]:
        match self._program:
            case GroupProgram() as program:
                statement, columns = yield from self._all_groups(program)
                raw = yield from collect(tables, "all0", statement, columns)
                return (yield from fill(tables, "result", program.finish_groups(raw)))
            case BagProgram(rows=None) as bag:
                for query in self._outermost(bag):
                    yield from self._make_whole(tables, query)
                rows = now_sql(substituted(bag.plan.body, self._inner_tables.get))
                return (yield from fill(tables, "delta", bag.plan.difference_sql(storage, rows)))
            case BagProgram() as bag:
                assert bag.rows is not None
                rows = yield from self._all_joined(tables, bag.rows)
                return (yield from fill(tables, "delta", bag.plan.difference_sql(storage, rows)))

    def load(self, table: str) -> Steps[int]:
        """Fill new storage, which everybody sees, by tasks; return how many rows."""
        part_table = "pg_temp.hw_part"
        match self._program:
            case GroupProgram() as program:
                statement, columns = yield from self._all_groups(program)
                return (
                    yield from store("groups", statement, columns, table, program.finish_groups(part_table))
                )
            case BagProgram(rows=rows) as bag:
                assert rows is not None
                stored = 0
                for number, part in enumerate(rows.parts):
                    statement = yield from self._all_rows(part)
                    finish = bag.plan.full_sql(part.finish(part_table, weighted=False))
                    stored += yield from store(f"rows{number}", statement, part.columns, table, finish)
                return stored

    def _all_groups(self, program: GroupProgram) -> Steps[tuple[str, tuple[Column, ...]]]:
        rows = yield from self._all_rows(program.part)
        return program.part.statement(rows, weighted=False), program.part.columns(weighted=False)

    def _bag(self) -> BagProgram:
        assert isinstance(self._program, BagProgram)
        return self._program

    def _group(self) -> GroupProgram:
        assert isinstance(self._program, GroupProgram)
        return self._program

    # inside

    def _with_inner(self, tables: Tables, plan: BagPlan | GroupPlan, staged: Staged) -> Steps[Staged]:
        """Return the changes of nonlinear nodes inside, which PostgreSQL computes from Spark's joins."""
        inner = with_inner(tables, plan, staged, partial(self._inner_delta, tables))
        return (yield from in_phase("read", inner))

    def _inner_delta(self, tables: Tables, query: Query, staged: Staged) -> Steps[str]:
        if query not in self._program.inner:
            return delta_sql(query, staged)
        if query not in self._inner_deltas:
            program = self._program.inner[query]
            self._inner_deltas[query] = yield from self._joined_delta(tables, program, staged)
        return self._inner_deltas[query]

    def _joined_delta(self, tables: Tables, program: RowsProgram, staged: Staged) -> Steps[str]:
        """Return the SQL of a query's weighted change, whose joins Spark has computed."""
        found: dict[int, str] = {}
        for number, part in enumerate(program.parts):
            rows = yield from self._delta_rows(tables, part, staged)
            if rows:
                columns = program.columns(part, weighted=True)
                found[number] = yield from collect(tables, f"{program.name}raw{number}", rows, columns)
        return program.finish(found, weighted=True)

    def _outermost(self, bag: BagProgram) -> list[Query]:
        """Return the parts of a query that are joined on Spark and lie in no other such part."""
        found: list[Query] = []

        def take(query: Query) -> str | None:
            if query not in self._program.inner:
                return None
            found.append(query)
            return ""

        substituted(bag.plan.body, take)
        return found

    def _make_whole(self, tables: Tables, query: Query) -> Steps[None]:
        """Make a table of all rows of a query that is joined on Spark."""
        program = self._program.inner[query]
        table = f"{program.name}rows"
        yield from fill(tables, table, (yield from self._all_joined(tables, program)))
        self._inner_tables[query] = tables.sql(table)

    def _all_joined(self, tables: Tables, program: RowsProgram) -> Steps[str]:
        """Return the SQL of all rows of a query, whose joins Spark has computed."""
        found: dict[int, str] = {}
        for number, part in enumerate(program.parts):
            rows = yield from self._all_rows(part)
            found[number] = yield from collect(tables, f"{program.name}all{number}", rows, part.columns)
        return program.finish(found, weighted=False)

    # rows on Spark

    def _all_rows(self, part: Part | BagPart) -> Steps[str]:
        selects = []
        for block in part.blocks:
            term: Term = (Version.NEW,) * len(block.leaves)
            frames = {}
            for leaf in block.leaves:
                frames[leaf.alias] = Frames(now=(yield from self._whole(block, leaf, Staged({}))))
            selects.append(block.rows_sql(term, frames, weighted=False))
        return "\nUNION ALL\n".join(selects)

    def _delta_rows(self, tables: Tables, part: Part | BagPart, staged: Staged) -> Steps[str]:
        """Return the weighted rows of every term; nothing if no block of the part has one."""
        selects = []
        for block in part.blocks:
            for term in terms(block.block, staged.changes, staged.size):
                frames = yield from self._term_frames(tables, block, term, staged)
                selects.append(block.rows_sql(term, frames, weighted=True))
        return "\nUNION ALL\n".join(selects)

    def _term_frames(
        self, tables: Tables, block: BlockProgram, term: Term, staged: Staged
    ) -> Steps[dict[str, Frames]]:
        """Read what a term needs, from its delta outwards."""
        versions = {leaf.alias: version for leaf, version in zip(block.leaves, term, strict=True)}
        frames: dict[str, Frames] = {}
        reached: dict[str, _Reached] = {}
        waiting, pivot = [], ""
        for leaf in block.leaves:
            if versions[leaf.alias] is Version.DELTA:
                view, rows = yield from self._change(block, leaf, staged)
                source, _ = input_sql(leaf.item, Version.DELTA, staged)
                frames[leaf.alias], pivot = Frames(delta=view), leaf.alias
                reached[leaf.alias] = _Reached(source, tuple(leaf.predicates), rows)
            else:
                waiting.append(leaf)
        while waiting:
            leaf = _next_linked(block, waiting, reached)
            waiting.remove(leaf)
            change, changed_rows = None, 0
            if versions[leaf.alias] is Version.OLD:
                change, changed_rows = yield from self._change(block, leaf, staged)
            now = yield from self._matching(tables, block, pivot, leaf, staged, reached)
            if now is None:
                now = yield from self._whole(block, leaf, staged)
            elif change is not None:
                reached[leaf.alias] = _with_change(leaf, reached[leaf.alias], changed_rows, staged)
            frames[leaf.alias] = Frames(now=now, delta=change)
        return frames

    def _change(self, block: BlockProgram, leaf: Leaf, staged: Staged) -> Steps[tuple[str, int]]:
        """Return the change of an input with weights, and about how many rows it has."""
        key = (block.name, leaf.alias)
        if key not in self._changes:
            source, _ = input_sql(leaf.item, Version.DELTA, staged)
            weight = f"{identifier(leaf.alias)}.{WEIGHT}::bigint AS {W}"
            select = f"SELECT {', '.join(filter(None, [leaf.select_list, weight]))}"
            columns = (*leaf.columns, Column(W, "bigint"))
            what = f"the change of {_label(leaf)}"
            found = self._unstaged(leaf, staged)
            if found is None:
                query = f"{select} FROM {source}{_where(leaf.predicates)}"
                self._changes[key] = yield from read_here(what, query, columns)
            else:
                ctid, pages = f"{identifier(leaf.alias)}.ctid", (yield from pages_of(found.relation))
                read = BulkRead(select, source, tuple(leaf.predicates), columns, ctid, found.relation)
                self._changes[key] = (yield from read_by_tasks(what, read, pages)), found.rows
        return self._changes[key]

    @staticmethod
    def _unstaged(leaf: Leaf, staged: Staged) -> Changes | None:
        node = leaf.item.node
        return staged.unstaged.get(node.source.relation) if isinstance(node, Scan) else None

    def _matching(
        self,
        tables: Tables,
        block: BlockProgram,
        pivot: str,
        leaf: Leaf,
        staged: Staged,
        reached: dict[str, _Reached],
    ) -> Steps[str | None]:
        """Return the rows of an input that can match what was reached, if few; None to read it whole."""
        best = None
        for alias, found in reached.items():
            sides = [pair for link in block.links if (pair := link.seen_from(leaf.alias, alias)) is not None]
            if sides and (best is None or found.rows < best[0].rows):
                best = (found, sides)
        if best is None:
            return None
        found, sides = best
        if found.rows * PUSHDOWN_FACTOR > (yield from self._rows(leaf)) and (yield from self._is_large(leaf)):
            return None
        mine, theirs = (", ".join(f"({side.text})" for side in each) for each in zip(*sides, strict=True))
        row = f"({mine})" if len(sides) > 1 else mine
        keys = f"SELECT {theirs} FROM {found.source}{_where(found.predicates)}"
        source, _ = input_sql(leaf.item, Version.NEW, staged, _carried_inside(leaf, found, sides))
        alias = identifier(leaf.alias)
        table = f"reach_{block.name}_{pivot}_{leaf.alias}"
        conditions = _where([*leaf.predicates, f"{row} IN ({keys})"])
        select = f"SELECT {_listed(leaf)} FROM {source}{conditions}"
        rows = yield from in_phase("read", fill(tables, table, select))
        here = f"{tables.sql(table)} AS {alias}"
        reached[leaf.alias] = _Reached(here, (), rows)
        view, _ = yield from read_here(
            f"{_label(leaf)} where it matches", f"SELECT {leaf.select_list} FROM {here}", leaf.columns
        )
        return view

    def _whole(self, block: BlockProgram, leaf: Leaf, staged: Staged) -> Steps[str]:
        """Return all current rows of an input: read by tasks if they are many."""
        key = (block.name, leaf.alias)
        if key not in self._wholes:
            source, _ = input_sql(leaf.item, Version.NEW, staged)
            if (yield from self._is_large(leaf)):
                read, pages = yield from self._bulk_read(leaf, source)
                self._wholes[key] = yield from read_by_tasks(_label(leaf), read, pages)
            else:
                select = f"SELECT {leaf.select_list} FROM {source}{_where(leaf.predicates)}"
                self._wholes[key], _ = yield from read_here(_label(leaf), select, leaf.columns)
        return self._wholes[key]

    def _bulk_read(self, leaf: Leaf, source: str) -> Steps[tuple[BulkRead, int]]:
        select, node = f"SELECT {leaf.select_list}", leaf.item.node
        if not isinstance(node, Scan):
            return BulkRead(select, source, tuple(leaf.predicates), leaf.columns, None, None), 1
        size = yield from self._size(node)
        alias = identifier(leaf.alias)
        conditions = [*leaf.predicates, *([f"{alias}.{size.condition}"] if size.condition else [])]
        read = BulkRead(
            select,
            f"{size.relation} AS {alias}",
            tuple(conditions),
            leaf.columns,
            f"{alias}.ctid",
            size.relation,
        )
        return read, size.pages

    # sizes

    def _is_large(self, leaf: Leaf) -> Steps[bool]:
        if any(scan.source.relation in self._hidden for scan in scans(leaf.item.node)):
            return False  # only the refresh's own connection sees its current state
        return (yield from self._rows(leaf)) > SMALL_ROWS

    def _rows(self, leaf: Leaf) -> Steps[float]:
        rows = 0.0
        for scan in scans(leaf.item.node):
            rows += (yield from self._size(scan)).rows
        return rows

    def _size(self, scan: Scan) -> Steps[Size]:
        relation = scan.source.relation
        if relation not in self._sizes:
            self._sizes[relation] = yield from size_of(relation)
        return self._sizes[relation]


def _next_linked(block: BlockProgram, waiting: Sequence[Leaf], reached: Mapping[str, _Reached]) -> Leaf:
    """Return an input that an equality joins to one that was reached; else any."""
    linked = {
        side
        for link in block.links
        for side, other in ((link.left, link.right), (link.right, link.left))
        if other in reached
    }
    return next((leaf for leaf in waiting if leaf.alias in linked), waiting[0])


def _carried_inside(
    leaf: Leaf, found: _Reached, sides: Sequence[tuple[Expression, Expression]]
) -> KeyFilter | None:
    """Return the keys that an input must match: otherwise it would compute all of its inner results."""
    pairs = [
        (mine.column.name, theirs)
        for mine, theirs in sides
        if mine.column is not None and can_restrict(leaf.item.node, mine.column.name)
    ]
    if not pairs:
        return None
    listed = ", ".join(f"{theirs.text} AS k{number}" for number, (_, theirs) in enumerate(pairs))
    return KeyFilter(
        f"(SELECT DISTINCT {listed} FROM {found.source}{_where(found.predicates)})",
        tuple(KeyColumn(f"k{number}", ANY_TYPE, nullable=False) for number in range(len(pairs))),
        columns=tuple(name for name, _ in pairs),
        exists=True,
    )


def _with_change(leaf: Leaf, now: _Reached, changed_rows: int, staged: Staged) -> _Reached:
    """Extend rows by those of the change: old rows are among both, and what they match must be reached."""
    source, _ = input_sql(leaf.item, Version.DELTA, staged)
    change = f"SELECT {_listed(leaf)} FROM {source}{_where(leaf.predicates)}"
    both = f"(SELECT {_listed(leaf)} FROM {now.source} UNION ALL {change}) AS {identifier(leaf.alias)}"
    return _Reached(both, (), now.rows + changed_rows)


def _listed(leaf: Leaf) -> str:
    alias = identifier(leaf.alias)
    return ", ".join(f"{alias}.{identifier(name)}" for name in leaf.item.node.output_names)


def _where(predicates: Sequence[str]) -> str:
    return f" WHERE {' AND '.join(predicates)}" if predicates else ""


def _label(leaf: Leaf) -> str:
    node = leaf.item.node
    return node.source.label if isinstance(node, Scan) else leaf.alias
