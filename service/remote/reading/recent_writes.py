"""Objects that this process wrote lately, so that they are read without a download."""

from __future__ import annotations

from service.base.lru_cache import LruCache
from service.base.types import Buffer
from service.base.world import World


class RecentWrites:
    """Bytes by key, at most `most_bytes`, least recently used evicted first. Thread-safe.

    Keys are never written twice, so these bytes are those in the bucket.
    """

    def __init__(self, world: World, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._lock = world.threads.lock()
        self._objects: LruCache[str, bytes] = LruCache(most_bytes)

    def put(self, key: str, data: Buffer) -> None:
        if len(data) <= self._most_bytes:
            with self._lock:
                self._objects.put(key, bytes(data), len(data))

    def get(self, key: str) -> bytes | None:
        with self._lock:
            return self._objects.get(key)
