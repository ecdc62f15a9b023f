"""Adapter of a local partition to a coordinator's log: appends on the loop, reads on a `log-io` thread."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from kio.schema.errors import ErrorCode

from service.base.clock import Clock
from service.base.errors import CorruptionError, RequestError, StorageError
from service.base.types import Buffer
from service.coordinator.ports import MarkListener
from service.coordinator.records import StoredBatch, decode_batches
from service.hot.files import FileSlice
from service.hot.manager import LogManager
from service.hot.markers import Marker
from service.hot.state import LogOffline
from service.hot.verification import VerificationGuard
from service.partition.partition import Partition
from service.records.batch import HEADER_SIZE, size_at
from service.replicas.partition_registry import Replicas

_log = logging.getLogger(__name__)

_PIECE_BYTES: Final = 64 << 10
"""Bytes of batches decoded in one call: some milliseconds if the batches are small."""
_RETRY_S: Final = (0.25, 0.5, 1.0, 2.0)
"""Delays after a failed flush; the last one repeats."""


class CoordinatorLog:
    """One partition (`PartitionLog`). If ``flush.messages`` asks for a flush, the listener gets a high
    watermark only when it is on the device, as a producer gets its response.
    """

    def __init__(self, partition: Partition, logs: LogManager, clock: Clock) -> None:
        self._partition = partition
        self._state = partition.log.state
        self._logs = logs
        self._clock = clock
        self._listener: MarkListener | None = None
        self._flushing: asyncio.Task[None] | None = None
        self._notified = partition.high_watermark

    @property
    def start_offset(self) -> int:
        return self._partition.log.local_log_start_offset

    @property
    def end_offset(self) -> int:
        return self._partition.log.log_end_offset

    @property
    def high_watermark(self) -> int:
        return self._notified if self._flushing is not None else self._partition.high_watermark

    @property
    def max_batch_bytes(self) -> int:
        config = self._partition.config
        return min(config.max_message_bytes, config.segment_bytes)

    def append(self, batch: bytearray, leader_epoch: int, guard: VerificationGuard | None = None) -> int:
        return self._partition.append_records(batch, leader_epoch, self._clock.now_ms(), guard)

    def commits_at_once(self, records: int, size: int) -> bool:
        partition, state = self._partition, self._state
        config = state.config
        return (
            partition.leading is None
            and partition.gate.is_open
            and self._flushing is None
            and size <= config.max_message_bytes
            and size <= config.segment_bytes
            and state.end_offset + records - state.recovery_point < config.flush_messages
        )

    def append_built(self, batch: bytearray, records: int, now_ms: int, leader_epoch: int) -> int:
        return self._partition.append_records(batch, leader_epoch, now_ms, records=records)

    def append_marker(self, marker: Marker, leader_epoch: int) -> int:
        partition = self._partition
        if leader_epoch != partition.leader_epoch:
            raise RequestError(
                ErrorCode.not_leader_or_follower, f"{partition.tip} has another leader epoch than its shard"
            )
        [result] = partition.append_markers([marker], self._clock.now_ms())
        if isinstance(result, RequestError):
            raise result
        return result.first_offset

    def listen(self, listener: MarkListener | None) -> None:
        self._listener = listener
        self._partition.listen(None if listener is None else self._high_watermark_moved)

    def _high_watermark_moved(self, high_watermark: int) -> None:
        if self._flushing is not None:
            return
        state = self._state
        if state.end_offset - state.recovery_point >= state.config.flush_messages:
            self._flushing = asyncio.get_running_loop().create_task(self._flush(), name="flush-coordinator")
            return
        self._notified = high_watermark
        if self._listener is not None:  # as `_notify`: each commit comes here
            self._listener(high_watermark)

    def _notify(self, high_watermark: int) -> None:
        self._notified = high_watermark
        if self._listener is not None:
            self._listener(high_watermark)

    async def _flush(self) -> None:
        """Flush until all committed offsets are on the device. Retry after a failure: no further append may
        come, and pending writes of groups wait for the high watermark.
        """
        partition, failures = self._partition, 0
        try:
            while self._listener and partition.is_leader and self._notified < partition.high_watermark:
                flushed = partition.high_watermark
                try:
                    await self._logs.flush(partition.log)
                except StorageError as e:
                    failures += 1
                    if failures & (failures - 1) == 0:  # a node may have fifty such partitions
                        _log.error(
                            "%s: flush failed %d times, pending group requests wait, retrying: %s",
                            partition.tip, failures, e,
                        )  # fmt: skip
                    partition.log.check()  # raises `LogOffline` if a retry is useless
                    await asyncio.sleep(_RETRY_S[min(failures, len(_RETRY_S)) - 1])
                else:
                    failures = 0
                    self._notify(flushed)
        except LogOffline as e:
            _log.error("%s: log is offline, pending group requests stay unanswered: %s", partition.tip, e)
        finally:
            self._flushing = None

    async def read(self, offset: int, max_bytes: int) -> list[StoredBatch]:
        """Return the batches from `offset` on, decoded in pieces: the loop yields the GIL at each socket
        call, and would wait for a thread that decodes for long.
        """
        found: list[StoredBatch] = []
        for part in self._partition.read_to_end(offset, max_bytes).parts:
            data, ends = await self._logs.on_thread(_cut, part)
            start = 0
            for end in ends:
                found += await self._logs.on_thread(decode_batches, data[start:end])
                start = end
            if start < len(data):
                break
        return found


class CoordinatorLogs:
    """The partitions of one topic (`PartitionLogs`)."""

    def __init__(self, topic: str, replicas: Replicas, logs: LogManager, clock: Clock) -> None:
        self._topic = topic
        self._replicas = replicas
        self._make: Callable[[Partition], CoordinatorLog] = lambda one: CoordinatorLog(one, logs, clock)

    def find(self, partition: int) -> CoordinatorLog:
        """Return the partition's log. Raises `RequestError` and `StorageError` if it cannot be used."""
        found = self._replicas.find(self._topic, partition)
        found.log.check()
        return self._make(found)


def _cut(part: FileSlice | Buffer) -> tuple[memoryview, list[int]]:
    """Return the bytes of `part`, which may end within a batch, and the end positions of pieces of whole
    batches. Raises `CorruptionError` if it does not begin with a whole batch.
    """
    data = memoryview(part.read() if isinstance(part, FileSlice) else part)
    ends: list[int] = []
    start = end = 0
    while end + HEADER_SIZE <= len(data):
        size = size_at(data[end:])
        if end + size > len(data):
            break
        end += size
        if end - start >= _PIECE_BYTES:
            ends.append(end)
            start = end
    if start < end:
        ends.append(end)
    if not ends and len(data):
        raise CorruptionError("the read does not begin with a whole batch")
    return data, ends
