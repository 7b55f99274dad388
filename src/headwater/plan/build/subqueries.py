"""Subqueries in expressions: what they read becomes a lookup, what they do with it stays as it is written."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from postgast import pg_query_pb2 as pg
from postgast.pg_query_pb2 import Node, SelectStmt

from headwater.plan import syntax
from headwater.plan.build.aliases import bound_aliases, free_aliases, inner_name, qualified, rename_aliases
from headwater.plan.build.relations import CommonTable, Environment, Name, Relations
from headwater.plan.build.rename import renamed
from headwater.plan.build.scope import (
    MERGED,
    Block,
    Lifted,
    LiftedColumns,
    Relation,
    Scope,
    every,
    has_window,
    identity,
    starred,
)
from headwater.plan.deparse import text_of
from headwater.plan.errors import Unsupported
from headwater.plan.expression import ColumnRef, Expression, column, column_of, conjuncts, integer
from headwater.plan.operators import (
    CORE,
    Apply,
    Input,
    Lookup,
    Output,
    Query,
    Select,
)
from headwater.plan.syntax import function_name, kind_of, reading

ORDER_BLIND = frozenset("count sum avg min max bool_and bool_or every bit_and bit_or bit_xor".split())
"""Aggregates of PostgreSQL's own whose result does not depend on the order of the rows."""


