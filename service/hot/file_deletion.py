"""Deletion of files: those in the logs' deletion queues, and whole directories.

Owned by the loop; a `log-io` thread unlinks a few files at a time. A log's files are unlinked only once a
checkpoint contains the log's start, the oldest first, each durably.
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
from service.hot.fsync_failure import Latch
from service.hot.log import LocalLog
from service.hot.log_io import LogIo

_log = logging.getLogger(__name__)

_RETRY_MS: Final = 10_000
_EVER_MS: Final = 1 << 62
_GROUP: Final = 16
"""Files that one job unlinks: each log of a segment costs an fsync."""

Checkpoint = Callable[[], Awaitable[object]]


class RetiredLog(NamedTuple):
    """A log that is not in use any more, and the new path of its directory."""

    log: LocalLog
    target: Path


class Permission(Enum):
    """Permission to unlink the files in a log's deletion queue."""

    NOW = "now"
    LATER = "later"
    """the log's start is not durable yet"""
    NEVER = "never"
    """the log is not in use any more: its directory is deleted as a whole, and a new log may have its name"""


class FileDeletion:
    """Schedules deletions and runs them."""

    def __init__(self, io: LogIo, disk: Disk) -> None:
        self._io = io
        self._disk = disk
        # A heap: no entry is ever cancelled, and the wall clock may go back, which a timing wheel cannot.
        self._due: list[tuple[int, int, LocalLog | Path]] = []
        self._numbers = itertools.count()
        self._task: asyncio.Task[None] | None = None
        self._under_way: tuple[LocalLog | None, asyncio.Future[int] | None] = (None, None)

    def schedule(self, target: LocalLog | Path, due_ms: int) -> None:
        """Delete a directory at `due_ms`, or the files in a log's deletion queue that are due by then."""
        heapq.heappush(self._due, (due_ms, next(self._numbers), target))

    def is_due(self, now_ms: int) -> bool:
        """Return whether `delete_due` has something to do."""
        return bool(self._due) and self._due[0][0] <= now_ms

    def start_due(
        self, now_ms: int, checkpoint: Checkpoint, permission: Callable[[LocalLog], Permission]
    ) -> None:
        """Run `delete_due` in a task, unless one is running: deleting a thousand partitions takes long."""
        if self._task is not None and self._task.done():
            self._task.result()
            self._task = None
        if self._task is None and self.is_due(now_ms):
            deletion = self.delete_due(now_ms, checkpoint, permission)
            self._task = asyncio.get_running_loop().create_task(deletion, name="log-removal")

    def cancel(self) -> None:
        """Cancel the task that is running."""
        if self._task is not None:
            self._task.cancel()

    async def delete_due(
        self, now_ms: int, checkpoint: Checkpoint, permission: Callable[[LocalLog], Permission]
    ) -> None:
        """Delete what is due. `checkpoint` makes log starts durable; then `permission` is called for each
        log."""
        logs: dict[LocalLog, None] = {}
        directories: list[Path] = []
        while self.is_due(now_ms):
            target = heapq.heappop(self._due)[2]
            if isinstance(target, LocalLog):
                logs[target] = None
            else:
                directories.append(target)
        if logs:
            await checkpoint()
        for log in logs:
            if permission(log) is Permission.LATER:
                self.schedule(log, now_ms)
            else:
                await self._delete_of(log, now_ms, permission)
        for first in range(0, len(directories), _GROUP):
            await self._io.run(delete, self._disk, directories[first : first + _GROUP])

    async def _delete_of(
        self, log: LocalLog, now_ms: int, permission: Callable[[LocalLog], Permission]
    ) -> None:
        paths = log.deletion_queue.take_due(now_ms)
        for first in range(0, len(paths), _GROUP):
            if permission(log) is Permission.NEVER:
                return
            group = paths[first : first + _GROUP]
            job = self._io.run(delete_in_order, self._disk, group, log.latch)
            self._under_way = log, job
            try:
                deleted = await asyncio.shield(job)
            except asyncio.CancelledError:
                log.deletion_queue.put_back(paths[first:], now_ms)  # files that are gone already do no harm
                raise
            if deleted < len(group):
                if permission(log) is not Permission.NEVER:
                    retry_ms = now_ms + _RETRY_MS
                    log.deletion_queue.put_back(paths[first + deleted :], retry_ms)
                    self.schedule(log, retry_ms)
                return

    async def delete_rest(self, logs: Collection[LocalLog]) -> None:
        """Delete all queued files of these logs, whose starts are durable, early: the process ends.

        The next start finds files that stay.
        """
        await self.wait_for(logs)
        rest = [(paths, log.latch) for log in logs if (paths := log.deletion_queue.take_due(_EVER_MS))]
        await self._io.run_all(lambda group: [delete_in_order(self._disk, *one) for one in group], rest)

    async def wait_for(self, logs: Collection[LocalLog]) -> None:
        """Wait until no file of `logs`, for which `permission` returns NEVER now, is being unlinked."""
        log, job = self._under_way
        if job is not None and not job.done() and log in logs:
            await asyncio.wait([job])


def rename_all(disk: Disk, retired: Sequence[RetiredLog]) -> list[Path | DiskError]:
    """Rename the logs' directories; returns the new path of each, or its error. Blocks."""
    found: list[Path | DiskError] = []
    for log, target in retired:
        try:
            disk.rename(log.dir, target)
        except DiskError as e:
            found.append(e)
        else:
            found.append(target)
    return found


def delete(disk: Disk, paths: Collection[Path]) -> None:
    """Delete files and directories. Blocks.

    The next start retries those that stay.
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
            _log.warning("cannot delete %s: %s", path, e)


def delete_in_order(disk: Disk, paths: Sequence[Path], latch: Latch) -> int:
    """Unlink files of one log up to the first failure; returns how many were unlinked. Blocks.

    A file is unlinked only after those before it: segments that remain must be contiguous. A failed fsync
    latches the log's directory (`latch`): it is unknown then whether the deletion is durable, so no later
    one may follow.
    """
    for number, path in enumerate(paths):
        try:
            remove_file(disk, path)
            if path.suffix == names.LOG:
                # One segment after the other, durably: no crash leaves a hole between those that remain.
                fsync_dir(disk, path.parent)
        except MissingFile:
            continue
        except DiskError as e:
            latch.note(e)
            _log.warning("cannot delete %s: %s", path, e)
            return number
    return len(paths)
