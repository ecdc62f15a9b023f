"""Delete objects known to be dead: after a grace period, in batches, with retries.

The schedule holds keys that are known to be dead: dropped by a commit that HEAD names, written by an attempt
that was never proposed, or part of a topic that has a tombstone. Each is checked once more before it is
deleted: this process must still be a writer of the prefix, and the partition's HEAD must be what our metadata
says; otherwise the keys are left to the sweeper. What a kept cut may need waits (`cuts/needed_chains.py`).
Each broker deletes what its own commits dropped, and the keeper deletes topics. The sweeper finds everything
else that should go (such as what a crash left behind). The schedule is only in memory: losing it costs time,
not bytes, and tombstones are in the metadata. `guard` protects keys that this node is writing, or may be
about to commit.

Each batch of keys, and each topic, fails and waits on its own: a locked object delays no other.

Owned by the event loop; `guard` is also called from offload threads.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import count, islice
from typing import Final, NamedTuple
from uuid import UUID

from service.base.clock import Clock
from service.base.errors import CorruptionError, FirnError, RequestError, StorageError
from service.base.types import TopicIdPartition
from service.remote.catalog import Catalog, CatalogEntry, Tombstone
from service.remote.format.cut_codec import MetadataEnd
from service.remote.format.keys import topic_prefix
from service.remote.stores.store import ObjectInfo, ObjectStore
from service.tiering.chain import ChainStore
from service.tiering.copier import CallProgress
from service.tiering.cuts.needed_chains import NEVER_NAMED, NeededChains
from service.tiering.deleting import DELETE_BATCH, NO_ANSWER, Deleted, FailureRun, delete_each
from service.tiering.head_check import HeadVerdict, check_head
from service.tiering.metrics import TieringMetrics
from service.tiering.offload_pool import OffloadPool
from service.tiering.prefix_fence import Displaced, Fence, NotNamed
from service.tiering.tasks import Task

log = logging.getLogger(__name__)


_HELD_MS: Final = 10_000
"""Time until deletions that wait for a cut to go are looked at again."""
_MOST_DUE: Final = 100_000
"""Beyond so many deletions that wait, objects are left to the sweeper."""


class _Due(NamedTuple):
    due_ms: int
    order: int
    tip: TopicIdPartition
    keys: tuple[str, ...]
    dropped: MetadataEnd | None
    """the end of metadata that has dropped them; None: not known yet"""
    failures: int = 0
    is_held: bool = False
    """it is due, and waits until a cut goes"""


class _DueTopic(NamedTuple):
    due_ms: int
    dropped: MetadataEnd
    failures: int = 0


class Eraser:
    """Schedule of deletions and guarded keys of one node. Times are monotonic milliseconds."""

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
        backoff_ms: Callable[[int], int],
        needed: NeededChains,
    ) -> None:
        """`backoff_ms` returns how long to wait after so many failures."""
        self._store = store
        self._chains = chains
        self._catalog = catalog
        self._pool = pool
        self._fence = fence
        self._metrics = metrics
        self._clock = clock
        self._grace_ms = grace_ms
        self._backoff_ms = backoff_ms
        self._needed = needed
        self._order = count()
        self._due: list[_Due] = []
        """a heap: an entry is checked before it is popped, and goes back when its deletion fails"""
        self._topics_due: dict[UUID, _DueTopic] = {}
        self._guarded: set[str] = set()

    @property
    def next_due_ms(self) -> int | None:
        """Time of the next deletion of keys that this process knows to be dead."""
        return self._due[0].due_ms if self._due else None

    def next_topic_due_ms(self, listed: Collection[UUID]) -> int | None:
        """Return the monotonic time at which the keeper may delete a topic next, None where no topic waits;
        those in `listed` must wait until `topics.json` lists them no more."""
        return min((at.due_ms for one, at in self._topics_due.items() if one not in listed), default=None)

    def guard(self, key: str) -> None:
        self._guarded.add(key)

    def release(self, keys: Iterable[str]) -> None:
        self._guarded.difference_update(keys)

    def is_guarded(self, key: str) -> bool:
        """Return whether `key` is guarded now."""
        return key in self._guarded

    def schedule(
        self, tip: TopicIdPartition, keys: Sequence[str], dropped_by: CatalogEntry | None = None
    ) -> None:
        """Delete `keys` of the partition `tip`, which are dead, after the grace.

        `dropped_by`: the committed entry whose chain does not name them any more; None: no chain ever did.
        """
        if not keys or len(self._due) >= _MOST_DUE:
            return
        dropped: MetadataEnd | None = NEVER_NAMED
        if dropped_by is not None:
            entry = self._catalog.entry(tip.topic_id, tip.partition)
            has_it = entry is not None and entry.version >= dropped_by.version
            dropped = self._needed.dropped() if has_it else None
        due_ms = self._clock.monotonic_ms() + self._grace_ms
        heapq.heappush(self._due, _Due(due_ms, next(self._order), tip, tuple(keys), dropped))

    def schedule_deleted(self, tombstones: Mapping[UUID, Tombstone]) -> None:
        """Schedule the topics of `tombstones`, each a grace after its deletion, and no others.

        The time of deletion is by the wall clock, which may have jumped, so the wait is at most the grace
        from now. The grace is for readers of the topic, not for safety.
        """
        now_ms, wall_ms = self._clock.monotonic_ms(), self._clock.now_ms()
        for topic_id in [one for one in self._topics_due if one not in tombstones]:
            self._forget_topic(topic_id)
        for topic_id, tombstone in tombstones.items():
            left_ms = tombstone.deleted_ms + self._grace_ms - wall_ms
            due_ms = now_ms + min(max(left_ms, 0), self._grace_ms)
            if topic_id not in self._topics_due:
                self._topics_due[topic_id] = _DueTopic(due_ms, self._needed.dropped())

    async def run_due(self, now_ms: int) -> None:
        """Delete this process's own dead keys that are due. Failures are retried later.

        Raises what the fence raises, and what a store raises that does not answer.
        """
        if not self._due or self._due[0].due_ms > now_ms:
            return
        await self._fence.check_before_delete()
        settled = await self._needed.settled()
        failures = FailureRun()
        while self._due and self._due[0].due_ms <= now_ms:
            one = self._due[0]
            dropped = one.dropped or self._needed.dropped()  # the image has all that was committed before
            if dropped > settled:
                self._needed.wait(dropped)
                self._metrics.held_deletions += not one.is_held
                held = one._replace(due_ms=now_ms + _HELD_MS, dropped=dropped, is_held=True)
                heapq.heapreplace(self._due, held)
                continue
            await self._fence.check()
            entry = self._catalog.entry(one.tip.topic_id, one.tip.partition)
            heapq.heappop(self._due)
            try:
                deleted = await self._pool.run(self._delete_dead, one, entry)
            except (StorageError, CorruptionError) as e:
                deleted = Deleted(0, one.keys, e)
            except BaseException:
                heapq.heappush(self._due, one)
                raise
            self._metrics.objects_deleted += deleted.number
            self._metrics.held_deletions -= one.is_held
            self._note(one, deleted)
            failures.note(deleted.error)

    def _note(self, one: _Due, deleted: Deleted) -> None:
        """Schedule what is left of `one` again. A call without an answer does not tell which key failed, so
        its halves are retried separately."""
        self._metrics.failing.pop((Task.DELETE, one.order), None)
        left, error = deleted.left, deleted.error
        if error is None:
            return
        failures = one.failures + 1
        wait_ms = self._failed(Task.DELETE, failures, f"{len(left)} objects of {one.tip}", error)
        half = len(left) // 2 if isinstance(error, NO_ANSWER) else 0
        for keys in (left[:half], left[half:]):
            if keys:
                at_ms = self._clock.monotonic_ms() + wait_ms
                part = _Due(at_ms, next(self._order), one.tip, keys, one.dropped, failures)
                heapq.heappush(self._due, part)
                self._metrics.failing[Task.DELETE, part.order] = str(error)

    def _failed(self, task: Task, failures: int, what: str, error: FirnError) -> int:
        """Count a failure, log the first one and every doubling, and return how long to wait."""
        self._metrics.task_errors[task] += 1
        wait_ms = self._backoff_ms(failures)
        if failures & (failures - 1) == 0:
            log.warning(
                "%s are not deleted, failed %d times in a row, next try in %d ms, others go on: %s",
                what, failures, wait_ms, error,
            )  # fmt: skip
        return wait_ms

    async def delete_topics(self, now_ms: int, listed: Collection[UUID]) -> None:
        """Delete the topics that are due, except those `listed` in `topics.json`: readers of the bucket, and
        a node restored from it, take a listed topic for whole. Failures are retried later.

        Raises what the fence raises (`NotNamed` where this process is not the keeper), and what a store
        raises that does not answer.
        """
        due = [one for one, at in self._topics_due.items() if at.due_ms <= now_ms and one not in listed]
        if not due:
            return
        await self._fence.check_before_sweep()
        settled = await self._needed.settled()
        failures = FailureRun()
        for topic_id in due:
            at = self._topics_due[topic_id]
            if at.dropped > settled:
                self._needed.wait(at.dropped)
                self._topics_due[topic_id] = at._replace(due_ms=now_ms + _HELD_MS)
                continue
            await self._fence.check_keeper()
            error = await self._try_topic(topic_id)
            if error is None:
                self._forget_topic(topic_id)
            else:
                failed = at.failures + 1
                wait_ms = self._failed(
                    Task.DELETE_TOPICS, failed, f"objects of the deleted topic {topic_id}", error
                )
                due_ms = self._clock.monotonic_ms() + wait_ms
                self._topics_due[topic_id] = _DueTopic(due_ms, at.dropped, failed)
                self._metrics.failing[Task.DELETE_TOPICS, topic_id] = str(error)
            failures.note(error)

    async def _try_topic(self, topic_id: UUID) -> FirnError | None:
        """Delete a topic and forget its tombstone; return the error, None where all of it went."""
        if topic_id not in self._catalog.tombstones():
            return None
        try:
            deleted = await self._pool.watch(partial(self._delete_topic, topic_id))
            self._metrics.objects_deleted += deleted.number
            if deleted.error is None:
                await self._catalog.forget_topics([topic_id])
        except (Displaced, NotNamed):
            raise
        except (StorageError, CorruptionError, RequestError) as e:
            return e
        return deleted.error

    def _forget_topic(self, topic_id: UUID) -> None:
        self._topics_due.pop(topic_id, None)
        self._metrics.failing.pop((Task.DELETE_TOPICS, topic_id), None)

    def _delete_dead(self, one: _Due, entry: CatalogEntry | None) -> Deleted:
        """Delete the keys where HEAD and entry agree, otherwise nothing. Runs on an offload thread."""
        seen = self._chains.read_head(one.tip)
        if seen.damage is not None or check_head(entry, seen.head) is not HeadVerdict.EQUAL:
            return Deleted(0)
        return delete_each(
            self._store, [key for key in one.keys if entry is None or key != entry.manifest_key]
        )

    def _delete_topic(self, topic_id: UUID, progress: CallProgress) -> Deleted:
        """Delete all objects of a deleted topic, until a listing shows none. Runs on an offload thread."""
        count, left, error = 0, 0, None
        failures = FailureRun()
        listing = iter(self._store.list(topic_prefix(topic_id)))
        while infos := list(islice(listing, DELETE_BATCH)):
            self._check_time(progress, infos)
            deleted = delete_each(self._store, [info.key for info in infos])
            count, left, error = count + deleted.number, left + len(deleted.left), deleted.error or error
            failures.note(deleted.error)
        if left:
            return Deleted(count, error=StorageError(f"{left} of its objects are left: {error}"))
        if count and next(iter(self._store.list(topic_prefix(topic_id))), None) is not None:
            return Deleted(count, error=StorageError("its prefix has objects again after they were deleted"))
        return Deleted(count)

    def _check_time(self, progress: CallProgress, infos: Sequence[ObjectInfo]) -> None:
        """Raise where the call was cancelled or this process is not the keeper any more. Runs on an offload
        thread."""
        progress.advance(len(infos))
        if not self._fence.is_ours:
            raise NotNamed("this broker is not the prefix's keeper any more")
