"""Volatile calls, found in the server's parse trees."""

from __future__ import annotations

import pytest

from headwater.plan.volatility import (
    FIXED_BY_SETTINGS,
    Function,
    calls,
    function_oids,
    operator_oids,
    reasons,
)

VAR = "{VAR :varno 1 :varattno 2 :vartype 25 :vartypmod -1 :varcollid 100 :location 8}"
CURRENT_DATE = "CURRENT_DATE, CURRENT_TIMESTAMP, CURRENT_USER and the like differ from refresh to refresh"


def function(name: str, volatility: str, *, schema: str = "pg_catalog") -> Function:
    return Function(1, schema, name, volatility, "f", builtin=schema == "pg_catalog")


def via_text(argument: str, kind: int) -> str:
    """A cast that goes through text, as PostgreSQL writes one."""
    return f"{{COERCEVIAIO :arg {argument} :resulttype {kind} :resultcollid 0 :coerceformat 1 :location 8}}"


def relabelled(argument: str, kind: int) -> str:
    return (
        f"{{RELABELTYPE :arg {argument} :resulttype {kind} :resulttypmod -1 :resultcollid 100"
        " :relabelformat 2 :location 8}"
    )


def clock(kind: str) -> str:
    return f"a cast of text to {kind} is stable: it takes words like 'now'"


def test_oids_in_a_tree() -> None:
    tree = (
        "({QUERY :targetList ({TARGETENTRY :expr {FUNCEXPR :funcid 870 :funcresulttype 25 :args ()}}"
        " {AGGREF :aggfnoid 2108 :aggtype 20} {WINDOWFUNC :winfnoid 3100} {OPEXPR :opno 521 :opfuncid 147}"
        " {DISTINCTEXPR :opno 98 :opfuncid 0})})"
    )
    assert function_oids(tree) == {870, 2108, 3100, 147}
    assert operator_oids(tree) == {521, 98}


def test_a_tree_without_calls() -> None:
    assert function_oids(VAR) == operator_oids(VAR) == set()
    assert reasons([VAR], []) == []


@pytest.mark.parametrize(
    ("called", "expected"),
    [
        (function("lower", "i"), []),
        (function("random", "v"), ["random() is volatile"]),
        (function("now", "s"), ["now() is stable: its value may differ from refresh to refresh"]),
        (function("to_char", "s"), []),
        (function("to_char", "v"), ["to_char() is volatile"]),
        (function("pure", "i", schema="app"), []),
        (function("roll", "v", schema="app"), ["app.roll() is volatile"]),
        (
            function("to_char", "s", schema="app"),
            ["app.to_char() is stable: its value may differ from refresh to refresh"],
        ),
    ],
    ids=lambda item: f"{item.schema}.{item.name} {item.volatility}" if isinstance(item, Function) else "",
)
def test_function(called: Function, expected: list[str]) -> None:
    assert reasons([], [called]) == expected


def test_reasons_are_in_the_order_of_names_and_told_once() -> None:
    called = [function("random", "v"), function("now", "s"), function("random", "v")]
    assert reasons([], called) == [
        "now() is stable: its value may differ from refresh to refresh",
        "random() is volatile",
    ]


def test_a_value_function() -> None:
    tree = "{TARGETENTRY :expr {SQLVALUEFUNCTION :op 0 :type 1082 :typmod -1 :location 7}}"
    assert reasons([tree, tree], []) == [CURRENT_DATE]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (1082, "date"),
        (1083, "time"),
        (1114, "timestamp"),
        (1184, "timestamp with time zone"),
        (1266, "time with time zone"),
    ],
)
def test_text_becomes_a_time(kind: int, name: str) -> None:
    assert reasons([f"({{QUERY :targetList ({via_text(VAR, kind)})}})"], []) == [clock(name)]


@pytest.mark.parametrize("kind", [3908, 3910, 3912, 4533, 4534, 4535, 1115, 1182, 1183, 1185, 1270])
def test_text_becomes_a_value_that_holds_times(kind: int) -> None:
    """Ranges, multiranges and arrays of dates and times: '[today,tomorrow)' reads the clock as well."""
    assert reasons([via_text(VAR, kind)], []) != []


def test_text_becomes_a_value_of_a_users_type() -> None:
    own = 16384
    assert reasons([via_text(VAR, own)], []) == [clock("a type that may hold times")]
    assert reasons([via_text(VAR, own)], [], enums=frozenset({own})) == []


def test_calls_are_listed_in_their_order() -> None:
    arguments = "{FUNCEXPR :funcid 870} {AGGREF :aggfnoid 2108} {OPEXPR :opno 96}"
    tree = f"{{OPEXPR :opno 98 :opfuncid 67 :args ({arguments})}}"
    assert calls(tree) == [("opno", 98), ("funcid", 870), ("aggfnoid", 2108), ("opno", 96)]


def test_a_time_becomes_text() -> None:
    assert reasons([via_text(VAR, 25)], []) == []


def test_the_type_of_a_cast_is_its_own_and_not_that_of_a_cast_in_it() -> None:
    integer_of_text_of_date = via_text(via_text(VAR, 25), 23)
    assert reasons([integer_of_text_of_date], []) == []
    assert reasons([via_text(via_text(VAR, 1082), 25)], []) == [clock("date")]
    assert reasons([via_text(via_text(VAR, 25), 1082)], []) == [clock("date")]
    both = reasons([via_text(via_text(VAR, 1114), 1082)], [])
    assert sorted(both) == [clock("date"), clock("timestamp")]


def test_casts_beside_and_inside_each_other() -> None:
    deep = via_text(f"{{FUNCEXPR :funcid 870 :args ({via_text(VAR, 25)} {via_text(VAR, 1083)})}}", 23)
    assert reasons([deep], []) == [clock("time")]


def test_a_relabelling_is_no_cast_through_text() -> None:
    assert reasons([relabelled(VAR, 1082)], []) == []
    assert reasons([via_text(relabelled(VAR, 1082), 25)], []) == []


def test_braces_in_names_do_not_end_a_node() -> None:
    tree = via_text(r"{NAMEDARGEXPR :arg x :name a\}\{b\} :argnumber 0}", 1082) + via_text(VAR, 25)
    assert reasons([tree], []) == [clock("date")]


def test_functions_that_settings_fix_are_known_by_name() -> None:
    assert {"to_char", "date_trunc", "concat", "jsonb_agg"} <= FIXED_BY_SETTINGS
    assert not {"now", "random", "statement_timestamp", "current_setting", "txid_current"} & FIXED_BY_SETTINGS
