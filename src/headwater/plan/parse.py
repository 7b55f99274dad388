"""From the canonical text of a query to operators.

The text comes from `pg_get_viewdef`, so names are resolved, stars expanded and casts explicit; what is left
to do is structure. Subqueries, plain views and common table expressions that only filter, project and join
are merged into the block that reads them; the columns they compute are substituted.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from sqlglot import exp
from sqlglot.errors import ParseError

from headwater.plan.dialect import parse, render
from headwater.plan.operators import (
    Aggregate,
    Body,
    Call,
    Constant,
    Input,
    Output,
    Root,
    Scan,
    Select,
    Source,
    UnionAll,
    Unsupported,
    scans,
)
from headwater.plan.unsupported import unsupported_constructs

GROUP = "g"
"""Alias by which outputs and HAVING of an aggregate refer to its keys and calls."""
ROWS = "i"
"""Alias by which an aggregate's calls refer to the rows they aggregate."""

SYSTEM_COLUMNS = frozenset({"ctid", "xmin", "xmax", "cmin", "cmax", "tableoid"})


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


@dataclass(frozen=True)
class Parsed:
    """The plan of a query, or every reason why there is none."""

    root: Root | None
    reasons: tuple[str, ...] = ()


def parse_query(text: str, columns: tuple[str, ...], relations: Relations) -> Parsed:
    """The operators of a query whose output columns are named `columns`."""
    try:
        tree = parse(text)
        reasons = unsupported_constructs(tree)
        for view in relations.views.values():
            reasons += [
                reason for reason in unsupported_constructs(parse(view.text)) if reason not in reasons
            ]
        if reasons:
            return Parsed(None, tuple(reasons))
        root = _prune(_renamed(_Builder(relations).query(tree, {}), columns))
        for scan in scans(root):
            for name in scan.columns:
                if name.startswith("__hw_"):
                    raise Unsupported(f"the name of {scan.source.label}.{name} is one of Headwater's own")
                if not scan.source.column(name).captured:
                    raise Unsupported(
                        f"{scan.source.label}.{name} is a virtual generated column, which triggers do not see"
                    )
        return Parsed(root)
    except ParseError as error:
        return Parsed(
            None, (f"the SQL parser does not know a construct in it ({error.errors[0]['description']})",)
        )
    except Unsupported as error:
        return Parsed(None, (str(error),))
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        # The trees have hundreds of kinds of nodes. One put together in a way not thought of here must
        # not keep a query from being recomputed.
        return Parsed(
            None, (f"the SQL parser's tree of it is not understood ({type(error).__name__}: {error})",)
        )


@dataclass
class _Relation:
    """A FROM item: its visible name and, for each of its columns, the expression over the real inputs."""

    alias: str
    columns: dict[str, exp.Expression]


@dataclass
class _Block:
    """A SELECT block being built: what it joins and by which conditions."""

    inputs: list[Input] = field(default_factory=list)
    predicates: list[exp.Expression] = field(default_factory=list)


Environment = Mapping[str, tuple[exp.Expression, tuple[str, ...], "Environment"]]
"""Common table expressions in scope: the query, the names of its columns if given, its own environment."""


