"""Cache of immutable objects that a stream reads again from one poll of the bucket to the next.

It keeps the newest object of each partition under the key that HEAD or the manifest names, so an object is
read again only when another one is named. Once the budget is used up, a new object is not kept, and none is
evicted: a stream cycles through its partitions, and would next need the one that was just evicted.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Hashable, Mapping
from typing import Final, Generic, NamedTuple, TypeVar

from service.remote.format.keys import HeadKey
from service.remote.format.manifest import Manifest

MAX_CHILDREN: Final = 64 << 10
"""Segments and pages in all manifests that are kept; one takes about 0.7 kB of memory."""
MAX_TRANSACTIONS: Final = 256 << 10
"""Open transactions that are kept; one takes about 100 bytes."""

_T = TypeVar("_T")


class _Kept(NamedTuple, Generic[_T]):
    name: Hashable
    value: _T
    cost: int


class Newest(Generic[_T]):
    """One value per partition, at most `budget` in cost together. Any thread may call it."""

    def __init__(self, budget: int) -> None:
        self._lock = threading.Lock()
        self._kept: dict[HeadKey, _Kept[_T]] = {}
        self._left = budget

    def get(self, partition: HeadKey, name: Hashable) -> _T | None:
        """Return the partition's value, if it was put under that name."""
        with self._lock:
            kept = self._kept.get(partition)
        return kept.value if kept is not None and kept.name == name else None

    def put(self, partition: HeadKey, name: Hashable, value: _T, cost: int) -> None:
        """Replace the partition's value, if there is room; else drop it."""
        with self._lock:
            self._drop(partition)
            if cost <= self._left:
                self._kept[partition] = _Kept(name, value, cost)
                self._left -= cost

    def keep_only(self, partitions: Collection[HeadKey]) -> None:
        """Drop the values of all other partitions."""
        with self._lock:
            for partition in self._kept.keys() - set(partitions):
                self._drop(partition)

    def _drop(self, partition: HeadKey) -> None:
        kept = self._kept.pop(partition, None)
        if kept is not None:
            self._left += kept.cost


class PlanCache:
    """Manifests by key and checksum, and transactions open at a segment's end by the segment's key."""

    def __init__(self, max_children: int = MAX_CHILDREN, max_transactions: int = MAX_TRANSACTIONS) -> None:
        self.manifests: Newest[Manifest] = Newest(max_children)
        self.open_transactions: Newest[Mapping[int, int]] = Newest(max_transactions)

    def keep_only(self, partitions: Collection[HeadKey]) -> None:
        """Drop the objects of partitions that are no longer read."""
        self.manifests.keep_only(partitions)
        self.open_transactions.keep_only(partitions)
