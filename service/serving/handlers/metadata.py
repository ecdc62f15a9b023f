"""Metadata: topics, partitions, leaders and brokers (KIP-516 ids from version 10 on)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError, StorageError
from service.base.slices import each_in_slices, in_slices
from service.base.steps import Steps
from service.metadata.controller.requests import MAX_RECORDS_PER_OPERATION
from service.metadata.controller.topic_names import topic_name_error
from service.metadata.image import MetadataImage, PartitionImage, TopicImage
from service.network.request import RequestContext
from service.serving.internal_topics import CREATED_WITHIN_S, INTERNAL_TOPICS, OFFSETS, as_created
from service.serving.metadata_cache import Seen
from service.serving.request_host import (
    CLUSTER_OPERATIONS,
    NO_THROTTLE,
    TOPIC_OPERATIONS,
    Broker,
)
from service.serving.response_cache import TopicFlavour, TopicsOfFlavour
from service.wire.metadata import (
    OPERATIONS_NOT_ASKED,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from service.wire.primitives import Encoded

MOST_FLAVOURS: Final = 3
"""Encoded topics are kept for so many versions at a time, for each listener."""
FIRST_VERSION_WITH_LISTENER_NOT_FOUND: Final = 6
FIRST_VERSION_BY_ID: Final = 12
"""Requests of versions 10 and 11 can have ids and null names, but no answer can say what became of them."""
NOT_MADE: Final = INTERNAL_TOPICS - {OFFSETS}
"""Internal topics of what is not served."""


def handle(
    broker: Broker, context: RequestContext, request: MetadataRequest
) -> MetadataResponse | Awaitable[MetadataResponse]:
    """Answer for the topics asked for, all of them where `topics` is null.

    A topic that is not there is created when both the request and ``auto.create.topics.enable`` allow it.
    Kafka answers such a request with an error and lets the client ask again; here the answer waits for the
    topic, but not for long, nor where it cannot be made: what is told of all others depends on nobody.

    A request below version 12 that has an id or a null name is answered INVALID_REQUEST for all its topics
    (Kafka `KafkaApis.handleTopicMetadataRequest`).
    """
    creates = request.allow_auto_topic_creation and broker.config.auto_create_topics_enable
    if creates and request.topics:
        missing = in_slices(_missing_names(broker, request.topics, context.api_version))
        if missing:
            return _create_and_answer(broker, context, request, missing)
    return in_slices(_steps(broker, context.listener, context.api_version, request))


async def _create_and_answer(
    broker: Broker,
    context: RequestContext,
    request: MetadataRequest,
    missing: list[str] | Awaitable[list[str]],
) -> MetadataResponse:
    names = missing if isinstance(missing, list) else await missing
    if 0 < len(names) <= MAX_RECORDS_PER_OPERATION:  # of more the controller would make none
        config, image = broker.config, broker.image
        asked = await each_in_slices(lambda name: as_created(name, config, image), names)
        with suppress(RequestError, StorageError, TimeoutError):
            async with asyncio.timeout(CREATED_WITHIN_S):
                await broker.admin.create_topics(asked)
    answer = in_slices(_steps(broker, context.listener, context.api_version, request))
    return answer if isinstance(answer, MetadataResponse) else await answer


def _steps(broker: Broker, listener: str, version: int, request: MetadataRequest) -> Steps[MetadataResponse]:
    operations = TOPIC_OPERATIONS if request.include_topic_authorized_operations else OPERATIONS_NOT_ASKED
    image = broker.image
    seen = broker.cluster.seen_by(listener)
    most = MOST_FLAVOURS * max(len(broker.endpoints), 1)
    known = broker.encoded_topics.asked(TopicFlavour(listener, version, operations), seen.standing, most)
    topics: list[Any] = []
    asked: Iterable[TopicImage | MetadataRequestTopic] = image.topics_by_name.values()
    if request.topics is not None:
        if (yield from _is_beyond(version, request.topics)):
            return (yield from _refused(broker, request.topics))
        asked = yield from _distinct(request.topics)
    for one in asked:
        yield
        found = one if isinstance(one, TopicImage) else _find(image, one)
        if isinstance(found, TopicImage):
            topics.append((yield from _described(broker, seen, found, known)))
        else:
            topics.append(found)
    of_cluster = CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else OPERATIONS_NOT_ASKED
    return MetadataResponse(
        throttle_time=NO_THROTTLE,
        brokers=seen.in_metadata,
        cluster_id=broker.cluster_id,
        controller_id=broker.cluster.controller_id(seen),
        topics=tuple(topics),
        error_code=ErrorCode.none,
        cluster_authorized_operations=of_cluster,
    )


def _is_beyond(version: int, topics: Sequence[MetadataRequestTopic]) -> Steps[bool]:
    """Tell whether a request says what its version does not let it ask."""
    if version >= FIRST_VERSION_BY_ID:
        return False
    for one in topics:
        yield
        if one.topic_id is not None or one.name is None:
            return True
    return False


def _refused(broker: Broker, topics: Sequence[MetadataRequestTopic]) -> Steps[MetadataResponse]:
    answers = []
    for one in topics:
        yield
        answers.append(_missing(ErrorCode.invalid_request, one.name or "", one.topic_id))
    return MetadataResponse(
        throttle_time=NO_THROTTLE,
        brokers=(),
        cluster_id=broker.cluster_id,
        controller_id=-1,
        topics=tuple(answers),
        error_code=ErrorCode.invalid_request,
        cluster_authorized_operations=OPERATIONS_NOT_ASKED,
    )


def _distinct(
    topics: Sequence[MetadataRequestTopic],
) -> Steps[Iterable[MetadataRequestTopic]]:
    """By id if any id was given, as Kafka does; each topic once."""
    by_id: dict[MetadataRequestTopic, None] = {}
    by_name: dict[MetadataRequestTopic, None] = {}
    for one in topics:
        yield
        (by_name if one.topic_id is None else by_id)[one] = None
    return by_id or by_name


def _missing_names(broker: Broker, topics: Sequence[MetadataRequestTopic], version: int) -> Steps[list[str]]:
    """What is asked for by name, is not there and can be created."""
    if (yield from _is_beyond(version, topics)):
        return []
    known = broker.image.topics_by_name
    names: dict[str, None] = {}
    for one in topics:
        yield
        name = one.name
        if one.topic_id is not None or name is None or name in known or name in NOT_MADE:
            continue
        if topic_name_error(name) is None:
            names[name] = None
    return list(names)


def _find(image: MetadataImage, asked: MetadataRequestTopic) -> TopicImage | MetadataResponseTopic:
    if asked.topic_id is not None:
        topic = image.topics_by_id.get(asked.topic_id)
        return topic or _missing(ErrorCode.unknown_topic_id, None, asked.topic_id)
    if asked.name is None:
        return _missing(ErrorCode.invalid_request, None, None)
    return image.topics_by_name.get(asked.name) or _missing(why_missing(asked.name), asked.name, None)


def why_missing(name: str) -> ErrorCode:
    """The error for a topic that is not there: its name may be one that no topic can have."""
    invalid = topic_name_error(name) is not None
    return ErrorCode.invalid_topic_exception if invalid else ErrorCode.unknown_topic_or_partition


def _missing(error: ErrorCode, name: str | None, topic_id: UUID | None) -> MetadataResponseTopic:
    internal = name in INTERNAL_TOPICS
    return MetadataResponseTopic(
        error_code=error, name=name, topic_id=topic_id, is_internal=internal, partitions=()
    )


def _described(broker: Broker, seen: Seen, topic: TopicImage, known: TopicsOfFlavour) -> Steps[Encoded]:
    """The topic's part of the answer, as it was encoded before if it was."""
    yield
    element = known.get(topic)
    if element is not None:
        return element
    partitions = []
    _, version, operations = known.flavour
    tells_listener = version >= FIRST_VERSION_WITH_LISTENER_NOT_FOUND
    for index in sorted(topic.partitions):
        yield
        is_offline = broker.replicas.why_offline(topic.id, index) is not None
        one = topic.partitions[index]
        if version == 0:
            partitions.append(_first_version(seen, index, one))
        else:
            partitions.append(_partition(seen, index, one, is_offline, tells_listener))
    answer = MetadataResponseTopic(
        error_code=ErrorCode.none,
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=tuple(partitions),
        topic_authorized_operations=operations,
    )
    return known.add(topic, answer, len(broker.image.topics_by_name))


def _partition(
    seen: Seen, index: int, partition: PartitionImage, is_own_offline: bool, tells_listener: bool
) -> MetadataResponsePartition:
    leader, error = seen.leader(partition.leader, tells_listener=tells_listener)
    return MetadataResponsePartition(
        error_code=error,
        partition_index=index,
        leader_id=leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=tuple(partition.replicas),
        isr_nodes=tuple(partition.isr),
        offline_replicas=seen.offline_replicas(partition, is_own_offline=is_own_offline),
    )


def _first_version(seen: Seen, index: int, partition: PartitionImage) -> MetadataResponsePartition:
    """Version 0 names no replica that clients cannot reach, and says that there is one."""
    leader, error = seen.leader(partition.leader, tells_listener=False)
    replicas = tuple([one for one in partition.replicas if one in seen.by_id])
    isr = tuple([one for one in partition.isr if one in seen.by_id])
    is_short = len(replicas) < len(partition.replicas) or len(isr) < len(partition.isr)
    if error is ErrorCode.none and is_short:
        error = ErrorCode.replica_not_available
    return MetadataResponsePartition(
        error_code=error,
        partition_index=index,
        leader_id=leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=replicas,
        isr_nodes=isr,
        offline_replicas=(),
    )
