"""DeleteRecords (KIP-107): the log begins later, over both tiers, and does so after a crash, too.

What is answered without an error is durable: a checkpoint on disk tells where the log begins; and all live
replicas begin there (Kafka `DelayedDeleteRecords`), as their fetches say. The catalog
follows by itself (`tiering/partition_archiver.py`), and objects and local segments go after their delays.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final, NamedTuple

from kio.schema.delete_records.v2.request import DeleteRecordsRequest
from kio.schema.delete_records.v2.response import (
    DeleteRecordsPartitionResult,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError, StorageError
from service.base.slices import Slice, each_in_slices
from service.base.types import NO_OFFSET
from service.hot.log import LocalLog
from service.hot.retention import MOST_AT_ONCE
from service.network.request import RequestContext
from service.partition.delayed_fetch import DelayedFetch
from service.partition.partition import HIGH_WATERMARK, Partition
from service.serving.internal_topics import INTERNAL_TOPICS
from service.serving.request_host import NO_THROTTLE, Broker

LOOK_US: Final = 2
TOPIC_US: Final = 4
PARTITION_US: Final = 15
CHECKPOINT_S: Final = 5.0
"""The checkpoint may take so long, however short a time the client gives its replicas."""
SEGMENTS_US: Final = 500
"""`MOST_AT_ONCE` of them."""


class _Deleted(NamedTuple):
    """A partition whose log begins at `start` at the earliest, once that is durable. All replicas are to
    begin at `wanted`."""

    partition: Partition
    start: int
    wanted: int

    @property
    def log(self) -> LocalLog:
        return self.partition.log


_Outcome = _Deleted | ErrorCode


async def handle(
    broker: Broker, context: RequestContext, request: DeleteRecordsRequest
) -> DeleteRecordsResponse:
    """One answer for each partition; of one that is named twice the last offset counts, as in Kafka.

    REQUEST_TIMED_OUT where a start has moved and is not taken over by a replica within the request's time, or
    not durable within that and `CHECKPOINT_S`: a crash may still bring records back then.
    """
    piece = Slice()
    deadline = broker.loop.time() + request.timeout.total_seconds()
    outcomes = await _delete(broker, context, await _asked(request, piece), piece)
    timed_out = False
    if await _is_any_unsafe(broker, outcomes, piece):
        try:
            async with asyncio.timeout_at(max(deadline, broker.loop.time() + CHECKPOINT_S)):
                await broker.checkpoint_starts()
        except TimeoutError:
            timed_out = True
    await _replicas_follow(broker, outcomes, deadline, piece)
    topics: dict[str, list[DeleteRecordsPartitionResult]] = {}
    for (topic, partition), outcome in outcomes.items():
        if piece.charge(PARTITION_US):
            await piece.next_turn()
        topics.setdefault(topic, []).append(_answer(broker, partition, outcome, timed_out))
    results = await each_in_slices(_of_topic, topics.items(), TOPIC_US)
    return DeleteRecordsResponse(throttle_time=NO_THROTTLE, topics=tuple(results))


def _of_topic(one: tuple[str, list[DeleteRecordsPartitionResult]]) -> DeleteRecordsTopicResult:
    return DeleteRecordsTopicResult(name=one[0], partitions=tuple(one[1]))


async def _asked(request: DeleteRecordsRequest, piece: Slice) -> dict[tuple[str, int], int]:
    asked = {}
    for topic in request.topics:
        for one in topic.partitions:
            if piece.charge(LOOK_US):
                await piece.next_turn()
            asked[topic.name, one.partition_index] = one.offset
    return asked


async def _delete(
    broker: Broker, context: RequestContext, asked: dict[tuple[str, int], int], piece: Slice
) -> dict[tuple[str, int], _Outcome]:
    outcomes: dict[tuple[str, int], _Outcome] = {}
    for (topic, partition), offset in asked.items():
        if piece.charge(PARTITION_US):
            await piece.next_turn()
        try:
            if topic in INTERNAL_TOPICS and _is_known(broker, topic, partition):
                raise RequestError(
                    ErrorCode.invalid_topic_exception, f"Cannot delete records of internal topic {topic}."
                )
            found = broker.replicas.find(topic, partition)
            wanted = found.high_watermark if offset == HIGH_WATERMARK else offset
            outcomes[topic, partition] = _Deleted(found, found.delete_records(offset), wanted)
            while (
                broker.replicas.get_by(topic, partition) is found
                and found.log.deletion.delete_below_start() == MOST_AT_ONCE
            ):
                if piece.charge(SEGMENTS_US):
                    await piece.next_turn()
        except RequestError as e:
            outcomes[topic, partition] = e.code
            broker.log_refusal("DeleteRecords", context, topic, partition, e)
        except StorageError as e:
            outcomes[topic, partition] = ErrorCode.kafka_storage_error
            broker.log_storage_error("DeleteRecords", topic, partition, e)
    return outcomes


def _is_known(broker: Broker, topic: str, partition: int) -> bool:
    known = broker.image.topics_by_name.get(topic)
    return known is not None and partition in known.partitions


async def _is_any_unsafe(broker: Broker, outcomes: dict[tuple[str, int], _Outcome], piece: Slice) -> bool:
    for outcome in outcomes.values():
        if piece.charge(LOOK_US):
            await piece.next_turn()
        if isinstance(outcome, _Deleted) and broker.durable_start(outcome.log) < outcome.start:
            return True
    return False


async def _replicas_follow(
    broker: Broker, outcomes: dict[tuple[str, int], _Outcome], deadline: float, piece: Slice
) -> None:
    """Until all live replicas of each partition begin where it was asked for, or the time is over."""
    waiting = {
        key: one
        for key, one in outcomes.items()
        # who was deposed while the checkpoint was written cannot tell what others have
        if isinstance(one, _Deleted) and (one.partition.leading or not one.partition.is_leader)
    }
    while waiting:
        left_s = max(deadline - broker.loop.time(), 0.0)
        future: asyncio.Future[None] = broker.loop.create_future()
        wait = DelayedFetch(broker.loop, broker.timers.purgatory, 1, partial(_set, future))
        broker.timers.watch(wait, [one.partition.lows for one in waiting.values()], left_s)
        try:
            for key, one in list(waiting.items()):
                if piece.charge(LOOK_US):
                    await piece.next_turn()
                error = _why_not(broker, key, one)
                if error is not None:
                    outcomes[key] = error
                if error is not None or one.partition.low_watermark >= one.wanted:
                    del waiting[key]
            if not left_s:
                outcomes.update(dict.fromkeys(waiting, ErrorCode.request_timed_out))
                return
            if waiting:
                await future
        finally:
            broker.timers.purgatory.forget(wait)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _why_not(broker: Broker, key: tuple[str, int], deleted: _Deleted) -> ErrorCode | None:
    """Return why nothing is to be waited for any more: the partition is another's now, or nobody's."""
    try:
        if broker.replicas.find(*key) is not deleted.partition:
            return ErrorCode.unknown_topic_or_partition
        deleted.partition.check_leads()
    except RequestError as e:
        return e.code
    return None


def _answer(
    broker: Broker, partition: int, outcome: _Outcome, timed_out: bool
) -> DeleteRecordsPartitionResult:
    start, error = NO_OFFSET, outcome
    if isinstance(outcome, _Deleted):
        if broker.durable_start(outcome.log) >= outcome.start:
            start, error = max(min(outcome.start, outcome.partition.low_watermark), 0), ErrorCode.none
        else:  # the disk refuses, or takes its time; or the topic was deleted meanwhile
            error = ErrorCode.request_timed_out if timed_out else ErrorCode.kafka_storage_error
    assert isinstance(error, ErrorCode)
    return DeleteRecordsPartitionResult(partition_index=partition, low_watermark=start, error_code=error)
