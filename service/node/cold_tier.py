"""The node's cold tier: store clients, the reader and the tiering manager, opened and closed together.

Reads and uploads have a store client each, so that neither waits for the other's connections.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from pathlib import Path
from typing import Final
from uuid import UUID

from service.base.child_process import ChildProcess
from service.base.errors import ConfigError, CorruptionError, StorageError, UnknownVersion
from service.base.rate import RateLimit
from service.base.world import World
from service.config.settings import BrokerConfig
from service.controller_client.keeper_candidate import ClusterPrefixOwner
from service.hot.disk_watermarks import min_free_bytes
from service.hot.manager import LogManager
from service.metadata.controller.remote_catalog import ControllerCatalog
from service.metadata.controller.requests import ResourceType
from service.metadata.delta import MetadataDelta
from service.metadata.features import has_rewrites
from service.metadata.image import MetadataImage
from service.metadata.publisher import Publisher
from service.metadata.secret_settings import secret_count, without_secrets
from service.metadata.snapshot_codec import encode_image
from service.node.cut_cluster import NodeCutCluster
from service.node.old_versions import VersionsChild
from service.node.store_watch import StoreWatch, WatchedClient
from service.partition.partition import Partition
from service.remote.catalog import NodeCatalog
from service.remote.format.keys import SegmentKey, parse_key
from service.remote.format.manifest_codec import TopicsFileRow
from service.remote.format.stamp import Writer
from service.remote.metrics import StoreMetrics, TailLoadMetrics
from service.remote.reading.disk_cache import DiskCache
from service.remote.reading.reader import RemoteReader
from service.remote.stores.conditional import probe
from service.remote.stores.counted_store import CountedStore, NodeStore
from service.remote.stores.obstore_store import StoreOptions
from service.remote.stores.proven_uploads import ProvenUploads
from service.remote.stores.s3_address import is_s3
from service.remote.stores.s3_encryption import s3_encryption
from service.remote.stores.store_address import StoreAddress
from service.replicas.archive_recovery import adopt_bucket, read_bucket
from service.replicas.cut_answers import CutAnswers
from service.replicas.disk_pressure import marks_of
from service.replicas.dynamic_config import waits_for_settings
from service.replicas.erased_runs import orders_of
from service.replicas.erasure_progress import ErasedLogs, topics_over_in_bucket
from service.replicas.tail_loading import LoadOwner, TailLoader
from service.serving.broker_channels import BrokerChannels
from service.serving.erasure_answers import ErasureAnswers
from service.serving.range_answers import RangeAnswers
from service.serving.request_host import Broker
from service.tiering.cuts.saving import TailSettings
from service.tiering.erasing.open_orders import OpenOrders
from service.tiering.manager import TieringManager
from service.tiering.metadata_copy import MetadataSnapshot
from service.tiering.metrics import TieringMetrics
from service.tiering.ports import TieringSettings
from service.tiering.prefix_fence import ForeignOwner, HeirFound, claim_prefix
from service.tiering.rewriting.making_child import ChildMaker
from service.tiering.rewriting.merge_plan import MergeLimits
from service.tiering.shared_objects import TopicsSnapshot

log = logging.getLogger(__name__)

CLAIM_AT_START_S: Final = 3.0
"""How long a start waits for the claim of the prefix; after that it is repeated while the node serves."""
CLAIM_RETRY_S: Final = 5.0
COMPARE_AT_START_S: Final = 3.0
"""How long a start waits until HEADs are compared, so that the first producers find their partitions open."""
NEVER_MS: Final = 1 << 53
SWEEP_AT_MOST_EVERY_MS: Final = 10_000
"""Least interval of sweeps. A sweep lists the whole prefix; the interval is the grace period where that is
longer, as no orphan is deleted sooner."""


OpenStore = Callable[[BrokerConfig, World, StoreOptions], NodeStore]
"""Makes a client of the store in the settings; sends nothing yet."""

OFFLOAD_OPTIONS: Final = StoreOptions(
    connect_timeout_s=2.0, first_byte_timeout_s=4.0, idle_timeout_s=20.0, read_retries=1, max_retries=2
)
"""obstore repeats a failed part at most twice: otherwise the whole segment would be uploaded again."""
_LEAST_BYTES_PER_S: Final = 256 << 10


def reading_options(config: BrokerConfig) -> StoreOptions:
    """Return the options of the clients for reads: short timeouts, as a consumer waits, and no retries.

    `DownloadManager` repeats failed reads."""
    return StoreOptions(
        connect_timeout_s=2.0,
        first_byte_timeout_s=2.0,
        request_timeout_s=10.0 + config.remote_chunk_bytes / _LEAST_BYTES_PER_S,
        idle_timeout_s=20.0,
        read_retries=0,
        max_retries=0,
    )


class ColdTier:
    """The parts of this node that use the bucket. Owned by the event loop."""

    def __init__(
        self,
        config: BrokerConfig,
        world: World,
        cluster_id: str,
        open_store: OpenStore,
        incarnation: UUID | None = None,
        is_in_use: Callable[[], bool] = lambda: False,
    ) -> None:
        """`incarnation`: the incarnation id of this process's broker registration, by which documents in the
        bucket name their writer; None for a node that shares the prefix with no other. `is_in_use`: whether
        the metadata has tiered data.

        Raises `ConfigError` for an invalid URL of a store. Sends nothing yet.
        """
        self._config = config
        self._current: Callable[[], BrokerConfig] = lambda: config
        """returns the current settings"""
        self._maker: ChildMaker | None = None
        """makes objects of rewrites; None: the threads of this process do"""
        self._world = world
        self._pool = world.threads.pool("cold-tier", 2)
        self._cluster_id = cluster_id
        self._writer = Writer(config.node_id, incarnation or world.new_uuid())
        self.metrics = {"read": StoreMetrics(), "tiering": StoreMetrics()}
        """metrics of the store clients: those of cold reads, and that of tiering"""
        self.tail_loads = TailLoadMetrics()
        self.tiering: TieringMetrics | None = None
        """None until tiering has begun: the owner of the prefix is known"""
        store = CountedStore(open_store(config, world, OFFLOAD_OPTIONS), self.metrics["tiering"], world.clock)
        self._store = ProvenUploads(
            store, store.verifies_uploads, lambda key, data: self.reader.wrote(key, data)
        )
        if open_store is open_configured_store:
            address = _address(config, OFFLOAD_OPTIONS)
            self._maker = ChildMaker(address, self.metrics["tiering"], ChildProcess())
        self.orders = OpenOrders(self._store, world.threads)
        """documents of orders to erase keys"""
        self._claim: asyncio.Future[None] | None = None
        self._is_in_use = is_in_use
        self._foreign: str | None = None
        """why nothing is written to the prefix while the node serves: another cluster owns it"""
        self._heir: str | None = None
        """that cluster, where it was restored from this one"""
        self._tell_heir: Callable[[str | None], None] = lambda heir: None
        self._manager: TieringManager | None = None
        self._is_conditional = True
        self._compared = asyncio.Event()
        first, second = (
            CountedStore(
                open_store(config, world, reading_options(config)), self.metrics["read"], world.clock
            )
            for _ in range(2)
        )
        self._clients = (
            WatchedClient(self.metrics["tiering"], store, asks_always=False),
            # The one with short time-outs: a store that hangs is noticed soon.
            WatchedClient(self.metrics["read"], first, asks_always=True),
        )
        self._disk_cache = _disk_cache(config, world, lambda: self._current())
        self.reader = RemoteReader(
            first,
            world,
            second_store=second,
            disk_cache=self._disk_cache,
            threads=config.remote_log_reader_threads,
            cache_bytes=config.remote_cache_bytes,
            chunk_bytes=config.remote_chunk_bytes,
            limit=lambda: _fetch_limit(self._current()),
        )

    async def claim(self) -> None:
        """Claim the prefix for this cluster. Raises `ConfigError` if another cluster owns it and this one has
        no tiered data.

        `run` repeats the claim where the store is slow, `cluster.json` is damaged, or another cluster has
        taken the prefix: hot data is served meanwhile."""
        self._claim = asyncio.ensure_future(self._try_claim())
        await asyncio.wait({self._claim}, timeout=CLAIM_AT_START_S)
        if self._claim.done():
            await self._claim_succeeded(self._claim)

    async def recover(self, catalog: ControllerCatalog, metadata: Publisher, config: BrokerConfig) -> None:
        """Recover the metadata from the bucket; `config` are this node's static settings.

        Raises `ConfigError`, `CorruptionError` or `StorageError`: then the metadata is unchanged.
        """
        bucket = await asyncio.get_running_loop().run_in_executor(
            self._pool, read_bucket, self._store, self._cluster_id, metadata.image
        )
        await adopt_bucket(bucket, catalog, metadata, config, self._world.new_uuid())

    def tail_loader(
        self,
        owner: LoadOwner,
        logs: LogManager,
        image: Callable[[], MetadataImage],
        catalog: NodeCatalog,
    ) -> TailLoader:
        """Return what loads the tails of a restored cluster's partitions, without the records that its orders
        of erasure take."""
        return TailLoader(
            self._store, owner, logs, image, catalog.tails_loaded, self._world, self.tail_loads,
            orders_of(self.orders, image),
        )  # fmt: skip

    async def heads_compared(self) -> None:
        """Wait until HEADs are compared, at most `COMPARE_AT_START_S`.

        Partitions that are not compared by then take no records until they are.
        """
        if self._claim is None or not self._claim.done() or self._claim.exception() is not None:
            return  # the store is unavailable
        try:
            async with asyncio.timeout(COMPARE_AT_START_S):
                await self._compared.wait()
        except TimeoutError:
            log.info("this node serves before the HEADs of all partitions were compared")

    async def _try_claim(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._pool, self._claim_and_probe)

    def _claim_and_probe(self) -> None:
        """Claim the prefix and test conditional writes. Blocking; runs on a thread of the pool."""
        claim_prefix(self._store, self._cluster_id)
        why = probe(self._store, self._world.new_uuid)
        self._is_conditional = why is None
        if why is None:
            return
        if not self._config.remote_unfenced_allow:
            raise ConfigError(
                f"firn.remote.url: this store does not honour conditional writes: {why}. Two nodes on one "
                f"prefix would destroy each other's archive unnoticed; firn.remote.unfenced.allow=true uses "
                f"it all the same"
            )
        log.warning(
            "this store does not honour conditional writes (%s): never run two nodes on one prefix", why
        )

    async def _claim_succeeded(self, claim: asyncio.Future[None]) -> bool:
        """Return whether the prefix is this cluster's; log why it is not, or is not known to be.

        Raises `ConfigError` if another cluster owns it and this one has no tiered data, and `UnknownVersion`.
        """
        try:
            await claim
        except ForeignOwner as e:
            self._heir = e.heir if isinstance(e, HeirFound) else None
            self._tell_heir(self._heir)
            if not self._is_in_use() and self._heir is None:
                raise ConfigError(str(e)) from e
            if self._foreign is None and self._heir is not None:
                log.error("%s", e)
            elif self._foreign is None:
                log.error(
                    "%s. The metadata knows of tiered topics, so another cluster has taken the prefix, or "
                    "firn.remote.url is wrong here: this node serves, and copies, expires and sweeps nothing "
                    "until cluster.json is this cluster's again (docs/operations.md)", e,
                )  # fmt: skip
            self._foreign = str(e)
            return False
        except StorageError as e:
            log.warning("the owner of the prefix cannot be read, nothing is copied until it can: %s", e)
            return False
        except UnknownVersion:
            raise
        except CorruptionError as e:
            # The node serves hot data and reads the archive meanwhile, but writes nothing to it.
            log.error("nothing is copied, expired or swept until that is settled: %s", e)
            return False
        self._foreign = self._heir = None
        self._tell_heir(None)
        return True

    def now_ms(self) -> int:
        """Return the wall clock's time, by which cuts are dated."""
        return self._world.clock.now_ms()

    @property
    def may_let_go(self) -> bool:
        """Return whether local bytes may be deleted because the bucket has them: as far as this node knows,
        its cluster owns the prefix."""
        return self._manager is not None and self._manager.may_delete_local

    async def _reclaim(self, manager: TieringManager) -> None:
        """Repeat the claim until the prefix is this cluster's again."""
        while self._foreign is not None:
            await asyncio.sleep(CLAIM_RETRY_S)
            self._claim = asyncio.ensure_future(self._try_claim())
            if await self._claim_succeeded(self._claim):
                manager.set_claim(None, is_conditional=self._is_conditional)

    async def run(self, broker: Broker, channels: BrokerChannels) -> None:
        """Run tiering until the task is cancelled; nothing is written before the prefix is this cluster's.
        `channels` lead to the other brokers."""
        self._tell_heir = broker.heir_changed
        broker.heir_changed(self._heir)
        owner = broker.plane.prefix_owner
        broker.disks.free_caches_first(self._trim_disk_cache)
        broker.replicas.may_let_go = lambda: self.may_let_go
        while self._claim is None or not (
            await self._claim_succeeded(self._claim) or self._foreign is not None
        ):
            await asyncio.sleep(CLAIM_RETRY_S)
            self._claim = asyncio.ensure_future(self._try_claim())
        config = self._config
        self._current = lambda: broker.config
        manager = TieringManager(
            self._store,
            broker.plane.catalog,
            cluster_id=self._cluster_id,
            writer=self._writer,
            partitions=partial(_led, broker, owner),
            find=partial(_find_led, broker, owner),
            topics=lambda: _topics(broker.image),
            world=self._world,
            owner=owner,
            metadata=lambda: metadata_snapshot(
                broker.image,
                self._world.clock.now_ms(),
                has_credentials=config.remote_metadata_credentials,
            ),
            is_conditional=self._is_conditional,
            settings=_tiering_settings(config),
            copy_limit=lambda: _copy_limit(broker.config),
            is_urgent=broker.disks.hurries,
            cuts=NodeCutCluster(broker, channels, has_credentials=config.remote_metadata_credentials),
            heir_changed=broker.heir_changed,
            tail_settings=lambda: TailSettings(broker.config.tail_base_max_bytes, broker.config.tail_wait_ms),
            versions=_versions(config),
            documents=self.orders,
            rewrite_bytes=lambda: broker.config.rewrite_object_bytes,
            merge_limits=lambda: _merge_limits(broker.image, broker.config, is_alone=owner is None),
            maker=self._maker,
        )
        manager.is_loading = lambda topic_id, partition: (topic_id, partition) in broker.image.restored_tails
        manager.tails.erased = ErasedLogs(lambda: broker.image).find
        self.tiering, self._manager = manager.metrics, manager
        broker.range_publisher = RangeAnswers(manager.rewriting.outside)
        broker.cuts = CutAnswers(
            config.node_id, broker.replicas, broker.metadata, self._world.clock, manager.tails, manager,
            manager.metrics.cuts,
        )  # fmt: skip
        broker.erasure_orders = ErasureAnswers(config.node_id, broker, manager)
        if self._foreign is not None:
            manager.set_claim(self._foreign)
        broker.metadata.subscribe(partial(_follow, manager, owner))
        broker.metadata.subscribe(self._drop_erased)
        broker.replicas.watch(manager.scheduler.changed)
        broker.disks.watch(manager.scheduler.wake)
        comparing = asyncio.ensure_future(manager.scheduler.heads_compared())
        comparing.add_done_callback(lambda _: self._compared.set())
        reclaiming = asyncio.ensure_future(self._reclaim(manager))
        watching = asyncio.ensure_future(StoreWatch(self._clients, self._world.clock, self._pool).run())
        try:
            await manager.start()
        finally:
            watching.cancel()
            reclaiming.cancel()
            comparing.cancel()
            await broker.cuts.close()
            await manager.stop()

    async def _trim_disk_cache(self, log_dir: Path) -> int:
        """Trim the disk cache of cold reads if it shares a file system with `log_dir`; return bytes freed."""
        cache = self._disk_cache
        if cache is None or not cache.shares(log_dir):
            return 0
        return await asyncio.get_running_loop().run_in_executor(self._pool, cache.trim)

    def _drop_erased(self, before: MetadataImage, image: MetadataImage, delta: MetadataDelta) -> None:
        """Drop the objects of topics from the disk cache once an order of erasure is done there, and once
        more when it is removed: until then replaced objects may still be read."""
        cache, topics = self._disk_cache, topics_over_in_bucket(before, image) if delta.erasures else ()
        if cache is None or not topics:
            return

        def is_gone(block: Hashable) -> bool:
            key = parse_key(block[0]) if isinstance(block, tuple) and isinstance(block[0], str) else None
            return not isinstance(key, SegmentKey) or key.topic_id in topics

        self._pool.submit(cache.drop, is_gone)

    async def close(self) -> None:
        """Fail the running reads and join their threads."""
        await asyncio.get_running_loop().run_in_executor(self._pool, self.reader.close)
        self.orders.close()
        self._pool.shutdown(wait=False, cancel_futures=True)


