"""Each clause of a query is consumed or refused: mutations of parse trees.

Every field of every structural node of many queries is changed, one at a time, and the query is planned
again. Another query must give another plan, or none. If both give the same plan, the planner ignores the
field: then `HARMLESS` has the reason for which it cannot matter to the rows, or there is a defect.

The queries (`fixtures/clauses.sql` and, with what is refused, `clauses_refused.sql`) set every field that the
parser can set on these nodes; `NEVER_SET` names the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from postgast import pg_query_pb2 as pg
from postgast.pg_query_pb2 import Node, SelectStmt
from tests.unit.plan.world import FIXTURES, RELATIONS, column_names

from headwater.plan.build.parse import Parsed, Relations, plan_query
from headwater.plan.syntax import LOCATIONS, copied, kind_of, parse

STRUCTURE = frozenset(
    "SelectStmt ResTarget JoinExpr RangeVar RangeSubselect RangeFunction RangeTableFunc RangeTableFuncCol"
    " RangeTableSample JsonTable JsonTableColumn JsonTablePathSpec Alias WithClause CommonTableExpr"
    " CTESearchClause CTECycleClause SortBy WindowDef GroupingSet LockingClause IntoClause SubLink FuncCall"
    " GroupingFunc JsonAggConstructor JsonObjectAgg JsonArrayAgg JsonArrayQueryConstructor JsonKeyValue"
    " JsonArgument JsonBehavior JsonValueExpr JsonOutput".split()
)
"""The nodes that the builder takes apart. All others stand in expressions, which it keeps whole."""


@dataclass(frozen=True)
class Mutation:
    """A change of one field of one node in a tree."""

    field: str  # the type of the node and the name of the field
    what: str
    path: tuple[Any, ...]
    query: SelectStmt


PLANNED, REFUSED = (
    (FIXTURES / f"{name}.sql").read_text(encoding="utf-8").splitlines()
    for name in ("clauses", "clauses_refused")
)
QUERIES = [*PLANNED, *REFUSED]


def messages(message: Message, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Message]]:
    """Every message in a tree, with the way to it."""
    yield path, message
    for field, value in message.ListFields():
        if field.type != FieldDescriptor.TYPE_MESSAGE:
            continue
        if field.is_repeated:
            for number, item in enumerate(value):
                yield from messages(item, (*path, (field.name, number)))
        else:
            yield from messages(value, (*path, field.name))


def structure(query: SelectStmt) -> Iterator[tuple[tuple[Any, ...], Message]]:
    """The structural nodes of a query, with the way to each."""
    return (item for item in messages(query) if type_of(item[1]) in STRUCTURE)


def at(message: Message, path: tuple[Any, ...]) -> Any:
    for step in path:
        message = getattr(message, step) if isinstance(step, str) else getattr(message, step[0])[step[1]]
    return message


def type_of(message: Message) -> str:
    return str(message.DESCRIPTOR.name)


EXPRESSIONS = frozenset(
    "A_Expr A_Const A_ArrayExpr BoolExpr ColumnRef FuncCall GroupingFunc JsonArrayAgg JsonObjectAgg NullTest"
    " RowExpr SubLink TypeCast".split()
)


def is_expression(node: Message) -> bool:
    return isinstance(node, Node) and type_of(getattr(node, kind_of(node))) in EXPRESSIONS


def seven() -> Node:
    return parse("SELECT '7'::integer").target_list[0].res_target.val


def form(message: Message) -> tuple[object, ...]:
    """What decides on the fields that a node has: its type and the words in it."""
    words = [
        getattr(message, field.name)
        for field in message.DESCRIPTOR.fields
        if field.type in (FieldDescriptor.TYPE_ENUM, FieldDescriptor.TYPE_BOOL)
    ]
    return (type_of(message), *words, bool(getattr(message, "values_lists", ())))


@cache
def dispensable() -> frozenset[tuple[object, ...]]:
    """Fields that some node lacks which is of the same form as others that have it."""
    found = set()
    for text in QUERIES:
        for _, message in structure(parse(text)):
            for field in message.DESCRIPTOR.fields:
                if field.type == FieldDescriptor.TYPE_MESSAGE:
                    value = getattr(message, field.name)
                    if not (value if field.is_repeated else message.HasField(field.name)):
                        found.add((*form(message), field.name))
    return frozenset(found)


def mutations(query: SelectStmt) -> Iterator[Mutation]:
    for path, message in structure(query):
        for field in message.DESCRIPTOR.fields:
            if field.name in LOCATIONS:
                continue
            for what, value in changes(message, field):
                made = copied(query)
                node = at(made, path)
                node.ClearField(field.name)
                if field.is_repeated:
                    getattr(node, field.name).extend(value)
                elif isinstance(value, Message):
                    getattr(node, field.name).CopyFrom(value)
                elif value is not None:
                    setattr(node, field.name, value)
                yield Mutation(f"{type_of(message)}.{field.name}", what, path, made)


def decides_on_fields(name: str, value: int) -> bool:
    """Whether a node with another word in this field would lack others, which no parser makes."""
    plain = {"op": pg.SETOP_NONE, "kind": pg.GROUPING_SET_EMPTY}
    return name in ("coltype", "for_ordinality") or plain.get(name) == value


def changes(message: Message, field: FieldDescriptor) -> Iterator[tuple[str, Any]]:
    """Other values of a field; None for none."""
    value = getattr(message, field.name)
    can_be_empty = (*form(message), field.name) in dispensable()
    if field.is_repeated:
        for number, item in enumerate(value):
            if len(value) > 1 or can_be_empty:
                yield f"without item {number}", [*value[:number], *value[number + 1 :]]
            if kind_of(item) == "string":
                other = Node(string=pg.String(sval=f"{item.string.sval}_other"))
                yield f"other text for item {number}", [*value[:number], other, *value[number + 1 :]]
            elif kind_of(item) and is_expression(item):
                yield f"7 for item {number}", [*value[:number], seven(), *value[number + 1 :]]
        return
    if decides_on_fields(field.name, value):
        return
    match field.type:
        case FieldDescriptor.TYPE_BOOL:
            yield "negated", not value
        case FieldDescriptor.TYPE_ENUM:
            for number in field.enum_type.values_by_number:
                if number not in (0, value):  # 0 is none of them
                    yield field.enum_type.values_by_number[number].name, number
        case FieldDescriptor.TYPE_STRING:
            yield "other text", f"{value}_other"
        case FieldDescriptor.TYPE_MESSAGE:
            if message.HasField(field.name):
                if can_be_empty:
                    yield "without it", None
                if is_expression(value):
                    yield "7 for it", seven()
        case _:
            yield "one more", value + 1


WITHOUT_VIEWS = replace(RELATIONS, views={})
"""Planning reads the views that there are, again and again."""


def outcome(query: SelectStmt, relations: Relations) -> Parsed:
    try:
        return plan_query(query, column_names(query), relations)
    except AssertionError as error:  # of a tree that no text has
        return Parsed(None, (f"impossible ({error})",))


# What cannot matter to the rows


def no_limit(query: SelectStmt, found: Mutation) -> bool:
    owner = at(query, found.path)
    return not owner.HasField("limit_count") and not owner.HasField("limit_offset")


def no_grouping_sets(query: SelectStmt, found: Mutation) -> bool:
    return all(kind_of(item) != "grouping_set" for item in at(query, found.path).group_clause)


def sorts_rows_alone(query: SelectStmt, found: Mutation) -> bool:
    """Whether an ORDER BY decides neither on which rows there are nor on an array or a value."""
    steps = [*found.path, ("sort_clause", 0)] if found.field == "SelectStmt.sort_clause" else found.path
    place = next(
        (number for number, step in enumerate(steps) if isinstance(step, tuple) and step[0] == "sort_clause"),
        None,
    )
    if place is None:
        return False
    owner = at(query, tuple(steps[:place]))
    if found.field in ("SelectStmt.sort_clause", "SortBy.node", "FuncCall.funcname"):
        keys = [item.sort_by.node for item in owner.sort_clause]
        if any(RELATIONS.aggregate_calls(key) or RELATIONS.returns_set(key) for key in keys):
            return False  # they decide on how many rows there are
    return (
        not owner.HasField("limit_count")
        and not owner.HasField("limit_offset")
        and not any(map(kind_of, owner.distinct_clause))
        and tuple(steps[:place])[-3:] != ("sub_link", "subselect", "select_stmt")
    )


def is_not_referred_to(query: SelectStmt, found: Mutation) -> bool:
    node = at(query, found.path)
    alias = node.aliasname if found.field.startswith("Alias") else node.alias.aliasname
    columns = [node.fields for _, node in messages(query) if type_of(node) == "ColumnRef"]
    return all(fields[0].string.sval != alias for fields in columns)


def is_inside(_: SelectStmt, found: Mutation) -> bool:
    return not isinstance(found.path[0], tuple) or found.path[0][0] != "target_list" or len(found.path) > 2


def is_common_table(query: SelectStmt, found: Mutation) -> bool:
    return not at(query, found.path).schemaname


def is_shown(query: SelectStmt, found: Mutation) -> bool:
    owner = at(query, found.path)
    return all(key in [item.res_target.val for item in owner.target_list] for key in owner.group_clause)


def always(_: SelectStmt, __: Mutation) -> bool:
    return True


HARMLESS: list[tuple[str, Callable[[SelectStmt, Mutation], bool], str]] = [
    ("CommonTableExpr.ctematerialized", always, "decides on speed"),
    ("RangeVar.relpersistence", always, "says what kind of table to create"),
    ("RangeVar.inh", is_common_table, "a common table expression has no children"),
    ("RangeFunction.lateral", always, "a function in FROM is lateral without the word"),
    ("RangeTableFunc.lateral", always, "XMLTABLE is lateral without the word"),
    ("JsonTable.lateral", always, "JSON_TABLE is lateral without the word"),
    ("SelectStmt.limit_option", no_limit, "says how to count, and there is no limit"),
    ("SelectStmt.group_distinct", no_grouping_sets, "removes equal grouping sets, and there is but one"),
    ("SelectStmt.group_clause", is_shown, "a column that is shown and not grouped is a key by itself"),
    ("ResTarget.name", is_inside, "nobody refers to this column of a subquery by its name"),
    ("Alias.aliasname", is_not_referred_to, "nobody refers to it"),
    ("RangeVar.alias", is_not_referred_to, "nobody refers to it"),
    ("", sorts_rows_alone, "the order of the rows of a table says nothing"),
]


def is_harmless(query: SelectStmt, found: Mutation) -> bool:
    return any(found.field.startswith(field) and holds(query, found) for field, holds, _ in HARMLESS)


REFUSED_WHOLE = frozenset(
    "CTESearchClause CTECycleClause IntoClause JsonArrayQueryConstructor LockingClause"
    " RangeTableSample".split()
)
"""Clauses that the planner refuses without a look into them."""

ANALYSED = "only the server's analysis sets it"
ELSEWHERE = "only other statements set it"

NEVER_SET = {
    "CTECycleClause.cycle_mark_collation": ANALYSED,
    "CTECycleClause.cycle_mark_neop": ANALYSED,
    "CTECycleClause.cycle_mark_type": ANALYSED,
    "CTECycleClause.cycle_mark_typmod": ANALYSED,
    "CommonTableExpr.ctecolcollations": ANALYSED,
    "CommonTableExpr.ctecolnames": ANALYSED,
    "CommonTableExpr.ctecoltypes": ANALYSED,
    "CommonTableExpr.ctecoltypmods": ANALYSED,
    "CommonTableExpr.cterecursive": ANALYSED,
    "CommonTableExpr.cterefcount": ANALYSED,
    "GroupingFunc.agglevelsup": ANALYSED,
    "GroupingFunc.refs": ANALYSED,
    "GroupingFunc.xpr": ANALYSED,
    "IntoClause.access_method": ELSEWHERE,
    "IntoClause.col_names": ELSEWHERE,
    "IntoClause.options": ELSEWHERE,
    "IntoClause.skip_data": ELSEWHERE,
    "IntoClause.table_space_name": ELSEWHERE,
    "IntoClause.view_query": ELSEWHERE,
    "JoinExpr.rtindex": ANALYSED,
    "JsonBehavior.coerce": ANALYSED,
    "JsonValueExpr.formatted_expr": ANALYSED,
    "ResTarget.indirection": ELSEWHERE,
    "SubLink.sub_link_id": ANALYSED,
    "SubLink.xpr": ANALYSED,
}


def relations_of(text: str) -> Relations:
    return RELATIONS if "public.names" in text else WITHOUT_VIEWS


@pytest.mark.parametrize("text", PLANNED)
def test_each_change_makes_a_difference(text: str) -> None:
    query, relations = parse(text), relations_of(text)
    before = outcome(query, relations)
    assert before.root is not None, before.reasons
    ignored = [
        f"{found.field} {found.what} at {found.path}"
        for found in mutations(query)
        if outcome(found.query, relations) == before and not is_harmless(query, found)
    ]
    assert ignored == []


@pytest.mark.parametrize("text", REFUSED)
def test_a_clause_without_a_rule_is_refused(text: str) -> None:
    query, relations = parse(text), relations_of(text)
    before = outcome(query, relations)
    assert before.root is None
    # Else the reason may be anything.
    whole = any(type_of(message) in REFUSED_WHOLE for _, message in structure(query))
    assert whole or any(outcome(found.query, relations) != before for found in mutations(query))


def test_every_field_is_set_by_a_query() -> None:
    wanted = {
        f"{kind}.{field.name}"
        for kind in STRUCTURE
        for field in getattr(pg, kind).DESCRIPTOR.fields
        if field.name not in LOCATIONS
    }
    found = {
        f"{type_of(message)}.{field.name}"
        for text in QUERIES
        for _, message in structure(parse(text))
        for field, _ in message.ListFields()
    }
    assert wanted - found == NEVER_SET.keys()


SCALARS = [
    name
    for name in NEVER_SET
    if name.partition(".")[0] not in REFUSED_WHOLE
    and getattr(pg, name.partition(".")[0]).DESCRIPTOR.fields_by_name[name.partition(".")[2]].type
    != FieldDescriptor.TYPE_MESSAGE
]


@pytest.mark.parametrize("field", SCALARS)
def test_a_field_that_no_parser_sets_yet_is_refused_by_its_name(field: str) -> None:
    """As a clause of a newer PostgreSQL would be; or the check of what is printed notices that it is lost."""
    reasons = [
        reason
        for text in PLANNED
        for found in mutations(parse(text))
        if found.field == field
        for reason in outcome(found.query, relations_of(text)).reasons or ("it is ignored",)
    ]
    assert reasons
    lost = "would not mean the same if it were parsed again"
    assert [reason for reason in reasons if field not in reason and lost not in reason] == []


# The kinds of nodes that there are

OF_OTHER_STATEMENTS = frozenset(
    "ATAlterConstraint AccessPriv AlterTableCmd CallContext Constraint CreateOpClassItem CurrentOfExpr"
    " DefElem FunctionParameter IndexElem InferClause InlineCodeBlock MergeAction MergeSupportFunc"
    " MergeWhenClause MultiAssignRef ObjectWithArgs OnConflictClause PartitionBoundSpec PartitionCmd"
    " PartitionElem PartitionRangeDatum PartitionSpec PublicationObjSpec PublicationTable ReturningClause"
    " ReturningOption RoleSpec SetToDefault StatsElem TableLikeClause TriggerTransition"
    " VacuumRelation".split()
)
OF_THE_ANALYSIS = frozenset(
    "Aggref AlternativeSubPlan ArrayCoerceExpr ArrayExpr CaseTestExpr CoerceToDomain CoerceToDomainValue"
    " CoerceViaIO CollateExpr ConvertRowtypeExpr DistinctExpr FieldSelect FieldStore FromExpr FuncExpr"
    " InferenceElem IntList JsonConstructorExpr JsonExpr JsonTablePath JsonTablePathScan JsonTableSiblingJoin"
    " NextValueExpr NullIfExpr OidList OnConflictExpr OpExpr Param Query RTEPermissionInfo RangeTblEntry"
    " RangeTblFunction RangeTblRef RelabelType ReturningExpr RowCompareExpr RowMarkClause ScalarArrayOpExpr"
    " SortGroupClause SubPlan SubscriptingRef TableFunc TableSampleClause TargetEntry Var WindowClause"
    " WindowFunc WindowFuncRunCondition WithCheckOption".split()
)


def reachable(kind: Descriptor, found: set[str]) -> set[str]:
    """The types of messages that a message can have in it, by the grammar of the tree."""
    if kind.name not in found:
        found.add(kind.name)
        for field in kind.fields:
            if field.message_type is not None:
                reachable(field.message_type, found)
    return found


def test_every_kind_of_node_is_shown_or_is_in_no_query() -> None:
    """A kind that a newer PostgreSQL adds is in none of the lists."""
    forms = (FIXTURES / "forms.sql").read_text(encoding="utf-8").splitlines()
    texts = [*QUERIES, *(f"SELECT {form}" for form in forms)]
    shown = {type_of(message) for text in texts for _, message in messages(parse(text))}
    kinds = reachable(SelectStmt.DESCRIPTOR, set())
    others = {kind for kind in kinds if kind.endswith("Stmt")} - {"SelectStmt"}
    assert shown >= STRUCTURE
    assert kinds - others == shown | OF_OTHER_STATEMENTS | OF_THE_ANALYSIS
    assert not shown & (others | OF_OTHER_STATEMENTS | OF_THE_ANALYSIS)
