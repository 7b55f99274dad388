"""The verb that refreshes for the service from another machine."""

from __future__ import annotations

from headwater.cli.database import checked_direct_dsn, checked_dsn
from headwater.cli.invocation import Invocation
from headwater.cli.signals import until_stopped
from headwater.service import logs
from headwater.service.worker import Worker


def worker(
    invocation: Invocation,
    jobs: int,
    log_format: logs.LogFormat,
    log_level: str,
) -> int:
    """Work until stopped."""
    logs.set_up(log_format, log_level)
    one = Worker(
        checked_dsn(invocation),
        invocation.settings,
        capacity=jobs,
        direct_dsn=checked_direct_dsn(invocation),
    )
    until_stopped(one.stop)
    one.run()
    return 0
