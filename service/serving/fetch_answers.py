"""Answers of Fetch: errors in the words of a version, the size of a response, and one that is throttled."""

from __future__ import annotations

from typing import Final, cast

from kio.schema.errors import ErrorCode

from service.network.request import RequestContext, Response, Throttled
from service.network.sender import Part
from service.serving.request_host import Broker
from service.wire.fetch import FetchPartitionResult, encode_fetch_response

_HEAD_BYTES: Final = 22
_PARTITION_BYTES: Final = 46
"""Bytes of a response, and of each partition with its topic's id, without records; newest version."""


def response_bytes(partitions: int, records_bytes: int) -> int:
    """Return about how large a response with so many partitions and bytes of records is."""
    return _HEAD_BYTES + _PARTITION_BYTES * partitions + records_bytes


def refusal(context: RequestContext, error: ErrorCode, session_id: int = 0) -> Response:
    """Return the response to a fetch that is refused as a whole."""
    parts = encode_fetch_response(
        context.api_version, context.correlation_id, (), error_code=error, session_id=session_id
    )
    return Response(cast("list[Part]", parts))


def throttled_response(context: RequestContext, session_id: int, throttle_ms: int) -> Throttled:
    """Return the response to a throttled client: empty, so that it fetches the same later (KIP-219)."""
    parts = encode_fetch_response(
        context.api_version, context.correlation_id, (), session_id=session_id, throttle_ms=throttle_ms
    )
    return Throttled(cast("list[Part]", parts), throttle_ms / 1000)


def missing_topic_error(broker: Broker, name: str) -> ErrorCode:
    """Return the error for a session's topic `name` whose id is no longer in the metadata.

    UNKNOWN_TOPIC_ID is only for ids whose name was never known (Kafka `ReplicaManager.readFromLog`).
    """
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
