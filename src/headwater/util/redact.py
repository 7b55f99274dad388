"""No password is ever printed: what looks like one in a text is masked."""

from __future__ import annotations

import re

# Rather too much than too little: what is masked may be a DSN that nobody can read.
_PASSWORDS = (
    re.compile(r"(/[^\s:/@]*:)\S+(?=@)"),
    re.compile(r"(password\s*=\s*)(?:'(?:[^'\\]|\\.)*'|.+)", re.IGNORECASE),
)


def masked(text: str) -> str:
    """A text without the passwords of DSNs in it.

    >>> masked("postgresql://ann:secret@db/shop and host=db password='se cret' user=ann")
    'postgresql://ann:***@db/shop and host=db password=*** user=ann'
    """
    for pattern in _PASSWORDS:
        text = pattern.sub(r"\1***", text)
    return text
