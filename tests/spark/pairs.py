"""One expression, two engines: over every pair of rows of two tables, in PostgreSQL and on Spark.

An error is a result like any other here, so that one pair that cannot be computed does not hide the rest: in
PostgreSQL each expression is a function that catches its errors, on Spark it is wrapped in what try_add and
its kin are made of.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Context, Decimal
from typing import TYPE_CHECKING, Any

from pyspark.sql.classic.column import Column as ClassicColumn

from headwater.db.connection import Connection, one, transaction
from headwater.db.scratch import statement
from headwater.definition.reader import Definition, DefinitionReader
from headwater.definition.types import expression_types
from headwater.engine.spark.runtime.workload import bulk_work, small_work
from headwater.engine.spark.translate import Leaf, Translator
from headwater.engine.spark.transport import encoding, read
from headwater.engine.spark.transport.encoding import Encoded, Refused
from headwater.plan.operators import ColumnType, Select
from headwater.plan.quoting import identifier
from headwater.plan.storage_plan import BagPlan

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame, SparkSession

    from headwater.plan.expression import Expression

MODES: dict[str, Callable[..., contextlib.AbstractContextManager[None]]] = {
    "small": small_work,
    "bulk": bulk_work,
}
SHARED = "spark.sql.subexpressionElimination.enabled"
FAILED = "(it failed)"
DIGITS = Context(prec=1000)
_COLUMN = re.compile(r"\b[ab]\.\w+")
_numbers = itertools.count()

Pair = tuple[int, int]


@dataclass(frozen=True)
class Outcome:
    """What an expression gave for a pair: of a numeric the number and how many digits it shows."""

    text: str | None = None
    scale: int | None = None
    failed: bool = False

    def __str__(self) -> str:
        if self.failed:
            return "an error"
        return f"{self.text}" if self.scale is None else f"{self.text} with {self.scale} digits"


@dataclass
class Compared:
    """What the engines made of an expression."""

    expression: str
    refusal: str | None = None
    agreed: int = 0  # on a value
    nulls: int = 0  # agreed on
    failed: int = 0  # in both
    spared: int = 0  # failed in PostgreSQL only, beside a NULL: Spark then does not look at the rest
    spark_failed: set[Pair] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)

    def settle(self, mode: str, pair: Pair, wanted: Outcome, found: Outcome, *, has_null: bool) -> None:
        if found.failed and not wanted.failed:
            self.spark_failed.add(pair)
        elif wanted.failed and not found.failed and has_null:
            self.spared += 1
        elif found != wanted:
            self.wrong.append(f"{mode} {pair}: PostgreSQL gives {wanted}, Spark {found}")
        elif found.failed:
            self.failed += 1
        elif found.text is None:
            self.nulls += 1
        else:
            self.agreed += 1


class Pairs:
    """Two tables, which expressions call `a` and `b`; their column `row` numbers their rows."""

    def __init__(self, connection: Connection, spark: SparkSession, left: str, right: str) -> None:
        self._connection = connection
        self._spark = spark
        self._tables = (left, right)

    def compare(self, expressions: Sequence[str], modes: Sequence[str] = tuple(MODES)) -> list[Compared]:
        """Every expression over every pair, in PostgreSQL once and on Spark in each mode."""
        compared = [Compared(expression) for expression in expressions]
        translator, kinds = self.translator(expressions)
        columns: dict[int, str] = {}
        for number, output in enumerate(translator._block.outputs):
            try:
                columns[number] = _translated(translator, output.expression, kinds[number])
            except Refused as refused:
                compared[number].refusal = str(refused)
        wanted = self._in_postgres({number: (expressions[number], kinds[number]) for number in columns})
        nulls = [self._nulls(table) for table in self._tables]
        for mode in modes:
            for pair, results in self._on_spark(translator, columns, kinds, mode).items():
                absent = {
                    f"{side}.{name}"
                    for side, row, found in zip("ab", pair, nulls, strict=True)
                    for name in found[row]
                }
                for number, result in results.items():
                    has_null = not absent.isdisjoint(_COLUMN.findall(expressions[number]))
                    compared[number].settle(mode, pair, wanted[pair][number], result, has_null=has_null)
        return compared

    def _nulls(self, table: str) -> dict[int, list[str]]:
        """For each row the columns that are NULL."""
        query = (
            "SELECT __t.row, array(SELECT j.key FROM json_each(row_to_json(__t)) AS j"
            f" WHERE j.value::text = 'null') FROM {table} AS __t"
        )
        return dict(self._connection.execute(statement(query)).fetchall())

    def translator(self, expressions: Sequence[str]) -> tuple[Translator, list[ColumnType]]:
        """A translator of a block whose outputs are the expressions as the server understands them."""
        listed = ", ".join(f"({text}) AS e{number}" for number, text in enumerate(expressions))
        left, right = self._tables
        definition = define(self._connection, f"SELECT {listed} FROM {left} AS a, {right} AS b")
        assert isinstance(definition.plan, BagPlan), definition.reasons
        assert isinstance(definition.plan.body, Select)
        kinds = [column.type for column in definition.columns]
        return Translator(definition.plan.body, self._types_of), kinds

    def _types_of(self, block: Select, trees: Sequence[Expression]) -> list[ColumnType]:
        with transaction(self._connection):
            return expression_types(self._connection, block, trees)

    def _in_postgres(
        self, expressions: Mapping[int, tuple[str, ColumnType]]
    ) -> dict[Pair, dict[int, Outcome]]:
        left, right = self._tables
        with transaction(self._connection):
            for number, (text, _) in expressions.items():
                # concat shows a value as its output function does, blanks at the end included.
                function = (
                    f"CREATE OR REPLACE FUNCTION pg_temp.e{number}(a {left}, b {right}) RETURNS text"
                    f" LANGUAGE plpgsql AS $$BEGIN"
                    f" RETURN CASE WHEN ({text}) IS DISTINCT FROM NULL THEN concat(({text})) END;"
                    f" EXCEPTION WHEN data_exception OR check_violation THEN RETURN '{FAILED}'; END$$"
                )
                self._connection.execute(statement(function))
            calls = "".join(f", pg_temp.e{number}(__a, __b)" for number in expressions)
            query = f'SELECT __a."row", __b."row"{calls} FROM {left} AS __a, {right} AS __b'
            rows = self._connection.execute(statement(query)).fetchall()
        return {
            (row[0], row[1]): {
                number: Outcome(failed=True) if text == FAILED else _outcome(text, None, kind)
                for (number, (_, kind)), text in zip(expressions.items(), row[2:], strict=True)
            }
            for row in rows
        }

    def _on_spark(
        self, translator: Translator, columns: Mapping[int, str], kinds: Sequence[ColumnType], mode: str
    ) -> dict[Pair, dict[int, Outcome]]:
        frames, rows = [], []
        for leaf, table in zip(translator.leaves.values(), self._tables, strict=True):
            rows.append(leaf.column(Encoded(f'({identifier(leaf.alias)}."row")::bigint', "bigint")))
            frames.append(frame_of(self._connection, self._spark, leaf, table))
        tried = attempted(self._spark, {f"e{number}": sql for number, sql in columns.items()})
        with MODES[mode](self._spark), set_to(self._spark, SHARED, "false"):
            # What several expressions share would be computed outside of what catches its errors.
            joined = frames[0].crossJoin(frames[1]).selectExpr(f"{rows[0]} AS l", f"{rows[1]} AS r", "*")
            data = joined.select("l", "r", *tried).toArrow()
        return {
            (row["l"], row["r"]): {
                number: Outcome(failed=True) if got is None else _outcome(got[0], got[1], kinds[number])
                for number in columns
                for got in [row[f"e{number}"]]
            }
            for row in data.to_pylist()
        }


def define(connection: Connection, query: str) -> Definition:
    """A query as a stream table's definition would be read."""
    name = f"edge.v{next(_numbers)}"
    with transaction(connection):
        connection.execute(statement(f"CREATE VIEW {name} AS {query}"))
        return DefinitionReader(connection).read(int(one(connection, "SELECT %s::regclass::oid", (name,))[0]))


