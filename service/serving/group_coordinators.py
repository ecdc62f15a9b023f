"""Group coordinator of this node: a shard for each partition of ``__consumer_offsets`` that it leads.

Leaderships come from the committed image only: `MetadataApplier` reports each change after it has applied it
to this node.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.java_hash import partition_of
from service.base.steps import Steps
from service.base.timers import Timers
from service.base.types import TopicIdPartition
from service.base.world import World
from service.config.settings import BrokerConfig
from service.coordinator.context import RuntimeSettings, ShardContext
from service.coordinator.metrics import RuntimeMetrics
from service.coordinator.ports import CoordinatorTopic
from service.coordinator.runtime import CoordinatorState, Runtime
from service.coordinator.shard import Decide, Query
from service.groups.config import GroupsConfig
from service.groups.consumer_config import ConsumerConfig, MigrationPolicy
from service.groups.metrics import GroupMetrics
from service.hot.manager import LogManager
from service.metadata.controller.requests import ResourceType
from service.metadata.delta import MetadataDelta
from service.metadata.features import GROUP_VERSION
from service.metadata.image import MetadataImage
from service.records.batch import CompressionType
from service.replicas.partition_registry import Replicas
from service.serving.coordinator_log import CoordinatorLogs
from service.serving.internal_topics import OFFSETS, InternalTopics

if TYPE_CHECKING:
    from service.groups.shard import GroupShard

_log = logging.getLogger(__name__)

_SHARD_MODULE: Final = "service.serving.group_shards"
"""Module that makes shards, loaded with the first one: a node without groups does without its code."""

R = TypeVar("R")


class ImageTopics:
    """The topics of the newest committed image (`TopicsView`)."""

    def __init__(self, image: Callable[[], MetadataImage]) -> None:
        self._image = image

    def by_name(self, topic: str) -> CoordinatorTopic | None:
        found = self._image().topics_by_name.get(topic)
        return None if found is None else CoordinatorTopic(found.id, found.name, len(found.partitions))

    def by_id(self, topic_id: UUID) -> CoordinatorTopic | None:
        found = self._image().topics_by_id.get(topic_id)
        return None if found is None else CoordinatorTopic(found.id, found.name, len(found.partitions))

    def names(self) -> Iterable[str]:
        return self._image().topics_by_name


class _Settings(NamedTuple):
    """The coordinators' settings, derived from the node's settings `of`."""

    of: BrokerConfig
    runtime: RuntimeSettings
    groups: GroupsConfig
    consumer: ConsumerConfig


class GroupCoordinators:
    """The group coordinator of this node. Owned by the event loop."""

    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        image: Callable[[], MetadataImage],
        world: World,
        timers: Timers,
        replicas: Replicas,
        logs: LogManager,
        internal: InternalTopics,
    ) -> None:
        self.topics = ImageTopics(image)
        self.internal = internal
        self.metrics = GroupMetrics()
        self.new_uuid = world.new_uuid
        self._config = config
        self._image = image
        self._replicas = replicas
        self._settings: _Settings | None = None
        self._load: Callable[[str], Awaitable[Any]] = lambda name: logs.on_thread(import_module, name)
        self._shard_module: Any = None
        self.runtime: Runtime[GroupShard] = Runtime(
            OFFSETS,
            self._make_shard,
            CoordinatorLogs(OFFSETS, replicas, logs, world.clock),
            world.clock,
            timers,
            lambda: self._current_settings().runtime,
            prepare=self._load_shard_module,
        )

    async def close(self) -> None:
        """Stop coordinating groups."""
        await self.runtime.close()

    # -- figures

    @property
    def runtime_metrics(self) -> RuntimeMetrics:
        return self.runtime.metrics

    def partition_states(self) -> Mapping[str, int]:
        """Count the partitions of `__consumer_offsets` that this node leads, by coordinator state."""
        counts = self.runtime.states()
        return {
            one.value: counts[one]
            for one in (CoordinatorState.LOADING, CoordinatorState.ACTIVE, CoordinatorState.FAILED)
        }

    def offset_count(self) -> int:
        """Count the committed offsets."""
        return sum(shard.offsets.count() for shard in self.runtime.shards())

    def census(self) -> Steps[Mapping[tuple[str, str], int]]:
        """Count groups by (protocol, state), in steps."""
        found: Counter[tuple[str, str]] = Counter()
        for shard in self.runtime.shards():
            found += yield from shard.census()
        return found

    # -- settings

    def config(self) -> GroupsConfig:
        """Return the current settings of offsets and classic groups."""
        return self._current_settings().groups

    def consumer_config(self) -> ConsumerConfig:
        """Return the current settings of consumer groups."""
        return self._current_settings().consumer

    def _current_settings(self) -> _Settings:
        config = self._config()
        if self._settings is None or self._settings.of is not config:
            self._settings = _Settings(
                config, _runtime_settings(config), _groups_config(config), consumer_config_of(config)
            )
        return self._settings

    async def _load_shard_module(self) -> None:
        if self._shard_module is None:
            self._shard_module = await self._load(_SHARD_MODULE)

    def _make_shard(self, partition: int) -> GroupShard:
        assert self._shard_module is not None
        shard: GroupShard = self._shard_module.make_shard(
            partition,
            self.topics,
            self.config,
            self.consumer_config,
            lambda group_id: self._image().config(ResourceType.GROUP, group_id),
            self.metrics,
            self.new_uuid,
            _log.warning,
        )
        return shard

    @property
    def serves_consumer_groups(self) -> bool:
        """Return whether the cluster's `group.version` enables consumer groups (KIP-848)."""
        return self._image().features.get(GROUP_VERSION, 0) > 0

    # -- the way to a group

    def partition_of(self, group_id: str) -> int:
        """Return the partition of ``__consumer_offsets`` that has the group. Raises `RequestError`
        NOT_COORDINATOR while that topic does not exist.
        """
        topic = self.internal.find(OFFSETS)
        if topic is None:
            raise RequestError(ErrorCode.not_coordinator, f"topic {OFFSETS} does not exist yet")
        return partition_of(group_id, len(topic.partitions))

    def write(
        self, group_id: str, decide: Decide[GroupShard, R], failed: Callable[[RequestError], R]
    ) -> R | Awaitable[R]:
        """Have the group's shard decide, and return its answer once the records are committed; at once if it
        neither writes nor waits. `failed` converts an error to an answer.
        """
        try:
            future = self.runtime.write(self.partition_of(group_id), decide)
            return future.result() if future.done() else _await_answer(future, failed)
        except RequestError as e:
            return failed(e)

    def active(self, group_id: str) -> ShardContext[GroupShard] | None:
        """Return the active shard of the group; None if it has none: `write` then fails with the reason."""
        topic = self.internal.find(OFFSETS)
        if topic is None:
            return None
        return self.runtime.active(partition_of(group_id, len(topic.partitions)))

    def max_batch_bytes(self, group_id: str) -> int:
        """Return the size limit of one batch in the group's log; unlimited without an active shard: `write`
        then fails with the reason.
        """
        found = self.active(group_id)
        return sys.maxsize if found is None else found.max_batch_bytes

    def read(self, group_id: str, query: Query[GroupShard, R]) -> R:
        """Return the result of `query` on the committed state of the group's shard. Raises `RequestError`."""
        return self.runtime.read(self.partition_of(group_id), query)

    # -- reports of the applier

    def applied(self, before: MetadataImage, image: MetadataImage, delta: MetadataDelta) -> None:
        """Start and stop shards, and report changed topics to them: this node has applied `image`."""
        deleted = delta.deleted_topics
        names: dict[str, None] = {topic.name: None for topic in deleted.values()}
        for topic in deleted.values():
            if topic.name == OFFSETS:
                for index in topic.partitions:
                    self.runtime.resigned(index)
        for topic_id in delta.topics:
            topic = image.topics_by_id[topic_id]
            was = before.topics_by_id.get(topic_id)
            if was is None or len(was.partitions) != len(topic.partitions):
                names[topic.name] = None
            if topic.name == OFFSETS:
                for index in delta.changed_partitions(topic_id):
                    self._lead(image, topic_id, index)
        if names:
            self.runtime.topics_changed(tuple(names), tuple(deleted))

    def came_online(self, image: MetadataImage, tips: Sequence[TopicIdPartition]) -> None:
        """Start the shards of partitions whose logs could be opened only now."""
        for tip in tips:
            if tip.topic == OFFSETS:
                self.runtime.resigned(tip.partition)  # its shard may have loaded an older log
                self._lead(image, tip.topic_id, tip.partition)

    def _lead(self, image: MetadataImage, topic_id: UUID, index: int) -> None:
        replica = image.partition(topic_id, index)
        if replica is None:
            return
        is_here = self._replicas.get(topic_id, index) is not None
        if replica.leader == self._config().node_id and is_here:
            self.runtime.elected(index, replica.leader_epoch)
        else:
            self.runtime.resigned(index, replica.leader_epoch)


