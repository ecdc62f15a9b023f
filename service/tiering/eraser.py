"""Deletes what nobody names any more: after a grace period, in batches, again until it works.

What is scheduled here is known to be dead: dropped by a commit that HEAD names, or written by a try that
was never proposed; and every object of a topic whose tombstone says that it was deleted. It is looked at
once more before it goes: this process must be one of the prefix's writers still, and the partition's HEAD
must be what our metadata says, otherwise the keys are left for the sweeper. Each broker deletes what its own
commits dropped, and the one that keeps the prefix deletes topics. Everything else that should go
(whatever a crash left behind) is the sweeper's to find. The schedule is only in memory: losing it costs
time, not bytes, and tombstones are in the metadata. `guard` protects keys that this node is writing, or may
be about to commit.

Owned by the event loop; `guard` is also called from offload threads.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Final, NamedTuple
from uuid import UUID

from service.base.clock import Clock
from service.base.errors import StorageError
from service.base.types import TopicIdPartition
from service.remote.catalog import Catalog, CatalogEntry, Tombstone
from service.remote.format.keys import topic_prefix
from service.remote.stores.store import ObjectStore
from service.tiering.chain import ChainStore
from service.tiering.copier import Progress
from service.tiering.fence import Fence, NotNamed
from service.tiering.judgement import Verdict, judge
from service.tiering.metrics import TieringMetrics
from service.tiering.offload import OffloadPool

DELETE_BATCH: Final = 1000


class _Due(NamedTuple):
    due_ms: int
    order: int
    tip: TopicIdPartition
    keys: tuple[str, ...]


class Eraser:
    """The schedule of deletions and the guarded keys of one node. Times are monotonic milliseconds."""

    def __init__(
        self,
        store: ObjectStore,
        chains: ChainStore,
        catalog: Catalog,
        pool: OffloadPool,
        fence: Fence,
        metrics: TieringMetrics,
        clock: Clock,
        grace_ms: int,
    ) -> None:
        self._store = store
        self._chains = chains
        self._catalog = catalog
        self._pool = pool
        self._fence = fence
        self._metrics = metrics
        self._clock = clock
        self._grace_ms = grace_ms
        self._order = count()
        self._due: list[_Due] = []
        """a heap: each is looked at before it leaves, and goes back when its deletion fails"""
        self._topics_due: dict[UUID, int] = {}
        self._guarded: set[str] = set()

    @property
    def next_due_ms(self) -> int | None:
        """When there is something to delete next of what this process knows to be dead."""
        return self._due[0].due_ms if self._due else None

    def next_topic_due_ms(self, listed: Collection[UUID]) -> int | None:
        """When a topic is to be deleted next, by the one that keeps the prefix; `listed`: `delete_topics`."""
        return min((at for one, at in self._topics_due.items() if one not in listed), default=None)

    def guard(self, key: str) -> None:
        self._guarded.add(key)

    def release(self, keys: Iterable[str]) -> None:
        self._guarded.difference_update(keys)

    def is_guarded(self, key: str) -> bool:
        """Whether `key` is guarded at this moment."""
        return key in self._guarded

    def schedule(self, tip: TopicIdPartition, keys: Sequence[str], due_ms: int) -> None:
        """Delete `keys` of the partition `tip`, which are dead, at `due_ms`."""
        if keys:
            heapq.heappush(self._due, _Due(due_ms, next(self._order), tip, tuple(keys)))

    def schedule_deleted(self, tombstones: Mapping[UUID, Tombstone]) -> None:
        """Delete the topics of `tombstones`, a grace after each was deleted, and no others.

        That was some time ago by the wall clock, which may have jumped: it is waited for no longer than the
        grace from now, which is for readers of the topic and not for its safety.
        """
        now_ms, wall_ms = self._clock.monotonic_ms(), self._clock.now_ms()
        for topic_id in [one for one in self._topics_due if one not in tombstones]:
            del self._topics_due[topic_id]
        for topic_id, tombstone in tombstones.items():
            left_ms = tombstone.deleted_ms + self._grace_ms - wall_ms
            self._topics_due.setdefault(topic_id, now_ms + min(max(left_ms, 0), self._grace_ms))

    async def run_due(self, now_ms: int) -> None:
        """Delete what is due of this process's own. What fails stays due; raises what the store raised."""
        if not self._due or self._due[0].due_ms > now_ms:
            return
        await self._fence.before_erasing()
        while self._due and self._due[0].due_ms <= now_ms:
            await self._fence.check()
            one = self._due[0]
            entry = self._catalog.entry(one.tip.topic_id, one.tip.partition)
            heapq.heappop(self._due)
            try:
                self._metrics.objects_deleted += await self._pool.run(self._delete_dead, one, entry)
            except BaseException:
                heapq.heappush(self._due, one)
                raise

    async def delete_topics(self, now_ms: int, listed: Collection[UUID]) -> None:
        """Delete the topics that are due, but those `listed` by `topics.json`: whoever reads the bucket, or
        is restored from it, takes them for whole. What fails stays due; raises what the store or the catalog
        raised, and `NotNamed` where this process does not keep the prefix."""
        due = [one for one, due_ms in self._topics_due.items() if due_ms <= now_ms and one not in listed]
        if not due:
            return
        await self._fence.before_housekeeping()
        for topic_id in due:
            await self._fence.check_keeper()
            if topic_id in self._catalog.tombstones():
                self._metrics.objects_deleted += await self._pool.watch(partial(self._delete_topic, topic_id))
                await self._catalog.forget_topics([topic_id])
            self._topics_due.pop(topic_id, None)

    def _delete_dead(self, one: _Due, entry: CatalogEntry | None) -> int:
        """On an offload thread: what HEAD and entry agree about, otherwise nothing."""
        seen = self._chains.look(one.tip)
        if seen.damage is not None or judge(entry, seen.head) is not Verdict.EQUAL:
            return 0
        dead = [key for key in one.keys if entry is None or key != entry.manifest_key]
        self._store.delete(dead)
        return len(dead)

    def _delete_topic(self, topic_id: UUID, progress: Progress) -> int:
        """On an offload thread: everything of a deleted topic, until a listing shows nothing."""
        deleted = 0
        batch: list[str] = []
        for info in self._store.list(topic_prefix(topic_id)):
            batch.append(info.key)
            if len(batch) == DELETE_BATCH:
                self._check_time(progress, len(batch))
                self._store.delete(batch)
                deleted += len(batch)
                batch = []
        if batch:
            self._check_time(progress, len(batch))
            self._store.delete(batch)
            deleted += len(batch)
        if deleted and next(iter(self._store.list(topic_prefix(topic_id))), None) is not None:
            raise StorageError(f"objects of the deleted topic {topic_id} are still there")
        return deleted

    def _check_time(self, progress: Progress, size: int) -> None:
        """On an offload thread, before a batch goes: whether anybody waits for it, and it is ours to do."""
        progress.advance(size)
        if not self._fence.is_ours:
            raise NotNamed("this broker does not keep the prefix any more")
