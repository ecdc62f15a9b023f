"""The offset checkpoints of all log directories: recovery points, and where logs begin."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NamedTuple

from service.base.disk import DiskError
from service.base.files import FsyncFailed
from service.base.threads import Threads
from service.hot.log_dir import LOG_START_OFFSETS, RECOVERY_POINTS, LogDir, Offsets

_log = logging.getLogger(__name__)


class DirOffsets(NamedTuple):
    """What the two checkpoints of one directory are to say."""

    home: LogDir
    recovery_points: Offsets
    log_starts: Offsets


class AllOffsets(NamedTuple):
    """What the checkpoints are to say; ``number`` goes up from one taking to the next."""

    number: int
    homes: list[DirOffsets]


class Checkpoints:
    """Writes the files. From any thread; older offsets never replace newer, a failed directory is left alone.

    ``names``: the (topic, partition) pairs that the files speak of.
    """

    def __init__(self, threads: Threads) -> None:
        self.names: set[tuple[str, int]] = set()
        self._number = -1
        self._lock = threads.lock()

    def write(self, offsets: AllOffsets) -> Mapping[LogDir, Exception]:
        """Make the offsets durable; the directories where that failed, each with its error."""
        failed: dict[LogDir, Exception] = {}
        with self._lock:
            if offsets.number < self._number:
                return {}
            self._number = offsets.number
            for home, points, starts in offsets.homes:
                if home.latch.failure is not None:
                    failed[home] = home.latch.failure
                    continue
                try:
                    home.write_offsets(RECOVERY_POINTS, points)
                    home.write_offsets(LOG_START_OFFSETS, starts)
                except DiskError as e:
                    if isinstance(e, FsyncFailed):
                        home.latch.fail(e)
                    failed[home] = e
                    _log.error("checkpoints of %s: %s", home.path, e)
            self.names = {name for _, points, _ in offsets.homes for name in points}
        return failed
