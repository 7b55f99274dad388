"""GROUP BY: keys, aggregate calls, and grouping sets, each of which is an aggregate of its own."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence

from postgast import pg_query_pb2 as pg
from postgast.pg_query_pb2 import Node

from headwater.plan import syntax
from headwater.plan.build.relations import Environment
from headwater.plan.build.rename import GROUP
from headwater.plan.build.scope import Block, Lifted, Scope, has_window, identity, is_row
from headwater.plan.build.subqueries import Subqueries
from headwater.plan.errors import Unsupported
from headwater.plan.expression import Expression, column, column_of
from headwater.plan.operators import Aggregate, Call, Input, Lookup, Output, Query
from headwater.plan.syntax import function_name, kind_of, reading

ROWS = "i"
"""Alias by which an aggregate's calls refer to the rows they aggregate."""
LARGEST_CUBE = 64
"""The most grouping sets of a query; each is maintained on its own."""


class Grouping(Subqueries):
    """Builds aggregates."""

    @abstractmethod
    def _shown(
        self,
        block: Block,
        asking: list[Expression],
        outputs: list[Output],
        windows: Mapping[str, Expression],
    ) -> Query:
        """Return a block with what its SELECT shows."""

    def _grouping_sets(
        self, items: Sequence[Node], scope: Scope, environment: Environment, *, distinct: bool
    ) -> list[list[Expression]]:
        """Return the sets of keys by which a query groups: the product of the items of its GROUP BY."""
        sets: list[list[Expression]] = [[]]
        for item in items:
            alternatives = [
                [self._resolve(key, scope, environment) for key in keys] for keys in _alternatives(item)
            ]
            sets = [[*before, *keys] for before in sets for keys in alternatives]
            if len(sets) > LARGEST_CUBE:
                raise Unsupported(f"GROUP BY with more than {LARGEST_CUBE} grouping sets has no delta rule")
        if distinct:
            sets = list({frozenset(identity(key.node) for key in keys): keys for keys in sets}.values())
        if len(sets) > 1 and any(not key.references for keys in sets for key in keys):
            # Servers differ in which of the equal constants of a query become NULL in sets without it.
            raise Unsupported("a constant as a key of grouping sets has no delta rule")
        return sets

    def _grouped(
        self,
        block: Block,
        asking: list[Expression],
        keys: list[Expression],
        every: list[Expression],
        outputs: list[Output],
        having: Expression | None,
        windows: Mapping[str, Expression],
    ) -> Query:
        """Return the groups by one set of keys; a key that only other sets have is NULL in it."""
        groups = _Groups(self, keys, every)
        over = [Output(output.name, groups.over(output.expression)) for output in outputs]
        condition = groups.over(having) if having is not None else None
        specs = {name: groups.over(spec) for name, spec in windows.items()}
        trees = [*(output.expression for output in over), *([condition] if condition is not None else [])]
        conditions = {
            name: [groups.over(item) for item in self._lookups[name].conditions] for name in self._used(trees)
        }
        key_names, calls = tuple(groups.key_names), tuple(groups.calls.values())
        rows = self._rows(block, asking, groups.columns.outputs())
        plain = not any(
            tree.has_query or has_window(tree.node) or self._relations.returns_set(tree.node)
            for tree in trees
        )
        if plain:
            return Aggregate(rows, key_names, calls, condition, tuple(over))
        names = (*key_names, *(call.name for call in calls))
        if not names:
            raise Unsupported("a group without a key or an aggregate has no delta rule here")
        grouped = Aggregate(
            rows, key_names, calls, None, tuple(Output(name, column(name, GROUP)) for name in names)
        )
        alias = next(self._aliases)
        above = {GROUP: alias}
        before = {name: self._lookups[name] for name in conditions}
        for name, items in conditions.items():
            seen = before[name]
            self._lookups[name] = Lookup(
                name, seen.node, tuple(item.realiased(above) for item in items), (), seen.exempt
            )
        outer = Block([Input(alias, grouped)])
        late: list[Expression] = []
        if condition is not None:
            whole = condition.realiased(above)
            (late if whole.has_query else outer.predicates).append(whole)
        shown = [Output(output.name, output.expression.realiased(above)) for output in over]
        node = self._shown(outer, late, shown, {name: spec.realiased(above) for name, spec in specs.items()})
        self._lookups |= before  # other sets of keys look up by columns of their own
        return node

    def _aggregate_call(self, node: Node, number: int, columns: Lifted) -> Call:
        """Return the call with its non-constant arguments lifted into columns of the aggregate's input."""
        lifted = syntax.copied(node)
        arguments = []
        for slot in _argument_slots(lifted):
            tree = Expression(syntax.copied(slot))
            if tree.references or tree.has_query:
                arguments.append(columns.name(tree, "a"))
                slot.CopyFrom(syntax.column(arguments[-1], ROWS))
        own = _clauses(lifted)
        filter_column = None
        if own.HasField("agg_filter"):
            filter_column = columns.name(Expression(syntax.copied(own.agg_filter)), "a")
            own.agg_filter.CopyFrom(syntax.column(filter_column, ROWS))
        name = f"g{number}"
        of_rows = any(is_row(item) for item in syntax.walk(node))
        if kind_of(node) != "func_call":
            return Call(
                name, kind_of(node), True, Expression(lifted), tuple(arguments), ordered=True,
                of_rows=of_rows, filter=filter_column,
            )  # fmt: skip
        call = node.func_call
        schema, function = function_name(call)
        return Call(
            name=name,
            function=function,
            builtin=schema == "pg_catalog",
            sql=Expression(lifted),
            arguments=tuple(arguments),
            distinct=call.agg_distinct,
            ordered=bool(call.agg_order) or call.agg_within_group,
            star=call.agg_star,
            of_rows=of_rows,
            filter=filter_column,
        )


