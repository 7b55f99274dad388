"""FROM: tables, views, common table expressions, subqueries, functions, and the joins between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from postgast import pg_query_pb2 as pg
from postgast.pg_query_pb2 import Node as Tree
from postgast.pg_query_pb2 import SelectStmt

from headwater.plan import syntax
from headwater.plan.build.aliases import free_aliases
from headwater.plan.build.outer_joins import left_outer_join, unmatched
from headwater.plan.build.relations import CommonTable, Environment
from headwater.plan.build.rename import renamed
from headwater.plan.build.scope import MERGED, Block, Lifted, Relation, Scope, output_names
from headwater.plan.build.subqueries import Subqueries, lifted_to_core
from headwater.plan.build.table_functions import function_parts
from headwater.plan.deparse import query_text, text_of
from headwater.plan.errors import Unsupported
from headwater.plan.expression import Expression, column, conjuncts
from headwater.plan.operators import (
    CORE,
    Apply,
    Constant,
    Expansion,
    Input,
    Joined,
    Node,
    Output,
    Query,
    Scan,
    Select,
    UnionAll,
)
from headwater.plan.syntax import kind_of, reading

WRITTEN = "s"
"""Alias of a subquery that stays as it is written."""

OUTER = {pg.JOIN_LEFT: "LEFT", pg.JOIN_RIGHT: "RIGHT", pg.JOIN_FULL: "FULL"}


class FromItems(Subqueries):
    """Builds the block of a FROM clause.

    Subqueries, plain views and common table expressions that only filter, project and join are merged into
    the block that reads them; the columns they compute are substituted.
    """

    def _from(self, items: list[Tree], environment: Environment) -> tuple[Block, Scope]:
        block, scope = Block(), Scope()
        for item in items:
            scope.relations += self._from_item(item, environment, block, scope)
        return block, scope

    def _from_item(self, item: Tree, environment: Environment, block: Block, scope: Scope) -> list[Relation]:
        """Add a FROM item to a block and return its relations; it may refer to those already in the scope."""
        match kind_of(item):
            case "join_expr":
                return self._join(item.join_expr, environment, block, scope)
            case "range_var":
                return [self._range_var(item.range_var, environment, block)]
            case "range_subselect":
                return [self._subselect(item.range_subselect, None, environment, block, scope)]
            case "range_function" | "json_table" | "range_table_func":
                return [self._function(item, None, environment, block, scope)]
            case _:
                raise Unsupported(f"{text_of(item)} in FROM has no delta rule yet")

    # joins

    def _join(
        self, join: pg.JoinExpr, environment: Environment, block: Block, scope: Scope
    ) -> list[Relation]:
        with reading(join) as found:
            if found.is_natural:
                raise Unsupported("NATURAL JOIN is not expected from the server's deparser")
            using = syntax.names_of(found.using_clause)
            quals = found.quals if found.HasField("quals") else None
            if found.jointype == pg.JOIN_INNER:
                sides = self._inner(found.larg, found.rarg, quals, using, environment, block, scope)
            elif found.jointype in OUTER:
                sides = self._outer_join(
                    OUTER[found.jointype], found.larg, found.rarg, quals, using, environment, block, scope
                )
            else:
                raise Unsupported(f"{pg.JoinType.Name(found.jointype)} has no delta rule")
            relations = sides.relations
            if found.HasField("join_using_alias"):
                with reading(found.join_using_alias) as alias:
                    relations = [*relations, block_relation(block, alias.aliasname, sides.merged)]
            if found.HasField("alias"):
                relations = [self._aliased_join(found.alias, sides, block)]
        return relations

    def _aliased_join(self, alias: pg.Alias, sides: _Sides, block: Block) -> Relation:
        """Return a join under a name of its own: the columns merged by USING, then the others."""
        columns = list(sides.merged.items())
        for side in (sides.left, sides.right):
            for relation in side:
                if relation.alias != MERGED:
                    columns += [item for item in relation.columns.items() if item[0] not in sides.merged]
        with reading(alias) as found:
            names = syntax.names_of(found.colnames)
            seen = [*names, *(name for name, _ in columns[len(names) :])]
            return block_relation(
                block, found.aliasname, {name: tree for name, (_, tree) in zip(seen, columns, strict=True)}
            )

    def _inner(
        self,
        larg: Tree,
        rarg: Tree,
        quals: Tree | None,
        using: tuple[str, ...],
        environment: Environment,
        block: Block,
        scope: Scope,
    ) -> _Sides:
        left = self._from_item(larg, environment, block, scope)
        right = self._from_item(rarg, environment, block, Scope(left, scope))
        block.predicates += self._on(quals, using, left, right, environment)
        # A column that USING names is that of the left side, which equals that of the right.
        merged = {name: Scope(left).lookup(name) for name in using}
        return _Sides(left, right, merged)

    def _outer_join(
        self,
        side: str,
        larg: Tree,
        rarg: Tree,
        quals: Tree | None,
        using: tuple[str, ...],
        environment: Environment,
        block: Block,
        scope: Scope,
    ) -> _Sides:
        if side == "LEFT" and _is_lateral(rarg) and not using:
            left = self._from_item(larg, environment, block, scope)
            right = [self._left_lateral(rarg, quals, environment, block, Scope(left, scope))]
            return _Sides(left, right, {})
        own, other = Block(), Block()
        left = self._from_item(larg, environment, own, Scope())
        right = self._from_item(rarg, environment, other, Scope())
        conditions = self._on(quals, using, left, right, environment)
        if any(item.has_query for item in conditions):
            raise Unsupported("a subquery in the condition of an outer join has no delta rule yet")
        first, second = (own, other) if side != "RIGHT" else (other, own)
        both = left_outer_join(first, second, conditions, next(self._lookup_names), self._rows)
        made: Query = both.node
        if side == "FULL":
            name = next(self._lookup_names)
            made = UnionAll((both.node, unmatched(other, own, conditions, both, name, self._rows)))
        alias = next(self._aliases)
        merged_sides = {name: (Scope(left).lookup(name), Scope(right).lookup(name)) for name in using}
        kept = own.relations if side == "LEFT" else other.relations if side == "RIGHT" else []
        for relation in [*own.relations, *other.relations]:
            relation.columns = {
                name: column(both.names[id(tree)], alias) for name, tree in relation.columns.items()
            }
            if relation not in kept:
                relation.row_type = None  # a row that was not found is NULL, not a row of NULLs
        merged = {}
        for name, trees in merged_sides.items():
            mine, theirs = (column(both.names[id(tree)], alias) for tree in trees)
            values = {"LEFT": mine, "RIGHT": theirs}
            merged[name] = values.get(side) or Expression(syntax.coalesce([mine.node, theirs.node]))
        block.inputs.append(Input(alias, made))
        block.relations += [*own.relations, *other.relations]
        if merged:
            left = [block_relation(block, MERGED, merged), *left]  # before those of inner joins
        return _Sides(left, right, merged)

    def _on(
        self,
        quals: Tree | None,
        using: tuple[str, ...],
        left: list[Relation],
        right: list[Relation],
        environment: Environment,
    ) -> list[Expression]:
        """Return the conditions of a join."""
        found = []
        if quals is not None:
            both = Scope([*left, *right])
            found = [
                self._resolve(item.node, both, environment)
                for item in conjuncts([Expression(quals)])
                if not syntax.is_true(item.node)
            ]
        for name in using:
            sides = (Scope(left).lookup(name).node, Scope(right).lookup(name).node)
            found.append(Expression(syntax.equals(*sides)))
        return found

    # subqueries and functions

    def _left_lateral(
        self, item: Tree, quals: Tree | None, environment: Environment, block: Block, scope: Scope
    ) -> Relation:
        assert quals is not None
        if kind_of(item) == "range_subselect":
            return self._subselect(item.range_subselect, quals, environment, block, scope)
        return self._function(item, quals, environment, block, scope)

    def _subselect(
        self,
        item: pg.RangeSubselect,
        left_join: Tree | None,
        environment: Environment,
        block: Block,
        scope: Scope,
    ) -> Relation:
        """Add a subquery in FROM; with LATERAL it is evaluated for each row of the block so far."""
        with reading(item) as found:
            query = found.subquery.select_stmt
            if not found.lateral:
                node = self.query(query, environment)
                return self._derived(found.alias, node, block, output_names(query))
            with reading(found.alias) as alias:
                name, given = alias.aliasname, syntax.names_of(alias.colnames)
            shown = [*given, *output_names(query)[len(given) :]]
            if left_join is not None and not syntax.is_true(left_join):
                # LEFT JOIN LATERAL (q) s ON c  ->  LEFT JOIN LATERAL (SELECT * FROM (q) s WHERE c) ON true
                filtered = syntax.select()
                filtered.target_list.extend(syntax.target(syntax.column(each, name)) for each in shown)
                filtered.from_clause.append(syntax.subselect(query, name, shown))
                filtered.where_clause.CopyFrom(left_join)
                query = filtered
            unique = tuple(f"u{number + 1}" for number in range(len(shown)))
            template = self._evaluated_for_each(query, unique, scope, environment)
            tree = Expression(syntax.of_query(template))
            return self._joined(name, tree, unique, shown, block, left=left_join is not None)

    def _evaluated_for_each(
        self, query: SelectStmt, names: tuple[str, ...], scope: Scope, environment: Environment
    ) -> SelectStmt:
        """Return a subquery that reads the rows before it, with its columns under these names."""
        if query.op == pg.SETOP_NONE and not query.values_lists and not query.HasField("with_clause"):
            try:
                template = self._correlated(query, scope, environment)
                for name, item in zip(names, template.target_list, strict=True):
                    item.res_target.name = name
                return template
            except Unsupported:
                pass  # it stays as it is written
        written = self._as_written(query, scope, environment)
        made = syntax.select()
        made.target_list.extend(syntax.target(syntax.column(name, WRITTEN)) for name in names)
        made.from_clause.append(syntax.subselect(written, WRITTEN, names))
        return made

    def _function(
        self, item: Tree, left_join: Tree | None, environment: Environment, block: Block, scope: Scope
    ) -> Relation:
        """Add a function in FROM, JSON_TABLE or XMLTABLE: it makes rows from each row before it."""
        visible, columns, plain = function_parts(item)
        call = self._resolve(plain, scope, environment)
        if call.has_query:
            raise Unsupported("a subquery in the arguments of a function in FROM has no delta rule yet")
        if left_join is None:
            alias = next(self._aliases)
            block.inputs.append(Input(alias, Expansion(call, columns)))
            return block_relation(block, visible, {name: column(name, alias) for name in columns})
        if not syntax.is_true(left_join):
            raise Unsupported("LEFT JOIN LATERAL of a function on a condition has no delta rule yet")
        listed = syntax.select()
        listed.target_list.extend(syntax.target(syntax.column(name, "f")) for name in columns)
        named = syntax.copied(call.node)
        alias_of = getattr(named, kind_of(named)).alias
        alias_of.CopyFrom(pg.Alias(aliasname="f", colnames=[syntax.string(name) for name in columns]))
        listed.from_clause.append(named)
        tree = Expression(syntax.of_query(listed))
        return self._joined(visible, tree, columns, list(columns), block, left=True)

    def _joined(
        self,
        visible: str,
        item: Expression,
        columns: tuple[str, ...],
        shown: list[str],
        block: Block,
        *,
        left: bool,
    ) -> Relation:
        """Join to the block a FROM item that is evaluated for each of its rows."""
        core, alias, made = Lifted(), next(self._aliases), next(self._aliases)
        inputs = block.aliases
        outputs: list[Output] = []
        moved: list[tuple[Relation, dict[str, Expression]]] = []
        for relation in block.relations:
            names = {}
            for name, tree in relation.columns.items():
                outputs.append(Output(f"o{len(outputs) + 1}", column(core.name(tree), CORE)))
                names[name] = column(outputs[-1].name, made)
            moved.append((relation, names))
        own = {}
        for found, name in zip(columns, shown, strict=True):
            outputs.append(Output(f"o{len(outputs) + 1}", column(found, alias)))
            own[name] = column(outputs[-1].name, made)
        over_core = partial(lifted_to_core, core=inputs, lifted=core)
        lookups = tuple(self._lookup(name, inputs, over_core) for name in self._used([item]))
        condition = Expression(syntax.boolean(True)) if left else None
        joined = Joined(alias, over_core(item), condition)
        rows = self._rows(block, [], core.outputs())
        block.replace_by(Input(made, Apply(rows, lookups, (joined,), (), tuple(outputs))))
        for relation, names in moved:
            relation.columns = names
        return block_relation(block, visible, own)

    # tables, views, common table expressions

    def _range_var(self, item: pg.RangeVar, environment: Environment, block: Block) -> Relation:
        with reading(item) as found:
            _ = (found.relpersistence, found.alias)
            with_children = found.inh
            name = (found.schemaname, found.relname)
            common = environment.get(found.relname) if not found.schemaname else None
            if common is not None:
                return self._common_table(item, common, block)
            if name in self._relations.unusable:
                raise Unsupported(self._relations.unusable[name])
            if not with_children:
                raise Unsupported(f"ONLY {'.'.join(name)} in FROM has no delta rule")
            if name in self._relations.views:
                view = self._relations.views[name]
                if name not in self._built:
                    self._built[name] = self.query(syntax.parse(view.text), {})
                relation = self._derived(item.alias, self._built[name], block, view.columns, item.relname)
            elif name in self._relations.sources:
                source = self._relations.sources[name]
                scan = Scan(source, tuple(each.name for each in source.columns))
                relation = self._input(item.alias, scan, block, scan.columns, visible=item.relname)
            else:
                raise Unsupported(f"the relation {'.'.join(name)} cannot be told from the query's text")
            relation.row_type = name
            return relation

    def _common_table(self, item: pg.RangeVar, common: CommonTable, block: Block) -> Relation:
        if common not in self._built:
            self._built[common] = self.query(common.query, common.environment)
        names = (*common.names, *output_names(common.query)[len(common.names) :])
        return self._derived(item.alias, self._built[common], block, names, item.relname)

    def _derived(
        self, alias: pg.Alias, node: Query, block: Block, names: tuple[str, ...] = (), visible: str = ""
    ) -> Relation:
        """Add a subquery in FROM: merge a plain block into this one; anything else becomes an input."""
        names = (*names, *node.output_names[len(names) :])
        if not isinstance(node, Select) or node.expands:
            # By position, because a subquery may have two columns of one name.
            unique = tuple(f"u{number + 1}" for number in range(len(names)))
            return self._input(alias, renamed(node, unique), block, names, unique, visible=visible)
        fresh = {inner.alias: next(self._aliases) for inner in node.inputs}
        for inner in node.inputs:
            made: Node = inner.node
            if isinstance(made, Expansion):
                made = Expansion(made.sql.realiased(fresh), made.columns)
            block.inputs.append(Input(fresh[inner.alias], made))
        block.predicates += [predicate.realiased(fresh) for predicate in node.predicates]
        columns = [output.expression.realiased(fresh) for output in node.outputs]
        return _visible(block, alias, visible, names, columns)

    def _input(
        self,
        alias: pg.Alias,
        node: Scan | Query,
        block: Block,
        names: tuple[str, ...],
        columns: tuple[str, ...] = (),
        visible: str = "",
    ) -> Relation:
        """Add a node as an input of its own, whose columns are visible under these names."""
        made = next(self._aliases)
        block.inputs.append(Input(made, node))
        return _visible(block, alias, visible, names, [column(name, made) for name in columns or names])

    def _values(self, query: SelectStmt) -> Select:
        """Return VALUES, which never change."""
        if free_aliases(query) or syntax.find(query, "sub_link", "column_ref"):
            raise Unsupported("VALUES that read something have no delta rule")
        names = tuple(f"column{number + 1}" for number in range(len(query.values_lists[0].list.items)))
        constant = Constant(query_text(query), names)
        outputs = tuple(Output(name, column(name, "v")) for name in names)
        return Select((Input("v", constant),), (), outputs)


@dataclass(frozen=True)
class _Sides:
    """The relations on the two sides of a join, and the columns that USING merges."""

    left: list[Relation]
    right: list[Relation]
    merged: Mapping[str, Expression]

    @property
    def relations(self) -> list[Relation]:
        return [*self.left, *self.right]


def block_relation(block: Block, alias: str, columns: Mapping[str, Expression]) -> Relation:
    """Name columns of a block; the name stays valid when the block becomes an input of another."""
    relation = Relation(alias, dict(columns))
    block.relations.append(relation)
    return relation


def _is_lateral(item: Tree) -> bool:
    kind = kind_of(item)
    return kind in ("range_subselect", "range_function", "json_table", "range_table_func") and bool(
        getattr(item, kind).lateral
    )


def _visible(
    block: Block, alias: pg.Alias, visible: str, names: tuple[str, ...], columns: list[Expression]
) -> Relation:
    """Return the FROM item under its alias, its leading columns renamed where the alias lists names."""
    with reading(alias) as found:
        renames = syntax.names_of(found.colnames)
        seen = [*renames, *names[len(renames) :]]
        return block_relation(block, found.aliasname or visible, dict(zip(seen, columns, strict=True)))
