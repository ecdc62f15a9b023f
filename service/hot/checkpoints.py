"""The offset checkpoints of all log directories: recovery points, where logs begin and are clean to.

What they are to say is kept as logs change, so a checkpoint looks at those alone that have changed.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from service.base.disk import DiskError
from service.base.files import FsyncFailed
from service.base.threads import Threads
from service.hot.log import LocalLog
from service.hot.log_dir import CLEANER_OFFSETS, LOG_START_OFFSETS, RECOVERY_POINTS, LogDir, Offsets

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

    @staticmethod
    def _update(log: LocalLog, said: DirOffsets) -> None:
        """A log's start is told wherever it may not be plain from the files: those before it go later."""
        name = log.tip.topic, log.tip.partition
        said.recovery_points[name] = log.recovery_point
        if log.state.cleaned_offset >= 0:
            said.cleaned[name] = log.state.cleaned_offset
        if log.config.remote_storage_enable or log.log_start_offset:
            said.log_starts[name] = log.log_start_offset
        else:
            said.log_starts.pop(name, None)


def mark_clean(homes: Iterable[LogDir], not_clean: Collection[LogDir | None], broker_epoch: int) -> None:
    """Write the markers of a clean shutdown, but for the directories that are `not_clean`."""
    for home in homes:
        if home in not_clean:
            _log.warning("%s is not marked clean: its logs are looked through at the next start", home.path)
            continue
        try:
            home.write_clean_marker(broker_epoch)
        except DiskError as e:
            _log.error("%s is not marked clean: %s", home.path, e)


class Checkpoints:
    """Writes the files. From any thread; older offsets never replace newer, a failed directory is left alone.

    ``names``: the (topic, partition) pairs that the files speak of. ``cleaned``: what the files say of logs
    that were compacted, durably.
    """

    def __init__(self, threads: Threads) -> None:
        self.names: set[Name] = set()
        self._number = -1
        self.cleaned: dict[LogDir, Offsets] = {}
        self._lock = threads.lock()

    def write(self, offsets: AllOffsets) -> Mapping[LogDir, Exception]:
        """Make the offsets durable; the directories where that failed, each with its error."""
        failed: dict[LogDir, Exception] = {}
        with self._lock:
            if offsets.number < self._number:
                return {}
            self._number = offsets.number
            for home, points, starts, cleaned in offsets.homes:
                if home.latch.failure is not None:
                    failed[home] = home.latch.failure
                    continue
                try:
                    home.write_offsets(RECOVERY_POINTS, points)
                    home.write_offsets(LOG_START_OFFSETS, starts)
                    if cleaned != self.cleaned.get(home, {}):  # most nodes have none
                        home.write_offsets(CLEANER_OFFSETS, cleaned)
                        self.cleaned[home] = cleaned
                except DiskError as e:
                    if isinstance(e, FsyncFailed):
                        home.latch.fail(e)
                    failed[home] = e
                    _log.error("checkpoints of %s: %s", home.path, e)
            self.names = {name for _, points, *_ in offsets.homes for name in points}
        return failed
