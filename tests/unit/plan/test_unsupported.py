"""Constructs without a delta rule are data: each has a query that shows it, and its reason."""

from __future__ import annotations

import pytest
from postgast import pg_query_pb2 as pg

from headwater.plan.build.unsupported import UNSUPPORTED, unsupported_constructs
from headwater.plan.syntax import parse

LOCKS = "FOR UPDATE or FOR SHARE locks rows of a source, which a refresh must not do"

# For each kind of node a query that has one, and the reason that a user reads.
SHOWN = {
    "with_clause": ("WITH RECURSIVE w AS (SELECT 1) SELECT 1 FROM w", "WITH RECURSIVE has no delta rule"),
    "locking_clause": ("SELECT 1 FROM a FOR SHARE", LOCKS),
    "range_table_sample": (
        "SELECT 1 FROM a TABLESAMPLE system (10)",
        "TABLESAMPLE gives other rows each time",
    ),
}


def reasons(text: str) -> list[str]:
    return unsupported_constructs(parse(text))


@pytest.mark.parametrize("kind", SHOWN)
def test_reason(kind: str) -> None:
    text, reason = SHOWN[kind]
    assert reasons(text) == [reason]


@pytest.mark.parametrize("kind", SHOWN)
@pytest.mark.parametrize(
    "around",
    [
        "SELECT s.x FROM ({}) s",
        "SELECT 1 UNION ALL SELECT s.x FROM ({}) s",
        "SELECT 1 UNION ALL (SELECT 2 UNION ALL ({}))",
        "SELECT 1 WHERE EXISTS ({})",
        "WITH v AS ({}) SELECT 1",
        "SELECT (SELECT 1 UNION ALL ({}))",
    ],
)
def test_reason_wherever_it_stands(kind: str, around: str) -> None:
    text, reason = SHOWN[kind]
    assert reasons(around.format(text)) == [reason]


def test_every_construct_is_shown() -> None:
    assert SHOWN.keys() == UNSUPPORTED.keys()


def test_kinds_are_those_of_the_tree() -> None:
    """A name that is misspelt would never be found."""
    fields = [*pg.Node.DESCRIPTOR.fields, *pg.SelectStmt.DESCRIPTOR.fields]
    assert UNSUPPORTED.keys() <= {field.name for field in fields}


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


def test_a_reason_is_told_once() -> None:
    assert reasons("SELECT 1 FROM a TABLESAMPLE system (1), b TABLESAMPLE system (1)") == [
        "TABLESAMPLE gives other rows each time"
    ]
