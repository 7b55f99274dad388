"""What every command shares: which database, which format, where output and errors go.

No password is ever printed. libpq quotes the part of a DSN that it cannot read, so a DSN is read here first
and refused without quoting it; and whatever looks like a password in an error's text is masked.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any, Literal

import click
import psycopg
from psycopg.conninfo import conninfo_to_dict
from rich.console import Console, RenderableType

from headwater.api import Headwater
from headwater.cli.document import encoded
from headwater.util.redact import masked

DSN_VARIABLE, DIRECT_VARIABLE = "HEADWATER_DSN", "HEADWATER_DIRECT_DSN"
PIPE_WIDTH = 1_000_000
"""Columns when standard output is no terminal: wide enough that no name is ever broken or cut."""


class Misuse(click.UsageError):
    """Arguments that do not fit together, with the remedy."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, click.get_current_context(silent=True))
        self.hint = hint


@dataclass
class Invocation:
    """One run of the program. Filled while the arguments are read; a verb's option beats the program's."""

    dsn: str | None = None
    direct_dsn: str | None = None
    format: Literal["text", "json"] = "text"
    debug: bool = False
    spark_master: str | None = None
    spark_conf: str | None = None

    def connect(self) -> Headwater:
        return Headwater(self.checked_dsn(), self.settings, self.tell, direct_dsn=self.checked_direct_dsn())

    def checked_dsn(self) -> str:
        """The DSN that was given, which can be read."""
        dsn = self.dsn or os.environ.get(DSN_VARIABLE)
        if not dsn:
            raise Misuse(
                "no database was given",
                "use --dsn postgresql://user@host:5432/dbname,"
                f" or set the environment variable {DSN_VARIABLE}",
            )
        _check_dsn(dsn)
        return dsn

    def checked_direct_dsn(self) -> str | None:
        """The DSN past a pooler, if one was given, which can be read."""
        dsn = self.direct_dsn or os.environ.get(DIRECT_VARIABLE)
        if dsn:
            _check_dsn(dsn)
        return dsn or None

    @property
    def settings(self) -> dict[str, str]:
        """Those that options gave."""
        given = {"spark_master": self.spark_master, "spark_conf": self.spark_conf}
        return {name: value for name, value in given.items() if value is not None}

    def tell(self, message: str) -> None:
        """What takes a while, to somebody who waits for it."""
        if self.format == "text" and sys.stderr.isatty():
            click.echo(click.style(f"{message} …", dim=True), err=True)

    @property
    def console(self) -> Console:
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

    def present(self, document: Any, text: RenderableType) -> None:
        """Prints a result in the format that was asked for."""
        if self.format == "json":
            click.echo(encoded(document))
        else:
            self.print(text)

    def print(self, text: RenderableType) -> None:
        """Prints text; in a pipe without the spaces that fill the last column."""
        console = self.console
        if console.is_terminal:
            console.print(text)
            return
        with console.capture() as capture:
            console.print(text)
        click.echo("\n".join(line.rstrip() for line in capture.get().removesuffix("\n").split("\n")))

    def report(self, kind: str, message: str, *, detail: str = "", hint: str = "", trace: str = "") -> None:
        """Prints an error, with its traceback under --debug."""
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
    """A text whose control characters cannot steer a terminal; lines stay lines.

    >>> printable("a" + chr(27) + "[2J")
    'a\\\\x1b[2J'
    """
    return "".join(
        sign if sign.isprintable() or sign in "\n\t" else sign.encode("unicode_escape").decode()
        for sign in text
    )


def _check_dsn(dsn: str) -> None:
    try:
        parts = conninfo_to_dict(dsn)
    except psycopg.Error:
        readable = False
    else:
        # A password with a bare / or @ in it ends up in the port or the host.
        readable = str(parts.get("port") or "0").replace(",", "").isdecimal() and "@" not in str(
            parts.get("host") or ""
        ).removeprefix("@")
    if not readable:
        raise Misuse(
            "the DSN cannot be read",
            "write postgresql://user@host:5432/dbname with special characters percent-encoded (@ is %40, / is"
            " %2F), or host=… port=… dbname=… user=… with values that hold spaces in single quotes",
        )
