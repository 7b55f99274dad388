"""The one way in which planning fails."""

from __future__ import annotations


class Unsupported(Exception):
    """A construct that no delta rule covers; the message is the reason a user reads."""
