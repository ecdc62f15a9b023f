"""The segments of one log in order (Kafka `LogSegments`)."""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from service.hot.segment import Segment

_log = logging.getLogger(__name__)


class Segments:
    """At least one segment, ascending by base offset; the last one is written to.

    Owned by the loop. ``bases``: their base offsets. ``size``: bytes of the sealed ones and of the active
    one, kept by whoever appends.
    """

    __slots__ = ("active", "all", "bases", "size")

    def __init__(self, segments: list[Segment]) -> None:
        self.all = segments
        self.bases = [segment.base_offset for segment in segments]
        self.active = segments[-1]
        self.size = sum(segment.size for segment in segments)

    def __len__(self) -> int:
        return len(self.all)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self.all)

    def slot_of(self, offset: int) -> int:
        """Index of the segment whose range `offset` lies in; -1 below the first."""
        return bisect_right(self.bases, offset) - 1

    def whole_below(self, offset: int) -> int:
        """How many of the oldest segments hold nothing at or above `offset`, the active one not counted."""
        return bisect_right(self.bases, offset, lo=1) - 1

    def between(self, start: int, end: int) -> list[Segment]:
        """Segments that hold offsets in ``[start, end)``. Safe from any thread."""
        segments = self.all[:]
        following = [segment.base_offset for segment in segments[1:]]
        return [
            segment
            for segment, after in zip(segments, [*following, end + 1], strict=True)
            if start < end and segment.base_offset < end and after > start
        ]

    def before(self, offset: int) -> Segment | None:
        """The sealed segment behind which another one begins at `offset`. Safe from any thread."""
        segments = self.all[:]
        slot = bisect_left(segments, offset, key=lambda segment: segment.base_offset)
        is_there = 0 < slot < len(segments) and segments[slot].base_offset == offset
        return segments[slot - 1] if is_there else None

    def add(self, segment: Segment) -> None:
        """`segment` is the active one from now on."""
        segment.become_active()
        self.all.append(segment)
        self.bases.append(segment.base_offset)
        self.active = segment

    def take_out(self, begin: int, end: int, reason: str) -> list[Segment]:
        """Segments leave the log; the caller sees to their files.

        With the last ones the active one goes: the caller names another at once.
        """
        gone = self.all[begin:end]
        del self.all[begin:end], self.bases[begin:end]
        for segment in gone:
            _log.info("deleting %s (%d bytes): %s", segment.log.path, segment.size, reason)
            self.size -= segment.size
        return gone
