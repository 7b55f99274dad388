"""Subqueries in expressions: what they read becomes a lookup, what they do with it stays as it is written."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from sqlglot import exp

from headwater.plan.operators import (
    CORE,
    Apply,
    Input,
    Lookup,
    Output,
    Query,
    Select,
    Source,
    Unsupported,
)
from headwater.plan.reach import aliases_of, bare, conjuncts, is_value
from headwater.plan.rename import renamed
from headwater.plan.scope import (
    MERGED,
    Lifted,
    LiftedColumns,
    Relation,
    Scope,
    grouped,
    has_query,
    is_collation,
    queries_in,
    table_named,
)


@dataclass(frozen=True)
class View:
    """A plain view that the query reads, to be expanded."""

    text: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Relations:
    """What the server knows about the relations and functions that a query names."""

    sources: Mapping[tuple[str, str], Source]
    views: Mapping[tuple[str, str], View]
    unusable: Mapping[tuple[str, str], str]  # relations without capture, with the reason
    aggregates: frozenset[str]  # names of the aggregate functions that the query calls
    builtin_aggregates: frozenset[str]  # those of them that are PostgreSQL's own
    set_returning: frozenset[str] = frozenset()  # names of the functions it calls that return sets


@dataclass
class Block:
    """A SELECT block being built: what it joins and by which conditions."""

    inputs: list[Input] = field(default_factory=list)
    predicates: list[exp.Expression] = field(default_factory=list)

    def select(self, outputs: Sequence[Output]) -> Select:
        return Select(tuple(self.inputs), tuple(self.predicates), tuple(outputs))


Environment = Mapping[str, tuple[exp.Expression, tuple[str, ...], "Environment"]]
"""Common table expressions in scope: the query, the names of its columns if given, its own environment."""


class Subqueries(ABC):
    """Resolves expressions, and with them the queries inside them."""

    def __init__(self, relations: Relations) -> None:
        self._relations = relations
        self._aliases = (f"r{number}" for number in itertools.count(1))
        self._lookup_names = (f"q{number}" for number in itertools.count(1))
        self._lookups: dict[str, Lookup] = {}
        self._inside: set[str] = set()  # aliases in subqueries that stay as they are written
        # What views and common table expressions became: read twice, they are computed once.
        self._built: dict[tuple[str, str] | int, Query] = {}

    @abstractmethod
    def query(self, tree: exp.Expression, outer: Environment) -> Query:
        """The operators of a query."""

    @abstractmethod
    def _table(
        self, item: exp.Table | exp.Unnest, environment: Environment, block: Block, scope: Scope
    ) -> Relation:
        """A relation in FROM, as an input of a block."""

    @abstractmethod
    def _from(self, tree: exp.Select, environment: Environment, outer: Scope | None) -> tuple[Block, Scope]:
        """The block that a FROM clause makes, and the names in it."""

    def _with_ctes(self, tree: exp.Expression, outer: Environment) -> Environment:
        clause = tree.args.get("with_")
        if clause is None:
            return outer
        environment = dict(outer)
        for cte in clause.expressions:
            names = tuple(column.name for column in cte.args["alias"].columns)
            environment[cte.alias] = (cte.this, names, dict(environment))
        return environment

    def _rows(self, block: Block, asking: list[exp.Expression], outputs: list[Output]) -> Query:
        """The rows of a block; with subqueries in expressions, each row looks its answers up."""
        asking = [*asking, *(tree for tree in block.predicates if has_query(tree))]
        block = Block(block.inputs, [tree for tree in block.predicates if not has_query(tree)])
        trees = [*asking, *(output.expression for output in outputs)]
        expands = any(self._returns_set(output.expression) for output in outputs)
        if not any(has_query(tree) for tree in trees):
            return replace(block.select(outputs), expands=expands)
        if expands:
            return self._expanding(block, asking, outputs)
        lifted = Lifted()
        core = {item.alias for item in block.inputs}

        over_core = partial(lifted_to_core, core=core, lifted=lifted)
        predicates = [over_core(tree) for tree in asking]
        shown = [Output(output.name, over_core(output.expression)) for output in outputs]
        lookups = tuple(self._lookup(name, core, over_core) for name in self._used(trees))
        return Apply(block.select(lifted.outputs()), lookups, (), tuple(predicates), tuple(shown))

    def _expanding(self, block: Block, asking: list[exp.Expression], outputs: list[Output]) -> Query:
        """Set-returning functions in the select list, over rows that look their answers up first."""
        below, alias = Lifted("e"), next(self._aliases)
        shown = []
        for output in outputs:
            whole = exp.Paren(this=output.expression.copy())
            if not self._returns_set(whole):
                whole.set("this", exp.column(below.name(whole.this), alias, quoted=True))
            elif has_query(whole):
                raise Unsupported("a set-returning function over a subquery has no delta rule yet")
            else:
                for column in list(whole.find_all(exp.Column)):
                    if not is_collation(column):
                        column.replace(exp.column(below.name(column), alias, quoted=True))
            shown.append(Output(output.name, whole.this))
        rows = self._rows(block, asking, list(below.outputs()) or [Output("e1", exp.Literal.number(1))])
        return Select((Input(alias, rows),), (), tuple(shown), expands=True)

    def _used(self, trees: list[exp.Expression]) -> list[str]:
        """The lookups that expressions read."""
        names = dict.fromkeys(
            table.name
            for tree in trees
            for table in tree.find_all(exp.Table)
            if not table.db and table.name in self._lookups
        )
        return list(names)

    def _lookup(
        self, name: str, core: set[str], over_core: Callable[[exp.Expression], exp.Expression]
    ) -> Lookup:
        """A lookup as seen from a core: conditions that it cannot check are left out."""
        lookup = self._lookups[name]
        conditions, equals = [], []
        for item in lookup.conditions:
            if not aliases_of(item) <= core | {name} or has_query(item):
                continue
            pair = _equality(item, name)
            if pair is not None and not lookup.exempt:
                seen = over_core(pair[1])
                if isinstance(seen, exp.Column):
                    equals.append((pair[0], seen.name))
            conditions.append(over_core(item))
        return Lookup(name, lookup.node, tuple(conditions), tuple(equals), lookup.exempt)

    def _resolve(self, tree: exp.Expression, scope: Scope, environment: Environment) -> exp.Expression:
        """The expression with each column replaced by what it stands for in the block's inputs, and each
        subquery by one over a lookup."""
        root = exp.Paren(this=tree.copy())
        answered: list[exp.Expression] = []
        for query in queries_in(root):
            made = self._subquery(query, scope, environment)
            query.replace(made)
            answered.append(made)
        for column in list(root.find_all(exp.Column)):
            if is_collation(column) or any(_is_below(column, made) for made in answered):
                continue
            if isinstance(column.this, exp.Star):
                column.replace(scope.whole_row(column.table))
                continue
            found = scope.lookup(column.name, column.table)
            # An argument stands as the server itself writes it, by which it is recognised elsewhere.
            column.replace(found if isinstance(column.parent, exp.Anonymous) else grouped(found))
        return bare(root)

    def _subquery(self, query: exp.Expression, scope: Scope, environment: Environment) -> exp.Expression:
        """A subquery in an expression, over a lookup instead of what it reads."""
        visible = {item.alias for item in every(scope)} - {MERGED}
        inside = {item.alias_or_name for item in query.find_all(exp.Table, exp.Subquery, exp.Lateral)}
        if any(column.table in visible - inside for column in query.find_all(exp.Column)):
            if not isinstance(query, exp.Select):
                return self._as_written(query, scope, environment)
            try:
                return self._correlated(query, scope, environment)
            except Unsupported:
                return self._as_written(query, scope, environment)
        node = self.query(query, environment)
        columns = tuple(f"c{number + 1}" for number in range(len(node.output_names)))
        name = next(self._lookup_names)
        self._lookups[name] = Lookup(name, renamed(node, columns), (), (), exempt=True)
        return exp.select(*(exp.column(column, name, quoted=True) for column in columns)).from_(
            table_named(name)
        )

    def _correlated(self, query: exp.Select, scope: Scope, environment: Environment) -> exp.Select:
        """A subquery that refers to the rows outside: what it reads becomes a lookup, the rest stays."""
        environment = self._with_ctes(query, environment)
        if isinstance(query.parent, exp.Exists) and all(_is_plain(item) for item in query.expressions):
            query.set("expressions", [exp.Literal.number(1)])  # that there is a row is all that is asked
        block, inner = self._from(query, environment, None)
        name, lifted = next(self._lookup_names), Lifted()
        where = query.args.get("where")
        within: list[exp.Expression] = []
        across: list[exp.Expression] = []
        for item in conjuncts([where.this]) if where else []:
            item = as_exists(qualified(item, inner))
            alone = all(
                inner.owns(column) or not _is_outside(column, scope) for column in item.find_all(exp.Column)
            )
            (within if alone else across).append(item)
        resolved = [self._resolve(item, inner, environment) for item in within]
        block.predicates += [item for item in resolved if not has_query(item)]
        asking = [item for item in resolved if has_query(item)]
        both = Scope(
            [
                Relation(item.alias, LiftedColumns(item.columns, lifted, name), item.row_type)
                for item in inner.relations
            ],
            scope,
        )
        template = query.copy()
        template.set("with_", None)
        template.set("joins", None)
        template.set("from_", exp.From(this=table_named(name)))
        conditions = [self._resolve(item, both, environment) for item in across]
        template.set("where", exp.Where(this=all_of(conditions)) if conditions else None)
        for clause in ("expressions", "group", "having", "order", "distinct", "limit", "offset", "windows"):
            value = template.args.get(clause)
            if isinstance(value, list):
                template.set(clause, [self._resolved_clause(item, both, environment) for item in value])
            elif isinstance(value, exp.Expression):
                template.set(clause, self._resolved_clause(value, both, environment))
        outputs = list(lifted.outputs()) or [Output("c1", exp.Literal.number(1))]
        self._lookups[name] = Lookup(name, self._rows(block, asking, outputs), tuple(conditions))
        return template

    def _as_written(self, query: exp.Expression, scope: Scope, environment: Environment) -> exp.Expression:
        """A subquery that refers to the rows outside wherever it likes: it stays as it is, and each relation
        that it reads becomes a lookup without conditions, so that a change of one affects every row.

        SELECT … FROM t AS x …  ->  SELECT … FROM (SELECT q1.a FROM q1) AS s_x …
        """
        whole = exp.Paren(this=query.copy())
        visible = {item.alias for item in every(scope)}
        common = {cte.alias for cte in whole.find_all(exp.CTE)}
        items = list(whole.find_all(exp.Table, exp.Subquery, exp.Lateral, exp.Unnest, exp.Values))
        own = {item.alias_or_name for item in items if item.alias_or_name} | common
        if own & visible:
            raise Unsupported(f"{', '.join(sorted(own & visible))} means two things in a subquery")
        columns = [column for column in whole.find_all(exp.Column) if not is_collation(column)]
        for column in columns:
            if column.table in own:
                column.set("table", exp.to_identifier(_inner_name(column.table), quoted=True))
            elif column.table:
                found = grouped(scope.lookup(column.name, column.table))
                is_shown = isinstance(column.parent, exp.Select) and column.arg_key == "expressions"
                column.replace(exp.alias_(found, column.name, quoted=True) if is_shown else found)
        for item in items:
            if isinstance(item, exp.Table) and isinstance(item.this, exp.Identifier):
                item.replace(
                    self._inner_table(item, item.name in common and not item.db, columns, environment)
                )
            elif item.alias:
                item.args["alias"].set("this", exp.to_identifier(_inner_name(item.alias), quoted=True))
        for cte in whole.find_all(exp.CTE):
            cte.args["alias"].set("this", exp.to_identifier(_inner_name(cte.alias), quoted=True))
        self._inside |= {_inner_name(name) for name in own}
        made = whole.this
        assert isinstance(made, exp.Expression)
        return made

    def _inner_table(
        self, item: exp.Table, is_common: bool, columns: list[exp.Column], environment: Environment
    ) -> exp.Expression:
        """A relation inside a subquery that stays as it is written, from a lookup."""
        if item.args.get("sample"):
            raise Unsupported("TABLESAMPLE has no delta rule")
        visible = _inner_name(item.alias_or_name)
        given = item.args["alias"].columns if item.args.get("alias") else []
        alias = exp.TableAlias(
            this=exp.to_identifier(visible, quoted=True), columns=[column.copy() for column in given]
        )
        joins = item.args.get("joins")
        if is_common:
            return exp.Table(
                this=exp.to_identifier(_inner_name(item.name), quoted=True), alias=alias, joins=joins
            )
        plain = item.copy()
        plain.set("joins", None)
        plain.set("alias", None)
        block = Block()
        relation = self._table(plain, environment, block, Scope())
        used = {column.name for column in columns if column.table in ("", visible)}
        shown = {
            name: tree
            for name, tree in relation.columns.items()
            if given
            or name in used
            or any(isinstance(column.this, exp.Star) for column in columns)
            or item.find_ancestor(exp.Join)
            or joins
        } or dict(list(relation.columns.items())[:1])
        name = next(self._lookup_names)
        outputs = [Output(column, tree) for column, tree in shown.items()]
        self._lookups[name] = Lookup(name, self._rows(block, [], outputs), ())
        listed = exp.select(*(exp.column(column, name, quoted=True) for column in shown))
        return exp.Subquery(this=listed.from_(table_named(name)), alias=alias, joins=joins)

    def _is_inside(self, alias: str) -> bool:
        """Whether an alias belongs to a subquery, and not to the rows around it."""
        return alias in self._lookups or alias in self._inside

    def _resolved_clause(
        self, tree: exp.Expression, scope: Scope, environment: Environment
    ) -> exp.Expression:
        if not isinstance(tree, exp.Alias):
            return self._resolve(tree, scope, environment)
        resolved = self._resolve(tree.this, scope, environment)
        return exp.Alias(this=resolved, alias=exp.to_identifier(tree.alias, quoted=True))

    def _returns_set(self, tree: exp.Expression) -> bool:
        return any(
            isinstance(node, exp.Unnest) or node.name in self._relations.set_returning
            for node in tree.find_all(exp.Unnest, exp.Anonymous)
        )


def lifted_to_core(tree: exp.Expression, core: set[str], lifted: Lifted) -> exp.Expression:
    """An expression over the columns of a core, which get what it needs of the inputs with these aliases."""
    if not has_query(tree) and aliases_of(tree) <= core and tree.find(exp.Column):
        return exp.column(lifted.name(tree), CORE, quoted=True)
    whole = exp.Paren(this=tree.copy())
    for column in list(whole.find_all(exp.Column)):
        if column.table in core:
            column.replace(exp.column(lifted.name(column), CORE, quoted=True))
    return bare(whole)


def every(scope: Scope | None) -> list[Relation]:
    """The relations of a scope and of those outside of it."""
    return [*scope.relations, *every(scope.outer)] if scope is not None else []


def _inner_name(name: str) -> str:
    """What a name inside a subquery becomes, so that it is none of our own."""
    return f"s_{name}"


def _is_outside(column: exp.Column, scope: Scope) -> bool:
    return any(item.alias == column.table and column.table for item in every(scope))


def _is_plain(output: exp.Expression) -> bool:
    return isinstance(output.unalias(), exp.Column | exp.Literal)


def _is_below(node: exp.Expression, ancestor: exp.Expression) -> bool:
    return any(parent is ancestor for parent in (node, *_ancestors(node)))


def _ancestors(node: exp.Expression) -> Iterator[object]:
    parent = node.parent
    while parent is not None:
        yield parent
        parent = parent.parent


def all_of(conditions: list[exp.Expression]) -> exp.Expression:
    """Conditions joined by AND."""
    found: exp.Expression = exp.true()
    for number, item in enumerate(conditions):
        found = exp.And(this=found, expression=grouped(item.copy())) if number else grouped(item.copy())
    return found


def _equality(tree: exp.Expression, alias: str) -> tuple[str, exp.Expression] | None:
    """A condition that a column under an alias equals something without it."""
    if not isinstance(tree, exp.EQ):
        return None
    for one, other in ((tree.this, tree.expression), (tree.expression, tree.this)):
        one, other = bare(one), bare(other)
        if (
            isinstance(one, exp.Column)
            and one.table == alias
            and is_value(other)
            and other.find(exp.Column)
            and alias not in aliases_of(other)
        ):
            return one.name, other
    return None


def qualified(tree: exp.Expression, scope: Scope) -> exp.Expression:
    """The expression with the alias before each column: it may come to stand inside a subquery.

    What has none inside a subquery that is there already is a column that USING merges, of that subquery.
    """
    copy = exp.Paren(this=tree.copy())
    for column in copy.find_all(exp.Column):
        if not column.table and not is_collation(column) and not column.find_ancestor(exp.Query):
            owner = next((item.alias for item in scope.relations if column.name in item.columns), "")
            if owner:
                column.set("table", exp.to_identifier(owner, quoted=True))
    return bare(copy)


def as_exists(condition: exp.Expression) -> exp.Expression:
    """`x IN (SELECT y …)` as a condition of its own is true exactly if such a row exists.

    x IN (SELECT y FROM t)  ->  EXISTS (SELECT 1 FROM (SELECT y FROM t) AS hw_in (c1) WHERE c1 = x)
    """
    plain = bare(condition)
    if not isinstance(plain, exp.In) or plain.args.get("query") is None:
        return condition
    query = plain.args["query"].this
    asked = bare(plain.this)
    if isinstance(asked, exp.Anonymous) and asked.name.upper() == "ROW":
        values = list(asked.expressions)
    else:
        values = list(asked.expressions) if isinstance(asked, exp.Tuple) else [asked]
    names = [f"c{number + 1}" for number in range(len(values))]
    inside = {item.alias_or_name for item in query.find_all(exp.Table, exp.Subquery)}
    if any(column.table and column.table not in inside for column in query.find_all(exp.Column)):
        return condition  # correlated: as it is
    derived = exp.Subquery(
        this=query.copy(),
        alias=exp.TableAlias(
            this=exp.to_identifier("hw_in"), columns=[exp.to_identifier(name) for name in names]
        ),
    )
    equal = [
        exp.EQ(this=exp.column(name, "hw_in"), expression=value.copy())
        for name, value in zip(names, values, strict=True)
    ]
    return exp.Exists(this=exp.select("1").from_(derived).where(*equal))
