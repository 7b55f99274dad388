"""Reading a definition view: the server resolves the query, and this module reads what a plan needs.

Nothing here guesses: names and dependencies come from the view's stored parse tree, types from the catalog,
and the server's own deparsing of both texts shows whether the parser kept the query's meaning.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import psycopg

from headwater.catalog.compiled import CompiledRefresh
from headwater.db.connection import Connection, TryAgain, one
from headwater.db.queries import query
from headwater.definition.path_dependence import dependence
from headwater.definition.relations import ReadRelation, relations_read, source_of
from headwater.definition.roundtrip import survives_round_trip
from headwater.definition.types import TypeReader
from headwater.definition.views import canonical_text, definition_oid, deparsed, find_definition, parse_tree
from headwater.plan import volatility
from headwater.plan.aggregates import algebra_of
from headwater.plan.build.levels import disagreement, levels_analysed, levels_read
from headwater.plan.build.parse import Parsed, Relations, View, parse_query
from headwater.plan.errors import Unsupported
from headwater.plan.lineage import fingerprint
from headwater.plan.materialize import Candidate, Layers, layers, parts, stored_form
from headwater.plan.operators import (
    Aggregate,
    Apply,
    Constant,
    Expansion,
    Keyed,
    Node,
    Query,
    Scan,
    Source,
    children,
)
from headwater.plan.render import now_sql
from headwater.plan.storage_plan import BagPlan, GroupPlan, IncrementalPlan, MaintenancePlan, RecomputePlan
from headwater.plan.syntax import parse
from headwater.plan.values import Column
from headwater.util.lru_cache import LRUCache

Result = TypeVar("Result")

REMEMBERED = 10_000
"""Definitions that a process keeps."""


@dataclass(frozen=True)
class Definition:
    """A query as the server understands it, with its plan or the reasons why there is none."""

    view: str  # SQL name of the definition view
    text: str
    columns: tuple[Column, ...]
    reads: tuple[ReadRelation, ...]
    plan: IncrementalPlan | None
    candidates: tuple[Candidate, ...]  # parts of the plan that may get storage of their own
    reasons: tuple[str, ...]
    code: str  # a digest of the functions of users' own that it calls, and of how collations sort
    relations: tuple[int, ...]  # everything that it reads, including plain views
    signature: str
    follows_path: bool = False  # whether it must be evaluated under the search_path of its definer
    _layers: dict[tuple[tuple[str, int], ...], Layers] = field(
        default_factory=dict, compare=False, repr=False
    )

    def mode_for(self, mode: str) -> str:
        """Return the mode, or full if the definition no longer allows another one."""
        return mode if self.plan is not None else "full"

    def maintenance(self, mode: str) -> MaintenancePlan:
        """Return the plan that a mode uses: the incremental one, or recomputing through the view itself."""
        if mode == "differential":
            assert self.plan is not None
            return self.plan
        # The view is bound to its operators and functions; the names in its text would be looked up again.
        return RecomputePlan(self.columns, f"SELECT * FROM {self.view}")

    def fingerprint(self, mode: str) -> str:
        """Return a digest that changes when what is computed or stored changes, but not with a rename."""
        if mode == "differential":
            return self._incremental_fingerprint
        return "; ".join(f"{column.name} {column.type.sql}" for column in self.columns)

    @cached_property
    def _incremental_fingerprint(self) -> str:
        assert self.plan is not None
        return f"{fingerprint(self.plan.root)} {' '.join(self.plan.stored_columns)} {self.code}"

    def layers(self, kept: Mapping[str, Source]) -> Layers:
        """Return the plan over those of its parts that are kept, by name."""
        assert self.plan is not None
        key = tuple((name, source.relation) for name, source in kept.items())
        if key not in self._layers:
            self._layers.clear()
            self._layers[key] = layers(self.plan, self.candidates, kept)
        return self._layers[key]


class Unread(TryAgain):
    """A definition must be read before a transaction can go on; `DefinitionReader.prepared` does that."""


class Definitions(LRUCache[int, Definition]):
    """The definitions of one database that a process has read, by their views; connections may share them."""

    def __init__(self) -> None:
        super().__init__(REMEMBERED)
        self.found = self.read = 0  # cache hits and misses
        self.seen: set[int] = set()  # stream tables whose definition was read; it may have changed since
        self.compiled: dict[int, CompiledRefresh] = {}  # by stream table


class DefinitionReader:
    """Reads definitions, and keeps each plan for as long as what it was made from stays the same.

    Reading makes temporary views and tables. Until its transaction ends, the server locks every function,
    operator, type and collation in them, and a user who replaces the function waits. So a long transaction,
    such as a refresh, never reads: it takes a known definition (`current`), compares the signature, and ends
    if that differs. `prepared` then reads what was missing in a short transaction, and tries again.
    """

    def __init__(self, connection: Connection, known: Definitions | None = None) -> None:
        self._connection = connection
        self._known = known if known is not None else Definitions()
        self._missing: set[int] = set()
        self.called: set[int] = set()  # stream tables whose compiled refreshes this connection has called
        self.left_to_driver: dict[int, int] = {}  # those that were slow, and for how many refreshes they are

    @property
    def compiled(self) -> dict[int, CompiledRefresh]:
        """What the process knows of compiled refreshes."""
        return self._known.compiled

    def read(self, view: int) -> Definition:
        """Return the definition behind a view; read it unless it is known.

        Reading leaves nothing behind, not even a lock: it happens in a savepoint that is rolled back, or in a
        transaction of its own if none is open.
        """
        known = self._unchanged(view)
        if known is not None:
            self._known.found += 1
            return known
        with self._connection.transaction(force_rollback=True):
            before = _read_from(self._connection, view)
            known = _read_definition(self._connection, view)
        if before != (known.relations, known.signature):
            raise TryAgain("a definition changed while it was read")
        self._known.put(view, known)
        self._known.read += 1
        return known

    def current(
        self, stream_table_id: int, together: Collection[int] = (), *, changed_here: bool = False
    ) -> Definition:
        """Return the definition of a stream table if it is known and unchanged; raise Unread if not.

        It also raises if the same transaction will need another definition that was never read, before the
        transaction does work that would be lost. If the transaction itself may have changed what is read, no
        other session can see that: then it is read here.
        """
        view = definition_oid(self._connection, stream_table_id)
        if changed_here:
            return self.read(view)
        known = self._unchanged(view)
        if known is not None:
            self._known.seen.add(stream_table_id)
        if known is None or not self._known.seen.issuperset(together):
            self._missing.update((stream_table_id, *together))
            raise Unread("a definition must be read anew")
        self._known.found += 1
        return known

    def prepared(self, attempt: Callable[[], Result]) -> Result:
        """Run a transaction that calls `current`; repeat it once if it was stopped for a definition.

        If the repetition is stopped, too, the definition is changing just now, and the caller's next retry
        comes later.
        """
        self._catch_up()
        try:
            return attempt()
        except Unread:
            self._catch_up()
            return attempt()

    def _catch_up(self) -> None:
        """Read the definitions that `current` missed, each in a transaction of its own."""
        while self._missing:
            number = self._missing.pop()
            view = find_definition(self._connection, number)
            if view is not None:  # otherwise the code that needs it reports that it is gone
                self.read(view)
            self._known.seen.add(number)

    def _unchanged(self, view: int) -> Definition | None:
        """Return a definition that is known and that the server would still give."""
        known = self._known.get(view)
        if (
            known is None
            or _signature(self._connection, view, known.relations) != known.signature
            or known.view != _name(self._connection, view)  # it replaced another definition
        ):
            return None
        return known


def _name(connection: Connection, view: int) -> str:
    return str(one(connection, "SELECT %s::oid::regclass::text", (view,))[0])


def _signature(connection: Connection, view: int, relations: Sequence[int]) -> str:
    parameters = {"view": view, "relations": list(relations)}
    return deparsed(connection, query("definition", "signature"), parameters)


def _read_from(connection: Connection, view: int) -> tuple[tuple[int, ...], str]:
    """Return what a definition is read from: the relations below a view, and their signature."""
    relations = tuple(item.oid for item in relations_read(connection, view))
    return relations, _signature(connection, view, relations)


def _read_definition(connection: Connection, view: int) -> Definition:
    text = canonical_text(connection, view)
    relations = relations_read(connection, view)
    plain_views = [item for item in relations if item.kind == "v" and item.stream_table_id is None]
    types = TypeReader(connection)
    columns = types.columns_of([view, *(item.oid for item in relations)])
    views = {
        (item.schema, item.name): View(
            canonical_text(connection, item.oid), tuple(column.name for column in columns[item.oid])
        )
        for item in plain_views
    }
    outputs = tuple(Column(column.name, column.type) for column in columns[view])
    reads = tuple(item for item in relations if item not in plain_views)
    trees, functions = _functions_called(connection, [view, *(item.oid for item in plain_views)])
    known = Relations(
        sources={(item.schema, item.name): source_of(item, columns[item.oid]) for item in reads},
        views=views,
        unusable={(item.schema, item.name): item.obstacle for item in reads if item.obstacle},
        aggregates=frozenset((item.schema, item.name) for item in functions if item.kind == "a"),
        set_returning=frozenset((item.schema, item.name) for item in functions if item.returns_set),
    )
    parsed = parse_query(text, tuple(column.name for column in outputs), known)
    enums = _enums(connection, set().union(*(volatility.io_cast_results(tree) for tree in trees)))
    path = dependence(connection, trees, functions)
    reasons = [*volatility.reasons(trees, functions, enums), *path.reasons, *parsed.reasons]
    texts = [(text, view)] + [(views[item.schema, item.name].text, item.oid) for item in plain_views]
    if not reasons:
        reasons += _disagreements([text for text, _ in texts], trees, known)
    if not reasons and not all(survives_round_trip(connection, *item) for item in texts):
        reasons.append("parsed again, an expression in it would not mean the same to the server")
    plan: IncrementalPlan | None = None
    candidates: tuple[Candidate, ...] = ()
    name = _name(connection, view)
    if not reasons:
        try:
            with connection.transaction():
                plan = _plan(types, parsed, outputs, name)
                candidates = tuple(
                    _candidate(types, part, plan, whole) for part, whole in parts(plan.root).items()
                )
        except psycopg.Error:
            reasons.append("the server does not accept what the planner made of it")
        except Unsupported as error:
            reasons.append(str(error))
    oids = tuple(item.oid for item in relations)
    return Definition(
        name,
        text,
        outputs,
        reads,
        plan,
        candidates,
        tuple(reasons),
        _digest(functions, _collations(connection, oids)),
        oids,
        _signature(connection, view, oids),
        path.possible,
    )


def _plan(types: TypeReader, parsed: Parsed, outputs: tuple[Column, ...], view: str) -> IncrementalPlan:
    root = parsed.root
    assert root is not None
    columns = {node: types.columns_of_query(now_sql(node)) for node in _staged_nodes(root)}
    plan: IncrementalPlan
    if isinstance(root, Aggregate):
        rows = columns.get(root.input) or types.columns_of_query(now_sql(root.input))
        plan = _group_plan(root, rows, outputs, columns)
    else:
        # The server plans the user's own text best.
        query = f"SELECT * FROM {view}" if columns else now_sql(root)
        plan = BagPlan(outputs, query, root, columns)
    types.columns_of_query(plan.full_sql())  # so that the server confirms that it is valid
    return plan


def _group_plan(
    aggregate: Aggregate,
    rows: tuple[Column, ...],
    outputs: tuple[Column, ...],
    columns: Mapping[Query, tuple[Column, ...]],
) -> GroupPlan:
    algebra = algebra_of(aggregate, {column.name: column.type for column in rows})
    return GroupPlan(aggregate, rows, outputs, algebra, columns)


def _candidate(types: TypeReader, part: Query, plan: IncrementalPlan, whole: bool) -> Candidate:
    form = stored_form(part)
    if isinstance(form, Aggregate):
        outputs = types.columns_of_query(now_sql(form))
        groups = _group_plan(form, plan.columns[form.input], outputs, plan.columns)
        return Candidate(part, groups, whole)
    return Candidate(part, BagPlan(plan.columns[part], now_sql(part), part, plan.columns), whole)


def _staged_nodes(root: Query) -> list[Query]:
    """Return the nonlinear nodes inside a query and what they read: a refresh puts their rows into tables."""
    found: dict[Query, None] = {}

    def walk(node: Node, *, top: bool) -> None:
        for child in children(node):
            walk(child, top=False)
        if isinstance(node, Aggregate | Keyed | Apply) and not (top and isinstance(node, Aggregate)):
            for query in (*children(node), node):
                if not isinstance(query, Scan | Constant | Expansion):
                    found.setdefault(query)

    walk(root, top=True)
    return list(found)


def _functions_called(
    connection: Connection, views: Sequence[int]
) -> tuple[list[str], list[volatility.Function]]:
    trees = [parse_tree(connection, view) for view in views]
    functions = sorted(set().union(*(volatility.function_oids(tree) for tree in trees)))
    operators = sorted(set().union(*(volatility.operator_oids(tree) for tree in trees)))
    rows = connection.execute(
        query("definition", "functions"), {"functions": functions, "operators": operators}
    )
    return trees, [volatility.Function(*row) for row in rows]


def _disagreements(texts: Sequence[str], trees: Sequence[str], known: Relations) -> list[str]:
    """Return where the server's analysis of a query differs from what was read in its text."""
    found = []
    for text, tree in zip(texts, trees, strict=True):
        differ = disagreement(levels_read(parse(text), known), levels_analysed(tree))
        if differ is not None:
            found.append(f"PostgreSQL's analysis of it differs from what the planner reads ({differ})")
    return list(dict.fromkeys(found))


def _digest(functions: Sequence[volatility.Function], collations: Sequence[tuple[int, str]]) -> str:
    own = sorted((function.oid, function.code) for function in functions if not function.builtin)
    found = [*own, *collations]
    return hashlib.sha256(repr(found).encode()).hexdigest()[:16] if found else ""


def _collations(connection: Connection, relations: Sequence[int]) -> list[tuple[int, str]]:
    rows = connection.execute(query("definition", "collations"), {"relations": list(relations)})
    return [(int(oid), str(version)) for oid, version in rows]


def _enums(connection: Connection, types: set[int]) -> frozenset[int]:
    rows = connection.execute(
        "SELECT oid FROM pg_type WHERE oid = ANY (%s::oid[]) AND typtype = 'e'", (sorted(types),)
    )
    return frozenset(row[0] for row in rows)
