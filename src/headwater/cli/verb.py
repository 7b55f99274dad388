"""A verb of the program: its parameters are declared, and its function is loaded when it runs.

The program starts at every prompt and in every health check, and most of its verbs need little of Headwater.
So a declaration imports nothing but click, and names the function that carries the verb out. The function's
module imports what this verb needs at its top, like any other. This is the one place in the program where a
module is loaded by name.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from inspect import cleandoc
from typing import Any

import click


class Verb(click.Command):
    """A command whose function is `body`: a module of `headwater.cli` and a name in it, as `inspect:history`.

    The function takes the `Invocation` first, then the parameters by their names. If it returns a number,
    that is the exit code.
    """

    def __init__(self, name: str, body: str, help: str, *parameters: click.Parameter) -> None:
        super().__init__(name, params=list(parameters), help=cleandoc(help))
        self.body = body

    def load(self) -> Callable[..., int | None]:
        """Import the module of the function, with all that it needs."""
        body: Callable[..., int | None] = loaded(self.body)
        return body

    def invoke(self, ctx: click.Context) -> Any:
        return ctx.invoke(self.load(), ctx.obj, **ctx.params)


def loaded(body: str) -> Any:
    """Return what `module:name` names in this package."""
    module, name = body.split(":")
    return getattr(import_module(f"headwater.cli.{module}"), name)
