"""From the canonical text of a query to operators.

The text comes from `pg_get_viewdef`, so names are resolved, stars expanded and casts explicit; what is left
to do is structure.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot.errors import ParseError

from headwater.plan.build import Builder
from headwater.plan.dialect import parse
from headwater.plan.operators import Query, Unsupported, scans
from headwater.plan.prune import pruned
from headwater.plan.rename import GROUP, renamed
from headwater.plan.subqueries import Relations, View
from headwater.plan.unsupported import unsupported_constructs

__all__ = ["GROUP", "Parsed", "Relations", "View", "parse_query"]


@dataclass(frozen=True)
class Parsed:
    """The plan of a query, or every reason why there is none."""

    root: Query | None
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
        root = pruned(renamed(Builder(relations).query(tree, {}), columns))
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
