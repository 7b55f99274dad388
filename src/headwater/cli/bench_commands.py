"""The parameters of the verbs that measure; `verb` says where the rest is."""

from __future__ import annotations

from inspect import cleandoc
from typing import Any

import click

from headwater.cli.options import DEBUG, FORMAT, PLOT, PRIVATE_DSN, SPARK, flag, number
from headwater.cli.verb import Verb

PARTS = ("scale", "graphs", "latency", "workers")
"""The parts of the measurements of the service."""


class _Numbers(click.ParamType[tuple[float, ...]]):
    """Numbers above 0, separated by commas."""

    name = "N,…"

    def __init__(self, kind: type[int] | type[float]) -> None:
        self._kind = kind

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        if isinstance(value, tuple):
            return value
        try:
            numbers = tuple(self._kind(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is not a list of numbers such as 1,5", param, ctx)
        if min(numbers) <= 0:
            self.fail(f"{value!r} has a number that is not above 0", param, ctx)
        return numbers


def _several(name: str, help: str) -> click.Option:
    """Declare an option that is a whole number above 0 and may be repeated."""
    return click.Option([name], type=click.IntRange(min=1), multiple=True, help=help)


OUTPUT = (PRIVATE_DSN, FORMAT, DEBUG)
TRANSFER = (
    number("--rows", 1_000_000, "How many rows."),
    _several("--tasks", "Tasks; may be repeated."),
    number("--repetitions", 3, "How often."),
    PLOT,
    *SPARK,
    *OUTPUT,
)

COMMANDS = (
    Verb(
        "delta",
        "bench:delta",
        """Measure deltas in PostgreSQL and on Spark against recomputing.

        \b
        Example: headwater bench delta --rows 1000000 --changes 1 --changes 10000
        """,
        _several("--rows", "Rows of the table; may be repeated."),
        _several("--changes", "Rows that change; may be repeated."),
        number("--repetitions", 5, "How often."),
        PLOT,
        *SPARK,
        *OUTPUT,
    ),
    Verb(
        "capture",
        "bench:capture",
        """Measure what capture costs a writer against a bare table.

        Statements of one row and of many, and TPC-B by several clients, on tables with 0, 1 and 5 stream
        tables.

        \b
        Example: headwater bench capture --plot capture.svg
        """,
        number("--rows", 100_000, "Rows of each table."),
        number("--bulk", 10_000, "Rows written at once."),
        number("--repetitions", 15, "How often."),
        click.Option(
            ["--seconds"],
            type=click.FloatRange(min=0),
            default=5,
            show_default=True,
            help="Length of a round of TPC-B; 0 leaves it out.",
        ),
        PLOT,
        *OUTPUT,
    ),
    Verb(
        "tpch",
        "bench:tpch",
        """Measure refreshes of TPC-H's queries against recomputing.

        Recomputing is the refresh of a stream table in mode full, and REFRESH MATERIALIZED VIEW, of the same
        query after the same change. The exit code is 1 if a stream table differs from its query.

        \b
        Example: headwater bench tpch --scale 0.1 --change 0.1 --change 1 --queries 1 --queries 3
        """,
        click.Option(
            ["--scale"],
            type=click.FloatRange(min=0, min_open=True),
            default=0.01,
            show_default=True,
            help="Size of the data; at 1 there are 6,000,000 lineitems.",
        ),
        click.Option(
            ["--change"],
            type=click.FloatRange(min=0, max=100, min_open=True),
            multiple=True,
            help="Percent of the rows that change; may be repeated.",
        ),
        click.Option(
            ["--queries"], type=click.IntRange(1, 22), multiple=True, help="A query; may be repeated."
        ),
        flag("--no-indexes", "Leave out the indexes on foreign keys."),
        number("--repetitions", 3, "How often."),
        PLOT,
        *OUTPUT,
    ),
    Verb(
        "read",
        "bench:read",
        """Measure reading into Spark against bare COPY and Spark's JDBC source.

        \b
        Example: headwater bench read --rows 5000000 --spark-conf spark.jars=postgresql.jar
        """,
        *TRANSFER,
    ),
    Verb(
        "write",
        "bench:write",
        """Measure writing from Spark against bare COPY and Spark's JDBC sink.

        \b
        Example: headwater bench write --spark-conf spark.jars=postgresql.jar --plot write.svg
        """,
        *TRANSFER,
    ),
    Verb(
        "service",
        "bench_service:bench_service",
        """Measure the service: many stream tables, graphs, latency, workers.

        Creating thousands of stream tables takes most of the time; with --keep the next run finds them. The
        exit code is 1 if a stream table differs from its query in the end.

        \b
        Example: headwater bench service --stream-tables 200,1000 --workers 2,4 --plot service.png
        """,
        click.Option(
            ["--stream-tables"],
            type=_Numbers(int),
            help="Stream tables in one database; 1000,5000 unless told.",
        ),
        click.Option(
            ["--changed"],
            type=_Numbers(float),
            help="Percent of their sources that change; 0.2,1,5 unless told.",
        ),
        click.Option(["--seconds"], type=click.FloatRange(min=1), help="Of rest; 30 unless told."),
        click.Option(["--depths"], type=_Numbers(int), help="Of chains; 10,50 unless told."),
        click.Option(
            ["--samples"],
            type=click.IntRange(min=1),
            help="From commit to visible, this often; 200 unless told.",
        ),
        click.Option(["--workers"], type=_Numbers(int), help="Sizes of the pool; 4,8,16 unless told."),
        click.Option(
            ["--only", "parts"],
            type=click.Choice(PARTS),
            multiple=True,
            help="Only this part; may be repeated.",
        ),
        flag("--short", "Few stream tables, once each: whether it works, not how fast."),
        flag("--keep", "Leave the many stream tables in the database of --dsn."),
        PLOT,
        *OUTPUT,
    ),
    Verb(
        "refresh",
        "bench:refresh",
        """Measure refreshes of one changed row against a MERGE written by hand.

        From the commit of the change until the result is visible; with round trips and CPU time, and for
        chains of stream tables that read each other.

        \b
        Example: headwater bench refresh --changes 500
        """,
        number("--changes", 300, "Changes for each case."),
        *OUTPUT,
    ),
    Verb(
        "start",
        "bench:start",
        """Measure the start of the program against importing what it cannot do without.

        The CPU time of a process, user and system, on average; the baselines are processes that only import
        click, or click and psycopg, and take their turns with the others.

        \b
        Example: headwater bench start --repetitions 50
        """,
        number("--repetitions", 20, "How often."),
        *OUTPUT,
    ),
)

MEASURING = (
    click.Group(
        "bench",
        help=cleandoc(
            """Measure Headwater against baselines in the same run.

            On a private PostgreSQL, or in a schema of the database that --dsn names, which is removed again.

            \b
            Example: headwater bench delta --rows 100000 --plot delta.svg
            """
        ),
        commands={str(command.name): command for command in COMMANDS},
    ),
)