def _follow(
    manager: TieringManager,
    owner: ClusterPrefixOwner | None,
    before: MetadataImage,
    image: MetadataImage,
    delta: MetadataDelta,
) -> None:
    """Tell tiering what a change of the metadata means for it."""
    if owner is not None:
        owner.published(before, image, delta)
        for partition in owner.moved(before, image, delta):
            manager.scheduler.changed(*partition)
    if delta.deleted_topics:
        manager.maintenance.topics_deleted()
    if delta.erasures or (image.erasures and delta.topics):
        manager.erasures_changed()
    if delta.topics or delta.deleted_topics or delta.configs or delta.recovered:
        manager.maintenance.topics_changed()
    if image.acls is not before.acls or delta.quota_entities or delta.users:
        manager.maintenance.access_changed()


def _tiering_settings(config: BrokerConfig) -> TieringSettings:
    return TieringSettings(
        interval_ms=config.remote_log_manager_task_interval_ms,
        copier_threads=config.remote_log_manager_copier_thread_pool_size,
        grace_ms=config.remote_object_grace_ms,
        metadata_interval_ms=config.metadata_log_max_snapshot_interval_ms or NEVER_MS,
        sweep_interval_ms=max(config.remote_object_grace_ms, SWEEP_AT_MOST_EVERY_MS),
    )


