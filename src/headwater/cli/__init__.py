"""The command line: reads arguments, calls the Python interface, prints text or JSON.

Exit codes: 0 success, 1 an error or a verification that fails, 2 wrong usage, 130 interrupted. Results go to
standard output; with `--format json` that is one JSON document and nothing else. Errors go to standard error,
in the format of the results.
"""

from __future__ import annotations

import sys
import traceback

import click

from headwater.cli.group import cli
from headwater.cli.invocation import Invocation
from headwater.cli.verb import loaded
from headwater.errors import HeadwaterError

__all__ = ["main"]

INTERRUPTED = 130


def main() -> None:
    """Run the program and end the process."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character must not make the program fail.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    sys.exit(run(sys.argv[1:], Invocation()))


def run(arguments: list[str], invocation: Invocation) -> int:
    """Run one command; return its exit code."""
    try:
        "".join(arguments).encode()
    except UnicodeEncodeError:
        invocation.report(
            "UsageError", "the arguments are not in the encoding of this locale", hint="use UTF-8"
        )
        return 2
    try:
        code = cli.main(arguments, prog_name="headwater", standalone_mode=False, obj=invocation)
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        context = error.ctx if isinstance(error, click.UsageError) else None
        hint = getattr(error, "hint", "") or (f"{context.command_path} --help" if context else "")
        invocation.report("UsageError", error.format_message(), hint=hint)
        return error.exit_code
    except HeadwaterError as error:
        _report(invocation, error)
        return 1
    except Exception as error:
        told: HeadwaterError | None = loaded("failures:server_error")(error)
        if told is not None:
            _report(invocation, told)
            return 1
        name = type(error).__name__
        hint = "" if invocation.debug else "this is a defect; --debug shows the traceback to report with it"
        invocation.report(name, f"unexpected {name}: {error}", hint=hint, trace=traceback.format_exc())
        return 1
    return code if isinstance(code, int) else 0


def _report(invocation: Invocation, error: HeadwaterError) -> None:
    invocation.report(
        type(error).__name__,
        error.message,
        detail=error.detail,
        hint=error.hint,
        trace=traceback.format_exc(),
    )