class _Groups:
    """The keys and aggregate calls of one set of keys, while expressions are built on top of them."""

    def __init__(self, builder: Grouping, keys: list[Expression], every: list[Expression]) -> None:
        self._builder = builder
        self._keys = keys
        self.columns = Lifted()
        self.key_names = list(dict.fromkeys(self.columns.name(key, "k") for key in keys))
        self.calls: dict[bytes, Call] = {}
        present = {identity(key.node) for key in keys}
        self._known = {identity(key.node) for key in every}
        self._absent = self._known - present

    def over(self, tree: Expression) -> Expression:
        """Return the expression with keys and calls replaced by their names."""
        return Expression(syntax.rewritten(tree.node, self._outside))

    def _outside(self, node: Node) -> Node | None:
        if kind_of(node) == "select_stmt":
            # The aggregates in a subquery are its own.
            return syntax.of_query(syntax.rewritten(node.select_stmt, self._anywhere))
        if self._builder._relations.is_aggregate(node) and self._key(node) is None:
            return syntax.column(self._call(node).name, GROUP)
        return self._anywhere(node)

    def _anywhere(self, node: Node) -> Node | None:
        key = self._key(node)
        if key is not None:
            return key
        if kind_of(node) == "grouping_func":
            return self._grouping(node.grouping_func)
        found = column_of(node)
        if found is None or self._builder._is_inside(found.alias):
            return None
        # PostgreSQL allows a column that depends on a grouped primary key outside aggregates.
        self.key_names.append(self.columns.name(Expression(node), "k"))
        return syntax.column(self.key_names[-1], GROUP)

    def _key(self, node: Node) -> Node | None:
        if kind_of(node) == "a_const":
            return None  # equal wherever it occurs, and a type or a clause may not take a column
        mark = identity(node)
        name = self.columns.names.get(mark)
        if name in self.key_names:
            return syntax.column(name, GROUP)
        return self._absent_key(node) if mark in self._absent else None

    def _absent_key(self, node: Node) -> Node:
        """Return NULL of the type of a key, which separates no rows; without a key there is one group."""
        null = Expression(syntax.typed_null(node))
        if self._keys:
            name = self.columns.name(null, "k")
            if name not in self.key_names:
                self.key_names.append(name)
            return syntax.column(name, GROUP)
        name = self.columns.name(null, "a")
        mark = name.encode()
        if mark not in self.calls:
            sort = pg.SortBy(
                node=syntax.column(name, ROWS),
                sortby_dir=pg.SORTBY_DEFAULT,
                sortby_nulls=pg.SORTBY_NULLS_DEFAULT,
            )
            call = pg.FuncCall(
                funcname=[syntax.string("mode")],
                agg_order=[Node(sort_by=sort)],
                agg_within_group=True,
                funcformat=pg.COERCE_EXPLICIT_CALL,
            )
            tree = Expression(Node(func_call=call))
            self.calls[mark] = Call(f"g{len(self.calls) + 1}", "mode", True, tree, (name,), ordered=True)
        return syntax.column(self.calls[mark].name, GROUP)

    def _grouping(self, call: pg.GroupingFunc) -> Node:
        with reading(call) as found:
            marks = [identity(item) for item in found.args]
        if not self._known.issuperset(marks):
            raise Unsupported("GROUPING does not name the keys as GROUP BY does")
        return syntax.integer(int("".join("01"[mark in self._absent] for mark in marks), 2))

    def _call(self, node: Node) -> Call:
        mark = identity(node)
        if mark not in self.calls:
            self.calls[mark] = self._builder._aggregate_call(node, len(self.calls) + 1, self.columns)
        return self.calls[mark]


