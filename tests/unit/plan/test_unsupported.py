"""Constructs without a delta rule are data: each has a query that shows it, and its reason."""

from __future__ import annotations

import pytest
from sqlglot import exp

from headwater.plan.dialect import parse
from headwater.plan.unsupported import UNSUPPORTED, unsupported_constructs

# For each kind of node a query that has one, and the reason that a user reads.
SHOWN: dict[type[exp.Expression], tuple[str, str]] = {
    exp.Join: ("SELECT 1 FROM a LEFT JOIN b ON true", "LEFT JOIN has no delta rule yet"),
    exp.Distinct: ("SELECT DISTINCT ON (a.x) a.y FROM a", "DISTINCT ON has no delta rule yet"),
    exp.Group: ("SELECT 1 FROM a GROUP BY ROLLUP (a.x)", "ROLLUP has no delta rule yet"),
    exp.With: ("WITH RECURSIVE w AS (SELECT 1) SELECT 1 FROM w", "WITH RECURSIVE has no delta rule"),
    exp.GroupingSets: ("SELECT 1 FROM a GROUP BY GROUPING SETS (())", "GROUPING SETS has no delta rule yet"),
    exp.Rollup: ("SELECT 1 FROM a GROUP BY a.y, ROLLUP (a.x)", "ROLLUP has no delta rule yet"),
    exp.Cube: ("SELECT 1 FROM a GROUP BY CUBE (a.x)", "CUBE has no delta rule yet"),
    exp.Intersect: ("SELECT 1 INTERSECT ALL SELECT 2", "INTERSECT has no delta rule yet"),
    exp.Except: ("SELECT 1 EXCEPT SELECT 2", "EXCEPT has no delta rule yet"),
    exp.Window: ("SELECT rank() OVER (ORDER BY a.x) FROM a", "a window function has no delta rule yet"),
    exp.Limit: ("SELECT 1 FROM a LIMIT 1", "LIMIT has no delta rule yet"),
    exp.Fetch: ("SELECT 1 FROM a FETCH FIRST 1 ROWS WITH TIES", "FETCH FIRST has no delta rule yet"),
    exp.Offset: ("SELECT 1 FROM a OFFSET 1", "OFFSET has no delta rule yet"),
    exp.Lateral: ("SELECT 1 FROM a, LATERAL (SELECT a.x) s", "LATERAL has no delta rule yet"),
    exp.Lock: (
        "SELECT 1 FROM a FOR SHARE",
        "FOR UPDATE or FOR SHARE locks rows of a source, which a refresh must not do",
    ),
    exp.TableSample: ("SELECT 1 FROM a TABLESAMPLE system (10)", "TABLESAMPLE gives other rows each time"),
}
SUBQUERY = "a subquery inside an expression has no delta rule yet"


def reasons(text: str) -> list[str]:
    return unsupported_constructs(parse(text))


@pytest.mark.parametrize("node", SHOWN, ids=lambda node: node.__name__)
def test_reason(node: type[exp.Expression]) -> None:
    text, reason = SHOWN[node]
    assert any(type(found) is node for found in parse(text).walk())
    assert reasons(text) == [reason]


def test_every_construct_is_shown() -> None:
    assert SHOWN.keys() == UNSUPPORTED.keys()


@pytest.mark.parametrize(
    "text",
    [
        "SELECT a.x FROM a JOIN b ON a.x = b.x CROSS JOIN c",
        "SELECT DISTINCT a.x FROM a",
        "SELECT count(DISTINCT a.x) FROM a GROUP BY a.y HAVING count(*) > 1",
        "WITH w AS (SELECT 1 AS x) SELECT w.x FROM w",
        "SELECT s.x FROM (SELECT a.x FROM a) s",
        "SELECT s.x FROM ((SELECT a.x FROM a) UNION ALL (SELECT b.x FROM b)) s",
        "(SELECT a.x FROM a) UNION ((SELECT b.x FROM b) UNION ALL SELECT 1)",
        "SELECT s.x FROM a JOIN (SELECT b.x FROM b) s ON true",
        "VALUES (1), (2)",
        "SELECT a.x FROM a ORDER BY a.x",
        "SELECT string_agg(a.x, ',' ORDER BY a.y) FROM a",
    ],
)
def test_what_has_a_rule_has_no_reason(text: str) -> None:
    assert reasons(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "SELECT (SELECT 1) AS x FROM a",
        "SELECT a.x FROM a WHERE a.x IN (SELECT b.x FROM b)",
        "SELECT a.x FROM a WHERE EXISTS (SELECT b.x FROM b)",
        "SELECT a.x FROM a WHERE a.x = ANY (SELECT b.x FROM b)",
        "SELECT ARRAY(SELECT b.x FROM b) AS x FROM a",
        "SELECT a.x FROM a WHERE a.x > ((SELECT 1 UNION ALL SELECT 2))",
        "SELECT a.x FROM a JOIN b ON a.x = (SELECT 1)",
        "SELECT sum((SELECT 1)) FROM a",
        "SELECT s.x FROM (SELECT (SELECT 1) AS x FROM a) s",
        "SELECT a.x FROM a GROUP BY a.x HAVING count(*) > (SELECT 1)",
        "VALUES ((SELECT 1))",
    ],
)
def test_a_subquery_in_an_expression(text: str) -> None:
    assert reasons(text) == [SUBQUERY]


@pytest.mark.parametrize("side", ["LEFT", "RIGHT", "FULL"])
def test_an_outer_join_is_named(side: str) -> None:
    assert reasons(f"SELECT 1 FROM a {side} JOIN b ON true") == [f"{side} JOIN has no delta rule yet"]


def test_a_reason_is_told_once() -> None:
    assert reasons("SELECT 1 FROM a LEFT JOIN b ON true LEFT JOIN c ON true") == [
        "LEFT JOIN has no delta rule yet"
    ]


def test_every_reason_is_told() -> None:
    text = "SELECT 1 FROM a LEFT JOIN b ON true WHERE EXISTS (SELECT 1) LIMIT 1"
    assert sorted(reasons(text)) == [
        "LEFT JOIN has no delta rule yet",
        "LIMIT has no delta rule yet",
        SUBQUERY,
    ]
