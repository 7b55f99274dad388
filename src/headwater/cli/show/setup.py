"""Privileges and settings."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table

from headwater.cli.show.values import lines, table
from headwater.config import Setting
from headwater.install.privileges import Check


def checks(found: Sequence[Check]) -> RenderableType:
    missing = [check for check in found if check.required and not check.ok]
    drawn = table(
        ("", "privilege", "remedy"),
        [
            (
                "ok" if check.ok else "missing" if check.required else "if wanted",
                check.name,
                f"{check.remedy};" if check.remedy else "",
            )
            for check in found
        ],
    )
    verdict = (
        f"{len(missing)} missing: run the statements above as the owner or a superuser"
        if missing
        else "nothing is missing"
    )
    return Group(drawn, lines(verdict))


def settings(found: Sequence[Setting]) -> Table:
    return table(
        ("setting", "value", "from", "default", "description"),
        [
            (setting.name, setting.value, setting.origin, setting.default, setting.description)
            for setting in found
        ],
    )
