"""The verb that runs the service of a server."""

from __future__ import annotations

from headwater.cli.database import checked_direct_dsn, checked_dsn
from headwater.cli.invocation import Invocation
from headwater.cli.signals import until_stopped
from headwater.service import logs
from headwater.service.launcher import Launcher


def serve(
    invocation: Invocation,
    databases: tuple[str, ...],
    log_format: logs.LogFormat,
    log_level: str,
) -> int:
    """Serve until it is stopped."""
    logs.set_up(log_format, log_level)
    arguments = ["--log-format", log_format, "--log-level", log_level]
    for name, value in invocation.settings.items():
        arguments += ["--setting", f"{name}={value}"]
    launcher = Launcher(
        checked_dsn(invocation),
        invocation.settings,
        arguments,
        databases,
        direct_dsn=checked_direct_dsn(invocation),
    )
    until_stopped(launcher.stop)
    launcher.run()
    return 0
