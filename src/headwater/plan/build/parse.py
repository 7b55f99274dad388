"""From the canonical text of a query to operators.

The text comes from `pg_get_viewdef`, so names are resolved, stars expanded and casts explicit; what is left
to do is structure.
"""

from __future__ import annotations

from dataclasses import dataclass

from postgast.pg_query_pb2 import SelectStmt

from headwater.plan.build.prune import pruned
from headwater.plan.build.query import Builder
from headwater.plan.build.rename import GROUP, renamed
from headwater.plan.build.subqueries import Relations, View
from headwater.plan.build.unsupported import unsupported_constructs
from headwater.plan.errors import Unsupported
from headwater.plan.operators import Query, expressions, scans
from headwater.plan.syntax import ParseError, parse

__all__ = ["GROUP", "Parsed", "Relations", "View", "parse_query", "plan_query"]


@dataclass(frozen=True)
class Parsed:
    """The plan of a query, or every reason why there is none."""

    root: Query | None
    reasons: tuple[str, ...] = ()


def parse_query(text: str, columns: tuple[str, ...], relations: Relations) -> Parsed:
    """The operators of a query whose output columns are named `columns`."""
    try:
        return plan_query(parse(text), columns, relations)
    except (ParseError, Unsupported) as error:
        return Parsed(None, (_reason(error),))


def plan_query(query: SelectStmt, columns: tuple[str, ...], relations: Relations) -> Parsed:
    """The operators of a query that has been parsed."""
    try:
        reasons = unsupported_constructs(query)
        for view in relations.views.values():
            reasons += [
                reason for reason in unsupported_constructs(parse(view.text)) if reason not in reasons
            ]
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
            _ = expression.text  # Refuse now what cannot be printed, and not when it is refreshed.
        return Parsed(root)
    except (ParseError, Unsupported) as error:
        return Parsed(None, (_reason(error),))
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        # The trees have hundreds of kinds of nodes. One put together in a way not thought of here must
        # not keep a query from being recomputed.
        return Parsed(
            None, (f"the SQL parser's tree of it is not understood ({type(error).__name__}: {error})",)
        )


def _reason(error: ParseError | Unsupported) -> str:
    if isinstance(error, Unsupported):
        return str(error)
    return f"the SQL parser does not know a construct in it ({error})"
