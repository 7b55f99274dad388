"""The verbs that go on until they are stopped: the service, and its external workers."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType

import click

from headwater.cli.group import cli
from headwater.cli.invocation import Invocation
from headwater.cli.options import dsn_option, spark_options
from headwater.service import logs
from headwater.service.launcher import Launcher
from headwater.service.worker import Worker

log_format_option = click.option(
    "--log-format", type=click.Choice(["text", "json"]), default="text", help="One line for each event."
)
log_level_option = click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info"
)


@cli.command()
@click.option(
    "--database", "databases", multiple=True, metavar="NAME", help="Serve only this one; may be repeated."
)
@log_format_option
@log_level_option
@spark_options
@dsn_option
@click.pass_obj
def serve(
    invocation: Invocation,
    databases: tuple[str, ...],
    log_format: logs.LogFormat,
    log_level: str,
) -> int:
    """Keep all stream tables of a server fresh, until stopped.

    Looks for databases with a catalog every 10 s and keeps each stream table within its schedule. A second
    one waits to take over. SIGTERM ends it when what runs is finished.

    \b
    Example: headwater serve --log-format json
    """
    logs.set_up(log_format, log_level)
    arguments = ["--log-format", log_format, "--log-level", log_level]
    for name, value in invocation.settings.items():
        arguments += ["--setting", f"{name}={value}"]
    launcher = Launcher(
        invocation.checked_dsn(),
        invocation.settings,
        arguments,
        databases,
        direct_dsn=invocation.checked_direct_dsn(),
    )
    _until_stopped(launcher.stop)
    launcher.run()
    return 0


@cli.command()
@click.option("--jobs", type=click.IntRange(1, 64), default=1, show_default=True, help="Refreshes at once.")
@log_format_option
@log_level_option
@spark_options
@dsn_option
@click.pass_obj
def worker(
    invocation: Invocation,
    jobs: int,
    log_format: logs.LogFormat,
    log_level: str,
) -> int:
    """Refresh for the service of a database, from this machine, until stopped.

    Keeps no state: any number may come, go or be killed. Without any, the service refreshes by itself.

    \b
    Example: headwater worker --jobs 2 --spark-master spark://host:7077
    """
    logs.set_up(log_format, log_level)
    one = Worker(
        invocation.checked_dsn(),
        invocation.settings,
        capacity=jobs,
        direct_dsn=invocation.checked_direct_dsn(),
    )
    _until_stopped(one.stop)
    one.run()
    return 0


def _until_stopped(stop: Callable[[], None]) -> None:
    """SIGTERM and an interrupt end it in order; a second one at once."""

    def handle(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)
