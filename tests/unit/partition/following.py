"""Partitions that follow, without the rest of a node."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from service.hot.log import LocalLog
from service.hot.log_io import LogIo
from service.records.scan import BatchScan

T = TypeVar("T")


class Standing:
    """A follower's view of a partition."""

    def __init__(self, log: LocalLog, high_watermark: int = 0) -> None:
        self.log = log
        self.high_watermark = high_watermark

    def set_follower_high_watermark(self, high_watermark: int) -> None:
        self.high_watermark = min(max(high_watermark, self.log.log_start_offset), self.log.log_end_offset)


class NoFiles:
    """Checkpoints of logs that no process opens again."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.says_so = True
        self.flushed: list[int] = []
        self.io: LogIo | None = None
        """whose threads write what is behind; nobody's where there is none"""

    async def append_on_thread(self, log: LocalLog, data: memoryview, run: BatchScan) -> bool:
        if self.io is not None:
            return await log.appender.append_on_thread(self.io, data, run)
        log.appender.append_fetched(data, run)
        return True

    async def flush(self, log: LocalLog) -> None:
        self.flushed.append(log.log_end_offset)

    @asynccontextmanager
    async def lower_recovery_point(self, log: LocalLog, offset: int) -> AsyncIterator[bool]:
        self.asked.append(offset)
        yield self.says_so

    async def on_thread(self, job: Callable[..., T], *args: object) -> T:
        return job(*args)
