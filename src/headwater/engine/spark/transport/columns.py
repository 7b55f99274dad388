"""PostgreSQL's columns as Spark's: which type each becomes, and the SQL by which its values travel unchanged.

A value arrives unchanged or not at all. ADBC alone would turn an infinite date into garbage, flatten an array
of arrays and read an unknown type as bytes. So every type that it does not carry exactly goes as text, and an
extra last column names, for each row, a value that Spark cannot represent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

import psycopg
import pyarrow as pa
import pyarrow.compute
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_schema

from headwater.db.connection import INSUFFICIENT_PRIVILEGE, Connection, translated
from headwater.db.scratch import statement
from headwater.engine.spark.transport import tasks
from headwater.errors import (
    ConnectionFailed,
    EngineFailed,
    HeadwaterError,
    InvalidQuery,
    InvalidSetting,
    MissingPrivilege,
    UnsupportedValue,
)
from headwater.plan.quoting import identifier

Infinity = Literal["error", "null", "clamp"]

UNFIT = "__hw_unfit"
"""The number, from 1, of a column whose value in this row Spark cannot represent; else null."""
LARGEST_PRECISION = 38

# Types that ADBC carries as they are, by oid.
NATIVE: dict[int, spark.DataType] = {
    16: spark.BooleanType(),
    17: spark.BinaryType(),
    19: spark.StringType(),  # name
    20: spark.LongType(),
    21: spark.ShortType(),
    23: spark.IntegerType(),
    25: spark.StringType(),  # text
    700: spark.FloatType(),
    701: spark.DoubleType(),
    1042: spark.StringType(),  # char(n), with its blanks
    1043: spark.StringType(),  # varchar
    1082: spark.DateType(),
    1114: spark.TimestampNTZType(),
    1184: spark.TimestampType(),
}
INTEGERS = frozenset({20, 21, 23})
DATE = 1082
TIMESTAMPS = frozenset({1114, 1184})
NUMERIC = 1700
VECTORS = frozenset({22, 30})  # int2vector, oidvector: arrays that count from 0

# The values for infinity when it is clamped: the ends of the ranges that Spark documents.
CLAMPED = {
    DATE: ("date '0001-01-01'", "date '9999-12-31'"),
    1114: ("timestamp '0001-01-01'", "timestamp '9999-12-31 23:59:59.999999'"),
    1184: ("timestamptz '0001-01-01 UTC'", "timestamptz '9999-12-31 23:59:59.999999 UTC'"),
}
# Later ones do not fit into 64 bits of microseconds since 1970.
LAST_TIMESTAMP = "294247-01-01"

# So that text is the same in every session.
SETTINGS = {
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "jit": "off",
}

# Planning a query locks everything that it reads, also through views.
LOCKED_HERE = """
SELECT format('%I.%I', n.nspname, c.relname)
FROM pg_catalog.pg_locks l
JOIN pg_catalog.pg_class c
  ON c.oid = l.relation AND c.relkind IN ('r', 'p', 'v', 'm', 'f') AND NOT c.relispartition
JOIN pg_catalog.pg_namespace n
  ON n.oid = c.relnamespace AND n.nspname NOT IN ('pg_catalog', 'information_schema')
WHERE l.pid = pg_catalog.pg_backend_pid() AND l.locktype = 'relation' AND l.granted
  AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
