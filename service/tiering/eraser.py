"""Deletes what nobody names any more: after a grace period, in batches, again until it works.

What is scheduled here is known to be dead: dropped by a commit, or written by a try that was never proposed.
Everything else that should go (whatever a crash left behind) is the sweeper's to find. The schedule is
only in memory: losing it costs time, not bytes. `guard` protects keys that this node is writing, or may be
about to commit.

Owned by the event loop; `guard` is also called from offload threads.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Final
from uuid import UUID

from service.remote.format.keys import topic_prefix
from service.remote.stores.store import ObjectStore
from service.tiering.offload import OffloadPool
from service.tiering.ports import TieringMetrics

DELETE_BATCH: Final = 1000


class Eraser:
    """The schedule of deletions and the guarded keys of one node. Times are monotonic milliseconds."""

    def __init__(self, store: ObjectStore, pool: OffloadPool, metrics: TieringMetrics) -> None:
        self._store = store
        self._pool = pool
        self._metrics = metrics
        self._order = count()
        self._due: list[tuple[int, int, tuple[str, ...], UUID | None]] = []
        self._guarded: set[str] = set()

    @property
    def next_due_ms(self) -> int | None:
        """When there is something to delete next."""
        return self._due[0][0] if self._due else None

    def guard(self, key: str) -> None:
        self._guarded.add(key)

    def release(self, keys: Iterable[str]) -> None:
        self._guarded.difference_update(keys)

    def guarded(self) -> frozenset[str]:
        """The keys that are guarded at this moment."""
        return frozenset(self._guarded)

    def schedule(self, keys: Sequence[str], due_ms: int) -> None:
        """Delete `keys`, which are dead, at `due_ms`."""
        if keys:
            heapq.heappush(self._due, (due_ms, next(self._order), tuple(keys), None))

    def schedule_topic(self, topic_id: UUID, due_ms: int) -> None:
        """Delete everything of a deleted topic at `due_ms`. Topic ids are never used again."""
        heapq.heappush(self._due, (due_ms, next(self._order), (), topic_id))

    async def run_due(self, now_ms: int) -> None:
        """Delete what is due. What fails stays due; raises what the store raised."""
        while self._due and self._due[0][0] <= now_ms:
            item = self._due[0]
            _, _, keys, topic_id = item
            deleted = await self._pool.run(self._delete, keys, topic_id)
            self._metrics.objects_deleted += deleted
            self._due.remove(item)
            heapq.heapify(self._due)

    def _delete(self, keys: Sequence[str], topic_id: UUID | None) -> int:
        """On an offload thread."""
        found = keys if topic_id is None else (info.key for info in self._store.list(topic_prefix(topic_id)))
        batch: list[str] = []
        deleted = 0
        for key in found:
            batch.append(key)
            if len(batch) == DELETE_BATCH:
                self._store.delete(batch)
                deleted += len(batch)
                batch = []
        if batch:
            self._store.delete(batch)
        return deleted + len(batch)
