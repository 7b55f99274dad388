"""Reading a definition view: the server resolves the query, and this module asks it for what a plan needs.

Nothing here guesses: names and dependencies come from the view's stored parse tree, types from the catalog,
and whether the parser kept the query's meaning from the server's own deparsing of both texts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

import psycopg
from psycopg import sql

from headwater.catalog.stream_tables import LONGEST_NAME
from headwater.db.connection import Connection, TryAgain, one
from headwater.db.queries import query
from headwater.definition.path_dependence import dependence
from headwater.errors import RefreshFailed
from headwater.plan import volatility
from headwater.plan.aggregates import algebra_of
from headwater.plan.build.levels import disagreement, levels_analysed, levels_read
from headwater.plan.build.parse import Parsed, Relations, View, parse_query
from headwater.plan.errors import Unsupported
from headwater.plan.expression import Expression
from headwater.plan.lineage import fingerprint
from headwater.plan.materialize import Candidate, Layers, layers, parts, stored_form
from headwater.plan.operators import (
    Aggregate,
    Apply,
    ColumnType,
    Constant,
    Expansion,
    Keyed,
    Node,
    Output,
    Query,
    Scan,
    Select,
    Source,
    SourceColumn,
    SourceKind,
    children,
)
from headwater.plan.render import Column, now_sql
from headwater.plan.storage_plan import BagPlan, GroupPlan, IncrementalPlan, MaintenancePlan, RecomputePlan
from headwater.plan.syntax import parse, query_text
from headwater.util.lru_cache import LRUCache

Result = TypeVar("Result")

DEFINITIONS = "headwater_defs"
REMEMBERED = 10_000
"""Definitions that a process keeps."""

# Types whose equality is identity. For the others equal values can differ: 1.0 and 1.00, 0 and -0.
EXACT_TYPES = frozenset(
    {16, 17, 18, 19, 20, 21, 23, 25, 26, 650, 829, 869, 1043, 1082, 1083, 1114, 1184, 2950, 3220, 5069}
    # reg*: object ids, whose texts follow renames
    | {24, 2202, 2203, 2204, 2205, 2206, 3734, 3769, 4089, 4096, 4191}
)
INTEGER_TYPES = frozenset({20, 21, 23})
FLOAT_TYPES = frozenset({700, 701})
NUMERIC_TYPE = 1700
# Known to have hash and equality; the rest is asked for.
COMPARABLE_TYPES = EXACT_TYPES | FLOAT_TYPES | {NUMERIC_TYPE, 1042, 1186, 1266, 3802}


@dataclass(frozen=True)
class ReadRelation:
    """A relation that a query reads, directly or through plain views."""

    oid: int
    schema: str
    name: str
    label: str  # both, quoted where SQL needs it
    kind: str  # relkind
    stream_table_id: int | None
    temporary: bool
    system: bool
    may_select: bool
    may_trigger: bool
    obstacle: str | None  # why its changes cannot be captured


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
    relations: tuple[int, ...]  # all that it reads, plain views included
    signature: str
    follows_path: bool = False  # whether it must be evaluated under the search_path of its definer
    _layers: dict[tuple[tuple[str, int], ...], Layers] = field(
        default_factory=dict, compare=False, repr=False
    )

    def mode_for(self, mode: str) -> str:
        """The mode, or full if the definition has come to allow no other."""
        return mode if self.plan is not None else "full"

    def maintenance(self, mode: str) -> MaintenancePlan:
        """The plan that a mode uses: the incremental one, or recomputing through the view itself."""
        if mode == "differential":
            assert self.plan is not None
            return self.plan
        # The view is bound to its operators and functions; its text would be looked up again.
        return RecomputePlan(self.columns, f"SELECT * FROM {self.view}")

    def fingerprint(self, mode: str) -> str:
        """Changes when what is computed or stored changes, not when something is renamed."""
        if mode == "differential":
            return self._incremental_fingerprint
        return "; ".join(f"{column.name} {column.type.sql}" for column in self.columns)

    @cached_property
    def _incremental_fingerprint(self) -> str:
        assert self.plan is not None
        return f"{fingerprint(self.plan.root)} {' '.join(self.plan.stored_columns)} {self.code}"

    def layers(self, kept: Mapping[str, Source]) -> Layers:
        """The plan over those of its parts that are kept, by name."""
        assert self.plan is not None
        key = tuple((name, source.relation) for name, source in kept.items())
        if key not in self._layers:
            self._layers.clear()
            self._layers[key] = layers(self.plan, self.candidates, kept)
        return self._layers[key]


def new_definition_name(stream_table_id: int, label: str) -> str:
    """The name, in its schema, of a definition view that is to be made, as `headwater.definition` finds it.

    It also names the stream table: it is in the server's words when a change to a source is refused.
    """
    name = f"def_{stream_table_id} of {label}"
    return name.encode()[:LONGEST_NAME].decode(errors="ignore")


def definition_name(connection: Connection, stream_table_id: int) -> sql.Identifier:
    view = definition_oid(connection, stream_table_id)
    name = one(connection, "SELECT relname FROM pg_class WHERE oid = %s::oid", (view,))[0]
    return sql.Identifier(DEFINITIONS, name)


def canonical_text(connection: Connection, view: int) -> str:
    return _deparsed(connection, query("definition", "canonical_text"), {"view": view})


def _deparsed(connection: Connection, text: str, parameters: Mapping[str, object]) -> str:
    """What the server makes of views; raises TryAgain if one was replaced while it was looked at."""
    try:
        return str(one(connection, text, parameters)[0])
    except psycopg.errors.InternalError_ as error:
        raise TryAgain(str(error)) from error


class Unread(TryAgain):
    """A definition must be read before a transaction can go on; `DefinitionReader.prepared` does that."""


class Definitions(LRUCache[int, Definition]):
    """The definitions of one database that a process has read, by their views; connections may share them."""

    def __init__(self) -> None:
        super().__init__(REMEMBERED)
        self.found = self.read = 0  # how often one was there, and how often it had to be read
        self.seen: set[int] = set()  # stream tables whose definition was read; it may have changed since


class DefinitionReader:
    """Reads definitions, and keeps each plan for as long as what it was made from stays the same.

    Reading makes temporary views and tables. Until its transaction ends, the server locks every function,
    operator, type and collation in them, and a user who replaces the function waits. So a transaction that
    takes long, such as a refresh, never reads: it takes what is known (`current`), compares the signature,
    and ends if that differs. `prepared` then reads what was missing in a short transaction, and tries again.
    """

    def __init__(self, connection: Connection, known: Definitions | None = None) -> None:
        self._connection = connection
        self._known = known if known is not None else Definitions()
        self._missing: set[int] = set()

    def read(self, view: int) -> Definition:
        """Return the definition behind a view; read it unless it is known.

        Nothing of the reading stays, no lock either: it happens in a savepoint that is rolled back, or in a
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

        Raises also if that of another one was never read that the same transaction will need, before the
        transaction does work that would be lost. If the transaction itself may have changed what is read,
        nobody can read it elsewhere: then it is read here.
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
        """Run a transaction that calls `current`; once more, at once, if it was stopped for a definition.

        Should that be stopped, too, the definition is changing just now: who retries comes later.
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
            if view is not None:  # else whoever needs it says that it is gone
                self.read(view)
            self._known.seen.add(number)

    def _unchanged(self, view: int) -> Definition | None:
        """Return a definition that is known and that the server would still give."""
        known = self._known.get(view)
        if (
            known is None
            or _signature(self._connection, view, known.relations) != known.signature
            or known.view != _name(self._connection, view)  # it took the place of another definition
        ):
            return None
        return known


def same_meaning(connection: Connection, one_view: int, other_view: int) -> bool:
    """Whether two views have the same columns and are the same query to the server."""
    first, second = (
        (
            canonical_text(connection, view),
            volatility.calls(_parse_tree(connection, view)),
            [(column.name, column.type.sql) for column in _Types(connection).columns_of([view])[view]],
        )
        for view in (one_view, other_view)
    )
    return first == second


def definition_oid(connection: Connection, stream_table_id: int) -> int:
    """The definition view of a stream table."""
    oid = find_definition(connection, stream_table_id)
    if oid is None:
        raise RefreshFailed(
            f"the definition of stream table {stream_table_id} is gone",
            hint="it was dropped, by hand or with something that it reads: headwater repair makes it again"
            " once that is there; or drop the stream table as well",
        )
    return oid


def find_definition(connection: Connection, stream_table_id: int) -> int | None:
    """The definition view of a stream table, if it is there."""
    oid: int | None = one(connection, "SELECT headwater.definition(%s)", (stream_table_id,))[0]
    return oid


def expression_types(connection: Connection, block: Select, trees: Sequence[Expression]) -> list[ColumnType]:
    """The types of expressions over the inputs of a block; Unsupported if one of them has none."""
    outputs = tuple(Output(f"e{number}", tree) for number, tree in enumerate(trees))
    text = now_sql(Select(block.inputs, (), outputs))
    try:
        with connection.transaction(force_rollback=True):  # so that no type stays locked
            return [column.type for column in _Types(connection).columns_of_query(text)]
    except psycopg.ProgrammingError as error:  # ROW (…) and the ANY (…) of a comparison are no values
        raise Unsupported(f"{error.diag.message_primary}") from error


def _name(connection: Connection, view: int) -> str:
    return str(one(connection, "SELECT %s::oid::regclass::text", (view,))[0])


def _signature(connection: Connection, view: int, relations: Sequence[int]) -> str:
    parameters = {"view": view, "relations": list(relations)}
    return _deparsed(connection, query("definition", "signature"), parameters)


def _read_from(connection: Connection, view: int) -> tuple[tuple[int, ...], str]:
    """Return what a definition is read from: the relations below a view, and their signature."""
    relations = tuple(item.oid for item in _relations_read(connection, view))
    return relations, _signature(connection, view, relations)


def _read_definition(connection: Connection, view: int) -> Definition:
    text = canonical_text(connection, view)
    relations = _relations_read(connection, view)
    plain_views = [item for item in relations if item.kind == "v" and item.stream_table_id is None]
    types = _Types(connection)
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
        sources={(item.schema, item.name): _source(item, columns[item.oid]) for item in reads},
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
    if not reasons and not all(_survives_round_trip(connection, *item) for item in texts):
        reasons.append("parsed again, an expression in it would not mean the same to the server")
    plan: IncrementalPlan | None = None
    candidates: tuple[Candidate, ...] = ()
    name = _name(connection, view)
    if not reasons:
        try:
            with connection.transaction():
                plan = _plan(types, parsed, outputs, name)
                candidates = tuple(
                    _keepable(types, part, plan, whole) for part, whole in parts(plan.root).items()
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


def read_source(connection: Connection, relation: int) -> Source | None:
    """A relation as a source, or None if it is gone."""
    row = connection.execute(query("definition", "relation"), {"relation": relation}).fetchone()
    if row is None:
        return None
    schema, name, is_stream_table = row
    columns = _Types(connection).columns_of([relation])[relation]
    return Source(relation, schema, name, "stream_table" if is_stream_table else "table", tuple(columns))


def _source(item: ReadRelation, columns: list[SourceColumn]) -> Source:
    kind: SourceKind = "stream_table" if item.stream_table_id else "table"
    return Source(item.oid, item.schema, item.name, kind, tuple(columns))


def _plan(types: _Types, parsed: Parsed, outputs: tuple[Column, ...], view: str) -> IncrementalPlan:
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
    types.columns_of_query(plan.full_sql())  # for the server's word that it is valid
    return plan


def _group_plan(
    aggregate: Aggregate,
    rows: tuple[Column, ...],
    outputs: tuple[Column, ...],
    columns: Mapping[Query, tuple[Column, ...]],
) -> GroupPlan:
    algebra = algebra_of(aggregate, {column.name: column.type for column in rows})
    return GroupPlan(aggregate, rows, outputs, algebra, columns)


def _keepable(types: _Types, part: Query, plan: IncrementalPlan, whole: bool) -> Candidate:
    form = stored_form(part)
    if isinstance(form, Aggregate):
        outputs = types.columns_of_query(now_sql(form))
        groups = _group_plan(form, plan.columns[form.input], outputs, plan.columns)
        return Candidate(part, groups, whole)
    return Candidate(part, BagPlan(plan.columns[part], now_sql(part), part, plan.columns), whole)


def _staged_nodes(root: Query) -> list[Query]:
    """What is nonlinear inside a query, with what it reads: a refresh keeps their rows in tables."""
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


def _relations_read(connection: Connection, view: int) -> list[ReadRelation]:
    found = []
    for row in connection.execute(query("definition", "relations_read"), {"view": view}):
        (
            oid,
            schema,
            name,
            label,
            kind,
            persistence,
            stream_table_id,
            children,
            parents,
            partition,
            secured,
            system,
            select,
            trigger,
        ) = row
        obstacle = None
        if partition:
            obstacle = f"{label} is a partition, and writes through the table it is part of are not captured"
        elif kind == "p" and children:
            obstacle = f"{label} has foreign tables as partitions: this server does not see their changes"
        elif kind == "r" and children:
            obstacle = f"{label} has inheritance children, whose changes are not captured"
        elif kind == "r" and parents:
            obstacle = f"{label} inherits from a table, and writes through that one are not captured"
        elif kind == "f":
            obstacle = f"{label} is a foreign table: this server does not see its changes"
        elif kind == "m":
            obstacle = f"{label} is a materialized view: its refresh leaves no change rows"
        elif kind == "S":
            obstacle = f"{label} is a sequence: its changes are not captured"
        elif secured:
            obstacle = (
                f"{label} has row-level security: its changes would show rows that the definer may not read"
            )
        found.append(
            ReadRelation(
                oid=oid,
                schema=schema,
                name=name,
                label=label,
                kind=kind,
                stream_table_id=stream_table_id,
                temporary=persistence == "t",
                system=system,
                may_select=select,
                may_trigger=trigger,
                obstacle=obstacle,
            )
        )
    return found


def _functions_called(
    connection: Connection, views: Sequence[int]
) -> tuple[list[str], list[volatility.Function]]:
    trees = [_parse_tree(connection, view) for view in views]
    functions = sorted(set().union(*(volatility.function_oids(tree) for tree in trees)))
    operators = sorted(set().union(*(volatility.operator_oids(tree) for tree in trees)))
    rows = connection.execute(
        query("definition", "functions"), {"functions": functions, "operators": operators}
    )
    return trees, [volatility.Function(*row) for row in rows]


def _disagreements(texts: Sequence[str], trees: Sequence[str], known: Relations) -> list[str]:
    """Why the server's analysis of a query is not what was read in its text."""
    found = []
    for text, tree in zip(texts, trees, strict=True):
        differ = disagreement(levels_read(parse(text), known), levels_analysed(tree))
        if differ is not None:
            found.append(f"PostgreSQL's analysis of it differs from what the planner reads ({differ})")
    return list(dict.fromkeys(found))


