"""The program: its verbs by purpose, and its own options."""

from __future__ import annotations

from inspect import cleandoc

import click

from headwater.cli.bench_commands import MEASURING
from headwater.cli.commands import LOOKING, SERVING, SETTING_UP, STREAM_TABLES
from headwater.cli.options import SHARED
from headwater.version import version

SECTIONS: dict[str, tuple[click.Command, ...]] = {
    "Setting up": SETTING_UP,
    "Stream tables": STREAM_TABLES,
    "Serving": SERVING,
    "Measuring": MEASURING,
    "Looking": LOOKING,
}
HELP = """Stream tables for PostgreSQL: tables defined by a query and kept fresh incrementally.

    \b
    Example: headwater --dsn postgresql://localhost/shop list
"""


class Sections(click.Group):
    """A group whose help lists its commands by purpose."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(str(command.name), command.get_short_help_str(limit=100)) for command in commands]
                )


def _print_version(ctx: click.Context, parameter: click.Parameter, given: bool) -> None:
    if given and not ctx.resilient_parsing:
        click.echo(f"headwater {version()}")
        ctx.exit()


VERSION = click.Option(
    ["--version"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)

cli = Sections(
    "headwater",
    params=[VERSION, *SHARED],
    help=cleandoc(HELP),
    commands={str(command.name): command for commands in SECTIONS.values() for command in commands},
    context_settings={"help_option_names": ["-h", "--help"]},
)
