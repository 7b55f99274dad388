"""The options and arguments that verbs share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from headwater.cli.invocation import DIRECT_VARIABLE, DSN_VARIABLE, Invocation

Function = TypeVar("Function", bound=Callable[..., Any])

name_argument = click.argument("name")


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


def spark_options(function: Function) -> Function:
    for name, metavar, words in (
        ("--spark-conf", "K=V …", "Settings of Spark, separated by spaces."),
        ("--spark-master", "MASTER", "Where Spark runs: local[*], spark://host:7077, k8s://…, yarn, sc://…"),
    ):
        function = click.option(name, metavar=metavar, expose_value=False, callback=_remember, help=words)(
            function
        )
    return function
