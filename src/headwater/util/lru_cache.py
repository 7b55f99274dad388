"""What a process remembers so as not to work it out again; its threads may share it."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Remembered(Generic[Key, Value]):
    """So many values; what was put there first is forgotten first.

    >>> remembered = Remembered[str, int](most=2)
    >>> for number, name in enumerate("abc"):
    ...     remembered.put(name, number)
    >>> [remembered.get(name) for name in "abc"]
    [None, 1, 2]
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: dict[Key, Value] = {}
        self._guard = threading.Lock()

    def get(self, key: Key) -> Value | None:
        return self._values.get(key)

    def put(self, key: Key, value: Value) -> None:
        with self._guard:
            self._values[key] = value
            while len(self._values) > self._most:
                del self._values[next(iter(self._values))]
