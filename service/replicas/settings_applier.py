"""Settings of this node and of topics, as the metadata has them, and what follows their change on this node.

Invalid settings of a topic are an error, never replaced by others: retention under wrong settings deletes
records. Owned by the event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from service.base.errors import ConfigError
from service.base.purgatory import Purgatory
from service.base.slices import Slice
from service.base.types import TopicIdPartition
from service.config.settings import BrokerConfig, LogConfig
from service.hot.manager import LogManager
from service.metadata.controller.requests import ResourceType
from service.metadata.delta import MetadataDelta
from service.metadata.image import ConfigResource, MetadataImage, TopicImage
from service.replicas.dynamic_config import dynamic_config, topic_settings
from service.replicas.partition_registry import Replicas

if TYPE_CHECKING:
    from service.replicas.replica_manager import ReplicaManager


class TakeOffline(Protocol):
    """`ReplicaOpener.take_offline`."""

    def __call__(self, tip: TopicIdPartition, reason: str, *, passes: bool) -> None: ...


class SettingsApplier:
    """Effective settings, by the last image that was applied."""

    def __init__(
        self,
        config: BrokerConfig,
        logs: LogManager,
        replicas: Replicas,
        purgatory: Purgatory,
        replication: ReplicaManager | None,
    ) -> None:
        self.config = config
        """settings of this node, with those of the metadata"""
        self._logs = logs
        self._replicas = replicas
        self._purgatory = purgatory
        self._replication = replication
        self.watchers: list[Callable[[BrokerConfig], None]] = []
        """called with the node's settings, whenever the metadata says something of them"""
        logs.set_producer_expiration(config.producer_id_expiration_ms)

    def start(self, image: MetadataImage) -> None:
        """Apply the node's settings of the first image."""
        self.config = dynamic_config(self.config, image)
        self._tell()
        if self._replication is not None:
            self._replication.configure(self.config.replication)

    def _tell(self) -> None:
        for watcher in self.watchers:
            watcher(self.config)

    def concern_node(self, delta: MetadataDelta) -> bool:
        """Return whether settings of this node changed; these are the defaults of topics."""
        return any(self._is_ours(resource) for resource in delta.configs)

    def _is_ours(self, resource: ConfigResource) -> bool:
        return resource[0] == ResourceType.BROKER and resource[1] in ("", str(self.config.node_id))

    async def update(self, image: MetadataImage, piece: Slice) -> None:
        """Apply changed settings of this node."""
        before = self.config.replication
        self.config = dynamic_config(self.config, image)
        self._tell()
        self._logs.set_producer_expiration(self.config.producer_id_expiration_ms)
        if self._replication is None:
            return
        if self._replication.configure(self.config.replication):
            self._purgatory.happened(self._replication.leader_throttle)
        if self.config.replication.num_replica_fetchers != before.num_replica_fetchers:
            await piece.go_on(self._replication.spread())

    def of(self, image: MetadataImage, topic: str) -> LogConfig | ConfigError:
        """Return the settings of a topic, or why they are invalid."""
        try:
            return topic_settings(image, topic, self.config)
        except ConfigError as e:
            return e

    def configure(self, image: MetadataImage, topic: TopicImage, take_offline: TakeOffline) -> None:
        """Apply the topic's settings to its partitions here; take them offline where these are invalid."""
        config = self.of(image, topic.name)
        self.throttle(topic, config)
        for index in topic.partitions:
            partition = self._replicas.get(topic.id, index)
            if partition is None:
                continue
            if isinstance(config, LogConfig):
                partition.configure(config)
            else:
                take_offline(partition.tip, str(config), passes=True)

    def throttle(self, topic: TopicImage, config: LogConfig | ConfigError) -> None:
        """Apply the topic's throttled replicas; invalid settings change nothing."""
        if self._replication is None or isinstance(config, ConfigError):
            return
        leaders = config.leader_replication_throttled_replicas
        if self._replication.throttle(topic, leaders, config.follower_replication_throttled_replicas):
            self._purgatory.happened(self._replication.leader_throttle)


def configured_topics(image: MetadataImage, delta: MetadataDelta) -> list[TopicImage]:
    """Return the topics whose settings changed, or are known by now."""
    names = [name for kind, name in delta.configs if kind == ResourceType.TOPIC]
    topics = [image.topics_by_name.get(name) for name in names]
    topics += [image.topics_by_id.get(topic_id) for topic_id in delta.recovered]
    return [topic for topic in topics if topic is not None]
