"""ListGroups (KIP-518 for states, KIP-848 for types): the groups that this node coordinates."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.list_groups.v5.request import ListGroupsRequest

from service.base.errors import RequestError
from service.base.slices import in_slices
from service.base.steps import Steps
from service.groups.admin import GroupFilter
from service.groups.requests import ListedGroup
from service.network.request import RequestContext
from service.security.operations import AclOperation, AclResourceType
from service.serving.authorization import is_allowed, is_allowed_on_cluster
from service.serving.request_host import NO_THROTTLE, Broker
from service.wire.api import ApiKey, response_module


def handle(broker: Broker, context: RequestContext, request: ListGroupsRequest) -> Any | Awaitable[Any]:
    """Return the groups that match the filters, in all partitions that this node coordinates, and that the
    client may describe.

    COORDINATOR_LOAD_IN_PROGRESS while any of them is being loaded: the list would be incomplete.
    """
    return in_slices(_steps(broker, context, request))


def _steps(broker: Broker, context: RequestContext, request: ListGroupsRequest) -> Steps[Any]:
    describes_all = is_allowed_on_cluster(broker, context, AclOperation.DESCRIBE, quiet=True)
    runtime = broker.groups.runtime
    found: list[ListedGroup] = []
    error = ErrorCode.none
    wanted = yield from GroupFilter.of(request.states_filter, request.types_filter)
    for partition in runtime.partitions():
        yield
        try:
            steps = runtime.read(partition, lambda shard, now_ms: shard.list_groups(wanted))
        except RequestError as e:
            if e.code is ErrorCode.not_coordinator:
                continue
            error = e.code
            break
        listed = yield from steps
        found += listed if describes_all else (yield from _visible(broker, context, listed))
    return response_module(ApiKey.LIST_GROUPS).ListGroupsResponse(
        throttle_time=NO_THROTTLE,
        error_code=error,
        groups=tuple(found) if error is ErrorCode.none else (),
    )


def _visible(
    broker: Broker, context: RequestContext, groups: Sequence[ListedGroup]
) -> Steps[list[ListedGroup]]:
    """Return the groups that the client may describe."""
    found = []
    for one in groups:
        yield
        if is_allowed(
            broker, context, AclOperation.DESCRIBE, AclResourceType.GROUP, one.group_id, quiet=True
        ):
            found.append(one)
    return found