GROUP BY 1 ORDER BY 1
"""

_DECIMAL = re.compile(r"\s*decimal\s*\(\s*(\d+)\s*,\s*(\d+)\s*\)\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Rules:
    """How the user wants to treat values that Spark cannot represent exactly."""

    numeric: tuple[int, int] | None = None  # decimal(p, s) for numeric without a declared precision
    infinity: Infinity = "error"

    @classmethod
    def parse(cls, numeric: str, infinity: str) -> Rules:
        """Parse the options `numeric` and `infinity`."""
        if infinity not in ("error", "null", "clamp"):
            raise InvalidSetting(
                f"option infinity: there is no {infinity!r}", hint="use error, null or clamp"
            )
        if numeric.strip().lower() == "string":
            return cls(None, infinity)  # type: ignore[arg-type]
        match = _DECIMAL.fullmatch(numeric)
        precision, scale = (int(match[1]), int(match[2])) if match else (0, 0)
        if not 0 <= scale <= precision <= LARGEST_PRECISION or precision < 1:
            raise InvalidSetting(
                f"option numeric: {numeric!r} is not a type for numeric",
                hint="use string, or decimal(p, s) with p up to 38",
            )
        return cls((precision, scale), infinity)  # type: ignore[arg-type]


@dataclass(frozen=True)
class ReadColumn:
    """A column as it is read."""

    name: str
    declared: str  # its type in PostgreSQL, as an error message names it
    oid: int
    spark: spark.DataType
    cast: str = ""  # text or text[], when it cannot travel unchanged
    array: bool = False
    infinity: Infinity | None = None  # how to treat it, for types that have one

    @property
    def sql(self) -> str:
        return identifier(self.name)

    def select(self, alias: str) -> str:
        """Return the expression that travels."""
        reference = f"{alias}.{identifier(self.name)}"
        if self.array:
            reference = f"({reference})[:]"  # counts from 1
        if self.infinity == "null":
            return f"CASE WHEN {self._fits(reference)} THEN {reference} END"
        if self.infinity == "clamp":
            least, greatest = CLAMPED[self.oid]
            return (
                f"CASE WHEN {self._fits(reference)} THEN {reference} WHEN {reference} > {greatest}"
                f" THEN {greatest} WHEN {reference} < {least} THEN {least} END"
            )
        return f"{reference}::{self.cast}" if self.cast else reference

    def unfit(self, alias: str) -> str | None:
        """Return the condition under which a value must not be read, or None if there is none."""
        reference = f"{alias}.{identifier(self.name)}"
        if self.array:
            several = f"array_ndims({reference}) > 1"
            if self.infinity is None:
                return several
            return (
                f"{several} OR EXISTS (SELECT FROM unnest({reference}) AS e(v) WHERE NOT {self._fits('e.v')})"
            )
        if self.infinity == "error":
            return f"NOT ({self._fits(reference)})"
        return None

    def _fits(self, reference: str) -> str:
        if self.oid == DATE:
            return f"isfinite({reference})"
        zone = " UTC" if self.oid == 1184 else ""
        kind = "timestamptz" if self.oid == 1184 else "timestamp"
        return f"({reference} > '-infinity' AND {reference} < {kind} '{LAST_TIMESTAMP}{zone}')"


@dataclass(frozen=True)
class Shape:
    """The columns of a result, in order."""

    columns: tuple[ReadColumn, ...]

    @property
    def spark_schema(self) -> spark.StructType:
        return spark.StructType([spark.StructField(column.name, column.spark) for column in self.columns])

    def select_list(self, alias: str) -> str:
        """Return what to select from a relation of this alias that has these columns."""
        listed = [f"{column.select(alias)} AS {identifier(column.name)}" for column in self.columns]
        conditions = [
            f"WHEN {condition} THEN {number}"
            for number, column in enumerate(self.columns, 1)
            if (condition := column.unfit(alias)) is not None
        ]
        if conditions:
            listed.append(f"CASE {' '.join(conditions)} END AS {UNFIT}")
        return ", ".join(listed)

    def arrived(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return batches of the select list as Spark takes them."""
        schema = to_arrow_schema(self.spark_schema, timezone="UTC")
        for batch in batches:
            if batch.num_columns > len(self.columns):
                self._check(batch.column(len(self.columns)))
            yield pa.RecordBatch.from_arrays(
                [
                    self._converted(column, batch.column(number), schema.field(number).type)
                    for number, column in enumerate(self.columns)
                ],
                schema=schema,
            )

    def _check(self, unfit: pa.Array) -> None:
        if unfit.null_count == len(unfit):
            return
        column = self.columns[pa.compute.min(unfit).as_py() - 1]
        if column.array:
            raise UnsupportedValue(
                f"column {column.name} ({column.declared}) holds an array of several dimensions"
                + (" or with an infinite value" if column.infinity else ""),
                hint=f"read it as text: a query with {identifier(column.name)}::text",
            )
        raise UnsupportedValue(
            f"column {column.name} ({column.declared}) holds an infinite value, and Spark has none",
            hint='option("infinity", "null") reads it as NULL, "clamp" as the first or last day of Spark\'s'
            " calendar",
        )

    def _converted(self, column: ReadColumn, values: pa.Array, wanted: pa.DataType) -> pa.Array:
        if values.type == wanted:
            return values
        try:
            return values.cast(wanted)
        except pa.ArrowInvalid as error:
            raise UnsupportedValue(
                f"column {column.name} ({column.declared}) holds a value that {column.spark.simpleString()}"
                " cannot hold",
                detail=str(error),
                hint=f"read it as text: a query with {identifier(column.name)}::text",
            ) from error


def described(connection: Connection, query: str, rules: Rules) -> tuple[Shape, tuple[str, ...]]:
    """Return the columns of a query's result, and the relations that it reads, without executing it."""
    try:
        with connection.transaction():
            # In binary, for the protocol that takes exactly one statement.
            cursor = connection.execute(statement(f"SELECT * FROM (\n{query}\n) AS q LIMIT 0"), binary=True)
            result = cursor.pgresult
            assert result is not None
            facts = [
                ((result.fname(number) or b"").decode(), result.ftype(number), result.fmod(number))
                for number in range(result.nfields)
            ]
            relations = tuple(row[0] for row in connection.execute(LOCKED_HERE))
    except psycopg.Error as error:
        raise translated(error, "the server refuses the query", InvalidQuery) from error
    if not facts:
        raise InvalidQuery("there are no columns to read", hint="select at least one")
    names = [name for name, _, _ in facts]
    for name in names:
        if names.count(name) > 1:
            raise InvalidQuery(f"two columns are called {name}", hint="give one of them another alias")
    types = _types(connection, [oid for _, oid, _ in facts], [typmod for _, _, typmod in facts])
    shape = Shape(
        tuple(
            _column(name, kind, typmod, rules) for (name, _, typmod), kind in zip(facts, types, strict=True)
        )
    )
    return shape, relations


