"""The verbs that set up a database and change its settings."""

from __future__ import annotations

from headwater.cli import document
from headwater.cli.database import handle
from headwater.cli.invocation import Invocation
from headwater.cli.output import present
from headwater.cli.show import setup as show
from headwater.cli.show.values import lines


def init(invocation: Invocation, check: bool) -> int:
    """Install the catalog, or list privileges; return 1 if one of these is missing."""
    with handle(invocation) as hw:
        if check:
            found = hw.check()
            missing = any(item.required and not item.ok for item in found)
            present(invocation, {"ok": not missing, "checks": found}, show.checks(found))
            return int(missing)
        installed = hw.init()
        database = hw.connection.info.dbname
    said = "installed the catalog" if installed else "the catalog is there already"
    present(
        invocation,
        {"installed": installed, "database": database},
        lines(f"database {database}: {said}", "next: headwater create --help"),
    )
    return 0


def set_(invocation: Invocation, name: str, value: str) -> None:
    """Store a setting."""
    with handle(invocation) as hw:
        hw.set(name, value)
        setting = next(item for item in hw.settings() if item.name == name.removeprefix("headwater."))
    said = [f"stored {setting.name} = {value}"]
    if setting.origin != "table":
        said.append(f"here it is {setting.value}, for the {setting.origin} beats the table")
    present(invocation, {**document.plain(setting), "stored": value}, lines(*said))


def settings(invocation: Invocation) -> None:
    """Show the settings."""
    with handle(invocation) as hw:
        found = hw.settings()
    present(invocation, {"settings": found}, show.settings(found))