def is_tiered(image: MetadataImage) -> bool:
    """Return whether the cluster has tiered topics, or may still have objects of former ones."""
    enabled = (settings.get("remote.storage.enable") == "true" for settings in image.configs.values())
    return bool(image.remote) or bool(image.tombstones) or any(enabled)


def _led(broker: Broker, owner: ClusterPrefixOwner | None) -> Iterator[Partition]:
    """Iterate over the partitions that this node tiers: those that it leads."""
    return (
        one for one in broker.replicas if owner is None or owner.leads(one.tip.topic_id, one.tip.partition)
    )


def _find_led(
    broker: Broker, owner: ClusterPrefixOwner | None, topic_id: UUID, partition: int
) -> Partition | None:
    is_led = owner is None or owner.leads(topic_id, partition)
    return broker.replicas.get(topic_id, partition) if is_led else None


def _merge_limits(image: MetadataImage, config: BrokerConfig, *, is_alone: bool) -> MergeLimits | None:
    """Return what is merged; None while not all nodes know rewrites.

    A node that no other can join (`is_alone`) has no level: there is no older software to protect.
    """
    if not is_alone and not has_rewrites(image.features):
        return None
    return MergeLimits(config.merge_small_bytes, config.merge_min_age_ms, config.rewrite_object_bytes)


