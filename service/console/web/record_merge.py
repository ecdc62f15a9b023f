"""Records of several partitions in one order, by their times: newest or oldest first. Blocking."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Final

from service.console.web.pages.records import MergedRecords, PlacedRecord
from service.console.web.record_reader import PartitionReader, ReadLimits
from service.records.decode import Record

LEAST_STEP: Final = 4
MOST_STEP: Final = 5_000
"""Most offsets that one step of a partition covers."""
_MOST: Final = 2**62


class PartitionCursor:
    """Position in one partition that goes down from `at` to `start`, or up from `at` to `end`.

    The first record that is wanted is read ahead of its turn. A step that finds nothing is followed by a
    longer one.
    """

    def __init__(
        self, partition: int, reader: PartitionReader, start: int, end: int, at: int, *, is_down: bool
    ) -> None:
        self.partition = partition
        self.reader = reader
        self.start, self.end = start, end
        self.is_down = is_down
        self._at = min(max(at, start), end)
        self._ahead: list[Record] = []
        """read and not taken yet, the next one last"""

    @property
    def position(self) -> int:
        """The offset to go on from: the next one to read, or, going down, the one after it."""
        if self._ahead:
            return self._ahead[-1].offset + (1 if self.is_down else 0)
        return self._at

    @property
    def is_at_end(self) -> bool:
        return not self._ahead and (self._at <= self.start if self.is_down else self._at >= self.end)

    def head(self, step: int, limits: ReadLimits) -> Record | None:
        """Return the next record; None at the end, or if the limits are used up."""
        while not self._ahead and not self.is_at_end and not limits.is_used_up and not self.reader.is_damaged:
            if self.is_down:
                low = max(self._at - step, self.start)
                found, reached = self.reader.read(low, self._at, _MOST, stops_at_problems=False)
                if reached < self._at:  # cut short: what lies behind would be left out
                    return None
                self._at = low
                self._ahead = found
            else:
                high = min(self._at + step, self.end)
                found, self._at = self.reader.read(self._at, high, _MOST, stops_at_problems=False)
                self._ahead = found[::-1]
            step = min(2 * step, MOST_STEP)
        return self._ahead[-1] if self._ahead else None

    def take(self) -> Record:
        return self._ahead.pop()


def merged(cursors: Sequence[PartitionCursor], most: int, limits: ReadLimits) -> MergedRecords:
    """Return the next `most` records of all partitions; within a partition they stay in their order."""
    step = max(-(-2 * most // max(len(cursors), 1)), LEAST_STEP)
    heap: list[tuple[int, int, int]] = []
    unread: set[int] = set()

    def push(at: int) -> None:
        cursor = cursors[at]
        record = cursor.head(step, limits)
        if record is not None:
            time = -record.timestamp if cursor.is_down else record.timestamp
            heapq.heappush(heap, (time, cursor.partition, at))
        elif not cursor.is_at_end:
            unread.add(at)

    for at in range(len(cursors)):
        push(at)
    found: list[PlacedRecord] = []
    while heap and len(found) < most:
        _, partition, at = heapq.heappop(heap)
        record = cursors[at].take()
        found.append(PlacedRecord(partition, record, record.offset < cursors[at].reader.local_start))
        push(at)
    return MergedRecords(
        tuple(found),
        tuple(limits.turns),
        {one.partition: one.position for one in cursors},
        all(one.is_at_end for one in cursors),
        limits.scanned,
        len(unread),
        tuple(limits.problems),
    )
