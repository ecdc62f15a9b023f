"""Who waits until a partition's records are committed, in order of offsets (acks=all). [P]

The high watermark pops the front, so nobody looks at those behind. A request has one timer, whatever number
of partitions it wrote to: who runs out of time is marked as over, and leaves the queue with its turn.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final

_SWEEP_AT: Final = 64
"""Those whose time was over are swept out where they are so many, and the greater part."""


class Waiter:
    """One request's interest in one offset: it is told once. `key` is the caller's own."""

    __slots__ = ("is_over", "key", "offset")

    def __init__(self, key: object, offset: int) -> None:
        self.key = key
        self.offset = offset
        self.is_over = False


class AckQueue:
    """Waiters of one partition. A duplicate of a batch waits for the original's offset, so offsets do not
    only rise."""

    __slots__ = ("_heap", "_order", "_over")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Waiter]] = []
        self._order = 0
        self._over = 0

    def __len__(self) -> int:
        return len(self._heap) - self._over

    def wait(self, key: object, offset: int) -> Waiter:
        """Until the high watermark is `offset` or more."""
        waiter = Waiter(key, offset)
        self._order += 1
        heappush(self._heap, (offset, self._order, waiter))
        return waiter

    def give_up(self, waiter: Waiter) -> bool:
        """`waiter` need not be told any more; False where it was told before."""
        if waiter.is_over:
            return False
        waiter.is_over = True
        self._over += 1
        if self._over >= _SWEEP_AT and 2 * self._over > len(self._heap):
            self._heap = [one for one in self._heap if not one[2].is_over]
            heapify(self._heap)
            self._over = 0
        return True

    def passed(self, high_watermark: int) -> list[Waiter]:
        """Those whose offsets are committed now, in order; they are over by this."""
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
        """All of them, in order; they are over by this."""
        return self.passed(2**63)
