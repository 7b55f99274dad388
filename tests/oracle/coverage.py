"""docs/coverage.md: what becomes of each construct, in the words of explain and errors, and at which cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from headwater.inspect.explain import Operator

PAGE = Path(__file__).parents[2] / "docs" / "coverage.md"
HEAD = """<!-- Made by: pytest tests/oracle/test_constructs.py --accept-coverage -->

# Coverage

What is incremental, how, and at which cost. Each line is a test that passed: the stream table was created
from the query, random changes were made, and after each refresh it was equal to its query. The columns
"maintained" and "reason" are what `headwater explain` says of it.

The tables are `a (id, x, t, arr, j)`, `b (id, aid, y, t)` and `c (id, bid, z)`, which have a primary key, and
`k (v, w)`, which has none; `c` is partitioned. Constructs can be nested in each other; the cost is then that
of the dearest, unless Headwater [keeps the inner result](concepts.md#kept-inner-results): then a group inside
costs the change, and what has no key reads the kept rows.
"""
UNTOLD = ("scan", "values")
"""Operators that every query has, or that never change."""

# Cheapest first: the class, what a refresh reads for it, and which rules are of it.
COSTS = (
    (
        "change",
        "the changed rows and what they are joined with, by indexes",
        ("captured change rows", "never changes", "linear: ", "bilinear: ", "algebraic: "),
    ),
    (
        "change, at times a group",
        "as above, and all rows of a group whose least or greatest value went",
        ("algebraic: deltas are added to stored state; a group",),
    ),
    (
        "rows that may find the change",
        "the rows that the conditions of the join or subquery lead to",
        ("linear in its rows; a change of a lookup affects the rows that may find it",),
    ),
    ("affected groups", "all rows of each group in which a row changed", ("keyed: the affected groups",)),
    (
        "affected keys",
        "all rows of each partition, or all equal rows, in which one changed",
        ("keyed: what has the affected keys",),
    ),
    (
        "all rows",
        "all rows when what is looked up changed, else the changed ones",
        ("linear in its rows; a change of a lookup affects all rows",),
    ),
    ("whole input", "everything, when anything of it changed; only the difference is written", ("global: ",)),
)


@dataclass
class Coverage:
    """What the tests found, by kind of construct; None where a test did not come to its end."""

    incremental: dict[str, list[str]] | None = None
    rules: dict[str, dict[str, None]] = field(default_factory=dict)  # with the operators that follow them
    recomputed: list[str] | None = None
    refused: list[str] | None = None

    def note_rules(self, operators: Iterable[Operator]) -> None:
        for operator in operators:
            if operator.name not in UNTOLD:
                self.rules.setdefault(operator.rule, {})[operator.name] = None

    @property
    def is_complete(self) -> bool:
        return None not in (self.incremental, self.recomputed, self.refused)

    def page(self) -> str:
        """The whole page."""
        assert self.incremental is not None
        parts = [HEAD, _costs()]
        for kind, lines in self.incremental.items():
            parts.append(f"## {kind}\n\n{_table(('construct', 'query', 'maintained', 'cost'), lines)}")
        parts.append(
            "## Recomputed and compared\n\nThe query runs in full, and the rows that differ are written.\n\n"
            + _table(("construct", "query", "reason"), self.recomputed or [])
        )
        parts.append("## Refused\n\n" + _table(("construct", "query", "error"), self.refused or []))
        listed = "\n".join(f"- {rule} ({', '.join(names)})" for rule, names in self.rules.items())
        parts.append(f"## The rules\n\nAs `explain` words them; see [concepts](concepts.md).\n\n{listed}\n")
        return "\n".join(parts)


def incremental_line(title: str, query: str, operators: Iterable[Operator]) -> str:
    """A line for a construct that is maintained by deltas."""
    every = list(operators)
    told = [operator for operator in every if operator.name not in UNTOLD]
    maintained = dict.fromkeys(f"{operator.name}: {_brief(operator.rule)}" for operator in told)
    return line(title, code(query), ", ".join(maintained) or "linear", _cost(every))


def line(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def code(query: str) -> str:
    return f"`{query}`"


def _brief(rule: str) -> str:
    """The first words of a rule, which name it."""
    return rule.partition(":")[0].partition(";")[0]


def _cost(operators: list[Operator]) -> str:
    """The dearest class among those of the operators; each rule has one."""
    return COSTS[max(_rank(operator.rule) for operator in operators)][0]


def _rank(rule: str) -> int:
    """The place of a rule's class in the costs; the longest beginning is the most exact."""
    found = [
        (len(start), number)
        for number, (_, _, starts) in enumerate(COSTS)
        for start in starts
        if rule.startswith(start)
    ]
    assert found, f"no class of cost has the rule {rule!r}"
    return max(found)[1]


def _costs() -> str:
    return _table(("cost", "what a refresh reads"), [line(name, meaning) for name, meaning, _ in COSTS])


def _table(columns: tuple[str, ...], lines: list[str]) -> str:
    return "\n".join([line(*columns), "|" + "---|" * len(columns), *lines]) + "\n"
