"""The verbs that set up a database, change its settings and remove everything again; the demo."""

from __future__ import annotations

import sys
from typing import get_args

import click

from headwater.catalog.stream_tables import EngineName
from headwater.cli import document, show
from headwater.cli.group import cli
from headwater.cli.invocation import Invocation, Misuse
from headwater.cli.options import debug_option, name_argument, private_dsn_option, shared_options


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
