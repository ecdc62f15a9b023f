"""Tiering of all partitions of a node: schedule, retries, bucket maintenance, start and stop.

One asyncio task, woken by events: a segment was sealed, a partition was added or removed, its settings or its
entry changed, its time has come (`work_queue`). It assesses only those partitions, a slice at a time, and
starts an asyncio task for each task of a partition: at most `copier_threads` at a time, the longest waiting
first, failed ones after the others. HEAD comparisons have a lane of their own, so they wait for no upload:
appends wait for them after a start. A task that fails backs off alone (`tasks`). When the store fails, the
`Breaker` holds all tasks back, then lets one partition at a time try. Beside them `bucket_maintenance` does
what the brokers of a cluster share. An error that is neither the store's nor the data's is a bug and ends
`run`, and so the node.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Final
from uuid import UUID

from service.base.backoff import backoff
from service.base.errors import CorruptionError, FirnError, RequestError, StorageError
from service.base.rate import Rate, RateLimit
from service.base.slices import Slice
from service.base.types import TopicIdPartition
from service.base.world import World
from service.remote.catalog import Catalog
from service.remote.format.manifest import USUAL_LIMITS, ManifestLimits
from service.remote.format.stamp import Stamp, Writer
from service.remote.stores.breaker import Breaker, BreakerSettings, is_failure
from service.remote.stores.store import ObjectStore
from service.tiering.archive_attempt import CommitRefused, Deposed, TieringContext
from service.tiering.bucket_maintenance import BucketMaintenance, MaintenanceHost
from service.tiering.chain import ChainStore
from service.tiering.commits import CommitQueue
from service.tiering.eraser import Eraser
from service.tiering.fence import Displaced, Fence, NotNamed
from service.tiering.metadata_copy import MetadataCopies, MetadataSnapshot
from service.tiering.metrics import TieringMetrics
from service.tiering.offload import OffloadPool, Stalled
from service.tiering.partition_archiver import PartitionArchiver
from service.tiering.ports import PrefixOwner, TieredPartition, TieringSettings
from service.tiering.shared_objects import TopicsSnapshot
from service.tiering.sole_owner import SoleOwner
from service.tiering.steps import Probe, no_probe
from service.tiering.store_clock import StoreClock
from service.tiering.sweeper import PartitionLeadership, Sweeper
from service.tiering.tasks import Task
from service.tiering.work_queue import WorkQueue

log = logging.getLogger(__name__)

Key = tuple[UUID, int]

_HEAD_CHECKS: Final = 0
_TASKS: Final = 1
_ASSESS_US: Final = 40
"""Estimated time to assess a partition."""


class TieringManager:
    """Tiering of one node. Owned by the event loop.

    `writer` is this process, named in every object that it writes; in a cluster its incarnation is that of
    its registration. `owner` is the cluster that shares the prefix, None where this node is alone.
    `partitions` returns the partitions that this node leads, `find` one of them; call `changed` when one was
    added or removed, or has another leader. `topics` returns the topics of the committed image.
    `is_conditional`: the store honours conditional writes. `is_urgent`: as in `TieringContext`; call `wake`
    when it changes.
    """

    def __init__(
        self,
        store: ObjectStore,
        catalog: Catalog,
        *,
        cluster_id: str,
        writer: Writer,
        partitions: Callable[[], Iterable[TieredPartition]],
        find: Callable[[UUID, int], TieredPartition | None],
        topics: Callable[[], TopicsSnapshot | None],
        world: World,
        owner: PrefixOwner | None = None,
        metadata: Callable[[], MetadataSnapshot | None] = lambda: None,
        is_conditional: bool = True,
        settings: TieringSettings = TieringSettings(),  # noqa: B008  # immutable
        manifest_limits: ManifestLimits = USUAL_LIMITS,
        probe: Probe = no_probe,
        copy_limit: Callable[[], RateLimit] = RateLimit,
        is_urgent: Callable[[TopicIdPartition], bool] = lambda _: False,
    ) -> None:
        self.metrics = TieringMetrics()
        self.settings = settings
        self._store = store
        self._cluster_id = cluster_id
        self._catalog = catalog
        self._partitions = partitions
        self._find = find
        self._topics = topics
        self._owner: PrefixOwner = owner or SoleOwner(self._offset)
        self._clock = clock = world.clock
        self._random = world.random
        self._pool = OffloadPool(
            world.threads, settings.copier_threads + 1, settings.watchdog_ms, self.metrics
        )
        self._free = [2 * settings.copier_threads, settings.copier_threads]
        """free slots in the lanes of HEAD comparisons and of all other tasks"""
        self._queue: WorkQueue[Key] = WorkQueue(len(self._free), clock.monotonic_ms())
        self._breaker = _breaker(settings)
        self._blocked_until_ms: int | None = None
        """when the breaker lets a partition try, where one waits for that"""
        self._commits = CommitQueue(catalog)
        self._writer = writer
        self._chains = ChainStore(
            store, cluster_id, world,
            stamps=self._stamp, limits=manifest_limits, is_conditional=is_conditional,
        )  # fmt: skip
        self._fence = Fence(
            store, cluster_id, writer, clock, self._pool, self._owner,
            is_conditional=is_conditional,
        )  # fmt: skip
        self._eraser = Eraser(
            store, self._chains, catalog, self._pool, self._fence, self.metrics, clock, settings.grace_ms,
            self._backoff,
        )  # fmt: skip
        self._context = self._new_context(world, probe, copy_limit, is_urgent)
        self._archivers: dict[Key, PartitionArchiver] = {}
        self._busy: set[Key] = set()
        self._unchecked: set[Key] = set()
        """partitions whose HEAD was not compared since the start, nor failed to be"""
        self._had_compared_all = False
        self._is_all_dirty = True
        """every partition is to be assessed: at the start, and when all may have changed"""
        self._wake = asyncio.Event()
        self._compared = asyncio.Event()
        self._maintenance = self._new_maintenance(
            self._new_metadata_copies(metadata, world), self._new_sweeper()
        )
        self._task: asyncio.Task[None] | None = None

    def _new_context(
        self,
        world: World,
        probe: Probe,
        copy_limit: Callable[[], RateLimit],
        is_urgent: Callable[[TopicIdPartition], bool],
    ) -> TieringContext:
        return TieringContext(
            cluster_id=self._cluster_id,
            store=self._store,
            chains=self._chains,
            catalog=self._catalog,
            commits=self._commits,
            pool=self._pool,
            eraser=self._eraser,
            clock=self._clock,
            settings=self.settings,
            metrics=self.metrics,
            new_uuid=world.new_uuid,
            stamps=self._stamp,
            probe=probe,
            fence=self._fence,
            store_clock=StoreClock(self._store, world),
            copy_rate=Rate(copy_limit),
            is_urgent=is_urgent,
        )

    def _new_maintenance(self, metadata: MetadataCopies, sweeper: Sweeper) -> BucketMaintenance:
        host = MaintenanceHost(self._has_compared_all, self._store_pause_ms, self._backoff, self.wake)
        own = self._writer.incarnation
        return BucketMaintenance(self._context, self._owner, self._topics, metadata, sweeper, host, own)

    def _new_metadata_copies(
        self, metadata: Callable[[], MetadataSnapshot | None], world: World
    ) -> MetadataCopies:
        return MetadataCopies(
            self._store,
            self._cluster_id,
            self._writer,
            metadata,
            world.new_uuid,
            self._pool,
            self._fence,
            self._clock,
            self.settings.metadata_interval_ms,
        )

    def _new_sweeper(self) -> Sweeper:
        return Sweeper(
            self._store,
            self._chains,
            self._catalog,
            self._pool,
            self._eraser,
            self._fence,
            self.metrics,
            self._leadership,
            self._live_topics,
            self.settings.grace_ms,
        )

    def _stamp(self) -> Stamp:
        return Stamp(self._clock.now_ms(), self._writer)

    # -- what the node calls ---------------------------------------------------------------------------------

    def start(self) -> asyncio.Task[None]:
        """Start the task. It ends only when it is stopped, or with the error that must end the node."""
        self._task = asyncio.create_task(self.run(), name="tiering")
        return self._task

    async def stop(self) -> None:
        """End all work; unfinished work leaves orphans, or is settled by the catalog after the next start."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        await self._commits.close()
        await self._pool.close(self.settings.stop_timeout_ms)

    def wake(self) -> None:
        """Have all partitions assessed: any of them may have changed."""
        self._is_all_dirty = True
        self._wake.set()

    def changed(self, topic_id: UUID, partition: int) -> None:
        """Have a partition assessed: it was added or removed, or has another leader, entry or settings.

        Work under way for a partition that this node does not lead any more ends before its next effect.
        """
        archiver = self._archivers.get((topic_id, partition))
        if archiver is not None and self._find(topic_id, partition) is not archiver.partition:
            archiver.depose()
        self._mark_dirty((topic_id, partition))

    def _mark_dirty(self, key: Key) -> None:
        self._queue.mark_dirty(key)
        self._wake.set()

    def topics_changed(self) -> None:
        """Report that the image has other topics or settings, as `BucketMaintenance.topics_changed`."""
        self._maintenance.topics_changed()

    def topics_deleted(self) -> None:
        """Report that the image has other tombstones: their topics are deleted after the grace period."""
        self._maintenance.topics_deleted()

    @property
    def may_delete_local(self) -> bool:
        """True while local bytes may be deleted because the bucket has them: the prefix is known to be the
        cluster's."""
        return self._fence.may_write and self.metrics.waits is None

    @property
    def may_write(self) -> bool:
        """True while this process may write to the prefix: it is the keeper, or was named by it."""
        return self._fence.may_write

    def set_claim(self, why_not: str | None, *, is_conditional: bool = True) -> None:
        """Set why the prefix is not known to be this cluster's; None: it is. Nothing is written to it until
        then."""
        self._fence.unclaimed, self._fence.is_conditional = why_not, is_conditional
        self._maintenance.election.wake()

    async def heads_compared(self) -> None:
        """Return once every HEAD was compared since the start, or its first comparison failed."""
        while not self._has_compared_all():
            self._compared.clear()
            await self._compared.wait()

    def _has_compared_all(self) -> bool:
        return not self._is_all_dirty and not self._unchecked

    # -- scheduling ------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._maintenance.run(), name="tiering-maintenance")
            tasks.create_task(self._maintenance.election.run(), name="tiering-election")
            while True:
                self._wake.clear()
                await self._pass(tasks)
                await self._pause(self._wake, self._next_pass_ms())

    async def _pause(self, event: asyncio.Event, until_ms: int | None) -> None:
        now_ms = self._clock.monotonic_ms()
        try:
            async with asyncio.timeout(None if until_ms is None else max(0, until_ms - now_ms) / 1000):
                await event.wait()
        except TimeoutError:
            return

    def _next_pass_ms(self) -> int | None:
        due = [at for at in (self._queue.next_due_ms, self._blocked_until_ms) if at is not None]
        return min(due, default=None)

    async def _pass(self, tasks: asyncio.TaskGroup) -> None:
        """Assess the partitions that are dirty or due, a slice at a time, and start the tasks that are
        ready."""
        piece = Slice()
        if self._is_all_dirty:
            await self._mark_all_dirty(piece)
        while (key := self._queue.pop_dirty(self._clock.monotonic_ms())) is not None:
            self._assess(key)
            if piece.charge(_ASSESS_US):
                self._start_ready(tasks)
                await piece.next_turn()
        self._start_ready(tasks)
        self._compared.set()
        if not self._fence.may_write and not self._had_compared_all and self._has_compared_all():
            self._had_compared_all = True
            self._maintenance.election.wake()  # the prefix may be taken over now

    async def _mark_all_dirty(self, piece: Slice) -> None:
        """Have every partition assessed, also those that were added or removed without a call of
        `changed`."""
        self._is_all_dirty = False
        for one in self._partitions():
            key = (one.tip.topic_id, one.tip.partition)
            if key not in self._archivers:
                self._unchecked.add(key)
            self._queue.mark_dirty(key)
            if piece.charge(1):
                await piece.next_turn()
        for key in list(self._archivers):
            self._queue.mark_dirty(key)

    def _assess(self, key: Key) -> None:
        """Put `key` where it belongs: ready, delayed, or nowhere. A busy one is marked dirty when its task
        ends."""
        partition, archiver = self._find(*key), self._archivers.get(key)
        if archiver is not None and (archiver.is_deposed or archiver.partition is not partition):
            self._remove(key, archiver)
            archiver = None
        if partition is None:
            self._unchecked.discard(key)
            return
        if archiver is None:
            archiver = self._archivers[key] = PartitionArchiver(partition, self._context)
            partition.log.sealed.watch(partial(self._mark_dirty, key))
            self._unchecked.add(key)
        if key in self._busy:
            return
        now_ms = self._clock.monotonic_ms()
        if (until_ms := archiver.retries.waits_until(Task.PLAN, now_ms)) is not None:
            self._queue.add_delayed(key, until_ms)
            return
        try:
            priority = archiver.assess()
            self._succeeded(archiver, Task.PLAN)
        except (StorageError, CorruptionError) as e:
            priority, archiver.due_ms = None, now_ms + self._failed(archiver, Task.PLAN, e)
        if (
            archiver.has_compared_head
            or archiver.retries.count(Task.COMPARE_HEAD)
            or archiver.retries.count(Task.PLAN)
        ):
            self._unchecked.discard(key)
        if priority is None:
            self._queue.add_delayed(key, archiver.due_ms)
        else:
            self._queue.add_ready(key, _HEAD_CHECKS if archiver.must_compare_head else _TASKS, priority)

    def _remove(self, key: Key, archiver: PartitionArchiver) -> None:
        """Remove the archiver: this node does not lead the partition any more, or leads it as a new
        object."""
        del self._archivers[key]
        archiver.depose()
        archiver.partition.log.sealed.watch(None)
        if key not in self._busy:
            archiver.abandon()

    def _start_ready(self, tasks: asyncio.TaskGroup) -> None:
        """Start ready tasks in free slots, as far as the breaker allows."""
        self._blocked_until_ms = None
        for lane in (_HEAD_CHECKS, _TASKS):
            while self._free[lane] and self._queue.ready_count(lane):
                now_ms = self._clock.monotonic_ms()
                if wait_ms := self._breaker.wait_ms(now_ms):
                    self._blocked_until_ms = now_ms + wait_ms
                    return
                key = self._queue.pop_ready(lane)
                assert key is not None
                archiver = self._archivers[key]
                if archiver.is_deposed:
                    continue  # it is dirty: the next pass removes it
                self._busy.add(key)
                self._free[lane] -= 1
                tasks.create_task(
                    self._run_task(key, archiver, lane), name=f"tiering-{archiver.partition.tip}"
                )

    async def _run_task(self, key: Key, archiver: PartitionArchiver, lane: int) -> None:
        """Run one task of one partition."""
        began_ms = self._clock.monotonic_ms()
        try:
            await archiver.run_once()
        except Displaced as e:
            self._maintenance.election.note_displaced(e)
        except NotNamed:
            self._maintenance.election.wake()  # the keeper has to name this node again
        except Deposed:
            self._maintenance.wake()
        except (StorageError, CorruptionError, RequestError) as e:
            if not archiver.is_deposed:
                self._note_results(archiver, e)
            self._update_breaker(key, e, began_ms)
        else:
            self._note_results(archiver, None)
            self._update_breaker(key, None, began_ms)
            self._maintenance.wake()
        finally:
            self._free[lane] += 1
            self._busy.discard(key)
            if archiver.is_deposed:
                archiver.abandon()
            self._mark_dirty(key)

    def _update_breaker(self, key: Key, error: FirnError | None, began_ms: int) -> None:
        """Record in the breaker how a task ended."""
        if not (is_failure(error) or isinstance(error, Stalled)):
            if self._breaker.answered():
                log.info("the store answers again")
                self.metrics.store = None
            return
        opened = self._breaker.failed(
            error,
            key,
            began_ms=began_ms,
            now_ms=self._clock.monotonic_ms(),
            uniform=self._random.random(),
        )
        if opened:
            self.metrics.store = f"calls to the store are suspended: {error}"
            self.metrics.store_opened = self._breaker.opened
            if self._breaker.pauses & (self._breaker.pauses - 1) == 0:
                log.warning(
                    "calls to the store are suspended, %d times in a row: %s", self._breaker.pauses, error
                )

    def _note_results(self, archiver: PartitionArchiver, error: FirnError | None) -> None:
        """Record how each task of a run ended, the last one with `error`."""
        *done, last = archiver.begun
        for task in done:
            self._succeeded(archiver, task)
        if error is None:
            self._succeeded(archiver, last)
        else:
            self._failed(archiver, last, error)

    def _failed(self, archiver: PartitionArchiver, task: Task, error: FirnError) -> int:
        """Count the failure and log the first one and every doubling; return how long the task waits.

        An outage must not fill the disk with log lines.
        """
        tip, count = archiver.partition.tip, archiver.retries.count(task) + 1
        wait_ms = self._backoff(count)
        archiver.retries.failed(
            task, str(error), now_ms=self._clock.monotonic_ms(), wait_ms=wait_ms, wall_ms=self._clock.now_ms()
        )
        self.metrics.failing[task, tip] = str(error)
        if not isinstance(error, CommitRefused):
            self.metrics.task_errors[task] += 1
        if count & (count - 1) == 0 or isinstance(error, CorruptionError):
            log.warning(
                "%s: tiering cannot %s, failed %d times in a row, next try in %d ms: %s",
                tip, task.value, count, wait_ms, error,
            )  # fmt: skip
        return wait_ms

    def _succeeded(self, archiver: PartitionArchiver, task: Task) -> None:
        if archiver.retries.succeeded(task):
            self.metrics.failing.pop((task, archiver.partition.tip), None)
            log.info("%s: tiering can %s again", archiver.partition.tip, task.value)

    def _backoff(self, failures: int) -> int:
        settings = self.settings
        pause_ms = backoff(
            failures,
            first=settings.backoff_initial_ms,
            longest=settings.backoff_max_ms,
            jitter=settings.backoff_jitter,
            uniform=self._random.random(),
        )
        return round(pause_ms)

    # -- callbacks of the parts ------------------------------------------------------------------------------

    def _store_pause_ms(self, now_ms: int) -> int:
        """Return how long the breaker still keeps calls from the store."""
        return self._breaker.wait_ms(now_ms) if self._breaker.refuses(now_ms) else 0

    def _offset(self) -> int:
        snapshot = self._topics()
        return snapshot.metadata_offset if snapshot is not None else -1

    def _live_topics(self) -> Collection[UUID] | None:
        snapshot = self._topics()
        return snapshot.ids if snapshot is not None else None

    def _leadership(self, topic_id: UUID, partition: int) -> PartitionLeadership | None:
        archiver = self._archivers.get((topic_id, partition))
        epoch = self._owner.leader_epoch(topic_id, partition)
        if (
            archiver is not None
            and not archiver.is_deposed
            and epoch in (None, archiver.partition.leader_epoch)
        ):
            return PartitionLeadership(archiver.partition.leader_epoch, is_ours=True)
        return PartitionLeadership(epoch, is_ours=False) if epoch is not None else None


def _breaker(settings: TieringSettings) -> Breaker:
    """Return the store's breaker, with the back-off of partitions."""
    return Breaker(
        BreakerSettings(
            first_pause_ms=settings.backoff_initial_ms,
            longest_pause_ms=settings.backoff_max_ms,
            jitter=settings.backoff_jitter,
        )
    )
