"""Makes this node what the committed image says: partitions come, change and go with it.

Called on the loop with each new image, before whoever asked for the change is answered: a created topic can
be used when CreateTopics returns. Only what a delta names is looked at.

A disk that refuses, or settings that do not hold on this node, take the one partition offline; what may pass
is tried again (`run`). Settings are never replaced by others: retention under the wrong ones deletes.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final
from uuid import UUID

from service.base.errors import ConfigError, CorruptionError, RequestError, StorageError
from service.base.types import TopicIdPartition
from service.broker.effective_settings import dynamic_config, topic_settings
from service.broker.replicas import Replicas
from service.broker.takeover import Adopted, fit_to_archive
from service.config.settings import BrokerConfig, LogConfig
from service.hot.log import LocalLog
from service.hot.manager import LogManager
from service.hot.producer_snapshot import decode_snapshot
from service.metadata.controller.requests import ResourceType
from service.metadata.delta import MetadataDelta
from service.metadata.image import MetadataImage, PartitionImage, TopicImage
from service.partition.partition import Partition
from service.remote.catalog import CatalogEntry
from service.remote.reading.reader import RemoteReader
from service.tiering.recovery import ArchivedPartition

log = logging.getLogger(__name__)

RETRY_S: Final = 2.0
_RESTORED_AT_A_TIME: Final = 16
_HELD: Final = "its HEAD in the bucket has not been compared with the metadata yet"


class Applier:
    """Keeps `replicas` and the logs on disk in step with the image. Owned by the event loop."""

    def __init__(
        self, config: BrokerConfig, logs: LogManager, replicas: Replicas, reader: RemoteReader | None
    ) -> None:
        self.config = config
        self._logs = logs
        self._replicas = replicas
        self._reader = reader
        self._image = MetadataImage()
        self._pending: dict[TopicIdPartition, None] = {}
        """offline for a reason that may pass"""
        self._behind: dict[TopicIdPartition, CatalogEntry] = {}
        """offline until the state at the end of their archive is read"""
        self._learnt: set[TopicIdPartition] = set()
        """whose archive was asked for the epochs that the disk has lost"""
        self._adopted: dict[tuple[UUID, int], ArchivedPartition] = {}
        self._created: set[UUID] = set()
        """topics that were created since this process started: none of their files is older"""

    def adopt(self, adopted: Adopted) -> None:
        """These partitions' archives were taken over from the bucket: their logs have to fit them."""
        self._adopted = dict(adopted)

    def start(self, image: MetadataImage) -> None:
        """Bring every partition of `image` online."""
        self._image = image
        for topic in image.topics_by_id.values():
            self._apply_topic(topic, is_new=False)

    def apply(self, before: MetadataImage, image: MetadataImage, delta: MetadataDelta) -> None:
        """Do what leads from the image `before` to `image`; `delta` says where to look."""
        self._image = image
        for topic in delta.deleted_topics.values():
            self._delete(topic)
        self._created.update(topic_id for topic_id in delta.topics if topic_id not in before.topics_by_id)
        for topic_id in delta.topics:
            self._apply_topic(image.topics_by_id[topic_id], is_new=topic_id not in before.topics_by_id)
        self._configure(delta)
        for topic_id, index in delta.remote:
            self._commit(topic_id, index)

    def holds(self, topic_id: UUID, index: int) -> bool:
        """Whether the image gives this node the partition, be it online or not."""
        replica = self._image.partition(topic_id, index)
        return replica is not None and self.config.node_id in replica.replicas

    # -- partitions that come and go

    def _apply_topic(self, topic: TopicImage, *, is_new: bool) -> None:
        for index, replica in topic.partitions.items():
            if self.config.node_id not in replica.replicas:
                continue
            known = self._replicas.get(topic.id, index)
            if known is None:
                self._bring(topic, index, replica, is_new=is_new)
            else:
                self._change(known, replica)

    def _change(self, partition: Partition, replica: PartitionImage) -> None:
        partition.isr_size, partition.replica_count = len(replica.isr), len(replica.replicas)
        try:
            self._note_epoch(partition.log, replica)
        except StorageError as e:
            self._take_offline(partition.tip, str(e), passes=True)
        partition.leader_epoch = replica.leader_epoch

    def _note_epoch(self, local: LocalLog, replica: PartitionImage) -> None:
        """The epoch begins with leadership, not with its first record: who asks where the one before ended is
        answered also while nothing is written."""
        if replica.leader == self.config.node_id:
            local.note_leader_epoch(replica.leader_epoch)

    def _bring(self, topic: TopicImage, index: int, replica: PartitionImage, *, is_new: bool) -> None:
        """Bring a partition online, or say why it is not."""
        tip = TopicIdPartition(topic.id, topic.name, index)
        try:
            config = topic_settings(self._image, topic.name, self.config)
            self._open(tip, replica, config, is_new=is_new)
        except (StorageError, CorruptionError, ConfigError) as e:
            self._take_offline(tip, str(e), passes=not isinstance(e, CorruptionError))

    def _take_offline(self, tip: TopicIdPartition, reason: str, *, passes: bool) -> None:
        if reason != self._replicas.why_offline(tip.topic_id, tip.partition):
            log.error("%s is offline: %s", tip, reason)
        self._replicas.take_offline(tip, reason)
        if passes:
            self._pending[tip] = None

    def _open(
        self, tip: TopicIdPartition, replica: PartitionImage, config: LogConfig, *, is_new: bool
    ) -> None:
        local = self._logs.get_or_create(tip, config, is_new=tip.topic_id in self._created)
        remote = self._entry(tip)
        archived = self._adopted.pop((tip.topic_id, tip.partition), None)
        if archived is not None and remote is not None:
            fit_to_archive(local, remote, archived)
        if remote is None:
            # Without an archive the log begins where its files do, whatever a checkpoint failed to say.
            local.advance_log_start(local.local_log_start_offset)
        elif local.log_end_offset < remote.end_offset:
            reason = f"its log ends at {local.log_end_offset}, its archive at {remote.end_offset}"
            self._wait_for_archive(tip, reason, remote)
            return
        elif tip not in self._learnt and _lacks_epochs(local, remote):
            self._wait_for_archive(tip, "the disk has lost the leader epochs of its archive", remote)
            return
        self._note_epoch(local, replica)
        partition = Partition(
            tip,
            local,
            self._reader,
            replica.leader_epoch,
            len(replica.isr),
            self.config.max_inflated_batch_bytes,
        )
        partition.replica_count = len(replica.replicas)
        partition.configure(config)
        partition.unified.remote_committed(remote)
        if self._reader is not None and not is_new and (config.remote_storage_enable or remote is not None):
            partition.hold_appends(_HELD)
        self._replicas.add(partition)

    def _delete(self, topic: TopicImage) -> None:
        self._created.discard(topic.id)
        for index in topic.partitions:
            tip = TopicIdPartition(topic.id, topic.name, index)
            self._pending.pop(tip, None)
            self._behind.pop(tip, None)
            partition = self._replicas.get(topic.id, index)
            if partition is not None:
                self._replicas.remove(partition)
                partition.close()
            self._replicas.forget(tip)
            try:
                self._logs.delete(tip)
            except StorageError as e:
                log.error("the files of the deleted %s stay, and are set aside at the next start: %s", tip, e)

    def _commit(self, topic_id: UUID, index: int) -> None:
        partition = self._replicas.get(topic_id, index)
        if partition is None:
            return
        try:
            partition.unified.remote_committed(self._entry(partition.tip))
        except StorageError as e:
            log.error("local segments of %s that its archive has expired stay for now: %s", partition.tip, e)

    def _entry(self, tip: TopicIdPartition) -> CatalogEntry | None:
        return self._image.remote.get((tip.topic_id, tip.partition))

    # -- partitions that are offline, and may come

    async def run(self) -> None:
        """Try again what was refused, for as long as the task lives."""
        while True:
            await self._restore()
            pending, self._pending = self._pending, {}
            for tip in pending:
                self._try_again(tip)
                await asyncio.sleep(0)
            await asyncio.sleep(RETRY_S)

    def _try_again(self, tip: TopicIdPartition) -> None:
        topic = self._image.topics_by_id.get(tip.topic_id)
        replica = self._image.partition(tip.topic_id, tip.partition)
        if topic is None or replica is None or self._replicas.get(tip.topic_id, tip.partition) is not None:
            return
        self._bring(topic, tip.partition, replica, is_new=False)
        if self._replicas.get(tip.topic_id, tip.partition) is not None:
            log.info("%s is online again", tip)

    def _wait_for_archive(self, tip: TopicIdPartition, reason: str, remote: CatalogEntry) -> None:
        """The disk, or the file of epochs, was lost or replaced. Offsets that lie in the bucket must not be
        given out again, and what is known of epochs and producers at the archive's end must be, before the
        first append."""
        where = "firn.remote.url is not set" if self._reader is None else "the archive's end is read first"
        self._take_offline(tip, f"{reason}: {where}", passes=False)
        self._behind[tip] = remote

    async def _restore(self) -> None:
        if self._reader is None or not self._behind:
            return
        behind = list(self._behind.items())
        for start in range(0, len(behind), _RESTORED_AT_A_TIME):
            await asyncio.gather(
                *(self._restart(tip, remote) for tip, remote in behind[start : start + _RESTORED_AT_A_TIME])
            )

    async def _restart(self, tip: TopicIdPartition, remote: CatalogEntry) -> None:
        """Let a log go on where its archive ends, with the epochs and producers that are known there."""
        assert self._reader is not None
        try:
            end = await asyncio.wrap_future(self._reader.archive_end(tip, remote.manifest_key))
            producers = decode_snapshot(end.producer_snapshot) if end.producer_snapshot else []
            local = self._logs.get(tip.topic_id, tip.partition)
            if self._behind.get(tip) != remote or self._entry(tip) != remote or local is None:
                return  # it was deleted meanwhile
            self._learnt.add(tip)
            if local.log_end_offset < remote.end_offset:
                log.warning(
                    "%s ends at %d, its archive at %d: it goes on from there",
                    tip, local.log_end_offset, remote.end_offset,
                )  # fmt: skip
                local.restart_at(
                    remote.end_offset, remote.start_offset, epochs=end.epochs, producers=producers
                )
            else:
                log.warning("%s takes the leader epochs that its disk has lost from its archive", tip)
                local.epochs.learn_earlier(end.epochs, local.log_start_offset)
        except (StorageError, CorruptionError, RequestError) as e:
            self._take_offline(tip, f"the end of its archive cannot be read: {e}", passes=False)
            return
        del self._behind[tip]
        self._try_again(tip)

    # -- settings

    def _configure(self, delta: MetadataDelta) -> None:
        for resource_type, name in delta.configs:
            if resource_type == ResourceType.BROKER and name in ("", str(self.config.node_id)):
                self._configure_broker()
        for resource_type, name in delta.configs:
            topic = self._image.topics_by_name.get(name)
            if resource_type == ResourceType.TOPIC and topic is not None:
                self._configure_topic(topic)

    def _configure_broker(self) -> None:
        """Broker settings are what topics without overrides get, so every topic is looked at again."""
        self.config = dynamic_config(self.config, self._image)
        for topic in self._image.topics_by_id.values():
            self._configure_topic(topic)

    def _configure_topic(self, topic: TopicImage) -> None:
        for index in topic.partitions:
            partition = self._replicas.get(topic.id, index)
            if partition is None:
                continue
            try:
                partition.configure(topic_settings(self._image, topic.name, self.config))
            except ConfigError as e:
                self._take_offline(partition.tip, str(e), passes=True)


def _lacks_epochs(local: LocalLog, remote: CatalogEntry) -> bool:
    """Whether those of records that are in the archive alone are unknown: their file was damaged or lost, and
    the local batches do not tell of them."""
    start = max(local.log_start_offset, remote.start_offset)
    entries = local.epochs.entries
    return local.local_log_start_offset > start and (not entries or entries[0][1] > start)
