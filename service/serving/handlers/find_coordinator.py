"""FindCoordinator: the broker that coordinates a group (KIP-699 for several keys at once).

This handler creates ``__consumer_offsets`` on first need, whatever `auto.create.topics.enable` says; the
response waits for it. Coordinators of transactions and of share groups are not served.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v6.request import FindCoordinatorRequest
from kio.schema.find_coordinator.v6.response import Coordinator, FindCoordinatorResponse

from service.base.errors import RequestError
from service.base.java_hash import partition_of
from service.base.slices import in_slices
from service.base.steps import Steps
from service.metadata.image import TopicImage
from service.network.request import RequestContext
from service.serving.internal_topics import OFFSETS
from service.serving.request_host import NO_THROTTLE, Broker

GROUP: Final = 0
TRANSACTION: Final = 1
SHARE: Final = 2
FIRST_VERSION_WITH_SEVERAL_KEYS: Final = 4
FIRST_VERSION_WITH_SHARES: Final = 6
NAME_OF_NO_ERROR: Final = "NONE"
"""Kafka's error message without an error, in versions with one key."""
_NO_NODE: Final = -1


def handle(
    broker: Broker, context: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse | Awaitable[FindCoordinatorResponse]:
    """Return the leader of each key's partition, or COORDINATOR_NOT_AVAILABLE if it has none."""
    kind = request.key_type
    if kind not in (GROUP, TRANSACTION, SHARE) or (
        kind == SHARE and context.api_version < FIRST_VERSION_WITH_SHARES
    ):
        return _refused(request, ErrorCode.invalid_request, f"Unknown coordinator type {kind}")
    if kind != GROUP:
        # Not a retriable error: the client would retry until its timeout, and then not know the reason.
        what = "transactions" if kind == TRANSACTION else "share groups"
        return _refused(request, ErrorCode.unsupported_version, f"{what} are not served")
    topic = broker.groups.internal.find(OFFSETS)
    if topic is None:
        return _create_topic_and_answer(broker, context.listener, context.api_version, request)
    return in_slices(_steps(broker, context.listener, context.api_version, request, topic))


async def _create_topic_and_answer(
    broker: Broker, listener: str, version: int, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    try:
        topic = await broker.groups.internal.find_or_create(OFFSETS)
    except RequestError as e:
        refused = _refused(request, e.code, e.message)
        return refused if isinstance(refused, FindCoordinatorResponse) else await refused
    answer = in_slices(_steps(broker, listener, version, request, topic))
    return answer if isinstance(answer, FindCoordinatorResponse) else await answer


def _steps(
    broker: Broker, listener: str, version: int, request: FindCoordinatorRequest, topic: TopicImage
) -> Steps[FindCoordinatorResponse]:
    found = []
    no_error = NAME_OF_NO_ERROR if version < FIRST_VERSION_WITH_SEVERAL_KEYS else ""
    known = broker.cluster.view_for(listener).by_id
    for key in request.coordinator_keys:
        yield
        replica = topic.partitions.get(partition_of(key, len(topic.partitions)))
        leader = None if replica is None else known.get(replica.leader)
        if leader is None:
            reason = f"partition of {OFFSETS} has no leader on this listener"
            found.append(_without_node(key, ErrorCode.coordinator_not_available, reason))
            continue
        found.append(
            Coordinator(
                key=key,
                node_id=leader.id,
                host=leader.host,
                port=leader.port,
                error_code=ErrorCode.none,
                error_message=no_error,
            )
        )
    return FindCoordinatorResponse(throttle_time=NO_THROTTLE, coordinators=tuple(found))


def _refused(
    request: FindCoordinatorRequest, error: ErrorCode, message: str | None
) -> FindCoordinatorResponse | Awaitable[FindCoordinatorResponse]:
    return in_slices(_refusals(request, error, message))


def _refusals(
    request: FindCoordinatorRequest, error: ErrorCode, message: str | None
) -> Steps[FindCoordinatorResponse]:
    found = []
    for key in request.coordinator_keys:
        yield
        found.append(_without_node(key, error, message))
    return FindCoordinatorResponse(throttle_time=NO_THROTTLE, coordinators=tuple(found))


def _without_node(key: str, error: ErrorCode, message: str | None) -> Coordinator:
    return Coordinator(
        key=key, node_id=_NO_NODE, host="", port=_NO_NODE, error_code=error, error_message=message
    )
