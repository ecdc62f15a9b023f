"""Group coordinator of this node: a shard for each partition of ``__consumer_offsets`` that it leads."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from service.base.steps import Steps
from service.config.settings import BrokerConfig
from service.coordinator.environment import RuntimeSettings
from service.groups.config import GroupsConfig
from service.groups.consumer_config import ConsumerConfig, MigrationPolicy
from service.groups.metrics import GroupMetrics
from service.metadata.controller.requests import ResourceType
from service.metadata.features import GROUP_VERSION
from service.records.batch import CompressionType
from service.serving.internal_topics import OFFSETS
from service.serving.topic_coordinator import CoordinatorParts, TopicCoordinator, number_of

if TYPE_CHECKING:
    from service.groups.commit_plans import CommitPlans
    from service.groups.lag import LagReport
    from service.groups.shard import GroupShard
    from service.serving.broker_channels import BrokerChannels
    from service.serving.group_lag import LagMeter

_log = logging.getLogger(__name__)

_SHARD_MODULE: Final = "service.serving.group_shards"
"""Module that makes shards, loaded with the first one: a node without groups does without its code."""

R = TypeVar("R")


class _Settings(NamedTuple):
    """The coordinators' settings, derived from the node's settings `of`."""

    of: BrokerConfig
    runtime: RuntimeSettings
    groups: GroupsConfig
    consumer: ConsumerConfig


class GroupCoordinators(TopicCoordinator["GroupShard"]):
    """The group coordinator of this node. Owned by the event loop."""

    def __init__(self, parts: CoordinatorParts, channels: Callable[[], BrokerChannels] | None = None) -> None:
        """`channels`: makes the channels to other brokers, which know the ends of their logs; None: there are
        no others."""
        super().__init__(OFFSETS, parts, lambda: self._current_settings().runtime, _SHARD_MODULE)
        self.metrics = GroupMetrics()
        self.new_uuid = parts.world.new_uuid
        self._settings: _Settings | None = None
        self._channels = channels
        self._meter: LagMeter | None = None
        self.plans: CommitPlans | None = None
        """what is remembered of the connections' commits; None until there is one"""

    def connection_ended(self, connection_id: int) -> None:
        """Free what is kept for a connection."""
        if self.plans is not None:
            self.plans.drop(connection_id)

    async def close(self) -> None:
        if self._meter is not None:
            await self._meter.close()
        await super().close()

    # -- figures

    async def lag(self) -> LagReport:
        """Measure the lag of the groups that this node coordinates, of `firn.metrics.groups.max` at most."""
        if self._meter is None:
            from service.serving.group_lag import LagMeter  # a node that nobody scrapes does without it

            self._meter = LagMeter(
                self._parts.config().node_id,
                self._parts.image,
                self._parts.replicas,
                self.runtime.shards,
                lambda: self._parts.config().metrics_groups_max,
                self._channels,
                self._parts.world.clock,
            )
        return await self._meter.report()

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
        config = self._parts.config()
        if self._settings is None or self._settings.of is not config:
            self._settings = _Settings(
                config, _runtime_settings(config), _groups_config(config), consumer_config_of(config)
            )
        return self._settings

    def make_shard(self, partition: int, leader_epoch: int) -> GroupShard:
        shard: GroupShard = self.shard_module.make_shard(
            partition,
            self.topics,
            self.config,
            self.consumer_config,
            lambda group_id: self._parts.image().config(ResourceType.GROUP, group_id),
            self.metrics,
            self.new_uuid,
            _log.warning,
        )
        return shard

    @property
    def serves_consumer_groups(self) -> bool:
        """Return whether the cluster's `group.version` enables consumer groups (KIP-848)."""
        return self._parts.image().features.get(GROUP_VERSION, 0) > 0

    # -- the way to a group

    def max_batch_bytes(self, group_id: str) -> int:
        """Return the size limit of one batch in the group's log; unlimited without an active shard: `write`
        then fails with the reason.
        """
        found = self.active(group_id)
        return sys.maxsize if found is None else found.max_batch_bytes


def _number(config: BrokerConfig, name: str) -> int:
    return number_of(config.groups, name)


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
