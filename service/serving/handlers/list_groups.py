"""ListGroups (KIP-518 for states, KIP-848 for types): the groups that this node coordinates."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.list_groups.v5.request import ListGroupsRequest

from service.base.errors import RequestError
from service.base.slices import in_slices
from service.base.steps import Steps
from service.groups.admin import GroupFilter
from service.groups.requests import ListedGroup
from service.network.request import RequestContext
from service.serving.request_host import NO_THROTTLE, Broker
from service.wire.api import ApiKey, response_module


def handle(broker: Broker, context: RequestContext, request: ListGroupsRequest) -> Any | Awaitable[Any]:
    """Return the groups that match the filters, in all partitions that this node coordinates.

    COORDINATOR_LOAD_IN_PROGRESS while any of them is being loaded: the list would be incomplete.
    """
    return in_slices(_steps(broker, request))


def _steps(broker: Broker, request: ListGroupsRequest) -> Steps[Any]:
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
        found += yield from steps
    return response_module(ApiKey.LIST_GROUPS).ListGroupsResponse(
        throttle_time=NO_THROTTLE,
        error_code=error,
        groups=tuple(found) if error is ErrorCode.none else (),
    )
