"""Spark computes what PostgreSQL would, or refuses, or fails: over the edge values of every type.

Refused is what is listed here as refused, and Spark fails only on values that it cannot hold; a translation
that always fails, or a comparison that compares nothing, fails these tests.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from tests.spark import expressions, values
from tests.spark.pairs import Compared, Pairs

from headwater.db.connection import Connection, connect
from headwater.db.scratch import statement
from headwater.definition.relations import read_source
from headwater.engine.spark.transport import encoding, read, write
from headwater.engine.spark.transport.wire import Column
from headwater.plan.quoting import identifier

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COMPARISONS = ("=", "<>", "<", "<=", ">", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM")
FEW = ("=", "<", "IS NOT DISTINCT FROM")
TIME_ZONES = ("UTC", "Europe/Berlin", "America/St_Johns", "Africa/Monrovia", "Asia/Tokyo")

# Columns with values that Spark cannot hold.
FAR = frozenset({"far", "far2", "far60", "d20", "decimal", "amount"})
# Columns whose order, or even equality, is PostgreSQL's own.
WITHOUT_KEY = frozenset(
    "zoned mac8 bit bits jsonb ints texts list codes pair couple pairs range numbers moments ranges money"
    " vector search oids span_field t_loose v_loose".split()
)
WITHOUT_ORDER = WITHOUT_KEY | frozenset(
    "name sign inet cidr mac mood shouted lsn xid8 t_icu t_loose v_loose".split()
)
SORTED_BY_DATABASE = frozenset({"t_db", "v_db", "c_db", "code"})
# Types that have no equality.
INCOMPARABLE = frozenset("json xml point box path polygon circle line jsonpath snapshot".split())

# Few random expressions take as long as many in one go.
EXPRESSIONS_AT_ONCE = 30
EXAMPLES = max(2, settings().max_examples // 12)


@pytest.fixture
def own(dsn: str) -> Iterator[Connection]:
    """A connection as a refresh has it, to a database with the types."""
    with connect(dsn) as connection:
        values.make_types(connection)
        yield connection


def check(
    compared: Sequence[Compared], *, refused: Collection[str] = (), may_fail: Collection[str] = ()
) -> None:
    """Nothing is wrong, exactly these are refused, and only these fail where PostgreSQL does not."""
    assert [f"{each.expression}: {wrong}" for each in compared for wrong in each.wrong] == []
    assert {each.expression for each in compared if each.refusal is not None} == set(refused)
    failed = {each.expression for each in compared if each.spark_failed}
    assert failed <= set(may_fail)
    assert [each.expression for each in compared if each.refusal is None and not each.agreed] == []


# Values


def test_values_come_back_as_they_went(own: Connection, spark: SparkSession) -> None:
    edges = {**values.NUMBERS, **values.available(own, values.OTHERS), **values.WORDS}
    source = read_source(own, values.make_table(own, "every", edges))
    assert source is not None
    columns = [(f"e.{identifier(column.name)}", column.type) for column in source.columns]
    encoded = [encoding.value(reference, kind) for reference, kind in columns]
    wire = [Column(f"c{number}", each.kind) for number, each in enumerate(encoded)]
    listed = ", ".join(f"{each.sql} AS {column.name}" for each, column in zip(encoded, wire, strict=True))
    shape = ", ".join(f"{column.name} {column.kind}" for column in wire)
    same = ", ".join(
        f"record_image_eq(ROW({reference}), ROW({encoding.decoded(f'r.{column.name}', kind)}))"
        for (reference, kind), column in zip(columns, wire, strict=True)
    )
    for zone in TIME_ZONES:
        own.execute(statement(f"SET TimeZone = '{zone}'"))
        data = read.fetch(own, f"SELECT {listed} FROM edge.every AS e", wire)
        back = spark.createDataFrame(data).toArrow()
        own.execute(statement(f"CREATE TEMP TABLE back ({shape})"))
        write.put(own, "pg_temp.back", back, wire)
        joined = f"SELECT {same} FROM edge.every AS e JOIN pg_temp.back AS r ON r.c0 = e.row"
        rows = own.execute(statement(joined)).fetchall()
        own.execute("DROP TABLE pg_temp.back")
        assert len(rows) == data.num_rows > 40
        changed = [number for row in rows for number, kept in enumerate(row) if not kept]
        assert not {source.columns[number].name for number in changed}, zone


# Comparisons


def test_numbers_compare_alike(own: Connection, spark: SparkSession) -> None:
    values.make_table(own, "numbers", values.NUMBERS)
    mixed = ("i2", "i8", "n", "d2", "d4", "d18", "d0", "amount", "f4", "f8")
    sides: list[tuple[str, str, tuple[str, ...]]]
    sides = [(x, x, FEW) for x in values.NUMBERS]
    sides += [(x, x, COMPARISONS) for x in ("i8", "n", "f8")]
    sides += [(x, y, ("=", "<")) for x, y in itertools.combinations(mixed, 2)]
    sides += [("far", "n", FEW), ("d2", "far60", FEW), ("far2", "d4", FEW), ("d4", "d2", COMPARISONS)]
    written = {f"a.{x} {sign} b.{y}": (x, y) for x, y, signs in sides for sign in signs}
    may_fail = {text for text, names in written.items() if FAR.intersection(names)}
    compared = Pairs(own, spark, "edge.numbers", "edge.numbers").compare(list(written))
    check(compared, may_fail=may_fail)
    # Equality is that of texts, which hold every number.
    assert not [each for each in compared if each.spark_failed and "<" not in each.expression]


def test_values_of_other_types_compare_alike(own: Connection, spark: SparkSession) -> None:
    edges = values.available(own, values.OTHERS)
    values.make_table(own, "others", edges)
    names = [name for name in edges if name not in INCOMPARABLE]
    compare_each(own, Pairs(own, spark, "edge.others", "edge.others"), names)


def test_texts_compare_alike(own: Connection, spark: SparkSession) -> None:
    edges = dict(values.WORDS)
    if values.has_icu(own):
        own.execute(values.ICU_COLLATIONS)
        edges |= values.ICU
    values.make_table(own, "words", edges)
    compare_each(own, Pairs(own, spark, "edge.words", "edge.words"), list(edges))


def compare_each(connection: Connection, pairs: Pairs, names: Sequence[str]) -> None:
    unsorted = WITHOUT_ORDER | (SORTED_BY_DATABASE if not values.sorts_by_bytes(connection) else frozenset())
    signs = {name: COMPARISONS if name in ("t_c", "day", "span", "truth") else FEW for name in names}
    written = {f'a."{name}" {sign} b."{name}"': (name, sign) for name in names for sign in signs[name]}
    refused = {
        text
        for text, (name, sign) in written.items()
        if name in (unsorted if sign in ("<", "<=", ">", ">=") else WITHOUT_KEY)
    }
    check(pairs.compare(list(written)), refused=refused)


# Operators


def test_arithmetic_is_exact(own: Connection, spark: SparkSession) -> None:
    values.make_table(own, "numbers", values.NUMBERS)
    pairs = Pairs(own, spark, "edge.numbers", "edge.numbers")
    written = [*expressions.INTEGERS, *expressions.NUMERICS, *expressions.OVERFLOWING]
    compared = pairs.compare([*written, *expressions.REFUSED])
    check(compared, refused=expressions.REFUSED, may_fail=expressions.OVERFLOWING)
    integers = [each for each in compared if each.expression in expressions.INTEGERS]
    # Where PostgreSQL raises an error, so does Spark; some of these overflow and divide by zero.
    assert sum(each.failed for each in integers) > 100
    overflowing = [each for each in compared if each.expression in expressions.OVERFLOWING]
    assert all(each.spark_failed for each in overflowing)


def test_logic_has_three_values(own: Connection, spark: SparkSession) -> None:
    values.make_table(own, "truths", {name: values.OTHERS[name] for name in ("truth", "flag")})
    check(Pairs(own, spark, "edge.truths", "edge.truths").compare(expressions.LOGIC))


def test_choices_and_concatenations_keep_their_values(own: Connection, spark: SparkSession) -> None:
    edges = {**values.NUMBERS, **values.available(own, values.OTHERS)}
    values.make_table(own, "mixed", {name: edges[name] for name in expressions.CHOSEN})
    pairs = Pairs(own, spark, "edge.mixed", "edge.mixed")
    check(
        pairs.compare([*expressions.CHOICES, *expressions.REFUSED_CHOICES]),
        refused=expressions.REFUSED_CHOICES,
        may_fail=expressions.CHOICES_OF_FAR,
    )


@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_random_expressions_are_exact(own: Connection, spark: SparkSession, data: st.DataObject) -> None:
    if own.execute("SELECT to_regclass('edge.tame')").fetchone() == (None,):
        values.make_table(own, "tame", values.TAME)
    drawn = data.draw(
        st.lists(
            expressions.ANY,
            min_size=EXPRESSIONS_AT_ONCE,
            max_size=EXPRESSIONS_AT_ONCE,
            unique=True,
        )
    )
    for text in drawn:
        note(text)
    compared = Pairs(own, spark, "edge.tame", "edge.tame").compare(drawn)
    assert [f"{each.expression}: {wrong}" for each in compared for wrong in each.wrong] == []
    # Numerics of the table are small; only products of several leave what Spark can hold.
    assert [each.expression for each in compared if each.spark_failed and "*" not in each.expression] == []
    assert sum(each.agreed for each in compared) > 500
