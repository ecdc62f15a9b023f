"""ConsumerGroupDescribe (KIP-848): consumer groups, their members and assignments."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from kio.schema.consumer_group_describe.v1.request import ConsumerGroupDescribeRequest
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.slices import in_slices
from service.base.steps import Steps
from service.groups.consumer.requests import DescribedConsumerGroup
from service.groups.requests import refused_group_id
from service.network.request import RequestContext
from service.serving.group_shards import consumer_groups_of
from service.serving.request_host import GROUP_OPERATIONS, NO_THROTTLE, Broker
from service.wire.api import ApiKey, response_module


def handle(
    broker: Broker, context: RequestContext, request: ConsumerGroupDescribeRequest
) -> Any | Awaitable[Any]:
    """Describe each group, with its own error; UNSUPPORTED_VERSION while the feature `group.version` is 0."""
    return in_slices(_steps(broker, request))


def _steps(broker: Broker, request: ConsumerGroupDescribeRequest) -> Steps[Any]:
    found = []
    for group_id in request.group_ids:
        yield
        one = _describe(broker, group_id)
        yield
        if request.include_authorized_operations and one.error_code is ErrorCode.none:
            one = one._replace(authorized_operations=GROUP_OPERATIONS)
        found.append(one)
    return response_module(ApiKey.CONSUMER_GROUP_DESCRIBE).ConsumerGroupDescribeResponse(
        throttle_time=NO_THROTTLE, groups=tuple(found)
    )


def _describe(broker: Broker, group_id: str) -> DescribedConsumerGroup:
    if not broker.groups.serves_consumer_groups:
        return DescribedConsumerGroup(group_id, ErrorCode.unsupported_version)
    refused = refused_group_id(group_id)
    if refused is not None:
        return DescribedConsumerGroup(group_id, refused)
    try:
        return broker.groups.read(
            group_id, lambda shard, now_ms: consumer_groups_of(shard).describe(group_id)
        )
    except RequestError as e:
        return DescribedConsumerGroup(group_id, e.code, e.message)