def open_configured_store(config: BrokerConfig, world: World, options: StoreOptions) -> NodeStore:
    """Open a client of the store at `firn.remote.url`."""
    return _address(config, options).open(world)


def _address(config: BrokerConfig, options: StoreOptions) -> StoreAddress:
    assert config.remote_url is not None
    return StoreAddress(
        config.remote_url,
        config.remote_s3_endpoint,
        config.remote_s3_region,
        s3_encryption(config.remote_s3_sse, config.remote_s3_sse_kms_key_id),
        options,
    )


def _versions(config: BrokerConfig) -> VersionsChild | None:
    """Return what removes old versions of dropped objects; None for stores other than S3."""
    url = config.remote_url
    if url is None or not is_s3(url):
        return None
    return VersionsChild(url, config.remote_s3_endpoint, config.remote_s3_region)


def _copy_limit(config: BrokerConfig) -> RateLimit:
    return RateLimit(
        config.remote_log_manager_copy_max_bytes_per_second,
        config.remote_log_manager_copy_quota_window_num
        * config.remote_log_manager_copy_quota_window_size_seconds,
    )


def _fetch_limit(config: BrokerConfig) -> RateLimit:
    return RateLimit(
        config.remote_log_manager_fetch_max_bytes_per_second,
        config.remote_log_manager_fetch_quota_window_num
        * config.remote_log_manager_fetch_quota_window_size_seconds,
    )


