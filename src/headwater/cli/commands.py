"""The verbs. Each reads its arguments, calls the method of the same name and presents what it returns."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeVar, get_args

import click
from rich.console import RenderableType

from headwater.api import Headwater
from headwater.catalog import EngineName, Mode, StreamTable, Tier, TierChoice
from headwater.cli import document, show
from headwater.cli.invocation import DIRECT_VARIABLE, DSN_VARIABLE, Invocation, Misuse
from headwater.cli.watch import follow, overview
from headwater.db.connection import one
from headwater.errors import AlreadyExists, NotFound
from headwater.history import HistoryEntry
from headwater.version import version

Function = TypeVar("Function", bound=Callable[..., Any])

SECTIONS = {
    "Setting up": ("init", "migrate", "repair", "set", "settings", "uninstall", "demo"),
    "Stream tables": ("create", "alter", "drop", "refresh", "cancel", "suspend", "resume", "drain"),
    "Serving": ("serve", "worker"),
    "Measuring": ("bench",),
    "Looking": ("list", "status", "history", "explain", "verify"),
}
STAYS = "what is stored stays"


class Sections(click.Group):
    """A group whose help lists its commands by purpose."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(name, self.commands[name].get_short_help_str(limit=100)) for name in names]
                )


def _remember(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value:
        setattr(ctx.find_object(Invocation), str(parameter.name), value)


def dsn_option(function: Function) -> Function:
    direct = click.option(
        "--direct-dsn",
        metavar="DSN",
        expose_value=False,
        callback=_remember,
        help=f"Past a pooler, to the server itself, for what needs a session; otherwise ${DIRECT_VARIABLE}.",
    )
    return click.option(
        "--dsn",
        metavar="DSN",
        expose_value=False,
        callback=_remember,
        help=f"The database, as postgresql://user@host:5432/dbname; otherwise ${DSN_VARIABLE}.",
    )(direct(function))


def private_dsn_option(function: Function) -> Function:
    return click.option(
        "--dsn",
        metavar="DSN",
        expose_value=False,
        callback=_remember,
        help="A database to use instead of a private one; what is made there is removed again.",
    )(function)


def format_option(function: Function) -> Function:
    # Eager, so that a mistake in another option is reported in the format that was asked for.
    return click.option(
        "--format",
        type=click.Choice(["text", "json"]),
        is_eager=True,
        expose_value=False,
        callback=_remember,
        help="Text for people (the default), or one JSON document.",
    )(function)


def debug_option(function: Function) -> Function:
    return click.option(
        "--debug",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_remember,
        help="Show the traceback of an error.",
    )(function)


def shared_options(function: Function) -> Function:
    return dsn_option(format_option(debug_option(function)))


name_argument = click.argument("name")
mode_option = click.option("--mode", type=click.Choice(get_args(Mode)), help="How it is kept fresh.")
engine_option = click.option("--engine", type=click.Choice(get_args(EngineName)), help="What computes it.")
schedule_option = click.option(
    "--schedule",
    metavar="SCHEDULE",
    help="How fresh it should be: 500ms, 1s, 5m, 1h; a cron expression; calculated, from those who read it.",
)
tier_option = click.option(
    "--tier",
    type=click.Choice(("auto", *get_args(Tier))),
    help="Refresh it as scheduled (hot), half as often (warm), a tenth as often (cold), or never (frozen).",
)
cascade_option = click.option(
    "--cascade", is_flag=True, help="Drop stream tables and consumers that do not fit the new columns."
)


def spark_options(function: Function) -> Function:
    for name, metavar, words in (
        ("--spark-conf", "K=V …", "Settings of Spark, separated by spaces."),
        ("--spark-master", "MASTER", "Where Spark runs: local[*], spark://host:7077, k8s://…, yarn, sc://…"),
    ):
        function = click.option(name, metavar=metavar, expose_value=False, callback=_remember, help=words)(
            function
        )
    return function


@click.group(cls=Sections, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version(), prog_name="headwater", message="%(prog)s %(version)s")
@shared_options
def cli() -> None:
    """Stream tables for PostgreSQL: tables defined by a query and kept fresh incrementally.

    \b
    Example: headwater --dsn postgresql://localhost/shop list
    """


# setting up


@cli.command()
@click.option("--check", is_flag=True, help="Install nothing; list the privileges that are needed.")
@shared_options
@click.pass_obj
def init(invocation: Invocation, check: bool) -> int:
    """Install the catalog in a database.

    With --check nothing is changed: every privilege is listed with the GRANT for those that are missing. The
    exit code is 1 if one is missing that Headwater cannot do without; those on single schemas and tables are
    needed only where these are to be used.

    \b
    Example: headwater init --check
    """
    with invocation.connect() as hw:
        if check:
            found = hw.check()
            missing = any(item.required and not item.ok for item in found)
            invocation.present({"ok": not missing, "checks": found}, show.checks(found))
            return int(missing)
        installed = hw.init()
        database = hw.connection.info.dbname
    said = "installed the catalog" if installed else "the catalog is there already"
    invocation.present(
        {"installed": installed, "database": database},
        show.lines(f"database {database}: {said}", "next: headwater create --help"),
    )
    return 0


@cli.command()
@shared_options
@click.pass_obj
def migrate(invocation: Invocation) -> None:
    """Bring the catalog of an older version up to date.

    \b
    Example: headwater migrate
    """
    with invocation.connect() as hw:
        applied = hw.migrate()
    done = f"applied migrations {', '.join(map(str, applied))}" if applied else "the catalog is up to date"
    invocation.present({"applied": applied}, show.lines(done))


@cli.command()
@shared_options
@click.pass_obj
def repair(invocation: Invocation) -> int:
    """Make stream tables follow their queries again after a restore from a dump.

    Also after DROP … CASCADE took something of theirs along, once that is there again. What is intact is left
    alone; the exit code is 1 if something could not be repaired.

    \b
    Example: headwater repair
    """
    with invocation.connect() as hw:
        found = hw.repair()
    invocation.present({"stream_tables": found}, show.repaired(found))
    return int(any(item.status == "failed" for item in found))


@cli.command("set")
@name_argument
@click.argument("value")
@shared_options
@click.pass_obj
def set_(invocation: Invocation, name: str, value: str) -> None:
    """Store a setting in the database.

    \b
    Example: headwater set max_buffer_rows 500000
    """
    with invocation.connect() as hw:
        hw.set(name, value)
        setting = next(item for item in hw.settings() if item.name == name.removeprefix("headwater."))
    said = [f"stored {setting.name} = {value}"]
    if setting.origin != "table":
        said.append(f"here it is {setting.value}, for the {setting.origin} beats the table")
    invocation.present({**document.plain(setting), "stored": value}, show.lines(*said))


@cli.command()
@shared_options
@click.pass_obj
def settings(invocation: Invocation) -> None:
    """Show every setting, its value and where that comes from.

    \b
    Example: headwater settings
    """
    with invocation.connect() as hw:
        found = hw.settings()
    invocation.present({"settings": found}, show.settings(found))


@cli.command()
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--cascade", is_flag=True, help="Drop views of yours that read stream tables, too.")
@shared_options
@click.pass_obj
def uninstall(invocation: Invocation, yes: bool, cascade: bool) -> None:
    """Remove everything of Headwater from a database.

    Stream tables go with their rows; the tables that they read stay as they are, without triggers. It works
    on what is left of an installation, whatever its version. What is in Headwater's schemas and not of its
    making stays.

    \b
    Example: headwater uninstall --yes
    """
    with invocation.connect() as hw:
        database = hw.connection.info.dbname
        found = hw.installation()
        if found.empty:
            said = f"database {database}: nothing of Headwater is there"
            invocation.present({"database": database, "removed": [], "left": []}, show.lines(said))
            return
        if not yes:
            if invocation.format == "json" or not sys.stdin.isatty():
                raise Misuse("uninstall removes everything of Headwater", "use --yes to say that you mean it")
            click.echo(f"database {database}: {found.summary}")
            click.confirm("Remove all of it?", abort=True)
        removed = hw.uninstall(cascade=cascade)
        left = hw.installation().foreign
    invocation.present(
        {"database": database, "removed": removed, "left": left},
        show.lines(
            *(f"removed {item}" for item in removed),
            *(f"left {item}, which is not Headwater's" for item in left),
            f"database {database}: Headwater is uninstalled",
        ),
    )


@cli.command()
@click.option(
    "--seconds", type=click.FloatRange(min=0, min_open=True), default=60, show_default=True, help="How long."
)
@private_dsn_option
@click.option(
    "--engine",
    type=click.Choice(get_args(EngineName)),
    default="spark",
    show_default=True,
    help="What computes the large stream table; postgres does without Spark.",
)
@debug_option
@click.pass_obj
def demo(invocation: Invocation, seconds: float, engine: EngineName) -> int:
    """Show stream tables at work on a private PostgreSQL and a private Spark.

    It uses a database of yours only if --dsn names it, never the one in the environment.

    \b
    Example: headwater demo --seconds 30
    """
    # Imported here, for it needs what the other verbs do not.
    from headwater.demo import run

    return run(seconds=seconds, dsn=invocation.dsn, console=invocation.console, engine=engine)


@cli.group()
def bench() -> None:
    """Measure Headwater against baselines in the same run.

    On a private PostgreSQL, or in a schema of the database that --dsn names, which is removed again.

    \b
    Example: headwater bench delta --rows 100000 --plot delta.svg
    """


plot_option = click.option(
    "--plot",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Draw the figures into this file: .svg, .png or .pdf.",
)


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

    Recomputing is a full refresh, and REFRESH MATERIALIZED VIEW of the same query. The exit code is 1 if a
    stream table differs from its query.

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


# stream tables


@cli.command()
@name_argument
@click.option("--query", metavar="SQL", help="The defining query.")
@click.option("--file", type=click.File("rb"), help="A file with the query; - for standard input.")
@schedule_option
@mode_option
@engine_option
@tier_option
@click.option("--if-not-exists", is_flag=True, help="Do nothing if there is a stream table of that name.")
@click.option("--or-replace", is_flag=True, help="Give the stream table of that name, if any, this query.")
@cascade_option
@spark_options
@shared_options
@click.pass_obj
def create(
    invocation: Invocation,
    name: str,
    query: str | None,
    file: BinaryIO | None,
    schedule: str | None,
    mode: Mode | None,
    engine: EngineName | None,
    tier: TierChoice | None,
    if_not_exists: bool,
    or_replace: bool,
    cascade: bool,
) -> None:
    """Create a stream table from a query and load it.

    With --or-replace, a stream table of that name gets the query and the options in place: readers see the
    old rows until they see the new ones.

    \b
    Example: headwater create revenue --query "SELECT region, sum(amount) FROM sales GROUP BY region"
    """
    if if_not_exists and or_replace:
        raise Misuse("--if-not-exists and --or-replace exclude each other")
    if cascade and not or_replace:
        raise Misuse("--cascade is for --or-replace")
    text = _query(query, file)

    def attempt(hw: Headwater, lenient: bool) -> StreamTable:
        return hw.create(
            name,
            text,
            schedule=schedule,
            mode=mode or "auto",
            engine=engine or "auto",
            tier=tier or "auto",
            if_not_exists=lenient,
            or_replace=or_replace,
            cascade=cascade,
        )

    with invocation.connect() as hw:
        before = _latest(hw, name) if or_replace else None
        try:
            found, created = attempt(hw, False), True
        except AlreadyExists:
            if not if_not_exists:
                raise
            found, created = attempt(hw, True), False
        indexes = hw.missing_indexes(name)
        did = _did(before, _latest(hw, name)) if created else STAYS
    verb, following = "created" if created else "exists already:", _command("refresh", name)
    said = show.definition(found, verb, following, indexes, did if or_replace else "")
    invocation.present(document.stream_table(found, created=created, indexes=indexes, did=did), said)


def _latest(hw: Headwater, name: str) -> HistoryEntry | None:
    """The latest entry in the history of a stream table, if there is one."""
    with suppress(NotFound):
        return next(iter(hw.history(name, limit=1)), None)
    return None


def _did(before: HistoryEntry | None, after: HistoryEntry | None) -> str:
    """What was done to a stream table, and what went with it."""
    if after is None or (before is not None and before.id == after.id):
        return STAYS
    return after.reason


def _query(query: str | None, file: BinaryIO | None) -> str:
    if (query is None) == (file is None):
        raise Misuse("give the query by one of --query and --file", "--file - reads it from standard input")
    if query is not None:
        return query
    assert file is not None
    try:
        return file.read().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Misuse(f"{file.name}: this is no UTF-8", "save the query as UTF-8") from None


@cli.command()
@name_argument
@click.option("--query", metavar="SQL", help="Another defining query.")
@click.option("--file", type=click.File("rb"), help="A file with the query; - for standard input.")
@schedule_option
@click.option("--no-schedule", is_flag=True, help="Refresh only when asked to.")
@mode_option
@engine_option
@tier_option
@cascade_option
@spark_options
@shared_options
@click.pass_obj
def alter(
    invocation: Invocation,
    name: str,
    query: str | None,
    file: BinaryIO | None,
    schedule: str | None,
    no_schedule: bool,
    mode: Mode | None,
    engine: EngineName | None,
    tier: TierChoice | None,
    cascade: bool,
) -> None:
    """Change the query, schedule, mode, engine or tier of a stream table.

    Another query is put in place: readers see the old rows until they see the new ones.

    \b
    Example: headwater alter revenue --schedule 5s
    """
    text = _query(query, file) if query is not None or file is not None else None
    if schedule is not None and no_schedule:
        raise Misuse("--schedule and --no-schedule exclude each other")
    if not no_schedule and all(given is None for given in (text, schedule, mode, engine, tier)):
        raise Misuse(
            "nothing to change", "give --query, --file, --schedule, --no-schedule, --mode, --engine or --tier"
        )
    if cascade and text is None:
        raise Misuse("--cascade is for --query and --file")
    with invocation.connect() as hw:
        before = _latest(hw, name)
        found = hw.alter(
            name,
            query=text,
            schedule=schedule,
            unscheduled=no_schedule,
            mode=mode,
            engine=engine,
            tier=tier,
            cascade=cascade,
        )
        did = _did(before, _latest(hw, name))
    changed = text is not None or mode is not None
    said = show.definition(found, "altered", _command("refresh", name), did=did if changed else "")
    invocation.present(document.stream_table(found, did=did), said)


@cli.command()
@name_argument
@click.option("--cascade", is_flag=True, help="Drop also what reads it.")
@click.option("--if-exists", is_flag=True, help="Do nothing if there is no stream table of that name.")
@shared_options
@click.pass_obj
def drop(invocation: Invocation, name: str, cascade: bool, if_exists: bool) -> None:
    """Drop a stream table.

    \b
    Example: headwater drop revenue
    """
    dropped: list[str] = []
    with invocation.connect() as hw:
        try:
            dropped = hw.drop(name, cascade=cascade)
        except NotFound:
            if not if_exists:
                raise
    said = [f"dropped {label}" for label in dropped] or [f"there is no stream table {name}"]
    invocation.present({"dropped": dropped}, show.lines(*said))


@cli.command()
@name_argument
@click.option("--full", is_flag=True, help="Recompute it from its query.")
@engine_option
@spark_options
@shared_options
@click.pass_obj
def refresh(invocation: Invocation, name: str, full: bool, engine: EngineName | None) -> None:
    """Bring a stream table, and those it reads, up to date.

    \b
    Example: headwater refresh revenue
    """
    with invocation.connect() as hw:
        found = hw.refresh(name, full=full, engine=engine)
    invocation.present({"outcomes": [document.outcome(item) for item in found]}, show.outcomes(found))


@cli.command()
@name_argument
@shared_options
@click.pass_obj
def cancel(invocation: Invocation, name: str) -> None:
    """Cancel the refresh of a stream table that runs now.

    It ends with an error that says so, and nothing of it is applied. The exit code is 1 if none is running.

    \b
    Example: headwater cancel revenue
    """
    with invocation.connect() as hw:
        found = hw.cancel(name)
    invocation.present({"cancelled": found}, show.cancelled(found))


@cli.command()
@name_argument
@click.option("--reason", metavar="TEXT", help="Why, for those who wonder.")
@shared_options
@click.pass_obj
def suspend(invocation: Invocation, name: str, reason: str | None) -> None:
    """Stop refreshing a stream table until it is resumed.

    Its sources are captured all the same, and it keeps its rows. What reads it is not refreshed either.

    \b
    Example: headwater suspend revenue --reason "the nightly load runs"
    """
    with invocation.connect() as hw:
        found = hw.suspend(name, reason)
    said = [
        f"suspended {found.label}: {found.suspended_reason}",
        f"next: {_command('resume', name)}",
    ]
    invocation.present(document.stream_table(found), show.lines(*said))


@cli.command()
@click.argument("name", required=False)
@shared_options
@click.pass_obj
def resume(invocation: Invocation, name: str | None) -> None:
    """Refresh a suspended stream table again; without a name, end drain.

    \b
    Example: headwater resume revenue
    """
    with invocation.connect() as hw:
        if name is None:
            hw.undrain()
            invocation.present({"drain": "off"}, show.lines("the service refreshes again"))
        else:
            found = hw.resume(name)
            invocation.present(document.stream_table(found), show.lines(f"{found.label} is {found.status}"))


@cli.command()
@shared_options
@click.pass_obj
def drain(invocation: Invocation) -> None:
    """Have the service begin no more refreshes in this database.

    Those that run are finished, and capture goes on. It stays so until headwater resume.

    \b
    Example: headwater drain
    """
    with invocation.connect() as hw:
        hw.drain()
    invocation.present(
        {"drain": "on"}, show.lines("the service begins no more refreshes", "next: headwater resume")
    )


# looking


@cli.command("list")
@shared_options
@click.pass_obj
def list_(invocation: Invocation) -> None:
    """List the stream tables.

    \b
    Example: headwater list --format json
    """
    with invocation.connect() as hw:
        found = hw.list()
    invocation.present({"stream_tables": found}, show.listing(found))


@cli.command()
@click.argument("name", required=False)
@click.option(
    "--watch", is_flag=True, help="Update it each second until Ctrl-C, with the service and what runs."
)
@shared_options
@click.pass_obj
def status(invocation: Invocation, name: str | None, watch: bool) -> None:
    """Show how fresh stream tables are, and what waits for them.

    With --watch the most interesting ones come first, as many as there are lines; with --format json each
    second is a document on a line of its own.

    \b
    Example: headwater status --watch
    """
    with invocation.connect() as hw:
        if not watch:
            invocation.present(*_status(hw, name))
        elif name is None:
            follow(invocation, hw.overview, overview)
        else:
            follow(invocation, lambda: hw.status(name), lambda found, _: show.status(found, _now(hw)))


def _status(hw: Headwater, name: str | None) -> tuple[Any, RenderableType]:
    if name is not None:
        one_found = hw.status(name)
        return one_found, show.status(one_found, _now(hw))
    found = hw.list()
    return {"stream_tables": found}, show.statuses(found, _now(hw))


@cli.command()
@click.argument("name", required=False)
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="How many.")
@shared_options
@click.pass_obj
def history(invocation: Invocation, name: str | None, limit: int) -> None:
    """Show the latest refreshes, newest first.

    \b
    Example: headwater history revenue --limit 5
    """
    with invocation.connect() as hw:
        found = hw.history(name, limit=limit)
        now = _now(hw)
    invocation.present({"refreshes": found}, show.history(found, now))


@cli.command()
@name_argument
@shared_options
@click.pass_obj
def explain(invocation: Invocation, name: str) -> None:
    """Show what a refresh does, and why: operators, rules and SQL.

    \b
    Example: headwater explain revenue
    """
    with invocation.connect() as hw:
        found = hw.explain(name)
    invocation.present(found, show.explanation(found, invocation.console))


@cli.command()
@name_argument
@shared_options
@click.pass_obj
def verify(invocation: Invocation, name: str) -> int:
    """Compare a stream table with its query; exit code 1 if they differ.

    \b
    Example: headwater verify revenue
    """
    with invocation.connect() as hw:
        found = hw.verify(name)
    invocation.present(found, show.verification(found, f"{_command('refresh', name)} --full"))
    return 0 if found.equal else 1


def _now(hw: Headwater) -> datetime:
    """The database's time, by which everything it recorded is dated."""
    now: datetime = one(hw.connection, "SELECT clock_timestamp()")[0]
    return now


def _command(verb: str, name: str) -> str:
    return f"headwater {verb} {shlex.quote(name)}"
