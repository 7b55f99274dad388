"""The states of groups are on Spark what they are in PostgreSQL: of all rows, and of a weighted change."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import pytest
from pyspark.errors import PySparkException
from tests.spark import values
from tests.spark.pairs import MODES, define, set_to

from headwater.db.connection import Connection, connect, transaction
from headwater.db.scratch import Scratch, statement
from headwater.definition.types import expression_types
from headwater.engine.spark.compile import compile_program
from headwater.engine.spark.engine import SparkEngine
from headwater.engine.spark.sizes import source_size
from headwater.engine.spark.steps import Collect, ReadHere, SizeOf
from headwater.engine.spark.transport import read, write
from headwater.plan.aggregates import delta_columns
from headwater.plan.key_filter import HAS_NULL
from headwater.plan.quoting import identifier
from headwater.plan.staged import Staged
from headwater.plan.steps import InPhase, Step, Steps, Tables, drive
from headwater.plan.storage_plan import GroupPlan
from headwater.plan.values import WEIGHT, null_safe_equal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Sums and counts; the products fit what their factors' types allow.
SUMS = (
    "count(*) AS c0, count(a.n) AS c1, sum(a.i2) AS c2, sum(a.i4) AS c3, sum(a.i8) AS c4, sum(a.d2) AS c5,"
    " avg(a.d4) AS c6, sum(a.n) AS c7, avg(a.n) AS c8, sum(a.d2 * b.d4) AS c9, sum(a.n * b.d2) AS c10,"
    " avg(a.n - b.n) AS c11, sum(a.i2 - b.i4::bigint) AS c12, avg(a.tenths) AS c13, avg(a.i8) AS c14,"
    " sum(a.n) FILTER (WHERE a.i2 < b.i4) AS c15, count(b.d2) FILTER (WHERE a.truth AND b.truth) AS c16,"
    " sum(CASE WHEN a.d2 < b.d4 THEN a.d2 ELSE b.n END) AS c17, count(COALESCE(a.t, b.t)) AS c18,"
    " sum(COALESCE(a.d2, b.d2)) AS c19"
)
ORDERED = "i2 i4 i8 n d2 d18 d0 f4 f8 whole v c b label day stamp moment clock span span_domain oid".split()
CAST_BEFORE = (
    "v",
    "label",
    "span_domain",
)  # what is chosen is cast before it is compared, which Spark does not
# Keys whose equality is coarser than their text, and keys that are computed on Spark.
KEYS = (
    "a.n, b.f8",
    "a.span, b.t",
    "CASE WHEN a.i2 < b.i2 THEN a.n ELSE b.n END, COALESCE(a.day, b.day), a.i2 + b.i2 / 7",
    "a.i2 < b.i2, a.t || b.t",
)


Result = TypeVar("Result")
PARTITIONS = "spark.sql.shuffle.partitions"
TABLES = Tables("hw_")
TOO_MUCH = (
    "sum(a.d18)",
    "sum(a.d18)",
    "sum(a.d0 * b.d0 * a.d0)",
    "sum(a.far)",
    "sum(a.far2)",
    "sum(a.far60)",
    "max(a.far)",
    "min(a.far2)",
    "sum(a.decimal * b.i4)",
    "sum(a.i4 * b.i4)",
    "sum(a.i8 - b.i8)",
    "count(*) FILTER (WHERE a.i4 / b.i4 > 0)",
)


class Driver:
    """Takes the steps of Spark's engine, moving rows through the driver in one of the modes."""

    def __init__(self, connection: Connection, spark: SparkSession, mode: str) -> None:
        self._connection = connection
        self._spark = spark
        self._mode = mode
        self._scratch = Scratch(connection)
        self._views = (f"states_{number}" for number in itertools.count())

    def run(self, steps: Steps[Result]) -> Result:
        return drive(steps, self._execute)

    def _execute(self, step: Step) -> object:
        match step:
            case InPhase():
                return self.run(step.steps)
            case SizeOf():
                return source_size(self._connection, step.relation)
            case ReadHere():
                data = read.fetch(self._connection, step.sql, step.columns)
                name = next(self._views)
                self._spark.createDataFrame(data).createOrReplaceTempView(name)
                return name, data.num_rows
            case Collect():
                with MODES[self._mode](self._spark), set_to(self._spark, PARTITIONS, "2"):
                    data = self._spark.sql(step.sql).toArrow()
                write.put(self._connection, step.table, data, step.columns)
                return None
            case _:
                return self._scratch.execute(step)


@pytest.fixture
def own(dsn: str) -> Iterator[Connection]:
    """A connection as a refresh has it, to a database with the types."""
    with connect(dsn) as connection:
        values.make_types(connection)
        yield connection


def plan_of(connection: Connection, query: str) -> GroupPlan:
    definition = define(connection, query)
    assert isinstance(definition.plan, GroupPlan), definition.reasons
    return definition.plan


def engine_of(connection: Connection, plan: GroupPlan) -> SparkEngine:
    return SparkEngine(compile_program(plan, partial(expression_types, connection)))


def compare(connection: Connection, same: str, spark: str, postgres: str) -> None:
    """Each row of one table has its like in the other; there is never more than one of a group."""
    counts = [
        connection.execute(statement(f"SELECT count(*) FROM {table}")).fetchone()
        for table in (spark, postgres)
    ]
    assert counts[0] == counts[1] != (0,)
    query = f"SELECT s.* FROM {spark} AS s WHERE NOT EXISTS (SELECT FROM {postgres} AS p WHERE {same})"
    assert connection.execute(statement(query)).fetchall() == []


