"""Who is looked at when: what was told of, what waits for a place, and what is due later. [P]

A key is in at most one of three places. **News**: something has happened to it, it is to be assessed.
**Ready**: it has work to do and waits for a place in its lane, the smallest priority first. **Due**: it has
nothing to do, or has failed, and is assessed again at its time. Each step costs O(log n), however many keys
there are; nothing here ever walks over all of them.

>>> agenda = Agenda(lanes=1)
>>> agenda.ready("b", 0, (True, 2, 0)); agenda.ready("a", 0, (True, 1, 0)); agenda.due("c", 50)
>>> agenda.take_ready(0), agenda.next_due_ms
('a', 50)
>>> agenda.tell("b"); agenda.take_news(now_ms=50), agenda.take_news(now_ms=50), agenda.take_news(now_ms=50)
('b', 'c', None)
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from itertools import count
from typing import Final, Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)

Priority = tuple[bool, int, int]
"""As `planner.priority`: the smallest goes first."""

_SLACK: Final = 64
"""So many entries that count no more are kept, and as many as there are keys."""


class _Place(NamedTuple):
    lane: int
    order: int


class Agenda(Generic[K]):
    """The keys of one node's partitions, by what is to be done with them. Owned by the event loop."""

    def __init__(self, lanes: int) -> None:
        self._order = count()
        self._news: dict[K, None] = {}
        self._ready: list[list[tuple[Priority, int, K]]] = [[] for _ in range(lanes)]
        self._places: dict[K, _Place] = {}
        self._in_lane = [0] * lanes
        self._due: list[tuple[int, int, K]] = []
        self._due_ms: dict[K, int] = {}

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
            self._due_ms[key] = due_ms
            heapq.heappush(self._due, (due_ms, next(self._order), key))

    def forget(self, key: K) -> None:
        """`key` is nowhere."""
        self._news.pop(key, None)
        place = self._places.pop(key, None)
        if place is not None:
            self._in_lane[place.lane] -= 1
            self._tidy_lane(place.lane)
        if self._due_ms.pop(key, None) is not None and len(self._due) > 2 * len(self._due_ms) + _SLACK:
            self._due = [one for one in self._due if self._due_ms.get(one[2]) == one[0]]
            heapq.heapify(self._due)

    def _tidy_lane(self, lane: int) -> None:
        if len(self._ready[lane]) > 2 * self._in_lane[lane] + _SLACK:
            self._ready[lane] = [one for one in self._ready[lane] if self._is_there(lane, one)]
            heapq.heapify(self._ready[lane])

    def _is_there(self, lane: int, entry: tuple[Priority, int, K]) -> bool:
        return self._places.get(entry[2]) == (lane, entry[1])

    @property
    def has_news(self) -> bool:
        """Whether anything was told of. What is due by now is `take_news`'s to find."""
        return bool(self._news)

    @property
    def next_due_ms(self) -> int | None:
        """When `take_news` gives what was due later."""
        while self._due and self._due_ms.get(self._due[0][2]) != self._due[0][0]:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def take_news(self, now_ms: int) -> K | None:
        """The next key to assess: told of, or due by now. None where there is none."""
        key = next(iter(self._news), None)
        if key is None:
            due_ms = self.next_due_ms
            if due_ms is None or due_ms > now_ms:
                return None
            key = self._due[0][2]
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
