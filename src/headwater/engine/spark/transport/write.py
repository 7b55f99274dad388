"""From Spark into PostgreSQL: through the driver for few rows, by tasks for many."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from headwater.db.connection import Connection
from headwater.db.scratch import statement
from headwater.engine.spark.failures import failure
from headwater.engine.spark.transport import tasks as remote
from headwater.engine.spark.transport.copying import copied
from headwater.engine.spark.transport.read import access, arrow_schema, spark_schema
from headwater.engine.spark.transport.wire import Column

_ROWS_AT_ONCE = 1 << 16
# In this order: what one escape adds must not be escaped again.
_ESCAPES = (("\\", r"\\"), ("\t", r"\t"), ("\n", r"\n"), ("\r", r"\r"))
_TAB, _NEWLINE, _NOTHING = (pa.scalar(text, pa.large_string()) for text in ("\t", "\n", ""))
_SPECIAL = r"[\\\t\n\r]"


def put(connection: Connection, table: str, data: pa.Table, columns: Sequence[Column]) -> int:
    """Copy a table through the connection, in its transaction; return how many rows.

    In COPY's text format: in CSV, servers before 18 take \\. on a line of its own for the end of the data,
    also within quotes.
    """
    if data.num_rows == 0:
        return 0
    names = sql.SQL(", ").join(sql.Identifier(column.name) for column in columns)
    copy_in = sql.SQL("COPY {table} ({names}) FROM STDIN (FORMAT text, ENCODING 'UTF8')")
    with connection.cursor() as cursor:
        with cursor.copy(copy_in.format(table=statement(table), names=names)) as copy:
            for chunk in copy_text(data.cast(arrow_schema(columns))):
                copy.write(chunk)
        return cursor.rowcount


def copy_text(data: pa.Table) -> Iterator[memoryview]:
    """Yield rows as COPY's text format writes them, without a loop over values.

    >>> table = pa.table({"a": pa.array([1, None]), "b": pa.array(["x\\ty", ""])})
    >>> [bytes(chunk) for chunk in copy_text(table)]
    [b'1\\tx\\\\ty\\n\\\\N\\t\\n']
    """
    for batch in data.to_batches(max_chunksize=_ROWS_AT_ONCE):
        if not batch.num_rows:
            continue
        texts = [_escaped(column) for column in batch.columns]
        # The same kernel adds line ends: it joins a line and nothing.
        lines = pc.binary_join_element_wise(*texts, _TAB, null_handling="replace", null_replacement=r"\N")
        lines = pc.binary_join_element_wise(lines, _NOTHING, _NEWLINE)
        _, offsets, content = lines.buffers()
        first, last = _ends(offsets, lines)
        yield memoryview(content)[first:last]


def _ends(offsets: pa.Buffer, lines: pa.Array) -> tuple[int, int]:
    places = pa.Array.from_buffers(pa.int64(), len(lines) + 1, [None, offsets], offset=lines.offset)
    return places[0].as_py(), places[-1].as_py()


def _escaped(column: pa.Array) -> pa.Array:
    # 64-bit offsets, because the lines of a batch together may be long.
    text = column.cast(pa.large_string())
    if pa.types.is_integer(column.type) or not pc.any(pc.match_substring_regex(text, _SPECIAL)).as_py():
        return text
    for sign, replacement in _ESCAPES:
        text = pc.replace_substring(text, sign, replacement)
    return text


def write_by_tasks(
    frame: DataFrame,
    dsn: str,
    *,
    job: int,
    part: str,
    columns: Sequence[Column],
    settings: Mapping[str, str],
    table: str,
    finish: str | None,
) -> int:
    """Store a frame's rows, each partition by its task, exactly once; return how many rows there are.

    Without `finish` the rows go into the table as they are; otherwise it is a SELECT over pg_temp.hw_part
    whose rows go there.
    """
    wanted = spark_schema(columns)
    if [field.dataType for field in frame.schema.fields] != [field.dataType for field in wanted.fields]:
        raise ValueError(f"the frame has {frame.schema.simpleString()}, not {wanted.simpleString()}")
    schema, name = split_name(table)
    target = remote.Target(
        job=job,
        part=part,
        schema=schema,
        table=name,
        names=tuple(column.name for column in columns),
        kinds=tuple(column.kind for column in columns),
        finish=finish,
    )
    try:
        counts = frame.mapInArrow(remote.writing(access(dsn, settings), target), "rows bigint").collect()
    except (PySparkException, Py4JError) as error:
        told = failure(error, "the rows cannot be written")
        if told is None:
            raise
        # Without the cause: Spark's text of it is a traceback of the task.
        raise told from None
    return sum(row["rows"] for row in counts)


def pipe(source: Connection, source_sql: str, target: Connection, target_table: str) -> int:
    """Copy the rows of a query on one connection into a table on another; return how many."""
    copy_out = sql.SQL("COPY ({}) TO STDOUT (FORMAT binary)").format(statement(source_sql))
    copy_in = sql.SQL("COPY {} FROM STDIN (FORMAT binary)").format(statement(target_table))
    with target.cursor() as cursor:
        with cursor.copy(copy_in) as copy:
            for rows in copied(source, copy_out):
                copy.write(b"".join(rows))
        return cursor.rowcount


def split_name(table: str) -> tuple[str, str]:
    """Return the schema and the name of a table in SQL; no schema is the empty text.

    >>> split_name('"head""water".job_1'), split_name('"a.b"')
    (('head"water', 'job_1'), ('', 'a.b'))
    """
    parts = [""]
    inside = False
    for position, sign in enumerate(table):
        if sign == '"':
            # A doubled quote within quotes is one quote of the name.
            if not inside and position and table[position - 1] == '"':
                parts[-1] += sign
            inside = not inside
        elif sign == "." and not inside:
            parts.append("")
        else:
            parts[-1] += sign
    if len(parts) > 2 or not all(parts):
        raise ValueError(f"{table} is no name of a table")
    return ("", parts[0]) if len(parts) == 1 else (parts[0], parts[1])
