"""High watermarks across restarts: ``replication-offset-checkpoint`` of each log directory.

Partitions supply them, and files whose content has changed are written. A file may be older than the last
high watermark: a replica begins with the lower one then, and its leader sends the current one. It must never
be another topic's: so a name is removed from the file before a new log of that name is made. A
partition without other replicas is not in the file: its high watermark is its log's end, whatever was
written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from service.base.clock import Clock
from service.base.disk import DiskError
from service.base.types import TopicIdPartition
from service.hot.checkpoints import CheckpointQueue, Name
from service.hot.log_dir import HIGH_WATERMARKS, LogDir, Offsets
from service.hot.log_io import LogIo

_log = logging.getLogger(__name__)

HighWatermarks = Callable[[], Iterable[tuple[TopicIdPartition, int | None]]]
"""high watermarks that have changed; None where there is no other replica"""


class HighWatermarkCheckpoint:
    """The files of all log directories. Owned by the loop; `log-io` threads do what touches the disk."""

    def __init__(
        self, io: LogIo, clock: Clock, interval_ms: int, home_of: Callable[[TopicIdPartition], LogDir | None]
    ) -> None:
        """`home_of`: the log directory of a partition, None if it has no log here."""
        self._io = io
        self._clock = clock
        self._interval_ms = interval_ms
        self._due_ms = clock.monotonic_ms() + interval_ms
        self._home_of = home_of
        self._source: HighWatermarks = tuple
        self._offsets: dict[LogDir, Offsets] = {}
        self._changed: dict[LogDir, None] = {}
        self._written: dict[LogDir, frozenset[Name]] = {}
        """names that may be in the file"""
        self._logged: dict[LogDir, str] = {}
        self._queue = CheckpointQueue(self._write)

    def follow(self, source: HighWatermarks) -> None:
        """Write the high watermarks that `source` returns from now on, if they have changed."""
        self._source = source

    def get(self, tip: TopicIdPartition) -> int | None:
        """Return the last one from the source, or the file's at the start; None if neither is known."""
        home = self._home_of(tip)
        return None if home is None else self._offsets.get(home, {}).get((tip.topic, tip.partition))

    def loaded(self, home: LogDir, offsets: Mapping[Name, int], logs: Iterable[Name]) -> None:
        """Take over a directory's file, as read at the start, for the `logs` that are in the directory."""
        self._written[home] = frozenset(offsets)
        self._offsets[home] = {name: offsets[name] for name in logs if name in offsets}
        if len(self._offsets[home]) < len(offsets):
            self._changed[home] = None

    def forget(self, name: Name, home: LogDir) -> None:
        """Remove a log that is no longer in the directory."""
        if self._offsets.get(home, {}).pop(name, None) is not None:
            self._changed[home] = None

    def may_contain(self, name: Name) -> bool:
        """Return whether `name` may be in any of the files."""
        return any(name in names for names in self._written.values())

    async def write_due(self) -> None:
        """Write what has changed, if the interval is over."""
        if self._clock.monotonic_ms() >= self._due_ms:
            self._due_ms = self._clock.monotonic_ms() + self._interval_ms
            await self.write_changed()

    async def write_changed(self) -> None:
        """Ask the source, and write what has changed."""
        for tip, high_watermark in self._source():
            home = self._home_of(tip)
            if home is None:
                continue
            offsets, name = self._offsets.setdefault(home, {}), (tip.topic, tip.partition)
            if offsets.get(name) != high_watermark:
                self._changed[home] = None
                if high_watermark is None:
                    del offsets[name]
                else:
                    offsets[name] = high_watermark
        if self._changed:
            await self.write()

    async def finish(self) -> None:
        """Wait for writes that are under way."""
        await self._queue.finish()

    async def write(self) -> Mapping[LogDir, Exception]:
        """Write the files that have changed; returns the directories that failed."""
        return await self._queue.write()

    async def _write(self) -> Mapping[LogDir, Exception]:
        changed = {home: self._offsets[home].copy() for home in self._changed}
        self._changed.clear()
        for home, offsets in changed.items():  # until the write ends, the file may have either content
            self._written[home] = frozenset(offsets) | self._written.get(home, frozenset())
        failed = await self._io.run(_write_files, changed)
        for home, offsets in changed.items():
            error = failed.get(home)
            if error is None:
                self._written[home] = frozenset(offsets)
                self._logged.pop(home, None)
                continue
            self._changed[home] = None
            if self._logged.get(home) != str(error):  # once, though it is retried again and again
                self._logged[home] = str(error)
                _log.error("high watermarks of %s: %s", home.path, error)
        return failed


def _write_files(changed: Mapping[LogDir, Offsets]) -> dict[LogDir, Exception]:
    failed: dict[LogDir, Exception] = {}
    for home, offsets in changed.items():
        if home.latch.failure is not None:
            failed[home] = home.latch.failure
            continue
        try:
            home.write_offsets(HIGH_WATERMARKS, offsets)
        except DiskError as e:
            home.latch.note(e)
            failed[home] = e
    return failed
