"""The verbs that measure, but for the service (see `bench_service`)."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from headwater.api import Headwater
from headwater.cli import document, show
from headwater.cli.group import cli
from headwater.cli.invocation import Invocation
from headwater.cli.options import Function, debug_option, format_option, private_dsn_option, spark_options

plot_option = click.option(
    "--plot",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Draw the figures into this file: .svg, .png or .pdf.",
)


@cli.group()
def bench() -> None:
    """Measure Headwater against baselines in the same run.

    On a private PostgreSQL, or in a schema of the database that --dsn names, which is removed again.

    \b
    Example: headwater bench delta --rows 100000 --plot delta.svg
    """


def bench_options(function: Function) -> Function:
    return plot_option(spark_options(private_dsn_option(format_option(debug_option(function)))))


@bench.command("delta")
@click.option("--rows", type=click.IntRange(min=1), multiple=True, help="Rows of the table; may be repeated.")
@click.option(
    "--changes", type=click.IntRange(min=1), multiple=True, help="Rows that change; may be repeated."
)
@click.option("--repetitions", type=click.IntRange(min=1), default=5, show_default=True, help="How often.")
@bench_options
@click.pass_obj
def bench_delta(
    invocation: Invocation,
    rows: tuple[int, ...],
    changes: tuple[int, ...],
    repetitions: int,
    plot: Path | None,
) -> None:
    """Measure deltas in PostgreSQL and on Spark against recomputing.

    \b
    Example: headwater bench delta --rows 1000000 --changes 1 --changes 10000
    """
    from headwater.bench import delta
    from headwater.bench.server import bench_database

    with bench_database(invocation.dsn, invocation.tell) as dsn:
        settings = {**invocation.settings, "max_buffer_rows": str(delta.BUFFER_ROWS)}
        with Headwater(dsn, settings, invocation.tell) as hw:
            hw.init()
            found = list(
                delta.measure(
                    hw,
                    sizes=rows or delta.SIZES,
                    changes=changes or delta.CHANGES,
                    repetitions=repetitions,
                    progress=invocation.tell,
                )
            )
    if plot is not None:
        from headwater.bench.plot import deltas

        deltas(found, plot)
    invocation.present({"figure": "delta", "measurements": found}, show.deltas(found))


@bench.command("capture")
@click.option(
    "--rows", type=click.IntRange(min=1), default=100_000, show_default=True, help="Rows of each table."
)
@click.option(
    "--bulk", type=click.IntRange(min=1), default=10_000, show_default=True, help="Rows written at once."
)
@click.option("--repetitions", type=click.IntRange(min=1), default=15, show_default=True, help="How often.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0),
    default=5,
    show_default=True,
    help="Length of a round of TPC-B; 0 leaves it out.",
)
@plot_option
@private_dsn_option
@format_option
@debug_option
@click.pass_obj
def bench_capture(
    invocation: Invocation, rows: int, bulk: int, repetitions: int, seconds: float, plot: Path | None
) -> None:
    """Measure what capture costs a writer against a bare table.

    Statements of one row and of many, and TPC-B by several clients, on tables with 0, 1 and 5 stream tables.

    \b
    Example: headwater bench capture --plot capture.svg
    """
    from headwater.bench import capture
    from headwater.bench.server import bench_database

    with bench_database(invocation.dsn, invocation.tell, fsync=True) as dsn:
        with Headwater(dsn) as hw:
            hw.init()
            found = capture.measure(
                hw,
                dsn,
                rows=rows,
                bulk=bulk,
                repetitions=repetitions,
                seconds=seconds,
                progress=invocation.tell,
            )
    if plot is not None:
        from headwater.bench.plot import captures

        captures(found, plot)
    invocation.present({"figure": "capture", **document.plain(found)}, show.captures(found))


@bench.command("tpch")
@click.option(
    "--scale",
    type=click.FloatRange(min=0, min_open=True),
    default=0.01,
    show_default=True,
    help="Size of the data; at 1 there are 6,000,000 lineitems.",
)
@click.option(
    "--change",
    type=click.FloatRange(min=0, max=100, min_open=True),
    multiple=True,
    help="Percent of the rows that change; may be repeated.",
)
@click.option("--queries", type=click.IntRange(1, 22), multiple=True, help="A query; may be repeated.")
@click.option("--no-indexes", is_flag=True, help="Leave out the indexes on foreign keys.")
@click.option("--repetitions", type=click.IntRange(min=1), default=3, show_default=True, help="How often.")
@plot_option
@private_dsn_option
@format_option
@debug_option
@click.pass_obj
def bench_tpch(
    invocation: Invocation,
    scale: float,
    change: tuple[float, ...],
    queries: tuple[int, ...],
    no_indexes: bool,
    repetitions: int,
    plot: Path | None,
) -> int:
    """Measure refreshes of TPC-H's queries against recomputing.

    Recomputing is the refresh of a stream table in mode full, and REFRESH MATERIALIZED VIEW, of the same
    query after the same change. The exit code is 1 if a stream table differs from its query.

    \b
    Example: headwater bench tpch --scale 0.1 --change 0.1 --change 1 --queries 1 --queries 3
    """
    from headwater.bench import delta, tpch
    from headwater.bench.server import bench_database

    with bench_database(invocation.dsn, invocation.tell) as dsn:
        settings = {"max_buffer_rows": str(delta.BUFFER_ROWS)}
        with Headwater(dsn) as hw:
            hw.init()
        found = tpch.measure(
            lambda: Headwater(dsn, settings),
            scale=scale,
            percents=sorted(set(change)) or tpch.PERCENTS,
            numbers=sorted(set(queries)) or None,
            repetitions=repetitions,
            indexes=not no_indexes,
            progress=invocation.tell,
        )
    if plot is not None:
        from headwater.bench.plot import tpch as draw

        draw(found, scale, plot)
    means = tpch.means(found)
    invocation.present(
        {"figure": "tpch", "scale": scale, "measurements": found, "means": means}, show.tpch(found, means)
    )
    return int(not all(item.equal for item in found))


def transfer_options(function: Function) -> Function:
    for option in (
        click.option(
            "--repetitions", type=click.IntRange(min=1), default=3, show_default=True, help="How often."
        ),
        click.option("--tasks", type=click.IntRange(min=1), multiple=True, help="Tasks; may be repeated."),
        click.option(
            "--rows", type=click.IntRange(min=1), default=1_000_000, show_default=True, help="How many rows."
        ),
    ):
        function = option(function)
    return function


@bench.command("read")
@transfer_options
@bench_options
@click.pass_obj
def bench_read(
    invocation: Invocation, rows: int, tasks: tuple[int, ...], repetitions: int, plot: Path | None
) -> None:
    """Measure reading into Spark against bare COPY and Spark's JDBC source.

    \b
    Example: headwater bench read --rows 5000000 --spark-conf spark.jars=postgresql.jar
    """
    _transfer(invocation, "read", rows, tasks, repetitions, plot)


@bench.command("write")
@transfer_options
@bench_options
@click.pass_obj
def bench_write(
    invocation: Invocation, rows: int, tasks: tuple[int, ...], repetitions: int, plot: Path | None
) -> None:
    """Measure writing from Spark against bare COPY and Spark's JDBC sink.

    \b
    Example: headwater bench write --spark-conf spark.jars=postgresql.jar --plot write.svg
    """
    _transfer(invocation, "write", rows, tasks, repetitions, plot)


def _transfer(
    invocation: Invocation,
    direction: Literal["read", "write"],
    rows: int,
    tasks: tuple[int, ...],
    repetitions: int,
    plot: Path | None,
) -> None:
    from headwater.bench import transfer
    from headwater.bench.server import bench_database

    counts = sorted(set(tasks)) or transfer.TASKS
    # So many tasks at once, also where there are fewer cores.
    given = {"spark_master": f"local[{max(counts)}]", **invocation.settings}
    with bench_database(invocation.dsn, invocation.tell) as dsn:
        with Headwater(dsn, given, invocation.tell) as hw:
            hw.init()
            found = (transfer.read if direction == "read" else transfer.write)(
                hw, dsn, rows=rows, tasks=counts, repetitions=repetitions, progress=invocation.tell
            )
    if plot is not None:
        from headwater.bench.plot import transfers

        transfers(found.measurements, direction, plot)
    document_ = {"figure": direction, "measurements": found.measurements, "notes": found.notes}
    invocation.present(document_, show.transfers(found))
