"""Metadata: topics, partitions, leaders and brokers (KIP-516 ids from version 10 on)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError, StorageError
from service.base.slices import each_in_slices, in_slices
from service.base.steps import Steps
from service.base.types import INTERNAL_TOPICS
from service.metadata.controller.requests import MAX_RECORDS_PER_OPERATION
from service.metadata.controller.topic_names import topic_name_error
from service.metadata.image import MetadataImage, PartitionImage, TopicImage
from service.network.request import RequestContext
from service.security.change_audit import Requester, tell
from service.security.operations import AclOperation, AclResourceType
from service.serving.authorization import cluster_operations, is_allowed, is_allowed_on_cluster
from service.serving.authorization import operations as authorized_operations
from service.serving.change_words import automatically_created
from service.serving.internal_topics import CREATED_WITHIN_S, OFFSETS, creation_request
from service.serving.metadata_cache import ListenerView
from service.serving.request_host import NO_THROTTLE, TOPIC_OPERATIONS, Broker
from service.serving.response_cache import MetadataVariant, VariantTopics, with_operations
from service.serving.throttles import throttle_of
from service.wire.metadata import (
    OPERATIONS_NOT_ASKED,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from service.wire.primitives import Encoded

MOST_VARIANTS: Final = 3
"""Variants of requests per listener whose encoded topics are cached."""
FIRST_VERSION_WITH_LISTENER_NOT_FOUND: Final = 6
FIRST_VERSION_BY_ID: Final = 12
"""Requests of versions 10 and 11 can have ids and null names, but their responses cannot."""
TOPIC: Final = AclResourceType.TOPIC
_OF_MISSING: Final = (ErrorCode.unknown_topic_or_partition, ErrorCode.invalid_topic_exception)
"""Errors of named topics that do not exist; what may be done to them is told all the same."""
NOT_CREATED: Final = INTERNAL_TOPICS - {OFFSETS}
"""Internal topics of features that are not served."""


def handle(
    broker: Broker, context: RequestContext, request: MetadataRequest
) -> MetadataResponse | Awaitable[MetadataResponse]:
    """Describe the requested topics, all topics if `topics` is null.

    A missing topic is created if both the request and ``auto.create.topics.enable`` allow it. Kafka then
    sends an error and has the client retry; here the response waits for the topic, up to `CREATED_WITHIN_S`,
    and is sent without it if it cannot be created.

    Topics that the client may not describe are left out, or have TOPIC_AUTHORIZATION_FAILED if they are
    named, whether they exist or not. A request below version 12 with an id or a null name is INVALID_REQUEST
    for all its topics (Kafka `KafkaApis.handleTopicMetadataRequest`).
    """
    creates = request.allow_auto_topic_creation and broker.config.auto_create_topics_enable
    if creates and request.topics:
        missing = in_slices(_missing_names(broker, context, request.topics))
        if not isinstance(missing, _MissingNames) or missing.to_create:
            return _create_and_answer(broker, context, request, missing)
        return in_slices(_steps(broker, context, request, missing.denied))
    return in_slices(_steps(broker, context, request))


class _MissingNames(NamedTuple):
    """Requested names that do not exist: those to be created, and those that the client may not create."""

    to_create: list[str]
    denied: frozenset[str]


async def _create_and_answer(
    broker: Broker,
    context: RequestContext,
    request: MetadataRequest,
    missing: _MissingNames | Awaitable[_MissingNames],
) -> MetadataResponse:
    names, denied = missing if isinstance(missing, _MissingNames) else await missing
    quota = broker.quotas.mutations_of(context.session, context.client_id, is_strict=False)
    if 0 < len(names) <= MAX_RECORDS_PER_OPERATION:  # the controller refuses more
        config, image = broker.config, broker.image
        creations = await each_in_slices(lambda name: creation_request(name, config, image), names)
        with suppress(RequestError, StorageError, TimeoutError):
            async with asyncio.timeout(CREATED_WITHIN_S):
                asker = Requester.of(context.session, context.client_id)
                created = await broker.admin.create_topics(creations)
                tell(automatically_created(created), asker)
                if quota is not None:
                    quota.record(sum(max(one.num_partitions, 0) for one in created))
    answer = in_slices(_steps(broker, context, request, denied))
    message = answer if isinstance(answer, MetadataResponse) else await answer
    return message if quota is None else replace(message, throttle_time=throttle_of(broker.quotas, quota))


def _steps(
    broker: Broker, context: RequestContext, request: MetadataRequest, denied: Set[str] = frozenset()
) -> Steps[MetadataResponse]:
    """Return the response, in steps. `denied`: missing topics that the client may not create."""
    listener, version = context.listener, context.api_version
    operations = TOPIC_OPERATIONS if request.include_topic_authorized_operations else OPERATIONS_NOT_ASKED
    image = broker.image
    view = broker.cluster.view_for(listener)
    most = MOST_VARIANTS * max(len(broker.endpoints), 1)
    known = broker.encoded_topics.of_variant(
        MetadataVariant(listener, version, operations), view.availability, most
    )
    topics: list[Any] = []
    wanted: Iterable[TopicImage | MetadataRequestTopic] = image.topics_by_name.values()
    if request.topics is not None:
        if (yield from _exceeds_version(version, request.topics)):
            return (yield from _refused(broker, request.topics))
        wanted = yield from _distinct(request.topics)
    asks = broker.authorizer is not None
    for one in wanted:
        yield
        is_open = not asks and isinstance(one, TopicImage)
        found = one if is_open else _find(broker, context, image, one, denied)
        if isinstance(found, TopicImage):
            element = yield from _describe(broker, view, found, known)
            if asks and operations != OPERATIONS_NOT_ASKED:
                allowed = authorized_operations(broker, context, TOPIC, found.name)
                element = with_operations(element, version, allowed)
            topics.append(element)
        elif isinstance(found, MetadataResponseTopic):
            if operations != OPERATIONS_NOT_ASKED and found.error_code in _OF_MISSING and found.name:
                told = authorized_operations(broker, context, TOPIC, found.name)
                found = replace(found, topic_authorized_operations=told)
            topics.append(found)
    of_cluster = request.include_cluster_authorized_operations
    return MetadataResponse(
        throttle_time=NO_THROTTLE,
        brokers=view.in_metadata,
        cluster_id=broker.cluster_id,
        controller_id=broker.cluster.controller_id(view),
        topics=tuple(topics),
        error_code=ErrorCode.none,
        cluster_authorized_operations=cluster_operations(broker, context, asked=of_cluster),
    )


def _exceeds_version(version: int, topics: Sequence[MetadataRequestTopic]) -> Steps[bool]:
    """Return whether a request has an id or a null name, which responses of its version cannot repeat."""
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
    """Return each requested topic once: only those with ids if there are any, as in Kafka."""
    by_id: dict[MetadataRequestTopic, None] = {}
    by_name: dict[MetadataRequestTopic, None] = {}
    for one in topics:
        yield
        (by_name if one.topic_id is None else by_id)[one] = None
    return by_id or by_name


def _missing_names(
    broker: Broker, context: RequestContext, topics: Sequence[MetadataRequestTopic]
) -> Steps[_MissingNames]:
    """Return the requested names that do not exist. This node creates topics as itself: so it asks for the
    client first."""
    if (yield from _exceeds_version(context.api_version, topics)):
        return _MissingNames([], frozenset())
    known = broker.image.topics_by_name
    names: dict[str, None] = {}
    denied: set[str] = set()
    creates_all: bool | None = None
    for one in topics:
        yield
        name = one.name
        if one.topic_id is not None:
            return _MissingNames([], frozenset())  # then names are not answered, as in Kafka
        if name is None or name in names or name in denied:
            continue
        if broker.authorizer is not None:
            if not _may_describe(broker, context, name, quiet=True) or name in known:
                continue
            if creates_all is None:
                creates_all = is_allowed_on_cluster(broker, context, AclOperation.CREATE, quiet=True)
            if not creates_all and not is_allowed(broker, context, AclOperation.CREATE, TOPIC, name):
                denied.add(name)
                continue
        if name not in known and name not in NOT_CREATED and topic_name_error(name) is None:
            names[name] = None
    return _MissingNames(list(names), frozenset(denied))


def _find(
    broker: Broker,
    context: RequestContext,
    image: MetadataImage,
    wanted: TopicImage | MetadataRequestTopic,
    denied: Set[str],
) -> TopicImage | MetadataResponseTopic | None:
    """Return the topic or its error; None for one of all topics that the client may not describe."""
    if isinstance(wanted, TopicImage):
        return wanted if _may_describe(broker, context, wanted.name, quiet=True) else None
    if wanted.topic_id is not None:
        topic = image.topics_by_id.get(wanted.topic_id)
        if topic is not None and not _may_describe(broker, context, topic.name):
            return _denied(None, wanted.topic_id)
        return topic or _missing(ErrorCode.unknown_topic_id, None, wanted.topic_id)
    if wanted.name is None:
        return _missing(ErrorCode.invalid_request, None, None)
    if not _may_describe(broker, context, wanted.name):
        return _denied(wanted.name, None)
    if wanted.name in denied:
        return _missing(ErrorCode.topic_authorization_failed, wanted.name, None)
    return image.topics_by_name.get(wanted.name) or _missing(
        missing_topic_error(wanted.name), wanted.name, None
    )


def _may_describe(broker: Broker, context: RequestContext, name: str, *, quiet: bool = False) -> bool:
    return is_allowed(broker, context, AclOperation.DESCRIBE, TOPIC, name, quiet=quiet)


def missing_topic_error(name: str) -> ErrorCode:
    """Return the error of a missing topic: INVALID_TOPIC_EXCEPTION if no topic can have its name."""
    invalid = topic_name_error(name) is not None
    return ErrorCode.invalid_topic_exception if invalid else ErrorCode.unknown_topic_or_partition


def _denied(name: str | None, topic_id: UUID | None) -> MetadataResponseTopic:
    """Return the error of a topic that the client may not describe: it tells nothing of the topic."""
    return MetadataResponseTopic(
        error_code=ErrorCode.topic_authorization_failed,
        name=name,
        topic_id=topic_id,
        is_internal=False,
        partitions=(),
    )


def _missing(error: ErrorCode, name: str | None, topic_id: UUID | None) -> MetadataResponseTopic:
    internal = name in INTERNAL_TOPICS
    return MetadataResponseTopic(
        error_code=error, name=name, topic_id=topic_id, is_internal=internal, partitions=()
    )


def _describe(broker: Broker, view: ListenerView, topic: TopicImage, known: VariantTopics) -> Steps[Encoded]:
    """Return the topic's encoded element of the response, from the cache if it has it."""
    yield
    element = known.get(topic)
    if element is not None:
        return element
    partitions = []
    _, version, operations = known.variant
    has_listener_error = version >= FIRST_VERSION_WITH_LISTENER_NOT_FOUND
    for index in sorted(topic.partitions):
        yield
        is_offline = broker.replicas.why_offline(topic.id, index) is not None
        one = topic.partitions[index]
        if version == 0:
            partitions.append(_partition_v0(view, index, one))
        else:
            partitions.append(_partition(view, index, one, is_offline, has_listener_error))
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
    view: ListenerView, index: int, partition: PartitionImage, is_own_offline: bool, has_listener_error: bool
) -> MetadataResponsePartition:
    leader, error = view.leader(partition.leader, has_listener_error=has_listener_error)
    return MetadataResponsePartition(
        error_code=error,
        partition_index=index,
        leader_id=leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=tuple(partition.replicas),
        isr_nodes=tuple(partition.isr),
        offline_replicas=view.offline_replicas(partition, is_own_offline=is_own_offline),
    )


def _partition_v0(view: ListenerView, index: int, partition: PartitionImage) -> MetadataResponsePartition:
    """Describe a partition in version 0: without the replicas that clients cannot reach, and with
    REPLICA_NOT_AVAILABLE if there are any.
    """
    leader, error = view.leader(partition.leader, has_listener_error=False)
    replicas = tuple([one for one in partition.replicas if one in view.by_id])
    isr = tuple([one for one in partition.isr if one in view.by_id])
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
