"""Whether the result of a query depends on search_path when it is evaluated.

The server resolves the names of a query when its view is made. Two things are still looked up by search_path
each time: the names of catalog objects (regclass and its like) when they are turned into text or read from
it, and the names in the bodies of functions, unless a body was resolved when the function was made (BEGIN
ATOMIC) or the function has a search_path of its own.

Deltas are our SQL, and our SQL never runs under the search_path of a user: anybody who may create a function
in one of its schemas could make ours call it. So a query that depends on the path is recomputed, from the
view itself. A false "independent" would be wrong; a false "dependent" only costs deltas, and the reason says
what to do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import LiteralString

from headwater.db.connection import Connection
from headwater.db.queries import query
from headwater.plan.volatility import FIXED_BY_SETTINGS, Function, closing_brace

CLOCKS_AND_CHANCE = frozenset(
    """
    now transaction_timestamp statement_timestamp clock_timestamp timeofday
    random random_normal gen_random_uuid uuidv4 uuidv7 setseed pg_sleep
    """.split()
)
"""Functions of PostgreSQL's own that are not immutable and look up no names."""

RECORD = 2249
CALLS = ("FUNCEXPR", "OPEXPR", "AGGREF", "WINDOWFUNC")
SPEAKING_OF_NAMES = re.compile(
    r"(?:to_)?reg(?:class|collation|config|database|dictionary|namespace|oper(?:ator)?|proc(?:edure)?|role|type)"
    r"|current_schemas?|search_path"
)

_NODE = re.compile(r"\{(COERCEVIAIO|FUNCEXPR|OPEXPR|AGGREF|WINDOWFUNC|JSON\w+|XMLEXPR) ")
_TYPE = re.compile(r":\w*[tT]ype(?:Id|id)? (\d+)")
_FUNCTION = re.compile(r":(?:funcid|aggfnoid|winfnoid|opfuncid) (\d+)")
_CURRENT_SCHEMA = re.compile(r"\{SQLVALUEFUNCTION :op 14\b")  # a keyword, not a function
_WORD = re.compile(r'(\.\s*)?(?:"((?:[^"]|"")+)"|([^\W\d][\w$]*))')
_QUALIFIED = re.compile(r'(?:"([^"]+)"|([^\W\d][\w$]*))\s*\.\s*(?:"([^"]+)"|([^\W\d][\w$]*))')
_OPERATOR = re.compile(r"[-+*/<>=~!@#%^&|`?]+")
LONGEST_OPERATOR = 6


@dataclass(frozen=True)
class Dependence:
    """What a query looks up by search_path when it is evaluated."""

    reasons: tuple[str, ...] = ()  # why its deltas would differ from it
    possible: bool = False  # whether it must be evaluated under the path of its definer


@dataclass(frozen=True)
class _Body:
    """A function of a user."""

    oid: int
    label: str
    language: str
    source: str
    tree: str | None  # the tree of a body that was resolved when the function was made
    has_path: bool
    types: list[int]  # types of its arguments and its result
    parts: list[int]  # the functions that an aggregate consists of


def dependence(connection: Connection, trees: Sequence[str], functions: Sequence[Function]) -> Dependence:
    """Find what a query, given by its parse trees, looks up by search_path when it is evaluated."""
    bodies = _bodies(connection, [function.oid for function in functions if not function.builtin])
    trees = [*trees, *(body.tree for body in bodies if body.tree is not None and not body.has_path)]
    unbound = [
        body
        for body in bodies
        if body.tree is None and not body.has_path and body.language not in ("c", "internal")
    ]
    reasons = [*_names_as_text(connection, trees), *_unbound_names(connection, unbound)]
    volatile = {function.oid for function in functions if function.volatility != "i"}
    asks = any(
        function.builtin
        and function.oid in volatile
        and function.name not in FIXED_BY_SETTINGS | CLOCKS_AND_CHANCE
        for function in functions
    )
    asks = asks or any(_CURRENT_SCHEMA.search(tree) for tree in trees)
    # A function that is not immutable may construct names in any way.
    follows = asks or any(body.oid in volatile or body.oid not in _oids(functions) for body in unbound)
    return Dependence(tuple(dict.fromkeys(reasons)), bool(reasons) or follows)


def _oids(functions: Iterable[Function]) -> set[int]:
    return {function.oid for function in functions}


