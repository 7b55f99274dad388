"""The verbs that work on an installation: upgrade, repair and remove it."""

from __future__ import annotations

import sys

import click

from headwater.cli.connect import connect
from headwater.cli.invocation import Invocation, Misuse
from headwater.cli.output import present
from headwater.cli.show.stream_tables import repaired
from headwater.cli.show.values import lines


def migrate(invocation: Invocation) -> None:
    """Bring the catalog up to date."""
    with connect(invocation) as hw:
        applied = hw.migrate()
    done = f"applied migrations {', '.join(map(str, applied))}" if applied else "the catalog is up to date"
    present(invocation, {"applied": applied}, lines(done))


def repair(invocation: Invocation) -> int:
    """Repair stream tables; return 1 if one could not be repaired."""
    with connect(invocation) as hw:
        found = hw.repair()
    present(invocation, {"stream_tables": found}, repaired(found))
    return int(any(item.status == "failed" for item in found))


def uninstall(invocation: Invocation, yes: bool, cascade: bool) -> None:
    """Remove everything, after asking."""
    with connect(invocation) as hw:
        database = hw.connection.info.dbname
        found = hw.installation()
        if found.empty:
            said = f"database {database}: nothing of Headwater is there"
            present(invocation, {"database": database, "removed": [], "left": []}, lines(said))
            return
        if not yes:
            if invocation.format == "json" or not sys.stdin.isatty():
                raise Misuse("uninstall removes everything of Headwater", "use --yes to say that you mean it")
            click.echo(f"database {database}: {found.summary}")
            click.confirm("Remove all of it?", abort=True)
        removed = hw.uninstall(cascade=cascade)
        left = hw.installation().foreign
    present(
        invocation,
        {"database": database, "removed": removed, "left": left},
        lines(
            *(f"removed {item}" for item in removed),
            *(f"left {item}, which is not Headwater's" for item in left),
            f"database {database}: Headwater is uninstalled",
        ),
    )