class Subqueries(ABC):
    """Resolves expressions, and with them the queries inside them."""

    def __init__(self, relations: Relations) -> None:
        self._relations = relations
        self._aliases = (f"r{number}" for number in itertools.count(1))
        self._lookup_names = (f"q{number}" for number in itertools.count(1))
        self._lookups: dict[str, Lookup] = {}
        self._inside: set[str] = set()  # aliases in subqueries that stay as they are written
        # What views and common table expressions became: read twice, they are computed once.
        self._built: dict[Name | CommonTable, Query] = {}

    @abstractmethod
    def query(self, query: SelectStmt, outer: Environment) -> Query:
        """Return the operators of a query."""

    @abstractmethod
    def _range_var(self, item: pg.RangeVar, environment: Environment, block: Block) -> Relation:
        """Add a relation in FROM as an input of a block."""

    @abstractmethod
    def _from(self, items: list[Node], environment: Environment) -> tuple[Block, Scope]:
        """Return the block that a FROM clause makes, and the names in it."""

    def _with_ctes(self, clause: pg.WithClause, outer: Environment) -> Environment:
        environment = dict(outer)
        with reading(clause) as found:
            if found.recursive:
                raise Unsupported("WITH RECURSIVE has no delta rule")
            for node in found.ctes:
                with reading(node.common_table_expr) as cte:
                    _ = cte.ctematerialized  # affects only the speed
                    query = cte.ctequery.select_stmt
                    names = syntax.names_of(cte.aliascolnames)
                    environment[cte.ctename] = CommonTable(query, names, dict(environment))
        return environment

    # rows of a block

    def _rows(self, block: Block, asking: list[Expression], outputs: list[Output]) -> Query:
        """Return the rows of a block; if expressions have subqueries, each row looks up their results."""
        asking = [*asking, *(tree for tree in block.predicates if tree.has_query)]
        block = Block(block.inputs, [tree for tree in block.predicates if not tree.has_query])
        trees = [*asking, *(output.expression for output in outputs)]
        expands = any(self._relations.returns_set(output.expression.node) for output in outputs)
        if not any(tree.has_query for tree in trees):
            return replace(block.select(outputs), expands=expands)
        if expands:
            return self._expanding(block, asking, outputs)
        lifted = Lifted()
        core = block.aliases
        over_core = partial(lifted_to_core, core=core, lifted=lifted)
        predicates = [over_core(tree) for tree in asking]
        shown = [Output(output.name, over_core(output.expression)) for output in outputs]
        lookups = tuple(self._lookup(name, core, over_core) for name in self._used(trees))
        return Apply(block.select(lifted.outputs()), lookups, (), tuple(predicates), tuple(shown))

    def _expanding(self, block: Block, asking: list[Expression], outputs: list[Output]) -> Query:
        """Return set-returning functions in the select list, over rows with their lookups done."""
        below, alias = Lifted("e"), next(self._aliases)
        shown = []
        for output in outputs:
            tree = output.expression
            if not self._relations.returns_set(tree.node):
                made = column(below.name(tree), alias)
            elif tree.has_query:
                raise Unsupported("a set-returning function over a subquery has no delta rule yet")
            else:
                made = tree.mapped(lambda found: column(below.name(column(found.name, found.alias)), alias))
            shown.append(Output(output.name, made))
        rows = self._rows(block, asking, below.outputs() or [Output("e1", integer(1))])
        return Select((Input(alias, rows),), (), tuple(shown), expands=True)

    def _used(self, trees: list[Expression]) -> list[str]:
        """Return the lookups that expressions read."""
        names = (
            node.range_var.relname
            for tree in trees
            for node in syntax.find(tree.node, "range_var")
            if not node.range_var.schemaname and node.range_var.relname in self._lookups
        )
        return list(dict.fromkeys(names))

    def _lookup(self, name: str, core: set[str], over_core: Callable[[Expression], Expression]) -> Lookup:
        """Return a lookup as seen from a core: conditions that it cannot check are left out."""
        lookup = self._lookups[name]
        conditions, equals = [], []
        for item in lookup.conditions:
            if not item.aliases <= core | {name} or item.has_query:
                continue
            pair = _equality(item, name)
            if pair is not None and not lookup.exempt:
                seen = over_core(pair[1]).column
                if seen is not None:
                    equals.append((pair[0], seen.name))
            conditions.append(over_core(item))
        return Lookup(name, lookup.node, tuple(conditions), tuple(equals), lookup.exempt)

    # expressions

    def _resolve(self, node: Node, scope: Scope, environment: Environment) -> Expression:
        """Return the expression over the block's inputs.

        Each column is replaced by what it stands for there, and each subquery by one over a lookup.
        """

        def change(item: Node) -> Node | None:
            match kind_of(item):
                case "column_ref":
                    return _resolved_column(item, scope)
                case "null_test" if (alias := starred(item.null_test.arg)) is not None:
                    # True of a row that has only NULLs in it as well as of no row, so it needs no type.
                    test = syntax.copied(item)
                    test.null_test.arg.CopyFrom(syntax.row(found.node for found in scope.fields(alias)))
                    return test
                case "sub_link":
                    return self._sub_link(item.sub_link, scope, environment)
                case "json_array_query_constructor" | "select_stmt":
                    raise Unsupported(f"{kind_of(item).replace('_', ' ')} has no delta rule here")
                case _:
                    return None

        return Expression(syntax.rewritten(node, change))

    def _sub_link(self, link: pg.SubLink, scope: Scope, environment: Environment) -> Node:
        """Return a subquery in an expression, with what it is compared with.

        If it is written several times it becomes the same each time: it may be a key of the query.
        """
        mark = identity(Node(sub_link=link))
        if mark in scope.subqueries:
            return syntax.copied(scope.subqueries[mark])
        made = syntax.copied(link)
        with reading(link) as found:
            _ = found.oper_name
            kind = found.sub_link_type
            if found.HasField("testexpr"):
                made.testexpr.CopyFrom(self._resolve(found.testexpr, scope, environment).node)
            query = self._subquery(found.subselect.select_stmt, kind, scope, environment)
            made.subselect.CopyFrom(syntax.of_query(query))
        scope.subqueries[mark] = Node(sub_link=made)
        return syntax.copied(scope.subqueries[mark])

    def _subquery(
        self, query: SelectStmt, kind: pg.SubLinkType, scope: Scope, environment: Environment
    ) -> SelectStmt:
        """Return a subquery in an expression, over a lookup instead of what it reads."""
        is_plain = query.op == pg.SETOP_NONE and not query.values_lists
        sorts_array = kind == pg.ARRAY_SUBLINK and bool(query.sort_clause)
        if free_aliases(query) & _visible(scope) or sorts_array:
            if not is_plain:
                return self._as_written(query, scope, environment)
            try:
                return self._correlated(query, scope, environment, exists=kind == pg.EXISTS_SUBLINK)
            except Unsupported:
                return self._as_written(query, scope, environment)
        if kind == pg.ARRAY_SUBLINK and self._is_sorted(query, environment):
            raise Unsupported("ARRAY (…) over a subquery with ORDER BY has no delta rule")
        node = self.query(query, environment)
        columns = tuple(f"c{number + 1}" for number in range(len(node.output_names)))
        name = next(self._lookup_names)
        self._lookups[name] = Lookup(name, renamed(node, columns), (), (), exempt=True)
        return syntax.select_from([(syntax.column(item, name), "") for item in columns], name)

    def _correlated(
        self, query: SelectStmt, scope: Scope, environment: Environment, *, exists: bool = False
    ) -> SelectStmt:
        """Return a subquery that refers outside: what it reads becomes a lookup, the rest stays."""
        template = syntax.copied(query)
        with reading(query) as found:
            if found.op != pg.SETOP_NONE:
                raise Unsupported("a set operation that refers to the rows outside is kept as it is written")
            if found.HasField("with_clause"):
                environment = self._with_ctes(found.with_clause, environment)
                template.ClearField("with_clause")
            self._refuse_observed_order(query, environment)
            block, inner = self._from(list(found.from_clause), environment)
            name, lifted = next(self._lookup_names), Lifted()
            within: list[Node] = []
            across: list[Node] = []
            for item in conditions_of(found, inner):
                alone = all(
                    inner.owns(ref.name, ref.alias) or not _is_outside(ref, scope)
                    for ref in Expression(item).references
                )
                (within if alone else across).append(item)
            resolved = [self._resolve(item, inner, environment) for item in within]
            block.predicates += [item for item in resolved if not item.has_query]
            asking = [item for item in resolved if item.has_query]
            both = Scope(
                [
                    Relation(item.alias, LiftedColumns(item.columns, lifted, name), item.row_type)
                    for item in inner.relations
                ],
                scope,
            )
            template.ClearField("from_clause")
            template.from_clause.append(syntax.range_var(name))
            conditions = [self._resolve(item, both, environment) for item in across]
            template.ClearField("where_clause")
            if conditions:
                template.where_clause.CopyFrom(syntax.all_of([item.node for item in conditions]))
            if exists and all(_is_plain(item.res_target.val) for item in found.target_list):
                # Only the existence of a row matters.
                template.ClearField("target_list")
                template.target_list.append(syntax.target(syntax.integer(1)))
            for clause in (
                template.target_list,
                template.group_clause,
                template.sort_clause,
                template.distinct_clause,
                template.window_clause,
            ):
                for node in clause:
                    # A DISTINCT without ON is a list with an empty node in it.
                    if kind_of(node):
                        node.CopyFrom(self._resolve(node, both, environment).node)
            for clause in ("having_clause", "limit_count", "limit_offset"):
                if template.HasField(clause):
                    node = getattr(template, clause)
                    node.CopyFrom(self._resolve(node, both, environment).node)
            for node in template.group_clause:
                _refuse_position(node)
            for node in template.sort_clause:
                _refuse_position(node.sort_by.node)
            # These stay in the template as they are.
            _ = (found.target_list, found.group_clause, found.group_distinct, found.sort_clause)
            _ = (found.distinct_clause, found.window_clause, found.having_clause)
            _ = (found.limit_count, found.limit_offset, found.limit_option)
        outputs = lifted.outputs() or [Output("c1", integer(1))]
        self._lookups[name] = Lookup(name, self._rows(block, asking, outputs), tuple(conditions))
        return template

    def _as_written(self, query: SelectStmt, scope: Scope, environment: Environment) -> SelectStmt:
        """Return a subquery that may refer to the rows outside anywhere; it stays as it is written.

        Each relation that it reads becomes a lookup without conditions, so a change of one affects every row.

        SELECT … FROM t AS x …  ->  SELECT … FROM (SELECT q1.a FROM q1) AS s_x …
        """
        common = {node.common_table_expr.ctename for node in syntax.find(query, "common_table_expr")}
        own = bound_aliases(query) | common
        if own & _visible(scope):
            raise Unsupported(f"{', '.join(sorted(own & _visible(scope)))} means two things in a subquery")
        references = [
            found for node in syntax.find(query, "column_ref") if (found := column_of(node)) is not None
        ]
        stars = {alias for node in syntax.find(query, "column_ref") if (alias := starred(node)) is not None}
        joined = bool(syntax.find(query, "join_expr"))

        def change(node: Node) -> Node | None:
            match kind_of(node):
                case "res_target" if not node.res_target.name:
                    found = column_of(node.res_target.val)
                    if found is None:
                        return None
                    return syntax.target(_renamed_column(node.res_target.val), found.name)
                case "column_ref":
                    return _renamed_column(node)
                case "range_var":
                    item = node.range_var
                    if not item.schemaname and item.relname in common:
                        return syntax.range_var(
                            inner_name(item.relname), inner_name(item.alias.aliasname or item.relname)
                        )
                    used = None
                    if not joined and not stars and not item.alias.colnames:
                        visible = item.alias.aliasname or item.relname
                        used = {ref.name for ref in references if ref.alias in ("", visible)}
                    return self._inner_table(item, used, environment)
                case _:
                    return None

        def _renamed_column(node: Node) -> Node:
            alias = starred(node)
            if alias is not None:
                if alias not in own:
                    return scope.whole_row(alias)
                star = syntax.column(inner_name(alias))
                star.column_ref.fields.append(Node(a_star=pg.A_Star()))
                return star
            found = column_of(node)
            if found is None:
                raise Unsupported(f"{text_of(node)} has no delta rule here")
            if found.alias in own:
                return syntax.column(found.name, inner_name(found.alias))
            return scope.lookup(found.name, found.alias).node if found.alias else node

        made = syntax.rewritten(query, change)
        rename_aliases(made)
        self._inside |= {inner_name(name) for name in own}
        return made

    def _inner_table(self, item: pg.RangeVar, used: set[str] | None, environment: Environment) -> Node:
        """Return a relation inside a subquery that stays as it is written, from a lookup."""
        plain = syntax.copied(item)
        plain.ClearField("alias")
        block = Block()
        relation = self._range_var(plain, environment, block)
        shown = {name: tree for name, tree in relation.columns.items() if used is None or name in used}
        shown = shown or dict(list(relation.columns.items())[:1])
        name = next(self._lookup_names)
        outputs = [Output(found, tree) for found, tree in shown.items()]
        self._lookups[name] = Lookup(name, self._rows(block, [], outputs), ())
        listed = syntax.select_from([(syntax.column(found, name), "") for found in shown], name)
        visible = item.alias.aliasname or item.relname
        return syntax.subselect(listed, visible, syntax.names_of(item.alias.colnames))

    def _is_inside(self, alias: str) -> bool:
        """Tell whether an alias belongs to a subquery, and not to the rows around it."""
        return alias in self._lookups or alias in self._inside

    # order

    def _refuse_observed_order(self, query: SelectStmt, environment: Environment) -> None:
        """Refuse a query that depends on the order of rows which a subquery in FROM sorted.

        An example is `SELECT array_agg(x) FROM (SELECT x FROM t ORDER BY y) s`: deltas keep no order.
        """
        if not any(self._is_sorted_item(item, environment) for item in query.from_clause):
            return
        clauses = [*query.target_list, *query.sort_clause]
        clauses += [query.having_clause] if query.HasField("having_clause") else []
        distinct_on = any(map(kind_of, query.distinct_clause))
        if (
            query.HasField("limit_count")
            or query.HasField("limit_offset")
            or distinct_on
            or any(has_window(node) for node in clauses)
            or any(_sees_order(call) for node in clauses for call in self._relations.aggregate_calls(node))
        ):
            raise Unsupported(
                "the ORDER BY of a subquery in FROM decides on the result, and deltas keep no order"
            )

    def _is_sorted(self, query: SelectStmt, environment: Environment) -> bool:
        """Tell whether the rows of a query come in an order that it asks for."""
        if query.sort_clause:
            return True
        if query.HasField("with_clause"):
            environment = self._with_ctes(query.with_clause, environment)
        if query.op != pg.SETOP_NONE:
            return any(self._is_sorted(side, environment) for side in (query.larg, query.rarg))
        return any(self._is_sorted_item(item, environment) for item in query.from_clause)

    def _is_sorted_item(self, item: Node, environment: Environment) -> bool:
        match kind_of(item):
            case "range_subselect":
                return self._is_sorted(item.range_subselect.subquery.select_stmt, environment)
            case "join_expr":
                sides = (item.join_expr.larg, item.join_expr.rarg)
                return any(self._is_sorted_item(side, environment) for side in sides)
            case "range_var":
                name = (item.range_var.schemaname, item.range_var.relname)
                common = environment.get(name[1]) if not name[0] else None
                if common is not None:
                    return self._is_sorted(common.query, common.environment)
                view = self._relations.views.get(name)
                return view is not None and self._is_sorted(syntax.parse(view.text), {})
            case _:
                return False


