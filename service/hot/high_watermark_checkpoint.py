"""High watermarks from one start to the next: ``replication-offset-checkpoint`` of each log directory.

They are told by whoever knows them, and written where one has changed. What the files say at a start may be
older than it was: a replica begins with less then, and hears the rest from its leader. It must never be
another topic's: so a name is out of the file before a log of that name is made.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from service.base.clock import Clock
from service.base.disk import DiskError
from service.base.types import TopicIdPartition
from service.hot.checkpoints import Name, Rounds
from service.hot.log_dir import HIGH_WATERMARKS, LogDir, Offsets
from service.hot.log_io import LogIo

_log = logging.getLogger(__name__)

TellMarks = Callable[[], Iterable[tuple[TopicIdPartition, int]]]


class Marks:
    """The files of all log directories. Owned by the loop; what touches the disk runs on `log-io` threads."""

    def __init__(
        self, io: LogIo, clock: Clock, interval_ms: int, home_of: Callable[[TopicIdPartition], LogDir | None]
    ) -> None:
        """`home_of`: where a log is that is here."""
        self._io = io
        self._clock = clock
        self._interval_ms = interval_ms
        self._due_ms = clock.monotonic_ms() + interval_ms
        self._home_of = home_of
        self._tell: TellMarks = tuple
        self._said: dict[LogDir, Offsets] = {}
        self._changed: dict[LogDir, None] = {}
        self._written: dict[LogDir, frozenset[Name]] = {}
        """whom the files speak of"""
        self._told: dict[LogDir, str] = {}
        self._rounds = Rounds(self._write)

    def keep(self, tell: TellMarks) -> None:
        """Write what `tell` says from now on: the high watermarks that are not as it said last."""
        self._tell = tell

    def get(self, tip: TopicIdPartition) -> int | None:
        """As it was told last, or as the file said at the start; None where nothing is known."""
        home = self._home_of(tip)
        return None if home is None else self._said.get(home, {}).get((tip.topic, tip.partition))

    def found(self, home: LogDir, marks: Mapping[Name, int], here: Iterable[Name]) -> None:
        """What the file of a directory says at the start, and which logs are in it."""
        self._written[home] = frozenset(marks)
        self._said[home] = {name: marks[name] for name in here if name in marks}
        if len(self._said[home]) < len(marks):
            self._changed[home] = None

    def forget(self, name: Name, home: LogDir) -> None:
        """No log of that name is there any more."""
        if self._said.get(home, {}).pop(name, None) is not None:
            self._changed[home] = None

    def knows(self, name: Name) -> bool:
        """Whether any file speaks of it."""
        return any(name in names for names in self._written.values())

    async def write_due(self) -> None:
        """Write what has changed, if it is time."""
        if self._clock.monotonic_ms() >= self._due_ms:
            self._due_ms = self._clock.monotonic_ms() + self._interval_ms
            await self.write_changed()

    async def write_changed(self) -> None:
        """Have them told, and write what has changed."""
        for tip, mark in self._tell():
            home = self._home_of(tip)
            if home is None:
                continue
            said, name = self._said.setdefault(home, {}), (tip.topic, tip.partition)
            if said.get(name) != mark:
                said[name] = mark
                self._changed[home] = None
        if self._changed:
            await self.write()

    async def finish(self) -> None:
        """Wait for what is under way."""
        await self._rounds.finish()

    async def write(self) -> Mapping[LogDir, Exception]:
        """Write the files that are to say something else; the directories where that failed."""
        return await self._rounds.next()

    async def _write(self) -> Mapping[LogDir, Exception]:
        changed = {home: self._said[home].copy() for home in self._changed}
        self._changed.clear()
        for home, marks in changed.items():  # while it is not known which of both the file says
            self._written[home] = frozenset(marks) | self._written.get(home, frozenset())
        failed = await self._io.run(_write_files, changed)
        for home, marks in changed.items():
            error = failed.get(home)
            if error is None:
                self._written[home] = frozenset(marks)
                self._told.pop(home, None)
                continue
            self._changed[home] = None
            if self._told.get(home) != str(error):  # it is tried again and again
                self._told[home] = str(error)
                _log.error("high watermarks of %s: %s", home.path, error)
        return failed


def _write_files(changed: Mapping[LogDir, Offsets]) -> dict[LogDir, Exception]:
    failed: dict[LogDir, Exception] = {}
    for home, marks in changed.items():
        if home.latch.failure is not None:
            failed[home] = home.latch.failure
            continue
        try:
            home.write_offsets(HIGH_WATERMARKS, marks)
        except DiskError as e:
            home.latch.note(e)
            failed[home] = e
    return failed
