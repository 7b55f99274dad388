"""Named queries: fixed SQL lives in `sql/*.sql`, each query under a `-- name:` line and a description."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import LiteralString

_HEADER = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)


@cache
def _queries(group: str) -> dict[str, str]:
    text = (files("headwater.db") / "sql" / f"{group}.sql").read_text(encoding="utf-8")
    parts = _HEADER.split(text)
    return dict(zip(parts[1::2], (body.strip() for body in parts[2::2]), strict=True))


def query(group: str, name: str) -> LiteralString:
    """Return the text of a named query, with psycopg's placeholders. It is a literal of our own files."""
    return _queries(group)[name]
