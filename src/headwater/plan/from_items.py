"""FROM: tables, views, common table expressions, subqueries, functions, and the joins between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from sqlglot import exp

from headwater.plan.dialect import identifier, json_table_columns, parse, render
from headwater.plan.operators import (
    CORE,
    Apply,
    Constant,
    Expansion,
    Input,
    Joined,
    Lookup,
    Node,
    Output,
    Query,
    Scan,
    Select,
    UnionAll,
    Unsupported,
)
from headwater.plan.reach import aliases_of, bare, conjuncts, is_value
from headwater.plan.rename import renamed
from headwater.plan.scope import (
    MERGED,
    Lifted,
    Relation,
    Scope,
    has_query,
    output_names,
    realiased,
    table_named,
)
from headwater.plan.subqueries import Block, Environment, Subqueries, all_of, every, lifted_to_core

WRITTEN = "s"
"""Alias of a subquery that stays as it is written."""


class FromItems(Subqueries):
    """Builds the block that a FROM clause makes.

    Subqueries, plain views and common table expressions that only filter, project and join are merged into
    the block that reads them; the columns they compute are substituted.
    """

    def _from(self, tree: exp.Select, environment: Environment, outer: Scope | None) -> tuple[Block, Scope]:
        block, scope = Block(), Scope(outer=outer)
        if tree.args.get("from_"):
            self._items(tree.args["from_"].this, tree.args.get("joins") or [], environment, block, scope)
        return block, scope

    def _items(
        self,
        first: exp.Expression,
        joins: list[exp.Join],
        environment: Environment,
        block: Block,
        scope: Scope,
    ) -> None:
        """FROM items and joins; a comma begins a new tree of joins, which ends with the next one."""
        trees: list[tuple[exp.Expression, list[exp.Join]]] = [(first, [])]
        for join in joins:
            if _is_comma(join):
                trees.append((join.this, []))
            else:
                trees[-1][1].append(join)
        for item, joined in trees:
            if isinstance(item, exp.Lateral):
                self._lateral(item, None, block, scope, environment)
                if joined:
                    raise Unsupported("a join after LATERAL has no delta rule yet")
                continue
            if not joined:
                scope.relations += self._from_item(item, environment, block, scope)
                continue
            own, inner = Block(), Scope(outer=scope)
            inner.relations += self._from_item(item, environment, own, inner)
            for join in joined:
                self._join(join, own, inner, environment)
            block.inputs += own.inputs
            block.predicates += own.predicates
            scope.relations += inner.relations

    def _from_item(
        self, item: exp.Expression, environment: Environment, block: Block, scope: Scope
    ) -> list[Relation]:
        if (
            isinstance(item, exp.Subquery)
            and isinstance(item.this, exp.Table | exp.Subquery | exp.Values)
            and not item.alias
        ):
            inner = Scope(outer=scope)
            self._items(item.this, list(item.args.get("joins") or []), environment, block, inner)
            return inner.relations
        own_joins = item.args.get("joins")
        if own_joins:
            plain = item.copy()
            plain.set("joins", None)
            inner = Scope(outer=scope)
            self._items(plain, list(own_joins), environment, block, inner)
            return inner.relations
        if isinstance(item, exp.Subquery):
            node = self.query(item.this, self._with_ctes(item, environment))
            return [self._derived(item, node, block, output_names(item.this))]
        if isinstance(item, exp.Values):
            return [self._derived(item, self._values(item), block)]
        if isinstance(item, exp.Table | exp.Unnest):
            return [self._table(item, environment, block, scope)]
        raise Unsupported(f"{render(item)} in FROM has no delta rule yet")

    def _join(self, join: exp.Join, block: Block, scope: Scope, environment: Environment) -> None:
        if join.args.get("method"):
            raise Unsupported(f"{join.args['method']} JOIN is not expected from the server's deparser")
        side = join.args.get("side") or ""
        if isinstance(join.this, exp.Lateral):
            self._lateral(join.this, join if side else None, block, scope, environment)
            return
        if not side:
            right = Scope(self._from_item(join.this, environment, block, scope))
            block.predicates += self._on(join, Scope(scope.relations), right, environment)
            scope.relations += right.relations
            return
        own = Block()
        right = Scope(self._from_item(join.this, environment, own, Scope()))
        left, conditions = Scope(scope.relations), self._on(join, Scope(scope.relations), right, environment)
        sides = ((block, left), (own, right)) if side != "RIGHT" else ((own, right), (block, left))
        both = self._outer(*sides[0], *sides[1], conditions)
        made: Query = both.node
        if side == "FULL":
            made = UnionAll((both.node, self._unmatched(own, right, block, left, conditions, both)))
        alias = next(self._aliases)
        scope.relations[:] = [
            Relation(
                item.alias,
                {
                    name: exp.column(both.names[id(tree)], alias, quoted=True)
                    for name, tree in item.columns.items()
                },
            )
            for item in [*left.relations, *right.relations]
        ]
        merged = {}
        for column in join.args.get("using") or []:
            mine, theirs = (
                next(
                    exp.column(both.names[id(rel.columns[column.name])], alias, quoted=True)
                    for rel in part.relations
                    if column.name in rel.columns
                )
                for part in (left, right)
            )
            values = {"LEFT": mine, "RIGHT": theirs}
            merged[column.name] = values.get(side) or exp.Anonymous(
                this="COALESCE",
                expressions=[mine, theirs],  # as the server writes it elsewhere
            )
        if merged:
            scope.relations.insert(0, Relation(MERGED, merged))  # before those of inner joins
        block.inputs, block.predicates = [Input(alias, made)], []

    def _on(
        self, join: exp.Join, left: Scope, right: Scope, environment: Environment
    ) -> list[exp.Expression]:
        """The conditions of a join."""
        found = []
        if join.args.get("on"):
            both = Scope([*left.relations, *right.relations])
            found = [self._resolve(item, both, environment) for item in conjuncts([join.args["on"]])]
        for name in (column.name for column in join.args.get("using") or []):
            found.append(exp.EQ(this=left.lookup(name), expression=right.lookup(name)))
        if join.args.get("side") and any(has_query(item) for item in found):
            raise Unsupported("a subquery in the condition of an outer join has no delta rule yet")
        return found

    def _outer(
        self, block: Block, left: Scope, own: Block, right: Scope, conditions: list[exp.Expression]
    ) -> _OuterJoin:
        """LEFT JOIN: each row of the left with what it finds on the right."""
        core, other, name = Lifted(), Lifted(), next(self._lookup_names)
        outputs: list[Output] = []
        names: dict[int, str] = {}
        for part, lifted, alias in ((left, core, CORE), (right, other, name)):
            for item in part.relations:
                for tree in item.columns.values():
                    names[id(tree)] = f"o{len(outputs) + 1}"
                    outputs.append(Output(names[id(tree)], exp.column(lifted.name(tree), alias, quoted=True)))
        sides = ({item.alias for item in block.inputs}, {item.alias for item in own.inputs})

        def over(tree: exp.Expression) -> exp.Expression:
            whole = exp.Paren(this=tree.copy())
            for column in list(whole.find_all(exp.Column)):
                if column.table in sides[0]:
                    column.replace(exp.column(core.name(column), CORE, quoted=True))
                elif column.table in sides[1]:
                    column.replace(exp.column(other.name(column), name, quoted=True))
            return bare(whole)

        over_both = [over(item) for item in conditions]
        equals = []
        for original in conditions:
            pair = _sides(original, sides)
            if pair is not None:
                equals.append((other.name(pair[1]), core.name(pair[0])))
        lookup = Lookup(name, self._rows(own, [], list(other.outputs())), tuple(over_both), tuple(equals))
        condition = all_of(over_both)
        node = Apply(
            self._rows(block, [], list(core.outputs())),
            (lookup,),
            (Joined(name, table_named(name), condition),),
            (),
            tuple(outputs),
        )
        return _OuterJoin(node, names)

    def _unmatched(
        self,
        own: Block,
        right: Scope,
        block: Block,
        left: Scope,
        conditions: list[exp.Expression],
        both: _OuterJoin,
    ) -> Apply:
        """What a FULL JOIN adds to a LEFT one: the rows of the right that no row of the left finds."""
        mirrored = self._outer(own, right, block, left, conditions)
        lookup = mirrored.node.lookups[0]
        by_name = {output.name: output for output in mirrored.node.outputs}
        outputs = tuple(
            Output(name, by_name[mirrored.names[column]].expression) for column, name in both.names.items()
        )
        # A join that finds nothing gives NULLs of the right types.
        nothing = Joined(lookup.name, table_named(lookup.name), exp.false())
        alone = exp.Not(
            this=exp.Exists(
                this=exp.select("1").from_(table_named(lookup.name)).where(*lookup.conditions, copy=True)
            )
        )
        return Apply(mirrored.node.core, (lookup,), (nothing,), (alone,), outputs)

    def _lateral(
        self,
        item: exp.Lateral,
        left_join: exp.Join | None,
        block: Block,
        scope: Scope,
        environment: Environment,
    ) -> None:
        """A FROM item that reads those before it."""
        alias = item.args["alias"]
        given = [column.name for column in alias.columns]
        inner = item.this
        if not isinstance(inner, exp.Subquery):
            self._expanded(item, inner, given, left_join, block, scope, environment)
            return
        shown = [*given, *output_names(inner.this)[len(given) :]]
        unique = tuple(f"u{number + 1}" for number in range(len(shown)))
        query = inner.this
        if left_join is not None and bare(left_join.args["on"]) != exp.true():
            # LEFT JOIN LATERAL (q) AS s ON c  ->  LEFT JOIN LATERAL (SELECT * FROM (q) AS s WHERE c) ON true
            derived = exp.Subquery(this=query.copy(), alias=alias.copy())
            found = exp.select(*(exp.column(name, item.alias, quoted=True) for name in shown)).from_(derived)
            query = found.where(left_join.args["on"].copy())
        template = self._evaluated_for_each(query, unique, scope, environment)
        self._joined(item.alias, exp.Subquery(this=template), unique, shown, left_join, block, scope)

    def _evaluated_for_each(
        self, query: exp.Expression, names: tuple[str, ...], scope: Scope, environment: Environment
    ) -> exp.Select:
        """A subquery that reads the rows before it, with its columns under these names."""
        if isinstance(query, exp.Select) and not query.args.get("with_"):
            try:
                template = self._correlated(query.copy(), scope, environment)
                shown = [
                    exp.alias_(out.unalias(), name, quoted=True)
                    for name, out in zip(names, template.expressions, strict=True)
                ]
                template.set("expressions", shown)
                return template
            except Unsupported:
                pass  # then it stays as it is written
        alias = exp.TableAlias(
            this=exp.to_identifier(WRITTEN, quoted=True),
            columns=[exp.to_identifier(name, quoted=True) for name in names],
        )
        written = exp.Subquery(this=self._as_written(query, scope, environment), alias=alias)
        return exp.select(*(exp.column(name, WRITTEN, quoted=True) for name in names)).from_(written)

    def _expanded(
        self,
        item: exp.Lateral | exp.Table | exp.Unnest,
        function: exp.Expression,
        given: list[str],
        left_join: exp.Join | None,
        block: Block,
        scope: Scope,
        environment: Environment,
    ) -> None:
        offset = function.args.get("offset")
        ordinality = bool(item.args.get("ordinality")) or bool(offset)
        plain = function.copy()
        if isinstance(offset, exp.Identifier):
            given = [*given, offset.name]
            plain.set("offset", None)
        if isinstance(plain, exp.JSONTable):
            given = [*given, *json_table_columns(plain)[len(given) :]]
        if not given:
            raise Unsupported(f"{render(item)} in FROM has no delta rule yet")
        if left_join is not None and bare(left_join.args["on"]) != exp.true():
            raise Unsupported("LEFT JOIN LATERAL on a condition has no delta rule yet")
        call = self._resolve(plain, Scope(every(scope)), environment)
        if has_query(call):
            raise Unsupported("a subquery in the arguments of a function in FROM has no delta rule yet")
        columns = tuple(given)
        if left_join is None:
            alias = next(self._aliases)
            block.inputs.append(Input(alias, Expansion(call, columns, ordinality)))
            scope.relations.append(
                Relation(item.alias, {name: exp.column(name, alias, quoted=True) for name in columns})
            )
            return
        listed = exp.select(*(exp.column(name, "f", quoted=True) for name in columns)).from_(
            exp.Table(
                this=call,
                ordinality=ordinality,
                alias=exp.TableAlias(
                    this=exp.to_identifier("f"),
                    columns=[exp.to_identifier(name, quoted=True) for name in columns],
                ),
            )
        )
        self._joined(item.alias, exp.Subquery(this=listed), columns, list(columns), left_join, block, scope)

    def _joined(
        self,
        visible: str,
        item: exp.Expression,
        columns: tuple[str, ...],
        shown: list[str],
        left_join: exp.Join | None,
        block: Block,
        scope: Scope,
    ) -> None:
        """The block so far with a FROM item that each of its rows has for itself."""
        core, alias, made = Lifted(), next(self._aliases), next(self._aliases)
        inputs = {input_.alias for input_ in block.inputs}
        outputs: list[Output] = []
        relations = []
        for relation in scope.relations:
            names = {}
            for name, tree in relation.columns.items():
                outputs.append(Output(f"o{len(outputs) + 1}", exp.column(core.name(tree), CORE, quoted=True)))
                names[name] = exp.column(outputs[-1].name, made, quoted=True)
            relations.append(Relation(relation.alias, names, relation.row_type))
        names = {}
        for column, name in zip(columns, shown, strict=True):
            outputs.append(Output(f"o{len(outputs) + 1}", exp.column(column, alias, quoted=True)))
            names[name] = exp.column(outputs[-1].name, made, quoted=True)
        relations.append(Relation(visible, names))

        over_core = partial(lifted_to_core, core=inputs, lifted=core)
        used = self._used([item])
        item = over_core(item)
        lookups = tuple(self._lookup(name, inputs, over_core) for name in used)
        condition = exp.true() if left_join is not None else None
        node = Apply(
            self._rows(block, [], list(core.outputs())),
            lookups,
            (Joined(alias, item, condition),),
            (),
            tuple(outputs),
        )
        block.inputs, block.predicates = [Input(made, node)], []
        scope.relations[:] = relations

    def _table(
        self, item: exp.Table | exp.Unnest, environment: Environment, block: Block, scope: Scope
    ) -> Relation:
        if isinstance(item, exp.Unnest) or isinstance(item.this, exp.Anonymous | exp.Dot | exp.JSONTable):
            function = item if isinstance(item, exp.Unnest) else item.this
            plain = function.copy()
            plain.set("alias", None)
            given = [column.name for column in item.args["alias"].columns] if item.args.get("alias") else []
            inner = Scope(outer=scope)
            self._expanded(item, plain, given, None, block, inner, environment)
            return inner.relations[0]
        if isinstance(item.this, exp.Values):
            return self._derived(item, self._values(item.this), block)
        if not isinstance(item.this, exp.Identifier):
            raise Unsupported(f"{render(item)} in FROM has no delta rule yet")
        if not item.db and item.name in environment:
            tree, names, inner_environment = environment[item.name]
            if id(tree) not in self._built:
                self._built[id(tree)] = self.query(tree, inner_environment)
            return self._derived(
                item, self._built[id(tree)], block, (*names, *output_names(tree)[len(names) :])
            )
        name = (item.db, item.name)
        if name in self._relations.unusable:
            raise Unsupported(self._relations.unusable[name])
        if name in self._relations.views:
            view = self._relations.views[name]
            if name not in self._built:
                self._built[name] = self.query(parse(view.text), {})
            shown = self._derived(item, self._built[name], block, view.columns)
            return replace(shown, row_type=_row_type(item))
        if name not in self._relations.sources:
            raise Unsupported(f"the relation {item.db}.{item.name} cannot be told from the query's text")
        if item.args.get("only"):
            raise Unsupported(f"ONLY {item.db}.{item.name} in FROM has no delta rule")
        source = self._relations.sources[name]
        scan = Scan(source, tuple(column.name for column in source.columns))
        return replace(self._input(item, scan, block, scan.columns), row_type=_row_type(item))

    def _derived(
        self, item: exp.Expression, node: Query, block: Block, names: tuple[str, ...] = ()
    ) -> Relation:
        """A subquery in FROM: a plain block is merged into this one, anything else becomes an input."""
        names = (*names, *node.output_names[len(names) :])
        if not isinstance(node, Select) or node.expands:
            # By position, for a subquery may have two columns of one name.
            unique = tuple(f"u{number + 1}" for number in range(len(names)))
            return self._input(item, renamed(node, unique), block, names, unique)
        fresh = {inner.alias: next(self._aliases) for inner in node.inputs}
        for inner in node.inputs:
            made: Node = inner.node
            if isinstance(made, Expansion):
                made = Expansion(realiased(made.sql, fresh), made.columns, made.ordinality)
            block.inputs.append(Input(fresh[inner.alias], made))
        block.predicates += [realiased(predicate, fresh) for predicate in node.predicates]
        return _visible(item, names, [realiased(output.expression, fresh) for output in node.outputs])

    def _input(
        self,
        item: exp.Expression,
        node: Scan | Query,
        block: Block,
        names: tuple[str, ...],
        columns: tuple[str, ...] = (),
    ) -> Relation:
        """A node as an input of its own, whose columns are seen under these names."""
        alias = next(self._aliases)
        block.inputs.append(Input(alias, node))
        return _visible(item, names, [exp.column(name, alias, quoted=True) for name in columns or names])

    @staticmethod
    def _values(tree: exp.Values) -> Select:
        width = len(tree.expressions[0].expressions)
        names = tuple(f"column{number + 1}" for number in range(width))
        bare_values = tree.copy()
        bare_values.set("alias", None)
        constant = Constant(render(bare_values), names)
        return Select(
            (Input("v", constant),),
            (),
            tuple(Output(name, exp.column(name, "v", quoted=True)) for name in names),
        )


@dataclass(frozen=True)
class _OuterJoin:
    node: Apply
    names: Mapping[int, str]  # by the identity of a column's expression, the output that shows it


def _row_type(item: exp.Table) -> str:
    return f"{identifier(item.db)}.{identifier(item.name)}"


def _is_comma(join: exp.Join) -> bool:
    return not any(join.args.get(name) for name in ("side", "kind", "on", "using", "method"))


def _sides(
    tree: exp.Expression, sides: tuple[set[str], set[str]]
) -> tuple[exp.Expression, exp.Expression] | None:
    """A condition that something on the left equals something on the right."""
    if not isinstance(tree, exp.EQ):
        return None
    for one, other in ((tree.this, tree.expression), (tree.expression, tree.this)):
        one, other = bare(one), bare(other)
        if (
            is_value(one)
            and is_value(other)
            and one.find(exp.Column)
            and other.find(exp.Column)
            and aliases_of(one) <= sides[0]
            and aliases_of(other) <= sides[1]
        ):
            return one, other
    return None


def _visible(item: exp.Expression, names: tuple[str, ...], columns: list[exp.Expression]) -> Relation:
    """The FROM item under its alias, its leading columns renamed where the alias lists names."""
    alias = item.args.get("alias")
    renames = [column.name for column in alias.columns] if alias else []
    seen = [*renames, *names[len(renames) :]]
    return Relation(item.alias_or_name, dict(zip(seen, columns, strict=True)))
