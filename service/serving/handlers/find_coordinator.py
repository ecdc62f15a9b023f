"""FindCoordinator: the broker that coordinates a group or a transactional id (KIP-699 for several at once).

This handler creates ``__consumer_offsets`` or ``__transaction_state`` on first need, whatever
`auto.create.topics.enable` says; the response waits for it. Coordinators of share groups are not served.
"""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from typing import Final

from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v6.request import FindCoordinatorRequest
from kio.schema.find_coordinator.v6.response import Coordinator, FindCoordinatorResponse

from service.base.errors import RequestError
from service.base.java_hash import partition_of
from service.base.slices import each_in_slices, in_slices
from service.base.steps import Steps
from service.metadata.image import TopicImage
from service.network.request import RequestContext
from service.security.operations import AclOperation, AclResourceType
from service.serving.authorization import is_allowed, is_allowed_on_cluster
from service.serving.internal_topics import OFFSETS, TRANSACTIONS
from service.serving.request_host import NO_THROTTLE, Broker

GROUP: Final = 0
TRANSACTION: Final = 1
SHARE: Final = 2
FIRST_VERSION_WITH_SEVERAL_KEYS: Final = 4
FIRST_VERSION_WITH_SHARES: Final = 6
NAME_OF_NO_ERROR: Final = "NONE"
"""Kafka's error message without an error, in versions with one key."""
_NO_NODE: Final = -1
_TOPICS: Final = {GROUP: OFFSETS, TRANSACTION: TRANSACTIONS}
_RESOURCES: Final = {
    GROUP: (AclResourceType.GROUP, ErrorCode.group_authorization_failed, "Group"),
    TRANSACTION: (
        AclResourceType.TRANSACTIONAL_ID,
        ErrorCode.transactional_id_authorization_failed,
        "Transactional Id",
    ),
}


def handle(
    broker: Broker, context: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse | Awaitable[FindCoordinatorResponse]:
    """Return the leader of each key's partition, or COORDINATOR_NOT_AVAILABLE if it has none."""
    kind = request.key_type
    if kind not in (GROUP, TRANSACTION, SHARE) or (
        kind == SHARE and context.api_version < FIRST_VERSION_WITH_SHARES
    ):
        return _refused(request, ErrorCode.invalid_request, f"Unknown coordinator type {kind}")
    if kind == SHARE and not is_allowed_on_cluster(broker, context, AclOperation.CLUSTER_ACTION):
        return _refused(request, ErrorCode.cluster_authorization_failed, "Cluster authorization failed.")
    may_find = None if broker.authorizer is None else _Asked(broker, context)
    if kind == SHARE:
        # Not a retriable error: the client would retry until its timeout, and then not know the reason.
        return _refused(request, ErrorCode.unsupported_version, "share groups are not served")
    if kind == TRANSACTION:
        coordinators = broker.transactions
        why = "transactions are not served" if coordinators is None else coordinators.cannot_begin()
        if why is not None:
            return _refused(request, ErrorCode.coordinator_not_available, why, may_find)
    topic = broker.groups.internal.find(_TOPICS[kind])
    if topic is None:
        return _create_topic_and_answer(broker, context, request, may_find)
    return in_slices(_steps(broker, context, request, topic, may_find))


class _Asked:
    """Question whether a client may find the coordinator of a group or of a transactional id."""

    def __init__(self, broker: Broker, context: RequestContext) -> None:
        self._broker = broker
        self._context = context

    def refused(self, kind: int, key: str) -> Coordinator | None:
        """Return the error for a key that the client may not describe."""
        resource, error, what = _RESOURCES[kind]
        if is_allowed(self._broker, self._context, AclOperation.DESCRIBE, resource, key):
            return None
        several = self._context.api_version >= FIRST_VERSION_WITH_SEVERAL_KEYS
        return _without_node(key, error, "" if several else f"{what} authorization failed.")


async def _create_topic_and_answer(
    broker: Broker, context: RequestContext, request: FindCoordinatorRequest, may_find: _Asked | None
) -> FindCoordinatorResponse:
    try:
        if may_find is not None:
            # A node creates the topic as itself: not for a client that may find no coordinator.
            refused_one = partial(may_find.refused, request.key_type)
            answers = await each_in_slices(refused_one, request.coordinator_keys)
            refused = tuple(one for one in answers if one is not None)
            if len(refused) == len(answers):
                return FindCoordinatorResponse(throttle_time=NO_THROTTLE, coordinators=refused)
        topic = await broker.groups.internal.find_or_create(_TOPICS[request.key_type])
    except RequestError as e:
        failed = _refused(request, e.code, e.message, may_find)
        return failed if isinstance(failed, FindCoordinatorResponse) else await failed
    answer = in_slices(_steps(broker, context, request, topic, may_find))
    return answer if isinstance(answer, FindCoordinatorResponse) else await answer


def _steps(
    broker: Broker,
    context: RequestContext,
    request: FindCoordinatorRequest,
    topic: TopicImage,
    may_find: _Asked | None,
) -> Steps[FindCoordinatorResponse]:
    found = []
    no_error = NAME_OF_NO_ERROR if context.api_version < FIRST_VERSION_WITH_SEVERAL_KEYS else ""
    known = broker.cluster.view_for(context.listener).by_id
    for key in request.coordinator_keys:
        yield
        if may_find is not None and (denied := may_find.refused(request.key_type, key)) is not None:
            found.append(denied)
            continue
        replica = topic.partitions.get(partition_of(key, len(topic.partitions)))
        leader = None if replica is None else known.get(replica.leader)
        if leader is None:
            reason = f"partition of {topic.name} has no leader on this listener"
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
    request: FindCoordinatorRequest, error: ErrorCode, message: str | None, may_find: _Asked | None = None
) -> FindCoordinatorResponse | Awaitable[FindCoordinatorResponse]:
    return in_slices(_refusals(request, error, message, may_find))


def _refusals(
    request: FindCoordinatorRequest, error: ErrorCode, message: str | None, may_find: _Asked | None
) -> Steps[FindCoordinatorResponse]:
    """Return the error for each key, or that of a key which the client may not find."""
    found = []
    for key in request.coordinator_keys:
        yield
        denied = None if may_find is None else may_find.refused(request.key_type, key)
        found.append(denied or _without_node(key, error, message))
    return FindCoordinatorResponse(throttle_time=NO_THROTTLE, coordinators=tuple(found))


def _without_node(key: str, error: ErrorCode, message: str | None) -> Coordinator:
    return Coordinator(
        key=key, node_id=_NO_NODE, host="", port=_NO_NODE, error_code=error, error_message=message
    )
