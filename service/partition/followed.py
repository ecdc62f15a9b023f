"""A partition that follows: its log as the fetcher sees it, and what the fetcher does to it.

Before a log is cut, the checkpoint of its directory must say no more than what is left of it: a start that
finds less than was durable takes the log for damaged. Mostly it says less already, as recovery points follow
the high watermark far behind; else the cut waits for the checkpoint, and may not be wanted any more then.
Owned by the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from service.hot.log import LocalLog
from service.records.batch import BatchHeader


class Following(Protocol):
    """What of a `Partition` is needed here."""

    high_watermark: int

    @property
    def log(self) -> LocalLog: ...

    def follower_mark(self, high_watermark: int) -> None:
        """It is this from now on, never above the log's end."""


class Checkpoints(Protocol):
    """`LogManager`."""

    def cutting(self, log: LocalLog, offset: int) -> AbstractAsyncContextManager[bool]: ...

    async def flush(self, log: LocalLog) -> None: ...


class FollowedLog:
    """`replication.fetcher.Replica` over a partition of this node."""

    __slots__ = ("_checkpoints", "_log", "_partition")

    def __init__(self, partition: Following, checkpoints: Checkpoints) -> None:
        self._partition = partition
        self._log = partition.log
        self._checkpoints = checkpoints

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
    def may_lack(self) -> bool:
        return self._log.state.cleaned_offset >= 0

    def end_offset_of_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """Also where its files failed: what is then done to it finds that out."""
        return self._log.epochs.end_offset_for(leader_epoch, self._log.log_end_offset)

    def append(self, data: memoryview, headers: Sequence[BatchHeader]) -> None:
        self._log.append_fetched(data, headers)

    @property
    def flushes_each(self) -> bool:
        return self._log.config.flush_messages == 1

    async def flush(self) -> None:
        """The next fetch tells the leader that we have it: by then it is on the device, as on the leader's
        own before it is acknowledged. And recovery takes a log of ``flush.messages=1`` for damaged where a
        batch is missing in front of a sound one."""
        if self._log.flush_due:
            await self._checkpoints.flush(self._log)

    async def truncate(self, offset: int, is_wanted: Callable[[], bool]) -> bool:
        least = self._log.end_after(offset)
        return await self._cut(least, lambda: self._log.truncate_to(offset), is_wanted)

    async def restart(self, offset: int, is_wanted: Callable[[], bool]) -> bool:
        start = max(offset, self._log.log_start_offset)
        return await self._cut(offset, lambda: self._log.restart_at(offset, start), is_wanted)

    async def _cut(self, least: int, cut: Callable[[], int], is_wanted: Callable[[], bool]) -> bool:
        """`cut` the log, which ends at `least` or later then."""
        mark = self._partition.high_watermark
        async with self._checkpoints.cutting(self._log, least) as is_told:
            if not is_told or not is_wanted():
                return False
            end = cut()
        self._partition.follower_mark(min(mark, end))
        return True

    def follow(self, high_watermark: int, start_offset: int) -> None:
        self._partition.follower_mark(high_watermark)
        if start_offset > self._log.log_start_offset:
            self._log.move_log_start(start_offset)
