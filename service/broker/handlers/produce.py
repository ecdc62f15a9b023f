"""Produce: validate, stamp and append where the bytes lie in the request's own buffer.

Every partition has its own outcome; a batch that is refused leaves no trace. The order of checks is Kafka's
(`KafkaApis.handleProduceRequest`, `ReplicaManager.appendRecords`, `UnifiedLog.append`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Final

from kio.schema.errors import ErrorCode

from service.base.errors import CorruptionError, RequestError, StorageError
from service.base.types import Buffer
from service.broker.broker import Broker
from service.network.server import RequestContext, Response
from service.partition.partition import Partition
from service.records.batch import ATTRIBUTES_AT, CODEC_MASK, Codec
from service.records.validation import RecordsRefused, validate_produced
from service.wire.errors import WireError
from service.wire.produce import (
    ProducePartitionResult,
    ProduceRequestView,
    TopicKey,
    encode_produce_response,
)

FIRST_VERSION_WITH_ZSTD: Final = 7
_ATTRIBUTES_LOW_BYTE: Final = ATTRIBUTES_AT + 1
VALID_ACKS: Final = (-1, 0, 1)

ProducedTopic = tuple[TopicKey, list[tuple[int, Buffer | None]]]
ToFlush = dict[tuple[TopicKey, int], Partition]
AnsweredTopic = tuple[TopicKey, list[ProducePartitionResult]]


class RefusedWithoutAnswer(WireError):
    """acks=0 and something was refused: with no answer to put the error in, the connection is closed, as
    Kafka does, so that the client notices and asks for metadata anew."""


def handle(
    broker: Broker, context: RequestContext, request: ProduceRequestView
) -> Response | Awaitable[Response | None] | None:
    """Append everything that can be. None when the client wants no answer (acks=0)."""
    now_ms = broker.clock.now_ms()
    to_flush: ToFlush = {}
    failed = False
    topics: list[AnsweredTopic] = []
    for topic, partitions in _each_once(request.topics):
        answers = []
        for index, records in partitions:
            answer = _append(broker, context, request.acks, topic, index, records, now_ms, to_flush)
            failed = failed or answer.error_code != ErrorCode.none
            answers.append(answer)
        topics.append((topic, answers))
    if to_flush:
        return _answer_after_flush(broker, context, request.acks, topics, to_flush, failed)
    return _answer(context, request.acks, topics, failed)


def _each_once(topics: Sequence[ProducedTopic]) -> Sequence[ProducedTopic]:
    """A partition that is named twice counts once, with the records named last: Kafka's handler collects
    them in a map. No client of the present does that.
    """
    if len(topics) == 1 and len(topics[0][1]) == 1:
        return topics
    last = {(topic, index): records for topic, partitions in topics for index, records in partitions}
    if len(last) == sum(len(partitions) for _, partitions in topics):
        return topics
    kept: dict[TopicKey, list[tuple[int, Buffer | None]]] = {}
    for (topic, index), records in last.items():
        kept.setdefault(topic, []).append((index, records))
    return list(kept.items())


def _answer(
    context: RequestContext, acks: int, topics: Sequence[AnsweredTopic], failed: bool
) -> Response | None:
    if acks == 0:
        if failed:
            raise RefusedWithoutAnswer("produce with acks=0 was refused")
        return None
    return Response([encode_produce_response(context.api_version, context.correlation_id, topics)])


async def _answer_after_flush(
    broker: Broker,
    context: RequestContext,
    acks: int,
    topics: list[AnsweredTopic],
    to_flush: ToFlush,
    failed: bool,
) -> Response | None:
    """``flush.messages`` is due: the answer waits for the disk, the loop does not."""
    outcomes = await asyncio.gather(
        *(broker.flush(partition.log) for partition in to_flush.values()), return_exceptions=True
    )
    lost = {key for key, outcome in zip(to_flush, outcomes, strict=True) if outcome is not None}
    for (topic, index), error in zip(to_flush, outcomes, strict=True):
        if error is None:
            continue
        if not isinstance(error, StorageError):
            raise error
        broker.log_storage_error("Produce", topic, index, error)
        broker.metrics.error("PRODUCE", ErrorCode.kafka_storage_error)
    for topic, answers in topics if lost else ():
        for n, answer in enumerate(answers):
            if (topic, answer.partition) in lost:
                answers[n] = ProducePartitionResult(answer.partition, ErrorCode.kafka_storage_error)
    return _answer(context, acks, topics, failed or bool(lost))


def _append(
    broker: Broker,
    context: RequestContext,
    acks: int,
    topic: TopicKey,
    index: int,
    records: Buffer | None,
    now_ms: int,
    to_flush: ToFlush,
) -> ProducePartitionResult:
    try:
        if acks not in VALID_ACKS:
            raise RequestError(ErrorCode.invalid_required_acks)
        partition = broker.replicas.find(topic, index)
        if records is None:
            raise RequestError(ErrorCode.invalid_record, "no record batch")
        if (
            context.api_version < FIRST_VERSION_WITH_ZSTD
            and len(records) > _ATTRIBUTES_LOW_BYTE
            and records[_ATTRIBUTES_LOW_BYTE] & CODEC_MASK == Codec.ZSTD
        ):
            raise RequestError(ErrorCode.unsupported_compression_type, "zstd needs Produce version 7")
        if acks == -1:
            partition.check_replicas()
        # Offsets are stamped where the bytes lie; the frame is ours to write to.
        assert not isinstance(records, bytes)
        batch = validate_produced(records, partition.rules, now_ms)
        info = partition.append(batch, now_ms)
    except RequestError as e:
        broker.log_refusal("Produce", context, topic, index, e)
        broker.metrics.error("PRODUCE", e.code)
        errors = e.record_errors if isinstance(e, RecordsRefused) else ()
        return ProducePartitionResult(index, e.code, record_errors=errors, error_message=e.message)
    except (StorageError, CorruptionError) as e:
        broker.log_storage_error("Produce", topic, index, e)
        broker.metrics.error("PRODUCE", ErrorCode.kafka_storage_error)
        return ProducePartitionResult(index, ErrorCode.kafka_storage_error)
    metrics = broker.metrics
    metrics.appended_batches += 1
    metrics.appended_records += batch.record_count
    metrics.appended_bytes += len(batch.data)
    if partition.log.flush_due:
        to_flush[topic, index] = partition
    return ProducePartitionResult(
        index, ErrorCode.none, info.first_offset, info.log_append_time, info.log_start_offset
    )
