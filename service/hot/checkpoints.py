"""The offset checkpoints of all log directories: recovery points, log starts, ends of compacted parts.

A table of offsets is updated as logs change, so a checkpoint reads only the logs that have changed.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple

from service.base.disk import DiskError
from service.base.threads import Threads
from service.hot.log import LocalLog
from service.hot.log_dir import CLEANER_OFFSETS, LOG_START_OFFSETS, RECOVERY_POINTS, LogDir, Offsets
from service.hot.state import LogOffline

_log = logging.getLogger(__name__)


Name = tuple[str, int]
"""(topic, partition)"""


class DirOffsets(NamedTuple):
    """Contents of one directory's checkpoints."""

    home: LogDir
    recovery_points: Offsets
    log_starts: Offsets
    cleaned: Offsets


class AllOffsets(NamedTuple):
    """Contents of all checkpoints; ``number`` increases with each snapshot."""

    number: int
    homes: list[DirOffsets]


class OffsetTable:
    """The offsets for the next checkpoint. Owned by the loop."""

    def __init__(self) -> None:
        self._offsets: dict[LogDir, DirOffsets] = {}
        self._changed: dict[LocalLog, LogDir] = {}
        self._caps: dict[LocalLog, list[int]] = {}
        """of logs that are about to be truncated, one for each truncation"""
        self._numbers = itertools.count()
        self.is_changed = False
        """whether anything has changed since `snapshot`"""

    def add(self, home: LogDir) -> None:
        """Add a directory whose checkpoints are to be written."""
        self._offsets[home] = DirOffsets(home, {}, {}, {})

    def note(self, log: LocalLog, home: LogDir) -> None:
        """Note that the log's offsets may have changed."""
        self._changed[log] = home
        self.is_changed = True

    def cap(self, log: LocalLog, home: LogDir, offset: int) -> None:
        """Write a recovery point and a log start of `offset` at most until `uncap`, as the log is to be
        truncated. Caps for earlier leaders may still be in force."""
        self._caps.setdefault(log, []).append(offset)
        self.note(log, home)

    def uncap(self, log: LocalLog, home: LogDir, offset: int) -> None:
        """Undo `cap`. No effect if the log was forgotten meanwhile."""
        caps = self._caps.get(log)
        if caps is None:
            return
        caps.remove(offset)
        if not caps:
            del self._caps[log]
        self.note(log, home)

    def keep(self, name: Name, home: LogDir, known: tuple[Offsets, Offsets, Offsets]) -> None:
        """Continue to write the known offsets of a log that could not be opened."""
        self.is_changed = True
        for offsets, before in zip(self._offsets[home][1:], known, strict=True):
            if name in before:
                offsets[name] = before[name]

    def forget(self, name: Name, home: LogDir, log: LocalLog | None = None) -> None:
        """Remove a log that is no longer in the directory."""
        self.is_changed = True
        if log is not None:
            self._changed.pop(log, None)
            self._caps.pop(log, None)
        for offsets in self._offsets[home][1:]:
            offsets.pop(name, None)

    def snapshot(self) -> AllOffsets:
        """Return a copy of the table for `Checkpoints.write`."""
        for log, home in self._changed.items():
            self._update(log, self._offsets[home])
        self._changed.clear()
        self.is_changed = False
        copies = [DirOffsets(own[0], *map(dict, own[1:])) for own in self._offsets.values()]
        return AllOffsets(next(self._numbers), copies)

    def snapshot_all(self, logs: Mapping[LocalLog, LogDir]) -> AllOffsets:
        """Return a copy of the table, after reading all of these logs again."""
        for log, home in logs.items():
            self.note(log, home)
        return self.snapshot()

    def _update(self, log: LocalLog, offsets: DirOffsets) -> None:
        """Read one log's offsets. A log start is written if the files may begin earlier: they are deleted
        later."""
        name = log.tip.topic, log.tip.partition
        point = log.recovery_point
        caps = self._caps.get(log, ())
        offsets.recovery_points[name] = min([point, *caps])
        if log.state.cleaned_offset >= 0:
            offsets.cleaned[name] = log.state.cleaned_offset
        if log.config.remote_storage_enable or log.log_start_offset:
            offsets.log_starts[name] = min([log.log_start_offset, *caps])
        else:
            offsets.log_starts.pop(name, None)


