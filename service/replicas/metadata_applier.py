"""Applies the committed image to this node: opens, changes and closes partitions.

Called on the loop with each new image; the request for the change is answered when that is done, so a created
topic can be used when CreateTopics returns. Only what a delta names is processed. Changes are applied one
after the other: small ones at once; those that need files, or have many partitions, in slices, with the
disk's part on `log-io` threads.

A partition that a change takes from this node is closed, and its files are deleted. Files of a partition that
is unknown without such a change are set aside and never deleted (`LogManager.set_aside_unknown`).

A disk that fails, or settings that are invalid on this node, take the one partition offline; what may pass is
retried (`run`). Settings are never replaced by others: retention under wrong settings deletes records.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol
from uuid import UUID

from service.base.errors import ConfigError, CorruptionError, StorageError
from service.base.purgatory import Purgatory
from service.base.slices import Slice
from service.base.types import TopicIdPartition
from service.config.settings import BrokerConfig, LogConfig
from service.hot.log import LocalLog
from service.hot.manager import LogManager
from service.metadata.controller.requests import ResourceType
from service.metadata.delta import MetadataDelta
from service.metadata.image import ConfigResource, MetadataImage, PartitionImage, TopicImage
from service.partition.partition import Partition
from service.remote.catalog import CatalogEntry
from service.replicas.archive_restore import ArchiveRestore, Checked
from service.replicas.dynamic_config import dynamic_config, topic_settings
from service.replicas.partition_registry import Replicas

if TYPE_CHECKING:
    from service.remote.reading.reader import RemoteReader
    from service.replicas.replica_manager import ReplicaManager

log = logging.getLogger(__name__)


class ApplierListener(Protocol):
    """Listener for applied metadata. Called on the loop; it takes note and acts later."""

    def applied(self, before: MetadataImage, image: MetadataImage, delta: MetadataDelta) -> None:
        """Handle that the node has applied `image`."""

    def came_online(self, image: MetadataImage, tips: Sequence[TopicIdPartition]) -> None:
        """Handle partitions that could be opened after a retry."""


RETRY_S: Final = 2.0
_SMALL: Final = 100
"""Most partitions that are changed at once, on the loop."""
_LOOK_US: Final = 3
_PARTITION_US: Final = 25
_TOPIC_US: Final = 100
_HELD: Final = "its HEAD in the bucket has not been compared with the metadata yet"


class _Coming(NamedTuple):
    """A partition to be brought online."""

    tip: TopicIdPartition
    replica: PartitionImage
    is_new: bool
    """it is created by this change, with its topic or by adding partitions"""


class Applier:
    """Keeps `replicas` and the logs on disk in step with the image. Owned by the event loop."""

    def __init__(
        self,
        config: BrokerConfig,
        logs: LogManager,
        replicas: Replicas,
        reader: RemoteReader | None,
        purgatory: Purgatory,
        replication: ReplicaManager | None = None,
        checked: Checked | None = None,
    ) -> None:
        """`replication`: None on a node without other brokers. `checked`: for `ArchiveRestore`."""
        self.config = config
        self._replication = replication
        self._logs = logs
        logs.set_producer_expiration(config.producer_id_expiration_ms)
        self._replicas = replicas
        self._reader = reader
        self._purgatory = purgatory
        self._image = MetadataImage()
        self._pending: dict[TopicIdPartition, None] = {}
        """offline for a reason that may pass"""
        self.archives = ArchiveRestore(self, logs, lambda: self._image, reader, checked)
        self._created: set[UUID] = set()
        """topics created since this process started: none of their files is older"""
        self._reassigned_here: set[TopicIdPartition] = set()
        """partitions reassigned to this node since: they have no older files either"""
        self._turn = asyncio.Lock()
        self._listener: ApplierListener | None = None
        self._under_way = 0
        """changes that wait for their turn, or have it"""

    def watch(self, listener: ApplierListener) -> None:
        """Call `listener` from now on."""
        self._listener = listener

    def _notify(self, before: MetadataImage, image: MetadataImage, delta: MetadataDelta) -> None:
        if self._listener is not None:
            self._listener.applied(before, image, delta)

    async def start(self, image: MetadataImage) -> None:
        """Bring every partition of `image` online. Later changes follow."""
        async with self._turn:
            self._image = image
            self.config = dynamic_config(self.config, image)
            if self._replication is not None:
                self._replication.configure(self.config.replication)
                self._replication.update_brokers(image, image.brokers)
            topics = image.topics_by_id.values()
            await self._apply_topics(((topic, topic.partitions) for topic in topics), image)

    def apply(
        self, before: MetadataImage, image: MetadataImage, delta: MetadataDelta
    ) -> Awaitable[None] | None:
        """Apply the change from the image `before` to `image`; `delta` names what changed. Returns an
        awaitable of its completion, or None if it is done."""
        if self._under_way or self._turn.locked() or not self._is_small(before, image, delta):
            self._under_way += 1
            return asyncio.get_running_loop().create_task(
                self._apply_in_turn(before, image, delta), name="applier"
            )
        self._image = image
        for topic_id in delta.topics:
            topic = image.topics_by_id[topic_id]
            for index in delta.changed_partitions(topic_id):
                known = self._replicas.get(topic_id, index)
                if known is not None:
                    self._change(known, topic.partitions[index])
        for topic in self._configured(delta):
            self._configure_topic(topic)
        for topic_id, index in delta.remote:
            self._commit(topic_id, index)
        self._notify(before, image, delta)
        return None

    def _is_small(self, before: MetadataImage, image: MetadataImage, delta: MetadataDelta) -> bool:
        """Return whether the change needs no files and little time."""
        if delta.deleted_topics or delta.brokers or len(delta.configs) + len(delta.remote) > _SMALL:
            return False
        changed = 0
        for topic_id in delta.topics:
            for index in delta.changed_partitions(topic_id):
                changed += 1
                if changed > _SMALL:
                    return False
                is_ours, is_here = self._has(image, topic_id, index), self._replicas.get(topic_id, index)
                if (is_here is None) if is_ours else self._has(before, topic_id, index):
                    return False
        topics = [self._image.topics_by_name.get(name) for _, name in delta.configs]
        topics += [self._image.topics_by_id.get(topic_id) for topic_id in delta.recovered]
        sizes = sum(len(topic.partitions) for topic in topics if topic is not None)
        return sizes <= _SMALL and not any(self._is_ours(resource) for resource in delta.configs)

    async def _apply_in_turn(self, before: MetadataImage, image: MetadataImage, delta: MetadataDelta) -> None:
        try:
            async with self._turn:
                self._image = image
                concerned: Sequence[TopicIdPartition] = ()
                if self._replication is not None:
                    concerned = self._replication.update_brokers(image, delta.brokers)
                await self._delete(delta.deleted_topics.values())
                self._created.update(one for one in delta.topics if one not in before.topics_by_id)
                topics = (
                    (image.topics_by_id[topic_id], delta.changed_partitions(topic_id))
                    for topic_id in delta.topics
                )
                await self._apply_topics(topics, before)
                await self._configure(delta)
                piece = Slice()
                for topic_id, index in delta.remote:
                    if piece.charge(_PARTITION_US):
                        await piece.next_turn()
                    self._commit(topic_id, index)
                if self._replication is not None:
                    await piece.go_on(self._replication.reevaluate(concerned))
                self._notify(before, image, delta)
        finally:
            self._under_way -= 1

    def holds(self, topic_id: UUID, index: int) -> bool:
        """Return whether the image assigns the partition to this node, online or not."""
        return self._has(self._image, topic_id, index)

    def _has(self, image: MetadataImage, topic_id: UUID, index: int) -> bool:
        replica = image.partition(topic_id, index)
        return replica is not None and self.config.node_id in replica.replicas

    # -- opening and closing partitions

    async def _apply_topics(
        self,
        topics: Iterable[tuple[TopicImage, Iterable[int]]],
        before: MetadataImage,
    ) -> None:
        """Apply changed partitions of topics, by index: open, change or close them. `before` tells which
        topics are new, and which partitions this node had."""
        piece = Slice()
        coming: list[_Coming] = []
        going: list[TopicIdPartition] = []
        for topic, indices in topics:
            is_topic_new = topic.id not in before.topics_by_id
            for index in indices:
                if piece.charge(_LOOK_US):
                    await piece.next_turn()
                replica = topic.partitions[index]
                tip = TopicIdPartition(topic.id, topic.name, index)
                if self.config.node_id not in replica.replicas:
                    if self._has(before, topic.id, index):
                        log.info(
                            "%s was reassigned from this node to %s, deleting its files",
                            tip,
                            replica.replicas,
                        )
                        self._close(tip)
                        going.append(tip)
                    continue
                known = self._replicas.get(topic.id, index)
                if known is None:
                    if not is_topic_new and not self._has(before, topic.id, index):
                        self._reassigned_here.add(tip)
                    is_new = is_topic_new or self._is_grown_by(tip, before)
                    coming.append(_Coming(tip, replica, is_new))
                else:
                    self._change(known, replica)
        if going:
            await self._logs.delete(going)
        await self._bring_online(coming)

    def _is_grown_by(self, tip: TopicIdPartition, before: MetadataImage) -> bool:
        """Return whether the partition was added to its topic since the image `before`, so the bucket has
        nothing of it. For a topic that a recovery restored, the bucket's contents are not known yet."""
        if before.partition(tip.topic_id, tip.partition) is not None or self._entry(tip) is not None:
            return False
        recovered = self._image.recovered.get(tip.topic_id)
        return recovered is None or tip.partition not in recovered.unchecked_partitions

    def _change(self, partition: Partition, replica: PartitionImage) -> None:
        """Apply changed metadata of a partition that is online."""
        partition.isr_size, partition.replica_count = len(replica.isr), len(replica.replicas)
        tip = partition.tip
        remote = self._entry(tip)
        if self._leads(replica) and not partition.is_leader and remote is not None:
            reason = self.archives.why_behind(tip, partition.log, remote)
            if reason is not None:
                self.archives.wait(tip, reason, remote)
                return
        try:
            self._take_role(partition, replica)
        except StorageError as e:
            self.take_offline(tip, str(e), passes=True)

    def _take_role(self, partition: Partition, replica: PartitionImage) -> None:
        """Make the partition lead or follow. Raises `StorageError`."""
        if self._replication is None:
            if self._leads(replica):
                partition.log.appender.note_leader_epoch(replica.leader_epoch)
                partition.lead(replica.leader_epoch, None)
            else:
                partition.follow(replica.leader_epoch)
            return
        if self._leads(replica):
            self._replication.lead(partition, replica)
        else:
            is_unclean = partition.config.unclean_leader_election_enable
            self._replication.follow(partition, replica, is_unclean=is_unclean)
        self._replication.note_directory(partition, replica)

    def _leads(self, replica: PartitionImage) -> bool:
        """Return whether this node leads; while it is fenced, the metadata names no leader."""
        return replica.leader == self.config.node_id

    async def _bring_online(self, coming: Sequence[_Coming]) -> None:
        """Bring partitions online, or take them offline with a reason."""
        settings: dict[str, LogConfig | ConfigError] = {}
        wanted: list[tuple[TopicIdPartition, LogConfig]] = []
        piece = Slice()
        for one in coming:
            if piece.charge(_LOOK_US):
                await piece.next_turn()
            name = one.tip.topic
            if name not in settings:
                settings[name] = self._settings_of(name)
                topic = self._image.topics_by_name.get(name)
                if topic is not None:
                    self._throttle(topic, settings[name])
            config = settings[name]
            if isinstance(config, LogConfig):
                wanted.append((one.tip, config))
            else:
                self.take_offline(one.tip, str(config), passes=True)
        logs = await self._logs.create(
            wanted, lambda tip: tip.topic_id in self._created or tip in self._reassigned_here
        )
        by_tip = {tip: (config, log) for (tip, config), log in zip(wanted, logs, strict=True)}
        for one in coming:
            if one.tip not in by_tip:
                continue
            if piece.charge(_PARTITION_US):
                await piece.next_turn()
            config, local = by_tip[one.tip]
            try:
                if not isinstance(local, LocalLog):
                    raise local
                self._open(one, local, config)
            except (StorageError, CorruptionError, ConfigError) as e:
                self.take_offline(one.tip, str(e), passes=not isinstance(e, CorruptionError))

    def _settings_of(self, topic: str) -> LogConfig | ConfigError:
        try:
            return topic_settings(self._image, topic, self.config)
        except ConfigError as e:
            return e

    def take_offline(self, tip: TopicIdPartition, reason: str, *, passes: bool, is_lost: bool = True) -> None:
        """Take a partition offline and log why. `passes`: retry to open it. `is_lost`: another replica should
        lead meanwhile."""
        if reason != self._replicas.why_offline(tip.topic_id, tip.partition):
            log.error("%s is offline: %s", tip, reason)
        if self._replication is not None:
            self._replication.leave(tip)
            replica = self._image.partition(tip.topic_id, tip.partition)
            if is_lost and replica is not None and self.config.node_id in replica.replicas:
                self._replication.lost(tip, replica)
        self._replicas.take_offline(tip, reason)
        if passes:
            self._pending[tip] = None

    def _open(self, coming: _Coming, local: LocalLog, config: LogConfig) -> None:
        tip, replica, is_new = coming
        remote = self._entry(tip)
        if remote is None or remote.is_given_up:
            # Without an archive the log begins with its files, even if a checkpoint is missing.
            local.deletion.advance_log_start(local.local_log_start_offset)
        elif self._leads(replica) or len(replica.replicas) == 1:
            reason = self.archives.why_behind(tip, local, remote)
            if reason is not None:
                self.archives.wait(tip, reason, remote)
                return
        self.archives.wait_no_more(tip)
        if len(replica.replicas) > 1 and self._replication is None:
            raise ConfigError(f"its replicas are on {replica.replicas}, and this node runs without a cluster")
        partition = Partition(
            tip,
            local,
            self._reader,
            replica.leader_epoch,
            len(replica.isr),
            self.config.max_inflated_batch_bytes,
            self._purgatory,
            is_leader=False,
            high_watermark=self._mark_at_start(tip, replica, local, remote),
        )
        partition.replica_count = len(replica.replicas)
        partition.configure(config)
        partition.unified.remote_committed(remote)
        if self._reader is not None and not is_new and (config.remote_storage_enable or remote is not None):
            partition.archive.hold_appends(_HELD)
        self._take_role(partition, replica)
        self._replicas.add(partition)
        if self._replication is not None:
            self._watch(tip, local)

    def _watch(self, tip: TopicIdPartition, local: LocalLog) -> None:
        """Handle a failed log, which may fail on any thread."""
        loop = asyncio.get_running_loop()

        def failed() -> None:
            loop.call_soon_threadsafe(self._log_failed, tip)

        local.state.on_failure = failed

    def _log_failed(self, tip: TopicIdPartition) -> None:
        partition = self._replicas.get(tip.topic_id, tip.partition)
        replica = self._image.partition(tip.topic_id, tip.partition)
        if partition is not None and replica is not None and self._replication is not None:
            self._replication.failed(partition, replica)

    def _mark_at_start(
        self, tip: TopicIdPartition, replica: PartitionImage, local: LocalLog, remote: CatalogEntry | None
    ) -> int | None:
        """Return the last known high watermark; None: the log's end, as there is no other replica."""
        if len(replica.replicas) == 1:
            return None
        least = max(self._logs.high_watermark(tip) or 0, local.log_start_offset)
        # A log without an epoch as new as the archive's may end in a diverged tail.
        if remote is not None and (
            self.config.node_id in replica.isr or local.epochs.newest >= remote.leader_epoch
        ):
            least = max(least, remote.end_offset)
        return min(least, local.log_end_offset)

    async def _delete(self, topics: Iterable[TopicImage]) -> None:
        piece = Slice()
        tips = []
        for topic in topics:
            self._created.discard(topic.id)
            self._throttle(topic, LogConfig())
            for index in topic.partitions:
                if piece.charge(_PARTITION_US):
                    await piece.next_turn()
                tip = TopicIdPartition(topic.id, topic.name, index)
                self._close(tip)
                tips.append(tip)
        if tips:
            await self._logs.delete(tips)

    def _close(self, tip: TopicIdPartition) -> None:
        """Close a partition that is no longer on this node, online or not."""
        self._pending.pop(tip, None)
        self.archives.forget(tip)
        self._reassigned_here.discard(tip)
        if self._replication is not None:
            self._replication.leave(tip)
        partition = self._replicas.get(tip.topic_id, tip.partition)
        if partition is not None:
            self._replicas.remove(partition)
            partition.close()
        self._replicas.forget(tip)

    def _commit(self, topic_id: UUID, index: int) -> None:
        partition = self._replicas.get(topic_id, index)
        if partition is None:
            return
        entry = self._entry(partition.tip)
        try:
            if partition.is_leader or entry is None:
                partition.unified.remote_committed(entry)
            else:
                # The leader writes HEAD, and the next leader writes it again: a committed archive stays, so
                # local bytes below its end may be deleted.
                partition.archive.remote_committed(entry)
                if self._replication is not None:
                    self._replication.moved_start(partition.tip)
        except StorageError as e:
            log.error(
                "deleting local segments of %s that expired in its archive failed: %s", partition.tip, e
            )
        self._replicas.notify(partition)

    def _entry(self, tip: TopicIdPartition) -> CatalogEntry | None:
        return self._image.remote.get((tip.topic_id, tip.partition))

    # -- retries

    async def run(self) -> None:
        """Retry partitions that are offline, until cancelled."""
        while True:
            await self.archives.run_once()
            async with self._turn:
                pending, self._pending = self._pending, {}
                await self._try_again(pending)
            await asyncio.sleep(RETRY_S)

    async def try_again(self, tips: Iterable[TopicIdPartition]) -> None:
        """Open offline partitions, in turn with changes of the metadata."""
        async with self._turn:
            await self._try_again(tips)

    async def _try_again(self, tips: Iterable[TopicIdPartition]) -> None:
        coming = []
        for tip in tips:
            replica = self._image.partition(tip.topic_id, tip.partition)
            if replica is None or self.config.node_id not in replica.replicas:
                continue  # removed meanwhile
            if self._replicas.get(tip.topic_id, tip.partition) is None:
                coming.append(_Coming(tip, replica, False))
        await self._bring_online(coming)
        online = [tip for tip, _, _ in coming if self._replicas.get(tip.topic_id, tip.partition) is not None]
        for tip in online:
            log.info("%s is online again", tip)
        if online and self._listener is not None:
            self._listener.came_online(self._image, online)

    # -- settings

    def _is_ours(self, resource: ConfigResource) -> bool:
        """Return whether these are settings of this node."""
        return resource[0] == ResourceType.BROKER and resource[1] in ("", str(self.config.node_id))

    def _configured(self, delta: MetadataDelta) -> list[TopicImage]:
        """Return the topics whose settings changed, or are known by now."""
        names = [name for kind, name in delta.configs if kind == ResourceType.TOPIC]
        topics = [self._image.topics_by_name.get(name) for name in names]
        topics += [self._image.topics_by_id.get(topic_id) for topic_id in delta.recovered]
        return [topic for topic in topics if topic is not None]

    async def _configure(self, delta: MetadataDelta) -> None:
        """Apply changed settings. Broker settings are defaults of topics, so their change reconfigures every
        topic."""
        topics: Iterable[TopicImage] = self._configured(delta)
        piece = Slice()
        if any(self._is_ours(resource) for resource in delta.configs):
            before = self.config.replication
            self.config = dynamic_config(self.config, self._image)
            self._logs.set_producer_expiration(self.config.producer_id_expiration_ms)
            if self._replication is not None:
                if self._replication.configure(self.config.replication):
                    self._purgatory.happened(self._replication.leader_throttle)
                if self.config.replication.num_replica_fetchers != before.num_replica_fetchers:
                    await piece.go_on(self._replication.spread())
            topics = self._image.topics_by_id.values()
        for topic in topics:
            if piece.charge(_TOPIC_US + len(topic.partitions) * _LOOK_US):
                await piece.next_turn()
            self._configure_topic(topic)

    def _configure_topic(self, topic: TopicImage) -> None:
        config = self._settings_of(topic.name)
        self._throttle(topic, config)
        for index in topic.partitions:
            partition = self._replicas.get(topic.id, index)
            if partition is None:
                continue
            if isinstance(config, LogConfig):
                partition.configure(config)
            else:
                self.take_offline(partition.tip, str(config), passes=True)

    def _throttle(self, topic: TopicImage, config: LogConfig | ConfigError) -> None:
        """Apply the topic's throttled replicas; invalid settings change nothing."""
        if self._replication is None or isinstance(config, ConfigError):
            return
        leaders = config.leader_replication_throttled_replicas
        if self._replication.throttle(topic, leaders, config.follower_replication_throttled_replicas):
            self._purgatory.happened(self._replication.leader_throttle)
