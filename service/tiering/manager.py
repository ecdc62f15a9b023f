"""Runs the tiering of all partitions of a node: who works when, retries, housekeeping, start and stop.

One asyncio task, woken by events: a segment was sealed, a partition came or went, its settings or its entry
changed, its time has come (`agenda`). It assesses those partitions and no others, a slice at a time, and
starts an asyncio task for each task of a partition: at most `copier_threads` at a time, the one that has
waited longest first, those that have failed after the others; looks at HEAD, which appends wait for after a
start, wait for no upload. A task that fails backs off alone (`tasks`). When the store fails it is left alone
by all (`Breaker`): then one partition at a time tries.
Beside them `housekeeping` sees to what the brokers of a cluster share. An error that is neither the store's
nor the data's is a bug and ends `run`, and so the node.
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
from service.remote.format.manifest import USUAL_LIMITS, Limits
from service.remote.format.stamp import Stamp, Writer
from service.remote.stores.breaker import Breaker, BreakerSettings, is_failure
from service.remote.stores.store import ObjectStore
from service.tiering.archive_attempt import CommitRefused, Deposed, Tools
from service.tiering.bucket_maintenance import Host, Housekeeping
from service.tiering.chain import ChainStore
from service.tiering.commits import CommitQueue
from service.tiering.eraser import Eraser
from service.tiering.fence import Displaced, Fence, NotNamed
from service.tiering.metadata_copy import MetadataCopies, MetadataSnapshot
from service.tiering.metrics import TieringMetrics
from service.tiering.offload import OffloadPool, Stalled
from service.tiering.partition_archiver import PartitionWork
from service.tiering.ports import AbandonedUploads, House, TieredPartition, TieringSettings
from service.tiering.shared_objects import TopicsSnapshot
from service.tiering.sole_owner import Alone
from service.tiering.steps import Probe, no_probe
from service.tiering.store_clock import StoreClock
from service.tiering.sweeper import Standing, Sweeper
from service.tiering.tasks import Task
from service.tiering.work_queue import Agenda

log = logging.getLogger(__name__)

Key = tuple[UUID, int]

_LOOKS: Final = 0
_WORK: Final = 1
_ASSESS_US: Final = 40
"""What it takes to assess a partition."""


class TieringManager:
    """Tiering of one node. Owned by the event loop.

    `writer` is this process, which is told in all that is written; in a cluster its incarnation is that of
    its registration. `house` are the brokers that share the prefix, None where there is this node alone.
    `partitions` gives those that this node leads, `find` one of them, whenever they are asked; `changed` is
    to be called when one came or went, or is led by another; `topics` the topics of the committed image.
    `is_conditional` says that the store honours conditional
    writes.
    `abandoned_uploads` is for stores that keep unfinished multipart uploads for ever. `hurries`: as in
    `Tools`; `wake` has it asked again.
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
        house: House | None = None,
        metadata: Callable[[], MetadataSnapshot | None] = lambda: None,
        is_conditional: bool = True,
        abandoned_uploads: AbandonedUploads | None = None,
        settings: TieringSettings = TieringSettings(),  # noqa: B008  # immutable
        manifest_limits: Limits = USUAL_LIMITS,
        probe: Probe = no_probe,
        copy_limit: Callable[[], RateLimit] = RateLimit,
        hurries: Callable[[TopicIdPartition], bool] = lambda _: False,
    ) -> None:
        self.metrics = TieringMetrics()
        self.settings = settings
        self._store = store
        self._cluster_id = cluster_id
        self._catalog = catalog
        self._partitions = partitions
        self._find = find
        self._topics = topics
        self._house: House = house or Alone(self._offset)
        self._clock = clock = world.clock
        self._random = world.random
        self._pool = OffloadPool(
            world.threads, settings.copier_threads + 1, settings.watchdog_ms, self.metrics
        )
        self._free = [2 * settings.copier_threads, settings.copier_threads]
        """places in the lanes for looks and for all else"""
        self._agenda: Agenda[Key] = Agenda(len(self._free), clock.monotonic_ms())
        self._breaker = _breaker(settings)
        self._blocked_until_ms: int | None = None
        """when the breaker lets somebody try, where anybody waits for that"""
        self._commits = CommitQueue(catalog)
        self._writer = writer
        self._chains = ChainStore(
            store, cluster_id, world,
            stamps=self._stamp, limits=manifest_limits, is_conditional=is_conditional,
        )  # fmt: skip
        self._fence = Fence(
            store, cluster_id, writer, clock, self._pool, self._house,
            is_conditional=is_conditional,
        )  # fmt: skip
        self._eraser = Eraser(
            store, self._chains, catalog, self._pool, self._fence, self.metrics, clock, settings.grace_ms,
            self._backoff,
        )  # fmt: skip
        self._tools = self._tools_of_partitions(world, probe, copy_limit, hurries)
        self._works: dict[Key, PartitionWork] = {}
        self._busy: set[Key] = set()
        self._unlooked: set[Key] = set()
        """those whose HEAD was neither compared since the start nor tried to be"""
        self._had_looked = False
        self._is_all_news = True
        """every partition is to be assessed: at the start, and when all may have changed"""
        self._wake = asyncio.Event()
        self._looked = asyncio.Event()
        self._housekeeping = self._new_housekeeping(
            self._new_metadata_copies(metadata, world), self._new_sweeper(abandoned_uploads)
        )
        self._task: asyncio.Task[None] | None = None

    def _tools_of_partitions(
        self,
        world: World,
        probe: Probe,
        copy_limit: Callable[[], RateLimit],
        hurries: Callable[[TopicIdPartition], bool],
    ) -> Tools:
        return Tools(
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
            hurries=hurries,
        )

    def _new_housekeeping(self, metadata: MetadataCopies, sweeper: Sweeper) -> Housekeeping:
        host = Host(self._has_looked, self._store_pause_ms, self._backoff, self.wake)
        own = self._writer.incarnation
        return Housekeeping(self._tools, self._house, self._topics, metadata, sweeper, host, own)

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

    def _new_sweeper(self, abandoned_uploads: AbandonedUploads | None) -> Sweeper:
        return Sweeper(
            self._store,
            self._chains,
            self._catalog,
            self._pool,
            self._eraser,
            self._fence,
            self.metrics,
            self._standing,
            self._live_topics,
            self.settings.grace_ms,
            abandoned_uploads,
        )

    def _stamp(self) -> Stamp:
        return Stamp(self._clock.now_ms(), self._writer)

    # -- what the node calls ---------------------------------------------------------------------------------

    def start(self) -> asyncio.Task[None]:
        """Begin. The task ends only when it is stopped, or with the error that must end the node."""
        self._task = asyncio.create_task(self.run(), name="tiering")
        return self._task

    async def stop(self) -> None:
        """End all work; what is half done is an orphan or is found in the catalog after the next start."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        await self._commits.close()
        await self._pool.close(self.settings.stop_timeout_ms)

    def wake(self) -> None:
        """Look at all partitions: what has changed may be of any of them."""
        self._is_all_news = True
        self._wake.set()

    def changed(self, topic_id: UUID, partition: int) -> None:
        """A partition came or went, is led by another, or has another entry, or other settings.

        What is being done for one that this node does not lead any more ends before its next effect.
        """
        work = self._works.get((topic_id, partition))
        if work is not None and self._find(topic_id, partition) is not work.partition:
            work.depose()
        self._tell((topic_id, partition))

    def _tell(self, key: Key) -> None:
        self._agenda.tell(key)
        self._wake.set()

    def topics_changed(self) -> None:
        """The image has other topics or settings. As `Housekeeping.topics_changed`."""
        self._housekeeping.topics_changed()

    def topics_deleted(self) -> None:
        """The image has other tombstones: what they name is deleted after the grace period."""
        self._housekeeping.topics_deleted()

    @property
    def may_let_go(self) -> bool:
        """Whether local bytes may go because the bucket has them: the prefix is known to be the cluster's."""
        return self._fence.may_write and self.metrics.waits is None

    @property
    def may_write(self) -> bool:
        """Whether this process may write to the prefix: it keeps that, or was named by who does."""
        return self._fence.may_write

    def claimed(self, why_not: str | None, *, is_conditional: bool = True) -> None:
        """Nobody writes to the prefix while it is not known to be this cluster's, for `why_not`; None: it
        is."""
        self._fence.unclaimed, self._fence.is_conditional = why_not, is_conditional
        self._housekeeping.office.go_on()

    async def sweep(self) -> int:
        """Look for orphans now; how many were deleted."""
        return await self._housekeeping.sweep()

    async def heads_compared(self) -> None:
        """Return once every HEAD was looked at since the start, or could not be, the first time."""
        while not self._has_looked():
            self._looked.clear()
            await self._looked.wait()

    def _has_looked(self) -> bool:
        return not self._is_all_news and not self._unlooked

    # -- scheduling ------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._housekeeping.run(), name="tiering-housekeeper")
            tasks.create_task(self._housekeeping.office.run(), name="tiering-office")
            while True:
                self._wake.clear()
                await self._pass(tasks)
                await self._pause(self._wake, self._next_pass_ms())

    async def run_once(self) -> None:
        """Do all there is to do now, housekeeping included, and return."""
        await self._run_out()
        could_write = self._fence.may_write
        await self._housekeeping.office.act()
        if not could_write:
            await self._run_out()
        await self._housekeeping.round()

    async def _run_out(self) -> None:
        self.wake()
        async with asyncio.TaskGroup() as tasks:
            while self._wake.is_set() or self._busy:
                await self._wake.wait()
                self._wake.clear()
                await self._pass(tasks)

    async def _pause(self, event: asyncio.Event, until_ms: int | None) -> None:
        now_ms = self._clock.monotonic_ms()
        try:
            async with asyncio.timeout(None if until_ms is None else max(0, until_ms - now_ms) / 1000):
                await event.wait()
        except TimeoutError:
            return

    def _next_pass_ms(self) -> int | None:
        due = [at for at in (self._agenda.next_due_ms, self._blocked_until_ms) if at is not None]
        return min(due, default=None)

    async def _pass(self, tasks: asyncio.TaskGroup) -> None:
        """Assess what was told of or is due, a slice at a time, and start what may go."""
        piece = Slice()
        if self._is_all_news:
            await self._tell_all(piece)
        while (key := self._agenda.take_news(self._clock.monotonic_ms())) is not None:
            self._assess(key)
            if piece.charge(_ASSESS_US):
                self._start_ready(tasks)
                await piece.next_turn()
        self._start_ready(tasks)
        self._looked.set()
        if not self._fence.may_write and not self._had_looked and self._has_looked():
            self._had_looked = True
            self._housekeeping.office.go_on()  # the prefix may be taken over now

    async def _tell_all(self, piece: Slice) -> None:
        """Have every partition assessed, those among them that came or went unnoticed."""
        self._is_all_news = False
        for one in self._partitions():
            key = (one.tip.topic_id, one.tip.partition)
            if key not in self._works:
                self._unlooked.add(key)
            self._agenda.tell(key)
            if piece.charge(1):
                await piece.next_turn()
        for key in list(self._works):
            self._agenda.tell(key)

    def _assess(self, key: Key) -> None:
        """Say where `key` belongs: ready, due later, or nowhere. One that is busy is told of when it ends."""
        partition, work = self._find(*key), self._works.get(key)
        if work is not None and (work.is_gone or work.partition is not partition):
            self._let_go(key, work)
            work = None
        if partition is None:
            self._unlooked.discard(key)
            return
        if work is None:
            work = self._works[key] = PartitionWork(partition, self._tools)
            partition.log.sealed.watch(partial(self._tell, key))
            self._unlooked.add(key)
        if key in self._busy:
            return
        now_ms = self._clock.monotonic_ms()
        if (until_ms := work.retries.waits_until(Task.PLAN, now_ms)) is not None:
            self._agenda.due(key, until_ms)
            return
        try:
            priority = work.assess()
            self._succeeded(work, Task.PLAN)
        except (StorageError, CorruptionError) as e:
            priority, work.due_ms = None, now_ms + self._failed(work, Task.PLAN, e)
        if work.was_looked_at or work.retries.count(Task.COMPARE_HEAD) or work.retries.count(Task.PLAN):
            self._unlooked.discard(key)
        if priority is None:
            self._agenda.due(key, work.due_ms)
        else:
            self._agenda.ready(key, _LOOKS if work.is_to_be_looked_at else _WORK, priority)

    def _let_go(self, key: Key, work: PartitionWork) -> None:
        """This node has the partition no more, or anew."""
        del self._works[key]
        work.depose()
        work.partition.log.sealed.watch(None)
        if key not in self._busy:
            work.abandon()

    def _start_ready(self, tasks: asyncio.TaskGroup) -> None:
        """Give free places to those who are ready, as far as the breaker lets them go."""
        self._blocked_until_ms = None
        for lane in (_LOOKS, _WORK):
            while self._free[lane] and self._agenda.waiting(lane):
                now_ms = self._clock.monotonic_ms()
                if wait_ms := self._breaker.wait_ms(now_ms):
                    self._blocked_until_ms = now_ms + wait_ms
                    return
                key = self._agenda.take_ready(lane)
                assert key is not None
                work = self._works[key]
                if work.is_gone:
                    continue  # it is told of: the next pass lets it go
                self._busy.add(key)
                self._free[lane] -= 1
                tasks.create_task(self._turn(key, work, lane), name=f"tiering-{work.partition.tip}")

    async def _turn(self, key: Key, work: PartitionWork, lane: int) -> None:
        """One task of one partition."""
        began_ms = self._clock.monotonic_ms()
        try:
            await work.turn()
        except Displaced as e:
            self._housekeeping.office.displaced(e)
        except NotNamed:
            self._housekeeping.office.go_on()  # others will say that this node may
        except Deposed:
            self._housekeeping.go_on()
        except (StorageError, CorruptionError, RequestError) as e:
            if not work.is_gone:
                self._note_turn(work, e)
            self._judge_store(key, e, began_ms)
        else:
            self._note_turn(work, None)
            self._judge_store(key, None, began_ms)
            self._housekeeping.go_on()
        finally:
            self._free[lane] += 1
            self._busy.discard(key)
            if work.is_gone:
                work.abandon()
            self._tell(key)

    def _judge_store(self, key: Key, error: FirnError | None, began_ms: int) -> None:
        """Have the breaker know how a unit of work ended."""
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
            self.metrics.store = f"the store is left alone for now: {error}"
            self.metrics.store_opened = self._breaker.opened
            if self._breaker.pauses & (self._breaker.pauses - 1) == 0:
                log.warning("the store is left alone, %d times in a row: %s", self._breaker.pauses, error)

    def _note_turn(self, work: PartitionWork, error: FirnError | None) -> None:
        """Note how each task of a turn ended, the last one with `error`."""
        *done, last = work.begun
        for task in done:
            self._succeeded(work, task)
        if error is None:
            self._succeeded(work, last)
        else:
            self._failed(work, last, error)

    def _failed(self, work: PartitionWork, task: Task, error: FirnError) -> int:
        """Count the failure, and log the first one and every doubling: an outage must not fill the disk with
        log lines. How long the task waits."""
        tip, count = work.partition.tip, work.retries.count(task) + 1
        wait_ms = self._backoff(count)
        work.retries.failed(
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

    def _succeeded(self, work: PartitionWork, task: Task) -> None:
        if work.retries.succeeded(task):
            self.metrics.failing.pop((task, work.partition.tip), None)
            log.info("%s: tiering can %s again", work.partition.tip, task.value)

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

    # -- what housekeeping asks ------------------------------------------------------------------------------

    def _store_pause_ms(self, now_ms: int) -> int:
        """For how long the store is left alone yet."""
        return self._breaker.wait_ms(now_ms) if self._breaker.refuses(now_ms) else 0

    def _offset(self) -> int:
        snapshot = self._topics()
        return snapshot.metadata_offset if snapshot is not None else -1

    def _live_topics(self) -> Collection[UUID] | None:
        snapshot = self._topics()
        return snapshot.ids if snapshot is not None else None

    def _standing(self, topic_id: UUID, partition: int) -> Standing | None:
        work = self._works.get((topic_id, partition))
        epoch = self._house.leader_epoch(topic_id, partition)
        if work is not None and not work.is_gone and epoch in (None, work.partition.leader_epoch):
            return Standing(work.partition.leader_epoch, is_ours=True)
        return Standing(epoch, is_ours=False) if epoch is not None else None


def _breaker(settings: TieringSettings) -> Breaker:
    """One for the store, as patient as partitions are."""
    return Breaker(
        BreakerSettings(
            first_pause_ms=settings.backoff_initial_ms,
            longest_pause_ms=settings.backoff_max_ms,
            jitter=settings.backoff_jitter,
        )
    )
