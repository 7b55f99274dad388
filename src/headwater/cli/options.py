"""The options and arguments that verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import click

from headwater.catalog.choices import EngineName
from headwater.cli.invocation import DIRECT_VARIABLE, DSN_VARIABLE, Invocation


def _remember(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value:
        setattr(ctx.find_object(Invocation), str(parameter.name), value)


def _remembered(name: str, metavar: str, help: str) -> click.Option:
    return click.Option([name], metavar=metavar, expose_value=False, callback=_remember, help=help)


def flag(name: str, help: str) -> click.Option:
    """Declare an option without a value."""
    return click.Option([name], is_flag=True, help=help)


def number(name: str, default: int, help: str, *, most: int | None = None) -> click.Option:
    """Declare an option that is a whole number above 0."""
    return click.Option([name], type=click.IntRange(1, most), default=default, show_default=True, help=help)


NAME = click.Argument(["name"])
OPTIONAL_NAME = click.Argument(["name"], required=False)
ENGINE = click.Option(["--engine"], type=click.Choice(get_args(EngineName)), help="What computes it.")

DSN = (
    _remembered(
        "--dsn", "DSN", f"The database, as postgresql://user@host:5432/dbname; otherwise ${DSN_VARIABLE}."
    ),
    _remembered(
        "--direct-dsn",
        "DSN",
        f"Past a pooler, to the server itself, for what needs a session; otherwise ${DIRECT_VARIABLE}.",
    ),
)
PRIVATE_DSN = _remembered(
    "--dsn", "DSN", "A database to use instead of a private one; what is made there is removed again."
)
# Eager, so that a mistake in another option is reported in the format that was asked for.
FORMAT = click.Option(
    ["--format"],
    type=click.Choice(["text", "json"]),
    is_eager=True,
    expose_value=False,
    callback=_remember,
    help="Text for people (the default), or one JSON document.",
)
DEBUG = click.Option(
    ["--debug"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_remember,
    help="Show the traceback of an error.",
)
SHARED = (*DSN, FORMAT, DEBUG)
SPARK = (
    _remembered(
        "--spark-master", "MASTER", "Where Spark runs: local[*], spark://host:7077, k8s://…, yarn, sc://…"
    ),
    _remembered("--spark-conf", "K=V …", "Settings of Spark, separated by spaces."),
)
PLOT = click.Option(
    ["--plot"],
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Draw the figures into this file: .svg, .png or .pdf.",
)