def _disk_cache(config: BrokerConfig, world: World, current: Callable[[], BrokerConfig]) -> DiskCache | None:
    if config.remote_cache_dir is None:
        return None
    return DiskCache(
        world,
        Path(config.remote_cache_dir),
        config.remote_cache_dir_bytes,
        beside=(*config.log_dirs, config.cluster.metadata_log_dir),
        keeps_free=lambda total: min_free_bytes(total, marks_of(current())),
    )


def metadata_snapshot(image: MetadataImage, now_ms: int, *, has_credentials: bool) -> MetadataSnapshot:
    """Return `image` as a snapshot for the bucket. Images are immutable, so a thread may encode it."""
    if has_credentials:
        return MetadataSnapshot(
            image.offset + 1, image.epoch, partial(encode_image, image, now_ms), image.life
        )
    copied = image.without_credentials()
    return MetadataSnapshot(
        image.offset + 1,
        image.epoch,
        lambda: encode_image(without_secrets(copied), now_ms),
        image.life,
        len(image.scram),
        partial(secret_count, image),
    )


def _topics(image: MetadataImage) -> TopicsSnapshot:
    """Return the content of `topics.json` for `image`. Images are immutable: a thread may make the rows."""

    def rows() -> list[TopicsFileRow]:
        return [
            TopicsFileRow(
                topic.name,
                topic.id,
                len(topic.partitions),
                dict(image.config(ResourceType.TOPIC, topic.name)),
                waits_for_settings(image, topic.name),
            )
            for topic in image.topics_by_name.values()
        ]

    return TopicsSnapshot(image.offset, image.topics_by_id.keys(), rows, image.life)
