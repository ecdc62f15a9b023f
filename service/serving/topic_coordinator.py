"""Coordinator of one internal topic on this node: a shard for each partition that it leads.

Leaderships come from the committed image only: `MetadataApplier` reports each change after it has applied it
to this node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, Generic, NamedTuple, TypeVar
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.java_hash import partition_of
from service.base.timers import Timers
from service.base.types import TopicIdPartition
from service.base.world import World
from service.config.settings import BrokerConfig
from service.coordinator.context import ShardContext
from service.coordinator.environment import RuntimeSettings
from service.coordinator.metrics import RuntimeMetrics
from service.coordinator.ports import CoordinatorTopic
from service.coordinator.runtime import CoordinatorState, Runtime
from service.coordinator.shard import Decide, Query, Shard
from service.hot.manager import LogManager
from service.metadata.delta import MetadataDelta
from service.metadata.image import MetadataImage, TopicImage
from service.replicas.partition_registry import Replicas
from service.serving.coordinator_log import CoordinatorLogs
from service.serving.internal_topics import InternalTopics

S = TypeVar("S", bound=Shard)
R = TypeVar("R")


class ImageTopics:
    """The topics of the newest committed image (`TopicsView`)."""

    def __init__(self, image: Callable[[], MetadataImage]) -> None:
        self._image = image
        self._of: Mapping[str, TopicImage] | None = None
        """the topics of the newest image that was looked at; the next has the same where none changed"""
        self._by_name: dict[str, CoordinatorTopic] = {}
        """those of `_of` that were asked for: each commit asks"""
        self._token = object()
        """a new one for each `_of`: who remembers it does not keep them alive"""

    def by_name(self, topic: str) -> CoordinatorTopic | None:
        topics = self._newest()
        known = self._by_name.get(topic)
        if known is None and (found := topics.get(topic)) is not None:
            known = CoordinatorTopic(found.id, found.name, len(found.partitions))
            self._by_name[topic] = known
        return known

    def by_id(self, topic_id: UUID) -> CoordinatorTopic | None:
        found = self._image().topics_by_id.get(topic_id)
        return None if found is None else CoordinatorTopic(found.id, found.name, len(found.partitions))

    def names(self) -> Iterable[str]:
        return self._image().topics_by_name

    @property
    def token(self) -> object:
        self._newest()
        return self._token

    def _newest(self) -> Mapping[str, TopicImage]:
        topics = self._image().topics_by_name
        if topics is not self._of:
            self._of, self._by_name, self._token = topics, {}, object()
        return topics


class CoordinatorParts(NamedTuple):
    """Parts that all coordinators of this node share."""

    config: Callable[[], BrokerConfig]
    image: Callable[[], MetadataImage]
    world: World
    timers: Timers
    replicas: Replicas
    logs: LogManager
    internal: InternalTopics


class TopicCoordinator(Generic[S]):
    """Base of the coordinators: the runtime of one topic, the way to its shards, and its leaderships. Owned
    by the event loop."""

    def __init__(
        self, topic: str, parts: CoordinatorParts, settings: Callable[[], RuntimeSettings], shard_module: str
    ) -> None:
        """`shard_module`: the module that makes shards, loaded with the first one: a node without them does
        without its code."""
        self.topic = topic
        self.topics = ImageTopics(parts.image)
        self.internal = parts.internal
        self._parts = parts
        self._shard_module_name = shard_module
        self.shard_module: Any = None
        self.runtime: Runtime[S] = Runtime(
            topic,
            self.make_shard,
            CoordinatorLogs(topic, parts.replicas, parts.logs, parts.world.clock),
            parts.world.clock,
            parts.timers,
            settings,
            prepare=self._load_shard_module,
        )

    def make_shard(self, partition: int, leader_epoch: int) -> S:
        """Return an empty shard; `shard_module` is loaded."""
        raise NotImplementedError

    async def close(self) -> None:
        """Stop coordinating."""
        await self.runtime.close()

    async def _load_shard_module(self) -> None:
        if self.shard_module is None:
            self.shard_module = await self._parts.logs.on_thread(import_module, self._shard_module_name)

    # -- figures

    @property
    def runtime_metrics(self) -> RuntimeMetrics:
        return self.runtime.metrics

    def partition_states(self) -> Mapping[str, int]:
        """Count the topic's partitions that this node leads, by coordinator state."""
        counts = self.runtime.states()
        return {
            one.value: counts[one]
            for one in (CoordinatorState.LOADING, CoordinatorState.ACTIVE, CoordinatorState.FAILED)
        }

    # -- the way to a shard

    def partition_of(self, key: str) -> int:
        """Return the partition that coordinates a group or a transactional id. Raises `RequestError`
        NOT_COORDINATOR while the topic does not exist.
        """
        topic = self.internal.find(self.topic)
        if topic is None:
            raise RequestError(ErrorCode.not_coordinator, f"topic {self.topic} does not exist yet")
        return partition_of(key, len(topic.partitions))

    def write(
        self, key: str, decide: Decide[S, R], failed: Callable[[RequestError], R] | None = None
    ) -> R | Awaitable[R]:
        """Have the key's shard decide, and return its answer once the records are committed; at once if it
        neither writes nor waits. `failed` converts an error to an answer; without it `RequestError` is
        raised.
        """
        future = None
        try:
            future = self.runtime.write(self.partition_of(key), decide)
            if future.done():
                return future.result()
            return future if failed is None else _await_answer(future, failed)
        except RequestError as e:
            if failed is None:
                raise
            return failed(e)
        finally:
            del future  # see `coordinator.answers`

    def find_partition(self, key: str) -> int | None:
        """Return what `partition_of` does; None while the topic does not exist."""
        topic = self.topics.by_name(self.topic)
        return None if topic is None else partition_of(key, topic.partitions)

    def active(self, key: str) -> ShardContext[S] | None:
        """Return the active shard of the key; None if it has none: `write` then fails with the reason."""
        partition = self.find_partition(key)
        return None if partition is None else self.runtime.active(partition)

    def read(self, key: str, query: Query[S, R]) -> R:
        """Return the result of `query` on the committed state of the key's shard. Raises `RequestError`."""
        return self.runtime.read(self.partition_of(key), query)

    # -- reports of the applier

    def applied(self, before: MetadataImage, image: MetadataImage, delta: MetadataDelta) -> None:
        """Start and stop shards, and report changed topics to them: this node has applied `image`."""
        deleted = delta.deleted_topics
        names: dict[str, None] = {topic.name: None for topic in deleted.values()}
        for topic in deleted.values():
            if topic.name == self.topic:
                for index in topic.partitions:
                    self.runtime.resigned(index)
        for topic_id in delta.topics:
            topic = image.topics_by_id[topic_id]
            was = before.topics_by_id.get(topic_id)
            if was is None or len(was.partitions) != len(topic.partitions):
                names[topic.name] = None
            if topic.name == self.topic:
                for index in delta.changed_partitions(topic_id):
                    self._lead(image, topic_id, index)
        for topic_id, index in delta.restored_tails:
            loaded = image.topics_by_id.get(topic_id)
            if loaded is not None and loaded.name == self.topic:
                self._lead(image, topic_id, index)
        if names:
            self.runtime.topics_changed(tuple(names), tuple(deleted))

    def came_online(self, image: MetadataImage, tips: Sequence[TopicIdPartition]) -> None:
        """Start the shards of partitions whose logs could be opened only now."""
        for tip in tips:
            if tip.topic == self.topic:
                self.runtime.resigned(tip.partition)  # its shard may have loaded an older log
                self._lead(image, tip.topic_id, tip.partition)

    def _lead(self, image: MetadataImage, topic_id: UUID, index: int) -> None:
        replica = image.partition(topic_id, index)
        if replica is None:
            return
        is_here = self._parts.replicas.get(topic_id, index) is not None
        if replica.leader == self._parts.config().node_id and is_here:
            is_loaded = (topic_id, index) not in image.restored_tails
            self.runtime.elected(index, replica.leader_epoch, has_log=is_loaded)
        else:
            self.runtime.resigned(index, replica.leader_epoch)


async def _await_answer(future: asyncio.Future[R], failed: Callable[[RequestError], R]) -> R:
    try:
        return await future
    except RequestError as e:
        return failed(e)
    finally:
        del future  # see `coordinator.answers`


def number_of(settings: Mapping[str, object], name: str) -> int:
    """Return the setting, which is a number."""
    value = settings[name]
    assert isinstance(value, int)
    return value
