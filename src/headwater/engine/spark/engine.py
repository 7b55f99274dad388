"""The engine on Spark.

PostgreSQL reads each input with all that concerns it alone, Spark joins and aggregates, PostgreSQL finishes
(`program`). What is read follows the change: from the delta of a term outwards along the join's equalities,
each further input is reduced in PostgreSQL to the rows that can match what was reached before, as long as
that is much less than the whole. Only the rest is read by tasks, in parallel.

Groups without an algebra, and groups whose minimum or maximum went away, are recomputed by PostgreSQL: their
keys are known then, and only their rows are read. So it is with what is nonlinear inside a query: Spark joins
what it reads, and PostgreSQL works out its change, restricted to the keys that occur in that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from headwater.clock import Phases
from headwater.db.connection import Connection, one
from headwater.db.queries import query
from headwater.db.scratch import Scratch
from headwater.engine.postgres.engine import PostgresEngine
from headwater.engine.postgres.nested_deltas import with_inner
from headwater.engine.spark.pipeline import Mover
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
from headwater.engine.spark.translate import Leaf
from headwater.engine.spark.transport.read import BulkRead
from headwater.engine.spark.transport.wire import Column
from headwater.plan.expression import Expression
from headwater.plan.operators import Query, Scan, scanned_directly, scans
from headwater.plan.quoting import identifier
from headwater.plan.render import ANY_TYPE, WEIGHT, Changes, KeyFilter, Staged, delta_sql, input_sql, now_sql
from headwater.plan.render import Column as KeyColumn
from headwater.plan.semijoin import can_restrict
from headwater.plan.storage_plan import BagPlan, GroupPlan, IncrementalPlan, MaintenancePlan
from headwater.plan.substitute import substituted
from headwater.plan.terms import Term, Version, terms

SMALL_ROWS = 20_000
"""Up to about so many rows, an input comes through the driver."""
UNSTAGED_ROWS = 50_000
"""From so many change rows on, tasks take them from the change table."""
PUSHDOWN_FACTOR = 8
"""Keys are pushed down when the table has so many times more rows than there are keys."""


@dataclass(frozen=True)
class Size:
    """How large a source is, and where tasks read it."""

    rows: float
    pages: int
    relation: str  # SQL name of the table that holds its rows
    condition: str | None  # under which a row of that table is one of the source


@dataclass(frozen=True)
class _Reached:
    """Rows of an input that are known in the refresh's transaction."""

    source: str  # a FROM item under the input's alias
    predicates: tuple[str, ...]
    rows: int


