"""From syntax to operators.

The clauses after FROM in a SELECT are put on top of its block, in the order in which SQL evaluates them:
subqueries in WHERE, grouping, HAVING, window functions, DISTINCT, ORDER BY with LIMIT.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from postgast import pg_query_pb2 as pg
from postgast.pg_query_pb2 import Node, SelectStmt

from headwater.plan import syntax
from headwater.plan.build.from_items import FromItems
from headwater.plan.build.grouping import Grouping
from headwater.plan.build.relations import Environment
from headwater.plan.build.rename import distinct, renamed
from headwater.plan.build.scope import (
    MERGED,
    Block,
    Lifted,
    Scope,
    has_window,
    identity,
    is_window_call,
    output_name,
)
from headwater.plan.build.subqueries import conditions_of
from headwater.plan.errors import Unsupported
from headwater.plan.expression import Expression, column, column_of
from headwater.plan.operators import Aggregate, Input, Keyed, Output, Query, UnionAll
from headwater.plan.syntax import kind_of, reading

COMPARISONS = {pg.SETOP_INTERSECT: "intersect", pg.SETOP_EXCEPT: "except"}


class Builder(FromItems, Grouping):
    """Builds the operators of one query."""

    def query(self, query: SelectStmt, outer: Environment) -> Query:
        with reading(query) as found:
            environment = outer
            if found.HasField("with_clause"):
                environment = self._with_ctes(found.with_clause, outer)
            if found.op == pg.SETOP_NONE:
                if not found.values_lists:
                    self._refuse_observed_order(query, environment)
                    return self._select(found, environment)
                _ = found.limit_option  # it is always set
                return self._values(query)
            _ = (found.larg, found.rarg, found.all)
            if found.op == pg.SETOP_UNION:
                whole: Query = self._union(query, environment)
            elif found.op in COMPARISONS:
                whole = self._compared(query, environment)
            else:
                raise Unsupported(f"{pg.SetOperation.Name(found.op)} has no delta rule yet")
            return self._limited(found, whole)

    # set operations

    def _union(self, query: SelectStmt, environment: Environment) -> UnionAll | Aggregate:
        branches: list[Query] = []
        for side in (query.larg, query.rarg):
            for part in self._union_parts(side, environment, below_distinct=not query.all):
                branches.extend(part.branches if isinstance(part, UnionAll) else [part])
        union = UnionAll(tuple(branches))
        return union if query.all else distinct(union)

    def _union_parts(
        self, query: SelectStmt, environment: Environment, *, below_distinct: bool
    ) -> Iterator[Query]:
        """Yield the branches of nested UNIONs; below one that removes duplicates, an inner one need not."""
        plain = query.op == pg.SETOP_UNION and not _limits(query) and not query.HasField("with_clause")
        if plain and (below_distinct or query.all):
            yield from self._union_parts(query.larg, environment, below_distinct=below_distinct)
            yield from self._union_parts(query.rarg, environment, below_distinct=below_distinct)
        else:
            yield self.query(query, environment)

    def _compared(self, query: SelectStmt, environment: Environment) -> Keyed:
        """Return INTERSECT or EXCEPT: whether a row is in the result depends on the rows that equal it."""
        what = COMPARISONS[query.op]
        sides = [self.query(side, environment) for side in (query.larg, query.rarg)]
        columns = tuple(_positions(len(sides[0].output_names)))
        if not columns:
            raise Unsupported(f"{what.upper()} of rows without columns has no delta rule")
        inputs = tuple(
            Input(alias, renamed(side, columns)) for alias, side in zip(("i1", "i2"), sides, strict=True)
        )
        whole = pg.SelectStmt(op=query.op, all=query.all, limit_option=pg.LIMIT_OPTION_DEFAULT)
        for item, side in zip(inputs, (whole.larg, whole.rarg), strict=True):
            listed = [(syntax.column(name, item.alias), name) for name in columns]
            side.CopyFrom(syntax.select_from(listed, item.alias))
        return Keyed(
            f"{what} all" if query.all else what,
            inputs,
            (columns, columns),
            Expression(syntax.of_query(whole)),
            columns,
            tuple((name, name) for name in columns),
        )

    def _limited(self, query: SelectStmt, node: Query) -> Query:
        """Return ORDER BY … LIMIT of a set operation."""
        sorts = list(query.sort_clause)
        if not _limits(query):
            _ = query.limit_option
            return node
        names = list(node.output_names)
        columns = tuple(_positions(len(names)))
        select = syntax.select_from([(syntax.column(name, "i1"), name) for name in columns], "i1")
        for item in sorts:
            place = _output_place(item.sort_by.node, names)
            select.sort_clause.append(_sorted_by(item, syntax.column(columns[place], "i1")))
        _copy_limit(query, select)
        tree = Expression(syntax.of_query(select))
        keyed = Keyed("limit", (Input("i1", renamed(node, columns)),), ((),), tree, columns)
        return renamed(keyed, tuple(names))

    # SELECT

    def _select(self, query: SelectStmt, environment: Environment) -> Query:
        block, scope = self._from(list(query.from_clause), environment)
        conditions = [self._resolve(item, scope, environment) for item in conditions_of(query, scope)]
        block.predicates += [item for item in conditions if not item.has_query]
        asking = [item for item in conditions if item.has_query]
        if any(kind_of(node) == "grouping_set" for node in query.group_clause):
            asking = self._apart(block, asking)
        scope.subqueries.clear()  # those above are evaluated before the rows are grouped
        outputs = []
        for target in query.target_list:
            with reading(target.res_target) as item:
                outputs.append(Output(output_name(item), self._resolve(item.val, scope, environment)))
        visible = len(outputs)
        distinct_on = [node for node in query.distinct_clause if kind_of(node)]
        is_distinct = bool(query.distinct_clause) and not distinct_on
        sorts = [self._resolve(_sort_key(node), scope, environment) for node in query.sort_clause]
        keyed = bool(distinct_on) or _limits(query)
        places: list[int] = []
        if keyed:
            wanted = [self._resolve(node, scope, environment) for node in distinct_on] + sorts
            places = [_place(item, outputs) for item in wanted]
        elif any(self._relations.returns_set(item.node) for item in sorts):
            # It makes several rows of one, wherever it occurs.
            known = {identity(output.expression.node) for output in outputs}
            if not known.issuperset(identity(item.node) for item in sorts):
                raise Unsupported("a set-returning function in ORDER BY alone has no delta rule")
        having = None
        if query.HasField("having_clause"):
            having = self._resolve(query.having_clause, scope, environment)
        windows = self._windows(query, scope, environment)
        expressions = [output.expression for output in outputs] + ([having] if having else [])
        # An aggregate makes groups wherever it occurs, also in ORDER BY.
        called = any(self._relations.aggregate_calls(item.node) for item in [*expressions, *sorts])
        groups, group_distinct = list(query.group_clause), query.group_distinct
        node: Query
        if groups or having is not None or called:
            sets = self._grouping_sets(groups, scope, environment, distinct=group_distinct)
            every = _unique([key for keys in sets for key in keys])
            branches = [self._grouped(block, asking, keys, every, outputs, having, windows) for keys in sets]
            node = branches[0] if len(branches) == 1 else UnionAll(tuple(branches))
            if len(branches) > 1 and (windows or any(has_window(item.node) for item in expressions)):
                raise Unsupported("window functions over GROUPING SETS have no delta rule yet")
        else:
            node = self._shown(block, asking, outputs, windows)
        if keyed:
            if any(self._relations.returns_set(item.node) for item in expressions):
                raise Unsupported("a set-returning function under LIMIT or DISTINCT ON has no delta rule yet")
            if is_distinct:
                node = distinct(node)  # its sort keys are among its columns
            return self._ordered(query, node, visible, places, len(distinct_on))
        _ = query.limit_option  # without a LIMIT it means nothing
        return distinct(node) if is_distinct else node

    def _apart(self, block: Block, asking: list[Expression]) -> list[Expression]:
        """Give each column of a block a name of its own; return the conditions that are still to be checked.

        Keys of grouping sets are distinguished by how they are written. In `SELECT x, y FROM (SELECT a AS x,
        a AS y FROM t) s GROUP BY GROUPING SETS (x, y)` both would be `a`.
        """
        sides = [relation for relation in block.relations if relation.alias != MERGED]
        trees = [tree for relation in sides for tree in relation.columns.values()]
        if len({identity(tree.node) for tree in trees}) == len(trees) and all(tree.column for tree in trees):
            return asking
        alias = next(self._aliases)
        outputs: list[Output] = []
        moved: dict[bytes, Expression] = {}

        def apart(tree: Expression) -> Expression:
            outputs.append(Output(f"o{len(outputs) + 1}", tree))
            return column(outputs[-1].name, alias)

        for relation in sides:
            own = {name: apart(tree) for name, tree in relation.columns.items()}
            moved |= {identity(relation.columns[name].node): made for name, made in own.items()}
            relation.columns = own
        for relation in block.relations:
            if relation.alias == MERGED:  # the server writes it as what it is made of, or by its name
                relation.columns = {
                    name: tree.mapped(lambda found: moved[identity(column(found.name, found.alias).node)])
                    for name, tree in relation.columns.items()
                }
        block.replace_by(Input(alias, self._rows(block, asking, outputs)))
        return []

    def _ordered(
        self, query: SelectStmt, node: Query, visible: int, places: list[int], distinct_on: int
    ) -> Query:
        """Return DISTINCT ON and LIMIT, over rows that have their sort keys in columns of their own."""
        names = node.output_names
        columns = tuple(_positions(len(names)))
        by = [columns[place] for place in places]
        shown = columns[:visible]
        select = syntax.select_from([(syntax.column(name, "i1"), name) for name in shown], "i1")
        select.distinct_clause.extend(syntax.column(name, "i1") for name in by[:distinct_on])
        for item, name in zip(query.sort_clause, by[distinct_on:], strict=True):
            select.sort_clause.append(_sorted_by(item, syntax.column(name, "i1")))
        _copy_limit(query, select)
        key = tuple(dict.fromkeys(by[:distinct_on])) if not _limits(query) else ()
        keyed = Keyed(
            "limit" if _limits(query) else "distinct on",
            (Input("i1", renamed(node, columns)),),
            (key,),
            Expression(syntax.of_query(select)),
            shown,
            tuple((name, name) for name in shown) if key else (),
        )
        return renamed(keyed, names[:visible])

    def _shown(
        self,
        block: Block,
        asking: list[Expression],
        outputs: list[Output],
        windows: Mapping[str, Expression],
    ) -> Query:
        """Return a block with what its SELECT shows."""
        if not any(has_window(output.expression.node) for output in outputs):
            return self._rows(block, asking, outputs)
        if any(self._relations.returns_set(output.expression.node) for output in outputs):
            raise Unsupported("a set-returning function beside a window function has no delta rule yet")
        lifted = Lifted()
        select = syntax.select_from([], "i1")
        select.window_clause.extend(_over_rows(spec, lifted) for spec in windows.values())
        columns = tuple(_positions(len(outputs)))
        passed, partitions = [], []
        for output, name in zip(outputs, columns, strict=True):
            tree = output.expression
            if has_window(tree.node):
                partitions += _partitions(tree.node, windows)
                select.target_list.append(syntax.target(_over_rows(tree, lifted), name))
            else:
                passed.append((name, lifted.name(tree)))
                select.target_list.append(syntax.target(syntax.column(passed[-1][1], "i1"), name))
        common = [mark for mark in partitions[0] if all(mark in other for other in partitions)]
        key = tuple(dict.fromkeys(lifted.name(Expression(partitions[0][mark])) for mark in common))
        rows = self._rows(block, asking, lifted.outputs())
        tree = Expression(syntax.of_query(select))
        keyed = Keyed("window", (Input("i1", rows),), (key,), tree, columns, tuple(passed))
        return renamed(keyed, tuple(output.name for output in outputs))

    def _windows(self, query: SelectStmt, scope: Scope, environment: Environment) -> dict[str, Expression]:
        """Return the windows that a query names."""
        return {node.window_def.name: self._resolve(node, scope, environment) for node in query.window_clause}


def _over_rows(tree: Expression, lifted: Lifted) -> Node:
    """Return an expression with window functions, its columns and subqueries lifted out."""

    def change(node: Node) -> Node | None:
        if column_of(node) is not None:
            return syntax.column(lifted.name(Expression(node)), "i1")
        if kind_of(node) == "sub_link":
            if node.sub_link.sub_link_type not in (pg.EXPR_SUBLINK, pg.EXISTS_SUBLINK, pg.ARRAY_SUBLINK):
                raise Unsupported("a subquery beside a window function has no delta rule yet")
            return syntax.column(lifted.name(Expression(node)), "i1")
        return None

    return syntax.rewritten(tree.node, change)


def _partitions(node: Node, named: Mapping[str, Expression]) -> list[dict[bytes, Node]]:
    """Return what each window of an expression partitions by."""
    found = []
    for item in syntax.walk(node, into_queries=False):
        if is_window_call(item):
            call = getattr(item, kind_of(item))
            over = call.over if kind_of(item) == "func_call" else call.constructor.over
            found.append(_partition(over, named))
    return found


def _partition(window: pg.WindowDef, named: Mapping[str, Expression]) -> dict[bytes, Node]:
    """Return what a window partitions by; one that builds on another has the partition of that one."""
    base = window.refname or window.name
    if not window.partition_clause and base in named and named[base].node.window_def is not window:
        return _partition(named[base].node.window_def, named)
    return {identity(part): syntax.copied(part) for part in window.partition_clause}


def _limits(query: SelectStmt) -> bool:
    return query.HasField("limit_count") or query.HasField("limit_offset")


def _copy_limit(query: SelectStmt, select: SelectStmt) -> None:
    """Give a query the LIMIT and OFFSET of another, which must be constants."""
    for clause in ("limit_count", "limit_offset"):
        if query.HasField(clause):
            tree = Expression(getattr(query, clause))
            if tree.has_query or tree.references:
                raise Unsupported("LIMIT or OFFSET by a subquery has no delta rule")
            getattr(select, clause).CopyFrom(tree.node)
    select.limit_option = query.limit_option


def _positions(count: int) -> list[str]:
    return [f"c{number + 1}" for number in range(count)]


def _unique(trees: list[Expression]) -> list[Expression]:
    return list({identity(tree.node): tree for tree in trees}.values())


def _place(tree: Expression, outputs: list[Output]) -> int:
    """Return the position of an expression among the outputs; add it if it is not one of them."""
    marks = [identity(output.expression.node) for output in outputs]
    mark = identity(tree.node)
    if mark not in marks:
        outputs.append(Output(f"s{len(outputs) + 1}", tree))
        return len(outputs) - 1
    return marks.index(mark)


def _sort_key(node: Node) -> Node:
    with reading(node.sort_by) as item:
        _ = (item.sortby_dir, item.sortby_nulls, item.use_op)  # kept where the order matters
        if kind_of(item.node) == "a_const":
            raise Unsupported("a constant in ORDER BY is not expected from the server's deparser")
        return item.node


def _sorted_by(item: Node, by: Node) -> Node:
    """Return an item of ORDER BY with another expression."""
    made = syntax.copied(item)
    made.sort_by.node.CopyFrom(by)
    return made


def _output_place(node: Node, names: Sequence[str]) -> int:
    """Return the output by which a set operation is sorted."""
    if kind_of(node) == "a_const" and node.a_const.WhichOneof("val") == "ival":
        return node.a_const.ival.ival - 1
    found = column_of(node)
    if found is not None and not found.alias and found.name in names:
        return list(names).index(found.name)
    raise Unsupported("LIMIT ordered by an expression over a set operation has no delta rule yet")
