"""Fetch: records of any tier, without copying those that lie in segment files.

One reading of a fetch goes through its partitions in the order asked, under one byte budget over both tiers.
Hot bytes are slices of segment files; cold bytes come from the remote reader's cache, or are on their way
there. When a reading brings less than the client wants, the fetch waits and is read again from the start:
nothing is held meanwhile.

A fetch never waits for the bucket when the hot tier has enough for it: the download it started goes on into
the cache and a later fetch finds it there. A fetch that has nothing else waits up to
``remote.fetch.max.wait.ms``.

Bytes of segment files go out by ``sendfile`` after the head of the response, when nobody can be told any
more that the disk does not give them. So small ones are read before, and for a while after a failure all.

Fetch sessions (KIP-227) are not kept: every full fetch is answered with session id 0, which tells the client
to send full fetches, and an incremental one is answered FETCH_SESSION_ID_NOT_FOUND.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable
from concurrent.futures import Future
from typing import Final, NamedTuple, cast

from kio.schema.errors import ErrorCode

from service.base.errors import CorruptionError, RequestError, StorageError
from service.base.types import NO_LEADER_EPOCH
from service.broker.broker import Broker
from service.hot.files import FileSlice
from service.network.sender import PIECE_BYTES, SMALL_SLICE_BYTES, Part
from service.network.server import RequestContext, Response
from service.partition.partition import Partition
from service.partition.unified_log import NOTHING, LogRead
from service.partition.waits import Wait
from service.remote.reading.reader import RemoteRead
from service.wire.fetch import (
    FetchPartition,
    FetchPartitionResult,
    FetchRequestView,
    RecordsPart,
    encode_fetch_response,
)
from service.wire.produce import TopicKey

FULL_FETCH_EPOCHS: Final = (0, -1)
FIRST_VERSION_WITH_ZSTD: Final = 10
READ_COMMITTED: Final = 1
IN_HAND_BYTES: Final = PIECE_BYTES
"""Bytes of small slices that are read before a response is begun: those that the sender would join anyway."""
CAREFUL_BYTES: Final = 1 << 20
"""Most bytes of a response while all of them are read before."""

AnsweredTopic = tuple[TopicKey, list[FetchPartitionResult]]

RemoteReads = dict[tuple[int, int], Future[RemoteRead]]


class Reading(NamedTuple):
    """What one pass over the partitions brought."""

    topics: list[AnsweredTopic]
    partitions: list[Partition]
    size: int
    final: bool
    """An error or a diverging epoch is among the answers: the client must see it now."""
    remote: RemoteReads
    """Downloads that the pass is short of, by position in the request."""
    held: int
    """Memory that the cold bytes among the answers keep from being freed."""
    cold_reads: int
    """Partitions that were answered from the bucket, and"""
    cold_bytes: int
    """how much of `size` that is."""
    hot_reads: int


def handle(
    broker: Broker, context: RequestContext, fetch: FetchRequestView
) -> Response | Awaitable[Response]:
    """Answer at once when there is enough to say, else wait for bytes, the bucket or the deadline."""
    version = context.api_version
    if fetch.session_epoch not in FULL_FETCH_EPOCHS:
        return _refusal(context, ErrorCode.fetch_session_id_not_found)
    reading = _read(broker, version, fetch, {})
    if _enough(fetch, reading):
        return _response(broker, context, reading)
    context.cancel_on_disconnect = True
    return _wait(broker, context, fetch, reading)


def _refusal(context: RequestContext, error: ErrorCode) -> Response:
    parts = encode_fetch_response(context.api_version, context.correlation_id, (), error_code=error)
    return Response(cast("list[Part]", parts))


def _response(broker: Broker, context: RequestContext, reading: Reading) -> Response:
    _have_in_hand(broker, reading.topics)
    parts = encode_fetch_response(context.api_version, context.correlation_id, reading.topics)
    metrics, on_done = broker.metrics, None
    metrics.hot_reads += reading.hot_reads
    metrics.hot_bytes += reading.size - reading.cold_bytes
    if reading.held:
        metrics.cold_reads += reading.cold_reads
        metrics.cold_bytes += reading.cold_bytes
        on_done = broker.hold_cold_bytes(reading.held)
    return Response(cast("list[Part]", parts), on_done, broker.read_carefully)


def _have_in_hand(broker: Broker, topics: list[AnsweredTopic]) -> None:
    """Replace slices of files by their bytes, as far as they are small or the disk is not to be trusted."""
    largest, room = SMALL_SLICE_BYTES, IN_HAND_BYTES
    if broker.reads_carefully:
        largest = room = sys.maxsize
    for topic, answers in topics:
        for n, answer in enumerate(answers):
            if not answer.records:
                continue
            parts: list[RecordsPart] = []
            try:
                for part in answer.records:
                    if isinstance(part, FileSlice) and part.size <= min(largest, room):
                        room -= part.size
                        parts.append(part.read())
                    else:
                        parts.append(part)
            except StorageError as e:
                code = _storage_code(broker, topic, answer.partition, e)
                answers[n] = FetchPartitionResult(answer.partition, code)
            else:
                answers[n] = answer._replace(records=parts)


def _enough(fetch: FetchRequestView, reading: Reading) -> bool:
    if reading.final or reading.size >= max(fetch.min_bytes, 1):
        return True
    return not reading.remote and (
        fetch.max_wait_ms <= 0 or not reading.partitions or reading.size >= fetch.min_bytes
    )


async def _wait(
    broker: Broker, context: RequestContext, fetch: FetchRequestView, reading: Reading
) -> Response:
    version, loop = context.api_version, broker.loop
    wait_ms = broker.config.remote_fetch_max_wait_ms if reading.remote else fetch.max_wait_ms
    deadline = loop.time() + wait_ms / 1000
    while not _enough(fetch, reading) and (left_s := deadline - loop.time()) > 0:
        wait = Wait(loop, max(fetch.min_bytes - reading.size, 1), reading.partitions)
        for future in reading.remote.values():
            future.add_done_callback(wait.wake_threadsafe)
        was_remote = bool(reading.remote)
        await _waited(broker, wait, left_s, was_remote)
        reading = _read(broker, version, fetch, reading.remote)
        if was_remote and reading.size:
            break
    return _response(broker, context, reading)


async def _waited(broker: Broker, wait: Wait, left_s: float, is_cold: bool) -> None:
    metrics, began_s = broker.metrics, broker.loop.time()
    metrics.waiting += 1
    try:
        await wait.until(left_s)
    finally:
        metrics.waiting -= 1
        (metrics.cold_wait if is_cold else metrics.wait).observe(broker.loop.time() - began_s)


def _read(broker: Broker, version: int, fetch: FetchRequestView, started: RemoteReads) -> Reading:
    """One pass; `started` are downloads of an earlier pass, so that none is asked for twice."""
    room = min(fetch.max_bytes, broker.config.fetch_max_bytes)
    if broker.reads_carefully:
        room = min(room, CAREFUL_BYTES)
    reading = Reading([], [], 0, False, {}, 0, 0, 0, 0)
    size, held, final = 0, 0, False
    hot_reads = cold_reads = cold_bytes = 0
    cold = broker.has_room_for_cold_bytes
    for t, (topic, partitions) in enumerate(fetch.topics):
        answers = []
        for p, asked in enumerate(partitions):
            try:
                partition = _partition(broker, version, fetch, topic, asked.partition)
                diverging = _diverging(partition, asked)
                read = NOTHING
                if diverging is None:
                    limit = max(min(asked.max_bytes, room - size), 0)
                    read = _tiers(partition, asked.fetch_offset, limit, size == 0, cold, started.get((t, p)))
            except RequestError as e:
                final = True
                answers.append(_refused(broker, asked, e.code))
                continue
            except (StorageError, CorruptionError) as e:
                final = True
                code = _storage_code(broker, topic, asked.partition, e)
                answers.append(_refused(broker, asked, code))
                continue
            reading.partitions.append(partition)
            if read.pending is not None:
                reading.remote[t, p] = read.pending
            if read.held:
                held += read.held
                cold_reads += 1
                cold_bytes += read.size
            elif read.size:
                hot_reads += 1
            size += read.size
            final = final or diverging is not None
            answers.append(_answer(partition, asked, fetch, read, diverging))
        reading.topics.append((topic, answers))
    return reading._replace(
        size=size, final=final, held=held, cold_reads=cold_reads, cold_bytes=cold_bytes, hot_reads=hot_reads
    )


def _partition(
    broker: Broker, version: int, fetch: FetchRequestView, topic: TopicKey, index: int
) -> Partition:
    partition = broker.replicas.find(topic, index)
    if fetch.replica_id >= 0:
        # Replicas of this partition are named by the metadata, and there is none but this node.
        raise RequestError(
            ErrorCode.not_leader_or_follower, f"{fetch.replica_id} is no replica of {partition.tip}"
        )
    if version < FIRST_VERSION_WITH_ZSTD and partition.config.compression_type == "zstd":
        raise RequestError(ErrorCode.unsupported_compression_type)
    return partition


def _diverging(partition: Partition, asked: FetchPartition) -> tuple[int, int] | None:
    """(epoch, end offset) where the client's log left ours, None where it did not (KIP-595)."""
    partition.check_epoch(asked.current_leader_epoch)
    if asked.last_fetched_epoch == NO_LEADER_EPOCH:
        return None
    epoch, end_offset = partition.unified.end_offset_of_epoch(asked.last_fetched_epoch)
    if epoch == NO_LEADER_EPOCH:
        raise RequestError(
            ErrorCode.offset_out_of_range, "no epoch at or below the last fetched one is known"
        )
    if epoch < asked.last_fetched_epoch or end_offset < asked.fetch_offset:
        return epoch, end_offset
    return None