class _Builder:
    def __init__(self, relations: Relations) -> None:
        self._relations = relations
        self._aliases = (f"r{number}" for number in itertools.count(1))

    def query(self, tree: exp.Expression, outer: Environment) -> Root:
        environment = self._with_ctes(tree, outer)
        if isinstance(tree, exp.Subquery):
            return self.query(tree.this, environment)
        if isinstance(tree, exp.Union):
            return self._union(tree, environment)
        if isinstance(tree, exp.Values):
            return self._values(tree)
        if isinstance(tree, exp.Select):
            return self._select(tree, environment)
        raise Unsupported(f"{type(tree).__name__.upper()} has no delta rule yet")

    def _with_ctes(self, tree: exp.Expression, outer: Environment) -> Environment:
        clause = tree.args.get("with_")
        if clause is None:
            return outer
        environment = dict(outer)
        for cte in clause.expressions:
            names = tuple(column.name for column in cte.args["alias"].columns)
            environment[cte.alias] = (cte.this, names, dict(environment))
        return environment

    def _union(self, tree: exp.Union, environment: Environment) -> UnionAll | Aggregate:
        branches: list[Select] = []
        for side in (tree.this, tree.expression):
            for part in self._union_parts(side, environment, below_distinct=bool(tree.args.get("distinct"))):
                branches.extend(part.branches if isinstance(part, UnionAll) else [part])
        union = UnionAll(tuple(branches))
        return _distinct(union) if tree.args.get("distinct") else union

    def _union_parts(
        self, tree: exp.Expression, environment: Environment, *, below_distinct: bool
    ) -> Iterator[Body]:
        """The branches of nested UNIONs; below a UNION that removes duplicates an inner one need not."""
        environment = self._with_ctes(tree, environment)
        while isinstance(tree, exp.Subquery):
            tree = tree.this
            environment = self._with_ctes(tree, environment)
        if isinstance(tree, exp.Union) and (below_distinct or not tree.args.get("distinct")):
            yield from self._union_parts(tree.this, environment, below_distinct=below_distinct)
            yield from self._union_parts(tree.expression, environment, below_distinct=below_distinct)
        else:
            yield self._body(self.query(tree, environment), "below a UNION")

    @staticmethod
    def _body(node: Root, where: str) -> Body:
        if isinstance(node, Aggregate):
            what = "DISTINCT" if node.distinct else "GROUP BY"
            raise Unsupported(f"{what} {where} has no delta rule yet")
        return node

    @staticmethod
    def _values(tree: exp.Values) -> Select:
        width = len(tree.expressions[0].expressions)
        names = tuple(f"column{number + 1}" for number in range(width))
        bare = tree.copy()
        bare.set("alias", None)
        constant = Constant(render(bare), names)
        return Select(
            (Input("v", constant),),
            (),
            tuple(Output(name, exp.column(name, "v", quoted=True)) for name in names),
        )

    def _select(self, tree: exp.Select, environment: Environment) -> Root:
        block = _Block()
        scope: list[_Relation] = []
        if tree.args.get("from_"):
            scope += self._from_item(tree.args["from_"].this, environment, block)
            for join in tree.args.get("joins") or []:
                scope += self._join(join, scope, environment, block)
        if tree.args.get("where"):
            block.predicates.append(self._resolve(tree.args["where"].this, scope))
        outputs = [
            Output(_output_name(item), self._resolve(item.unalias(), scope)) for item in tree.expressions
        ]
        having = tree.args.get("having")
        group = tree.args.get("group")
        having_expression = self._resolve(having.this, scope) if having else None
        # GROUP BY () is the one group that there is without any key.
        written = [item for item in group.expressions if item != exp.Tuple()] if group else []
        keys = [self._resolve(item, scope) for item in written]
        expressions = [output.expression for output in outputs] + (
            [having_expression] if having_expression else []
        )
        calls = any(self._calls(expression) for expression in expressions)
        if group is not None or having is not None or calls:
            aggregate = self._aggregate(block, keys, outputs, having_expression)
            if tree.args.get("distinct"):
                raise Unsupported("DISTINCT over GROUP BY has no delta rule yet")
            return aggregate
        select = Select(tuple(block.inputs), tuple(block.predicates), tuple(outputs))
        return _distinct(select) if tree.args.get("distinct") else select

    # FROM

    def _from_item(self, item: exp.Expression, environment: Environment, block: _Block) -> list[_Relation]:
        if (
            isinstance(item, exp.Subquery)
            and isinstance(item.this, exp.Table | exp.Subquery)
            and not item.alias
        ):
            relations = self._from_item(item.this, environment, block)
        elif isinstance(item, exp.Subquery):
            node = self.query(item.this, self._with_ctes(item, environment))
            relations = [self._derived(item, self._body(node, "in a subquery"), block)]
        elif isinstance(item, exp.Values):
            relations = [self._derived(item, self._values(item), block)]
        elif isinstance(item, exp.Table):
            relations = [self._table(item, environment, block)]
        else:
            raise Unsupported(f"{render(item)} in FROM has no delta rule yet")
        for join in item.args.get("joins") or []:
            relations += self._join(join, relations, environment, block)
        return relations

    def _join(
        self, join: exp.Join, left: list[_Relation], environment: Environment, block: _Block
    ) -> list[_Relation]:
        if join.args.get("side") or join.args.get("kind", "") not in ("", "INNER", "CROSS"):
            raise Unsupported(f"{render(join).split(' JOIN ')[0]} JOIN has no delta rule yet")
        if join.args.get("method"):
            raise Unsupported(f"{join.args['method']} JOIN is not expected from the server's deparser")
        right = self._from_item(join.this, environment, block)
        if join.args.get("on"):
            block.predicates.append(self._resolve(join.args["on"], left + right))
        for name in (column.name for column in join.args.get("using") or []):
            sides = [self._lookup(name, side) for side in (left, right)]
            block.predicates.append(exp.EQ(this=sides[0], expression=sides[1]))
        return right

    def _table(self, item: exp.Table, environment: Environment, block: _Block) -> _Relation:
        if not isinstance(item.this, exp.Identifier):
            raise Unsupported(f"{render(item)} in FROM has no delta rule yet")
        if not item.db and item.name in environment:
            tree, names, inner = environment[item.name]
            node = self._body(self.query(tree, inner), "in a common table expression")
            return self._derived(item, node, block, names)
        name = (item.db, item.name)
        if name in self._relations.unusable:
            raise Unsupported(self._relations.unusable[name])
        if name in self._relations.views:
            view = self._relations.views[name]
            node = self._body(self.query(parse(view.text), {}), f"in the view {item.db}.{item.name}")
            return self._derived(item, node, block, view.columns)
        if name not in self._relations.sources:
            raise Unsupported(f"the relation {item.db}.{item.name} cannot be told from the query's text")
        source = self._relations.sources[name]
        scan = Scan(source, tuple(column.name for column in source.columns))
        return self._input(item, scan, block, scan.columns)

    def _derived(
        self, item: exp.Expression, node: Body, block: _Block, names: tuple[str, ...] = ()
    ) -> _Relation:
        """A subquery in FROM: a plain block is merged into this one, anything else becomes an input."""
        names = names or node.output_names
        if isinstance(node, UnionAll):
            # By position, for a subquery may have two columns of one name.
            unique = tuple(f"u{number + 1}" for number in range(len(names)))
            renamed = _renamed(node, unique)
            assert isinstance(renamed, UnionAll)
            return self._input(item, renamed, block, names, unique)
        fresh = {inner.alias: next(self._aliases) for inner in node.inputs}
        block.inputs += [Input(fresh[inner.alias], inner.node) for inner in node.inputs]
        block.predicates += [_realiased(predicate, fresh) for predicate in node.predicates]
        return _visible(item, names, [_realiased(output.expression, fresh) for output in node.outputs])

    def _input(
        self,
        item: exp.Expression,
        node: Scan | UnionAll,
        block: _Block,
        names: tuple[str, ...],
        columns: tuple[str, ...] = (),
    ) -> _Relation:
        """A node as an input of its own, whose columns are seen under these names."""
        alias = next(self._aliases)
        block.inputs.append(Input(alias, node))
        return _visible(item, names, [exp.column(name, alias, quoted=True) for name in columns or names])

    # expressions

    def _resolve(self, tree: exp.Expression, scope: list[_Relation]) -> exp.Expression:
        """The expression with each column replaced by what it stands for in the block's inputs."""
        root = exp.Paren(this=tree.copy())
        for column in list(root.find_all(exp.Column)):
            if isinstance(column.parent, exp.Collate) and column.arg_key == "expression":
                continue  # the name of a collation
            if isinstance(column.this, exp.Star):
                raise Unsupported(f"the whole row {column.table}.* used as a value has no delta rule yet")
            candidates = [item for item in scope if item.alias == column.table] if column.table else scope
            column.replace(_grouped(self._lookup(column.name, candidates)))
        resolved = root.this
        assert isinstance(resolved, exp.Expression)
        return _stripped(resolved)

    @staticmethod
    def _lookup(name: str, scope: list[_Relation]) -> exp.Expression:
        found = [item.columns[name] for item in scope if name in item.columns]
        if found:
            return found[0].copy()
        if name in SYSTEM_COLUMNS:
            raise Unsupported(f"the system column {name} is not captured")
        raise Unsupported(f"the column {name} cannot be told from the query's text")

    def _calls(self, tree: exp.Expression) -> list[exp.Expression]:
        """The aggregate calls in an expression, each with its FILTER, WITHIN GROUP and schema."""
        calls = []
        for node in tree.find_all(exp.Anonymous):
            if node.name in self._relations.aggregates:
                calls.append(_whole_call(node))
        return calls

    # GROUP BY

    def _aggregate(
        self, block: _Block, keys: list[exp.Expression], outputs: list[Output], having: exp.Expression | None
    ) -> Aggregate:
        columns = _Lifted()
        key_names = list(dict.fromkeys(columns.name(key, "k") for key in keys))
        calls: dict[str, Call] = {}

        def over_groups(tree: exp.Expression) -> exp.Expression:
            """The expression with keys and calls replaced by their names."""
            whole = exp.Paren(this=tree.copy())

            def replace(node: exp.Expression) -> None:
                text = render(_stripped(node))
                key = columns.names.get(text)
                if key in key_names:
                    node.replace(exp.column(key, GROUP, quoted=True))
                    return
                for call in self._calls(node):
                    if call is node:
                        node.replace(exp.column(self._call(call, calls, columns).name, GROUP, quoted=True))
                        return
                if isinstance(node, exp.Column):
                    # PostgreSQL lets a column that depends on a grouped primary key stand alone.
                    key_names.append(columns.name(node, "k"))
                    node.replace(exp.column(key_names[-1], GROUP, quoted=True))
                    return
                for child in list(node.iter_expressions()):
                    names_collation = isinstance(node, exp.Collate) and child.arg_key == "expression"
                    if not names_collation and not isinstance(child, exp.DataType):
                        replace(child)

            replace(whole.this)
            result = whole.this
            assert isinstance(result, exp.Expression)
            return result

        over = [Output(output.name, over_groups(output.expression)) for output in outputs]
        condition = over_groups(having) if having is not None else None
        rows = Select(tuple(block.inputs), tuple(block.predicates), columns.outputs())
        return Aggregate(rows, tuple(key_names), tuple(calls.values()), condition, tuple(over))

    def _call(self, tree: exp.Expression, calls: dict[str, Call], columns: _Lifted) -> Call:
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
            if slot.find(exp.Column):
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


