"""Answers of a fetch beside its records: names, errors, refused replicas, sizes, throttled responses.

The rest of a fetch is in `fetch_operation.py` and `handlers/fetch.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Final, cast
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.slices import in_slices
from service.base.steps import Steps
from service.network.request import RequestContext, Response, Throttled
from service.network.sender import Part
from service.partition.fetch_sessions import NO_SESSION, SessionPartition
from service.security.operations import AclOperation, AclResourceType
from service.serving.authorization import is_allowed, is_allowed_on_cluster
from service.serving.request_host import Broker
from service.wire.fetch import (
    FetchPartitionResult,
    FetchRequestView,
    RecordsPart,
    encode_fetch_response,
    encode_fetch_response_in_steps,
)
from service.wire.produce import TopicKey

TopicResults = tuple[TopicKey, list[FetchPartitionResult]]

_HEAD_BYTES: Final = 22
_PARTITION_BYTES: Final = 46
"""Bytes of a response, and of each partition with its topic's id, without records; newest version."""


def may_replicate(broker: Broker, context: RequestContext) -> bool:
    """Return whether the client may fetch as a replica: before anything is noted of the replica that it says
    it is, as that moves the high watermark."""
    return is_allowed_on_cluster(broker, context, AclOperation.CLUSTER_ACTION)


def refuse_replica(context: RequestContext, fetch: FetchRequestView) -> Response | Awaitable[Response]:
    """Return TOPIC_AUTHORIZATION_FAILED for each named partition, without a session, as Kafka does."""
    return in_slices(_refused_partitions(context, fetch))


def _refused_partitions(context: RequestContext, fetch: FetchRequestView) -> Steps[Response]:
    error = ErrorCode.topic_authorization_failed
    topics: list[TopicResults] = []
    for topic, partitions in fetch.topics:
        answers: list[FetchPartitionResult] = []
        for one in partitions:
            yield
            answers.append(FetchPartitionResult(one.partition, error, aborted=()))
        topics.append((topic, answers))
    throttle_ms = 0 if context.meter is None else context.meter.answered()
    parts = yield from encode_fetch_response_in_steps(
        context.api_version, context.correlation_id, topics, session_id=NO_SESSION, throttle_ms=throttle_ms
    )
    return _response(parts, throttle_ms)


def note_name(broker: Broker, one: SessionPartition) -> None:
    """Note the name of a session's topic, if the metadata has its id."""
    if one.name is None and isinstance(one.topic, UUID):
        topic = broker.image.topics_by_id.get(one.topic)
        one.name = None if topic is None else topic.name


def missing_topic_error(broker: Broker, context: RequestContext, name: str) -> ErrorCode:
    """Return the error for a session's topic `name` whose id is no longer in the metadata.

    UNKNOWN_TOPIC_ID is only for ids whose name was never known (Kafka `ReplicaManager.readFromLog`). The name
    may be another topic's now, of which the client must not learn.
    """
    if not is_allowed(broker, context, AclOperation.READ, AclResourceType.TOPIC, name):
        return ErrorCode.topic_authorization_failed
    if name in broker.image.topics_by_name:
        return ErrorCode.inconsistent_topic_id
    return ErrorCode.unknown_topic_or_partition


def down_converted(answer: FetchPartitionResult) -> FetchPartitionResult:
    """Replace KAFKA_STORAGE_ERROR, which old clients do not know, by an error that they retry (Kafka
    `KafkaApis.maybeDownConvertStorageError`).
    """
    if answer.error_code != ErrorCode.kafka_storage_error:
        return answer
    return answer._replace(error_code=ErrorCode.not_leader_or_follower)


def response_bytes(partitions: int, records_bytes: int) -> int:
    """Return about how large a response with so many partitions and bytes of records is."""
    return _HEAD_BYTES + _PARTITION_BYTES * partitions + records_bytes


def refusal(
    context: RequestContext, error: ErrorCode, session_id: int = 0, *, throttle_ms: int = 0
) -> Response:
    """Return the response to a fetch that is refused as a whole."""
    parts = encode_fetch_response(
        context.api_version,
        context.correlation_id,
        (),
        error_code=error,
        session_id=session_id,
        throttle_ms=throttle_ms,
    )
    return _response(parts, throttle_ms)


def refused_session(context: RequestContext, error: ErrorCode) -> Response:
    """Return the response to a fetch of a session that is not there, or is further on. Its time counts as
    that of any request."""
    throttle_ms = 0 if context.meter is None else context.meter.answered()
    return refusal(context, error, throttle_ms=throttle_ms)


def _response(parts: Sequence[RecordsPart], throttle_ms: int) -> Response:
    sent = cast("list[Part]", parts)
    return Throttled(sent, throttle_ms / 1000) if throttle_ms else Response(sent)


def throttled_response(context: RequestContext, session_id: int, throttle_ms: int) -> Throttled:
    """Return the response to a throttled client: empty, so that it fetches the same later (KIP-219)."""
    parts = encode_fetch_response(
        context.api_version, context.correlation_id, (), session_id=session_id, throttle_ms=throttle_ms
    )
    return Throttled(cast("list[Part]", parts), throttle_ms / 1000)