def compare_all(
    connection: Connection, spark: SparkSession, plan: GroupPlan, mode: str, *, shown: bool
) -> None:
    """All rows of a query. `shown` compares texts: an extreme may be any of several values that are equal."""
    same = [plan.same_stored("s", "p")]
    for column in plan.outputs:
        if column.name in plan.stored_keys.values():
            continue
        left, right = f"s.{column.sql}", f"p.{column.sql}"
        same.append(
            f"{left}::text IS NOT DISTINCT FROM {right}::text"
            if shown
            else null_safe_equal(left, right, column.type)
        )
    with transaction(connection, rollback=True):
        recompute = engine_of(connection, plan).recompute_all(TABLES, plan, "")
        Driver(connection, spark, mode).run(recompute)
        connection.execute(statement(f"CREATE TEMP TABLE wanted AS {plan.full_sql()}"))
        compare(connection, " AND ".join(same), TABLES.sql("result"), "wanted")


def compare_change(
    connection: Connection, spark: SparkSession, plan: GroupPlan, staged: Staged, mode: str
) -> None:
    """What a weighted change adds to the states."""
    assert plan.algebra is not None
    same = [plan.same_affected("s", "p"), f"s.{HAS_NULL} = p.{HAS_NULL}"]
    for state in plan.algebra.states:
        for name in map(identifier, delta_columns(state)):
            left, right = f"s.{name}", f"p.{name}"
            if state.kind.extreme:
                assert state.type is not None
                same.append(null_safe_equal(left, right, state.type))
            else:
                same.append(f"{left} = {right}")
    with transaction(connection, rollback=True):
        Driver(connection, spark, mode).run(engine_of(connection, plan).state_delta(TABLES, plan, staged))
        connection.execute(statement(f"CREATE TEMP TABLE wanted AS {plan.state_delta_sql(staged)}"))
        compare(connection, " AND ".join(same), TABLES.sql("delta"), "wanted")


def stage(connection: Connection, table: str, oid: int) -> Staged:
    """A change of the table: rows that come, go, come twice, and come and go at once."""
    weights = "(0, 1), (1, -1), (2, 2), (3, 1), (3, -1), (4, -2), (5, 1), (7, -1)"
    query = (
        f"CREATE TABLE edge.change AS SELECT t.*, w.{WEIGHT}::bigint FROM {table} AS t"
        f" JOIN (VALUES {weights}) AS w (number, {WEIGHT}) ON w.number = t.row"
    )
    connection.execute(statement(query))
    return Staged({oid: "edge.change"})


@pytest.mark.parametrize(("key", "mode"), [("", "small"), ("a.i4 % 3", "small"), ("a.i4 % 3", "bulk")])
def test_sums_and_counts(own: Connection, spark: SparkSession, key: str, mode: str) -> None:
    staged = stage(own, "edge.tame", values.make_table(own, "tame", values.TAME))
    grouping = f" GROUP BY {key}" if key else ""
    plan = plan_of(own, f"SELECT {SUMS} FROM edge.tame AS a, edge.tame AS b{grouping}")
    compare_all(own, spark, plan, mode, shown=True)
    compare_change(own, spark, plan, staged, mode)


@pytest.mark.parametrize("mode", MODES)
def test_groups_are_those_of_equal_keys(own: Connection, spark: SparkSession, mode: str) -> None:
    staged = stage(own, "edge.tame", values.make_table(own, "tame", values.TAME))
    for key in KEYS if mode == "small" else KEYS[2:3]:
        query = f"SELECT count(*) AS c0, sum(a.n) AS c1 FROM edge.tame AS a, edge.tame AS b GROUP BY {key}"
        plan = plan_of(own, query)
        compare_all(own, spark, plan, mode, shown=True)
        compare_change(own, spark, plan, staged, mode)


@pytest.mark.parametrize("mode", MODES)
def test_extremes_of_every_order(own: Connection, spark: SparkSession, mode: str) -> None:
    edges = {**values.NUMBERS, **values.OTHERS}
    staged = stage(
        own, "edge.ordered", values.make_table(own, "ordered", {name: edges[name] for name in ORDERED})
    )
    calls = [f'{function}(a."{name}")' for name in ORDERED for function in ("min", "max")]
    if mode == "bulk":  # which compiles them, for longer than it computes
        calls = calls[::4]
    calls += [
        f'max(CASE WHEN a."row" < b."row" THEN a."{name}" ELSE b."{name}" END)'
        for name in ORDERED
        if name not in CAST_BEFORE
    ]
    listed = ", ".join(f"{call} AS c{number}" for number, call in enumerate(calls))
    plan = plan_of(
        own,
        f'SELECT b."row" % 3 AS k, {listed} FROM edge.ordered AS a, edge.ordered AS b GROUP BY b."row" % 3',
    )
    compare_all(own, spark, plan, mode, shown=False)
    compare_change(own, spark, plan, staged, mode)


@pytest.mark.parametrize("mode", MODES)
def test_no_rows(own: Connection, spark: SparkSession, mode: str) -> None:
    values.make_table(own, "tame", values.TAME)
    plan = plan_of(
        own, f"SELECT {SUMS}, min(a.t) AS c20 FROM edge.tame AS a, edge.tame AS b WHERE a.d2 + b.d4 = -99"
    )
    compare_all(own, spark, plan, mode, shown=True)


def test_what_spark_cannot_hold_fails(own: Connection, spark: SparkSession) -> None:
    values.make_table(own, "numbers", values.NUMBERS)
    for call, mode in zip(TOO_MUCH, itertools.cycle(MODES), strict=False):
        plan = plan_of(own, f"SELECT {call} AS c FROM edge.numbers AS a, edge.numbers AS b")
        with transaction(own, rollback=True), pytest.raises(PySparkException) as caught:
            Driver(own, spark, mode).run(engine_of(own, plan).recompute_all(TABLES, plan, ""))
        assert str(caught.value.getSqlState()).startswith("22"), (call, mode)