class _Lifted:
    """Expressions that become columns of an aggregate's input, each once."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self._outputs: list[Output] = []

    def name(self, tree: exp.Expression, prefix: str) -> str:
        plain = _stripped(tree)
        text = render(plain)
        if text not in self.names:
            self.names[text] = f"{prefix}{len(self._outputs) + 1}"
            self._outputs.append(Output(self.names[text], plain.copy()))
        return self.names[text]

    def outputs(self) -> tuple[Output, ...]:
        return tuple(self._outputs)


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
        case _:
            yield node


def _stripped(tree: exp.Expression) -> exp.Expression:
    while isinstance(tree, exp.Paren):
        tree = tree.this
    return tree


def _grouped(tree: exp.Expression) -> exp.Expression:
    """In parentheses unless it is a plain column or literal, so that it can stand anywhere."""
    return tree if isinstance(tree, exp.Column | exp.Literal | exp.Paren) else exp.Paren(this=tree)


def _realiased(tree: exp.Expression, aliases: Mapping[str, str]) -> exp.Expression:
    copy = exp.Paren(this=tree.copy())
    for column in copy.find_all(exp.Column):
        if column.table in aliases:
            column.set("table", exp.to_identifier(aliases[column.table], quoted=True))
    result = copy.this
    assert isinstance(result, exp.Expression)
    return result


def _visible(item: exp.Expression, names: tuple[str, ...], columns: list[exp.Expression]) -> _Relation:
    """The FROM item under its alias, its leading columns renamed where the alias lists names."""
    alias = item.args.get("alias")
    renames = [column.name for column in alias.columns] if alias else []
    seen = [*renames, *names[len(renames) :]]
    return _Relation(item.alias_or_name, dict(zip(seen, columns, strict=True)))


def _output_name(item: exp.Expression) -> str:
    name = item.alias_or_name
    if not name:
        raise Unsupported(f"the column {render(item)} has no name")
    return name


def _renamed(node: Root, names: tuple[str, ...]) -> Root:
    """The node with its outputs renamed, by position."""
    match node:
        case UnionAll():
            first, *rest = node.branches
            renamed = _renamed(first, names)
            assert isinstance(renamed, Select)
            return UnionAll((renamed, *rest))
        case Select():
            outputs = tuple(
                Output(name, out.expression) for name, out in zip(names, node.outputs, strict=True)
            )
            return Select(node.inputs, node.predicates, outputs)
        case Aggregate():
            outputs = tuple(
                Output(name, out.expression) for name, out in zip(names, node.outputs, strict=True)
            )
            return Aggregate(node.input, node.keys, node.calls, node.having, outputs, node.distinct)


def _distinct(body: Body) -> Aggregate:
    """Duplicate removal is a GROUP BY of every column without an aggregate.

    SELECT DISTINCT a, b FROM t  ->  SELECT a, b FROM t GROUP BY a, b
    """
    names = tuple(f"k{number + 1}" for number in range(len(body.output_names)))
    rows = _renamed(body, names)
    assert not isinstance(rows, Aggregate)
    outputs = tuple(
        Output(output, exp.column(name, GROUP, quoted=True))
        for output, name in zip(body.output_names, names, strict=True)
    )
    return Aggregate(rows, names, (), None, outputs, distinct=True)


def _prune(node: Root) -> Root:
    """Scans reduced to the columns that some expression above reads."""
    match node:
        case Aggregate():
            rows = _prune(node.input)
            assert not isinstance(rows, Aggregate)
            return Aggregate(rows, node.keys, node.calls, node.having, node.outputs, node.distinct)
        case UnionAll():
            branches = tuple(_prune(branch) for branch in node.branches)
            return UnionAll(tuple(branch for branch in branches if isinstance(branch, Select)))
        case Select():
            expressions = [*node.predicates, *(output.expression for output in node.outputs)]
            used = {
                (column.table, column.name) for tree in expressions for column in tree.find_all(exp.Column)
            }
            inputs = []
            for item in node.inputs:
                inner = item.node
                if isinstance(inner, Scan):
                    inner = Scan(
                        inner.source, tuple(name for name in inner.columns if (item.alias, name) in used)
                    )
                elif isinstance(inner, UnionAll):
                    pruned = _prune(inner)
                    assert isinstance(pruned, UnionAll)
                    inner = pruned
                inputs.append(Input(item.alias, inner))
            return Select(tuple(inputs), node.predicates, node.outputs)
