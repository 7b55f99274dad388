"""Names as users write them, read the way PostgreSQL reads them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.catalog.stream_tables import split_name
from headwater.errors import InvalidName


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("orders", (None, "orders")),
        ("Orders", (None, "orders")),
        ("_x$1", (None, "_x$1")),
        ("  orders\n", (None, "orders")),
        ("Public.Orders", ("public", "orders")),
        ('"Orders"', (None, "Orders")),
        ('"two words"', (None, "two words")),
        ('"a.b"', (None, "a.b")),
        ('"a.b"."c.d"', ("a.b", "c.d")),
        ('sales."Per Region"', ("sales", "Per Region")),
        ('"Sales".per_region', ("Sales", "per_region")),
        ('"say ""hi"""', (None, 'say "hi"')),
        ('""""', (None, '"')),
        ('""""."."', ('"', ".")),
        ('" "', (None, " ")),
        ("größe", (None, "größe")),
        ("日本.東京", ("日本", "東京")),
        ('"É"', (None, "É")),
        ("a" * 63, (None, "a" * 63)),
        ('"x; DROP TABLE t; --"', (None, "x; DROP TABLE t; --")),
    ],
)
def test_name(name: str, expected: tuple[str | None, str]) -> None:
    assert split_name(name) == expected


@pytest.mark.parametrize(
    "name",
    [
        "",
        "   ",
        ".",
        "a.",
        ".a",
        "a..b",
        "a.b.c",
        '"a"."b"."c"',
        '"a',
        'a"',
        'a"b"',
        '"a"b',
        '"a" "b"',
        '""',
        'a.""',
        "two words",
        "a-b",
        "1a",
        "a;b",
        "a.b; DROP TABLE t",
        "a'b",
        "a--",
        "a(b)",
        "a" * 64,
        "ä" * 32,
        f'"{"ä" * 32}"',
        f"{'a' * 64}.b",
        f'"{"a" * 64}".b',
    ],
)
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(InvalidName) as refused:
        split_name(name)
    assert repr(name) in refused.value.message
    assert "schema.table" in refused.value.hint


signs = st.characters(exclude_categories=["Cs"], exclude_characters="\x00")
identifiers = st.text(signs, min_size=1).filter(lambda name: len(name.encode()) <= 63)


def as_the_server_quotes(name: str) -> str:
    """quote_ident, keywords aside."""
    return name if re.fullmatch("[a-z_][a-z0-9_]*", name) else '"' + name.replace('"', '""') + '"'


plain = st.from_regex("[a-z_][a-z0-9_]{0,20}", fullmatch=True)


@given(st.one_of(identifiers, plain), st.one_of(identifiers, plain))
def test_what_the_server_quotes_comes_back(schema: str, table: str) -> None:
    assert split_name(f"{as_the_server_quotes(schema)}.{as_the_server_quotes(table)}") == (schema, table)
    assert split_name(as_the_server_quotes(table)) == (None, table)


@given(st.text(st.sampled_from("aB1_$.\"' ;-é\n")))
def test_anything_is_a_name_or_refused(text: str) -> None:
    """Never another exception, never an empty or an overlong table."""
    try:
        _, table = split_name(text)
    except InvalidName:
        return
    assert table
    assert len(table.encode()) <= 63


@pytest.mark.parametrize("name", ["É", "STRASSEÄ", "İ"])
def test_letters_beyond_ascii_are_not_folded(name: str) -> None:
    ascii_only = re.sub("[A-Z]", lambda letter: letter.group().lower(), name)
    assert split_name(name) == (None, ascii_only)


@pytest.mark.parametrize("name", ["a€", "²a", "٣"])
def test_signs_beyond_ascii_need_no_quotes(name: str) -> None:
    assert split_name(name) == (None, name)


@pytest.mark.parametrize("name", ["$a", '"".t', '"a\x00b"'])
def test_names_that_cannot_be(name: str) -> None:
    with pytest.raises(InvalidName):
        split_name(name)
