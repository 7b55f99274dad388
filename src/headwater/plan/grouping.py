"""GROUP BY: keys, aggregate calls, and grouping sets, each of which is an aggregate of its own."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Iterator, Mapping

from sqlglot import exp

from headwater.plan.dialect import render
from headwater.plan.operators import (
    Aggregate,
    Call,
    Input,
    Lookup,
    Output,
    Query,
    Unsupported,
)
from headwater.plan.reach import bare
from headwater.plan.rename import GROUP
from headwater.plan.scope import (
    Lifted,
    Scope,
    has_query,
    has_window,
    is_row,
    is_whole_row,
    realiased,
)
from headwater.plan.subqueries import Block, Environment, Subqueries

ROWS = "i"
"""Alias by which an aggregate's calls refer to the rows they aggregate."""
LARGEST_CUBE = 64
"""Grouping sets of a query; each is maintained on its own."""


class Grouping(Subqueries):
    """Builds aggregates."""

    @abstractmethod
    def _shown(
        self,
        block: Block,
        asking: list[exp.Expression],
        outputs: list[Output],
        windows: Mapping[str, exp.Expression],
    ) -> Query:
        """A block with what its SELECT shows."""

    def _grouping_sets(
        self, group: exp.Expression | None, scope: Scope, environment: Environment
    ) -> list[list[exp.Expression]]:
        """The sets of keys by which a query groups: the product of what its GROUP BY lists."""
        sets: list[list[exp.Expression]] = [[]]
        if group is None:
            return sets
        items = list(group.expressions)
        for kind in ("grouping_sets", "rollup", "cube"):
            items += group.args.get(kind) or []
        for item in items:
            alternatives = [
                [self._resolve(key, scope, environment) for key in keys] for keys in _alternatives(item)
            ]
            sets = [[*before, *keys] for before in sets for keys in alternatives]
            if len(sets) > LARGEST_CUBE:
                raise Unsupported(f"GROUP BY with more than {LARGEST_CUBE} grouping sets has no delta rule")
        return sets

    def _grouped(
        self,
        block: Block,
        asking: list[exp.Expression],
        keys: list[exp.Expression],
        every: list[exp.Expression],
        outputs: list[Output],
        having: exp.Expression | None,
        windows: Mapping[str, exp.Expression],
    ) -> Query:
        """The groups by one set of keys; a key that only other sets have is NULL in it."""
        columns = Lifted()
        key_names = list(dict.fromkeys(columns.name(key, "k") for key in keys))
        calls: dict[str, Call] = {}
        texts = {render(bare(key)) for key in keys}
        known = {render(bare(key)) for key in every}
        absent = known - texts

        def over_groups(tree: exp.Expression) -> exp.Expression:
            """The expression with keys and calls replaced by their names."""
            whole = exp.Paren(this=tree.copy())

            def walk(node: exp.Expression, *, inside: bool = False) -> None:
                text = render(bare(node))
                key = columns.names.get(text)
                if key in key_names:
                    node.replace(exp.column(key, GROUP, quoted=True))
                    return
                if text in absent:
                    node.replace(self._absent_key(node, keys, key_names, calls, columns))
                    return
                inside = inside or isinstance(node, exp.Select | exp.SetOperation)
                if isinstance(node, exp.Anonymous) and node.name.upper() == "GROUPING":
                    items = [render(bare(item)) for item in node.expressions]
                    if not known.issuperset(items):
                        raise Unsupported(f"{render(node)} does not name the keys as GROUP BY does")
                    bits = [item in absent for item in items]
                    node.replace(exp.Literal.number(int("".join("01"[bit] for bit in bits), 2)))
                    return
                for call in self._calls(node):
                    if call is not node:
                        continue
                    if not inside:
                        node.replace(exp.column(self._call(call, calls, columns).name, GROUP, quoted=True))
                        return
                    read = [found.table for found in call.find_all(exp.Column)]
                    if read and not any(self._is_inside(alias) for alias in read):
                        raise Unsupported("an aggregate of the query outside in a subquery has no delta rule")
                if isinstance(node, exp.Column):
                    if self._is_inside(node.table):
                        return
                    # PostgreSQL lets a column that depends on a grouped primary key stand alone.
                    key_names.append(columns.name(node, "k"))
                    node.replace(exp.column(key_names[-1], GROUP, quoted=True))
                    return
                for child in list(node.iter_expressions()):
                    names_collation = isinstance(node, exp.Collate) and child.arg_key == "expression"
                    if not names_collation and not isinstance(child, exp.DataType):
                        walk(child, inside=inside)

            walk(whole.this)
            return bare(whole)

        over = [Output(output.name, over_groups(output.expression)) for output in outputs]
        condition = over_groups(having) if having is not None else None
        specs = {name: over_groups(spec) for name, spec in windows.items()}
        conditions = {
            name: [over_groups(item) for item in self._lookups[name].conditions]
            for name in self._used([out.expression for out in over] + ([condition] if condition else []))
        }
        rows = self._rows(block, asking, list(columns.outputs()))
        trees = [*(output.expression for output in over), *([condition] if condition is not None else [])]
        if not any(has_query(tree) or has_window(tree) for tree in trees):
            return Aggregate(rows, tuple(key_names), tuple(calls.values()), condition, tuple(over))
        names = (*key_names, *(call.name for call in calls.values()))
        groups = Aggregate(
            rows,
            tuple(key_names),
            tuple(calls.values()),
            None,
            tuple(Output(name, exp.column(name, GROUP, quoted=True)) for name in names),
        )
        alias = next(self._aliases)
        above = {GROUP: alias}
        for name, items in conditions.items():
            seen = self._lookups[name]
            self._lookups[name] = Lookup(
                name, seen.node, tuple(realiased(item, above) for item in items), (), seen.exempt
            )
        outer = Block([Input(alias, groups)])
        late: list[exp.Expression] = []
        if condition is not None:
            whole = realiased(condition, above)
            (late if has_query(whole) else outer.predicates).append(whole)
        shown = [Output(output.name, realiased(output.expression, above)) for output in over]
        return self._shown(outer, late, shown, {name: realiased(spec, above) for name, spec in specs.items()})

    @staticmethod
    def _absent_key(
        tree: exp.Expression,
        keys: list[exp.Expression],
        key_names: list[str],
        calls: dict[str, Call],
        columns: Lifted,
    ) -> exp.Expression:
        """NULL of the type of a key. To group by it tells no rows apart; without a key there is one group."""
        null = exp.Case(ifs=[exp.If(this=exp.false(), true=tree.copy())])
        if keys:
            name = columns.name(null, "k")
            if name not in key_names:
                key_names.append(name)
            return exp.column(name, GROUP, quoted=True)
        name = columns.name(null, "a")
        if name not in calls:
            column = exp.column(name, ROWS, quoted=True)
            sql = exp.WithinGroup(
                this=exp.Anonymous(this="mode"), expression=exp.Order(expressions=[exp.Ordered(this=column)])
            )
            calls[name] = Call(f"g{len(calls) + 1}", "mode", True, sql, (name,), ordered=True)
        return exp.column(calls[name].name, GROUP, quoted=True)

    def _calls(self, tree: exp.Expression) -> list[exp.Expression]:
        """The aggregate calls in an expression, each with its FILTER, WITHIN GROUP and schema."""
        calls = []

        def walk(node: exp.Expression) -> None:
            if isinstance(node, exp.Select | exp.SetOperation):
                return
            if isinstance(node, exp.Anonymous) and node.name in self._relations.aggregates:
                whole = _whole_call(node)
                if not isinstance(whole.parent, exp.Window) or whole.arg_key != "this":
                    calls.append(whole)
                    return
            for child in node.iter_expressions():
                walk(child)

        walk(tree)
        return calls

    def _call(self, tree: exp.Expression, calls: dict[str, Call], columns: Lifted) -> Call:
        """The call with its non-constant arguments lifted into columns of the aggregate's input."""
        text = render(tree)
        if text in calls:
            return calls[text]
        lifted = exp.Paren(this=tree.copy())
        anonymous = next(
            node for node in lifted.find_all(exp.Anonymous) if node.name in self._relations.aggregates
        )
        name = anonymous.name
        within = lifted.find(exp.WithinGroup)
        condition = lifted.find(exp.Filter)
        slots = [slot for argument in anonymous.expressions for slot in _slots(argument)]
        if within is not None:
            slots += list(_slots(within.expression))
        arguments = []
        for slot in slots:
            if slot.find(exp.Column) or has_query(slot):
                arguments.append(columns.name(slot, "a"))
                slot.replace(exp.column(arguments[-1], ROWS, quoted=True))
        filter_column = None
        if condition is not None:
            filter_column = columns.name(condition.expression.this, "a")
            condition.expression.set("this", exp.column(filter_column, ROWS, quoted=True))
        call = Call(
            name=f"g{len(calls) + 1}",
            function=name,
            builtin=name in self._relations.builtin_aggregates and not isinstance(anonymous.parent, exp.Dot),
            sql=lifted.this,
            arguments=tuple(arguments),
            distinct=anonymous.find(exp.Distinct) is not None,
            ordered=anonymous.find(exp.Order) is not None or within is not None,
            filter=filter_column,
        )
        calls[text] = call
        return call


