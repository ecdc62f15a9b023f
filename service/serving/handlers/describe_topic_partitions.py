"""DescribeTopicPartitions (KIP-966): topics page by page, in the order of their names."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from heapq import merge
from typing import Final

from kio.schema.describe_topic_partitions.v0.request import Cursor as RequestCursor
from kio.schema.describe_topic_partitions.v0.request import DescribeTopicPartitionsRequest
from kio.schema.describe_topic_partitions.v0.response import (
    Cursor,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from kio.schema.errors import ErrorCode

from service.base.slices import in_slices
from service.base.steps import Steps
from service.base.types import INTERNAL_TOPICS
from service.metadata.image import PartitionImage, TopicImage
from service.network.request import RequestContext
from service.security.operations import AclOperation, AclResourceType
from service.serving.authorization import is_allowed, operations
from service.serving.handlers.metadata import missing_topic_error
from service.serving.metadata_cache import ListenerView
from service.serving.request_host import NO_THROTTLE, Broker
from service.wire.metadata import OPERATIONS_NOT_ASKED

SORTED_AT_ONCE: Final = 2000


def handle(
    broker: Broker, context: RequestContext, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse | Awaitable[DescribeTopicPartitionsResponse]:
    """Describe partitions from the cursor on, at most `response_partition_limit` of them and
    ``max.request.partition.size.limit``.

    A cursor outside the requested topics, or with a negative partition, is INVALID_REQUEST for every topic.
    Topics that the client may not describe are left out or, if they are named, come last, whether they exist
    or not, with TOPIC_AUTHORIZATION_FAILED.
    """
    return in_slices(_steps(broker, context, request))


def _steps(
    broker: Broker, context: RequestContext, request: DescribeTopicPartitionsRequest
) -> Steps[DescribeTopicPartitionsResponse]:
    cursor, known = request.cursor, broker.image.topics_by_name
    view = broker.cluster.view_for(context.listener)
    topics: list[DescribeTopicPartitionsResponseTopic] = []
    if cursor is not None and (yield from _is_invalid(request, cursor)):
        for one in request.topics:
            yield
            topics.append(_missing(one.name, ErrorCode.invalid_request, OPERATIONS_NOT_ASKED))
        return _answer(topics, None)
    room = max(min(broker.config.max_request_partition_size_limit, request.response_partition_limit), 1)
    next_cursor: Cursor | None = None
    names, denied = yield from _names(broker, context, request)
    for name in names:
        if room == 0:
            next_cursor = Cursor(topic_name=name, partition_index=0)
            break
        yield
        topic = known.get(name)
        told = operations(broker, context, AclResourceType.TOPIC, name)
        if topic is None:
            if request.topics:
                topics.append(_missing(name, missing_topic_error(name), told))
            continue
        yield
        first = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
        indexes = [index for index in sorted(topic.partitions) if index >= first]
        partitions = []
        for index in indexes[:room]:
            yield
            is_offline = broker.replicas.why_offline(topic.id, index) is not None
            partitions.append(_partition(view, index, topic.partitions[index], is_offline))
        topics.append(_describe(topic, partitions, told))
        if len(indexes) > room:
            next_cursor = Cursor(topic_name=name, partition_index=indexes[room])
            break
        room -= len(indexes)
    return _answer([*topics, *denied], next_cursor)


def _is_invalid(request: DescribeTopicPartitionsRequest, cursor: RequestCursor) -> Steps[bool]:
    """Return whether no response to such a request can have sent `cursor`."""
    if cursor.partition_index < 0:
        return True
    for one in request.topics:
        yield
        if one.name == cursor.topic_name:
            return False
    return bool(request.topics)


def _names(
    broker: Broker, context: RequestContext, request: DescribeTopicPartitionsRequest
) -> Steps[tuple[Iterable[str], list[DescribeTopicPartitionsResponseTopic]]]:
    """Return the topics to describe, each once and sorted by name, and the errors of those not allowed."""
    denied: list[DescribeTopicPartitionsResponseTopic] = []
    first = "" if request.cursor is None else request.cursor.topic_name
    wanted: dict[str, None] = {}
    if request.topics:
        for one in request.topics:
            yield
            if one.name >= first:
                wanted[one.name] = None
    else:
        for name in broker.image.topics_by_name:
            yield
            if name >= first:
                wanted[name] = None
    if broker.authorizer is not None:
        hidden = []
        for name in wanted:
            yield
            quiet = not request.topics
            if not is_allowed(
                broker, context, AclOperation.DESCRIBE, AclResourceType.TOPIC, name, quiet=quiet
            ):
                hidden.append(name)
        for name in hidden:
            yield
            del wanted[name]
            if request.topics:
                denied.append(_denied(name))
    # Sort in pieces, so that a step is short; merge them as the caller iterates.
    names, pieces = list(wanted), []
    for start in range(0, len(names), SORTED_AT_ONCE):
        yield
        pieces.append(sorted(names[start : start + SORTED_AT_ONCE]))
    return (pieces[0] if len(pieces) == 1 else merge(*pieces)), denied


def _answer(
    topics: list[DescribeTopicPartitionsResponseTopic], next_cursor: Cursor | None
) -> DescribeTopicPartitionsResponse:
    return DescribeTopicPartitionsResponse(
        throttle_time=NO_THROTTLE, topics=tuple(topics), next_cursor=next_cursor
    )


def _denied(name: str) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.topic_authorization_failed,
        name=name,
        topic_id=None,
        is_internal=False,
        partitions=(),
    )


def _missing(name: str, error: ErrorCode, told: int) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        error_code=error,
        name=name,
        topic_id=None,
        is_internal=name in INTERNAL_TOPICS,
        partitions=(),
        topic_authorized_operations=told,
    )


def _describe(
    topic: TopicImage, partitions: list[DescribeTopicPartitionsResponsePartition], told: int
) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.none,
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=tuple(partitions),
        topic_authorized_operations=told,
    )


def _partition(
    view: ListenerView, index: int, partition: PartitionImage, is_own_offline: bool
) -> DescribeTopicPartitionsResponsePartition:
    """Describe one partition. A missing leader is no error here, as in Kafka."""
    leader, _ = view.leader(partition.leader)
    return DescribeTopicPartitionsResponsePartition(
        error_code=ErrorCode.none,
        partition_index=index,
        leader_id=leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=tuple(partition.replicas),
        isr_nodes=tuple(partition.isr),
        eligible_leader_replicas=tuple(partition.eligible_leader_replicas),
        last_known_elr=tuple(partition.last_known_elr),
        offline_replicas=view.offline_replicas(partition, is_own_offline=is_own_offline),
    )
