"""Construction of group shards, loaded with the first group."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from service.coordinator.ports import TopicsView
from service.groups.config import GroupsConfig
from service.groups.consumer.groups import ConsumerGroups
from service.groups.consumer_config import ConsumerConfig, GroupSettings
from service.groups.metrics import GroupMetrics
from service.groups.requests import RequestOrigin
from service.groups.shard import GroupShard
from service.network.request import RequestContext
from service.security.operations import AclOperation
from service.serving.authorization import AuthorizerHost, topics_allowed


def make_shard(
    partition: int,
    topics: TopicsView,
    config: Callable[[], GroupsConfig],
    consumer_config: Callable[[], ConsumerConfig],
    settings_of: GroupSettings,
    metrics: GroupMetrics,
    new_uuid: Callable[[], UUID],
    warn: Callable[[str], None],
) -> GroupShard:
    """Return an empty shard, for classic and consumer groups."""

    def modern(shard: GroupShard) -> ConsumerGroups:
        return ConsumerGroups(
            shard.journal,
            shard.groups,
            topics,
            shard.classic,
            consumer_config,
            settings_of,
            metrics,
            new_uuid,
        )

    return GroupShard(partition, topics, config, metrics, modern, warn)


def client_of(host: AuthorizerHost, context: RequestContext) -> RequestOrigin:
    """Return the client of a request, in the form that groups store."""
    return RequestOrigin(
        context.client_id,
        f"/{context.client_host}",
        context.api_version,
        topics_allowed(host, context, AclOperation.DESCRIBE, quiet=True),
    )


def consumer_groups_of(shard: GroupShard) -> ConsumerGroups:
    """Return the consumer groups (KIP-848) of a shard that `make_shard` made."""
    assert isinstance(shard.modern, ConsumerGroups)
    return shard.modern
