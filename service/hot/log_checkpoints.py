"""Schedule of a node's offset checkpoints: written at intervals, and soon on request."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from service.base.clock import Clock
from service.base.threads import Threads
from service.hot.checkpoints import CheckpointQueue, Checkpoints, OffsetTable, TruncationCheckpoint
from service.hot.log import LocalLog
from service.hot.log_dir import LogDir
from service.hot.log_io import LogIo


class LogCheckpoints:
    """Schedules checkpoints. Owned by the loop; `log-io` threads write the files.

    ``table``: the offsets for the next checkpoint; ``files``: what the files contain.
    """

    def __init__(
        self,
        io: LogIo,
        clock: Clock,
        threads: Threads,
        interval_ms: int,
        home_of: Callable[[LocalLog], LogDir | None],
        check_directories: Callable[[], Collection[LogDir]],
    ) -> None:
        """`check_directories`: take directories whose latch has failed offline; returns all that are."""
        self.table = OffsetTable()
        self.files = Checkpoints(threads)
        self._io = io
        self._clock = clock
        self._interval_ms = interval_ms
        self._due_ms = clock.monotonic_ms() + interval_ms
        self._is_requested = False
        self._check_directories = check_directories
        self._queue = CheckpointQueue(self._write)
        self.write = self._queue.write
        self.finish = self._queue.finish
        self.lower_recovery_point = TruncationCheckpoint(self.table, self.files, self._queue, home_of).lower

    def request(self) -> None:
        """Have the next `write_due` write."""
        self._is_requested = True

    def begin_interval(self) -> None:
        """Wait for the whole interval from now on."""
        self._due_ms = self._clock.monotonic_ms() + self._interval_ms

    async def write_due(self) -> None:
        """Write if it was requested, or if offsets have changed and the interval is over."""
        is_over = self._clock.monotonic_ms() >= self._due_ms
        if self._is_requested or (is_over and self.table.is_changed):
            self.begin_interval()
            await self.write()

    async def _write(self) -> Mapping[LogDir, Exception]:
        self._is_requested = False
        failed = await self._io.run(self.files.write, self.table.snapshot())
        offline = self._check_directories()
        if any(home not in offline for home in failed):
            self._is_requested = True  # retry at the next tick
            self.table.is_changed = True
        return failed