def _survives_round_trip(connection: Connection, text: str, view: int) -> bool:
    """Whether the parser's text means the same to the server as the view that was parsed.

    It must be deparsed to the same text, or to the one that the view's own text has once it is parsed again:
    the server itself leaves out what is sorted by twice, and pulls the cast of an array to its elements. And
    it must call the same functions and operators: those that the text does not name (NULLIF, USING, IS
    DISTINCT FROM) could be found in another schema when it is parsed again.
    """
    try:
        printed = query_text(parse(text))
    except Unsupported:
        return False
    deparsed, calls = _parsed_again(connection, printed)
    called = volatility.calls(_parse_tree(connection, view))
    if deparsed == _plain_values(text):
        return calls == called
    again, _ = _parsed_again(connection, text.strip().rstrip(";"))
    return deparsed is not None and deparsed == again and set(calls) == set(called)


def _parsed_again(connection: Connection, text: str) -> tuple[str | None, list[tuple[str, int]]]:
    """How the server deparses a query, and what it calls; no text if the server does not accept it."""
    try:
        with connection.transaction():
            connection.execute(sql.SQL("CREATE TEMP VIEW hw_round_trip AS {}").format(sql.SQL(text)))
            view = int(one(connection, "SELECT 'pg_temp.hw_round_trip'::regclass::oid")[0])
            deparsed = canonical_text(connection, view)
            calls = volatility.calls(_parse_tree(connection, view))
            connection.execute("DROP VIEW pg_temp.hw_round_trip")
    except psycopg.Error:
        return None, []
    return _plain_values(deparsed), calls


