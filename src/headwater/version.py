"""The version of Headwater, which the package takes from here (see pyproject.toml)."""

from __future__ import annotations

VERSION = "0.1.0"


def version() -> str:
    """Returns the version; what depends on it asks here, so that a test can be of another one."""
    return VERSION