def lifted_to_core(tree: Expression, core: set[str], lifted: Lifted) -> Expression:
    """Return an expression over the columns of a core, lifting what it needs of these inputs."""
    if not tree.has_query and tree.aliases <= core and tree.references:
        return column(lifted.name(tree), CORE)
    return tree.mapped(
        lambda found: (
            column(lifted.name(column(found.name, found.alias)), CORE) if found.alias in core else None
        )
    )


def _resolved_column(node: Node, scope: Scope) -> Node:
    alias = starred(node)
    if alias is not None:
        return scope.whole_row(alias)
    found = column_of(node)
    if found is None:
        raise Unsupported(f"{text_of(node)} has no delta rule here")
    return scope.lookup(found.name, found.alias).node


def conditions_of(query: SelectStmt, scope: Scope) -> list[Node]:
    """Return the conditions of WHERE, taken apart at AND."""
    if not query.HasField("where_clause"):
        return []
    return [as_exists(qualified(item.node, scope)) for item in conjuncts([Expression(query.where_clause)])]


def _visible(scope: Scope) -> set[str]:
    return {item.alias for item in every(scope)} - {MERGED}


def _is_outside(reference: ColumnRef, scope: Scope) -> bool:
    return any(item.alias == reference.alias and reference.alias for item in every(scope))


