"""The version of Headwater, which the package takes from here (see pyproject.toml)."""

from __future__ import annotations

VERSION = "0.1.0"


def version() -> str:
    """Return the version; code that depends on it calls this, so that a test can replace it."""
    return VERSION
