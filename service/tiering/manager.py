"""Tiering of a node: its parts, their start and stop.

`task_scheduler` runs the tasks of the partitions that this node leads; beside it `bucket_maintenance` does
what the brokers of a cluster share. An error that is neither the store's nor the data's is a bug and ends
`run`, and so the node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from uuid import UUID

from service.base.backoff import backoff
from service.base.errors import FirnError
from service.base.rate import Rate, RateLimit
from service.base.types import TopicIdPartition
from service.base.world import World
from service.remote.catalog import NodeCatalog
from service.remote.format.cut_codec import MetadataEnd
from service.remote.format.manifest import USUAL_LIMITS, ManifestLimits
from service.remote.format.stamp import Stamp, Writer
from service.remote.opened_order import OrderDocuments
from service.remote.stores.store import ObjectStore
from service.tiering.archive_attempt import TieringContext
from service.tiering.bucket_maintenance import BucketMaintenance
from service.tiering.chain import ChainStore
from service.tiering.commits import CommitQueue
from service.tiering.cut_sweep import CutSweep
from service.tiering.cuts.keeper import CutKeeper
from service.tiering.cuts.kept_documents import KeptDocuments
from service.tiering.cuts.needed_chains import NeededChains
from service.tiering.cuts.ports import CutCluster
from service.tiering.cuts.saved_metadata import SavedMetadata
from service.tiering.cuts.saving import TailSaver, TailSettings
from service.tiering.eraser import Eraser
from service.tiering.erasing.bucket_work import BucketWork
from service.tiering.erasing.open_orders import OpenOrders
from service.tiering.erasing.order_keeper import OrderKeeper
from service.tiering.erasing.remains import VersionsOf
from service.tiering.metadata_copy import MetadataCopies, MetadataSnapshot
from service.tiering.metrics import TieringMetrics
from service.tiering.offload_pool import OffloadPool
from service.tiering.ports import PrefixOwner, TieredPartition, TieringSettings
from service.tiering.prefix_fence import Displaced, Fence, NotNamed
from service.tiering.rewriting.making import ObjectMaker
from service.tiering.rewriting.merge_plan import MergeLimits
from service.tiering.rewriting.rewriting import Rewriting
from service.tiering.shared_objects import TopicsSnapshot
from service.tiering.standalone_owner import StandaloneOwner
from service.tiering.steps import Probe, no_probe
from service.tiering.store_clock import StoreClock
from service.tiering.sweeper import PartitionLeadership, Sweeper
from service.tiering.task_scheduler import TaskScheduler


class TieringManager:
    """Tiering of one node. Owned by the event loop.

    `writer` is this process, named in every object that it writes; in a cluster its incarnation is that of
    its registration. `owner` is the cluster that shares the prefix, None where this node is alone.
    `partitions` returns the partitions that this node leads, `find` one of them; call `scheduler.changed`
    when one was added or removed, or has another leader. `topics` returns the topics of the committed image.
    `is_conditional`: the store honours conditional writes. `is_urgent`: as in `TieringContext`; call
    `scheduler.wake` when it changes. `cuts` is the cluster of which cuts are taken; None: none are.
    `heir_changed` is called with the cluster that was restored from this one and has its prefix, and None
    once it has not. `versions` removes old versions of objects that an erasure dropped; None where the store
    has none. `documents` are those of orders to erase keys, which the node shares; None: they are read here.
    `merge_limits` returns None where the cluster does not know rewrites. `maker` makes the objects of
    rewrites; None: threads of this process do.
    """

    is_loading: Callable[[UUID, int], bool] = staticmethod(lambda topic_id, partition: False)
    """whether a restored partition may still need objects that its chain does not name"""

    def __init__(
        self,
        store: ObjectStore,
        catalog: NodeCatalog,
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
        cuts: CutCluster | None = None,
        heir_changed: Callable[[str | None], None] = lambda _: None,
        tail_settings: Callable[[], TailSettings] = TailSettings,
        versions: VersionsOf | None = None,
        documents: OrderDocuments | None = None,
        rewrite_bytes: Callable[[], int] = lambda: MergeLimits().object_bytes,
        merge_limits: Callable[[], MergeLimits | None] = lambda: None,
        maker: ObjectMaker | None = None,
    ) -> None:
        self.metrics = TieringMetrics()
        self.settings = settings
        self._topics = topics
        self._owner: PrefixOwner = owner or StandaloneOwner(self._offset)
        self._clock = clock = world.clock
        self._random = world.random
        self._writer = writer
        self._pool = pool = OffloadPool(
            world.threads, settings.copier_threads + 1, settings.watchdog_ms, self.metrics
        )
        self._commits = CommitQueue(catalog)
        chains = ChainStore(
            store, cluster_id, world,
            stamps=self._stamp, limits=manifest_limits, is_conditional=is_conditional,
        )  # fmt: skip
        self._fence = fence = Fence(
            store, cluster_id, writer, clock, pool, self._owner,
            is_conditional=is_conditional,
        )  # fmt: skip
        fence.heir_changed = heir_changed
        needed = NeededChains(store, pool, self._metadata_end, cuts)
        eraser = Eraser(
            store, chains, catalog, pool, fence, self.metrics, clock, settings.grace_ms, self._backoff, needed
        )
        self._context = context = TieringContext(
            cluster_id=cluster_id, store=store, chains=chains, catalog=catalog, commits=self._commits,
            pool=pool, eraser=eraser, clock=clock, settings=settings, metrics=self.metrics,
            new_uuid=world.new_uuid, stamps=self._stamp, probe=probe, fence=fence,
            store_clock=StoreClock(store, world), copy_rate=Rate(copy_limit), backoff_ms=self._backoff,
            needed=needed, is_urgent=is_urgent,
        )  # fmt: skip
        self.scheduler = TaskScheduler(
            context, world, partitions, find, self._task_ended,
            lambda: self.maintenance.election.wake(),  # the prefix may be taken over now
        )  # fmt: skip
        self.tails = TailSaver(context, writer.node_id, tail_settings, Rate(copy_limit))
        self._catalog = catalog
        self._versions = versions
        self.documents = documents or OpenOrders(store, world.threads)
        self._rewrite_bytes = rewrite_bytes
        self.orders: OrderKeeper | None = None
        """the keeper's part in orders to erase keys"""
        self.bucket_work: BucketWork | None = None
        """the leaders' part"""
        self.rewriting = Rewriting(context, world, partitions, find, self.scheduler, merge_limits, maker)
        self.maintenance, self.cuts = self._make_keepers(metadata, cuts)
        self._task: asyncio.Task[None] | None = None

    def _make_keepers(
        self, metadata: Callable[[], MetadataSnapshot | None], cuts: CutCluster | None
    ) -> tuple[BucketMaintenance, CutKeeper | None]:
        """Return what keeps the prefix, while this process is its keeper."""
        context, writer = self._context, self._writer
        documents = KeptDocuments(context.store, context.pool, lambda: cuts is not None and cuts.is_enabled())
        copies = MetadataCopies(
            context.store, context.cluster_id, writer, metadata, context.new_uuid, context.pool,
            context.fence, context.clock, context.settings.metadata_interval_ms, documents.removable,
        )  # fmt: skip
        sweep = CutSweep(context, documents, cuts) if cuts is not None else None
        sweeper = Sweeper(context, self._leadership, self._live_topics, sweep, self._versions)
        maintenance = BucketMaintenance(
            context, self._owner, self._topics, self.scheduler, writer.incarnation, copies, sweeper
        )
        if cuts is None:
            return maintenance, None
        saved = SavedMetadata(context, cuts, copies, documents, maintenance.wake)
        self.orders = orders = OrderKeeper(
            context, self._catalog, cuts, documents, self.documents, self._metadata_end, self._versions
        )
        self.bucket_work = BucketWork(
            context, self._catalog, cuts, self.documents, self.scheduler, self.rewriting.rewriter,
            self._rewrite_bytes,
        )  # fmt: skip
        keeper = CutKeeper(context, cuts, saved, documents, maintenance.election.note_displaced, orders)
        maintenance.election.role_changed = keeper.wake
        return maintenance, keeper

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
        await self.rewriting.close(self.settings.stop_timeout_ms)
        await self._pool.close(self.settings.stop_timeout_ms)

    @property
    def context(self) -> TieringContext:
        """Context that all partitions of the node share."""
        return self._context

    @property
    def keeps_prefix(self) -> bool:
        """True while this process keeps the prefix, of a cluster that knows cuts."""
        return self.cuts is not None and self.cuts.may_cut

    def erasures_changed(self) -> None:
        """Go on with orders to erase keys: the image has other ones, other notes of them, or other
        leaders."""
        if self.bucket_work is not None:
            self.bucket_work.wake()

    def stamp(self) -> Stamp:
        """Return the stamp of an object that is written now."""
        return self._stamp()

    @property
    def may_delete_local(self) -> bool:
        """True while local bytes may be deleted because the bucket has them: the prefix is known to be the
        cluster's."""
        return self._fence.may_write and self.metrics.waits is None

    @property
    def keeper(self) -> UUID | None:
        """Incarnation of the prefix's keeper, as of when this process last read `cluster.json`."""
        return self._fence.keeper

    @property
    def may_write(self) -> bool:
        """True while this process may write to the prefix: it is the keeper, or was named by it."""
        return self._fence.may_write

    def set_claim(self, why_not: str | None, *, is_conditional: bool = True) -> None:
        """Set why the prefix is not known to be this cluster's; None: it is. Nothing is written to it until
        then."""
        self._fence.unclaimed, self._fence.is_conditional = why_not, is_conditional
        self.maintenance.election.wake()

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.maintenance.run(), name="tiering-maintenance")
            tasks.create_task(self.maintenance.election.run(), name="tiering-election")
            if self.cuts is not None:
                tasks.create_task(self.cuts.run(), name="tiering-cuts")
            tasks.create_task(self.rewriting.run(), name="tiering-rewrites")
            if self.bucket_work is not None:
                tasks.create_task(self.bucket_work.run(), name="tiering-erasures")
            await self.scheduler.run(tasks)

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

    def _task_ended(self, error: FirnError | None) -> None:
        """Have maintenance and election do what follows from the end of a partition's task."""
        if isinstance(error, Displaced):
            self.maintenance.election.note_displaced(error)
        elif isinstance(error, NotNamed):
            self.maintenance.election.wake()  # the keeper has to name this node again
        else:
            self.maintenance.wake()

    def _metadata_end(self) -> MetadataEnd | None:
        snapshot = self._topics()
        return MetadataEnd(snapshot.life, snapshot.metadata_offset + 1) if snapshot is not None else None

    def _offset(self) -> int:
        snapshot = self._topics()
        return snapshot.metadata_offset if snapshot is not None else -1

    def _live_topics(self) -> Collection[UUID] | None:
        snapshot = self._topics()
        return snapshot.ids if snapshot is not None else None

    def _leadership(self, topic_id: UUID, partition: int) -> PartitionLeadership | None:
        if self.is_loading(topic_id, partition):
            return None
        led = self.scheduler.led_epoch(topic_id, partition)
        epoch = self._owner.leader_epoch(topic_id, partition)
        if led is not None and epoch in (None, led):
            return PartitionLeadership(led, is_ours=True)
        return PartitionLeadership(epoch, is_ours=False) if epoch is not None else None
