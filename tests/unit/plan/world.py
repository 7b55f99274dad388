"""The relations that the plans under test read, plans as text, and cases in `fixtures/*.sql`.

A case is a comment with its title, a statement, and what is expected of it, each ended by a semicolon at the
end of a line:

    -- a filter
    SELECT o.id FROM public.orders o WHERE o.id > 1;
    SELECT r1.id AS id FROM orders(id) AS r1 WHERE r1.id > 1;

A new case needs no Python.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from postgast import pg_query_pb2 as pg
from postgast.pg_query_pb2 import SelectStmt

from headwater.plan.aggregates import algebra_of
from headwater.plan.build.parse import Parsed, Relations, View, parse_query
from headwater.plan.build.scope import output_names
from headwater.plan.errors import Unsupported
from headwater.plan.expression import Distinction, Expression, Logic, Negation, NullTest, Operation
from headwater.plan.operators import (
    CORE,
    Aggregate,
    Apply,
    Call,
    ColumnType,
    Constant,
    Expansion,
    Input,
    Keyed,
    Node,
    Query,
    Scan,
    Select,
    Source,
    SourceColumn,
    UnionAll,
)
from headwater.plan.quoting import identifier
from headwater.plan.render import now_sql
from headwater.plan.storage_plan import BagPlan, GroupPlan
from headwater.plan.syntax import ParseError, parse
from headwater.plan.values import Column

FIXTURES = Path(__file__).parent / "fixtures"

INTEGER = ColumnType("integer", "integer", integer=True)
BIGINT = ColumnType("bigint", "bigint", integer=True)
TEXT = ColumnType("text", "text", collation='pg_catalog."default"')
BOOLEAN = ColumnType("boolean", "boolean")
MONEY = ColumnType("numeric(12,2)", "numeric(12,2)", exact=False, numeric=True, scale=2)
NUMERIC = ColumnType("numeric", "numeric", exact=False, numeric=True)
DOUBLE = ColumnType("double precision", "double precision", exact=False, floating=True)
INTERVAL = ColumnType("interval", "interval", exact=False)
CITEXT = ColumnType("public.citext", "public.citext", exact=False, equality="OPERATOR(public.=)")
JSON = ColumnType("json", "json", exact=False, groupable=False, hashable=False)


def source(relation: int, name: str, *columns: SourceColumn, schema: str = "public") -> Source:
    return Source(relation, schema, name, "table", columns)


ORDERS = source(
    101,
    "orders",
    SourceColumn(1, "id", INTEGER, not_null=True),
    SourceColumn(2, "customer_id", INTEGER),
    SourceColumn(3, "amount", MONEY),
    SourceColumn(5, "note", TEXT),
)
CUSTOMERS = source(
    102,
    "customers",
    SourceColumn(1, "id", INTEGER, not_null=True),
    SourceColumn(2, "name", TEXT),
    SourceColumn(3, "region", TEXT, not_null=True),
)
ITEMS = source(
    103,
    "items",
    SourceColumn(1, "id", BIGINT, not_null=True),
    SourceColumn(2, "order_id", INTEGER),
    SourceColumn(3, "price", NUMERIC),
    SourceColumn(4, "weight", DOUBLE),
    SourceColumn(5, "doubled", NUMERIC, captured=False),
    SourceColumn(6, "label", CITEXT),
)
ODD = source(104, 'Odd "one"', SourceColumn(1, 'a "b"', TEXT), schema="it's")

BUILTIN_AGGREGATES = "count sum avg min max string_agg array_agg json_agg percentile_cont mode".split()

RELATIONS = Relations(
    sources={(item.schema, item.name): item for item in (ORDERS, CUSTOMERS, ITEMS, ODD)},
    views={
        ("public", "big_orders"): View(
            "SELECT o.id AS number, o.amount * 2 AS twice FROM public.orders o WHERE o.amount > 100",
            ("number", "twice"),
        ),
        ("public", "names"): View(
            "SELECT c.name FROM public.customers c UNION ALL SELECT o.note FROM public.orders o", ("name",)
        ),
    },
    unusable={("public", "elsewhere"): "public.elsewhere is a foreign table, whose changes are not seen"},
    aggregates=frozenset(
        {
            *(("pg_catalog", name) for name in BUILTIN_AGGREGATES),
            ("public", "median"),
            ("public", "sum"),
        }
    ),
    set_returning=frozenset({("pg_catalog", "generate_series"), ("pg_catalog", "unnest")}),
)
PER_REGION = View("SELECT c.region, count(*) AS n FROM public.customers c GROUP BY c.region", ("region", "n"))
WITH_GROUPED_VIEW = replace(RELATIONS, views={("public", "per_region"): PER_REGION})


@dataclass(frozen=True)
class Case:
    """A statement and what is expected of it."""

    title: str
    statement: str
    expected: str


def cases(name: str) -> list[Case]:
    """The cases of a fixture file."""
    found = []
    for part in re.split(
        r"^(?=-- )", (FIXTURES / f"{name}.sql").read_text(encoding="utf-8"), flags=re.MULTILINE
    ):
        if not part.strip():
            continue
        title, _, rest = part.partition("\n")
        statement, expected = (item.strip() for item in rest.rstrip().removesuffix(";").split(";\n"))
        found.append(Case(title.removeprefix("-- "), statement, expected))
    titles = [case.title for case in found]
    assert len(set(titles)) == len(titles), f"two cases of {name}.sql have one title"
    return found


def planned(text: str, relations: Relations = RELATIONS) -> Parsed:
    """The plan of a query; its columns are named as the server would name them."""
    try:
        query = parse(text)
    except (ParseError, Unsupported):
        return parse_query(text, (), relations)
    return parse_query(text, column_names(query), relations)


def column_names(query: SelectStmt) -> tuple[str, ...]:
    """The names of a query's columns, those of VALUES too."""
    while query.op != pg.SETOP_NONE:
        query = query.larg
    if query.values_lists:
        return tuple(f"column{number + 1}" for number in range(len(query.values_lists[0].list.items)))
    return output_names(query)