async def _await_answer(future: asyncio.Future[R], failed: Callable[[RequestError], R]) -> R:
    try:
        return await future
    except RequestError as e:
        return failed(e)


def _number(config: BrokerConfig, name: str) -> int:
    value = config.groups[name]
    assert isinstance(value, int)
    return value


def _runtime_settings(config: BrokerConfig) -> RuntimeSettings:
    return RuntimeSettings(
        linger_ms=_number(config, "group.coordinator.append.linger.ms"),
        commit_timeout_ms=_number(config, "offsets.commit.timeout.ms"),
        codec=CompressionType(_number(config, "offsets.topic.compression.codec")),
        load_buffer_bytes=_number(config, "offsets.load.buffer.size"),
    )


def _groups_config(config: BrokerConfig) -> GroupsConfig:
    names = (field.replace("_", ".") for field in GroupsConfig._fields)
    return GroupsConfig(*(_number(config, name) for name in names))


def consumer_config_of(config: BrokerConfig) -> ConsumerConfig:
    """Return the settings of consumer groups from a node's settings."""

    def number(name: str) -> int:
        return _number(config, f"group.consumer.{name}")

    assignors = config.groups["group.consumer.assignors"]
    assert isinstance(assignors, tuple)
    return ConsumerConfig(
        session_timeout_ms=number("session.timeout.ms"),
        min_session_timeout_ms=number("min.session.timeout.ms"),
        max_session_timeout_ms=number("max.session.timeout.ms"),
        heartbeat_interval_ms=number("heartbeat.interval.ms"),
        min_heartbeat_interval_ms=number("min.heartbeat.interval.ms"),
        max_heartbeat_interval_ms=number("max.heartbeat.interval.ms"),
        assignment_interval_ms=number("assignment.interval.ms"),
        min_assignment_interval_ms=number("min.assignment.interval.ms"),
        max_assignment_interval_ms=number("max.assignment.interval.ms"),
        max_size=number("max.size"),
        assignors=assignors,
        regex_refresh_interval_ms=number("regex.refresh.interval.ms"),
        migration_policy=MigrationPolicy(str(config.groups["group.consumer.migration.policy"])),
        classic_max_size=_number(config, "group.max.size"),
    )