def frame_of(connection: Connection, spark: SparkSession, leaf: Leaf, table: str) -> DataFrame:
    """What PostgreSQL reads of a table for an input, under that input's alias."""
    source = f"{table} AS {identifier(leaf.alias)}"
    data = read.fetch(connection, f"SELECT {leaf.select_list} FROM {source}", leaf.columns)
    return spark.createDataFrame(data).alias(leaf.alias)


def attempted(spark: SparkSession, expressions: Mapping[str, str]) -> list[SparkColumn]:
    """Named expressions, each NULL where it fails."""
    jvm: Any = spark._jvm
    parser = spark._jsparkSession.sessionState().sqlParser()
    caught = jvm.org.apache.spark.sql.catalyst.expressions.TryEval
    column = jvm.org.apache.spark.sql.classic.ExpressionUtils.column
    return [
        ClassicColumn(column(caught(parser.parseExpression(expression)))).alias(name)
        for name, expression in expressions.items()
    ]


@contextlib.contextmanager
def set_to(spark: SparkSession, name: str, value: str) -> Any:
    """A setting of the session, for a while."""
    before = str(spark.conf.get(name))
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.set(name, before)


def _translated(translator: Translator, tree: Expression, kind: ColumnType) -> str:
    """Spark SQL for an expression's text and, of a computed numeric, the digits that it shows."""
    scale = "NULL"
    try:
        if kind.base == "boolean":
            text = translator.condition(tree)
        elif kind.numeric:
            number = translator.number(tree)
            text, scale = number.sql, number.shown_scale
        else:
            text = translator.carried(tree, kind, encoding.value)
    except Refused as refused:
        try:
            text = translator.carried(tree, kind, encoding.value)
        except Refused:
            raise refused from None
    return f"array(CAST({text} AS STRING), CAST({scale} AS STRING))"


def _outcome(text: str | None, scale: str | None, kind: ColumnType) -> Outcome:
    if text is None:
        return Outcome()
    if kind.numeric:
        shown = len(text.partition(".")[2]) if scale is None else int(scale)
        return Outcome(str(Decimal(text).normalize(DIGITS)), shown)
    if kind.base == "boolean":
        text = {"t": "true", "f": "false"}.get(text, text)
    return Outcome(text)