def check_schema(shape: Shape, schema: spark.StructType) -> None:
    """Raise if a frame's schema is not the one that the server has."""
    found = shape.spark_schema
    if [(item.name, item.dataType) for item in found] != [(item.name, item.dataType) for item in schema]:
        raise InvalidQuery(
            "what is read has other columns than the frame",
            detail=f"{found.simpleString()} instead of {schema.simpleString()}",
            hint="leave the schema to the server, and load the frame again after the table has changed",
        )


@dataclass(frozen=True)
class _Type:
    oid: int
    declared: str
    element: int | None  # the base type of an array's elements


def _types(connection: Connection, oids: Sequence[int], typmods: Sequence[int]) -> list[_Type]:
    """Return what the server says about types; it resolves a domain by itself, but not in an array."""
    rows = connection.execute(
        sql.SQL(
            "WITH RECURSIVE wanted AS ("
            " SELECT w.position, w.type, format_type(w.type, w.typmod) AS declared,"
            " CASE WHEN t.typcategory = 'A' AND t.typlen = -1 THEN t.typelem END AS element"
            " FROM unnest(%s::oid[], %s::int[]) WITH ORDINALITY AS w(type, typmod, position)"
            " JOIN pg_catalog.pg_type t ON t.oid = w.type),"
            " bases AS (SELECT position, element FROM wanted WHERE element IS NOT NULL"
            " UNION ALL SELECT b.position, t.typbasetype FROM bases b"
            " JOIN pg_catalog.pg_type t ON t.oid = b.element AND t.typtype = 'd')"
            " SELECT w.type, w.declared, (SELECT b.element FROM bases b"
            " JOIN pg_catalog.pg_type t ON t.oid = b.element AND t.typtype <> 'd'"
            " WHERE b.position = w.position) FROM wanted w ORDER BY w.position"
        ),
        (list(oids), list(typmods)),
    )
    return [_Type(*row) for row in rows]


def _column(name: str, kind: _Type, typmod: int, rules: Rules) -> ReadColumn:
    array = kind.element is not None and kind.oid not in VECTORS
    oid = kind.element if array and kind.element is not None else kind.oid
    base, cast = _scalar(oid, typmod, rules)
    infinity: Infinity | None = None
    if oid in TIMESTAMPS or oid == DATE:
        infinity = "error" if array else rules.infinity
    return ReadColumn(
        name,
        kind.declared,
        oid,
        spark.ArrayType(base) if array else base,
        cast=f"{cast}[]" if cast and array else cast,
        array=array,
        infinity=infinity,
    )


def _scalar(oid: int, typmod: int, rules: Rules) -> tuple[spark.DataType, str]:
    if oid in NATIVE:
        return NATIVE[oid], ""
    if oid == NUMERIC:
        precision = declared_precision(typmod) if typmod != -1 else rules.numeric
        if precision is not None and precision[0] <= LARGEST_PRECISION:
            return spark.DecimalType(*precision), "text"
    return spark.StringType(), "text"


def declared_precision(typmod: int) -> tuple[int, int]:
    """Return the Spark precision and scale that hold every value of a declared numeric.

    >>> declared_precision((10 << 16 | 2) + 4)
    (10, 2)
    """
    precision = (typmod - 4) >> 16 & 0xFFFF
    scale = (((typmod - 4) & 0x7FF) ^ 0x400) - 0x400
    # numeric(3, -2) rounds to hundreds, numeric(3, 5) has leading zeros after the point.
    return (precision - scale, 0) if scale < 0 else (max(precision, scale), scale)


# What runs in tasks


def access(dsn: str, settings: Mapping[str, str] | None = None) -> tasks.Access:
    """Return how a task connects, and what it must not show."""
    password = conninfo_to_dict(dsn).get("password")
    hidden = (str(password), quote(str(password), safe="")) if password else ()
    return tasks.Access(dsn, tuple({**(settings or {}), **SETTINGS}.items()), hidden)


def rows(cursor: Any, query: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a query, in batches as they come."""
    cursor.adbc_statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": str(tasks.BATCH_BYTES)})
    cursor.execute(query)
    yield from tasks._reader(cursor)


def failure(error: tasks.TaskError) -> HeadwaterError:
    """Translate the failure of a task into one of our errors."""
    code = f" (SQLSTATE {error.sqlstate})" if error.sqlstate else ""
    kind: type[HeadwaterError] = InvalidQuery
    if not error.sqlstate:
        kind = EngineFailed
    elif error.sqlstate.startswith(("08", "57P")):
        kind = ConnectionFailed
    elif error.sqlstate == INSUFFICIENT_PRIVILEGE:
        kind = MissingPrivilege
    return kind(f"reading failed: {error.message}{code}", detail=error.detail, hint=error.hint)