def _clauses(node: Node) -> pg.FuncCall | pg.JsonAggConstructor:
    """Return what holds FILTER and ORDER BY of an aggregate call."""
    kind = kind_of(node)
    found: pg.FuncCall | pg.JsonAggConstructor
    found = node.func_call if kind == "func_call" else getattr(node, kind).constructor
    return found


def _argument_slots(node: Node) -> Iterator[Node]:
    """Yield the places of a call's arguments, also inside ORDER BY."""
    match kind_of(node):
        case "func_call":
            arguments = list(node.func_call.args)
        case "json_array_agg":
            arguments = [node.json_array_agg.arg.raw_expr]
        case _:
            pair = node.json_object_agg.arg
            arguments = [pair.key, pair.value.raw_expr]
    sorts = [item.sort_by.node for item in _clauses(node).agg_order]
    for argument in [*arguments, *sorts]:
        yield from _slots(argument)


def _slots(node: Node) -> Iterator[Node]:
    """Yield the value expressions in an argument."""
    match kind_of(node):
        case "named_arg_expr":
            yield from _slots(node.named_arg_expr.arg)
        case "row_expr":  # a column cannot hold it
            for item in node.row_expr.args:
                yield from _slots(item)
        case "type_cast" if is_row(node):  # a column of the type would block ALTER TABLE
            yield from _slots(node.type_cast.arg)
        case _:
            yield node


def _alternatives(item: Node) -> list[list[Node]]:
    """Return the sets of keys that one item of a GROUP BY stands for."""
    match kind_of(item):
        case "row_expr" if item.row_expr.row_format == pg.COERCE_IMPLICIT_CAST:
            return [list(item.row_expr.args)]
        case "grouping_set":
            with reading(item.grouping_set) as found:
                return _expanded(found.kind, list(found.content))
        case "a_const":
            raise Unsupported("a number in GROUP BY is not expected from the server's deparser")
        case _:
            return [[item]]


def _expanded(kind: pg.GroupingSetKind, content: list[Node]) -> list[list[Node]]:
    if kind == pg.GROUPING_SET_EMPTY:
        return [[]]
    if kind == pg.GROUPING_SET_SETS:
        return [keys for inner in content for keys in _alternatives(inner)]
    parts = [_alternatives(inner)[0] for inner in content]
    if kind == pg.GROUPING_SET_ROLLUP:
        chosen_parts = [parts[:count] for count in range(len(parts), -1, -1)]
    elif kind == pg.GROUPING_SET_CUBE:
        chosen_parts = [
            list(chosen)
            for count in range(len(parts), -1, -1)
            for chosen in itertools.combinations(parts, count)
        ]
    else:
        raise Unsupported(f"{pg.GroupingSetKind.Name(kind)} has no delta rule")
    return [[key for part in chosen for key in part] for chosen in chosen_parts]
