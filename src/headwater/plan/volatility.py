"""Functions whose value is not fixed by their arguments make a query recompute-only, with the reason.

The server has resolved every call: the stored parse tree of a view (`pg_rewrite.ev_action`) names functions
and operators by oid, so nothing here guesses from names. Volatile functions are always refused. Stable ones
are refused too (`now()` differs from refresh to refresh), except those of PostgreSQL's own that are stable
only because they depend on session settings: Headwater pins those, and each stream table keeps the time zone
of its definer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

FIXED_BY_SETTINGS = frozenset(
    """
    date_trunc date_part extract date_bin timezone to_char to_number to_date to_timestamp
    timestamptz_pl_interval timestamptz_mi_interval interval_pl_timestamptz
    timestamptz_pl_interval_at_zone date_add date_subtract
    date timestamp timestamptz time timetz make_timestamptz
    date_cmp_timestamptz date_eq_timestamptz date_ne_timestamptz date_lt_timestamptz date_le_timestamptz
    date_gt_timestamptz date_ge_timestamptz timestamptz_cmp_date timestamptz_eq_date timestamptz_ne_date
    timestamptz_lt_date timestamptz_le_date timestamptz_gt_date timestamptz_ge_date
    timestamp_cmp_timestamptz timestamp_eq_timestamptz timestamp_ne_timestamptz timestamp_lt_timestamptz
    timestamp_le_timestamptz timestamp_gt_timestamptz timestamp_ge_timestamptz timestamptz_cmp_timestamp
    timestamptz_eq_timestamp timestamptz_ne_timestamp timestamptz_lt_timestamp timestamptz_le_timestamp
    timestamptz_gt_timestamp timestamptz_ge_timestamp
    concat concat_ws format textanycat anytextcat array_to_string quote_literal quote_nullable
    to_json to_jsonb row_to_json array_to_json json_build_object json_build_array jsonb_build_object
    jsonb_build_array json_agg jsonb_agg json_object_agg jsonb_object_agg json_agg_strict jsonb_agg_strict
    json_object_agg_strict jsonb_object_agg_strict json_object_agg_unique jsonb_object_agg_unique
    string_agg array_agg
    """.split()
)

# Casts that go through text call the input function of their result type. Those of dates and times accept
# words like 'now', and so does every type that may contain one: ranges, arrays, and any type of a user but an
# enum.
CLOCK_READING_INPUTS = {
    1082: "date",
    1083: "time",
    1114: "timestamp",
    1184: "timestamp with time zone",
    1266: "time with time zone",
    1182: "date[]",
    1183: "time[]",
    1115: "timestamp[]",
    1185: "timestamp with time zone[]",
    1270: "time with time zone[]",
    3908: "tsrange",
    3910: "tstzrange",
    3912: "daterange",
    3909: "tsrange[]",
    3911: "tstzrange[]",
    3913: "daterange[]",
    4533: "tsmultirange",
    4534: "tstzmultirange",
    4535: "datemultirange",
}
FIRST_OWN_OID = 16384

_FUNCTION = re.compile(r":(?:funcid|aggfnoid|winfnoid|opfuncid) (\d+)")
_OPERATOR = re.compile(r":opno (\d+)")
_CALL = re.compile(r":(funcid|aggfnoid|winfnoid|opno) (\d+)")
_IO_CAST = re.compile(r"\{COERCEVIAIO ")
_RESULT_TYPE = re.compile(r":resulttype (\d+) :resultcollid")


@dataclass(frozen=True)
class Function:
    """A function that a query calls, as pg_proc has it."""

    oid: int
    schema: str
    name: str
    volatility: str  # i, s or v
    kind: str  # f, a (aggregate) or w (window)
    builtin: bool
    code: str = ""  # a digest of its body
    returns_set: bool = False


def function_oids(tree: str) -> set[int]:
    return {int(oid) for oid in _FUNCTION.findall(tree)} - {0}


def operator_oids(tree: str) -> set[int]:
    return {int(oid) for oid in _OPERATOR.findall(tree)} - {0}


def calls(tree: str) -> list[tuple[str, int]]:
    """Return every function and operator that a parse tree calls, in its order."""
    return [(name, int(oid)) for name, oid in _CALL.findall(tree)]


def reasons(
    trees: Iterable[str], functions: Iterable[Function], enums: frozenset[int] = frozenset()
) -> list[str]:
    """Return why the value of a query is not fixed by the rows it reads."""
    found = []
    for function in sorted(functions, key=lambda function: function.name):
        label = function.name if function.builtin else f"{function.schema}.{function.name}"
        if function.volatility == "v":
            found.append(f"{label}() is volatile")
        elif function.volatility == "s" and not (function.builtin and function.name in FIXED_BY_SETTINGS):
            found.append(f"{label}() is stable: its value may differ from refresh to refresh")
    for tree in trees:
        if "{SQLVALUEFUNCTION " in tree:
            found.append(
                "CURRENT_DATE, CURRENT_TIMESTAMP, CURRENT_USER and the like differ from refresh to refresh"
            )
        for kind in io_cast_results(tree) - enums:
            if kind in CLOCK_READING_INPUTS or kind >= FIRST_OWN_OID:
                name = CLOCK_READING_INPUTS.get(kind, "a type that may hold times")
                found.append(f"a cast of text to {name} is stable: it takes words like 'now'")
    return list(dict.fromkeys(found))


def io_cast_results(tree: str) -> set[int]:
    """Return the result types of casts that go through text; the cast's own type follows its argument."""
    bodies = (tree[found.start() : closing_brace(tree, found.start())] for found in _IO_CAST.finditer(tree))
    return {int(_RESULT_TYPE.findall(body)[-1]) for body in bodies}


def closing_brace(tree: str, start: int) -> int:
    """Find the end of the node that begins at a brace."""
    depth = 0
    for position in range(start, len(tree)):
        if tree[position] in "{}" and tree[position - 1] != "\\":
            depth += 1 if tree[position] == "{" else -1
            if depth == 0:
                return position
    return len(tree)