class SparkEngine:
    """Runs one stream table's program; made for one refresh.

    Errors of the server pass through: whoever calls an engine decides about them, for all methods alike.
    """

    name = "spark"

    def __init__(
        self,
        connection: Connection,
        mover: Mover,
        program: Program,
        phases: Phases,
        hidden: frozenset[int] = frozenset(),
    ) -> None:
        """`hidden` are the sources that this transaction wrote to: tasks do not see them as they are."""
        self._connection = connection
        self._mover = mover
        self._program = program
        self._phases = phases
        self._hidden = hidden
        self._sizes: dict[int, Size] = {}
        self._changes: dict[tuple[str, str], tuple[str, int]] = {}
        self._wholes: dict[tuple[str, str], str] = {}
        self._inner_deltas: dict[Query, str] = {}
        self._inner_tables: dict[Query, str] = {}
        self._postgres = PostgresEngine()

    # the contract

    def in_place(self, plan: IncrementalPlan, pending: Mapping[int, int]) -> frozenset[int]:
        """Many change rows that are committed, which tasks read in parallel and consolidate themselves."""
        many = {relation for relation, rows in pending.items() if rows > UNSTAGED_ROWS}
        return scanned_directly(plan.root) & many - self._hidden

    def bag_delta(self, scratch: Scratch, plan: BagPlan, staged: Staged) -> int:
        staged = self._with_inner(scratch, plan, staged)
        rows = self._bag().rows
        if rows is None or not staged.changes(plan.body):
            return scratch.fill("delta", plan.delta_sql(staged))
        return scratch.fill("delta", plan.weighted_sql(self._joined_delta(scratch, rows, staged)))

    def state_delta(self, scratch: Scratch, plan: GroupPlan, staged: Staged) -> int:
        staged = self._with_inner(scratch, plan, staged)
        if not staged.changes(plan.aggregate.input):
            return scratch.fill("delta", plan.state_delta_sql(staged))
        part = self._group().part
        statement = part.statement(self._delta_rows(scratch, part, staged), weighted=True)
        raw = self._mover.collect(scratch, "raw0", statement, part.columns(weighted=True))
        return scratch.fill("delta", self._group().finish_state_delta(raw))

    def affected_keys(self, scratch: Scratch, plan: GroupPlan, staged: Staged) -> int:
        staged = self._with_inner(scratch, plan, staged)
        if not staged.changes(plan.aggregate.input):
            return scratch.fill("keys", plan.affected_sql(staged))
        part = self._group().part
        statement = part.keys_statement(self._delta_rows(scratch, part, staged))
        raw = self._mover.collect(scratch, "raw0", statement, part.key_columns)
        return scratch.fill("keys", self._group().finish_keys(raw))

    def recompute(self, scratch: Scratch, plan: GroupPlan, keys: str) -> int:
        return self._postgres.recompute(scratch, plan, keys)

    def recompute_all(self, scratch: Scratch, plan: MaintenancePlan, storage: str) -> int:
        match self._program:
            case GroupProgram() as program:
                statement = program.part.statement(self._all_rows(scratch, program.part), weighted=False)
                columns = program.part.columns(weighted=False)
                raw = self._mover.collect(scratch, "all0", statement, columns)
                return scratch.fill("result", program.finish_groups(raw))
            case BagProgram(rows=None) as bag:
                rows = now_sql(substituted(bag.plan.body, partial(self._whole_table, scratch)))
                return scratch.fill("delta", bag.plan.difference_sql(storage, rows))
            case BagProgram() as bag:
                assert bag.rows is not None
                rows = self._all_joined(scratch, bag.rows)
                return scratch.fill("delta", bag.plan.difference_sql(storage, rows))

    def load(self, scratch: Scratch, table: str) -> int:
        """Fills new storage, which everybody sees, by tasks; how many rows."""
        part_table = "pg_temp.hw_part"
        match self._program:
            case GroupProgram() as program:
                statement = program.part.statement(self._all_rows(scratch, program.part), weighted=False)
                columns = program.part.columns(weighted=False)
                return self._mover.load(
                    "groups", statement, columns, table, program.finish_groups(part_table)
                )
            case BagProgram(rows=rows) as bag:
                assert rows is not None
                return sum(
                    self._mover.load(
                        f"rows{number}",
                        self._all_rows(scratch, part),
                        part.columns,
                        table,
                        bag.plan.full_sql(part.finish(part_table, weighted=False)),
                    )
                    for number, part in enumerate(rows.parts)
                )

    def _bag(self) -> BagProgram:
        assert isinstance(self._program, BagProgram)
        return self._program

    def _group(self) -> GroupProgram:
        assert isinstance(self._program, GroupProgram)
        return self._program

    # inside

    def _with_inner(self, scratch: Scratch, plan: BagPlan | GroupPlan, staged: Staged) -> Staged:
        """The changes of what is nonlinear inside, made by PostgreSQL from what Spark joined for them."""
        with self._phases.measure("read"):
            return with_inner(scratch, plan, staged, partial(self._inner_delta, scratch))

    def _inner_delta(self, scratch: Scratch, query: Query, staged: Staged) -> str:
        if query not in self._program.inner:
            return delta_sql(query, staged)
        if query not in self._inner_deltas:
            self._inner_deltas[query] = self._joined_delta(scratch, self._program.inner[query], staged)
        return self._inner_deltas[query]

    def _joined_delta(self, scratch: Scratch, program: RowsProgram, staged: Staged) -> str:
        """The SQL of a query's weighted change, of which Spark has done the joins."""
        tables: dict[int, str] = {}
        for number, part in enumerate(program.parts):
            rows = self._delta_rows(scratch, part, staged)
            if rows:
                columns = program.columns(part, weighted=True)
                tables[number] = self._mover.collect(scratch, f"{program.name}raw{number}", rows, columns)
        return program.finish(tables, weighted=True)

    def _whole_table(self, scratch: Scratch, query: Query) -> str | None:
        """A table of all rows of a query that is joined on Spark."""
        if query not in self._program.inner:
            return None
        if query not in self._inner_tables:
            program = self._program.inner[query]
            table = f"{program.name}rows"
            scratch.fill(table, self._all_joined(scratch, program))
            self._inner_tables[query] = scratch.name(table)
        return self._inner_tables[query]

    def _all_joined(self, scratch: Scratch, program: RowsProgram) -> str:
        """The SQL of all rows of a query, of which Spark has done the joins."""
        tables = {
            number: self._mover.collect(
                scratch, f"{program.name}all{number}", self._all_rows(scratch, part), part.columns
            )
            for number, part in enumerate(program.parts)
        }
        return program.finish(tables, weighted=False)

    # rows on Spark

    def _all_rows(self, scratch: Scratch, part: Part | BagPart) -> str:
        selects = []
        for block in part.blocks:
            term: Term = (Version.NEW,) * len(block.leaves)
            frames = {leaf.alias: Frames(now=self._whole(block, leaf, Staged({}))) for leaf in block.leaves}
            selects.append(block.rows_sql(term, frames, weighted=False))
        return "\nUNION ALL\n".join(selects)

    def _delta_rows(self, scratch: Scratch, part: Part | BagPart, staged: Staged) -> str:
        """The weighted rows of every term; nothing if no block of the part has one."""
        return "\nUNION ALL\n".join(
            block.rows_sql(term, self._term_frames(scratch, block, term, staged), weighted=True)
            for block in part.blocks
            for term in terms(block.block, staged.changes, staged.size)
        )

    def _term_frames(
        self, scratch: Scratch, block: BlockProgram, term: Term, staged: Staged
    ) -> dict[str, Frames]:
        """Reads what a term needs, from its delta outwards."""
        versions = {leaf.alias: version for leaf, version in zip(block.leaves, term, strict=True)}
        frames: dict[str, Frames] = {}
        reached: dict[str, _Reached] = {}
        waiting, pivot = [], ""
        for leaf in block.leaves:
            if versions[leaf.alias] is Version.DELTA:
                view, rows = self._change(block, leaf, staged)
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
                change, changed_rows = self._change(block, leaf, staged)
            now = self._matching(scratch, block, pivot, leaf, staged, reached)
            if now is None:
                now = self._whole(block, leaf, staged)
            elif change is not None:
                reached[leaf.alias] = _with_change(leaf, reached[leaf.alias], changed_rows, staged)
            frames[leaf.alias] = Frames(now=now, delta=change)
        return frames

    def _change(self, block: BlockProgram, leaf: Leaf, staged: Staged) -> tuple[str, int]:
        """The change of an input with weights, and about how many rows it has."""
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
                self._changes[key] = self._mover.small_frame(what, query, columns)
            else:
                ctid, pages = f"{identifier(leaf.alias)}.ctid", pages_of(self._connection, found.relation)
                read = BulkRead(select, source, tuple(leaf.predicates), columns, ctid, found.relation)
                self._changes[key] = self._mover.bulk_frame(what, read, pages), found.rows
        return self._changes[key]

    @staticmethod
    def _unstaged(leaf: Leaf, staged: Staged) -> Changes | None:
        node = leaf.item.node
        return staged.unstaged.get(node.source.relation) if isinstance(node, Scan) else None

    def _matching(
        self,
        scratch: Scratch,
        block: BlockProgram,
        pivot: str,
        leaf: Leaf,
        staged: Staged,
        reached: dict[str, _Reached],
    ) -> str | None:
        """The rows of an input that can match what was reached, if those are few; None to read it whole."""
        best = None
        for alias, found in reached.items():
            sides = [pair for link in block.links if (pair := link.seen_from(leaf.alias, alias)) is not None]
            if sides and (best is None or found.rows < best[0].rows):
                best = (found, sides)
        if best is None:
            return None
        found, sides = best
        if found.rows * PUSHDOWN_FACTOR > self._rows(leaf) and self._is_large(leaf):
            return None
        mine, theirs = (", ".join(f"({side.text})" for side in each) for each in zip(*sides, strict=True))
        row = f"({mine})" if len(sides) > 1 else mine
        keys = f"SELECT {theirs} FROM {found.source}{_where(found.predicates)}"
        source, _ = input_sql(leaf.item, Version.NEW, staged, _carried_inside(leaf, found, sides))
        alias = identifier(leaf.alias)
        table = f"reach_{block.name}_{pivot}_{leaf.alias}"
        with self._phases.measure("read"):
            rows = scratch.fill(
                table,
                f"SELECT {_listed(leaf)} FROM {source}{_where([*leaf.predicates, f'{row} IN ({keys})'])}",
            )
        here = f"{scratch.name(table)} AS {alias}"
        reached[leaf.alias] = _Reached(here, (), rows)
        view, _ = self._mover.small_frame(
            f"{_label(leaf)} where it matches", f"SELECT {leaf.select_list} FROM {here}", leaf.columns
        )
        return view

    def _whole(self, block: BlockProgram, leaf: Leaf, staged: Staged) -> str:
        """All rows of an input as they are now: by tasks if they are many."""
        key = (block.name, leaf.alias)
        if key not in self._wholes:
            source, _ = input_sql(leaf.item, Version.NEW, staged)
            if self._is_large(leaf):
                self._wholes[key] = self._mover.bulk_frame(_label(leaf), *self._bulk_read(leaf, source))
            else:
                self._wholes[key], _ = self._mover.small_frame(
                    _label(leaf),
                    f"SELECT {leaf.select_list} FROM {source}{_where(leaf.predicates)}",
                    leaf.columns,
                )
        return self._wholes[key]

    def _bulk_read(self, leaf: Leaf, source: str) -> tuple[BulkRead, int]:
        select, node = f"SELECT {leaf.select_list}", leaf.item.node
        if not isinstance(node, Scan):
            return BulkRead(select, source, tuple(leaf.predicates), leaf.columns, None, None), 1
        size = self._size(node)
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

    def _is_large(self, leaf: Leaf) -> bool:
        if any(scan.source.relation in self._hidden for scan in scans(leaf.item.node)):
            return False  # only the refresh's own connection sees it as it is now
        return self._rows(leaf) > SMALL_ROWS

    def _rows(self, leaf: Leaf) -> float:
        return sum(self._size(scan).rows for scan in scans(leaf.item.node))

    def _size(self, scan: Scan) -> Size:
        relation = scan.source.relation
        if relation not in self._sizes:
            self._sizes[relation] = source_size(self._connection, relation)
        return self._sizes[relation]


def source_size(connection: Connection, relation: int) -> Size:
    """The size of a table, or of the storage behind a stream table's view, as the server estimates it."""
    rows, pages, name, condition = one(connection, query("engine", "source_size"), {"relation": relation})
    return Size(float(rows), int(pages), str(name), condition)


def pages_of(connection: Connection, relation: str) -> int:
    """The pages of a table."""
    size = "pg_relation_size(%s::regclass) / current_setting('block_size')::int"
    return max(1, int(one(connection, f"SELECT {size}", (relation,))[0]))


def _next_linked(block: BlockProgram, waiting: Sequence[Leaf], reached: Mapping[str, _Reached]) -> Leaf:
    """An input that is joined by an equality to one that was reached; else any."""
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
    """The keys that an input must match, for what it computes inside: it would else compute all of it."""
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
    """Rows as they were are among those of now and of the change; what they match must be reached too."""
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
