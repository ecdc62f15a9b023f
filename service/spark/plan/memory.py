"""What a stream keeps of objects that never change, from one look at the bucket to the next.

Of each partition the newest is kept, under the name of the object that it came from: what HEAD names is read
again only when it names something else. When the budget is used up, what comes is not kept, rather than
another one thrown out: a stream goes round its partitions, and would come back to each just after it went.
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
    """One value of each partition, of at most `budget` together. Any thread may ask."""

    def __init__(self, budget: int) -> None:
        self._lock = threading.Lock()
        self._kept: dict[HeadKey, _Kept[_T]] = {}
        self._left = budget

    def get(self, partition: HeadKey, name: Hashable) -> _T | None:
        """What is known of the partition, if it is of that name."""
        with self._lock:
            kept = self._kept.get(partition)
        return kept.value if kept is not None and kept.name == name else None

    def put(self, partition: HeadKey, name: Hashable, value: _T, cost: int) -> None:
        """Keep this instead of what was known of the partition, if there is room."""
        with self._lock:
            self._drop(partition)
            if cost <= self._left:
                self._kept[partition] = _Kept(name, value, cost)
                self._left -= cost

    def keep_only(self, partitions: Collection[HeadKey]) -> None:
        """Forget all others."""
        with self._lock:
            for partition in self._kept.keys() - set(partitions):
                self._drop(partition)

    def _drop(self, partition: HeadKey) -> None:
        kept = self._kept.pop(partition, None)
        if kept is not None:
            self._left += kept.cost


class Memory:
    """Manifests by key and checksum; transactions that are open behind a segment, by its key."""

    def __init__(self, max_children: int = MAX_CHILDREN, max_transactions: int = MAX_TRANSACTIONS) -> None:
        self.manifests: Newest[Manifest] = Newest(max_children)
        self.open_transactions: Newest[Mapping[int, int]] = Newest(max_transactions)

    def keep_only(self, partitions: Collection[HeadKey]) -> None:
        """Forget partitions that are no longer read."""
        self.manifests.keep_only(partitions)
        self.open_transactions.keep_only(partitions)
