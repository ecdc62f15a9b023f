"""A partition that follows: its log as the fetcher sees it, and what the fetcher does to it.

Before a log is cut, the checkpoint of its directory must say no more than what is left of it: a start that
finds less than was durable takes the log for damaged. Mostly it says less already, as recovery points follow
the high watermark far behind; else the cut waits for the checkpoint, and may not be wanted any more then. So
it may not after producers were found out, as they were there: that takes a walk through up to a segment, on
another thread. Owned by the event loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Protocol, TypeVar

from service.base.errors import CorruptionError, StorageError
from service.hot.log import LocalLog
from service.records.scan import BatchScan

T = TypeVar("T")


class Following(Protocol):
    """What of a `Partition` is needed here."""

    high_watermark: int

    @property
    def log(self) -> LocalLog: ...

    def follower_mark(self, high_watermark: int) -> None:
        """It is this from now on, never above the log's end."""


class Logs(Protocol):
    """`LogManager`."""

    def lower_recovery_point(self, log: LocalLog, offset: int) -> AbstractAsyncContextManager[bool]: ...
    def on_thread(self, job: Callable[..., T], *args: object) -> Awaitable[T]: ...

    async def append_on_thread(self, log: LocalLog, data: memoryview, run: BatchScan) -> bool: ...
    async def flush(self, log: LocalLog) -> None: ...


class FollowedLog:
    """`replication.fetcher.Replica` over a partition of this node."""

    __slots__ = ("_log", "_logs", "_partition")

    def __init__(self, partition: Following, logs: Logs) -> None:
        self._partition = partition
        self._log = partition.log
        self._logs = logs

    @property
    def log_start_offset(self) -> int:
        return self._log.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self._log.log_end_offset

    @property
    def latest_epoch(self) -> int:
        return self._log.epochs.newest

    @property
    def high_watermark(self) -> int:
        return self._partition.high_watermark

    @property
    def is_offline(self) -> bool:
        return self._log.failure is not None

    @property
    def may_lack(self) -> bool:
        """Whoever leads may have compacted the topic once, whatever its policy is now."""
        return True

    def end_offset_of_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """Also where its files failed: what is then done to it finds that out."""
        return self._log.epochs.end_offset_for(leader_epoch, self._log.log_end_offset)

    def append(self, data: memoryview, run: BatchScan) -> None:
        self._log.appender.append_fetched(data, run)

    async def append_on_thread(self, data: memoryview, run: BatchScan) -> bool:
        return await self._logs.append_on_thread(self._log, data, run)

    @property
    def needs_flush(self) -> bool:
        return self._log.flush_due

    async def flush(self) -> None:
        """The next fetch tells the leader that we have it: by then it is on the device, as on the leader's
        own before it is acknowledged."""
        if self.needs_flush:
            await self._logs.flush(self._log)

    async def truncate(self, offset: int, is_wanted: Callable[[], bool]) -> bool:
        log, least = self._log, self._log.truncation.end_after(offset)
        async with self._logs.lower_recovery_point(log, least) as is_told:
            if not is_told or not is_wanted():
                return False
            producers = None
            if least < log.log_end_offset and len(log.producers):
                with suppress(StorageError, CorruptionError):  # found out in the cut, or by it
                    producers = await self._logs.on_thread(log.truncation.producers_at, least)
                if not is_wanted():
                    return False
            before = log.log_end_offset
            end = log.truncation.truncate_to(offset, producers)
        self._partition.follower_mark(min(self._partition.high_watermark, end))
        if end < before:
            await self._logs.flush(log)  # before another segment begins where this one ends now
        return True

    async def restart(self, offset: int, is_wanted: Callable[[], bool]) -> bool:
        log = self._log
        async with self._logs.lower_recovery_point(log, offset) as is_told:
            if not is_told or not is_wanted():
                return False
            log.truncation.restart_at(offset, max(offset, log.log_start_offset))
        self._partition.follower_mark(offset)
        return True

    def follow(self, high_watermark: int, start_offset: int) -> None:
        self._partition.follower_mark(high_watermark)
        if start_offset > self._log.log_start_offset:
            self._log.deletion.move_log_start(start_offset)
