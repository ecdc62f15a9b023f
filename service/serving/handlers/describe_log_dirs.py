"""DescribeLogDirs (KIP-113, KIP-827): the partitions of each log directory, and its free space.

Sizes are those of local files: segments that are only in the bucket do not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kio.schema.errors import ErrorCode

from service.base.errors import StorageError
from service.base.slices import Slice, each_in_slices
from service.base.steps import Steps
from service.hot.log import LocalLog
from service.network.request import RequestContext
from service.serving.request_host import NO_THROTTLE, Broker
from service.wire.log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

UNKNOWN_LAG: Final = -1

Topics = dict[str, list[DescribeLogDirsPartition]]


async def handle(
    broker: Broker, context: RequestContext, request: DescribeLogDirsRequest
) -> DescribeLogDirsResponse:
    """Return all directories, each with its requested partitions; with all of them if the request names none.

    An offline directory has KAFKA_STORAGE_ERROR and no partitions; one that refuses records has the reason.
    """
    piece = Slice()
    wanted = None if request.topics is None else await piece.go_on(requested_partitions(request.topics))
    by_directory: dict[Path, Topics] = {path: {} for path in broker.config.log_dirs}
    for log, path in broker.logs_by_directory():
        if piece.is_over():
            await piece.next_turn()
        if path in by_directory and (wanted is None or log.tip.partition in wanted.get(log.tip.topic, ())):
            by_directory[path].setdefault(log.tip.topic, []).append(_partition(broker, log))
    return DescribeLogDirsResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        results=tuple([await _directory(broker, path, topics) for path, topics in by_directory.items()]),
    )


def requested_partitions(topics: Sequence[DescribableLogDirTopic]) -> Steps[dict[str, set[int]]]:
    """Return the requested partitions by topic, in steps. A set of pairs would take 15 ms to free."""
    found: dict[str, set[int]] = {}
    for topic in topics:
        yield
        of_topic = found.setdefault(topic.topic, set())
        for partition in topic.partitions:
            yield
            of_topic.add(partition)
    return found


def _partition(broker: Broker, log: LocalLog) -> DescribeLogDirsPartition:
    partition = broker.replicas.get(log.tip.topic_id, log.tip.partition)
    lag = UNKNOWN_LAG
    if partition is not None and log.failure is None:
        # Offsets up to the high watermark that the log lacks (Kafka `getLogEndOffsetLag`).
        lag = max(partition.high_watermark - log.log_end_offset, 0)
    return DescribeLogDirsPartition(
        partition_index=log.tip.partition,
        partition_size=log.size,
        offset_lag=lag,
        is_future_key=False,
    )


async def _directory(broker: Broker, path: Path, topics: Topics) -> DescribeLogDirsResult:
    try:
        space = await broker.space(path)
    except StorageError:
        return DescribeLogDirsResult(error_code=ErrorCode.kafka_storage_error, log_dir=str(path), topics=())
    found = await each_in_slices(_of_topic, topics.items())
    return DescribeLogDirsResult(
        error_code=ErrorCode.none,
        log_dir=str(path),
        topics=tuple(found),
        total_bytes=space.total,
        usable_bytes=space.usable,
        refusal=broker.disks.refusal(path),
    )


def _of_topic(one: tuple[str, list[DescribeLogDirsPartition]]) -> DescribeLogDirsTopic:
    return DescribeLogDirsTopic(name=one[0], partitions=tuple(one[1]))