def root_of(text: str, relations: Relations = RELATIONS) -> Query:
    found = planned(text, relations)
    assert found.root is not None, found.reasons
    return found.root


def select_of(text: str) -> Select:
    root = root_of(text)
    assert isinstance(root, Select)
    return root


def aggregate_of(text: str) -> Aggregate:
    root = root_of(text)
    assert isinstance(root, Aggregate)
    return root


def group_plan(text: str, **types: ColumnType) -> GroupPlan:
    """The maintenance of a grouping query; types of input columns that are not plain ones are given."""
    aggregate = aggregate_of(text)
    body = aggregate.input
    block = body.branches[0] if isinstance(body, UnionAll) else body
    assert isinstance(block, Select)
    rows = tuple(
        Column(name, types.get(name) or type_of(block, output.expression))
        for name, output in zip(body.output_names, block.outputs, strict=True)
    )
    outputs = tuple(Column(name, types.get(name, TEXT)) for name in aggregate.output_names)
    algebra = algebra_of(aggregate, {column.name: column.type for column in rows})
    return GroupPlan(aggregate, rows, outputs, algebra)


def bag_plan(text: str) -> BagPlan:
    root = root_of(text)
    assert not isinstance(root, Aggregate)
    block = root.branches[0] if isinstance(root, UnionAll) else root
    assert isinstance(block, Select)
    outputs = tuple(
        Column(name, type_of(block, output.expression))
        for name, output in zip(root.output_names, block.outputs, strict=True)
    )
    return BagPlan(outputs, now_sql(root), root)