def _tiers(
    partition: Partition,
    offset: int,
    limit: int,
    min_one: bool,
    cold: bool,
    started: Future[RemoteRead] | None,
) -> LogRead:
    if started is None:
        read = partition.read(offset, limit, min_one=min_one, cold=cold)
    else:
        read = partition.unified.ready(started) if started.done() else LogRead((), 0, started)
    # A remote read brings whole batches, at least one: it may be more than is left of the budget.
    return read if min_one or read.size <= limit else NOTHING


def _storage_code(broker: Broker, topic: TopicKey, index: int, error: Exception) -> ErrorCode:
    """CORRUPT_MESSAGE for bytes that failed their checksum, else KAFKA_STORAGE_ERROR, which clients retry."""
    broker.log_storage_error("Fetch", topic, index, error)
    if isinstance(error, CorruptionError):
        return ErrorCode.corrupt_message
    return ErrorCode.kafka_storage_error


def _refused(broker: Broker, asked: FetchPartition, code: ErrorCode) -> FetchPartitionResult:
    broker.metrics.error("FETCH", code)
    return FetchPartitionResult(asked.partition, code)


def _answer(
    partition: Partition,
    asked: FetchPartition,
    fetch: FetchRequestView,
    read: LogRead,
    diverging: tuple[int, int] | None,
) -> FetchPartitionResult:
    return FetchPartitionResult(
        asked.partition,
        ErrorCode.none,
        partition.high_watermark,
        partition.last_stable_offset,
        partition.unified.start_offset,
        read.parts,
        () if fetch.isolation_level == READ_COMMITTED else None,
        diverging_epoch=diverging,
    )
