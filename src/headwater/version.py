"""The version of this installation."""

from __future__ import annotations

from importlib import metadata


def version() -> str:
    """The version that the package was installed with."""
    try:
        return metadata.version("headwater")
    except metadata.PackageNotFoundError:  # the sources were put on the path without installing them
        return "unknown"
