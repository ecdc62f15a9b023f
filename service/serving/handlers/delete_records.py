"""DeleteRecords (KIP-107): moves the log start offset of both tiers (`UnifiedLog.delete_records`), durably.

A result without an error is durable: the log start offset is in a checkpoint on disk, and all live replicas
have it (Kafka `DelayedDeleteRecords`), as their fetches report. The archiver updates the catalog later
(`tiering/partition_archiver.py`); objects and local segments are deleted after their delays.
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
from service.base.types import INTERNAL_TOPICS, NO_OFFSET
from service.hot.log import LocalLog
from service.hot.retention import MOST_AT_ONCE
from service.network.request import RequestContext
from service.partition.fetch_wait import FetchWait
from service.partition.gate import CutGate
from service.partition.partition import Partition
from service.partition.unified_log import HIGH_WATERMARK
from service.security.operations import AclOperation, AclResourceType
from service.serving.authorization import check
from service.serving.change_audit import audited
from service.serving.change_words import deleted_records
from service.serving.request_host import NO_THROTTLE, Broker

CHECKPOINT_S: Final = 5.0
"""Shortest time limit of the checkpoint, even if the request's timeout is shorter."""


class _Deleted(NamedTuple):
    """A partition whose log start offset is now at least `start`, which must become durable. All replicas
    must reach `wanted`.
    """

    partition: Partition
    start: int
    wanted: int

    @property
    def log(self) -> LocalLog:
        return self.partition.log


_Outcome = _Deleted | ErrorCode


@audited(deleted_records)
async def handle(
    broker: Broker, context: RequestContext, request: DeleteRecordsRequest
) -> DeleteRecordsResponse:
    """Delete each partition's records, with its own error; of a repeated partition the last offset counts, as
    in Kafka.

    REQUEST_TIMED_OUT if the start offset has moved but a replica does not have it within the request's
    timeout, or it is not durable within that and `CHECKPOINT_S`: a crash may then bring records back.
    """
    piece = Slice()
    deadline = broker.loop.time() + request.timeout.total_seconds()
    outcomes = await _delete(broker, context, await _requested(request, piece), piece)
    timed_out = False
    if await _is_any_undurable(broker, outcomes, piece):
        try:
            async with asyncio.timeout_at(max(deadline, broker.loop.time() + CHECKPOINT_S)):
                await broker.checkpoint_starts()
        except TimeoutError:
            timed_out = True
    await _replicas_follow(broker, outcomes, deadline, piece)
    topics: dict[str, list[DeleteRecordsPartitionResult]] = {}
    for (topic, partition), outcome in outcomes.items():
        if piece.is_over():
            await piece.next_turn()
        topics.setdefault(topic, []).append(_answer(broker, partition, outcome, timed_out))
    results = await each_in_slices(_of_topic, topics.items())
    return DeleteRecordsResponse(throttle_time=NO_THROTTLE, topics=tuple(results))


def _of_topic(one: tuple[str, list[DeleteRecordsPartitionResult]]) -> DeleteRecordsTopicResult:
    return DeleteRecordsTopicResult(name=one[0], partitions=tuple(one[1]))


async def _requested(request: DeleteRecordsRequest, piece: Slice) -> dict[tuple[str, int], int]:
    offsets = {}
    for topic in request.topics:
        for one in topic.partitions:
            if piece.is_over():
                await piece.next_turn()
            offsets[topic.name, one.partition_index] = one.offset
    return offsets


async def _opened(gate: CutGate) -> None:
    """Wait until a cut does not hold back what is visible: a client may delete records because of what it saw
    on a broker whose ends were noted before, and the cut must not lack the one and have the other."""
    opened = asyncio.get_running_loop().create_future()
    gate.when_open(lambda: None if opened.done() else opened.set_result(None))
    await opened


async def _delete(
    broker: Broker, context: RequestContext, offsets: dict[tuple[str, int], int], piece: Slice
) -> dict[tuple[str, int], _Outcome]:
    outcomes: dict[tuple[str, int], _Outcome] = {}
    for (topic, partition), offset in offsets.items():
        if piece.is_over():
            await piece.next_turn()
        while not broker.replicas.gate.is_open:
            await _opened(broker.replicas.gate)
        try:
            if broker.authorizer is not None:
                check(broker, context, AclOperation.DELETE, AclResourceType.TOPIC, topic)
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
                if piece.is_over():
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


async def _is_any_undurable(broker: Broker, outcomes: dict[tuple[str, int], _Outcome], piece: Slice) -> bool:
    for outcome in outcomes.values():
        if piece.is_over():
            await piece.next_turn()
        if isinstance(outcome, _Deleted) and broker.durable_start(outcome.log) < outcome.start:
            return True
    return False


async def _replicas_follow(
    broker: Broker, outcomes: dict[tuple[str, int], _Outcome], deadline: float, piece: Slice
) -> None:
    """Wait until all live replicas of each partition have the wanted start offset, or until `deadline`."""
    waiting = {
        key: one
        for key, one in outcomes.items()
        # a leader that was deposed while the checkpoint was written does not know the replicas' offsets
        if isinstance(one, _Deleted) and (one.partition.leading or not one.partition.is_leader)
    }
    while waiting:
        left_s = max(deadline - broker.loop.time(), 0.0)
        future: asyncio.Future[None] = broker.loop.create_future()
        wait = FetchWait(broker.loop, broker.timers.purgatory, partial(_set, future))
        broker.timers.watch(wait, [one.partition.lows for one in waiting.values()], left_s)
        wait.begin(1)
        try:
            for key, one in list(waiting.items()):
                if piece.is_over():
                    await piece.next_turn()
                error = _wait_error(broker, key, one)
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


def _wait_error(broker: Broker, key: tuple[str, int], deleted: _Deleted) -> ErrorCode | None:
    """Return the error that ends the wait for a partition: it was replaced, or this node does not lead it."""
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
        else:  # the disk failed or is slow, or the topic was deleted meanwhile
            error = ErrorCode.request_timed_out if timed_out else ErrorCode.kafka_storage_error
    assert isinstance(error, ErrorCode)
    return DeleteRecordsPartitionResult(partition_index=partition, low_watermark=start, error_code=error)