def _plain_values(text: str) -> str:
    """A list of VALUES in FROM is the same with and without a SELECT around it."""
    return text.replace("( VALUES", "(VALUES")


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


def _parse_tree(connection: Connection, view: int) -> str:
    return str(one(connection, query("definition", "parse_trees"), {"views": [view]})[0])


def _declared_scale(typmod: int) -> int | None:
    """The fractional digits of values of a numeric type; a negative scale rounds and shows none."""
    return None if typmod == -1 else max(0, (((typmod - 4) & 0x7FF) ^ 0x400) - 0x400)


class _Types:
    """What the server knows about columns, with what it must be asked for each type remembered."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._comparable: dict[str, tuple[bool, bool]] = {}

    def columns_of(self, relations: Sequence[int]) -> dict[int, list[SourceColumn]]:
        """The live columns of relations."""
        columns: dict[int, list[SourceColumn]] = {relation: [] for relation in relations}
        rows = self._connection.execute(
            query("definition", "columns"), {"relations": list(relations)}
        ).fetchall()
        for relation, attnum, name, not_null, expression, generated, *type_facts in rows:
            kind = self._column_type(*type_facts)
            columns[relation].append(
                SourceColumn(
                    attnum,
                    name,
                    kind,
                    not_null=not_null,
                    captured=generated != "v",
                    expression=expression,
                )
            )
        return columns

    def columns_of_query(self, text: str) -> tuple[Column, ...]:
        """The columns of a query's result."""
        shape = sql.Identifier("pg_temp", "hw_shape")
        self._connection.execute(
            sql.SQL("CREATE TEMP TABLE hw_shape ON COMMIT DROP AS ({}) WITH NO DATA").format(sql.SQL(text))
        )
        relation = one(self._connection, "SELECT 'pg_temp.hw_shape'::regclass::oid")[0]
        columns = self.columns_of([relation])[relation]
        self._connection.execute(sql.SQL("DROP TABLE {}").format(shape))
        return tuple(Column(column.name, column.type) for column in columns)

    def _column_type(
        self,
        declared: str,
        base_oid: int,
        base: str,
        typmod: int,
        category: str,
        collation: str | None,
        deterministic: bool,
        bytewise: bool,
        equality: str | None,
    ) -> ColumnType:
        kind = ColumnType(
            sql=declared,
            base=base,
            collation=collation,
            exact=(base_oid in EXACT_TYPES or category == "e") and deterministic,
            integer=base_oid in INTEGER_TYPES,
            numeric=base_oid == NUMERIC_TYPE,
            scale=_declared_scale(typmod) if base_oid == NUMERIC_TYPE else None,
            floating=base_oid in FLOAT_TYPES,
            deterministic=deterministic,
            bytewise=bytewise,
        )
        if equality is not None:
            kind = replace(kind, equality=equality)
        if base_oid not in COMPARABLE_TYPES and category != "e":
            groupable, hashes = self._comparisons(base)
            kind = replace(kind, groupable=groupable, hashable=hashes)
        return kind

    def _comparisons(self, base: str) -> tuple[bool, bool]:
        """Whether GROUP BY and hash_record_extended take a type."""
        if base not in self._comparable:
            null = sql.SQL("NULL::{}").format(sql.SQL(base))
            self._comparable[base] = (
                self._works(sql.SQL("SELECT x FROM (SELECT {} AS x) AS t GROUP BY x").format(null)),
                self._works(sql.SQL("SELECT hash_record_extended(ROW({}), 0)").format(null)),
            )
        return self._comparable[base]

    def _works(self, statement: sql.Composed) -> bool:
        try:
            with self._connection.transaction():
                self._connection.execute(statement)
        except psycopg.Error:
            return False
        return True
