"""Files of one log from an offset on, for a thread that reads whole batches from them, and its growth.

The list is made on the loop, in one step, and reads nothing. A segment's file stays readable while it is
held, even if the segment is deleted or compacted meanwhile; one that was never opened may be gone by then
(`MissingFile`). Batches below the high watermark of their leader never change while it leads.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from service.base.disk import DiskError
from service.base.errors import CorruptionError
from service.hot.files import SegmentFile
from service.hot.indexes import OffsetIndex
from service.hot.state import LogState
from service.records.walk import find_offset

_log = logging.getLogger(__name__)


class LogRun(NamedTuple):
    """One segment: its file, of which the first `size` bytes are whole batches. `is_held`: the log itself
    holds the file open, as it appends to it."""

    file: SegmentFile
    offsets: OffsetIndex
    base_offset: int
    size: int
    is_held: bool

    @property
    def name(self) -> str:
        """The file's path, for messages."""
        return str(self.file.path)

    def position_of(self, offset: int) -> int:
        """Return the position of the first batch that ends at or behind `offset`, `size` if there is none.
        For any thread.

        The index is a hint: where it is wrong the file is walked from its beginning. Raises
        `CorruptionError`, `DiskError`.
        """
        if not self.size or offset <= self.base_offset:
            return 0
        try:
            position = self.offsets.lookup(offset)[0]
            place = find_offset(self.file.pread, offset, position, self.size, self.name)
            # From an entry too far behind, the first batch found would begin behind `offset`.
            if place is not None and (place.base_offset <= offset or not position):
                return place.position
        except (CorruptionError, DiskError) as e:
            _log.info("searching all of %s for offset %d: %s", self.name, offset, e)
        place = find_offset(self.file.pread, offset, 0, self.size, self.name)
        return self.size if place is None else place.position


class LogRuns:
    """Segments of one log as runs, and what the active one still takes. Owned by the loop; reads no file."""

    __slots__ = ("_state",)

    def __init__(self, state: LogState) -> None:
        self._state = state

    def runs_from(self, offset: int) -> tuple[LogRun, ...]:
        """Return the segments that have `offset` and what follows it, oldest first. Raises `LogOffline`."""
        return self.runs_between(offset, None)

    def runs_between(self, offset: int, last_offset: int | None) -> tuple[LogRun, ...]:
        """Return the segments that have offsets from `offset` to `last_offset` (None: to the log's end),
        oldest first. Raises `LogOffline`."""
        self._state.check()
        segments = self._state.segments
        end = len(segments) if last_offset is None else segments.slot_of(last_offset) + 1
        return tuple(
            LogRun(one.log.peek(), one.indexes.offset, one.base_offset, one.size, one.is_written)
            for one in segments.all[max(segments.slot_of(offset), 0) : end]
        )

    @property
    def bytes_written(self) -> int:
        """Bytes of all segments that there were since the log was opened, less what compaction took."""
        segments = self._state.segments
        return segments.positions[-1] + segments.active.size

    @property
    def cleaned_end(self) -> int:
        """Offset below which the log is compacted; -1 if it never was to be."""
        return self._state.cleaned_offset

    def bytes_from(self, offset: int) -> int:
        """Return about how many bytes lie at `offset` and behind it; within a segment they are taken to be
        even."""
        segments = self._state.segments
        slot = max(segments.slot_of(offset), 0)
        segment, is_last = segments.all[slot], slot + 1 == len(segments)
        end = self._state.end_offset if is_last else segments.bases[slot + 1]
        left, whole = max(end - max(offset, segment.base_offset), 0), max(end - segment.base_offset, 1)
        behind = 0 if is_last else self.bytes_written - segments.positions[slot + 1]
        return segment.size * left // whole + behind

    @property
    def left_bytes(self) -> int:
        """Bytes that the active segment takes until it is full."""
        return self._state.config.segment_bytes - self._state.segments.active.size

    def left_ms(self, now_ms: int) -> int:
        """Return how long the active segment takes batches, by `segment.ms`, if the timestamps of records go
        on with the wall clock (`now_ms`): those there are decide, not the clock (`Segment.must_roll`)."""
        active = self._state.segments.active
        if active.size and active.knows_times and active.first_timestamp >= 0:
            age_ms = active.max_timestamp - active.first_timestamp
        else:
            age_ms = now_ms - active.created_ms
        return self._state.config.effective_segment_ms - max(age_ms, 0)
