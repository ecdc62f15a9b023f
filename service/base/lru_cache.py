"""LRU cache of values with a cost, such as their bytes, under a limit on the sum of the costs. [P]

>>> cache: LruCache[str, str] = LruCache(limit=10)
>>> cache.put("a", "A", 4); cache.put("b", "B", 4); cache.get("a")
'A'
>>> cache.put("c", "C", 4)
>>> cache.get("a"), cache.get("b"), cache.size
('A', None, 8)
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LruCache(Generic[K, V]):
    """Values by key, at most `limit` in all; the least recently used are evicted first. Not thread-safe.

    A value that costs more than `limit` alone is evicted at once, after all others.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._items: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self.size = 0
        """the sum of the costs"""

    def get(self, key: K) -> V | None:
        """Return the value and mark it as used now; None where there is none."""
        item = self._items.get(key)
        if item is None:
            return None
        self._items.move_to_end(key)
        return item[0]

    def put(self, key: K, value: V, cost: int) -> None:
        """Cache a value in place of the key's last one."""
        self.discard(key)
        self._items[key] = (value, cost)
        self.size += cost
        while self.size > self._limit:
            self.size -= self._items.popitem(last=False)[1][1]

    def discard(self, key: K) -> None:
        """Drop the value, if there is one."""
        if key in self._items:
            self.size -= self._items.pop(key)[1]

    def clear(self) -> None:
        """Drop all values."""
        self._items.clear()
        self.size = 0
