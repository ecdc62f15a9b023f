"""DescribeGroups: classic groups and their members."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from kio.schema.describe_groups.v6.request import DescribeGroupsRequest
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.slices import in_slices
from service.base.steps import Steps
from service.groups.requests import DescribedGroup
from service.network.request import RequestContext
from service.security.operations import AclOperation, AclResourceType
from service.serving.authorization import operations, refused_group
from service.serving.request_host import NO_THROTTLE, Broker
from service.wire.api import ApiKey, response_module


def handle(broker: Broker, context: RequestContext, request: DescribeGroupsRequest) -> Any | Awaitable[Any]:
    """Describe each group, with its own error."""
    return in_slices(_steps(broker, context, request))


def _steps(broker: Broker, context: RequestContext, request: DescribeGroupsRequest) -> Steps[Any]:
    found = []
    for group_id in request.groups:
        yield
        denied = refused_group(broker, context, AclOperation.DESCRIBE, group_id)
        if denied is not None:
            found.append(DescribedGroup(group_id, error_code=denied))
            continue
        one = _describe(broker, context.api_version, group_id)
        yield
        if request.include_authorized_operations and one.error_code is ErrorCode.none:
            told = operations(broker, context, AclResourceType.GROUP, group_id)
            one = one._replace(authorized_operations=told)
        found.append(one)
    return response_module(ApiKey.DESCRIBE_GROUPS).DescribeGroupsResponse(
        throttle_time=NO_THROTTLE, groups=tuple(found)
    )


def _describe(broker: Broker, version: int, group_id: str) -> DescribedGroup:
    try:
        [one] = broker.groups.read(group_id, lambda shard, now_ms: shard.describe_groups([group_id], version))
    except RequestError as e:
        return DescribedGroup(group_id, error_code=e.code, error_message=e.message)
    return one
