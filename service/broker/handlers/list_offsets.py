"""ListOffsets: the ends of the log and of each tier, and offsets by time.

Sources: KIP-79, KIP-405, KIP-734, KIP-1005, KIP-1023.

A negative timestamp names a place; which of them a client may ask for depends on the request's version.
Searches by time that reach into the bucket run on the remote-read threads; the answer waits for them no
longer than the request's timeout.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Final

from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v11.request import ListOffsetsPartition, ListOffsetsRequest
from kio.schema.list_offsets.v11.response import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

from service.base.errors import CorruptionError, RequestError, StorageError
from service.base.types import NO_LEADER_EPOCH, NO_OFFSET, NO_TIMESTAMP, TimestampedOffset
from service.broker.broker import NO_THROTTLE, Broker
from service.network.server import RequestContext
from service.partition.partition import Partition
from service.partition.unified_log import NOT_FOUND

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6

FIRST_VERSION: Final = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
READ_COMMITTED: Final = 1


async def handle(broker: Broker, context: RequestContext, request: ListOffsetsRequest) -> ListOffsetsResponse:
    """One answer per partition asked for; a partition named twice is refused twice (INVALID_REQUEST)."""
    asked = [(topic.name, one) for topic in request.topics for one in topic.partitions]
    seen: dict[tuple[str, int], int] = {}
    for name, one in asked:
        seen[name, one.partition_index] = seen.get((name, one.partition_index), 0) + 1
    timeout_ms = (
        request.timeout.total_seconds() * 1000 or broker.config.remote_list_offsets_request_timeout_ms
    )
    deadline = broker.loop.time() + timeout_ms / 1000

    async def answer(name: str, one: ListOffsetsPartition) -> ListOffsetsPartitionResponse:
        if seen[name, one.partition_index] > 1:
            return _answer(one, ErrorCode.invalid_request, NOT_FOUND)
        if one.timestamp < 0 and context.api_version < FIRST_VERSION.get(one.timestamp, 1 << 15):
            return _answer(one, ErrorCode.unsupported_version, NOT_FOUND)
        try:
            partition = broker.replicas.find(name, one.partition_index)
            partition.check_epoch(one.current_leader_epoch)
            found = _place(partition, one.timestamp, request.isolation_level)
            if found is None:
                found = await _search(partition, one.timestamp, deadline - broker.loop.time())
        except RequestError as e:
            return _answer(one, e.code, NOT_FOUND)
        except TimeoutError:
            return _answer(one, ErrorCode.request_timed_out, NOT_FOUND)
        except (StorageError, CorruptionError) as e:
            broker.log_storage_error("ListOffsets", name, one.partition_index, e)
            return _answer(one, ErrorCode.kafka_storage_error, NOT_FOUND)
        return _answer(one, ErrorCode.none, found)

    topics = []
    for topic in request.topics:
        # A search that must go to the bucket suspends; those of one request go side by side.
        answers = await asyncio.gather(*(answer(topic.name, one) for one in topic.partitions))
        topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=tuple(answers)))
    return ListOffsetsResponse(throttle_time=NO_THROTTLE, topics=tuple(topics))


def _answer(
    asked: ListOffsetsPartition, error: ErrorCode, found: TimestampedOffset
) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(
        partition_index=asked.partition_index,
        error_code=error,
        timestamp=found.timestamp,
        offset=found.offset,
        leader_epoch=found.leader_epoch,
    )


def _place(partition: Partition, timestamp: int, isolation_level: int) -> TimestampedOffset | None:
    """The places that are known without looking at records; None for those that need a search."""
    log = partition.unified
    if timestamp == LATEST:
        committed = isolation_level == READ_COMMITTED
        end = partition.last_stable_offset if committed else partition.high_watermark
        return TimestampedOffset(end, NO_TIMESTAMP, partition.leader_epoch)
    if timestamp == EARLIEST:
        return _at(partition, log.start_offset)
    if timestamp == EARLIEST_LOCAL:
        return _at(partition, log.local_start_offset)
    if timestamp == LATEST_TIERED:
        return _at(partition, log.highest_remote_offset)
    if timestamp == EARLIEST_PENDING_UPLOAD:
        if not partition.config.remote_storage_enable:
            return NOT_FOUND
        return _at(partition, max(log.highest_remote_offset + 1, log.start_offset))
    return None


def _at(partition: Partition, offset: int) -> TimestampedOffset:
    epoch = NO_LEADER_EPOCH if offset == NO_OFFSET else partition.log.epochs.epoch_at(offset)
    return TimestampedOffset(offset, NO_TIMESTAMP, epoch)


async def _search(partition: Partition, timestamp: int, timeout_s: float) -> TimestampedOffset:
    """The first record at or after `timestamp` in offset order, or the one with the greatest timestamp."""
    log = partition.unified
    if timestamp == MAX_TIMESTAMP:
        local = partition.log.max_timestamp_offset() or NOT_FOUND
        remote = await _remote(log.remote_max_timestamp(), timeout_s) or NOT_FOUND
        return local if local.timestamp > remote.timestamp else remote
    found = await _remote(log.search_remote(timestamp), timeout_s) or NOT_FOUND
    # What retention dropped since the manifest was written is no longer part of the log.
    if log.start_offset <= found.offset < log.local_start_offset:
        return found
    return log.search_local(timestamp)


async def _remote(
    search: Future[TimestampedOffset | None] | None, timeout_s: float
) -> TimestampedOffset | None:
    if search is None:
        return None
    # Shielded: the search goes on into the cache when its client has given up.
    return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(search)), max(timeout_s, 0.001))
