"""The segments of one log in order (Kafka `LogSegments`)."""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

from service.base.steps import Steps
from service.hot.segment import Segment
from service.hot.txn_index import TxnIndex
from service.records.txn_rows import PAIR

_log = logging.getLogger(__name__)


class Segments:
    """Segments of a log: at least one, ascending by base offset; the last one is active.

    Owned by the loop. ``bases``: their base offsets. ``positions``: bytes of all before each of them, counted
    from anywhere. ``size``: bytes of the sealed ones and of the active one, kept by whoever appends.
    ``indexed``: those with rows of aborted transactions; a log without transactions has none.
    """

    __slots__ = ("active", "all", "bases", "indexed", "positions", "size")

    def __init__(self, segments: list[Segment]) -> None:
        self.all = segments
        self.bases = [segment.base_offset for segment in segments]
        self.positions = [0, *accumulate(segment.size for segment in segments[:-1])]
        self.active = segments[-1]
        self.size = sum(segment.size for segment in segments)
        self.note_rows()

    def __len__(self) -> int:
        return len(self.all)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self.all)

    def slot_of(self, offset: int) -> int:
        """Return the index of the segment whose range contains `offset`; -1 below the first."""
        return bisect_right(self.bases, offset) - 1

    def whole_below(self, offset: int) -> int:
        """Count the oldest segments with nothing at or above `offset`, without the active one."""
        return bisect_right(self.bases, offset, lo=1) - 1

    def between(self, start: int, end: int) -> list[Segment]:
        """Return the segments with offsets in ``[start, end)``. Safe from any thread."""
        segments = self.all[:]
        following = [segment.base_offset for segment in segments[1:]]
        return [
            segment
            for segment, after in zip(segments, [*following, end + 1], strict=True)
            if start < end and segment.base_offset < end and after > start
        ]

    def note_rows(self) -> None:
        """Note which segments have rows of aborted transactions, after one got its first or lost its last."""
        self.indexed = [segment for segment in self.all if segment.txn_index]

    def has_rows_from(self, offset: int) -> bool:
        """Return whether there are aborted transactions that may end at `offset` or behind it."""
        indexed = self.indexed
        return bool(indexed) and indexed[-1].base_offset >= self.bases[max(self.slot_of(offset), 0)]

    def aborted_from(self, fetch_offset: int, upper_bound: int, part: slice = PAIR) -> Steps[list[bytes]]:
        """Look up the aborted transactions that overlap ``[fetch_offset, upper_bound)``, by their markers, in
        steps: `part` of the row of each. `DiskError`."""
        found: list[bytes] = []
        for index in self._indexes_from(fetch_offset):
            if (yield from index.find(fetch_offset, upper_bound, part, found)):
                break
        return found

    def offset_behind_aborted(self, fetch_offset: int, count: int) -> int | None:
        """Return the offset behind the marker of about so many aborted transactions that end at
        `fetch_offset` or behind it; None if there are fewer."""
        for index in self._indexes_from(fetch_offset):
            if (offset := index.offset_behind(fetch_offset, count)) is not None:
                return offset
            count -= index.count_from(fetch_offset)
        return None

    def _indexes_from(self, offset: int) -> Iterator[TxnIndex]:
        """Yield the indexes with rows of the segment that has `offset`, and of those behind it."""
        first = self.bases[max(self.slot_of(offset), 0)]
        for segment in self.indexed[bisect_left(self.indexed, first, key=_base_offset) :]:
            if segment.txn_index is not None:
                yield segment.txn_index

    def add(self, segment: Segment) -> None:
        """Append `segment`, which becomes the active one."""
        segment.become_active()
        self.positions.append(self.positions[-1] + self.all[-1].size if self.all else 0)
        self.all.append(segment)
        self.bases.append(segment.base_offset)
        self.active = segment

    def replace(self, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        """Replace `old` segments, which are contiguous and sealed, by `new` ones."""
        first = self.slot_of(old[0].base_offset)
        end = first + len(old)
        grown = sum(segment.size for segment in new) - sum(segment.size for segment in old)
        begins = self.positions[first]
        between = list(accumulate((segment.size for segment in new[:-1]), initial=begins))
        self.positions[first:] = [*between, *(position + grown for position in self.positions[end:])]
        self.all[first:end] = new
        self.bases[first:end] = [segment.base_offset for segment in new]
        self.size += grown
        if self.indexed or any(segment.txn_index for segment in new):
            self.note_rows()

    def take_out(self, begin: int, end: int, reason: str) -> list[Segment]:
        """Remove segments ``[begin, end)`` and return them; the caller deletes their files.

        If the active one is among them, the caller sets another one at once.
        """
        del self.positions[begin:end]
        gone = self.all[begin:end]
        del self.all[begin:end], self.bases[begin:end]
        if self.indexed:
            self.note_rows()
        size = sum(segment.size for segment in gone)
        self.size -= size
        if gone:
            first, last = gone[0].log.path, gone[-1].log.path.name
            _log.info("deleting %d segments, %d bytes, %s to %s: %s", len(gone), size, first, last, reason)
        return gone


def _base_offset(segment: Segment) -> int:
    return segment.base_offset
