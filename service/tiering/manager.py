"""Runs the tiering of all partitions of a node: who works when, retries, housekeeping, start and stop.

One asyncio task. It looks at every partition once per interval, and sooner when somebody wakes it, starts a
task for each one that has work to do, and lets at most `copier_threads` of them work at a time, the one
that has waited longest first; looks at HEAD, which appends wait for after a start, wait for no upload. A
partition whose work fails backs off alone. Beside them one housekeeper takes the prefix over, deletes what
is due, sweeps, and writes `topics.json`. An error that is neither the store's nor the data's is a bug and
ends `run`, and so the node.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from uuid import UUID

from service.base.errors import CorruptionError, FirnError, RequestError, StorageError
from service.base.world import World
from service.remote.catalog import Catalog
from service.remote.format.manifest import Limits
from service.remote.format.stamp import Stamp, Writer
from service.remote.stores.errors import StoreRefused
from service.remote.stores.store import ObjectStore
from service.tiering.backoff import backoff_ms
from service.tiering.chain import ChainStore
from service.tiering.commits import CommitQueue
from service.tiering.eraser import Eraser
from service.tiering.fence import Displaced, Fence
from service.tiering.metadata_copy import MetadataCopies, MetadataSnapshot
from service.tiering.metrics import TieringMetrics
from service.tiering.offload import OffloadPool
from service.tiering.partition_work import CommitRefused, PartitionWork, Tools
from service.tiering.ports import AbandonedUploads, TieredPartition, TieringSettings
from service.tiering.shared_objects import Refusal, TopicsSnapshot, compare_topics, write_topics
from service.tiering.slots import PrioritySlots
from service.tiering.steps import Probe, no_probe
from service.tiering.store_clock import StoreClock
from service.tiering.sweeper import Sweeper

log = logging.getLogger(__name__)

Key = tuple[UUID, int]


class TieringManager:
    """Tiering of one node. Owned by the event loop.

    `writer` is this process, which is told in all that is written. `partitions` gives those that this node
    leads, whenever it is asked; `topics` the topics of the committed image, or None while this node is not
    the one to write `topics.json`. `is_conditional` says that the store honours conditional
    writes; `is_recovered` that the metadata has just taken over what the bucket says.
    `abandoned_uploads` is for stores that keep unfinished multipart uploads for ever.
    """

    def __init__(
        self,
        store: ObjectStore,
        catalog: Catalog,
        *,
        cluster_id: str,
        writer: Writer,
        partitions: Callable[[], Iterable[TieredPartition]],
        topics: Callable[[], TopicsSnapshot | None],
        world: World,
        metadata: Callable[[], MetadataSnapshot | None] = lambda: None,
        is_conditional: bool = True,
        is_recovered: bool = False,
        abandoned_uploads: AbandonedUploads | None = None,
        settings: TieringSettings = TieringSettings(),  # noqa: B008  # immutable
        manifest_limits: Limits = Limits(),  # noqa: B008  # immutable
        probe: Probe = no_probe,
    ) -> None:
        self.metrics = TieringMetrics()
        self.settings = settings
        self._store = store
        self._cluster_id = cluster_id
        self._catalog = catalog
        self._is_conditional = is_conditional
        self._is_recovered = is_recovered
        self._partitions = partitions
        self._topics = topics
        self._clock = clock = world.clock
        self._random = world.random
        self._pool = OffloadPool(
            world.threads, settings.copier_threads + 1, settings.watchdog_ms, self.metrics
        )
        self._slots = PrioritySlots(settings.copier_threads)
        self._looks = PrioritySlots(2 * settings.copier_threads)
        self._commits = CommitQueue(catalog)
        self._writer = writer
        self._chains = ChainStore(
            store,
            cluster_id,
            world,
            stamps=self._stamp,
            limits=manifest_limits,
            is_conditional=is_conditional,
        )
        self._fence = Fence(store, cluster_id, writer, clock, self._pool, is_conditional=is_conditional)
        self._eraser = Eraser(
            store, self._chains, catalog, self._pool, self._fence, self.metrics, clock, settings.grace_ms
        )
        self._tools = self._tools_of_partitions(world, probe)
        self._sweeper = self._new_sweeper(abandoned_uploads)
        self._works: dict[Key, PartitionWork] = {}
        self._busy: set[Key] = set()
        self._wake = asyncio.Event()
        self._looked = asyncio.Event()
        self._housekeeping = asyncio.Event()
        self._topics_due_ms: int | None = clock.monotonic_ms()
        self._is_topics_file_ours = False
        """whether what lies there is no more than this process knows: compared, or written by it"""
        self._told: dict[str, str] = {}
        self._sweep_due_ms = clock.monotonic_ms() + settings.sweep_interval_ms
        self._heads_due_ms = clock.monotonic_ms() + self._heads_interval_ms
        self._metadata = MetadataCopies(
            store,
            cluster_id,
            writer,
            metadata,
            world.new_uuid,
            self._pool,
            self._fence,
            clock,
            settings.metadata_interval_ms,
        )
        self._house_failures = 0
        self._house_not_before_ms = 0
        self._task: asyncio.Task[None] | None = None

    def _tools_of_partitions(self, world: World, probe: Probe) -> Tools:
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
            self._leader_epoch,
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
        """Look at the partitions now: a segment was sealed, a leader changed, a setting was altered."""
        self._wake.set()

    def topics_changed(self) -> None:
        """The image has other topics or settings: `topics.json` is written when it has been quiet for a
        moment."""
        self._topics_due_ms = self._clock.monotonic_ms() + self.settings.topics_debounce_ms
        self._metadata.changed(self.settings.metadata_debounce_ms)
        self._housekeeping.set()

    def topics_deleted(self) -> None:
        """The image has other tombstones: what they name is deleted after the grace period."""
        self._eraser.schedule_deleted(self._catalog.tombstones())
        self._housekeeping.set()

    async def heads_compared(self) -> None:
        """Return once every HEAD was looked at since the start, or could not be, the first time."""
        while not self._has_looked():
            self._looked.clear()
            await self._looked.wait()

    def _has_looked(self) -> bool:
        current = {(one.tip.topic_id, one.tip.partition) for one in self._partitions()}
        works = [work for key, work in self._works.items() if key in current]
        return len(works) == len(current) and all(work.was_looked_at or work.failures for work in works)

    # -- scheduling ------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_house(), name="tiering-housekeeper")
            while True:
                self._wake.clear()
                self._dispatch(tasks)
                self._looked.set()
                await self._pause(self._wake, self._next_look_ms())

    async def run_once(self) -> None:
        """Do all there is to do now, housekeeping included, and return."""
        async with asyncio.TaskGroup() as tasks:
            self._dispatch(tasks)
        if not self._fence.is_ours:
            await self._house_round()
            async with asyncio.TaskGroup() as tasks:
                self._dispatch(tasks)
        await self._house_round()

    async def _pause(self, event: asyncio.Event, until_ms: int) -> None:
        try:
            async with asyncio.timeout(max(0, until_ms - self._clock.monotonic_ms()) / 1000):
                await event.wait()
        except TimeoutError:
            return

    def _next_look_ms(self) -> int:
        now_ms = self._clock.monotonic_ms()
        retries = [work.not_before_ms for work in self._works.values() if work.not_before_ms > now_ms]
        return min([now_ms + self.settings.interval_ms, *retries])

    def _dispatch(self, tasks: asyncio.TaskGroup) -> None:
        """Start a task for every partition that has something to do, is not at it already and may try."""
        now_ms = self._clock.monotonic_ms()
        current = {(one.tip.topic_id, one.tip.partition): one for one in self._partitions()}
        for key in [key for key, work in self._works.items() if current.get(key) is not work.partition]:
            gone = self._works.pop(key)
            if key not in self._busy:
                gone.abandon()
        self.metrics.lag_segments = self.metrics.lag_bytes = 0
        self.metrics.oldest_sealed_ms = None
        self.metrics.blocked = {}
        self.metrics.stopped = {}
        for key, partition in current.items():
            work = self._works.get(key)
            if work is None:
                work = self._works[key] = PartitionWork(partition, self._tools)
            if key in self._busy:
                self._count_lag(work)
                continue
            priority = work.assess()
            self._count_lag(work)
            if priority is not None and work.not_before_ms <= now_ms:
                self._busy.add(key)
                tasks.create_task(self._work(key, work), name=f"tiering-{partition.tip}")

    def _count_lag(self, work: PartitionWork) -> None:
        if work.stopped is not None:
            self.metrics.stopped[work.partition.tip] = work.stopped
        if work.plan is not None:
            self.metrics.lag_segments += work.plan.lag_segments
            self.metrics.lag_bytes += work.plan.lag_bytes
            if work.plan.copies:
                oldest, so_far = work.plan.copies[0].segment.sealed_at_ms, self.metrics.oldest_sealed_ms
                self.metrics.oldest_sealed_ms = oldest if so_far is None else min(so_far, oldest)
            if work.plan.blocked is not None:
                self.metrics.blocked[work.partition.tip] = work.plan.blocked

    async def _work(self, key: Key, work: PartitionWork) -> None:
        """Units of work of one partition until there is none left, one fails, or the partition has gone."""
        try:
            while self._works.get(key) is work and (priority := work.assess()) is not None:
                slots = self._looks if work.is_to_be_looked_at else self._slots
                async with slots.place(priority):
                    await work.turn()
                work.failures = 0
                self._looked.set()
                self._housekeeping.set()
        except Displaced as e:
            self._displaced(e)
        except (StorageError, CorruptionError, RequestError) as e:
            self._failed(work, e)
        finally:
            self._busy.discard(key)
            self._looked.set()
            if self._works.get(key) is not work:
                work.abandon()
                self._wake.set()

    def _failed(self, work: PartitionWork, error: FirnError) -> None:
        work.failures += 1
        wait_ms = self._backoff(work.failures)
        work.not_before_ms = self._clock.monotonic_ms() + wait_ms
        if not isinstance(error, CommitRefused):
            self.metrics.errors += 1
        # One line for the first failure and for every doubling: an outage must not fill the disk with log
        # lines.
        if work.failures & (work.failures - 1) == 0 or isinstance(error, (CorruptionError, StoreRefused)):
            log.warning(
                "%s: offload failed %d times in a row, next try in %d ms: %s",
                work.partition.tip, work.failures, wait_ms, error,
            )  # fmt: skip
        self._wake.set()

    def _backoff(self, failures: int) -> int:
        settings = self.settings
        return backoff_ms(
            failures,
            initial_ms=settings.backoff_initial_ms,
            max_ms=settings.backoff_max_ms,
            jitter=settings.backoff_jitter,
            uniform=self._random.random(),
        )

    # -- housekeeping ----------------------------------------------------------------------------------------

    async def _keep_house(self) -> None:
        while True:
            self._housekeeping.clear()
            await self._house_round()
            due: list[int | None] = [self._clock.monotonic_ms() + self._heads_interval_ms]
            if self._fence.displaced is None:
                due.append(self._heads_due_ms)
            if self._fence.is_ours:
                due += [self._sweep_due_ms, self._eraser.next_due_ms, self._topics_due_ms]
                due.append(self._metadata.due_ms)
            soonest = min(at for at in due if at is not None)
            await self._pause(self._housekeeping, max(soonest, self._house_not_before_ms))

    async def _house_round(self) -> None:
        """Whatever is due, each by itself; a failure is logged, counted and tried again later."""
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._house_not_before_ms or self._fence.displaced is not None:
            return
        failures: list[FirnError] = []
        if not self._fence.is_ours:
            await self._attempt(self._take_over, failures)
        if self._fence.is_ours:
            if self._topics_due_ms is not None and now_ms >= self._topics_due_ms:
                await self._attempt(self._write_topics, failures)
            await self._attempt(partial(self._metadata.run_due, now_ms), failures)
            await self._attempt(partial(self._eraser.run_due, now_ms), failures)
            if now_ms >= self._sweep_due_ms:
                await self._attempt(self.sweep, failures)
        if now_ms >= self._heads_due_ms:
            self._doubt_heads(now_ms)
        if not failures:
            self._house_failures = 0
            return
        self._house_failures += 1
        self._house_not_before_ms = now_ms + self._backoff(self._house_failures)
        self.metrics.delete_errors += 1
        if self._house_failures & (self._house_failures - 1) == 0:
            for error in failures:
                log.warning("housekeeping of the bucket failed, %d in a row: %s", self._house_failures, error)

    async def _attempt(self, step: Callable[[], Awaitable[object]], failures: list[FirnError]) -> None:
        try:
            await step()
        except Displaced as e:
            self._displaced(e)
        except (StorageError, CorruptionError, RequestError) as e:
            failures.append(e)

    def _displaced(self, error: Displaced) -> None:
        """Never again: whoever displaced this process knows what is live, and we do not."""
        if self.metrics.displaced is None:
            self.metrics.displaced = str(error)
            log.error("%s", error)

    async def _take_over(self) -> None:
        """Become the writer of the prefix, once every HEAD was looked at and none is ahead of our metadata.

        A node whose past is older than the bucket does not displace the one that wrote it.
        """
        # One whose HEAD cannot be read holds up no other; it is looked at before anything of it is written.
        if not self._has_looked():
            return
        stopped = [str(work.partition.tip) for work in self._works.values() if work.stopped is not None]
        if stopped:
            self._tell_once(
                "take-over",
                f"the bucket is ahead of this node's metadata in {len(stopped)} partitions "
                f"({', '.join(stopped[:5])}): nothing is copied, expired or swept by this node",
            )
            return
        snapshot = self._topics()
        refusal: Refusal | None = None
        if snapshot is not None:
            refusal = await self._pool.run(
                compare_topics,
                self._store,
                self._cluster_id,
                snapshot,
                self._deleted(),
                self._is_recovered,
            )
            if refusal is not None and refusal.is_behind:
                self._refused(refusal)
                return
        await self._fence.take_over(is_recovered=self._is_recovered)
        self._is_topics_file_ours = snapshot is not None and refusal is None
        self._told.pop("take-over", None)
        self._eraser.schedule_deleted(self._catalog.tombstones())
        self._wake.set()

    def _deleted(self) -> frozenset[UUID]:
        return frozenset(self._catalog.tombstones())

    def _tell_once(self, about: str, what: str) -> None:
        if self._told.get(about) != what:
            self._told[about] = what
            log.error("%s", what)

    def _refused(self, refusal: Refusal) -> None:
        self._tell_once("topics.json", f"topics.json is left as it is: {refusal.why}")

    async def sweep(self) -> int:
        """Look for orphans now; how many were deleted."""
        now_ms = self._clock.monotonic_ms()
        self._sweep_due_ms = now_ms + self.settings.sweep_interval_ms
        return await self._sweeper.sweep(now_ms)

    @property
    def _heads_interval_ms(self) -> int:
        """Short enough that no HEAD names a manifest whose grace is over."""
        return max(self.settings.interval_ms, self.settings.grace_ms // 2)

    def _doubt_heads(self, now_ms: int) -> None:
        """Have every HEAD looked at again.

        A request that timed out, ours or a fenced leader's, may have arrived late and put an older one there.
        """
        self._heads_due_ms = now_ms + self._heads_interval_ms
        for work in self._works.values():
            work.doubt_head()
        self._wake.set()

    async def _write_topics(self) -> None:
        due_ms, self._topics_due_ms = self._topics_due_ms, None
        try:
            snapshot = self._topics()
            if snapshot is None:
                return
            await self._fence.check(self.settings.fence_age_ms)
            refusal = await self._pool.run(
                write_topics,
                self._store,
                self._cluster_id,
                snapshot,
                self._stamp(),
                self._deleted(),
                is_conditional=self._is_conditional,
                is_recovered=self._is_recovered,
                is_ours=self._is_topics_file_ours,
            )
        except StorageError:
            self._topics_due_ms = due_ms
            raise
        if refusal is not None:
            self._refused(refusal)
        else:
            self._is_recovered = False  # from now on the bucket's offsets are ours
            self._is_topics_file_ours = True

    def _live_topics(self) -> frozenset[UUID] | None:
        snapshot = self._topics()
        return snapshot.ids if snapshot is not None else None

    def _leader_epoch(self, topic_id: UUID, partition: int) -> int | None:
        work = self._works.get((topic_id, partition))
        return work.partition.leader_epoch if work is not None else None
