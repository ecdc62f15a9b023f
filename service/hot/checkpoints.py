"""The offset checkpoints of all log directories: recovery points, where logs begin and are clean to.

What they are to say is kept as logs change, so a checkpoint looks at those alone that have changed.
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
    """What the checkpoints of one directory are to say."""

    home: LogDir
    recovery_points: Offsets
    log_starts: Offsets
    cleaned: Offsets


class AllOffsets(NamedTuple):
    """What the checkpoints are to say; ``number`` goes up from one taking to the next."""

    number: int
    homes: list[DirOffsets]


class OffsetTable:
    """What the checkpoints are to say. Owned by the loop."""

    def __init__(self) -> None:
        self._said: dict[LogDir, DirOffsets] = {}
        self._changed: dict[LocalLog, LogDir] = {}
        self._most: dict[LocalLog, list[int]] = {}
        """of those that are to be cut, once for each who is about to"""
        self._taken = itertools.count()
        self.is_changed = False
        """whether anything has changed since `take`"""

    def add(self, home: LogDir) -> None:
        """A directory whose checkpoints are to be written."""
        self._said[home] = DirOffsets(home, {}, {}, {})

    def note(self, log: LocalLog, home: LogDir) -> None:
        """The log's offsets may be others than they were."""
        self._changed[log] = home
        self.is_changed = True

    def hold(self, log: LocalLog, home: LogDir, offset: int) -> None:
        """Its recovery point is told as `offset` at most from now on, until `let_go`: it is to be cut. Who
        began that for another leader may not have let go yet."""
        self._most.setdefault(log, []).append(offset)
        self.note(log, home)

    def let_go(self, log: LocalLog, home: LogDir, offset: int) -> None:
        """As it was before `hold`. Of one that has gone meanwhile nothing is told any more."""
        held = self._most.get(log)
        if held is None:
            return
        held.remove(offset)
        if not held:
            del self._most[log]
        self.note(log, home)

    def keep(self, name: Name, home: LogDir, known: tuple[Offsets, Offsets, Offsets]) -> None:
        """Go on saying what was known of a log that could not be opened."""
        self.is_changed = True
        for offsets, before in zip(self._said[home][1:], known, strict=True):
            if name in before:
                offsets[name] = before[name]

    def forget(self, name: Name, home: LogDir, log: LocalLog | None = None) -> None:
        """Nothing of that name is there any more."""
        self.is_changed = True
        if log is not None:
            self._changed.pop(log, None)
            self._most.pop(log, None)
        for offsets in self._said[home][1:]:
            offsets.pop(name, None)

    def take(self) -> AllOffsets:
        """As it is now, for `Checkpoints.write`."""
        for log, home in self._changed.items():
            self._update(log, self._said[home])
        self._changed.clear()
        self.is_changed = False
        copies = [DirOffsets(said[0], *map(dict, said[1:])) for said in self._said.values()]
        return AllOffsets(next(self._taken), copies)

    def take_all(self, logs: Mapping[LocalLog, LogDir]) -> AllOffsets:
        """As `take`, whatever has changed of these unsaid."""
        for log, home in logs.items():
            self.note(log, home)
        return self.take()

    def _update(self, log: LocalLog, said: DirOffsets) -> None:
        """A log's start is told wherever it may not be plain from the files: those before it go later."""
        name = log.tip.topic, log.tip.partition
        point = log.recovery_point
        said.recovery_points[name] = min([point, *self._most.get(log, ())])
        if log.state.cleaned_offset >= 0:
            said.cleaned[name] = log.state.cleaned_offset
        if log.config.remote_storage_enable or log.log_start_offset:
            said.log_starts[name] = log.log_start_offset
        else:
            said.log_starts.pop(name, None)


