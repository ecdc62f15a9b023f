"""ConsumerGroupDescribe (KIP-848): consumer groups, their members and assignments."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from kio.schema.consumer_group_describe.v1.request import ConsumerGroupDescribeRequest
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.slices import in_slices
from service.base.steps import Steps
from service.groups.consumer.requests import DescribedConsumerGroup
from service.groups.requests import refused_group_id
from service.network.request import RequestContext
from service.security.operations import AclOperation, AclResourceType
from service.serving.authorization import operations, refused_group, topics_allowed
from service.serving.group_shards import consumer_groups_of
from service.serving.request_host import NO_THROTTLE, Broker
from service.wire.api import ApiKey, response_module

HIDDEN_TOPICS: Final = "The group has described topic(s) that the client is not authorized to describe."


def handle(
    broker: Broker, context: RequestContext, request: ConsumerGroupDescribeRequest
) -> Any | Awaitable[Any]:
    """Describe each group, with its own error; UNSUPPORTED_VERSION while the feature `group.version` is 0."""
    return in_slices(_steps(broker, context, request))


def _steps(broker: Broker, context: RequestContext, request: ConsumerGroupDescribeRequest) -> Steps[Any]:
    found = []
    may_describe = topics_allowed(broker, context, AclOperation.DESCRIBE)
    for group_id in request.group_ids:
        yield
        one = _describe(broker, context, group_id)
        yield
        if request.include_authorized_operations and one.error_code is ErrorCode.none:
            told = operations(broker, context, AclResourceType.GROUP, group_id)
            one = one._replace(authorized_operations=told)
        if may_describe is not None and not (yield from _is_visible(one, may_describe)):
            one = DescribedConsumerGroup(group_id, ErrorCode.topic_authorization_failed, HIDDEN_TOPICS)
        found.append(one)
    return response_module(ApiKey.CONSUMER_GROUP_DESCRIBE).ConsumerGroupDescribeResponse(
        throttle_time=NO_THROTTLE, groups=tuple(found)
    )


def _is_visible(group: DescribedConsumerGroup, may_describe: Callable[[str], bool]) -> Steps[bool]:
    """Return whether the client may describe all topics that members have, or are to get."""
    seen: set[str] = set()
    for member in group.members:
        yield
        for assignment in (member.assignment, member.target_assignment):
            for one in assignment.topic_partitions:
                if one.topic_name not in seen and not may_describe(one.topic_name):
                    return False
                seen.add(one.topic_name)
    return True


def _describe(broker: Broker, context: RequestContext, group_id: str) -> DescribedConsumerGroup:
    if not broker.groups.serves_consumer_groups:
        return DescribedConsumerGroup(group_id, ErrorCode.unsupported_version)
    denied = refused_group(broker, context, AclOperation.DESCRIBE, group_id)
    refused = denied or refused_group_id(group_id)
    if refused is not None:
        return DescribedConsumerGroup(group_id, refused)
    try:
        return broker.groups.read(
            group_id, lambda shard, now_ms: consumer_groups_of(shard).describe(group_id)
        )
    except RequestError as e:
        return DescribedConsumerGroup(group_id, e.code, e.message)
