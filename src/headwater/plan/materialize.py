"""Inner results that may be kept: parts of a query that get storage of their own.

A delta of an aggregate inside a query reads all rows of its affected groups, and a part without a key, such
as LIMIT, reads everything. If such a part is kept, it is maintained as if it were a stream table by itself:
deltas are added to the states of its groups, and the query around it reads its rows and its changes like
those of a table.

A part is kept in the form that its storage can have: of an aggregate, the keys and the values of its calls.
Outputs and HAVING are computed by the node that reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from headwater.plan.build.rename import GROUP
from headwater.plan.expression import column
from headwater.plan.lineage import fingerprint
from headwater.plan.operators import (
    Aggregate,
    Apply,
    Constant,
    Expansion,
    Input,
    Keyed,
    Node,
    Output,
    Query,
    Scan,
    Select,
    Source,
    SourceColumn,
    children,
    scans,
    with_children,
)
from headwater.plan.render import now_sql
from headwater.plan.storage_plan import BagPlan, GroupPlan, IncrementalPlan


@dataclass(frozen=True)
class Candidate:
    """A part of a query that could be kept, with its own plan."""

    node: Query
    plan: IncrementalPlan
    whole: bool  # whether a delta reads all of it

    @cached_property
    def name(self) -> str:
        """The same as long as the stored rows mean the same, whatever is renamed.

        Parts that differ only in what is computed from it, as where a view is read twice, share it.
        """
        return fingerprint(self.plan.root)[:12]


@dataclass(frozen=True)
class Intermediate:
    """A part that is kept: how it is maintained, and the source that its readers see."""

    plan: IncrementalPlan  # over sources, and over results kept before it
    source: Source


@dataclass(frozen=True)
class Layers:
    """A plan whose inner results are kept, each before those that read it."""

    kept: tuple[Intermediate, ...]
    top: IncrementalPlan


def parts(root: Query) -> dict[Query, bool]:
    """Return the parts that may be worth keeping, from the inside out, and whether a delta reads all."""
    found: dict[Query, bool] = {}

    def walk(node: Node, *, whole: bool) -> None:
        for number, child in enumerate(children(node)):
            walk(child, whole=_reads_all(node, number))
        if node is root or isinstance(node, Scan | Constant | Expansion) or not node.output_names:
            return  # rows without columns make no table
        groups = isinstance(node, Aggregate) and (node.keys or node.calls)
        if groups or (whole and len(list(scans(node))) > 1):
            found[node] = whole or found.get(node, False)

    walk(root, whole=False)
    return found


def _reads_all(node: Node, child: int) -> bool:
    """Tell whether a delta of a node may need every row of a child."""
    match node:
        case Keyed():
            return not node.keys[0]
        case Apply():  # each row of the core asks the same of a lookup without conditions
            return child == 0 and any(not lookup.conditions for lookup in node.lookups)
        case _:
            return False


def stored_form(part: Query) -> Query:
    """Return what is stored of a part."""
    if not isinstance(part, Aggregate):
        return part
    names = (*part.keys, *(call.name for call in part.calls))
    outputs = tuple(Output(name, column(name, GROUP)) for name in names)
    return Aggregate(part.input, part.keys, part.calls, None, outputs)


def source_of(keepable: Candidate, relation: int, schema: str, name: str) -> Source:
    """Return a kept part as a source."""
    columns = enumerate(keepable.plan.outputs, 1)
    return Source(
        relation,
        schema,
        name,
        "kept",
        tuple(SourceColumn(number, column.name, column.type) for number, column in columns),
    )


def layers(plan: IncrementalPlan, candidates: Sequence[Candidate], kept: Mapping[str, Source]) -> Layers:
    """Return the plan with those of its parts kept that have storage, by name."""
    instead: dict[Query, Query] = {}
    found: dict[str, Intermediate] = {}
    for part in candidates:
        source = kept.get(part.name)
        if source is not None:
            if part.name not in found:
                found[part.name] = Intermediate(_reading(part.plan, instead), source)
            instead[part.node] = _read(part, source)
    return Layers(tuple(found.values()), _reading(plan, instead))


def _read(part: Candidate, source: Source) -> Select:
    """Return a part, computed from what is stored of it."""
    node = part.node
    scan = Scan(source, tuple(column.name for column in source.columns))
    if isinstance(node, Aggregate):
        having = (node.having,) if node.having is not None else ()
        return Select((Input(GROUP, scan),), having, node.outputs)
    outputs = (Output(name, column(name, GROUP)) for name in node.output_names)
    return Select((Input(GROUP, scan),), (), tuple(outputs))


def _reading(plan: IncrementalPlan, instead: Mapping[Query, Query]) -> IncrementalPlan:
    """Return the plan with some nodes replaced by others."""
    if not instead:
        return plan
    known: dict[Node, Node] = {}
    for old, read in instead.items():
        known[old] = read

    def new(node: Node) -> Node:
        if node not in known:
            known[node] = with_children(node, [new(child) for child in children(node)])
        return known[node]

    columns = {new(node): found for node, found in plan.columns.items()}
    match plan:
        case GroupPlan():
            return replace(plan, aggregate=new(plan.aggregate), columns=columns)  # type: ignore[arg-type]
        case BagPlan():
            body = new(plan.body)
            return replace(plan, body=body, query=now_sql(body), columns=columns)  # type: ignore[arg-type]
