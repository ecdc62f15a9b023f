"""Files that wait for their removal: segments that left their log, and whole directories.

Owned by the loop; files go on a `log-io` thread, some at a time. Starts move first: no file of a log goes
before a checkpoint says where the log begins now. Of one log the oldest file goes first, each for good.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple

from service.base.disk import Disk, DiskError, MissingFile
from service.base.files import fsync_dir, remove_file, remove_tree
from service.hot import names
from service.hot.durability import Latch
from service.hot.log import LocalLog
from service.hot.log_io import LogIo

_log = logging.getLogger(__name__)

_AGAIN_MS: Final = 10_000
_EVER_MS: Final = 1 << 62
_GROUP: Final = 16
"""Files that go in one job: each log of a segment costs an fsync."""

Checkpoint = Callable[[], Awaitable[object]]


class Retired(NamedTuple):
    """A log that is not in use any more, and what its directory is to be called."""

    log: LocalLog
    target: Path


class MayGo(Enum):
    """What may happen to the files that a log has let go of."""

    NOW = "now"
    LATER = "later"
    """its start is not durable"""
    NEVER = "never"
    """the log is not here any more: its directory goes as a whole, and another may bear its name"""


class Removals:
    """What goes when."""

    def __init__(self, io: LogIo, disk: Disk) -> None:
        self._io = io
        self._disk = disk
        # A heap: nothing is ever taken back, and by the wall clock, which a wheel could not follow back.
        self._due: list[tuple[int, int, LocalLog | Path]] = []
        self._numbers = itertools.count()
        self._under_way: tuple[LocalLog | None, asyncio.Future[int] | None] = (None, None)

    def doom(self, what: LocalLog | Path, due_ms: int) -> None:
        """From `due_ms` on a directory may go, or what a log has let go of by then."""
        heapq.heappush(self._due, (due_ms, next(self._numbers), what))

    def is_due(self, now_ms: int) -> bool:
        """Whether `remove_due` would do anything."""
        return bool(self._due) and self._due[0][0] <= now_ms

    async def remove_due(
        self, now_ms: int, checkpoint: Checkpoint, may_go: Callable[[LocalLog], MayGo]
    ) -> None:
        """Remove what has waited long enough. `checkpoint` makes starts durable; then `may_go` is asked."""
        logs: dict[LocalLog, None] = {}
        directories: list[Path] = []
        while self.is_due(now_ms):
            what = heapq.heappop(self._due)[2]
            if isinstance(what, LocalLog):
                logs[what] = None
            else:
                directories.append(what)
        if logs:
            await checkpoint()
        for log in logs:
            if may_go(log) is MayGo.LATER:
                self.doom(log, now_ms)
            else:
                await self._remove_of(log, now_ms, may_go)
        for first in range(0, len(directories), _GROUP):
            await self._io.run(remove, self._disk, directories[first : first + _GROUP])

    async def _remove_of(self, log: LocalLog, now_ms: int, may_go: Callable[[LocalLog], MayGo]) -> None:
        paths = log.take_removals(now_ms)
        for first in range(0, len(paths), _GROUP):
            if may_go(log) is MayGo.NEVER:
                return
            group = paths[first : first + _GROUP]
            job = self._io.run(remove_in_order, self._disk, group, log.latch)
            self._under_way = log, job
            try:
                removed = await asyncio.shield(job)
            except asyncio.CancelledError:
                log.put_back_removals(paths[first:], now_ms)  # what has gone already does no harm
                raise
            if removed < len(group):
                if may_go(log) is not MayGo.NEVER:
                    again_ms = now_ms + _AGAIN_MS
                    log.put_back_removals(paths[first + removed :], again_ms)
                    self.doom(log, again_ms)
                return

    async def remove_rest(self, logs: Collection[LocalLog]) -> None:
        """Remove what is left of these logs, whose starts are durable, before its time: the process ends.

        What stays is there again at the next start.
        """
        await self.let_be(logs)
        rest = [(paths, log.latch) for log in logs if (paths := log.take_removals(_EVER_MS))]
        await self._io.run_all(lambda group: [remove_in_order(self._disk, *one) for one in group], rest)

    async def let_be(self, logs: Collection[LocalLog]) -> None:
        """Wait until none of the files of `logs`, for which `may_go` says never now, is being removed."""
        log, job = self._under_way
        if job is not None and not job.done() and log in logs:
            await asyncio.wait([job])


def rename_all(disk: Disk, retired: Sequence[Retired]) -> list[Path | DiskError]:
    """Rename directories; where each is now, or why it is not. Blocks."""
    found: list[Path | DiskError] = []
    for log, target in retired:
        try:
            disk.rename(log.dir, target)
        except DiskError as e:
            found.append(e)
        else:
            found.append(target)
    return found


def remove(disk: Disk, paths: Collection[Path]) -> None:
    """Remove files and directories that nobody needs. Blocks.

    What stays is tried again at the next start.
    """
    for path in paths:
        try:
            if disk.stat(path).is_dir:
                remove_tree(disk, path)
            else:
                remove_file(disk, path)
        except MissingFile:
            continue
        except DiskError as e:
            _log.warning("%s stays: %s", path, e)


def remove_in_order(disk: Disk, paths: Sequence[Path], latch: Latch) -> int:
    """Remove files of one log up to the first that stays; how many went. Blocks.

    Nothing goes before what stays: segments that are there must meet. A failed fsync latches the directory
    of the log (`latch`): whether a removal is durable is not known then, so no later one may be.
    """
    for number, path in enumerate(paths):
        try:
            remove_file(disk, path)
            if path.suffix == names.LOG:
                # One segment after the other, for good: no crash leaves a hole between those that stay.
                fsync_dir(disk, path.parent)
        except MissingFile:
            continue
        except DiskError as e:
            latch.note(e)
            _log.warning("%s stays: %s", path, e)
            return number
    return len(paths)
