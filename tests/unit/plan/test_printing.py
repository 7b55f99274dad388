"""Printing keeps the meaning of expressions that were put into each other.

`fixtures/forms.sql` has forms with the columns x, y and z, for which other forms are substituted in two ways:
in the tree, as the planner does it, and in the text, each in parentheses. What the tree prints must mean what
the text means, or be refused. A crash of libpg_query would end the process; `pytest -v` shows the seed.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import pytest
from postgast import pg_query_pb2 as pg
from postgast.pg_query_pb2 import Node
from tests.unit.plan.world import FIXTURES

from headwater.plan.errors import Unsupported
from headwater.plan.expression import ColumnRef, Expression
from headwater.plan.syntax import kind_of, parse, rewritten

SEEDS = [int(os.environ["HEADWATER_SEED"])] if os.environ.get("HEADWATER_SEED") else list(range(8))
TRIES = 100

FORMS = (FIXTURES / "forms.sql").read_text(encoding="utf-8").splitlines()
ATOMS = [form for form in FORMS if not re.search(r"\b[xyz]\b", form)]
COMPOUND = [form for form in FORMS if form not in ATOMS]

# What no text says as an operand: an array or a single value that a subquery yields, for ANY ((SELECT …)) and
# IN ((SELECT …)) take its rows; a pattern of SIMILAR TO with an operator in it; xmlroot with a version; IS
# JSON before WITH UNIQUE. The server's own texts have none of them.
REFUSED = re.compile(r"SIMILAR TO|xmlroot|IN \(y\)|(ANY|ALL) \(y\)|JSON\(x WITH UNIQUE\)")


@dataclass(frozen=True)
class Sample:
    """An expression, made in two ways, and the forms that it is made of."""

    tree: Expression
    text: str
    forms: tuple[str, ...]


@cache
def parsed(form: str) -> Expression:
    return Expression(parse(f"SELECT {form}").target_list[0].res_target.val)


@cache
def one_of_each_kind() -> dict[str, str]:
    """A form for each kind of node and, of operators and calls, for each way to write one."""
    found = {}
    for form in FORMS:
        node = parsed(form).node
        kind = kind_of(node)
        detail = {"a_expr": node.a_expr.kind, "func_call": node.func_call.funcformat}.get(kind, 0)
        found[f"{kind} {detail}"] = form
    return found


def sample(chance: random.Random, depth: int) -> Sample:
    if not depth or chance.random() < 0.15:
        atom = chance.choice(ATOMS)
        return Sample(parsed(atom), atom, (atom,))
    return substituted(chance.choice(COMPOUND), {name: sample(chance, depth - 1) for name in "xyz"})


def substituted(form: str, inner: Mapping[str, Sample]) -> Sample:
    """A form with others in place of its columns."""

    def replacement(found: ColumnRef) -> Expression | None:
        return inner[found.name].tree if not found.alias and found.name in inner else None

    places = "|".join(inner)
    text = re.sub(rf"\b({places})\b", lambda match: f"({inner[match[0]].text})", form)
    used = [item for name in inner if re.search(rf"\b{name}\b", form) for item in inner[name].forms]
    return Sample(parsed(form).mapped(replacement), text, (form, *used))


def same(one: str, other: str) -> bool:
    """Whether two texts mean the same; a AND (b AND c) means a AND b AND c."""
    return bool(rewritten(parse(f"SELECT {one}"), flat) == rewritten(parse(f"SELECT {other}"), flat))


def flat(node: Node) -> Node | None:
    if kind_of(node) != "bool_expr" or node.bool_expr.boolop == pg.NOT_EXPR:
        return None
    made = pg.BoolExpr(boolop=node.bool_expr.boolop)
    for item in node.bool_expr.args:
        part = rewritten(item, flat)
        same = kind_of(part) == "bool_expr" and part.bool_expr.boolop == made.boolop
        made.args.extend(part.bool_expr.args if same else [part])
    return Node(bool_expr=made)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_printed_means_what_was_put_together(seed: int) -> None:
    print(f"HEADWATER_SEED={seed}")
    chance = random.Random(seed)
    for _ in range(TRIES):
        found = sample(chance, 3)
        try:
            printed = found.tree.text
        except Unsupported:
            assert any(REFUSED.search(form) for form in found.forms), found.text
        else:
            assert same(printed, found.text), (printed, found.text)


@pytest.mark.parametrize("form", COMPOUND)
def test_each_form_takes_every_kind_of_operand(form: str) -> None:
    for operand in one_of_each_kind().values():
        found = substituted(form, {"x": Sample(parsed(operand), operand, (operand,))})
        try:
            printed = found.tree.text
        except Unsupported:
            assert any(REFUSED.search(item) for item in found.forms), found.text
        else:
            assert same(printed, found.text), (printed, found.text)
