"""Partition work queue: dirty, ready, delayed. [P]

A key is in at most one of three sets. **Dirty**: something happened to it, so it has to be assessed.
**Ready**: it has work to do and waits for a free slot in its lane, smallest priority first. **Delayed**: it
has nothing to do, or has failed, and is assessed again at its due time, so that it holds up no other
(invariant T11). Each operation costs O(log n),
however many keys there are; none walks over all keys. Times are milliseconds of a monotonic clock.

>>> queue = WorkQueue(lanes=1, now_ms=0)
>>> queue.add_ready("b", 0, (2, 2, 0)); queue.add_ready("a", 0, (2, 1, 0)); queue.add_delayed("c", 50)
>>> queue.pop_ready(0), queue.next_due_ms <= 50
('a', True)
>>> queue.mark_dirty("b"); queue.pop_dirty(now_ms=50), queue.pop_dirty(now_ms=50), queue.pop_dirty(now_ms=50)
('b', 'c', None)
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from itertools import count
from typing import Final, Generic, NamedTuple, TypeVar, cast

from service.base.timing_wheel import Timer, TimingWheel

K = TypeVar("K", bound=Hashable)

Priority = tuple[int, int, int]
"""As of `planner.priority`: the smallest goes first."""

_SLACK: Final = 64
"""A lane keeps this many stale entries, plus as many as it has keys, before it is compacted."""


class _Position(NamedTuple):
    lane: int
    order: int


class WorkQueue(Generic[K]):
    """Keys of one node's partitions by what is to be done with them. Owned by the event loop."""

    def __init__(self, lanes: int, now_ms: int) -> None:
        self._order = count()
        self._dirty: dict[K, None] = {}
        self._ready: list[list[tuple[Priority, int, K]]] = [[] for _ in range(lanes)]
        self._positions: dict[K, _Position] = {}
        self._in_lane = [0] * lanes
        self._wheel = TimingWheel(now_ms)
        self._due: dict[K, Timer] = {}

    def mark_dirty(self, key: K) -> None:
        """Have `key` assessed again, whichever set it is in."""
        self._dirty[key] = None

    def add_ready(self, key: K, lane: int, priority: Priority) -> None:
        """Queue `key` for a slot in `lane`."""
        self.remove(key)
        position = self._positions[key] = _Position(lane, next(self._order))
        self._in_lane[lane] += 1
        heapq.heappush(self._ready[lane], (priority, position.order, key))

    def add_delayed(self, key: K, due_ms: int | None) -> None:
        """Have `key` assessed again at `due_ms`; None: not before it is marked dirty."""
        self.remove(key)
        if due_ms is not None:
            self._due[key] = self._wheel.add(due_ms, key)

    def remove(self, key: K) -> None:
        """Remove `key` from whichever set it is in."""
        self._dirty.pop(key, None)
        position = self._positions.pop(key, None)
        if position is not None:
            self._in_lane[position.lane] -= 1
            self._compact_lane(position.lane)
        timer = self._due.pop(key, None)
        if timer is not None:
            self._wheel.cancel(timer)

    def _compact_lane(self, lane: int) -> None:
        if len(self._ready[lane]) > 2 * self._in_lane[lane] + _SLACK:
            self._ready[lane] = [one for one in self._ready[lane] if self._is_current(lane, one)]
            heapq.heapify(self._ready[lane])

    def _is_current(self, lane: int, entry: tuple[Priority, int, K]) -> bool:
        return self._positions.get(entry[2]) == (lane, entry[1])

    @property
    def next_due_ms(self) -> int | None:
        """Time to call `pop_dirty` again, at the latest; None while no key is delayed."""
        return self._wheel.next_ms()

    def pop_dirty(self, now_ms: int) -> K | None:
        """Remove and return the next key to assess, dirty or due by now; None where there is none."""
        if not self._dirty:
            for item in self._wheel.advance(now_ms):
                self.mark_dirty(cast("K", item))
        key = next(iter(self._dirty), None)
        if key is not None:
            self.remove(key)
        return key

    def ready_count(self, lane: int) -> int:
        """Return how many keys are ready in `lane`."""
        return self._in_lane[lane]

    def pop_ready(self, lane: int) -> K | None:
        """Remove and return the ready key of smallest priority; None where there is none."""
        heap = self._ready[lane]
        while heap:
            entry = heapq.heappop(heap)
            if self._is_current(lane, entry):
                self.remove(entry[2])
                return entry[2]
        return None
