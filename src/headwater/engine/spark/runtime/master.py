"""Where Spark runs: the settings that cannot change while it does, and the addresses in them."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from headwater.config import Settings
from headwater.errors import EngineUnavailable

EXACT = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.decimalOperations.allowPrecisionLoss": "false",
}
"""The settings on which results depend; with other values results differ from PostgreSQL's."""

_PORTS = {"spark": 7077, "sc": 15002}


@dataclass(frozen=True)
class Wanted:
    """The settings that cannot change while Spark runs."""

    master: str
    conf: str
    ui: str

    @classmethod
    def of(cls, settings: Settings) -> Wanted:
        return cls(settings.spark_master, settings.spark_conf, settings.spark_ui)

    @property
    def connect(self) -> bool:
        return self.master.startswith("sc://")

    @property
    def local(self) -> bool:
        return self.master.startswith("local")


def _addresses(master: str) -> list[tuple[str, int]]:
    """Return the hosts and ports of a standalone master, with its standbys, or of a Connect server."""
    scheme, _, rest = master.partition("://")
    if scheme not in ("spark", "sc"):
        return []
    found = []
    for part in rest.split("/")[0].split(","):
        host, _, port = part.rpartition(":")
        found.append((host, int(port)) if host and port.isdigit() else (part, _PORTS[scheme]))
    return found


def is_loopback(master: str) -> bool:
    """Tell whether a standalone master is on this machine only."""
    hosts = {host for host, _ in _addresses(master)}
    return bool(hosts) and hosts <= {"localhost", "127.0.0.1", "[::1]"}


def check_reachable(master: str) -> None:
    """Check that a master is reachable: Spark itself would try for a minute and then say little."""
    addresses = _addresses(master)
    reason: OSError | None = None
    for host, port in addresses:
        try:
            socket.create_connection((host.strip("[]"), port), timeout=5).close()
            return
        except OSError as error:
            reason = error
    if addresses:
        raise EngineUnavailable(
            f"Spark at {master} cannot be reached",
            detail=first_line(reason),
            hint="check the setting spark_master, and that a server runs there",
        )


def first_line(error: BaseException | None) -> str:
    """Return the message of an error, without Java's stack trace."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
