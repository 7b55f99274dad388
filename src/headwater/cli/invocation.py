"""What every verb is given: the database and the format; and how errors are reported.

No password is ever printed: whatever looks like one in an error's text is masked. A verb gets its connection
from `database` or `connect`, and prints through `output`; this module is loaded at each start and imports
little.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Literal

import click

from headwater.cli.document import encoded
from headwater.util.redact import masked

DSN_VARIABLE, DIRECT_VARIABLE = "HEADWATER_DSN", "HEADWATER_DIRECT_DSN"


class Misuse(click.UsageError):
    """Arguments that do not fit together, with the remedy."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, click.get_current_context(silent=True))
        self.hint = hint


@dataclass
class Invocation:
    """One run of the program, filled while arguments are read; a verb's option beats the program's."""

    dsn: str | None = None
    direct_dsn: str | None = None
    format: Literal["text", "json"] = "text"
    debug: bool = False
    spark_master: str | None = None
    spark_conf: str | None = None

    @property
    def settings(self) -> dict[str, str]:
        """The settings that options gave."""
        given = {"spark_master": self.spark_master, "spark_conf": self.spark_conf}
        return {name: value for name, value in given.items() if value is not None}

    def tell(self, message: str) -> None:
        """Announce slow operations to somebody who waits for them."""
        if self.format == "text" and sys.stderr.isatty():
            click.echo(click.style(f"{message} …", dim=True), err=True)

    def report(self, kind: str, message: str, *, detail: str = "", hint: str = "", trace: str = "") -> None:
        """Print an error, with its traceback under --debug."""
        if self.debug and trace:
            click.echo(masked(trace), err=True)
        parts = {"message": masked(message), "detail": masked(detail), "hint": masked(hint)}
        if self.format == "json":
            click.echo(encoded({"error": {"type": kind, **parts}}), err=True)
            return
        click.echo(f"{click.style('error:', fg='red', bold=True)} {printable(parts['message'])}", err=True)
        for name in ("detail", "hint"):
            if parts[name]:
                click.echo(f"{click.style(f'{name}:', bold=True)} {printable(parts[name])}", err=True)


def printable(text: str) -> str:
    """Return a text without control characters that could steer a terminal; lines stay lines.

    >>> printable("a" + chr(27) + "[2J")
    'a\\\\x1b[2J'
    """
    return "".join(
        sign if sign.isprintable() or sign in "\n\t" else sign.encode("unicode_escape").decode()
        for sign in text
    )
