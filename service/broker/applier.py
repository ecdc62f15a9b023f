"""Makes this node what the committed image says: partitions come, change and go with it.

Called on the loop with each new image, before whoever asked for the change is answered: a created topic can
be used when CreateTopics returns. Only what a delta names is looked at.
"""

from __future__ import annotations

import logging
from uuid import UUID

from service.base.errors import ConfigError
from service.base.types import TopicIdPartition
from service.broker.replicas import Replicas
from service.broker.takeover import Adopted, fit_to_archive
from service.config.settings import BrokerConfig, LogConfig, topic_config
from service.hot.log import LocalLog
from service.hot.manager import LogManager
from service.metadata.controller.requests import ResourceType
from service.metadata.delta import MetadataDelta
from service.metadata.image import MetadataImage, PartitionImage, TopicImage
from service.partition.partition import Partition
from service.remote.catalog import CatalogEntry
from service.remote.reading.reader import RemoteReader

log = logging.getLogger(__name__)


class Applier:
    """Keeps `replicas` and the logs on disk in step with the image. Owned by the event loop."""

    def __init__(
        self, config: BrokerConfig, logs: LogManager, replicas: Replicas, reader: RemoteReader | None
    ) -> None:
        self.config = config
        self._logs = logs
        self._replicas = replicas
        self._reader = reader
        self._adopted: Adopted = {}
        self._adopted_ms = 0

    def adopt(self, adopted: Adopted, now_ms: int) -> None:
        """These partitions' archives were taken over from the bucket: their logs have to fit them."""
        self._adopted, self._adopted_ms = adopted, now_ms

    def hold_tiered(self, reason: str) -> None:
        """No partition that may have an archive takes appends before its HEAD was looked at."""
        for partition in self._replicas:
            if partition.config.remote_storage_enable or partition.unified.remote is not None:
                partition.hold_appends(reason)

    def start(self, image: MetadataImage) -> None:
        """Bring every partition of `image` online."""
        for topic in image.topics_by_id.values():
            self._apply_topic(image, topic)

    def apply(self, before: MetadataImage, image: MetadataImage, delta: MetadataDelta) -> None:
        """Do what leads from the image `before` to `image`; `delta` says where to look."""
        for topic in delta.deleted_topics.values():
            self._delete(topic)
        for topic_id in delta.topics:
            self._apply_topic(image, image.topics_by_id[topic_id])
        self._configure(delta, image)
        for topic_id, index in delta.remote:
            self._commit(image, topic_id, index)

    def _apply_topic(self, image: MetadataImage, topic: TopicImage) -> None:
        config = self.effective(image, topic.name)
        for index, replica in topic.partitions.items():
            if self.config.node_id not in replica.replicas:
                continue
            known = self._replicas.get(topic.id, index)
            if known is None:
                self._open(image, topic, index, replica, config)
            else:
                known.leader_epoch = replica.leader_epoch
                known.isr_size, known.replica_count = len(replica.isr), len(replica.replicas)

    def _open(
        self, image: MetadataImage, topic: TopicImage, index: int, replica: PartitionImage, config: LogConfig
    ) -> None:
        tip = TopicIdPartition(topic.id, topic.name, index)
        local, remote = self._logs.get_or_create(tip, config), image.remote.get((topic.id, index))
        archived = self._adopted.get((topic.id, index))
        if archived is not None and remote is not None:
            fit_to_archive(local, remote, archived, self._adopted_ms)
        _fit(local, remote)
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
        self._replicas.add(partition)

    def _delete(self, topic: TopicImage) -> None:
        for index in topic.partitions:
            partition = self._replicas.get(topic.id, index)
            if partition is not None:
                self._replicas.remove(partition)
                partition.close()
                self._logs.delete(partition.tip)

    def _configure(self, delta: MetadataDelta, image: MetadataImage) -> None:
        for resource_type, name in delta.configs:
            if resource_type == ResourceType.BROKER and name in ("", str(self.config.node_id)):
                self._configure_broker(image)
        for resource_type, name in delta.configs:
            topic = image.topics_by_name.get(name)
            if resource_type == ResourceType.TOPIC and topic is not None:
                self._configure_topic(image, topic)

    def _configure_broker(self, image: MetadataImage) -> None:
        """Broker settings are what topics without overrides get, so every topic is looked at again."""
        self.config = dynamic_config(self.config, image)
        for topic in image.topics_by_id.values():
            self._configure_topic(image, topic)

    def _configure_topic(self, image: MetadataImage, topic: TopicImage) -> None:
        config = self.effective(image, topic.name)
        for index in topic.partitions:
            partition = self._replicas.get(topic.id, index)
            if partition is not None:
                partition.configure(config)

    def _commit(self, image: MetadataImage, topic_id: UUID, index: int) -> None:
        partition = self._replicas.get(topic_id, index)
        if partition is not None:
            partition.unified.remote_committed(image.remote.get((topic_id, index)))

    def effective(self, image: MetadataImage, topic: str) -> LogConfig:
        """What a topic's overrides come to on this node."""
        try:
            return topic_config(image.config(ResourceType.TOPIC, topic), self.config)
        except ConfigError as e:
            # The overrides were valid when they were committed; this node's file says otherwise now. The
            # topic stays readable under the node's defaults rather than keeping the node from starting.
            log.error("topic %s: overrides do not hold on this node, defaults apply: %s", topic, e)
            return self.config.log


def _fit(local: LocalLog, remote: CatalogEntry | None) -> None:
    """Make a log that was just opened agree with what the catalog says of its archive."""
    if remote is None:
        # Without an archive the log begins where its files do, whatever a checkpoint failed to say.
        local.advance_log_start(local.local_log_start_offset)
    elif local.log_end_offset < remote.end_offset:
        # The disk was lost or replaced. Offsets that lie in the bucket must not be given out again.
        log.warning(
            "%s ends at %d, its archive at %d: it goes on from there",
            local.tip, local.log_end_offset, remote.end_offset,
        )  # fmt: skip
        local.restart_at(remote.end_offset, remote.start_offset)


def dynamic_config(config: BrokerConfig, image: MetadataImage) -> BrokerConfig:
    """The node's settings with what the metadata log says on top."""
    own = image.config(ResourceType.BROKER, str(config.node_id))
    return config.with_dynamic(own, image.config(ResourceType.BROKER, ""))
