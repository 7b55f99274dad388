"""The version of this installation."""

from __future__ import annotations

from functools import cache
from importlib import metadata


@cache
def version() -> str:
    """The version that the package was installed with."""
    try:
        return metadata.version("headwater")
    except metadata.PackageNotFoundError:  # the sources were put on the path without installing them
        return "unknown"
