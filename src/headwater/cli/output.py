"""Where results go: standard output, as text on a terminal or in a pipe, or as one JSON document."""

from __future__ import annotations

import sys
from typing import Any

import click
from rich.console import Console, RenderableType

from headwater.cli.document import encoded
from headwater.cli.invocation import Invocation
from headwater.cli.show.values import PIPE_WIDTH


def console() -> Console:
    if sys.stdout.isatty():
        return Console(highlight=False, markup=False, emoji=False)
    return Console(
        width=PIPE_WIDTH,
        color_system=None,
        force_terminal=False,
        highlight=False,
        markup=False,
        emoji=False,
    )


def present(invocation: Invocation, document: Any, text: RenderableType) -> None:
    """Print a result in the format that was asked for."""
    if invocation.format == "json":
        click.echo(encoded(document))
    else:
        print_text(text)


def print_text(text: RenderableType) -> None:
    """Print text; in a pipe without the spaces that fill the last column."""
    terminal = console()
    if terminal.is_terminal:
        terminal.print(text)
        return
    with terminal.capture() as capture:
        terminal.print(text)
    click.echo("\n".join(line.rstrip() for line in capture.get().removesuffix("\n").split("\n")))