class Checkpoints:
    """Writes the files, on any thread; older offsets never replace newer ones, and a failed directory is
    skipped.

    ``names``: the (topic, partition) pairs in the files. ``cleaned``: durable offsets of compacted logs.
    """

    def __init__(self, threads: Threads) -> None:
        self.names: set[Name] = set()
        self._number = -1
        self._failed: Mapping[LogDir, Exception] = {}
        self._logged: dict[LogDir, str] = {}
        self._durable_starts: dict[LogDir, Offsets] = {}
        self._durable_points: dict[LogDir, Offsets] = {}
        self.cleaned: dict[LogDir, Offsets] = {}
        self._lock = threads.lock()

    def durable_start(self, name: Name, home: LogDir) -> int:
        """Return the log start that a crash would leave, as written by this process."""
        return self._durable_starts.get(home, {}).get(name, 0)

    def loaded(self, home: LogDir, points: Offsets, starts: Offsets, cleaned: Offsets) -> None:
        """Take over a directory's files, as read at the start."""
        self.names |= points.keys() | starts.keys()
        self.cleaned[home] = cleaned
        self._durable_points[home] = points

    def durable_point(self, name: Name, home: LogDir) -> int:
        """Return the recovery point that is in the file."""
        return self._durable_points.get(home, {}).get(name, 0)

    def write(self, offsets: AllOffsets) -> Mapping[LogDir, Exception]:
        """Make the offsets durable; returns the directories that failed, each with its error.

        If newer offsets were written before, returns the result of that write.
        """
        failed: dict[LogDir, Exception] = {}
        with self._lock:
            if offsets.number < self._number:
                return self._failed
            self._number = offsets.number
            for home, points, starts, cleaned in offsets.homes:
                if home.latch.failure is not None:
                    failed[home] = home.latch.failure
                    continue
                try:
                    home.write_offsets(RECOVERY_POINTS, points)
                    self._durable_points[home] = points
                    home.write_offsets(LOG_START_OFFSETS, starts)
                    if cleaned != self.cleaned.get(home, {}):  # most nodes have none
                        home.write_offsets(CLEANER_OFFSETS, cleaned)
                        self.cleaned[home] = cleaned
                except DiskError as e:
                    home.latch.note(e)
                    failed[home] = e
                    if self._logged.get(home) != str(e):  # once, though it is retried every second
                        self._logged[home] = str(e)
                        _log.error("checkpoints of %s: %s", home.path, e)
                else:
                    self._logged.pop(home, None)
                    self._durable_starts[home] = starts
            self.names = {name for _, points, *_ in offsets.homes for name in points}
            self._failed = failed
        return failed


class CheckpointQueue:
    """Runs checkpoints one after the other: requests during one share the next. Owned by the loop."""

    def __init__(self, write: Callable[[], Awaitable[Mapping[LogDir, Exception]]]) -> None:
        """`write` must read the offsets before its first `await` that suspends."""
        self._write = write
        self._lock = asyncio.Lock()
        self._next: asyncio.Task[Mapping[LogDir, Exception]] | None = None
        self._tasks: set[asyncio.Task[Mapping[LogDir, Exception]]] = set()

    async def write(self) -> Mapping[LogDir, Exception]:
        """Write the current offsets; returns the directories that failed. Continues if the caller is
        cancelled."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._run(), name="checkpoint")
            self._tasks.add(self._next)
            self._next.add_done_callback(self._tasks.discard)
        return await asyncio.shield(self._next)

    async def _run(self) -> Mapping[LogDir, Exception]:
        async with self._lock:
            self._next = None
            return await self._write()

    async def finish(self) -> None:
        """Wait for checkpoints that are under way."""
        if self._tasks:
            await asyncio.wait(tuple(self._tasks))


class TruncationCheckpoint:
    """Lowers the checkpointed offsets of a log before a truncation. Owned by the loop."""

    def __init__(
        self,
        table: OffsetTable,
        checkpoints: Checkpoints,
        queue: CheckpointQueue,
        home_of: Callable[[LocalLog], LogDir | None],
    ) -> None:
        self._table = table
        self._checkpoints = checkpoints
        self._queue = queue
        self._home_of = home_of

    @asynccontextmanager
    async def lower(self, log: LocalLog, offset: int) -> AsyncIterator[bool]:
        """Keep the checkpointed recovery point and start of `log` at `offset` or below within the context, so
        that it may be truncated there. Yields False if the disk refuses now. Writes nothing if both are low
        enough.

        The next opening takes a log that is shorter than its recovery point for damaged, and drops what lies
        below its start. `LogOffline` if the log is not in use any more.
        """
        home = self._home_of(log)
        if home is None:
            raise LogOffline(f"{log.tip} is not here any more")
        name = log.tip.topic, log.tip.partition
        self._table.cap(log, home, offset)
        try:
            is_start_low = log.log_start_offset <= offset
            point = max(log.recovery_point, self._checkpoints.durable_point(name, home))
            if point > offset or not is_start_low:
                is_start_low |= home not in await self._queue.write()
            yield is_start_low and self._checkpoints.durable_point(name, home) <= offset
        finally:
            self._table.uncap(log, home, offset)
        if is_start_low and log.log_start_offset > offset:
            await self._queue.write()  # it was not truncated: what was deleted must not come back
