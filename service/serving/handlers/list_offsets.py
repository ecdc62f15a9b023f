"""ListOffsets: the ends of the log and of each tier, and offsets by time.

Sources: KIP-79, KIP-405, KIP-734, KIP-1005, KIP-1023.

A negative timestamp names an end of the log or of a tier; the request's version limits the names. Searches by
time that need the bucket run on the remote-read threads; the response waits for them no longer than the
request's timeout.

Consumers get no record at or above the high watermark or, at isolation level READ_COMMITTED, the last stable
offset. After an election they get OFFSET_NOT_AVAILABLE for those until the high watermark has reached the
start of the leader's epoch (Kafka `Partition.fetchOffsetForTimestamp`). Other replicas get offsets of the
whole log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from concurrent.futures import Future
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v11.request import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
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
from service.partition.archive import LOADING
from service.partition.partition import Partition
from service.partition.unified_log import NOT_FOUND
from service.security.operations import AclOperation, AclResourceType
from service.serving.authorization import is_allowed
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
"""Replica id of a request that any replica answers, not only the leader."""
READ_COMMITTED: Final = 1
SEARCHES: Final = 32
"""Most partitions of one request that are searched at the same time."""


def handle(
    broker: Broker, context: RequestContext, request: ListOffsetsRequest
) -> ListOffsetsResponse | Awaitable[ListOffsetsResponse]:
    """Return the offset of each partition, or its error; a repeated partition is INVALID_REQUEST each time.

    Offsets that need no search are found at once. Searches run on threads: the request's local searches one
    after the other, those in the bucket at the same time.
    """
    offsets = _Offsets(broker, context, request)
    known = in_slices(offsets.answer_known())
    if known is None and not offsets.searches:
        return offsets.response()
    return offsets.finish(known)


def duplicate_partitions(request: ListOffsetsRequest) -> Steps[dict[str, set[int]]]:
    """Return the partitions of each topic that the request names more than once, in steps.

    A set for each topic, not one of pairs: a hundred thousand pairs would take 30 ms to free.
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
    """A search to do for one partition; its result replaces `answers[at]`."""

    answers: list[ListOffsetsPartitionResponse]
    at: int
    topic: str
    wanted: ListOffsetsPartition
    partition: Partition


class _NewestSearches:
    """Searches for the local record with the greatest timestamp; `timestamp`: the one that its segment has by
    its index, though an erasure may have taken the record."""

    def __init__(self, searches: Iterator[SegmentSearch | None]) -> None:
        self.timestamp = NO_TIMESTAMP
        self._searches = searches

    def __iter__(self) -> Iterator[SegmentSearch | None]:
        return self

    def __next__(self) -> SegmentSearch | None:
        search = next(self._searches)
        if search is not None:
            self.timestamp = max(self.timestamp, search.timestamp)
        return search