def _is_plain(node: Node) -> bool:
    return kind_of(node) in ("column_ref", "a_const")


def _refuse_position(node: Node) -> None:
    """Refuse a constant that would be read as the number of an output."""
    if kind_of(node) == "a_const":
        raise Unsupported("a constant in ORDER BY or GROUP BY has no delta rule here")


def _sees_order(call: Node) -> bool:
    if kind_of(call) != "func_call":
        return True
    schema, name = function_name(call.func_call)
    return schema != "pg_catalog" or name not in ORDER_BLIND


def _equality(tree: Expression, alias: str) -> tuple[str, Expression] | None:
    """Return the column and the other side of a condition that equates a column under an alias."""
    sides = tree.equality
    for one, other in (sides, sides[::-1]) if sides is not None else ():
        own = one.column
        if own is not None and own.alias == alias and other.references and alias not in other.aliases:
            return own.name, other
    return None


def as_exists(condition: Node) -> Node:
    """Return `x IN (SELECT y …)` as EXISTS: as a condition it is true exactly if such a row exists.

    x IN (SELECT y FROM t)  ->  EXISTS (SELECT 1 FROM (SELECT y FROM t) AS hw_in (c1) WHERE c1 = x)
    """
    if kind_of(condition) != "sub_link":
        return condition
    with reading(condition.sub_link) as link:
        query, tested, operator = link.subselect.select_stmt, link.testexpr, link.oper_name
        if link.sub_link_type != pg.ANY_SUBLINK or operator or free_aliases(query):
            return condition  # a correlated one stays as it is
    values = list(tested.row_expr.args) if kind_of(tested) == "row_expr" else [tested]
    names = [f"c{number + 1}" for number in range(len(values))]
    found = syntax.select()
    found.target_list.append(syntax.target(syntax.integer(1)))
    found.from_clause.append(syntax.subselect(query, "hw_in", names))
    equal = [
        syntax.equals(syntax.column(name, "hw_in"), value) for name, value in zip(names, values, strict=True)
    ]
    found.where_clause.CopyFrom(syntax.all_of(equal))
    return syntax.exists(found)
