"""Making queries smaller: what is left still fails, and can still be parsed."""

from __future__ import annotations

import postgast
import pytest
from tests.oracle.reduction import Deparser, reduced, smaller

QUERY = (
    "WITH w AS (SELECT a, b FROM t WHERE id > 1) SELECT DISTINCT x.a AS o0, CASE WHEN x.a > 1 THEN"
    " coalesce(x.b, 'x') ELSE y.b END AS o1, ARRAY(SELECT z.id FROM u z WHERE z.a = x.a ORDER BY z.id) AS o2"
    " FROM w AS x LEFT JOIN LATERAL (SELECT * FROM u WHERE u.a = x.a LIMIT 3) AS y ON y.b = x.b AND y.id > 2"
    " WHERE x.a IN (SELECT a FROM v) OR EXISTS (SELECT 1 FROM k UNION ALL SELECT 2 FROM h)"
)


@pytest.mark.parametrize(
    ("needed", "left"),
    [
        ("LATERAL", "LATERAL"),
        ("ORDER BY z.id", "SELECT z.id ORDER BY z.id"),
        ("coalesce", "SELECT COALESCE("),
        ("UNION ALL", "SELECT 1 UNION ALL SELECT 2"),
    ],
)
def test_what_fails_is_kept(needed: str, left: str) -> None:
    found = reduced(QUERY, lambda text: needed.lower() in text.lower(), seconds=60)
    assert needed.lower() in found.lower()
    assert left.lower() in found.lower()
    assert len(found) < len(QUERY) / 3


def test_a_query_that_does_not_fail_is_left_alone() -> None:
    assert reduced(QUERY, lambda text: False, seconds=60) == QUERY


def test_every_smaller_tree_is_a_query() -> None:
    trees = list(smaller(postgast.parse(QUERY)))
    assert len(trees) > 50
    with Deparser() as deparser:
        for tree in trees:
            postgast.parse(deparser.text(tree))


def test_the_deparser_survives_a_tree_that_crashes_it() -> None:
    whole = postgast.parse("SELECT 1 FROM ROWS FROM (f(a)) AS x")
    broken = postgast.parse("SELECT 1 FROM ROWS FROM (f(a)) AS x")
    del broken.stmts[0].stmt.select_stmt.from_clause[0].range_function.functions[0].list.items[:]
    with Deparser() as deparser:
        assert deparser.text(broken) == ""
        assert deparser.text(whole).startswith("SELECT 1 FROM")
