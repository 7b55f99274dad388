"""A cache of limited size, which threads may share."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class LRUCache(Generic[Key, Value]):
    """Keeps a limited number of values; the least recently used one is dropped first.

    >>> cache = LRUCache[str, int](most=2)
    >>> cache.put("a", 0), cache.put("b", 1), cache.get("a"), cache.put("c", 2)
    (None, None, 0, None)
    >>> [cache.get(name) for name in "abc"]
    [0, None, 2]
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: dict[Key, Value] = {}  # the least recently used one first
        self._guard = threading.Lock()

    def get(self, key: Key) -> Value | None:
        with self._guard:
            if key not in self._values:
                return None
            value = self._values[key] = self._values.pop(key)
            return value

    def put(self, key: Key, value: Value) -> None:
        with self._guard:
            self._values.pop(key, None)
            self._values[key] = value
            while len(self._values) > self._most:
                del self._values[next(iter(self._values))]
