"""Who is looked at when: what was told of, what waits for a place, and what is due later. [P]

A key is in at most one of three places. **News**: something has happened to it, it is to be assessed.
**Ready**: it has work to do and waits for a place in its lane, the smallest priority first. **Due**: it has
nothing to do, or has failed, and is assessed again at its time. Each step costs O(log n), however many keys
there are; nothing here ever walks over all of them. Times are milliseconds of a clock that never goes back.

>>> agenda = Agenda(lanes=1, now_ms=0)
>>> agenda.ready("b", 0, (2, 2, 0)); agenda.ready("a", 0, (2, 1, 0)); agenda.due("c", 50)
>>> agenda.take_ready(0), agenda.next_due_ms <= 50
('a', True)
>>> agenda.tell("b"); agenda.take_news(now_ms=50), agenda.take_news(now_ms=50), agenda.take_news(now_ms=50)
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
"""As `planner.priority`: the smallest goes first."""

_SLACK: Final = 64
"""So many entries of a lane that count no more are kept, and as many as there are keys in it."""


class _Place(NamedTuple):
    lane: int
    order: int


class Agenda(Generic[K]):
    """The keys of one node's partitions, by what is to be done with them. Owned by the event loop."""

    def __init__(self, lanes: int, now_ms: int) -> None:
        self._order = count()
        self._news: dict[K, None] = {}
        self._ready: list[list[tuple[Priority, int, K]]] = [[] for _ in range(lanes)]
        self._places: dict[K, _Place] = {}
        self._in_lane = [0] * lanes
        self._wheel = TimingWheel(now_ms)
        self._due: dict[K, Timer] = {}

    def tell(self, key: K) -> None:
        """Something has happened to `key`: it is to be assessed again, wherever it is now."""
        self._news[key] = None

    def ready(self, key: K, lane: int, priority: Priority) -> None:
        """`key` waits for a place in `lane`."""
        self.forget(key)
        place = self._places[key] = _Place(lane, next(self._order))
        self._in_lane[lane] += 1
        heapq.heappush(self._ready[lane], (priority, place.order, key))

    def due(self, key: K, due_ms: int | None) -> None:
        """`key` is to be assessed again at `due_ms`; None: not before it is told of."""
        self.forget(key)
        if due_ms is not None:
            self._due[key] = self._wheel.add(due_ms, key)

    def forget(self, key: K) -> None:
        """`key` is nowhere."""
        self._news.pop(key, None)
        place = self._places.pop(key, None)
        if place is not None:
            self._in_lane[place.lane] -= 1
            self._tidy_lane(place.lane)
        timer = self._due.pop(key, None)
        if timer is not None:
            self._wheel.cancel(timer)

    def _tidy_lane(self, lane: int) -> None:
        if len(self._ready[lane]) > 2 * self._in_lane[lane] + _SLACK:
            self._ready[lane] = [one for one in self._ready[lane] if self._is_there(lane, one)]
            heapq.heapify(self._ready[lane])

    def _is_there(self, lane: int, entry: tuple[Priority, int, K]) -> bool:
        return self._places.get(entry[2]) == (lane, entry[1])

    @property
    def next_due_ms(self) -> int | None:
        """When to ask `take_news` again, at the latest; None while nothing is due later."""
        return self._wheel.next_ms()

    def take_news(self, now_ms: int) -> K | None:
        """The next key to assess: told of, or due by now. None where there is none."""
        if not self._news:
            for item in self._wheel.advance(now_ms):
                self.tell(cast("K", item))
        key = next(iter(self._news), None)
        if key is not None:
            self.forget(key)
        return key

    def waiting(self, lane: int) -> int:
        """How many keys are ready in `lane`."""
        return self._in_lane[lane]

    def take_ready(self, lane: int) -> K | None:
        """The ready key of the smallest priority, which is nowhere from now on."""
        heap = self._ready[lane]
        while heap:
            entry = heapq.heappop(heap)
            if self._is_there(lane, entry):
                self.forget(entry[2])
                return entry[2]
        return None
