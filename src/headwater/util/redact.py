"""Masks passwords in texts, so that none is ever printed."""

from __future__ import annotations

import re

# Mask too much rather than too little: the text may be a DSN that cannot be parsed.
_PASSWORDS = (
    re.compile(r"(/[^\s:/@]*:)\S+(?=@)"),
    re.compile(r"(password\s*=\s*)(?:'(?:[^'\\]|\\.)*'|.+)", re.IGNORECASE),
)


def masked(text: str) -> str:
    """Return a text without the passwords of DSNs in it.

    >>> masked("postgresql://ann:secret@db/shop and host=db password='se cret' user=ann")
    'postgresql://ann:***@db/shop and host=db password=*** user=ann'
    """
    for pattern in _PASSWORDS:
        text = pattern.sub(r"\1***", text)
    return text
