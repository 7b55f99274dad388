"""The program, to which the modules of the verbs add theirs: one module for each section of its help.

Each verb reads its arguments, calls the method of the same name and presents what it returns.
"""

from __future__ import annotations

import click

from headwater.cli.options import shared_options
from headwater.version import version

SECTIONS = {
    "Setting up": ("init", "migrate", "repair", "set", "settings", "uninstall", "demo"),
    "Stream tables": ("create", "alter", "drop", "refresh", "cancel", "suspend", "resume", "drain"),
    "Serving": ("serve", "worker"),
    "Measuring": ("bench",),
    "Looking": ("list", "status", "history", "explain", "verify", "audits"),
}


class Sections(click.Group):
    """A group whose help lists its commands by purpose."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(name, self.commands[name].get_short_help_str(limit=100)) for name in names]
                )


@click.group(cls=Sections, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version(), prog_name="headwater", message="%(prog)s %(version)s")
@shared_options
def cli() -> None:
    """Stream tables for PostgreSQL: tables defined by a query and kept fresh incrementally.

    \b
    Example: headwater --dsn postgresql://localhost/shop list
    """
