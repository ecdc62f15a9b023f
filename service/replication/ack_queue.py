"""Queue of acks=all requests of a partition, ordered by the offset that each waits for. [P]

The high watermark pops the front, so it costs nothing to leave the others in the queue. A request has one
timer, however many partitions it wrote to: a waiter that times out is marked as over, and leaves the queue
when it reaches the front or in a sweep.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final

_SWEEP_AT: Final = 64
"""Remove the waiters that are over once there are so many, and more than half of the queue is over."""


class Waiter:
    """One request's interest in one offset; it is notified once. `key` belongs to the caller."""

    __slots__ = ("is_over", "key", "offset")

    def __init__(self, key: object, offset: int) -> None:
        self.key = key
        self.offset = offset
        self.is_over = False


class AckQueue:
    """Waiters of one partition. A duplicate of a batch waits for the original's offset, so offsets do not
    always rise."""

    __slots__ = ("_heap", "_order", "_over")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Waiter]] = []
        self._order = 0
        self._over = 0

    def __len__(self) -> int:
        return len(self._heap) - self._over

    def wait(self, key: object, offset: int) -> Waiter:
        """Queue `key` until the high watermark is `offset` or more."""
        waiter = Waiter(key, offset)
        self._order += 1
        heappush(self._heap, (offset, self._order, waiter))
        return waiter

    def give_up(self, waiter: Waiter) -> bool:
        """Mark `waiter` as over, and forget its key; returns False if it is over already."""
        if waiter.is_over:
            return False
        waiter.is_over, waiter.key = True, None  # the queue keeps it, but not its request
        self._over += 1
        if self._over >= _SWEEP_AT and 2 * self._over > len(self._heap):
            self._heap = [one for one in self._heap if not one[2].is_over]
            heapify(self._heap)
            self._over = 0
        return True

    def passed(self, high_watermark: int) -> list[Waiter]:
        """Pop the waiters whose offsets are committed, in order, and mark them as over."""
        found: list[Waiter] = []
        heap = self._heap
        while heap and heap[0][0] <= high_watermark:
            waiter = heappop(heap)[2]
            if waiter.is_over:
                self._over -= 1
                continue
            waiter.is_over = True
            found.append(waiter)
        return found

    def dismiss(self) -> list[Waiter]:
        """Pop all waiters, in order, and mark them as over."""
        return self.passed(2**63)