class _Offsets:
    """One request, until its response is sent."""

    def __init__(self, broker: Broker, context: RequestContext, request: ListOffsetsRequest) -> None:
        self._broker = broker
        self._context = context
        self._version = context.api_version
        self._meter = context.meter
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

    def answer_known(self) -> Steps[None]:
        """Answer the partitions that need no search, and append the others to `searches`; in steps."""
        twice = yield from duplicate_partitions(self._request)
        for topic in self._request.topics:
            yield
            answers: list[ListOffsetsPartitionResponse] = []
            self._topics.append((topic.name, answers))
            of_topic = twice[topic.name]
            denied = self._broker.authorizer is not None and not self._may_describe(topic)
            for one in topic.partitions:
                yield
                if denied:
                    answers.append(_answer(one, ErrorCode.topic_authorization_failed, NOT_FOUND))
                elif one.partition_index in of_topic:
                    answers.append(_answer(one, ErrorCode.invalid_request, NOT_FOUND))
                else:
                    answers.append(self._answer_or_defer(topic.name, one, answers))

    def _may_describe(self, topic: ListOffsetsTopic) -> bool:
        count = len(topic.partitions)
        resource = AclResourceType.TOPIC
        return is_allowed(
            self._broker, self._context, AclOperation.DESCRIBE, resource, topic.name, count=count
        )

    def _answer_or_defer(
        self, topic: str, one: ListOffsetsPartition, answers: list[ListOffsetsPartitionResponse]
    ) -> ListOffsetsPartitionResponse:
        """Return the partition's answer or, with a search appended, a placeholder."""
        if one.timestamp < 0 and self._version < FIRST_VERSION.get(one.timestamp, 1 << 15):
            return _answer(one, ErrorCode.unsupported_version, NOT_FOUND)
        try:
            partition = self._partition(topic, one)
            found = self._known_offset(partition, one.timestamp)
        except (RequestError, StorageError, CorruptionError) as e:
            return self._failed(topic, one, e)
        if found is None:
            self.searches.append(_Search(answers, len(answers), topic, one, partition))
            found = NOT_FOUND
        return _answer(one, ErrorCode.none, found)

    def _partition(self, topic: str, one: ListOffsetsPartition) -> Partition:
        """Return the partition. Raises `RequestError` if this node may not answer, `StorageError` if its
        replica is offline.
        """
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

    def _known_offset(self, partition: Partition, timestamp: int) -> TimestampedOffset | None:
        """Return an offset that needs no search of records; None if the timestamp does."""
        go_on = partition.archive.loads_to if self._is_consumer else None
        if go_on is not None and timestamp in (LATEST, MAX_TIMESTAMP):
            return self._end_while_loading(partition, timestamp, go_on)
        if timestamp != LATEST:
            found = _known_offset(partition, timestamp)
            is_border = timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD)
            if is_border and found is not None and found.offset != NO_OFFSET:
                return self._visible(partition, found)
            return found
        if self._is_consumer:
            _check_high_watermark(partition)
        return TimestampedOffset(self._end(partition), NO_TIMESTAMP, partition.leader_epoch)

    def _end_while_loading(self, partition: Partition, timestamp: int, go_on: int) -> TimestampedOffset:
        """Return where the log of a restored partition goes on, though it is not loaded up to there. Raises
        `RequestError` OFFSET_NOT_AVAILABLE where what is missing decides: which record has the greatest
        timestamp, or which transactions are open."""
        if timestamp == MAX_TIMESTAMP or self._request.isolation_level == READ_COMMITTED:
            raise RequestError(ErrorCode.offset_not_available, f"{partition.tip}: {LOADING}")
        return TimestampedOffset(go_on, NO_TIMESTAMP, partition.leader_epoch)

    def _end(self, partition: Partition) -> int:
        """Return the end of what the client may see: a consumer below the high watermark or, of committed
        transactions, the last stable offset, a replica below the log end offset."""
        if not self._is_consumer:
            return partition.end_offset
        is_committed = self._request.isolation_level == READ_COMMITTED
        return partition.last_stable_offset if is_committed else partition.high_watermark

    def _visible(self, partition: Partition, found: TimestampedOffset) -> TimestampedOffset:
        """Return `found` if the client may see it, otherwise `NOT_FOUND`. Raises `RequestError` as
        `_check_high_watermark`.
        """
        if NO_OFFSET < found.offset < self._end(partition):
            return found
        if self._is_consumer:
            _check_high_watermark(partition)
            if partition.archive.loads_to is not None:
                raise RequestError(ErrorCode.offset_not_available, f"{partition.tip}: {LOADING}")
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
        """Return the response to a request that needs no search."""
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
            found = self._visible(partition, found)
        except (RequestError, TimeoutError, StorageError, CorruptionError) as e:
            answers[at] = self._failed(topic, one, e)
        else:
            answers[at] = _answer(one, ErrorCode.none, found)

    async def _find(self, partition: Partition, timestamp: int) -> TimestampedOffset:
        """Return the first record at or after `timestamp` in offset order, or that with the greatest one."""
        log = partition.unified
        if timestamp == MAX_TIMESTAMP:
            claimed = _NewestSearches(log.looks_for_newest())
            local = await self._search_segments(partition, claimed)
            remote = await self._remote(log.remote_max_timestamp()) or NOT_FOUND
            newest = local if local.timestamp > remote.timestamp else remote
            is_gone = newest.offset < log.start_offset and newest.offset != NO_OFFSET
            is_erased = local is NOT_FOUND and claimed.timestamp > newest.timestamp
            if not is_gone and not is_erased:
                return newest
            return await self._newest_up_to(partition, max(newest.timestamp, claimed.timestamp))
        found = await self._remote(log.search_remote(timestamp)) or NOT_FOUND
        # Records that retention has dropped since the manifest was written are not in the log any more.
        if log.start_offset <= found.offset < log.local_start_offset:
            return found
        return await self._search_segments(partition, log.looks_by_time(timestamp))

    async def _newest_up_to(self, partition: Partition, high: int) -> TimestampedOffset:
        """Return the first record with the greatest timestamp in the log, where that with `high`, which its
        segment has by its index, is below the log's start, or an erasure has taken it from its batch. This
        halves the range of timestamps: searches by time skip such records.
        """
        newest = NOT_FOUND
        low = 0
        while low <= high:
            middle = (low + high + 1) // 2
            found = await self._find(partition, middle)
            if found.offset == NO_OFFSET:
                high = middle - 1
            else:
                newest, low = found, found.timestamp + 1
        return newest

    async def _search_segments(
        self, partition: Partition, searches: Iterator[SegmentSearch | None]
    ) -> TimestampedOffset:
        """Search segments one after the other, until one has the record; the request's other local searches
        wait.
        """
        async with self._local:
            for search in searches:
                if self._broker.loop.time() > self._deadline:
                    raise TimeoutError
                if search is not None:
                    try:
                        run = search.run if self._meter is None else self._meter.on_thread(search.run)
                        found = await self._broker.search_thread(run)
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
        # Shielded: after a timeout the search continues, so that a retry finds its pages in the cache.
        return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(search)), max(left_s, 0.001))


def _of_topic(one: tuple[str, list[ListOffsetsPartitionResponse]]) -> ListOffsetsTopicResponse:
    return ListOffsetsTopicResponse(name=one[0], partitions=tuple(one[1]))


def _answer(
    wanted: ListOffsetsPartition, error: ErrorCode, found: TimestampedOffset
) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(
        partition_index=wanted.partition_index,
        error_code=error,
        timestamp=found.timestamp,
        offset=found.offset,
        leader_epoch=found.leader_epoch,
    )


def _check_high_watermark(partition: Partition) -> None:
    """Raise `RequestError` OFFSET_NOT_AVAILABLE until the high watermark has reached the start of the
    leader's epoch: earlier leaders may have shown consumers higher offsets.
    """
    leading = partition.leading
    if leading is not None and not leading.has_reached_its_epoch:
        raise RequestError(
            ErrorCode.offset_not_available,
            f"high watermark {leading.high_watermark} of {partition.tip} is below the start offset "
            f"{leading.epoch_start} of its leader epoch",
        )


def _known_offset(partition: Partition, timestamp: int) -> TimestampedOffset | None:
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