def _bodies(connection: Connection, functions: Sequence[int]) -> list[_Body]:
    """Return functions and what they visibly call: aggregates, resolved bodies, qualified names."""
    found: dict[int, _Body] = {}
    wanted = {"functions": sorted(functions), "schemas": list[str](), "names": list[str]()}
    while any(wanted.values()):
        rows = connection.execute(query("definition", "function_bodies"), wanted).fetchall()
        new = [_Body(*row) for row in rows if row[0] not in found]
        found.update({body.oid: body for body in new})
        calls = {oid for body in new for oid in body.parts}
        calls |= {int(oid) for body in new for oid in _FUNCTION.findall(body.tree or "")}
        pairs = {pair for body in new if body.tree is None for pair in _qualified(body.source)}
        wanted = {
            "functions": sorted(calls - found.keys()),
            "schemas": [schema for schema, _ in sorted(pairs)],
            "names": [name for _, name in sorted(pairs)],
        }
        if not new:
            break
    return list(found.values())


def _names_as_text(connection: Connection, trees: Sequence[str]) -> list[str]:
    """Return why the text of catalog objects' names is part of a query."""
    types = {int(oid) for tree in trees for oid in _TYPE.findall(tree)}
    names = {oid: name for oid, name, is_name in _telling_types(connection, types) if is_name}
    if not names:
        return []
    names.setdefault(RECORD, next(iter(names.values())))  # a row of any type
    called = sorted({int(oid) for tree in trees for oid in _FUNCTION.findall(tree)})
    stable = {
        row[0] for row in connection.execute(query("definition", "stable_functions"), {"functions": called})
    }
    found = []
    for tree in trees:
        for node in _NODE.finditer(tree):
            body = tree[node.start() : closing_brace(tree, node.start())]
            function = _FUNCTION.search(body)
            if node[1] in CALLS and (function is None or int(function[1]) not in stable):
                continue
            found += [names[oid] for oid in map(int, _TYPE.findall(body)) if oid in names]
    return [
        f"the text of a {name} depends on search_path, and follows renames" for name in dict.fromkeys(found)
    ]


def _unbound_names(connection: Connection, bodies: Sequence[_Body]) -> list[str]:
    """Return why names in the bodies of functions would mean something else under another search_path."""
    if not bodies:
        return []
    types = {oid for body in bodies for oid in body.types}
    telling = {oid: name for oid, name, _ in _telling_types(connection, types)}
    words = {body.oid: _words(body.source) for body in bodies}
    operators = {body.oid: _operators(body.source) for body in bodies}
    outside = _outside(connection, query("definition", "names_outside"), set().union(*words.values()))
    outside |= _outside(
        connection, query("definition", "operators_outside"), set().union(*operators.values())
    )
    reasons = []
    for body in bodies:
        using = sorted((words[body.oid] | operators[body.oid]) & outside)
        using += [f"operators of {telling[oid]}" for oid in body.types if oid in telling]
        using += sorted(word for word in words[body.oid] if SPEAKING_OF_NAMES.fullmatch(word))
        if body.language != "sql" and "execute" in words[body.oid]:
            using.append("what it executes")
        if using:
            reasons.append(
                f"{body.label} finds {using[0]} by search_path: ALTER FUNCTION … SET search_path spares that"
            )
    return reasons


def _telling_types(connection: Connection, types: Iterable[int]) -> list[tuple[int, str, bool]]:
    """Find types with operators outside pg_catalog, or with names of objects in them (True)."""
    rows = connection.execute(query("definition", "telling_types"), {"types": sorted(types)})
    return [(int(oid), str(name), bool(is_name)) for oid, name, is_name in rows]


def _outside(connection: Connection, asking: LiteralString, names: Iterable[str]) -> set[str]:
    """Return those names that exist outside PostgreSQL's own schemas."""
    return {str(name) for (name,) in connection.execute(asking, {"names": sorted(names)})}


def _words(source: str) -> set[str]:
    """Return the words that may be names without a schema, as written and folded.

    >>> sorted(_words('SELECT "Rate" * shop.price(x) FROM Items i WHERE i.id = 1'))
    ['FROM', 'Items', 'Rate', 'SELECT', 'WHERE', 'from', 'i', 'items', 'rate', 'select', 'shop', 'where', 'x']
    """
    found = set()
    for match in _WORD.finditer(source):
        qualified, quoted, plain = match.groups()
        if qualified is None:
            word = quoted.replace('""', '"') if quoted is not None else plain
            found |= {word, word.lower()}
    return found


def _operators(source: str) -> set[str]:
    """Return everything in a text that may be an operator, without finding where one ends."""
    return {
        run[start : start + length]
        for run in _OPERATOR.findall(source)
        for start in range(len(run))
        for length in range(1, LONGEST_OPERATOR + 1)
    }


def _qualified(source: str) -> set[tuple[str, str]]:
    """Return the names with a schema, as far as one can tell.

    >>> sorted(_qualified('SELECT shop.price(x), "Shop"."Price"(x)'))
    [('Shop', 'Price'), ('shop', 'price')]
    """
    return {
        (quoted_schema or schema.lower(), quoted_name or name.lower())
        for quoted_schema, schema, quoted_name, name in _QUALIFIED.findall(source)
    }
