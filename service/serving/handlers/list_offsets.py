"""ListOffsets: the ends of the log and of each tier, and offsets by time.

Sources: KIP-79, KIP-405, KIP-734, KIP-1005, KIP-1023.

A negative timestamp names a place; which of them a client may ask for depends on the request's version.
Searches by time that reach into the bucket run on the remote-read threads; the answer waits for them no
longer than the request's timeout.

Consumers are told of nothing at or above the high watermark; and of nothing there while a new leader does not
know yet how far its predecessors' reached (OFFSET_NOT_AVAILABLE; Kafka `Partition.fetchOffsetForTimestamp`).
Other replicas are told of all that is in the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from concurrent.futures import Future
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v11.request import ListOffsetsPartition, ListOffsetsRequest
from kio.schema.list_offsets.v11.response import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

from service.base.errors import CorruptionError, RequestError, StorageError
from service.base.slices import Slice, each_in_slices, in_slices
from service.base.steps import Steps
from service.base.types import NO_LEADER_EPOCH, NO_OFFSET, NO_TIMESTAMP, TimestampedOffset
from service.hot.search import SegmentSearch
from service.network.request import RequestContext
from service.partition.partition import Partition
from service.partition.unified_log import NOT_FOUND
from service.serving.request_host import NO_THROTTLE, Broker

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
FIRST_VERSION_WITH_NOT_AVAILABLE: Final = 5
CONSUMER: Final = -1
DEBUGGING: Final = -2
"""A replica id to which any replica answers."""
READ_COMMITTED: Final = 1
SEARCHES: Final = 32
"""Partitions of one request that are looked for at the same time."""


def handle(
    broker: Broker, context: RequestContext, request: ListOffsetsRequest
) -> ListOffsetsResponse | Awaitable[ListOffsetsResponse]:
    """One answer per partition asked for; a partition named twice is refused twice (INVALID_REQUEST).

    Places of the log are known; what must be looked for is looked for on threads, this request's local
    searches one after the other, those in the bucket side by side.
    """
    offsets = _Offsets(broker, context, request)
    known = in_slices(offsets.places())
    if known is None and not offsets.searches:
        return offsets.response()
    return offsets.finish(known)


def named_twice(request: ListOffsetsRequest) -> Steps[dict[str, set[int]]]:
    """Return which partitions of each topic are named more than once.

    A set for each topic, not one of pairs: a hundred thousand pairs are freed in one go, for 30 ms.
    """
    seen: dict[str, set[int]] = {}
    twice: dict[str, set[int]] = {}
    for topic in request.topics:
        yield
        of_topic = seen.setdefault(topic.name, set())
        again = twice.setdefault(topic.name, set())
        for one in topic.partitions:
            yield
            (again if one.partition_index in of_topic else of_topic).add(one.partition_index)
    return twice


class _Search(NamedTuple):
    """What is still to be answered: where the answer goes, and what was asked."""

    answers: list[ListOffsetsPartitionResponse]
    at: int
    topic: str
    asked: ListOffsetsPartition
    partition: Partition


class _Offsets:
    """One request until it is answered."""

    def __init__(self, broker: Broker, context: RequestContext, request: ListOffsetsRequest) -> None:
        self._broker = broker
        self._version = context.api_version
        self._request = request
        self._is_consumer = request.replica_id == CONSUMER
        self._topics: list[tuple[str, list[ListOffsetsPartitionResponse]]] = []
        self._piece = Slice()
        self._local = asyncio.Lock()
        self.searches: list[_Search] = []
        timeout_ms = (
            request.timeout.total_seconds() * 1000 or broker.config.remote_list_offsets_request_timeout_ms
        )
        self._deadline = broker.loop.time() + timeout_ms / 1000

    def places(self) -> Steps[None]:
        """Answers what is known, and notes the rest in `searches`; in steps."""
        twice = yield from named_twice(self._request)
        for topic in self._request.topics:
            yield
            answers: list[ListOffsetsPartitionResponse] = []
            self._topics.append((topic.name, answers))
            of_topic = twice[topic.name]
            for one in topic.partitions:
                yield
                if one.partition_index in of_topic:
                    answers.append(_answer(one, ErrorCode.invalid_request, NOT_FOUND))
                else:
                    answers.append(self._at_once(topic.name, one, answers))

    def _at_once(
        self, topic: str, one: ListOffsetsPartition, answers: list[ListOffsetsPartitionResponse]
    ) -> ListOffsetsPartitionResponse:
        """The answer, or what stands in its place until it is found."""
        if one.timestamp < 0 and self._version < FIRST_VERSION.get(one.timestamp, 1 << 15):
            return _answer(one, ErrorCode.unsupported_version, NOT_FOUND)
        try:
            partition = self._partition(topic, one)
            found = self._place(partition, one.timestamp)
        except (RequestError, StorageError, CorruptionError) as e:
            return self._failed(topic, one, e)
        if found is None:
            self.searches.append(_Search(answers, len(answers), topic, one, partition))
            found = NOT_FOUND
        return _answer(one, ErrorCode.none, found)

    def _partition(self, topic: str, one: ListOffsetsPartition) -> Partition:
        """`RequestError` where this node is not the one to ask, `StorageError` where it is offline."""
        partition = self._broker.replicas.find(topic, one.partition_index)
        needs_leader = self._request.replica_id != DEBUGGING
        partition.check_epoch(one.current_leader_epoch, needs_leader=needs_leader)
        return partition

    def _failed(
        self, topic: str, one: ListOffsetsPartition, error: Exception
    ) -> ListOffsetsPartitionResponse:
        if isinstance(error, RequestError):
            code = error.code
            is_old = self._version < FIRST_VERSION_WITH_NOT_AVAILABLE
            if code is ErrorCode.offset_not_available and is_old:
                code = ErrorCode.leader_not_available
            return _answer(one, code, NOT_FOUND)
        if isinstance(error, TimeoutError):
            return _answer(one, ErrorCode.request_timed_out, NOT_FOUND)
        self._broker.log_storage_error("ListOffsets", topic, one.partition_index, error)
        return _answer(one, ErrorCode.kafka_storage_error, NOT_FOUND)

    def _place(self, partition: Partition, timestamp: int) -> TimestampedOffset | None:
        """The places that are known without looking at records; None for those that need a search."""
        if timestamp != LATEST:
            found = _place(partition, timestamp)
            is_border = timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD)
            if is_border and found is not None and found.offset != NO_OFFSET:
                return self._within(partition, found)
            return found
        end = partition.end_offset
        if self._is_consumer:
            _check_reached(partition)
            committed = self._request.isolation_level == READ_COMMITTED
            end = partition.last_stable_offset if committed else partition.high_watermark
        return TimestampedOffset(end, NO_TIMESTAMP, partition.leader_epoch)

    def _within(self, partition: Partition, found: TimestampedOffset) -> TimestampedOffset:
        """What was searched for, as far as a consumer may know of it, and any other replica has it."""
        end = partition.high_watermark if self._is_consumer else partition.end_offset
        if NO_OFFSET < found.offset < end:
            return found
        if self._is_consumer:
            _check_reached(partition)
        return NOT_FOUND

    async def finish(self, known: Awaitable[None] | None) -> ListOffsetsResponse:
        if known is not None:
            await known
        if len(self.searches) == 1:
            await self._search(self.searches[0])
            return await self._response_in_slices()
        gate = asyncio.Semaphore(SEARCHES)
        async with asyncio.TaskGroup() as group:
            for search in self.searches:
                await gate.acquire()
                group.create_task(self._search(search)).add_done_callback(lambda _: gate.release())
        return await self._response_in_slices()

    def response(self) -> ListOffsetsResponse:
        """Of little."""
        return ListOffsetsResponse(throttle_time=NO_THROTTLE, topics=tuple(map(_of_topic, self._topics)))

    async def _response_in_slices(self) -> ListOffsetsResponse:
        topics = await each_in_slices(_of_topic, self._topics)
        return ListOffsetsResponse(throttle_time=NO_THROTTLE, topics=tuple(topics))

    async def _search(self, search: _Search) -> None:
        answers, at, topic, one, partition = search
        try:
            found = await self._find(partition, one.timestamp)
            if self._partition(topic, one) is not partition:
                raise RequestError(ErrorCode.not_leader_or_follower, f"{partition.tip} was replaced")
            found = self._within(partition, found)
        except (RequestError, TimeoutError, StorageError, CorruptionError) as e:
            answers[at] = self._failed(topic, one, e)
        else:
            answers[at] = _answer(one, ErrorCode.none, found)

    async def _find(self, partition: Partition, timestamp: int) -> TimestampedOffset:
        """The first record at or after `timestamp` in offset order, or that with the greatest timestamp."""
        log = partition.unified
        if timestamp == MAX_TIMESTAMP:
            local = await self._look(partition, log.looks_for_newest())
            remote = await self._remote(log.remote_max_timestamp()) or NOT_FOUND
            newest = local if local.timestamp > remote.timestamp else remote
            is_gone = newest.offset < log.start_offset and newest.offset != NO_OFFSET
            return await self._newest_since_start(partition, newest) if is_gone else newest
        found = await self._remote(log.search_remote(timestamp)) or NOT_FOUND
        # What retention dropped since the manifest was written is no longer part of the log.
        if log.start_offset <= found.offset < log.local_start_offset:
            return found
        return await self._look(partition, log.looks_by_time(timestamp))

    async def _newest_since_start(self, partition: Partition, gone: TimestampedOffset) -> TimestampedOffset:
        """The first record with the greatest timestamp, where `gone` has a greater one, and lies in a segment
        that the log begins in: halving what lies between, as searches by time pass over what is gone."""
        newest = NOT_FOUND
        low, high = 0, gone.timestamp
        while low <= high:
            middle = (low + high + 1) // 2
            found = await self._find(partition, middle)
            if found.offset == NO_OFFSET:
                high = middle - 1
            else:
                newest, low = found, found.timestamp + 1
        return newest

    async def _look(self, partition: Partition, looks: Iterator[SegmentSearch | None]) -> TimestampedOffset:
        """Segment by segment, until one has the record; the request's other searches wait."""
        async with self._local:
            for look in looks:
                if self._broker.loop.time() > self._deadline:
                    raise TimeoutError
                if look is not None:
                    try:
                        found = await self._broker.search_thread(look.run)
                    except CorruptionError as e:
                        raise partition.log.timestamp_search.corrupt(e) from e
                    if found is not None:
                        return found
                if self._piece.is_over():
                    await self._piece.next_turn()
        return NOT_FOUND

    async def _remote(self, search: Future[TimestampedOffset | None] | None) -> TimestampedOffset | None:
        if search is None:
            return None
        left_s = self._deadline - self._broker.loop.time()
        # Shielded: the search goes on into the cache when its client has given up.
        return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(search)), max(left_s, 0.001))


def _of_topic(one: tuple[str, list[ListOffsetsPartitionResponse]]) -> ListOffsetsTopicResponse:
    return ListOffsetsTopicResponse(name=one[0], partitions=tuple(one[1]))


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


def _check_reached(partition: Partition) -> None:
    """`RequestError` OFFSET_NOT_AVAILABLE while what consumers saw of earlier leaders is not known to be
    committed."""
    leading = partition.leading
    if leading is not None and not leading.has_reached_its_epoch:
        raise RequestError(
            ErrorCode.offset_not_available,
            f"{partition.tip} is committed up to {leading.high_watermark}, its epoch begins at "
            f"{leading.epoch_start}",
        )


def _place(partition: Partition, timestamp: int) -> TimestampedOffset | None:
    log = partition.unified
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