def type_of(block: Select, expression: Expression) -> ColumnType:
    """The type of a plain column of a source; of anything else, text or boolean."""
    column = expression.column
    if column is not None:
        node = next(item.node for item in block.inputs if item.alias == column.alias)
        if isinstance(node, Scan):
            return node.source.column(column.name).type
    match expression.shape:
        case Logic() | Negation() | NullTest() | Distinction():
            return BOOLEAN
        case Operation(operator="=" | "<>" | "<" | "<=" | ">" | ">="):
            return BOOLEAN
        case _:
            return TEXT


# Plans as text


def described(root: Query) -> str:
    """A plan in a few lines, names bare where they can be."""
    return re.sub(r'(?<!")"([a-z_][a-z0-9_]*)"(?!")', r"\1", _described(root))


def _described(node: Query) -> str:
    match node:
        case Select():
            outputs = ", ".join(f"{out.expression.text} AS {identifier(out.name)}" for out in node.outputs)
            inputs = ", ".join(_input(item) for item in node.inputs)
            predicates = " AND ".join(predicate.text for predicate in node.predicates)
            clauses = [
                outputs,
                f"FROM {inputs}" if inputs else "",
                f"WHERE {predicates}" if predicates else "",
            ]
            return " ".join(["SELECT", *filter(None, clauses)])
        case UnionAll():
            return "\nUNION ALL ".join(_described(branch) for branch in node.branches)
        case Aggregate():
            outputs = ", ".join(f"{out.expression.text} AS {identifier(out.name)}" for out in node.outputs)
            lines = [
                f"{'DISTINCT' if node.distinct else 'GROUP'} BY ({', '.join(node.keys)}) TO {outputs}",
                *(f"HAVING {node.having.text}" for _ in [0] if node.having is not None),
                *(_call(call) for call in node.calls),
                f"OVER {_described(node.input)}",
            ]
            return "\n".join(lines)
        case Keyed():
            keys = "; ".join(", ".join(keys) for keys in node.keys)
            inputs = "\n".join(f"{item.alias}: {_described_node(item.node)}" for item in node.inputs)
            return f"KEYED {node.what} BY ({keys}) {node.text}\n{inputs}"
        case Apply():
            outputs = ", ".join(f"{out.expression.text} AS {identifier(out.name)}" for out in node.outputs)
            joins = "".join(f" {item.text}" for item in node.joins)
            where = " AND ".join(predicate.text for predicate in node.predicates)
            lines = [f"APPLY {outputs}{joins}" + (f" WHERE {where}" if where else "")]
            lines.append(f"{CORE}: {_described(node.core)}")
            for lookup in node.lookups:
                found = " AND ".join(item.text for item in lookup.conditions)
                equals = ", ".join(f"{mine} = {theirs}" for mine, theirs in lookup.equals)
                marks = f"{' exempt' if lookup.exempt else ''}{f' IF {found}' if found else ''}"
                lines.append(
                    f"{lookup.name}{marks}{f' BY ({equals})' if equals else ''}: {_described(lookup.node)}"
                )
            return "\n".join(lines)


def _described_node(node: Node) -> str:
    return "" if isinstance(node, Scan | Constant | Expansion) else _described(node)


def _input(item: Input) -> str:
    match item.node:
        case Scan(source=source, columns=columns):
            return f"{identifier(source.name)}({', '.join(map(identifier, columns))}) AS {item.alias}"
        case Constant(sql=sql, columns=columns):
            return f"({sql}) AS {item.alias}({', '.join(columns)})"
        case Expansion(sql=sql, columns=columns):
            return f"{sql.text} AS {item.alias}({', '.join(columns)})"
        case query:
            return f"({_described(query)}) AS {item.alias}"


def _call(call: Call) -> str:
    marks = [
        mark
        for mark, present in (
            ("foreign", not call.builtin),
            ("distinct", call.distinct),
            ("ordered", call.ordered),
        )
        if present
    ]
    reads = [*call.arguments, *(f"filter {call.filter}" for _ in [0] if call.filter)]
    return f"{call.name}: {' '.join([*marks, call.sql.text])} READS ({', '.join(reads)})"
