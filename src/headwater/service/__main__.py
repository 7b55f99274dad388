"""A scheduler as a process of its own, which a launcher starts: `python -m headwater.service`.

The DSN comes by the environment, where other users of the machine do not see it; grants of threads by
standard input, whose end is the end of the launcher; demands go to standard output, the log to standard
error.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import threading
import traceback
from contextlib import suppress
from dataclasses import asdict
from types import FrameType

import psycopg

from headwater.errors import HeadwaterError
from headwater.service import logs
from headwater.service.protocol import Demand
from headwater.service.scheduler import Scheduler


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--log-format", choices=("text", "json"), default="text")
    parser.add_argument("--log-level", default="info")
    parser.add_argument("--setting", action="append", default=[], metavar="NAME=VALUE")
    options = parser.parse_args()
    logs.set_up(options.log_format, options.log_level)
    overrides = dict(setting.split("=", 1) for setting in options.setting)
    dsn, direct_dsn = os.environ["HEADWATER_DSN"], os.environ.get("HEADWATER_DIRECT_DSN")
    scheduler = Scheduler(dsn, overrides, direct_dsn=direct_dsn, tell_demand=_Telling())

    def stop(signal_number: int, frame: FrameType | None) -> None:
        scheduler.stop()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    threading.Thread(target=_follow, args=(scheduler,), name="grants", daemon=True).start()
    try:
        scheduler.run()
    except HeadwaterError as error:
        logs.say(
            logging.ERROR,
            "stopped",
            error=error.message,
            detail=error.detail or None,
            hint=error.hint or None,
        )
        return 1
    except psycopg.Error as error:
        logs.say(logging.ERROR, "stopped", error=str(error).strip())
        return 1
    except Exception as error:
        # A defect. Its traceback, too, is one line of the log.
        logs.say(logging.ERROR, "stopped", error=f"unexpected {error!r}", trace=traceback.format_exc())
        return 1
    return 0


class _Telling:
    """Says how many threads are wanted, when that changed."""

    def __init__(self) -> None:
        self._told: Demand | None = None

    def __call__(self, demand: Demand) -> None:
        if demand == self._told:
            return
        self._told = demand
        with suppress(BrokenPipeError):  # the launcher is gone, which the end of its grants says, too
            print(json.dumps(asdict(demand)), flush=True)


def _follow(scheduler: Scheduler) -> None:
    for line in sys.stdin:
        scheduler.allowance = int(line)
        scheduler.wake()
    scheduler.stop()


if __name__ == "__main__":
    sys.exit(main())