class Checkpoints:
    """Writes the files. From any thread; older offsets never replace newer, a failed directory is left alone.

    ``names``: the (topic, partition) pairs that the files speak of. ``cleaned``: what the files say of logs
    that were compacted, durably.
    """

    def __init__(self, threads: Threads) -> None:
        self.names: set[Name] = set()
        self._number = -1
        self._failed: Mapping[LogDir, Exception] = {}
        self._told: dict[LogDir, str] = {}
        self._durable_starts: dict[LogDir, Offsets] = {}
        self._durable_points: dict[LogDir, Offsets] = {}
        self.cleaned: dict[LogDir, Offsets] = {}
        self._lock = threads.lock()

    def durable_start(self, name: Name, home: LogDir) -> int:
        """Where the log begins after a crash, as far as this process has written it."""
        return self._durable_starts.get(home, {}).get(name, 0)

    def found(self, home: LogDir, points: Offsets, starts: Offsets, cleaned: Offsets) -> None:
        """What the files of a directory say at the start."""
        self.names |= points.keys() | starts.keys()
        self.cleaned[home] = cleaned
        self._durable_points[home] = points

    def durable_point(self, name: Name, home: LogDir) -> int:
        """Below which offset the file says that all is durable."""
        return self._durable_points.get(home, {}).get(name, 0)

    def write(self, offsets: AllOffsets) -> Mapping[LogDir, Exception]:
        """Make the offsets durable; the directories where that failed, each with its error.

        Where newer ones were written before, it is theirs that failed.
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
                    if self._told.get(home) != str(e):  # it is tried again every second
                        self._told[home] = str(e)
                        _log.error("checkpoints of %s: %s", home.path, e)
                else:
                    self._told.pop(home, None)
                    self._durable_starts[home] = starts
            self.names = {name for _, points, *_ in offsets.homes for name in points}
            self._failed = failed
        return failed


class Rounds:
    """Checkpoints one after the other: who asks while one is under way shares the next. Owned by the loop."""

    def __init__(self, write: Callable[[], Awaitable[Mapping[LogDir, Exception]]]) -> None:
        """`write` looks at the offsets before it gives way for the first time."""
        self._write = write
        self._turn = asyncio.Lock()
        self._next: asyncio.Task[Mapping[LogDir, Exception]] | None = None
        self._tasks: set[asyncio.Task[Mapping[LogDir, Exception]]] = set()

    async def next(self) -> Mapping[LogDir, Exception]:
        """Write what is so now; the directories where that failed. Goes on when nobody waits any more."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._round(), name="checkpoint")
            self._tasks.add(self._next)
            self._next.add_done_callback(self._tasks.discard)
        return await asyncio.shield(self._next)

    async def _round(self) -> Mapping[LogDir, Exception]:
        async with self._turn:
            self._next = None
            return await self._write()

    async def finish(self) -> None:
        """Wait for those that are under way."""
        if self._tasks:
            await asyncio.wait(tuple(self._tasks))


class Cuts:
    """Has the checkpoints tell of what is left of a log, before the rest goes. Owned by the loop."""

    def __init__(
        self,
        table: OffsetTable,
        checkpoints: Checkpoints,
        rounds: Rounds,
        home_of: Callable[[LocalLog], LogDir | None],
    ) -> None:
        self._table = table
        self._checkpoints = checkpoints
        self._rounds = rounds
        self._home_of = home_of

    @asynccontextmanager
    async def cutting(self, log: LocalLog, offset: int) -> AsyncIterator[bool]:
        """Within this the checkpoint says of `log` that `offset` is durable at most, so that it may be cut
        there; False where the disk does not let us say so now. It costs nothing where it said less before.

        `LogOffline` where the log is not here any more.
        """
        home = self._home_of(log)
        if home is None:
            raise LogOffline(f"{log.tip} is not here any more")
        name = log.tip.topic, log.tip.partition
        self._table.hold(log, home, offset)
        try:
            if max(log.recovery_point, self._checkpoints.durable_point(name, home)) > offset:
                await self._rounds.next()
            yield self._checkpoints.durable_point(name, home) <= offset
        finally:
            self._table.let_go(log, home, offset)
