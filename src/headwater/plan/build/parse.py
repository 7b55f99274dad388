"""From the canonical text of a query to operators.

The text comes from `pg_get_viewdef`, so names are resolved, stars expanded and casts explicit; only the
structure is left to read.
"""

from __future__ import annotations

from dataclasses import dataclass

from postgast.pg_query_pb2 import SelectStmt

from headwater.plan.build.aliases import bound_aliases
from headwater.plan.build.prune import pruned
from headwater.plan.build.query import Builder
from headwater.plan.build.relations import Relations, View
from headwater.plan.build.rename import GROUP, renamed
from headwater.plan.build.unsupported import unsupported_constructs
from headwater.plan.errors import Unsupported
from headwater.plan.operators import Query, expressions, scans
from headwater.plan.syntax import ParseError, find, parse, walk

__all__ = ["GROUP", "Parsed", "Relations", "View", "parse_query", "plan_query"]


@dataclass(frozen=True)
class Parsed:
    """The plan of a query, or every reason why there is none."""

    root: Query | None
    reasons: tuple[str, ...] = ()


def parse_query(text: str, columns: tuple[str, ...], relations: Relations) -> Parsed:
    """Return the operators of a query whose output columns are named `columns`."""
    try:
        return plan_query(parse(text), columns, relations)
    except (ParseError, Unsupported) as error:
        return Parsed(None, (_reason(error),))


def plan_query(query: SelectStmt, columns: tuple[str, ...], relations: Relations) -> Parsed:
    """Return the operators of a query that has been parsed."""
    try:
        reasons = unsupported_constructs(query)
        views = [parse(view.text) for view in relations.views.values()]
        for view in views:
            reasons += [reason for reason in unsupported_constructs(view) if reason not in reasons]
        if any(has_outer_aggregate(each, relations) for each in [query, *views]):
            reasons.append("an aggregate of the query outside in a subquery has no delta rule")
        if reasons:
            return Parsed(None, tuple(reasons))
        root = pruned(renamed(Builder(relations).query(query, {}), columns))
        for scan in scans(root):
            for name in scan.columns:
                if name.startswith("__hw_"):
                    raise Unsupported(f"the name of {scan.source.label}.{name} is one of Headwater's own")
                if not scan.source.column(name).captured:
                    raise Unsupported(
                        f"{scan.source.label}.{name} is a virtual generated column, which triggers do not see"
                    )
        for expression in expressions(root):
            _ = expression.text  # Refuse now what cannot be printed, rather than at a refresh.
        return Parsed(root)
    except (ParseError, Unsupported) as error:
        return Parsed(None, (_reason(error),))
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        # The trees have hundreds of kinds of nodes. A combination that nobody thought of must not keep a
        # query from being recomputed.
        return Parsed(
            None, (f"the SQL parser's tree of it is not understood ({type(error).__name__}: {error})",)
        )


def has_outer_aggregate(query: SelectStmt, relations: Relations) -> bool:
    """Tell whether an aggregate inside a subquery belongs to a query around it.

    In `SELECT (SELECT sum(t.a)) FROM t` it reads nothing of the subquery, so it makes one group of t. In a
    subquery the server writes an alias before each column, unless a join merged it.
    """
    for link in find(query, "sub_link"):
        inside = link.sub_link.subselect.select_stmt
        own = bound_aliases(inside)
        for call in filter(relations.is_aggregate, walk(inside)):
            read = [node.column_ref.fields for node in find(call, "column_ref")]
            if read and all(len(path) > 1 and path[0].string.sval not in own for path in read):
                return True
    return False


def _reason(error: ParseError | Unsupported) -> str:
    if isinstance(error, Unsupported):
        return str(error)
    return f"the SQL parser does not know a construct in it ({error})"
