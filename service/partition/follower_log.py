"""Log of a follower: what the fetcher reads of a partition and changes in it.

Before a truncation the directory's checkpoint must not exceed what is left: at start, a log shorter than what
was durable looks damaged. Mostly the checkpoint is lower already, as recovery points follow the high
watermark far behind; otherwise the truncation waits for the checkpoint, and may no longer be wanted then. The
same holds after the producers at the new end were computed on a thread, which reads up to a segment. Owned by
the event loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Protocol, TypeVar

from service.base.errors import CorruptionError, StorageError
from service.hot.log import LocalLog
from service.records.scan import BatchScan

T = TypeVar("T")


class FollowedPartition(Protocol):
    """Interface of `Partition` to this module."""

    high_watermark: int

    @property
    def log(self) -> LocalLog: ...

    def set_follower_high_watermark(self, high_watermark: int) -> None:
        """Set the high watermark, at most to the log's end."""


class Logs(Protocol):
    """Interface of `LogManager` to this module."""

    def lower_recovery_point(self, log: LocalLog, offset: int) -> AbstractAsyncContextManager[bool]: ...
    def on_thread(self, job: Callable[..., T], *args: object) -> Awaitable[T]: ...

    async def append_on_thread(self, log: LocalLog, data: memoryview, run: BatchScan) -> bool: ...
    async def flush(self, log: LocalLog) -> None: ...


class LocalFollowerLog:
    """A `replication.fetcher.FollowerReplica` over a partition of this node."""

    __slots__ = ("_log", "_logs", "_partition", "_state")

    def __init__(self, partition: FollowedPartition, logs: Logs) -> None:
        self._partition = partition
        self._log = partition.log
        self._state = partition.log.state
        self._logs = logs

    @property
    def log_start_offset(self) -> int:
        return self._state.start

    @property
    def log_end_offset(self) -> int:
        return self._state.end_offset

    @property
    def latest_epoch(self) -> int:
        return self._state.epochs.newest

    @property
    def high_watermark(self) -> int:
        return self._partition.high_watermark

    @property
    def is_offline(self) -> bool:
        return self._log.failure is not None

    @property
    def may_lack(self) -> bool:
        """True: some leader may have compacted the topic, whatever its policy is now."""
        return True

    def end_offset_of_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """Return (largest known epoch at or below `leader_epoch`, its end offset), (-1, -1) if there is none,
        even if the log's files have failed: changes of the log detect that."""
        return self._log.epochs.end_offset_for(leader_epoch, self._log.log_end_offset)

    def append(self, data: memoryview, run: BatchScan) -> None:
        self._log.appender.append_fetched(data, run)

    async def append_on_thread(self, data: memoryview, run: BatchScan) -> bool:
        return await self._logs.append_on_thread(self._log, data, run)

    @property
    def needs_flush(self) -> bool:
        return self._log.flush_due

    async def flush(self) -> None:
        """Sync appended records before the next fetch reports them to the leader, as a leader syncs its own
        before it acknowledges them."""
        if self.needs_flush:
            await self._logs.flush(self._log)

    async def truncate(self, offset: int, is_wanted: Callable[[], bool]) -> bool:
        log, least = self._log, self._log.truncation.end_after(offset)
        async with self._logs.lower_recovery_point(log, least) as is_checkpointed:
            if not is_checkpointed or not is_wanted():
                return False
            producers = None
            if least < log.log_end_offset and log.truncation.changes_producers(least):
                with suppress(StorageError, CorruptionError):  # the truncation detects the failure
                    producers = await self._logs.on_thread(log.truncation.producers_at, least)
                if not is_wanted():
                    return False
            before = log.log_end_offset
            end = log.truncation.truncate_to(offset, producers)
        self._partition.set_follower_high_watermark(min(self._partition.high_watermark, end))
        if end < before:
            await self._logs.flush(log)  # before the next segment begins at this end
        return True

    async def restart(self, offset: int, is_wanted: Callable[[], bool]) -> bool:
        log = self._log
        async with self._logs.lower_recovery_point(log, offset) as is_checkpointed:
            if not is_checkpointed or not is_wanted():
                return False
            log.truncation.restart_at(offset, max(offset, log.log_start_offset))
        self._partition.set_follower_high_watermark(offset)
        return True

    def follow(self, high_watermark: int, start_offset: int) -> None:
        self._partition.set_follower_high_watermark(high_watermark)
        if start_offset > self._log.log_start_offset:
            self._log.deletion.move_log_start(start_offset)
