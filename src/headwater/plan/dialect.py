"""The SQL that `pg_get_viewdef` writes, read and written back without a change.

sqlglot knows PostgreSQL's functions and maps many of them to nodes that mean the same in every dialect,
and writes those under another name: `to_hex(x)` comes back as `HEX(x)`, `mod(a, b)` as `a % b`. Headwater
moves expressions around and never interprets them, so here a function call keeps its name, and an operator
that sqlglot would translate keeps its spelling. What a round trip still changes is found by comparing the
server's own deparsing of both texts (`headwater.definition`), and such a query is not maintained
incrementally.
"""

from __future__ import annotations

from typing import Any

from sqlglot import TokenType, exp, parse_one
from sqlglot.dialects.postgres import Postgres
from sqlglot.generators.postgres import PostgresGenerator
from sqlglot.parsers.postgres import PostgresParser


def _negation(generator: Any, node: exp.Not) -> str:
    """`a !~ b` is parsed as NOT (a ~ b), `a IS NOT TRUE` alike, without the parentheses of a written NOT."""
    inner = node.this
    if isinstance(inner, exp.RegexpILike):
        return str(generator.binary(inner, "!~*"))
    if isinstance(inner, exp.RegexpLike):
        return str(generator.binary(inner, "!~"))
    if isinstance(inner, exp.Is):
        return f"{generator.sql(inner, 'this')} IS NOT {generator.sql(inner, 'expression')}"
    return str(generator.not_sql(node))


def _json_table(parser: Any) -> exp.Expression:
    """JSON_TABLE (…): what it reads is an expression, its paths and columns are kept to the letter."""
    read = parser._parse_bitwise()
    start, depth = parser._curr, 0
    while parser._curr and (depth or parser._curr.token_type != TokenType.R_PAREN):
        depth += {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}.get(parser._curr.token_type, 0)
        if parser._curr.text.upper() == "PASSING":
            parser.raise_error("PASSING")
        parser._advance()
    return exp.JSONTable(this=read, path=exp.Var(this=parser._find_sql(start, parser._prev)))


class PgView(Postgres):
    """PostgreSQL as its own deparser writes it."""

    class Parser(PostgresParser):
        FUNCTIONS = {}  # noqa: RUF012
        FUNCTION_PARSERS = {
            name: parser
            for name, parser in PostgresParser.FUNCTION_PARSERS.items()
            if name not in ("DATE_PART", "STRING_AGG")
        } | {"JSON_TABLE": _json_table}

        def _values_to_select(self, values: Any) -> Any:
            """VALUES stay what they are, also in a set operation."""
            return values

    class Generator(PostgresGenerator):
        MULTI_ARG_DISTINCT = True  # string_agg(DISTINCT a, b) has two arguments, not a row of two
        TRANSFORMS = {  # noqa: RUF012
            **PostgresGenerator.TRANSFORMS,
            exp.Pow: lambda self, node: self.binary(node, "^"),
            exp.Sqrt: lambda self, node: f"|/ {self.sql(node, 'this')}",
            exp.Cbrt: lambda self, node: f"||/ {self.sql(node, 'this')}",
            exp.StartsWith: lambda self, node: self.binary(node, "^@"),
            exp.Parameter: lambda self, node: f"@ {self.sql(node, 'this')}",
            exp.Not: _negation,
            exp.JSONTable: lambda self, node: f"JSON_TABLE({self.sql(node, 'this')}{node.args['path'].name})",
        }


def parse(text: str) -> exp.Expression:
    """The syntax tree of one statement. Raises sqlglot's ParseError."""
    tree = parse_one(text, read=PgView)
    assert isinstance(tree, exp.Expression)
    for column in list(tree.find_all(exp.Column)):
        if isinstance(column.this, exp.Filter):  # an aggregate with a schema and FILTER, taken for a column
            call = exp.Dot(this=column.args["table"], expression=column.this.this)
            column.replace(exp.Filter(this=call, expression=column.this.expression))
    return tree


def json_table_columns(call: exp.JSONTable) -> list[str]:
    """The names of the columns that a JSON_TABLE makes, those of nested ones in their places.

    >>> columns = "a int, NESTED PATH '$' COLUMNS (b numeric(4, 2)), c text"
    >>> tree = parse(f"SELECT FROM JSON_TABLE(j, '$' COLUMNS ({columns})) x")
    >>> json_table_columns(tree.find(exp.JSONTable))
    ['a', 'b', 'c']
    """
    names: list[str] = []
    awaited = [False]  # for each parenthesis that is open, whether it lists columns
    first, nested = False, False
    for token in PgView().tokenize(call.args["path"].name):
        kind, word = token.token_type, token.text.upper()
        if kind == TokenType.L_PAREN:
            awaited.append(nested)
            first, nested = nested, False
        elif kind == TokenType.R_PAREN:
            awaited.pop()
            first = False
        elif kind == TokenType.COMMA:
            first = awaited[-1]
        elif first:
            first = False
            if word != "NESTED" or kind == TokenType.IDENTIFIER:
                names.append(token.text)
        elif word == "COLUMNS" and kind != TokenType.IDENTIFIER:
            nested = True
    return names


def render(tree: exp.Expression) -> str:
    """A tree as SQL text; function names keep their case, for a quoted one may need it."""
    return tree.sql(PgView, normalize_functions=False, comments=False)


def identifier(name: str) -> str:
    '''A name as SQL, always quoted.

    >>> print(identifier('a "b"'))
    "a ""b"""
    '''
    return '"' + name.replace('"', '""') + '"'


def literal(value: str) -> str:
    r"""A string as SQL.

    >>> print(literal("it's"))
    'it''s'
    >>> print(literal("back\\slash"))
    E'back\\slash'
    """
    quoted = value.replace("'", "''")
    return "E'" + quoted.replace("\\", "\\\\") + "'" if "\\" in value else f"'{quoted}'"
