"""LRU cache of values with their cost in bytes. [P]"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Any


class LruCache:
    """Values by key, least recently used evicted first. Not thread-safe."""

    def __init__(self) -> None:
        self._items: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self.size = 0

    def get(self, key: Hashable) -> Any | None:
        item = self._items.get(key)
        if item is None:
            return None
        self._items.move_to_end(key)
        return item[0]

    def put(self, key: Hashable, value: Any, cost: int) -> None:
        self.discard(key)
        self._items[key] = (value, cost)
        self.size += cost

    def discard(self, key: Hashable) -> None:
        if key in self._items:
            self.size -= self._items.pop(key)[1]

    def shrink(self, limit: int) -> None:
        """Evict the least recently used until at most `limit` bytes are held."""
        while self.size > limit and self._items:
            _, (_, cost) = self._items.popitem(last=False)
            self.size -= cost
