"""Names and strings as SQL."""

from __future__ import annotations


def identifier(name: str) -> str:
    '''Write a name as SQL, always quoted.

    >>> print(identifier('a "b"'))
    "a ""b"""
    '''
    return '"' + name.replace('"', '""') + '"'


def literal(value: str) -> str:
    r"""Write a string as SQL.

    >>> print(literal("it's"))
    'it''s'
    >>> print(literal("back\\slash"))
    E'back\\slash'
    """
    quoted = value.replace("'", "''")
    return "E'" + quoted.replace("\\", "\\\\") + "'" if "\\" in value else f"'{quoted}'"
