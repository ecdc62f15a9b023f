"""Queue of one log's files that wait for deletion, oldest first.

A segment leaves the log in memory at once. Its files stay for ``file.delete.delay.ms``, and until a
checkpoint has made the log's start durable: `file_deletion` takes them from here and unlinks them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from service.hot import names
from service.hot.durability import Durability
from service.hot.reading import LogReader
from service.hot.segment import Segment
from service.hot.state import LogState


class _Deletion(NamedTuple):
    """Files to unlink, in this order, once it is `due_ms`."""

    due_ms: int
    paths: list[Path]


class DeletionQueue:
    """Takes segments out of one log and queues their files. Owned by the loop.

    ``on_queued``: called with the time at which `take_due` returns the files that were just queued.
    """

    __slots__ = ("_deletions", "_durability", "_on_queued", "_reader", "_state")

    def __init__(
        self, state: LogState, durability: Durability, reader: LogReader, on_queued: Callable[[int], None]
    ) -> None:
        self._state = state
        self._durability = durability
        self._reader = reader
        self._on_queued = on_queued
        self._deletions: deque[_Deletion] = deque()

    def remove_segments(self, begin: int, end: int, reason: str) -> None:
        """Take segments ``[begin, end)`` out of the log; their files go after ``file.delete.delay.ms``.

        Readers that hold a file open keep it.
        """
        state, bases = self._state, self._state.segments.bases
        ends = [*bases[begin + 1 : end + 1], state.end_offset]
        gone = state.segments.take_out(begin, end, reason)
        snapshots = state.snapshots.forget(one.base_offset for one in gone)
        paths: list[Path] = []
        for segment, segment_end in zip(gone, ends, strict=False):
            if segment_end > state.recovery_point:
                # A crash may bring the file back: it must be whole then, up to the recovery point.
                self._durability.note(segment.log.path)
            snapshot = snapshots.get(segment.base_offset)
            if snapshot is not None:
                paths.append(snapshot)
            paths += segment.drop()
        self._reader.forget()
        self._add_delayed(paths)

    def add_replaced(self, old: Sequence[Segment]) -> None:
        """Queue the files of segments that compaction replaced; their names end with ``.deleted`` already."""
        paths = list(self._state.snapshots.forget(one.base_offset for one in old[1:]).values())
        for segment in old:
            paths += segment.drop(names.DELETED)
        self._add_delayed(paths)

    def _add_delayed(self, paths: list[Path]) -> None:
        state = self._state
        self.add(paths, state.world.clock.now_ms() + state.config.file_delete_delay_ms)

    def add(self, paths: list[Path], due_ms: int) -> None:
        """Queue `paths` behind the files that wait already."""
        if paths:
            self._deletions.append(_Deletion(due_ms, paths))
            self._on_queued(due_ms)

    def expedite(self, now_ms: int) -> None:
        """Make all files in the queue due now."""
        expedited = [one._replace(due_ms=min(one.due_ms, now_ms)) for one in self._deletions]
        self._deletions = deque(expedited)
        if expedited:
            self._on_queued(now_ms)

    def take_due(self, now_ms: int) -> list[Path]:
        """Remove the files that are due from the queue; the caller unlinks them in this order.

        The log's start must be durable before the first file is unlinked.
        """
        due: list[Path] = []
        while self._deletions and self._deletions[0].due_ms <= now_ms:
            due += self._deletions.popleft().paths
        return due

    def put_back(self, paths: list[Path], due_ms: int) -> None:
        """Queue files of `take_due` that could not be unlinked in front of all others."""
        if paths:
            self._deletions.appendleft(_Deletion(due_ms, paths))

    @property
    def paths(self) -> list[Path]:
        """All files in the queue, in order."""
        return [path for one in self._deletions for path in one.paths]

    def clear(self) -> None:
        """Empty the queue; the caller has taken over the files."""
        self._deletions.clear()