def _alternatives(item: exp.Expression) -> list[list[exp.Expression]]:
    """The sets of keys that one item of a GROUP BY stands for."""
    match item:
        case exp.Tuple():
            return [list(item.expressions)]
        case exp.Paren():
            return [[item.this]]
        case exp.GroupingSets():
            return [keys for inner in item.expressions for keys in _alternatives(inner)]
        case exp.Rollup():
            parts = [_alternatives(inner)[0] for inner in item.expressions]
            return [[key for part in parts[:count] for key in part] for count in range(len(parts), -1, -1)]
        case exp.Cube():
            parts = [_alternatives(inner)[0] for inner in item.expressions]
            return [
                [key for part in chosen for key in part]
                for count in range(len(parts), -1, -1)
                for chosen in itertools.combinations(parts, count)
            ]
        case _:
            return [[item]]


def _whole_call(node: exp.Expression) -> exp.Expression:
    """The call with the clauses around it: schema, WITHIN GROUP, FILTER."""
    parent = node.parent
    while isinstance(parent, exp.Filter | exp.WithinGroup | exp.Dot) and node.arg_key in (
        "this",
        "expression",
    ):
        if isinstance(parent, exp.Dot) and parent.expression is not node:
            break
        node, parent = parent, parent.parent
    return node


def _slots(node: exp.Expression) -> Iterator[exp.Expression]:
    """The value expressions among a call's arguments, inside DISTINCT and ORDER BY too."""
    match node:
        case exp.Star():
            return
        case exp.Distinct():
            for item in node.expressions:
                yield from _slots(item)
        case exp.Order():
            if node.this is not None:
                yield from _slots(node.this)
            for item in node.expressions:
                yield from _slots(item)
        case exp.Ordered():
            yield from _slots(node.this)
        case exp.Kwarg():
            yield from _slots(node.expression)
        case _ if is_row(node):  # which no column can hold
            for item in node.expressions:
                yield from _slots(item)
        case exp.Cast() if is_whole_row(node):  # a column of the type would be in the way of ALTER TABLE
            yield from _slots(node.this)
        case _:
            yield node
