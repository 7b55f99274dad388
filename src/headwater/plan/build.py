"""From syntax to operators.

What follows FROM in a SELECT is put on top of its block, in the order in which SQL evaluates it: subqueries
in WHERE, grouping, HAVING, window functions, DISTINCT, ORDER BY with LIMIT.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sqlglot import exp

from headwater.plan.dialect import render
from headwater.plan.from_items import FromItems
from headwater.plan.grouping import Grouping
from headwater.plan.operators import (
    Aggregate,
    Input,
    Keyed,
    Output,
    Query,
    UnionAll,
    Unsupported,
)
from headwater.plan.reach import bare, conjuncts
from headwater.plan.rename import distinct, renamed
from headwater.plan.scope import (
    Lifted,
    Scope,
    has_query,
    has_window,
    is_collation,
    output_name,
    table_named,
)
from headwater.plan.subqueries import Block, Environment, as_exists, qualified


class Builder(FromItems, Grouping):
    """Builds the operators of one query."""

    def query(self, tree: exp.Expression, outer: Environment) -> Query:
        environment = self._with_ctes(tree, outer)
        match tree:
            case exp.Subquery():
                return self._limited(tree, self.query(tree.this, environment))
            case exp.Union():
                return self._limited(tree, self._union(tree, environment))
            case exp.Intersect() | exp.Except():
                return self._limited(tree, self._compared(tree, environment))
            case exp.Values():
                return self._values(tree)
            case exp.Select():
                return self._select(tree, environment)
            case _:
                raise Unsupported(f"{type(tree).__name__.upper()} has no delta rule yet")

    def _union(self, tree: exp.Union, environment: Environment) -> UnionAll | Aggregate:
        branches: list[Query] = []
        for side in (tree.this, tree.expression):
            for part in self._union_parts(side, environment, below_distinct=bool(tree.args.get("distinct"))):
                branches.extend(part.branches if isinstance(part, UnionAll) else [part])
        union = UnionAll(tuple(branches))
        return distinct(union) if tree.args.get("distinct") else union

    def _union_parts(
        self, tree: exp.Expression, environment: Environment, *, below_distinct: bool
    ) -> Iterator[Query]:
        """The branches of nested UNIONs; below a UNION that removes duplicates an inner one need not."""
        environment = self._with_ctes(tree, environment)
        while isinstance(tree, exp.Subquery) and not _limits(tree):
            tree = tree.this
            environment = self._with_ctes(tree, environment)
        plain = isinstance(tree, exp.Union) and not _limits(tree)
        if isinstance(tree, exp.Union) and plain and (below_distinct or not tree.args.get("distinct")):
            yield from self._union_parts(tree.this, environment, below_distinct=below_distinct)
            yield from self._union_parts(tree.expression, environment, below_distinct=below_distinct)
        else:
            yield self.query(tree, environment)

    def _compared(self, tree: exp.SetOperation, environment: Environment) -> Keyed:
        """INTERSECT and EXCEPT: whether a row is in the result depends on the rows that equal it."""
        sides = [self.query(side, environment) for side in (tree.this, tree.expression)]
        names = sides[0].output_names
        columns = tuple(_positions(len(names)))
        if not columns:
            raise Unsupported(f"{type(tree).__name__.upper()} of rows without columns has no delta rule")
        inputs = tuple(
            Input(alias, renamed(side, columns)) for alias, side in zip(("i1", "i2"), sides, strict=True)
        )
        scans = [
            exp.select(*(exp.column(name, item.alias, quoted=True) for name in columns)).from_(
                table_named(item.alias)
            )
            for item in inputs
        ]
        kind = type(tree)
        whole = kind(this=scans[0], expression=scans[1], distinct=tree.args.get("distinct"))
        return Keyed(
            f"{kind.__name__.lower()}{'' if tree.args.get('distinct') else ' all'}",
            inputs,
            (columns, columns),
            whole,
            columns,
            tuple((name, name) for name in columns),
        )

    def _select(self, tree: exp.Select, environment: Environment) -> Query:
        block, scope = self._from(tree, environment, None)
        where = tree.args.get("where")
        conditions = [
            self._resolve(as_exists(qualified(item, scope)), scope, environment)
            for item in (conjuncts([where.this]) if where else [])
        ]
        block.predicates += [item for item in conditions if not has_query(item)]
        asking = [item for item in conditions if has_query(item)]
        outputs = [
            Output(output_name(item), self._resolve(item.unalias(), scope, environment))
            for item in tree.expressions
        ]
        distinct_on = tree.args["distinct"].args.get("on") if tree.args.get("distinct") else None
        visible, places = len(outputs), list[int]()
        order = tree.args.get("order")
        if distinct_on is not None or _limits(tree):
            wanted = list(distinct_on.expressions) if distinct_on is not None else []
            wanted += [item.this for item in order.expressions] if order else []
            texts = [render(output.expression) for output in outputs]
            for item in wanted:
                resolved = self._resolve(item, scope, environment)
                if render(resolved) not in texts:
                    outputs.append(Output(f"s{len(outputs) + 1}", resolved))
                    texts.append(render(resolved))
                places.append(texts.index(render(resolved)))
        having = tree.args.get("having")
        condition = self._resolve(having.this, scope, environment) if having else None
        group = tree.args.get("group")
        expressions = [output.expression for output in outputs] + ([condition] if condition else [])
        windows = self._windows(tree, scope, environment)
        node: Query
        if group is not None or having is not None or any(self._calls(item) for item in expressions):
            if any(self._returns_set(item) for item in expressions):
                raise Unsupported("a set-returning function beside GROUP BY has no delta rule yet")
            sets = self._grouping_sets(group, scope, environment)
            branches = [
                self._grouped(block, asking, keys, every, outputs, condition, windows)
                for every in [_unique([key for keys in sets for key in keys])]
                for keys in sets
            ]
            node = branches[0] if len(branches) == 1 else UnionAll(tuple(branches))
            if len(branches) > 1 and (windows or any(has_window(item) for item in expressions)):
                raise Unsupported("window functions over GROUPING SETS have no delta rule yet")
        else:
            node = self._shown(block, asking, outputs, windows)
        if distinct_on is not None or _limits(tree):
            if any(self._returns_set(item) for item in expressions):
                raise Unsupported("a set-returning function under LIMIT or DISTINCT ON has no delta rule yet")
            return self._ordered(tree, node, visible, places, distinct_on)
        return distinct(node) if tree.args.get("distinct") else node

    def _ordered(
        self,
        tree: exp.Expression,
        node: Query,
        visible: int,
        places: list[int],
        distinct_on: exp.Expression | None,
    ) -> Query:
        """DISTINCT ON and LIMIT, over rows that have what they are ordered by in columns of their own."""
        names = node.output_names
        order = tree.args.get("order")
        if tree.args.get("distinct") and distinct_on is None:
            node = distinct(node)  # what it is ordered by is among its columns
        columns = tuple(_positions(len(names)))
        by = [columns[place] for place in places]
        count = len(distinct_on.expressions) if distinct_on is not None else 0
        select = exp.select(
            *(
                exp.alias_(exp.column(column, "i1", quoted=True), name, quoted=True)
                for column, name in zip(columns[:visible], _positions(visible), strict=True)
            )
        ).from_(table_named("i1"))
        if distinct_on is not None:
            listed = [exp.column(column, "i1", quoted=True) for column in by[:count]]
            select.set("distinct", exp.Distinct(on=exp.Tuple(expressions=listed)))
        if order is not None:
            ordered = [
                _ordered_by(item, exp.column(column, "i1", quoted=True))
                for item, column in zip(order.expressions, by[count:], strict=True)
            ]
            select.set("order", exp.Order(expressions=ordered))
        for clause in ("limit", "offset"):
            if tree.args.get(clause):
                select.set(clause, tree.args[clause].copy())
        key = tuple(dict.fromkeys(by[:count])) if not _limits(tree) else ()
        what = "limit" if _limits(tree) else "distinct on"
        keyed = Keyed(
            what,
            (Input("i1", renamed(node, columns)),),
            (key,),
            select,
            tuple(_positions(visible)),
            tuple(zip(_positions(visible), columns[:visible], strict=True)) if key else (),
        )
        return renamed(keyed, names[:visible])

    def _limited(self, tree: exp.Expression, node: Query) -> Query:
        """ORDER BY … LIMIT of a set operation or of a query in parentheses."""
        if not _limits(tree):
            return node
        order = tree.args.get("order")
        names = list(node.output_names)
        columns = tuple(_positions(len(names)))
        select = exp.select(*(exp.column(column, "i1", quoted=True) for column in columns)).from_(
            table_named("i1")
        )
        if order is not None:
            ordered = []
            for item in order.expressions:
                plain = bare(item.this)
                if isinstance(plain, exp.Literal) and not plain.is_string:
                    place = int(plain.name) - 1
                elif isinstance(plain, exp.Column):
                    place = names.index(plain.name)
                else:
                    raise Unsupported(
                        "LIMIT ordered by an expression over a set operation has no delta rule yet"
                    )
                ordered.append(_ordered_by(item, exp.column(columns[place], "i1", quoted=True)))
            select.set("order", exp.Order(expressions=ordered))
        for clause in ("limit", "offset"):
            if tree.args.get(clause):
                select.set(clause, tree.args[clause].copy())
        keyed = Keyed("limit", (Input("i1", renamed(node, columns)),), ((),), select, columns)
        return renamed(keyed, tuple(names))

    def _shown(
        self,
        block: Block,
        asking: list[exp.Expression],
        outputs: list[Output],
        windows: Mapping[str, exp.Expression],
    ) -> Query:
        """A block with what its SELECT shows."""
        if not any(has_window(output.expression) for output in outputs):
            return self._rows(block, asking, outputs)
        if any(self._returns_set(output.expression) for output in outputs):
            raise Unsupported("a set-returning function beside a window function has no delta rule yet")
        lifted = Lifted()
        specs = {name: self._over_rows(spec, lifted) for name, spec in windows.items()}
        shown, partitions = [], []
        for output in outputs:
            if not has_window(output.expression):
                shown.append(
                    Output(output.name, exp.column(lifted.name(output.expression), "i1", quoted=True))
                )
                continue
            for window in output.expression.find_all(exp.Window):
                partitions.append(_partition(window, windows))
            shown.append(Output(output.name, self._over_rows(output.expression, lifted)))
        common = [item for item in partitions[0] if all(item in other for other in partitions)]
        by_text = {render(bare(tree)): tree for parts in partitions for tree in parts.values()}
        key = tuple(dict.fromkeys(lifted.name(by_text[item]) for item in common))
        columns = tuple(_positions(len(shown)))
        select = exp.select(
            *(
                exp.alias_(output.expression, column, quoted=True)
                for output, column in zip(shown, columns, strict=True)
            )
        ).from_(table_named("i1"))
        if specs:
            select.set("windows", list(specs.values()))
        passed = tuple(
            (column, output.expression.name)
            for output, column in zip(shown, columns, strict=True)
            if isinstance(output.expression, exp.Column)
        )
        rows = self._rows(block, asking, list(lifted.outputs()))
        keyed = Keyed("window", (Input("i1", rows),), (key,), select, columns, passed)
        return renamed(keyed, tuple(output.name for output in outputs))

    def _over_rows(self, tree: exp.Expression, lifted: Lifted) -> exp.Expression:
        """An expression with window functions, its columns and subqueries lifted out."""
        whole = exp.Paren(this=tree.copy())

        def walk(node: exp.Expression) -> None:
            if isinstance(node, exp.Column) and not is_collation(node):
                node.replace(exp.column(lifted.name(node), "i1", quoted=True))
                return
            if isinstance(node, exp.Subquery | exp.Exists | exp.In | exp.Any | exp.All) and has_query(node):
                if not isinstance(node, exp.Subquery | exp.Exists):
                    raise Unsupported("a subquery beside a window function has no delta rule yet")
                node.replace(exp.column(lifted.name(node), "i1", quoted=True))
                return
            for child in list(node.iter_expressions()):
                if not isinstance(child, exp.DataType):
                    walk(child)

        walk(whole.this)
        return bare(whole)

    def _windows(self, tree: exp.Select, scope: Scope, environment: Environment) -> dict[str, exp.Expression]:
        """The windows that a query names."""
        return {
            window.name: self._resolve(window, scope, environment)
            for window in tree.args.get("windows") or []
        }


def _limits(tree: exp.Expression) -> bool:
    return bool(tree.args.get("limit") or tree.args.get("offset"))


def _positions(count: int) -> list[str]:
    return [f"c{number + 1}" for number in range(count)]


def _unique(trees: list[exp.Expression]) -> list[exp.Expression]:
    return list({render(bare(tree)): tree for tree in trees}.values())


def _ordered_by(item: exp.Expression, column: exp.Expression) -> exp.Expression:
    copy = item.copy()
    copy.set("this", column)
    return copy


def _partition(window: exp.Window, named: Mapping[str, exp.Expression]) -> dict[str, exp.Expression]:
    """What a window partitions by, by its text."""
    parts = window.args.get("partition_by") or []
    alias = window.args.get("alias")
    if not parts and alias is not None and alias.name in named:
        return _partition(named[alias.name], named)  # type: ignore[arg-type]
    return {render(bare(part)): part for part in parts}
